package network

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// An island is a host in a network namespace without any way out. Its only neighbour is
// another namespace (the sea). There, public, private and metadata addresses are real
// machines. The server can reach all of them; a sandbox must not.
type island struct {
	*e2e.Host
	sea     int
	inward  atomic.Int64 // connections and datagrams that got to where none may
	honest  atomic.Int64 // datagrams with the text honest, by IPv4
	honest6 atomic.Int64 // and by IPv6
	strange atomic.Int64 // all others, from an address that is nobody's
}

// honest is the text of datagrams that a sandbox sends as itself.
const honest = "honest"

const (
	islandHost   = "192.31.196.1"
	islandNear   = "192.31.196.2" // its router
	islandPublic = "192.52.193.2"
	islandOther  = "192.52.193.3"

	islandHost6   = "2620:4f:8000::1"
	islandPublic6 = "2620:4f:8000:1::2"
	islandOther6  = "2620:4f:8000:1::3"
	islandNear6   = "2620:4f:8000::9" // a neighbour of the host's
)

// islandInward are addresses that no sandbox reaches without a rule that names them.
var islandInward = []string{
	"10.1.2.3", "172.16.0.9", "192.168.7.7", "100.64.0.5", "169.254.169.254", "169.254.9.9", "100.100.100.200",
	"fd00:ec2::254", "fd12::9", "fec0::9", "2002:a01:203::1", "64:ff9b::a01:203", "64:ff9b::a9fe:a9fe", islandNear, "192.31.196.9", islandNear6,
}

func newIsland(t *testing.T) *island {
	need.Root(t)
	var ns [2]int
	for n := range ns {
		fd, err := gateway.NewNetNS()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		ns[n] = fd
	}
	i := &island{Host: e2e.NewHost(t), sea: ns[1]}
	i.NS = ns[0]
	up := func(name string, addrs ...string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, text := range addrs {
			addr, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(l, addr); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
		return netlink.LinkSetUp(l)
	}
	err := i.Within(func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "coast"}, PeerName: "sea", PeerNamespace: netlink.NsFd(i.sea)}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		if err := up("lo"); err != nil {
			return err
		}
		if err := up("coast", islandHost+"/24", islandHost6+"/64"); err != nil {
			return err
		}
		err := gateway.InNetNS(i.sea, func() error {
			all := []string{
				islandNear + "/24", islandPublic + "/32", islandOther + "/32", "2620:4f:8000::2/64", islandPublic6 + "/128", islandOther6 + "/128", "fe80::5ea/64",
			}
			for _, a := range islandInward {
				if strings.Contains(a, ":") {
					all = append(all, a+"/128")
				} else {
					all = append(all, a+"/32")
				}
			}
			if err := up("lo"); err != nil {
				return err
			}
			return up("sea", all...)
		})
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(islandNear)}); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("2620:4f:8000::2")})
	})
	if err != nil {
		t.Fatal(err)
	}
	i.populate()
	i.Write("resolv.conf", "nameserver "+islandNear+"\noptions timeout:1\n")
	i.start()
	return i
}

// seaIndex returns the number of the sea's interface, for its scoped addresses.
func (i *island) seaIndex() (n int) {
	i.T.Helper()
	err := gateway.InNetNS(i.sea, func() error {
		l, err := netlink.LinkByName("sea")
		if err == nil {
			n = l.Attrs().Index
		}
		return err
	})
	if err != nil {
		i.T.Fatal(err)
	}
	return n
}

// start starts the server, which uses the sea's resolver.
func (i *island) start() {
	i.T.Helper()
	conf := filepath.Join(filepath.Dir(i.Home), "resolv.conf")
	log, err := os.OpenFile(filepath.Join(i.Data, "serve.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		i.T.Fatal(err)
	}
	defer log.Close()
	cmd := i.Command("", "unshare", "--mount", "--propagation", "private", "sh", "-c", "mount --bind "+conf+` /etc/resolv.conf && exec "$0" "$@"`,
		filepath.Join(i.Bin, "cove"), "serve", "--addr", "127.0.0.1:0")
	cmd.Stdout, cmd.Stderr = log, log
	if err := i.Within(cmd.Start); err != nil {
		i.T.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	e2e.Await(i.T, "the server", func() bool {
		pid, err := e2e.ServerPID(i.Data)
		return err == nil && pid == cmd.Process.Pid
	})
}

// listen serves each connection to an address of the sea with f.
func (i *island) listen(ns int, addr string, f func(net.Conn)) {
	i.T.Helper()
	var l net.Listener
	err := gateway.InNetNS(ns, func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		i.T.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				stop := context.AfterFunc(i.T.Context(), func() { _ = conn.Close() })
				defer stop()
				f(conn)
			})
		}
	})
	i.T.Cleanup(func() { _ = l.Close(); wg.Wait() })
}

// hear counts the datagrams to an address.
func (i *island) hear(addr string, f func(net.PacketConn, []byte, net.Addr)) {
	i.T.Helper()
	var pc net.PacketConn
	err := gateway.InNetNS(i.sea, func() (err error) {
		pc, err = net.ListenPacket("udp", addr)
		return err
	})
	if err != nil {
		i.T.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			f(pc, buf[:n], from)
		}
	}()
	i.T.Cleanup(func() { _ = pc.Close(); <-done })
}

// populate starts the machines that may be reached, and those that must not.
func (i *island) populate() {
	trap := func(conn net.Conn) { i.inward.Add(1) }
	for _, addr := range islandInward {
		for _, port := range []string{"80", "443", "22"} {
			i.listen(i.sea, net.JoinHostPort(addr, port), trap)
		}
		i.hear(net.JoinHostPort(addr, "9"), func(net.PacketConn, []byte, net.Addr) { i.inward.Add(1) })
	}
	i.listen(i.NS, islandHost+":80", trap)
	i.listen(i.NS, "["+islandHost6+"]:80", trap)
	i.listen(i.NS, "127.0.0.1:80", trap)
	i.listen(i.NS, "[::1]:80", trap)
	i.listen(i.sea, fmt.Sprintf("[fe80::5ea%%%d]:80", i.seaIndex()), trap)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.T.Fatal(err)
	}
	blank := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, blank, blank, &key.PublicKey, key)
	if err != nil {
		i.T.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	for _, addr := range []string{islandPublic, islandOther, "[" + islandPublic6 + "]", "[" + islandOther6 + "]"} {
		i.listen(i.sea, addr+":80", func(conn net.Conn) {
			r := bufio.NewReader(conn)
			for {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				body := "host " + req.Host
				_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		})
		i.listen(i.sea, addr+":443", func(conn net.Conn) {
			server := tls.Server(conn, config)
			if server.Handshake() == nil {
				_, _ = io.WriteString(server, "name "+server.ConnectionState().ServerName)
				_ = server.Close()
			}
		})
		i.listen(i.sea, addr+":7", func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
		i.listen(i.sea, addr+":19", func(conn net.Conn) {
			for block := make([]byte, 64<<10); ; {
				if _, err := conn.Write(block); err != nil {
					return
				}
			}
		})
		i.listen(i.sea, addr+":853", func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
		i.hear(addr+":7", func(pc net.PacketConn, p []byte, from net.Addr) { _, _ = pc.WriteTo(p, from) })
		i.hear(addr+":9", func(_ net.PacketConn, p []byte, _ net.Addr) {
			switch {
			case string(p) != honest:
				i.strange.Add(1)
			case strings.HasPrefix(addr, "["):
				i.honest6.Add(1)
			default:
				i.honest.Add(1)
			}
		})
	}
	var lookups atomic.Int64
	answer := dns.HandlerFunc(func(w dns.ResponseWriter, req *dns.Msg) {
		resp := new(dns.Msg).SetReply(req)
		q := req.Question[0]
		add := func(text string) {
			rr, err := dns.NewRR(text)
			if err == nil {
				resp.Answer = append(resp.Answer, rr)
			}
		}
		name := strings.ToLower(q.Name)
		a := func(ip string) {
			typ := dns.TypeA
			if strings.Contains(ip, ":") {
				typ = dns.TypeAAAA
			}
			if q.Qtype == typ {
				add(q.Name + " 0 IN " + dns.TypeToString[typ] + " " + ip)
			}
		}
		switch {
		case name == "inward.test.":
			a("10.1.2.3")
		case name == "alias.test." && q.Qtype == dns.TypeA:
			add("alias.test. 0 IN CNAME metadata.test.")
			add("metadata.test. 0 IN A 169.254.169.254")
		case name == "rebind.test.":
			a([]string{islandPublic, "10.1.2.3"}[lookups.Add(1)%2])
		case name == "mixed.test.":
			a(islandPublic)
			a("10.1.2.3")
		case name == "host.test.":
			a(islandHost)
		case name == "six.test.":
			a("fd00:ec2::254")
			a("::ffff:10.1.2.3")
		case name == "alias6.test." && q.Qtype == dns.TypeAAAA:
			add("alias6.test. 0 IN CNAME metadata6.test.")
			add("metadata6.test. 0 IN AAAA fd00:ec2::254")
		case name == "rebind6.test.":
			a([]string{islandPublic6, "fd12::9"}[lookups.Add(1)%2])
		case name == "mixed6.test.":
			a(islandPublic6)
			a("fd12::9")
			a(islandPublic)
		case name == "host6.test.":
			a(islandHost6)
		case name == "near6.test.":
			a(islandNear6)
		case name == "nat64.test.":
			a("64:ff9b::a01:203")
			a("2002:a01:203::1")
		case name == "only6.test.", name == "time6.test.":
			a(islandPublic6)
		case name == "apart6.test.":
			a(islandOther6)
		case name == "both.test.":
			a(islandPublic)
			a(islandPublic6)
		case name == "apart.test.":
			a(islandOther)
		case strings.HasSuffix(name, ".test."):
			a(islandPublic)
		default:
			resp.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(resp)
	})
	i.hear(islandNear+":53", func(pc net.PacketConn, p []byte, from net.Addr) {
		req := new(dns.Msg)
		if req.Unpack(p) == nil && len(req.Question) == 1 {
			answer(&datagramAnswer{pc: pc, to: from}, req)
		}
	})
	i.listen(i.sea, islandPublic+":53", func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
}

// datagramAnswer is the part of dns.ResponseWriter that the sea's resolver needs.
type datagramAnswer struct {
	dns.ResponseWriter
	pc net.PacketConn
	to net.Addr
}

func (d *datagramAnswer) WriteMsg(m *dns.Msg) error {
	p, err := m.Pack()
	if err != nil {
		return err
	}
	_, err = d.pc.WriteTo(p, d.to)
	return err
}

// prober builds the program of testdata once for all tests of the package, and returns its path.
var prober = sync.OnceValues(func() (string, error) {
	name := filepath.Join(e2e.SharedDir(), "prober")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", name, "./testdata/prober")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the prober: %w\n%s", err, out)
	}
	return name, nil
})

// sprite makes a sprite with the prober in it.
func (i *island) sprite(name string) {
	i.T.Helper()
	prober, err := prober()
	if err != nil {
		i.T.Fatal(err)
	}
	i.Run("", "cove", "create", name, "--idle", "0")
	i.Run("", "cove", "cp", prober, name+":/home/sprite/prober")
}

// probe runs the prober in a sprite as root, and returns what it printed.
func (i *island) probe(sprite string, args ...string) string {
	i.T.Helper()
	return i.probeFor(3*time.Second, sprite, args...)
}

func (i *island) probeFor(patience time.Duration, sprite string, args ...string) string {
	i.T.Helper()
	args = append([]string{"exec", "-s", sprite, "--user", "root", "--env", "PATIENCE=" + patience.String(), "/home/sprite/prober"}, args...)
	return strings.TrimSpace(i.Run("", "cove", args...))
}

// heard probes a target that should answer, on a slow machine after a while. It repeats a
// probe whose datagram may be lost, or whose question the gateway's resolver had no time
// for.
func (i *island) heard(sprite string, args ...string) (got string) {
	i.T.Helper()
	patience := e2e.LastResort
	if slices.Contains([]string{"udp", "dns", "ping", "from", "load", "flood"}, args[0]) {
		patience = 3 * time.Second
	}
	for ; patience <= e2e.LastResort; patience *= 8 {
		got = i.probeFor(patience, sprite, args...)
		if !strings.Contains(got, "timeout") && !strings.Contains(got, "temporarily unavailable") && !strings.HasPrefix(got, `ok "2 `) {
			break
		}
	}
	return got
}

// reaches and fails check one probe.
func (i *island) reaches(sprite, want string, args ...string) {
	i.T.Helper()
	if got := i.heard(sprite, args...); !strings.HasPrefix(got, "ok") || !strings.Contains(got, want) {
		i.T.Errorf("%s: %s, want %q", strings.Join(args, " "), got, want)
	}
}

func (i *island) fails(sprite string, args ...string) {
	i.T.Helper()
	if got := i.probe(sprite, args...); !strings.HasPrefix(got, "no") {
		i.T.Errorf("%s: %s", strings.Join(args, " "), got)
	}
}

// policy sets a sprite's policy.
func (i *island) policy(sprite string, rules ...string) {
	i.T.Helper()
	i.Write("policy.json", `{"rules":[`+strings.Join(rules, ",")+`]}`)
	i.Run("", "cove", "policy", "set", "-q", "-s", sprite, filepath.Join(filepath.Dir(i.Home), "policy.json"))
}

// look has a sprite look names up.
func (i *island) look(sprite string, names ...string) {
	i.T.Helper()
	for _, name := range names {
		i.heard(sprite, "dns", resolver, name, "1")
	}
}

const resolver = "10.88.0.1:53" // where a sandbox asks

func allow(domains ...string) (rules []string) {
	for _, d := range domains {
		rules = append(rules, fmt.Sprintf(`{"domain":%q,"action":"allow"}`, d))
	}
	return rules
}

// anyIP has the host take public addresses for its own by a mere route, as AnyIP does. It
// returns a port of a listener there; taken counts the connections to it.
func (i *island) anyIP() (taken *atomic.Int64, port string) {
	i.T.Helper()
	taken = new(atomic.Int64)
	var ln net.Listener
	err := i.Within(func() (err error) {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, prefix := range []string{"20.7.0.0/16", "2a07:7::/32"} {
			_, dst, err := net.ParseCIDR(prefix)
			if err != nil {
				return err
			}
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL}); err != nil {
				return fmt.Errorf("%s: %w", prefix, err)
			}
		}
		ln, err = net.Listen("tcp", "[::]:0")
		return err
	})
	if err != nil {
		i.T.Fatal(err)
	}
	i.T.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			taken.Add(1)
			_ = conn.Close()
		}
	}()
	_, port, err = net.SplitHostPort(ln.Addr().String())
	if err != nil {
		i.T.Fatal(err)
	}
	// The host itself reaches the listener, so that a count of zero shows something.
	if err := i.Within(func() error {
		conn, err := net.Dial("tcp", "20.7.3.4:"+port)
		if err != nil {
			return err
		}
		return conn.Close()
	}); err != nil {
		i.T.Fatal(err)
	}
	e2e.Await(i.T, "a connection of the host's own", func() bool { return taken.Load() == 1 })
	taken.Store(0)
	return taken, port
}
