package filesync

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/safepath"
)

// Type is the type of a path of a tree.
type Type byte

// The types that travel. Everything else (devices, pipes, sockets) is passed over.
const (
	None Type = iota // nothing is there
	File
	Dir
	Link
)

func (t Type) String() string {
	return [...]string{"nothing", "file", "folder", "link"}[t&3]
}

// Hash is the sha256 of a file's content.
type Hash [32]byte

// Entry is one path of a tree, in the manifest of one end.
type Entry struct {
	Path   string // below the root, slash-separated
	Type   Type
	Mode   fs.FileMode // permission bits that travel: modeMask
	Size   int64       // of a file
	Mtime  int64       // nanoseconds
	Ctime  int64       // nanoseconds; 0: may change without being seen, so it proves nothing
	Target string      // of a link
}

// modeMask has the bits of a mode that travel. Only the owner may ever write, and no setuid,
// setgid or sticky bit travels.
const modeMask = 0o755

// Limits of the questions to an end, and of its answers.
const (
	maxEntries = 4 << 20
	maxDepth   = 200 // folders below one another: each is an open file while it is walked
)

// stamp tells whether a file has been changed since it was looked at.
type stamp struct {
	Size, Mtime, Ctime int64
}

func (e *Entry) stamp() stamp { return stamp{e.Size, e.Mtime, e.Ctime} }

// holds reports whether a file still has the content that it had with the stamp s. now is its
// present stamp.
func (s stamp) holds(now stamp) bool {
	d := s.Ctime - now.Ctime
	return s.agrees(now) && s.Ctime != 0 && now.Ctime != 0 && -ctimeSlack <= d && d <= ctimeSlack
}

// agrees reports whether a file is, by its size and time, still the one that was
// looked at a moment ago.
func (s stamp) agrees(now stamp) bool { return s.Size == now.Size && s.Mtime == now.Mtime }

// ctimeSlack is how much a file's time of change may differ from the noted one without
// counting as changed. In gVisor it differs once. While a file is cached, the time is by the
// sandbox's clock; afterwards it is the host file system's. (Lab: mostly by 10 to 40 µs, by 6
// ms at most. On a busy machine it differs by more, and the file is hashed once more.) A
// change that keeps size and time of modification, and comes so soon after the last sync,
// would not be seen.
const ctimeSlack = int64(200 * time.Millisecond)

// comparePaths orders paths as a walk of sorted folders meets them: a folder before its
// content, and its content before the folder's next sibling.
func comparePaths(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x == '/' {
			return -1
		}
		if y == '/' {
			return 1
		}
		if x < y {
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// below reports whether a path is in the folder dir, at any depth.
func below(name, dir string) bool {
	return len(name) > len(dir) && name[len(dir)] == '/' && name[:len(dir)] == dir
}

// Names that never travel.
const (
	workName    = ".cove-sync"   // where an end keeps what it stages and backs up
	theirSuffix = ".cove-theirs" // of the other side's version of a file in conflict
	spriteName  = ".sprite"      // a file of this name says which sprite the commands in its folder mean
)

// neverTravels says why a name is left out whatever the rules say; empty if it is not.
func neverTravels(name string) string {
	switch {
	case name == workName:
		return skipOwn
	case strings.HasSuffix(name, theirSuffix):
		return skipTheirs
	case safepath.IsDotGit(name):
		return skipGit
	}
	return ""
}

// checker judges the manifest of an end that is not trusted, entry by entry.
type checker struct {
	last  string
	count int
	dirs  []string // the folders that the last entry is in, and itself if it is one
}

// check refuses an entry that no honest end sends. Because it checks the order, no name can
// come twice.
func (c *checker) check(e *Entry) error {
	if c.count++; c.count > maxEntries {
		return rejectedf("", "it has more than %d entries", maxEntries)
	}
	if err := safepath.Check(e.Path); err != nil {
		return rejectedf(e.Path, "%v", err)
	}
	for part := range strings.SplitSeq(e.Path, "/") {
		if why := neverTravels(part); why == skipGit {
			return rejectedf(e.Path, "git would take it for its own, and run what it says")
		} else if why != "" {
			return rejectedf(e.Path, "that name is cove's own")
		}
	}
	if c.last != "" && comparePaths(c.last, e.Path) >= 0 {
		return rejectedf(e.Path, "it is there twice, or not in order")
	}
	c.last = e.Path
	for len(c.dirs) > 0 && !below(e.Path, c.dirs[len(c.dirs)-1]) {
		c.dirs = c.dirs[:len(c.dirs)-1]
	}
	parent := "."
	if len(c.dirs) > 0 {
		parent = c.dirs[len(c.dirs)-1]
	}
	if path.Dir(e.Path) != parent {
		return rejectedf(e.Path, "it is in no folder")
	}
	if len(c.dirs) >= maxDepth {
		return rejectedf(e.Path, "it is more than %d folders deep", maxDepth)
	}
	if e.Type != Dir && path.Base(e.Path) == spriteName {
		return rejectedf(e.Path, "it would choose the sprite of the commands here")
	}
	return c.checkType(e)
}

func (c *checker) checkType(e *Entry) error {
	if e.Mode&^modeMask != 0 {
		return rejectedf(e.Path, "it has mode %o", uint32(e.Mode))
	}
	switch e.Type {
	case File:
		if e.Size < 0 {
			return rejectedf(e.Path, "it has %d bytes", e.Size)
		}
	case Dir:
		c.dirs = append(c.dirs, e.Path)
	case Link:
		if why := badTarget(e.Path, e.Target); why != "" {
			return rejectedf(e.Path, "%s", why)
		}
	default:
		return rejectedf(e.Path, "it is neither a file nor a folder nor a link")
	}
	if e.Type != File && e.Size != 0 || e.Type != Link && e.Target != "" {
		return rejectedf(e.Path, "a %v has no such thing", e.Type)
	}
	return nil
}

// badTarget says why a link must not travel; empty: it may.
func badTarget(name, target string) string {
	switch {
	case target == "" || strings.ContainsRune(target, 0) || len(target) >= safepath.MaxPath:
		return "it is a link to nowhere"
	case safepath.LinkLeaves(path.Dir(name), target):
		return fmt.Sprintf("it is a link out of the folder, to %q", target)
	case safepath.HasDotGit(target):
		return "it is a link into git's own folder"
	}
	return ""
}
