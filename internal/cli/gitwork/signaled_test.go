package gitwork_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/test/executable"
)

// TestKilledGit: a git that a signal ended has answered nothing. Ctrl-C on a terminal may end git
// before cove knows of it. It is an interruption then, too.
func TestKilledGit(t *testing.T) {
	home(t, "")
	r, _, _ := delivered(t)
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	stand := func(signal string) (pid string) {
		pid = filepath.Join(t.TempDir(), "pid")
		script := `#!/bin/sh
case "$*" in
*--show-toplevel*) echo $$ >` + printable.Word(pid+"~") + `; mv ` + printable.Word(pid+"~") + ` ` + printable.Word(pid) + `; kill -` + signal + ` $$ ;;
esac
exec ` + printable.Word(git) + ` "$@"
`
		executable.Write(t, filepath.Join(bin, "git"), script)
		return pid
	}

	stand("KILL")
	if _, err := gitwork.Open(t.Context(), r.dir); err == nil || errors.Is(err, gitwork.ErrNotRepository) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("after SIGKILL: %v", err)
	}
	if top, err := gitwork.Top(t.Context(), r.dir); err == nil {
		t.Errorf("after SIGKILL the top is %q", top)
	}

	file := stand("INT")
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() {
		_, err := gitwork.Open(ctx, r.dir)
		opened <- err
	}()
	for ended := false; !ended; {
		select {
		case err := <-opened:
			t.Fatalf("before the interruption: %v", err)
		default:
		}
		if pid, err := os.ReadFile(file); err == nil {
			_, err = os.Stat("/proc/" + strings.TrimSpace(string(pid)))
			ended = os.IsNotExist(err)
		}
	}
	cancel()
	if err := <-opened; !errors.Is(err, context.Canceled) {
		t.Errorf("after Ctrl-C: %v", err)
	}
}
