package trials

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestSoakClients has ten clients make calls at random, each in a sprite of its own,
// while processes are killed. A call reported as done has its whole effect. A failed or
// interrupted call has its whole effect or none. No error shows a bug of cove.
func TestSoakClients(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil, "--idle", "0")
	if !e2e.Soak() { // a part of make test's fifteen minutes; TestSoakSQLite is there
		return
	}
	n, clients := rounds(1), 10
	rng := rand.New(rand.NewPCG(15, 0x7a1a1))
	all := make([]*client, clients)
	for i := range all {
		all[i] = &client{Host: h, name: fmt.Sprintf("client-%d", i), rng: rand.New(rand.NewPCG(uint64(i), 15)), points: map[string][]string{}}
		h.Run("", "cove", "create", all[i].name, "--idle", "0")
		all[i].states = []string{""}
	}
	for range n {
		var working sync.WaitGroup
		for _, c := range all {
			working.Go(func() {
				for range 3 {
					c.step(t.Context())
				}
			})
		}
		if rng.IntN(2) == 0 {
			e2e.Await(t, "a moment", func() bool { return rng.IntN(20) == 0 })
			server := h.PID()
			victim := []string{"server", "shim", "sandbox"}[rng.IntN(3)]
			pids := e2e.FaultCase{Victim: victim}.Victims(h, server)
			if victim != "server" && len(pids) > 0 {
				pids = pids[rng.IntN(len(pids)):][:1]
			}
			for _, pid := range pids {
				_ = e2e.Signal(pid, syscall.SIGKILL) // it may have ended
			}
			if victim == "server" {
				e2e.Await(t, "the server's end", func() bool { return syscall.Kill(server, 0) != nil })
			}
		}
		working.Wait()
		h.Run("", "cove", "server", "start") // unless one runs
		for _, c := range all {
			c.check(t.Context())
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	for _, c := range all {
		t.Logf("%s: %d done, %v failed", c.name, c.done, c.failed)
	}
}

// client is one of several clients of a server. Its sprite holds one of states.
type client struct {
	*e2e.Host
	name   string
	rng    *rand.Rand
	states []string
	points map[string][]string // of checkpoints, by id
	next   int
	checks int // of the state, so far
	done   int
	failed map[int]int // by exit code
}

// call runs a command line, and reports whether it was done.
func (c *client) call(ctx context.Context, args ...string) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, e2e.LastResort)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "cove"), args...)
	cmd.Env = c.Environ()
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err == nil {
		c.done++
		return out.String(), true
	}
	code := cmd.ProcessState.ExitCode()
	if c.failed == nil {
		c.failed = map[int]int{}
	}
	c.failed[code]++
	if code < 0 || strings.Contains(said.String(), "internal error") || strings.Contains(said.String(), "panic") {
		c.T.Errorf("%s: exit code %d: %s", strings.Join(args, " "), code, said.String())
	}
	return "", false
}

// shell runs a script in the sprite.
func (c *client) shell(ctx context.Context, script string) (string, bool) {
	return c.call(ctx, "exec", "-s", c.name, "--", "sh", "-ec", script)
}

// step does one thing at random.
func (c *client) step(ctx context.Context) {
	switch c.rng.IntN(10) {
	default:
		c.next++
		line := strconv.Itoa(c.next) + "\n"
		// A command that its client has lost may come late. It changes nothing after the next check.
		_, ok := c.shell(ctx, fmt.Sprintf("exec 9>>~/lock; flock 9; test ! -e ~/checked-%d; echo %d >>~/lines", c.checks, c.next))
		after := make([]string, 0, 2*len(c.states))
		for _, s := range c.states {
			if !ok {
				after = append(after, s)
			}
			after = append(after, s+line)
		}
		c.states = after
	case 0:
		if out, ok := c.call(ctx, "checkpoint", "create", "-s", c.name, "--json"); ok {
			c.points[e2e.JSONField(c.T, out, "id")] = slices.Clone(c.states)
		}
	case 1:
		ids := slices.Sorted(func(yield func(string) bool) {
			for id := range c.points {
				if !yield(id) {
					return
				}
			}
		})
		if len(ids) == 0 {
			return
		}
		id := ids[c.rng.IntN(len(ids))]
		if _, ok := c.call(ctx, "restore", id, "-s", c.name); ok {
			c.states = slices.Clone(c.points[id])
		} else {
			c.states = append(c.states, c.points[id]...)
		}
	case 2:
		_, _ = c.call(ctx, "suspend", c.name)
	case 3:
		copied := c.name + "-copy"
		if _, ok := c.call(ctx, "fork", c.name, copied); ok {
			if got, ok := c.call(ctx, "exec", "-s", copied, "--", "sh", "-c", "cat ~/lines || true"); ok && !slices.Contains(c.states, got) {
				c.T.Errorf("a fork of %s has %q, and it may have %q", c.name, got, c.states)
			}
		}
		_, _ = c.call(ctx, "rm", "--force", copied) // it may not be there
	case 4:
		_, _ = c.call(ctx, "policy", "allow", fmt.Sprintf("host-%d.example.org", c.rng.IntN(9)), "-s", c.name)
	}
}

// check reads the sprite's state, which must be a possible one.
func (c *client) check(ctx context.Context) {
	var got string
	e2e.Await(c.T, c.name+" is read", func() (ok bool) { // a killed sandbox is noticed, and boots anew
		got, ok = c.shell(ctx, fmt.Sprintf("exec 9>>~/lock; flock 9; touch ~/checked-%d; cat ~/lines || true", c.checks))
		return ok
	})
	c.checks++
	if !slices.Contains(c.states, got) {
		c.T.Errorf("%s has %q, and may have %q", c.name, got, c.states)
	}
	c.states = []string{got}
}
