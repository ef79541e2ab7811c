// Package extract makes the files of an archive of any origin. A file is one name in an
// open folder, and no symbolic link is followed: no name leads out of the topmost folder.
// Its errors are the system's.
package extract

import (
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Meta is a file's metadata.
type Meta struct {
	UID, GID int
	Mode     uint32 // permissions, with setuid, setgid and sticky
	Time     time.Time
	Attrs    map[string]string // extended attributes
}

// OwnerError says that a file can't be a user's or a group's.
type OwnerError struct{ Err error }

func (e *OwnerError) Error() string { return "change its owner: " + e.Err.Error() }

// Unwrap returns the system's error.
func (e *OwnerError) Unwrap() error { return e.Err }

// Folder makes a folder, and opens it. The caller closes it.
func Folder(dir int, name string) (int, error) {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return -1, err
	}
	return Open(dir, name)
}

// Open opens a folder in an open one.
func Open(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// Beneath opens the folder at a path below an open one, with flags besides.
func Beneath(root int, path string, flags uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	return unix.Openat2(root, path, &how)
}

// Duplicate opens an open folder once more.
func Duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

// File makes an empty file, to be written.
func File(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Symlink makes a symbolic link.
func Symlink(dir int, name, to string, m Meta) error {
	if err := unix.Symlinkat(to, dir, name); err != nil {
		return err
	}
	return describeAt(dir, name, m)
}

// Fifo makes a FIFO.
func Fifo(dir int, name string, m Meta) error {
	if err := unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0); err != nil {
		return err
	}
	if err := describeAt(dir, name, m); err != nil {
		return err
	}
	return unix.Fchmodat(dir, name, m.Mode, 0) // it is what was just made, and nobody else's
}

// Whiteout makes an overlay's mark that a name of the layers below is deleted.
func Whiteout(dir int, name string) error { return unix.Mknodat(dir, name, unix.S_IFCHR, 0) }

// OpaqueMark is the attribute that makes a folder hide all of the layers below. user is as
// layers.Overlay's UserXattr.
func OpaqueMark(user bool) string {
	if user {
		return "user.overlay.opaque"
	}
	return "trusted.overlay.opaque"
}

// Opaque gives an open folder OpaqueMark.
func Opaque(fd int, user bool) error {
	return unix.Fsetxattr(fd, OpaqueMark(user), []byte("y"), 0)
}

// The times that a sandbox can see: it counts nanoseconds from 1970.
var minTime, maxTime = time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)

// Times are the system's times for a file that was changed at t. They are the nearest times
// to t that a sandbox can see.
func Times(t time.Time) []unix.Timespec {
	if t.Before(minTime) {
		t = minTime
	} else if t.After(maxTime) {
		t = maxTime
	}
	ts := unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
	return []unix.Timespec{ts, ts}
}

// Describe gives an open file or folder its owner, attributes, mode and time. If an
// attribute can't be given, refused is asked, and its error is Describe's.
func Describe(fd int, m Meta, refused func(attr string, err error) error) error {
	if err := unix.Fchown(fd, m.UID, m.GID); err != nil { // first: it takes bits of the mode away
		return &OwnerError{err}
	}
	for name, value := range m.Attrs {
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil {
			if err := refused(name, err); err != nil {
				return err
			}
		}
	}
	if err := unix.Fchmod(fd, m.Mode); err != nil {
		return err
	}
	return SetTimes(fd, Times(m.Time))
}

// SetTimes gives an open file or folder its times.
func SetTimes(fd int, times []unix.Timespec) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, Path(fd), times, 0)
}

// Path names an open file to the calls that take none.
func Path(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// describeAt gives a file that is not opened its owner and time.
func describeAt(dir int, name string, m Meta) error {
	if err := unix.Fchownat(dir, name, m.UID, m.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &OwnerError{err}
	}
	return unix.UtimesNanoAt(dir, name, Times(m.Time), unix.AT_SYMLINK_NOFOLLOW)
}
