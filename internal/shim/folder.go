package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// A data folder may be copied while its sandboxes run. The copy then has the state of
// sandboxes that are the original's: their process numbers, their names, their sockets. A
// shim touches only what its own folder has started. It knows its folder by
// private.FolderID.

// errElsewhere says that a sandbox belongs to another folder, and that this folder is a copy
// of that one.
var errElsewhere = errors.New("this data folder is a copy: the sandbox belongs to the original folder")

// A folder is the one that a sandbox has. Each generation of the sandbox has a place for its disk
// in it, and an OCI bundle.
type folder struct {
	path     string
	identity string // see private.FolderID; empty: not read
}

// rootfs is where the disk of a generation is mounted.
func (f folder) rootfs(st State) string {
	return filepath.Join(f.path, fmt.Sprintf("rootfs.%d", st.Generation))
}

// bundle is the folder of the OCI bundle of a generation.
func (f folder) bundle(st State) string {
	return filepath.Join(f.path, fmt.Sprintf("bundle.%d", st.Generation))
}

// readBundle reads the configuration in the bundle of a generation.
func (f folder) readBundle(st State) (*specs.Spec, error) {
	data, err := os.ReadFile(filepath.Join(f.bundle(st), "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the bundle: %w", err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, fmt.Errorf("read the bundle: %w", err)
	}
	return spec, nil
}

// atHome reports whether the folder is still where it was. If it was moved, another
// one may be there now.
func (f folder) atHome() bool {
	if f.identity == "" {
		return true
	}
	identity, err := private.FolderID(f.path)
	return err == nil && identity == f.identity
}

// leave removes the mounts and the folders of a sandbox that has ended, or will not start.
func (f folder) leave(st State) error {
	errs := []error{layers.Unmount(f.rootfs(st)), os.RemoveAll(f.bundle(st))}
	// Not RemoveAll: if the disk were mounted there still, it would be emptied.
	if err := os.Remove(f.rootfs(st)); !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// forget removes the files of another folder's sandbox from a copy of that folder. It does
// not touch the sandbox.
func (f folder) forget(st State, log *slog.Logger) error {
	errs := []error{}
	for n := range st.Generation + 2 {
		errs = append(errs, f.leave(State{Generation: n}))
	}
	for _, name := range []string{"runsc", "image", socketName, "sandbox.json", "sandbox.json.new"} {
		errs = append(errs, os.RemoveAll(filepath.Join(f.path, name)))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove a copy of another folder's state: %w", err)
	}
	log.Warn("a sandbox is left alone", "container", st.Container, "process", st.PID, "because", errElsewhere)
	return nil
}

// Elsewhere reports whether a state that was read in dir is of a sandbox that another folder
// has started.
func (s State) Elsewhere(dir string) bool {
	folder, err := private.FolderID(dir)
	if err != nil {
		return false // this can't be known, and nothing can be written there either
	}
	if s.Folder != "" {
		return s.Folder != folder
	}
	// An earlier cove has started it, and noted no folder. Its processes hold the log of runsc.
	return alive(s.PID, s.StartTime) && !holds(s.PID, filepath.Join(dir, "runsc.log"))
}

// holds reports whether a process has a file open. It has if nobody can say.
func holds(pid int, name string) bool {
	var want unix.Stat_t
	if unix.Stat(name, &want) != nil {
		return true
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, e.Name()), &st) == nil && st.Dev == want.Dev && st.Ino == want.Ino {
			return true
		}
	}
	return err != nil
}
