package shim

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim/layers"
)

// An ahead is a next sandbox that was created before the old one is paused, so that
// nobody waits for its processes to start. Its disk is mounted over a layer that is
// still written.
//
// An overlay looks into its lower layers when a name is looked up. So it shows a name
// that nobody has looked up as it is at the time of the look-up. Only the places at
// which the gofer mounts were looked up before. Those that the overlay holds on to are
// watched, and it is made to forget the others.
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

// look returns the state of a name. It is zero if there is nothing.
func look(path string) (st unix.Stat_t) {
	if unix.Lstat(path, &st) != nil {
		return unix.Stat_t{}
	}
	return st
}

// createAhead mounts the disk of the next sandbox, and creates the sandbox. After an
// error nothing of it is left. If ctx ends, that is an error.
func (c *containers) createAhead(ctx context.Context, old, next State, disk []Mount, image string) (_ *ahead, err error) {
	spec, err := c.folder.readBundle(next)
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
	if err := mountAll(disk, c.folder.rootfs(next), c.log); err != nil {
		return nil, errors.Join(err, layers.Unmount(c.folder.rootfs(next)))
	}
	if err := a.plain(c.folder.rootfs(next), places); err != nil {
		return nil, errors.Join(err, layers.Unmount(c.folder.rootfs(next)))
	}
	if a.mover, err = c.runsc(next).mover(old.Container, c.folder.bundle(next), image); err == nil {
		stop := context.AfterFunc(ctx, a.mover.kill)
		if err = a.mover.do("create"); err != nil {
			a.mover.close()
		}
		stop()
	}
	if err != nil {
		return nil, errors.Join(err, c.drop(next))
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

// plain returns an error if the way to a place has a link. Then the overlay would hold
// on to another place.
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

// settle is called when nothing runs any more. It brings the disk of a sandbox that
// was created ahead up to date. An error says why the sandbox can't be used.
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
