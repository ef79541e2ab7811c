package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove"
)

// gitLimit bounds one call of git, but for those of a step with a limit of its own.
const gitLimit = 15 * time.Minute

// git runs git in a job's clone and in its submodules, with hooks off and in the
// person's name.
type git struct {
	work   string // the clone's folder
	author cove.Person
	folder folder // the job's
}

// run runs git in the clone, and returns what it printed.
func (g git) run(ctx context.Context, args ...string) (string, error) {
	return g.in(ctx, g.work, call{}, args...)
}

// call has what a git process gets besides its arguments.
type call struct {
	env   []string
	stdin string
}

// in runs git in a folder, which must be the top of a repository: git does not search the
// folders above.
func (g git) in(ctx context.Context, dir string, c call, args ...string) (string, error) {
	if ctx.Value(stepBound{}) == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, gitLimit)
		defer cancel()
	}
	config := []string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.quotePath=false"}
	cmd := exec.CommandContext(ctx, "git", append(config, args...)...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(c.stdin)
	cmd.Env = append(g.folder.environ(), "GIT_TERMINAL_PROMPT=0", "GIT_LFS_SKIP_DOWNLOAD_ERRORS=1", "LC_ALL=C", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir),
		"GIT_AUTHOR_NAME="+g.author.Name, "GIT_AUTHOR_EMAIL="+g.author.Email,
		"GIT_COMMITTER_NAME="+g.author.Name, "GIT_COMMITTER_EMAIL="+g.author.Email)
	cmd.Env = append(cmd.Env, c.env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	// If git waits for a filter of the agent, the filter is ended with git.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = drainLimit
	if err := cmd.Run(); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return "", fmt.Errorf("git %s did not end in time, and was killed", args[0])
		}
		text := strings.TrimSpace(said.String())
		if len(text) > 2000 {
			text = text[:2000] + "…"
		}
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, text)
	}
	return strings.TrimSpace(out.String()), nil
}

// each runs git in the clone several times.
func (g git) each(ctx context.Context, calls [][]string) error {
	for _, args := range calls {
		if _, err := g.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// initArgs are git's arguments to make a repository that can hold the commit. An old git has
// only the usual format, and no option for it.
func initArgs(commit string) []string {
	args := []string{"init", "-q"}
	if len(commit) == 64 {
		args = append(args, "--object-format=sha256")
	}
	return args
}

// name sets the person as the author of commits in a new repository. It writes the two
// settings itself: a call of git for each would take as long as all steps before.
func (g git) name(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, ".git", "config"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "\n[user]\n\tname = %s\n\temail = %s\n", quotedSetting(g.author.Name), quotedSetting(g.author.Email))
	return errors.Join(err, f.Close())
}

// quotedSetting is a value in the syntax of git's configuration.
func quotedSetting(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(value) + `"`
}

// cutAt makes the history in a repository end at the given commits. It must be
// so before they arrive.
func (g git) cutAt(ctx context.Context, dir string, commits []string) error {
	if len(commits) == 0 {
		return nil
	}
	gitDir, err := g.in(ctx, dir, call{}, "rev-parse", "--absolute-git-dir")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(gitDir, "shallow"), []byte(strings.Join(commits, "\n")+"\n"), 0o644)
}

// links are the entries of submodules in a commit's tree, by path.
func (g git) links(ctx context.Context, dir, commit string) (map[string]string, error) {
	out, err := g.in(ctx, dir, call{}, "ls-tree", "-r", "-z", "--full-tree", commit)
	links := map[string]string{}
	for entry := range strings.SplitSeq(out, "\x00") {
		if rest, ok := strings.CutPrefix(entry, "160000 commit "); ok {
			if id, path, ok := strings.Cut(rest, "\t"); ok {
				links[path] = id
			}
		}
	}
	return links, err
}

// present reports whether the submodule at path is still a repository of its own.
func (g git) present(path string) bool {
	_, err := os.Lstat(filepath.Join(g.work, path, ".git"))
	return err == nil
}
