package gateway

import (
	"io"
	"net"
	"testing"
)

var benchLinks = []string{"tap", "veth"}

// BenchmarkDial connects into the sandbox; the kernel's own loopback is the floor.
func BenchmarkDial(b *testing.B) {
	b.Run("floor", func(b *testing.B) {
		l := listenIn(b, hostNS(b), "127.0.0.1:0")
		serveTCP(b, l, func(*net.TCPConn) {})
		for b.Loop() {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			_ = c.Close()
		}
	})
	for _, link := range benchLinks {
		b.Run(link, func(b *testing.B) {
			w := newWorld(b, link, nil)
			l := listenIn(b, w.ns, guestIP+":0")
			serveTCP(b, l, func(*net.TCPConn) {})
			for b.Loop() {
				c, err := w.Dial(b.Context(), int(tcpPort(l.Addr())))
				if err != nil {
					b.Fatal(err)
				}
				_ = c.Close()
			}
		})
		b.Run(link+"-out", func(b *testing.B) {
			l := listenIn(b, internetNS, publicIP+":0")
			serveTCP(b, l, func(*net.TCPConn) {})
			w := newWorld(b, link, nil)
			err := InNetNS(w.ns, func() error {
				for b.Loop() {
					c, err := net.Dial("tcp", l.Addr().String())
					if err != nil {
						return err
					}
					_, _ = c.Read(make([]byte, 1))
					_ = c.Close()
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkThroughput moves bytes between the sandbox and the host's loopback.
func BenchmarkThroughput(b *testing.B) {
	chunk := make([]byte, 256<<10)
	push := func(b *testing.B, c net.Conn) {
		b.SetBytes(int64(len(chunk)))
		for b.Loop() {
			if _, err := c.Write(chunk); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.(halfCloser).CloseWrite()
		_, _ = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	pull := func(b *testing.B, c net.Conn) {
		b.SetBytes(int64(len(chunk)))
		buf := make([]byte, len(chunk))
		for b.Loop() {
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.Close()
	}
	sink := func(c *net.TCPConn) {
		buf := make([]byte, 256<<10)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
		}
	}
	source := func(c *net.TCPConn) {
		for {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	}
	for _, link := range benchLinks {
		for name, dir := range map[string]struct {
			serve func(*net.TCPConn)
			run   func(*testing.B, net.Conn)
		}{"send": {sink, push}, "receive": {source, pull}} {
			b.Run(link+"-out-"+name, func(b *testing.B) {
				l := listenIn(b, hostNS(b), "127.0.0.2:0")
				serveTCP(b, l, dir.serve)
				nat := listenIn(b, hostNS(b), hostIP+":0")
				serveTCP(b, nat, dir.serve)
				w := newWorld(b, link, func(g *Gateway) { g.Policy = named(b, nat) })
				c, err := w.dial("tcp", nat.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				dir.run(b, c)
			})
			b.Run(link+"-in-"+name, func(b *testing.B) {
				w := newWorld(b, link, nil)
				l := listenIn(b, w.ns, guestIP+":0")
				serveTCP(b, l, dir.serve)
				c, err := w.Dial(b.Context(), int(tcpPort(l.Addr())))
				if err != nil {
					b.Fatal(err)
				}
				dir.run(b, c)
			})
		}
	}
}
