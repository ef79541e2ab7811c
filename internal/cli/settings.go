package cli

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// flagOf names the flag that a setting is the default of.
var flagOf = map[config.Key]string{
	config.Agent: "agent", config.Profile: "profile", config.Model: "model", config.Role: "role", config.AgentCommand: "agent-command", config.Permissions: "permissions", config.Network: "network", config.Dirty: "dirty", config.Timeout: "timeout", config.Image: "image", config.Memory: "memory", config.CPUs: "cpus", config.Disk: "disk",
	config.Include: "include", config.SetupScript: "setup", config.SetupTimeout: "setup-timeout", config.PullAuto: "pull", config.PullInto: "into",
	config.PullRisky: "accept-risky", config.PushAutoPull: "auto-pull",
}

// findPlaces says where the settings are for a command line that was typed in the working
// directory.
func findPlaces(ctx context.Context) (config.Places, error) {
	p := config.Places{Getenv: os.Getenv}
	p.Personal, p.Named = config.PersonalFile(os.Getenv)
	dir, err := os.Getwd()
	if err != nil {
		return p, err
	}
	p.Top, err = gitwork.Top(ctx, dir)
	return p, err
}

// loadSettings reads the settings. If they are wrong, the error says so, and the caller must
// do nothing that needs them.
func loadSettings(ctx context.Context) (*config.Settings, config.Places, error) {
	p, err := findPlaces(ctx)
	if err != nil {
		return nil, p, err
	}
	s, err := config.Load(p)
	return s, p, configError(err)
}

// loadPersonal is loadSettings without what a repository says.
func loadPersonal(context.Context) (*config.Settings, config.Places, error) {
	p := config.Places{Getenv: os.Getenv}
	p.Personal, p.Named = config.PersonalFile(os.Getenv)
	s, err := config.Load(p)
	return s, p, configError(err)
}

// configError turns the problems of a file of settings into an error for people.
func configError(err error) error {
	problems, ok := errors.AsType[config.Problems](err)
	if !ok {
		return err
	}
	hint := "see all that is wrong: cove config check"
	if problems[0].Hint != "" {
		hint = problems[0].Hint + "\n" + hint
	}
	return fail.Wrap("bad_config", err, hint)
}

// setDefaults sets flags of a command that were not given to the values of the settings
// in keys. These flags still count as not given.
func setDefaults(inv *invocation, cmd *cobra.Command, s *config.Settings, keys ...config.Key) error {
	for _, key := range keys {
		f := cmd.Flags().Lookup(flagOf[key])
		if f.Changed {
			continue
		}
		v := s.Value(key)
		if key == config.Network {
			v = s.Network(cmp.Or(f.DefValue, policy.Open))
			if v.Note != "" {
				inv.say("%s", v.Note)
			}
		}
		if v.From == config.BuiltIn {
			continue
		}
		if key == config.PullRisky {
			v.Text = strconv.FormatBool(v.Text == "list")
		}
		if err := setFlag(f, v); err != nil {
			return err
		}
	}
	return nil
}

func setFlag(f *pflag.Flag, v config.Value) error {
	list, ok := f.Value.(pflag.SliceValue)
	if !ok {
		return f.Value.Set(v.Text)
	}
	var dirs []string
	for _, dir := range v.List {
		full, err := config.Expand(dir)
		if err != nil {
			return err
		}
		dirs = append(dirs, full)
	}
	return list.Replace(dirs)
}

// setupScript is what prepares a sprite, as the flags --setup and --setup-timeout
// or the settings say; nil: nothing does.
func setupScript(cmd *cobra.Command, s *config.Settings, p config.Places) (*cove.SetupScript, error) {
	v := s.Value(config.SetupScript)
	if f := cmd.Flags().Lookup("setup"); f.Changed {
		v = config.Value{Text: f.Value.String(), From: config.FromFlag}
	}
	limit, err := cmd.Flags().GetDuration("setup-timeout")
	if err != nil {
		return nil, err
	}
	if limit <= 0 {
		return nil, usagef(cmd, "--setup-timeout %v: must be positive", limit)
	}
	script, err := p.Script(v)
	if script == nil || err != nil {
		return nil, configError(err)
	}
	return &cove.SetupScript{Name: script.Name, Text: string(script.Text), TimeoutSec: int64(max(limit.Seconds(), 1))}, nil
}

// registerSetup adds the flags that setupScript reads.
func registerSetup(cmd *cobra.Command) {
	f := cmd.Flags()
	f.String("setup", "", "script that prepares the sprite, once; none: no script (default: .cove/setup.sh)")
	f.Duration("setup-timeout", mustDuration(config.Default(config.SetupTimeout)), "the time limit of the setup script")
}

// spriteEnvironment is the variables that the files of the repository and the person give a
// sprite. For a key among them, it says if a connector would keep the key outside.
func spriteEnvironment(inv *invocation, p config.Places, sprite string) ([]config.EnvVar, error) {
	vars, err := p.Environment(sprite)
	for _, v := range vars {
		if hint := keyHint(v); hint != "" && v.Line > 0 {
			inv.say("%s", hint)
		}
	}
	return vars, configError(err)
}

// withoutSecrets are the variables that refer to no secret. The server gives those that do to
// jobs alone, so that the caller says which ones are left out.
func withoutSecrets(inv *invocation, vars []config.EnvVar) (rest []config.EnvVar) {
	for _, v := range vars {
		if connect.Refers(v.Name + "=" + v.Value) {
			inv.say("%s is left out: it refers to a secret, which only a job is given.", v.Name)
			continue
		}
		rest = append(rest, v)
	}
	return rest
}

// pairs are variables as NAME=VALUE.
func pairs(vars []config.EnvVar) []string {
	var env []string
	for _, v := range vars {
		env = append(env, v.Name+"="+v.Value)
	}
	return env
}

// keyHint says that a variable's value need not be in the sprite; empty: it may
// have to be.
func keyHint(v config.EnvVar) string {
	c := v.Connector()
	if c == "" {
		return ""
	}
	return v.Name + " looks like a key, and will be in the sprite. A connector keeps it outside: cove secret set " + c + ", cove connector put " + c
}

// overEnv merges two lists of NAME=VALUE. If both have a name, the one in over counts.
func overEnv(under, over []string) []string {
	merged := map[string]string{}
	for _, kv := range slices.Concat(under, over) {
		name, _, _ := strings.Cut(kv, "=")
		merged[name] = kv
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(merged)) {
		all = append(all, merged[name])
	}
	return all
}
