package filesync

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Other is the other direction.
func (v Verb) Other() Verb {
	if v == Push {
		return Pull
	}
	return Push
}

// Watcher reports changes below a folder, as far as the system lets it.
type Watcher struct {
	w    *fsnotify.Watcher
	wg   sync.WaitGroup
	hint func()
}

// maxWatched bounds how many folders are watched. The system has a limit for all programs of a
// user together.
const maxWatched = 50_000

// Watch calls hint when something changes in the folder root or below it. Changes
// may be missed; git's and cove's own folders are not looked at. Close ends it.
func Watch(ctx context.Context, root string, hint func()) *Watcher {
	w := &Watcher{hint: hint}
	var err error
	if w.w, err = fsnotify.NewWatcher(); err != nil {
		return w // none is to be had: what calls it looks from time to time
	}
	w.add(root)
	w.wg.Go(func() { w.run(ctx) })
	return w
}

// Close ends the watching.
func (w *Watcher) Close() {
	if w.w != nil {
		_ = w.w.Close()
	}
	w.wg.Wait()
}

func (w *Watcher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.w.Events:
			if !ok {
				return
			}
			if neverTravels(filepath.Base(e.Name)) != "" || strings.Contains(e.Name, string(filepath.Separator)+workName) {
				continue
			}
			if e.Has(fsnotify.Create) {
				if info, err := os.Lstat(e.Name); err == nil && info.IsDir() {
					w.add(e.Name)
				}
			}
			w.hint()
		case _, ok := <-w.w.Errors: // too many events: some were lost
			if !ok {
				return
			}
			w.hint()
		}
	}
}

// add watches a folder and those below it.
func (w *Watcher) add(dir string) {
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // what can't be read is not watched
		}
		if name != dir && neverTravels(d.Name()) != "" || len(w.w.WatchList()) >= maxWatched {
			return filepath.SkipDir
		}
		_ = w.w.Add(name) // the system's limit: the rest is seen by looking
		return nil
	})
}
