package checkpoints

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/executable"
)

// restoreFails stands in for runsc. When asked to restore, it runs %DO%, prints %SAID%, and
// fails. All else it leaves to runsc.
const restoreFails = `#!/bin/sh
real=$0.real
case " $* " in
*" restore "*)
	%DO%
	echo '%SAID%' >&2
	exit 128;;
esac
exec "$real" "$@"
`

// ownBinaries has the host use a copy of the binaries, so that one of them can be
// replaced. dir is the copy's folder.
func ownBinaries(h *e2e.Host) (dir string) {
	h.T.Helper()
	dir = filepath.Join(h.T.TempDir(), "bin")
	if out, err := exec.Command("cp", "-r", e2e.BinDir, dir).CombinedOutput(); err != nil {
		h.T.Fatalf("%v: %s", err, out)
	}
	h.Bin = dir
	return dir
}

// TestWakeFails: if a sprite's start fails, the sprite keeps its saved memory until the
// cause is mended. If its programs have already run, or its memory is refused, it begins
// anew and says so.
func TestWakeFails(t *testing.T) {
	h := e2e.NewHost(t)
	bin := ownBinaries(h)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Write("counter.py", counter)
	h.Run("", "cove", "cp", h.Home+"/../counter.py", "paint:counter.py")
	begin := func() (mark string) {
		h.Run("", "cove", "exec", "-s", "paint", "--", "rm", "-f", "count")
		h.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "python3", "counter.py")
		e2e.Await(t, "the counter", func() bool {
			out, code := h.Try("", "cove", "exec", "-s", "paint", "--", "cat", "count")
			return code == 0 && strings.Count(out, "\n") > 5
		})
		mark, _ = counts(h, "paint")
		return mark
	}
	runsc := filepath.Join(bin, "cove-runsc")
	aside := func() {
		if err := os.Rename(runsc, runsc+".real"); err != nil {
			t.Fatal(err)
		}
	}
	back := func() {
		if err := os.Rename(runsc+".real", runsc); err != nil {
			t.Fatal(err)
		}
	}
	standIn := func(do, said string) {
		text := strings.NewReplacer("%DO%", do, "%SAID%", said).Replace(restoreFails)
		executable.Write(t, runsc, text)
	}

	const ended = `starting container: restoring container "x": urpc method "containerManager.Restore" failed: EOF`
	mark := begin()
	for what, hinder := range map[string]func(){
		"runsc is not there":   func() {},
		"its kernel has ended": func() { standIn(":", ended) },
		"no process is left": func() {
			standIn(":", `starting container: restoring container "x": fork/exec: resource temporarily unavailable`)
		},
	} {
		h.Run("", "cove", "suspend", "paint")
		aside()
		hinder()
		_, stderr, code := h.Streams("exec", "-s", "paint", "--", "true")
		if code == 0 || !strings.Contains(stderr, "paint did not start, and its memory is kept") || !strings.Contains(stderr, "cove restart paint") {
			t.Errorf("%s: %d, %s", what, code, stderr)
		}
		if status := e2e.JSONField(t, h.Run("", "cove", "info", "paint", "--json"), "status"); status != "warm" {
			t.Errorf("%s: the sprite is %s", what, status)
		}
		back()
		counting(h, "paint", mark)
	}

	written := "$(cat " + filepath.Join(h.Data, "layers/*/root/upper/home/sprite/count") + " | wc -c)"
	for what, standing := range map[string][2]string{
		"it has run":     {"had=" + written + `; "$real" "$@"; until [ ` + written + " -gt $had ]; do sleep 0.05; done", ended},
		"it can't go on": {":", `starting container: restoring container "x": vfs.CompleteRestore() failed: 9p: failed to walk`},
	} {
		mark := begin()
		h.Run("", "cove", "suspend", "paint")
		aside()
		standIn(standing[0], standing[1])
		_, stderr, code := h.Streams("exec", "-s", "paint", "--", "true")
		back()
		if code != 0 || !strings.Contains(stderr, "began anew") {
			t.Errorf("%s: %d, %s", what, code, stderr)
		}
		if out, code := h.Try("", "cove", "exec", "-s", "paint", "--", "pgrep", "-f", "counter.py"); code == 0 {
			t.Errorf("%s: it goes on: %s, %s", what, mark, out)
		}
	}
	h.Run("", "cove", "rm", "paint")
}

// TestSleepFails: if a sandbox ends while its memory is written to disk, nobody is told that
// the sprite sleeps. Suspend, and the next use, say that its memory is lost.
func TestSleepFails(t *testing.T) {
	h := e2e.NewHost(t)
	bin := ownBinaries(h)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "sleep", "100000")
	runsc := filepath.Join(bin, "cove-runsc")
	if err := os.Rename(runsc, runsc+".real"); err != nil {
		t.Fatal(err)
	}
	script := `#!/bin/sh
case " $* " in
*" checkpoint "*)
	kill -9 $(sed 's/.*"pid":\([0-9]*\).*/\1/' ` + filepath.Join(h.Data, "run") + `/*/sandbox.json)
	echo 'checkpoint failed: EOF' >&2
	exit 128;;
esac
exec "$0.real" "$@"
`
	executable.Write(t, runsc, script)
	if _, stderr, code := h.Streams("suspend", "paint"); code == 0 || !strings.Contains(stderr, "what ran in it is lost") {
		t.Errorf("suspend: %d, %s", code, stderr)
	}
	if status := e2e.JSONField(t, h.Run("", "cove", "info", "paint", "--json"), "status"); status != "cold" {
		t.Errorf("the sprite is %s", status)
	}
	if err := os.Rename(runsc+".real", runsc); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := h.Streams("exec", "-s", "paint", "--", "true"); code != 0 || !strings.Contains(stderr, "began anew") {
		t.Errorf("the next use: %d, %s", code, stderr)
	}
}
