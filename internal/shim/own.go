package shim

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// A shim holds the data on its way to and from its sandbox, within bounds of its own (see
// gateway). These limits are the backstop. Past softMemory Go collects garbage all the time.
// Past hardMemory the kernel kills the shim, and the next shim adopts the sandbox.
const (
	softMemory   = 384 << 20
	hardMemory   = 768 << 20
	socketMemory = 256 << 20 // of the kernel, for its TCP sockets; cgroup v1 counts that apart
)

// ownGroup is the memory cgroup of a shim itself.
type ownGroup struct {
	mount string // of the hierarchy
	group string // below mount; empty: it has none
	from  string // the cgroup that the shim was in
}

func (g ownGroup) dir() string { return filepath.Join(g.mount, g.group) }

// joinOwnGroup gives this process a memory limit. In a cgroup of its own that is the
// kernel's; where cgroups can't be written, Go's alone.
func joinOwnGroup(parent, id string) (ownGroup, error) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemory)
	}
	root, files := filepath.Join(cgroupRoot, "memory"), map[string]int64{"memory.limit_in_bytes": hardMemory, "memory.kmem.tcp.limit_in_bytes": socketMemory}
	controller := "memory"
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		root, files, controller = cgroupRoot, map[string]int64{"memory.max": hardMemory}, ""
	}
	g := ownGroup{mount: root, group: cgroupPath(parent, id+cgroup.ShimSuffix), from: cgroup.Process{}.Dir("memory")}
	if g.from == "" {
		return ownGroup{}, nil // as the sandbox's state says
	}
	switch err := os.MkdirAll(g.dir(), 0o755); {
	case err == nil: // or a shim that was killed has left it
	case errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, os.ErrNotExist):
		return ownGroup{}, nil // as the sandbox's state says
	default:
		return ownGroup{}, fmt.Errorf("make the shim's cgroup: %w", err)
	}
	if controller == "" {
		// The controller is on already if a sandbox was started before.
		if err := os.WriteFile(filepath.Join(filepath.Dir(g.dir()), "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return g, fmt.Errorf("limit the shim's memory: %w", err)
		}
	}
	for name, limit := range files {
		err := os.WriteFile(filepath.Join(g.dir(), name), []byte(strconv.FormatInt(limit, 10)), 0)
		if err != nil && !(errors.Is(err, os.ErrNotExist) && strings.Contains(name, "tcp")) { // a kernel may be without
			return g, fmt.Errorf("limit the shim's memory: %w", err)
		}
	}
	if err := moveTo(g.dir(), os.Getpid()); err != nil {
		return g, fmt.Errorf("limit the shim's memory: %w", err)
	}
	return g, nil
}

// leave moves the shim, and the processes that it has started, back to the shim's first
// cgroup. Then it removes the cgroup. A process that is being started is not listed yet, and
// is moved at the next try.
func (g ownGroup) leave() error {
	if g.group == "" {
		return nil
	}
	return onceEmpty(func() error {
		if err := g.empty(); err != nil {
			return err
		}
		return removeGroup(g.mount, g.group)
	})
}

// empty moves the processes that are listed in the cgroup to where the shim was.
func (g ownGroup) empty() error {
	data, err := os.ReadFile(filepath.Join(g.dir(), "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("leave the shim's cgroup: %w", err)
	}
	for text := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("leave the shim's cgroup: %w", err)
		}
		if moveTo(g.from, pid) != nil { // that cgroup may be gone
			err = moveTo(filepath.Dir(g.dir()), pid)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("leave the shim's cgroup: %w", err)
		}
	}
	return nil
}

// A membership has the shim itself in an ownGroup, from start to close. Both log what fails: without
// the group the sandbox runs all the same.
type membership struct {
	joining sync.WaitGroup
	group   ownGroup // written by joining
}

// start joins the group in a goroutine, while the caller goes on: a kernel takes some 10 ms to
// move a process.
func (m *membership) start(parent, id string, log *slog.Logger) {
	m.joining.Go(func() {
		var err error
		if m.group, err = joinOwnGroup(parent, id); err != nil {
			log.Warn("the shim's own memory is not limited", "err", err)
		}
	})
}

// close leaves the group.
func (m *membership) close(log *slog.Logger) {
	m.joining.Wait()
	if err := m.group.leave(); err != nil {
		log.Error("clean up after the shim", "err", err)
	}
}

// RemoveOwnGroup removes the cgroup of a shim that was killed after its sandbox was gone.
// Usually the next shim removes it, but no other will come. dir is the sprite's run folder,
// and place is where the server's cgroups are.
func RemoveOwnGroup(dir, id string, place cgroup.Place) error {
	folder, err := private.FolderID(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	mount := cgroupRoot
	if place.Root != "" {
		mount = place.Root
	}
	group := cgroupPath(place.Parent, prefixOf(id, folder)+cgroup.ShimSuffix)
	for _, dir := range []string{filepath.Join(mount, "memory", group), filepath.Join(mount, group)} { // v1, v2
		switch err := unix.Rmdir(dir); {
		case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.EROFS):
		case errors.Is(err, unix.EBUSY): // it ends just now, and removes it
		default:
			return fmt.Errorf("remove a shim's cgroup: %w", &os.PathError{Op: "rmdir", Path: dir, Err: err})
		}
	}
	return nil
}

// moveTo moves a process to a cgroup. If the folder is not a cgroup, it makes no file there.
func moveTo(dir string, pid int) error {
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(pid))
	return errors.Join(err, f.Close())
}
