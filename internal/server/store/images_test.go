package store

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestImages: an image is found by digest and by name; a name is one image's at a time.
func TestImages(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "cove.db"))
	one := Image{Digest: "sha256:1", Doc: json.RawMessage(`{"n":1}`), Names: []string{"b", "a"}, Created: now(), Pulled: now()}
	two := Image{Digest: "sha256:2", Doc: json.RawMessage(`{"n":2}`), Names: []string{"a"}, Pulled: now().Add(time.Second)}
	must(t, s.Images.Put(t.Context(), one))
	got, err := s.Images.Named(t.Context(), "a")
	if err != nil || got.Digest != one.Digest || string(got.Doc) != `{"n":1}` || !slices.Equal(got.Names, []string{"a", "b"}) || !got.Created.Equal(one.Created) || !got.Pulled.Equal(one.Pulled) {
		t.Errorf("by a name: got %+v, %v", got, err)
	}
	must(t, s.Images.Put(t.Context(), two))
	list, err := s.Images.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Digest != two.Digest || !slices.Equal(list[0].Names, []string{"a"}) || !slices.Equal(list[1].Names, []string{"b"}) || !list[0].Created.IsZero() {
		t.Errorf("after the name moved: got %+v, %v", list, err)
	}
	one.Names, one.Doc = []string{"c"}, json.RawMessage(`{"n":3}`)
	must(t, s.Images.Put(t.Context(), one))
	if got, err := s.Images.Get(t.Context(), one.Digest); err != nil || !slices.Equal(got.Names, []string{"b", "c"}) || string(got.Doc) != `{"n":3}` {
		t.Errorf("stored again: got %+v, %v", got, err)
	}
	must(t, s.Images.Unname(t.Context(), "b"))
	if err := s.Images.Unname(t.Context(), "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a name that is gone: %v", err)
	}
	must(t, s.Images.Delete(t.Context(), one.Digest))
	if err := s.Images.Delete(t.Context(), one.Digest); !errors.Is(err, ErrNotFound) {
		t.Errorf("an image that is gone: %v", err)
	}
	for _, find := range []func() (Image, error){
		func() (Image, error) { return s.Images.Named(t.Context(), "c") },
		func() (Image, error) { return s.Images.Get(t.Context(), one.Digest) },
	} {
		if got, err := find(); !errors.Is(err, ErrNotFound) {
			t.Errorf("a deleted image: got %+v, %v", got, err)
		}
	}
}

// The removal of an image and its use exclude each other: the first one keeps the other out.
func TestImageInUse(t *testing.T) {
	s, ctx := open(t, filepath.Join(t.TempDir(), "cove.db")), t.Context()
	digest := "sha256:" + strings.Repeat("ab", 32)
	if err := s.Sprites.Create(ctx, &Sprite{ID: "1", Name: "paint", Base: digest}); !errors.Is(err, ErrNoImage) {
		t.Errorf("a sprite over no image: %v", err)
	}
	must(t, s.Images.Put(ctx, Image{Digest: digest, Doc: []byte("{}"), Names: []string{"debian"}, Pulled: now()}))
	must(t, s.Sprites.Create(ctx, &Sprite{ID: "1", Name: "paint", Base: digest}))
	if err := s.Images.Delete(ctx, digest); !errors.Is(err, ErrInUse) {
		t.Errorf("delete an image in use: %v", err)
	}
	if _, err := s.Images.Named(ctx, "debian"); err != nil {
		t.Errorf("it is gone all the same: %v", err)
	}
	must(t, s.Sprites.Delete(ctx, "1"))
	must(t, s.Images.Delete(ctx, digest))
}
