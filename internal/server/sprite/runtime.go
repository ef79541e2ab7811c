package sprite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// A Runtime runs sandboxes. The sprite's life is this package's; what a sandbox
// is made of is the runtime's.
type Runtime interface {
	// Prepare makes what the first sandbox over the host base needs, if it was not made. If it
	// fails, the next Boot tries again.
	Prepare() error

	// Boot starts the sandbox of a sprite that has none, and returns once its guest answers. If
	// the sprite's memory is on disk, it goes on from that, if it can. A second Boot of the same
	// sprite while one is live is an error.
	Boot(ctx context.Context, m Machine) (Sandbox, error)

	// Live returns the sandboxes that run already, left by an earlier server
	// process, after taking them up again. Those that can't be taken up are
	// ended, and joined into the error; the others are still returned.
	Live(ctx context.Context) ([]Sandbox, error)

	// Lost says, for people, why Live did not return the sandbox that a sprite had. The text
	// is Elsewhere if this data folder is a copy, and the sandbox is the original's. It may
	// also tell of an ErrOccupied. Empty: the sprite had no sandbox, or it has ended.
	Lost(id string) string

	// Occupied says where a sandbox runs that this server can't look after, because another
	// container uses the data folder, too. The error is an ErrOccupied. nil: there is no such
	// sandbox.
	Occupied(id string) error

	// Destroy removes what is left of the sandboxes of a sprite that has no live one.
	// If there is nothing to destroy, that is not an error.
	Destroy(ctx context.Context, id string) error

	// Unlimited says which limits a sandbox would not have if it started now, each with the
	// reason.
	Unlimited() []string

	// MemoryMB is how much memory a sandbox with this limit gets if it starts now (both in
	// MiB). A runtime may keep a part of the server's memory from it.
	MemoryMB(limit int) int

	// Logs are the names of files about each sprite's last sandboxes, the oldest first; none:
	// the runtime keeps no such log. They need not exist. The last one grows, and is renamed to
	// the one before it at times, if there is one.
	Logs(id string, of Log) []string

	Inventory

	// Layers has the disks, if they can be read; else it is nil.
	Layers() LayerStore

	// Memories has the memories of sandboxes that are Hibernators; nil: none are.
	Memories() MemoryStore
}

// Log is what is in a log.
type Log int

// The logs of a Runtime.
const (
	LogRefused     Log = iota // what a sprite's network refused: a sprites.NetworkEvent a line
	LogConnections            // what it reached: a sprites.NetworkEvent a line
	LogRequests               // what it asked of its connectors: a cove.ConnectorEvent a line
	LogMemory                 // its processes that were ended for want of memory: a sprites.MemoryKill a line
	LogSandbox                // what the runtime itself says, for people
)

// An Inventory is what there is on the disk for sprites.
type Inventory interface {
	// RemoveLayer removes a layer that is in the disk of no sprite. If it does not
	// exist, that is not an error.
	RemoveLayer(ctx context.Context, layer string) error

	// Mounted says which layers any sandbox has mounted, or is about to, also one that can't
	// be reached. None of them may be removed.
	Mounted(ctx context.Context) ([]string, error)

	// Stock lists the layers and the memories that there are.
	Stock(ctx context.Context) ([]Item, error)

	// SetAside moves an item out of the way, without removing it, and notes why. It returns the
	// item's new path. If there is no such item, the path is empty.
	SetAside(ctx context.Context, item Item, why string) (to string, err error)
}

// A Sandbox is one live sandbox. Its methods may be called from any goroutine. More that it
// can do it shows by the optional interfaces below.
type Sandbox interface {
	// ID is the Machine.ID it was booted with.
	ID() string

	// Dial opens a TCP connection to a port of the sandbox's own network, or to its
	// guest's API (boot.API). On a connection to the API, each end knows that the other
	// is the right one.
	Dial(ctx context.Context, port int) (net.Conn, error)

	// Status describes it.
	Status() SandboxStatus

	// Stop ends every process in it, with TERM and then, after grace, by force, and
	// returns when nothing of it is left. To stop a dead one is not an error.
	Stop(ctx context.Context, grace time.Duration) error

	// Done is closed when the sandbox is gone, for whatever reason; Status then
	// says why.
	Done() <-chan struct{}

	// SetNetwork replaces what its network is decided by, if that has a policy. Connections
	// that the new one does not allow have ended when it returns.
	SetNetwork(ctx context.Context, set policy.Set) error

	// SetConnectors replaces the named upstreams that it reaches, and ends requests through
	// those that are no more.
	SetConnectors(ctx context.Context, all map[string]connect.Upstream) error

	// Limit changes its limits; 0 is none. After an error the memory's is what it was:
	// ErrMemoryUsed says that more is in use.
	Limit(ctx context.Context, memoryMB, cpus int) error

	// WrittenBytes is how much was written to files of the disk from inside, since it started,
	// as far as that is known.
	WrittenBytes() (int64, error)

	// UnnamedBytes is how much of the disk its open files take that no name leads to any more,
	// as far as that is known. While it has no process, the error is ErrNoProcess.
	UnnamedBytes() (int64, error)
}

// A Pauser is a Sandbox that can be frozen in memory.
type Pauser interface {
	Sandbox
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// An Assigner is a Sandbox that can be booted before anybody has asked for it. Assign gives
// the sandbox to a sprite. The sprite has the disk, base and incarnation that the sandbox
// was booted with, has no limits, and includes nothing. The sandbox gets the name, the
// machine id, the environment and the network of m, and a new token. After an error the
// caller must stop it.
type Assigner interface {
	Sandbox
	Assign(ctx context.Context, m Machine) error
}

// A Hibernator is a Sandbox whose memory can be kept while it sleeps. Hibernate ends
// it, and the next Boot of the same sprite goes on from where it was, if it can.
// After an error it goes on, or has ended and its memory is lost; ErrDeletedOpen, ErrNetworks and
// NoRoomError are three after which it goes on.
type Hibernator interface {
	Sandbox
	Hibernate(ctx context.Context) error
}

// A NoRoomError says that the disk has no room for a sandbox's memory. It is ENOSPC.
type NoRoomError struct{ Free, Needed int64 } // in bytes; Needed is known only about

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("no room: %d MiB were free, and some %d MiB needed", e.Free>>20, e.Needed>>20)
}

// Is reports whether target is ENOSPC.
func (e *NoRoomError) Is(target error) bool { return target == unix.ENOSPC }

// ErrOccupied says that a sandbox of a sprite runs in another container or machine, where this
// server can't look after it. Nothing may be started over its disk, nor read or removed there.
var ErrOccupied = errors.New("the sprite's last sandbox still runs elsewhere")

// A MemoryStore has memories: that of each sprite that sleeps, and those that are kept by
// names of 16 hexadecimal digits. Each of the latter is used as often as one likes.
type MemoryStore interface {
	// Warm reports whether the memory of a sprite without a sandbox is kept.
	Warm(id string) bool

	// Outdated reports whether a sprite's memory is kept, but was made by another
	// version than the next Boot uses. Then the next Boot begins anew.
	Outdated(id string) bool

	// Drop has the next Boot begin anew: before the disk becomes another one.
	Drop(ctx context.Context, id string) error

	// Keep keeps the memory that a sleeping sprite has, and returns its bytes.
	// The sprite goes on from it, too.
	Keep(ctx context.Context, id, memory string) (int64, error)

	// Recall has the next Boot of a sprite go on from a memory, if it can. Its disk
	// must be what it was then.
	Recall(ctx context.Context, id, memory string) error

	// Forget removes a memory; there need be none.
	Forget(ctx context.Context, memory string) error
}

// A LayerStore has disks that can be looked at without a sandbox, and taken over from elsewhere.
type LayerStore interface {
	// Dir is where a layer is, or would be.
	Dir(layer string) layers.Dir

	// Open opens what a chain of layers over a base, the lowest first, shows, in parts: the
	// root first. The caller closes them, and sees to it that no layer is removed
	// meanwhile.
	Open(ctx context.Context, base string, chain []string) (Disk, error)

	// Merge makes a layer, which does not exist, the same as sealed ones on
	// top of each other, the lowest first. After an error RemoveLayer removes what
	// there is of it.
	Merge(ctx context.Context, into string, layers []string) error

	// Base is what a new disk over a base lies on here: "host", or the digest of an image.
	// An image that is not here is ErrNoImage, or has the code CodeImageNotFound.
	Base(ctx context.Context, name string) (archive.Base, error)

	// Under names the base of the disks whose lowest layer this is; empty: none of them
	// has run.
	Under(lowest string) (base string, err error)

	// Stage makes an empty folder for a layer that is the lowest of a disk. Adopt makes
	// a layer of its content; else the caller removes the folder, or the next start.
	Stage(ctx context.Context) (layers.Dir, error)

	// Adopt makes what was staged a layer, over a base; empty: any. It is on disk then.
	Adopt(ctx context.Context, staged layers.Dir, layer, base string) error
}

// ErrNoImage says that the image is not here that a disk lies on, or is to.
var ErrNoImage = errors.New("there is no such image here")

// Disk is what a chain of layers shows: a view of each mount.
type Disk []DiskPart

// DiskPart is one mount of a disk.
type DiskPart struct {
	Target string // below the root, such as "usr"; the root's is empty
	View   *layers.View
}

// Close lets go of the layers.
func (d Disk) Close() (err error) {
	for _, part := range d {
		err = errors.Join(err, part.View.Close())
	}
	return err
}

// A Checkpointer is a Sandbox whose disk can be sealed while it runs. The programs go on,
// with their memory and connections, over the disk that Checkpoint is given. That disk
// has the same layers, and another one to be written. After an error the sandbox runs
// over either of the two, or has ended: Settle says which. ErrDeletedOpen and ErrNetworks
// are two.
//
// If memory has a name, the MemoryStore keeps the memory, too. But if the open files
// would make going on from it slow, it is kept only if memory says Always.
type Checkpointer interface {
	Sandbox
	Checkpoint(ctx context.Context, layers []string, memory Memory) (Pause, error)

	// Settle returns the layers that the sandbox has, the lowest first, once no Checkpoint
	// moves it; none to this layer begins afterwards. An error says that nobody knows,
	// or that the sandbox has ended.
	Settle(ctx context.Context, layer string) ([]string, error)
}

// ErrDeletedOpen says that deleted files that are still open are larger than what a
// sandbox's memory takes of them while it is saved.
var ErrDeletedOpen = errors.New("deleted files that are still open are too large")

// ErrNetworks says that programs have networks of their own, which would be lost if a sandbox's
// memory were saved.
var ErrNetworks = errors.New("programs have networks of their own, which can't be saved")

// Memory says what a checkpoint does with the memory.
type Memory struct {
	Name   string // by which it is kept; empty: it is not
	Always bool   // however much is open
	Leave  int64  // bytes that must stay free on its disk; else it is not kept
}

// Pause is how long a sandbox stood still for a checkpoint, and why; and what became
// of its memory.
type Pause struct {
	Total                      time.Duration
	Save, Mount, Copy, Restore time.Duration // parts of it: of the memory, the disk, the memory

	Copied int64 // bytes of files that were open for writing, which were copied for it

	Kept    int64  // bytes of the memory that was kept
	NotKept string // why it was not, though it was to be

	Open *sprites.OpenFiles // the kinds that too much is open of; nil: none
}

// Item is something that a Runtime has on disk.
type Item struct {
	Kind ItemKind
	Name string // of an image: the sprite's ID

	// Layers are those of the disk that an image goes with, the lowest first; nil: that
	// is not known.
	Layers []string
}

// ItemKind is what an item is.
type ItemKind string

// The kinds of items, which are the names of folders.
const (
	ItemLayer  ItemKind = "layers"
	ItemMemory ItemKind = "memories" // that a checkpoint has kept
	ItemImage  ItemKind = "images"   // the memory of a sprite that sleeps
)

// ErrMemoryUsed says that a sandbox uses more memory than a limit would leave it.
var ErrMemoryUsed = errors.New("more memory is in use")

// Machine is what a runtime must know of a sprite to boot it.
type Machine struct {
	ID          string            // 16 lower-case hexadecimal digits, fixed length
	Hostname    string            // the sprite's name
	MachineID   string            // 32 hexadecimal digits
	Incarnation int64             // new at each boot
	Base        string            // "host", or the digest of an image
	Bare        bool              // over an image: nothing is added to it but mount points and names of the network
	Layers      []string          // of its disk, the lowest first; the last is written
	Include     []string          // host folders shown read-only at the same path
	Binds       []Bind            // shown besides, each at a place of its own
	Env         map[string]string // for every command in the sprite
	MemoryMB    int               // 0: no limit
	CPUs        int               // 0: no limit
	Network     policy.Set        // what its network is decided by

	NetworkPolicy sprites.NetworkPolicy       // which Network is made of, to be shown inside
	Connectors    map[string]connect.Upstream // with their secrets
}

// A Bind shows a folder of this machine in a sandbox.
type Bind struct {
	Source   string // made if it is missing
	Target   string // below the guest's own folder
	ReadOnly bool
}

// SandboxStatus describes a sandbox.
type SandboxStatus struct {
	Hostname    string // it is this sprite's; empty: that is not known
	Incarnation int64
	Layers      []string  // of its disk, the lowest first
	Address     string    // the guest's IPv4 address
	Address6    string    // and that of IPv6; empty: it has none
	Token       string    // bearer token of the guest's API, if an earlier cove started it; else empty
	Started     time.Time // when it booted
	Paused      bool
	Stopping    bool     // when it was found, it had been told to end
	Unlimited   []string // limits that this machine can't give, with the reason
	NetworkDown string   // why nothing passes its network now; empty: it is up
	Woken       bool     // it goes on from its memory
	Unused      string   // why it booted, though its memory was kept
	Ended       string   // once Done: why, for people ("out of memory", "stopped", …)
}
