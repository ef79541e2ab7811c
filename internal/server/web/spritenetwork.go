package web

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/netrules"
	rules "github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

const (
	maxLines   = 200         // lines of a log that are shown
	telling    = time.Second // between two states of a log that grows
	maxGranted = 200         // connectors

	maxDecisions = 2 * time.Second // for the policy to decide again
)

type networkPage struct {
	Head   spriteHead
	Policy sprites.NetworkPolicy
	Log    networkLog
}

// networkLog is what a sprite was refused, the newest first. Equal events are one line.
type networkLog struct {
	Head  spriteHead
	Lines []refused
}

type refused struct {
	sprites.NetworkEvent
	Target string
	Rule   string // that decided
	Opens  string // the rule that would allow it; empty: none can
	Count  int
	Now    bool // a rule has been added since, and it would be allowed
}

// Why says in words why it was refused.
func (r refused) Why() string {
	if what, ok := rules.Describe(r.Rule); ok {
		return "it is " + what
	}
	switch r.Rule {
	case "no rule":
		return "no rule allows it"
	case "private name":
		return "only private networks answer for such a name"
	case "another name":
		return "it asked there for a name other than the allowed one"
	}
	return "by the rule " + r.Rule
}

func spriteNetwork(v *spriteView) error {
	h, err := v.head(v.r.Context(), "network")
	if err != nil {
		return err
	}
	p := networkPage{Head: h}
	if p.Policy, err = v.sprite().NetworkPolicy(v.r.Context()); err != nil {
		return err
	}
	var log merged
	if err := v.sprite().NetworkLog(v.r.Context(), sprites.NetworkLogOptions{}, log.add); err != nil {
		return err
	}
	p.Log = networkLog{h, v.allowedNow(v.r.Context(), p.Policy, log.newest())}
	return v.page(h.Info.Name+": network", h.live("network"), "sprite-network", p)
}

// merged gathers events. Equal events are one line. It keeps no more lines than a page shows.
type merged struct{ lines []refused }

func (m *merged) add(e sprites.NetworkEvent) error {
	if e.Allowed {
		return nil
	}
	l := refused{NetworkEvent: e, Target: netrules.Target(e), Rule: e.Rule, Opens: netrules.Of(e), Count: 1}
	if i := slices.IndexFunc(m.lines, func(o refused) bool { return o.Target == l.Target && o.Rule == l.Rule }); i >= 0 {
		l.Count += m.lines[i].Count
		if l.Process == nil {
			l.Process = m.lines[i].Process
		}
		m.lines = slices.Delete(m.lines, i, i+1)
	}
	if m.lines = append(m.lines, l); len(m.lines) > maxLines {
		m.lines = slices.Delete(m.lines, 0, 1)
	}
	return nil
}

func (m *merged) newest() []refused {
	all := slices.Clone(m.lines)
	slices.Reverse(all)
	return all
}

// allowedNow marks refused lines that would be allowed now, by the policy's own decision. It
// asks only about lines that a rule is for. A line that the policy does not decide in time is
// not marked.
func (v *spriteView) allowedNow(ctx context.Context, p sprites.NetworkPolicy, lines []refused) []refused {
	ctx, cancel := context.WithTimeout(ctx, maxDecisions)
	defer cancel()
	for i, l := range lines {
		rule, err := netrules.Allow(l.Opens)
		if err != nil || !slices.ContainsFunc(p.Rules, func(r sprites.NetworkRule) bool { return ruleText(r) == ruleText(rule) }) {
			continue
		}
		d, err := v.sprite().TestNetworkPolicy(ctx, l.Opens)
		lines[i].Now = err == nil && d.Allow
	}
	return lines
}

// spriteNetworkLive shows new refusals as they come, and the state of the sprite. The log is on
// the server's disk: to follow it wakes nothing.
func spriteNetworkLive(v *spriteView) error {
	return v.stream(func(ctx context.Context, s *stream) error {
		h, err := v.head(ctx, "network")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		events := make(chan sprites.NetworkEvent, 64)
		var following sync.WaitGroup
		defer following.Wait()
		defer cancel(nil)
		following.Go(func() {
			cancel(v.sprite().NetworkLog(ctx, sprites.NetworkLogOptions{Follow: true}, func(e sprites.NetworkEvent) error {
				select {
				case events <- e:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}))
		})
		var log merged
		var due <-chan time.Time
		for {
			select {
			case e := <-events:
				if err := log.add(e); err != nil {
					return err
				}
				if due == nil {
					due = time.After(telling)
				}
			case <-due:
				due = nil
				policy, err := v.sprite().NetworkPolicy(ctx)
				if err != nil {
					return err
				}
				if err := s.replace("network-log", "network-log", networkLog{h, v.allowedNow(ctx, policy, log.newest())}); err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
}

// allowPage is a rule that may be added, with what it does.
type allowPage struct {
	Head  spriteHead
	Rule  sprites.NetworkRule
	Text  string
	Opens string
	Also  string // another rule that comes with it
	Was   string // the state without the rule
	Hint  string
}

// spriteAllow shows exactly what a rule would open. It changes nothing.
func spriteAllow(v *spriteView) error {
	h, err := v.head(v.r.Context(), "network")
	if err != nil {
		return err
	}
	p, err := v.allowPage(v.r.Context(), h, v.r.URL.Query().Get("rule"))
	if err != nil {
		return err
	}
	return v.fragment("network-allow", p)
}

func (v *spriteView) allowPage(ctx context.Context, h spriteHead, text string) (allowPage, error) {
	rule, err := parseRule(text)
	if err != nil {
		return allowPage{}, err
	}
	now, err := v.sprite().NetworkPolicy(ctx)
	if err != nil {
		return allowPage{}, err
	}
	p := allowPage{Head: h, Rule: rule, Text: text, Opens: opens(rule)}
	if len(now.Rules) == 0 {
		p.Also = "The sprite has no rules. It stays open: the preset open is added, too."
	}
	if rule.Include != "" { // nothing that can be tested as one
		return p, nil
	}
	d, err := v.sprite().TestNetworkPolicy(ctx, text)
	if err == nil {
		p.Was = map[bool]string{true: "allowed", false: "refused"}[d.Allow] + " now: " + d.Rule
	}
	return p, nil
}

// presets are the presets that open something, with a description.
var presets = map[string]string{
	rules.Agent:    "what a coding agent needs: the model APIs and their log-ins, and the package registries of the server's machine",
	rules.Defaults: "what the preset agent opens, and the usual forges of git repositories",
	rules.Open:     "every public name and address, on every port, by TCP",
}

// parseRule reads a rule as people write it: HOST, HOST:PORTS, /udp after it, or preset NAME.
func parseRule(text string) (sprites.NetworkRule, error) {
	text = strings.TrimSpace(text)
	if name, ok := strings.CutPrefix(text, "preset "); ok && presets[strings.TrimSpace(name)] != "" {
		return sprites.NetworkRule{Include: strings.TrimSpace(name)}, nil
	}
	if text == "preset "+rules.None {
		return sprites.NetworkRule{}, fail.New("bad_request", "the preset none allows nothing", "to close the network, remove the rules that open it")
	}
	r, err := netrules.Allow(text)
	if err != nil {
		return r, fail.New("bad_request", err.Error(), "such as example.org:443, *.example.org, 10.1.2.3:5432, preset agent, preset defaults, or preset open")
	}
	return r, nil
}

// opens says what a rule lets a sprite reach.
func opens(r sprites.NetworkRule) string {
	if r.Include != "" {
		return presets[r.Include]
	}
	host := "the address " + r.CIDR
	switch {
	case strings.Contains(r.CIDR, "/"):
		host = "all addresses of " + r.CIDR
	case r.Domain == "*":
		host = "every public name"
	case strings.HasPrefix(r.Domain, "*."):
		host = "all names below " + r.Domain[2:]
	case r.Domain != "":
		host = "the name " + r.Domain
	}
	ports := "on every port"
	if len(r.Ports) == 1 && !strings.Contains(r.Ports[0], "-") {
		ports = "on port " + r.Ports[0] + " alone"
	} else if len(r.Ports) > 0 {
		ports = "on the ports " + strings.Join(r.Ports, ", ")
	}
	return fmt.Sprintf("%s, %s, by %s", host, ports, strings.ToUpper(cmp.Or(r.Protocol, "tcp")))
}

// spriteAllowDo adds the rule.
func spriteAllowDo(v *spriteView) error {
	rule, err := parseRule(v.r.PostFormValue("rule"))
	if err != nil {
		return err
	}
	if err := v.changePolicy(func(p sprites.NetworkPolicy) sprites.NetworkPolicy {
		return netrules.Add(p, []sprites.NetworkRule{rule})
	}); err != nil {
		return err
	}
	v.say("The rule is in force: %s.", ruleText(rule))
	return v.redirect(v.at("network"))
}

// changePolicy replaces the rules, and leaves the limits.
func (v *spriteView) changePolicy(change func(sprites.NetworkPolicy) sprites.NetworkPolicy) error {
	_, err := v.sprite().ChangeNetworkPolicy(v.r.Context(), func(p sprites.NetworkPolicy) (sprites.NetworkPolicy, error) {
		next := change(p)
		next.Limits = p.Limits
		return next, nil
	})
	return err
}

// spriteRuleRemove removes the rule that a form names by its whole text.
func spriteRuleRemove(v *spriteView) error {
	want := v.r.PostFormValue("rule")
	if !strings.HasPrefix(want, "allow ") && !strings.HasPrefix(want, "preset ") { // it opens what the rule has kept shut
		if err := v.confirm(); err != nil {
			return err
		}
	}
	err := v.changePolicy(func(p sprites.NetworkPolicy) sprites.NetworkPolicy {
		rules := slices.DeleteFunc(slices.Clone(p.Rules), func(r sprites.NetworkRule) bool { return ruleText(r) == want })
		if len(rules) == 0 {
			rules = []sprites.NetworkRule{netrules.Nothing} // no rules at all would open everything
		}
		return sprites.NetworkPolicy{Rules: rules}
	})
	if err != nil {
		return err
	}
	v.say("The rule is removed: %s.", want)
	return v.redirect(v.at("network"))
}

// ruleText is a rule in one line.
func ruleText(r sprites.NetworkRule) string {
	if r.Include != "" {
		return "preset " + r.Include
	}
	text := r.Action + " " + r.Domain + r.CIDR
	if len(r.Ports) > 0 {
		text += ":" + strings.Join(r.Ports, ",")
	}
	if r.Protocol == "udp" {
		text += "/udp"
	}
	return text
}

// spritePolicyTest says whether the sprite may reach something. Nothing is connected to.
func spritePolicyTest(v *spriteView) error {
	d, err := v.sprite().TestNetworkPolicy(v.r.Context(), strings.TrimSpace(v.r.URL.Query().Get("target")))
	if err != nil {
		return err
	}
	return v.fragment("network-decision", d)
}

// learnPage is the rules that would allow what was reached, and nothing else.
type learnPage struct {
	Head  spriteHead
	Rules []sprites.NetworkRule
	JSON  string // the same, for the form that puts them in force
}

// spriteLearn proposes rules from what the sprite has reached.
func spriteLearn(v *spriteView) error {
	h, err := v.head(v.r.Context(), "network")
	if err != nil {
		return err
	}
	var events []sprites.NetworkEvent
	const most = 100_000
	err = v.sprite().NetworkLog(v.r.Context(), sprites.NetworkLogOptions{Connections: true}, func(e sprites.NetworkEvent) error {
		if e.Allowed && len(events) < most {
			events = append(events, e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	rules := netrules.Learn(events)
	if len(rules) == 0 {
		return fail.New("not_found", v.name+" has reached nothing yet", "let it work for a while without rules, and try again")
	}
	text, err := json.Marshal(rules)
	if err != nil {
		return err
	}
	return v.fragment("network-learn", learnPage{h, rules, string(text)})
}

// spriteLearnDo puts the rules in force that were shown.
func spriteLearnDo(v *spriteView) error {
	var rules []sprites.NetworkRule
	if err := json.Unmarshal([]byte(v.r.PostFormValue("rules")), &rules); err != nil || len(rules) == 0 {
		return fail.New("bad_request", "the rules can't be read", "")
	}
	if err := v.changePolicy(func(sprites.NetworkPolicy) sprites.NetworkPolicy { return sprites.NetworkPolicy{Rules: rules} }); err != nil {
		return err
	}
	v.say("Rules in force: %d. They took the place of those before.", len(rules))
	return v.redirect(v.at("network"))
}

type connectorsPage struct {
	Head     spriteHead
	Granted  []cove.Connector
	Requests []cove.ConnectorEvent // the newest first
	More     int
}

// spriteConnectors shows what was asked of connectors; to an administrator also which the sprite has.
func spriteConnectors(v *spriteView) error {
	h, err := v.head(v.r.Context(), "connectors")
	if err != nil {
		return err
	}
	p := connectorsPage{Head: h}
	if h.Admin {
		all, err := v.api.Connectors(v.r.Context())
		if err != nil {
			return err
		}
		for _, c := range all {
			if len(p.Granted) < maxGranted && slices.ContainsFunc(c.Grants, func(g cove.ConnectorGrant) bool { return grants(g, h.Info) }) {
				p.Granted = append(p.Granted, c)
			}
		}
	}
	err = v.api.ConnectorLog(v.r.Context(), h.Info.Name, cove.ConnectorLogOptions{}, func(e cove.ConnectorEvent) error {
		if p.Requests = append(p.Requests, e); len(p.Requests) > 2*maxLines {
			p.Requests = slices.Delete(p.Requests, 0, maxLines)
			p.More += maxLines
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Reverse(p.Requests)
	if over := len(p.Requests) - maxLines; over > 0 {
		p.Requests, p.More = p.Requests[:maxLines], p.More+over
	}
	return v.spritePage(h, "sprite-connectors", p)
}

// grants reports whether a grant is for a sprite.
func grants(g cove.ConnectorGrant, info sprites.Info) bool {
	owner := ""
	if info.Cove != nil {
		owner = info.Cove.Owner
	}
	return g.Sprite == info.Name || g.Label != "" && slices.Contains(info.Labels, g.Label) || g.Job != "" && owner == "job:"+g.Job
}
