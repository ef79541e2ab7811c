package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Room is how much of a disk there was for a memory, and how much the memory takes, in bytes.
// Needed is approximate: gVisor leaves out pages that have nothing but zeros.
type Room struct{ Free, Needed int64 }

const roomText = "no room for its memory: %d MiB were free, and it takes some %d MiB"

func (r Room) String() string { return fmt.Sprintf(roomText, r.Free>>20, (r.Needed+1<<20-1)>>20) }

// RoomOf finds the Room in an error of Client.Hibernate.
func RoomOf(err error) (r Room, ok bool) {
	before, _, _ := strings.Cut(roomText, "%d")
	if !errors.Is(err, unix.ENOSPC) {
		return r, false
	}
	i := strings.Index(err.Error(), before)
	if i < 0 {
		return r, false
	}
	if _, err := fmt.Sscanf(err.Error()[i:], roomText, &r.Free, &r.Needed); err != nil {
		return r, false
	}
	return Room{r.Free << 20, r.Needed << 20}, true
}

// roomFor is how much room a folder's disk has, and how much the memory of a sandbox takes.
func roomFor(dir string, pid int) Room {
	var r Room
	var disk unix.Statfs_t
	if unix.Statfs(dir, &disk) == nil {
		r.Free = int64(disk.Bavail) * disk.Bsize
	}
	r.Needed = memoryOf(pid)
	return r
}

// memoryOf is how much memory gVisor has given the programs of a sandbox. All of it is in one
// file of the sandbox's process, and untouched parts of that file take nothing. 0: not known.
func memoryOf(pid int) int64 {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/[0-9]*", pid)) // the pattern is right
	for _, name := range files {
		if to, err := os.Readlink(name); err != nil || !strings.HasPrefix(to, "/memfd:runsc-memory") {
			continue
		}
		if size := taken(os.Stat(name)); size > 0 {
			return size
		}
	}
	return 0
}

// taken is how much room a file takes.
func taken(info fs.FileInfo, err error) int64 {
	if err != nil {
		return 0
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return sys.Blocks * 512
}

// lacking is err, the error of writing a memory to a folder. If there was too little room, it
// adds the room that there was. The bytes written by then are a part of the room that is
// needed.
func (r Room) lacking(err error, dir string) error {
	if !noRoom(err) {
		return err
	}
	entries, _ := os.ReadDir(dir) // a file that is not there was not written
	var written int64
	for _, e := range entries {
		written += taken(e.Info())
	}
	r.Needed = max(r.Needed, written)
	return fmt.Errorf("%v: %w", r, err)
}
