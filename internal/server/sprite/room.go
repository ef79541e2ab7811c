package sprite

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// The watch of the reserve counts what a sandbox writes (reserve.go). This file counts
// what the server itself writes to the disk because somebody asks for it. Before the
// server writes, it claims room. No room is claimed twice, and the reserve can't be
// claimed. An import claims as it goes on, because nobody knows before how large it will
// be.

const (
	// claimStep is how much is claimed at once. The file system is looked at as often.
	claimStep = 16 << 20

	// A token other than the owner's may have a 4th of the room, for all its operations
	// together. It leaves twice the reserve free, so that the sprites of others can still
	// write.
	sharePart   = 4
	othersLeave = 2

	// filePart is which part of the files that a file system can have is left, as is the
	// reserve of its bytes.
	filePart = 20
)

// ErrNoRoom says that a claim can't be met. The server's disk is not full: the rest is
// for others.
var ErrNoRoom = errors.New("the server's disk has no room left for this")

// diskRoom is the account of what is under way. Its zero value is ready for use.
type diskRoom struct {
	mu     sync.Mutex
	claims map[*claim]bool
}

// claim is the part of one operation. Its methods may be called at any time.
type claim struct {
	room    *diskRoom
	dir     string
	by      string // the token's; empty: the owner's
	reserve int64
	end     context.CancelCauseFunc // ends the operation

	// The rest diskRoom.mu guards.
	left  int64 // claimed, and not written
	taken int64 // written
	most  int64 // of what own counts
	ended bool
}

// open begins an operation, which claims nothing yet. end is called if it is to make
// room for others. The caller closes it when what it wrote is gone, or somebody's.
func (r *diskRoom) open(dir, by string, reserve int64, end context.CancelCauseFunc) (*claim, error) {
	c := &claim{room: r, dir: dir, by: by, reserve: reserve, end: end}
	r.mu.Lock()
	defer r.mu.Unlock()
	free, err := c.free()
	if err != nil {
		return nil, err
	}
	if c.most = free; by != "" {
		c.most = (free + c.own()) / sharePart
	}
	if c.most <= c.own() {
		return nil, ErrNoRoom
	}
	if r.claims == nil {
		r.claims = map[*claim]bool{}
	}
	r.claims[c] = true
	return c, nil
}

// own is what a claim has, and for a token all of its claims. mu is held.
func (c *claim) own() int64 {
	if c.by == "" {
		return c.left + c.taken
	}
	var own int64
	for o := range c.room.claims {
		if o.by == c.by {
			own += o.left + o.taken
		}
	}
	return own
}

// free is what the file system has for an operation, besides what others have claimed.
// mu is held.
func (c *claim) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(c.dir, &st); err != nil {
		return 0, fmt.Errorf("find the free space of the disk of %s: %w", c.dir, err)
	}
	leave := c.reserve
	files := int64(st.Files) / filePart
	if c.by != "" {
		leave *= othersLeave
		files *= othersLeave
	}
	free := int64(st.Bavail)*st.Bsize - leave
	for o := range c.room.claims {
		if o != c {
			free -= o.left
		}
	}
	if st.Files > 0 && int64(st.Ffree)-claimFiles < files { // some file systems have as many as there is room for
		return 0, nil
	}
	return free, nil
}

// claimFiles are the most files that are made between two looks at the file system.
const claimFiles = claimStep / (4 << 10)

// take claims n bytes that are about to be written.
func (c *claim) take(n int64) error {
	c.room.mu.Lock()
	defer c.room.mu.Unlock()
	if c.ended {
		return ErrNoRoom
	}
	if c.left < n {
		own := c.own()
		more := max(n-c.left, min(claimStep, c.most-own))
		free, err := c.free()
		if err != nil {
			return err
		}
		if c.left+more > free {
			more = n - c.left // the last of it is claimed piece by piece
		}
		if c.left+more > free || own+more > c.most {
			return ErrNoRoom
		}
		c.left += more
	}
	c.left -= n
	c.taken += n
	return nil
}

// close ends a claim.
func (c *claim) close() {
	c.room.mu.Lock()
	defer c.room.mu.Unlock()
	delete(c.room.claims, c)
}

// has checks that an operation of the owner can write n bytes, besides what others have
// claimed. If it can't, the error is ErrNoRoom.
func (r *diskRoom) has(dir string, reserve, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	free, err := (&claim{room: r, dir: dir, reserve: reserve}).free()
	if err == nil && n > free {
		err = ErrNoRoom
	}
	return err
}

// Room checks that a host's disk has room for so many bytes of an image, besides the reserve
// and what imports have claimed. If it has not, the error is ErrNoRoom.
func Room(h *Host, bytes int64) error { return h.disk.imports.has(h.Data, h.DiskReserve, bytes) }

// endLargest ends the operation that has taken the most, and reports whether one is
// under way that makes room, or soon will.
func (r *diskRoom) endLargest() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var most *claim
	for c := range r.claims {
		if c.ended {
			return true
		}
		if c.taken > 0 && (most == nil || c.taken > most.taken) {
			most = c
		}
	}
	if most == nil {
		return false
	}
	most.ended = true
	most.end(ErrNoRoom)
	return true
}
