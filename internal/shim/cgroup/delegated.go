package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Place is where the cgroups of sandboxes are made.
type Place struct {
	// Root is a cgroup of v2 that this user was delegated, as a folder. A shim mounts it at
	// Mount: runsc writes to each cgroup from there on. Empty: the mounted hierarchies are
	// used.
	Root   string
	Parent string // as a path below the mount of each hierarchy
}

// Errors of Delegated, which say why sandboxes of this user have no limits.
var (
	ErrNotDelegated = errors.New("no cgroup is delegated to this user")
	ErrNoSubgroup   = errors.New("the cgroup of the server's unit has no subgroup for the server")
)

// Delegated is the place below the highest cgroup of v2 that an ordinary user may write, from
// the process's own upwards. If a cgroup below that one limits the server, the place is the
// server's own cgroup, as Parent has it. Delegated changes nothing to find out.
func (p Process) Delegated() (Place, error) { return p.delegated(false) }

// TakeDelegated is Delegated, and moves the server's processes to Leaf if they are in the way.
func (p Process) TakeDelegated() (Place, error) { return p.delegated(true) }

func (p Process) delegated(take bool) (Place, error) {
	g, ok := p.groups()[controllers[0]]
	if !ok || !g.v2 {
		return Place{}, ErrNotDelegated
	}
	root := ""
	between := []string{} // the cgroups below root, the process's own first
	for _, dir := range g.levels() {
		if !writable(dir) {
			break
		}
		if root != "" {
			between = append(between, root)
		}
		root = dir
	}
	if root == "" {
		return Place{}, ErrNotDelegated
	}
	text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return Place{}, fmt.Errorf("look at the delegated cgroup: %w", err)
	}
	for _, name := range controllers {
		if !slices.Contains(strings.Fields(string(text)), name) {
			return Place{}, fmt.Errorf("the controller %s is not delegated to this user", name)
		}
	}
	place := Place{Parent: "/"}
	if root != g.mount {
		place.Root = root
	}
	restarted := strings.HasSuffix(g.path, ".service") && !g.leaf // systemd could not start it again
	own := len(between) > 0 && !restarted && slices.ContainsFunc(between, func(dir string) bool {
		return g.memory(dir) > 0 || g.processes(dir) > 0 || g.quota(dir) > 0
	})
	switch {
	case own:
		below, err := filepath.Rel(root, g.dir())
		if err != nil {
			return Place{}, err
		}
		place.Parent = path.Join("/", below)
	case len(between) > 0:
		return place, nil
	case restarted:
		return Place{}, ErrNoSubgroup
	}
	if take {
		if err := g.vacate(); err != nil {
			return Place{}, err
		}
	}
	return place, nil
}

// writable reports whether this user may make cgroups below a cgroup, and move processes there.
func writable(dir string) bool {
	return !slices.ContainsFunc([]string{"", "cgroup.procs", "cgroup.subtree_control"}, func(name string) bool {
		return unix.Access(filepath.Join(dir, name), unix.W_OK) != nil
	})
}
