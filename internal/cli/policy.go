package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/netrules"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

func newPolicyCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "See and change what a sprite may reach",
		Long: `A sprite without rules reaches every public address, by TCP. With rules, it reaches only what
they allow, and the most specific rule decides. Private addresses and their like need a rule
that names them: see cove help network.

A rule is HOST or HOST:PORTS, for UDP with /udp at its end. HOST is a name, *.SUFFIX for all
names below it, *, an address, or a prefix such as 10.1.0.0/16. PORTS are numbers and ranges,
with commas. A preset stands for several rules:

  open      every public name and address
  none      nothing
  agent     the model APIs of the known agents, and the package registries that the
            server's machine is configured for
  defaults  those, and the usual forges`,
		Example: `  cove policy set --preset agent -s paint
  cove policy allow -s paint api.example.org:443 '*.example.com'
  cove policy allow 10.1.2.3:5432            a database beside the server
  cove policy log --follow                   what is refused, and what to do about it
  cove policy test example.org:443`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyShowCommand(inv), newPolicySetCommand(inv), newPolicyAddCommand(inv, "allow"), newPolicyAddCommand(inv, "deny"), newPolicyLimitCommand(inv), newPolicyTestCommand(inv), newPolicyLogCommand(inv), newPolicyLearnCommand(inv))
	return cmd
}

func newPolicyShowCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show a sprite's rules",
		Long:  `Shows the rules of a sprite's network policy. --json prints what cove policy set takes.`,
		Example: `  cove policy show -s paint
  cove policy show -s paint --json > policy.json`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			sprite, err := inv.spriteHandle(ctx)
			if err != nil {
				return err
			}
			p, err := sprite.NetworkPolicy(ctx)
			if err != nil {
				return spriteError(err)
			}
			return inv.show(p, func(w io.Writer) { printPolicy(w, p) })
		}),
	}
}

func printPolicy(w io.Writer, p sprites.NetworkPolicy) {
	if l := p.Limits; l != nil && l.BytesPerSecond > 0 {
		fmt.Fprintf(w, "At most %s a second, each way.\n", printable.Bytes(l.BytesPerSecond))
	}
	if l := p.Limits; l != nil && l.ConnectionsPerSecond > 0 {
		fmt.Fprintf(w, "At most %d new connections a second.\n", l.ConnectionsPerSecond)
	}
	if len(p.Rules) == 0 {
		fmt.Fprintln(w, "No rules: every public address, by TCP.")
		return
	}
	rows := [][]string{{"ACTION", "WHAT", "PORTS", "PROTOCOL"}}
	for _, r := range p.Rules {
		if r.Include != "" {
			rows = append(rows, []string{"include", r.Include, "", ""})
			continue
		}
		rows = append(rows, []string{r.Action, cmp.Or(r.Domain, r.CIDR), cmp.Or(strings.Join(r.Ports, ","), "all"), cmp.Or(r.Protocol, "tcp")})
	}
	table(w, rows)
}

// networkText is a policy in a few words: its presets, and how many rules there are
// besides; empty for none.
func networkText(p *sprites.NetworkPolicy) string {
	if p == nil {
		return ""
	}
	if len(p.Rules) == 0 {
		return "open, without rules"
	}
	var parts []string
	n := 0
	for _, r := range p.Rules {
		if r.Include != "" {
			parts = append(parts, r.Include)
		} else {
			n++
		}
	}
	if n > 0 {
		parts = append(parts, printable.Count(n, "rule"))
	}
	return strings.Join(parts, ", ")
}

func newPolicySetCommand(inv *invocation) *cobra.Command {
	var preset string
	cmd := &cobra.Command{
		Use:   "set FILE | --preset NAME",
		Short: "Replace a sprite's rules",
		Long: `Replaces a sprite's rules by those of a file (- for standard input), or by a preset. They are in
force when the command returns: connections that they do not allow have ended. A file with a
mistake changes nothing.`,
		Example: `  cove policy set policy.json -s paint
  cove policy set --preset agent
  echo '{"rules":[]}' | cove policy set -           removes all rules`,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if (len(args) == 1) == (preset != "") || len(args) > 1 {
			return usagef(cmd, "give a file, or --preset")
		}
		return nil
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		p := sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: preset}}}
		if len(args) == 1 {
			var err error
			if p, err = readPolicy(inv, args[0]); err != nil {
				return err
			}
		}
		return setPolicy(ctx, inv, func(sprites.NetworkPolicy) (sprites.NetworkPolicy, error) { return p, nil })
	})
	cmd.Flags().StringVar(&preset, "preset", "", "one of "+strings.Join(policy.Presets, ", "))
	must(cmd.RegisterFlagCompletionFunc("preset", cobra.FixedCompletions(policy.Presets, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// maxPolicyFile bounds what is read of a file.
const maxPolicyFile = 1 << 20

func readPolicy(inv *invocation, name string) (p sprites.NetworkPolicy, err error) {
	in := inv.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return p, err
		}
		defer f.Close()
		in = f
	}
	dec := json.NewDecoder(io.LimitReader(in, maxPolicyFile))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return p, fail.Wrap("failed", fmt.Errorf("read %s: %w", name, err), "see the format: cove policy show --json")
	}
	if p.Rules == nil {
		return p, hinted(fmt.Errorf("%s has no rules", name), `to have no rules at all, write {"rules":[]}`)
	}
	return p, nil
}

// setPolicy replaces the policy by the one that change returns for it, and shows the result.
func setPolicy(ctx context.Context, inv *invocation, change func(sprites.NetworkPolicy) (sprites.NetworkPolicy, error)) error {
	sprite, err := inv.spriteHandle(ctx)
	if err != nil {
		return err
	}
	p, err := sprite.ChangeNetworkPolicy(ctx, change)
	if err != nil {
		return spriteError(err)
	}
	return inv.show(p, func(w io.Writer) {
		if !inv.global.quiet {
			printPolicy(w, p)
		}
	})
}

func newPolicyAddCommand(inv *invocation, action string) *cobra.Command {
	verbs := map[string][2]string{
		"allow": {"Add a rule that allows", `If the sprite has no rules yet, the preset open is added as well, so that the sprite stays open.`},
		"deny": {"Add a rule that denies", `If the sprite has no rules yet, a rule that allows all names is added as well. Then the sprite
can't connect to an address whose name it has not looked up.`},
	}
	cmd := &cobra.Command{
		Use:   action + " RULE...",
		Short: verbs[action][0],
		Long: verbs[action][0] + `, in place of rules for the same hosts, ports and protocol.
` + verbs[action][1],
		Example: fmt.Sprintf(`  cove policy %[1]s -s paint api.example.org:443
  cove policy %[1]s '*.example.org' 10.1.0.0/16:5432 time.example.org:123/udp`, action),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "which rule?")
			}
			return nil
		},
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeTarget(inv, func(e sprites.NetworkEvent) bool { return e.Allowed == (action == "deny") }),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		rules, err := parseRules(cmd, args, action)
		if err != nil {
			return err
		}
		var stay []string
		var now sprites.NetworkPolicy
		err = setPolicy(ctx, inv, func(p sprites.NetworkPolicy) (sprites.NetworkPolicy, error) {
			added := netrules.Add(p, rules)
			added.Limits = p.Limits
			stay, now = against(added, rules), added
			return added, nil
		})
		if err == nil && len(stay) > 0 {
			sprite, _ := inv.sprite.name(ctx) // it was known a moment ago
			inv.say("Rules for some of these ports say otherwise, and they decide; to %[1]s these too: cove policy %[1]s -s %[2]s %[3]s", action, sprite, strings.Join(stay, " "))
		}
		if err == nil && slices.ContainsFunc(rules, isZoneDenied) {
			sayPresetNames(ctx, inv, now, rules)
		}
		return err
	})
	return cmd
}

// against are the rules that say the opposite of new ones for some of their ports, as
// cove policy allow takes them. A rule with ports decides before one without.
func against(p sprites.NetworkPolicy, rules []sprites.NetworkRule) (targets []string) {
	for _, r := range rules {
		for _, o := range p.Rules {
			if len(r.Ports) > 0 || len(o.Ports) == 0 || o.Domain != r.Domain || o.CIDR != r.CIDR || o.Protocol != r.Protocol || o.Action == r.Action {
				continue
			}
			suffix := ""
			if o.Protocol == "udp" {
				suffix = "/udp"
			}
			host := o.Domain + o.CIDR
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			for _, port := range o.Ports {
				targets = append(targets, printable.Word(host+":"+port+suffix))
			}
		}
	}
	return targets
}

// isZoneDenied reports whether a rule denies more than one name, so that a preset may allow some
// of them by a longer name.
func isZoneDenied(r sprites.NetworkRule) bool {
	return r.Action == "deny" && strings.HasPrefix(r.Domain, "*")
}

// sayPresetNames says which hosts a preset of the policy still allows although new rules deny
// the zones that they are in.
func sayPresetNames(ctx context.Context, inv *invocation, p sprites.NetworkPolicy, rules []sprites.NetworkRule) {
	if !slices.ContainsFunc(p.Rules, func(r sprites.NetworkRule) bool { return r.Include != "" }) {
		return
	}
	sprite, err := inv.spriteHandle(ctx)
	if err != nil {
		return // the rules are in force; this is a remark
	}
	presets, err := sprites.Presets(ctx, sprite)
	if presets == nil {
		if err != nil {
			inv.detail("cove: could not ask which of these hosts a preset allows by name: %v", err)
		}
		presets = builtinPresets(p)
	}
	if named := presetNames(p, presets.Rules, rules); len(named) > 0 {
		inv.say("A preset allows some of these hosts by name, and its rules decide; to deny them too: cove policy deny -s %s %s", sprite.Name(), strings.Join(named, " "))
	}
	if presets.Withheld > 0 {
		inv.say("A preset also allows the package registries of the server's machine by name, and a token without the verb admin can't see these names. If one of them is denied here, it stays allowed; ask with: cove policy test -s %s HOST", sprite.Name())
	}
}

// builtinPresets are the rules of a policy's presets without those of the server's machine.
func builtinPresets(p sprites.NetworkPolicy) *sprites.PresetRules {
	out := &sprites.PresetRules{}
	for _, include := range p.Rules {
		if include.Include == "" {
			continue
		}
		hosts, err := policy.Preset(include.Include, policy.Machine{})
		if err != nil {
			continue // of a newer server
		}
		for _, host := range hosts {
			out.Rules = append(out.Rules, sprites.NetworkRule(host.Spec()))
		}
	}
	return out
}

// presetNames are the hosts that presets still allow although a rule in rules denies them:
// a preset has a longer name for them. The names are quoted for cove policy deny.
func presetNames(p sprites.NetworkPolicy, presets, rules []sprites.NetworkRule) (names []string) {
	for _, r := range rules {
		zone := strings.TrimPrefix(r.Domain, "*")
		for _, host := range presets {
			longer := host.Domain != "" && host.Domain != r.Domain && strings.HasSuffix(host.Domain, zone)
			denied := func(o sprites.NetworkRule) bool {
				return o.Action == "deny" && o.Domain == host.Domain && len(o.Ports) == 0
			}
			if isZoneDenied(r) && longer && host.Action != "deny" && !slices.ContainsFunc(p.Rules, denied) {
				names = append(names, printable.Word(host.Domain))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func newPolicyLimitCommand(inv *invocation) *cobra.Command {
	var bandwidth string
	var connections int64
	cmd := &cobra.Command{
		Use:   "limit",
		Short: "Limit how fast a sprite may use the network",
		Long: `Limits the bandwidth of all connections out of a sprite together, in each direction, and how
many it may open in a second. 0 removes a limit. A limit that you do not name stays.`,
		Example: `  cove policy limit --bandwidth 10M -s paint
  cove policy limit --connections 50
  cove policy limit --bandwidth 0 --connections 0`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		f := cmd.Flags()
		if !f.Changed("bandwidth") && !f.Changed("connections") {
			return usagef(cmd, "which limit?")
		}
		bytes, err := ParseSize(cmp.Or(bandwidth, "0"))
		if err != nil {
			return usagef(cmd, "--bandwidth %w", err)
		}
		if connections < 0 {
			return usagef(cmd, "--connections %d is negative", connections)
		}
		return setPolicy(ctx, inv, func(p sprites.NetworkPolicy) (sprites.NetworkPolicy, error) {
			var l sprites.NetworkLimits
			if p.Limits != nil {
				l = *p.Limits
			}
			if f.Changed("bandwidth") {
				l.BytesPerSecond = bytes
			}
			if f.Changed("connections") {
				l.ConnectionsPerSecond = connections
			}
			if p.Limits = &l; l == (sprites.NetworkLimits{}) {
				p.Limits = nil
			}
			return p, nil
		})
	})
	cmd.Flags().StringVar(&bandwidth, "bandwidth", "", "bytes a second, such as 10M")
	cmd.Flags().Int64Var(&connections, "connections", 0, "new connections a second")
	return cmd
}

func newPolicyTestCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "test HOST[:PORT]",
		Short: "Say whether a sprite may reach something",
		Long: `Says whether a sprite's policy allows it to reach a host, by which rule, and what to do about it.
It makes no connection. The port is 443 unless you give one. The exit code is 1 if the policy
does not allow it.`,
		Example: `  cove policy test example.org -s paint
  cove policy test 10.1.2.3:5432
  cove policy test time.example.org:123/udp`,
		Args:              exactArgs("what to reach"),
		ValidArgsFunction: completeTarget(inv, func(sprites.NetworkEvent) bool { return true }),
		RunE: verb(func(ctx context.Context, args []string) error {
			sprite, err := inv.spriteHandle(ctx)
			if err != nil {
				return err
			}
			d, err := sprite.TestNetworkPolicy(ctx, args[0])
			if err != nil {
				return spriteError(err)
			}
			completeDecision(inv, &d)
			if err := inv.show(d, func(w io.Writer) { printDecision(w, d, "") }); err != nil {
				return err
			}
			if !reachable(d) {
				return reportedError{exitFailed}
			}
			return nil
		}),
	}
}

// reachable reports whether the target is allowed. If its addresses are known, one of them
// must be allowed, too.
func reachable(d sprites.PolicyDecision) bool {
	return d.Allow && (len(d.Addresses) == 0 || slices.ContainsFunc(d.Addresses, func(a sprites.PolicyDecision) bool { return a.Allow }))
}

// completeDecision completes the commands in the hints of a policy's decision.
func completeDecision(inv *invocation, d *sprites.PolicyDecision) {
	d.Hint = inv.hints.full(d.Hint)
	for i := range d.Addresses {
		completeDecision(inv, &d.Addresses[i])
	}
}

func printDecision(w io.Writer, d sprites.PolicyDecision, indent string) {
	verdict := "allowed"
	if !d.Allow {
		verdict = "refused"
	}
	fmt.Fprintf(w, "%s%s is %s: %s\n", indent, printable.Line(d.Target), verdict, printable.Line(d.Rule))
	if d.Hint != "" {
		fmt.Fprintf(w, "%s  %s\n", indent, printable.Line(d.Hint))
	}
	for _, address := range d.Addresses {
		printDecision(w, address, indent+"  ")
	}
}

// parseRules reads rules as they are written on a command line.
func parseRules(cmd *cobra.Command, args []string, action string) ([]sprites.NetworkRule, error) {
	var rules []sprites.NetworkRule
	for _, arg := range args {
		r, err := policy.ParseRule(arg)
		if err != nil {
			return nil, usagef(cmd, "%w", err)
		}
		r.Deny = action == "deny"
		rules = append(rules, sprites.NetworkRule(r.Spec()))
	}
	return rules, nil
}

func newPolicyLogCommand(inv *invocation) *cobra.Command {
	var opts sprites.NetworkLogOptions
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Show what a sprite was not allowed to reach",
		Long: `Shows what a sprite was refused: when, what, by which rule, to which process (as far as the
sprite could say), and what to do about it. "(lookup)" is a DNS query. If a program retries, or
tries several addresses of a name, it is refused each time.

Equal events have one line, in the place of the first one, with their number and the time of the
last one. With --follow or --json, each event has its own line. The log is kept as long as the
sprite exists (at least the newest 4 MiB).`,
		Example: `  cove policy log -s paint
  cove policy log --follow
  cove policy log --all --since 10m`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		sprite, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		if since > 0 {
			opts.Since = time.Now().Add(-since)
		}
		empty := true
		var merged eventLines
		err = sprite.NetworkLog(ctx, opts, func(e sprites.NetworkEvent) error {
			empty = false
			e.Hint = inv.hints.full(e.Hint)
			if inv.global.json {
				return inv.jsonLines().Encode(e)
			}
			if opts.Follow {
				printEvent(inv.text(), &eventLine{NetworkEvent: e, count: 1})
			} else {
				merged.add(e)
			}
			return nil
		})
		for _, line := range merged.lines { // also of a log that breaks off
			printEvent(inv.text(), line)
		}
		if err == nil && empty {
			what := "had no refusals"
			switch {
			case neverRan(ctx, sprite):
				what = "has not run yet"
			case since > 0:
				what += " since then"
			case opts.Connections:
				what = "has reached nothing, and had no refusals"
			}
			inv.say("%s %s.", sprite.Name(), what)
		}
		return spriteError(err)
	})
	f := cmd.Flags()
	f.BoolVarP(&opts.Follow, "follow", "f", false, "go on until Ctrl-C")
	f.BoolVar(&opts.Connections, "all", false, "also show what was allowed")
	f.DurationVar(&since, "since", 0, "only events that are not older")
	return cmd
}

// neverRan reports whether a sprite is known to have had no sandbox yet.
func neverRan(ctx context.Context, s *sprites.Sprite) bool {
	info, err := s.Client().Get(ctx, s.Name())
	return err == nil && info.LastRunning == nil && info.Status != sprites.StatusRunning
}

func newPolicyLearnCommand(inv *invocation) *cobra.Command {
	var since time.Duration
	var apply bool
	cmd := &cobra.Command{
		Use:   "learn",
		Short: "Propose rules from what a sprite has reached",
		Long: `Proposes the smallest rules that allow what a sprite has reached. Let it run without rules for a
while first. It prints the rules as cove policy set takes them; --apply puts them in force.`,
		Example: `  cove policy set --preset open -s paint
  cove exec -s paint make test
  cove policy learn -s paint --since 10m
  cove policy learn -s paint --since 10m --apply`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		sprite, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		opts := sprites.NetworkLogOptions{Connections: true}
		if since > 0 {
			opts.Since = time.Now().Add(-since)
		}
		var events []sprites.NetworkEvent
		err = sprite.NetworkLog(ctx, opts, func(e sprites.NetworkEvent) error {
			if e.Allowed {
				events = append(events, e)
			}
			return nil
		})
		if err != nil {
			return spriteError(err)
		}
		p := sprites.NetworkPolicy{Rules: netrules.Learn(events)}
		if len(p.Rules) == 0 && neverRan(ctx, sprite) {
			return fail.New("nothing_reached", sprite.Name()+" has not run yet", "let it work first: cove exec -s "+sprite.Name()+" CMD")
		}
		if len(p.Rules) == 0 {
			return fail.New("nothing_reached", sprite.Name()+" has reached nothing", "let it run for a while, without rules: cove policy set --preset open")
		}
		if !apply {
			inv.printJSON(p)
			return nil
		}
		return setPolicy(ctx, inv, func(old sprites.NetworkPolicy) (sprites.NetworkPolicy, error) {
			p.Limits = old.Limits
			return p, nil
		})
	})
	cmd.Flags().DurationVar(&since, "since", 0, "look only at events that are not older")
	cmd.Flags().BoolVar(&apply, "apply", false, "apply the rules")
	return cmd
}
