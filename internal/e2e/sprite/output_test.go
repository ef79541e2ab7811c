package sprite

import (
	"context"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// TestSoakOutput: a command that writes without end (10 GiB in make soak) to a
// client that reads, to one that never reads, or to one that vanishes. It hardly
// grows the memory of the server and the shim, and holds up no other command.
func TestSoakOutput(t *testing.T) {
	size := int64(256 << 20)
	if e2e.Soak() {
		size = 10 << 30
	}
	h := e2e.NewLoneHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	sprite := h.Client().Sprite("paint")
	if err := sprite.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	watched := map[string]int{"the server": h.PID(), "the shim": h.Shims()[0]}
	allowed := map[string]int64{"the server": 32 << 20, "the shim": 64 << 20} // the shim's TCP/IP stack has buffers for each connection
	before := map[string]int64{}
	for who, pid := range watched {
		before[who] = e2e.PeakResident(t, pid)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	never := sprite.CommandContext(ctx, "head", "-c", strconv.FormatInt(size, 10), "/dev/zero")
	if _, err := never.StdoutPipe(); err != nil { // nobody reads it
		t.Fatal(err)
	}
	if err := never.Start(); err != nil {
		t.Fatal(err)
	}
	gone, vanish := context.WithCancel(t.Context())
	vanishing := sprite.CommandContext(gone, "head", "-c", strconv.FormatInt(size, 10), "/dev/zero")
	first := make(chan struct{})
	vanishing.Stdout = writerFunc(func(p []byte) (int, error) {
		select {
		case <-first:
		default:
			close(first)
		}
		return len(p), nil
	})
	if err := vanishing.Start(); err != nil {
		t.Fatal(err)
	}
	<-first
	vanish()

	reading := sprite.Command("head", "-c", strconv.FormatInt(size, 10), "/dev/zero")
	out, err := reading.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := reading.Start(); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, out)
	if err != nil || n != size {
		t.Errorf("%d bytes came of %d: %v", n, size, err)
	}
	if err := reading.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d MiB in %v", size>>20, time.Since(began))
	if got, err := sprite.Command("echo", "undisturbed").Output(); err != nil || string(got) != "undisturbed\n" {
		t.Errorf("another command gave %q, %v", got, err)
	}
	for who, pid := range watched {
		if grew := e2e.PeakResident(t, pid) - before[who]; grew > allowed[who] {
			t.Errorf("%s grew by %d MiB", who, grew>>20)
		}
	}
	cancel()
	_ = never.Wait() // its context has ended
	_ = vanishing.Wait()
	if err := h.Client().Delete(t.Context(), "paint", sprites.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
