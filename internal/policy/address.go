package policy

import "net/netip"

type protected struct {
	prefix netip.Prefix
	name   string
}

// ranges are never reached without a rule that names them. The first one that
// matches gives its name to the refusal. Documentation ranges are not among
// them: some test networks live there. Addresses are canonical, so that IPv4 in
// whatever IPv6 clothing is found under IPv4.
var ranges = []protected{
	// Metadata services of clouds, first because they lie inside others.
	{netip.MustParsePrefix("169.254.169.254/32"), "metadata"},
	{netip.MustParsePrefix("169.254.170.0/24"), "metadata"},   // AWS: credentials of containers
	{netip.MustParsePrefix("100.100.100.200/32"), "metadata"}, // Alibaba
	{netip.MustParsePrefix("168.63.129.16/32"), "metadata"},   // Azure: the host's wire server
	{netip.MustParsePrefix("192.0.0.192/32"), "metadata"},     // Oracle
	{netip.MustParsePrefix("fd00:ec2::/64"), "metadata"},      // AWS
	{netip.MustParsePrefix("fd20:ce::254/128"), "metadata"},   // Google

	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"}, // Linux takes 0.0.0.0 for itself
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},   // protocol assignments
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved"}, // 6to4 relays
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"}, // and broadcast

	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("fc00::/7"), "unique-local"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "link-local"}, // site-local, deprecated
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "translated"}, // NAT64 of local meaning: what is inside depends on the network
	{netip.MustParsePrefix("2001::/32"), "translated"},      // Teredo
	{netip.MustParsePrefix("::/96"), "reserved"},            // IPv4-compatible, deprecated
	{netip.MustParsePrefix("100::/64"), "reserved"},         // discard
}

var described = map[string]string{
	"metadata":          "a cloud's metadata service",
	"unspecified":       "the unspecified address, which means the host",
	"loopback":          "the host's loopback",
	"private":           "a private address",
	"carrier-grade NAT": "a carrier-grade NAT address",
	"link-local":        "a link-local address",
	"unique-local":      "a unique-local address",
	"multicast":         "a multicast address",
	"reserved":          "a reserved address",
	"translated":        "an address that another network translates",
	"denied":            "an address that this server denies",
	"host":              "the host's own address",
	"local network":     "an address on the host's own network",
}

// Canonical returns the one form of an address under which it is decided on:
// without zone, and IPv4 that is wrapped in IPv6 unwrapped: mapped
// (::ffff:0:0/96), translated (::ffff:0:0:0/96), NAT64 (64:ff9b::/96),
// IPv4-compatible (::/96, but for :: and ::1) and 6to4 (2002::/16). The invalid
// address stays invalid.
func Canonical(a netip.Addr) netip.Addr {
	a = a.WithZone("").Unmap()
	if !a.Is6() {
		return a
	}
	b := a.As16()
	for _, w := range wrappers {
		if w.prefix.Contains(a) {
			v4 := netip.AddrFrom4([4]byte(b[w.at : w.at+4]))
			if w.compatible && (v4 == v4zero || v4 == v4one) {
				return a
			}
			return v4
		}
	}
	return a
}

var (
	v4zero = netip.AddrFrom4([4]byte{})
	v4one  = netip.AddrFrom4([4]byte{3: 1})

	wrappers = []struct {
		prefix     netip.Prefix
		at         int
		compatible bool
	}{
		{netip.MustParsePrefix("::ffff:0:0:0/96"), 12, false},
		{netip.MustParsePrefix("64:ff9b::/96"), 12, false},
		{netip.MustParsePrefix("2002::/16"), 2, false},
		{netip.MustParsePrefix("::/96"), 12, true},
	}
)
