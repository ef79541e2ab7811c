package sprite

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/hostnet"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

const (
	setNetworkLimit = time.Minute     // for a shim to take new rules
	showLimit       = 2 * time.Second // for its guest to show them
)

// network tells sandboxes their policies and their connectors: those that were stored last
// are in force.
type network struct {
	store      *store.Store
	registries func(context.Context) []string // nil: none
	given      map[string]connect.Upstream    // of every sprite
	machines   *machines
	rows       *rows
	tasks      *tasks
	logger     *slog.Logger

	setting keyedMutex   // held while a sandbox is told something; by what it is, and the sprite
	changes atomic.Int64 // counts changes of policies and connectors
}

// NetworkPolicy returns a sprite's policy, with its revision.
func (h *Host) NetworkPolicy(ctx context.Context, name string) (sprites.NetworkPolicy, error) {
	row, err := h.rows.named(ctx, name)
	if err == nil {
		row.Policy.Revision, err = revisionOf(row.Policy)
	}
	return row.Policy, err
}

// revisionOf tells a document from others, as an entity tag of HTTP (RFC 9110, 8.8.3).
func revisionOf(doc any) (string, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return fmt.Sprintf(`"%x"`, sum[:12]), nil
}

// SetNetworkPolicy replaces a sprite's policy. If p has a revision, it replaces only the policy
// of that revision. If the sprite is awake, connections that p does not allow have ended when
// this returns. A malformed policy changes nothing. Unless inward is true, neither does one
// that opens more of the host's own network than the present policy.
func (h *Host) SetNetworkPolicy(ctx context.Context, name string, p sprites.NetworkPolicy, inward bool) error {
	next, err := h.network.compile(ctx, p)
	if err != nil {
		return err
	}
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return err
	}
	return h.network.replace(ctx, row, p, next, inward)
}

// replace replaces the policy of a sprite by p. The set next is p compiled.
func (n *network) replace(ctx context.Context, row store.Sprite, p sprites.NetworkPolicy, next policy.Set, inward bool) error {
	// The policy that is stored last is in force. A guest that is slow holds up its own sprite.
	done, err := n.setting.lock(ctx, policyOf(row.ID))
	if err != nil {
		return err
	}
	defer done()
	name := row.Name
	current, err := n.rows.named(ctx, name) // its policy can't change meanwhile
	if err != nil {
		return err
	}
	now := current.Policy
	revision, err := revisionOf(now)
	if err != nil {
		return err
	}
	if p.Revision != "" && p.Revision != revision {
		return fail.Newf(CodePolicyChanged, "read it again, and make the change on the current version", "the network policy of %s has been replaced since it was read", name)
	}
	p.Revision = ""
	if !inward {
		if err := n.mayOpen(ctx, name, next, now); err != nil {
			return err
		}
	}
	row, err = n.store.Sprites.Update(ctx, row.ID, func(s *store.Sprite) error {
		s.Policy = p
		s.UpdatedAt = time.Now()
		return nil
	})
	if err != nil {
		return err
	}
	n.changes.Add(1)
	sb := n.machines.booted(row.ID)
	if sb == nil {
		return nil
	}
	return n.tell(ctx, row, sb)
}

// policyOf is what network.setting calls the replacing of a sprite's policy.
func policyOf(id string) string { return "the policy of " + id }

// tell brings a sandbox to its sprite's policy.
func (n *network) tell(ctx context.Context, row store.Sprite, sb Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setNetworkLimit)
	defer cancel()
	network, err := n.of(ctx, row)
	if err != nil {
		return err
	}
	if err := sb.SetNetwork(ctx, network); err != nil && !endsSoon(ctx, sb) {
		e := fail.Newf(CodeUnavailable, "restart the sprite, which then has the new policy: cove restart "+row.Name, "the running sandbox of %s did not get its new network policy", row.Name)
		e.Err = err
		return e
	}
	// That those inside see it, too, is up to them.
	n.noteUndelivered("showing a sandbox its network policy", row.Name, sb, n.showPolicy(ctx, row, sb))
	return nil
}

// showPolicy has the guest show the policy that is in force.
func (n *network) showPolicy(ctx context.Context, row store.Sprite, sb Sandbox) error {
	doc := row.Policy
	if doc.Rules == nil {
		doc.Rules = []sprites.NetworkRule{}
	}
	body, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, showLimit)
	defer cancel()
	_, err = askGuest(ctx, sb, http.MethodPost, "policy/network", body)
	return err
}

// revive tells a sandbox that was found running its policy: a shim that was
// started anew for it lets nothing out before.
func (n *network) revive(row store.Sprite, sb Sandbox) {
	done, err := n.setting.lock(n.tasks.ctx, policyOf(row.ID))
	if err != nil {
		return // the server ends
	}
	defer done()
	row, err = n.store.Sprites.Get(n.tasks.ctx, row.Name)
	if err == nil {
		err = n.tell(n.tasks.ctx, row, sb)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) { // it has been deleted
		n.logger.Error("sending a sandbox its network policy", "sprite", row.Name, "err", err)
	}
}

// of is what a sprite's policy says, with what its presets stand for now.
func (n *network) of(ctx context.Context, row store.Sprite) (policy.Set, error) {
	return n.compile(ctx, row.Policy)
}

func (n *network) compile(ctx context.Context, p sprites.NetworkPolicy) (set policy.Set, err error) {
	if l := p.Limits; l != nil {
		if l.BytesPerSecond < 0 || l.ConnectionsPerSecond < 0 {
			return set, fail.Newf(CodeBadRequest, "leave a limit out, or set it to 0, for none", "the network policy has a negative limit")
		}
		set.Limits = policy.Limits{BytesPerSecond: l.BytesPerSecond, ConnsPerSecond: l.ConnectionsPerSecond}
	}
	specs := make([]policy.Spec, len(p.Rules))
	for i, r := range p.Rules {
		specs[i] = policy.Spec(r)
	}
	set.Rules, err = policy.Compile(specs, func(name string) ([]policy.Rule, error) {
		var machine policy.Machine
		if n.registries != nil && (name == policy.Agent || name == policy.Defaults) {
			machine.Registries = n.registries(ctx)
		}
		return policy.Preset(name, machine)
	})
	if err != nil {
		return set, fail.Newf(CodeBadRequest, "see how rules are written with: cove help policy", "the network policy: %v", err)
	}
	return set, nil
}

// PresetRules are the rules that the presets of a sprite's policy stand for now. Unless all is
// set, those of the package registries are withheld: they name what may be of the host's own
// network.
func PresetRules(ctx context.Context, h *Host, name string, all bool) (out sprites.PresetRules, err error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return out, err
	}
	out.Rules = []sprites.NetworkRule{}
	for _, r := range row.Policy.Rules {
		if r.Include == "" {
			continue
		}
		whole, err := h.network.compile(ctx, sprites.NetworkPolicy{Rules: []sprites.NetworkRule{r}})
		if err != nil {
			return out, err
		}
		known, err := policy.Preset(r.Include, policy.Machine{})
		if err != nil {
			return out, err
		}
		for _, rule := range whole.Rules {
			own := slices.ContainsFunc(known, func(k policy.Rule) bool { return k.Domain == rule.Domain && k.Prefix == rule.Prefix })
			if !own && !all {
				out.Withheld++
				continue
			}
			out.Rules = append(out.Rules, sprites.NetworkRule(rule.Spec()))
		}
	}
	return out, nil
}

// Blocked are those of some hosts that a policy for a new sprite does not let through by HTTPS. With
// packages, the hosts of the package registries are among them.
func Blocked(ctx context.Context, h *Host, p sprites.NetworkPolicy, packages bool, hosts ...string) (blocked []string, err error) {
	set, err := h.network.compile(ctx, p)
	if err != nil {
		return nil, err
	}
	if packages && h.network.registries != nil {
		hosts = append(slices.Clone(hosts), h.network.registries(ctx)...)
	}
	rules := policy.New(set.Rules...)
	for _, host := range hosts {
		if _, err := policy.CanonicalName(host); err == nil && !rules.Named(host, 443, policy.TCP).Allow {
			blocked = append(blocked, host)
		}
	}
	slices.Sort(blocked)
	return slices.Compact(blocked), nil
}

// OpensInward returns an error if a policy for a new sprite opens something of the
// host's own network, which only the verb admin may. The rules of presets don't count.
func (h *Host) OpensInward(ctx context.Context, name string, p sprites.NetworkPolicy) error {
	return h.network.opensInward(ctx, name, p)
}

func (n *network) opensInward(ctx context.Context, name string, p sprites.NetworkPolicy) error {
	next, err := n.compile(ctx, p)
	if err != nil {
		return err
	}
	return n.mayOpen(ctx, name, next, sprites.NetworkPolicy{})
}

// mayOpen refuses, for callers without the verb admin, a policy that opens more of the
// host's own network than now does. It is the only such check.
func (n *network) mayOpen(ctx context.Context, name string, next policy.Set, now sprites.NetworkPolicy) error {
	before, err := n.compile(ctx, now)
	if err != nil {
		before = policy.Set{} // by no rule of it anything is open
	}
	judge := onHost(next.Rules)
	r, widens := judge.Widens(next.Rules, before.Rules)
	switch {
	case !widens:
		return nil
	case r.Deny:
		return fail.Newf(CodeForbidden, "keep that rule, or use a token with the verb admin", "without the rule %s more of the host's own network would be open, which needs a token with the verb admin", r)
	}
	allow := "cove policy allow " + r.Argument()
	if name != "" {
		allow = "cove policy allow -s " + name + " " + r.Argument()
	}
	return fail.Newf(CodeForbidden, "leave the rule out, or allow it with a token that has the verb admin: "+allow, "the rule %s opens the host's own network, which needs a token with the verb admin", r)
}

// onHost is a policy without rules that knows this machine's network, and of the rules'
// addresses which are this machine's own. Only a rule of a single address opens one. If
// the network could not be read, a gateway refuses.
func onHost(rules []policy.Rule) policy.Policy {
	here, _ := hostnet.Read()
	p := policy.Policy{Own: here.Own, Near: here.Near}
	for _, r := range rules {
		if r.Deny || !r.Prefix.IsSingleIP() {
			continue
		}
		var port uint16
		if len(r.Ports) > 0 {
			port = r.Ports[0].From
		}
		p, _ = hostnet.Net{}.Policy(p, netip.AddrPortFrom(r.Prefix.Addr(), port), cmp.Or(r.Proto, policy.TCP))
	}
	return p
}

// lookupLimit is for the host's resolver, when a policy is tested.
const lookupLimit = 3 * time.Second

// TestNetworkPolicy says whether a sprite's policy lets it reach HOST, HOST:PORT, or
// either with /udp after it; without a port, 443. If lookUp is set, the host's resolver
// looks up a name that the policy allows, to see where it leads. The resolver may know
// names of the host's own network.
func (h *Host) TestNetworkPolicy(ctx context.Context, name, target string, lookUp bool) (sprites.PolicyDecision, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return sprites.PolicyDecision{}, err
	}
	network, err := h.network.of(ctx, row)
	if err != nil {
		return sprites.PolicyDecision{}, err
	}
	want, err := policy.ParseRule(target)
	if err != nil || strings.HasPrefix(want.Domain, "*") || want.Domain == "" && !want.Prefix.IsSingleIP() || len(want.Ports) > 1 ||
		len(want.Ports) == 1 && want.Ports[0].From != want.Ports[0].To {
		return sprites.PolicyDecision{}, fail.Newf(CodeBadRequest, "for example: example.org:443, 10.1.2.3 or time.example.org:123/udp", "%q is not a host and port", target)
	}
	port, proto := uint16(443), policy.TCP
	if len(want.Ports) == 1 {
		port = want.Ports[0].From
	}
	if want.Proto != "" {
		proto = want.Proto
	}
	p := policy.New(network.Rules...)
	if want.Domain == "" {
		to := netip.AddrPortFrom(want.Prefix.Addr(), port)
		return reached(name, p, to, proto, nil)
	}
	out := decided(name, fmt.Sprintf("%s:%d", want.Domain, port), p.Named(want.Domain, port, proto))
	if !out.Allow {
		return out, nil
	}
	if !lookUp {
		out.Hint = "its addresses are not looked up for a token without the verb admin; each is decided on when it is dialled"
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", want.Domain)
	if err != nil {
		out.Hint = "it can't be looked up here now, so its addresses are not known"
		return out, nil
	}
	for _, a := range addrs {
		to := netip.AddrPortFrom(a.Unmap(), port)
		d, err := reached(name, p, to, proto, []string{want.Domain})
		if err != nil {
			return sprites.PolicyDecision{}, err
		}
		out.Addresses = append(out.Addresses, d)
	}
	return out, nil
}

// reached is the answer about an address, which the gateway judges by the same network
// of this machine and the same routes.
func reached(name string, p policy.Policy, to netip.AddrPort, proto policy.Proto, names []string) (sprites.PolicyDecision, error) {
	here, err := hostnet.Read()
	if err != nil {
		return sprites.PolicyDecision{}, err
	}
	if p, err = here.Policy(p, to, proto); err != nil {
		return sprites.PolicyDecision{}, err
	}
	return decided(name, to.String(), p.Reach(to, proto, names)), nil
}

// decided is the answer about a target of the sprite called name.
func decided(name, target string, d policy.Decision) sprites.PolicyDecision {
	d = d.For(name)
	return sprites.PolicyDecision{Target: target, Allow: d.Allow, Rule: d.Rule, Hint: d.Hint}
}

// NamesOnly says a policy in the rules that every server of the protocol knows: names,
// allowed or denied. If a rule allows only some ports of a name, the result allows the
// name. Rules that allow addresses or UDP are left out. Limits, and rules that deny
// addresses or ports, are an error: the result would let through more than p.
func (h *Host) NamesOnly(ctx context.Context, p sprites.NetworkPolicy) (sprites.NetworkPolicy, error) {
	set, err := h.network.compile(ctx, p)
	if err != nil {
		return p, err
	}
	const elsewhere = "the backend's policies can have only names"
	if set.Limits != (policy.Limits{}) {
		return p, fail.Newf(CodeBadRequest, elsewhere, "the network policy has limits")
	}
	plain, said := sprites.NetworkPolicy{Rules: []sprites.NetworkRule{}}, map[string]bool{}
	for _, r := range set.Rules {
		rule := sprites.NetworkRule{Domain: r.Domain, Action: "allow"}
		if r.Deny {
			rule.Action = "deny"
		}
		switch {
		case r.Deny && (r.Domain == "" || len(r.Ports) > 0):
			return p, fail.Newf(CodeBadRequest, elsewhere, "the network policy denies %s", r)
		case r.Domain == "" || !r.Deny && r.Proto == policy.UDP || said[rule.Domain+rule.Action]:
			continue
		}
		said[rule.Domain+rule.Action] = true
		plain.Rules = append(plain.Rules, rule)
	}
	if len(plain.Rules) == 0 {
		plain.Rules = append(plain.Rules, sprites.NetworkRule{Domain: "*", Action: "deny"}) // without any rules, everything public would be open
	}
	return plain, nil
}
