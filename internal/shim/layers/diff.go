package layers

import (
	"context"
	"path"
	"slices"
)

// A Change is a file that differs between two Views.
type Change struct {
	Path string // below the root, slash-separated
	Old  *Stat  // nil: it was added
	New  *Stat  // nil: it was removed
	What []string
}

// Diff tells the files that differ between a and b, folders before what is in them.
// It reads no content. It does not read folders that both views have of the same
// layers. A file counts as changed if its kind, mode, owner, size, time, target or
// attributes have changed. So a file that was written anew with the same content
// does, but not if its time was put back. Links that a merge has made of a file count
// as that file. The time of a folder does not count. Diff holds only the names of the
// folders that it is in.
func Diff(ctx context.Context, a, b *View, tell func(Change) error) error {
	d := differ{ctx: ctx, a: a, b: b, tell: tell}
	ra, rb := a.Root(), b.Root()
	if what := differences(&ra.Stat, &rb.Stat); what != nil {
		if err := tell(Change{Path: ".", Old: &ra.Stat, New: &rb.Stat, What: what}); err != nil {
			return err
		}
	}
	return d.folder("", ra, rb)
}

type differ struct {
	ctx  context.Context
	a, b *View
	tell func(Change) error
}

// folder compares what is in a folder of both.
func (d *differ) folder(dir string, a, b Node) error {
	pa, pb := a.places, b.places
	for len(pa) > 0 && len(pb) > 0 && d.same(pa[len(pa)-1], pb[len(pb)-1]) {
		pa, pb = pa[:len(pa)-1], pb[:len(pb)-1]
	}
	if len(pa) == 0 && len(pb) == 0 {
		return nil
	}
	names, err := d.a.names(pa)
	if err != nil {
		return err
	}
	more, err := d.b.names(pb)
	if err != nil {
		return err
	}
	names = append(names, more...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if err := d.name(path.Join(dir, name), a, b); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) same(a, b place) bool {
	return a.path == b.path && d.a.trees[a.layer].dir == d.b.trees[b.layer].dir
}

// name compares what both have under a name of a folder.
func (d *differ) name(at string, dirA, dirB Node) error {
	if err := d.ctx.Err(); err != nil {
		return context.Cause(d.ctx)
	}
	a, inA, err := d.a.Lookup(dirA, path.Base(at))
	if err != nil {
		return err
	}
	b, inB, err := d.b.Lookup(dirB, path.Base(at))
	if err != nil {
		return err
	}
	if inA && inB && a.IsDir() == b.IsDir() {
		if a.dev == b.dev && a.ino == b.ino && !a.IsDir() {
			return nil
		}
		if what := differences(&a.Stat, &b.Stat); what != nil {
			if err := d.tell(Change{Path: at, Old: &a.Stat, New: &b.Stat, What: what}); err != nil {
				return err
			}
		}
		if a.IsDir() {
			return d.folder(at, a, b)
		}
		return nil
	}
	if inA {
		if err := d.all(at, d.a, a, func(s *Stat) Change { return Change{Old: s} }); err != nil {
			return err
		}
	}
	if inB {
		return d.all(at, d.b, b, func(s *Stat) Change { return Change{New: s} })
	}
	return nil
}

// all tells of a node that only one view has, and of all that is in it.
func (d *differ) all(at string, v *View, n Node, change func(*Stat) Change) error {
	if err := d.ctx.Err(); err != nil {
		return context.Cause(d.ctx)
	}
	c := change(&n.Stat)
	c.Path = at
	if err := d.tell(c); err != nil || !n.IsDir() {
		return err
	}
	names, err := v.Names(n, true)
	if err != nil {
		return err
	}
	for _, name := range names {
		below, found, err := v.Lookup(n, name)
		if err != nil {
			return err
		}
		if found {
			if err := d.all(path.Join(at, name), v, below, change); err != nil {
				return err
			}
		}
	}
	return nil
}
