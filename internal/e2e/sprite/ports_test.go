package sprite

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// listenScript listens on a port until it gets its first line of input, and ends at the
// second.
const listenScript = `
import socket
s = socket.create_server(("127.0.0.1", 3000))
print("open", flush=True); input()
s.close()
print("closed", flush=True); input()
`

// TestPorts is as in internal/guest, but in gVisor, whose delay it logs. The guest's own
// port is not shown.
//
// Statement 57: a command's client is told when the command opens a port and when the
// port closes, within about a second (logged, not checked).
//
// Statement 124: the same holds for clients that watch the sprite. A later watch lists
// the open port.
func TestPorts(t *testing.T) {
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint")
	sprite := h.Client().Sprite("paint")
	w, err := sprite.WatchPorts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	watched, told := make(chan sprites.PortEvent, 10), make(chan sprites.PortEvent, 10)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e, err := w.Next(); err == nil; e, err = w.Next() {
			watched <- e
		}
	}()
	cmd := sprite.Command("python3", "-c", listenScript)
	cmd.OnPort = func(e sprites.PortEvent) { told <- e }
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for _, step := range []struct{ word, event string }{{"open\n", sprites.PortOpened}, {"closed\n", sprites.PortClosed}} {
		if _, err := io.ReadFull(out, make([]byte, len(step.word))); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, events := range []chan sprites.PortEvent{told, watched} {
			select {
			case e := <-events:
				if pid == 0 {
					pid = e.PID
				}
				if want := (sprites.PortEvent{Type: step.event, Port: 3000, Address: "127.0.0.1", PID: pid}); e != want || pid < 2 {
					t.Errorf("got %v, want %v", e, want)
				}
			case <-time.After(e2e.LastResort):
				t.Fatalf("no %s", step.event)
			}
		}
		t.Logf("%s after %v", step.event, time.Since(began))
		if step.event == sprites.PortOpened {
			list, err := sprite.WatchPorts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := list.Open(); len(got) != 1 || got[0].Port != 3000 || got[0].PID != pid {
				t.Errorf("the list is %v", got)
			}
			if err := list.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	<-ended
	if slices.ContainsFunc(w.Open(), func(e sprites.PortEvent) bool { return e.Port == 7070 }) || len(watched)+len(told) > 0 {
		t.Errorf("at first %v, and %d events more", w.Open(), len(watched)+len(told))
	}
}
