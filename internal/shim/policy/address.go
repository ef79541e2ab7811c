package policy

import "net/netip"

type protected struct {
	prefix netip.Prefix
	name   string
}

// ranges are never reached without a rule that names them. The first one that
// matches gives its name to the refusal. Addresses are canonical, so that IPv4 in
// whatever IPv6 clothing is found under IPv4.
//
// They are what IANA's registries say is not globally reachable, and what clouds use for
// themselves. No machine on the internet has such an address. If one answers, it is in
// the host's own network, whose routes may use any of these ranges. Test networks use
// those of documentation and benchmarks, and data centers those of SRv6. The sources:
//
//	[v4]  IANA IPv4 Special-Purpose Address Registry
//	[v6]  IANA IPv6 Special-Purpose Address Registry
//	[m4]  IANA IPv4 Multicast Address Space Registry
//	[sp]  IANA Internet Protocol Version 6 Address Space
//	[cloud]  the documentation of that cloud
var ranges = []protected{
	// Metadata services of clouds, first because they lie inside others.
	{netip.MustParsePrefix("169.254.169.254/32"), "metadata"}, // [cloud] nearly all
	{netip.MustParsePrefix("169.254.170.0/24"), "metadata"},   // [cloud] AWS: credentials of containers
	{netip.MustParsePrefix("100.100.100.200/32"), "metadata"}, // [cloud] Alibaba
	{netip.MustParsePrefix("168.63.129.16/32"), "metadata"},   // [cloud] Azure: the host's wire server
	{netip.MustParsePrefix("192.0.0.192/32"), "metadata"},     // [cloud] Oracle
	{netip.MustParsePrefix("fd00:ec2::/64"), "metadata"},      // [cloud] AWS
	{netip.MustParsePrefix("fd20:ce::254/128"), "metadata"},   // [cloud] Google

	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},           // [v4] this network; Linux takes 0.0.0.0 for itself
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},            // [v4]
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},              // [v4]
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},           // [v4]
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},          // [v4]
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT"}, // [v4] shared address space
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},       // [v4]
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},           // [v4] protocol assignments; two anycast addresses among them are global
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},      // [v4] TEST-NET-1
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},   // [v4] TEST-NET-2
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},    // [v4] TEST-NET-3
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking"},      // [v4]
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved"},         // [v4] 6to4 relays, deprecated
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},           // [m4]
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},            // [v4] and broadcast

	{netip.MustParsePrefix("::/128"), "unspecified"},          // [v6]
	{netip.MustParsePrefix("::1/128"), "loopback"},            // [v6]
	{netip.MustParsePrefix("fc00::/7"), "unique-local"},       // [v6]
	{netip.MustParsePrefix("fe80::/10"), "link-local"},        // [v6]
	{netip.MustParsePrefix("fec0::/10"), "link-local"},        // [sp] site-local, deprecated
	{netip.MustParsePrefix("ff00::/8"), "multicast"},          // [sp]
	{netip.MustParsePrefix("64:ff9b:1::/48"), "translated"},   // [v6] NAT64 of local meaning: what is inside depends on the network
	{netip.MustParsePrefix("2001::/32"), "translated"},        // [v6] Teredo
	{netip.MustParsePrefix("2001:2::/48"), "benchmarking"},    // [v6]
	{netip.MustParsePrefix("2001::/23"), "reserved"},          // [v6] protocol assignments; AMT, AS112, ORCHID and DRIP among them are of no use here
	{netip.MustParsePrefix("2001:db8::/32"), "documentation"}, // [v6]
	{netip.MustParsePrefix("3fff::/20"), "documentation"},     // [v6]
	{netip.MustParsePrefix("5f00::/16"), "segment routing"},   // [v6] SRv6 SIDs
	{netip.MustParsePrefix("100::/64"), "reserved"},           // [v6] discard
	{netip.MustParsePrefix("100:0:0:1::/64"), "reserved"},     // [v6] dummy prefix
	{netip.MustParsePrefix("::/96"), "reserved"},              // [sp] IPv4-compatible, deprecated
	{netip.MustParsePrefix("::/3"), "reserved"},               // [sp] no global unicast, as the next two
	{netip.MustParsePrefix("4000::/2"), "reserved"},           // [sp]
	{netip.MustParsePrefix("8000::/1"), "reserved"},           // [sp]
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
	"documentation":     "an address for documentation, which only local networks use",
	"benchmarking":      "an address for benchmarks, which only local networks use",
	"segment routing":   "an address inside a provider's network",
	"translated":        "an address that another network translates",
	"denied":            "an address that this server denies",
	"host":              "the host's own address",
	"local network":     "an address on the host's own network, a neighbour or a gateway of it",
}

// Describe says in words what the addresses of a protected range are, which a Decision's Rule names. ok is false for
// another rule.
func Describe(rule string) (what string, ok bool) {
	what, ok = described[rule]
	return what, ok
}

// Range is the name of the first protected range that a canonical address is in. A
// sandbox reaches the address only by a rule that names the range. Range is empty if
// there is none, as for an address of the internet.
func Range(a netip.Addr) string {
	for _, r := range ranges {
		if r.prefix.Contains(a) {
			return r.name
		}
	}
	return ""
}

// Canonical returns the one form of an address that is decided on. It has no zone, and
// IPv4 inside IPv6 is unwrapped. That is: mapped (::ffff:0:0/96), translated
// (::ffff:0:0:0/96), NAT64 (64:ff9b::/96), IPv4-compatible (::/96, but for :: and ::1)
// and 6to4 (2002::/16). The invalid address stays invalid.
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
