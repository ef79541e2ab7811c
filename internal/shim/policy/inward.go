package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Inward reports whether a rule opens something of the host's own network: protected
// addresses, or names that only that network answers for. A rule that denies opens
// nothing, and neither does one that is too wide to name a protected range. Own, Near and
// Deny of the policy count; its rules do not.
func (p Policy) Inward(r Rule) bool {
	if r.Deny {
		return false
	}
	if r.Domain != "" {
		return slices.ContainsFunc(privateZones, r.namesZone)
	}
	inside := func(prefix netip.Prefix) bool { return r.names([]protected{{prefix: prefix}}) }
	return slices.ContainsFunc(ranges, func(g protected) bool { return inside(g.prefix) }) ||
		slices.ContainsFunc(p.Deny, inside) ||
		slices.ContainsFunc(p.Own, func(own netip.Prefix) bool {
			addr := Canonical(own.Addr())
			return inside(netip.PrefixFrom(addr, addr.BitLen()))
		}) ||
		slices.ContainsFunc(slices.Collect(p.networks()), inside)
}

// Widens returns a rule that makes next open more of the host's own network than now
// does. It is an inward rule of next that now does not have. Or it is a denial of now
// that next does not have, and that limits an inward rule of both. ok is false if there
// is none. Rules of next that come from a preset don't count: the machine decides what a
// preset opens, and not the user who includes it.
func (p Policy) Widens(next, now []Rule) (rule Rule, ok bool) {
	has := func(rules []Rule, r Rule) bool {
		key := r.key()
		return slices.ContainsFunc(rules, func(o Rule) bool { return o.Deny == r.Deny && o.key() == key })
	}
	for _, r := range next {
		if r.From != "" || !p.Inward(r) {
			continue
		}
		if !has(now, r) {
			return r, true
		}
		for _, d := range now {
			if d.Deny && d.before(r) && d.overlaps(r) && !has(next, d) {
				return d, true
			}
		}
	}
	return Rule{}, false
}

// key is the same for rules that are about the same hosts, ports and protocol.
func (r Rule) key() string {
	r.From, r.Deny, r.Proto = "", false, cmp.Or(r.Proto, TCP)
	r.Ports = slices.Clone(r.Ports)
	slices.SortFunc(r.Ports, func(a, b Ports) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	r.Ports = slices.Compact(r.Ports)
	return r.String()
}

// overlaps reports whether both rules are about some common host. Ports don't count.
func (r Rule) overlaps(o Rule) bool {
	if (r.Domain == "") != (o.Domain == "") {
		return false
	}
	if r.Domain == "" {
		return r.Prefix.Overlaps(o.Prefix)
	}
	return r.Domain == "*" || o.Domain == "*" || within(strings.TrimPrefix(r.Domain, "*."), strings.TrimPrefix(o.Domain, "*.")) ||
		within(strings.TrimPrefix(o.Domain, "*."), strings.TrimPrefix(r.Domain, "*."))
}

// namesZone reports whether a rule's domain lies in a zone.
func (r Rule) namesZone(zone string) bool {
	return r.Domain != "*" && within(strings.TrimPrefix(r.Domain, "*."), zone)
}
