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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/kernel"
)

// State is what must be known to take up a running sandbox. It is kept in
// sandbox.json (0600) from just before the sandbox is started until it is gone.
type State struct {
	Container   string    `json:"container"`
	Folder      string    `json:"folder,omitempty"` // device and inode of the folder that has started it; empty: an earlier cove did
	Generation  int       `json:"generation"`       // of the container: a checkpoint moves the sandbox to the next
	Layers      []string  `json:"layers"`           // of its disk, the lowest first; the last is written
	Next        []string  `json:"next,omitempty"`   // the layers of the disk that it is about to move to; they may be mounted already
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
	Paused      bool      `json:"paused,omitempty"`   // or it is about to be, or was until just now
	Stopping    bool      `json:"stopping,omitempty"` // it was told to end; only the shim that was told says so
	Saving      string    `json:"saving,omitempty"`   // the folder that its memory is being saved to, so that it can end
	Unlimited   []string  `json:"unlimited,omitempty"`
	MemoryLimit int64     `json:"memory_limit,omitempty"` // bytes; 0: it has none

	kernel.Place // where it was started
	Groups

	Wake

	Build string `json:"build,omitempty"` // see Config.Build
}

// Wake is whether a sandbox began with a memory.
type Wake struct {
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

// write replaces the state file in one step. There are two files. write writes over one of
// them in place, and then the two exchange their names. Neither file gives room back, so a
// sandbox can be paused and resumed even on a full disk.
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

// A record is the State of the sandbox, in memory and in its file. Several goroutines may use it.
type record struct {
	folder folder

	mu    sync.Mutex // guards state, and is held while the file is written
	state State
}

// get is the state as it is now.
func (r *record) get() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// begin replaces the state in memory alone. It is for a sandbox that is being made or taken up.
func (r *record) begin(st State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = st
}

// set changes the state in memory and on disk. It fails if the folder was moved.
func (r *record) set(change func(*State)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state)
	if !r.folder.atHome() {
		return fmt.Errorf("%s is not this sandbox's folder any more", r.folder.path)
	}
	return r.state.write(r.folder.path)
}
