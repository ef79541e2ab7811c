package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cove-dev/cove/internal/test/need"
)

// binDir holds the three binaries that the scripts run.
var binDir string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if dir := os.Getenv(floorEnv); dir != "" {
		binDir = os.Getenv("COVE_BIN")
		if err := floorMain(dir); err != nil {
			fmt.Fprintln(os.Stderr, "floor:", err)
			return 1
		}
		return 0
	}
	defer removeInstalled()
	binDir = os.Getenv("COVE_BIN") // made by make build
	if binDir == "" {
		dir, err := os.MkdirTemp("", "cove-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, ".", "../cove-guest", "../cove-runsc")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the binaries: %v\n%s", err, out)
			return 1
		}
		binDir = dir
	}
	return m.Run()
}

// TestScripts runs each script of testdata with the real binaries, a server of
// its own, and real sandboxes.
func TestScripts(t *testing.T) {
	requireSandbox(t)
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		TestWork:            os.Geteuid() != 0, // an ordinary user can't remove what is its sprites' users'; who asked can
		RequireExplicitExec: true,
		Setup:               setupScript,
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"server":  serverCommand,
			"waitfor": waitForCommand,
			"capture": captureCommand,
		},
	})
}

// requireSandbox skips the test if the machine can't run a sandbox.
func requireSandbox(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 { // whose sandboxes need it
		need.Program(t, "newuidmap", "uidmap")
	}
}

func setupScript(env *testscript.Env) error {
	home := filepath.Join(env.WorkDir, "home")
	data := filepath.Join(env.WorkDir, "data")
	for _, dir := range []string{home, data} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	gitconfig := "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n"
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(gitconfig), 0o644); err != nil {
		return err
	}
	env.Setenv("HOME", home)
	env.Setenv("COVE_DATA", data)
	env.Setenv("PATH", binDir+string(os.PathListSeparator)+os.Getenv("PATH"))
	env.Setenv("BIN", binDir)
	env.Defer(func() {
		if err := endServer(binDir, data, home); err != nil {
			env.T().Log("end the server: ", err)
			env.T().FailNow()
		}
	})
	return nil
}

// endServer deletes every sprite of the script's server and ends the server.
func endServer(bin, data, home string) error {
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
	pid, err := serverPID(data)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return err
	}
	return awaitEnd(pid)
}

func serverPID(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, "server.json"))
	if err != nil {
		return 0, err
	}
	var server struct{ PID int }
	return server.PID, json.Unmarshal(text, &server)
}

// awaitEnd returns once the process is gone or a zombie of another parent.
func awaitEnd(pid int) error {
	for deadline := time.Now().Add(lastResort); time.Now().Before(deadline); {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return nil
		}
		<-time.After(20 * time.Millisecond)
	}
	return fmt.Errorf("process %d does not end", pid)
}

// serverCommand signals the script's server: server KILL|TERM|STOP|CONT. KILL
// and TERM wait for its end.
func serverCommand(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "TERM": syscall.SIGTERM, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}
	if neg || len(args) != 1 || signals[args[0]] == 0 {
		ts.Fatalf("usage: server KILL|TERM|STOP|CONT")
	}
	pid, err := serverPID(ts.Getenv("COVE_DATA"))
	ts.Check(err)
	ts.Check(syscall.Kill(pid, signals[args[0]]))
	if sig := signals[args[0]]; sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		ts.Check(awaitEnd(pid))
	}
}

// waitForCommand runs a command until it succeeds, or with ! until it fails: waitfor CMD…
func waitForCommand(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(lastResort); ; {
		err := ts.Exec(args[0], args[1:]...)
		if (err == nil) != neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("waitfor %s: %v after %v", strings.Join(args, " "), err, lastResort)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// captureCommand sets a variable to what the last command printed, or to a key
// of the JSON object that it printed: capture VAR [KEY].
func captureCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: capture VAR [KEY]")
	}
	text := strings.TrimSpace(ts.ReadFile("stdout"))
	if len(args) == 2 {
		var doc map[string]any
		ts.Check(json.Unmarshal([]byte(text), &doc))
		text = fmt.Sprint(doc[args[1]])
	}
	ts.Setenv(args[0], text)
}

// jsonField returns a string of a JSON object.
func jsonField(t testing.TB, doc, key string) string {
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

func jsonString(t testing.TB, file, key string) string {
	t.Helper()
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return jsonField(t, string(doc), key)
}
