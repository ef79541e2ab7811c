package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// machineFlags are the flags of create and push that say what a sprite is made of.
type machineFlags struct {
	image   string
	memory  string
	cpus    int
	disk    string
	include []string
	env     []string
}

// machineKeys are the settings that are the defaults of machineFlags.
var machineKeys = []config.Key{config.Image, config.Memory, config.CPUs, config.Disk, config.Include}

func (m *machineFlags) register(inv *invocation, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.image, "image", "", "start from this image: a name such as debian:12, oci:DIR, docker-archive:FILE or -; host: the tools of the server's machine (default: the server's default image, or host if it has none)")
	must(cmd.RegisterFlagCompletionFunc("image", imageNames(inv)))
	f.StringVar(&m.memory, "memory", "", "memory limit, such as 2G or 512M (default: what the server has)")
	f.IntVar(&m.cpus, "cpus", 0, "how many CPUs it may use (default: all that the server has)")
	f.StringVar(&m.disk, "disk", "", "disk limit, checkpoints included, such as 20G (default: none; see cove update --help)")
	f.StringArrayVar(&m.include, "include", nil, "show this folder of the server's machine inside, read-only (repeatable)")
	f.StringArrayVar(&m.env, "env", nil, "set an environment variable, `K=V` (repeatable)")
}

// config is the machine asked for; nil where nothing is asked.
func (m *machineFlags) config(cmd *cobra.Command) (*sprites.Config, error) {
	if cmd.Flags().Changed("image") && m.image == "" {
		return nil, usagef(cmd, "--image needs a name; host is the tools of the server's machine")
	}
	if m.image == "" && m.memory == "" && m.disk == "" && m.cpus == 0 && !cmd.Flags().Changed("cpus") {
		return nil, nil
	}
	config := &sprites.Config{CPUs: m.cpus, Image: m.image}
	if m.cpus < 0 || m.cpus == 0 && cmd.Flags().Changed("cpus") {
		return nil, usagef(cmd, "--cpus %d: at least 1", m.cpus)
	}
	if m.memory != "" {
		n, err := ParseSize(m.memory)
		if err != nil || n < 1<<20 {
			return nil, usagef(cmd, "--memory %q is not a size such as 2G or 512M", m.memory)
		}
		config.RAMMB = int(n >> 20)
	}
	if m.disk != "" {
		mib, err := diskSize(cmd, m.disk)
		if err != nil {
			return nil, err
		}
		if config.StorageMB = mib; mib > 0 && mib%1024 == 0 { // which every server of the protocol knows
			config.StorageGB, config.StorageMB = mib/1024, 0
		}
	}
	return config, nil
}

// diskSize reads --disk, and gives MiB; 0: no limit.
func diskSize(cmd *cobra.Command, text string) (int, error) {
	n, err := ParseSize(text)
	if err != nil || n > 0 && n < 1<<20 {
		return 0, usagef(cmd, "--disk %q is not a size such as 20G or 512M; 0 is no limit", text)
	}
	return int(n >> 20), nil
}

// includes are the folders to show inside, as absolute paths.
func (m *machineFlags) includes(cmd *cobra.Command) ([]string, error) {
	var dirs []string
	for _, dir := range m.include {
		if dir == "" {
			return nil, usagef(cmd, "--include needs a folder")
		}
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, abs)
	}
	return dirs, nil
}

// checkEnv says which variable is not K=V.
func checkEnv(cmd *cobra.Command, env []string) error {
	for _, kv := range env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsRune(kv, 0) {
			return usagef(cmd, "--env %q is not K=V", kv)
		}
	}
	return nil
}

// checkPlainEnv is checkEnv for those that are given as they are: a sprite and a command get
// no secrets.
func checkPlainEnv(cmd *cobra.Command, env []string) error {
	for _, kv := range env {
		if connect.Refers(kv) {
			name, _, _ := strings.Cut(kv, "=")
			return hinted(usagef(cmd, "--env %s refers to a secret, which only a job can be given", name),
				"keep it outside: cove help connector; or give it to a job: cove push --env "+name+"={secret:NAME} PLAN")
		}
	}
	return checkEnv(cmd, env)
}

// ParseSize reads a size in bytes: a number with K, M, G or T (of 1024) after it, or of bytes.
func ParseSize(text string) (int64, error) {
	number := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text), "B"), "I")
	shift := 0
	if number != "" {
		if i := strings.IndexByte("KMGT", number[len(number)-1]); i >= 0 {
			shift = 10 * (i + 1)
			number = number[:len(number)-1]
		}
	}
	value, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(value) || value < 0 || value*float64(int64(1)<<shift) >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size", text)
	}
	return int64(value * float64(int64(1)<<shift)), nil
}

// hostBase stands for the tools of the server's machine.
const hostBase = sprites.HostBase

type createOptions struct {
	machine machineFlags
	base    string
	from    string
	labels  []string
	sleep   sleepFlags
	network string
	gitID   bool

	runEntrypoint bool
}

func newCreateCommand(inv *invocation) *cobra.Command {
	var o createOptions
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a sprite",
		Long: `Makes a sprite: a persistent computer with a disk of its own. A new sprite is cold: only a disk.
Its first use starts it, in a fraction of a second.

The disk starts from the tools of the server's machine: all that is under /usr there. Changes
inside do not touch the original. --include adds tools that are elsewhere; cove doctor finds
them. With --image, the disk starts from an image instead, which the server pulls if it does not
have it (see cove help image). With --from, the sprite is a copy of another one, with its
settings, its disk and its running programs (see cove help fork).

--cpus limits the processor time, and nproc inside shows that number. With one CPU, /proc/cpuinfo
lists two, which is gVisor's least.

A sprite that nobody uses sleeps in two stages: see cove update --help.`,
		Example: `  cove create paint
  cove create build --memory 4G --cpus 2 --disk 20G --include /usr/local/go
  cove create tight --network agent
  cove create clean --image debian:12
  cove create web --image nginx:1 --run-entrypoint
  cove create second --from paint@v1
  cove create paint --git-identity
  cove create web --label team=shop --env TZ=Europe/Rome --idle 30m`,
		Args: exactArgs("the new sprite's name"),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if cmd.Flags().Changed("from") {
			return createFrom(ctx, inv, cmd, args[0], &o)
		}
		s, _, err := loadSettings(ctx)
		if err != nil {
			return err
		}
		if err := setDefaults(inv, cmd, s, append(machineKeys, config.Network)...); err != nil {
			return err
		}
		req, err := o.request(cmd, args[0])
		if err == nil {
			inv.hints.about = req.Name
			err = warnIncludes(ctx, inv, req.Include)
		}
		if err != nil {
			return err
		}
		who, c, err := identityAndClient(ctx, inv, o.gitID)
		if err != nil {
			return err
		}
		if err := ensureImage(ctx, inv, c, req.Config); err != nil {
			return err
		}
		var program sprites.Service
		if o.runEntrypoint {
			if program, err = o.entrypoint(ctx, cmd, c, req); err != nil {
				return err
			}
		}
		info, err := c.Create(ctx, req)
		if err != nil {
			return err
		}
		if o.runEntrypoint {
			if err := startEntrypoint(ctx, inv, c, info.Name, program); err != nil {
				return fmt.Errorf("sprite %s is created, but %w", info.Name, err)
			}
			if info, err = c.Get(ctx, info.Name); err != nil {
				return err
			}
		}
		if o.gitID {
			if err := giveIdentity(ctx, c, info.Name, who); err != nil {
				return fmt.Errorf("sprite %s is created, but %w", info.Name, err)
			}
		}
		if (o.machine.memory != "" || o.machine.cpus != 0) && info.Cove != nil && len(info.Cove.Unlimited) > 0 {
			inv.say("The server's machine does not enforce its limits: %s", printable.Line(strings.Join(info.Cove.Unlimited, "; ")))
		}
		sayReserve(inv, info)
		sayHost(ctx, inv, c, req, info)
		return inv.show(info, func(w io.Writer) {
			if !inv.global.quiet {
				inv.tell(w, "Sprite %s created. Use it with: cove exec -s %s CMD", printable.Line(info.Name), printable.Line(info.Name))
			}
		})
	})
	f := cmd.Flags()
	o.machine.register(inv, cmd)
	f.StringVar(&o.base, "base", "host", "what its disk starts from: host, the tools of the server's machine (for an image: --image)")
	f.StringVar(&o.from, "from", "", "copy this `SPRITE`, or SPRITE@CHECKPOINT, with its running programs")
	must(cmd.RegisterFlagCompletionFunc("from", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeExport(inv)(cmd, nil, prefix)
	}))
	f.StringArrayVar(&o.labels, "label", nil, "note this `LABEL` on it, any text or K=V (repeatable)")
	f.StringVar(&o.network, "network", "", "what it may reach: open, none, agent or defaults (see cove help policy; default: no rules)")
	must(cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions(policy.Presets, cobra.ShellCompDirectiveNoFileComp)))
	f.BoolVar(&o.gitID, "git-identity", false, identityUsage)
	f.BoolVar(&o.runEntrypoint, "run-entrypoint", false, "run the image's ENTRYPOINT and CMD, as the service "+entrypointName)
	o.sleep.register(cmd, " (default: the server's)")
	return cmd
}

// sayHost explains a sprite that has the tools of the server's machine, if nobody chose an image. It
// says so only if the sprite is the server's only one: more often would be noise.
func sayHost(ctx context.Context, inv *invocation, c *cove.Client, req sprites.CreateRequest, info sprites.Info) {
	if req.Config != nil && req.Config.Image != "" || info.Cove == nil || info.Cove.Base != hostBase || inv.global.quiet || inv.global.json {
		return
	}
	all, err := c.List(ctx, sprites.ListOptions{MaxResults: 2})
	if err == nil && len(all.Sprites) == 1 {
		inv.say("It has the server machine's tools, which differ on other machines. The same everywhere: cove create NEW --image debian:12")
	}
}

// entrypoint is the program of the image that a new sprite starts from.
func (o *createOptions) entrypoint(ctx context.Context, cmd *cobra.Command, c *cove.Client, req sprites.CreateRequest) (sprites.Service, error) {
	name := ""
	if req.Config != nil {
		name = req.Config.Image
	}
	if name == "" {
		server, err := c.Version(ctx)
		if err != nil {
			return sprites.Service{}, err
		}
		name = server.DefaultImage
	}
	if name == "" || name == hostBase {
		return sprites.Service{}, usagef(cmd, "--run-entrypoint needs an image: --image NAME")
	}
	image, err := cove.Images{Client: c}.Get(ctx, name)
	if err != nil {
		return sprites.Service{}, err
	}
	return entrypoint(image)
}

func (o *createOptions) request(cmd *cobra.Command, name string) (req sprites.CreateRequest, err error) {
	if err := checkName(name); err != nil {
		return req, err
	}
	if err := checkPlainEnv(cmd, o.machine.env); err != nil {
		return req, err
	}
	if cmd.Flags().Changed("base") {
		if cmd.Flags().Changed("image") {
			return req, usagef(cmd, "--base or --image, not both")
		}
		o.machine.image = hostBase // whatever the settings say
	}
	if o.base != hostBase {
		return req, usagef(cmd, "--base %q: the only base is host; for an image: --image %s", o.base, o.base)
	}
	req = sprites.CreateRequest{Name: name, Labels: o.labels} // the base is host in any case
	if req.Config, err = o.machine.config(cmd); err != nil {
		return req, err
	}
	if req.Include, err = o.machine.includes(cmd); err != nil {
		return req, err
	}
	for _, kv := range o.machine.env {
		if req.Environment == nil {
			req.Environment = map[string]string{}
		}
		key, value, _ := strings.Cut(kv, "=")
		req.Environment[key] = value
	}
	if o.network != "" {
		req.NetworkPolicy = &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: o.network}}}
	}
	req.IdleSeconds, req.HibernateSeconds, err = o.sleep.seconds(cmd)
	return req, err
}
