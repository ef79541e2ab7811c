package tree

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

const (
	roomFreely = 8 << 20   // bytes that may come before the disk is checked
	roomSpare  = 64 << 20  // bytes of the disk that are left free
	roomEach   = 256 << 20 // bytes that may come from one check to the next
)

// A room is how many bytes may still be written before the disk is checked again. A
// sandbox can send without end, and must not fill the disk here.
type room struct{ left int64 }

func newRoom() room { return room{roomFreely} }

// take is called before n bytes are written to a file. Its error has the code no_space if
// the disk has no room for them.
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
		return fail.Newf("no_space", "free some space, or copy less of it", "%s more would come, and the disk has %s free; nothing was copied", printable.Bytes(n), printable.Bytes(free))
	}
	r.left = min(free-roomSpare-n, roomEach)
	return nil
}

// Writer writes to a file whose final size is not known.
type Writer struct {
	file *os.File
	room room
}

// NewWriter makes a Writer, if the disk has room for size bytes, the announced size. More
// bytes may come.
func NewWriter(file *os.File, size int64) (*Writer, error) {
	w := &Writer{file, newRoom()}
	if err := w.room.take(file, size); err != nil {
		return nil, err
	}
	w.room = newRoom()
	return w, nil
}

// Write fails, with the code no_space, before the disk is full.
func (w *Writer) Write(p []byte) (int, error) {
	if err := w.room.take(w.file, int64(len(p))); err != nil {
		return 0, err
	}
	return w.file.Write(p)
}
