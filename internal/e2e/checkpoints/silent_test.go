package checkpoints

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/runtime/gvisor"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// TestKernelCrash: gVisor's kernel crashes under a command, by the signal that is meant for a
// hanging kernel. That command, the next one, the sprite's status and the bundle's logs say
// so, with the head of the report. The whole report is kept. The same holds if the kernel
// crashes while nothing uses it.
func TestKernelCrash(t *testing.T) {
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint")
	const says = "the sandbox's kernel (gVisor) crashed: panic: Signal-induced panic (in boot."
	crashed := func() bool { return strings.Contains(h.Run("", "cove", "info", "paint"), says) }
	again := func() {
		t.Helper()
		out, code := h.Try("", "cove", "exec", "-s", "paint", "true")
		if code != 0 || !strings.Contains(out, "the sprite began anew: its sandbox ended: "+says) {
			t.Errorf("the next command: %d, %s", code, out)
		}
	}
	h.Sh("paint", "true")
	_, ended := h.Background("", "cove", "exec", "-s", "paint", "sh", "-c", "touch /tmp/begun; sleep 100000")
	h.Sh("paint", "until test -e /tmp/begun; do sleep 0.1; done")
	e2e.SignalAll(t, syscall.SIGUSR2, h.SandboxState().PID)
	if out, err := ended(); err == nil || !strings.Contains(out, says) {
		t.Errorf("the command under which it crashed: %v, %s", err, out)
	}
	e2e.Await(t, "the crash in cove info", crashed)
	again()

	e2e.SignalAll(t, syscall.SIGUSR2, h.SandboxState().PID)
	e2e.Await(t, "the crash in cove info", func() bool { return crashed() && !strings.Contains(h.Run("", "cove", "info", "paint"), "began anew") })
	again()
	kept, err := filepath.Glob(filepath.Join(h.Data, "run", "*", "kernel.log.1"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("the report: %q, %v", kept, err)
	}
	report, err := os.ReadFile(kept[0])
	if err != nil || !strings.HasPrefix(string(report), "panic: Signal-induced panic\n") || !strings.Contains(string(report), "\ngoroutine ") || len(report) > 256<<10 {
		t.Errorf("the report has %d bytes: %v\n%.1000s", len(report), err, report)
	}

	// The report outlives its sprite.
	h.Run("", "cove", "rm", "--force", "paint")
	if kept, err := filepath.Glob(filepath.Join(h.Data, "crashed", "*", "kernel.log.1")); err != nil || len(kept) != 1 {
		t.Errorf("after the sprite was removed: %q, %v", kept, err)
	}
}

// A silentServer is a server whose sandboxes' guests can be made silent: once they are
// restored, they answer nobody.
type silentServer struct {
	*covetest.Server
	t    *testing.T
	file string // the guests are silent while the file exists
}

func newSilentServer(t *testing.T, patience time.Duration) *silentServer {
	t.Helper()
	e2e.RequireSandbox(t)
	need.Root(t)
	t.Parallel()
	dir := e2e.TempDir(t)
	s := &silentServer{t: t, file: filepath.Join(dir, "silent")}
	rt := &gvisor.Runtime{
		Dir: filepath.Join(dir, "data"), Runsc: filepath.Join(e2e.BinDir, "cove-runsc"), Guest: filepath.Join(e2e.BinDir, "cove-guest"), Patience: patience,
		Shim: []string{"env", fault.Variable + "=" + string(fault.GuestSilent) + "=" + s.file, filepath.Join(e2e.BinDir, "cove"), "shim"},
	}
	if err := os.Mkdir(rt.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	s.Server = covetest.Start(t, covetest.Options{Dir: rt.Dir, Runtime: rt})
	t.Cleanup(func() { // before the server ends
		s.speak()
		for _, name := range []string{"paint", "copy"} {
			_ = s.Host.Delete(context.Background(), name, true) // it may be gone
		}
	})
	return s
}

func (s *silentServer) silence() {
	s.t.Helper()
	if err := os.WriteFile(s.file, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *silentServer) speak() { _ = os.Remove(s.file) }

// sh runs a script in a sprite, which wakes for it if it sleeps.
func (s *silentServer) sh(sprite, script string) string {
	s.t.Helper()
	out, err := s.Client().Sprite(sprite).Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		s.t.Fatalf("sh -c %q: %v: %s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// refused checks that an error has a code.
func (s *silentServer) refused(what string, err error, code string) {
	s.t.Helper()
	if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != code {
		s.t.Errorf("%s: got %v, want the code %s", what, err, code)
	}
}

// restoring waits until a checkpoint has moved a sprite whose guest does not answer.
func (s *silentServer) restoring(name string) {
	s.t.Helper()
	info, err := s.Host.Get(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	e2e.Await(s.t, "the move", func() bool {
		st, err := shim.ReadState(filepath.Join(s.Dir, "run", info.ID))
		return err == nil && st.Generation > 0 && st.PID > 0 && !st.Moving
	})
}

// layers returns the folders of all layers.
func (s *silentServer) layers() []string {
	s.t.Helper()
	found, err := filepath.Glob(filepath.Join(s.Dir, "layers", "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

// TestSilentGuest: if a guest is silent after its restore, its sandbox is lost, and
// nothing of its disk. The error says that no checkpoint was made, and the next use boots
// the sprite. The same holds for forks. A sprite that does not wake from its memory
// boots.
func TestSilentGuest(t *testing.T) {
	s := newSilentServer(t, 2*time.Second)
	ctx := t.Context()
	s.Create("paint")
	s.sh("paint", "head -c 1M /dev/urandom >big; sha256sum big >sum; echo one >data")
	whole := func() {
		t.Helper()
		if got := s.sh("paint", "sha256sum --status -c sum; cat data"); got != "one" {
			t.Errorf("the sprite has %q", got)
		}
	}

	s.silence()
	_, err := s.Host.Checkpoint(ctx, "paint", sprites.CheckpointRequest{Memory: sprites.KeepAlways})
	s.refused("the checkpoint", err, sprite.CodeUnavailable)
	if err != nil && !strings.Contains(err.Error(), "its files are as they were: ") {
		t.Errorf("the checkpoint: %v", err)
	}
	e2e.Await(t, "the reason", func() bool {
		info, err := s.Host.Get(ctx, "paint")
		return err == nil && info.Status == sprites.StatusCold && strings.Contains(info.Cove.LastError, "did not answer")
	})
	whole() // it boots
	_, err = s.Host.Fork(ctx, "paint", sprites.ForkRequest{Name: "copy"}, true)
	s.refused("the fork", err, sprite.CodeUnavailable)
	whole()
	if err := s.Host.Suspend(ctx, "paint"); err != nil {
		t.Fatal(err)
	}
	whole() // it does not wake, and boots
	if info, err := s.Host.Get(ctx, "paint"); err != nil || !strings.Contains(info.Cove.LastError, "could not be used") {
		t.Errorf("after the wake: %+v, %v", info, err)
	}

	// Nothing is in the way of the next one.
	if err := s.Host.Stop(ctx, "paint"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Host.Checkpoint(ctx, "paint", sprites.CheckpointRequest{}); err != nil {
		t.Error(err)
	}
	if list, err := s.Host.Checkpoints(ctx, "paint", true); err != nil || len(list) != 2 || list[1].ID != "v1" {
		t.Errorf("checkpoints: %+v, %v", list, err)
	}
	whole()
}

// TestSilentGuestEnds: a sprite can be stopped and deleted while its checkpoint, or its
// wake, waits for a silent guest. Here they would wait for an hour.
func TestSilentGuestEnds(t *testing.T) {
	s := newSilentServer(t, time.Hour)
	ctx := t.Context()
	for _, c := range []struct {
		name string
		end  func() error
		code string // of the checkpoint's error
	}{
		{"stop", func() error { return s.Host.Stop(ctx, "paint") }, sprite.CodeUnavailable},
		{"delete", func() error { return s.Host.Delete(ctx, "paint", true) }, sprite.CodeDeleting},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Create("paint")
			s.sh("paint", "echo one >data")
			s.silence()
			failed := make(chan error, 1)
			go func() {
				_, err := s.Host.Checkpoint(ctx, "paint", sprites.CheckpointRequest{})
				failed <- err
			}()
			s.restoring("paint")
			if err := c.end(); err != nil {
				t.Error(err)
			}
			s.refused("the checkpoint", <-failed, c.code)
			s.speak()
			if c.name == "delete" {
				e2e.Await(t, "the end of its layers", func() bool { return len(s.layers()) == 0 })
				return
			}
			if got := s.sh("paint", "cat data"); got != "one" {
				t.Errorf("the sprite has %q", got)
			}
			if err := s.Host.Suspend(ctx, "paint"); err != nil {
				t.Fatal(err)
			}
			s.silence()
			go func() {
				_, err := s.Host.Use(ctx, "paint", "test")
				failed <- err
			}()
			info, err := s.Host.Get(ctx, "paint")
			if err != nil {
				t.Fatal(err)
			}
			e2e.Await(t, "the wake", func() bool {
				st, err := shim.ReadState(filepath.Join(s.Dir, "run", info.ID))
				return err == nil && st.PID > 0
			})
			if err := s.Host.Delete(ctx, "paint", true); err != nil {
				t.Error(err)
			}
			s.refused("the use", <-failed, sprite.CodeDeleting)
		})
	}
}

// TestSilentGuestAndKill kills the server, with -9, while a checkpoint waits for a silent
// guest. The next server serves, leaves the sprite's disk undecided, and can delete the
// sprite.
func TestSilentGuestAndKill(t *testing.T) {
	h := e2e.NewHost(t)
	file := filepath.Join(filepath.Dir(h.Home), "silent")
	h.Serve([]string{fault.Variable + "=" + string(fault.GuestSilent) + "=" + file})
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Run("", "cove", "create", "other", "--idle", "0")
	h.Sh("paint", "echo one >data")
	h.Sh("other", "echo two >data")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, ended := h.Background("", "cove", "checkpoint", "create", "-s", "paint")
	var dir string
	e2e.Await(t, "the move", func() bool {
		states, _ := filepath.Glob(filepath.Join(h.Data, "run", "*", "sandbox.json")) // the pattern is right
		for _, name := range states {
			if st, err := shim.ReadState(filepath.Dir(name)); err == nil && st.Generation > 0 && st.PID > 0 && !st.Moving {
				dir = filepath.Dir(name)
			}
		}
		return dir != ""
	})
	server := h.PID()
	if err := e2e.Signal(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := e2e.AwaitEnd(server); err != nil {
		t.Fatal(err)
	}
	_, _ = ended()
	h.Serve(nil)
	if got := strings.TrimSpace(h.Sh("other", "cat data")); got != "two" {
		t.Errorf("the other sprite has %q", got)
	}
	if st, err := shim.ReadState(dir); err == nil { // else its guest's time is over
		for _, layer := range st.Layers {
			if _, err := os.Stat(filepath.Join(h.Data, "layers", layer)); err != nil {
				t.Errorf("a layer that is written: %v", err)
			}
		}
	}
	h.Run("", "cove", "rm", "--force", "paint")
	h.Run("", "cove", "rm", "other")
	e2e.Await(t, "the end of all layers", func() bool {
		left, _ := filepath.Glob(filepath.Join(h.Data, "layers", "*")) // likewise
		return len(left) == 0
	})
}
