package e2e

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/internal/test/executable"
)

// ExitCode returns the exit code of a command's error; 0 if the error has none.
func ExitCode(err error) int {
	if e, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok {
		return e.ExitCode()
	}
	return 0
}

// Host is a person's machine in a test: a home, a data folder, and a server. The test
// starts the server, or the first command does.
type Host struct {
	T    testing.TB
	Bin  string
	Home string
	Data string
	NS   int // the network namespace that its programs run in; 0: this one
	Env  []string

	Far *Host // where its sprites are; nil: here

	// Change changes the requests that a far host's server gets; nil there: none.
	Change *atomic.Pointer[func(*http.Request)]
}

// Within calls f in the host's network.
func (h *Host) Within(f func() error) error {
	if h.NS == 0 {
		return f()
	}
	return gateway.InNetNS(h.NS, f)
}

// NewHost makes a host whose server, if any, ends with the test. The test runs in
// parallel with others: each waits more than it works.
func NewHost(t testing.TB) *Host {
	t.Helper()
	if t, ok := t.(*testing.T); ok && !Soak() {
		t.Parallel()
	}
	return NewLoneHost(t)
}

// NewLoneHost is NewHost for a test that checks the whole machine.
func NewLoneHost(t testing.TB) *Host {
	t.Helper()
	RequireSandbox(t)
	dir := TempDir(t)
	h := &Host{T: t, Bin: BinDir, Home: filepath.Join(dir, "home"), Data: filepath.Join(dir, "data")}
	for _, d := range []string{h.Home, h.Data} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := Lend(h.Data); err != nil {
		t.Fatal(err)
	}
	h.Write("home/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n")
	t.Cleanup(func() {
		if err := h.Within(func() error { return EndServer(h.Bin, h.Data, h.Home) }); err != nil {
			t.Errorf("end the server: %v", err)
		} else if err := TakeBack(h.Data); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(h.Data, "serve.log"))
			t.Logf("serve.log:\n%s", log)
		}
	})
	if os.Getenv(FarVariable) != "" {
		GoFar(h)
	}
	return h
}

// TempDir returns the test's own folder. An ordinary user can't remove files of the users
// of its sprites; the maker of the user's TMPDIR does.
func TempDir(t testing.TB) string {
	t.Helper()
	if os.Geteuid() == 0 {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("", "cove-host-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Write writes a file below the host's folder.
func (h *Host) Write(name, text string) {
	h.T.Helper()
	name = filepath.Join(filepath.Dir(h.Home), name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		h.T.Fatal(err)
	}
	if err := executable.WriteFile(name, []byte(text), 0o644); err != nil {
		h.T.Fatal(err)
	}
}

// Environ is the environment of the host's programs, with more variables.
func (h *Host) Environ(env ...string) []string {
	return append(append(os.Environ(), "HOME="+h.Home, "COVE_DATA="+h.Data, "COVE_URL=", "COVE_TOKEN=", "COVE_BACKEND=", "COVE_CONFIG=", "XDG_CONFIG_HOME=",
		"PATH="+h.Bin+string(os.PathListSeparator)+os.Getenv("PATH")), append(slices.Clone(h.Env), env...)...)
}

// Command prepares a program in a folder below the host's.
func (h *Host) Command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	if name == "cove" {
		cmd.Path, cmd.Err = filepath.Join(h.Bin, name), nil
	}
	cmd.Dir = filepath.Join(filepath.Dir(h.Home), dir)
	cmd.Env = h.Environ()
	return cmd
}

// tooLong is far more than any program of a test takes, except in a soak. A program that hangs
// then quits with its goroutines' stacks and fails only its own test.
const tooLong = 15 * time.Minute

// bounded returns a command that quits after tooLong. The caller calls cancel when it has
// ended.
func bounded(of *exec.Cmd) (cmd *exec.Cmd, cancel func()) {
	if Soak() {
		return of, func() {}
	}
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	cmd = exec.CommandContext(ctx, of.Path)
	cmd.Path, cmd.Args, cmd.Dir, cmd.Env, cmd.Err = of.Path, of.Args, of.Dir, of.Env, of.Err
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.WaitDelay = tooLong / 3
	return cmd, cancel
}

// Try runs a program, and returns the output of both streams and the exit code.
func (h *Host) Try(dir, name string, args ...string) (string, int) {
	h.T.Helper()
	cmd, cancel := bounded(h.Command(dir, name, args...))
	defer cancel()
	var out []byte
	err := h.Within(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		h.T.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out), 0
}

// Run runs a program that must succeed, and returns its standard output.
func (h *Host) Run(dir, name string, args ...string) string {
	h.T.Helper()
	cmd, cancel := bounded(h.Command(dir, name, args...))
	defer cancel()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var out []byte
	err := h.Within(func() (err error) {
		out, err = cmd.Output()
		return err
	})
	if err != nil {
		h.T.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}
