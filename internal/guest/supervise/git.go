package supervise

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove"
)

// gitLimit bounds one call of git.
const gitLimit = 15 * time.Minute

// collectLimit bounds the collecting of one job's work, unless its JobSpec says otherwise.
const collectLimit = 10 * time.Minute

// leftoverMessage is that of the commit of what an agent did not commit.
const leftoverMessage = "Left uncommitted by the agent"

// git runs git in the work folder with hooks off, and returns what it printed.
// Extra environment comes first in env.
func (j *job) git(ctx context.Context, env []string, args ...string) (string, error) {
	return j.gitIn(ctx, j.spec.Workdir, call{env: env}, args...)
}

// call is what besides its arguments a git process is given.
type call struct {
	env   []string
	stdin string
}

// gitIn runs git in a folder, which must be a repository's own: it does not look
// for one above.
func (j *job) gitIn(ctx context.Context, dir string, c call, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitLimit)
	defer cancel()
	config := []string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "commit.gpgSign=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.quotePath=false"}
	cmd := exec.CommandContext(ctx, "git", append(config, args...)...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(c.stdin)
	cmd.Env = append(j.folder.environ(), "GIT_TERMINAL_PROMPT=0", "GIT_LFS_SKIP_DOWNLOAD_ERRORS=1", "LC_ALL=C", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir),
		"GIT_AUTHOR_NAME="+j.spec.Author.Name, "GIT_AUTHOR_EMAIL="+j.spec.Author.Email,
		"GIT_COMMITTER_NAME="+j.spec.Author.Name, "GIT_COMMITTER_EMAIL="+j.spec.Author.Email)
	cmd.Env = append(cmd.Env, c.env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	// A filter of the agent's, which git waits for, is ended with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
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

// prepare makes the sprite and the clone ready for the agent.
func (j *job) prepare(ctx context.Context) error {
	if len(j.spec.Argv) == 0 {
		return errors.New("the job names no program")
	}
	if err := j.receive(ctx); err != nil {
		return err
	}
	if err := j.runScript(ctx); err != nil {
		return err
	}
	for _, argv := range j.spec.Setup {
		if err := j.setup(ctx, argv); err != nil {
			return err
		}
	}
	return nil
}

// receive makes the clone that the agent works in, of the bundle that was sent.
func (j *job) receive(ctx context.Context) error {
	if j.spec.Earlier != "" {
		return j.takeOver(ctx)
	}
	sum, size, err := digest(j.spec.Bundle)
	if err != nil {
		return err
	}
	if j.spec.BundleSHA256 != "" && sum != j.spec.BundleSHA256 {
		return fmt.Errorf("the bundle that arrived (%d bytes) is not the one that was sent", size)
	}
	return j.clone(ctx)
}

// setup runs a command that the agent needs before it starts.
func (j *job) setup(ctx context.Context, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = j.spec.Workdir
	cmd.Env = append(j.folder.environ(), j.spec.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	text := out.String()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", argv[0], err, text)
	}
	if text != "" {
		j.log.notice(text)
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	buf []byte
	cut bool
}

const tailSize = 4000

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if len(t.buf) > 16*tailSize {
		t.cut, t.buf = true, append(t.buf[:0], t.buf[len(t.buf)-tailSize:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	text := bytes.TrimSpace(t.buf)
	if len(text) > tailSize {
		t.cut, text = true, text[len(text)-tailSize:]
	}
	if t.cut {
		return "…" + strings.ToValidUTF8(string(text), "")
	}
	return string(text)
}

// collect bundles what the agent committed, and as a commit of its own what it
// did not. What can't be taken does not keep back the rest, and is an error at the end. A
// git that hangs is killed: half of the time is for what was not committed, a quarter for
// submodules, and the rest for the commits.
func (j *job) collect(end *cove.JobEnd) error {
	limit := cmp.Or(time.Duration(j.spec.CollectSec)*time.Second, collectLimit)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer func() {
		if ctx.Err() != nil {
			killMarked(j.folder.mark())
		}
	}()
	j.clear()
	j.missed, j.unsent = nil, nil
	head, err := j.git(ctx, nil, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return fmt.Errorf("the repository %s can't be read: %w", j.spec.Workdir, err)
	}
	count, err := j.git(ctx, nil, "rev-list", "--count", j.spec.Base+"..HEAD")
	if err != nil {
		return fmt.Errorf("the commits in %s can't be read: %w", j.spec.Workdir, err)
	}
	commits, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("count the commits: %w", err)
	}
	modules, err := j.modules()
	if err != nil {
		return err
	}
	uncommitted, done := context.WithTimeout(ctx, limit/2)
	leftover, err := j.leftover(uncommitted, "", head, modules)
	if uncommitted.Err() != nil {
		killMarked(j.folder.mark())
	}
	done()
	if err != nil {
		j.missed, leftover = append(j.missed, fmt.Errorf("uncommitted changes can't be read: %w", err)), ""
	}
	end.Commits, end.Leftover = commits, leftover
	if commits > 0 {
		end.Head = head
	}
	refs := map[string]string{}
	below, done := context.WithTimeout(ctx, limit/4)
	defer done()
	for name, commit := range map[string]string{"head": end.Head, "leftover": leftover} {
		if commit == "" {
			continue
		}
		refs[j.ref(name)] = commit
		if _, err := j.git(ctx, nil, "update-ref", j.ref(name), commit); err != nil {
			return err
		}
		if err := j.gather(below, "", commit, modules, refs); err != nil {
			j.missed = append(j.missed, fmt.Errorf("submodules can't be read: %w", err))
		}
	}
	if len(refs) == 0 {
		return errors.Join(j.missed...)
	}
	if err := j.largeFilesOut(); err != nil {
		j.log.notice("large files: " + err.Error()) // the commits come all the same
	}
	end.Bundle, err = j.bundle(ctx, modules, slices.Sorted(maps.Keys(refs)))
	if err != nil {
		err = fmt.Errorf("the commits in %s can't be bundled: %w", j.spec.Workdir, err)
	} else if end.Head != "" {
		j.remember(ctx, end.Head)
	}
	return errors.Join(append(j.missed, err)...)
}

// bundle writes the bundle with the refs, from what the job started with on.
func (j *job) bundle(ctx context.Context, modules []module, refs []string) (cove.Artifact, error) {
	out := j.bundleFile()
	args := []string{"bundle", "create", "-q", out + ".new", "^" + j.spec.Base}
	for _, m := range modules {
		args = append(args, "^"+m.Commit)
	}
	if _, err := j.git(ctx, nil, append(args, refs...)...); err != nil {
		return cove.Artifact{}, err
	}
	sum, size, err := digest(out + ".new")
	if err != nil {
		return cove.Artifact{}, err
	}
	if err := syncFile(out + ".new"); err != nil {
		return cove.Artifact{}, err
	}
	return cove.Artifact{Path: out, Size: size, SHA256: sum}, os.Rename(out+".new", out)
}

func (j *job) ref(name string) string { return "refs/cove/" + j.spec.ID + "/" + name }
func (j *job) bundleFile() string     { return j.folder.file("out.bundle") }
func (j *job) indexFile() string      { return j.folder.file("index") }

// clear removes what a supervisor that died while it collected has left: git
// takes its own locks for those of a git at work.
func (j *job) clear() {
	refs := filepath.Join(j.spec.Workdir, ".git")
	for _, name := range []string{
		j.indexFile(), j.indexFile() + ".lock",
		j.bundleFile() + ".new", j.bundleFile() + ".new.lock",
		filepath.Join(refs, j.ref("head")+".lock"), filepath.Join(refs, j.ref("leftover")+".lock"),
	} {
		_ = os.Remove(name) // not there, as a rule
	}
}

// leftover commits what is not committed in the work folder, or in the submodule
// at path, and in the submodules inside of that, through an index of its own. It
// returns the commit, or nothing if all is committed.
func (j *job) leftover(ctx context.Context, path, head string, modules []module) (string, error) {
	dir := filepath.Join(j.spec.Workdir, path)
	index := j.indexFile()
	defer os.Remove(index)
	in := call{env: []string{"GIT_INDEX_FILE=" + index}}
	var inside []string
	for _, m := range directly(modules, path) {
		commit, err := j.leftoverIn(ctx, m, modules)
		if err != nil {
			j.missed = append(j.missed, fmt.Errorf("in the submodule %s: %w", m.Path, err))
		}
		if commit != "" {
			inside = append(inside, "160000,"+commit+","+m.below(path))
		}
	}
	if _, err := j.gitIn(ctx, dir, in, "read-tree", head); err != nil {
		return "", err
	}
	if err := j.addAll(ctx, dir, in); err != nil {
		return "", err
	}
	for _, entry := range inside {
		if _, err := j.gitIn(ctx, dir, in, "update-index", "--cacheinfo", entry); err != nil {
			return "", err
		}
	}
	tree, err := j.gitIn(ctx, dir, in, "write-tree")
	if err != nil {
		return "", err
	}
	committed, err := j.gitIn(ctx, dir, call{}, "rev-parse", head+"^{tree}")
	if err != nil || tree == committed {
		return "", err
	}
	return j.gitIn(ctx, dir, call{}, "commit-tree", "-p", head, "-m", leftoverMessage, tree)
}

// addAll takes all that is not ignored into an index. What git can't take, such as a
// repository that has no commit, is noted and left out.
func (j *job) addAll(ctx context.Context, dir string, in call) error {
	_, err := j.gitIn(ctx, dir, in, "add", "--all")
	if err == nil {
		return nil
	}
	_, err = j.gitIn(ctx, dir, in, "add", "--all", "--ignore-errors")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		return err // nil, or nothing was written
	}
	j.missed = append(j.missed, err)
	return nil
}

// digest returns the SHA-256 and the size of a file.
func digest(name string) (sum string, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return hex.EncodeToString(h.Sum(nil)), size, err
}

func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
