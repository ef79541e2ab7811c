package store

import (
	"slices"
	"testing"
)

// What is known of layers, whose they are, and which ones are still to be listed.
func TestLayerFacts(t *testing.T) {
	s, ctx := newStore(t).Sprites, t.Context()
	paint := Sprite{ID: "1", Name: "paint"}
	must(t, s.Create(ctx, &paint))
	seal := func(id, layer string) (written string) {
		t.Helper()
		next, err := s.Begin(ctx, id, layer, &Checkpoint{})
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
	usages, err := s.Usages(ctx, "1")
	// v1, v2, paint and copy; v2 and paint; paint.
	if err != nil || len(usages) != 3 || usages[first].States != 4 || usages[first].Disk != 7 || usages[second].States != 2 || usages[second].Parent != first || usages[third].States != 1 {
		t.Errorf("%+v, %v", usages, err)
	}
	if _, err := s.FactsOf(ctx, "none"); err == nil {
		t.Error("facts of no layer")
	}
	must(t, s.SetFacts(ctx, "none", Facts{}))
}
