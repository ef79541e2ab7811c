package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/filesync"
)

// TestRelativeHome: a relative HOME means the same folder to a command and to the server that it
// starts, which has another working directory.
func TestRelativeHome(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	for _, name := range []string{"XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "COVE_CONFIG"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", "rel")
	var out, said bytes.Buffer
	if code := Main(t.Context(), []string{"version"}, Streams{In: strings.NewReader(""), Out: &out, Err: &said}); code != 0 {
		t.Fatalf("exit code %d: %s", code, said.String())
	}
	home := filepath.Join(here, "rel")
	if got := os.Getenv("HOME"); got != home {
		t.Errorf("HOME is %q, want %q", got, home)
	}
	t.Chdir("/")
	file, _ := config.PersonalFile(os.Getenv)
	for _, got := range []string{file, filesync.StateDir()} {
		if !strings.HasPrefix(got, home+"/") {
			t.Errorf("got %s, want it below %s", got, home)
		}
	}
	for _, kv := range serverEnvironment() {
		if value, ok := strings.CutPrefix(kv, "HOME="); ok && value != home {
			t.Errorf("a server has HOME=%s", value)
		}
	}
}
