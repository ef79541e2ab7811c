package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// noErrors checks that the server has logged no error.
func noErrors(h *e2e.Host) {
	h.T.Helper()
	log, err := os.ReadFile(filepath.Join(h.Data, "serve.log"))
	if err != nil || strings.Contains(string(log), "level=ERROR") {
		h.T.Errorf("the server's log, %v:\n%.2000s", err, log)
	}
}

// TestCheckpointHole: a file with a hole of 16 TiB takes no more work than one without,
// also after an export, which leaves the hole out.
func TestCheckpointHole(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "hole")
	h.Sh("hole", "truncate -s 17592186040317 hole && printf end >>hole && stat -c %s hole")
	h.Run("", "cove", "checkpoint", "create", "-s", "hole")
	e2e.Await(t, "the sizes", func() bool { return e2e.Sized(h, "hole") })
	h.Run("", "cove", "checkpoint", "verify", "-s", "hole")
	if out := h.Run("", "cove", "checkpoint", "diff", "v1", "-s", "hole"); strings.Contains(out, "hole") {
		t.Errorf("the diff has %s", out)
	}
	archive := e2e.Export(h, t, "hole")
	if out, code := e2e.Feed(h, archive, "import", "copy"); code != 0 || len(archive) > 1<<20 {
		t.Fatalf("import: %d, %s, of %d bytes", code, out, len(archive))
	}
	h.Run("", "cove", "checkpoint", "create", "-s", "copy")
	e2e.Await(t, "the sizes of the copy", func() bool { return e2e.Sized(h, "copy") })
	h.Run("", "cove", "checkpoint", "verify", "-s", "copy")
	if got := h.Sh("copy", "tail -c 3 hole"); got != "end" {
		t.Errorf("the copy ends with %q", got)
	}
	noErrors(h)
}

// TestCheckpointDeep: folders whose path is longer than the kernel takes are sealed,
// listed, verified and compared like any other. An export of them fails and says why.
func TestCheckpointDeep(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "deep")
	h.Write("deep.py", "import os\nfor n in range(300):\n os.mkdir('n' * 200)\n os.chdir('n' * 200)\nopen('file\\n', 'w').write('content')\n")
	h.Run("", "cove", "cp", "deep.py", "deep:/home/sprite/deep.py")
	h.Sh("deep", "head -c 9000000 /dev/urandom >big")
	h.Run("", "cove", "checkpoint", "create", "-s", "deep")
	h.Sh("deep", "python3 deep.py")
	h.Run("", "cove", "checkpoint", "create", "-s", "deep")
	e2e.Await(t, "the sizes", func() bool {
		return strings.Contains(h.Run("", "cove", "checkpoint", "show", "v2", "-s", "deep", "--json"), `"size_bytes"`)
	})
	h.Run("", "cove", "checkpoint", "verify", "-s", "deep")
	if out := h.Run("", "cove", "checkpoint", "diff", "v1", "v2", "-s", "deep"); strings.Count(out, strings.Repeat("n", 200)) < 300 {
		t.Errorf("the diff has %.1000s", out)
	}
	_, err := h.Client().Sprite("deep").Export(t.Context(), sprites.ExportOptions{})
	if e, ok := errors.AsType[*sprites.Error](err); !ok || e.Code != "path_too_long" || e.Hint == "" || len(e.Message) > 1000 {
		t.Errorf("export: %.3000v", err)
	}
	noErrors(h)
	h.Run("", "cove", "rm", "deep")
	e2e.Await(t, "the end of its layers", func() bool {
		left, err := os.ReadDir(filepath.Join(h.Data, "layers"))
		return err == nil && len(left) == 0
	})
	noErrors(h)
}

// TestSoakSlowLayer: a layer that takes long to list delays no other sprite. Removing its
// sprite ends the listing, and so does the end of the server.
func TestSoakSlowLayer(t *testing.T) {
	if !e2e.Soak() {
		t.Skip("it takes half a minute of a machine that does nothing else: make soak")
	}
	need.Root(t)
	h := e2e.NewHost(t)
	h.Serve(nil)
	layers := func() (all []string) {
		entries, err := os.ReadDir(filepath.Join(h.Data, "layers"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	// slow makes a sprite whose checkpoint has 180,000 hard links to three files.
	slow := func(name string) {
		h.Run("", "cove", "create", name)
		h.Sh(name, "echo "+name+" >mine; sync")
		found, err := filepath.Glob(filepath.Join(h.Data, "layers", "*", "root", "upper", "home", "sprite", "mine"))
		for _, file := range found {
			if text, _ := os.ReadFile(file); string(text) != name+"\n" {
				continue
			}
			for n := range 3 {
				first := filepath.Join(filepath.Dir(file), fmt.Sprint("file", n))
				err = errors.Join(err, os.WriteFile(first, []byte(strings.Repeat("x", 60<<10)), 0o644))
				for m := 0; m < 60_000 && err == nil; m++ {
					err = os.Link(first, fmt.Sprint(first, "-", m))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			h.Run("", "cove", "checkpoint", "create", "-s", name)
			return
		}
		t.Fatalf("no disk of sprite %s: %v", name, err)
	}
	h.Run("", "cove", "create", "other")
	h.Sh("other", "true")
	before := layers()
	slow("slow")
	h.Sh("other", "echo other >file")
	h.Run("", "cove", "checkpoint", "create", "-s", "other")
	e2e.Await(t, "the sizes of the other sprite", func() bool { return e2e.Sized(h, "other") })
	h.Run("", "cove", "checkpoint", "verify", "-s", "other")
	if e2e.Sized(h, "slow") {
		t.Error("the slow layer was listed before the other; that shows nothing")
	}
	h.Run("", "cove", "rm", "slow")
	e2e.Await(t, "the end of its layers", func() bool { return len(layers()) <= len(before)+1 })

	slow("slower")
	verified := make(chan error, 1)
	client := h.Client() // unlike the CLI, it starts no other server
	go func() {
		_, err := client.Sprite("slower").Verify(context.Background(), "", func(sprites.VerifyLine) {})
		verified <- err
	}()
	h.EndServer(syscall.SIGTERM)
	if strings.Contains(e2e.ReadFile(t, filepath.Join(h.Data, "serve.log")), "did not end in time") {
		t.Error("the server did not break it off")
	}
	if err := <-verified; err == nil {
		t.Error("a verification that was broken off has succeeded")
	}
	noErrors(h)
}
