package hostile

import (
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestOverlayInside: an overlay of a program's in a sprite is refused, because it could note no
// file that is gone: a rename in it crashed gVisor, and the sprite with it. A program that looks
// whether there are overlays, as dockerd does, takes something else.
func TestOverlayInside(t *testing.T) {
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Sh("paint", "mkdir lower upper work at; echo old >lower/old; sleep 100000 >/dev/null 2>&1 & echo $! >sleeper")
	for _, user := range []string{"sprite", "root"} {
		out, code := h.Try("", "cove", "exec", "-s", "paint", "--user", user, "--", "unshare", "-Urm", "sh", "-c",
			"cd ~sprite && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work at && echo new >at/new && mv at/new at/old && echo moved")
		if code == 0 {
			t.Errorf("as %s: %s", user, out)
		}
	}
	if got := h.Sh("paint", "kill -0 $(cat sleeper); ls -A upper"); got != "" {
		t.Errorf("the upper folder has %q", got)
	}
}
