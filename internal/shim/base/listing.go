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
const listingFormat = 2

// A listing is the last look of a Hider at all files. If the next server starts soon after, it
// takes the listing over. Then it looks only at the times of the folders, as a server does for
// its next sandbox. It has a list for each property of folders, which is read in a third of
// the time that a list of folders takes.
type listing struct {
	Format int
	Owner  int           // another user may see more, or less
	Root   string        // of Hider.Files
	Boot   string        // of the kernel
	Full   time.Duration // since that boot, asleep or not: all files were looked at

	Folders        joined // each after the one above it
	Devs, Inos     []uint64
	Seconds, Nanos []int64 // Ctime
	Reads          []int64 // nanoseconds since 1970
	Hidden, Closed joined
	Others         joined // folders that are in others, and were not read
}

// joined are paths, each with a NUL behind it.
type joined string

func join(paths []string) joined {
	var b strings.Builder
	for _, p := range paths {
		b.WriteString(p + "\x00")
	}
	return joined(b.String())
}

func (j joined) paths() []string {
	all := strings.Split(string(j), "\x00")
	return all[:len(all)-1]
}

// keep writes a look at all files for the next server of this data folder. If it can't, the
// next server looks for itself.
func (h *Hider) keep(all *look) {
	l, err := h.newListing()
	now, failed := sinceBoot()
	if err != nil || failed != nil {
		return
	}
	l.Full = now - time.Since(all.began)
	var folders, hidden, closed, others []string
	for _, f := range all.found.all {
		if f.unread { // the next server may have other rights
			continue
		}
		folders = append(folders, f.at)
		l.Devs, l.Inos = append(l.Devs, f.stat.dev), append(l.Inos, f.stat.ino)
		l.Seconds, l.Nanos = append(l.Seconds, f.stat.ctime.Sec), append(l.Nanos, f.stat.ctime.Nsec)
		l.Reads = append(l.Reads, f.read.UnixNano())
		hidden, closed = append(hidden, f.hidden...), append(closed, f.closed...)
		for _, below := range f.folders {
			if b := all.found.at[below]; b == nil || b.unread {
				others = append(others, below)
			}
		}
	}
	l.Folders, l.Hidden, l.Closed, l.Others = join(folders), join(hidden), join(closed), join(others)
	var text bytes.Buffer
	if gob.NewEncoder(&text).Encode(l) == nil && os.MkdirAll(h.Dir, 0o700) == nil {
		_ = atomicfile.Replace(filepath.Join(h.Dir, listingFile), text.Bytes(), 0o600) // a full disk is no error here
	}
}

// restore returns the last look of an earlier server, and its time. It returns nil if there is
// no look of this boot, this user and the last five minutes.
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
	return l.findings(), time.Now().Add(l.Full - now)
}

// findings returns the folders of a listing; nil: it is damaged.
func (l *listing) findings() *findings {
	folders := l.Folders.paths()
	n := len(folders)
	for _, length := range []int{len(l.Devs), len(l.Inos), len(l.Seconds), len(l.Nanos), len(l.Reads)} {
		if length != n {
			return nil
		}
	}
	known := &findings{at: make(map[string]*folder, n), all: make([]placed, 0, n)}
	made := make([]folder, n)
	sound := true
	above := func(at string) *folder {
		f := known.at[at[:max(0, strings.LastIndexByte(at, '/'))]]
		if f == nil {
			sound, f = false, new(folder)
		}
		return f
	}
	for i, at := range folders {
		f := &made[i]
		f.stat = stamp{l.Devs[i], l.Inos[i], unix.Timespec{Sec: l.Seconds[i], Nsec: l.Nanos[i]}}
		f.read = time.Unix(0, l.Reads[i])
		if strings.Contains(at, "/") {
			dir := above(at)
			dir.folders = append(dir.folders, at)
		}
		known.add(at, f)
	}
	for _, at := range l.Others.paths() {
		f := above(at)
		f.folders = append(f.folders, at)
	}
	for _, at := range l.Hidden.paths() {
		f := known.at[at] // a folder that became secret
		if f == nil {
			f = above(at)
		}
		f.hidden = append(f.hidden, at)
	}
	for _, at := range l.Closed.paths() {
		f := above(at)
		f.closed = append(f.closed, at)
	}
	if !sound {
		return nil
	}
	return known
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
