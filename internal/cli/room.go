package cli

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

const (
	roomFreely = 8 << 20   // bytes that may come before the disk is looked at
	roomSpare  = 64 << 20  // bytes of the disk that are left free
	roomEach   = 256 << 20 // bytes that may come from one look to the next
)

// A room is what may still be written of what comes from a sandbox, which can send
// without end: the disk here is not filled by it.
type room struct{ left int64 }

func newRoom() room { return room{roomFreely} }

// take is called before n bytes are written to a file.
func (r *room) take(f *os.File, n int64) error {
	if n <= r.left {
		r.left -= n
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("look how full the disk is: %w", err)
	}
	free := int64(min(st.Bavail, math.MaxInt64/uint64(st.Bsize))) * st.Bsize
	if n > free-roomSpare {
		return &codedError{
			exitNoSpace, "no_space", fmt.Errorf("%s more would come, and the disk has %s free; nothing was copied", byteSize(n), byteSize(free)),
			"free some space, or copy less of it",
		}
	}
	r.left = min(free-roomSpare-n, roomEach)
	return nil
}

// roomWriter writes to a file of which it is not known how long it becomes.
type roomWriter struct {
	file *os.File
	room room
}

func (w *roomWriter) Write(p []byte) (int, error) {
	if err := w.room.take(w.file, int64(len(p))); err != nil {
		return 0, err
	}
	return w.file.Write(p)
}
