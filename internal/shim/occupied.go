package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/shim/kernel"
)

// Two containers may have one data folder in turn. If the shim of a sandbox was killed in the
// first one, the second one sees neither the shim nor the sandbox, whose kernel still writes to
// the disk. That it lives is seen from everywhere (see kernel).

// errOccupied says that a sandbox of this folder lives, and that no process here can end it.
var errOccupied = errors.New("its last sandbox still runs")

// occupiedError is errOccupied, of a place.
type occupiedError struct{ place kernel.Place }

func (e *occupiedError) Error() string {
	if !private.Elsewhere(e.place.Processes) {
		return errOccupied.Error() + ", and has no number here"
	}
	return fmt.Sprintf("%v in another container or machine, named %s", errOccupied, cmp.Or(e.place.Host, "?"))
}

func (e *occupiedError) Is(target error) bool { return target == errOccupied }

// Occupied says where a sandbox of a folder lives that no process here can look after; nil:
// there is none. If a shim looks after the sandbox, the shim can be asked.
func Occupied(dir string) error {
	if Held(dir) {
		return nil
	}
	return occupied(dir, unseen)
}

// whose are the sandboxes of which awaitVacant waits for the end.
type whose int

const (
	unseen whose = iota // those of other containers
	dying               // all, of which those that are seen were killed
)

// occupied is an occupiedError if a sandbox of a folder lives.
func occupied(dir string, of whose) error {
	place, err := kernel.Started(dir)
	if of == unseen && (err != nil || !private.Elsewhere(place.Processes)) {
		return nil // what is left of it is seen here, and is ended before another starts
	}
	lives, err := kernel.Lives(dir)
	if err != nil || !lives {
		return err
	}
	return &occupiedError{place}
}

// vacantPatience is how long the processes of a sandbox that was killed may take to end.
// Nobody here has killed those of another container.
func (of whose) vacantPatience() time.Duration {
	if of == unseen {
		return time.Second
	}
	return 30 * time.Second
}

// awaitVacant returns once no sandbox of a folder lives, and occupiedError if one goes on.
func awaitVacant(ctx context.Context, dir string, of whose) error {
	for deadline := time.Now().Add(of.vacantPatience()); ; {
		err := occupied(dir, of)
		if !errors.Is(err, errOccupied) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// placeHere is that of a sandbox which this process starts.
func placeHere() kernel.Place {
	host, _ := os.Hostname()
	return kernel.Place{Host: host, Processes: private.Processes()}
}
