package filesync

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/safepath"
)

// racy is the age that a file's last change must have for its time to be relied on. A second
// change in the same tick of the clock would not show.
const racy = 20 * time.Millisecond

// Skipped is what does not travel for one reason.
type Skipped struct {
	Reason  string   `json:"reason"`
	Count   int64    `json:"count"`
	Bytes   int64    `json:"bytes"` // of files; what is in folders that are skipped is not counted
	Biggest []Named  `json:"biggest,omitempty"`
	Folders []string `json:"folders,omitempty"` // the first few
}

// Named is a file and its size.
type Named struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// keptNames is how many names of skipped files are kept for each reason.
const keptNames = 5

// skips counts skipped entries.
type skips map[string]*Skipped

func (s skips) add(reason, name string, dir bool, size int64) {
	k := s[reason]
	if k == nil {
		k = &Skipped{Reason: reason}
		s[reason] = k
	}
	k.Count++
	if dir {
		if len(k.Folders) < keptNames {
			k.Folders = append(k.Folders, name)
		}
		return
	}
	k.Bytes += size
	if len(k.Biggest) < keptNames || size > k.Biggest[keptNames-1].Size {
		k.Biggest = append(k.Biggest, Named{name, size})
		slices.SortStableFunc(k.Biggest, func(a, b Named) int { return cmp.Compare(b.Size, a.Size) })
		k.Biggest = k.Biggest[:min(len(k.Biggest), keptNames)]
	}
}

// list is what was skipped, the largest kind first.
func (s skips) list() []Skipped {
	var out []Skipped
	for _, k := range s {
		out = append(out, *k)
	}
	slices.SortFunc(out, func(a, b Skipped) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// A scanner walks a tree.
type scanner struct {
	ctx     context.Context
	matcher *matcher
	emit    func(*Entry) error
	left    func(string) error // or nil
	skips   skips
	dev     uint64
	euid    uint32
	buf     []byte // for names of folders
	entry   Entry

	fd    int      // the folder that was entered last, open
	names []string // what is in it, sorted
}

// scan walks the tree in the order of comparePaths and calls emit for each entry
// that travels; the entry is valid until emit returns.
func (t *tree) scan(ctx context.Context, rules Rules, emit func(*Entry) error) (skips, error) {
	return t.scanLeft(ctx, rules, emit, nil)
}

// scanLeft is scan. It calls left, if that is not nil, with each path that is ignored or
// excluded, in the same order.
func (t *tree) scanLeft(ctx context.Context, rules Rules, emit func(*Entry) error, left func(string) error) (skips, error) {
	var st unix.Stat_t
	if err := unix.Fstat(t.root, &st); err != nil {
		return nil, err
	}
	s := &scanner{ctx: ctx, emit: emit, left: left, skips: skips{}, dev: st.Dev, euid: uint32(os.Geteuid()), buf: make([]byte, 64<<10)}
	s.matcher = newMatcher(rules, s.ignoreFile)
	return s.skips, s.folder(t.root, ".", "", 0)
}

// ignoreFile is the matcher's read. It reads a file of the folder that was entered last, and
// makes no system call for a file that is not there.
func (s *scanner) ignoreFile(_, name string) string {
	if _, found := slices.BinarySearch(s.names, name); !found {
		return ""
	}
	return readSmallAt(s.fd, name)
}

// folder walks one folder, whose name in the folder parent is base.
func (s *scanner) folder(parent int, base, prefix string, depth int) error {
	fd, err := again(func() (int, error) {
		return unix.Openat(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		if depth > 0 && (err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP) {
			return nil // deleted meanwhile
		}
		return coded("read the folder "+path.Join(prefix, "."), err)
	}
	defer unix.Close(fd)
	names, err := s.list(fd)
	if err != nil {
		return coded("read the folder "+path.Join(prefix, "."), err)
	}
	s.fd, s.names = fd, names
	s.matcher.enter(prefix)
	for batch := range slices.Chunk(names, statBatch) {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		now := time.Now()
		stats, err := statAll(fd, batch)
		if err != nil {
			return coded("look into the folder "+path.Join(prefix, "."), err)
		}
		for i, name := range batch {
			if err := s.one(fd, name, prefix, &stats[i], now, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	statBatch  = 512         // names whose stats are in memory at a time
	statAlone  = 64          // names for which one goroutine is enough
	statFailed = unix.S_IFMT // a mode that no file has
)

// statAll describes files of a folder, side by side if they are many: in a sandbox each is a
// call to another process. If a file is gone, its mode is statFailed.
func statAll(fd int, names []string) ([]unix.Stat_t, error) {
	stats := make([]unix.Stat_t, len(names))
	part := func(from, to int) error {
		for i := from; i < to; i++ {
			st, err := statAt(fd, names[i])
			if stats[i] = st; err == unix.ENOENT {
				stats[i].Mode = statFailed
			} else if err != nil {
				return err // it may be there, and must not count as deleted
			}
		}
		return nil
	}
	if len(names) < statAlone {
		return stats, part(0, len(names))
	}
	half := len(names) / 2
	err := both(func() error { return part(0, half) }, func() error { return part(half, len(names)) })
	return stats, err
}

// list lists a folder, sorted.
func (s *scanner) list(fd int) ([]string, error) {
	var names []string
	for {
		n, err := again(func() (int, error) { return unix.Getdents(fd, s.buf) })
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(s.buf[:n], -1, names)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// one handles one name of a folder.
func (s *scanner) one(fd int, name, prefix string, st *unix.Stat_t, now time.Time, depth int) error {
	full := name
	if prefix != "" {
		full = prefix + "/" + name
	}
	if st.Mode == statFailed {
		return nil
	}
	e := &s.entry
	*e = entryOf(full, st)
	if why := s.reason(fd, e, name, st, depth); why != "" {
		s.skips.add(why, full, e.Type == Dir, e.Size)
		if s.left != nil && (why == skipIgnored || why == skipExclude) {
			return s.left(full)
		}
		return nil
	}
	if now.Sub(time.Unix(0, e.Ctime)) < racy {
		e.Ctime = 0
	}
	dir := e.Type == Dir
	if err := s.emit(e); err != nil || !dir {
		return err
	}
	return s.folder(fd, name, full, depth+1)
}

// reason says why an entry does not travel; empty: it does.
func (s *scanner) reason(fd int, e *Entry, base string, st *unix.Stat_t, depth int) string {
	switch {
	case len(e.Path) >= safepath.MaxPath:
		return skipName
	case e.Type == special:
		return skipSpecial
	}
	if why := s.matcher.skip(e.Path, e.Type == Dir); why != "" {
		return why
	}
	switch e.Type {
	case Dir:
		if st.Dev != s.dev {
			return skipMount
		}
		if depth+1 >= maxDepth {
			return skipDeep
		}
		if !s.mayList(fd, base, st) {
			return skipDenied
		}
	case Link:
		target, err := readLink(fd, base)
		if err != nil {
			return skipChanged
		}
		if badTarget(e.Path, target) != "" {
			return skipLink
		}
		e.Target = target
	}
	return ""
}

// mayList reports whether a folder can be read. Usually its mode tells.
func (s *scanner) mayList(fd int, base string, st *unix.Stat_t) bool {
	if st.Uid == s.euid && st.Mode&0o500 == 0o500 {
		return true
	}
	return unix.Faccessat(fd, base, unix.R_OK|unix.X_OK, 0) == nil
}

// holdsStill reports whether an entry (now) is still as it was scanned (was).
func holdsStill(was, now *Entry) bool {
	if was.Type != now.Type {
		return false
	}
	switch was.Type {
	case File:
		return was.Mode == now.Mode && was.stamp().agrees(now.stamp())
	case Link:
		return was.Target == now.Target
	}
	return true
}

// Files calls fn with the path, below root, of each regular file that rules let through,
// until fn returns false. Its order is that of a scan.
func Files(ctx context.Context, root string, rules Rules, fn func(name string) bool) error {
	t, err := openTree(root)
	if err != nil {
		return err
	}
	enough := errors.New("enough")
	_, err = t.scan(ctx, rules, func(e *Entry) error {
		if e.Type == File && !fn(strings.Clone(e.Path)) {
			return enough
		}
		return nil
	})
	t.close()
	if errors.Is(err, enough) {
		err = nil
	}
	return err
}
