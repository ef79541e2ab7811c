package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/kernel"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// containers are the sandbox's containers in runsc, one for each generation. They call runsc, write
// the bundles, end the processes, and make and remove the next generation. Each method is told by
// a State which generation it is about. The caller knows which of them is the sandbox.
type containers struct {
	names
	folder folder
	path   string // of cove-runsc
	log    *slog.Logger

	cgroups bool // they have cgroups of their own; set while the sandbox is being started
}

// runsc is for a generation of the sandbox.
func (c *containers) runsc(st State) runsc {
	r := c.named(st.Container)
	r.paused = st.Paused
	if c.cgroups && runscRefuses(cgroupRoot) {
		r.cgroups, r.group = false, filepath.Join(cgroupRoot, st.cgroup())
	}
	return r
}

// named is runsc for a container when only its name is known.
func (c *containers) named(container string) runsc {
	return runsc{path: c.path, dir: c.folder.path, container: container, cgroups: c.cgroups}
}

// all are the names of those that runsc has a state of.
func (c *containers) all() (names []string) {
	files, _ := filepath.Glob(filepath.Join(c.folder.path, "runsc", "*.state")) // the pattern is right
	for _, f := range files {
		if name := filepath.Base(f); len(name) >= len(c.container(0)) {
			names = append(names, name[:len(c.container(0))])
		}
	}
	return names
}

// killStarted ends the sandbox. It may have processes before its process number is known.
func (c *containers) killStarted(st State) {
	if st.PID == 0 {
		c.killAll()
	}
	killProcess(st.PID, st.StartTime)
}

// next is the sandbox that a checkpoint makes after another, with the layers of the old one.
func (c *containers) next(old State) State {
	next := old
	next.Generation++
	next.Container = c.container(next.Generation)
	next.PID, next.StartTime, next.OldPID, next.OldStart = 0, 0, old.PID, old.StartTime
	return next
}

// prepare makes all that the next sandbox needs, except its mounts. It will have the same
// network namespace.
func (c *containers) prepare(old, next State, disk []Mount, netns string) error {
	if err := os.MkdirAll(c.folder.rootfs(next), 0o755); err != nil {
		return fmt.Errorf("mount the disk: %w", err)
	}
	for _, m := range disk {
		if err := m.Overlay.Create(); err != nil {
			return fmt.Errorf("mount the disk: %w", err)
		}
	}
	// A shim that adopted the sandbox was told only where the sandbox is.
	spec, err := c.folder.readBundle(old)
	if err != nil {
		return err
	}
	spec.Root.Path = c.folder.rootfs(next)
	spec.Annotations = map[string]string{boot.UpperSince: boot.SinceRestore}
	if spec.Linux.CgroupsPath != "" {
		spec.Linux.CgroupsPath = next.cgroup()
	}
	for i := range spec.Linux.Namespaces {
		if ns := &spec.Linux.Namespaces[i]; ns.Type == specs.NetworkNamespace {
			ns.Path = netns
		}
	}
	return c.saveBundle(next, spec)
}

// settle is called when nothing runs any more. It brings the next sandbox's disk up to date,
// and returns the function that starts the sandbox. If the sandbox was not created ahead, or
// can't be used, settle mounts the disk, and start creates the sandbox.
func (c *containers) settle(ctx context.Context, created *ahead, next State, disk []Mount, image string) (start func() error, err error) {
	if created != nil {
		if err = created.settle(c.folder.rootfs(next), disk); err == nil {
			return created.restore, nil
		}
		c.log.Info("create the next sandbox again, during the pause", "why", err)
		created.mover.close()
		if err := c.drop(next); err != nil {
			return nil, err
		}
	}
	for _, m := range disk {
		if err := m.Overlay.CopyTop(); err != nil {
			return nil, fmt.Errorf("mount the disk: %w", err)
		}
	}
	start = func() error { return c.runsc(next).restore(ctx, c.folder.bundle(next), image) }
	return start, mountAll(disk, c.folder.rootfs(next), c.log)
}

// drop ends a sandbox that was created ahead, or was about to be, and unmounts its
// disk. Its folders stay.
func (c *containers) drop(next State) error {
	c.kill(next.Container)
	var errs []error
	if files, _ := filepath.Glob(filepath.Join(c.folder.path, "runsc", next.Container+"*.state")); len(files) > 0 { // the pattern is right
		errs = append(errs, c.runsc(next).delete())
	}
	errs = append(errs, layers.Unmount(c.folder.rootfs(next)), removeCgroups(next.cgroup()))
	return errors.Join(errs...)
}

// abandon removes what is left of a next sandbox that will not be used. now is the current
// sandbox.
func (c *containers) abandon(now, next State) error {
	err := errors.Join(c.drop(next), c.folder.leave(next))
	if acts(now.PID, now.StartTime) { // then a report is from the next sandbox's kernel
		err = errors.Join(err, kernel.Keep(c.folder.path))
	}
	return err
}

// abandonNext is abandon for a next sandbox that a dead shim has begun.
func (c *containers) abandonNext(now State) error {
	next := c.next(now)
	if _, err := os.Lstat(c.folder.bundle(next)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return c.abandon(now, next)
}
