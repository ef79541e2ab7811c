package sprite

import (
	"bytes"
	"errors"
	"fmt"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// TestSoakRemoved: if a command's sprite is removed, the command line and the client say
// so. The removal comes during the sprite's start, the command's output, its caller's
// reconnection after a kill of the server, or the server's end. In make soak there are
// many more moments.
func TestSoakRemoved(t *testing.T) {
	rounds := 3
	if e2e.Soak() {
		rounds = 40
	}
	for _, test := range []struct {
		when string
		how  func(*e2e.Host, *removal)
	}{
		{"starting", removeStarting},
		{"printing", removePrinting},
		{"coming back", removeLost},
		{"server ends", removeEnding},
	} {
		t.Run(test.when, func(t *testing.T) {
			h := e2e.NewHost(t)
			h.Serve(nil)
			for i := range rounds {
				name := fmt.Sprintf("gone-%d", i)
				h.Run("", "cove", "create", name)
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

// checkRemoved checks that a command line and a client's command report the removal.
func checkRemoved(h *e2e.Host, wait func() (string, error), client error) {
	h.T.Helper()
	out, err := wait()
	says := strings.TrimPrefix(out[max(strings.LastIndex(out, "\ncove: "), 0):], "\n")
	if !strings.HasSuffix(out, "cove: the sprite was removed\n") || e2e.ExitCode(err) != 75 {
		h.T.Errorf("the command line ended with %v and said %q", err, says)
	}
	if !errors.Is(client, sprites.ErrRemoved) {
		h.T.Errorf("the client says %v", client)
	}
}

// remove removes the sprite, in a while.
func remove(h *e2e.Host, r *removal) {
	h.T.Helper()
	<-time.After(r.after)
	if out, code := h.Try("", "cove", "rm", "--force", r.sprite); code != 0 {
		h.T.Errorf("rm: %s", out)
	}
}

func removeStarting(h *e2e.Host, r *removal) {
	_, wait := h.Background("", "cove", "exec", "-s", r.sprite, "sleep", "100000")
	e2e.Await(h.T, "the command line's command to be on its way", func() bool {
		info, err := h.Client().Get(h.T.Context(), r.sprite)
		return err == nil && slices.Contains(info.Cove.AwakeBy, "exec")
	})
	ran, sent := make(chan error, 1), make(chan struct{})
	written := sync.OnceFunc(func() { close(sent) })
	ctx := httptrace.WithClientTrace(h.T.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { written() }})
	go func() {
		err := h.Client().Sprite(r.sprite).CommandContext(ctx, "sleep", "100000").Run()
		written()
		ran <- err
	}()
	<-sent
	<-time.After(50 * time.Millisecond) // for the server to have begun with it
	remove(h, r)
	checkRemoved(h, wait, <-ran)
}

// printing starts a command from the command line and from a client, and returns once
// both have some of its output.
func printing(h *e2e.Host, r *removal) (wait func() (string, error), ran <-chan error) {
	h.T.Helper()
	const script = "touch ~/$1; while :; do echo line; sleep 0.01; done"
	_, wait = h.Background("", "cove", "exec", "-s", r.sprite, "--", "sh", "-c", script, "sh", "a")
	cmd := h.Client().Sprite(r.sprite).Command("sh", "-c", script, "sh", "b")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		h.T.Fatal(err)
	}
	e2e.Await(h.T, "the commands", func() bool {
		_, code := h.Try("", "cove", "exec", "-s", r.sprite, "--", "sh", "-c", "ls ~/a ~/b")
		return code == 0
	})
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return wait, ended
}

func removePrinting(h *e2e.Host, r *removal) {
	wait, ran := printing(h, r)
	remove(h, r)
	checkRemoved(h, wait, <-ran)
}

// removeLost kills the server, and removes the sprite while the callers reconnect to the
// next one.
func removeLost(h *e2e.Host, r *removal) {
	wait, ran := printing(h, r)
	e2e.SignalAll(h.T, syscall.SIGKILL, h.PID())
	if err := <-ran; !errors.Is(err, sprites.ErrNoExit) || errors.Is(err, sprites.ErrRemoved) {
		h.T.Errorf("of a server that was killed, the client says %v", err)
	}
	h.Run("", "cove", "server", "start") // starts a server where there is none
	remove(h, r)
	checkRemoved(h, wait, sprites.ErrRemoved) // a client does not come back by itself
}

// removeEnding ends the server while it removes the sprite. The client is told the
// removal, or the server's end if that comes first.
func removeEnding(h *e2e.Host, r *removal) {
	wait, ran := printing(h, r)
	_, removed := h.Background("", "cove", "rm", "--force", r.sprite)
	<-time.After(r.after / 4)
	e2e.SignalAll(h.T, syscall.SIGTERM, h.PID())
	_, _ = removed()                             // it may be cut off, too
	h.Try("", "cove", "rm", "--force", r.sprite) // where it had not begun, or goes on
	if err := <-ran; !errors.Is(err, sprites.ErrRemoved) && !strings.Contains(err.Error(), "shutting down") {
		h.T.Errorf("the client says %v", err)
	}
	checkRemoved(h, wait, sprites.ErrRemoved)
}
