package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// SyncHost is a host with a sprite named paint, for the statements S1 to S17 about sync.
// Each has folders of its own.
type SyncHost struct{ *Host }

// NewSyncHost makes the host, its server and the sprite.
func NewSyncHost(t testing.TB) SyncHost {
	h := SyncHost{NewHost(t)}
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	return h
}

// On returns the host for another test.
func (h SyncHost) On(t testing.TB) SyncHost {
	other := *h.Host
	other.T = t
	return SyncHost{&other}
}

// Path returns the absolute path of a file or folder below the host's.
func (h *Host) Path(name string) string { return filepath.Join(filepath.Dir(h.Home), name) }

// Sh runs a script in the sprite.
func (h SyncHost) Sh(script string) string {
	h.T.Helper()
	return h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", script)
}

// SyncReport is the output of cove sync for programs.
type SyncReport struct {
	Added, Modified, Deleted, Merged, Newer struct {
		Count int
		Paths []string
	}
	Conflicts []struct{ Path, Local, Remote string }
	Skipped   []struct{ Reason string }
	Sent      int64
	Bytes     int64
	Backup    string
	Error     struct{ Code, Message string }
}

// Sync runs cove sync in a folder, and returns its report and its exit code.
func (h SyncHost) Sync(dir, verb string, args ...string) (SyncReport, int) {
	h.T.Helper()
	cmd := h.Command(dir, "cove", append([]string{"sync", verb, "-s", "paint", "--json"}, args...)...)
	out, err := cmd.Output()
	var r SyncReport
	if json.Unmarshal(out, &r) != nil {
		h.T.Fatalf("sync %s %s: %v, %s", verb, args, err, out)
	}
	return r, cmd.ProcessState.ExitCode()
}

// Synced is Sync that must succeed.
func (h SyncHost) Synced(dir, verb string, args ...string) SyncReport {
	h.T.Helper()
	r, code := h.Sync(dir, verb, args...)
	if code != 0 {
		h.T.Fatalf("sync %s %s: code %d, %+v %v", verb, args, code, r.Error, r.Conflicts)
	}
	return r
}

// TreeOf describes a folder here: names, kinds, modes, times, contents.
func TreeOf(t testing.TB, root string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			tree[rel] = "-> " + target
			return err
		case info.Mode().IsRegular():
			content, err := os.ReadFile(name)
			tree[rel] = fmt.Sprintf("%v %d %x", info.Mode(), info.ModTime().UnixNano(), sha256.Sum256(content))
			return err
		}
		tree[rel] = fmt.Sprint(info.Mode())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// SameTree fails if two results of TreeOf differ.
func SameTree(t testing.TB, got, want map[string]string) {
	t.Helper()
	bad := 0
	for name, v := range want {
		if got[name] != v {
			if bad++; bad < 10 {
				t.Errorf("%q: got %q, want %q", name, got[name], v)
			}
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			if bad++; bad < 10 {
				t.Errorf("%q is there", name)
			}
		}
	}
	if bad > 0 {
		t.Fatalf("%d differences", bad)
	}
}

// FirstDifference returns the first line that differs between two texts, in both forms.
func FirstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("was %s\nis  %s", w[i], g[i])
		}
	}
	return fmt.Sprintf("were %d lines, are %d", len(w), len(g))
}
