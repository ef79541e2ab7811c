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

// startError is why a shim did not start a sandbox. It is ENOSPC if the disk was full, and
// ErrLocked if there is another shim. If the sprite's last sandbox still runs in another
// container, it is ErrOccupied.
type startError struct{ shim.Ready }

func (e *startError) Error() string { return e.Ready.Error }

func (e *startError) Is(target error) bool {
	return e.Full && target == unix.ENOSPC || e.Locked && target == shim.ErrLocked || e.Occupied && target == sprite.ErrOccupied
}

// errElsewhere says that the running sandbox is another data folder's, and that this folder
// is a copy of that one. It is errGone too.
var errElsewhere = errors.New("the sandbox is another data folder's")

// elsewhereError is what a shim says of such a sandbox.
type elsewhereError string

func (e elsewhereError) Error() string { return string(e) }

func (e elsewhereError) Is(target error) bool { return target == errElsewhere || target == errGone }

// unsavable is err, or what a Host knows for it.
func unsavable(err error) error {
	if text, is := strings.CutPrefix(err.Error(), "shim: "+shim.ErrNetworks.Error()); is && errors.Is(err, shim.ErrNetworks) {
		return fmt.Errorf("%w%s", sprite.ErrNetworks, text)
	}
	if text, is := strings.CutPrefix(err.Error(), "shim: "+shim.ErrDeleted.Error()); is && errors.Is(err, shim.ErrDeleted) {
		return fmt.Errorf("%w%s", sprite.ErrDeletedOpen, text)
	}
	return err
}
