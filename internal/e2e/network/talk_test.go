package network

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

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// TestLiveCheckpoints: three programs with connections to servers outside survive
// checkpoints in a row without an error. One counts to a file and waits for echoes, one
// is sent data all the time, and one sends. Checkpoints and forks have the file's count
// of their moment.
func TestLiveCheckpoints(t *testing.T) {
	times := 8
	if os.Getenv("COVE_SOAK") == "1" {
		times = 50
	}
	i := newIsland(t)
	i.Run("", "cove", "create", "paint", "--idle", "0")
	k := i.talk("paint")
	var pauses []string
	for n := range times {
		before := k.now()
		var c sprites.Checkpoint
		if err := json.Unmarshal([]byte(i.Run("", "cove", "checkpoint", "create", "-s", "paint", "--json")), &c); err != nil {
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
	// Layers that were merged meanwhile keep their content.
	var found sprites.VerifySummary
	if err := json.Unmarshal([]byte(i.Run("", "cove", "checkpoint", "verify", "-s", "paint", "--json")), &found); err != nil || found.Problems != 0 || found.Layers+found.Unlisted < 2 {
		t.Errorf("verify found %+v, %v", found, err)
	}
	// The first checkpoint has a smaller count than a later one, and the running sprite
	// counts on.
	i.Run("", "cove", "fork", "paint", "early", "--checkpoint", "v1")
	i.Run("", "cove", "fork", "paint", "late", "--checkpoint", fmt.Sprintf("v%d", times/2))
	counted := func(sprite string) (n int) {
		out := i.Run("", "cove", "exec", "-s", sprite, "--", "tail", "-n", "1", "/home/sprite/count")
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Errorf("%s has counted to %q", sprite, out)
		}
		return n
	}
	if early, late, now := counted("early"), counted("late"), counted("paint"); !(10 < early && early < late && late < last.last && last.last <= now) {
		t.Errorf("the counts are %d, %d, %d at the last checkpoint and %d now", early, late, last.last, now)
	}
	// A fork has a policy of its own.
	i.policy("late", `{"include":"none"}`)
	for sprite, want := range map[string]int{"paint": 0, "early": 0, "late": 1} {
		dial := fmt.Sprintf("import socket; socket.create_connection((%q, 7), 600)", islandPublic)
		if out, code := i.Try("", "cove", "exec", "-s", sprite, "--", "python3", "-c", dial); code != want {
			t.Errorf("%s: a connection out ends with %d: %s", sprite, code, out)
		}
	}
	// A fork does not own the copied outward connections, which end at once.
	i.Run("", "cove", "fork", "paint", "twin")
	e2e.Await(t, "the end of the copy's connection", func() bool {
		_, code := i.Try("", "cove", "exec", "-s", "twin", "--", "pgrep", "-f", "ticker.py")
		return code == 1
	})
	if _, code := i.Try("", "cove", "exec", "-s", "paint", "--", "pgrep", "-f", "ticker.py"); code != 0 {
		t.Error("so does what runs in the sprite that was forked")
	}
	i.Run("", "cove", "restore", fmt.Sprintf("v%d", times/2), "-s", "paint")
	if late, now := counted("late"), counted("paint"); late != now {
		t.Errorf("restored, the count is %d, want %d", now, late)
	}
}

// A ticker is a program in a sprite. It writes a number to a file, sends it to a server
// outside, waits for the echo, and goes on with the next number.
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

// A speaker counts to a server outside without waiting for answers.
const speaker = `
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
n = 0
while True:
    n += 1
    s.sendall(b'%d\n' % n)
    time.sleep(0.001)
`

// A hearer receives the count of a server outside, which does not wait. After each
// hundred numbers it reports that it has heard them all.
const hearer = `
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
n = 0
for line in s.makefile('r'):
    n += 1
    if line != '%d\n' % n:
        s.sendall(b'after %d came %r\n' % (n - 1, line.encode()))
        sys.exit(1)
    if n % 100 == 0: s.sendall(b'%d\n' % n)
`

// heard is the numbers that a server has heard from a counting program.
type heard struct {
	last  int
	gap   time.Duration // the longest between two
	wrong string        // the first that was not the next
}

// counted is a server that a program counts to.
type counted struct {
	step int // from one to the next
	echo bool
	tell bool // it counts, too

	mu sync.Mutex
	heard
	at time.Time
}

func (k *counted) serve(conn net.Conn) {
	if k.tell {
		go func() {
			tick := time.NewTicker(time.Millisecond) // there always is something on its way
			defer tick.Stop()
			for n := 1; ; n++ {
				if _, err := fmt.Fprintln(conn, n); err != nil {
					return
				}
				<-tick.C
			}
		}()
	}
	for r := bufio.NewScanner(conn); r.Scan(); {
		k.hear(r.Text())
		if k.echo {
			if _, err := fmt.Fprintln(conn, r.Text()); err != nil {
				return
			}
		}
	}
}

func (k *counted) hear(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.at.IsZero() {
		k.gap = max(k.gap, time.Since(k.at))
	}
	n, err := strconv.Atoi(text)
	if (err != nil || n != k.last+k.step) && k.wrong == "" {
		k.wrong = fmt.Sprintf("after %d came %q", k.last, text)
	}
	k.last, k.at = n, time.Now()
}

func (k *counted) now() heard {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.heard
}

// talk is a ticker, a speaker and a hearer in a sprite, and their servers.
type talk struct {
	island *island
	sprite string
	ticks  counted
	spoken counted
	told   counted
}

// talk starts all three.
func (i *island) talk(sprite string) *talk {
	i.T.Helper()
	k := &talk{island: i, sprite: sprite, ticks: counted{step: 1, echo: true}, spoken: counted{step: 1}, told: counted{step: 100, tell: true}}
	for n, p := range []struct {
		name, text string
		server     *counted
	}{{"ticker.py", ticker, &k.ticks}, {"speaker.py", speaker, &k.spoken}, {"hearer.py", hearer, &k.told}} {
		port := strconv.Itoa(97 + n)
		i.listen(i.sea, net.JoinHostPort(islandPublic, port), p.server.serve)
		i.Write(p.name, p.text)
		i.Run("", "cove", "cp", i.Home+"/../"+p.name, sprite+":/home/sprite/"+p.name)
		i.Run("", "cove", "exec", "-s", sprite, "--detach", "--", "python3", "/home/sprite/"+p.name, islandPublic, port)
	}
	k.awaitMore([3]int{})
	for _, c := range []*counted{&k.ticks, &k.spoken, &k.told} {
		c.mu.Lock()
		c.gap = 0
		c.mu.Unlock()
	}
	return k
}

// now returns each program's last number.
func (k *talk) now() [3]int {
	return [3]int{k.ticks.now().last, k.spoken.now().last, k.told.now().last}
}

// awaitMore waits until each program has gone on with no number missing. Data under way
// during a checkpoint is sent again, on a busy machine after a while.
func (k *talk) awaitMore(before [3]int) {
	t := k.island.T
	t.Helper()
	goesOn := false
	defer func() {
		if !goesOn {
			out, _ := k.island.Try("", "cove", "exec", "-s", k.sprite, "--", "sh", "-c", "pgrep -af python3; cat /proc/net/tcp; tail -n 1 count")
			t.Logf("they were at %v, and are at %v; in the sprite is\n%s", before, k.now(), out)
		}
	}()
	e2e.Await(t, "all three go on", func() bool {
		now := k.now()
		for _, c := range []*counted{&k.ticks, &k.spoken, &k.told} {
			if wrong := c.now().wrong; wrong != "" {
				t.Fatal(wrong)
			}
		}
		return now[0] > before[0]+20 && now[1] > before[1]+100 && now[2] > before[2]+200
	})
	goesOn = true
}
