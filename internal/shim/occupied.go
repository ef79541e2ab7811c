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
// first container, the sandbox's kernel may still write to the disk. The second container
// sees the process of neither. But any container can see whether the kernel lives (see
// package kernel).

// errOccupied says that a sandbox of this folder lives, and that no process here can end it.
var errOccupied = errors.New("its last sandbox still runs")

// occupiedError is errOccupied, of a place.
type occupiedError struct{ place kernel.Place }

func (e *occupiedError) Error() string {
	if !private.Elsewhere(e.place.Processes) {
		return errOccupied.Error() + ", and its process can't be seen from here"
	}
	return fmt.Sprintf("%v in another container or machine, named %s", errOccupied, cmp.Or(e.place.Host, "?"))
}

func (e *occupiedError) Is(target error) bool { return target == errOccupied }

// Occupied says where a sandbox of a folder lives if no process here can look after it. nil:
// there is no such sandbox. If a shim looks after the sandbox, the shim can be asked.
func Occupied(dir string) error {
	if Held(dir) {
		return nil
	}
	return occupied(dir, unseen)
}

// whose says which sandboxes awaitVacant waits for.
type whose int

const (
	unseen whose = iota // those of other containers
	dying               // all; those that are seen here were killed
)

// occupied is an occupiedError if a sandbox of a folder lives.
func occupied(dir string, of whose) error {
	place, err := kernel.Started(dir)
	if of == unseen && (err != nil || !private.Elsewhere(place.Processes)) {
		return nil // its processes are seen here, and are ended before another sandbox starts
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
