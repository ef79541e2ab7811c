package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim/kernel"
)

// UnnamedBytes is how much disk the sandbox's open files take that have no name any more.
// The files that processes in the sandbox have open are open in gVisor itself. If
// gVisor's process has ended, the error is sprite.ErrNoProcess. If it is in another
// container, its files can't be seen from here: they are not counted.
func (s *sandbox) UnnamedBytes() (int64, error) {
	if place, err := kernel.Started(s.folder.run(s.id)); err == nil && private.Elsewhere(place.Processes) {
		return 0, nil
	}
	s.mu.Lock()
	pid := s.state.PID
	s.mu.Unlock()
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	f, err := os.Open(dir)
	if err != nil {
		return 0, lookError(err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return 0, lookError(err)
	}
	counted := map[[2]uint64]bool{}
	var sum int64
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(int(f.Fd()), name, &st, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // it has just been closed
		}
		if err != nil {
			return 0, fmt.Errorf("look at the files that a sandbox has open: %w", err)
		}
		id := [2]uint64{st.Dev, st.Ino}
		if st.Nlink > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Blocks == 0 || counted[id] {
			continue
		}
		counted[id] = true
		// gVisor's own memory is in a file without a name, too.
		var fs unix.Statfs_t
		if err := unix.Statfs(filepath.Join(dir, name), &fs); err == nil && fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
			sum += st.Blocks * 512
		}
	}
	return sum, nil
}

func lookError(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		err = sprite.ErrNoProcess
	}
	return fmt.Errorf("look at the files that a sandbox has open: %w", err)
}
