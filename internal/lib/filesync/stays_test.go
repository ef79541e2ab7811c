package filesync

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// editMeanwhile begins a push that fails at its last operation. Before that, somebody at the
// target changes most of what it has written already.
func (w *world) editMeanwhile(step func(name string) error) error {
	w.t.Helper()
	w.write(w.local, "a", "1", "b", "2", "folder/in", "3", "removed", "4", "z", "5")
	w.run(Push, "")
	w.write(w.local, "a", "new a", "b", "new b", "d/x", "new x", "e/\xff/x", "new x", "n", "new n", "o", "new o", "z", "new z")
	w.remove(w.local, "removed", "folder")
	w.write(w.local, "folder", "new: a file")
	edited := false
	w.far = func(name string) error {
		if name == "op" && w.read(w.remote, "o") == "new o" && !edited {
			edited = true
			w.write(w.remote, "a", "edited", "d/y", "added", "n", "edited, too", "removed", "came again", "z", "theirs, just now")
			w.remove(w.remote, "folder")
			w.write(w.remote, "folder", "edited as well")
		}
		if !edited {
			return nil
		}
		return step(name)
	}
	w.Verb = Push
	_, err := w.Run(w.t.Context())
	w.far = nil
	if !edited {
		w.t.Fatalf("nothing was edited meanwhile: %v", err)
	}
	return err
}

// stayed checks that all that was edited stays, and that the backup has the originals.
func (w *world) stayed() {
	w.t.Helper()
	after := map[string]string{
		"a": "edited", "b": "2", "d/x": "new x", "d/y": "added", "e/\xff/x": "(none)", "folder": "edited as well",
		"n": "edited, too", "o": "(none)", "removed": "came again", "z": "theirs, just now",
	}
	check := func(when string) {
		w.t.Helper()
		for name, want := range after {
			if got := w.read(w.remote, name); got != want {
				w.t.Errorf("%s: %s has %q, want %q", when, name, got, want)
			}
		}
	}
	check("taken back")
	y := w.Sync
	_, list, err := y.Backups(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if len(list) != 2 || list[0].Changes != 3 || list[0].Bytes != 3 || list[0].Verb != "push" {
		w.t.Fatalf("got the backups %+v", list)
	}
	// The original of folder/in can't come back while a file has the folder's name.
	id := list[0].ID
	w.remove(w.remote, "folder")
	w.mkdir(filepath.Join(w.remote, "folder"))
	delete(after, "folder")
	y = w.Sync
	u, err := y.Undo(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	after["a"], after["removed"], after["folder/in"] = "1", "4", "3"
	check("undone")
	y = w.Sync
	if _, err := y.Undo(w.t.Context(), u.Backup); err != nil {
		w.t.Fatal(err)
	}
	after["a"], after["removed"], after["folder/in"] = "edited", "came again", "(none)"
	check("done again")
}

// TestTimeOfPut: on a file system that keeps times less exactly, what was put does not count as
// changed.
func TestTimeOfPut(t *testing.T) {
	const given = 1_700_000_001_123_456_789
	for now, want := range map[int64]bool{
		given: true, 1_700_000_001_123_456_700: true, 1_700_000_001_000_000_000: true, 1_700_000_000_000_000_000: true,
		given - 1: false, given + 1: false, 1_700_000_002_000_000_000: false, 1_699_999_999_000_000_000: false,
	} {
		o := op{kind: opPut, entry: Entry{Path: "f", Type: File, Size: 1, Mtime: given}}
		if got := o.stands(&Entry{Path: "f", Type: File, Size: 1, Mtime: now}); got != want {
			t.Errorf("with the time %d: %v, want %v", now, got, want)
		}
	}
}

// TestEditsStay: a sync that is taken back leaves what was changed after it had written there,
// and keeps the originals.
func TestEditsStay(t *testing.T) {
	w := newWorld(t)
	err := w.editMeanwhile(func(string) error { return nil })
	w.wants(err, CodeChanged)
	if text := err.Error(); !strings.Contains(text, "all is as it was but") || !strings.Contains(text, "the backup 2") || strings.Contains(text, "nothing was changed") {
		t.Errorf("it says %q", text)
	}
	w.stayed()
}

// TestEditsStayAfterDeath: so does one whose process died at any step of that, and was ended by
// the next.
func TestEditsStayAfterDeath(t *testing.T) {
	for n, more := 1, true; more; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t)
			at := 0
			err := w.editMeanwhile(func(string) error {
				if at++; at == n {
					return errCrash
				}
				return nil
			})
			if more = at >= n; more {
				w.wants(err, CodeLost)
			}
			for range 2 { // the first may say what it took back
				y := w.Sync
				_, err = y.Undo(t.Context(), "20000101T000000.000-NONE")
			}
			w.wants(err, CodeNotFound)
			w.stayed()
			if left, err := filepath.Glob(filepath.Join(os.Getenv("XDG_STATE_HOME"), "cove", workName, "*", "journal*")); err != nil || len(left) > 0 {
				t.Errorf("%q is left, %v", left, err)
			}
		})
		if t.Failed() {
			return
		}
	}
}
