package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/shim/connect"
)

var connectorPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`) })

func newConnectorCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "connector",
		Short: "Let sprites use an API without having its key",
		Long: `A connector is a named upstream. Requests of a sprite to http://NAME.connect.internal/ go there,
over TLS. cove adds the headers with the secret on the way, outside of the sprite. Programs
inside use that URL as the API's, and any text as the key. If the upstream repeats the secret,
cove redacts it in the answer, in the encodings that docs/network.md lists.

A connector serves no sprite until you grant it, to a sprite or to all sprites with a label. If a
job's agent has a connector, the job is granted that as long as it runs.`,
		Example: `  cove secret set anthropic
  cove connector put anthropic
  cove connector grant anthropic --sprite paint
  cove connector log -s paint --follow

  cove connector put github --from-gh --paths '/ada/*'    git, without a login inside
  cove connector grant github --sprite paint
  cove exec -s paint git clone https://github.com/ada/paint`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConnectorPutCommand(inv), newConnectorListCommand(inv), newConnectorShowCommand(inv), asksFirst(inv, newConnectorRmCommand(inv), eachLost("connector %s, its grants, and the access that sprites have by it")),
		newConnectorGrantCommand(inv, "grant"), newConnectorGrantCommand(inv, "revoke"), newConnectorLogCommand(inv))
	return cmd
}

type connectorOptions struct {
	headers, limits []string
	prices          []string
	fromGH          bool
	def             cove.Connector
}

func newConnectorPutCommand(inv *invocation) *cobra.Command {
	var o connectorOptions
	cmd := &cobra.Command{
		Use:   "put NAME",
		Short: "Define a connector",
		Long: `Defines a connector, or replaces one of the same name, which keeps its grants. The definition is
in force when the command returns. cove knows anthropic, openai, chatgpt, gemini, github (git over
HTTPS) and github-api: without --upstream and --header they have the usual values.

In a header's value, {secret} stands for the secret of --secret, or of the connector's name.
{secret:NAME} stands for another. {basic:USER} stands for USER and the secret as "Basic" has
them. {account} stands for the account of a secret that is a login. The certificate of the
upstream is verified. No secret goes over plain HTTP, except to this machine.

With --git, which github has, git in a sprite with a grant goes through the connector. URLs of
the upstream, by HTTPS or SSH, are rewritten (insteadOf): clones, remotes and submodules need no
change. --from-gh stores the token of your gh login as the secret. That token can do what you
can, so consider --paths and --methods, or a token with fewer rights.

--paths, --deny-paths and --limit: see cove help connector-rules.`,
		Example: `  cove connector put anthropic --limit 60/minute --limit 500M/day
  cove connector put anthropic --limit 5usd/day --price 'claude-opus-*=5/25' --price '*=3/15'
  cove connector put github --from-gh
  cove connector put forge --git --upstream https://forge.example.org \
      --header 'Authorization: Basic {basic:ada}'
  cove connector put github-api --methods GET --paths '/repos/ada/*' --deny-paths '*/hooks*'
  cove connector put ci --upstream https://ci.example.org/api --header 'X-Api-Key: {secret}'
  cove connector put ollama --upstream http://127.0.0.1:11434`,
		Args:              exactArgs("a name for it"),
		ValidArgsFunction: completeConnector(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		def, err := o.definition(cmd, args[0])
		if err != nil {
			return err
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		var token string
		if o.fromGH {
			if token, err = ghToken(ctx, def); err != nil {
				return err
			}
		}
		if def, err = c.PutConnector(ctx, def); err != nil {
			return err
		}
		if o.fromGH {
			if def.Secret == "" {
				return hinted(fmt.Errorf("connector %s adds no secret", def.Name), "say where it goes: --header 'Authorization: Bearer {secret}'")
			}
			if err := c.SetSecret(ctx, def.Secret, token); err != nil {
				return err
			}
		}
		adviseConnector(ctx, inv, c, def)
		return inv.show(def, func(w io.Writer) {
			if !inv.global.quiet {
				printConnector(w, def)
			}
		})
	})
	f := cmd.Flags()
	f.StringVar(&o.def.Upstream, "upstream", "", "URL that it leads to")
	f.StringArrayVar(&o.headers, "header", nil, "'NAME: VALUE' that is added, with {secret} in the value (repeatable)")
	f.BoolVar(&o.def.Git, "git", false, "let git in sprites go through it (with github: always)")
	f.Func("forge", "with --git: open pull requests by this API, `KIND=CONNECTOR`: github, gitlab or gitea, and the connector that leads to the API's root (with github: always)", func(text string) error {
		kind, api, ok := strings.Cut(text, "=")
		if !ok || api == "" || !slices.Contains(connect.ForgeKinds, kind) {
			return fmt.Errorf("write KIND=CONNECTOR, and as KIND one of %s", strings.Join(connect.ForgeKinds, ", "))
		}
		o.def.Forge = cove.ConnectorForge{Kind: kind, API: api}
		return nil
	})
	f.BoolVar(&o.fromGH, "from-gh", false, "take the secret from your gh login (gh auth token)")
	f.StringVar(&o.def.Secret, "secret", "", "name of the secret (default: the connector's)")
	f.StringSliceVar(&o.def.Methods, "methods", nil, "methods that are let through (default: all)")
	f.StringSliceVar(&o.def.Paths, "paths", nil, "patterns of paths that are let through (default: all)")
	f.StringSliceVar(&o.def.DenyPaths, "deny-paths", nil, "patterns of paths that are refused")
	f.StringArrayVar(&o.limits, "limit", nil, "N, N/minute, SIZE/day, Ntokens/day or Nusd/day (repeatable)")
	f.StringArrayVar(&o.prices, "price", nil, "'MODEL=INPUT/OUTPUT', in dollars per million tokens (repeatable)")
	must(cmd.RegisterFlagCompletionFunc("secret", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeSecret(inv)(cmd, nil, prefix)
	}))
	return cmd
}

func (o *connectorOptions) definition(cmd *cobra.Command, name string) (cove.Connector, error) {
	def := o.def
	def.Name = name
	if !connectorPattern().MatchString(name) {
		return def, usagef(cmd, "%q can't be a connector's name: it has lower-case letters, digits and hyphens", name)
	}
	for _, h := range o.headers {
		key, value, ok := strings.Cut(h, ":")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" || value == "" {
			return def, usagef(cmd, "--header: write 'NAME: VALUE'")
		}
		if def.Headers == nil {
			def.Headers = map[string]string{}
		}
		def.Headers[key] = value
	}
	for _, l := range o.limits {
		if err := setLimit(&def.Limits, l); err != nil {
			return def, usagef(cmd, "--limit %s: %w", l, err)
		}
	}
	for _, p := range o.prices {
		price, err := parsePrice(p)
		if err != nil {
			return def, usagef(cmd, "--price %s: %w", p, err)
		}
		def.Prices = append(def.Prices, price)
	}
	return def, nil
}

// parsePrice reads MODEL=INPUT/OUTPUT.
func parsePrice(text string) (p cove.ConnectorPrice, err error) {
	wrong := errors.New("write MODEL=INPUT/OUTPUT, such as 'claude-opus-*=5/25'")
	model, rates, ok := strings.Cut(text, "=")
	in, out, both := strings.Cut(rates, "/")
	if !ok || !both || model == "" {
		return p, wrong
	}
	p.Model = model
	if p.Input, err = strconv.ParseFloat(in, 64); err == nil {
		p.Output, err = strconv.ParseFloat(out, 64)
	}
	if err != nil || !(p.Input >= 0 && p.Output >= 0) {
		return p, wrong
	}
	return p, nil
}

// setLimit reads N, N/minute, SIZE/day, Ntokens/day or Nusd/day.
func setLimit(l *cove.ConnectorLimits, text string) error {
	number, per, _ := strings.Cut(text, "/")
	if count, ok := strings.CutSuffix(number, "tokens"); ok && per == "day" {
		n, err := parseCount(count)
		if err != nil || n <= 0 {
			return errors.New("write a number such as 500000tokens/day or 2Mtokens/day")
		}
		l.TokensPerDay = n
		return nil
	}
	if dollars, ok := strings.CutSuffix(number, "usd"); ok && per == "day" {
		n, err := strconv.ParseFloat(dollars, 64)
		if err != nil || !(n > 0) {
			return errors.New("write an amount such as 5usd/day or 0.50usd/day")
		}
		l.USDPerDay = n
		return nil
	}
	if per == "day" {
		n, err := ParseSize(number)
		if err != nil || n <= 0 {
			return errors.New("write a size such as 500M/day")
		}
		l.BytesPerDay = n
		return nil
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || per != "" && per != "minute" || strings.HasSuffix(text, "/") {
		return errors.New("write N, N/minute, a size such as 500M/day, 2Mtokens/day or 5usd/day")
	}
	if per == "minute" {
		l.RequestsPerMinute = n
	} else {
		l.Requests = n
	}
	return nil
}

// parseCount reads a number, with k or M for thousands or millions.
func parseCount(text string) (int64, error) {
	for suffix, times := range map[string]int64{"k": 1e3, "K": 1e3, "M": 1e6} {
		if number, ok := strings.CutSuffix(text, suffix); ok {
			n, err := strconv.ParseInt(number, 10, 32)
			return n * times, err
		}
	}
	return strconv.ParseInt(text, 10, 64)
}

// adviseConnector says what the person must still do before a connector serves anybody.
func adviseConnector(ctx context.Context, inv *invocation, c *cove.Client, def cove.Connector) {
	if all, err := c.Secrets(ctx); err == nil {
		for _, name := range connect.Unset(def, all) {
			inv.say("Its secret is not set: cove secret set %s", printable.Word(name))
		}
	}
	if len(def.Grants) == 0 {
		inv.say("It serves nobody yet: cove connector grant %s --sprite SPRITE", def.Name)
	}
}

func printConnector(w io.Writer, c cove.Connector) {
	var headers, limits []string
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		headers = append(headers, name+": "+c.Headers[name])
	}
	if n := c.Limits.Requests; n > 0 {
		limits = append(limits, printable.Count(int(n), "request"))
	}
	if n := c.Limits.RequestsPerMinute; n > 0 {
		limits = append(limits, printable.Count(int(n), "request")+" a minute")
	}
	if n := c.Limits.BytesPerDay; n > 0 {
		limits = append(limits, printable.Bytes(n)+" a day")
	}
	if n := c.Limits.TokensPerDay; n > 0 {
		limits = append(limits, fmt.Sprintf("%d tokens a day", n))
	}
	if n := c.Limits.USDPerDay; n > 0 {
		limits = append(limits, fmt.Sprintf("%.2f USD a day", n))
	}
	var prices []string
	for _, p := range c.Prices {
		prices = append(prices, fmt.Sprintf("%s %g/%g", p.Model, p.Input, p.Output))
	}
	git := ""
	if c.Git {
		git = "goes through it"
	}
	if c.Forge.API != "" {
		git += ", and jobs open pull requests by the connector " + c.Forge.API + " (" + c.Forge.Kind + ")"
	}
	fields(w, "name", c.Name, "URL in sprites", "http://"+c.Name+".connect.internal/", "upstream", c.Upstream,
		"headers", strings.Join(headers, "; "), "secret", strings.Join(connect.SecretsOf(c), ", "), "git", git, "methods", cmp.Or(strings.Join(c.Methods, ", "), "all"),
		"paths", cmp.Or(strings.Join(c.Paths, ", "), "all"), "denied", strings.Join(c.DenyPaths, ", "),
		"limits", strings.Join(limits, ", "), "prices", strings.Join(prices, ", "), "granted to", cmp.Or(grantees(c.Grants), "nobody"))
}

// grantees names whom a connector serves.
func grantees(grants []cove.ConnectorGrant) string {
	var out []string
	for _, g := range grants {
		who := g.Sprite
		if g.Label != "" {
			who = "label " + g.Label
		}
		if g.Job != "" {
			who += " (job " + g.Job + ")"
		}
		out = append(out, who)
	}
	return strings.Join(out, ", ")
}

func newConnectorListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the connectors",
		Long:    `Lists the connectors, and whom they are granted to.`,
		Example: `  cove connector list`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			list, err := c.Connectors(ctx)
			if err != nil {
				return err
			}
			if list == nil {
				list = []cove.Connector{}
			}
			return inv.show(cove.ConnectorList{Connectors: list}, func(w io.Writer) {
				rows := [][]string{{"NAME", "UPSTREAM", "SECRET", "GRANTED TO"}}
				for _, c := range list {
					rows = append(rows, []string{c.Name, c.Upstream, cmp.Or(strings.Join(connect.SecretsOf(c), ", "), "-"), cmp.Or(grantees(c.Grants), "nobody")})
				}
				table(w, rows)
			})
		}),
	}
}

func newConnectorShowCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show a connector",
		Long:              `Shows a connector's definition, and whom it is granted to.`,
		Example:           `  cove connector show anthropic`,
		Args:              exactArgs("the connector's name"),
		ValidArgsFunction: completeConnector(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			def, err := c.Connector(ctx, args[0])
			if err != nil {
				return err
			}
			return inv.show(def, func(w io.Writer) { printConnector(w, def) })
		}),
	}
}

func newConnectorRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Delete connectors",
		Long: `Deletes connectors with their grants. Requests under way end. The secrets stay (see cove
secret rm).`,
		Example: `  cove connector rm ci`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "the connector's name is missing")
			}
			return nil
		},
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeConnector(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			return removeEach(ctx, inv, args, func(name string) error { return c.DeleteConnector(ctx, name) })
		}),
	}
}

// newConnectorGrantCommand is grant, or revoke.
func newConnectorGrantCommand(inv *invocation, use string) *cobra.Command {
	var label string
	var reaches []string
	texts := map[string][2]string{
		"grant": {"Let a connector serve a sprite", `Lets a connector serve a sprite, or all sprites with a label, also those made later. Running
sprites can use it at once. A grant to a sprite ends with the sprite.

Any token with the verb write can label its sprites. So a new grant to a label must name the
sprites that have the label now (--reaches). Once the label has a grant, only a token with the
verb admin can put that label on a sprite. The sprite that a push makes has the label cove-job.`},
		"revoke": {"Take a grant back", `Takes a grant back: name the sprite or the label that it was given to. It holds at once, also for
running sprites. Requests under way end.`},
	}
	var example string
	if use == "grant" {
		example = " --reaches paint,other"
	}
	cmd := &cobra.Command{
		Use:   use + " NAME --sprite SPRITE | --label LABEL",
		Short: texts[use][0],
		Long:  texts[use][1],
		Example: fmt.Sprintf(`  cove connector %[1]s anthropic --sprite paint
  cove connector %[1]s github --label ci`, use) + example,
		Args:              exactArgs("the connector's name"),
		ValidArgsFunction: completeConnector(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if (inv.global.sprite == "") == (label == "") {
			return usagef(cmd, "say who gets it: give one of --sprite and --label")
		}
		if label == "" && len(reaches) > 0 {
			return usagef(cmd, "--reaches goes with --label: it names the sprites that have the label")
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		g := cove.ConnectorGrant{Sprite: inv.global.sprite, Label: label, Reaches: reaches}
		call := c.GrantConnector
		if use == "revoke" {
			call = c.RevokeConnector
		}
		if err := call(ctx, args[0], g); err != nil {
			return err
		}
		def, err := c.Connector(ctx, args[0])
		if err != nil {
			return err
		}
		return inv.show(def, func(io.Writer) { inv.say("%s is granted to %s.", def.Name, cmp.Or(grantees(def.Grants), "nobody")) })
	})
	cmd.Flags().StringVar(&label, "label", "", "all sprites with this label")
	if use == "grant" {
		cmd.Flags().StringSliceVar(&reaches, "reaches", nil, "the sprites that have the label now, as NAME,NAME")
		must(cmd.RegisterFlagCompletionFunc("reaches", completeReaches(inv, &label)))
	}
	return cmd
}

func newConnectorLogCommand(inv *invocation) *cobra.Command {
	var opts cove.ConnectorLogOptions
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "log [NAME]",
		Short: "Show the requests of a sprite through connectors",
		Long: `Shows the requests that a sprite made through connectors, or through the connector NAME. Each
appears when it is over, with its time, what it asked for, its status and its size. The log is
kept as long as the sprite exists (at least the newest 4 MiB). With --json, each request is a
line.`,
		Example: `  cove connector log -s paint
  cove connector log anthropic -s paint --follow
  cove connector log --since 10m --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef(cmd, "%q is one argument too many", args[1])
			}
			return nil
		},
		ValidArgsFunction: completeConnector(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		sprite, err := inv.spriteHandle(ctx)
		if err != nil {
			return err
		}
		if since > 0 {
			opts.Since = time.Now().Add(-since)
		}
		err = (&cove.Client{Client: sprite.Client()}).ConnectorLog(ctx, sprite.Name(), opts, func(e cove.ConnectorEvent) error {
			if len(args) == 1 && e.Connector != args[0] {
				return nil
			}
			if inv.global.json {
				return inv.jsonLines().Encode(e)
			}
			printRequest(inv.text(), e)
			return nil
		})
		return spriteError(err)
	})
	f := cmd.Flags()
	f.BoolVarP(&opts.Follow, "follow", "f", false, "go on until Ctrl-C")
	f.DurationVar(&since, "since", 0, "only requests that are not older")
	return cmd
}

func printRequest(w io.Writer, e cove.ConnectorEvent) {
	fmt.Fprintf(w, "%s  %s  %s %s  %d  %s out, %s in, %d ms\n", e.Time.Local().Format("2006-01-02 15:04:05"), printable.Line(e.Connector),
		printable.Line(e.Method), printable.Line(e.Path), e.Status, printable.Bytes(e.Sent), printable.Bytes(e.Received), e.Milliseconds)
	if e.InputTokens+e.OutputTokens > 0 {
		fmt.Fprintf(w, "    %s: %d tokens in, %d out, %.4f USD\n", cmp.Or(printable.Line(e.Model), "a model"), e.InputTokens, e.OutputTokens, e.CostUSD)
	}
	if e.Refused != "" {
		fmt.Fprintf(w, "    %s\n", printable.Line(e.Refused))
	}
}

func completeConnector(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			list, err := c.Connectors(ctx)
			return candidates(list, err, prefix, func(c cove.Connector) (string, string, bool) {
				return c.Name, c.Upstream, connectorPattern().MatchString(c.Name)
			})
		})
	}
}

// completeReaches completes the last name of a list: one of the sprites with the label, or of
// all if none is given yet.
func completeReaches(inv *invocation, label *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		begun := typed[:strings.LastIndexByte(typed, ',')+1]
		given := strings.Split(begun, ",")
		names, how := completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			var names []string
			for info, err := range c.All(ctx, typed[len(begun):]) {
				if err != nil || len(names) == maxCompletions {
					break
				}
				if namePattern().MatchString(info.Name) && !slices.Contains(given, info.Name) && (*label == "" || slices.Contains(info.Labels, *label)) {
					names = append(names, begun+info.Name)
				}
			}
			return names
		})
		return names, how | cobra.ShellCompDirectiveNoSpace
	}
}
