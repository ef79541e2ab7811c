package shim

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os/exec"
	"testing"
)

// TestNoMoveAfterEnd asks for a checkpoint when the sandbox has just ended. The checkpoint
// begins nothing. No state is left that would say that the sandbox still has its disk.
func TestNoMoveAfterEnd(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	start, err := processStart(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	s := newShim(Config{Dir: t.TempDir(), ID: "0123456789abcdef"}, "", slog.New(slog.DiscardHandler))
	s.record.begin(State{Container: "0123456789abcdef-000000", PID: cmd.Process.Pid, StartTime: start, Layers: []string{"a"}})
	note := func(context.Context) error { return s.record.set(func(st *State) { st.Next = []string{"a", "b"} }) }
	if err := s.moves.run(t.Context(), note); err != nil {
		t.Fatal(err)
	}
	go s.watch()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	<-s.ended
	if err := s.moves.run(t.Context(), note); !errors.Is(err, ErrEnded) {
		t.Errorf("a move of what has ended: %v, want %v", err, ErrEnded)
	}
	if st, err := ReadState(s.cfg.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a state is left: %+v, %v", st, err)
	}
}
