package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim/policy"
)

func decide(p policy.Policy, addr string) policy.Decision {
	return p.Reach(netip.MustParseAddrPort(addr), policy.TCP, nil)
}

func TestAddress(t *testing.T) {
	for addr, rule := range map[string]string{
		"8.8.8.8:443":                policy.Public,
		"[2606:4700::1111]:443":      policy.Public,
		"100.63.255.255:1":           policy.Public,
		"172.32.0.1:1":               policy.Public,
		"127.0.0.1:80":               "loopback",
		"127.255.255.254:80":         "loopback",
		"0.0.0.0:80":                 "unspecified",
		"0.1.2.3:80":                 "unspecified",
		"10.0.0.1:22":                "private",
		"172.16.0.1:22":              "private",
		"172.31.255.255:22":          "private",
		"192.168.1.1:22":             "private",
		"100.64.0.1:22":              "carrier-grade NAT",
		"169.254.169.254:80":         "metadata",
		"169.254.170.2:80":           "metadata",
		"100.100.100.200:80":         "metadata",
		"168.63.129.16:80":           "metadata",
		"169.254.1.1:80":             "link-local",
		"224.0.0.251:5353":           "multicast",
		"255.255.255.255:1":          "reserved",
		"[::1]:80":                   "loopback",
		"[::]:80":                    "unspecified",
		"[fe80::1]:80":               "link-local",
		"[fe80::1%eth0]:80":          "link-local",
		"[fd00::1]:80":               "unique-local",
		"[fd00:ec2::254]:80":         "metadata",
		"[ff02::1]:80":               "multicast",
		"[2001:0:1::1]:80":           "translated",
		"[64:ff9b:1::7f00:1]:80":     "translated",
		"[::ffff:127.0.0.1]:80":      "loopback", // IPv4 in its clothes
		"[::ffff:169.254.169.254]:1": "metadata",
		"[::ffff:0:10.0.0.1]:80":     "private",
		"[64:ff9b::a00:1]:80":        "private",
		"[64:ff9b::808:808]:80":      policy.Public,
		"[2002:7f00:1::1]:80":        "loopback",
		"[2002:a9fe:a9fe::]:80":      "metadata",
		"[::10.0.0.1]:80":            "private",
	} {
		d := decide(policy.Policy{}, addr)
		if d.Rule != rule || d.Allow != (rule == policy.Public) {
			t.Errorf("%s: got %+v, want %s", addr, d, rule)
		}
		if !d.Allow && d.Hint == "" {
			t.Errorf("%s: a refusal without a hint", addr)
		}
	}
	if d := (policy.Policy{}).Reach(netip.AddrPort{}, policy.TCP, nil); d.Allow {
		t.Error("the invalid address is allowed")
	}
	if d := (policy.Policy{}).Reach(netip.MustParseAddrPort("8.8.8.8:53"), policy.UDP, nil); d.Allow || d.Rule != "udp" {
		t.Errorf("UDP: got %+v", d)
	}
}

// The entries of IANA's special-purpose registries (2025-10-09), and of the address
// space of IPv6, as they are; and one address of each is decided on.
func TestRegistries(t *testing.T) {
	for _, entry := range []struct {
		prefix string
		name   string // of the refusal; policy.Public: globally reachable
	}{
		{"0.0.0.0/8", "unspecified"}, {"10.0.0.0/8", "private"}, {"100.64.0.0/10", "carrier-grade NAT"}, {"127.0.0.0/8", "loopback"},
		{"169.254.0.0/16", "link-local"}, {"172.16.0.0/12", "private"}, {"192.0.0.0/24", "reserved"}, {"192.0.0.0/29", "reserved"},
		{"192.0.0.8/32", "reserved"}, {"192.0.0.170/32", "reserved"}, {"192.0.0.171/32", "reserved"}, {"192.0.2.0/24", "documentation"},
		{"192.31.196.0/24", policy.Public}, {"192.52.193.0/24", policy.Public}, {"192.88.99.0/24", "reserved"}, {"192.168.0.0/16", "private"},
		{"192.175.48.0/24", policy.Public}, {"198.18.0.0/15", "benchmarking"}, {"198.51.100.0/24", "documentation"}, {"203.0.113.0/24", "documentation"},
		{"224.0.0.0/4", "multicast"}, {"240.0.0.0/4", "reserved"}, {"255.255.255.255/32", "reserved"},
		{"::1/128", "loopback"}, {"::/128", "unspecified"}, {"::ffff:0:0/96", "unspecified"}, {"64:ff9b::/96", "unspecified"}, {"64:ff9b:1::/48", "translated"},
		{"100::/64", "reserved"}, {"100:0:0:1::/64", "reserved"}, {"2001::/23", "translated"}, {"2001::/32", "translated"}, {"2001:2::/48", "benchmarking"},
		{"2001:10::/28", "reserved"}, {"2001:100::/24", "reserved"}, {"2001:db8::/32", "documentation"}, {"2002::/16", "unspecified"}, {"2620:4f:8000::/48", policy.Public},
		{"3fff::/20", "documentation"}, {"5f00::/16", "segment routing"}, {"fc00::/7", "unique-local"}, {"fe80::/10", "link-local"},
		{"200::/7", "reserved"}, {"1000::/4", "reserved"}, {"2000::/3", policy.Public}, {"2003::/16", policy.Public}, {"3fff:1000::/20", policy.Public},
		{"4000::/3", "reserved"}, {"8000::/3", "reserved"}, {"e000::/4", "reserved"}, {"fec0::/10", "link-local"}, {"ff00::/8", "multicast"},
	} {
		prefix := netip.MustParsePrefix(entry.prefix)
		for at, addr := range map[string]netip.Addr{"first": prefix.Addr(), "last": last(prefix)} {
			if at == "last" && (prefix.Bits() < 32 && prefix.Addr().Is6() || strings.HasPrefix(entry.prefix, "::ffff") || strings.HasPrefix(entry.prefix, "64:ff9b::/") || entry.prefix == "2002::/16") || entry.prefix == "192.0.0.0/24" && at == "last" {
				continue // others lie inside
			}
			d := policy.Policy{}.Reach(netip.AddrPortFrom(addr, 443), policy.TCP, nil)
			if d.Rule != entry.name || d.Allow != (entry.name == policy.Public) || !d.Allow && (d.Hint == "" || strings.Contains(d.Hint, " is ;")) {
				t.Errorf("%v, the %s of %s: got %+v, want %s", addr, at, entry.prefix, d, entry.name)
			}
		}
	}
}

// last is a prefix's last address.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func TestOwnAndDenied(t *testing.T) {
	p := policy.Policy{
		Own:  []netip.Prefix{netip.MustParsePrefix("192.31.196.9/24"), netip.MustParsePrefix("2620:4f:8000::9/64"), netip.MustParsePrefix("2600::9/32")},
		Deny: []netip.Prefix{netip.MustParsePrefix("192.52.193.0/24")},
	}
	for addr, rule := range map[string]string{
		"192.31.196.9:22":      "host",
		"192.31.195.8:22":      policy.Public,
		"192.52.193.7:80":      "denied",
		"10.7.0.1:22":          "private",
		"[2620:4f:8000::9]:22": "host",
		// A router, a printer.
		"192.31.196.8:22":        "local network",
		"[2620:4f:8000::1]:80":   "local network",
		"[2620:4f:8000::]:80":    "local network",
		"[2620:4f:8000:1::1]:80": policy.Public,
		"[2600::1]:80":           policy.Public, // a provider's
		"[64:ff9b::c01f:c409]:1": "host",
	} {
		if d := decide(p, addr); d.Rule != rule {
			t.Errorf("%s: got %+v, want %s", addr, d, rule)
		}
	}
}

// A rule opens a protected address only if it names its range, or less.
func TestRules(t *testing.T) {
	for _, test := range []struct {
		rule, addr string
		want       bool
	}{
		{"10.1.0.0/16", "10.1.2.3:5432", true},
		{"10.1.0.0/16", "10.2.2.3:5432", false},
		{"10.1.2.3:5432", "10.1.2.3:5432", true},
		{"10.1.2.3:5432", "10.1.2.3:22", false},
		{"::ffff:10.1.2.3", "10.1.2.3:22", true},
		{"10.0.0.0/8", "10.1.2.3:22", true},
		{"0.0.0.0/0", "10.1.2.3:22", false},
		{"0.0.0.0/0", "8.8.8.8:22", true},
		{"169.254.0.0/16", "169.254.1.1:80", true},
		{"169.254.0.0/16", "169.254.169.254:80", false},
		{"169.254.169.254", "169.254.169.254:80", true},
		{"192.31.196.0/24", "192.31.196.9:22", false}, // the host's own
		{"192.31.0.0/16", "192.31.195.8:22", true},
		{"192.31.0.0/16", "192.31.196.8:22", false}, // a neighbour of the host's
		{"192.31.196.0/24", "192.31.196.8:22", true},
		{"192.52.0.0/16", "192.52.193.1:22", false}, // a gateway of the host's
		{"192.52.193.1:22", "192.52.193.1:22", true},
		{"10.0.0.0/8", "10.7.0.1:22", true}, // a neighbour, too: the range is named
		{"192.31.196.9:22", "192.31.196.9:22", true},
		{"2620:4f:8000::/32", "[2620:4f:8000:5::1]:22", true},
		{"2620:4f:8000::/32", "[2620:4f:8000::1]:22", false}, // a neighbour of the host's
		{"2620:4f:8000::/64", "[2620:4f:8000::1]:22", true},
		{"2620:4f:8000::/64", "[2620:4f:8000::9]:22", false}, // the host
		{"2620:4f:8000::9", "[2620:4f:8000::9]:22", true},
	} {
		rule, err := policy.ParseRule(test.rule)
		if err != nil {
			t.Fatal(err)
		}
		p := policy.New(rule)
		p.Own = []netip.Prefix{netip.MustParsePrefix("192.31.196.9/24"), netip.MustParsePrefix("2620:4f:8000::9/64"), netip.MustParsePrefix("10.7.0.9/24")}
		p.Near = []netip.Prefix{netip.MustParsePrefix("192.52.193.1/32")}
		if d := decide(p, test.addr); d.Allow != test.want {
			t.Errorf("%s for %s: got %+v, want %v", test.rule, test.addr, d, test.want)
		}
	}
	for _, bad := range []string{"", "10.0.0.1:0", "10.0.0.1:99999", "10.0.0.0/33", "10.0.0.1/", "::ffff:10.0.0.0/104", "a:", "a:0", "a:70000", "a:2-1", "a:1,", "a b", "*.", "x.*", "[::1]80", "**.a"} {
		if rule, err := policy.ParseRule(bad); err == nil {
			t.Errorf("%q: got %v", bad, rule)
		}
	}
}

func TestName(t *testing.T) {
	for name, want := range map[string]string{
		"Example.ORG.": "example.org", "a_b.example": "a_b.example", "xn--bcher-kva.example": "xn--bcher-kva.example", "1.2.3.4.example": "1.2.3.4.example",
		"": "", ".": "", "a..b": "", "-a.b": "", "a-.b": "", "a b.c": "", "a@b.c": "", "a\x00.b": "", "*.b": "", "bücher.example": "xn--bcher-kva.example", "BÜCHER。example.": "xn--bcher-kva.example", "a\u200bb.example": "ab.example", "١.٢.٣.٤": "",
		"1.2.3.4": "", "0177.1": "", "0x7f000001": "", "example.0x7f": "",
		strings.Repeat("a", 64) + ".b": "", strings.Repeat("a.", 127) + "b": "",
	} {
		got, err := policy.CanonicalName(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]bool{
		"example.org": true, "internal.example": true, "metadata.google.internal": false, "internal": false, "LOCALHOST.": false,
		"printer.local": false, "x.home.arpa": false, "localhost.example": true, "1.2.3.4": false,
	} {
		if d := (policy.Policy{}).Lookup(name); d.Allow != want {
			t.Errorf("%s: got %+v, want %v", name, d, want)
		}
	}
}

// However an address is written, it is decided on as the same.
func FuzzCanonical(f *testing.F) {
	f.Add([]byte{0: 0x20, 1: 0x02, 2: 127, 5: 1, 15: 0})
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != 16 {
			return
		}
		a := policy.Canonical(netip.AddrFrom16([16]byte(b)))
		if again := policy.Canonical(a); again != a {
			t.Fatalf("%v becomes %v", a, again)
		}
		if a.Is4In6() || a.Zone() != "" {
			t.Fatalf("%v is not canonical", a)
		}
		p := policy.Policy{}
		plain := p.Reach(netip.AddrPortFrom(a, 80), policy.TCP, nil)
		if dressed := p.Reach(netip.AddrPortFrom(netip.AddrFrom16(a.As16()), 80), policy.TCP, nil); dressed.Allow != plain.Allow {
			t.Fatalf("%v: %+v and %+v", a, plain, dressed)
		}
	})
}

func TestUnknownPreset(t *testing.T) {
	_, err := policy.Preset("opne", policy.Machine{})
	if want := `there is no preset "opne" (there are: open, none, agent, defaults)`; err == nil || err.Error() != want {
		t.Errorf("got %v, not %s", err, want)
	}
}

// A hint names the sprite whose policy has decided, and no other command is changed.
func TestHintNamesSprite(t *testing.T) {
	p := policy.New(policy.Rule{Domain: "api.example.org"}, policy.Rule{Domain: "bad.example.org", Deny: true})
	for _, test := range []struct {
		d    policy.Decision
		want []string
	}{
		{p.Named("other.example.org", 443, policy.TCP), []string{"cove policy allow -s paint other.example.org"}},
		{p.Named("bad.example.org", 443, policy.TCP), []string{"cove policy show -s paint;", "cove policy allow -s paint bad.example.org"}},
		{p.Reach(netip.MustParseAddrPort("10.1.2.3:5432"), policy.TCP, nil), []string{"cove policy allow -s paint 10.1.2.3"}},
	} {
		for _, want := range test.want {
			if got := test.d.For("paint").Hint; !strings.Contains(got, want) {
				t.Errorf("%q, want %q in it", got, want)
			}
		}
		if got := test.d.For("").Hint; got != test.d.Hint || strings.Contains(got, " -s ") {
			t.Errorf("without a sprite: %q", got)
		}
	}
}
