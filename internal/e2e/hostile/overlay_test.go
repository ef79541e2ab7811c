package hostile

import (
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestOverlayInside: a program in a sprite can't mount an overlay. Such an overlay could not
// record deleted files: a rename in it would crash gVisor, and the sprite with it. Programs
// that first check whether there are overlays, as dockerd does, use something else.
func TestOverlayInside(t *testing.T) {
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Sh("paint", "mkdir lower upper work at; echo old >lower/old; sleep 100000 >/dev/null 2>&1 & echo $! >sleeper")
	for _, user := range []string{"sprite", "root"} {
		out, code := h.Try("", "cove", "exec", "-s", "paint", "--user", user, "--", "unshare", "-Urm", "sh", "-c",
			"cd ~sprite; mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work at || exit 42; echo new >at/new && mv at/new at/old && echo moved")
		if code != 42 {
			t.Errorf("as %s: exit code %d, not mount's refusal: %s", user, code, out)
		}
	}
	if got := h.Sh("paint", "kill -0 $(cat sleeper); ls -A upper"); got != "" {
		t.Errorf("the upper folder has %q", got)
	}
}
