package gitwork

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/children"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// Bounds of a git process.
const (
	quickly    = 2 * time.Minute  // for calls that only read
	patiently  = 30 * time.Minute // for calls that move a repository's content
	maxOutput  = 64 << 20         // bytes of standard output that are kept
	maxStderr  = 16 << 10
	killedWait = 20 * time.Second // for the pipes, after the process has ended
	sameSignal = 10 * time.Second // for this process to see the signal that ended git
)

// setting is one value of git's configuration.
type setting struct{ key, value string }

// safeSettings override every configuration file of the repository.
var safeSettings = []setting{
	{"core.hooksPath", os.DevNull},
	{"core.fsmonitor", "false"},
	{"core.sshCommand", "false"},
	{"core.askPass", "false"},
	{"core.editor", "false"},
	{"core.pager", "cat"},
	{"core.alternateRefsCommand", "false"},
	{"protocol.allow", "never"},
	{"protocol.file.allow", "never"},
	{"protocol.ext.allow", "never"},
	{"credential.helper", ""},
	{"gc.auto", "0"},
	{"maintenance.auto", "false"},
	{"submodule.recurse", "false"},
	{"fetch.recurseSubmodules", "false"},
	{"commit.gpgSign", "false"},
	{"log.showSignature", "false"},
	{"log.mailmap", "false"},
	{"core.quotePath", "false"},
	{"advice.graftFileDeprecated", "false"}, // environ names a graft file, and the advice would begin each error
}

// runner starts git processes, always by argv, on one repository. It is a value:
// in returns changed copies.
type runner struct {
	exe      string
	dir      string
	gitDir   string // empty: git looks for it from dir
	workTree string // empty: none
	settings []setting
}

// environ is the whole environment of a git process. It has nothing of the caller's
// except where programs and temporary files are.
func (g runner) environ(extra []string) []string {
	env := []string{
		"LC_ALL=C",
		"HOME=/nonexistent",
		"XDG_CONFIG_HOME=/nonexistent",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + os.DevNull,
		"GIT_CONFIG_SYSTEM=" + os.DevNull,
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_GRAFT_FILE=" + os.DevNull,
		"GIT_NO_LAZY_FETCH=1",
		"GIT_ASKPASS=false",
		"SSH_ASKPASS=false",
		"GIT_PAGER=cat",
	}
	for _, name := range []string{"PATH", "TMPDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	if g.gitDir != "" {
		env = append(env, "GIT_DIR="+g.gitDir)
	}
	if g.workTree != "" {
		env = append(env, "GIT_WORK_TREE="+g.workTree)
	}
	all := append(append([]setting(nil), g.settings...), safeSettings...)
	env = append(env, "GIT_CONFIG_COUNT="+strconv.Itoa(len(all)))
	for i, s := range all {
		n := strconv.Itoa(i)
		env = append(env, "GIT_CONFIG_KEY_"+n+"="+s.key, "GIT_CONFIG_VALUE_"+n+"="+s.value)
	}
	return append(env, extra...)
}

// call is one git process.
type call struct {
	args    []string
	stdin   io.Reader     // nil: empty
	stdout  io.Writer     // nil: kept, up to maxOutput, and returned
	env     []string      // besides the runner's
	files   []*os.File    // inherited, from descriptor 3 on
	timeout time.Duration // 0: quickly
	shown   bool          // stdout leads to a person, who reads as slowly as they like: nothing is cut off, and there is no timeout

	progress func(stage string, done, total int64) // gets the progress of pack-objects; nil: nobody does
	plain    bool                                  // the caller's own environment, only without GIT_*: to read configuration
}

// gitError is a git process that ended with another code than 0.
type gitError struct {
	verb   string
	code   int
	stderr string
}

func (e *gitError) Error() string {
	if e.stderr == "" {
		return fmt.Sprintf("git %s: exit code %d", e.verb, e.code)
	}
	return fmt.Sprintf("git %s: %s", e.verb, e.stderr)
}

// Unwrap makes a full disk findable.
func (e *gitError) Unwrap() error {
	if strings.Contains(e.stderr, "No space left on device") {
		return syscall.ENOSPC
	}
	return nil
}

// exitCode is the code that a git process ended with, or -1 if err is not that.
func exitCode(err error) int {
	if e, ok := errors.AsType[*gitError](err); ok {
		return e.code
	}
	return -1
}

var errTooMuch = errors.New("more output than allowed")

// bounded keeps the first max bytes; with fail set, more is an error.
type bounded struct {
	bytes.Buffer
	max  int
	fail bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.max - b.Len()
	if len(p) <= room {
		return b.Buffer.Write(p)
	}
	b.Buffer.Write(p[:max(room, 0)])
	if b.fail {
		return 0, errTooMuch
	}
	return len(p), nil
}

// firstError remembers why w did not take what git wrote.
type firstError struct {
	w   io.Writer
	err error
}

func (f *firstError) Write(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.w.Write(p)
	f.err = err
	return n, err
}

// text runs git and returns its output without the last newline.
func (g runner) text(ctx context.Context, args ...string) (string, error) {
	out, err := g.run(ctx, call{args: args})
	return strings.TrimSuffix(string(out), "\n"), err
}

// run runs git to its end. Its error output is drained, bounded, and part of the
// error.
func (g runner) run(ctx context.Context, c call) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !c.shown {
		ctx, cancel = context.WithTimeout(ctx, cmp.Or(c.timeout, quickly))
		defer cancel()
	}

	cmd := exec.CommandContext(ctx, g.exe, c.args...)
	cmd.Dir = g.dir
	cmd.Env = g.environ(c.env)
	if c.plain {
		cmd.Env = append(plainEnviron(), c.env...)
	}
	cmd.Stdin = c.stdin
	kept := &bounded{max: maxOutput, fail: true}
	out := &firstError{w: kept}
	if c.stdout != nil {
		out.w = c.stdout
	}
	cmd.Stdout = out
	stderr := &bounded{max: maxStderr}
	cmd.Stderr = stderr
	if c.progress != nil {
		cmd.Stderr = &packProgress{tell: c.progress, rest: stderr}
	}
	cmd.ExtraFiles = c.files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killedWait

	verb := verbOf(c.args)
	run := children.Run
	if c.shown {
		run = func(cmd *exec.Cmd) error { return runShown(ctx, cmd) }
	}
	err := run(cmd)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("git %s: %w", verb, context.Cause(ctx))
	}
	if out.err != nil { // git then ended by a broken pipe, or not at all
		return nil, fmt.Errorf("git %s: %w", verb, out.err)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return nil, killed(ctx, verb, status.Signal())
		}
		return kept.Bytes(), &gitError{verb, exit.ExitCode(), shorten(printable.Lines(stderr.String()), 2000)}
	}
	if err != nil {
		return nil, fmt.Errorf("git %s: %w", verb, err)
	}
	return kept.Bytes(), nil
}

// killed is the error for a git that a signal ended. It is no gitError, whose code would be an
// answer of git's.
func killed(ctx context.Context, verb string, by syscall.Signal) error {
	if by == syscall.SIGINT || by == syscall.SIGHUP { // the terminal's, and git had no process group of its own yet: this process has it, too
		select {
		case <-ctx.Done():
			return fmt.Errorf("git %s: %w", verb, context.Cause(ctx))
		case <-time.After(sameSignal):
		}
	}
	return fmt.Errorf("git %s was ended by a signal: %v", verb, by)
}

// runShown is children.Run for output that a person reads. A writer of cmd's own would be cut
// off cmd.WaitDelay after git's end.
func runShown(ctx context.Context, cmd *exec.Cmd) error {
	out, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	person := cmd.Stdout
	cmd.Stdout = to
	ended, err := children.Start(cmd)
	_ = to.Close()
	if err != nil {
		return err
	}
	defer ended()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		_, _ = io.Copy(person, out) // a firstError, which remembers
		_ = out.Close()             // the person has seen enough: git ends
	}()
	err = cmd.Wait()
	select {
	case <-shown:
	case <-ctx.Done(): // the goroutine may wait for the person for ever
	}
	return err
}

func verbOf(args []string) string {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			return a
		}
	}
	return ""
}

// plainEnviron is the person's environment without git's variables, except those
// that say where the configuration is and how far up to look for a repository.
func plainEnviron() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM",
			"GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM":
		default:
			if strings.HasPrefix(name, "GIT_") {
				continue
			}
		}
		env = append(env, kv)
	}
	return append(env, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0")
}

// The oldest git that has all that this package uses.
const (
	oldestMajor = 2
	oldestMinor = 34
)

// Version is the version of the git in PATH. One older than 2.34 is ErrOldGit,
// none is ErrNoGit.
func Version(ctx context.Context) (major, minor int, err error) {
	exe, err := lookGit()
	if err != nil {
		return 0, 0, err
	}
	out, err := runner{exe: exe}.text(ctx, "version")
	if err != nil {
		return 0, 0, err
	}
	if major, minor, err = parseVersion(out); err != nil {
		return 0, 0, err
	}
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return major, minor, &fail.Error{Code: ErrOldGit.Code,
			Message: fmt.Sprintf("%s is too old", printable.Name(out)), Hint: "install git 2.34 or newer"}
	}
	return major, minor, nil
}

// lookGit finds git. If there is none, the error is ErrNoGit.
func lookGit() (string, error) {
	exe, err := exec.LookPath("git")
	if err != nil {
		return "", &fail.Error{Code: ErrNoGit.Code, Message: "git is not installed, or not in PATH", Hint: "install git 2.34 or newer"}
	}
	return exe, nil
}

func parseVersion(out string) (major, minor int, err error) {
	fields := strings.Fields(out)
	if len(fields) < 3 {
		return 0, 0, fmt.Errorf("read git's version from %q", out)
	}
	parts := strings.SplitN(fields[2], ".", 3)
	if len(parts) >= 2 {
		if major, err = strconv.Atoi(parts[0]); err == nil {
			minor, err = strconv.Atoi(parts[1])
		}
	}
	if len(parts) < 2 || err != nil {
		return 0, 0, fmt.Errorf("read git's version from %q", out)
	}
	return major, minor, nil
}
