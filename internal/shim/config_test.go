package shim

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStateRoundTrip(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadState(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no state: got %v, want not exist", err)
	}
	want := State{Container: "c", PID: 7, StartTime: 9, Incarnation: 3, Address: "10.88.1.3", Token: "t", Link: "tap", Started: time.Unix(5, 0).UTC(), Unlimited: []string{"cpu: no"}}
	if err := want.write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadState(dir)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
	if st, err := os.Stat(statePath(dir)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the state holds a token: got mode %v, %v, want 0600", st.Mode(), err)
	}
	if err := os.WriteFile(statePath(dir), []byte(`{"pid":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadState(dir); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a broken state: got %v, want an error that says so", err)
	}
}

// TestStateKeepsRoom: a state is written in the existing files, and none of their room is
// given back. On a full disk another program would take it.
func TestStateKeepsRoom(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 {
		if err := (State{PID: i}).write(dir); err != nil {
			t.Fatal(err)
		}
	}
	var files []os.FileInfo
	for _, end := range []string{"", ".new"} {
		st, err := os.Stat(statePath(dir) + end)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, st)
	}
	for i, layers := range [][]string{{strings.Repeat("a", 100)}, nil, {strings.Repeat("b", stateRoom)}, nil, {"c"}} {
		want := State{PID: 10 + i, Layers: layers}
		if err := want.write(dir); err != nil {
			t.Fatal(err)
		}
		got, err := ReadState(dir)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("state %d: %v, %s", i, err, diff)
		}
		for j, end := range []string{"", ".new"} {
			st, err := os.Stat(statePath(dir) + end)
			if was := files[(i+j+1)%2]; err != nil || !os.SameFile(st, was) || st.Size() < stateRoom {
				t.Errorf("state %d: sandbox.json%s is another file than %s, or too small: %v, %v", i, end, was.Name(), st, err)
			}
		}
	}
}

// TestPauseNotNoted: a sandbox is not paused if its state can't be written.
func TestPauseNotNoted(t *testing.T) {
	s := newShim(Config{Dir: filepath.Join(t.TempDir(), "gone")}, "", slog.New(slog.DiscardHandler))
	if err := s.pause(); !errors.Is(err, os.ErrNotExist) || s.record.get().Paused {
		t.Errorf("got %v, and paused %v, want %v, false", err, s.record.get().Paused, os.ErrNotExist)
	}
}

func TestClientWithoutShim(t *testing.T) {
	c := Client{Dir: filepath.Join(t.TempDir(), strings.Repeat("a-long-path/", 20))}
	if _, err := c.Status(t.Context()); !IsNoShim(err) {
		t.Errorf("no folder: got %v, want one for IsNoShim", err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Dial(t.Context(), 80); !IsNoShim(err) {
		t.Errorf("no socket: got %v, want one for IsNoShim", err)
	}
}
