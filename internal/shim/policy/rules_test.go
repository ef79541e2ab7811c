package policy_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim/policy"
)

func rules(t testing.TB, texts ...string) policy.Policy {
	t.Helper()
	var all []policy.Rule
	for _, text := range texts {
		rest, deny := strings.CutPrefix(text, "deny ")
		r, err := policy.ParseRule(rest)
		if err != nil {
			t.Fatal(err)
		}
		r.Deny = deny
		if r.String() != text {
			t.Errorf("rule %q is written %q", text, r)
		}
		all = append(all, r)
	}
	return policy.New(all...)
}

// Statement 102: the most specific rule decides, in whatever order they stand.
func TestSpecific(t *testing.T) {
	all := []string{
		"example.org", "deny *.example.org", "*.ok.example.org", "deny bad.ok.example.org:25", "deny *.com", "good.com:443,8000-8999",
		"time.net:123/udp", "deny both.net", "both.net", "part.net:80", "deny part.net",
	}
	for range 2 {
		slices.Reverse(all)
		p := rules(t, all...)
		for dest, want := range map[string]bool{
			"example.org:1": true, "EXAMPLE.org.:1": true, "www.example.org:1": false, "a.b.example.org:1": false, "notexample.org:1": false,
			"ok.example.org:1": false, "x.ok.example.org:1": true, "bad.ok.example.org:80": true, "bad.ok.example.org:25": false,
			"good.com:443": true, "good.com:8500": true, "good.com:80": false, "bad.com:443": false, "com:443": false,
			"time.net:123": false, "time.net:123/udp": true, "time.net:124/udp": false, "example.org:1/udp": false,
			"both.net:1": false, "part.net:80": true, "part.net:81": false, "other.example:443": false,
		} {
			rest, udp := strings.CutSuffix(dest, "/udp")
			host, port, _ := strings.Cut(rest, ":")
			var n uint16
			if _, err := fmt.Sscan(port, &n); err != nil {
				t.Fatal(err)
			}
			proto := policy.TCP
			if udp {
				proto = policy.UDP
			}
			if d := p.Named(host, n, proto); d.Allow != want || !want && d.Hint == "" {
				t.Errorf("%s: got %+v, want %v", dest, d, want)
			}
		}
		for name, want := range map[string]bool{
			"example.org": true, "www.example.org": false, "bad.ok.example.org": true, "good.com": true, "bad.com": false, "time.net": true, "both.net": false,
			"part.net": true, "other.example": false, "metadata.google.internal": false,
		} {
			if d := p.Lookup(name); d.Allow != want || !want && d.Hint == "" {
				t.Errorf("look up %s: got %+v, want %v", name, d, want)
			}
		}
	}
}

// Under a policy with rules an address is reached under a name that was looked up,
// or by a rule of its own. A protected address is never reached by a name.
func TestReach(t *testing.T) {
	p := rules(t, "*", "deny evil.org", "10.1.0.0/16:5432", "deny 192.31.196.0/24", "192.31.196.7", "[2620:4f:8000::5]:443")
	for _, test := range []struct {
		addr, names string
		want        bool
	}{
		{"192.175.48.1:443", "", false}, // never looked up
		{"192.175.48.1:443", "good.org", true},
		{"192.175.48.1:443", "evil.org", false},
		{"192.175.48.1:443", "evil.org good.org", true},
		{"127.0.0.1:443", "good.org", false},
		{"10.1.2.3:443", "good.org", false},
		{"10.1.2.3:5432", "", true},
		{"10.2.2.3:5432", "good.org", false},
		{"169.254.169.254:80", "good.org", false},
		{"192.31.196.1:80", "good.org", false},
		{"192.31.196.7:80", "", true},
		{"[2620:4f:8000::5]:443", "", true},
		{"[2620:4f:8000::5]:80", "", false},
		{"[::1]:443", "good.org", false},
	} {
		d := p.Reach(netip.MustParseAddrPort(test.addr), policy.TCP, strings.Fields(test.names))
		if d.Allow != test.want || !test.want && d.Hint == "" {
			t.Errorf("%s as %s: got %+v, want %v", test.addr, test.names, d, test.want)
		}
	}
	d := p.Reach(netip.MustParseAddrPort("192.175.48.1:443"), policy.TCP, []string{"evil.org", "good.org", "fine.org"})
	if !slices.Equal(d.Names, []string{"good.org", "fine.org"}) {
		t.Errorf("allowed under %v", d.Names)
	}
	for said, want := range map[string]bool{"good.org": true, "GOOD.org.": true, "evil.org": false, "another.org": false, "": false, "a@good.org": false, "good.org\x00.evil.org": false} {
		if d := p.Speak(said, 443, d.Names); d.Allow != want || !want && d.Hint == "" {
			t.Errorf("%q said: got %+v, want %v", said, d, want)
		}
	}
	if d := p.Reach(netip.MustParseAddrPort("192.175.48.1:443"), policy.UDP, []string{"good.org"}); d.Allow {
		t.Errorf("UDP: %+v", d)
	}
	// A private name is reached only by a rule that names it, and its address too.
	p = rules(t, "*", "db.corp.internal:5432", "10.9.9.9")
	if d := p.Lookup("db.corp.internal"); !d.Allow {
		t.Errorf("a private name that a rule names: %+v", d)
	}
	if d := p.Lookup("other.corp.internal"); d.Allow {
		t.Errorf("a private name that none does: %+v", d)
	}
}

// TestOpens: the rule that a refusal names opens what was refused, and neither another port of it nor
// another address.
func TestOpens(t *testing.T) {
	texts := []string{"deny evil.org", "deny 192.31.196.0/24", "10.1.0.0/16:5432", "good.org:443", "lan.org"}
	p := rules(t, texts...)
	for _, test := range []struct {
		addr, name, want string
		proto            policy.Proto
	}{
		{"192.175.48.1:443", "", "192.175.48.1:443", policy.TCP},
		{"192.175.48.1:80", "good.org", "good.org:80", policy.TCP},
		{"192.175.48.1:443", "evil.org", "evil.org:443", policy.TCP},
		{"192.31.196.9:443", "good.org", "192.31.196.9:443", policy.TCP}, // no name opens these
		{"10.1.2.3:8000", "lan.org", "10.1.2.3:8000", policy.TCP},
		{"[fd12::9]:53", "lan.org", "[fd12::9]:53/udp", policy.UDP},
		{"[::ffff:127.0.0.1]:80", "lan.org", "127.0.0.1:80", policy.TCP},
		{"169.254.169.254:80", "lan.org", "169.254.169.254:80", policy.TCP},
	} {
		to := netip.MustParseAddrPort(test.addr)
		d := p.Reach(to, test.proto, strings.Fields(test.name))
		if d.Allow || d.Opens != test.want || !strings.Contains(d.Hint, "cove policy allow "+d.Opens) {
			t.Errorf("%s as %q: %+v, want %s", test.addr, test.name, d, test.want)
			continue
		}
		more := rules(t, append(slices.Clone(texts), d.Opens)...)
		if d := more.Reach(to, test.proto, strings.Fields(test.name)); !d.Allow {
			t.Errorf("with %s: %+v", test.want, d)
		}
		for _, other := range []netip.AddrPort{netip.AddrPortFrom(to.Addr(), 7), netip.AddrPortFrom(to.Addr().Next(), to.Port())} {
			if d := more.Reach(other, test.proto, nil); d.Allow {
				t.Errorf("with %s %s is open: %+v", test.want, other, d)
			}
		}
	}
	for name, want := range map[string]string{"new.org": "new.org", "evil.org": "evil.org", "db.internal": "db.internal", "*.org": "", "a b": ""} {
		if d := p.Lookup(name); d.Allow || d.Opens != want {
			t.Errorf("look up %s: %+v, want %q", name, d, want)
		}
	}
}

func TestCompile(t *testing.T) {
	preset := func(name string) ([]policy.Rule, error) {
		return policy.Preset(name, policy.Machine{Registries: []string{"registry.example", "192.0.2.9"}})
	}
	compile := func(text string) (policy.Policy, error) {
		var specs []policy.Spec
		if err := json.Unmarshal([]byte(text), &specs); err != nil {
			return policy.Policy{}, err
		}
		all, err := policy.Compile(specs, preset)
		return policy.New(all...), err
	}
	p, err := compile(`[{"include":"agent"},{"domain":"*.Bücher.example","action":"allow","ports":["443"]},{"cidr":"10.0.0.5","action":"allow"}]`)
	if err != nil {
		t.Fatal(err)
	}
	for dest, want := range map[string]bool{
		"registry.example:443": true, "registry.example:22": false, "api.anthropic.com:443": true, "github.com:443": false,
		"a.xn--bcher-kva.example:443": true, "evil.example:443": false,
	} {
		host, port, _ := strings.Cut(dest, ":")
		n, err := policy.ParsePorts(port)
		if err != nil {
			t.Fatal(err)
		}
		if d := p.Named(host, n.From, policy.TCP); d.Allow != want {
			t.Errorf("%s: got %+v", dest, d)
		}
	}
	if d := p.Reach(netip.MustParseAddrPort("192.0.2.9:443"), policy.TCP, nil); !d.Allow || !strings.Contains(d.Rule, "(agent)") {
		t.Errorf("a registry's address: %+v", d)
	}
	if p, err := compile(`[]`); err != nil || p.Closed {
		t.Errorf("no rules: closed %v, %v", p.Closed, err)
	}
	if p, err := compile(`[{"include":"none"}]`); err != nil || p.Lookup("example.org").Allow {
		t.Errorf("none: %v", err)
	}
	p, err = compile(`[{"include":"open"},{"domain":"evil.org","action":"deny"}]`)
	if err != nil || !p.Lookup("example.org").Allow || p.Lookup("evil.org").Allow || !p.Reach(netip.MustParseAddrPort("192.175.48.1:22"), policy.TCP, nil).Allow ||
		p.Reach(netip.MustParseAddrPort("10.0.0.1:22"), policy.TCP, nil).Allow {
		t.Errorf("open: %v", err)
	}
	p, err = compile(`[{"include":"agent"},{"domain":"api.openai.com","action":"deny"},{"domain":"registry.example","action":"allow","ports":["22"]},{"cidr":"192.0.2.9","action":"deny"}]`)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []uint16{80, 443, 22} { // a preset's rule has ports, and is about fewer
		if p.Named("api.openai.com", port, policy.TCP).Allow || p.Reach(netip.AddrPortFrom(netip.MustParseAddr("192.0.2.9"), port), policy.TCP, nil).Allow {
			t.Errorf("what is denied beside a preset that allows it, port %d, is reached", port)
		}
		if d := p.Named("registry.example", port, policy.TCP); !d.Allow {
			t.Errorf("what a rule allows beside the preset, port %d: %+v", port, d)
		}
	}
	for _, bad := range []string{
		`[{}]`, `[{"domain":"a.b"}]`, `[{"domain":"a.b","action":"maybe"}]`, `[{"domain":"a.b","cidr":"1.2.3.4","action":"allow"}]`, `[{"include":"agent","action":"allow"}]`,
		`[{"include":"nosuch"}]`, `[{"domain":"a..b","action":"allow"}]`, `[{"cidr":"a.b","action":"allow"}]`, `[{"cidr":"1.2.3.4/40","action":"deny"}]`,
		`[{"domain":"a.b","action":"allow","ports":["0"]}]`, `[{"domain":"a.b","action":"allow","protocol":"icmp"}]`, `[{"domain":"1.2.3.4","action":"allow"}]`,
	} {
		if _, err := compile(bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// However a name is written, Lookup, Reach and Speak agree on it. No rule for a
// name opens a protected address.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"allowed.com", "ALLOWED.com.", "allowed.com\x00.evil", "user@allowed.com", "xn--80ak6aa92e.com", "аllowed.com", "a.allowed.com", strings.Repeat("a", 300), "*.allowed.com", "com", "1.2.3.4", "..."} {
		f.Add(seed)
	}
	p := rules(f, "allowed.com", "*.allowed.com:443", "deny no.allowed.com")
	f.Fuzz(func(t *testing.T, name string) {
		c, err := policy.CanonicalName(name)
		if err == nil {
			if again, err := policy.CanonicalName(c); again != c || err != nil {
				t.Fatalf("%q is %q, and then %q, %v", name, c, again, err)
			}
		}
		lookup, named := p.Lookup(name), p.Named(name, 443, policy.TCP)
		if lookup.Allow != named.Allow {
			t.Fatalf("%q: %+v and %+v", name, lookup, named)
		}
		want := err == nil && (c == "allowed.com" || strings.HasSuffix(c, ".allowed.com") && c != "no.allowed.com")
		if named.Allow != want || p.Speak(name, 443, []string{c}).Allow != want {
			t.Fatalf("%q: %+v", name, named)
		}
		if d := p.Reach(netip.MustParseAddrPort("10.0.0.1:443"), policy.TCP, []string{name}); d.Allow {
			t.Fatalf("%q leads to a private address", name)
		}
		if d := p.Reach(netip.MustParseAddrPort("192.175.48.1:443"), policy.TCP, []string{name}); d.Allow != want {
			t.Fatalf("%q: %+v", name, d)
		}
	})
}

// A policy of a thousand rules costs no more than one of ten.
func BenchmarkNamed(b *testing.B) {
	for _, n := range []int{10, 1000, policy.MaxRules} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var all []string
			for i := range n {
				all = append(all, fmt.Sprintf("*.host%d.example.org", i))
			}
			p := rules(b, all...)
			for b.Loop() {
				if !p.Named("a.host5.example.org", 443, policy.TCP).Allow {
					b.Fatal("refused")
				}
			}
		})
	}
}
