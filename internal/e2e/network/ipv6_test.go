package network

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestInwardReachable: the addresses that TestInward finds closed exist. The host reaches
// them, and so does a sandbox by a rule that names them.
func TestInwardReachable(t *testing.T) {
	i := newIsland(t)
	i.sprite("paint")
	here := []string{net.JoinHostPort(islandHost6, "80"), fmt.Sprintf("[fe80::5ea%%%d]:80", i.coastIndex())}
	for _, a := range islandInward {
		here = append(here, net.JoinHostPort(a, "80"))
	}
	for n, to := range here {
		err := i.Within(func() error {
			conn, err := net.DialTimeout("tcp", to, e2e.LastResort)
			if err == nil {
				_ = conn.Close()
			}
			return err
		})
		if err != nil {
			t.Errorf("the host itself can't reach it: %v", err)
		}
		e2e.Await(t, to, func() bool { return i.inward.Load() == int64(n)+1 })
	}
	i.inward.Store(0)
	reached := int64(0)
	for _, a := range append([]string{islandHost6}, islandInward...) {
		i.policy("paint", fmt.Sprintf(`{"cidr":%q,"action":"allow","ports":["80"]}`, a))
		i.heard("paint", "tcp", net.JoinHostPort(a, "80"), "x")
		reached++
		e2e.Await(t, "the connection to "+a+", which a rule names", func() bool { return i.inward.Load() == reached })
		i.fails("paint", "tcp", net.JoinHostPort(a, "22"), "x")
	}
	if n := i.inward.Load(); n != reached {
		t.Errorf("%d connections got inward, want %d", n, reached)
	}
}

func (i *island) coastIndex() (n int) {
	i.T.Helper()
	err := i.Within(func() error {
		l, err := netlink.LinkByName("coast")
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

// TestPolicyHolds6: as TestPolicyHolds, for IPv6 (hostile statements 28 to 32 and 34).
func TestPolicyHolds6(t *testing.T) {
	i := newIsland(t)
	i.sprite("paint")
	i.policy("paint", append(allow("allowed.test", "only6.test"), `{"domain":"time6.test","action":"allow","ports":["7"],"protocol":"udp"}`)...)
	at := func(port string) string { return net.JoinHostPort(islandPublic6, port) }
	other := net.JoinHostPort(islandOther6, "7")
	i.fails("paint", "tcp", at("7"), "x")
	if got := i.heard("paint", "dns", resolver, "only6.test", "28"); got != `ok "0 `+islandPublic6+`"` {
		t.Errorf("look up only6.test: %s", got)
	}
	i.reaches("paint", "x", "tcp", at("7"), "x")
	i.reaches("paint", "x", "tcp", "only6.test:7", "x")
	i.fails("paint", "tcp", other, "x")
	i.fails("paint", "tcp", "apart6.test:7", "x")
	i.reaches("paint", "name only6.test", "tls", at("443"), "only6.test")
	i.reaches("paint", "name only6.test", "tls", at("443"), "only6.test", "split")
	for _, name := range []string{"denied.test", "allowed.test", "-"} {
		i.fails("paint", "tls", at("443"), name)
	}
	i.fails("paint", "tls", at("443"), "only6.test", "ech")
	i.reaches("paint", "host only6.test", "http", at("80"), `GET / HTTP/1.1\r\nHost: only6.test\r\n\r\n`)
	i.reaches("paint", " 403 Forbidden", "http", at("80"), `GET / HTTP/1.1\r\nHost: [`+islandPublic6+`]\r\n\r\n`)
	i.reaches("paint", " 403 Forbidden", "http", at("80"), `GET / HTTP/1.1\r\nHost: denied.test\r\n\r\n`)
	i.fails("paint", "udp", at("7"), "x")
	i.fails("paint", "dns", at("53"), "denied.test", "1")
	i.heard("paint", "dns", resolver, "time6.test", "28")
	i.reaches("paint", "x", "udp", at("7"), "x")

	// A tightened policy cuts connections.
	cmd := i.Command("", "cove", "exec", "-s", "paint", "--env", "PATIENCE="+e2e.LastResort.String(), "/home/sprite/prober", "download", at("19"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Within(cmd.Start); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "started" {
		t.Fatalf("the download: %q", lines.Text())
	}
	i.policy("paint", allow("apart6.test")...)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "no") { // it reads without end
		t.Errorf("the download ended: %q", lines.Text())
	}
	_ = cmd.Wait() // the prober exits with 0
	i.fails("paint", "tcp", at("7"), "x")
	i.reaches("paint", "x", "tcp", "apart6.test:7", "x")
	if n := i.inward.Load(); n != 0 {
		t.Errorf("%d connections got inward", n)
	}
}

// TestOwnAddress: root in a sandbox can neither give itself another address nor write to
// its link. No datagram from another address gets out or makes a neighbour entry (hostile
// statement 36). TestHostileFrames of internal/shim/gateway shows a gateway against a
// sandbox that could.
func TestOwnAddress(t *testing.T) {
	i := newIsland(t)
	i.sprite("paint")
	i.policy("paint", `{"cidr":"::/0","action":"allow","protocol":"udp"}`, `{"cidr":"0.0.0.0/0","action":"allow","protocol":"udp"}`, `{"cidr":"::/0","action":"allow"}`)
	six, four := net.JoinHostPort(islandPublic6, "9"), islandPublic+":9"
	for to, came := range map[string]*atomic.Int64{six: &i.honest6, four: &i.honest} {
		e2e.Await(t, "a datagram that the sandbox sends as itself", func() bool { // one may be lost
			i.probe("paint", "udp", to, honest)
			return came.Load() > 0
		})
	}
	root := func(command string) string {
		return i.Run("", "cove", "exec", "-s", "paint", "--user", "root", "sh", "-c", command)
	}
	refused := root("{ ip addr add 10.88.7.7/16 dev eth0; ip addr add 192.31.196.1/32 dev eth0; for a in fdc0:7e2d:914b:1::77 fdc0:7e2d:914b::1 2620:4f:8000::1 2620:4f:8000:1::99 fe80::99; do ip -6 addr add $a/128 dev eth0; done; } 2>&1; true")
	if strings.Count(refused, "Operation not permitted") != 7 {
		t.Errorf("addresses of its own: %s", refused)
	}
	script := "/home/sprite/prober frames & "
	for from, to := range map[string]string{
		"10.88.7.7": four, islandHost: four, "fdc0:7e2d:914b:1::77": six, "fdc0:7e2d:914b::1": six, islandHost6: six, "2620:4f:8000:1::99": six, "fe80::99%eth0": six,
	} {
		script += fmt.Sprintf("/home/sprite/prober from %s %s & ", from, to)
	}
	if out := root("{ " + script + "wait; } 2>&1"); strings.Count(out, "assign requested address") != 7 || !strings.Contains(out, "packet socket: ") {
		t.Errorf("sent from addresses of others:\n%s", out)
	}
	// Once this later datagram has arrived, the earlier ones would have too.
	e2e.Await(t, "an honest datagram", func() bool {
		own := strings.Fields(root("cat /proc/net/if_inet6 | grep fdc07e2d914b00010000000000000001"))
		return len(own) > 0 && strings.HasPrefix(i.probe("paint", "from", "fdc0:7e2d:914b:1::1", net.JoinHostPort(islandPublic6, "7")), "ok")
	})
	if n := i.strange.Load(); n != 0 {
		t.Errorf("%d datagrams got out besides the honest ones", n)
	}
}

// TestProtocols: programs in a sandbox find their way whichever protocols the host
// and a name have, also after the gateway was started anew.
func TestProtocols(t *testing.T) {
	i := newIsland(t)
	i.sprite("paint")
	order := func(name string) string {
		return i.Run("", "cove", "exec", "-s", "paint", "python3", "-c", `import socket, sys
try: print(*[a[4][0] for a in socket.getaddrinfo(sys.argv[1], 80, type=socket.SOCK_STREAM)])
except OSError as e: print(e)`, name)
	}
	get := func(name string, args ...string) string {
		return i.Run("", "cove", append(append([]string{"exec", "-s", "paint", "curl", "-sS", "--max-time", "600", "--retry", "5", "--retry-all-errors"}, args...), "http://"+name+"/")...)
	}
	both := func(when string) {
		t.Helper()
		want := islandPublic + " " + islandPublic6 // the gateway may wait for its resolver in vain
		e2e.Await(t, when+": both.test to be "+want, func() bool { return strings.TrimSpace(order("both.test")) == want })
		if got := get("both.test", "-6"); got != "host both.test" {
			t.Errorf("%s: by IPv6: %q", when, got)
		}
		if got := get("only6.test"); got != "host only6.test" {
			t.Errorf("%s: a name of IPv6 alone: %q", when, got)
		}
	}
	both("at first")
	i.reaches("paint", "", "ping", "fdc0:7e2d:914b::1")
	i.reaches("paint", "", "ping", islandPublic6)
	i.fails("paint", "ping", "fd12::9")
	i.fails("paint", "ping", islandNear6)
	if out := i.Run("", "cove", "info", "-s", "paint"); !strings.Contains(out, ", fdc0:7e2d:914b:1::1") {
		t.Errorf("info has no IPv6 address:\n%s", out)
	}
	shims := i.Shims()
	e2e.SignalAll(t, syscall.SIGKILL, shims...)
	e2e.Await(t, "another shim", func() bool {
		if now := i.Shims(); len(now) != 1 || now[0] == shims[0] {
			return false
		}
		_, code := i.Try("", "cove", "exec", "-s", "paint", "true") // it may not answer yet
		return code == 0 && strings.HasPrefix(i.probe("paint", "tcp", net.JoinHostPort(islandPublic6, "7"), "x"), "ok")
	})
	both("after the gateway's death")

	// Connections and lookups go on through a checkpoint.
	conn := i.Command("", "cove", "exec", "-i", "-s", "paint", "--env", "PATIENCE="+e2e.LastResort.String(), "/home/sprite/prober", "held", net.JoinHostPort(islandPublic6, "7"), "one", "two")
	goOn, err := conn.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := conn.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Within(conn.Start); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "held" {
		t.Fatalf("the connection: %q", lines.Text())
	}
	if log := i.Run("", "cove", "policy", "log", "-s", "paint", "--all", "--since", "24h"); !strings.Contains(log, ":7 ("+islandPublic6+")") {
		t.Errorf("the log has no such connection: %s", log)
	}
	i.Run("", "cove", "checkpoint", "create", "-s", "paint")
	if _, err := io.WriteString(goOn, "go on\n"); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() || lines.Text() != `ok "onetwo"` {
		t.Errorf("a connection through a checkpoint: %q", lines.Text())
	}
	if err := conn.Wait(); err != nil {
		t.Errorf("its program: %v", err)
	}
	both("after a checkpoint")

	route := func(change func(*netlink.Route) error, by string) {
		t.Helper()
		if err := i.Within(func() error { return change(&netlink.Route{Gw: net.ParseIP(by)}) }); err != nil {
			t.Fatal(err)
		}
	}
	for by, want := range map[string]string{"2620:4f:8000::2": islandPublic, islandNear: islandPublic6} {
		route(netlink.RouteDel, by)
		e2e.Await(t, "both.test to be "+want, func() bool { return strings.TrimSpace(order("both.test")) == want })
		name := map[bool]string{true: "only6.test", false: "allowed.test"}[want == islandPublic]
		e2e.Await(t, "without a route by "+by+", an address of "+name, func() bool {
			first, _, _ := strings.Cut(strings.TrimSpace(order(name)), " ")
			return net.ParseIP(first) != nil
		})
		if got := get("both.test"); got != "host both.test" {
			t.Errorf("without a route by %s: %q", by, got)
		}
		route(netlink.RouteAdd, by)
	}
}
