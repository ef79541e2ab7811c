package main

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/inet"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/tcpip/link/tun"

	shimkernel "github.com/cove-dev/cove/internal/shim/kernel"
)

// gVisor saves the sandbox's own network alone. Of another network namespace it restores the
// loopback: links, addresses and rules are gone, and sockets are dead. If one of them was
// connected, the restore waits for it for ever, after the sandbox that was saved has ended.
// A bridge that has learned an address, or an open tunnel device, makes the save fail
// half-way. The sockets of such a namespace are dead then. So a save is refused before it
// begins if there is any of this.

// checkNetworks is an error if a save would lose a network. It says which programs have one.
// Nothing of the sandbox runs.
func checkNetworks(ctx context.Context) error {
	k := kernel.KernelFromContext(ctx)
	if k == nil {
		return nil // it has not started yet
	}
	found := map[string]string{} // the network that each program has
	seen := map[*inet.Namespace]bool{}
	tables := map[*kernel.FDTable]bool{}
	look := func(t *kernel.Task, ns *inet.Namespace) {
		if ns == nil || ns.IsRoot() || seen[ns] {
			return
		}
		seen[ns] = true
		if has := networkHas(ns.Stack()); has != "" {
			found[program(t)] = has
		}
	}
	tasks := k.TaskSet().Root.Tasks()
	number := k.TaskSet().Root.IDOfTask
	slices.SortFunc(tasks, func(a, b *kernel.Task) int { return cmp.Compare(number(a), number(b)) })
	for _, t := range tasks {
		if ns := t.GetNetworkNamespace(); ns != nil {
			look(t, ns)
			ns.DecRef(ctx)
		}
	}
	for _, t := range tasks { // programs outside of a network may have files of it open
		var table *kernel.FDTable
		t.WithMuLocked(func(t *kernel.Task) { table = t.FDTable() })
		if table == nil || tables[table] {
			continue
		}
		tables[table] = true
		table.ForEach(ctx, func(fd int32, file *vfs.FileDescription, _ kernel.FDFlags) bool {
			if ns, err := t.NetworkNamespaceByFD(fd); err == nil {
				look(t, ns)
				ns.DecRef(ctx)
				return true
			}
			impl := reflect.ValueOf(file.Impl())
			look(t, namespaceOf(impl))
			if name := tunnelOf(impl); name != "" {
				found[program(t)] = fmt.Sprintf("the tunnel device %+q", name)
			}
			return true
		})
	}
	if len(found) == 0 {
		return nil
	}
	const most = 4
	var all []string
	for _, who := range slices.Sorted(maps.Keys(found)) {
		all = append(all, who+" has "+found[who])
	}
	if len(all) > most {
		all = append(all[:most], "…")
	}
	return fmt.Errorf("%s: %s", shimkernel.OwnNetworks, strings.Join(all, "; "))
}

func program(t *kernel.Task) string {
	leader := t.ThreadGroup().Leader()
	if leader == nil {
		leader = t
	}
	return fmt.Sprintf("%+q (process %d)", leader.Name(), leader.Kernel().TaskSet().Root.IDOfTask(leader))
}

// networkHas says what a save would lose of a network. Empty: nothing.
func networkHas(s inet.Stack) string {
	if s == nil {
		return ""
	}
	var links []string
	for _, i := range s.Interfaces() {
		if i.Name != "lo" {
			links = append(links, fmt.Sprintf("%+q", i.Name))
		}
	}
	if len(links) > 0 {
		const most = 4
		slices.Sort(links)
		if len(links) > most {
			links = append(links[:most], "…")
		}
		return "links " + strings.Join(links, ", ")
	}
	if len(s.RegisteredEndpoints())+len(s.CleanupEndpoints()) > 0 {
		return "sockets"
	}
	return ""
}

// gVisor has no functions that give these fields, so they are looked up by name.
const (
	socketNamespace = "namespace" // *inet.Namespace of a socket
	tunnelDevice    = "device"    // tun.Device of an open /dev/net/tun
)

// namespaceOf is the network of a socket, or nil.
func namespaceOf(impl reflect.Value) *inet.Namespace {
	field := fieldOf(impl, socketNamespace)
	if !field.IsValid() || field.Type() != reflect.TypeFor[*inet.Namespace]() {
		return nil
	}
	return (*inet.Namespace)(field.UnsafePointer())
}

// tunnelOf is the name of the device that a file is, or empty.
func tunnelOf(impl reflect.Value) string {
	field := fieldOf(impl, tunnelDevice)
	if !field.IsValid() || field.Type() != reflect.TypeFor[tun.Device]() {
		return ""
	}
	return (*tun.Device)(unsafe.Pointer(field.UnsafeAddr())).Name()
}
