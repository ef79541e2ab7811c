package gvisor

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/runtime/runtimetest"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/sprite"
)

// bin holds the binaries that sandboxes are made with.
var bin string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	bin = os.Getenv("COVE_BIN") // made by make build
	if bin == "" {
		dir, err := os.MkdirTemp("", "cove-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir, "../../../cmd/cove", "../../../cmd/cove-guest", "../../../cmd/cove-runsc")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the binaries: %v\n%s", err, out)
			return 1
		}
		bin = dir
	}
	return m.Run()
}

func newRuntime(t *testing.T, dir string) *Runtime {
	t.Helper()
	rt := &Runtime{
		Dir: dir, Shim: []string{filepath.Join(bin, "cove"), "shim"}, Runsc: filepath.Join(bin, "cove-runsc"), Guest: filepath.Join(bin, "cove-guest"),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return rt
}

// A sandbox without a shim has no network, and its status says why.
func TestNetworkDown(t *testing.T) {
	rt := newRuntime(t, t.TempDir())
	rt.Shim = []string{"false"}
	rt.init()
	sb := rt.follow("00112233aabbccdd", shim.State{})
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(sb.Status().NetworkDown, "no other can be started"); {
		if time.Now().After(deadline) {
			t.Fatalf("got %+v", sb.Status())
		}
		<-time.After(5 * time.Millisecond)
	}
	again := &sandbox{}
	again.setDown("why")
	if again.setState(shim.State{}); again.Status().NetworkDown != "" {
		t.Errorf("with another shim: %+v", again.Status())
	}
}

func TestRuntime(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("COVE_REQUIRE_SANDBOX") == "1" {
			t.Fatal("the test needs root, or root in a user namespace")
		}
		t.Skip("the test needs root, or root in a user namespace")
	}
	dir := t.TempDir()
	// The second runtime too lives until the end of the whole test.
	runtimetest.Run(t, newRuntime(t, dir), func(*testing.T) sprite.Runtime { return newRuntime(t, dir) })
}
