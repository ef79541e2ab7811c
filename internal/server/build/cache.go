package build

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/shim/layers"
)

// maxCaches is how many bytes the caches may have together. Beyond it, those go that were used
// the longest time ago.
const maxCaches = 20 << 30

// caches are the folders of RUN --mount=type=cache. A build at a time uses each.
type caches struct {
	dir string

	mu   sync.Mutex
	used map[string]chan struct{} // closed when the cache is free
}

// cacheData is the folder that programs see, below a cache's own. Its layout is a layer's.
const cacheData = "root/upper"

// take takes the caches of ids, which one build at a time can have, and returns their folders.
// All builds wait for caches in the same order.
func (c *caches) take(ctx context.Context, ids []string) (folders map[string]string, release func(), err error) {
	folders = map[string]string{}
	var names []string
	for _, id := range ids {
		sum := sha256.Sum256([]byte(id))
		name := hex.EncodeToString(sum[:16])
		folders[id] = filepath.Join(c.dir, name, cacheData)
		names = append(names, name)
	}
	slices.Sort(names)
	var taken []string
	release = func() {
		for _, name := range taken {
			c.leave(name)
		}
		taken = nil
	}
	for _, name := range slices.Compact(names) {
		if err := c.enter(ctx, name); err != nil {
			release()
			return nil, nil, err
		}
		taken = append(taken, name)
		if err := os.MkdirAll(filepath.Join(c.dir, name, cacheData), 0o700); err != nil {
			release()
			return nil, nil, fmt.Errorf("make a cache: %w", err)
		}
		now := time.Now()
		if err := os.Chtimes(filepath.Join(c.dir, name), now, now); err != nil {
			release()
			return nil, nil, fmt.Errorf("note that a cache is used: %w", err)
		}
	}
	return folders, release, nil
}

func (c *caches) enter(ctx context.Context, name string) error {
	for {
		free, ok := c.try(name)
		if ok {
			return nil
		}
		select {
		case <-free:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// try takes a cache, or returns a channel that is closed when the cache is free.
func (c *caches) try(name string) (free chan struct{}, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if free = c.used[name]; free != nil {
		return free, false
	}
	if c.used == nil {
		c.used = map[string]chan struct{}{}
	}
	c.used[name] = make(chan struct{})
	return nil, true
}

func (c *caches) leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.used[name])
	delete(c.used, name)
}

// prune removes caches that nobody uses, the one that was used the longest time ago first, until
// they have so many bytes together.
func (c *caches) prune(ctx context.Context, most int64) (freed int64, err error) {
	all, err := c.list(ctx)
	if err != nil {
		return 0, err
	}
	return c.remove(all, most)
}

// remove is prune for caches that were listed. To measure them takes long. If a build used one
// since, that is not the one that was used the longest time ago any more.
func (c *caches) remove(all []cache, most int64) (freed int64, err error) {
	var total int64
	for _, one := range all {
		total += one.bytes
	}
	slices.SortFunc(all, func(a, b cache) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.name, b.name)) })
	for _, one := range all {
		if most > 0 && total <= most {
			break
		}
		if _, ok := c.try(one.name); !ok {
			continue
		}
		if most > 0 && !c.usedAt(one.name).Equal(one.used) {
			c.leave(one.name)
			continue
		}
		err := layers.Remove(filepath.Join(c.dir, one.name))
		c.leave(one.name)
		if err != nil {
			return freed, err
		}
		freed, total = freed+one.bytes, total-one.bytes
	}
	return freed, nil
}

// usedAt is when a cache was used last; zero: there is none of that name.
func (c *caches) usedAt(name string) time.Time {
	st, err := os.Lstat(filepath.Join(c.dir, name))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// cache is a folder of caches.
type cache struct {
	name  string
	bytes int64
	used  time.Time
}

// list measures all caches.
func (c *caches) list(ctx context.Context) (all []cache, err error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		n, err := layers.Used(ctx, layers.Dir{Path: filepath.Join(c.dir, e.Name())})
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil { // such as folders that are too deep: it goes whatever it has
			n = maxCaches + 1
		}
		all = append(all, cache{e.Name(), n, st.ModTime()})
	}
	return all, nil
}
