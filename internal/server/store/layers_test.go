package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestLayerFacts: the store tells the facts of layers, their owners, and which layers
// must still be listed.
func TestLayerFacts(t *testing.T) {
	s, ctx := newStore(t).Sprites, t.Context()
	paint := Sprite{ID: "1", Name: "paint"}
	must(t, s.Create(ctx, &paint))
	seal := func(id, layer string) (written string) {
		t.Helper()
		next, err := s.Begin(ctx, id, layer, Next{Checkpoint: &Checkpoint{}})
		must(t, err)
		unlisted, err := s.Unlisted(ctx)
		if err != nil || slices.Contains(unlisted, layer) {
			t.Errorf("a layer that is still written is to be listed: %v, %v", unlisted, err)
		}
		_, err = s.Commit(ctx, id, next)
		must(t, err)
		return next.Layer
	}
	first := paint.Layer
	second := seal("1", first)
	third := seal("1", second)
	copied := Sprite{ID: "2", Name: "copy", Layer: first}
	must(t, s.Create(ctx, &copied))

	unlisted, err := s.Unlisted(ctx)
	slices.Sort(unlisted)
	if want := slices.Sorted(slices.Values([]string{first, second})); err != nil || !slices.Equal(unlisted, want) {
		t.Errorf("to be listed are %v, %v, want %v", unlisted, err, want)
	}
	must(t, s.SetFacts(ctx, first, Facts{Digest: "d", Disk: 7}))
	if unlisted, err = s.Unlisted(ctx); err != nil || !slices.Equal(unlisted, []string{second}) {
		t.Errorf("to be listed are %v, %v", unlisted, err)
	}
	if f, err := s.FactsOf(ctx, first); err != nil || f.Disk != 7 {
		t.Errorf("%+v, %v", f, err)
	}
	for _, c := range [][2][]string{{{third, second, first}, {first}}, {{second, third}, nil}, {nil, nil}} {
		if listed, err := s.Listed(ctx, c[0]); err != nil || !slices.Equal(listed, c[1]) {
			t.Errorf("of %v, %v, %v are listed, want %v", c[0], listed, err, c[1])
		}
	}
	usages, err := s.Usages(ctx, "1")
	// v1, v2, paint and copy; v2 and paint; paint.
	if err != nil || len(usages) != 3 || usages[first].States != 4 || usages[first].Disk != 7 || usages[second].States != 2 || usages[second].Parent != first || usages[third].States != 1 {
		t.Errorf("%+v, %v", usages, err)
	}
	for layer, want := range map[string]string{first: "1", third: "1", copied.Layer: "2", "none": "none"} {
		if of, err := s.SpriteOn(ctx, layer); err != nil || of != want {
			t.Errorf("layer %s is on %s, %v, want %s", layer, of, err, want)
		}
	}
	if _, err := s.FactsOf(ctx, "none"); err == nil {
		t.Error("facts of no layer")
	}
	must(t, s.SetFacts(ctx, "none", Facts{}))
}

// TestInstalls: an install is a layer that is kept without a sprite until it is
// dropped. It never exists together with the sprite that it was made in.
func TestInstalls(t *testing.T) {
	s := newStore(t)
	ctx := t.Context()
	made := Sprite{ID: "aaaaaaaaaaaaaaaa", Name: "install-x", Owner: InstallOwner + "k"}
	if err := s.Sprites.Create(ctx, &made); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Sprites.List(ctx, SpriteFilter{Public: true}); err != nil || len(list) != 0 {
		t.Errorf("listed: %+v, %v", list, err)
	}
	in := Install{Key: "k", Agent: "a", Version: "1", Took: time.Second}
	if err := s.Installs.Keep(ctx, "none", in); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no sprite: %v", err)
	}
	if err := s.Installs.Keep(ctx, made.ID, in); err != nil {
		t.Fatal(err)
	}
	if row, err := s.Sprites.ByID(ctx, made.ID); err != nil || !row.Deleting {
		t.Errorf("its sprite: %+v, %v", row, err)
	}
	if err := s.Installs.Keep(ctx, made.ID, in); !errors.Is(err, ErrNotFound) {
		t.Errorf("twice: %v", err)
	}
	if err := s.Sprites.Delete(ctx, made.ID); err != nil {
		t.Fatal(err)
	}
	if unreferenced, err := s.Sprites.MarkUnreferenced(ctx); err != nil || len(unreferenced) != 0 {
		t.Errorf("unreferenced: %v, %v", unreferenced, err)
	}
	got, err := s.Installs.Use(ctx, "k")
	if err != nil || got.Layer != made.Layer || got.Agent != "a" || got.Took != time.Second || got.UsedAt.Before(got.CreatedAt) {
		t.Errorf("got %+v, %v", got, err)
	}
	if unlisted, err := s.Sprites.Unlisted(ctx); err != nil || len(unlisted) != 1 || unlisted[0] != made.Layer {
		t.Errorf("to be listed: %v, %v", unlisted, err)
	}
	user := Sprite{ID: "bbbbbbbbbbbbbbbb", Name: "job", Layer: got.Layer}
	if err := s.Sprites.Create(ctx, &user); err != nil {
		t.Fatal(err)
	}
	if gone, err := s.Installs.Drop(ctx, "k", got.UsedAt.Add(-time.Second)); err != nil || gone {
		t.Errorf("it was used since: %v, %v", gone, err)
	}
	if gone, err := s.Installs.Drop(ctx, "k", got.UsedAt); err != nil || !gone {
		t.Errorf("drop: %v, %v", gone, err)
	}
	if unreferenced, err := s.Sprites.MarkUnreferenced(ctx); err != nil || len(unreferenced) != 0 {
		t.Errorf("a sprite has it: %v, %v", unreferenced, err)
	}
	if err := s.Sprites.Delete(ctx, user.ID); err != nil {
		t.Fatal(err)
	}
	for _, layer := range []string{got.Layer, user.Layer} {
		if _, err := s.Sprites.Chain(ctx, layer); err != nil {
			t.Errorf("nobody has marked it yet: %v", err)
		}
	}
	if unreferenced, err := s.Sprites.MarkUnreferenced(ctx); err != nil || len(unreferenced) != 2 {
		t.Errorf("nobody has it: %v, %v", unreferenced, err)
	}
	for _, layer := range []string{got.Layer, user.Layer} {
		if chain, err := s.Sprites.Chain(ctx, layer); !errors.Is(err, ErrNotFound) {
			t.Errorf("the chain of a layer that is being removed: %v, %v", chain, err)
		}
	}
	if _, err := s.Installs.Use(ctx, "k"); !errors.Is(err, ErrNotFound) {
		t.Errorf("dropped: %v", err)
	}
}

// TestSources: the source of a checkpoint stays known when layers are merged. If the
// source is deleted, the source's own source takes its place.
func TestSources(t *testing.T) {
	s, ctx := newStore(t).Sprites, t.Context()
	paint := Sprite{ID: "1", Name: "paint"}
	must(t, s.Create(ctx, &paint))
	step := func(from string, next Next) {
		t.Helper()
		next, err := s.Begin(ctx, "1", from, next)
		must(t, err)
		_, err = s.Commit(ctx, "1", next)
		must(t, err)
	}
	now := func() Sprite {
		t.Helper()
		row, err := s.ByID(ctx, "1")
		must(t, err)
		return row
	}
	for range 3 {
		step(now().Layer, Next{Checkpoint: &Checkpoint{}})
	}
	second, err := s.Checkpoint(ctx, "1", "v2")
	must(t, err)
	step(second.Layer, Next{Source: "v2"})
	step(now().Layer, Next{}) // sealed for a fork
	step(now().Layer, Next{Checkpoint: &Checkpoint{}})
	sources := func(want string) {
		t.Helper()
		got := "now " + now().Source
		list, err := s.Checkpoints(ctx, "1")
		must(t, err)
		for _, c := range list {
			got += ", " + c.Name + " " + c.Source
			if c.Added != nil {
				got += fmt.Sprintf(" +%d", *c.Added)
			}
		}
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	sources("now v4, v4 v2, v3 v2, v2 v1, v1 ")
	// If a database has no notes of the sources, the migration takes them from the
	// layers.
	_, err = s.db.write.Exec("DROP INDEX checkpoints_by_source; ALTER TABLE checkpoints DROP COLUMN source; ALTER TABLE sprites DROP COLUMN source")
	must(t, err)
	_, err = s.db.write.Exec(migrations[sourcesMigration])
	must(t, err)
	sources("now v4, v4 v2, v3 v2, v2 v1, v1 ")

	third, err := s.Checkpoint(ctx, "1", "v3")
	must(t, err)
	first, err := s.Checkpoint(ctx, "1", "v1")
	must(t, err)
	merged, err := s.NewMerged(ctx, second.Layer)
	must(t, err)
	must(t, s.SetFacts(ctx, merged, Facts{Digest: "merged"}))
	for layer, damage := range map[string]string{first.Layer: "a", second.Layer: "b", third.Layer: ""} { // the first is below the merged one
		must(t, s.SetFacts(ctx, layer, Facts{Digest: "d", Damage: damage}))
	}
	must(t, s.Replace(ctx, third.Layer, merged, new(int64(30))))
	sources("now v4, v4 v2, v3 v2 +30, v2 v1, v1 ")
	if f, err := s.FactsOf(ctx, merged); err != nil || f.Damage != "b" || f.Digest != "merged" {
		t.Errorf("of the merged layer is known %+v, %v", f, err)
	}
	if id, err := s.SealedBy(ctx, merged); err != nil || id != "1" {
		t.Errorf("%s, %v", id, err)
	}
	must(t, s.DeleteCheckpoint(ctx, "1", "v2", 7))
	sources("now v4, v4 v1, v3 v1 +37, v1 ")
	must(t, s.DeleteCheckpoint(ctx, "1", "v1", 0))
	sources("now v4, v4 , v3  +37")
	// The source of what the sprite is now stays, and that of what it is about to be.
	third, err = s.Checkpoint(ctx, "1", "v3")
	must(t, err)
	next, err := s.Begin(ctx, "1", third.Layer, Next{Source: "v3"})
	must(t, err)
	for _, name := range []string{"v3", "v4"} {
		if err := s.DeleteCheckpoint(ctx, "1", name, 0); !errors.Is(err, ErrInUse) {
			t.Errorf("%s was deleted: %v", name, err)
		}
	}
	must(t, s.Abort(ctx, "1", next))
	must(t, s.DeleteCheckpoint(ctx, "1", "v3", 0))
	sources("now v4, v4 ")
	if err := s.DeleteCheckpoint(ctx, "1", "v1", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
}

// sourcesMigration is the migration that has noted what checkpoints grew from.
const sourcesMigration = 8
