package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/tomldoc"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/sprites"
)

var profilePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`) })

func newProfileCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "profile",
		Short: "Keep settings of jobs on the server, for all who push",
		Long: `A profile is a named set of settings for jobs. It has the agent and its model, the image, the
network rules, variables, limits, a setup script and a cleanup script. It also says how many of
its jobs work at once. With cove push --profile NAME, a flag overrides the profile.

An administrator keeps profiles. To push with one, a token needs only the right to begin jobs,
also for settings that would need the verb admin otherwise. Each change is a new revision; a
job keeps the revision that it was made with.

cove help profile-file shows a profile, and cove profile keys lists all keys.`,
		Example: `  cove profile put nightly nightly.toml
  cove profile list
  cove push plan.md --profile nightly
  cove profile edit nightly && cove profile apply nightly`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newProfileListCommand(inv), newProfileShowCommand(inv), newProfileKeysCommand(inv), newProfilePutCommand(inv), newProfileEditCommand(inv), newProfileApplyCommand(inv), newProfileDefaultCommand(inv),
		asksFirst(inv, newProfileRmCommand(inv), lostProfiles(inv)))
	return cmd
}

// profileVerb makes the handler of a verb about one profile, given by its name.
func profileVerb(inv *invocation, cmd *cobra.Command, run func(ctx context.Context, calls cove.Profiles, args []string) error) func(*cobra.Command, []string) error {
	return verb(func(ctx context.Context, args []string) error {
		if !profilePattern().MatchString(args[0]) {
			return usagef(cmd, "%q can't be the name of a profile: it has lower-case letters, digits and hyphens", args[0])
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		return run(ctx, cove.Profiles{Client: c}, args)
	})
}

func newProfileListCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the profiles",
		Long:    `Lists the profiles, with how many jobs of each may work at once.`,
		Example: `  cove profile list
  cove profile list --json`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			list, err := cove.Profiles{Client: c}.List(ctx)
			if err != nil {
				return err
			}
			return inv.show(cove.ProfileList{Profiles: list}, func(w io.Writer) {
				rows, now := [][]string{{"NAME", "REVISION", "AGENT", "AT ONCE", "CHANGED", "DESCRIPTION"}}, time.Now()
				for _, p := range list {
					most := "any"
					if p.MaxJobs > 0 {
						most = fmt.Sprint(p.MaxJobs)
					}
					name := p.Name
					if p.Default {
						name += " (default)"
					}
					rows = append(rows, []string{name, fmt.Sprint(p.Revision), printable.Line(p.Agent), most, ago(p.UpdatedAt, now), printable.Line(p.Description)})
				}
				table(w, rows)
			})
		}),
	}
}

func newProfileShowCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Print a profile, as cove profile put reads it",
		Long: `Prints a profile as TOML, as cove profile put reads it. A token without the verb admin sees the
names of its variables, but no values.`,
		Example: `  cove profile show nightly
  cove profile show nightly >nightly.toml`,
		Args:              exactArgs("the profile's name"),
		ValidArgsFunction: completeProfile(inv),
	}
	cmd.RunE = profileVerb(inv, cmd, func(ctx context.Context, calls cove.Profiles, args []string) error {
		p, err := calls.Get(ctx, args[0])
		if err != nil {
			return err
		}
		text, err := profileText(p)
		if err != nil {
			return err
		}
		return inv.show(p, func(w io.Writer) { fmt.Fprint(w, printable.Text(text)) })
	})
	return cmd
}

func newProfilePutCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "put NAME FILE",
		Short: "Store a profile that a file describes",
		Long: `Stores a profile, in place of one of the same name. FILE is TOML (see cove profile keys), or -
for standard input. If you have added the agent (cove agent add), its definition goes along.

The server checks the job that the profile would make. It only warns if a model's key is missing,
an image is not there, or rules block what the agent needs.`,
		Example: `  cove profile put nightly nightly.toml
  cove profile show nightly | sed 's/max_jobs = 10/max_jobs = 20/' | cove profile put nightly -`,
		Args:              exactArgs("the profile's name", "its file"),
		ValidArgsFunction: completeProfile(inv),
	}
	cmd.RunE = profileVerb(inv, cmd, func(ctx context.Context, calls cove.Profiles, args []string) error {
		text, err := readProfile(inv, args[1])
		if err != nil {
			return err
		}
		settings, err := parseProfile(args[1], text)
		if err != nil {
			return err
		}
		if err := bringDefinition(ctx, inv, cmd, &settings); err != nil {
			return err
		}
		put, err := calls.Put(ctx, args[0], 0, settings)
		if err != nil {
			return err
		}
		return showPut(inv, put)
	})
	return cmd
}

// bringDefinition adds the definition of an agent that the server does not know, if there is one here.
func bringDefinition(ctx context.Context, inv *invocation, cmd *cobra.Command, settings *cove.ProfileSettings) error {
	if settings.Agent == "" || settings.Definition != nil || slices.Contains(agents.Names(), settings.Agent) {
		return nil
	}
	places, err := findPlaces(ctx)
	if err != nil {
		return err
	}
	agent, err := findAgent(cmd, places, settings.Agent)
	if err != nil {
		return err
	}
	if settings.Definition = definitionOf(agent); settings.Definition != nil {
		inv.say("The definition of the agent %s goes along, as it is now.", settings.Agent)
	}
	return nil
}

func newProfileDefaultCommand(inv *invocation) *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:   "default NAME | default --none",
		Short: "Set the profile of pushes that name none",
		Long: `Sets the profile for all cove push and cove run that name none and make a sprite. The setting
profile of the person who pushes comes before that. --profile '' pushes without a profile.`,
		Example: `  cove profile default nightly
  cove profile default --none`,
		ValidArgsFunction: completeProfile(inv),
	}
	cmd.Flags().BoolVar(&none, "none", false, "use no profile")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if none && len(args) > 0 {
			return usagef(cmd, "a profile or --none, not both")
		}
		if none {
			return nil
		}
		return exactArgs("the profile's name")(cmd, args)
	}
	set := func(ctx context.Context, calls cove.Profiles, args []string) error {
		name := ""
		if len(args) > 0 {
			name = args[0]
		}
		if err := calls.SetDefault(ctx, name); err != nil {
			return err
		}
		return inv.show(cove.DefaultProfile{Name: name}, func(io.Writer) {
			if name == "" {
				inv.say("Pushes that name no profile use none.")
				return
			}
			inv.say("Pushes that name no profile use %s.", name)
		})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return profileVerb(inv, cmd, set)(cmd, args)
		}
		return verb(func(ctx context.Context, args []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			return set(ctx, cove.Profiles{Client: c}, args)
		})(cmd, args)
	}
	return cmd
}

// maxProfile is more than a server takes.
const maxProfile = 4 << 20

func readProfile(inv *invocation, name string) ([]byte, error) {
	in := inv.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read the profile: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxProfile))
	if err != nil {
		return nil, fmt.Errorf("read the profile: %w", err)
	}
	return text, nil
}

func showPut(inv *invocation, put cove.ProfilePut) error {
	for _, warning := range put.Warnings {
		inv.say("warning: %s", printable.Lines(warning))
	}
	return inv.show(put, func(io.Writer) {
		inv.say("Profile %s is stored, revision %d. Push with: cove push --profile %s PLAN", put.Name, put.Revision, put.Name)
	})
}

// parseProfile reads a profile in TOML. Its keys are those of the API.
func parseProfile(name string, text []byte) (cove.ProfileSettings, error) {
	var settings cove.ProfileSettings
	bad := func(err error) error {
		return hinted(fmt.Errorf("%s is not a profile: %w", printable.Name(name), err), "all keys, with an example: cove profile keys")
	}
	if err := tomldoc.Parse(text, &settings); err != nil {
		return settings, bad(err)
	}
	return settings, nil
}

// profileText writes a profile as parseProfile reads it.
func profileText(p cove.Profile) (string, error) { return tomldoc.Text(p.ProfileSettings) }

func newProfileEditCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "edit NAME",
		Short: "Change a profile in your editor",
		Long: `Opens a profile in your editor ($VISUAL, $EDITOR, or vi), and stores what you save there. If
somebody has changed the profile meanwhile, or it is refused, your text is kept in a file, and
the message names the file.`,
		Example:           `  cove profile edit nightly`,
		Args:              exactArgs("the profile's name"),
		ValidArgsFunction: completeProfile(inv),
	}
	cmd.RunE = profileVerb(inv, cmd, func(ctx context.Context, calls cove.Profiles, args []string) error {
		p, err := calls.Get(ctx, args[0])
		if err != nil {
			return err
		}
		before, err := profileText(p)
		if err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", "cove-profile-")
		if err != nil {
			return err
		}
		file := filepath.Join(dir, args[0]+".toml")
		if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
			return err
		}
		put, err := editProfile(ctx, inv, calls, p, file, before)
		if err != nil {
			return hinted(err, "your text is in "+file+"; store it with: cove profile put "+args[0]+" "+printable.Word(file))
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if put.Name == "" {
			inv.say("Nothing has changed.")
			return nil
		}
		return showPut(inv, put)
	})
	return cmd
}

// editProfile has a file edited, and stores it. No name in the answer: nothing has changed.
func editProfile(ctx context.Context, inv *invocation, calls cove.Profiles, p cove.Profile, file, before string) (cove.ProfilePut, error) {
	editor := strings.Fields(os.Getenv("VISUAL"))
	if len(editor) == 0 {
		editor = strings.Fields(os.Getenv("EDITOR"))
	}
	if len(editor) == 0 {
		editor = []string{"vi"}
	}
	cmd := exec.CommandContext(ctx, editor[0], append(editor[1:], file)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inv.In, inv.Out, inv.Err
	if err := cmd.Run(); err != nil {
		return cove.ProfilePut{}, fmt.Errorf("the editor %s: %w", printable.Name(editor[0]), err)
	}
	text, err := os.ReadFile(file)
	if err != nil || string(text) == before {
		return cove.ProfilePut{}, err
	}
	settings, err := parseProfile(file, text)
	if err != nil {
		return cove.ProfilePut{}, err
	}
	return calls.Put(ctx, p.Name, p.Revision, settings)
}

func newProfileApplyCommand(inv *invocation) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "apply NAME",
		Short: "Give running jobs of a profile its present network policy",
		Long: `Gives a profile's present network policy to the jobs that an older revision has made and that
have not ended. Nothing else of a job changes. If a job's sprite has other rules than the job was
given, somebody has set them: they stay, and the exit code is 1. With --force, they are replaced.`,
		Example: `  cove profile apply nightly
  cove profile apply nightly --force`,
		Args:              exactArgs("the profile's name"),
		ValidArgsFunction: completeProfile(inv),
	}
	cmd.RunE = profileVerb(inv, cmd, func(ctx context.Context, calls cove.Profiles, args []string) error {
		applied, err := calls.Apply(ctx, args[0], force)
		if err != nil {
			return err
		}
		failed := 0
		again := "cove profile apply " + args[0]
		hint := "try again: " + again
		for _, job := range applied.Jobs {
			if job.Error != "" {
				failed++
			}
			if job.Kept {
				hint = "see them: cove policy show -s " + printable.Word(job.Sprite) + "; replace them: " + again + " --force"
			}
		}
		if err := inv.show(applied, func(w io.Writer) {
			for _, job := range applied.Jobs {
				said := "has the policy now"
				if job.Error != "" {
					said = printable.Lines(job.Error)
				}
				fmt.Fprintf(w, "%s in %s: %s\n", printable.Line(job.Job), printable.Line(job.Sprite), said)
			}
			if len(applied.Jobs) == 0 {
				inv.say("All its jobs that have not ended have its current revision.")
			}
		}); err != nil {
			return err
		}
		if failed > 0 {
			return hinted(fmt.Errorf("%s of %d did not get the policy", printable.Count(failed, "job"), len(applied.Jobs)), hint)
		}
		return nil
	})
	cmd.Flags().BoolVar(&force, "force", false, "also replace rules that somebody has set since")
	return cmd
}

func newProfileRmCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Delete profiles",
		Long: `Deletes profiles. Jobs that were made with one go on. If one was the default profile, pushes that
name none then use none.`,
		Example: `  cove profile rm nightly
  cove profile rm nightly weekly`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "the profile's name is missing")
			}
			return nil
		},
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeProfile(inv),
		RunE: verb(func(ctx context.Context, args []string) error {
			c, err := inv.server.client(ctx)
			if err != nil {
				return err
			}
			return removeEach(ctx, inv, args, func(name string) error {
				calls := cove.Profiles{Client: c}
				before, _ := calls.Get(ctx, name) // if it can't be read, the deletion says why
				err := calls.Delete(ctx, name)
				if errors.Is(err, sprites.ErrNotFound) {
					return hinted(err, "see which there are: cove profile list")
				}
				if err == nil && before.Default {
					inv.say("%s was the default profile: pushes that name none now use none. Choose another: cove profile default NAME", name)
				}
				return err
			})
		}),
	}
}

// lostProfiles says of each profile what goes with it.
func lostProfiles(inv *invocation) losses {
	return func(ctx context.Context, _ *cobra.Command, args []string) (lines []string, _ error) {
		c, err := inv.server.client(ctx)
		if err != nil {
			return nil, err
		}
		for _, name := range args {
			line := "the profile " + name + "; its jobs go on"
			if p, err := (cove.Profiles{Client: c}).Get(ctx, name); err == nil && p.Default {
				line = "the profile " + name + ", the default of pushes that name none; its jobs go on"
			}
			lines = append(lines, line)
		}
		return lines, nil
	}
}

func completeProfile(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 1 && cmd.Name() == "put" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return profileNames(inv, cmd, prefix)
	}
}

// profileNames are the profiles that a prefix may become.
func profileNames(inv *invocation, cmd *cobra.Command, prefix string) ([]string, cobra.ShellCompDirective) {
	return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
		list, err := cove.Profiles{Client: c}.List(ctx)
		return candidates(list, err, prefix, func(p cove.Profile) (string, string, bool) {
			return p.Name, p.Description, profilePattern().MatchString(p.Name)
		})
	})
}
