package base

import (
	"bytes"
	"encoding/gob"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// The next server of a data folder takes over a look at all files if it is less than five
// minutes old. It finds files that are new in a folder. By Renew it finds files whose mode
// alone has changed. It takes over no look that is older, of another boot, of another host
// or user, or damaged.
func TestListing(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	must(t, errors.Join(os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755), os.MkdirAll(filepath.Join(root, "usr/share/doc"), 0o755)))
	for _, name := range []string{"usr/bin/sh", "usr/share/doc/text", "usr/share/key"} {
		must(t, os.WriteFile(filepath.Join(root, name), nil, 0o644))
	}
	must(t, errors.Join(os.Chmod(filepath.Join(root, "usr/share/key"), 0o640), os.Mkdir(filepath.Join(root, "usr/share/rules.d"), 0o700)))
	next := func() *Hider { return &Hider{Files: Files{Root: root}, Dir: dir} }
	first := next()
	want := []string{"usr/share/key", "usr/share/rules.d"}
	hides(t, first, want)
	longAgo(t, first)
	ago := time.Duration(0)
	keep := func() { first.keep(&look{began: time.Now().Add(-ago), found: first.folders}) }
	keep()

	// The folder of this file has not changed. Only a look at the file itself finds it.
	must(t, os.Chmod(filepath.Join(root, "usr/bin/sh"), 0o700))
	hides(t, next(), want)
	for h, want := range map[*Hider][]string{next(): want, {Files: first.Files}: append([]string{"usr/bin/sh"}, want...)} {
		if hidden, err := h.Hidden(); err != nil || !slices.Equal(hidden, want) {
			t.Errorf("Hidden of %q: %q, %v, want %q", h.Dir, hidden, err, want)
		}
	}
	must(t, os.WriteFile(filepath.Join(root, "usr/share/doc/new"), nil, 0o600))
	want = []string{"usr/share/doc/new", "usr/share/key", "usr/share/rules.d"}
	second := next()
	hides(t, second, want)
	if second.Stale() {
		t.Error("a look that is taken over is stale at once")
	}
	all := append([]string{"usr/bin/sh"}, want...)
	for name, change := range map[string]func(l *listing){
		"older":             func(l *listing) { l.Full -= renewal },
		"from the future":   func(l *listing) { l.Full += time.Hour },
		"of another boot":   func(l *listing) { l.Boot = "x" },
		"of another host":   func(l *listing) { l.Root = "/x" },
		"of another user":   func(l *listing) { l.Owner++ },
		"of another format": func(l *listing) { l.Format++ },
		"without a time":    func(l *listing) { l.Nanos = l.Nanos[1:] },
		"without a folder":  func(l *listing) { l.Folders = l.Folders[len("usr\x00"):] },
		"with too much":     func(l *listing) { l.Closed = "usr/none/key\x00" },
	} {
		keep()
		text, err := os.ReadFile(filepath.Join(dir, listingFile))
		must(t, err)
		var l listing
		must(t, gob.NewDecoder(bytes.NewReader(text)).Decode(&l))
		change(&l)
		var changed bytes.Buffer
		must(t, gob.NewEncoder(&changed).Encode(l))
		must(t, os.WriteFile(filepath.Join(dir, listingFile), changed.Bytes(), 0o600))
		t.Log("a listing " + name)
		hides(t, next(), all)
	}
	keep()
	must(t, os.Truncate(filepath.Join(dir, listingFile), 100))
	hides(t, next(), all)

	// It lacks folders that the first server could not read. The next server looks at
	// these.
	doc := first.folders.at["usr/share/doc"]
	was := *doc
	doc.unread, doc.hidden = true, nil
	keep()
	hides(t, next(), want)
	*doc = was

	// The server that takes it over renews it when the other would have.
	ago = time.Minute
	keep()
	third := next()
	hides(t, third, want)
	if time.Since(third.full) < ago {
		t.Errorf("the look of %v ago counts as one of %v ago", ago, time.Since(third.full))
	}
	must(t, third.Renew())
	hides(t, third, all)
	hides(t, next(), all)

	// Prune removes the part of a listing that a killed server left.
	must(t, os.WriteFile(filepath.Join(dir, "."+listingFile+"-123"), nil, 0o600))
	must(t, third.Prune(third.mask))
	if names, err := filepath.Glob(filepath.Join(dir, "*"+listingFile+"*")); err != nil || len(names) != 1 {
		t.Errorf("listings: %q, %v", names, err)
	}
}
