package sprite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// stocked is a Runtime that has things on disk, and sandboxes with layers and a memory.
type stocked struct {
	memory
	stock   []sprite.Item
	mounted []string
	refuses bool     // sandboxes do not end
	aside   []string // what was moved there, as KIND/NAME
	dropped []string // memories that were removed, as KIND/NAME
	kept    []string // sandboxes whose memory was saved
}

func (r *stocked) Stock(context.Context) (all []sprite.Item, _ error) {
	r.set(func() { all = slices.Clone(r.stock) })
	return all, nil
}

func (r *stocked) SetAside(_ context.Context, item sprite.Item, why string) (to string, err error) {
	if why == "" {
		return "", errors.New("nobody says why")
	}
	r.set(func() {
		if r.take(item.Kind, item.Name) {
			to = fmt.Sprintf("%s/%s", item.Kind, item.Name)
			r.aside = append(r.aside, to)
		}
	})
	return to, nil
}

// take removes an item from the stock. r.mu is held.
func (r *stocked) take(kind sprite.ItemKind, name string) bool {
	n := len(r.stock)
	r.stock = slices.DeleteFunc(r.stock, func(i sprite.Item) bool { return i.Kind == kind && i.Name == name })
	return len(r.stock) < n
}

func (r *stocked) Mounted(context.Context) (all []string, _ error) {
	r.set(func() { all = slices.Clone(r.mounted) })
	return all, nil
}

func (r *stocked) drop(kind sprite.ItemKind, name string) error {
	r.set(func() {
		if r.take(kind, name) {
			r.dropped = append(r.dropped, fmt.Sprintf("%s/%s", kind, name))
		}
	})
	return nil
}

func (r *stocked) Memories() sprite.MemoryStore { return r }

func (r *stocked) Keep(context.Context, string, string) (int64, error) { return 0, nil }
func (r *stocked) Recall(context.Context, string, string) error        { return nil }
func (r *stocked) Warm(string) bool                                    { return false }
func (r *stocked) Outdated(string) bool                                { return false }
func (r *stocked) Forget(_ context.Context, name string) error {
	return r.drop(sprite.ItemMemory, name)
}
func (r *stocked) Drop(_ context.Context, id string) error {
	return r.drop(sprite.ItemImage, id)
}

func (r *stocked) Live(ctx context.Context) (live []sprite.Sandbox, err error) {
	all, err := r.memory.Live(ctx)
	for _, sb := range all {
		live = append(live, &stockedSandbox{sb.(*fakeSandbox), r})
	}
	return live, err
}

// runs has a sandbox run that an earlier server started.
func (r *stocked) runs(id string, layers ...string) {
	r.set(func() {
		if r.live == nil {
			r.live = map[string]*fakeSandbox{}
		}
		r.live[id] = &fakeSandbox{runtime: &r.memory, machine: sprite.Machine{ID: id, Layers: layers, Incarnation: 7}, done: make(chan struct{})}
		r.mounted = append(r.mounted, layers...)
	})
}

type stockedSandbox struct {
	*fakeSandbox
	runtime *stocked
}

func (s *stockedSandbox) Status() sprite.SandboxStatus {
	status := s.fakeSandbox.Status()
	status.Layers = s.machine.Layers
	return status
}

func (s *stockedSandbox) Hibernate(context.Context) error {
	refuses := false
	s.runtime.set(func() {
		if refuses = s.runtime.refuses; refuses {
			return
		}
		s.runtime.kept = append(s.runtime.kept, s.machine.ID)
		s.runtime.stock = append(s.runtime.stock, sprite.Item{Kind: sprite.ItemImage, Name: s.machine.ID, Layers: s.machine.Layers})
		s.runtime.mounted = slices.DeleteFunc(s.runtime.mounted, func(l string) bool { return slices.Contains(s.machine.Layers, l) })
	})
	if refuses {
		return errLost
	}
	s.end("asleep")
	return nil
}

func (s *stockedSandbox) Stop(ctx context.Context, grace time.Duration) error {
	refuses := false
	s.runtime.set(func() { refuses = s.runtime.refuses })
	if refuses {
		return errLost
	}
	return s.fakeSandbox.Stop(ctx, grace)
}

// saw is what a server's start has done.
type saw struct{ aside, dropped, removed, kept []string }

// startOn starts a host on a store, lets it finish, calls look, and ends it.
func startOn(t *testing.T, st *store.Store, r *stocked, look func(*sprite.Host)) saw {
	t.Helper()
	h := &sprite.Host{Store: st, Runtime: r}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if look != nil {
		look(h)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	var s saw
	r.set(func() { s = saw{r.aside, r.dropped, r.removed, r.kept} })
	slices.Sort(s.aside)
	return s
}

// openAt opens a store to be closed by the test's end.
func openAt(t *testing.T, path string, open func(context.Context, string) (*store.Store, error)) *store.Store {
	t.Helper()
	st, err := open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

// addSprite adds a sprite with a checkpoint, and returns the sprite's chain.
func addSprite(t *testing.T, st *store.Store, name, id string) []string {
	t.Helper()
	row := store.Sprite{ID: id, Name: name, Status: sprites.StatusCold}
	err := st.Sprites.Create(t.Context(), &row)
	if err == nil {
		var next store.Next
		if next, err = st.Sprites.Begin(t.Context(), id, row.Layer, store.Next{Checkpoint: &store.Checkpoint{}}); err == nil {
			_, err = st.Sprites.Commit(t.Context(), id, next)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	row, err = st.Sprites.ByID(t.Context(), id)
	chain, chainErr := st.Sprites.Chain(t.Context(), row.Layer)
	if err := errors.Join(err, chainErr); err != nil {
		t.Fatal(err)
	}
	return chain
}

const (
	paintID         = "00000000000000a1"
	unknown         = "00000000000000ff"
	otherID         = "00000000000000b2"
	unreferencedID  = "00000000000000d0"
	unreferencedMem = "00000000000000d1"
)

// A sandbox is taken up if it runs over the disk that the store says. Else it is ended, and
// its memory and the layers that the store does not know are kept aside.
func TestTakeUpComparesLayers(t *testing.T) {
	for name, c := range map[string]struct {
		layers func(chain []string) []string
		adopt  bool
		aside  string
	}{
		"the same":             {func(c []string) []string { return c }, true, ""},
		"not said":             {func([]string) []string { return nil }, true, ""},
		"below, what was once": {func(c []string) []string { return c[1:] }, true, ""},
		"a newer one on top":   {func(c []string) []string { return append(c, unknown) }, false, "images/" + paintID + " layers/" + unknown},
		"another on top":       {func(c []string) []string { return append(c[:1:1], unknown) }, false, "images/" + paintID + " layers/" + unknown},
		"without the top":      {func(c []string) []string { return c[:1] }, false, "images/" + paintID},
		"an unknown one below": {func(c []string) []string { return []string{unknown, c[1]} }, false, "images/" + paintID + " layers/" + unknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := openAt(t, filepath.Join(t.TempDir(), "cove.db"), store.Open)
				chain := addSprite(t, st, "paint", paintID)
				r := &stocked{stock: []sprite.Item{{Kind: sprite.ItemLayer, Name: chain[0]}, {Kind: sprite.ItemLayer, Name: chain[1]}}}
				has := c.layers(slices.Clone(chain))
				r.runs(paintID, has...)
				if slices.Contains(has, unknown) {
					r.stock = append(r.stock, sprite.Item{Kind: sprite.ItemLayer, Name: unknown})
				}
				got := startOn(t, st, r, func(h *sprite.Host) {
					sb, err := h.Live(t.Context(), "paint")
					if err != nil || (sb != nil) != c.adopt {
						t.Errorf("it has the sandbox: %v, %v, want %v", sb != nil, err, c.adopt)
					}
					row, err := st.Sprites.ByID(t.Context(), paintID)
					if err != nil || row.Incarnation != 7 {
						t.Errorf("its incarnation is %d, %v, want that of the sandbox, which is 7", row.Incarnation, err)
					}
					if strings.Contains(row.LastError, "another disk") == c.adopt {
						t.Errorf("its last error is %q", row.LastError)
					}
				})
				if aside := strings.Join(got.aside, " "); aside != c.aside || (len(got.kept) == 1) == c.adopt || len(got.removed)+len(got.dropped) > 0 {
					t.Errorf("got %+v, want aside %q", got, c.aside)
				}
			})
		})
	}
}

// A start moves aside what the store does not know, and removes what the store has marked
// unreferenced. It leaves alone the layers of a sandbox that can't be ended.
func TestStartMovesAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openAt(t, filepath.Join(t.TempDir(), "cove.db"), store.Open)
		chain := addSprite(t, st, "paint", paintID)
		for _, name := range []string{unreferencedMem, unreferencedID, "00000000000000d2"} { // the last one was never made
			if err := st.Sprites.MarkMemoryUnreferenced(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		r := &stocked{refuses: true, stock: []sprite.Item{
			{Kind: sprite.ItemLayer, Name: chain[0]}, {Kind: sprite.ItemLayer, Name: chain[1]}, {Kind: sprite.ItemLayer, Name: unknown}, {Kind: sprite.ItemLayer, Name: otherID},
			{Kind: sprite.ItemMemory, Name: unknown}, {Kind: sprite.ItemMemory, Name: unreferencedMem},
			{Kind: sprite.ItemImage, Name: unknown}, {Kind: sprite.ItemImage, Name: unreferencedID}, {Kind: sprite.ItemImage, Name: paintID, Layers: []string{otherID}},
		}}
		r.runs(otherID, otherID)
		got := startOn(t, st, r, nil)
		if want := []string{"images/" + unknown, "layers/" + unknown, "memories/" + unknown}; !slices.Equal(got.aside, want) {
			t.Errorf("aside: %q, want %q", got.aside, want)
		}
		if want := []string{"memories/" + unreferencedMem, "images/" + unreferencedID}; !slices.Equal(got.dropped, want) || len(got.removed) > 0 {
			t.Errorf("removed: %q and %q, want %q", got.dropped, got.removed, want)
		}
		if _, unreferenced, err := st.Sprites.Memories(t.Context()); err != nil || len(unreferenced) > 0 {
			t.Errorf("still unreferenced: %q, %v", unreferenced, err)
		}
		// Once it ends, the rest goes aside, too.
		r.set(func() { r.refuses = false })
		got = startOn(t, st, r, nil)
		if want := []string{"images/" + otherID, "layers/" + otherID}; !slices.Contains(got.aside, want[0]) || !slices.Contains(got.aside, want[1]) {
			t.Errorf("aside after the sandbox's end: %q, want %q among them", got.aside, want)
		}
	})
}

// With an older store, a start removes nothing that belonged to nobody when the store was
// copied. That may be a sandbox of the pool, an installation, an unfinished memory, or a layer
// to merge into.
func TestStartOnOlderStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "cove.db")
		st, err := store.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		chain := addSprite(t, st, "paint", paintID)
		asleep := addSprite(t, st, "asleep", otherID)
		merged, err := st.Sprites.NewMerged(t.Context(), chain[0])
		pool := store.Sprite{ID: "00000000000000b3", Name: "pool.b3", Owner: store.PoolOwner, Status: sprites.StatusCold}
		install := store.Sprite{ID: "00000000000000b4", Name: "install.b4", Owner: store.InstallOwner + "key", Status: sprites.StatusCold}
		if err := errors.Join(err, st.Sprites.Create(t.Context(), &pool), st.Sprites.Create(t.Context(), &install), st.Sprites.MarkMemoryUnreferenced(t.Context(), unreferencedMem), st.Close()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, store.EpochFile), fmt.Appendf(nil, "%020d\n", 1000), 0o600); err != nil {
			t.Fatal(err)
		}
		st = openAt(t, path, store.OpenOlder)
		r := &stocked{stock: []sprite.Item{
			{Kind: sprite.ItemMemory, Name: unreferencedMem},
			{Kind: sprite.ItemImage, Name: paintID, Layers: append(slices.Clone(chain), unknown)},
			{Kind: sprite.ItemImage, Name: otherID, Layers: asleep},
			{Kind: sprite.ItemImage, Name: install.ID, Layers: []string{install.Layer}},
		}}
		for _, layer := range slices.Concat(chain, asleep, []string{merged, pool.Layer, install.Layer}) {
			r.stock = append(r.stock, sprite.Item{Kind: sprite.ItemLayer, Name: layer})
		}
		r.runs(pool.ID, pool.Layer)
		want := []string{"memories/" + unreferencedMem, "images/" + paintID, "images/" + install.ID, "images/" + pool.ID, "layers/" + merged, "layers/" + pool.Layer, "layers/" + install.Layer}
		slices.Sort(want)
		got := startOn(t, st, r, func(h *sprite.Host) {
			for name, last := range map[string]string{"paint": chain[1], "asleep": asleep[1]} {
				list, err := h.Checkpoints(t.Context(), name, true)
				if err != nil || len(list) != 3 || !strings.HasPrefix(list[1].ID, "older-store-") {
					t.Errorf("%s has the checkpoints %+v, %v, want one of what it was in the older store", name, list, err)
				}
				if row, err := st.Sprites.Get(t.Context(), name); err != nil || row.Layer == last {
					t.Errorf("%s writes the layer that the newer store may have sealed (%v)", name, err)
				}
			}
		})
		if !slices.Equal(got.aside, want) || len(got.removed)+len(got.dropped)+len(r.destroyed) > 0 {
			t.Errorf("got %+v, destroyed %q, want aside %q", got, r.destroyed, want)
		}
		if older, err := st.Epoch.Older(t.Context()); err != nil || older {
			t.Errorf("once reconciled, the store is older: %v, %v", older, err)
		}
	})
}
