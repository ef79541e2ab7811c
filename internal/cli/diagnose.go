package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// The states that diagnose tells apart.
const (
	stateHealthy      = "healthy"
	stateUnreachable  = "unreachable"
	stateAgentMissing = "agent-missing"
	stateProbeFailed  = "probe-failed"
	stateAuthInvalid  = "auth-invalid"
	stateDiskFull     = "disk-full"
	stateClock        = "clock"
	stateArch         = "arch"
)

// The bounds of a sound sprite.
const (
	leastFree   = 64 << 20        // bytes on its disk
	leastInodes = 1000            // free
	mostSkew    = 5 * time.Second // of its clock
)

// finding is one thing that is wrong, and what to type next.
type finding struct {
	State  string `json:"state"`
	Detail string `json:"detail"`
	Next   string `json:"next"`

	Connector string `json:"connector,omitempty"` // that does not answer; empty: it is about the sprite
}

// soundness is one thing that is right.
type soundness struct {
	Check  string `json:"check"`
	Detail string `json:"detail"`
}

// diagnosis is what diagnose found. State is that of the first problem of
// the sprite itself, else that of a connector.
type diagnosis struct {
	Sprite   string      `json:"sprite"`
	State    string      `json:"state"`
	Problems []finding   `json:"problems"`
	Healthy  []soundness `json:"healthy"`
}

func (d *diagnosis) wrong(state, next, format string, args ...any) {
	d.Problems = append(d.Problems, finding{State: state, Detail: fmt.Sprintf(format, args...), Next: next})
}

// cut says that a connector does not answer: the sprite does.
func (d *diagnosis) cut(connector, next, format string, args ...any) {
	d.wrong(stateUnreachable, next, "connector "+connector+format, args...)
	d.Problems[len(d.Problems)-1].Connector = connector
}

// headline is the state of a sprite, for people. If nothing but connectors does not answer, it
// names these.
func (d *diagnosis) headline() string {
	var cut []string
	for _, p := range d.Problems {
		if p.Connector == "" {
			return d.Sprite + ": " + d.State
		}
		cut = append(cut, p.Connector)
	}
	switch len(cut) {
	case 0:
		return d.Sprite + ": " + d.State
	case 1:
		return d.Sprite + ": its connector " + cut[0] + " is " + d.State
	}
	return d.Sprite + ": its connectors " + strings.Join(cut, ", ") + " are " + d.State
}

func (d *diagnosis) right(check, format string, args ...any) {
	d.Healthy = append(d.Healthy, soundness{check, fmt.Sprintf(format, args...)})
}

func newDiagnoseCommand(inv *invocation) *cobra.Command {
	var agent string
	cmd := &cobra.Command{
		Use:   "diagnose [NAME]",
		Short: "Find what is wrong with a sprite, and what to type next",
		Long: `Checks what a job would need: the server, the token, the sprite, a command and, from inside, the
disk, the clock, names and connectors. Then it starts the agent once. For each problem it prints
the state and the next command:

  unreachable     the server, the sandbox or an upstream does not answer
  agent-missing   the agent is not in the sprite, and you ask for it or it had a job there
  probe-failed    something in the sprite can't be run
  auth-invalid    a token or a key is missing, or is refused
  disk-full       there is no room where the sprite's disk is
  clock           the clocks here and there differ
  arch            the agent is for another kind of processor

The exit code is 1 if anything is wrong. Each connector gets one request.`,
		Example: `  cove diagnose paint
  cove diagnose paint --agent claude --json | jq -r '.problems[].next'`,
		Args:              maxArgs(1),
		ValidArgsFunction: completeOneSprite(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		name, err := inv.sprite.named(ctx, cmd, args)
		if err != nil {
			return err
		}
		s, places, err := loadSettings(ctx)
		if err != nil {
			return err
		}
		if err := setDefaults(inv, cmd, s, config.Agent); err != nil {
			return err
		}
		who, err := findAgent(cmd, places, agent)
		if err != nil {
			return err
		}
		vars, err := places.Environment(name)
		if err != nil {
			return configError(err)
		}
		asked := cmd.Flags().Changed("agent") || s.Value(config.Agent).From != config.BuiltIn
		if !asked {
			// One of a definition may not be known here.
			if job := lastAgent(ctx, inv, name); job != "" {
				if its, err := findAgent(cmd, places, job); err == nil {
					agent, who = job, its
				}
			}
		}
		x := &examination{asked: asked, inv: inv, name: name, agent: agent, who: who, vars: vars, diagnosis: diagnosis{Sprite: name}}
		if err := x.run(ctx); err != nil {
			return err
		}
		return x.show()
	})
	registerAgent(cmd, &agent, config.Default(config.Agent), "the agent to look for: ")
	return cmd
}

// examination is one cove diagnose.
type examination struct {
	diagnosis
	inv    *invocation
	name   string
	agent  string
	asked  bool // for the agent, by a flag or a setting; else only a job needs it
	absent bool // the agent is not in the sprite, and nobody has asked for it
	who    agents.Agent
	vars   []config.EnvVar // of the files
	client *cove.Client
	info   sprites.Info
}

// run goes on with the examination as long as it can. It returns an error only if there
// is no such sprite, or if it was interrupted.
func (x *examination) run(ctx context.Context) error {
	sprite, err := x.reach(ctx)
	if sprite == nil || err != nil {
		return err
	}
	work, err := agents.Trial(x.who, spriteHome)
	if err != nil {
		return err
	}
	began := time.Now()
	granted, err := grantedConnectors(ctx, x.client, x.info)
	if err != nil {
		return err
	}
	probe, err := runProbe(ctx, sprite, granted)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		x.wrong(stateProbeFailed, "cove exec -s "+x.name+" --user root --dir / "+guestProgram+" probe", "%v", err)
	} else {
		x.judge(probe, began, time.Now())
		if x.inv.server.isHere() {
			x.judgeNames((&doctor{inv: x.inv}).names(ctx))
		}
		x.judgeConnectors(probe, granted)
	}
	if err := x.start(ctx, sprite, work, probe.Arch); err != nil {
		return err
	}
	if x.absent {
		return nil
	}
	return x.missingConnectors(ctx, work, granted)
}

// reach goes as far as a command in the sprite; nil: that is not possible.
func (x *examination) reach(ctx context.Context) (*sprites.Sprite, error) {
	c, err := x.inv.server.runningClient(ctx)
	if errors.Is(err, errNoServer) {
		x.wrong(stateUnreachable, "cove server start", "no server runs")
		return nil, nil
	}
	if err == nil {
		_, err = c.Version(ctx)
	}
	if e, ok := errors.AsType[*sprites.Error](err); ok && e.StatusCode == 404 {
		err = nil // another server of the protocol
	}
	if err == nil {
		x.client = c
		x.right("server", "answers at %s", c.URL)
		x.info, err = c.Get(ctx, x.name)
	}
	switch e, ok := errors.AsType[*sprites.Error](err); {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case ok && e.StatusCode == 404:
		return nil, hinted(err, "see which there are: cove list; or make it: cove create "+x.name)
	case ok && (e.StatusCode == 401 || e.StatusCode == 403):
		x.wrong(stateAuthInvalid, "cove token list, if you are the owner; or give your own token: --token, COVE_TOKEN", "the server refuses the token: %s", e.Message)
		return nil, nil
	case err != nil:
		f := classify(err)
		x.wrong(stateUnreachable, cmp.Or(f.hint, "on the server's machine: cove server status"), "%s", f.message)
		return nil, nil
	}
	x.right("token", "accepted")
	sprite := c.Sprite(x.name)
	return sprite, x.command(ctx, &sprite)
}

// command runs a small command, which wakes the sprite. If the command can't run, it sets
// *sprite to nil.
func (x *examination) command(ctx context.Context, sprite **sprites.Sprite) error {
	cmd := (*sprite).CommandContext(ctx, "true")
	var said lastText
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if info, infoErr := x.client.Get(ctx, x.name); infoErr == nil {
		x.info = info
	}
	if d := x.info.Cove; d != nil && d.NetworkDown != "" {
		x.wrong(stateUnreachable, "cove info "+x.name, "the sandbox has no network: %s", d.NetworkDown)
	}
	exit, inside := errors.AsType[*sprites.ExitError](err)
	switch {
	case err == nil:
		x.right("sandbox", "awake, runs commands")
		return nil
	case inside:
		next := "cove exec -s " + x.name + " --user root --dir / sh -c 'id sprite; ls -ld " + spriteHome + "'"
		if strings.Contains(said.String(), unix.EMFILE.Error()) {
			next = "cove restart " + x.name + "; cove doctor says how to raise the limit"
		}
		x.wrong(stateProbeFailed, next,
			"the sandbox runs, but a command in it does not: exit code %d: %s", exit.Code, printable.Line(said.String()))
	default:
		f := classify(err)
		state, next := stateUnreachable, "cove info "+x.name+"; cove doctor"
		if f.exit == exitNoSpace {
			state, next = stateDiskFull, cmp.Or(f.hint, next)
		}
		x.wrong(state, next, "no command gets into the sandbox: %s", f.message)
	}
	*sprite = nil
	return nil
}

// judge draws findings from a probe inside the sprite that began and ended at those times.
func (d *diagnosis) judge(p cove.Probe, began, ended time.Time) {
	full := "cove exec -s " + d.Sprite + " -- sh -c 'du -xm ~ /tmp /var | sort -n | tail'; and the machine's own: cove doctor"
	switch {
	case p.Disk.Error == "no space left":
		d.wrong(stateDiskFull, full, "can't write 1 MiB; %s free", printable.Bytes(p.Disk.Free))
	case p.Disk.Error != "":
		d.wrong(stateProbeFailed, "cove exec -s "+d.Sprite+" --user root --dir / ls -ld "+spriteHome, "the user can't write at home: %s", printable.Line(p.Disk.Error))
	case p.Disk.Free < leastFree:
		d.wrong(stateDiskFull, full, "only %s are free", printable.Bytes(p.Disk.Free))
	case p.Disk.FreeInodes > 0 && p.Disk.FreeInodes < leastInodes:
		d.wrong(stateDiskFull, full, "only %d more files can be made", p.Disk.FreeInodes)
	default:
		d.right("disk", "%s free, and can be written to", printable.Bytes(p.Disk.Free))
	}
	skew := time.Duration(0)
	if p.Time.Before(began) {
		skew = p.Time.Sub(began)
	} else if p.Time.After(ended) {
		skew = p.Time.Sub(ended)
	}
	if skew.Abs() > mostSkew {
		d.wrong(stateClock, "date -u; cove exec -s "+d.Sprite+" date -u; then set the wrong one, such as by: timedatectl set-ntp true",
			"the sprite's clock differs by %v from this machine's; it is the clock of the server's machine", skew.Round(time.Millisecond))
	} else {
		d.right("clock", "right, within %v", max(ended.Sub(began), mostSkew).Round(time.Millisecond))
	}
	if p.DNS.Error != "" {
		d.wrong(stateUnreachable, "cove ping "+d.Sprite+"; cove info "+d.Sprite, "names can't be looked up inside: %s", printable.Line(p.DNS.Error))
	} else {
		d.right("names", "are looked up inside, in %.1f ms", p.DNS.MS)
	}
	d.right("arch", "%s", printable.Line(p.Arch))
}

// judgeNames says what a look at the host's resolvers means: the gateway asks them for all
// names but its own.
func (d *diagnosis) judgeNames(host check) {
	if host.Level == levelOK {
		d.right("names", "external names %s", host.Detail)
		return
	}
	d.wrong(stateUnreachable, host.Fix, "external names: %s", host.Detail)
}

// judgeConnectors says what the answers of connectors mean.
func (d *diagnosis) judgeConnectors(p cove.Probe, names []string) {
	for i, a := range p.HTTP {
		name := names[i]
		switch {
		case a.Status == 401:
			d.wrong(stateAuthInvalid, "cove secret set "+name, "connector %s: its upstream refuses the key", name)
		case a.Code == "no_secret":
			d.wrong(stateAuthInvalid, "cove secret set "+name, "connector %s: its secret is not set", name)
		case a.Status == 0:
			d.cut(name, "cove ping "+d.Sprite, " can't be reached from inside: %s", printable.Line(a.Error))
		case a.Code == "upstream":
			d.cut(name, "cove connector show "+name, ": its upstream does not answer")
		case a.Code != "":
			d.right("connector", "%s: its rules do not allow a check (%s)", name, printable.Line(a.Code))
		default:
			d.right("connector", "%s answers %d, in %.1f ms", name, a.Status, a.MS)
		}
	}
}

// missingConnectors checks the connectors that the agent needs and the sprite is not
// granted. A job's sprite is granted them while the job runs.
func (x *examination) missingConnectors(ctx context.Context, work agents.Work, granted []string) error {
	for _, name := range work.Connectors {
		if slices.Contains(granted, name) {
			continue
		}
		def, err := x.client.Connector(ctx, name)
		if e, ok := errors.AsType[*sprites.Error](err); ok && e.StatusCode == 403 {
			continue // the token's owner can't say
		}
		own := slices.IndexFunc(x.vars, func(v config.EnvVar) bool { return v.Connector() == name })
		switch {
		case errors.Is(err, sprites.ErrNotFound) && own >= 0:
			x.right("key", "%s is set in the sprite's environment", x.vars[own].Name)
			continue
		case errors.Is(err, sprites.ErrNotFound):
			x.wrong(stateAuthInvalid, "cove secret set "+name+"; cove connector put "+name, "there is no connector %s, so the agent %s has no key", name, x.agent)
			continue
		case err != nil:
			return err
		}
		secrets, err := x.client.Secrets(ctx)
		if err != nil {
			return err
		}
		if unset := connect.Unset(def, secrets); len(unset) > 0 {
			x.wrong(stateAuthInvalid, "cove secret set "+printable.Word(unset[0]), "connector %s: its secret is not set", name)
			continue
		}
		x.right("connector", "%s is there for jobs; to ask it from here: cove connector grant %s --sprite %s", name, name, x.name)
	}
	return nil
}

// start starts the agent as a job would.
func (x *examination) start(ctx context.Context, sprite *sprites.Sprite, work agents.Work, arch string) error {
	if err := bring(ctx, sprite, work); err != nil {
		return err
	}
	version, err := startAgent(ctx, sprite, x.agent, work.Verify, withoutEnv(work.Env, x.vars))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	failed, missing := errors.AsType[*agentFailure](err)
	switch {
	case err == nil:
		x.right("agent", "%s: %s", x.agent, version)
	case !missing:
		x.wrong(stateProbeFailed, "cove ping "+x.name, "start the agent %s: %v", x.agent, err)
	case failed.code == 127 && !x.asked && !x.hadJob(ctx):
		x.absent = true
		x.right("agent", "none is needed before the first job; to install one now: cove setup %s --agent %s", x.name, x.agent)
	case failed.code == 127:
		x.wrong(stateAgentMissing, "cove setup "+x.name+" --agent "+x.agent, "the agent %s is not in the sprite", x.agent)
	case failed.code == 126 && strings.Contains(strings.ToLower(failed.said), "exec format error"):
		x.wrong(stateArch, "cove exec -s "+x.name+" -- sh -c 'rm $(command -v "+work.Verify[0]+")'; then: cove setup "+x.name+" --agent "+x.agent,
			"the agent %s is not for this sprite's processor, %s", x.agent, printable.Line(arch))
	default:
		x.wrong(stateProbeFailed, "cove exec -s "+x.name+" "+strings.Join(work.Verify, " "), "%v", err)
	}
	return nil
}

// lastAgent is the agent of the last job that a sprite had; empty: none is known.
func lastAgent(ctx context.Context, inv *invocation, sprite string) string {
	c, err := inv.server.runningClient(ctx)
	if err != nil {
		return ""
	}
	jobs, err := c.Jobs(ctx)
	if err != nil {
		return ""
	}
	var last cove.Job
	for _, j := range jobs {
		if j.Backend == "" && j.Sprite == sprite && j.CreatedAt.After(last.CreatedAt) {
			last = j
		}
	}
	return last.Agent
}

// hadJob reports whether the sprite was made for a job or has had one, so that an agent
// belongs into it.
func (x *examination) hadJob(ctx context.Context) bool {
	if x.info.Cove != nil && strings.HasPrefix(x.info.Cove.Owner, "job:") {
		return true
	}
	jobs, err := x.client.Jobs(ctx)
	return err == nil && slices.ContainsFunc(jobs, func(j cove.Job) bool { return j.Backend == "" && j.SpriteID == x.info.ID })
}

// show prints the diagnosis, and says by the exit code whether anything is wrong.
func (x *examination) show() error {
	d := &x.diagnosis
	d.State = stateHealthy
	if len(d.Problems) > 0 {
		d.State = d.Problems[max(slices.IndexFunc(d.Problems, func(f finding) bool { return f.Connector == "" }), 0)].State // the sprite's own first
	} else {
		d.Problems = []finding{}
	}
	if d.Healthy == nil {
		d.Healthy = []soundness{}
	}
	for i := range d.Problems {
		d.Problems[i].Next = x.inv.hints.full(d.Problems[i].Next)
	}
	for i := range d.Healthy {
		d.Healthy[i].Detail = x.inv.hints.full(d.Healthy[i].Detail)
	}
	err := x.inv.show(d, func(w io.Writer) {
		fmt.Fprintln(w, d.headline())
		for _, p := range d.Problems {
			fmt.Fprintf(w, "%-14s %s\n%-14s next: %s\n", p.State, printable.Line(joinLines(p.Detail)), "", printable.Line(p.Next))
		}
		for _, h := range d.Healthy {
			fmt.Fprintf(w, "%-14s %s: %s\n", "ok", h.Check, printable.Line(joinLines(h.Detail)))
		}
	})
	if err == nil && len(d.Problems) > 0 {
		return reportedError{exitFailed}
	}
	return err
}
