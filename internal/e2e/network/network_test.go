package network

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// TestInward: no policy opens metadata, private and link-local addresses, the host's own
// addresses, or the port of its API. That holds however they are written or named
// (hostile statements 27 to 29).
func TestInward(t *testing.T) {
	i := newIsland(t)
	i.sprite("paint")
	taken, port4 := i.anyIP()
	api := e2e.JSONString(t, filepath.Join(i.Data, "server.json"), "url")
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(api, "http://"))
	targets := []string{
		islandHost + ":80", islandHost + ":" + port, "[2620:4f:8000::1]:80", "[::ffff:10.1.2.3]:80", "[::ffff:169.254.169.254]:80", "10.88.0.1:22",
		"0x0a010203:80", "0177.0.0.1:" + port, "255.255.255.255:80",
		"[fe80::5ea%eth0]:80", "[fe80::5ea]:80", "[2620:4f:8000::]:80", "[::ffff:" + islandHost + "]:80", "[::ffff:0:a01:203]:80", "[::a01:203]:80",
		"[64:ff9b::7f00:1]:" + port, "[2002:7f00:1::1]:" + port, "[fdc0:7e2d:914b::1]:22", "[ff02::1%eth0]:80",
	}
	for _, a := range islandInward {
		targets = append(targets, net.JoinHostPort(a, "80"))
	}
	any4, any6 := "20.7.3.4:"+port4, "[2a07:7::9]:"+port4
	targets = append(targets, any4, any6)
	// A token without the verb admin can't open them: it is told the decision, and its rule is
	// refused.
	weak := strings.TrimSpace(i.Run("", "cove", "token", "create", "weak", "-s", "paint", "--verbs", "read,write,exec", "-q"))
	for _, to := range []string{any4, any6, "10.1.2.3:80", islandHost + ":" + port} {
		i.policy("paint", `{"include":"open"}`)
		if out, code := i.Try("", "cove", "policy", "test", "-s", "paint", to); code != 1 || !strings.Contains(out, to+" is refused: ") || !strings.Contains(out, "cove policy allow -s paint "+to) {
			t.Errorf("policy test of %s: %d, %s", to, code, out)
		}
		i.Env = append(i.Env, "COVE_TOKEN="+weak, "COVE_URL="+api)
		if out, code := i.Try("", "cove", "policy", "test", "-s", "paint", to); code != 1 || !strings.Contains(out, to+" is refused: ") {
			t.Errorf("policy test of %s, without the verb admin: %d, %s", to, code, out)
		}
		if out, code := i.Try("", "cove", "policy", "allow", "-s", "paint", to); code == 0 || !strings.Contains(out, "admin") {
			t.Errorf("policy allow of %s, without the verb admin: %d, %s", to, code, out)
		}
		i.Env = i.Env[:len(i.Env)-2]
	}
	for what, rules := range map[string][]string{
		"without rules": nil, "open": {`{"include":"open"}`}, "names": allow("*"), "agent": {`{"include":"agent"}`}, "none": {`{"include":"none"}`},
		"everything, it seems": {`{"cidr":"0.0.0.0/0","action":"allow"}`, `{"cidr":"::/0","action":"allow"}`, `{"domain":"*","action":"allow"}`},
	} {
		i.policy("paint", rules...)
		script := ""
		for _, to := range targets {
			script += fmt.Sprintf("/home/sprite/prober tcp %q x & ", to)
		}
		for _, name := range []string{
			"inward.test", "alias.test", "rebind.test", "rebind.test", "mixed.test", "host.test",
			"six.test", "alias6.test", "rebind6.test", "rebind6.test", "mixed6.test", "host6.test", "near6.test", "nat64.test",
		} {
			script += fmt.Sprintf("/home/sprite/prober tcp %s:22 x & /home/sprite/prober tcp %s:80 x & ", name, name)
		}
		for _, to := range []string{"10.1.2.3:9", "169.254.169.254:9", "[fd12::9]:9", "[fd00:ec2::254]:9", "[" + islandNear6 + "]:9"} {
			script += fmt.Sprintf("/home/sprite/prober udp %s x & ", to)
		}
		script += "wait"
		out := i.Run("", "cove", "exec", "-s", "paint", "--user", "root", "sh", "-c", script)
		if n := i.inward.Load() + taken.Load(); n != 0 {
			t.Fatalf("%s: %d connections got inward:\n%s", what, n, out)
		}
	}
	// A rule that names an address opens that address, and nothing else.
	i.policy("paint", `{"cidr":"10.1.2.3","action":"allow","ports":["80"]}`)
	i.heard("paint", "tcp", "10.1.2.3:80", "x")
	e2e.Await(t, "the connection that a rule names", func() bool { return i.inward.Load() == 1 })
	i.fails("paint", "tcp", "10.1.2.3:22", "x")
	i.fails("paint", "tcp", "172.16.0.9:80", "x")
	if n := i.inward.Load(); n != 1 {
		t.Errorf("%d connections got inward", n)
	}
	if out, _ := i.Try("", "cove", "policy", "log", "-s", "paint"); !strings.Contains(out, "169.254.169.254") || !strings.Contains(out, "metadata") || !strings.Contains(out, "cove policy allow -s paint 10.1.2.3:22") {
		t.Errorf("the log has no refusal of the metadata service, or no way out:\n%s", out)
	}
}

// Statement 103: DNS refuses a denied name at once, its address is not
// reached, and a change of the policy cuts connections (hostile statements 30 to 34).
func TestPolicyHolds(t *testing.T) {
	i := newIsland(t)
	i.sprite("paint")
	i.policy("paint", append(allow("allowed.test", "xn--bcher-kva.test", "*.sub.test"), `{"domain":"no.sub.test","action":"deny"}`, `{"domain":"time.test","action":"allow","ports":["7"],"protocol":"udp"}`)...)

	// Names match in any case, and only as a whole.
	for name, code := range map[string]string{
		`allowed.test`: "0 192", `ALLOWED.Test`: "0 192", `a.sub.test`: "0 192", `no.sub.test`: "5", `sub.test`: "5", `denied.test`: "5", `xallowed.test`: "5",
		`allowed.test\x00.evil.test`: "5", `user@allowed.test`: "5", `xn--bcher-kva.test`: "0 192", `b\xc3\xbccher.test`: "5", `169.254.169.254`: "5",
		`metadata.google.internal`: "5", strings.Repeat("a", 63) + `.allowed.test`: "5",
	} {
		if got := i.heard("paint", "dns", resolver, name, "1"); !strings.HasPrefix(got, `ok "`+code) {
			t.Errorf("look up %s: %s, want %s", name, got, code)
		}
	}
	// An address that was never looked up, or not under an allowed name.
	i.fails("paint", "tcp", islandOther+":7", "x")
	i.look("paint", "allowed.test")
	i.reaches("paint", "x", "tcp", islandPublic+":7", "x")
	i.fails("paint", "tcp", islandOther+":7", "x")
	// The log names the process that was refused: one that connects or looks up, and one
	// that sends a datagram if it still runs.
	for name, probe := range map[string][]string{
		"apart.test (lookup)": {"tcp", "apart.test:7", "x"}, islandOther + ":77": {"tcp", islandOther + ":77", "x"},
		"[" + islandOther6 + "]:77": {"tcp", "[" + islandOther6 + "]:77", "x"},
	} {
		e2e.Await(t, "whose "+name+" was", func() bool {
			i.fails("paint", probe...)
			return strings.Contains(i.Run("", "cove", "policy", "log", "-s", "paint"), "refused  "+name+"  by no rule, to prober (process ")
		})
	}
	e2e.Await(t, "who sent", func() bool {
		i.Run("", "cove", "exec", "-s", "paint", "python3", "-c",
			`import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"x", ("`+islandOther+`", 78)); time.sleep(1)`)
		return strings.Contains(i.Run("", "cove", "policy", "log", "-s", "paint"), "refused  "+islandOther+":78/udp  by no rule, to python3 (process ")
	})
	// The name in a connection (SNI or Host) must be an allowed one.
	at80, at443 := islandPublic+":80", islandPublic+":443"
	i.reaches("paint", "name allowed.test", "tls", at443, "allowed.test")
	i.reaches("paint", "name allowed.test", "tls", at443, "allowed.test", "split")
	for _, name := range []string{"denied.test", "b.sub.test", "-", "no.sub.test"} {
		i.fails("paint", "tls", at443, name)
	}
	i.fails("paint", "tls", at443, "allowed.test", "ech")
	i.reaches("paint", "host allowed.test", "http", at80, `GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n`)
	for _, req := range []string{
		`GET / HTTP/1.1\r\nHost: denied.test\r\n\r\n`, `GET http://denied.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n`, `GET / HTTP/1.0\r\n\r\n`,
		`CONNECT denied.test:443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n`,
	} {
		i.reaches("paint", " 403 Forbidden", "http", at80, req)
	}
	i.reaches("paint", " 403 Forbidden", "slow", at80, "GE", "T / HTTP/1.1\r\nHost: denied.test\r\n\r\n")
	for _, before := range []string{` `, `\t`, `\v`, `\f`, `PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n`, `\r\n\r\n\x00\r\nQUIT\n!\x11\x00\x00`} {
		i.fails("paint", "http", at80, before+`GET / HTTP/1.1\r\nHost: denied.test\r\n\r\n`)
	}
	i.fails("paint", "http", at80, `GET\t/\tHTTP/1.1\r\nHost: denied.test\r\n\r\n`)
	// Other resolvers, other protocols.
	i.fails("paint", "dns", islandPublic+":53", "denied.test", "1")
	i.fails("paint", "tcp", islandOther+":853", "x")
	i.fails("paint", "udp", islandPublic+":7", "x")
	i.look("paint", "time.test")
	i.reaches("paint", "x", "udp", islandPublic+":7", "x")
	if got := i.heard("paint", "flood", resolver, "sub.test", "600"); !strings.HasPrefix(got, `ok "`) || got == `ok "0"` {
		t.Errorf("600 names of one domain: %s were refused", got)
	}
	if n := i.inward.Load(); n != 0 {
		t.Errorf("%d connections got inward", n)
	}

	// Limits apply, and can be removed.
	i.Run("", "cove", "policy", "limit", "-s", "paint", "--connections", "1")
	if got := i.heard("paint", "load", "1", "40", islandPublic+":7", islandOther+":7"); strings.Contains(got, " 0 otherwise") {
		t.Errorf("20 connections in a second, of which one may be: %s", got)
	}
	i.Run("", "cove", "policy", "limit", "-s", "paint", "--connections", "0")
	i.reaches("paint", "20 reached, 20 refused, 0 otherwise", "load", "1", "40", islandPublic+":7", islandOther+":7")

	// A malformed policy leaves the old one in force. A tightened one cuts connections; a
	// loosened one takes effect at once.
	i.policy("paint", allow("allowed.test")...)
	cmd := i.Command("", "cove", "exec", "-s", "paint", "--env", "PATIENCE="+e2e.LastResort.String(), "/home/sprite/prober", "download", islandPublic+":19")
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
	i.Write("bad.json", `{"rules":[{"domain":"allowed.test","action":"perhaps"}]}`)
	if out, code := i.Try("", "cove", "policy", "set", "-s", "paint", filepath.Join(filepath.Dir(i.Home), "bad.json")); code == 0 || !strings.Contains(out, "allow or deny") {
		t.Errorf("a malformed policy: %d, %s", code, out)
	}
	i.reaches("paint", "x", "tcp", islandPublic+":7", "x")
	i.policy("paint", allow("apart.test")...)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "no") { // it reads without end
		t.Errorf("the download ended: %q", lines.Text())
	}
	_ = cmd.Wait() // the prober exits with 0
	i.fails("paint", "tcp", islandPublic+":7", "x")
	i.look("paint", "apart.test")
	i.reaches("paint", "x", "tcp", islandOther+":7", "x")
}

// TestFailsClosed: a sandbox has the same policy with the next gateway, after the
// server's death, and after its own death (hostile statements 35 and 36).
func TestFailsClosed(t *testing.T) {
	i := newIsland(t)
	i.sprite("paint")
	i.sprite("other")
	i.policy("paint", allow("allowed.test")...)
	i.policy("other", allow("*")...)
	holds := func(when string) {
		t.Helper()
		e2e.Await(t, "a sandbox "+when, func() bool { // at its death, a caller may be told that it can't be reached
			_, code := i.Try("", "cove", "exec", "-s", "paint", "true")
			return code == 0
		})
		e2e.Await(t, "a network "+when, func() bool { // until it has been told, it has none
			i.look("paint", "allowed.test", "denied.test")
			return strings.HasPrefix(i.probe("paint", "tcp", islandPublic+":7", "x"), "ok")
		})
		if got := i.heard("paint", "dns", resolver, "denied.test", "1"); !strings.HasPrefix(got, `ok "5`) {
			t.Errorf("%s: a denied name: %s", when, got)
		}
		i.fails("paint", "tls", islandPublic+":443", "denied.test")
		i.fails("paint", "tcp", islandOther+":7", "x")
	}
	holds("at first")
	shims := i.Shims()
	e2e.SignalAll(t, syscall.SIGKILL, shims...)
	e2e.Await(t, "other shims", func() bool {
		now := i.Shims()
		return len(now) == len(shims) && now[0] != shims[0] && now[0] != shims[1]
	})
	holds("after the gateway's death")
	// The server and the gateways die together. The next gateways let nothing out before
	// they have the policy.
	e2e.SignalAll(t, syscall.SIGKILL, append(i.Shims(), i.PID())...)
	i.start()
	holds("after the death of both")
	booted := i.Info("paint").Cove.Incarnation
	i.Try("", "cove", "exec", "-s", "paint", "--user", "root", "kill", "-9", "1")
	e2e.Await(t, "the next sandbox", func() bool {
		i.Try("", "cove", "exec", "-s", "paint", "true")
		return i.Info("paint").Cove.Incarnation != booted
	})
	holds("after the sandbox's death")

	// Frames from foreign addresses, and connections to the neighbour, do not get out.
	i.probe("paint", "frames")
	if n := i.strange.Load(); n != 0 {
		t.Errorf("%d datagrams got out under another address", n)
	}
	address := strings.TrimSpace(i.Run("", "cove", "exec", "-s", "other", "python3", "-c",
		"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('10.88.0.1', 53)); print(s.getsockname()[0])"))
	i.Run("", "cove", "exec", "-s", "other", "--detach", "python3", "-m", "http.server", "8000", "--bind", "0.0.0.0")
	i.Run("", "cove", "exec", "-s", "other", "--", "sh", "-c", "until curl -s -o /dev/null localhost:8000; do sleep 0.1; done")
	i.fails("paint", "tcp", address+":8000", "GET / HTTP/1.0\r\n\r\n")
}

// TestPolicyLearn: the destinations that a sprite reaches while it is open become its
// rules.
func TestPolicyLearn(t *testing.T) {
	i := newIsland(t)
	i.sprite("paint")
	i.look("paint", "allowed.test", "apart.test")
	i.reaches("paint", "x", "tcp", islandPublic+":7", "x")
	i.reaches("paint", "name allowed.test", "tls", islandPublic+":443", "allowed.test")
	var p sprites.NetworkPolicy
	if err := json.Unmarshal([]byte(i.Run("", "cove", "policy", "learn", "-s", "paint")), &p); err != nil {
		t.Fatal(err)
	}
	if len(p.Rules) != 1 || p.Rules[0].Domain != "allowed.test" || strings.Join(p.Rules[0].Ports, ",") != "7,443" {
		t.Errorf("learned %+v", p)
	}
	if out, code := i.Try("", "cove", "policy", "learn", "-s", "paint", "--since", "1ms"); code != 1 || !strings.Contains(out, "has reached nothing") {
		t.Errorf("of the last millisecond: %d, %s", code, out)
	}
	i.Run("", "cove", "policy", "learn", "-s", "paint", "--apply")
	i.reaches("paint", "x", "tcp", islandPublic+":7", "x")
	i.fails("paint", "tcp", islandOther+":7", "x")
	if out, code := i.Try("", "cove", "policy", "test", "-s", "paint", "apart.test:7"); code != 1 || !strings.Contains(out, "cove policy allow -s paint apart.test:7") {
		t.Errorf("policy test: %d, %s", code, out)
	}
	if out, code := i.Try("", "cove", "policy", "test", "-s", "paint", "allowed.test:443"); code != 0 || !strings.Contains(out, "allowed") {
		t.Errorf("policy test: %d, %s", code, out)
	}
}

// TestSoakPolicy: many connections a second pass a policy that refuses half of them (for
// ten minutes in make soak). All end as they should, and no descriptor or much memory is
// left.
func TestSoakPolicy(t *testing.T) {
	const rate = 200
	seconds, rounds := 2, 2
	if e2e.Soak() {
		seconds, rounds = 60, 10
	}
	i := newIsland(t)
	i.sprite("paint")
	i.policy("paint", allow("allowed.test")...)
	i.look("paint", "allowed.test", "denied.test")
	shim := i.Shims()[0]
	descriptors := func() int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", shim))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	var memory int64
	var open int
	for round := range rounds {
		want := fmt.Sprintf("%d reached, %d refused, 0 otherwise", seconds*rate/2, seconds*rate/2)
		i.reaches("paint", want, "load", fmt.Sprint(seconds), fmt.Sprint(rate), islandPublic+":7", islandOther+":7")
		if round == 0 {
			memory, open = e2e.Resident(t, shim), descriptors()
		}
	}
	e2e.Await(t, "closed connections", func() bool { return descriptors() <= open })
	e2e.Await(t, "the memory of the connections to be given back", func() bool { return e2e.Resident(t, shim)-memory <= 16<<20 })
	t.Logf("%d connections; the shim: %d MiB, %d descriptors", seconds*rate*rounds, e2e.Resident(t, shim)>>20, descriptors())
}
