// Package shim looks after one live sandbox: its mounts, its network namespace,
// its gateway, its cgroup and runsc. A shim is a process of its own that
// outlives the server; one that dies is started again and adopts the sandbox.
//
// The sandbox's folder, which the shim owns by a lock, holds:
//
//	shim.lock     flock of the shim that looks after the sandbox
//	shim.sock     the API (see api), for the server's user only
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
	"encoding/json"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/shim/connect"
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
	Shown

	Defaults *boot.Defaults // of commands; nil: those of the host base

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

	NetworkPolicy json.RawMessage // Network is made of it; it is shown inside

	// Adopt says that a sandbox is believed to run already: take it up, or say
	// that it is gone. A shim that adopts never boots.
	Adopt bool

	// Patience is how long a guest that was restored may take to answer; 0: BootTimeout.
	Patience time.Duration

	// Build says what a memory image depends on: the builds of runsc and of the guest, and
	// the processor. Image, if not empty, is the folder of a memory image to start from.
	// If that is not possible, the sandbox boots. See Unspent.
	Build, Image string
}

// Shown is the part of the host that a sandbox is shown, besides its disk.
type Shown struct {
	Include []string // folders, read-only at the same path
	Binds   []Bind
}

// Bind shows a folder of the host inside, at a place that the disk need not have.
type Bind struct {
	Source   string // on the host
	Target   string // inside, absolute
	ReadOnly bool
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

	Full  bool   `json:"full,omitempty"` // there was no room for it on the disk
	State *State `json:"state,omitempty"`
}
