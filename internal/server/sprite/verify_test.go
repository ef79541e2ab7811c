package sprite_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// TestVerifyDuringMerge: if a layer is merged into another while it is being verified, the damage
// that is found is that of the other layer, too.
func TestVerifyDuringMerge(t *testing.T) {
	r := &merging{noLayers: noLayers(t.TempDir())}
	h := start(t, &sprite.Host{Runtime: r})
	create(t, h, "paint")
	row, st, ctx := rowOf(t, h), h.Store.Sprites, t.Context()
	folder := func(layer string) string { return filepath.Join(r.Dir(layer).Path, "root", "upper") }
	file := filepath.Join(folder(row.Layer), "file")
	then := time.Unix(1e9, 0)
	write := func(text string) error { // in place, so that only its contents tell
		return errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, then, then))
	}
	if err := errors.Join(os.MkdirAll(folder(row.Layer), 0o700), write("whole")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Checkpoint(ctx, "paint", sprites.CheckpointRequest{}); err != nil {
		t.Fatal(err)
	}
	for f := (store.Facts{}); f.Digest == ""; {
		var err error
		if f, err = st.FactsOf(ctx, row.Layer); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond) // the layer is listed at the lowest priority
	}
	if err := write("WHOLE"); err != nil {
		t.Fatal(err)
	}
	var into string
	merge := func() error {
		f, err := st.FactsOf(ctx, row.Layer)
		if err == nil {
			into, err = st.NewMerged(ctx, row.Layer)
		}
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(folder(into), 0o700), os.Link(file, filepath.Join(folder(into), "file"))); err != nil {
			return err
		}
		known := layers.Known{}
		if err := known.Add(ctx, r.Dir(row.Layer), layers.Listing{Digest: f.Digest, Files: f.Files, Size: f.Size, Disk: f.Disk}); err != nil {
			return err
		}
		l, err := r.Dir(into).List(ctx, known, nil)
		if err == nil {
			err = st.SetFacts(ctx, into, store.Facts{Digest: l.Digest, Files: l.Files, Size: l.Size, Disk: l.Disk})
		}
		if err == nil {
			err = st.Replace(ctx, row.Layer, into, nil)
		}
		return err
	}
	_, err := h.Verify(ctx, "paint", "v1", func(line sprites.VerifyLine) error {
		if line.Problem == nil || into != "" {
			return nil
		}
		return merge()
	})
	if err != nil {
		t.Fatal(err)
	}
	if f, err := st.FactsOf(ctx, into); err != nil || f.Damage == "" {
		t.Errorf("of the layer in its place is known %+v, %v", f, err)
	}
}
