package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/sprites"
)

// A faultCase kills a victim when a change of a sprite is at a point.
type faultCase struct {
	point  fault.Point
	victim string // server, shim or sandbox
}

// TestSoakFaults kills the server, the shim or the sandbox, with -9, at each step of
// a checkpoint, a restore, a fork, a pause, a sleep, a wake, a merge of layers, and deletes.
// Each time the sprite is what it was or what it was to become, with its files whole,
// and can be used, checkpointed and removed; and nothing is left in the end. make test
// does some, the same each time; make soak all, three times or COVE_SOAK_ROUNDS times,
// also as an ordinary user.
func TestSoakFaults(t *testing.T) {
	var all []faultCase
	for _, p := range fault.Points {
		for _, victim := range []string{"server", "shim", "sandbox"} {
			all = append(all, faultCase{p, victim})
		}
	}
	rounds := 3
	if n, err := strconv.Atoi(os.Getenv("COVE_SOAK_ROUNDS")); err == nil {
		rounds = n
	}
	if !soak() {
		rounds = 1
		t.Parallel()
		all = slices.DeleteFunc(all, func(c faultCase) bool { return c.op() == "merge" }) // which takes long to prepare
		rng := rand.New(rand.NewPCG(7, 0xfa17))
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:4]
	}
	for range rounds {
		for _, c := range all {
			t.Run(fmt.Sprintf("%s at %s", c.victim, c.point), func(t *testing.T) { c.test(newLoneHost(t), "paint") })
		}
	}
}

// op is the change in which the point is.
func (c faultCase) op() string {
	kind, _, _ := strings.Cut(string(c.point), "-")
	switch kind {
	case "seal", "move":
		return "checkpoint"
	case "layer":
		return "delete"
	}
	return kind
}

// faultOps are the commands that make the changes.
var faultOps = map[string][]string{
	"checkpoint": {"checkpoint", "create", "--memory", "-s", "NAME"},
	"restore":    {"restore", "v1", "-s", "NAME"},
	"fork":       {"fork", "NAME", "copy"},
	"pause":      {"update", "NAME", "--idle", "1s"},
	"resume":     {"exec", "-s", "NAME", "true"},
	"sleep":      {"suspend", "NAME"},
	"wake":       {"exec", "-s", "NAME", "true"},
	"merge":      {"checkpoint", "create", "-s", "NAME"},
	"forget":     {"checkpoint", "rm", "v1", "-s", "NAME"},
	"delete":     {"rm", "NAME"},
}

func (c faultCase) test(h *host, name string) {
	if op := c.op(); op == "pool" || op == "take" {
		c.poolFaults(h, name)
		return
	}
	reached := filepath.Join(filepath.Dir(h.home), "reached-"+name)
	h.serve([]string{fault.Variable + "=" + string(c.point) + "=" + reached})
	server := h.pid()
	c.prepare(h, name)
	args := slices.Clone(faultOps[c.op()])
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "NAME", name)
	}
	_, ended := h.background("", "cove", args...)
	c.strike(h, reached, server)
	_, _ = ended()
	c.whole(h, name)
	c.clear(h, name)
}

// strike kills the victims once the point is reached.
func (c faultCase) strike(h *host, reached string, server int) {
	h.t.Helper()
	stopped := 0
	await(h.t, "the point", func() bool {
		text, err := os.ReadFile(reached)
		stopped, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil && stopped > 0
	})
	for _, pid := range c.victims(h, server) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	_ = syscall.Kill(stopped, syscall.SIGCONT) // it may be the victim
}

// prepare makes the sprite, and what its change needs.
func (c faultCase) prepare(h *host, name string) {
	h.t.Helper()
	h.run("", "cove", "create", name, "--idle", "0")
	h.sh(name, "head -c 1M /dev/urandom >big; sha256sum big >big.sha; echo one >data")
	switch c.op() {
	case "restore":
		h.run("", "cove", "checkpoint", "create", "--memory", "-s", name)
	case "forget":
		h.run("", "cove", "checkpoint", "create", "--memory", "-s", name)
		h.run("", "cove", "checkpoint", "create", "-s", name)
	case "merge":
		for i := range 7 {
			h.sh(name, fmt.Sprintf("echo %d >file%d", i, i))
			h.run("", "cove", "checkpoint", "create", "-s", name)
		}
	}
	h.sh(name, "echo two >data")
	switch c.op() {
	case "wake":
		h.run("", "cove", "suspend", name)
	case "pause", "resume":
		h.run("", "cove", "update", name, "--hibernate", "0")
		h.run("", "cove", "exec", "-s", name, "--user", "root", "--", "touch", "/dev/shm/alive") // as long as the sandbox is
	}
	if c.op() == "resume" {
		h.run("", "cove", "update", name, "--idle", "1s")
		h.stage(name, true)
	}
}

func (h *host) sh(sprite, script string) string {
	h.t.Helper()
	return h.run("", "cove", "exec", "-s", sprite, "--", "sh", "-ec", script)
}

// victims are the processes that are killed.
func (c faultCase) victims(h *host, server int) []int {
	switch c.victim {
	case "server":
		return []int{server}
	case "shim":
		return h.shims()
	}
	var pids []int
	runs, _ := filepath.Glob(filepath.Join(h.data, "run", "*")) // the pattern is right
	for _, dir := range runs {
		if st, err := shim.ReadState(dir); err == nil && st.PID > 0 {
			pids = append(pids, st.PID)
		}
	}
	return pids
}

// whole looks at what has become of the sprite.
func (c faultCase) whole(h *host, name string) {
	h.t.Helper()
	if c.op() == "delete" {
		c.deleted(h, name)
		return
	}
	// Who comes in the moment of its death may be told that it can't be reached.
	await(h.t, "the sprite", func() bool {
		_, code := h.try("", "cove", "exec", "-s", name, "true")
		return code == 0
	})
	if op := c.op(); (op == "pause" || op == "resume") && c.victim != "sandbox" {
		h.sh(name, "test -e /dev/shm/alive")
	}
	data := h.content(name)
	if data != "two" && (c.op() != "restore" || data != "one") {
		h.t.Errorf("the sprite has %q", data)
	}
	var list []sprites.Checkpoint
	if err := json.Unmarshal([]byte(h.run("", "cove", "checkpoint", "list", "--all", "-s", name, "--json")), &list); err != nil {
		h.t.Fatal(err)
	}
	lost := data != "two"
	for _, cp := range list {
		if cp.ID == "Current" {
			continue
		}
		h.run("", "cove", "fork", name, "look", "--boot", "--checkpoint", cp.ID)
		got := h.content("look")
		h.run("", "cove", "rm", "look")
		switch {
		case cp.ID == "v1" && c.op() != "checkpoint" && got != "one":
			h.t.Errorf("%s has %q", cp.ID, got)
		case cp.IsAuto && got == "two":
			lost = false
		}
	}
	if lost {
		h.t.Errorf("what was before the restore is nowhere: %+v", list)
	}
	h.run("", "cove", "server", "start") // unless one runs
	if strings.Contains(h.run("", "cove", "list"), "copy") {
		if got := h.content("copy"); got != "two" {
			h.t.Errorf("the fork has %q", got)
		}
		h.run("", "cove", "rm", "copy")
	}
	h.run("", "cove", "checkpoint", "create", "-s", name)
	h.content(name)
}

// content is what stands in the sprite's file data, where all else is what it was.
func (h *host) content(name string) string {
	h.t.Helper()
	return strings.TrimSpace(h.sh(name, "sha256sum --status -c big.sha; for f in file*; do test \"$f\" = 'file*' || test \"file$(cat $f)\" = $f; done; cat data"))
}

// deleted looks whether a sprite is gone, or what it was.
func (c faultCase) deleted(h *host, name string) {
	h.t.Helper()
	await(h.t, "the sprite's end, or its use", func() bool {
		h.run("", "cove", "server", "start") // unless one runs
		if !strings.Contains(h.run("", "cove", "list"), name) {
			return true
		}
		_, code := h.try("", "cove", "exec", "-s", name, "true")
		return code == 0 && h.content(name) == "two"
	})
}

// clear removes the sprite; nothing of it may be left.
func (c faultCase) clear(h *host, name string) {
	h.t.Helper()
	h.run("", "cove", "server", "start") // unless one runs
	if strings.Contains(h.run("", "cove", "list"), name) {
		h.run("", "cove", "rm", name)
	}
	var left []string
	defer func() {
		if len(left) > 0 {
			h.t.Errorf("left: %q", left)
		}
	}()
	await(h.t, "the end of what it had", func() bool {
		left = nil
		for _, dir := range []string{"run", "layers", "images", "memories", "aside"} {
			found, _ := filepath.Glob(filepath.Join(h.data, dir, "*")) // the pattern is right
			left = append(left, found...)
		}
		return len(left) == 0 || h.t.Failed()
	})
}
