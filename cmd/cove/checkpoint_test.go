package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

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
	await(t, "the end of the copy's connection", 10*time.Second, func() bool {
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
