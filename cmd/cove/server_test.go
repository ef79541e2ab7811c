package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/sprites"
)

// host is a person's machine in a test: a home, a data folder, and a server that
// the test starts, or that the first command does.
type host struct {
	t    testing.TB
	bin  string
	home string
	data string
	ns   int // the network namespace that its programs run in; 0: this one
	env  []string

	far  *host  // where its sprites are; nil: here
	addr string // of a far host's server
}

// within calls f in the host's network.
func (h *host) within(f func() error) error {
	if h.ns == 0 {
		return f()
	}
	return gateway.InNetNS(h.ns, f)
}

// newHost makes a host whose server, if any, ends with the test. The test runs beside
// others: each waits more than it works.
func newHost(t testing.TB) *host {
	t.Helper()
	if t, ok := t.(*testing.T); ok && !soak() {
		t.Parallel()
	}
	return newLoneHost(t)
}

// newLoneHost is newHost for a test that looks at the whole machine.
func newLoneHost(t testing.TB) *host {
	t.Helper()
	requireSandbox(t)
	dir := tempDir(t)
	h := &host{t: t, bin: binDir, home: filepath.Join(dir, "home"), data: filepath.Join(dir, "data")}
	for _, d := range []string{h.home, h.data} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h.write("home/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n")
	t.Cleanup(func() {
		if err := h.within(func() error { return endServer(h.bin, h.data, h.home) }); err != nil {
			t.Errorf("end the server: %v", err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(h.data, "serve.log"))
			t.Logf("serve.log:\n%s", log)
		}
	})
	if os.Getenv(farVariable) != "" {
		h.goFar()
	}
	return h
}

// tempDir is the test's own folder. An ordinary user can't remove what belongs to
// the users of its sprites; whoever made the user's TMPDIR does.
func tempDir(t testing.TB) string {
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

func (h *host) write(name, text string) {
	h.t.Helper()
	name = filepath.Join(filepath.Dir(h.home), name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) environ(env ...string) []string {
	return append(append(os.Environ(), "HOME="+h.home, "COVE_DATA="+h.data, "COVE_URL=", "COVE_TOKEN=", "COVE_BACKEND=", "COVE_CONFIG=", "XDG_CONFIG_HOME=",
		"PATH="+h.bin+string(os.PathListSeparator)+os.Getenv("PATH")), append(slices.Clone(h.env), env...)...)
}

// command prepares a program in a folder below the host's.
func (h *host) command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	if name == "cove" {
		cmd.Path, cmd.Err = filepath.Join(h.bin, name), nil
	}
	cmd.Dir = filepath.Join(filepath.Dir(h.home), dir)
	cmd.Env = h.environ()
	return cmd
}

// try runs a program and returns what it printed, both streams, and its code.
func (h *host) try(dir, name string, args ...string) (string, int) {
	h.t.Helper()
	var out []byte
	err := h.within(func() (err error) {
		out, err = h.command(dir, name, args...).CombinedOutput()
		return err
	})
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		h.t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out), 0
}

// run runs a program that must succeed, and returns its standard output.
func (h *host) run(dir, name string, args ...string) string {
	h.t.Helper()
	cmd := h.command(dir, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var out []byte
	err := h.within(func() (err error) {
		out, err = cmd.Output()
		return err
	})
	if err != nil {
		h.t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// serve starts the host's server, with flags.
func (h *host) serve(env []string, args ...string) {
	h.t.Helper()
	log, err := os.OpenFile(filepath.Join(h.data, "serve.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	cmd := h.command("", "cove", append([]string{"serve", "--addr", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	for deadline := time.Now().Add(lastResort); ; {
		if pid, err := serverPID(h.data); err == nil && pid == cmd.Process.Pid {
			return
		}
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			h.t.Fatalf("the server ended:\n%s", text)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			h.t.Fatal("the server does not start")
		}
	}
}

// pid is the server's process number.
func (h *host) pid() int {
	h.t.Helper()
	pid, err := serverPID(h.data)
	if err != nil {
		h.t.Fatal(err)
	}
	return pid
}

// client is one of the host's server, which must run.
func (h *host) client() *cove.Client {
	h.t.Helper()
	token, err := os.ReadFile(filepath.Join(h.data, "token"))
	if err != nil {
		h.t.Fatal(err)
	}
	url := jsonString(h.t, filepath.Join(h.data, "server.json"), "url")
	return &cove.Client{Client: &sprites.Client{URL: url, Token: strings.TrimSpace(string(token))}}
}

// repository makes a git repository with one commit, and returns its folder.
func (h *host) repository(name string, files map[string]string) string {
	h.t.Helper()
	for file, text := range files {
		h.write(name+"/"+file, text)
	}
	h.run(name, "git", "init", "-q")
	h.run(name, "git", "add", "-A")
	h.run(name, "git", "commit", "-q", "-m", "first")
	return name
}

// push pushes a plan, and returns the job and its sprite.
func (h *host) push(repo string, args ...string) (job, sprite string) {
	h.t.Helper()
	out := h.run(repo, "cove", append([]string{"push", "--json"}, args...)...)
	return jsonField(h.t, out, "job"), jsonField(h.t, out, "sprite")
}

// lastResort bounds what a test waits for. It only keeps a broken test from hanging for
// ever: no test passes or fails because something took long.
const lastResort = 10 * time.Minute

// await polls until f says yes.
func await(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(lastResort); !f(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, lastResort)
		}
	}
}

// longEnough calls f with a limit that is to be reached, or that something is to outlast.
// A slow machine takes longer for what f does before the limit. If f says that it was not done
// in time, it is called with a longer limit.
func longEnough(t testing.TB, limit time.Duration, f func(limit time.Duration) (inTime bool)) {
	t.Helper()
	for ; !f(limit); limit *= 6 {
		if limit > lastResort/2 {
			t.Fatalf("not in time with a limit of %v", limit)
		}
	}
}

// shims returns the process numbers of the host's shims.
func (h *host) shims() []int {
	h.t.Helper()
	return h.processes(func(argv []string) bool { return len(argv) > 1 && argv[1] == "shim" })
}

// processes returns those that run one of the host's binaries with the host's
// data folder as their own, and of which match says yes.
func (h *host) processes(match func(argv []string) bool) []int {
	var found []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(text) == 0 {
			continue
		}
		argv := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		log, _ := os.Readlink(filepath.Join(dir, "fd/2"))
		if !strings.HasPrefix(log, h.data+"/") || !match(argv) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil {
			found = append(found, pid)
		}
	}
	return found
}

func signalAll(t testing.TB, sig syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatalf("signal %v to %d: %v", sig, pid, err)
		}
	}
}
