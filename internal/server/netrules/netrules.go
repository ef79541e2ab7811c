// Package netrules edits the network rules of sprites, as people ask for it. It adds a rule
// that they name, one for a connection that was refused, or those for hosts that were reached.
package netrules

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// Nothing is the preset that lets a sprite reach nothing.
var Nothing = sprites.NetworkRule{Include: policy.None}

// Allow reads a rule that allows something, as people write it: HOST or HOST:PORTS, with /udp
// after it for that.
func Allow(text string) (sprites.NetworkRule, error) {
	r, err := policy.ParseRule(text)
	if err != nil {
		return sprites.NetworkRule{}, err
	}
	return sprites.NetworkRule(r.Spec()), nil
}

// Add is a policy with more rules. A new rule replaces those for the same target. A policy
// without rules stays as open as it was, apart from the new rules.
func Add(p sprites.NetworkPolicy, rules []sprites.NetworkRule) sprites.NetworkPolicy {
	out := slices.Clone(p.Rules)
	if len(out) == 0 {
		open := sprites.NetworkRule{Domain: "*", Action: "allow"}
		if !slices.ContainsFunc(rules, func(r sprites.NetworkRule) bool { return r.Action == "deny" }) {
			open = sprites.NetworkRule{Include: policy.Open}
		}
		out = append(out, open)
	}
	for _, r := range rules {
		out = slices.DeleteFunc(out, func(o sprites.NetworkRule) bool {
			if o.Include == policy.None && (r.Domain == "*" && r.Action == "allow" || r.Include == policy.Open) {
				return true // nothing is left of it: what no rule allows is refused without it, too
			}
			return o.Include == r.Include && o.Domain == r.Domain && o.CIDR == r.CIDR && o.Protocol == r.Protocol && slices.Equal(o.Ports, r.Ports)
		})
		out = append(out, r)
	}
	return sprites.NetworkPolicy{Rules: out}
}

// Target is the target of an event, for people.
func Target(e sprites.NetworkEvent) string {
	if e.Address == nil {
		return e.Name + " (lookup)"
	}
	to := netip.AddrPortFrom(*e.Address, uint16(e.Port)).String()
	if e.Name != "" {
		to = fmt.Sprintf("%s:%d (%s)", e.Name, e.Port, e.Address)
	}
	if e.Protocol == "udp" {
		to += "/udp"
	}
	return to
}

// Of is the target of an event, as a rule is written. For a refusal, it is the rule that opens
// just that target. It is empty if no rule can be written for it.
func Of(e sprites.NetworkEvent) string {
	text := e.Opens
	if e.Allowed && e.Address != nil {
		text = netip.AddrPortFrom(*e.Address, uint16(e.Port)).String()
		if e.Name != "" {
			text = fmt.Sprintf("%s:%d", e.Name, e.Port)
		}
		if e.Protocol == "udp" {
			text += "/udp"
		}
	}
	if _, err := policy.ParseRule(text); err != nil {
		return ""
	}
	return text
}

// Learn returns the rules that allow the hosts that were reached: one for each host and
// protocol, with its ports. If a rule had to name an address, Learn names it again: the
// host's name alone does not open it.
func Learn(events []sprites.NetworkEvent) []sprites.NetworkRule {
	type host struct{ domain, cidr, protocol string }
	ports := map[host]map[int]bool{}
	for _, e := range events {
		if e.Address == nil {
			continue
		}
		h := host{domain: e.Name}
		if e.Name == "" || decidedByAddress(e) {
			h = host{cidr: e.Address.String()}
		}
		if e.Protocol == "udp" {
			h.protocol = e.Protocol
		}
		if ports[h] == nil {
			ports[h] = map[int]bool{}
		}
		ports[h][e.Port] = true
	}
	hosts := slices.SortedFunc(maps.Keys(ports), func(x, y host) int {
		return cmp.Or(cmp.Compare(x.domain, y.domain), cmp.Compare(x.cidr, y.cidr), cmp.Compare(x.protocol, y.protocol))
	})
	var rules []sprites.NetworkRule
	for _, h := range hosts {
		r := sprites.NetworkRule{Domain: h.domain, CIDR: h.cidr, Action: "allow", Protocol: h.protocol}
		for _, port := range slices.Sorted(maps.Keys(ports[h])) {
			r.Ports = append(r.Ports, strconv.Itoa(port))
		}
		rules = append(rules, r)
	}
	return rules
}

// decidedByAddress reports whether a rule for addresses decided, and no name would open the
// event's address. That is so if the rule is for this very address, or for a network with it,
// and the address is not public.
func decidedByAddress(e sprites.NetworkEvent) bool {
	where, _, _ := strings.Cut(e.Rule, " ")
	where = strings.TrimSuffix(where, "/udp")
	if a, err := netip.ParseAddr(where); err == nil { // of any port
		return a == *e.Address
	}
	if p, err := netip.ParsePrefix(where); err == nil {
		return p.Contains(*e.Address) && !isPublic(*e.Address)
	}
	if i := strings.LastIndexByte(where, ':'); i >= 0 {
		where = strings.Trim(where[:i], "[]")
	}
	if p, err := netip.ParsePrefix(where); err == nil {
		return p.Contains(*e.Address) && !isPublic(*e.Address)
	}
	a, err := netip.ParseAddr(where)
	return err == nil && a == *e.Address
}

// isPublic reports whether an address is of no network that is private, local or shared.
func isPublic(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsGlobalUnicast() && !a.IsPrivate() && !sharedAddresses.Contains(a)
}

// sharedAddresses are those of RFC 6598, behind a provider's NAT.
var sharedAddresses = netip.MustParsePrefix("100.64.0.0/10")
