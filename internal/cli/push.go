package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/netrules"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

type pushOptions struct {
	agentFlags
	machine     machineFlags
	dirty       string
	remote      remoteFlags
	depth       int
	timeout     time.Duration
	guards      guardFlags
	interactive bool
	converse    bool
	remove      bool
	network     string
	allow       []string
	script      *cove.SetupScript
	environment []config.EnvVar
	definition  *cove.AgentDefinition
	skill       *cove.Skill
	mcp         mcpFlags
	dryRun      bool
	profile     string
	bring       bool // the person's settings for the agent
	settings    []cove.SettingsFile
	limits      []string // of steps, as KEY=DURATION
}

// agentFlags say who does the work, and how.
type agentFlags struct{ agent, command, permissions, model, role, login string }

// remoteFlags name a repository that the sprite clones.
type remoteFlags struct {
	url, branch, publish string
	issue                int
}

func (o *pushOptions) register(inv *invocation, cmd *cobra.Command) {
	f := cmd.Flags()
	registerAgent(cmd, &o.agent, config.Default(config.Agent), "the agent that does the work: ")
	f.StringVar(&o.command, "agent-command", "", "the command that starts the agent acp in the sprite: the command line of an agent that speaks ACP")
	f.StringVar(&o.permissions, "permissions", config.Default(config.Permissions), "the answer to the agent acp's requests for permission: allow, ask (cove job answer) or deny")
	must(cmd.RegisterFlagCompletionFunc("permissions", cobra.FixedCompletions(agents.PermissionChoices, cobra.ShellCompDirectiveNoFileComp)))
	f.StringVar(&o.model, "model", config.Default(config.Model), "the model that the agent asks, as PROVIDER/MODEL (empty: the agent's choice)")
	f.StringVar(&o.login, "login", "", "how claude and codex ask their model: with a key, or by your subscription, whose token is outside or inside the sprite: key, outside or inside (empty: see cove secret set --help)")
	must(cmd.RegisterFlagCompletionFunc("login", cobra.FixedCompletions(cove.Logins, cobra.ShellCompDirectiveNoFileComp)))
	f.StringVar(&o.role, "role", "", "what the agent cove may do: plan and review only read, build does all (empty: build)")
	must(cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(agents.Roles, cobra.ShellCompDirectiveNoFileComp)))
	f.StringVar(&o.dirty, "dirty", config.Default(config.Dirty), "what to do with uncommitted changes: refuse, include or ignore")
	f.IntVar(&o.depth, "depth", 0, "send only so many commits of the history (0: all)")
	f.StringVar(&o.remote.url, "repo", "", "let the sprite clone this repository, an https or http `URL`, in place of yours")
	f.StringVar(&o.remote.branch, "branch", "", "with --repo: begin with this branch (default: the repository's)")
	f.IntVar(&o.remote.issue, "issue", 0, "with --repo: add the title and text of this issue to the plan, as a quotation, by the forge of the connector for git")
	f.StringVar(&o.remote.publish, "publish", "", "with --repo: push the commits of a job that succeeds to it, if no file is held for review: branch (cove/JOB), or pull_request")
	must(cmd.RegisterFlagCompletionFunc("publish", cobra.FixedCompletions([]string{cove.PublishBranch, cove.PublishPullRequest}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("repo", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("branch", cobra.NoFileCompletions))
	f.DurationVar(&o.timeout, "timeout", mustDuration(config.Default(config.Timeout)), "stop the job after so long, not counting sleep; its work so far is collected")
	f.StringArrayVar(&o.limits, "step-limit", nil, "stop the preparation if one of its steps takes longer, `STEP=TIME`, as setup_script=30m (repeatable; cove job steps --help has their names)")
	f.Bool("steps", false, "show the preparation step by step, until the agent begins (on a terminal it is shown anyway)")
	o.guards.register(cmd)
	f.BoolVar(&o.bring, "agent-settings", false, "copy your own settings for the agent into the sprite: instructions, skills; never credentials")
	f.StringArrayVar(&o.mcp.servers, "mcp", nil, "give the agent an MCP server: `sprite:NAME=COMMAND` starts one inside; host:NAME=TOOL,TOOL (only with the agent cove) uses one outside through that connector, with * all its tools (repeatable)")
	f.StringArrayVar(&o.mcp.env, "mcp-env", nil, "give the server of --mcp sprite:NAME a variable, `NAME:KEY=VALUE`, in which {secret:SECRET} stands for a secret (repeatable)")
	f.StringVar(&o.profile, "profile", "", "take what the other flags do not say from this profile of the server; empty: from no profile, not even the default one (see cove profile)")
	must(cmd.RegisterFlagCompletionFunc("profile", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return profileNames(inv, cmd, prefix)
	}))
	f.BoolVar(&o.dryRun, "dry-run", false, "check everything and say what would be done, but do nothing")
	f.BoolVar(&o.remove, "rm", false, "delete the sprite once its work has been pulled")
	f.StringVar(&o.network, "network", config.Default(config.Network), "what it may reach, besides the repository's remotes: agent, defaults, open, none (see cove help policy)")
	o.machine.register(inv, cmd)
	registerSetup(cmd)
	f.StringArrayVar(&o.allow, "allow", nil, "what else a new sprite may reach, from the start, as cove policy allow takes it: a name, or an address, such as 10.1.2.3:8443 (repeatable)")
	must(cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions(policy.Presets, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("model", cobra.FixedCompletions(agents.Cove{}.Models(), cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("dirty", cobra.FixedCompletions([]string{"refuse", "include", "ignore"}, cobra.ShellCompDirectiveNoFileComp)))
}

// settle sets the flags that were not given from the settings.
func (o *pushOptions) settle(ctx context.Context, inv *invocation, cmd *cobra.Command) error {
	load := loadSettings
	if o.remote.url != "" { // those of a repository that happens to be here are for another one
		load = loadPersonal
	}
	s, places, err := load(ctx)
	if err != nil {
		return err
	}
	name, keys := inv.global.sprite, []config.Key{config.Agent, config.Model, config.Role, config.AgentCommand, config.Permissions, config.Network, config.Dirty, config.Timeout, config.SetupTimeout}
	if name == "" {
		name, keys = config.JobEnv, append(append(keys, config.Profile), machineKeys...)
	}
	if err := setDefaults(inv, cmd, s, keys...); err != nil {
		return err
	}
	if o.script, err = setupScript(cmd, s, places); err != nil {
		return err
	}
	agent, err := findAgent(cmd, places, o.agent)
	if err != nil {
		return err
	}
	o.definition = definitionOf(agent)
	if o.bring {
		if o.settings, err = readAgentSettings(inv, agent); err != nil {
			return err
		}
	}
	if o.skill, err = places.Skill(); err != nil {
		return configError(err)
	}
	o.environment, err = spriteEnvironment(inv, places, name)
	return err
}

// options are those of the push package; the plan is not among them yet.
func (o *pushOptions) options(ctx context.Context, inv *invocation, cmd *cobra.Command) (push.Options, error) {
	var opts push.Options
	if inv.global.sprite != "" {
		if err := checkName(inv.global.sprite); err != nil {
			return opts, err
		}
	}
	if err := o.settle(ctx, inv, cmd); err != nil {
		return opts, err
	}
	if !slices.Contains([]string{"refuse", "include", "ignore"}, o.dirty) {
		return opts, usagef(cmd, "--dirty %q is not one of refuse, include and ignore", o.dirty)
	}
	if o.role != "" && !slices.Contains(agents.Roles, o.role) {
		return opts, usagef(cmd, "--role %q is not one of %s", o.role, strings.Join(agents.Roles, ", "))
	}
	if !slices.Contains(policy.Presets, o.network) {
		return opts, usagef(cmd, "--network %q is not one of %s", o.network, strings.Join(policy.Presets, ", "))
	}
	if err := o.checkACP(cmd); err != nil {
		return opts, err
	}
	if o.depth < 0 {
		return opts, usagef(cmd, "--depth %d is negative", o.depth)
	}
	if err := o.checkRepo(cmd); err != nil {
		return opts, err
	}
	if o.timeout <= 0 {
		return opts, usagef(cmd, "--timeout %v: must be positive", o.timeout)
	}
	limits, err := stepLimits(cmd, o.limits)
	if err != nil {
		return opts, err
	}
	guards, err := o.guards.guards(cmd)
	if err != nil {
		return opts, err
	}
	if o.converse && o.interactive {
		return opts, usagef(cmd, "--converse or --interactive, not both")
	}
	if err := checkEnv(cmd, o.machine.env); err != nil {
		return opts, err
	}
	machine, err := o.machine.config(cmd)
	if err != nil {
		return opts, err
	}
	include, err := o.machine.includes(cmd)
	if err == nil {
		err = warnIncludes(cmd.Context(), inv, include)
	}
	if err != nil {
		return opts, err
	}
	servers, err := parseMCP(cmd, o.mcp)
	if err != nil {
		return opts, err
	}
	dir, err := os.Getwd()
	opts = push.Options{
		Dir:         dir,
		Dirty:       push.Dirty(o.dirty),
		Depth:       o.depth,
		Remote:      o.remote.url != "",
		URL:         o.remote.url,
		Branch:      o.remote.branch,
		Issue:       o.remote.issue,
		Config:      machine,
		Include:     include,
		Env:         overEnv(pairs(o.environment), o.machine.env),
		SetupScript: o.script,
		Settings:    o.settings,
		Policed:     cmd.Flags().Changed("network"),
		Remotes:     o.network == policy.Agent || o.network == policy.Defaults,
		JobSettings: cove.JobSettings{
			Agent:        o.agent,
			Model:        o.model,
			Role:         o.role,
			Login:        o.login,
			Sprite:       inv.global.sprite,
			TimeoutSec:   int64((o.timeout + time.Second - 1) / time.Second),
			Guards:       guards,
			StepLimits:   limits,
			Converse:     o.converse,
			AgentCommand: o.command,
			Permissions:  o.permissions,
			Interactive:  o.interactive,
			Remove:       o.remove,
			Publish:      o.remote.publish,
			Definition:   o.definition,
			Skill:        o.skill,
			MCP:          servers,
		},
	}
	if o.profile != "" {
		return o.ofProfile(inv, cmd, opts)
	}
	if opts.Sprite == "" || opts.Policed { // else it has a policy of its own
		allow, err := parseRules(cmd, o.allow, "allow")
		if err != nil {
			return opts, err
		}
		p := netrules.Add(sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: o.network}}}, allow)
		opts.NetworkPolicy = &p
	} else if len(o.allow) > 0 {
		return opts, usagef(cmd, "--allow goes with a new sprite, or with --network; for one that is there: cove policy allow -s %s %s", opts.Sprite, strings.Join(o.allow, " "))
	}
	return opts, err
}

// checkRepo checks --repo, and the flags that need it.
func (o *pushOptions) checkRepo(cmd *cobra.Command) error {
	if o.remote.url == "" {
		if cmd.Flags().Changed("repo") {
			return usagef(cmd, "--repo is empty")
		}
		if o.remote.issue != 0 && o.profile == "" {
			return usagef(cmd, "--issue goes with --repo")
		}
		if o.remote.publish != "" && o.profile == "" {
			return usagef(cmd, "--publish goes with --repo; pull the commits, and push them as you do with yours")
		}
		if o.remote.branch != "" && o.profile == "" {
			return usagef(cmd, "--branch goes with --repo; of your own repository, the branch that is checked out is pushed")
		}
		return nil
	}
	if cmd.Flags().Changed("dirty") {
		return usagef(cmd, "--dirty is about your own repository, which --repo leaves out")
	}
	if o.remote.issue < 0 {
		return usagef(cmd, "--issue %d is not the number of an issue", o.remote.issue)
	}
	if strings.HasPrefix(o.remote.branch, "-") {
		return usagef(cmd, "--branch %q can't be a branch", o.remote.branch)
	}
	if err := connect.CheckRepository(o.remote.url); err != nil {
		return usagef(cmd, "--repo: %v", err)
	}
	return nil
}

// ofProfile leaves settings that no flag gives to a profile. The settings of the person and of
// the repository are for pushes without a profile.
func (o *pushOptions) ofProfile(inv *invocation, cmd *cobra.Command, opts push.Options) (push.Options, error) {
	given := cmd.Flags().Changed
	if !profilePattern().MatchString(o.profile) {
		return opts, usagef(cmd, "--profile %q can't be the name of a profile: it has lower-case letters, digits and hyphens", o.profile)
	}
	opts.Profile, opts.Remotes, opts.NetworkPolicy = o.profile, false, nil
	if opts.Sprite != "" {
		inv.say("The sprite %s keeps its own image, folders and network rules: those of the profile are for new sprites.", opts.Sprite)
	}
	if !given("role") {
		opts.Role = ""
	}
	if !given("agent") {
		opts.Agent, opts.Definition, opts.Settings = "", nil, nil
		for _, name := range []string{"agent-command", "permissions", "model", "login", "agent-settings"} {
			if given(name) {
				return opts, usagef(cmd, "--%s goes with --agent; the profile %s has an agent of its own (to push without a profile: --profile '')", name, o.profile)
			}
		}
		opts.AgentCommand, opts.Permissions, opts.Model = "", "", ""
	}
	if !given("timeout") {
		opts.TimeoutSec = 0
	}
	if given("setup") {
		return opts, usagef(cmd, "--setup or --profile, not both: the profile %s may have a script of its own (to push without a profile: --profile '')", o.profile)
	}
	opts.Config = machineGiven(cmd, opts.Config)
	if !given("include") {
		opts.Include = nil
	}
	switch {
	case given("network"):
		allow, err := parseRules(cmd, o.allow, "allow")
		if err != nil {
			return opts, err
		}
		p := netrules.Add(sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: o.network}}}, allow)
		opts.NetworkPolicy = &p
	case len(o.allow) > 0:
		return opts, usagef(cmd, "--allow adds to the rules of --network, but here the rules are those of the profile %[1]s: cove profile edit %[1]s (or give --network, too; to push without a profile: --profile '')", o.profile)
	}
	return opts, nil
}

// choose takes the server's default profile for a push into a new sprite that names none.
type choose func(ctx context.Context, c *cove.Client, opts push.Options) (push.Options, error)

func (o *pushOptions) choose(inv *invocation, cmd *cobra.Command) choose {
	return func(ctx context.Context, c *cove.Client, opts push.Options) (push.Options, error) {
		if o.profile != "" || opts.Sprite != "" || cmd.Flags().Changed("profile") {
			return opts, nil
		}
		all, err := cove.Profiles{Client: c}.List(ctx)
		if errors.Is(err, sprites.ErrNotFound) { // the server knows of none
			return opts, nil
		}
		i := slices.IndexFunc(all, func(p cove.Profile) bool { return p.Default && profilePattern().MatchString(p.Name) })
		if err != nil || i < 0 {
			return opts, err
		}
		o.profile = all[i].Name
		inv.say("This uses the server's default profile, %s. To push without a profile: --profile ''", o.profile)
		return o.ofProfile(inv, cmd, opts)
	}
}

// machineGiven is the machine that flags ask for; nil: they ask for nothing.
func machineGiven(cmd *cobra.Command, all *sprites.Config) *sprites.Config {
	if all == nil {
		return nil
	}
	given, c := cmd.Flags().Changed, sprites.Config{}
	if given("image") {
		c.Image = all.Image
	}
	if given("memory") {
		c.RAMMB = all.RAMMB
	}
	if given("cpus") {
		c.CPUs = all.CPUs
	}
	if given("disk") {
		c.StorageGB, c.StorageMB = all.StorageGB, all.StorageMB
	}
	if c == (sprites.Config{}) {
		return nil
	}
	return &c
}

// checkACP looks at the settings of the agent acp. For other agents, those that nobody
// gave as flags are none.
func (o *pushOptions) checkACP(cmd *cobra.Command) error {
	if o.agent != "acp" {
		for _, name := range []string{"agent-command", "permissions"} {
			if cmd.Flags().Changed(name) {
				return usagef(cmd, "--%s is for --agent acp, not %s", name, o.agent)
			}
		}
		o.command, o.permissions = "", ""
		return nil
	}
	switch {
	case strings.TrimSpace(o.command) == "":
		return usagef(cmd, "the agent acp needs the command that starts it, such as --agent-command \"opencode acp\"")
	case !slices.Contains(agents.PermissionChoices, o.permissions):
		return usagef(cmd, "--permissions %q is not one of %s", o.permissions, strings.Join(agents.PermissionChoices, ", "))
	}
	return nil
}

// stepLimits reads limits of steps, each STEP=TIME, into seconds.
func stepLimits(cmd *cobra.Command, given []string) (map[cove.StepKey]int64, error) {
	var limits map[cove.StepKey]int64
	for _, text := range given {
		key, value, _ := strings.Cut(text, "=")
		d, err := time.ParseDuration(value)
		if err != nil {
			return nil, usagef(cmd, "--step-limit %q is not STEP=TIME, as in setup_script=30m", text)
		}
		if limits == nil {
			limits = map[cove.StepKey]int64{}
		}
		limits[cove.StepKey(key)] = int64((d + time.Second - 1) / time.Second)
	}
	if err := cove.CheckStepLimits(limits); err != nil {
		return nil, usagef(cmd, "--step-limit: %v", err)
	}
	return limits, nil
}

// mustDuration reads a time that is built in.
func mustDuration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	must(err)
	return d
}

func newPushCommand(inv *invocation) *cobra.Command {
	var o pushOptions
	var prompt string
	cmd := &cobra.Command{
		Use:   "push PLAN | push -p PROMPT",
		Short: "Send this repository and a plan into a sprite, and have an agent carry it out",
		Long: `Sends the checked-out branch of this repository to a new sprite (or to that of -s), starts an
agent there with the plan, and returns when the agent has begun. The job goes on while this
machine sleeps. cove pull brings the commits back.

The plan is a text that says what the agent should do: a file, - for standard input, or the text of
-p. If there are uncommitted changes, choose: --dirty include sends them in a snapshot commit,
--dirty ignore sends only commits.

On a terminal, push shows how the job is prepared. Ctrl-C leaves the job running. --dry-run does
all checks, says what would be sent to where, and sends nothing.

With --auto-pull, or push.auto_pull in your own settings file (not with --json), push waits for the
job's end. It then pulls as cove run -q does, by the settings pull.into and pull.risky.

More: cove help models, repositories, preparation, network, limits or mcp-servers.`,
		Example: `  cove push plan.md
  cove push -p "Update the dependencies, and make the tests pass."
  cove push --agent shell migrate.md --dirty ignore
  cove push plan.md --timeout 3h --memory 8G --include ~/.cargo/bin --rm
  cove push plan.md --max-idle 10m --max-turns 200 --max-disk 5G
  cove push plan.md --agent cove --model openai/gpt-5.5
  cove push -p "Plan the move to SQLite." --agent cove --role plan
  cove push plan.md --agent cove --mcp host:linear=list_issues,get_issue
  cove push plan.md --profile nightly
  cove push plan.md --repo https://github.com/team/project --branch release/2
  cove push plan.md --auto-pull
  cove push plan.md --network open
  cove push plan.md --allow 10.1.2.3:8443
  cove push plan.md --agent acp --agent-command "opencode acp" --permissions ask
  cove push plan.md --interactive`,
		Args: planArgs(&prompt),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		opts, err := o.options(ctx, inv, cmd)
		if err != nil {
			return err
		}
		if opts.Plan = prompt; prompt == "" {
			err = readPlan(inv, &opts, args[0])
		}
		if err != nil {
			return err
		}
		if o.dryRun {
			return runDryRun(ctx, inv, opts, o.choose(inv, cmd))
		}
		run, err := o.autoPull(ctx, inv, cmd)
		if err != nil {
			return err
		}
		if run.steps = wantsSteps(inv, cmd); run.pull {
			return runJob(ctx, inv, opts, o.choose(inv, cmd), run)
		}
		return runPush(ctx, inv, opts, o.choose(inv, cmd), run.steps)
	})
	o.register(inv, cmd)
	cmd.Flags().Bool("auto-pull", false, "wait for the job's end, and pull")
	registerPrompt(cmd, &prompt)
	cmd.Flags().BoolVar(&o.interactive, "interactive", false, "start the agent in a terminal, and join it")
	cmd.Flags().BoolVar(&o.converse, "converse", false, "keep the agent for messages when it has finished (cove job send)")
	return cmd
}

// autoPull says whether a push goes on as a run without its log, as --auto-pull or the settings
// have it. The setting is not for scripts, and not for jobs that wait for a person.
func (o *pushOptions) autoPull(ctx context.Context, inv *invocation, cmd *cobra.Command) (runOptions, error) {
	var run runOptions
	forPerson := o.interactive || o.converse
	if given := cmd.Flags().Changed("auto-pull"); !given && (forPerson || inv.global.json) {
		return run, nil
	}
	s, _, err := loadSettings(ctx)
	if err != nil {
		return run, err
	}
	if err := setDefaults(inv, cmd, s, config.PushAutoPull); err != nil {
		return run, err
	}
	if run.pull, err = cmd.Flags().GetBool("auto-pull"); run.pull && forPerson {
		return run, usagef(cmd, "--auto-pull does not go with --interactive or --converse")
	}
	run.with = push.PullOptions{Into: push.Into(s.Value(config.PullInto).Text), AcceptRisky: s.Value(config.PullRisky).Text == "list"}
	return run, err
}

func runPush(ctx context.Context, inv *invocation, opts push.Options, choose choose, steps bool) error {
	if err := checkPlan(opts.PlanPath); err != nil {
		return err // before a server is started for it
	}
	c, backend, err := inv.server.newJobs(ctx)
	if err == nil {
		opts, err = choose(ctx, c, opts)
	}
	if err != nil {
		return err
	}
	opts.Backend = backend
	result, view, err := pushWith(ctx, inv, c, opts, steps)
	if err != nil {
		return err
	}
	view.above(func() {
		err = inv.show(result, func(w io.Writer) {
			inv.tell(w, "Job %s started. Pull with: cove pull %s", result.Job, result.Job)
		})
	})
	if steps {
		err = cmp.Or(err, prepared(ctx, c, result.Job, view.wait(ctx)))
	}
	if err != nil {
		return err
	}
	if !opts.Interactive || inv.global.json {
		return nil
	}
	if !isTerminal(inv.In) || !isTerminal(inv.Out) {
		inv.say("This is not a terminal. Join the agent with: cove job attach %s", result.Job)
		return nil
	}
	return attachJob(ctx, inv, c, result.Job)
}

// readPlan notes the file of a plan; if that is -, it reads the plan from standard input.
func readPlan(inv *invocation, opts *push.Options, name string) error {
	if opts.PlanPath = name; name != "-" {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(inv.In, push.MaxPlan+1))
	if err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	opts.PlanPath, opts.Plan = "", string(text)
	return nil
}

// checkPlan says that a plan can't be read, before anything is done.
func checkPlan(name string) error {
	if name == "" {
		return nil
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fail.New("no_plan", "no such plan: "+printable.Name(name), push.PlanHint(name))
	case err != nil:
		return fail.Wrap("no_plan", fmt.Errorf("read the plan: %w", err), "")
	case info.IsDir():
		return fail.Newf("no_plan", "name the file of the plan: cove push FILE", "no such plan: %s is a folder", name)
	}
	return nil
}

// pushWith pushes. With steps it shows how the job is prepared: the caller ends the view.
func pushWith(ctx context.Context, inv *invocation, c *cove.Client, opts push.Options, steps bool) (push.Result, *stepView, error) {
	renewLogin(ctx, inv, c, opts)
	if opts.Backend == "" {
		if err := ensureImage(ctx, inv, c, opts.Config); err != nil {
			return push.Result{}, nil, err
		}
	} else if opts.Config != nil && opts.Config.Image == hostBase {
		opts.Config.Image = "" // whatever the backend has
	} else if opts.Config != nil && opts.Config.Image != "" {
		return push.Result{}, nil, fail.Newf("not_available", "leave --image out", "the backend %s only knows the protocol, which has no images", opts.Backend)
	}
	if opts.Profile != "" && !opts.Remote {
		p, err := cove.Profiles{Client: c}.Get(ctx, opts.Profile)
		if err != nil {
			return push.Result{}, nil, err
		}
		if p.URL != "" { // the script of a repository that happens to be here is for that one
			opts.Remote, opts.SetupScript = true, nil
		}
	}
	courier, done := newCourier(inv, c)
	defer done()
	waits, show := "", courier.Installing
	courier.Installing = func(job cove.Job) { waits = job.ID; show(job) }
	var view *stepView
	if steps {
		courier.Handing = func(job cove.Job) { view = startSteps(ctx, inv, c, job.ID) }
	}
	result, err := courier.Push(ctx, opts)
	if err != nil {
		view.stop()
		view = nil
	}
	if err != nil && ctx.Err() != nil && waits != "" {
		done() // the line of its progress
		sayLeft(ctx, inv, c, waits)
	}
	view.above(func() { sayPushed(inv, opts, result, err) })
	return result, view, err
}
