package server

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
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// TestSoakFaults kills the server, the shim or the sandbox, with -9, at each step of a
// change (checkpoint, restore, fork, pause, sleep, wake, merge of layers, delete). Each time
// the sprite is in its old or its new state, with its files whole. It can be used,
// checkpointed and removed, and nothing is left in the end. In make test some points are
// tried, the same each time. In make soak all are tried, three times or COVE_SOAK_ROUNDS
// times, also as an ordinary user.
func TestSoakFaults(t *testing.T) {
	var all []e2e.FaultCase
	for _, p := range fault.Points {
		for _, victim := range []string{"server", "shim", "sandbox"} {
			all = append(all, e2e.FaultCase{Point: p, Victim: victim})
		}
	}
	rounds := 3
	if n, err := strconv.Atoi(os.Getenv("COVE_SOAK_ROUNDS")); err == nil {
		rounds = n
	}
	if !e2e.Soak() {
		rounds = 1
		t.Parallel()
		all = slices.DeleteFunc(all, func(c e2e.FaultCase) bool { return op(c) == "merge" }) // a merge takes long to prepare
		rng := rand.New(rand.NewPCG(7, 0xfa17))
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:4]
	}
	for range rounds {
		for _, c := range all {
			t.Run(fmt.Sprintf("%s at %s", c.Victim, c.Point), func(t *testing.T) { test(c, e2e.NewLoneHost(t), "paint") })
		}
	}
}

// op returns the change that has the fault point.
func op(c e2e.FaultCase) string {
	kind, _, _ := strings.Cut(string(c.Point), "-")
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

func test(c e2e.FaultCase, h *e2e.Host, name string) {
	if op := op(c); op == "pool" || op == "take" {
		poolFaults(c, h, name)
		return
	}
	reached := filepath.Join(filepath.Dir(h.Home), "reached-"+name)
	h.Serve([]string{fault.Variable + "=" + string(c.Point) + "=" + reached})
	server := h.PID()
	prepare(c, h, name)
	args := slices.Clone(faultOps[op(c)])
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "NAME", name)
	}
	_, ended := h.Background("", "cove", args...)
	strike(c, h, reached, server)
	_, _ = ended()
	whole(c, h, name)
	clearFault(c, h, name)
}

// strike kills the victims once the point is reached.
func strike(c e2e.FaultCase, h *e2e.Host, reached string, server int) {
	h.T.Helper()
	stopped := e2e.Reached(h.T, reached)
	for _, pid := range c.Victims(h, server) {
		_ = e2e.Signal(pid, syscall.SIGKILL) // it may have ended
	}
	_ = e2e.Signal(stopped, syscall.SIGCONT) // it may be the victim
}

// prepare makes the sprite, and what its change needs.
func prepare(c e2e.FaultCase, h *e2e.Host, name string) {
	h.T.Helper()
	h.Run("", "cove", "create", name, "--idle", "0")
	h.Sh(name, "head -c 1M /dev/urandom >big; sha256sum big >big.sha; echo one >data")
	switch op(c) {
	case "restore":
		h.Run("", "cove", "checkpoint", "create", "--memory", "-s", name)
	case "forget":
		h.Run("", "cove", "checkpoint", "create", "--memory", "-s", name)
		h.Run("", "cove", "checkpoint", "create", "-s", name)
	case "merge":
		for i := range 7 {
			h.Sh(name, fmt.Sprintf("echo %d >file%d", i, i))
			h.Run("", "cove", "checkpoint", "create", "-s", name)
		}
	}
	h.Sh(name, "echo two >data")
	switch op(c) {
	case "wake":
		h.Run("", "cove", "suspend", name)
	case "pause", "resume":
		h.Run("", "cove", "update", name, "--hibernate", "0")
		h.Run("", "cove", "exec", "-s", name, "--user", "root", "--", "touch", "/dev/shm/alive") // as long as the sandbox is
	}
	if op(c) == "resume" {
		h.Run("", "cove", "update", name, "--idle", "1s")
		h.Stage(name, true)
	}
}

// whole checks the sprite after the fault.
func whole(c e2e.FaultCase, h *e2e.Host, name string) {
	h.T.Helper()
	if op(c) == "delete" {
		deleted(c, h, name)
		return
	}
	// At the moment of the sandbox's death, a client may be told that the sprite can't be
	// reached.
	e2e.Await(h.T, "the sprite", func() bool {
		_, code := h.Try("", "cove", "exec", "-s", name, "true")
		return code == 0
	})
	if op := op(c); (op == "pause" || op == "resume") && c.Victim != "sandbox" {
		h.Sh(name, "test -e /dev/shm/alive")
	}
	data := content(h, name)
	if data != "two" && (op(c) != "restore" || data != "one") {
		h.T.Errorf("the sprite has %q", data)
	}
	var list []sprites.Checkpoint
	if err := json.Unmarshal([]byte(h.Run("", "cove", "checkpoint", "list", "--all", "-s", name, "--json")), &list); err != nil {
		h.T.Fatal(err)
	}
	lost := data != "two"
	for _, cp := range list {
		if cp.ID == "Current" {
			continue
		}
		h.Run("", "cove", "fork", name, "look", "--boot", "--checkpoint", cp.ID)
		got := content(h, "look")
		h.Run("", "cove", "rm", "look")
		switch {
		case cp.ID == "v1" && op(c) != "checkpoint" && got != "one", cp.ID == "v1" && op(c) == "checkpoint" && got != "two":
			h.T.Errorf("%s has %q", cp.ID, got)
		case cp.IsAuto && got == "two":
			lost = false
		}
	}
	if lost {
		h.T.Errorf("what was before the restore is nowhere: %+v", list)
	}
	h.Run("", "cove", "server", "start") // unless one runs
	if strings.Contains(h.Run("", "cove", "list"), "copy") {
		if got := content(h, "copy"); got != "two" {
			h.T.Errorf("the fork has %q", got)
		}
		h.Run("", "cove", "rm", "copy")
	}
	h.Run("", "cove", "checkpoint", "create", "-s", name)
	content(h, name)
}

// content returns the sprite's file data, and fails if another file is damaged.
func content(h *e2e.Host, name string) string {
	h.T.Helper()
	return strings.TrimSpace(h.Sh(name, "sha256sum --status -c big.sha; for f in file*; do test \"$f\" = 'file*' || test \"file$(cat $f)\" = $f; done; cat data"))
}

// deleted checks that a sprite is gone, or unchanged.
func deleted(c e2e.FaultCase, h *e2e.Host, name string) {
	h.T.Helper()
	e2e.Await(h.T, "the sprite's end, or its use", func() bool {
		h.Run("", "cove", "server", "start") // unless one runs
		if !strings.Contains(h.Run("", "cove", "list"), name) {
			return true
		}
		_, code := h.Try("", "cove", "exec", "-s", name, "true")
		return code == 0 && content(h, name) == "two"
	})
}

// clearFault removes the sprite; nothing of it may be left.
func clearFault(c e2e.FaultCase, h *e2e.Host, name string) {
	h.T.Helper()
	h.Run("", "cove", "server", "start") // unless one runs
	if strings.Contains(h.Run("", "cove", "list"), name) {
		h.Run("", "cove", "rm", name)
	}
	var left []string
	defer func() {
		if len(left) > 0 {
			h.T.Errorf("left: %q", left)
		}
	}()
	e2e.Await(h.T, "the end of what it had", func() bool {
		left = nil
		for _, dir := range []string{"run", "layers", "images", "memories", "aside"} {
			found, _ := filepath.Glob(filepath.Join(h.Data, dir, "*")) // the pattern is right
			left = append(left, found...)
		}
		return len(left) == 0 || h.T.Failed()
	})
}
