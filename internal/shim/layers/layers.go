// Package layers mounts the disks of sprites: overlays of a base, sealed layers
// and the one upper folder that is being written. Linux only.
package layers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// MaxLowers is the most lower folders that one overlay is mounted with, one folder of the base
// included. MaxBase is how many folders the base may have instead of one.
const (
	MaxLowers = 32
	MaxBase   = 17
)

// An Overlay is one mount of a sprite's disk. A layer has the same path all its life. Upper is
// the last layer, which is being written.
type Overlay struct {
	Lowers []string `json:"lowers"` // topmost first, at least one, at most MaxLowers - 1 and MaxBase
	Upper  string   `json:"upper"`
	Work   string   `json:"work"` // on Upper's file system, empty, for the kernel's use

	// UserXattr keeps the overlay's marks in user.* attributes, the only ones that
	// a user namespace may write. Such an overlay can't rename a folder of a lower
	// layer (EXDEV).
	UserXattr bool `json:"user_xattr,omitempty"`

	// Guard is an empty folder of mode 0755, or no folder (""). With it, the kernel opens the
	// files of the lowest layer with the rights of a user who owns nothing. The rights of the
	// asking process don't matter. See guard.go.
	Guard string `json:"guard,omitempty"`
}

// Create makes the folders that are written, empty, unless they exist. The topmost folder
// itself looks the same as before: an overlay takes its owner, mode and times from Upper.
func (o Overlay) Create() error {
	if err := os.MkdirAll(o.Work, 0o700); err != nil {
		return fmt.Errorf("create overlay: %w", err)
	}
	if _, err := os.Lstat(o.Upper); err == nil {
		return nil
	}
	made := o.Upper + ".new" // so that there is no Upper without them
	err := errors.Join(os.RemoveAll(made), os.MkdirAll(filepath.Dir(o.Upper), 0o700))
	if err == nil {
		err = os.Mkdir(made, 0o755)
	}
	if err == nil {
		err = o.copyTop(made)
	}
	if err == nil {
		err = os.Rename(made, o.Upper)
	}
	if err != nil {
		return fmt.Errorf("create overlay: %w", err)
	}
	return nil
}

// Since is the time from which on the overlay's changes are in Upper: when Create made it, or
// what Begin said.
func (o Overlay) Since() (time.Time, error) {
	st, err := os.Stat(filepath.Dir(o.Upper)) // in which nothing is made but Upper
	if err != nil {
		return time.Time{}, err
	}
	return st.ModTime(), nil
}

// Begin notes that changes are in Upper from now on. Create may have made Upper earlier.
func (o Overlay) Begin() error {
	now := time.Now()
	return os.Chtimes(filepath.Dir(o.Upper), now, now)
}

// CopyTop gives the topmost folder once more what Create gave it, before anything was
// written.
func (o Overlay) CopyTop() error { return o.copyTop(o.Upper) }

func (o Overlay) copyTop(to string) error {
	if len(o.Lowers) == 0 {
		return nil
	}
	from, err := openTree(o.Lowers[0])
	if err != nil {
		return err
	}
	dst, err := os.Open(to)
	if err == nil {
		err = errors.Join(o.copyMeta(from.fd, int(dst.Fd())), dst.Close())
	}
	return errors.Join(err, from.close())
}

// xattrPrefix begins the names of the overlay's own attributes.
func (o Overlay) xattrPrefix() string {
	if o.UserXattr {
		return "user.overlay."
	}
	return "trusted.overlay."
}

// Mount mounts o at target, an existing folder, in the calling thread's mount
// namespace.
func (o Overlay) Mount(target string) (err error) {
	if o.Guard != "" {
		if err := o.mountGuarded(target); err != nil {
			return fmt.Errorf("mount %s with the rights of a stranger: %w", o.Lowers[len(o.Lowers)-1], err)
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, Unmount(target))
			}
		}()
		o.Lowers = append(slices.Clone(o.Lowers[:len(o.Lowers)-1]), target) // which this mount covers
	}
	options, err := o.options()
	if err != nil {
		return fmt.Errorf("mount overlay at %s: %w", target, err)
	}
	if len(options) >= os.Getpagesize() { // which is what the kernel takes
		short, done, err := o.shortened()
		if err != nil {
			return fmt.Errorf("mount overlay at %s: %w", target, err)
		}
		defer done()
		if options, err = short.options(); err != nil {
			return fmt.Errorf("mount overlay at %s: %w", target, err)
		}
	}
	if err := unix.Mount("overlay", target, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay at %s (%s): %w", target, options, err)
	}
	return nil
}

// Forget makes the overlay that is mounted at target forget all names that were looked up in
// it: its lower layers may have changed. Nothing of the overlay may be open. Places that have
// a mount of their own stay as they were.
func (o Overlay) Forget(target string) error {
	if err := unix.Mount("", target, "", unix.MS_REMOUNT, ""); err != nil { // changes nothing, and drops the kernel's cache
		return fmt.Errorf("mount overlay at %s again: %w", target, err)
	}
	return nil
}

func (o Overlay) options() (string, error) {
	if most := MaxLowers - 1 + MaxBase; len(o.Lowers) == 0 || len(o.Lowers) > most {
		return "", fmt.Errorf("%d lower layers, want 1 to %d", len(o.Lowers), most)
	}
	lowers := make([]string, len(o.Lowers))
	for i, l := range o.Lowers {
		lowers[i] = escape(l, `\:,`)
	}
	options := []string{
		"lowerdir=" + strings.Join(lowers, ":"),
		"upperdir=" + escape(o.Upper, `\,`),
		"workdir=" + escape(o.Work, `\,`),
		"index=off", "metacopy=off",
	}
	if o.UserXattr {
		options = append(options, "userxattr")
	} else {
		options = append(options, "redirect_dir=on")
	}
	return strings.Join(options, ","), nil
}

// shortened is the overlay with short names of the same lower folders. They last until done
// is called.
func (o Overlay) shortened() (short Overlay, done func(), err error) {
	var open []*tree
	done = func() {
		for _, t := range open {
			_ = t.close() // nothing was written
		}
	}
	o.Lowers = slices.Clone(o.Lowers)
	for i, name := range o.Lowers {
		t, err := openTree(name)
		if err != nil {
			done()
			return o, nil, err
		}
		open = append(open, t)
		o.Lowers[i] = FDPath(t.fd)
	}
	return o, done, nil
}

// escape puts a backslash before each of the characters of special in s.
func escape(s, special string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune(special, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Unmount takes the mounts at target, and those below it, out of the calling thread's
// namespace. They end once nothing uses them. It is no error if target is not a mount.
func Unmount(target string) error {
	err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}
