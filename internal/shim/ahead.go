package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/kernel"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// An ahead is a next sandbox that was created before the old one is paused, so that
// nobody waits for its processes to start. Its disk is mounted over a layer that is
// still written.
//
// An overlay looks into its lower layers when a name is looked up, so that what it has
// not been asked for yet it shows as it will be. What it has been asked for are the
// places at which the gofer mounts. Those that it holds on to are watched, the others
// it is made to forget.
type ahead struct {
	watched []watched
	mover   *mover
}

// watched is a folder or a file of the layer that is written, as it was before.
type watched struct {
	path string
	was  unix.Stat_t // without one: zero
}

func (w watched) same() bool {
	st := look(w.path)
	// Nothing is put into a folder, taken from it or moved away without ctime.
	return st.Dev == w.was.Dev && st.Ino == w.was.Ino && st.Mode == w.was.Mode && st.Ctim == w.was.Ctim
}

// look is what a name is, zero where there is nothing.
func look(path string) (st unix.Stat_t) {
	if unix.Lstat(path, &st) != nil {
		return unix.Stat_t{}
	}
	return st
}

// createAhead mounts the disk of the next sandbox, and creates that. An error leaves
// nothing of it. The end of ctx is one.
func (s *Shim) createAhead(ctx context.Context, old, next State, disk []Mount, image string) (_ *ahead, err error) {
	spec, err := s.folder.readBundle(next)
	if err != nil {
		return nil, err
	}
	a := &ahead{}
	var places []string
	for _, m := range spec.Mounts {
		if m.Type == "bind" {
			places = append(places, m.Destination)
			a.watch(disk, m.Destination)
		}
	}
	for _, m := range disk {
		a.watch(disk, m.Target)
	}
	if err := mountAll(disk, s.folder.rootfs(next), s.log); err != nil {
		return nil, errors.Join(err, layers.Unmount(s.folder.rootfs(next)))
	}
	if err := a.plain(s.folder.rootfs(next), places); err != nil {
		return nil, errors.Join(err, layers.Unmount(s.folder.rootfs(next)))
	}
	if a.mover, err = s.runscOf(next).mover(old.Container, s.folder.bundle(next), image); err == nil {
		stop := context.AfterFunc(ctx, a.mover.kill)
		if err = a.mover.do("create"); err != nil {
			a.mover.close()
		}
		stop()
	}
	if err != nil {
		return nil, errors.Join(err, s.dropAhead(next))
	}
	return a, nil
}

// watch notes a place of the disk, and the folders above it.
func (a *ahead) watch(disk []Mount, place string) {
	place = strings.Trim(filepath.Clean("/"+place), "/")
	of := disk[0]
	for _, m := range disk[1:] {
		if place == m.Target || strings.HasPrefix(place, m.Target+"/") {
			of = m
		}
	}
	path := of.Overlay.Lowers[0] // the one that is written
	for part := range strings.SplitSeq("/"+strings.TrimPrefix(strings.TrimPrefix(place, of.Target), "/"), "/") {
		path = filepath.Join(path, part)
		if !slices.ContainsFunc(a.watched, func(w watched) bool { return w.path == path }) {
			a.watched = append(a.watched, watched{path, look(path)})
		}
	}
}

// plain says where the way to a place is a link: then another one is held on to.
func (a *ahead) plain(root string, places []string) error {
	for _, place := range places {
		way := root
		for part := range strings.SplitSeq(strings.Trim(place, "/"), "/") {
			way = filepath.Join(way, part)
			if st := look(way); st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return fmt.Errorf("%s is a link", strings.TrimPrefix(way, root))
			}
		}
	}
	return nil
}

// settle brings the disk of a sandbox that was created ahead to what is there now that
// nothing runs. An error says why it can't be used.
func (a *ahead) settle(root string, disk []Mount) error {
	for _, w := range a.watched {
		if !w.same() {
			return fmt.Errorf("%s has changed", w.path)
		}
	}
	for _, m := range disk {
		if err := m.Overlay.Forget(filepath.Join(root, m.Target)); err != nil {
			return err
		}
	}
	return nil
}

func (a *ahead) pause() error   { return a.mover.do("pause") }
func (a *ahead) save() error    { return a.mover.do("save") }
func (a *ahead) restore() error { return a.mover.do("restore") }

// dropAhead ends a sandbox that was created ahead, or was about to be, and unmounts its
// disk. Its folders stay.
func (s *Shim) dropAhead(next State) error {
	s.killContainer(next.Container)
	var errs []error
	if files, _ := filepath.Glob(filepath.Join(s.cfg.Dir, "runsc", next.Container+"*.state")); len(files) > 0 { // the pattern is right
		errs = append(errs, s.runscOf(next).delete())
	}
	errs = append(errs, layers.Unmount(s.folder.rootfs(next)), removeCgroups(next.cgroup()))
	return errors.Join(errs...)
}

// abandon removes what there is of a next sandbox that will not be.
func (s *Shim) abandon(next State) error {
	err := errors.Join(s.dropAhead(next), s.folder.leave(next))
	if st := s.snapshot(); acts(st.PID, st.StartTime) { // then a report is that of the next one's kernel
		err = errors.Join(err, kernel.Keep(s.cfg.Dir))
	}
	return err
}

// nextOf is the sandbox that a checkpoint makes after another, but for its layers.
func (s *Shim) nextOf(old State) State {
	next := old
	next.Generation++
	next.Container = s.container(next.Generation)
	next.PID, next.StartTime, next.OldPID, next.OldStart = 0, 0, old.PID, old.StartTime
	return next
}

// abandonNext is abandon for what a shim that died has begun.
func (s *Shim) abandonNext() error {
	next := s.nextOf(s.snapshot())
	if _, err := os.Lstat(s.folder.bundle(next)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return s.abandon(next)
}
