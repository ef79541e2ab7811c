package gateway

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// ruled returns n rules. The last is for allowed.example.
func ruled(n int) []string {
	var rules []string
	for i := range n - 1 {
		rules = append(rules, fmt.Sprintf("*.host%d.example:443", i))
	}
	return append(rules, "allowed.example")
}

// BenchmarkPolicyConnect opens connections out through two gateways, until the
// server's first byte is there. One has no rules, which is the floor. The other
// decides by names. The difference counts.
func BenchmarkPolicyConnect(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { connects(b, publicIP, n) })
	}
	b.Run("IPv6/1000", func(b *testing.B) { connects(b, publicIP6, 1000) })
}

func connects(b *testing.B, ip string, n int) {
	public := listenIn(b, internetNS, net.JoinHostPort(ip, "0"))
	serveTCP(b, public, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("x"))
		_, _ = io.Copy(io.Discard, c)
	})
	worlds := []*world{enforced(b), enforced(b, ruled(n)...)}
	var took [2][]time.Duration
	for _, w := range worlds {
		w.lookup(b, "allowed.example")
		w.ask(b, "udp", question("allowed.example.", dns.TypeAAAA))
	}
	for b.Loop() {
		for i, w := range worlds {
			begin := time.Now()
			c, err := w.dial("tcp", public.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(begin))
			_ = c.Close()
		}
	}
	for i, who := range []string{"floor", "ours"} {
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/2].Microseconds()), "p50-µs/"+who)
		b.ReportMetric(float64(took[i][len(took[i])*99/100].Microseconds()), "p99-µs/"+who)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPolicyThroughput moves bytes out of the sandbox, and into it, without
// rules, which is the floor, and under a name.
func BenchmarkPolicyThroughput(b *testing.B) {
	const size = 64 << 20
	public := listenIn(b, internetNS, publicIP+":0")
	serveTCP(b, public, func(c *net.TCPConn) { // takes the same as it gives
		what := make([]byte, 1)
		if _, err := io.ReadFull(c, what); err != nil {
			return
		}
		if what[0] == 1 {
			n, _ := io.CopyN(io.Discard, c, size)
			if n == size {
				_, _ = c.Write(what)
			}
			return
		}
		for block, left := make([]byte, 256<<10), size; left > 0; left -= len(block) {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	worlds := []*world{enforced(b), enforced(b, "allowed.example")}
	for _, w := range worlds {
		w.lookup(b, "allowed.example")
	}
	for what, name := range map[byte]string{1: "out", 2: "in"} {
		b.Run(name, func(b *testing.B) {
			var took [2]time.Duration
			for b.Loop() {
				for i, w := range worlds {
					c, err := w.dial("tcp", public.Addr().String())
					if err != nil {
						b.Fatal(err)
					}
					begin := time.Now()
					if _, err := c.Write([]byte{what}); err != nil {
						b.Fatal(err)
					}
					if what == 1 {
						block := make([]byte, 256<<10)
						for range size / len(block) {
							if _, err := c.Write(block); err != nil {
								b.Fatal(err)
							}
						}
						_, err = io.ReadFull(c, make([]byte, 1))
					} else {
						_, err = io.CopyN(io.Discard, c, size)
					}
					if err != nil {
						b.Fatal(err)
					}
					took[i] += time.Since(begin)
					_ = c.Close()
				}
			}
			for i, who := range []string{"floor", "ours"} {
				b.ReportMetric(float64(size)*float64(b.N)/1e6/took[i].Seconds(), "MB/s-"+who)
			}
			b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "of-floor")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkPolicyDNS answers a question from the cache.
func BenchmarkPolicyDNS(b *testing.B) {
	w := enforced(b, ruled(1000)...)
	c, err := w.dial("udp", gwIP+":53")
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	dc := &dns.Conn{Conn: c}
	q := question("allowed.example.", dns.TypeA)
	for b.Loop() {
		if err := dc.WriteMsg(q); err != nil {
			b.Fatal(err)
		}
		if _, err := dc.ReadMsg(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestIdleConns: thousands of open connections take little memory, and give it
// back when they have gone.
func TestIdleConns(t *testing.T) {
	const n = 2000
	public := listenIn(t, internetNS, publicIP+":0")
	serveTCP(t, public, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	w := enforced(t, "allowed.example")
	w.lookup(t, "allowed.example")
	before := held()
	conns := make([]net.Conn, 0, n)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	addr := netip.MustParseAddrPort(public.Addr().String())
	for range n {
		c, err := w.dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte{0}); err != nil { // so that it has been looked at
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	each := (held() - before) / n
	t.Logf("%d KiB each, the test's own ends included", each>>10)
	if each > 128<<10 {
		t.Errorf("a connection costs %d KiB", each>>10)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	conns = nil
	waitFor(t, "their memory to be given back", func() bool { return held()-before < 16<<20 })
}
