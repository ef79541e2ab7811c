package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// sized reports whether it is known what a sprite's first checkpoint takes.
func (h *host) sized(sprite string) bool {
	h.t.Helper()
	return strings.Contains(h.run("", "cove", "checkpoint", "show", "v1", "-s", sprite, "--json"), `"size_bytes"`)
}

// noErrors checks that the server has nothing to complain about.
func (h *host) noErrors() {
	h.t.Helper()
	log, err := os.ReadFile(filepath.Join(h.data, "serve.log"))
	if err != nil || strings.Contains(string(log), "level=ERROR") {
		h.t.Errorf("the server's log, %v:\n%.2000s", err, log)
	}
}

// TestCheckpointHole: a file with a hole of 16 TiB is no more work than one without,
// also after an export, which leaves the hole out.
func TestCheckpointHole(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "hole")
	h.sh("hole", "truncate -s 17592186040317 hole && printf end >>hole && stat -c %s hole")
	h.run("", "cove", "checkpoint", "create", "-s", "hole")
	await(t, "the sizes", func() bool { return h.sized("hole") })
	h.run("", "cove", "checkpoint", "verify", "-s", "hole")
	if out := h.run("", "cove", "checkpoint", "diff", "v1", "-s", "hole"); strings.Contains(out, "hole") {
		t.Errorf("the diff has %s", out)
	}
	archive := h.export(t, "hole")
	if out, code := h.feed(archive, "import", "copy"); code != 0 || len(archive) > 1<<20 {
		t.Fatalf("import: %d, %s, of %d bytes", code, out, len(archive))
	}
	h.run("", "cove", "checkpoint", "create", "-s", "copy")
	await(t, "the sizes of the copy", func() bool { return h.sized("copy") })
	h.run("", "cove", "checkpoint", "verify", "-s", "copy")
	if got := h.sh("copy", "tail -c 3 hole"); got != "end" {
		t.Errorf("the copy ends with %q", got)
	}
	h.noErrors()
}

// TestCheckpointDeep: folders whose path is longer than the kernel takes are sealed,
// listed, verified and compared like any; what can't be done with them says so.
func TestCheckpointDeep(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "deep")
	h.write("deep.py", "import os\nfor n in range(300):\n os.mkdir('n' * 200)\n os.chdir('n' * 200)\nopen('file\\n', 'w').write('content')\n")
	h.run("", "cove", "cp", "deep.py", "deep:/home/sprite/deep.py")
	h.sh("deep", "head -c 9000000 /dev/urandom >big")
	h.run("", "cove", "checkpoint", "create", "-s", "deep")
	h.sh("deep", "python3 deep.py")
	h.run("", "cove", "checkpoint", "create", "-s", "deep")
	await(t, "the sizes", func() bool {
		return strings.Contains(h.run("", "cove", "checkpoint", "show", "v2", "-s", "deep", "--json"), `"size_bytes"`)
	})
	h.run("", "cove", "checkpoint", "verify", "-s", "deep")
	if out := h.run("", "cove", "checkpoint", "diff", "v1", "v2", "-s", "deep"); strings.Count(out, strings.Repeat("n", 200)) < 300 {
		t.Errorf("the diff has %.1000s", out)
	}
	_, err := h.client().Sprite("deep").Export(t.Context(), sprites.ExportOptions{})
	if e, ok := errors.AsType[*sprites.Error](err); !ok || e.Code != "path_too_long" || e.Hint == "" || len(e.Message) > 1000 {
		t.Errorf("export: %.3000v", err)
	}
	h.noErrors()
	h.run("", "cove", "rm", "deep")
	await(t, "the end of its layers", func() bool {
		left, err := os.ReadDir(filepath.Join(h.data, "layers"))
		return err == nil && len(left) == 0
	})
	h.noErrors()
}

// TestSoakSlowLayer: that one sprite's layer takes long to be listed holds up no
// other sprite; its removal ends it, and so does the end of the server.
func TestSoakSlowLayer(t *testing.T) {
	if !soak() {
		t.Skip("it takes half a minute of a machine that does nothing else: make soak")
	}
	need.Root(t)
	h := newHost(t)
	h.serve(nil)
	layers := func() (all []string) {
		entries, err := os.ReadDir(filepath.Join(h.data, "layers"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	// slow makes a sprite whose checkpoint has hundreds of thousands of small files,
	// which are names of a few.
	slow := func(name string) {
		h.run("", "cove", "create", name)
		h.sh(name, "echo "+name+" >mine; sync")
		found, err := filepath.Glob(filepath.Join(h.data, "layers", "*", "root", "upper", "home", "sprite", "mine"))
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
			h.run("", "cove", "checkpoint", "create", "-s", name)
			return
		}
		t.Fatalf("no disk of sprite %s: %v", name, err)
	}
	h.run("", "cove", "create", "other")
	h.sh("other", "true")
	before := layers()
	slow("slow")
	h.sh("other", "echo other >file")
	h.run("", "cove", "checkpoint", "create", "-s", "other")
	await(t, "the sizes of the other sprite", func() bool { return h.sized("other") })
	h.run("", "cove", "checkpoint", "verify", "-s", "other")
	if h.sized("slow") {
		t.Error("the slow layer was listed before the other; that shows nothing")
	}
	h.run("", "cove", "rm", "slow")
	await(t, "the end of its layers", func() bool { return len(layers()) <= len(before)+1 })

	slow("slower")
	verified := make(chan error, 1)
	client := h.client() // which starts no other server
	go func() {
		_, err := client.Sprite("slower").Verify(context.Background(), "", func(sprites.VerifyLine) {})
		verified <- err
	}()
	h.endServer(syscall.SIGTERM)
	if strings.Contains(readFile(t, filepath.Join(h.data, "serve.log")), "did not end in time") {
		t.Error("the server did not break it off")
	}
	if err := <-verified; err == nil {
		t.Error("a verification that was broken off has succeeded")
	}
	h.noErrors()
}
