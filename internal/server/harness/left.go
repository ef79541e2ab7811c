package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// The server's settings that the harness has.
const (
	markSetting = "executor-test-mark" // by which the server knows its own sprites at backends
	leftSetting = "executor-test-left" // sprites at backends, []left
)

// Label is what the sprites of tests are labelled with.
const Label = "cove-test"

// ownerPrefix begins the owner of a test's sprite at this server.
const ownerPrefix = "test:"

// clearInterval is how long keepClear waits until it retries failed removals.
const clearInterval = time.Minute

// left is a sprite at a backend that a test makes, or has left.
type left struct {
	Backend string    `json:"backend"`
	Sprite  string    `json:"sprite"`
	Late    time.Time `json:"late,omitzero"` // until then the backend may still make it, though nobody waits for that
}

// is reports whether two notes are of the same sprite.
func (l left) is(o left) bool { return l.Backend == o.Backend && l.Sprite == o.Sprite }

// Start removes the sprites that tests have left, until Close.
func (h *Harness) Start(ctx context.Context) {
	h.mu.Lock()
	h.unsure = make(chan struct{}, 1)
	unsure := h.unsure
	h.mu.Unlock()
	ctx, h.cancel = context.WithCancel(ctx)
	h.wg.Go(func() { h.keepClear(ctx, unsure) })
}

// Close ends what Start began, and waits.
func (h *Harness) Close() {
	if h.cancel != nil {
		h.cancel()
	}
	h.wg.Wait()
}

func (h *Harness) keepClear(ctx context.Context, unsure <-chan struct{}) {
	for {
		err := h.Clear(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			h.Logger.Warn("removing what tests of executors have left", "err", err)
		} else {
			select {
			case <-unsure:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(clearInterval):
		case <-ctx.Done():
			return
		}
	}
}

// Clear removes the sprites of tests that were cut off, at this server and at the backends
// that it knows.
func (h *Harness) Clear(ctx context.Context) error {
	_, err := h.clearAt(ctx, h.Client, true)
	errs := []error{err}
	all, err := h.left(ctx)
	errs = append(errs, err)
	for _, l := range all {
		if h.isRunning(l.Sprite) {
			continue
		}
		err := h.Client.At(l.Backend).Delete(ctx, l.Sprite, sprites.DeleteOptions{Force: true})
		if e, ok := errors.AsType[*sprites.Error](err); ok && e.Code == "no_backend" {
			h.Logger.Warn("a test has left a sprite at a backend that is no longer known", "backend", l.Backend, "sprite", l.Sprite)
			err = nil
		}
		gone := errors.Is(err, sprites.ErrNotFound)
		if gone && time.Now().Before(l.Late) { // it may still come
			h.clearLater()
			continue
		}
		if err == nil || gone {
			err = h.keep(ctx, func(all []left) []left { return slices.DeleteFunc(all, l.is) })
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// clearAt removes this server's sprites of tests that are not under way from an executor, and
// says how many. Here, the owner of a sprite must say that it is a test's.
func (h *Harness) clearAt(ctx context.Context, at *cove.Client, here bool) (removed int, err error) {
	mark, err := h.mark(ctx)
	if err != nil {
		return 0, err
	}
	var names []string
	opts := sprites.ListOptions{Prefix: mark}
	for range maxPages {
		page, err := at.List(ctx, opts)
		if err != nil {
			return 0, err
		}
		for _, info := range page.Sprites {
			own := !here || info.Cove != nil && strings.HasPrefix(info.Cove.Owner, ownerPrefix)
			if own && strings.HasPrefix(info.Name, mark) && !h.isRunning(info.Name) {
				names = append(names, info.Name)
			}
		}
		if page.NextToken == nil || *page.NextToken == "" {
			break
		}
		opts.Token = *page.NextToken
	}
	var errs []error
	for _, name := range names {
		err := at.Delete(ctx, name, sprites.DeleteOptions{Force: true})
		if err == nil {
			removed++
		} else if !errors.Is(err, sprites.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}

// maxPages bounds a list, in case a server ignores the prefix or never ends it.
const maxPages = 100

// mark begins the names of the sprites of all tests of this server.
func (h *Harness) mark(ctx context.Context) (string, error) {
	h.keeping.Lock()
	defer h.keeping.Unlock()
	id, err := h.Settings.Get(ctx, markSetting)
	if errors.Is(err, store.ErrNotFound) {
		id = randomHex(8)
		err = h.Settings.Set(ctx, markSetting, id)
	}
	return "cove-test-" + id + "-", err
}

// left are the sprites at backends that tests make or have left.
func (h *Harness) left(ctx context.Context) ([]left, error) {
	text, err := h.Settings.Get(ctx, leftSetting)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	var all []left
	if err == nil {
		err = json.Unmarshal([]byte(text), &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of sprites that tests have left: %w", err)
	}
	return all, nil
}

// keep changes the list of these sprites.
func (h *Harness) keep(ctx context.Context, change func([]left) []left) error {
	h.keeping.Lock()
	defer h.keeping.Unlock()
	all, err := h.left(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(change(all))
	if err != nil {
		return err
	}
	return h.Settings.Set(ctx, leftSetting, string(text))
}

// begin notes that a test is under way, so that Clear leaves its sprite alone.
func (h *Harness) begin(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running == nil {
		h.running = map[string]bool{}
	}
	h.running[name] = true
}

func (h *Harness) end(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running, name)
}

func (h *Harness) isRunning(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running[name]
}

// clearLater has Clear called again after a while.
func (h *Harness) clearLater() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case h.unsure <- struct{}{}:
	default: // it is told already, or nobody has called Start
	}
}
