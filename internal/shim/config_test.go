package shim

import (
	"errors"
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
