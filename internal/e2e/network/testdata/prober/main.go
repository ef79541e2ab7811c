// Command prober makes one attempt from inside a sandbox, given by its arguments. It
// prints the result in one line: "ok" and what it heard, or "no" and why.
//
//	prober tcp ADDR TEXT              connect, send, hear
//	prober slow ADDR TEXT TEXT        the same, with a pause between
//	prober held ADDR TEXT TEXT        the same, with a line of the input between
//	prober tls ADDR NAME [split|ech]  handshake for a name; "-" for none
//	prober http ADDR REQUEST          send as it is (\r\n escaped), hear the answer
//	prober udp ADDR TEXT
//	prober from ADDR TO               send by UDP from an address, hear
//	prober ping ADDR                  ask for an echo
//	prober dns SERVER NAME TYPE       ask; NAME is taken byte by byte, \x00 escaped
//	prober flood SERVER DOMAIN N      ask for N names; prints how many were refused
//	prober download ADDR              connect and read without end; prints why it ended
//	prober load SECONDS RATE YES NO   connect so often a second to YES, which answers, and to
//	                                  NO, which must not; prints how many went otherwise
//	prober frames                     put frames on the link that nobody should
package main

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// patience is how long a probe waits for an answer.
var patience = 3 * time.Second

func main() {
	if d, err := time.ParseDuration(os.Getenv("PATIENCE")); err == nil {
		patience = d
	}
	heard, err := probe(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Println("no", strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	fmt.Printf("ok %q\n", heard)
}

func probe(what string, args []string) (string, error) {
	switch what {
	case "tcp":
		return talk("tcp", args[0], word(args[1]))
	case "slow":
		return talk("tcp", args[0], args[1:]...)
	case "held":
		return held(args[0], args[1], args[2])
	case "udp":
		return talk("udp", args[0], args[1])
	case "from":
		from, err := net.ResolveUDPAddr("udp", net.JoinHostPort(args[0], "0"))
		if err != nil {
			return "", err
		}
		d := net.Dialer{LocalAddr: from}
		conn, err := d.Dial("udp", args[1])
		if err != nil {
			return "", err
		}
		return converse(conn, "x")
	case "ping":
		return ping(args[0])
	case "tls":
		return hello(args[0], args[1], strings.Join(args[2:], ""))
	case "http":
		text, err := strconv.Unquote(`"` + args[1] + `"`)
		if err != nil {
			return "", err
		}
		return talk("tcp", args[0], text)
	case "dns":
		name, err := strconv.Unquote(`"` + args[1] + `"`)
		if err != nil {
			return "", err
		}
		code, addrs, err := ask(args[0], name, args[2])
		return fmt.Sprint(code, " ", strings.Join(addrs, ",")), err
	case "flood":
		n, err := strconv.Atoi(args[2])
		refused := 0
		for i := 0; i < n && err == nil; i++ {
			var code int
			if code, _, err = ask(args[0], fmt.Sprintf("x%d.%s", i, args[1]), "1"); code == 5 {
				refused++
			}
		}
		return strconv.Itoa(refused), err
	case "download":
		conn, err := net.DialTimeout("tcp", args[0], patience)
		if err != nil {
			return "", err
		}
		fmt.Println("started")
		n, err := io.Copy(io.Discard, conn)
		return strconv.FormatInt(n, 10), err
	case "frames":
		return frames()
	case "load":
		return load(args)
	}
	return "", errors.New("what is " + what + "?")
}

// word returns a text as a Redis command: with name rules, a connection of no known
// protocol does not pass.
func word(text string) string { return fmt.Sprintf("*1\r\n$%d\r\n%s\r\n", len(text), text) }

// load connects again and again.
func load(args []string) (string, error) {
	seconds, err := strconv.Atoi(args[0])
	rate, err2 := strconv.Atoi(args[1])
	if err := errors.Join(err, err2); err != nil {
		return "", err
	}
	var wg sync.WaitGroup
	var good, bad, wrong atomic.Int64
	var first atomic.Value
	busy := make(chan struct{}, 2*rate)
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := range seconds * rate {
		<-tick.C
		busy <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { <-busy }()
			_, err := talk("tcp", args[2+i%2], word("x"))
			switch {
			case i%2 == 0 && err == nil:
				good.Add(1)
			case i%2 == 1 && err != nil:
				bad.Add(1)
			default:
				wrong.Add(1)
				first.CompareAndSwap(nil, fmt.Sprint(args[2+i%2], ": ", err))
			}
		}()
	}
	wg.Wait()
	return fmt.Sprintf("%d reached, %d refused, %d otherwise: %v", good.Load(), bad.Load(), wrong.Load(), first.Load()), nil
}

// talk sends texts, with pauses between, and hears an answer.
func talk(network, addr string, texts ...string) (string, error) {
	conn, err := net.DialTimeout(network, addr, patience)
	if err != nil {
		return "", err
	}
	return converse(conn, texts...)
}

// held sends a text, and waits for a line of its input as long as it takes. Then it sends
// the other text on the same connection, and hears the answer to both.
func held(addr, first, second string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, first); err != nil {
		return "", err
	}
	fmt.Println("held")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, second); err != nil {
		return "", err
	}
	buf := make([]byte, len(first)+len(second))
	n, err := io.ReadFull(conn, buf)
	return string(buf[:n]), err
}

func converse(conn net.Conn, texts ...string) (string, error) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	for i, text := range texts {
		if i > 0 {
			time.Sleep(1500 * time.Millisecond)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	for more := n; err == nil && more > 0 && conn.RemoteAddr().Network() == "tcp"; n += more { // data that follows at once is part of the answer
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		more, _ = conn.Read(buf[n:])
	}
	return string(buf[:n]), err
}

// ping asks an address for an echo, as a program without privileges does.
func ping(addr string) (string, error) {
	ip := net.ParseIP(addr)
	family, proto, request := syscall.AF_INET6, syscall.IPPROTO_ICMPV6, byte(128)
	to := syscall.Sockaddr(&syscall.SockaddrInet6{Addr: [16]byte(ip.To16())})
	if v4 := ip.To4(); v4 != nil {
		family, proto, request, to = syscall.AF_INET, syscall.IPPROTO_ICMP, 8, &syscall.SockaddrInet4{Addr: [4]byte(v4)}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM, proto)
	if err != nil {
		return "", err
	}
	defer syscall.Close(fd)
	wait := syscall.NsecToTimeval(int64(patience / 3))
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait); err != nil {
		return "", err
	}
	if err := syscall.Sendto(fd, []byte{request, 0, 0, 0, 0, 0, 0, 1, 'x'}, 0, to); err != nil {
		return "", err
	}
	buf := make([]byte, 100)
	n, _, err := syscall.Recvfrom(fd, buf, 0)
	if err == nil && (n != 9 || buf[8] != 'x') {
		err = fmt.Errorf("an answer of %d bytes", n)
	}
	return "echo", err
}

// pieces writes byte by byte.
type pieces struct{ net.Conn }

func (p pieces) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := p.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

// withECH adds to the first record an extension that hides the server's name.
type withECH struct {
	net.Conn
	done bool
}

func (c *withECH) Write(b []byte) (int, error) {
	if c.done {
		return c.Conn.Write(b)
	}
	c.done = true
	record := append(append([]byte{}, b...), 0xfe, 0x0d, 0, 0)
	add := func(at, size int) {
		n := 0
		for _, b := range record[at : at+size] {
			n = n<<8 | int(b)
		}
		n += 4
		for i := size - 1; i >= 0; i-- {
			record[at+i], n = byte(n), n>>8
		}
	}
	at := 5 + 4 + 2 + 32
	at += 1 + int(record[at])
	at += 2 + int(record[at])<<8 + int(record[at+1])
	at += 1 + int(record[at])
	add(3, 2)
	add(6, 3)
	add(at, 2)
	if _, err := c.Conn.Write(record); err != nil {
		return 0, err
	}
	return len(b), nil
}

func hello(addr, name, how string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	switch how {
	case "split":
		conn = pieces{conn}
	case "ech":
		conn = &withECH{Conn: conn}
	}
	if name == "-" {
		name = ""
	}
	server := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err := server.Handshake(); err != nil {
		return "", err
	}
	text, err := io.ReadAll(server)
	return string(text), err
}

// ask sends a question by UDP and returns the answer's code and its addresses.
func ask(server, name, qtype string) (code int, addrs []string, err error) {
	typ, err := strconv.Atoi(qtype)
	if err != nil {
		return 0, nil, err
	}
	q := []byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for _, label := range strings.Split(name, ".") {
		q = append(q, byte(len(label)))
		q = append(q, label...)
	}
	q = append(q, 0, 0, byte(typ), 0, 1)
	conn, err := net.DialTimeout("udp", server, patience)
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(q); err != nil {
		return 0, nil, err
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil {
		return 0, nil, err
	}
	if n < len(q) {
		return int(buf[3] & 15), nil, nil
	}
	at := len(q)
	for i := 0; i < int(binary.BigEndian.Uint16(buf[6:])) && at+12 <= n; i++ {
		for at < n && buf[at] != 0 && buf[at]&0xc0 == 0 {
			at += 1 + int(buf[at])
		}
		if buf[at] != 0 {
			at++
		}
		at++
		size := int(binary.BigEndian.Uint16(buf[at+8:]))
		if t := binary.BigEndian.Uint16(buf[at:]); t == 1 || t == 28 {
			addrs = append(addrs, net.IP(buf[at+10:at+10+size]).String())
		}
		at += 10 + size
	}
	return int(buf[3] & 15), addrs, nil
}

// frames writes to the link itself: packets from foreign addresses, to the neighbours and
// beyond, and ARP packets that claim others' addresses.
func frames() (string, error) {
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, 0x0300)
	if err != nil {
		return "", fmt.Errorf("packet socket: %w", err)
	}
	ifi, err := net.InterfaceByName("eth0")
	if err != nil {
		return "", err
	}
	to := syscall.SockaddrLinklayer{Ifindex: ifi.Index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	eth := append(append([]byte{0x02, 0xc0, 0x7e, 0, 0, 1}, ifi.HardwareAddr...), 8, 0)
	ip := func(src, dst [4]byte, proto byte) []byte {
		p := make([]byte, 28)
		p[0], p[3], p[8], p[9] = 0x45, 28, 64, proto
		copy(p[12:], src[:])
		copy(p[16:], dst[:])
		sum := uint32(0)
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(p[10:], ^uint16(sum))
		binary.BigEndian.PutUint16(p[20:], 4000)
		binary.BigEndian.PutUint16(p[22:], 9)
		binary.BigEndian.PutUint16(p[24:], 8)
		return append(append([]byte{}, eth...), p...)
	}
	eth6 := append(append([]byte{}, eth[:12]...), 0x86, 0xdd)
	ip6 := func(src, dst string, next byte, body ...byte) []byte {
		p := append([]byte{0x60, 0, 0, 0, 0, byte(len(body)), next, 255}, net.ParseIP(src)...)
		return append(append(append(append([]byte{}, eth6...), p...), net.ParseIP(dst)...), body...)
	}
	own, self, public := "fdc0:7e2d:914b::1", "fdc0:7e2d:914b:1::1", "2620:4f:8000:1::2"
	datagram := []byte{15, 160, 0, 9, 0, 8, 0, 0}
	claim := append(append([]byte{136, 0, 0, 0, 0xe0, 0, 0, 0}, net.ParseIP(own)...), 2, 1, 2, 2, 2, 2, 2, 2)
	sent := 0
	for _, frame := range [][]byte{
		ip6("fdc0:7e2d:914b:1::7", public, 17, datagram...),
		ip6("2620:4f:8000::1", public, 17, datagram...),
		ip6("fe80::1", public, 17, datagram...),
		ip6(self, public, 0, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, datagram...)...),
		ip6(self, public, 44, append([]byte{17, 0, 0, 1, 0, 0, 0, 9}, datagram...)...),
		ip6(self, "ff02::1", 17, datagram...),
		ip6(own, "ff02::1", 58, claim...),
		ip6(self, own, 58, claim...),
		ip6("fe80::1", "ff02::1", 58, 134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0),
		ip([4]byte{10, 88, 7, 7}, [4]byte{198, 51, 100, 2}, 17),
		ip([4]byte{198, 51, 100, 1}, [4]byte{198, 51, 100, 2}, 17),
		ip([4]byte{198, 51, 100, 1}, [4]byte{10, 1, 2, 3}, 17),
		ip([4]byte{10, 88, 7, 7}, [4]byte{255, 255, 255, 255}, 17),
		ip([4]byte{10, 88, 7, 7}, [4]byte{198, 51, 100, 2}, 47),
		append(append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, ifi.HardwareAddr...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 2, 2, 2, 2, 2, 10, 88, 0, 1, 2, 2, 2, 2, 2, 2, 10, 88, 0, 1),
	} {
		if err := syscall.Sendto(fd, frame, 0, &to); err == nil {
			sent++
		}
	}
	return strconv.Itoa(sent), nil
}
