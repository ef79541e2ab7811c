package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/sprites"
)

// ready waits until so many sandboxes of the pool are ready.
func (h *host) ready(n int) {
	h.t.Helper()
	await(h.t, "the pool", func() bool {
		info, err := h.client().Version(h.t.Context())
		return err == nil && info.Pool != nil && info.Pool.Ready == n
	})
}

// identity is what a sprite's sandbox is known by inside, each a line.
const identity = `hostname; cat /etc/hostname /etc/machine-id; echo "$COLOUR $SPRITE_URL"; cat /.sprite/policy/network.json; grep -rsE 'pool[.][0-9a-f]{16}' /etc /home /.sprite /run; env | grep -E 'pool[.]'; true`

// TestPool: a new sprite's sandbox is one that ran before, and has nothing of what that
// was called; each is used once, and there is another soon. One that asks for more than
// they are gets another. None is seen, nor left when the server ends, however it does.
func TestPool(t *testing.T) {
	h := newHost(t)
	h.serve(nil, "--pool", "2")
	h.ready(2)
	if out := h.run("", "cove", "list", "--json"); strings.Contains(out, "pool") {
		t.Errorf("the pool is listed: %s", out)
	}
	if out, code := h.try("", "cove", "doctor"); code != 0 || !strings.Contains(out, "of its pool of 2 sandboxes 2 are ready") {
		t.Errorf("doctor says %s", out)
	}
	pooled, tokens := map[string]bool{}, map[string]bool{}
	for _, st := range h.states() {
		if out, code := h.try("", "cove", "exec", "-s", st.Hostname, "true"); code == 0 {
			t.Errorf("one of the pool was used: %s", out)
		}
		pooled[st.Container], tokens[st.Token] = true, true
	}
	machines := map[string]bool{}
	for i, name := range []string{"one", "two"} {
		h.run("", "cove", "create", name, "--env", "COLOUR=c"+name, "--network", "none")
		out := h.run("", "cove", "exec", "-s", name, "--", "sh", "-c", identity)
		lines := strings.SplitN(strings.TrimSpace(out), "\n", 5)
		if len(lines) != 5 || lines[0] != name || lines[1] != name || machines[lines[2]] || !strings.HasPrefix(lines[3], "c"+name+" http://"+name+".") ||
			!strings.Contains(lines[4], "none") || strings.Contains(out, "pool.") {
			t.Errorf("%s knows itself as %s", name, out)
		}
		machines[lines[2]] = true
		st := h.stateOf(name)
		if !pooled[st.Container] || tokens[st.Token] || st.Incarnation != 1 {
			t.Errorf("sprite %d has the sandbox %s, of incarnation %d, with an old token: %v", i, st.Container, st.Incarnation, tokens[st.Token])
		}
	}
	h.run("", "cove", "create", "limited", "--memory", "300M")
	h.run("", "cove", "exec", "-s", "limited", "true")
	if out, code := h.try("", "cove", "create", "one"); code == 0 || !strings.Contains(out, "already") {
		t.Errorf("a taken name: %s", out)
	}
	h.ready(2)
	for _, st := range h.states() {
		if pooled[st.Container] && strings.HasPrefix(st.Hostname, "pool.") {
			t.Errorf("%s is in the pool again", st.Container)
		}
	}
	// It is a sprite as any other.
	h.run("", "cove", "checkpoint", "create", "-s", "one")
	h.run("", "cove", "suspend", "one")
	if out := h.run("", "cove", "exec", "-s", "one", "--", "sh", "-c", "hostname; echo $COLOUR"); out != "one\ncone\n" {
		t.Errorf("after a checkpoint and sleep, it is %q", out)
	}

	signalAll(t, syscall.SIGKILL, h.pid())
	h.serve(nil) // without a pool
	await(t, "the end of the pool", func() bool {
		runs, _ := filepath.Glob(filepath.Join(h.data, "run", "*")) // the patterns are right
		layers, _ := filepath.Glob(filepath.Join(h.data, "layers", "*"))
		return len(runs) == 3 && len(layers) == 4
	})
	h.run("", "cove", "exec", "-s", "two", "true")
	h.run("", "cove", "rm", "one", "two", "limited")
}

// states are those of the sandboxes that run.
func (h *host) states() (all []shim.State) {
	h.t.Helper()
	runs, _ := filepath.Glob(filepath.Join(h.data, "run", "*")) // the pattern is right
	for _, dir := range runs {
		if st, err := shim.ReadState(dir); err == nil {
			all = append(all, st)
		}
	}
	return all
}

// stateOf is the state of a sprite's sandbox.
func (h *host) stateOf(sprite string) shim.State {
	h.t.Helper()
	var info sprites.Info
	if err := json.Unmarshal([]byte(h.run("", "cove", "info", sprite, "--json")), &info); err != nil {
		h.t.Fatal(err)
	}
	st, err := shim.ReadState(filepath.Join(h.data, "run", info.ID))
	if err != nil {
		h.t.Fatal(err)
	}
	return st
}

// poolFaults kills a server, a shim or a sandbox while a pool is filled, and while a
// sprite takes what is in it: the sprite is there as it was asked for, or it is not, and
// what was to be of the pool is removed.
func (c faultCase) poolFaults(h *host, name string) {
	h.t.Helper()
	reached := filepath.Join(filepath.Dir(h.home), "reached-"+name)
	h.env = append(h.env, fault.Variable+"="+string(c.point)+"="+reached)
	server, served := h.background("", "cove", "serve", "--addr", "127.0.0.1:0", "--pool", "1")
	if c.op() == "take" {
		h.serves(server)
		h.ready(1)
		_, created := h.background("", "cove", "create", name, "--idle", "0", "--env", "COLOUR=blue")
		defer func() { _, _ = created() }()
	}
	c.strike(h, reached, server)
	if c.victim != "server" {
		h.serves(server)
	} else {
		_, _ = served()
	}
	h.run("", "cove", "server", "start") // starts a server where there is none
	if !strings.Contains(h.run("", "cove", "list"), name) {
		h.run("", "cove", "create", name, "--idle", "0", "--env", "COLOUR=blue")
	}
	out := ""
	await(h.t, "the sprite", func() (ok bool) {
		var code int
		// cove tells on stderr of a sandbox that the fault has ended.
		out, _, code = h.streams("exec", "-s", name, "--", "sh", "-c", identity)
		return code == 0
	})
	if !strings.HasPrefix(out, fmt.Sprintf("%s\n%s\n", name, name)) || !strings.Contains(out, "\nblue http://"+name+".") || strings.Contains(out, "pool.") {
		h.t.Errorf("%s knows itself as %s", name, out)
	}
	h.run("", "cove", "rm", name)
	if c.victim != "server" {
		h.ready(1)
		if err := endServer(h.bin, h.data, h.home); err != nil {
			h.t.Error(err)
		}
		_, _ = served()
	}
	c.clear(h, name)
}

// serves waits until a server that was started answers.
func (h *host) serves(server int) {
	h.t.Helper()
	await(h.t, "the server", func() bool {
		pid, err := serverPID(h.data)
		return err == nil && pid == server
	})
}
