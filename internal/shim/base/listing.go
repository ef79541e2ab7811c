package base

import (
	"bytes"
	"encoding/gob"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
)

// listingFile is the name, in a Hider's folder, of its last look at all files.
const listingFile = "listing"

// listingFormat is raised when listings are written differently, or when folders are looked at
// for something else.
const listingFormat = 1

// A listing is the last look of a Hider at all files. A server that starts soon after another takes
// it: it looks at the times of the folders alone, as the other would have done for its next sandbox.
type listing struct {
	Format  int
	Owner   int           // another user may see more, or less
	Root    string        // of Hider.Files
	Boot    string        // of the kernel
	Full    time.Duration // since that boot, asleep or not: all files were looked at
	Folders []listed
}

// listed is a folder, with its path. The names in it have none.
type listed struct {
	Path     string
	Dev, Ino uint64
	Ctime    unix.Timespec
	Read     time.Time
	Folders  []string
	Hidden   []string // "": the folder itself
	Closed   []string
}

// keep writes a look at all files for the next server of this data folder. If it can't, that one
// looks for itself.
func (h *Hider) keep(all *look) {
	l, err := h.newListing()
	now, failed := sinceBoot()
	if err != nil || failed != nil {
		return
	}
	l.Full = now - time.Since(all.began)
	for _, f := range all.found.all {
		if f.unread { // the next server may have other rights
			continue
		}
		l.Folders = append(l.Folders, listed{
			Path: f.at, Dev: f.stat.dev, Ino: f.stat.ino, Ctime: f.stat.ctime, Read: f.read,
			Folders: below(f.at, f.folders), Hidden: below(f.at, f.hidden), Closed: below(f.at, f.closed),
		})
	}
	var text bytes.Buffer
	if gob.NewEncoder(&text).Encode(l) == nil && os.MkdirAll(h.Dir, 0o700) == nil {
		_ = atomicfile.Replace(filepath.Join(h.Dir, listingFile), text.Bytes(), 0o600) // a full disk is no error here
	}
}

// restore returns the look of an earlier server and when that was, or nil: there is none of this
// boot, this user and the last five minutes.
func (h *Hider) restore() (known *findings, full time.Time) {
	text, err := os.ReadFile(filepath.Join(h.Dir, listingFile))
	if err != nil {
		return nil, time.Time{}
	}
	want, err := h.newListing()
	if err != nil {
		return nil, time.Time{}
	}
	var l listing
	if gob.NewDecoder(bytes.NewReader(text)).Decode(&l) != nil || l.Format != want.Format || l.Owner != want.Owner || l.Root != want.Root || l.Boot != want.Boot {
		return nil, time.Time{}
	}
	now, err := sinceBoot()
	if age := now - l.Full; err != nil || age < 0 || age >= renewal {
		return nil, time.Time{}
	}
	known = &findings{at: make(map[string]*folder, len(l.Folders))}
	for _, f := range l.Folders {
		known.add(f.Path, &folder{
			stat: stamp{f.Dev, f.Ino, f.Ctime}, read: f.Read,
			folders: at(f.Path, f.Folders), hidden: at(f.Path, f.Hidden), closed: at(f.Path, f.Closed),
		})
	}
	return known, time.Now().Add(l.Full - now)
}

// newListing is a listing of this process, without folders.
func (h *Hider) newListing() (listing, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return listing{Format: listingFormat, Owner: os.Geteuid(), Root: h.Files.path(""), Boot: string(boot)}, err
}

// sinceBoot is how long ago the machine was started.
func sinceBoot() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	return time.Duration(now.Nano()), err
}

// below takes a folder's path off the paths of what is in it.
func below(dir string, paths []string) []string {
	var names []string
	for _, p := range paths {
		names = append(names, strings.TrimPrefix(strings.TrimPrefix(p, dir), "/"))
	}
	return names
}

// at is the paths of names in a folder.
func at(dir string, names []string) []string {
	var paths []string
	for _, name := range names {
		if name != "" {
			name = dir + "/" + name
		} else {
			name = dir
		}
		paths = append(paths, name)
	}
	return paths
}
