package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
)

// runDryRun does the part of a push that is done here, and asks the server whether it would do
// the rest. It starts no server.
func runDryRun(ctx context.Context, inv *invocation, opts push.Options, choose choose) error {
	if err := checkPlan(opts.PlanPath); err != nil {
		return err
	}
	at, jobs, err := askedServers(ctx, inv, &opts)
	if err != nil {
		return err
	}
	if jobs != nil {
		if opts, err = choose(ctx, jobs, opts); err != nil {
			return err
		}
	}
	backend, ask, where := opts.Backend, localPreview, opts
	if jobs != nil {
		ask = jobs.PreviewJob
	}
	where.Backend = "" // at is a client of it
	courier := &push.Courier{}
	if at != nil {
		var done func()
		courier, done = newCourier(inv, at)
		defer done()
		if backend != "" && opts.Sprite != "" {
			if _, err := at.Get(ctx, opts.Sprite); err != nil {
				return spriteError(err)
			}
		}
	} else {
		courier.Files = noFiles{}
	}
	p, err := courier.Preview(ctx, where, func(ctx context.Context, req cove.JobRequest) (cove.JobPreview, error) {
		req.Backend = backend
		return ask(ctx, req)
	})
	if err != nil {
		return err
	}
	p.Asked = jobs != nil
	inv.hints.fullAll(p.Messages, p.Warnings)
	return inv.show(p, func(w io.Writer) { printPreview(w, p) })
}

// askedServers returns clients of the servers that would have the sprite (at) and the job (jobs),
// as newJobs chooses them. A client is nil if no server runs there. If the sprite would be on a
// backend without jobs, askedServers sets opts.Backend.
func askedServers(ctx context.Context, inv *invocation, opts *push.Options) (at, jobs *cove.Client, err error) {
	r, err := inv.server.remote()
	if err != nil {
		return nil, nil, err
	}
	at, err = inv.server.runningClient(ctx)
	if errors.Is(err, errNoServer) {
		return nil, nil, nil
	}
	if err != nil || r.backend == nil {
		return at, at, err
	}
	if has, err := hasJobs(ctx, at); has || err != nil {
		return at, at, err
	}
	opts.Backend = r.backend.Name
	dir, _, err := inv.server.dataDir()
	if err != nil {
		return nil, nil, err
	}
	jobs, err = localClient(ctx, dir, "")
	if errors.Is(err, errNoServer) {
		return at, nil, nil
	}
	return at, jobs, err
}

// localPreview is the part of a preview that needs no server: how the agent reads the plan.
func localPreview(_ context.Context, req cove.JobRequest) (cove.JobPreview, error) {
	agent, err := agents.Of(req.Agent, req.Definition)
	if err != nil {
		return cove.JobPreview{}, hinted(err, "choose one with --agent: cove agent list")
	}
	if _, ok := agent.(agents.MCPClient); !ok && slices.ContainsFunc(req.MCP, func(s cove.MCPServer) bool { return s.Connector != "" }) {
		return cove.JobPreview{}, hinted(fmt.Errorf("the agent %s is given no MCP servers of the host", req.Agent), "leave out --mcp, or use --agent cove")
	}
	if err := agents.CheckRole(agent, req.Role); err != nil {
		return cove.JobPreview{}, hinted(err, "use --agent cove, or --role build")
	}
	if err := agents.CheckLogin(agent, req.Login); err != nil {
		return cove.JobPreview{}, err
	}
	work, err := agent.Prepare(agents.Task{
		Plan: req.Plan, PlanName: req.PlanName, Dir: spriteHome, Workdir: spriteHome, Home: spriteHome, Branch: req.Branch, Interactive: req.Interactive, Converse: req.Converse,
		Command: req.AgentCommand, Permissions: req.Permissions, Direct: req.Backend != "", Model: req.Model, Skill: req.Skill, Role: req.Role, MCP: req.MCP, Login: agents.LoginOf(agent, req.Login, req.Env),
	})
	if err != nil {
		return cove.JobPreview{}, fail.Wrap("bad_plan", err, "")
	}
	if req.Guards.Turns > 0 && work.Turn == nil {
		return cove.JobPreview{}, hinted(fmt.Errorf("the agent %s does not report its turns", req.Agent), "leave out --max-turns")
	}
	p := cove.JobPreview{
		Agent: req.Agent, AgentVersion: work.Version, Model: req.Model, Backend: req.Backend, Sprite: req.Sprite,
		Guards: req.Guards, TimeoutSec: req.TimeoutSec, NetworkPolicy: req.NetworkPolicy,
	}
	for _, kv := range slices.Concat(work.Env, req.Env) {
		name, _, _ := strings.Cut(kv, "=")
		p.EnvNames = append(p.EnvNames, name)
	}
	slices.Sort(p.EnvNames)
	p.EnvNames = slices.Compact(p.EnvNames)
	for _, f := range req.Settings {
		p.Settings = append(p.Settings, f.Path)
	}
	return p, nil
}

// noFiles stands for the files of a sprite that can't be asked what it has.
type noFiles struct{}

func (noFiles) Write(context.Context, push.Place, string, io.Reader, int64) error {
	return fs.ErrNotExist
}
func (noFiles) Open(context.Context, push.Place, string) (io.ReadCloser, error) {
	return nil, fs.ErrNotExist
}
func (noFiles) List(context.Context, push.Place, string) ([]string, error) {
	return nil, fs.ErrNotExist
}

func printPreview(w io.Writer, p push.Preview) {
	var connectors []string
	for _, c := range p.Connectors {
		text := c.Name + " (" + c.Upstream + ")"
		if !c.SecretSet {
			text += ", whose secret is not set"
		}
		connectors = append(connectors, text)
	}
	sprite := p.Sprite
	if sprite == "" {
		sprite = "a new one"
	}
	fmt.Fprintln(w, "Nothing was sent or made. The job would have:")
	fields(w,
		"agent", strings.TrimSpace(p.Agent+" "+p.AgentVersion),
		"model", p.Model,
		"connectors", strings.Join(connectors, "; "),
		"backend", p.Backend,
		"sprite", sprite,
		"network", networkText(p.NetworkPolicy),
		"environment", strings.Join(p.EnvNames, " "),
		"settings", strings.Join(p.Settings, " "),
		"guards", guardsText(cove.Job{JobSettings: cove.JobSettings{Guards: p.Guards, TimeoutSec: p.TimeoutSec}}),
		"branch", p.Branch,
		"base", p.Base,
	)
	for _, warning := range p.Warnings {
		fmt.Fprintf(w, "warning: %s\n", printable.Lines(warning))
	}
	if p.Repository != "" {
		fields(w, "clones", p.Repository)
		return
	}
	fields(w, "commits", fmt.Sprintf("%d, %s", p.Commits, printable.Bytes(p.Bytes)))
	if p.LargeFiles > 0 {
		fields(w, "large files", fmt.Sprintf("%d, %s", p.LargeFiles, printable.Bytes(p.LargeBytes)))
	}
	for _, m := range p.Messages {
		fmt.Fprintln(w, printable.Text(m))
	}
	if !p.Asked {
		fmt.Fprintln(w, "No server runs, so it is not known whether the sprite, the connectors and their secrets exist.")
	}
}
