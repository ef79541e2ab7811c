package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// takeover takes up the sandboxes that an earlier server has left, or a shim that died.
type takeover struct {
	folder   folder
	userNS   bool // see Runtime
	launcher *launcher
	watcher  *watcher
	images   *images
	logger   *slog.Logger

	mu   sync.Mutex
	lost map[string]string // by sprite: see Runtime.Lost; guarded by mu
}

// live takes up the sandboxes that an earlier server left running.
func (t *takeover) live(ctx context.Context) ([]sprite.Sandbox, error) {
	if err := layers.Remove(t.folder.imports()); err != nil {
		t.logger.Warn("removing an import's leftover files", "err", err)
	}
	if err := base.SweepFittings(t.folder.bases(), t.images.gone(ctx)); err != nil {
		t.logger.Warn("removing unfinished fittings of images", "err", err)
	}
	entries, err := os.ReadDir(t.folder.runs())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var (
		mu   sync.Mutex
		live []sprite.Sandbox
		errs []error
		wg   sync.WaitGroup
		free = make(chan struct{}, takenUpAtOnce) // one that does not answer holds up no other
	)
	for _, e := range entries {
		id := e.Name()
		if dir := t.folder.run(id); !shim.Held(dir) && !shim.Left(dir) {
			continue // logs of one that sleeps: a process for each would take long
		}
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			state, err := t.takeUpOwn(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				live = append(live, t.watcher.follow(id, state))
			case errors.Is(err, errElsewhere), errors.Is(err, sprite.ErrOccupied):
				t.lose(id, err)
			case !errors.Is(err, errGone):
				errs = append(errs, fmt.Errorf("take up sandbox %s: %w", id, err))
			}
		})
	}
	wg.Wait()
	return live, errors.Join(errs...)
}

const (
	takenUpAtOnce = 32

	// movePatience is for a shim that moves its sandbox while that is taken up. Then what
	// its file says is enough: which layers it has comes later, by Settle.
	movePatience = time.Second

	statusLimit = 30 * time.Second // for a shim to say what is, when something else went wrong
)

// lose notes why a sprite's sandbox was not taken up.
func (t *takeover) lose(id string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost == nil {
		t.lost = map[string]string{}
	}
	t.lost[id] = strings.TrimPrefix(err.Error(), errGone.Error()+": ")
	if errors.Is(err, errElsewhere) {
		t.lost[id] = sprite.Elsewhere
	}
	t.logger.Warn("a sandbox is left alone", "sandbox", id, "because", t.lost[id])
}

// lostOf says why live did not take up a sprite's sandbox of this folder. It is empty if
// live took the sandbox up, or if the sandbox has ended.
func (t *takeover) lostOf(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost[id]
}

// takeUp returns the state of a sandbox that an earlier server left, and sees to it
// that the sandbox has a shim. That server may have started a shim just before it died;
// a second shim loses to it.
func (t *takeover) takeUp(ctx context.Context, id string) (shim.State, error) {
	tries := 3 // of shims that die
	for deadline := time.Now().Add(shim.BootTimeout); ; {
		state, err := t.booted(ctx, shim.Client{Dir: t.folder.run(id)})
		if err != nil {
			state, err = t.launcher.adopt(ctx, id, nil, nil)
		}
		if errors.Is(err, errShimDied) {
			tries--
		}
		again := errors.Is(err, shim.ErrLocked) || errors.Is(err, errShimDied) && tries > 0
		if !again || time.Now().After(deadline) {
			return state, err
		}
	}
}

// booted is the state of a sandbox that a shim looks after. The last server may have
// been killed while one started it: that is waited for.
func (t *takeover) booted(ctx context.Context, client shim.Client) (shim.State, error) {
	for deadline := time.Now().Add(shim.BootTimeout); ; {
		asking, cancel := context.WithTimeout(ctx, movePatience)
		state, err := client.Status(asking)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			if state, err = shim.ReadState(client.Dir); err != nil {
				err = fmt.Errorf("its shim does not answer: %w", err)
			}
			return state, err
		}
		if !shim.IsNoShim(err) || !shim.Held(client.Dir) || time.Now().After(deadline) {
			return state, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return state, ctx.Err()
		}
	}
}

// endUnborn ends what is left after a shim died while it started a sandbox. Another
// shim finds no sandbox, and removes the rest. Or it finds a sandbox that may be half
// started, and that is stopped.
func (t *takeover) endUnborn(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unbornLimit)
	defer cancel()
	state, err := t.takeUp(ctx, id)
	if err == nil {
		err = t.watcher.follow(id, state).Stop(ctx, 0)
	}
	t.logger.Warn("a shim died while it started a sandbox", "sandbox", id, "left", err)
}

const unbornLimit = 2 * time.Minute

// takeUpOwn is takeUp, except that a foreign sandbox has ended when it returns.
func (t *takeover) takeUpOwn(ctx context.Context, id string) (shim.State, error) {
	st, err := t.takeUp(ctx, id)
	if err != nil || !t.foreign(st) {
		return st, err
	}
	if err := t.bringHome(ctx, id, st); err != nil {
		return st, err
	}
	return st, errGone
}

// foreign reports whether a sandbox runs in a user namespace that is not this server's,
// which can't look after such a sandbox. It is the case if holders died in turn, and none
// could join what lived.
func (t *takeover) foreign(st shim.State) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", st.PID))
	return t.userNS && errors.Is(err, fs.ErrPermission)
}

const (
	foreignSave = 2 * time.Minute
	foreignStop = 30 * time.Second
)

// bringHome ends a foreign sandbox. The sandbox's shim is in its namespace, and first saves
// its memory to disk. The next use then goes on in this server's namespace. If that fails,
// the sprite boots anew.
func (t *takeover) bringHome(ctx context.Context, id string, st shim.State) error {
	s := t.watcher.follow(id, st)
	saving, cancel := context.WithTimeout(ctx, foreignSave)
	defer cancel()
	err := s.Hibernate(saving)
	if err != nil {
		stopping, cancel := context.WithTimeout(ctx, foreignStop)
		defer cancel()
		if err := s.Stop(stopping, 0); err != nil {
			return fmt.Errorf("end a sandbox of another user namespace: %w", err)
		}
	}
	t.logger.Warn("a sandbox of another user namespace was ended", "sandbox", id, "saved", err == nil, "err", err)
	return nil
}
