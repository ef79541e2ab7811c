// Package policy decides which destinations a sandbox may reach. It is pure: no
// I/O, no clock, no state; every place that must decide (the DNS server, the
// dialer) asks the same functions with canonical names and addresses.
package policy

import (
	"fmt"
	"net/netip"
	"strings"
)

// Proto is a transport protocol.
type Proto string

// Public is the Decision.Rule of what is allowed without a rule that names it.
const Public = "public"

// The transport protocols.
const (
	TCP Proto = "tcp"
	UDP Proto = "udp"
)

// Policy is a set of rules. The zero value allows TCP to every public address
// and refuses everything else: loopback, private, link-local, metadata and the
// other addresses of the protected ranges, and UDP. It is not changed by its
// methods and may be used from many goroutines.
type Policy struct {
	// Allow opens protected addresses. See Rule.
	Allow []Rule

	// Own are addresses of the host itself, whatever range they are in. They
	// are protected like private ones; the caller, who can see them, fills
	// them in.
	Own []netip.Addr

	// Deny are further protected ranges.
	Deny []netip.Prefix
}

// Rule allows TCP to the addresses in Prefix at Port, or at any port if Port is
// 0. To open a protected address the rule must name it: Prefix must lie wholly
// inside each protected range that the address is in. So 10.1.0.0/16 opens a
// private network, but 0.0.0.0/0 opens no protected address, 169.254.0.0/16 not
// the metadata service, and an address of the host only a rule of that very
// address.
type Rule struct {
	Prefix netip.Prefix
	Port   uint16
}

func (r Rule) String() string {
	if r.Port == 0 {
		return r.Prefix.String()
	}
	if r.Prefix.IsSingleIP() {
		return netip.AddrPortFrom(r.Prefix.Addr(), r.Port).String()
	}
	return fmt.Sprintf("%v port %d", r.Prefix, r.Port)
}

// ParseRule reads ADDRESS, ADDRESS:PORT or a CIDR prefix such as 10.1.0.0/16.
func ParseRule(s string) (Rule, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		if a := Canonical(p.Addr()); a != p.Addr() {
			return Rule{}, fmt.Errorf("rule %q: write the prefix in terms of %v", s, a)
		}
		return Rule{Prefix: p.Masked()}, nil
	}
	if ap, err := netip.ParseAddrPort(s); err == nil && ap.Port() != 0 {
		return single(ap.Addr(), ap.Port()), nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return single(a, 0), nil
	}
	return Rule{}, fmt.Errorf("rule %q: want ADDRESS, ADDRESS:PORT or a prefix such as 10.1.0.0/16", s)
}

func single(a netip.Addr, port uint16) Rule {
	a = Canonical(a)
	return Rule{Prefix: netip.PrefixFrom(a, a.BitLen()), Port: port}
}

// Decision is the outcome for one destination.
type Decision struct {
	Allow bool
	Rule  string // what decided: Public, a Rule's text, or the name of a protected range
	Hint  string // if refused: the one line that says what to do about it
}

// Address decides on a connection to ap, which need not be canonical.
func (p Policy) Address(ap netip.AddrPort, proto Proto) Decision {
	addr := Canonical(ap.Addr())
	if !addr.IsValid() {
		return Decision{Rule: "invalid address", Hint: "this is no address that can be connected to"}
	}
	if proto != TCP {
		return Decision{Rule: string(proto), Hint: "only TCP leaves a sandbox, and DNS by its own resolver; use TCP"}
	}
	var in []protected
	for _, r := range ranges {
		if r.prefix.Contains(addr) {
			in = append(in, r)
		}
	}
	for _, d := range p.Deny {
		if d.Contains(addr) {
			in = append(in, protected{d, "denied"})
		}
	}
	for _, own := range p.Own {
		if Canonical(own) == addr {
			in = append(in, protected{netip.PrefixFrom(addr, addr.BitLen()), "host"})
			break
		}
	}
	for _, r := range p.Allow {
		if r.Prefix.Contains(addr) && (r.Port == 0 || r.Port == ap.Port()) && r.names(in) {
			return Decision{Allow: true, Rule: r.String()}
		}
	}
	if len(in) == 0 {
		return Decision{Allow: true, Rule: Public}
	}
	why := in[0]
	return Decision{
		Rule: why.name,
		Hint: fmt.Sprintf("%v is %s; name a service on it for the sandbox: cove serve --connector NAME=http://%v", addr, described[why.name], netip.AddrPortFrom(addr, ap.Port())),
	}
}

// names reports whether r lies inside all of the ranges.
func (r Rule) names(in []protected) bool {
	for _, p := range in {
		if p.prefix.Bits() > r.Prefix.Bits() || !p.prefix.Contains(r.Prefix.Addr()) {
			return false
		}
	}
	return true
}

// Name decides on looking up a name, which need not be canonical. That a name
// may be looked up says nothing yet about the addresses it leads to: those are
// decided on when they are dialled.
func (p Policy) Name(name string) Decision {
	c, err := CanonicalName(name)
	if err != nil {
		return Decision{Rule: "invalid name", Hint: err.Error()}
	}
	for _, z := range privateZones {
		if c == z || strings.HasSuffix(c, "."+z) {
			return Decision{
				Rule: "private name",
				Hint: fmt.Sprintf("names under %s belong to the host's own network; name the service for the sandbox: cove serve --connector NAME=URL", z),
			}
		}
	}
	return Decision{Allow: true, Rule: Public}
}

// privateZones are names that no public server answers for, so that a lookup
// could only ask the host's own network about itself (RFC 6761, 6762, 8375 and
// ICANN's reservation of internal). Metadata services live under internal.
var privateZones = []string{"internal", "localhost", "local", "localdomain", "lan", "home.arpa", "onion"}
