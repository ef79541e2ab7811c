package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Proto is a transport protocol.
type Proto string

// The transport protocols.
const (
	TCP Proto = "tcp"
	UDP Proto = "udp"
)

// Ports is a range of ports, both ends included.
type Ports struct{ From, To uint16 }

func (p Ports) contains(port uint16) bool { return p.From <= port && port <= p.To }

func (p Ports) String() string {
	if p.From == p.To {
		return strconv.Itoa(int(p.From))
	}
	return fmt.Sprintf("%d-%d", p.From, p.To)
}

// ParsePorts reads 443 or 8000-8999.
func ParsePorts(s string) (Ports, error) {
	from, to, two := strings.Cut(s, "-")
	if !two {
		to = from
	}
	a, err := strconv.ParseUint(from, 10, 16)
	b, err2 := strconv.ParseUint(to, 10, 16)
	if err != nil || err2 != nil || a == 0 || b < a {
		return Ports{}, fmt.Errorf("%q is not a port or a range such as 8000-8999", s)
	}
	return Ports{uint16(a), uint16(b)}, nil
}

// Rule allows or denies one protocol to the hosts of a domain, or to the addresses
// of a prefix.
//
// A rule for a protected address (loopback, private, metadata and the like) must name it: its
// Prefix must lie wholly inside each protected range that the address is in. So 10.1.0.0/16
// opens a private network, but 0.0.0.0/0 opens no protected address, and 169.254.0.0/16 does
// not open the metadata service. Only a rule of that very address opens an address of the
// host. A rule of a domain opens no protected address.
type Rule struct {
	Domain string       // canonical: a name, "*.suffix", which is all below it, or "*"; empty: the rule is one of Prefix
	Prefix netip.Prefix // masked, of canonical addresses
	Ports  []Ports      // none: every port
	Proto  Proto        // empty: TCP
	Deny   bool
	From   string // the preset that the rule comes from, or empty
}

// String is the name of a rule in decisions, in the form that ParseRule reads.
func (r Rule) String() string {
	var b strings.Builder
	if r.Deny {
		b.WriteString("deny ")
	}
	switch {
	case r.Domain != "":
		b.WriteString(r.Domain)
	case r.Prefix.IsSingleIP() && r.Prefix.Addr().Is6() && len(r.Ports) > 0:
		b.WriteString("[" + r.Prefix.Addr().String() + "]")
	case r.Prefix.IsSingleIP():
		b.WriteString(r.Prefix.Addr().String())
	default:
		b.WriteString(r.Prefix.String())
	}
	for i, p := range r.Ports {
		b.WriteString([]string{":", ","}[min(i, 1)] + p.String())
	}
	if r.Proto == UDP {
		b.WriteString("/udp")
	}
	if r.From != "" {
		b.WriteString(" (" + r.From + ")")
	}
	return b.String()
}

// Argument is an allowing rule as an argument of cove policy allow, for a shell.
func (r Rule) Argument() string {
	r.From = ""
	if text := r.String(); !strings.ContainsAny(text, "*[") {
		return text
	}
	return "'" + r.String() + "'"
}

// ParseRule reads HOST, HOST:PORTS or either with /udp after it. HOST is a name,
// *.SUFFIX, *, an address or a prefix such as 10.1.0.0/16; an IPv6 address that
// ports follow stands in brackets. PORTS are numbers and ranges, with commas.
func ParseRule(s string) (Rule, error) {
	var r Rule
	rest, udp := strings.CutSuffix(s, "/udp")
	if udp {
		r.Proto = UDP
	} else {
		rest = strings.TrimSuffix(rest, "/tcp")
	}
	host, ports := rest, ""
	if h, p, ok := strings.Cut(strings.TrimPrefix(rest, "["), "]"); ok && strings.HasPrefix(rest, "[") {
		if host, ports = h, strings.TrimPrefix(p, ":"); p != "" && ports == p {
			return r, fmt.Errorf("rule %q: only :PORT can follow ]", s)
		}
	} else if strings.Count(rest, ":") == 1 {
		host, ports, _ = strings.Cut(rest, ":")
		if ports == "" {
			return r, fmt.Errorf("rule %q: the port is missing", s)
		}
	}
	if ports != "" {
		for part := range strings.SplitSeq(ports, ",") {
			p, err := ParsePorts(part)
			if err != nil {
				return r, fmt.Errorf("rule %q: %w", s, err)
			}
			r.Ports = append(r.Ports, p)
		}
	}
	prefix, isPrefix, err := parsePrefix(host)
	if err != nil {
		return r, fmt.Errorf("rule %q: %w", s, err)
	}
	if isPrefix {
		r.Prefix = prefix
		return r, nil
	}
	if r.Domain, err = CanonicalPattern(host); err != nil {
		return r, fmt.Errorf("rule %q: %w", s, err)
	}
	return r, nil
}

// parsePrefix reads an address or a prefix; ok says that it is one of these at all.
func parsePrefix(s string) (prefix netip.Prefix, ok bool, err error) {
	if a, err := netip.ParseAddr(s); err == nil {
		a = Canonical(a)
		return netip.PrefixFrom(a, a.BitLen()), true, nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if strings.Contains(s, "/") {
			return p, true, fmt.Errorf("%q is not a prefix such as 10.1.0.0/16", short(s))
		}
		return p, false, nil
	}
	if a := Canonical(p.Addr()); a != p.Addr() {
		return p, true, fmt.Errorf("write the prefix with the address %v", a)
	}
	return p.Masked(), true, nil
}

// CanonicalPattern is CanonicalName for the domain of a rule: a name, *.SUFFIX, or *.
func CanonicalPattern(s string) (string, error) {
	if s == "*" {
		return s, nil
	}
	suffix, wild := strings.CutPrefix(s, "*.")
	name, err := CanonicalName(suffix)
	if err != nil {
		return "", err
	}
	if wild {
		return "*." + name, nil
	}
	return name, nil
}

// takes reports whether the rule is about a port.
func (r Rule) takes(port uint16, proto Proto) bool {
	want := r.Proto
	if want == "" {
		want = TCP
	}
	return want == proto && (len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p Ports) bool { return p.contains(port) }))
}

// names reports whether the rule lies inside all of the ranges.
func (r Rule) names(in []protected) bool {
	for _, p := range in {
		if p.prefix.Bits() > r.Prefix.Bits() || !p.prefix.Contains(r.Prefix.Addr()) {
			return false
		}
	}
	return true
}

// width is how many ports the rule is about.
func (r Rule) width() int {
	if len(r.Ports) == 0 {
		return 1 << 16
	}
	n := 0
	for _, p := range r.Ports {
		n += int(p.To-p.From) + 1
	}
	return n
}

// before reports whether the rule is asked before another. The more specific rule comes
// first: a name before a wildcard, a long suffix before a short one, a long prefix before a
// short one. Next, a rule of no preset comes first, since a person who denies a host means
// all of its ports. Next, a rule of fewer ports comes first, and at last a denial.
func (r Rule) before(s Rule) bool {
	switch a, b := r.specific(), s.specific(); {
	case a != b:
		return a > b
	case (r.From == "") != (s.From == ""):
		return r.From == ""
	case r.width() != s.width():
		return r.width() < s.width()
	default:
		return r.Deny && !s.Deny
	}
}

func (r Rule) specific() int {
	switch {
	case r.Domain == "":
		return r.Prefix.Bits()
	case strings.HasPrefix(r.Domain, "*"):
		return len(r.Domain) - 1
	default:
		return 1 << 10 // longer than any suffix
	}
}

// Spec is a rule as people and the protocol write it: exactly one of Domain, CIDR
// and Include, and for the first two an action.
type Spec struct {
	Domain   string   `json:"domain,omitempty"`
	CIDR     string   `json:"cidr,omitempty"`
	Include  string   `json:"include,omitempty"`
	Action   string   `json:"action,omitempty"`   // allow or deny
	Ports    []string `json:"ports,omitempty"`    // such as 443, 8000-8999; none: every port
	Protocol string   `json:"protocol,omitempty"` // tcp, which is the default, or udp
}

// Spec is the rule's specification, which Compile makes the same rule of.
func (r Rule) Spec() Spec {
	s := Spec{Domain: r.Domain, Action: "allow", Protocol: string(r.Proto)}
	if r.Domain == "" {
		s.CIDR = r.Prefix.String()
		if r.Prefix.IsSingleIP() {
			s.CIDR = r.Prefix.Addr().String()
		}
	}
	if r.Deny {
		s.Action = "deny"
	}
	for _, p := range r.Ports {
		s.Ports = append(s.Ports, p.String())
	}
	return s
}

// Limits bound a sandbox's use of other networks. The zero value bounds nothing.
type Limits struct {
	BytesPerSecond int64 // of its connections out, each way; 0: no limit
	ConnsPerSecond int64 // that it opens; 0: no limit
}

// Set is all that a sandbox's network is decided by. The zero value is the open
// policy, without limits.
type Set struct {
	Rules  []Rule
	Limits Limits
}

// MaxRules is how many rules a policy may have, presets included.
const MaxRules = 4096

// Compile makes rules of their specifications. preset gives the rules that an Include stands
// for. A preset has no includes.
func Compile(specs []Spec, preset func(name string) ([]Rule, error)) ([]Rule, error) {
	var out []Rule
	for i, s := range specs {
		rules, err := s.compile(preset)
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
		if out = append(out, rules...); len(out) > MaxRules {
			return nil, fmt.Errorf("more than %d rules", MaxRules)
		}
	}
	return out, nil
}

func (s Spec) compile(preset func(name string) ([]Rule, error)) ([]Rule, error) {
	if s.Include != "" {
		if s.Domain != "" || s.CIDR != "" || s.Action != "" || len(s.Ports) > 0 || s.Protocol != "" {
			return nil, errors.New("include can't be combined with other fields")
		}
		rules, err := preset(s.Include)
		rules = slices.Clone(rules)
		for i := range rules {
			rules[i].From = s.Include
		}
		return rules, err
	}
	if (s.Domain == "") == (s.CIDR == "") {
		return nil, errors.New("a rule must have exactly one of domain, cidr and include")
	}
	r := Rule{Deny: s.Action == "deny", Proto: Proto(s.Protocol)}
	if s.Action != "allow" && s.Action != "deny" {
		return nil, fmt.Errorf("action is %q, not allow or deny", short(s.Action))
	}
	if r.Proto != "" && r.Proto != TCP && r.Proto != UDP {
		return nil, fmt.Errorf("protocol is %q, not tcp or udp", short(s.Protocol))
	}
	for _, p := range s.Ports {
		ports, err := ParsePorts(p)
		if err != nil {
			return nil, err
		}
		r.Ports = append(r.Ports, ports)
	}
	var err error
	if s.Domain != "" {
		r.Domain, err = CanonicalPattern(s.Domain)
		return []Rule{r}, err
	}
	var ok bool
	if r.Prefix, ok, err = parsePrefix(s.CIDR); err == nil && !ok {
		err = fmt.Errorf("%q is not an address or a prefix such as 10.1.0.0/16", short(s.CIDR))
	}
	return []Rule{r}, err
}
