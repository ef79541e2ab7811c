package scripts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestScripts runs each script of testdata with the real binaries, a server of
// its own, and real sandboxes.
func TestScripts(t *testing.T) {
	e2e.RequireSandbox(t)
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		TestWork:            os.Geteuid() != 0, // an ordinary user can't remove files of its sprites' users; the caller who set the folder can
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

// TestOrdinaryUser runs scripts again as an ordinary user. The test of this name in
// internal/e2e/server runs the tests of durability.
func TestOrdinaryUser(t *testing.T) {
	scripts, most := "/^(checkpoint|exec|hardlinks|hostile|job|packages|policy|private|restart|sleep|url)$", "50m" // where an ordinary user's sandboxes are others
	if e2e.Soak() {
		scripts, most = "", "2h"
	}
	e2e.AsOrdinaryUser(t, "^TestScripts$"+scripts, most, "testdata")
}

func setupScript(env *testscript.Env) error {
	home := filepath.Join(env.WorkDir, "home")
	data := filepath.Join(env.WorkDir, "data")
	for _, dir := range []string{home, data} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := e2e.Lend(data); err != nil {
		return err
	}
	gitconfig := "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n[advice]\n\tdetachedHead = false\n"
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte(gitconfig), 0o644); err != nil {
		return err
	}
	env.Setenv("HOME", home)
	env.Setenv("COVE_DATA", data)
	env.Setenv("PATH", e2e.BinDir+string(os.PathListSeparator)+os.Getenv("PATH"))
	env.Setenv("BIN", e2e.BinDir)
	env.Defer(func() {
		err := e2e.EndServer(e2e.BinDir, data, home)
		if err == nil {
			err = e2e.TakeBack(data)
		}
		if err != nil {
			env.T().Log("end the server: ", err)
			env.T().FailNow()
		}
	})
	return nil
}

// serverCommand signals the script's server: server KILL|TERM|STOP|CONT. KILL
// and TERM wait for its end.
func serverCommand(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "TERM": syscall.SIGTERM, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}
	if neg || len(args) != 1 || signals[args[0]] == 0 {
		ts.Fatalf("usage: server KILL|TERM|STOP|CONT")
	}
	pid, err := e2e.ServerPID(ts.Getenv("COVE_DATA"))
	ts.Check(err)
	ts.Check(e2e.Signal(pid, signals[args[0]]))
	if sig := signals[args[0]]; sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		ts.Check(e2e.AwaitEnd(pid))
	}
}

// waitForCommand runs a command until it succeeds, or with ! until it fails: waitfor CMD…
func waitForCommand(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(e2e.LastResort); ; {
		err := ts.Exec(args[0], args[1:]...)
		if (err == nil) != neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("waitfor %s: %v after %v", strings.Join(args, " "), err, e2e.LastResort)
		}
		<-time.After(100 * time.Millisecond)
	}
}

// captureCommand sets a variable to the last command's output, or to a key of the JSON
// object in it: capture VAR [KEY].
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
