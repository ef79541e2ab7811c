package server

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// ready waits until so many sandboxes of the pool are ready.
func ready(h *e2e.Host, n int) {
	h.T.Helper()
	e2e.Await(h.T, "the pool", func() bool {
		info, err := h.Client().Version(h.T.Context())
		return err == nil && info.Pool != nil && info.Pool.Ready == n
	})
}

// identity prints by what a sprite's sandbox is known inside, one item a line.
const identity = `hostname; cat /etc/hostname /etc/machine-id; echo "$COLOUR $SPRITE_URL"; cat /.sprite/policy/network.json; grep -rsE 'pool[.][0-9a-f]{16}' /etc /home /.sprite /run; env | grep -E 'pool[.]'; true`

// TestPool: a new sprite takes a sandbox that ran before, and keeps nothing of that
// sandbox's old name. Each sandbox is used once, and another replaces it soon. A sprite
// with a limit gets another sandbox. The pool is not listed, and none of it is left after
// a kill of the server.
func TestPool(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil, "--pool", "2")
	ready(h, 2)
	if out := h.Run("", "cove", "list", "--json"); strings.Contains(out, "pool") {
		t.Errorf("the pool is listed: %s", out)
	}
	if out, code := h.Try("", "cove", "doctor"); code != 0 || !strings.Contains(out, "of its pool, 2 of 2 are ready") {
		t.Errorf("doctor says %s", out)
	}
	pooled, tokens := map[string]bool{}, map[string]bool{}
	for _, st := range states(h) {
		if out, code := h.Try("", "cove", "exec", "-s", st.Hostname, "true"); code == 0 {
			t.Errorf("one of the pool was used: %s", out)
		}
		pooled[st.Container], tokens[st.Token] = true, true
	}
	machines := map[string]bool{}
	for i, name := range []string{"one", "two"} {
		h.Run("", "cove", "create", name, "--env", "COLOUR=c"+name, "--network", "none")
		out := h.Run("", "cove", "exec", "-s", name, "--", "sh", "-c", identity)
		lines := strings.SplitN(strings.TrimSpace(out), "\n", 5)
		if len(lines) != 5 || lines[0] != name || lines[1] != name || machines[lines[2]] || !strings.HasPrefix(lines[3], "c"+name+" http://"+name+".") ||
			!strings.Contains(lines[4], "none") || strings.Contains(out, "pool.") {
			t.Errorf("%s knows itself as %s", name, out)
		}
		machines[lines[2]] = true
		st := stateOf(h, name)
		if !pooled[st.Container] || tokens[st.Token] || st.Incarnation != 1 {
			t.Errorf("sprite %d has the sandbox %s, of incarnation %d, with an old token: %v", i, st.Container, st.Incarnation, tokens[st.Token])
		}
	}
	h.Run("", "cove", "create", "limited", "--memory", "300M")
	h.Run("", "cove", "exec", "-s", "limited", "true")
	if out, code := h.Try("", "cove", "create", "one"); code == 0 || !strings.Contains(out, "already") {
		t.Errorf("a taken name: %s", out)
	}
	ready(h, 2)
	for _, st := range states(h) {
		if pooled[st.Container] && strings.HasPrefix(st.Hostname, "pool.") {
			t.Errorf("%s is in the pool again", st.Container)
		}
	}
	// It is a sprite like any other.
	h.Run("", "cove", "checkpoint", "create", "-s", "one")
	h.Run("", "cove", "suspend", "one")
	if out := h.Run("", "cove", "exec", "-s", "one", "--", "sh", "-c", "hostname; echo $COLOUR"); out != "one\ncone\n" {
		t.Errorf("after a checkpoint and sleep, it is %q", out)
	}

	e2e.SignalAll(t, syscall.SIGKILL, h.PID())
	h.Serve(nil) // without a pool
	e2e.Await(t, "the end of the pool", func() bool {
		runs, _ := filepath.Glob(filepath.Join(h.Data, "run", "*")) // the patterns are right
		layers, _ := filepath.Glob(filepath.Join(h.Data, "layers", "*"))
		return len(runs) == 3 && len(layers) == 4
	})
	h.Run("", "cove", "exec", "-s", "two", "true")
	h.Run("", "cove", "rm", "one", "two", "limited")
}

// states returns the states of the running sandboxes.
func states(h *e2e.Host) (all []shim.State) {
	h.T.Helper()
	runs, _ := filepath.Glob(filepath.Join(h.Data, "run", "*")) // the pattern is right
	for _, dir := range runs {
		if st, err := shim.ReadState(dir); err == nil {
			all = append(all, st)
		}
	}
	return all
}

// stateOf returns the state of a sprite's sandbox.
func stateOf(h *e2e.Host, sprite string) shim.State {
	h.T.Helper()
	var info sprites.Info
	if err := json.Unmarshal([]byte(h.Run("", "cove", "info", sprite, "--json")), &info); err != nil {
		h.T.Fatal(err)
	}
	st, err := shim.ReadState(filepath.Join(h.Data, "run", info.ID))
	if err != nil {
		h.T.Fatal(err)
	}
	return st
}

// poolFaults kills a server, a shim or a sandbox while a pool is filled, or while a
// sprite takes a sandbox of it. The sprite is there as asked for, or not at all, and
// unfinished sandboxes of the pool are removed.
func poolFaults(c e2e.FaultCase, h *e2e.Host, name string) {
	h.T.Helper()
	reached := filepath.Join(filepath.Dir(h.Home), "reached-"+name)
	h.Env = append(h.Env, fault.Variable+"="+string(c.Point)+"="+reached)
	server, served := h.Background("", "cove", "serve", "--addr", "127.0.0.1:0", "--pool", "1")
	if op(c) == "take" {
		serves(h, server)
		ready(h, 1)
		_, created := h.Background("", "cove", "create", name, "--idle", "0", "--env", "COLOUR=blue")
		defer func() { _, _ = created() }()
	}
	strike(c, h, reached, server)
	if c.Victim != "server" {
		serves(h, server)
	} else {
		_, _ = served()
	}
	h.Run("", "cove", "server", "start") // starts a server where there is none
	if !strings.Contains(h.Run("", "cove", "list"), name) {
		h.Run("", "cove", "create", name, "--idle", "0", "--env", "COLOUR=blue")
	}
	out := ""
	e2e.Await(h.T, "the sprite", func() (ok bool) {
		var code int
		// On stderr, cove reports a sandbox that the fault has ended.
		out, _, code = h.Streams("exec", "-s", name, "--", "sh", "-c", identity)
		return code == 0
	})
	if !strings.HasPrefix(out, fmt.Sprintf("%s\n%s\n", name, name)) || !strings.Contains(out, "\nblue http://"+name+".") || strings.Contains(out, "pool.") {
		h.T.Errorf("%s knows itself as %s", name, out)
	}
	h.Run("", "cove", "rm", name)
	if c.Victim != "server" {
		ready(h, 1)
		if err := e2e.EndServer(h.Bin, h.Data, h.Home); err != nil {
			h.T.Error(err)
		}
		_, _ = served()
	}
	clearFault(c, h, name)
}

// serves waits until a server that was started answers.
func serves(h *e2e.Host, server int) {
	h.T.Helper()
	e2e.Await(h.T, "the server", func() bool {
		pid, err := e2e.ServerPID(h.Data)
		return err == nil && pid == server
	})
}
