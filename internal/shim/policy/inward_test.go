package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim/policy"
)

// host is a machine's: rules of its tests are for it.
var host = policy.Policy{
	Own:  []netip.Prefix{netip.MustParsePrefix("192.31.196.9/24"), netip.MustParsePrefix("::ffff:192.31.196.10/120"), netip.MustParsePrefix("2620:4f::9/64"), netip.MustParsePrefix("2600::9/32")},
	Near: []netip.Prefix{netip.MustParsePrefix("192.52.193.1/32"), netip.MustParsePrefix("0.0.0.0/1"), netip.MustParsePrefix("2000::/3")},
	Deny: []netip.Prefix{netip.MustParsePrefix("192.175.48.0/24")},
}

// rulesOf reads rules with commas between them; "deny " before one makes it a denial.
func rulesOf(t *testing.T, text string) (rules []policy.Rule) {
	t.Helper()
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ';' }) {
		what, deny := strings.CutPrefix(strings.TrimSpace(part), "deny ")
		r, err := policy.ParseRule(what)
		if err != nil {
			t.Fatal(err)
		}
		r.Deny = deny
		rules = append(rules, r)
	}
	return rules
}

func TestInward(t *testing.T) {
	for rule, want := range map[string]bool{
		"169.254.169.254": true, "169.254.169.254:80": true, "169.254.0.0/16": true, "100.100.100.200/udp": true, "fd00:ec2::254": true,
		"127.0.0.1:22": true, "127.0.0.0/8": true, "0.0.0.0": true, "0.0.0.0/8": true, "0.0.0.0/32": true,
		"10.1.2.3": true, "10.0.0.0/8": true, "172.31.0.0/24": true, "192.168.1.1:1-2": true, "100.64.0.0/10": true, "224.0.0.251:5353/udp": true, "255.255.255.255": true,
		"::1": true, "::": true, "[::1]:80": true, "fe80::/10": true, "fe80::1": true, "fd12::/48": true, "fc00::/7": true, "ff02::fb": true,
		"::ffff:10.1.2.3": true, "64:ff9b::a00:1": true, "64:ff9b:1::/64": true, "2002:7f00:1::": true, "::127.0.0.1": true, "2001:0:1::/64": true,
		"192.31.196.9": true, "192.31.196.9:22": true, "192.31.196.9/32": true, "::ffff:192.31.196.9": true, "192.31.196.10": true,
		"192.31.196.0/24": true, "192.31.196.8": true, "192.52.193.1": true, "192.52.193.1:22": true,
		"2620:4f::9": true, "2620:4f::1": true, "2620:4f::/64": true, "2620:4f::8/125": true, "2600::9": true,
		"192.175.48.7": true, "192.175.48.0/25": true,
		"localhost": true, "LocalHost.": true, "a.localhost:80": true, "*.internal": true, "metadata.google.internal": true, "internal": true, "printer.local": true, "*.home.arpa": true, "db.lan": true, "x.onion": true,

		// They open no protected address: see Rule.
		"0.0.0.0/0": false, "::/0": false, "*": false, "8.0.0.0/6": false, "9.0.0.0/8": false, "192.31.0.0/16": false, "192.31.195.8": false, "192.52.193.2": false, "192.175.0.0/16": false,
		"8.8.8.8": false, "64:ff9b::808:808": false, "2620:4f::/32": false, "2620:4f:0:1::1": false, "2600::/32": false, "2600::1": false, "2000::/3": false, "2606:4700::1111": false,
		"example.org": false, "*.arpa": false, "localhost.example": false, "notlocal": false, "127.0.0.1.nip.example": false,
		"deny 10.0.0.0/8": false, "deny localhost": false,
	} {
		if got := host.Inward(rulesOf(t, rule)[0]); got != want {
			t.Errorf("%s: got %v, want %v", rule, got, want)
		}
	}
}

func TestWidens(t *testing.T) {
	for _, test := range []struct{ next, now, by string }{
		{"example.org; 0.0.0.0/0", "", ""},
		{"10.1.2.3", "", "10.1.2.3"},
		{"10.1.2.3", "10.1.2.3", ""},
		{"10.1.2.3:443,80; example.org", "10.1.2.3:80,443", ""},
		{"::ffff:10.1.2.3/tcp", "10.1.2.3", ""},
		{"10.1.2.3", "deny 10.1.2.3", "10.1.2.3"},
		{"10.1.2.3", "10.1.2.3:80", "10.1.2.3"},
		{"10.1.2.3/udp", "10.1.2.3", "10.1.2.3/udp"},
		{"example.org", "10.1.2.3; example.org", ""},
		{"10.0.0.0/8", "10.0.0.0/8; deny 10.1.2.3", "deny 10.1.2.3"},
		{"10.0.0.0/8", "10.0.0.0/8; deny 9.1.2.3", ""},
		{"10.0.0.0/8:80", "10.0.0.0/8:80; deny 10.0.0.0/8", ""}, // that was for other ports
		{"10.0.0.0/8; deny 10.0.0.0/8:22; deny 10.1.2.3", "deny 10.1.2.3; 10.0.0.0/8", ""},
		{"*.internal; *", "*; *.internal; deny a.internal", "deny a.internal"},
		{"*.internal; deny *", "*.internal", ""},
		{"*.internal", "*.internal; deny *", ""},
		{"*.internal", "*.internal; deny *.b.internal", "deny *.b.internal"},
	} {
		got, ok := host.Widens(rulesOf(t, test.next), rulesOf(t, test.now))
		if ok != (test.by != "") || ok && got.String() != test.by {
			t.Errorf("from %q to %q: got %v, %v, want %q", test.now, test.next, got, ok, test.by)
		}
	}
	// A preset's rules are the machine's.
	rules, err := policy.Preset(policy.Agent, policy.Machine{Registries: []string{"10.1.2.3", "registry.internal"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range rules {
		rules[i].From = policy.Agent
	}
	if got, ok := host.Widens(rules, nil); ok {
		t.Errorf("a preset: got %v", got)
	}
}

// A denial names nothing for another rule to open.
func TestDenialOpensNoZone(t *testing.T) {
	p := policy.New(rulesOf(t, "*; deny metadata.google.internal:1; deny *.lan:1")...)
	for _, name := range []string{"metadata.google.internal", "nas.lan"} {
		if d := p.Named(name, 80, policy.TCP); d.Allow {
			t.Errorf("%s: got %+v", name, d)
		}
		if d := p.Lookup(name); d.Allow {
			t.Errorf("looking up %s: got %+v", name, d)
		}
	}
}

// If a set of rules does not widen another, it reaches no protected address, and looks up
// no private name, that the other does not.
func FuzzWidens(f *testing.F) {
	f.Add("10.0.0.0/8; 8.8.8.8", "10.0.0.0/8; deny 10.1.2.3", "10.1.2.3", "a.internal", uint16(80))
	f.Add("*; deny *.internal:1", "*", "169.254.169.254", "metadata.google.internal", uint16(443))
	f.Add("0.0.0.0/0; ::/0; 192.31.196.0/24", "", "192.31.196.9", "localhost", uint16(22))
	f.Add("2620:4f::/64; deny 2620:4f::/64:22", "2620:4f::/64:22; 2620:4f::/64", "2620:4f::1", "x.lan", uint16(22))
	f.Add("64:ff9b::a00:1; ::ffff:10.0.0.1", "10.0.0.1", "10.0.0.1", "b.home.arpa", uint16(1))
	f.Fuzz(func(t *testing.T, nextText, nowText, addrText, name string, port uint16) {
		addr, err := netip.ParseAddr(addrText)
		if err != nil || port == 0 {
			return
		}
		parse := func(text string) (rules []policy.Rule) {
			for part := range strings.SplitSeq(text, ";") {
				what, deny := strings.CutPrefix(strings.TrimSpace(part), "deny ")
				if r, err := policy.ParseRule(what); err == nil {
					r.Deny = deny
					rules = append(rules, r)
				}
			}
			return rules
		}
		next, now := parse(nextText), parse(nowText)
		if _, widens := host.Widens(next, now); widens {
			return
		}
		with := func(rules []policy.Rule) policy.Policy {
			p := policy.New(rules...)
			p.Own, p.Deny = host.Own, host.Deny
			return p
		}
		p, before, open := with(next), with(now), host
		to := netip.AddrPortFrom(addr, port)
		protected := !open.Reach(to, policy.TCP, nil).Allow
		for _, proto := range []policy.Proto{policy.TCP, policy.UDP} {
			if protected && p.Reach(to, proto, nil).Allow && !before.Reach(to, proto, nil).Allow {
				t.Fatalf("%q reaches %v, and %q does not", nextText, to, nowText)
			}
		}
		if !open.Ping(addr, nil) && p.Ping(addr, nil) && !before.Ping(addr, nil) {
			t.Fatalf("%q pings %v, and %q does not", nextText, addr, nowText)
		}
		if d := open.Lookup(name); d.Rule == "private name" && p.Lookup(name).Allow && !before.Lookup(name).Allow {
			t.Fatalf("%q looks up %s, and %q does not", nextText, name, nowText)
		}
	})
}
