package shim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestMoves: one thing has the turn at a time. A stop that is done waiting gives up what has it,
// and nothing begins afterwards.
func TestMoves(t *testing.T) { synctest.Test(t, testMoves) }

func testMoves(t *testing.T) {
	m, ended := &moves{}, make(chan struct{})
	held := func() {
		if m.turn.TryLock() {
			t.Error("something is called, and has not the turn")
			m.turn.Unlock()
		}
	}
	if !m.within(0, ended, held) || !m.shortly(t.Context(), held) {
		t.Error("nothing has the turn, and it is refused")
	}
	err := m.run(t.Context(), func(ctx context.Context) error {
		held()
		refused := func() { t.Error("two things have the turn") }
		if m.within(time.Minute, ended, refused) || m.shortly(ctx, refused) {
			t.Error("the turn is given twice")
		}
		dead := make(chan struct{})
		close(dead) // it must wait all the same, and not ask in a loop: then the bubble's clock stands
		if m.within(time.Minute, dead, refused) {
			t.Error("the turn is given twice after the sandbox has ended")
		}
		if ctx.Err() != nil {
			t.Error("it is given up before the stop")
		}
		m.stop()()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("given up: got %v", err)
	}
	if breakOff := m.stop(); breakOff != nil || !m.fate().stopping {
		t.Errorf("nothing has the turn: got %t, and stopping is %t", breakOff != nil, m.fate().stopping)
	}
	begun := func(context.Context) error { t.Error("something begins after the stop"); return nil }
	if err := m.run(t.Context(), begun); !errors.Is(err, ErrEnded) {
		t.Errorf("after the stop: got %v, want %v", err, ErrEnded)
	}
}

// TestNoteEnd: a process that ends is the sandbox's, or only the generation's before it.
func TestNoteEnd(t *testing.T) {
	m := &moves{}
	none := func(context.Context) error { return nil }
	if m.noteEnd(func() bool { return false }) {
		t.Error("the sandbox goes on, and its end is noted")
	}
	if err := m.run(t.Context(), none); err != nil {
		t.Error(err)
	}
	if !m.noteEnd(func() bool { return true }) {
		t.Error("the sandbox has ended, and its end is not noted")
	}
	if err := m.run(t.Context(), none); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: got %v, want %v", err, ErrEnded)
	}
}
