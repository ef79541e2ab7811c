package guest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// cgroups makes a control group per session. A process that starts in a group stays in it,
// even after setsid.
type cgroups struct {
	dir string // "" where there are none
}

// open makes the parent of all sessions' groups below root, a folder of a cgroup v2 mount. It
// limits the parent's processes if the pids controller is available.
func (c *cgroups) open(root string, pidsMax int) error {
	if root == "" {
		return errors.New("no cgroup v2 folder is set")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return fmt.Errorf("find cgroup v2 at %s: %w", root, err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%s is not a cgroup v2 folder", root)
	}
	enablePids(root)
	dir := filepath.Join(root, "cove")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the sessions' cgroup: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
		return fmt.Errorf("use the sessions' cgroup: %w", err)
	}
	c.dir = dir
	err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(strconv.Itoa(pidsMax)), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}

// enablePids hands the pids controller down from root. A group that has processes of its own
// can't hand it down, so these move into a group below first. If the controller is not
// available, there is no limit.
func enablePids(root string) {
	control := filepath.Join(root, "cgroup.subtree_control")
	if have, err := os.ReadFile(control); err != nil || slices.Contains(strings.Fields(string(have)), "pids") {
		return
	}
	err := os.WriteFile(control, []byte("+pids"), 0)
	if !errors.Is(err, syscall.EBUSY) {
		return
	}
	own := filepath.Join(root, "guest")
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return
	}
	_ = os.WriteFile(control, []byte("+pids"), 0) // no controller: no limit
}

// close removes the sessions' parent group.
func (c *cgroups) close() error {
	if c.dir == "" {
		return nil
	}
	if err := os.Remove(c.dir); err != nil {
		return fmt.Errorf("remove the sessions' cgroup: %w", err)
	}
	return nil
}

// make makes the group of a session, and opens it for the fork. The caller must close the
// descriptor; it is -1 if there are no groups.
func (c *cgroups) make(id string) (*group, int, error) {
	if c.dir == "" {
		return &group{}, -1, nil
	}
	g := &group{dir: filepath.Join(c.dir, id)}
	if err := syscall.Mkdir(g.dir, 0o755); err != nil {
		return nil, -1, fmt.Errorf("make cgroup: %w", err)
	}
	fd, err := syscall.Open(g.dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, -1, errors.Join(fmt.Errorf("open cgroup: %w", err), syscall.Rmdir(g.dir))
	}
	return g, fd, nil
}

// group is the processes of one session.
type group struct {
	dir string // cgroup; "" where there is none

	// Without a cgroup: the main process, and all that were found so far.
	leader int
	mu     sync.Mutex
	seen   map[int]bool
}

// procs returns the group's living processes.
func (g *group) procs() ([]int, error) {
	if g.dir == "" {
		return g.walk()
	}
	data, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return nil, nil // removed
	} else if err != nil {
		return nil, fmt.Errorf("read cgroup: %w", err)
	}
	var pids []int
	for field := range bytes.FieldsSeq(data) {
		if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// kill ends all of them at once, for certain in a cgroup.
func (g *group) kill() error {
	if g.dir == "" {
		pids, err := g.walk()
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it has just ended
		}
		return err
	}
	err := os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

// remove removes the group, and reports whether that was possible: only if none of its
// processes lives.
func (g *group) remove() bool {
	if g.dir == "" {
		pids, err := g.walk()
		return err == nil && len(pids) == 0
	}
	err := syscall.Rmdir(g.dir)
	return err == nil || errors.Is(err, syscall.ENOENT)
}

// walk finds the session's processes without a cgroup: children of those known,
// and members of the main process's kernel session or process group. A process
// whose parent had ended before the first look, and that called setsid, is missed.
// Parents come before their children: a shell that is killed after its child could
// begin the next command meanwhile.
func (g *group) walk() ([]int, error) {
	if g.leader == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for processes: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == nil {
		g.seen = map[int]bool{g.leader: true}
	}
	parents := map[int]int{} // of all that live
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		parent, pgrp, session, ok := procStat(pid)
		if !ok {
			continue
		}
		parents[pid] = parent
		if pgrp == g.leader || session == g.leader {
			g.seen[pid] = true
		}
	}
	for found := true; found; {
		found = false
		for pid, parent := range parents {
			if g.seen[parent] && !g.seen[pid] {
				g.seen[pid], found = true, true
			}
		}
	}
	depths := map[int]int{}
	for pid := range g.seen {
		if _, alive := parents[pid]; !alive {
			delete(g.seen, pid) // its number may come back as someone else's
			continue
		}
		depth := 0
		for at := pid; g.seen[parents[at]] && depth < len(parents); at = parents[at] {
			depth++
		}
		depths[pid] = depth
	}
	return slices.SortedFunc(maps.Keys(depths), func(a, b int) int {
		return cmp.Or(cmp.Compare(depths[a], depths[b]), cmp.Compare(a, b))
	}), nil
}

// procStat reads a living process's relations.
func procStat(pid int) (parent, pgrp, session int, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, 0, false
	}
	_, rest, found := strings.Cut(string(data[bytes.LastIndexByte(data, ')')+1:]), " ")
	f := strings.Fields(rest)
	if !found || len(f) < 4 || f[0] == "Z" || f[0] == "X" {
		return 0, 0, 0, false
	}
	var n [3]int
	for i := range n {
		if n[i], err = strconv.Atoi(f[i+1]); err != nil {
			return 0, 0, 0, false
		}
	}
	return n[0], n[1], n[2], true
}
