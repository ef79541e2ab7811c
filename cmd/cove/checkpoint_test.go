package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/sprites"
)

// TestLiveCheckpoints: a program that counts to a file and holds a connection to a
// server outside goes through checkpoints in a row, without an error, and so do one
// that is told more all the time, and one that tells; each checkpoint, and a fork, has
// what it had.
func TestLiveCheckpoints(t *testing.T) {
	times := 8
	if os.Getenv("COVE_SOAK") == "1" {
		times = 50
	}
	i := newIsland(t)
	i.run("", "cove", "create", "paint", "--idle", "0")
	k := i.talk("paint")
	var pauses []string
	for n := range times {
		before := k.now()
		var c sprites.Checkpoint
		if err := json.Unmarshal([]byte(i.run("", "cove", "checkpoint", "create", "-s", "paint", "--json")), &c); err != nil {
			t.Fatal(err)
		}
		if c.ID != fmt.Sprintf("v%d", n+1) {
			t.Fatalf("checkpoint %d is %s", n+1, c.ID)
		}
		pauses = append(pauses, fmt.Sprintf("%.0f", c.Cove.PauseMilliseconds))
		k.awaitMore(before)
	}
	last := k.ticks.now()
	t.Logf("%d checkpoints, pauses of %s ms; the longest gaps at the servers were %v, %v and %v, at %d ticks",
		times, strings.Join(pauses, " "), last.gap, k.spoken.now().gap, k.told.now().gap, last.last)
	// What was merged meanwhile is what it was.
	var found sprites.VerifySummary
	if err := json.Unmarshal([]byte(i.run("", "cove", "checkpoint", "verify", "-s", "paint", "--json")), &found); err != nil || found.Problems != 0 || found.Layers+found.Unlisted < 2 {
		t.Errorf("verify found %+v, %v", found, err)
	}
	// The first has fewer, a later one more, and what runs goes on from where it is.
	i.run("", "cove", "fork", "paint", "early", "--checkpoint", "v1")
	i.run("", "cove", "fork", "paint", "late", "--checkpoint", fmt.Sprintf("v%d", times/2))
	counted := func(sprite string) (n int) {
		out := i.run("", "cove", "exec", "-s", sprite, "--", "tail", "-n", "1", "/home/sprite/count")
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Errorf("%s has counted to %q", sprite, out)
		}
		return n
	}
	if early, late, now := counted("early"), counted("late"), counted("paint"); !(10 < early && early < late && late < last.last && last.last <= now) {
		t.Errorf("the counts are %d, %d, %d at the last checkpoint and %d now", early, late, last.last, now)
	}
	// The policy of a fork is its own.
	i.policy("late", `{"include":"none"}`)
	for sprite, want := range map[string]int{"paint": 0, "early": 0, "late": 1} {
		dial := fmt.Sprintf("import socket; socket.create_connection((%q, 7), 5)", islandPublic)
		if out, code := i.try("", "cove", "exec", "-s", sprite, "--", "python3", "-c", dial); code != want {
			t.Errorf("%s: a connection out ends with %d: %s", sprite, code, out)
		}
	}
	// In a copy of what runs, the connections out are not its own, and end at once.
	i.run("", "cove", "fork", "paint", "twin")
	await(t, "the end of the copy's connection", func() bool {
		_, code := i.try("", "cove", "exec", "-s", "twin", "--", "pgrep", "-f", "ticker.py")
		return code == 1
	})
	if _, code := i.try("", "cove", "exec", "-s", "paint", "--", "pgrep", "-f", "ticker.py"); code != 0 {
		t.Error("so does what runs in the sprite that was forked")
	}
	i.run("", "cove", "restore", fmt.Sprintf("v%d", times/2), "-s", "paint")
	if late, now := counted("late"), counted("paint"); late != now {
		t.Errorf("restored, the count is %d, want %d", now, late)
	}
}

// TestRestlessCheckpoints: what root changes at random, all the time, is there after
// checkpoints, also where the next sandbox, which is created before the pause, has
// looked: in /, and in the folders to which something is mounted.
func TestRestlessCheckpoints(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint", "--idle", "0")
	script, err := os.ReadFile("testdata/restless.py")
	if err != nil {
		t.Fatal(err)
	}
	h.write("restless.py", string(script))
	h.run("", "cove", "cp", "restless.py", "paint:/home/sprite/restless.py")
	again := func() int {
		log, err := filepath.Glob(filepath.Join(h.data, "run", "*", "shim.log"))
		if err != nil || len(log) != 1 {
			t.Fatalf("logs of shims: %v, %v", log, err)
		}
		text, err := os.ReadFile(log[0])
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "because it could not be before") {
			t.Errorf("a sandbox was not created before the pause: %s", text)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "once more, in the pause") {
				t.Log(line)
			}
		}
		return strings.Count(string(text), "once more, in the pause")
	}
	for _, test := range []struct{ name, tops string }{
		{"elsewhere", "/home/sprite /etc /usr/local/share"},
		{"at mounts", "/ /.sprite /.sprite/git /usr /home/sprite"},
	} {
		before := again()
		h.sh("paint", "sudo mkdir -p /.sprite/git; rm -f stop model going; (sudo -n python3 restless.py run . model "+test.tops+" >said 2>&1 && echo 0 >ended || echo $? >ended) >/dev/null 2>&1 & until [ -e going ] || [ -e ended ]; do sleep 0.1; done")
		const times = 3
		for range times {
			h.run("", "cove", "checkpoint", "create", "-s", "paint")
		}
		out := h.sh("paint", "touch stop; until [ -e ended ]; do sleep 0.1; done; cat said ended; rm ended")
		if !strings.HasSuffix(out, "\n0\n") {
			t.Errorf("%s: %s", test.name, out)
		}
		t.Logf("%s: %s", test.name, strings.TrimSpace(out))
		h.run("", "cove", "fork", "paint", "look", "--boot")
		if out, code := h.try("", "cove", "exec", "-s", "look", "--", "sh", "-c", "sudo -n python3 restless.py look model "+test.tops); code != 0 {
			t.Errorf("%s: on disk: %s", test.name, out)
		}
		h.run("", "cove", "rm", "look")
		switch n := again() - before; {
		case test.name == "elsewhere" && n == times: // the first change over a layer copies a folder of /
			t.Error("no sandbox that was created before the pause was used, though nothing that they had looked at changed")
		case test.name == "at mounts" && n == 0:
			t.Error("nothing changed where a sandbox that was created before the pause had looked")
		}
	}
}

// TestCheckpointOfTheLastMoment: what is written to a folder above a mount, for the
// first time over this layer, when the next sandbox has been created and the old one
// is not paused yet, is there afterwards.
func TestCheckpointOfTheLastMoment(t *testing.T) {
	h := newHost(t)
	reached := filepath.Join(filepath.Dir(h.home), "reached")
	h.serve([]string{fault.Variable + "=" + string(fault.MovePrepared) + "=" + reached})
	signals := t.TempDir() // which the sprite sees without its shim
	h.run("", "cove", "create", "paint", "--idle", "0", "--include", signals)
	h.sh("paint", "true")
	// The first checkpoint does not stop there, and leaves a layer in which there is nothing.
	if err := os.WriteFile(reached, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.run("", "cove", "checkpoint", "create", "-s", "paint")
	if err := os.Remove(reached); err != nil {
		t.Fatal(err)
	}
	h.sh("paint", "(until [ -e "+signals+"/go ]; do sleep 0.1; done; sudo -n sh -c 'echo late >/.sprite/late; chmod 711 /.sprite') >/dev/null 2>&1 &")
	_, ended := h.background("", "cove", "checkpoint", "create", "-s", "paint")
	shim := 0
	await(t, "the point", func() bool {
		text, err := os.ReadFile(reached)
		shim, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil && shim > 0
	})
	written := func() bool {
		found, err := filepath.Glob(filepath.Join(h.data, "layers", "*", "root", "upper", ".sprite", "late"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found) > 0
	}
	if written() {
		t.Fatal("it did not wait to be told")
	}
	if err := os.WriteFile(filepath.Join(signals, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	await(t, "the write", written)
	if err := syscall.Kill(shim, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if out, err := ended(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := h.sh("paint", "cat /.sprite/late; stat -c %a /.sprite"); got != "late\n711\n" {
		t.Errorf("the sprite has %q", got)
	}
	h.run("", "cove", "fork", "paint", "look", "--boot")
	if got := h.sh("look", "cat /.sprite/late; stat -c %a /.sprite"); got != "late\n711\n" {
		t.Errorf("on disk there is %q", got)
	}
}
