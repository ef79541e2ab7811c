package store

import (
	"path/filepath"
	"slices"
	"testing"
)

// TestUnreferencedMemories: a memory is unreferenced from before it is made until a checkpoint
// or a sprite has it. The transaction that deletes the checkpoint or sprite makes it
// unreferenced again.
func TestUnreferencedMemories(t *testing.T) {
	s, ctx := open(t, filepath.Join(t.TempDir(), "cove.db")), t.Context()
	defer func() { must(t, s.Close()) }()
	want := func(when string, kept, unreferenced []string) {
		t.Helper()
		gotKept, gotUnreferenced, err := s.Sprites.Memories(ctx)
		slices.Sort(gotKept)
		slices.Sort(gotUnreferenced)
		if err != nil || !slices.Equal(gotKept, kept) || !slices.Equal(gotUnreferenced, unreferenced) {
			t.Errorf("%s: kept %q, unreferenced %q, %v, want %q and %q", when, gotKept, gotUnreferenced, err, kept, unreferenced)
		}
	}
	keep := func(row *Sprite, memory string) {
		t.Helper()
		c := &Checkpoint{Memory: memory}
		next, err := s.Sprites.Begin(ctx, row.ID, row.Layer, Next{Checkpoint: c})
		must(t, err)
		_, err = s.Sprites.Commit(ctx, row.ID, next)
		must(t, err)
		row.Layer = next.Layer
	}

	row := Sprite{ID: "id", Name: "paint"}
	for _, name := range []string{"id", "m1", "m2", "m3", "m1"} {
		must(t, s.Sprites.MarkMemoryUnreferenced(ctx, name))
	}
	want("begun", nil, []string{"id", "m1", "m2", "m3"})
	must(t, s.Sprites.Create(ctx, &row))
	want("a sprite sleeps with one", nil, []string{"m1", "m2", "m3"})
	keep(&row, "m1")
	keep(&row, "m2")
	keep(&row, "")
	want("checkpoints have two", []string{"m1", "m2"}, []string{"m3"})
	must(t, s.Sprites.DeleteCheckpoint(ctx, "id", "v1", 0))
	want("a checkpoint is deleted", []string{"m2"}, []string{"m1", "m3"})
	must(t, s.Sprites.Delete(ctx, "id"))
	want("the sprite is deleted", nil, []string{"m1", "m2", "m3"})
	must(t, s.Sprites.ForgetMemories(ctx, []string{"m1", "m3", "m9"}))
	want("two are not there any more", nil, []string{"m2"})
}

// TestReached: an incarnation that a sandbox has had is not given again.
func TestReached(t *testing.T) {
	s, ctx := open(t, filepath.Join(t.TempDir(), "cove.db")), t.Context()
	defer func() { must(t, s.Close()) }()
	must(t, s.Sprites.Create(ctx, &Sprite{ID: "id", Name: "paint"}))
	for _, c := range []struct{ reached, next int64 }{{7, 8}, {3, 9}, {9, 10}} {
		must(t, s.Sprites.Reached(ctx, "id", c.reached))
		if n, err := s.Sprites.Next(ctx, "id"); err != nil || n != c.next {
			t.Errorf("after %d: got %d, %v, want %d", c.reached, n, err, c.next)
		}
	}
}
