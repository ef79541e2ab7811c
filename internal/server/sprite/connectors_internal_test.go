package sprite

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// TestBuildConnectors: the sprite of a build has none of the server's connectors. Another
// sprite with such a name has them.
func TestBuildConnectors(t *testing.T) {
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	n := network{store: st, given: map[string]connect.Upstream{"models": {}}, logger: slog.New(slog.DiscardHandler)}
	for name, test := range map[string]struct {
		owner string
		want  int
	}{store.BuildName + "step": {store.BuildOwner, 0}, store.BuildName + "tools": {"", 1}, "paint": {"", 1}} {
		row := store.Sprite{ID: randomHex(8), MachineID: randomHex(16), Name: name, Owner: test.owner, Base: sprites.HostBase, Status: sprites.StatusCold}
		if err := st.Sprites.Create(t.Context(), &row); err != nil {
			t.Fatal(err)
		}
		if all, err := n.connectors(t.Context(), name); err != nil || len(all) != test.want {
			t.Errorf("%s: got %v, %v, want %d", name, all, err, test.want)
		}
	}
}
