package sprite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// Statement 79: watch emits write, create, remove, rename and chmod, also with
// gVisor's inotify, which is not Linux's.
func TestWatch(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	sprite := h.Client().Sprite("paint")
	ctx, cancel := context.WithTimeout(t.Context(), e2e.LastResort)
	defer cancel()
	sh := func(script string) {
		t.Helper()
		if out, err := sprite.CommandContext(ctx, "sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v, %s", script, err, out)
		}
	}
	sh("mkdir -p src/sub; touch src/old")
	for name, want := range map[string]error{"/root": fs.ErrPermission, "none": fs.ErrNotExist} {
		if _, err := sprite.Watch(ctx, sprites.WatchOptions{}, name); !errors.Is(err, want) {
			t.Errorf("watch %s: got %v, want %v", name, err, want)
		}
	}
	w, err := sprite.Watch(ctx, sprites.WatchOptions{Recursive: true}, "src")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	until := func(end string) (seen []string) {
		t.Helper()
		for {
			e, err := w.Next()
			if err != nil {
				t.Fatal(err)
			}
			text := string(e.Event) + " " + strings.TrimPrefix(e.Path, "/home/sprite/src/")
			seen = append(seen, text)
			if text == end {
				return seen
			}
		}
	}
	sh("cd src; echo hello >new; chmod 600 old; mv old moved; rm moved; rmdir sub; mkdir end")
	want := "create new, write new, chmod old, rename old, create moved, remove moved, remove sub, create end"
	if got := strings.Join(until("create end"), ", "); got != want {
		t.Errorf("got %s; want %s", got, want)
	}
	// An upload over a file is reported as a write, though it moves another file there.
	if err := sprite.WriteFile(ctx, "src/new", strings.NewReader("x"), sprites.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	sh("mkdir src/uploaded")
	if got := strings.Join(until("create uploaded"), ", ") + ","; !strings.Contains(got, "write new,") || strings.Contains(got, "create new,") {
		t.Errorf("an upload is %s", got)
	}
	// No event is missed in new folders.
	sh("cd src; for i in $(seq 20); do mkdir -p $i/a/b; echo x >$i/a/b/f; done; mkdir done")
	count := map[string]int{}
	for _, text := range until("create done") {
		count[text]++
	}
	for i := range 20 {
		for _, name := range []string{"", "/a", "/a/b", "/a/b/f"} {
			if text := fmt.Sprintf("create %d%s", i+1, name); count[text] != 1 {
				t.Errorf("%s was told %d times", text, count[text])
			}
		}
	}
	sh("cd src; mv 1 one; echo x >one/a/late; mkdir last")
	moved := strings.Join(until("create last"), ", ") + ","
	for _, want := range []string{"rename 1,", "create one,", "create one/a/b/f,", "create one/a/late,"} {
		if strings.Count(moved, want) != 1 {
			t.Errorf("of a folder that was moved: got %s want %s once", moved, want)
		}
	}
}
