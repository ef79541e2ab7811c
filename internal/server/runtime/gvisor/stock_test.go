package gvisor

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
)

// TestSetAside lists the layers and memories of a data folder, and moves them aside. Each
// gets its own place and a line that says why, and takes along what goes with it.
func TestSetAside(t *testing.T) {
	const a, b, c = "00000000000000aa", "00000000000000bb", "00000000000000cc"
	r := &Runtime{Dir: t.TempDir()}
	add := func(paths ...string) {
		t.Helper()
		for _, path := range paths {
			path = filepath.Join(r.Dir, path, "content")
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(path), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if all, err := r.Stock(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("an empty folder has %+v, %v", all, err)
	}
	add("layers/"+a, "layers/lost+found", "sprites/"+b+"/disk", "memories/"+a, "memories/"+b+".new", "images/"+a, "images/"+a+".used", "images/"+c+".used", "run/"+a)
	image, err := json.Marshal(shim.Image{Layers: []string{b, a}})
	if err := errors.Join(err, os.WriteFile(filepath.Join(r.Dir, "images", a, shim.ImageFile), image, 0o600)); err != nil {
		t.Fatal(err)
	}
	all, err := r.Stock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, item := range all {
		names = append(names, string(item.Kind)+"/"+item.Name+strings.Join(item.Layers, "+"))
	}
	slices.Sort(names)
	if want := []string{"images/" + a + b + "+" + a, "images/" + c, "layers/" + a, "layers/" + b, "memories/" + a, "memories/" + b}; !slices.Equal(names, want) {
		t.Errorf("it has %q, want %q", names, want)
	}

	var dir string
	for _, item := range all {
		to, err := r.SetAside(t.Context(), item, "it is a test")
		if err != nil || !exists(to) {
			t.Errorf("%s/%s is at %q, %v", item.Kind, item.Name, to, err)
		}
		if again, err := r.SetAside(t.Context(), item, "again"); again != "" || err != nil {
			t.Errorf("%s/%s, which is gone, is at %q, %v", item.Kind, item.Name, again, err)
		}
		if item.Kind == sprite.ItemMemory && item.Name == a {
			dir = filepath.Dir(filepath.Dir(to))
		}
	}
	add("images/" + a) // a second one of the same sprite
	second, err := r.SetAside(t.Context(), sprite.Item{Kind: sprite.ItemImage, Name: a}, "it is a test")
	if err != nil {
		t.Error(err)
	}
	moved := []string{"images/" + a, "images/" + a + "-2", "images/" + a + ".used", "images/" + c + ".used", "layers/" + a, "memories/" + a, "memories/" + b + ".new", "sprites/" + b}
	for _, path := range append(moved, "sprites/"+b+"/disk/content", "images/"+a+"-2/content") {
		if !exists(filepath.Join(dir, path)) {
			t.Errorf("%s is not aside", path)
		}
	}
	if second != filepath.Join(dir, "images", a+"-2") {
		t.Errorf("the second memory of a sprite is said to be at %q", second)
	}
	if all, err := r.Stock(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("what was moved is still there: %+v, %v", all, err)
	}
	for _, path := range []string{"layers/lost+found", "run/" + a} {
		if !exists(filepath.Join(r.Dir, path)) {
			t.Errorf("%s was moved", path)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, asideList))
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(text)) {
		var m movedAside
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Why != "it is a test" || m.Bytes <= 0 || m.Moved.IsZero() {
			t.Errorf("the line %q: %+v, %v", line, m, err)
		}
		listed = append(listed, m.Path)
	}
	slices.Sort(listed)
	if !slices.Equal(listed, moved) {
		t.Errorf("listed %q, want %q", listed, moved)
	}

	for _, name := range []string{"", ".", "..", "../layers", a + "/..", a + ".used", strings.ToUpper(a)} {
		if _, err := r.SetAside(t.Context(), sprite.Item{Kind: sprite.ItemLayer, Name: name}, "no"); err == nil {
			t.Errorf("SetAside took the name %q", name)
		}
	}
	if _, err := r.SetAside(t.Context(), sprite.Item{Kind: "run", Name: a}, "no"); err == nil {
		t.Error("SetAside took an unknown kind")
	}
	next := &Runtime{Dir: r.Dir} // of the next start
	add("layers/" + a)
	if to, err := next.SetAside(t.Context(), sprite.Item{Kind: sprite.ItemLayer, Name: a}, "no"); err != nil || strings.HasPrefix(to, dir+"/") {
		t.Errorf("another start moved to %q, %v, want a folder of its own beside %s", to, err, dir)
	}
}
