// Package runtimetest is the suite that every sprite.Runtime must pass.
package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// lastResort bounds what is waited for, so that a broken runtime does not hang for ever.
const lastResort = 10 * time.Minute

// Run runs the suite. Restart returns a new runtime over the same data, as a
// server that starts again has; the old one is not used after it.
func Run(t *testing.T, rt sprite.Runtime, restart func(t *testing.T) sprite.Runtime) {
	ctx := t.Context()
	m := sprite.Machine{
		Layers: []string{"1111222233334444"},
		ID:     "00112233aabbccdd", Hostname: "paint", MachineID: strings.Repeat("ab", 16), Incarnation: 1,
		Env: map[string]string{"COLOUR": "blue"}, MemoryMB: 1024, CPUs: 1,
	}
	sb, err := rt.Boot(ctx, m)
	if err != nil {
		t.Fatalf("Boot: %v", err)
	}
	t.Cleanup(func() { stop(t, sb) })
	if got := sb.ID(); got != m.ID {
		t.Errorf("ID: got %q, want %q", got, m.ID)
	}
	if st := sb.Status(); st.Incarnation != 1 || st.Address == "" || st.Token != "" || st.Started.IsZero() {
		t.Errorf("Status: got %+v, want incarnation, address and start, and no token", st)
	}

	t.Run("commands", func(t *testing.T) { commands(t, sb) })
	t.Run("commands and clients that leave", func(t *testing.T) { leavers(t, sb) })
	t.Run("a terminal that a child holds", func(t *testing.T) { terminal(t, sb) })
	t.Run("a second boot is refused", func(t *testing.T) {
		if _, err := rt.Boot(ctx, m); err == nil {
			t.Error("Boot of a live sprite succeeded")
		}
	})
	t.Run("a port nobody listens on", func(t *testing.T) {
		conn, err := sb.Dial(ctx, 9)
		if err == nil {
			_ = conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial: got %v, want connection refused", err)
		}
	})
	t.Run("the guest's port wants a proof", func(t *testing.T) {
		conn, err := sb.Dial(ctx, boot.Port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(lastResort))
		_, err = io.WriteString(conn, "GET /v1/health HTTP/1.1\r\nHost: guest\r\n\r\n")
		answer, readErr := io.ReadAll(conn)
		if len(answer) > 0 || errors.Is(readErr, os.ErrDeadlineExceeded) {
			t.Errorf("without a handshake: %q, %v, %v", answer, err, readErr)
		}
	})
	if p, ok := sb.(sprite.Pauser); ok {
		t.Run("pause and resume", func(t *testing.T) { pause(t, sb, p) })
	}
	t.Run("what there is on the disk", func(t *testing.T) { inventory(t, rt, m, true) })
	t.Run("restart of the server", func(t *testing.T) {
		rt = restart(t)
		live, err := rt.Live(ctx)
		if err != nil || len(live) != 1 || live[0].ID() != m.ID {
			t.Fatalf("Live: got %v, %v, want the one sandbox", live, err)
		}
		sb = live[0]
		if got := output(t, sb, "cat", "/home/sprite/kept"); got != "kept\n" {
			t.Errorf("after a restart of the server: got %q", got)
		}
	})
	t.Run("the disk outlives the sandbox", func(t *testing.T) {
		stop(t, sb)
		if got := sb.Status().Ended; got != "stopped" {
			t.Errorf("Ended: got %q, want %q", got, "stopped")
		}
		m.Incarnation = 2
		if sb, err = rt.Boot(ctx, m); err != nil {
			t.Fatalf("boot again: %v", err)
		}
		if got := output(t, sb, "cat", "/home/sprite/kept"); got != "kept\n" {
			t.Errorf("after a reboot: got %q", got)
		}
	})
	t.Run("destroy", func(t *testing.T) {
		if err := rt.Destroy(ctx, m.ID); err == nil {
			t.Error("Destroy of a live sprite succeeded")
		}
		stop(t, sb)
		for range 2 {
			if err := rt.Destroy(ctx, m.ID); err != nil {
				t.Errorf("Destroy: %v", err)
			}
		}
		if live, err := rt.Live(ctx); err != nil || len(live) != 0 {
			t.Errorf("Live after Destroy: got %v, %v, want none", live, err)
		}
		inventory(t, rt, m, false)
	})
}

// inventory looks for the layer of a machine that is live, or was destroyed, and removes it
// then. Nobody else has its sandbox.
func inventory(t *testing.T, rt sprite.Runtime, m sprite.Machine, live bool) {
	t.Helper()
	ctx, layer := t.Context(), m.Layers[0]
	if mounted, err := rt.Mounted(ctx); err != nil || slices.Contains(mounted, layer) != live {
		t.Errorf("Mounted: got %q, %v; the sandbox of %s is live: %v", mounted, err, layer, live)
	}
	if lost, err := rt.Lost(m.ID), rt.Occupied(m.ID); lost != "" || err != nil {
		t.Errorf("Lost: got %q; Occupied: %v", lost, err)
	}
	stock := func(want bool) {
		t.Helper()
		all, err := rt.Stock(ctx)
		if err != nil || slices.ContainsFunc(all, func(i sprite.Item) bool { return i.Kind == sprite.ItemLayer && i.Name == layer }) != want {
			t.Errorf("Stock: got %+v, %v; it has layer %s: %v", all, err, layer, !want)
		}
	}
	if stock(true); live {
		return
	}
	for range 2 {
		if err := rt.RemoveLayer(ctx, layer); err != nil {
			t.Errorf("RemoveLayer: %v", err)
		}
	}
	stock(false)
}

// client returns a client of the guest's own API.
func client(sb sprite.Sandbox) *cove.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return sb.Dial(ctx, boot.API) }}
	return &cove.Client{Client: &sprites.Client{URL: "http://guest", HTTPClient: &http.Client{Transport: tr}}}
}

func output(t *testing.T, sb sprite.Sandbox, name string, args ...string) string {
	t.Helper()
	out, err := client(sb).Self().CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Errorf("%s %v: %v", name, args, err)
	}
	return string(out)
}

func stop(t *testing.T, sb sprite.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), lastResort)
	defer cancel()
	for range 2 {
		if err := sb.Stop(ctx, time.Second); err != nil {
			t.Errorf("Stop: %v", err)
		}
	}
	select {
	case <-sb.Done():
	case <-ctx.Done():
		t.Error("Done is not closed after Stop")
	}
}

func commands(t *testing.T, sb sprite.Sandbox) {
	self := client(sb).Self()
	if got := output(t, sb, "sh", "-c", "echo kept > ~/kept; hostname; echo $COLOUR; id -un; pwd"); got != "paint\nblue\nsprite\n/home/sprite\n" {
		t.Errorf("a command's output: got %q", got)
	}
	err := self.Command("sh", "-c", "exit 42").Run()
	if exit := (*sprites.ExitError)(nil); !errors.As(err, &exit) || exit.Code != 42 {
		t.Errorf("exit 42: got %v", err)
	}
	data := bytes.Repeat([]byte("0123456789abcdef\n\x00\xff"), 1<<16)
	cat := self.Command("cat")
	cat.Stdin = bytes.NewReader(data)
	if out, err := cat.Output(); err != nil || !bytes.Equal(out, data) {
		t.Errorf("cat: got %d bytes, %v, want the %d sent", len(out), err, len(data))
	}
}

// leavers checks that either side of a connection may leave while the other still
// writes. The sandbox does not suffer.
func leavers(t *testing.T, sb sprite.Sandbox) {
	self := client(sb).Self()
	cmd := self.Command("sh", "-c", "sleep 0.3; exit 3")
	cmd.Stdin = bytes.NewReader(make([]byte, 4<<20))
	err := cmd.Run()
	if exit := (*sprites.ExitError)(nil); !errors.As(err, &exit) || exit.Code != 3 {
		t.Errorf("with input that it does not read: got %v", err)
	}

	yes := self.Command("yes")
	out, err := yes.StdoutPipe()
	if err := errors.Join(err, yes.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, out, 1<<20); err != nil {
		t.Error(err)
	}
	if err := yes.Detach(); err != nil {
		t.Error(err)
	}
	if _, err := self.Kill(t.Context(), yes.SessionID(), "TERM", 5*time.Second); err != nil {
		t.Errorf("kill of what nobody reads: %v", err)
	}
	if got := output(t, sb, "echo", "well"); got != "well\n" {
		t.Errorf("after all that: got %q", got)
	}
}

// terminal has a command leave a process behind that holds its terminal: the end
// of the command is its end all the same.
func terminal(t *testing.T, sb sprite.Sandbox) {
	ctx, cancel := context.WithTimeout(t.Context(), lastResort)
	defer cancel()
	cmd := client(sb).Self().CommandContext(ctx, "sh", "-c", "sleep 1000 & stty size; exit 5")
	cmd.TTY = &sprites.Terminal{Rows: 31, Cols: 101}
	out, err := cmd.Output()
	if exit := (*sprites.ExitError)(nil); !errors.As(err, &exit) || exit.Code != 5 || string(out) != "31 101\r\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func pause(t *testing.T, sb sprite.Sandbox, p sprite.Pauser) {
	ctx := t.Context()
	cmd := client(sb).Self().Command("sh", "-c", "read line; echo $line")
	in, inW := io.Pipe()
	cmd.Stdin = in
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Pause(ctx); err != nil {
			t.Fatalf("Pause: %v", err)
		}
	}
	if !sb.Status().Paused {
		t.Error("Status does not say that the sandbox is paused")
	}
	for range 2 {
		if err := p.Resume(ctx); err != nil {
			t.Fatalf("Resume: %v", err)
		}
	}
	if _, err := inW.Write([]byte("alive\n")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(inW.Close(), cmd.Wait()); err != nil || out.String() != "alive\n" {
		t.Errorf("a command across a pause: got %q, %v", out.String(), err)
	}
}
