package agents

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-dev/cove/internal/test/executable"
)

// TestNPMInstallLeavesNoCache: the user's home has the agent, and nothing of npm's own.
func TestNPMInstallLeavesNoCache(t *testing.T) {
	dir, home, tmp := t.TempDir(), t.TempDir(), t.TempDir()
	for name, script := range map[string]string{
		"npm": `mkdir -p "${npm_config_cache:-$HOME/.npm}/_logs"; touch "${npm_config_cache:-$HOME/.npm}/_logs/log"
			case $1 in
			view) echo sum ;;
			config) echo /etc/npmrc ;;
			install) mkdir -p "$4/bin"; printf '#!/bin/sh\necho 1.2.3\n' >"$4/bin/greeter"; chmod +x "$4/bin/greeter" ;;
			esac`,
		"node": "echo 22",
	} {
		executable.Write(t, filepath.Join(dir, name), "#!/bin/sh\n"+script+"\n")
	}
	cmd := exec.Command("/bin/sh", "-c", npmInstall, "npm-install", "greeter", "20", "greeter@1.2.3", "sum")
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + tmp, "PATH=" + dir + ":/usr/bin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "greeter 1.2.3\n" {
		t.Fatalf("got %q, %v", out, err)
	}
	for folder, want := range map[string]int{home: 1, tmp: 0} { // .local
		if entries, err := os.ReadDir(folder); err != nil || len(entries) != want {
			t.Errorf("in %s: got %v, %v, want %d", folder, entries, err, want)
		}
	}
}
