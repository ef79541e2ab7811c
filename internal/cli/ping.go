package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// pinged is what ping found, for --json.
type pinged struct {
	URL     string     `json:"url"`
	Version string     `json:"version"`
	Sprite  string     `json:"sprite,omitempty"`
	Steps   []stepJSON `json:"steps"`
	Error   *errorJSON `json:"error,omitempty"`
}

func newPingCommand(inv *invocation) *cobra.Command {
	var count int
	cmd := &cobra.Command{
		Use:   "ping [NAME]",
		Short: "Time each step of the way to the server, and into a sprite",
		Long: `Times each step to the server: the connection, its answer, and its answer to the token. With a
sprite's name, it goes on into the sprite, which wakes it: the shim and its gateway, the guest,
and a command. Inside, it looks up a name, and sends a request to each connector that the sprite
is granted.`,
		Example: `  cove ping
  cove ping paint --count 5
  cove ping paint --json | jq '.steps[] | {step, ms}'`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		name, err := inv.sprite.namedOr(cmd, args, "")
		if err != nil {
			return err
		}
		if count < 1 {
			return usagef(cmd, "--count %d: at least 1", count)
		}
		return runPing(ctx, inv, name, count)
	})
	cmd.Flags().IntVar(&count, "count", 1, "how many times to go the way")
	return cmd
}

func runPing(ctx context.Context, inv *invocation, name string, count int) error {
	c, err := inv.server.client(ctx)
	if err != nil {
		return err
	}
	p := &pinger{client: c, name: name, steps: steps{inv: inv}, doc: pinged{URL: c.URL, Sprite: name}}
	for round := range count {
		if count > 1 {
			p.steps.round = round + 1
		}
		if err = p.run(ctx); err != nil {
			break
		}
	}
	p.doc.Steps = p.steps.list
	if !inv.global.json {
		return err
	}
	code := exitOK
	if err != nil {
		f := inv.classify(err)
		e := f.document()
		p.doc.Error, code = &e, f.exit
	}
	inv.printJSON(p.doc)
	if code != exitOK {
		return reportedError{code}
	}
	return nil
}

// pinger goes the way once or more often.
type pinger struct {
	client *cove.Client
	name   string // of the sprite; empty: only to the server
	steps  steps
	doc    pinged
}

func (p *pinger) run(ctx context.Context) error {
	err := p.steps.do("connect", func() (string, string, error) { return stepDone, p.client.URL, dialServer(ctx, p.client.URL) })
	if err != nil {
		return err
	}
	err = p.steps.do("server", func() (string, string, error) {
		info, err := p.client.Version(ctx)
		if errors.Is(err, sprites.ErrNotFound) {
			return stepNone, "not a cove server", nil
		}
		p.doc.Version = info.Version
		return stepDone, "version " + info.Version, err
	})
	if err != nil {
		return err
	}
	err = p.steps.do("token", func() (string, string, error) {
		_, err := p.client.List(ctx, sprites.ListOptions{MaxResults: 1})
		return stepDone, "accepted", err
	})
	if err != nil || p.name == "" {
		return err
	}
	return p.into(ctx)
}

// dialServer opens a connection to a server, and closes it.
func dialServer(ctx context.Context, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme
	}
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err
	}
	return conn.Close()
}

// into goes on into the sprite.
func (p *pinger) into(ctx context.Context) error {
	sprite := p.client.Sprite(p.name)
	info, err := p.client.Get(ctx, p.name)
	if err != nil {
		return spriteError(err)
	}
	run := func() error { return spriteError(sprite.CommandContext(ctx, "true").Run()) }
	err = p.steps.do("wake", func() (string, string, error) {
		if info.Status == sprites.StatusRunning {
			return stepAlready, "awake", nil
		}
		return stepDone, "was " + string(info.Status) + ", with a command", run()
	})
	if err != nil {
		return err
	}
	if err := p.check(ctx); err != nil {
		return err
	}
	if err := p.steps.do("command", func() (string, string, error) { return stepDone, "true", run() }); err != nil {
		return err
	}
	return p.inside(ctx, sprite, info)
}

// check times the server's part of the way.
func (p *pinger) check(ctx context.Context) error {
	check, err := p.client.Check(ctx, p.name)
	switch {
	case errors.Is(err, sprites.ErrNotFound) || err == nil && check.Cove == nil && check.Status == "healthy":
		p.steps.add(stepJSON{Step: "guest", Result: stepNone, Detail: "this server does not report it"}, nil)
		return nil
	case err == nil && check.Cove == nil:
		err = fail.Newf("guest_unreachable", "cove diagnose "+p.name, "the guest of %s: %s %s", p.name, check.Status, check.Reason)
	}
	if err != nil {
		p.steps.add(stepJSON{Step: "guest"}, err)
		return err
	}
	p.steps.add(stepJSON{Step: "shim", Result: stepDone, Detail: "and its gateway, from the server", MS: check.Cove.Shim}, nil)
	p.steps.add(stepJSON{Step: "guest", Result: stepDone, Detail: "answers the server", MS: check.Cove.Guest}, nil)
	return nil
}

// inside measures, from inside the sprite, how fast things beyond the sandbox answer.
func (p *pinger) inside(ctx context.Context, sprite *sprites.Sprite, info sprites.Info) error {
	granted, err := grantedConnectors(ctx, p.client, info)
	if err != nil {
		return err
	}
	probe, err := runProbe(ctx, sprite, granted)
	if err != nil {
		p.steps.add(stepJSON{Step: "dns"}, err)
		return err
	}
	if probe.DNS.Error != "" {
		err = errors.New("look up a name inside: " + probe.DNS.Error)
	}
	p.steps.add(stepJSON{Step: "dns", Result: stepDone, Detail: "from inside", MS: probe.DNS.MS}, err)
	for i, a := range probe.HTTP {
		st := stepJSON{Step: "connector", Result: stepDone, MS: a.MS, Detail: granted[i] + " " + answerText(a)}
		var failed error
		if a.Status == 0 {
			failed = fmt.Errorf("connector %s: %s", granted[i], a.Error)
		}
		p.steps.add(st, failed)
		err = errors.Join(err, failed)
	}
	return err
}

func answerText(a cove.ProbeAnswer) string {
	text := fmt.Sprintf("answers %d", a.Status)
	if a.Code != "" {
		text += ": " + printable.Line(a.Code)
	}
	return text
}

// grantedConnectors are the names of those that serve a sprite. A token that may
// not ask sees none.
func grantedConnectors(ctx context.Context, c *cove.Client, info sprites.Info) ([]string, error) {
	all, err := c.Connectors(ctx)
	if e, ok := errors.AsType[*sprites.Error](err); ok && (e.StatusCode == 403 || e.StatusCode == 404) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, def := range all {
		if servesSprite(def, info) {
			names = append(names, def.Name)
		}
	}
	return names, nil
}

func servesSprite(def cove.Connector, info sprites.Info) bool {
	return slices.ContainsFunc(def.Grants, func(g cove.ConnectorGrant) bool {
		return g.Sprite == info.Name || g.Label != "" && slices.Contains(info.Labels, g.Label)
	})
}

// asked are paths of the usual APIs that need a key and cost nothing.
var asked = map[string]string{
	"anthropic": "/v1/models", "openai": "/v1/models", "gemini": "/v1beta/models", "github-api": "/user",
}

// maxProbe bounds what is read of a probe's answer.
const maxProbe = 256 << 10

// probeLimit bounds the look from inside.
const probeTime = 90 * time.Second

// runProbe checks a sprite from inside, and calls the connectors. The result comes from
// the sprite, so it can't be trusted.
func runProbe(ctx context.Context, sprite *sprites.Sprite, connectors []string) (cove.Probe, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	args := []string{"probe"}
	for _, name := range connectors {
		path := asked[name]
		if path == "" {
			path = "/"
		}
		args = append(args, "http://"+name+".connect.internal"+path)
	}
	var p cove.Probe
	cmd := sprite.CommandContext(ctx, guestProgram, args...)
	var out, said lastText
	out.max = maxProbe
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if said.String() != "" {
			err = fmt.Errorf("%w: %s", err, printable.Line(said.String()))
		}
		return p, fmt.Errorf("look at %s from inside: %w", sprite.Name(), err)
	}
	if err := json.Unmarshal([]byte(out.String()), &p); err != nil {
		return p, fmt.Errorf("look at %s from inside: %w", sprite.Name(), err)
	}
	if len(p.HTTP) != len(connectors) {
		return p, fmt.Errorf("look at %s from inside: it reported %d connectors, not %d", sprite.Name(), len(p.HTTP), len(connectors))
	}
	return p, nil
}
