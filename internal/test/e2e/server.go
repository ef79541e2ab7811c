package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/cove-dev/cove/internal/lib/proctree"
	"github.com/cove-dev/cove/sprites"
)

// Connected reports whether a process has a socket.
func Connected(pid int) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is right
	return slices.ContainsFunc(fds, func(fd string) bool {
		target, err := os.Readlink(fd)
		return err == nil && strings.HasPrefix(target, "socket:")
	})
}

// EndServer deletes every sprite of the script's server and ends the server.
func EndServer(bin, data, home string) error {
	if _, err := os.Stat(filepath.Join(data, "lock")); errors.Is(err, os.ErrNotExist) {
		return nil // no server ever ran
	}
	cove := func(args ...string) ([]byte, error) {
		cmd := exec.Command(filepath.Join(bin, "cove"), args...)
		cmd.Env = append(os.Environ(), "HOME="+home, "COVE_DATA="+data)
		return cmd.Output()
	}
	if out, err := cove("server", "start"); err != nil {
		return fmt.Errorf("start the server: %w: %s", err, out)
	}
	out, err := cove("list", "--json")
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	var list struct{ Sprites []struct{ Name string } }
	if err := json.Unmarshal(out, &list); err != nil {
		return err
	}
	for _, s := range list.Sprites {
		if _, err := cove("rm", "--force", s.Name); err != nil {
			return fmt.Errorf("rm %s: %w", s.Name, err)
		}
	}
	pid, err := ServerPID(data)
	if err != nil {
		return err
	}
	if err := Signal(pid, syscall.SIGTERM); err != nil {
		return err
	}
	return AwaitEnd(pid)
}

// ServerPID returns the process number of a data folder's server, as recorded there.
func ServerPID(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, "server.json"))
	if err != nil {
		return 0, err
	}
	var server struct{ PID int }
	return server.PID, json.Unmarshal(text, &server)
}

// JSONField returns a string of a JSON object.
func JSONField(t testing.TB, doc, key string) string {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(doc), &object); err != nil {
		t.Fatalf("%v in %q", err, doc)
	}
	text, ok := object[key].(string)
	if !ok {
		t.Fatalf("no %s in %s", key, doc)
	}
	return text
}

// JSONString returns a string of the JSON object in a file.
func JSONString(t testing.TB, file, key string) string {
	t.Helper()
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return JSONField(t, string(doc), key)
}

// Serve starts the host's server, with flags.
func (h *Host) Serve(env []string, args ...string) {
	h.T.Helper()
	log, err := os.OpenFile(filepath.Join(h.Data, "serve.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.T.Fatal(err)
	}
	defer log.Close()
	cmd := h.Command("", "cove", append([]string{"serve", "--addr", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		h.T.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	for deadline := time.Now().Add(LastResort); ; {
		if pid, err := ServerPID(h.Data); err == nil && pid == cmd.Process.Pid {
			return
		}
		select {
		case <-ended:
			text, _ := os.ReadFile(log.Name())
			h.T.Fatalf("the server ended:\n%s", text)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			h.T.Fatal("the server does not start")
		}
	}
}

// PID is the server's process number.
func (h *Host) PID() int {
	h.T.Helper()
	pid, err := ServerPID(h.Data)
	if err != nil {
		h.T.Fatal(err)
	}
	return pid
}

// Client returns a client of the host's server, which must run.
func (h *Host) Client() *cove.Client {
	h.T.Helper()
	token, err := os.ReadFile(filepath.Join(h.Data, "token"))
	if err != nil {
		h.T.Fatal(err)
	}
	url := JSONString(h.T, filepath.Join(h.Data, "server.json"), "url")
	return &cove.Client{Client: &sprites.Client{URL: url, Token: strings.TrimSpace(string(token))}}
}

// Shims returns the process numbers of the host's shims.
func (h *Host) Shims() []int {
	h.T.Helper()
	return h.processes(func(argv []string) bool { return len(argv) > 1 && argv[1] == "shim" })
}

// processes returns the processes that run one of the host's binaries on the host's data
// folder, and whose arguments match accepts. It knows them by their standard error, a
// file in the data folder.
func (h *Host) processes(match func(argv []string) bool) []int {
	var found []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(text) == 0 {
			continue
		}
		argv := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		log, _ := os.Readlink(filepath.Join(dir, "fd/2"))
		if !strings.HasPrefix(log, h.Data+"/") || !match(argv) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// Signal signals a process that a file names. It refuses an ancestor of the tests, and a number
// that means several processes. With such a number the file is of another PID namespace, or not
// written yet. Otherwise all tests would end without a word.
func Signal(pid int, sig syscall.Signal) error {
	if pid <= 1 || pid == os.Getpid() || slices.Contains(proctree.Below(pid), os.Getpid()) {
		return fmt.Errorf("signal %v: process %d is several, or runs these tests", sig, pid)
	}
	return syscall.Kill(pid, sig)
}

// SignalAll signals processes. Each must exist.
func SignalAll(t testing.TB, sig syscall.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := Signal(pid, sig); err != nil {
			t.Fatalf("signal %v to %d: %v", sig, pid, err)
		}
	}
}
