package build

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestCachesRelease: a build gets a cache once the sandbox of the build before has ended, and not
// when its command has.
func TestCachesRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := caches{dir: t.TempDir()}
		_, release, err := c.take(t.Context(), []string{"things"})
		if err != nil {
			t.Fatal(err)
		}
		ends := make(chan struct{})
		var ended atomic.Bool
		r := &run{Builder: &Builder{Logger: slog.New(slog.DiscardHandler)}}
		r.clear(func() error {
			<-ends
			ended.Store(true)
			return errors.New("so that it is let go all the same")
		}, release)
		taken := make(chan bool, 1)
		go func() {
			_, release, err := c.take(t.Context(), []string{"other", "things"})
			if err != nil {
				t.Error(err)
				release = func() {}
			}
			taken <- ended.Load()
			release()
		}()
		synctest.Wait()
		select {
		case <-taken:
			t.Error("the cache was taken while the sandbox was there")
		default:
		}
		close(ends)
		if after := <-taken; !after {
			t.Error("the cache was taken before the sandbox's end")
		}
		r.removing.Wait()
	})
}

// TestCachesPrune: unused caches are removed, even one whose size can't be told.
func TestCachesPrune(t *testing.T) {
	c := caches{dir: t.TempDir()}
	folders, release, err := c.take(t.Context(), []string{"used", "free", "deep"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folders["free"], "x"), make([]byte, 9000), 0o600); err != nil {
		t.Fatal(err)
	}
	comb := folders["deep"]
	for range 300 { // two folders in each: more than a walk has open
		if err := os.Mkdir(filepath.Join(comb, "b"), 0o700); err != nil {
			t.Fatal(err)
		}
		comb = filepath.Join(comb, "a")
		if err := os.Mkdir(comb, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	release()
	kept, release, err := c.take(t.Context(), []string{"used"})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	freed, err := c.prune(t.Context(), 0)
	if err != nil || freed < 9000 {
		t.Errorf("freed %d, %v", freed, err)
	}
	left, err := os.ReadDir(c.dir)
	if len(left) != 1 || !strings.Contains(kept["used"], left[0].Name()) || err != nil {
		t.Errorf("left %v, %v; want that of %s", left, err, kept["used"])
	}
}

// TestCachesUsedMeanwhile: a cache that a build used while all were measured stays, and the next
// one goes.
func TestCachesUsedMeanwhile(t *testing.T) {
	c := caches{dir: t.TempDir()}
	use := func(id string) (name string) {
		t.Helper()
		folders, release, err := c.take(t.Context(), []string{id})
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		name, _ = strings.CutSuffix(folders[id], "/"+cacheData)
		return name
	}
	first, second, third := use("first"), use("second"), use("third")
	for i, name := range []string{first, second, third} {
		at := time.Unix(int64(1e9+i), 0)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	all, err := c.list(t.Context())
	if err != nil || len(all) != 3 {
		t.Fatalf("got %+v, %v", all, err)
	}
	for i := range all {
		all[i].bytes = 10 // an empty folder takes nothing of some file systems
	}
	use("first")
	freed, err := c.remove(all, 29)
	if err != nil || freed != 10 {
		t.Errorf("freed %d, %v", freed, err)
	}
	for name, stays := range map[string]bool{first: true, second: false, third: true} {
		if _, err := os.Lstat(name); err == nil != stays {
			t.Errorf("%s: %v, want it kept: %v", name, err, stays)
		}
	}
}
