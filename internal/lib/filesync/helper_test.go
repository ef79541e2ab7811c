package filesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// world is two folders, and what syncs them: the same code as with a sprite, whose
// end runs in this process.
type world struct {
	t             *testing.T
	local, remote string
	Sync
	cut func(r io.Reader, w io.Writer) (io.Reader, io.Writer) // of the connection, as the host's side has it
	far func(string) error                                    // steps of the far end
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "far"))
	w := &world{t: t, local: filepath.Join(dir, "local"), remote: filepath.Join(dir, "remote")}
	w.Sync = Sync{
		Local: w.local, Remote: w.remote, Pair: "test", State: filepath.Join(dir, "near"),
		Rules: Rules{Read: true, Cove: true}, Merge: gitMerge, Connect: w.connect,
	}
	w.mkdir(w.local)
	return w
}

func gitMerge(ctx context.Context, ours, base, theirs string) ([]byte, bool, error) {
	out, err := exec.CommandContext(ctx, "git", "merge-file", "-p", ours, base, theirs).Output()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, false, nil
	}
	return out, err == nil, err
}

func (w *world) connect(ctx context.Context) (*Remote, error) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := newStream(inR, outW)
		if err == nil {
			err = serve(context.WithoutCancel(ctx), s, w.far)
		}
		_ = inR.CloseWithError(io.ErrClosedPipe)
		_ = outW.Close()
		_ = err // the other side has it
	}()
	r := &Remote{R: outR, W: inW, Close: func() error { _ = inW.Close(); _ = outR.Close(); <-done; return nil }}
	if w.cut != nil {
		r.R, r.W = w.cut(r.R, r.W)
	}
	return r, nil
}

// run syncs; an error fails the test unless its code is wanted.
func (w *world) run(verb Verb, code string) *Report {
	w.t.Helper()
	w.Verb = verb
	report, err := w.Run(w.t.Context())
	w.wants(err, code)
	return report
}

func (w *world) wants(err error, code string) {
	w.t.Helper()
	got := ""
	if e, ok := errors.AsType[*fail.Error](err); ok {
		got = e.Code
	} else if err != nil {
		w.t.Fatalf("got %v, want code %q", err, code)
	}
	if got != code {
		w.t.Fatalf("got %q (%v), want %q", got, err, code)
	}
}

func (w *world) mkdir(name string) {
	w.t.Helper()
	if err := os.MkdirAll(name, 0o755); err != nil {
		w.t.Fatal(err)
	}
}

// write writes files below a root: pairs of name and content. A name that ends in
// "/" is a folder, a content that begins with "-> " a link's target.
func (w *world) write(root string, pairs ...string) {
	w.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		name, content := filepath.Join(root, pairs[i]), pairs[i+1]
		w.mkdir(filepath.Dir(name))
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, name)
		} else if strings.HasSuffix(pairs[i], "/") {
			w.mkdir(name)
		} else {
			err = os.WriteFile(name, []byte(content), 0o644)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) remove(root string, names ...string) {
	w.t.Helper()
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) read(root, name string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "(none)"
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

// dump describes a tree: what syncs, and nothing else.
func dump(t testing.TB, root string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || name == root {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		if d.Name() == workName {
			return filepath.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%q %v", rel, info.Mode())
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line = fmt.Sprintf("%q -> %q", rel, target)
		case info.Mode().IsRegular():
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %q", info.ModTime().UnixNano(), content)
		}
		list = append(list, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// same fails unless two trees are the same.
func (w *world) same(a, b string) {
	w.t.Helper()
	w.differ(dump(w.t, a), dump(w.t, b))
}

func (w *world) differ(a, b []string) {
	w.t.Helper()
	for _, line := range a {
		if !slices.Contains(b, line) {
			w.t.Errorf("only in the first: %.300s", line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			w.t.Errorf("only in the second: %.300s", line)
		}
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// settle lets files become old enough to be trusted by their times.
func settle() { <-time.After(2 * racy) }

// device makes a character device; it reports false where that is not allowed.
func device(name string) bool { return syscall.Mknod(name, syscall.S_IFCHR|0o600, 0x0103) == nil }
