package images

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestBuildKilled: a server that is killed at any fault point of a build leaves no sprite. The
// next build goes on from the steps that were recorded. If the client disconnects, the build
// ends.
func TestBuildKilled(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	saved := filepath.Join(filepath.Dir(h.Home), "saved.tar")
	small, err := name.NewTag("small:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(saved, small, imageOf(t, v1.Config{}, busyboxLayer(t))); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "image", "import", saved)
	dir := filepath.Join(filepath.Dir(h.Home), "app")
	gone := func(what string) {
		t.Helper()
		e2e.Await(t, what+": no sprite of a build", func() bool {
			all, err := filepath.Glob(filepath.Join(h.Data, "run", "*"))
			if err != nil {
				t.Fatal(err)
			}
			runs, err := os.ReadDir(filepath.Join(h.Data, "build", "runs"))
			return err == nil && len(all) == 0 && len(runs) == 0
		})
	}
	for _, point := range fault.BuildPoints {
		write(t, filepath.Join(dir, "Dockerfile"), "FROM small:1\nRUN echo "+string(point)+" >/made\n")
		h.EndServer(syscall.SIGTERM)
		reached := filepath.Join(filepath.Dir(h.Home), "reached-"+string(point))
		h.Serve([]string{fault.Variable + "=" + string(point) + "=" + reached})
		_, built := h.Background("app", "cove", "image", "build", "-t", "app:"+string(point), ".")
		e2e.Await(t, string(point), func() bool {
			_, err := os.Lstat(reached)
			return err == nil
		})
		h.EndServer(syscall.SIGKILL)
		if out, err := built(); err == nil {
			t.Errorf("%s: the build that was killed ended well: %s", point, out)
		}
		h.Serve(nil)
		gone(string(point))
		if out := h.Run("app", "sh", "-c", "cove image build -t app:"+string(point)+" . 2>&1"); strings.Contains(out, "cached") != (point == fault.BuildCached || point == fault.BuildNamed) {
			t.Errorf("%s: the next build: %s", point, out)
		}
		h.Run("", "cove", "create", string(point), "--image", "app:"+string(point))
		if out := h.Run("", "cove", "exec", "-s", string(point), "--", "cat", "/made"); out != string(point)+"\n" {
			t.Errorf("%s: got %q", point, out)
		}
		h.Run("", "cove", "rm", string(point))
	}
	write(t, filepath.Join(dir, "Dockerfile"), "FROM small:1\nRUN echo begun && sleep 100000\n")
	pid, built := h.Background("app", "sh", "-c", "exec cove image build . >"+reachedFile(h)+" 2>&1")
	e2e.Await(t, "the command", func() bool {
		text, err := os.ReadFile(reachedFile(h))
		return err == nil && strings.Contains(string(text), "  begun\n")
	})
	if err := e2e.Signal(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	_, _ = built() // it was killed
	gone("a client that went away")
}

func reachedFile(h *e2e.Host) string { return filepath.Join(filepath.Dir(h.Home), "said") }
