package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// A ticker is a program in a sprite that writes a number to a file, tells it to a
// server outside, waits for that to repeat it, and goes on with the next one.
const ticker = `
import os, socket, sys, time
out = open('/home/sprite/count', 'a')
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
f = s.makefile('rw')
n = 0
while True:
    n += 1
    out.write('%d\n' % n); out.flush()
    f.write('%d\n' % n); f.flush()
    if f.readline() != '%d\n' % n: sys.exit('the server is gone')
    time.sleep(0.01)
`

// ticks is the server that a ticker tells its numbers.
type ticks struct {
	mu    sync.Mutex
	last  int
	at    time.Time
	gap   time.Duration // the longest between two
	wrong string
}

func (k *ticks) serve(conn net.Conn) {
	for r := bufio.NewScanner(conn); r.Scan(); {
		n, err := strconv.Atoi(r.Text())
		k.mu.Lock()
		if !k.at.IsZero() {
			k.gap = max(k.gap, time.Since(k.at))
		}
		if err != nil || n != k.last+1 {
			k.wrong = fmt.Sprintf("after %d came %q", k.last, r.Text())
		}
		k.last, k.at = n, time.Now()
		k.mu.Unlock()
		if _, err := fmt.Fprintln(conn, n); err != nil {
			return
		}
	}
}

func (k *ticks) now() (last int, gap time.Duration, wrong string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.last, k.gap, k.wrong
}

// TestLiveCheckpoints: a program that counts to a file and holds a connection to a
// server outside goes through checkpoints in a row, without an error; each of them,
// and a fork, has what it had.
func TestLiveCheckpoints(t *testing.T) {
	times := 8
	if os.Getenv("COVE_SOAK") == "1" {
		times = 50
	}
	i := newIsland(t)
	var k ticks
	i.listen(i.sea, islandPublic+":99", k.serve)
	i.run("", "cove", "create", "paint", "--idle", "0")
	i.write("ticker.py", ticker)
	i.run("", "cove", "cp", i.home+"/../ticker.py", "paint:/home/sprite/ticker.py")
	i.run("", "cove", "exec", "-s", "paint", "--detach", "--", "python3", "/home/sprite/ticker.py", islandPublic, "99")
	await(t, "the ticker", 20*time.Second, func() bool { n, _, _ := k.now(); return n > 10 })
	k.mu.Lock()
	k.gap = 0
	k.mu.Unlock()
	var pauses []string
	for n := range times {
		at, _, _ := k.now()
		var c sprites.Checkpoint
		if err := json.Unmarshal([]byte(i.run("", "cove", "checkpoint", "create", "-s", "paint", "--json")), &c); err != nil {
			t.Fatal(err)
		}
		if c.ID != fmt.Sprintf("v%d", n+1) {
			t.Fatalf("checkpoint %d is %s", n+1, c.ID)
		}
		pauses = append(pauses, fmt.Sprintf("%.0f", c.Cove.PauseMilliseconds))
		goesOn := false
		defer func() {
			if !goesOn {
				out, _ := i.try("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "pgrep -af ticker; cat /proc/net/tcp; tail -n 1 count")
				t.Logf("it has told %d, and in its sprite is\n%s", at, out)
			}
		}()
		// What was under way is sent again, on a busy machine after a while.
		await(t, "the ticker goes on", 60*time.Second, func() bool { now, _, _ := k.now(); return now > at+20 })
		goesOn = true
	}
	last, gap, wrong := k.now()
	t.Logf("%d checkpoints, pauses of %s ms; the longest gap at the server was %v, at %d ticks", times, strings.Join(pauses, " "), gap, last)
	if wrong != "" {
		t.Error(wrong)
	}
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
	if early, late, now := counted("early"), counted("late"), counted("paint"); !(10 < early && early < late && late < last && last <= now) {
		t.Errorf("the counts are %d, %d, %d at the last checkpoint and %d now", early, late, last, now)
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
