// Package shim looks after one live sandbox: its mounts, its network namespace,
// its gateway, its cgroup and runsc. A shim is a process of its own that
// outlives the server; one that dies is started again and adopts the sandbox.
//
// The sandbox's folder, which the shim owns by a lock, holds:
//
//	shim.lock     flock of the shim that looks after the sandbox
//	shim.sock     the API (see Handler), for the server's user only
//	shim.log      the shim's own log
//	sandbox.json  State, while the sandbox lives; sandbox.json.new has the one before
//	guest.log     what the guest printed
//	kernel.log    what gVisor's kernel reported when it crashed, which says that it lives, too (see kernel); kernel.log.1 the report before
//	refused.log, connected.log, *.log.1   what it was refused, and reached (see RefusedLog)
//	requests.log, requests.log.1          its requests through connectors
//	usage.json    what it has used of them
//	memory.log, memory.log.1              processes that were ended for want of memory
//	runsc/        runsc's state; runsc.log its messages; bundle.N/ the OCI bundle
//	rootfs.N/     where the disk is mounted, in the shim's mount namespace alone
//	image/        a memory image that nobody keeps, likewise
//
// N counts the generations of the sandbox: each checkpoint makes another.
package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/kernel"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// Config is what a shim is told on its standard input: one JSON document. It is
// never written to disk, because the connectors' headers are secrets.
type Config struct {
	Dir   string // the sandbox's folder; made if it does not exist
	Runsc string // path of the cove-runsc binary
	Guest string // host folder that holds cove-guest, shown at boot.BinDir

	ID          string // fixed-length container id
	Hostname    string
	MachineID   string
	Incarnation int64
	Token       string // the key of the guest's API
	Env         map[string]string
	Include     []string // host folders, read-only at the same path

	Layers   []string // of the disk, the lowest first; the last is written
	Disk     []Mount  // parents first; the first is the root, with Target ""
	MemoryMB int      // 0: no limit
	CPUs     int      // 0: no limit
	PidsMax  int      // host tasks, a backstop; 0: no limit
	Tasks    int      // the sandbox's own processes; 0: boot.PidsMax

	// Cgroups is where the sandbox's cgroups are made. The zero value is the mount of each
	// hierarchy.
	Cgroups cgroup.Place

	Connectors map[string]connect.Upstream // at http://NAME.connect.internal/

	// Network is what its network is decided by; nil: nothing may be reached until
	// Client.SetNetwork.
	Network *policy.Set

	NetworkPolicy json.RawMessage // which Network is made of, to be shown inside

	// Adopt says that a sandbox is believed to run already: take it up, or say
	// that it is gone. A shim that adopts never boots.
	Adopt bool

	// Patience is how long a guest that was restored may take to answer; 0: BootTimeout.
	Patience time.Duration

	// Build says what a memory image depends on: the builds of runsc and of the
	// guest, and the processor. Image, if not empty, is the folder of one to start
	// from; where that can't be, the sandbox boots.
	Build, Image string
}

// Mount is a part of the disk, mounted at Target below the root.
type Mount struct {
	Target  string // relative, "" for the root
	Overlay layers.Overlay
}

// Ready is what a shim writes to file descriptor 3, one JSON document, once its
// sandbox answers or can't be had.
type Ready struct {
	Error  string `json:"error,omitempty"`
	Gone   bool   `json:"gone,omitempty"`   // Adopt: there is no sandbox to take up
	Locked bool   `json:"locked,omitempty"` // another shim looks after it

	Elsewhere bool `json:"elsewhere,omitempty"` // Gone: it runs, and is another folder's; see State.Folder
	Occupied  bool `json:"occupied,omitempty"`  // a sandbox of this folder runs where this process can't see it; see Occupied

	Full   bool   `json:"full,omitempty"`   // there was no room for it on the disk
	Asleep bool   `json:"asleep,omitempty"` // nothing ran, and Image is as good as before
	State  *State `json:"state,omitempty"`
}

// State is what must be known to take up a running sandbox. It is kept in
// sandbox.json (0600) from just before the sandbox is started until it is gone.
type State struct {
	Container   string    `json:"container"`
	Folder      string    `json:"folder,omitempty"` // device and inode of the folder that has started it; empty: an earlier cove did
	Generation  int       `json:"generation"`       // of the container: a checkpoint moves the sandbox to the next
	Layers      []string  `json:"layers"`           // of its disk, the lowest first; the last is written
	Next        []string  `json:"next,omitempty"`   // the layers of the disk to which it is about to move, which may be mounted already
	Moving      bool      `json:"moving,omitempty"`
	OldPID      int       `json:"old_pid,omitempty"` // of the generation before, until it is gone
	OldStart    uint64    `json:"old_start,omitempty"`
	Hostname    string    `json:"hostname"`
	PID         int       `json:"pid"`        // of runsc's sandbox process; 0: not started yet
	StartTime   uint64    `json:"start_time"` // of that process, in clock ticks, against reuse of the number
	Incarnation int64     `json:"incarnation"`
	Address     string    `json:"address"`
	Address6    string    `json:"address6,omitempty"`  // empty: it has no IPv6
	Token       string    `json:"token,omitempty"`     // the key of the guest's API; see shown
	Handshake   int       `json:"handshake,omitempty"` // boot.Handshake of the guest; 0: it takes Token as a bearer token
	Link        string    `json:"link"`                // "tap" or "veth"
	Started     time.Time `json:"started"`
	Paused      bool      `json:"paused,omitempty"` // or it is about to be, or was until just now
	Saving      string    `json:"saving,omitempty"` // the folder to which its memory is being saved, so that it can end
	Unlimited   []string  `json:"unlimited,omitempty"`
	MemoryLimit int64     `json:"memory_limit,omitempty"` // bytes; 0: it has none

	kernel.Place // where it was started
	Groups

	Build  string `json:"build,omitempty"`  // see Config.Build
	Woken  bool   `json:"woken,omitempty"`  // it goes on from a memory image
	Unused string `json:"unused,omitempty"` // why one was not used
}

// Groups are where a sandbox's cgroups are: see cgroup.Place.
type Groups struct {
	CgroupParent string `json:"cgroup_parent,omitempty"`
	CgroupRoot   string `json:"cgroup_root,omitempty"`
}

// Mounted are the layers that a sandbox has, or is about to have.
func (s State) Mounted() []string { return slices.Concat(s.Layers, s.Next) }

func statePath(dir string) string { return filepath.Join(dir, "sandbox.json") }

// ReadState returns the state of the sandbox in dir; os.ErrNotExist says that
// there is none.
func ReadState(dir string) (State, error) {
	var s State
	data, err := os.ReadFile(statePath(dir))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", statePath(dir), err)
	}
	return s, nil
}

// Left reports whether a folder has anything of a sandbox, or of the start of one, but
// its logs: a state, or a folder. A shim that ends leaves no such thing, and one that
// is killed does.
func Left(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return e.IsDir() || strings.HasPrefix(e.Name(), filepath.Base(statePath(dir)))
	})
}

// shown is the state as the server gets it. It needs no token, for the shim proves
// itself to the guest, unless that was started by an earlier cove, without a handshake.
func (s State) shown() State {
	if s.Handshake > 0 {
		s.Token = ""
	}
	return s
}

// stateRoom is what each of the two state files takes of the disk, and most states fit in.
const stateRoom = 4 << 10

// write replaces the state file in one step. There are two files, of which one is written
// over in place and then takes the other's name, and that one's: neither gives room back,
// so that on a full disk a sandbox can still be paused, and go on.
func (s State) write(dir string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := statePath(dir)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		if more := max(info.Size(), stateRoom) - int64(len(data)); more > 0 {
			data = append(data, bytes.Repeat([]byte("\n"), int(more))...)
		}
		_, err = f.WriteAt(data, 0)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if err != nil { // the first one; or the file system knows no exchange
		err = os.Rename(f.Name(), path)
	}
	return err
}
