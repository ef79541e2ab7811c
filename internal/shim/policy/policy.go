// Package policy decides which destinations a sandbox may reach. It is pure: no I/O, no
// clock, no state. The DNS server, the dialer, and the readers of TLS handshakes and HTTP
// requests all ask the same functions. Names and addresses have one canonical form.
package policy

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Public is the Decision.Rule if a destination is allowed because nothing forbids it.
const Public = "public"

// Policy is a set of rules, made by New. The zero value is open: it allows TCP to every
// public address, and refuses everything else. So it refuses UDP, and all addresses of the
// protected ranges (loopback, private, link-local, metadata and others). A Policy is not
// changed by its methods and may be used from many goroutines.
type Policy struct {
	// Closed says that what no rule allows is refused. Then an address is reached
	// under a name that the sandbox has looked up, or by a rule of a prefix. New sets it
	// if there is any rule.
	Closed bool

	// Own are addresses of the host itself, whatever range they are in, each with its
	// network. They are protected like private ones, and so is what else is in those
	// networks: the host's neighbours. The caller fills them in.
	Own []netip.Prefix

	// Near are further networks of the host's neighbours, and its gateways. The
	// caller fills them in, too.
	Near []netip.Prefix

	// Deny are further protected ranges.
	Deny []netip.Prefix

	// The rules, by their domain or as prefixes, each list in the order of Rule.before.
	exact    map[string][]Rule // by the domain
	suffixes map[string][]Rule // by the suffix after "*."
	all      []Rule            // of "*"
	prefixes []Rule
}

// New returns the policy that has the rules. One with rules is closed.
func New(rules ...Rule) Policy {
	p := Policy{Closed: len(rules) > 0, exact: map[string][]Rule{}, suffixes: map[string][]Rule{}}
	ordered := slices.Clone(rules)
	slices.SortStableFunc(ordered, func(a, b Rule) int {
		switch {
		case a.before(b):
			return -1
		case b.before(a):
			return 1
		}
		return 0
	})
	for _, r := range ordered {
		suffix, wild := strings.CutPrefix(r.Domain, "*.")
		switch {
		case r.Domain == "":
			p.prefixes = append(p.prefixes, r)
		case r.Domain == "*":
			p.all = append(p.all, r)
		case wild:
			p.suffixes[suffix] = append(p.suffixes[suffix], r)
		default:
			p.exact[r.Domain] = append(p.exact[r.Domain], r)
		}
	}
	return p
}

// Decision is the outcome for one destination.
type Decision struct {
	Allow bool
	Rule  string // the reason: Public, a Rule's text, or the name of a protected range
	Hint  string // of a refusal: what to do about it, in one line
	Opens string // of a refusal: the rule that would allow it, as ParseRule reads it; empty: none would

	// Name, if it is set, is the name that a refusal of an address is about.
	Name string

	// Names, if there are any, are the names that an address is allowed under. If a
	// connection says a name, in a TLS handshake or an HTTP request, it must say one of
	// them (see Speak).
	Names []string
}

// For is d with a hint that names the sprite whose policy has decided. Without a name, the
// command of a hint would change another sprite, if that sprite is the noted one where the
// command is typed.
func (d Decision) For(sprite string) Decision {
	if sprite != "" {
		d.Hint = strings.NewReplacer("cove policy allow ", "cove policy allow -s "+sprite+" ", "cove policy show;", "cove policy show -s "+sprite+";").Replace(d.Hint)
	}
	return d
}

// Reach decides on an address that is about to be dialled. names are those that the
// sandbox has looked the address up under, the latest first. The first of these decides:
//
//  1. a rule of a prefix, the most specific one first; if it allows, it must name each
//     protected range that the address is in
//  2. a protected range: refused
//  3. an open policy: TCP is allowed, and nothing else
//  4. a name: allowed if the policy allows one of names; a refusal is about the latest
//  5. refused
func (p Policy) Reach(to netip.AddrPort, proto Proto, names []string) Decision {
	addr := Canonical(to.Addr())
	if !addr.IsValid() || to.Port() == 0 {
		return Decision{Rule: "invalid address", Hint: "nothing can connect to this address"}
	}
	literal := Literal(to, proto)
	in := p.protecting(addr)
	for _, r := range p.prefixes {
		if !r.Prefix.Contains(addr) || !r.takes(to.Port(), proto) {
			continue
		}
		if r.Deny {
			return Decision{Rule: r.String(), Hint: "a rule denies it; see it: cove policy show; allow just this: cove policy allow " + literal, Opens: literal}
		}
		if r.names(in) {
			return Decision{Allow: true, Rule: r.String()}
		}
	}
	if len(in) > 0 {
		why := in[0]
		return Decision{
			Rule:  why.name,
			Hint:  fmt.Sprintf("%v is %s; allow it: cove policy allow %s", addr, described[why.name], literal),
			Opens: literal,
		}
	}
	if !p.Closed {
		if proto != TCP {
			return Decision{Rule: string(proto), Hint: "without a rule, only TCP and DNS leave a sandbox: use TCP, or cove policy allow " + literal, Opens: literal}
		}
		return Decision{Allow: true, Rule: Public}
	}
	var allowed []string
	var by, refused Decision
	for _, name := range names {
		d := p.Named(name, to.Port(), proto)
		if !d.Allow {
			if refused.Rule == "" {
				refused, refused.Name = d, name
			}
		} else if allowed = append(allowed, name); by.Rule == "" {
			by = d
		}
	}
	switch {
	case len(allowed) > 0:
		by.Names = allowed
		return by
	case refused.Rule != "":
		refused.Hint += others(names, refused.Name)
		return refused
	}
	return Decision{
		Rule:  "no rule",
		Hint:  fmt.Sprintf("the sandbox looked up no allowed name with the address %v: use a name, or cove policy allow %s", addr, literal),
		Opens: literal,
	}
}

// others lists the other names that an address was looked up under, if any.
func others(names []string, but string) string {
	const most = 3
	rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == but })
	switch n := len(rest); {
	case n == 0:
		return ""
	case n > most:
		rest = append(rest[:most:most], fmt.Sprintf("%d more", n-most))
	}
	return "; the address was also looked up as " + strings.Join(rest, ", ")
}

// Ping decides on an ICMP echo request to an address. The first rule of a prefix decides,
// whatever its ports; an allowing one must name the address's protected ranges. Without
// such a rule, the address must be public. If p is closed, Lookup must also allow one of
// the names.
func (p Policy) Ping(a netip.Addr, names []string) bool {
	addr := Canonical(a)
	in := p.protecting(addr)
	for _, r := range p.prefixes {
		if r.Prefix.Contains(addr) && (r.Deny || r.names(in)) {
			return !r.Deny
		}
	}
	if !addr.IsValid() || len(in) > 0 {
		return false
	}
	return !p.Closed || slices.ContainsFunc(names, func(name string) bool { return p.Lookup(name).Allow })
}

// Literal is an address as an argument of cove policy allow: the rule that opens it alone.
func Literal(to netip.AddrPort, proto Proto) string {
	return withProto(netip.AddrPortFrom(Canonical(to.Addr()), to.Port()).String(), proto)
}

func withProto(s string, proto Proto) string {
	if proto == UDP {
		return s + "/udp"
	}
	return s
}

// leastNetwork4 and leastNetwork6 are the least bits in the prefix of a network of the
// host's neighbours. A network with a shorter prefix is a provider's, or a part of a
// default route.
const (
	leastNetwork4 = 8
	leastNetwork6 = 48
)

// protecting lists the protected ranges that a canonical address is in.
func (p Policy) protecting(addr netip.Addr) (in []protected) {
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
		if Canonical(own.Addr()) == addr {
			return append(in, protected{netip.PrefixFrom(addr, addr.BitLen()), "host"})
		}
	}
	if addr.Is4() && len(in) > 0 {
		return in // a rule for the whole of a private range goes for the host's part of it
	}
	for near := range p.networks() {
		if near.Contains(addr) {
			return append(in, protected{near, "local network"})
		}
	}
	return in
}

// networks are the networks of the host's neighbours.
func (p Policy) networks() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, list := range [][]netip.Prefix{p.Own, p.Near} {
			for _, n := range list {
				n = unwrapped(n).Masked()
				if least := leastNetwork(n.Addr()); n.Bits() >= least && !yield(n) {
					return
				}
			}
		}
	}
}

func leastNetwork(a netip.Addr) int {
	if a.Is4() {
		return leastNetwork4
	}
	return leastNetwork6
}

// unwrapped is the IPv4 prefix of a prefix that is mapped into IPv6. Any other prefix
// stays as it is.
func unwrapped(n netip.Prefix) netip.Prefix {
	if a := n.Addr(); a.Is4In6() && n.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), n.Bits()-96)
	}
	return n
}

// Named decides on a port of a host by its name, which need not be canonical. Even if the
// name may be reached, its addresses may not be: Reach decides on those.
func (p Policy) Named(name string, port uint16, proto Proto) Decision {
	c, d, done := p.plainly(name)
	if done {
		return d
	}
	for r := range p.asked(c) {
		if r.takes(port, proto) {
			return r.decision(c, withProto(c+":"+strconv.Itoa(int(port)), proto))
		}
	}
	if !p.Closed {
		return Decision{Allow: true, Rule: Public}
	}
	return missing(withProto(c+":"+strconv.Itoa(int(port)), proto))
}

func (r Rule) decision(name, fix string) Decision {
	if r.Deny {
		return Decision{Rule: r.String(), Hint: fmt.Sprintf("a rule denies %s; see it: cove policy show; allow just this: cove policy allow %s", name, fix), Opens: fix}
	}
	return Decision{Allow: true, Rule: r.String()}
}

func missing(fix string) Decision {
	return Decision{Rule: "no rule", Hint: "allow it: cove policy allow " + fix, Opens: fix}
}

// Lookup decides on looking up a name, which need not be canonical. A name may be looked
// up if some port of it may be reached.
func (p Policy) Lookup(name string) Decision {
	c, d, done := p.plainly(name)
	if done {
		return d
	}
	var over []Rule // the rules asked before
	var denied *Rule
	for r := range p.asked(c) {
		if !r.Deny && r.reaches(over) {
			return Decision{Allow: true, Rule: r.String()}
		}
		if r.Deny && denied == nil {
			denied = &r
		}
		over = append(over, r)
	}
	switch {
	case denied != nil:
		return denied.decision(c, c)
	case !p.Closed:
		return Decision{Allow: true, Rule: Public}
	}
	return missing(c)
}

// Speak decides on a name that a connection says, in a TLS handshake or in an HTTP
// request. It must be one of the names that the connection was allowed under.
func (p Policy) Speak(said string, port uint16, names []string) Decision {
	c, d, done := p.plainly(said)
	if done {
		return d
	}
	if d := p.Named(c, port, TCP); !d.Allow {
		return d
	}
	if slices.Contains(names, c) {
		return Decision{Allow: true, Rule: Public}
	}
	return Decision{
		Rule: "another name",
		Hint: fmt.Sprintf("the connection was made to %s, but asks for %s; connect to that name itself", strings.Join(names[:min(len(names), 3)], ", "), c),
	}
}

// plainly gives the canonical name. done says that d is the decision, whatever the port.
func (p Policy) plainly(name string) (c string, d Decision, done bool) {
	c, err := CanonicalName(name)
	if err != nil {
		return "", Decision{Rule: "invalid name", Hint: err.Error()}, true
	}
	for _, z := range privateZones {
		if !within(c, z) {
			continue
		}
		for r := range p.asked(c) { // one that names it; a denial opens nothing, also not to "*"
			if !r.Deny && r.namesZone(z) {
				return c, Decision{}, false
			}
		}
		return c, Decision{
			Rule:  "private name",
			Hint:  fmt.Sprintf("names under %s belong to the host's own network; allow this one and its address: cove policy allow %s ADDRESS", z, c),
			Opens: c,
		}, true
	}
	return c, Decision{}, false
}

func within(name, zone string) bool { return name == zone || strings.HasSuffix(name, "."+zone) }

// privateZones are names that no public server answers for, so that a lookup
// could only ask the host's own network about itself (RFC 6761, 6762, 8375 and
// ICANN's reservation of internal). Metadata services live under internal.
var privateZones = []string{"internal", "localhost", "local", "localdomain", "lan", "home.arpa", "onion"}

// asked are the rules of a canonical name's domain, in the order of Rule.before.
func (p Policy) asked(name string) iter.Seq[Rule] {
	return func(yield func(Rule) bool) {
		each := func(rules []Rule) bool {
			for _, r := range rules {
				if !yield(r) {
					return false
				}
			}
			return true
		}
		if !each(p.exact[name]) {
			return
		}
		for rest := name; ; {
			_, suffix, more := strings.Cut(rest, ".")
			if !more {
				break
			}
			if !each(p.suffixes[suffix]) {
				return
			}
			rest = suffix
		}
		each(p.all)
	}
}

// reaches reports whether the rule is about some port that no rule of over takes.
func (r Rule) reaches(over []Rule) bool {
	proto := cmp.Or(r.Proto, TCP)
	free := func(port uint16) bool {
		return r.takes(port, proto) && !slices.ContainsFunc(over, func(o Rule) bool { return o.takes(port, proto) })
	}
	// If there is such a port, one follows a range of over, or begins one of r.
	if free(1) {
		return true
	}
	for _, p := range r.Ports {
		if free(p.From) {
			return true
		}
	}
	for _, o := range over {
		for _, p := range o.Ports {
			if p.To < 1<<16-1 && free(p.To+1) {
				return true
			}
		}
	}
	return false
}
