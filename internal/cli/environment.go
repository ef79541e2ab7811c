package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

// environmentPattern is what an environment's id looks like.
var environmentPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{1,64}$`) })

func newEnvironmentCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "environment",
		Aliases: []string{"environments"},
		Short:   "List and destroy the sprites that were made for jobs",
		Long: `An environment is a sprite that was made for a job, on this server or at a backend. Its state is
planned, creating, policy, preparing, ready, asleep, failed, unknown, destroying or gone.

While its backend does not answer, an environment is unknown. Nothing of it changes then, and it
is as before when the backend answers. It is gone only if this server or the backend says so. If
it can't be deleted, it is destroying: the server tries again until it is gone.`,
		Example: `  cove environment list
  cove environment show 3f9c1d2e4b5a6978
  cove environment rm 3f9c1d2e4b5a6978`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEnvironmentListCommand(inv), newEnvironmentShowCommand(inv), asksFirst(inv, newEnvironmentRmCommand(inv), lostEnvironments(inv)))
	return cmd
}

func environmentStates() (names []string) {
	for _, state := range cove.EnvironmentStates() {
		names = append(names, string(state))
	}
	return names
}

func newEnvironmentListCommand(inv *invocation) *cobra.Command {
	var all, orphans bool
	var states []string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the environments",
		Long: `Lists the environments, the newest first, with the plan of their job. --all adds those that are
gone.

The server checks each environment every 30 s, and wakes none. HEALTH is healthy, asleep, unknown
(the last check failed) or degraded (three failed in a row); cove environment show says why. AGE
is the time since the environment was planned, and CHECKED the time since the last check. UPTIME
is the time since it last woke, if that is known.

--orphans lists sprites that this server made for jobs, that no environment has, and that are at
least 10 minutes old. It asks this server and each backend. Orphans are not in the other lists.`,
		Example: `  cove environment list
  cove environment list --orphans
  cove environment list --state unknown --state destroying
  cove environment list --all --json`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		if orphans {
			if all || len(states) > 0 {
				return usagef(cmd, "--orphans goes with neither --all nor --state")
			}
			return listOrphans(ctx, inv)
		}
		filter := cove.EnvironmentFilter{}
		for _, text := range states {
			state := cove.EnvironmentState(text)
			if !state.Valid() {
				return usagef(cmd, "%q is not a state of an environment; the states are %s", text, strings.Join(environmentStates(), ", "))
			}
			filter.States = append(filter.States, state)
		}
		if all && len(states) == 0 {
			filter.States = cove.EnvironmentStates()
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		list, err := cove.Environments{Client: c}.List(ctx, filter)
		if err != nil {
			return err
		}
		return inv.show(cove.EnvironmentList{Environments: list}, func(w io.Writer) {
			rows, now := [][]string{{"ID", "NAME", "JOB", "PLAN", "PROFILE", "STATE", "HEALTH", "WORK", "AGE", "UPTIME", "CHECKED"}}, time.Now()
			for _, e := range list {
				rows = append(rows, []string{e.ID, environmentName(e), e.Job, environmentTitle(e), cmp.Or(e.Profile, "-"), environmentState(e), environmentHealth(e), environmentWork(e), span(now.Sub(e.CreatedAt)), environmentUptime(e, now), environmentChecked(e, now)})
			}
			table(w, rows)
		})
	})
	cmd.Flags().BoolVar(&all, "all", false, "also those that are gone")
	cmd.Flags().BoolVar(&orphans, "orphans", false, "the sprites of this server that no environment has")
	cmd.Flags().StringArrayVar(&states, "state", nil, "only those in this state (repeatable)")
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(environmentStates(), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// environmentName is the name of an environment's sprite, with the backend if it is at one.
func environmentName(e cove.Environment) string {
	if e.Backend == "" {
		return e.Name
	}
	return e.Backend + "/" + e.Name
}

func environmentTitle(e cove.Environment) string {
	if e.Orphan {
		return "(orphan)"
	}
	return cmp.Or(e.JobTitle, "-")
}

// environmentState is an environment's state for people, with what it was or where it failed.
func environmentState(e cove.Environment) string {
	switch {
	case e.State == cove.EnvironmentUnknown && e.Was != "":
		return fmt.Sprintf("unknown (was %s)", e.Was)
	case e.State == cove.EnvironmentFailed && e.Step != "":
		return fmt.Sprintf("failed (%s)", e.Step)
	case e.State == cove.EnvironmentDestroying && e.Removal != nil && e.Removal.Tries > 0:
		return fmt.Sprintf("still deleting (%s)", printable.Count(e.Removal.Tries, "try"))
	}
	return string(e.State)
}

func environmentHealth(e cove.Environment) string { return cmp.Or(e.Health.Word, "-") }

// environmentUptime is the time since an environment last woke, if that is known.
func environmentUptime(e cove.Environment, now time.Time) string {
	if up, known := e.Uptime(now); known {
		return span(up)
	}
	return "-"
}

func environmentChecked(e cove.Environment, now time.Time) string {
	if e.Health.CheckedAt == nil {
		return "never"
	}
	return span(now.Sub(*e.Health.CheckedAt)) + " ago"
}

// environmentWork says what is in an environment that would be lost with it.
func environmentWork(e cove.Environment) string {
	switch {
	case e.Busy:
		return "running"
	case e.Work:
		return "not pulled"
	}
	return "-"
}

// findEnvironment finds an environment by its id, or else by the name of its sprite (with the
// backend before it or not) or the id of its job. One that is gone is found if no other has it.
func findEnvironment(ctx context.Context, calls cove.Environments, word string) (cove.Environment, error) {
	var missing error
	if environmentPattern().MatchString(word) {
		e, err := calls.Get(ctx, word)
		if !errors.Is(err, sprites.ErrNotFound) {
			return e, err
		}
		missing = err
	}
	all, err := calls.List(ctx, cove.EnvironmentFilter{States: cove.EnvironmentStates()})
	if err != nil {
		return cove.Environment{}, err
	}
	all = slices.DeleteFunc(all, func(e cove.Environment) bool { return e.Name != word && environmentName(e) != word && e.Job != word })
	there := slices.DeleteFunc(slices.Clone(all), func(e cove.Environment) bool { return e.State == cove.EnvironmentGone })
	if len(there) > 0 {
		all = there
	}
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0 && missing != nil:
		return cove.Environment{}, missing
	case len(all) == 0:
		return cove.Environment{}, fail.Newf("not_found", "see what there is with: cove environment list --all", "no environment has the id, the sprite or the job %q", word)
	}
	var lines []string
	for _, e := range all {
		lines = append(lines, fmt.Sprintf("cove environment show %s (%s, job %s, %s)", printable.Word(e.ID), printable.Line(environmentName(e)), printable.Line(e.Job), e.State))
	}
	return cove.Environment{}, fail.Newf("ambiguous", strings.Join(lines, "\n"), "%d environments have the sprite or the job %q", len(all), word)
}

func newEnvironmentShowCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Describe an environment",
		Long: `Describes an environment: its state and why, its job, its sprite, when it was made and last
woken, and how far its deletion is. ID may also be the name of its sprite, or the id of its job.`,
		Example: `  cove environment show 3f9c1d2e4b5a6978
  cove environment show far/job-1a2b3c4d-a3f7b2
  cove environment show 3f9c1d2e4b5a6978 --json | jq .state`,
		Args:              exactArgs("the environment's id, its sprite or its job"),
		ValidArgsFunction: completeEnvironment(inv),
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		e, err := findEnvironment(ctx, cove.Environments{Client: c}, args[0])
		if err != nil {
			return environmentError(err)
		}
		e.Hint = inv.hints.full(e.Hint)
		if e.Unknown != nil {
			e.Unknown.Hint = inv.hints.full(e.Unknown.Hint)
		}
		return inv.show(e, func(w io.Writer) { printEnvironment(w, e, time.Now()) })
	})
	return cmd
}

func printEnvironment(w io.Writer, e cove.Environment, now time.Time) {
	pairs := []string{"environment", e.ID, "state", environmentState(e) + ", for " + span(now.Sub(e.ChangedAt))}
	if u := e.Unknown; u != nil {
		pairs = append(pairs, "unknown", withHint(u.Message, u.Hint)+"; since "+u.Since.Local().Format(time.RFC3339))
	}
	if e.Error != "" {
		pairs = append(pairs, "error", withHint(e.Error, e.Hint))
	}
	if r := e.Removal; r != nil {
		pairs = append(pairs, "deletion", fmt.Sprintf("since %s (%s)", r.Since.Local().Format(time.RFC3339), r.Reason))
		if e.State == cove.EnvironmentDestroying {
			pairs = append(pairs, "next try", r.NextAt.Local().Format(time.RFC3339))
		}
	}
	profile := ""
	if e.Profile != "" {
		profile = fmt.Sprintf("%s, revision %d", e.Profile, e.ProfileRevision)
	}
	health := environmentHealth(e)
	if e.Health.Detail != "" {
		health += ": " + e.Health.Detail
	}
	job := e.Job
	if e.Orphan {
		job += " (removed)"
	}
	fields(w, append(pairs,
		"job", job,
		"plan", e.JobTitle,
		"repository", e.Repository,
		"profile", profile,
		"backend", e.Backend,
		"sprite", e.Name,
		"sprite id", e.SpriteID,
		"health", health,
		"checked", environmentChecked(e, now),
		"work", environmentWork(e),
		"created", e.CreatedAt.Local().Format(time.RFC3339),
		"age", span(now.Sub(e.CreatedAt)),
		"woken", timeText(e.WokenAt),
		"uptime", environmentUptime(e, now))...)
}

func newEnvironmentRmCommand(inv *invocation) *cobra.Command {
	var all, force, orphans bool
	cmd := &cobra.Command{
		Use:   "rm [ID...|NAME...]",
		Short: "Destroy environments",
		Long: `Destroys environments: their sprites, with all that is in them. An ID may also be the name of the
sprite, or the id of the job. If a job works in an environment, or it has work that nobody has
pulled, it is refused. With --force, the job ends, and the work is lost.

If one can't be destroyed, the others still are. If a backend does not delete one now, it stays
in the list (still deleting), and the server tries again. Then the exit code is 1.

--orphans destroys the orphans of these names, or all (see cove environment list). The server
first looks at each again. It keeps one that something needs now, or that it did not make.`,
		Example: `  cove environment rm 3f9c1d2e4b5a6978
  cove environment rm --force job-a3f7b2
  cove environment rm --all
  cove environment rm --orphans far/job-1a2b3c4d-a3f7b2`,
		Annotations:       map[string]string{"several": "yes"},
		ValidArgsFunction: completeEnvironment(inv),
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if orphans {
			if all || force {
				return usagef(cmd, "--orphans goes with neither --all nor --force: nothing needs an orphan")
			}
			return nil
		}
		if all == (len(args) > 0) {
			return usagef(cmd, "name environments by their ids, their sprites or their jobs, or give --all or --orphans")
		}
		return nil
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if orphans {
			return destroyOrphans(ctx, inv, args)
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return err
		}
		calls, ids := cove.Environments{Client: c}, []string(nil)
		for _, word := range args { // all are known before one is destroyed
			e, err := findEnvironment(ctx, calls, word)
			if err != nil {
				return environmentError(err)
			}
			ids = append(ids, e.ID)
		}
		results, err := calls.DestroyAll(ctx, cove.EnvironmentDestroy{IDs: ids, Force: force})
		if err != nil {
			return environmentError(err)
		}
		return showDestroyed(inv, results)
	})
	cmd.Flags().BoolVar(&all, "all", false, "all environments")
	cmd.Flags().BoolVar(&orphans, "orphans", false, "destroy orphans: those that are named, or all")
	cmd.Flags().BoolVar(&force, "force", false, "also one in which a job works, or whose work would be lost")
	return cmd
}

// showDestroyed shows the results of destroying environments. It returns an error if one is
// left.
func showDestroyed(inv *invocation, results []cove.EnvironmentResult) error {
	failed := 0
	for i := range results {
		if e := results[i].Error; e != nil {
			failed++
			e.Hint = inv.hints.full(e.Hint)
		}
	}
	err := inv.show(cove.EnvironmentDestroyed{Results: results}, func(w io.Writer) {
		for _, r := range results {
			said := "destroyed"
			if r.Error != nil {
				said = withHint(r.Error.Message, r.Error.Hint)
			}
			if r.Error != nil && r.Environment.State == cove.EnvironmentDestroying {
				said = "still deleting: " + said
			}
			fmt.Fprintf(w, "%s %s: %s\n", printable.Line(r.Environment.ID), printable.Line(environmentName(r.Environment)), said)
		}
		if len(results) == 0 {
			inv.say("There are no environments.")
		}
	})
	if err == nil && failed > 0 {
		err = hinted(fmt.Errorf("%s of %d not destroyed", printable.Count(failed, "environment"), len(results)), "see what is left: cove environment list")
	}
	return err
}

func environmentError(err error) error {
	if errors.Is(err, sprites.ErrNotFound) {
		return hinted(err, "see which there are: cove environment list --all")
	}
	return err
}

// lostEnvironments says of each environment what goes with it.
func lostEnvironments(inv *invocation) losses {
	return func(ctx context.Context, cmd *cobra.Command, args []string) (lines []string, _ error) {
		if f := cmd.Flags().Lookup("orphans"); f.Changed && f.Value.String() == "true" {
			return lostOrphans(ctx, inv, args)
		}
		c, err := inv.server.client(ctx)
		if err != nil {
			return nil, err
		}
		list, err := cove.Environments{Client: c}.List(ctx, cove.EnvironmentFilter{})
		if err != nil {
			return nil, err
		}
		named := map[string]bool{}
		for _, id := range args {
			named[id] = true
		}
		for _, e := range list {
			if len(args) > 0 && !named[e.ID] && !named[e.Name] && !named[environmentName(e)] && !named[e.Job] {
				continue
			}
			line := fmt.Sprintf("environment %s: sprite %s, of job %s (%s)", e.ID, environmentName(e), e.Job, environmentTitle(e))
			if e.Busy {
				line += ", which is at work"
			}
			if e.Work {
				line += ", with work that nobody has pulled"
			}
			lines = append(lines, line)
		}
		return lines, nil
	}
}

func completeEnvironment(inv *invocation) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Annotations["several"] == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeFrom(inv, cmd, func(ctx context.Context, c *cove.Client) []string {
			list, err := cove.Environments{Client: c}.List(ctx, cove.EnvironmentFilter{})
			return candidates(list, err, prefix, func(e cove.Environment) (string, string, bool) {
				return e.ID, string(e.State) + " " + environmentTitle(e), environmentPattern().MatchString(e.ID)
			})
		})
	}
}
