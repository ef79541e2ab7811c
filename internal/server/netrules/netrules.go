// Package netrules edits the network rules of sprites, as people ask for it: by a rule more, by
// one for what was refused, or by those for what was reached.
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

// Nothing is the preset by which a sprite reaches nothing.
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

// Add is a policy with rules more, in place of those of the same thing. One
// without rules stays as open as it was.
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

// Target is what an event is about, for people.
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

// Of is what an event is about, as a rule is written: of a refusal, the rule that opens just
// that. It is empty for what no rule can be of.
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

// Learn returns the rules that allow what was reached: one for each host and
// protocol, with its ports. An address that a rule had to name is named again, since its
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

// decidedByAddress reports whether the rule that decided is one of addresses, and the event's
// is one that no name opens: that very address, or one of a private network.
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
