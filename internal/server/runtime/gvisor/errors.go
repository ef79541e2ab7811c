package gvisor

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
)

// errShimDied says that nobody looks after what a shim may have begun.
var errShimDied = errors.New("the shim died while it started")

// errGone says that a sandbox that was to be adopted does not live any more.
var errGone = errors.New("the sandbox is gone")

// startError is why a shim did not start a sandbox. It is ENOSPC where there was no room
// on the disk, ErrLocked where there is another shim, and ErrOccupied where the sprite's last
// sandbox still runs in another container.
type startError struct{ shim.Ready }

func (e *startError) Error() string { return e.Ready.Error }

func (e *startError) Is(target error) bool {
	return e.Full && target == unix.ENOSPC || e.Locked && target == shim.ErrLocked || e.Occupied && target == sprite.ErrOccupied
}

// errElsewhere says that a sandbox runs, and is another data folder's, of which this one is
// a copy. It is errGone too.
var errElsewhere = errors.New("the sandbox is another data folder's")

// elsewhereError is what a shim says of such a sandbox.
type elsewhereError string

func (e elsewhereError) Error() string { return string(e) }

func (e elsewhereError) Is(target error) bool { return target == errElsewhere || target == errGone }

// lose notes why a sprite's sandbox was not taken up.
func lose(r *Runtime, id string, err error) {
	r.losing.Lock()
	defer r.losing.Unlock()
	if r.lost == nil {
		r.lost = map[string]string{}
	}
	r.lost[id] = strings.TrimPrefix(err.Error(), errGone.Error()+": ")
	r.Logger.Warn("a sandbox is left alone", "sandbox", id, "because", r.lost[id])
}

// Occupied says where a sandbox of a sprite runs that this server can't look after; nil: there
// is none.
func (r *Runtime) Occupied(id string) error {
	if err := shim.Occupied(r.runDir(id)); err != nil {
		return fmt.Errorf("%w: %w", sprite.ErrOccupied, err)
	}
	return nil
}

// Lost says why Live did not take up what this folder has of a sprite's sandbox; empty: it
// took it up, or the sandbox has ended.
func (r *Runtime) Lost(id string) string {
	r.losing.Lock()
	defer r.losing.Unlock()
	return r.lost[id]
}
