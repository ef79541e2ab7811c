package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// TestSoakRemoved: a command whose sprite is removed says so, to the command line and to
// the client, at whatever moment that is: while the sprite starts for it, while it prints,
// and while its caller comes back from a server that was killed, or ended meanwhile. make
// soak has many more moments.
func TestSoakRemoved(t *testing.T) {
	rounds := 3
	if soak() {
		rounds = 40
	}
	for _, test := range []struct {
		when string
		how  func(*host, *removal)
	}{
		{"starting", (*host).removeStarting},
		{"printing", (*host).removePrinting},
		{"coming back", (*host).removeLost},
		{"server ends", (*host).removeEnding},
	} {
		t.Run(test.when, func(t *testing.T) {
			h := newHost(t)
			h.serve(nil)
			for i := range rounds {
				name := fmt.Sprintf("gone-%d", i)
				h.run("", "cove", "create", name)
				// From at once to a third of a second later.
				r := &removal{sprite: name, after: time.Duration(i*7%rounds) * 330 * time.Millisecond / time.Duration(rounds)}
				test.how(h, r)
				if t.Failed() {
					t.Fatalf("the sprite was removed after %v", r.after)
				}
			}
		})
	}
}

// removal is a sprite that is removed while a command runs in it.
type removal struct {
	sprite string
	after  time.Duration // from the moment that is looked for
}

// checkRemoved wants a command line, and a client's command, to have been told why they
// ended.
func (h *host) checkRemoved(wait func() (string, error), client error) {
	h.t.Helper()
	out, err := wait()
	says := strings.TrimPrefix(out[max(strings.LastIndex(out, "\ncove: "), 0):], "\n")
	if !strings.HasSuffix(out, "cove: the sprite was removed\n") || exitCode(err) != 75 {
		h.t.Errorf("the command line ended with %v and said %q", err, says)
	}
	if !errors.Is(client, sprites.ErrRemoved) {
		h.t.Errorf("the client says %v", client)
	}
}

func exitCode(err error) int {
	if e, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok {
		return e.ExitCode()
	}
	return 0
}

// remove removes the sprite, in a while.
func (h *host) remove(r *removal) {
	h.t.Helper()
	<-time.After(r.after)
	if out, code := h.try("", "cove", "rm", "--force", r.sprite); code != 0 {
		h.t.Errorf("rm: %s", out)
	}
}

func (h *host) removeStarting(r *removal) {
	_, wait := h.background("", "cove", "exec", "-s", r.sprite, "sleep", "1000")
	ran := make(chan error, 1)
	go func() { ran <- h.client().Sprite(r.sprite).Command("sleep", "1000").Run() }()
	await(h.t, "the commands to be on their way", func() bool {
		info, err := h.client().Get(h.t.Context(), r.sprite)
		return err == nil && slices.Contains(info.Cove.AwakeBy, "exec")
	})
	<-time.After(50 * time.Millisecond) // for the other of the two
	h.remove(r)
	h.checkRemoved(wait, <-ran)
}

// printing starts a command, by the command line and by a client, and returns when
// both have had something of it.
func (h *host) printing(r *removal) (wait func() (string, error), ran <-chan error) {
	h.t.Helper()
	const script = "touch ~/$1; while :; do echo line; sleep 0.01; done"
	_, wait = h.background("", "cove", "exec", "-s", r.sprite, "--", "sh", "-c", script, "sh", "a")
	cmd := h.client().Sprite(r.sprite).Command("sh", "-c", script, "sh", "b")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	await(h.t, "the commands", func() bool {
		_, code := h.try("", "cove", "exec", "-s", r.sprite, "--", "sh", "-c", "ls ~/a ~/b")
		return code == 0
	})
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return wait, ended
}

func (h *host) removePrinting(r *removal) {
	wait, ran := h.printing(r)
	h.remove(r)
	h.checkRemoved(wait, <-ran)
}

// removeLost kills the server, and removes the sprite while the next one is come back to.
func (h *host) removeLost(r *removal) {
	wait, ran := h.printing(r)
	signalAll(h.t, syscall.SIGKILL, h.pid())
	if err := <-ran; !errors.Is(err, sprites.ErrNoExit) || errors.Is(err, sprites.ErrRemoved) {
		h.t.Errorf("of a server that was killed, the client says %v", err)
	}
	h.run("", "cove", "server", "start") // starts a server where there is none
	h.remove(r)
	h.checkRemoved(wait, sprites.ErrRemoved) // a client does not come back by itself
}

// removeEnding ends the server while it removes the sprite. What the client is told is
// what it was in time for.
func (h *host) removeEnding(r *removal) {
	wait, ran := h.printing(r)
	_, removed := h.background("", "cove", "rm", "--force", r.sprite)
	<-time.After(r.after / 4)
	signalAll(h.t, syscall.SIGTERM, h.pid())
	_, _ = removed()                             // it may be cut off, too
	h.try("", "cove", "rm", "--force", r.sprite) // where it had not begun, or goes on
	if err := <-ran; !errors.Is(err, sprites.ErrRemoved) && !strings.Contains(err.Error(), "shutting down") {
		h.t.Errorf("the client says %v", err)
	}
	h.checkRemoved(wait, sprites.ErrRemoved)
}
