package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/filesync"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/riskypath"
	"github.com/cove-dev/cove/sprites"
)

// syncFlags are those of cove sync push and pull.
type syncFlags struct {
	exclude  []string
	noIgnore bool
	dryRun   bool
	policy   string
	delete   bool
	reset    bool
	watch    bool
	maxSize  string
	accept   bool

	preset []string // what the settings leave out
	fixed  []string // files of settings with such rules; a sprite must not change them unseen
}

// settle takes the settings in.
func (f *syncFlags) settle(ctx context.Context) error {
	s, _, err := loadSettings(ctx)
	if err != nil {
		return err
	}
	f.preset = s.Value(config.SyncExclude).List
	if name := s.Limits(); name != "" {
		f.fixed = []string{name}
	}
	return nil
}

const syncWhere = `SRC defaults to the current folder, and DST to the folder of SRC's name: in the sprite in its
user's home, here in the current folder. Relative paths of the sprite are below that home.
`

// syncTopic is the topic about what is synced.
const syncTopic = `Only changes since the last sync travel. If the source has deleted a path, cove deletes it at the
target. A path that both sides have changed is a conflict: then cove changes nothing (exit code
3), unless --on-conflict says which side wins:

  ours     this machine's
  theirs   the sprite's
  both     the version at the target stays, and the source's is put beside it as NAME` + `.cove-theirs

If cove sync pull finds a text that both sides have changed, it merges the text by lines with
the version of the last sync. It is a conflict only if that is not possible.

cove leaves out links that lead out of the folder, devices and pipes, and the result says so. .git
never travels. In a git repository, cove leaves files alone that git ignores. A .coveignore file,
in any folder, and --exclude use the same syntax and come before .gitignore; "!" takes a pattern
back. The setting sync.exclude has more patterns, such as ["node_modules"] (cove help settings).

A sprite is not trusted. cove sync pull ends (exit code 5) if it gets data that no honest side
sends. It changes nothing, and ends (exit code 4), if a folder would be a repository to git (HEAD,
objects and refs). A change of .gitignore or .coveignore that may let ignored files through stays
in the sprite. Look at these, and take them with --accept-risky.

cove keeps replaced and deleted files for cove sync undo (those of the last ten syncs). A sync is
applied as a whole or not at all. If it is interrupted, this folder is as it was, and the next sync
does not send again what had come.`

func newSyncCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Bring a folder here and one in a sprite into step",
		Long: `Brings a folder of this machine and one in a sprite into step, one way at a time.

` + syncWhere + `
Only changes since the last sync travel, deletions among them. A path that both sides have
changed is a conflict: cove then changes nothing, unless --on-conflict says which side wins.
cove sync undo takes a sync back. More: cove help sync-rules.`,
		Example: `  cove sync push                  the current folder into the sprite
  cove sync pull --dry-run        what would come back
  cove sync pull
  cove sync undo`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSyncVerbCommand(inv, filesync.Push), newSyncVerbCommand(inv, filesync.Pull), newSyncUndoCommand(inv), newSyncStatusCommand(inv))
	return cmd
}

func newSyncVerbCommand(inv *invocation, verbName filesync.Verb) *cobra.Command {
	f := &syncFlags{}
	cmd := &cobra.Command{
		Use:   string(verbName) + " [SRC [DST]]",
		Short: "Send what has changed here into a sprite",
		Long: "Sends what has changed in a folder of this machine into a sprite.\n\n" + syncWhere + `
The first sync needs a target that is empty or missing. --reset makes any target what the source
is. More: cove help sync-rules.`,
		Example: `  cove sync push -s paint
  cove sync push site /srv/www --exclude /drafts --exclude '*.psd'
  cove sync push --on-conflict ours
  cove sync push --watch`,
		Args: maxArgs(2),
		RunE: verb(func(ctx context.Context, args []string) error { return runSync(ctx, inv, verbName, f, args) }),
	}
	if verbName == filesync.Pull {
		cmd.Short = "Bring what has changed in a sprite here"
		cmd.Long = "Brings what has changed in a folder of a sprite to this machine.\n\n" + syncWhere + `
A text that both sides have changed is merged by lines, if that is possible. Files that could run
code here come with the others, and the report names them. More: cove help sync-rules.`
		cmd.Example = `  cove sync pull -s paint
  cove sync pull /srv/www site
  cove sync pull --on-conflict both`
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.exclude, "exclude", nil, "leave out what matches, in the syntax of .gitignore: /build is the one at the top (repeatable)")
	flags.BoolVar(&f.noIgnore, "no-ignore", false, ".gitignore, .coveignore and sync.exclude do not count")
	flags.BoolVarP(&f.dryRun, "dry-run", "n", false, "only say what would be done")
	flags.StringVar(&f.policy, "on-conflict", string(filesync.Fail), "fail, ours, theirs, or both")
	flags.BoolVar(&f.delete, "delete", true, "delete at the target what was deleted at the source")
	flags.BoolVar(&f.reset, "reset", false, "make the target what the source is, whatever it was")
	flags.BoolVar(&f.watch, "watch", false, "keep both in step until interrupted")
	flags.StringVar(&f.maxSize, "max-size", "", "refuse to move more than this in one sync, such as 20G")
	if verbName == filesync.Pull {
		flags.BoolVar(&f.accept, "accept-risky", false, "also take folders that git would take for repositories, and ignore files that let ignored files through")
	}
	must(cmd.RegisterFlagCompletionFunc("on-conflict", cobra.FixedCompletions(conflictChoices, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// maxArgs is a cobra argument check for at most n.
func maxArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef(cmd, "%q is one argument too many", args[n])
		}
		return nil
	}
}

// syncPaths is which folders are meant: that of this machine, and the sprite's.
func syncPaths(verbName filesync.Verb, args []string) (local, remote string, err error) {
	cwd, err := os.Getwd()
	if err != nil {
		return "", "", err
	}
	local, remote = cwd, filepath.Base(cwd)
	if verbName == filesync.Push {
		if len(args) > 0 {
			local = filepath.Join(cwd, args[0])
			if filepath.IsAbs(args[0]) {
				local = filepath.Clean(args[0])
			}
			remote = filepath.Base(local)
		}
		if len(args) > 1 {
			remote = args[1]
		}
	} else {
		if len(args) > 0 {
			remote = args[0]
			local = filepath.Join(cwd, path.Base(path.Clean(remote)))
		}
		if len(args) > 1 {
			if local = args[1]; !filepath.IsAbs(local) {
				local = filepath.Join(cwd, local)
			}
		}
	}
	remote = path.Clean(remote)
	if remote == "/" || local == "/" {
		return "", "", fail.New("usage", "/ can't be synced: it has entries that are not files, and parts of the system", "name a folder")
	}
	return filepath.Clean(local), remote, nil
}

// openSync prepares a sync of two folders.
func openSync(ctx context.Context, inv *invocation, verbName filesync.Verb, f *syncFlags, args []string) (*filesync.Sync, *sprites.Sprite, error) {
	local, remote, err := syncPaths(verbName, args)
	if err != nil {
		return nil, nil, err
	}
	if err := f.settle(ctx); err != nil {
		return nil, nil, err
	}
	inv.hints.syncs = syncHint{local: local, remote: remote, exclude: f.exclude, noIgnore: f.noIgnore}
	policy, err := syncPolicy(f.policy)
	if err != nil {
		return nil, nil, err
	}
	var limit int64
	if f.maxSize != "" {
		if limit, err = ParseSize(f.maxSize); err != nil {
			return nil, nil, usagef(nil, "--max-size: %v", err)
		}
	}
	sprite, err := inv.spriteHandle(ctx)
	if err != nil {
		return nil, nil, err
	}
	y := &filesync.Sync{
		Verb: verbName, Local: local, Remote: remote,
		Policy: policy, Reset: f.reset, NoDelete: !f.delete, DryRun: f.dryRun, MaxBytes: limit,
		Merge: gitwork.MergeFile, AcceptRisky: f.accept, FixedFiles: f.fixed,
	}
	if verbName == filesync.Pull {
		y.Risky = riskyIn(ctx, local)
	}
	was := inv.server.process()
	err = prepareSync(ctx, y, sprite, f)
	if cutOff(err) {
		if next := nextServer(ctx, inv, was, sprite); next != nil {
			sprite, err = next, prepareSync(ctx, y, next, f)
		}
	}
	if cutOff(err) {
		err = lostSync(ctx, inv, err)
	}
	return y, sprite, err
}

// cutOff reports whether a call or a sync failed because the connection to the server was lost.
func cutOff(err error) bool {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e.Code == filesync.CodeLost
	}
	return serverAway(err) || brokeOff(err) || errors.Is(err, sprites.ErrNoExit) && !sandboxGone(err)
}

// nextServer is the sprite at the server that has taken the place of the one with the process
// id was. It starts a killed server again. It is nil if there is no other server.
func nextServer(ctx context.Context, inv *invocation, was int, sprite *sprites.Sprite) *sprites.Sprite {
	if was == 0 || ctx.Err() != nil {
		return nil
	}
	c, err := inv.server.clientAgain(ctx)
	if err != nil || inv.server.process() == was {
		return nil
	}
	return c.Sprite(sprite.Name())
}

// lostSync is the error of a sync whose server went away and did not come back.
func lostSync(ctx context.Context, inv *invocation, err error) error {
	hint := "sync again; what had come is kept"
	if c, e := inv.server.runningClient(ctx); e == nil {
		if _, e = c.Version(ctx); e == nil { // it is the connection, or the sprite
			return err
		}
	}
	return fail.Wrap("connection_lost", fmt.Errorf("the server went away in the middle of the sync: %w", err), "start the server again, if it is this machine's: cove server start\n"+hint)
}

// syncTries bounds how often one command begins its sync anew.
const syncTries = 10

// syncToEnd is syncOnce that begins anew if this machine's server was killed meanwhile. A
// sync takes up the content that had come. It does nothing if the last one was applied.
func syncToEnd(ctx context.Context, inv *invocation, y *filesync.Sync, sprite *sprites.Sprite, f *syncFlags) (*filesync.Report, error) {
	for try := 1; ; try++ {
		was := inv.server.process()
		var report *filesync.Report
		var err error
		if try > 1 { // else the caller has
			err = prepareSync(ctx, y, sprite, f)
		}
		if err == nil {
			report, err = syncOnce(ctx, inv, y, sprite)
		}
		if !cutOff(err) || ctx.Err() != nil {
			return report, err
		}
		next := nextServer(ctx, inv, was, sprite)
		if next == nil || try == syncTries {
			return report, lostSync(ctx, inv, err)
		}
		sprite = next
	}
}

// riskyIn judges the paths of a folder by their names. If the folder is in a repository, it
// also judges whether the person's git, shell or environment runs them. It only decides on
// names in a report: if the repository can't be read, it goes by the names alone.
func riskyIn(ctx context.Context, local string) func(name string) string {
	repo, err := gitwork.Open(ctx, local)
	if err != nil {
		return riskypath.Path
	}
	_, head, err := repo.Head(ctx)
	if err != nil || head == "" {
		return riskypath.Path
	}
	inside, err := repo.Inside(ctx, head)
	if err != nil {
		return riskypath.Path
	}
	if real, err := filepath.EvalSymlinks(local); err == nil {
		local = real
	}
	below, err := filepath.Rel(repo.Dir, local)
	if err != nil || !filepath.IsLocal(below) {
		return riskypath.Path
	}
	return func(name string) string {
		return cmp.Or(riskypath.Path(name), inside(path.Join(filepath.ToSlash(below), name)))
	}
}

// conflictChoices are those of --on-conflict.
var conflictChoices = []string{string(filesync.Fail), string(filesync.Ours), string(filesync.Theirs), string(filesync.Both)}

func syncPolicy(choice string) (filesync.Policy, error) {
	if !slices.Contains(conflictChoices, choice) {
		return "", hinted(usagef(nil, "--on-conflict is fail, ours, theirs or both, not %q", choice), "see what each does: cove help sync-rules")
	}
	return filesync.Policy(choice), nil
}

// prepareSync asks git, and the sprite, at once.
func prepareSync(ctx context.Context, y *filesync.Sync, sprite *sprites.Sprite, f *syncFlags) error {
	var wg sync.WaitGroup
	var errs [3]error
	wg.Go(func() { y.Rules, y.RuleFiles, errs[0] = syncRules(ctx, y.Local, f) })
	wg.Go(func() {
		var info sprites.Info
		if info, errs[1] = sprite.Client().Get(ctx, sprite.Name()); errs[1] == nil {
			y.Pair = cmp.Or(info.ID, sprite.Client().URL+" "+sprite.Name()) // not the server's address, which may change
		}
	})
	y.Connect, errs[2] = filesync.Dialer(ctx, sprite)
	wg.Wait()
	return cmp.Or(errs[0], errs[1], errs[2])
}

// syncRules are the rules for files that are not copied. In a git repository, git's ignored files
// are not. The second result lists the files with such rules, besides the .gitignore and .coveignore
// files in the folder. They are the same with --no-ignore: the next sync may be without it.
func syncRules(ctx context.Context, local string, f *syncFlags) (rules filesync.Rules, files []string, err error) {
	rules = filesync.Rules{Exclude: f.exclude, Cove: !f.noIgnore}
	if !f.noIgnore {
		rules.Exclude = slices.Concat(f.preset, f.exclude)
	}
	if _, err := os.Stat(local); errors.Is(err, fs.ErrNotExist) {
		return rules, nil, nil
	}
	repo, err := gitwork.Open(ctx, local)
	if errors.Is(err, gitwork.ErrNotRepository) || errors.Is(err, gitwork.ErrNoGit) || err == nil && repo.Bare {
		return rules, nil, nil
	}
	var ignored gitwork.Ignored
	if err == nil {
		ignored, err = repo.Ignored(ctx, local)
	}
	if err != nil && f.noIgnore {
		return rules, nil, nil
	}
	if err != nil {
		return rules, nil, err
	}
	for _, file := range ignored.Files {
		files = append(files, file.Name)
	}
	if f.noIgnore {
		return rules, files, nil
	}
	rules.Read, rules.Tracked = true, ignored.Tracked
	for _, file := range ignored.Files {
		rules.Git = append(rules.Git, filesync.Patterns{Dir: []byte(file.Dir), Text: []byte(file.Text)})
	}
	return rules, files, nil
}

func runSync(ctx context.Context, inv *invocation, verbName filesync.Verb, f *syncFlags, args []string) error {
	if f.watch && f.dryRun {
		return usagef(nil, "--watch does not go with --dry-run")
	}
	y, sprite, err := openSync(ctx, inv, verbName, f, args)
	if err != nil {
		return err
	}
	if verbName == filesync.Push && !f.dryRun {
		if err := warnCredentials(ctx, inv, y.Local, y.Rules); err != nil {
			return err
		}
	}
	if f.watch {
		return watchSync(ctx, inv, y, sprite, f.policy)
	}
	report, err := syncToEnd(ctx, inv, y, sprite, f)
	err = riskySync(err, y, sprite.Name())
	if report == nil {
		return err
	}
	var unmarked error
	if err == nil && verbName == filesync.Pull {
		unmarked = tellCopied(ctx, inv, sprite.Name(), report)
	}
	if err != nil && len(report.Conflicts) > 0 && inv.global.json {
		inv.printJSON(report)
		return reportedError{exitConflict}
	}
	if err == nil && inv.global.json {
		inv.printJSON(report)
		return unmarked
	}
	showSync(inv, sprite.Name(), report, err == nil)
	return errors.Join(err, unmarked)
}

// tellCopied tells the server that all files of a job are here, if its work can't be pulled in
// another way. The job then counts as pulled, as it does once cove pull has brought its
// commits.
func tellCopied(ctx context.Context, inv *invocation, sprite string, r *filesync.Report) error {
	if r.DryRun || r.Held.Count > 0 || len(r.Conflicts) > 0 {
		return nil
	}
	c, err := inv.server.client(ctx)
	if err != nil {
		return err
	}
	return markCopied(ctx, c, sprite, r.Remote)
}

// markCopied marks jobs of a sprite as pulled if their folder was copied, and there is no
// other way to pull them.
func markCopied(ctx context.Context, c *cove.Client, sprite, folder string) error {
	list, err := cove.ListJobs(ctx, c, cove.JobQuery{Sprite: sprite})
	if err != nil {
		return nil //nolint:nilerr // a token may reach a sprite, and no jobs: the files are here all the same
	}
	for _, job := range list.Jobs {
		if !job.CopiesOnly() || !job.State.Terminal() || job.PulledAt != nil || job.Bundle.Size == 0 || path.Clean(job.Workdir) != folder {
			continue
		}
		if _, err := c.MarkPulled(ctx, job.ID, cmp.Or(job.Head, job.Base)); err != nil {
			return fmt.Errorf("the files are here, but the server was not told that those of job %s are (pull again to do so): %w", job.ID, err)
		}
	}
	return nil
}

// riskySync gives an error about folders that git would take for repositories the commands
// that go on from there.
func riskySync(err error, y *filesync.Sync, sprite string) error {
	e, ok := errors.AsType[*fail.Error](err)
	if !ok || e.Code != filesync.CodeRisky {
		return err
	}
	again := fmt.Sprintf("cove sync pull -s %s %s %s", printable.Word(sprite), printable.Word(y.Remote), printable.Word(y.Local))
	without := again
	for _, dir := range e.Paths {
		if dir == "." || printable.Line(dir) != dir {
			without = ""
			break
		}
		without += " --exclude " + printable.Word(excludePattern(dir))
	}
	look := path.Join(y.Remote, e.Paths[0])
	if printable.Line(look) != look {
		look = y.Remote
	}
	hint := fmt.Sprintf("look at it: cove exec -s %s -- ls -lR %s", printable.Word(sprite), printable.Word(look))
	if without != "" {
		hint += "\nleave it out: " + without
	}
	hinted := *e
	hinted.Hint = hint + "\nor take it: " + again + " --accept-risky"
	return &hinted
}

// excludePattern is the pattern of gitignore's syntax for one folder below the root.
func excludePattern(dir string) string {
	escaped := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir)
	if trimmed := strings.TrimRight(escaped, " "); trimmed != escaped {
		escaped = trimmed + strings.Repeat(`\ `, len(escaped)-len(trimmed))
	}
	return "/" + escaped + "/"
}

// syncOnce syncs, with progress.
func syncOnce(ctx context.Context, inv *invocation, y *filesync.Sync, sprite *sprites.Sprite) (*filesync.Report, error) {
	direction := "to "
	if y.Verb == filesync.Pull {
		direction = "from "
	}
	p := inv.newProgress(direction+sprite.Name(), 0)
	y.Progress = func(done, total int64) { p.set(done, total, false) }
	report, err := y.Run(ctx)
	p.Close()
	return report, err
}

// showSync tells people what was done, or would be.
func showSync(inv *invocation, sprite string, r *filesync.Report, done bool) {
	showConflicts(inv, sprite, r)
	if !done {
		return
	}
	if r.DryRun || inv.global.verbose {
		listNames(inv, "+", r.Added)
		listNames(inv, "~", r.Modified)
		listNames(inv, "m", r.Merged)
		listNames(inv, "-", r.Deleted)
	}
	from, to := r.Local, sprite+":"+r.Remote
	if r.Verb == filesync.Pull {
		from, to = to, from
	}
	what := fmt.Sprintf("%d added, %d modified, %d deleted", r.Added.Count, r.Modified.Count, r.Deleted.Count)
	if r.Merged.Count > 0 {
		what += fmt.Sprintf(", %d merged", r.Merged.Count)
	}
	switch {
	case r.Changes() == 0 && r.Held.Count > 0:
		inv.say("%s and %s are in step, except for what is held%s", printable.Line(from), printable.Line(to), leftText(r))
	case r.Changes() == 0:
		inv.say("%s and %s are in step%s", printable.Line(from), printable.Line(to), leftText(r))
	case r.DryRun:
		inv.say("%s to %s would be: %s (%s)%s", printable.Line(from), printable.Line(to), what, printable.Bytes(r.Bytes), leftText(r))
	default:
		inv.say("%s to %s: %s (%s in %s)%s", printable.Line(from), printable.Line(to), what, printable.Bytes(r.Bytes), span(time.Duration(r.Seconds*float64(time.Second))), leftText(r))
		inv.detail("take it back: cove sync undo --id %s", r.Backup)
	}
	showSkipped(inv, r)
	showUnignored(inv, r)
	showHeld(inv, sprite, r)
	if len(r.Risky) > 0 {
		inv.say("Look at these before you run anything here:")
	}
	for _, risk := range r.Risky[:min(len(r.Risky), maxShownFiles)] {
		inv.say("  ! %s: %s", printable.Line(risk.Path), risk.Why)
	}
	if more := len(r.Risky) - maxShownFiles; more > 0 {
		inv.say("  and %s more; all of them: --json", printable.Count(more, "file"))
	}
}

// showUnignored names the files that a push sends, or would send, though it left them out before.
func showUnignored(inv *invocation, r *filesync.Report) {
	n := int(r.Unignored.Count)
	if n == 0 {
		return
	}
	var names []string
	for _, name := range r.Unignored.Paths[:min(len(r.Unignored.Paths), maxShownFiles)] {
		names = append(names, printable.Name(name))
	}
	if more := n - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	were, are := "were", "are sent now"
	if n == 1 {
		were, are = "was", "is sent now"
	}
	if r.DryRun {
		are = "would be sent"
	}
	inv.warn("%s that %s ignored %s: %s", printable.Count(n, "file"), were, are, strings.Join(names, ", "))
}

// showHeld names what a pull left in the sprite, for the person to decide.
func showHeld(inv *invocation, sprite string, r *filesync.Report) {
	if r.Held.Count == 0 {
		return
	}
	inv.say("Held for your review, and left in %s:", sprite)
	shown := r.Held.Paths[:min(len(r.Held.Paths), maxShownFiles)]
	for _, risk := range shown {
		inv.say("  ! %s: %s", printable.Line(risk.Path), risk.Why)
	}
	if more := int(r.Held.Count) - len(shown); more > 0 {
		inv.say("  and %s more; all of them: --json", printable.Count(more, "file"))
	}
	inv.say("  look at it, and take it: cove sync pull -s %s %s %s --accept-risky", printable.Word(sprite), printable.Word(r.Remote), printable.Word(r.Local))
}

// showConflicts names the paths that both sides have changed; r may be nil.
func showConflicts(inv *invocation, sprite string, r *filesync.Report) {
	if r == nil {
		return
	}
	for _, c := range r.Conflicts {
		fmt.Fprintf(harmless{inv.Err}, "conflict: %s (%s here, %s in %s)\n", printable.Line(c.Path), c.Local, c.Remote, sprite)
	}
	if r.More > 0 {
		fmt.Fprintf(harmless{inv.Err}, "and %d more\n", r.More)
	}
}

// leftText tells of changes and deletions at the target, which were not overwritten. It tells
// deletions separately: to sync the other way would delete the files at the source, too. Files
// also look deleted if the sprite was restored to a checkpoint from before the last sync.
func leftText(r *filesync.Report) string {
	in, bring, again := "in the sprite", "bring them here: cove sync pull", "see what sends them again: cove sync push --reset --dry-run; delete them here, too: cove sync pull"
	if r.Verb == filesync.Pull {
		in, bring, again = "here", "send them: cove sync push", "see what brings them again: cove sync pull --reset --dry-run; delete them in the sprite, too: cove sync push"
	}
	text := ""
	if n := r.Newer.Count; n > 0 {
		text += fmt.Sprintf("\n  %d changed only %s; %s", n, in, bring)
	}
	if n := r.Missing.Count; n > 0 {
		text += fmt.Sprintf("\n  %d deleted only %s; %s", n, in, again)
	}
	return text
}

func listNames(inv *invocation, mark string, n filesync.Names) {
	for _, name := range n.Paths {
		fmt.Fprintln(inv.text(), mark, printable.Line(name))
	}
	if more := n.Count - int64(len(n.Paths)); more > 0 {
		fmt.Fprintf(inv.text(), "%s and %d more\n", mark, more)
	}
}

// showSkipped names the biggest files that were left out: the person should know that they
// are missing. It does not name small files that a rule leaves out.
func showSkipped(inv *invocation, r *filesync.Report) {
	for _, k := range r.Skipped {
		var names []string
		for _, n := range k.Biggest {
			names = append(names, fmt.Sprintf("%s (%s)", n.Path, printable.Bytes(n.Size)))
		}
		for _, n := range k.Folders {
			names = append(names, n+"/")
		}
		text := fmt.Sprintf("left out, %s: %d", k.Reason, k.Count)
		if len(names) > 0 {
			text += ": " + strings.Join(names[:min(len(names), 5)], ", ")
		}
		if r.DryRun || k.Bytes >= 1<<20 || !k.Ruled() || inv.global.verbose {
			inv.say("  %s", printable.Line(text))
			if k.Reason == "ignored" {
				inv.say("  hint: a line !NAME in .coveignore takes it along")
			}
		}
	}
}

func newSyncUndoCommand(inv *invocation) *cobra.Command {
	id := ""
	cmd := &cobra.Command{
		Use:   "undo [LOCAL [REMOTE]]",
		Short: "Undo the last sync",
		Long: `Undoes the last sync of two folders, or the one that --id names. It brings back all files that
the sync replaced or deleted, here or in the sprite. If such a file was changed since, nothing is
undone (exit code 3). An undo counts as the last sync, so a second cove sync undo takes the first
one back. To go further back, name a sync by --id.

LOCAL defaults to the current folder, REMOTE to the one of its name in the sprite.`,
		Example: `  cove sync undo
  cove sync undo site /srv/www --id 20260102T150405.000-ABCD`,
		Args: maxArgs(2),
		RunE: verb(func(ctx context.Context, args []string) error {
			y, sprite, err := openSync(ctx, inv, filesync.Push, &syncFlags{policy: string(filesync.Fail)}, args)
			if err != nil {
				return err
			}
			u, err := y.Undo(ctx, id)
			if err != nil {
				return err
			}
			if inv.global.json {
				inv.printJSON(u)
				return nil
			}
			where := u.Root
			if u.At == "remote" {
				where = sprite.Name() + ":" + u.Root
			}
			inv.say("Sync %s is undone: %s in %s. Take that back: cove sync undo", u.Undid, printable.Count(int(u.Changes), "change"), printable.Line(where))
			return nil
		}),
	}
	cmd.Flags().StringVar(&id, "id", "", "which sync (see cove sync status)")
	return cmd
}

// syncStatus is what cove sync status prints for programs.
type syncStatus struct {
	Push    *filesync.Report  `json:"push"` // what a push would do
	Pull    *filesync.Report  `json:"pull"` // what a pull would
	Backups map[string][]back `json:"backups"`
}

type back = filesync.Backup

func newSyncStatusCommand(inv *invocation) *cobra.Command {
	f := &syncFlags{policy: string(filesync.Fail), delete: true, dryRun: true}
	cmd := &cobra.Command{
		Use:   "status [LOCAL [REMOTE]]",
		Short: "Show what a sync would do, and what can be undone",
		Long: `Compares two folders. It shows what a push would send, what a pull would bring, and what is in
conflict. It also lists the syncs that can be undone.

LOCAL defaults to the current folder, REMOTE to the one of its name in the sprite.`,
		Example: `  cove sync status
  cove sync status site /srv/www --json`,
		Args: maxArgs(2),
		RunE: verb(func(ctx context.Context, args []string) error { return runSyncStatus(ctx, inv, f, args) }),
	}
	cmd.Flags().StringArrayVar(&f.exclude, "exclude", nil, "leave out what matches, as in push and pull")
	cmd.Flags().BoolVar(&f.noIgnore, "no-ignore", false, ".gitignore, .coveignore and sync.exclude do not count")
	return cmd
}

func runSyncStatus(ctx context.Context, inv *invocation, f *syncFlags, args []string) error {
	y, sprite, err := openSync(ctx, inv, filesync.Push, f, args)
	if err != nil {
		return err
	}
	st := syncStatus{Backups: map[string][]back{}}
	reports := []**filesync.Report{&st.Push, &st.Pull}
	for i, way := range []filesync.Verb{filesync.Push, filesync.Pull} {
		y.Verb = way
		report, err := y.Run(ctx)
		var e *fail.Error
		if errors.As(err, &e) && (e.Code == filesync.CodeConflict || e.Code == filesync.CodeNotFound || e.Code == filesync.CodeRisky) {
			err = nil
		}
		if err != nil {
			return err
		}
		*reports[i] = report
	}
	local, remote, err := y.Backups(ctx)
	if err != nil {
		return err
	}
	st.Backups["local"], st.Backups["remote"] = local, remote
	if inv.global.json {
		inv.printJSON(st)
		return nil
	}
	for i, r := range []*filesync.Report{st.Push, st.Pull} {
		way := []string{"push", "pull"}[i]
		if r == nil {
			fmt.Fprintf(inv.text(), "%s: there is no folder to %s\n", way, way)
			continue
		}
		held := ""
		if r.Held.Count > 0 {
			held = fmt.Sprintf(", %d held", r.Held.Count)
		}
		fmt.Fprintf(inv.text(), "%s: %d to add, %d to modify, %d to delete, %s%s\n", way, r.Added.Count, r.Modified.Count, r.Deleted.Count, printable.Count(len(r.Conflicts)+int(r.More), "conflict"), held)
	}
	for _, side := range []string{"local", "remote"} {
		where := y.Local
		if side == "remote" {
			where = sprite.Name() + ":" + y.Remote
		}
		for _, b := range st.Backups[side] {
			fmt.Fprintf(inv.text(), "%s  %-6s %s in %s, %s kept\n", b.ID, printable.Line(b.Verb), printable.Count(int(b.Changes), "change"), printable.Line(where), printable.Bytes(b.Bytes))
		}
	}
	return nil
}
