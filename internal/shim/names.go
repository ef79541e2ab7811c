package shim

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
)

// names are the names of one sandbox's containers in runsc. They tell the sandbox's processes from
// all others. The prefix is set while the sandbox is being started, and does not change later.
type names struct {
	id     string // Config.ID
	dir    string // the sandbox's folder
	prefix string // see prefixOf; empty: id
}

// prefixOf is how the names of a folder's containers begin, and those of its cgroups. Two
// copies have sprites of the same ids, so that the id alone would not do.
func prefixOf(id, folder string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(folder)) // never fails
	return fmt.Sprintf("%s-%08x", id, sum.Sum32())
}

// container is runsc's name for a generation of the sandbox. All are of one length,
// so that none is the beginning of another.
func container(id string, generation int) string { return fmt.Sprintf("%s-%06d", id, generation) }

// known takes over the names of a sandbox that this folder has started. An earlier cove may
// have started it.
func (n *names) known(st State) {
	if len(st.Container) == len(container(n.prefix, 0)) || len(st.Container) == len(container(n.id, 0)) {
		n.prefix = st.Container[:len(st.Container)-len(container("", 0))]
	}
}

// begin is how all names begin.
func (n *names) begin() string {
	if n.prefix == "" {
		return n.id
	}
	return n.prefix
}

// container is the name of a generation of this sandbox.
func (n *names) container(generation int) string { return container(n.begin(), generation) }

// isContainer reports whether a name is that of a container of this sandbox.
func (n *names) isContainer(name string) bool {
	generation, ok := strings.CutPrefix(name, n.begin()+"-")
	if !ok || len(generation) != len(container("", 0))-1 {
		return false
	}
	_, err := strconv.ParseUint(generation, 10, 32)
	return err == nil
}

// ours reports whether a command line is of a process of this sandbox's container name. If
// that says nothing of a folder, as the names of an earlier cove do, a copy has it too. Then
// the folder of runsc's state decides.
func (n *names) ours(args []string, name string) bool {
	if !n.isContainer(name) || !slices.Contains(args, name) {
		return false
	}
	return n.begin() != n.id || slices.Contains(args, rootFlag(n.dir))
}

// kill ends the processes of one of the sandbox's containers.
func (n *names) kill(name string) {
	killWith(func(args []string) bool { return n.ours(args, name) })
}

// killAll ends the processes of all of the sandbox's containers.
func (n *names) killAll() {
	killWith(func(args []string) bool {
		i := slices.IndexFunc(args, n.isContainer)
		return i >= 0 && n.ours(args, args[i])
	})
}
