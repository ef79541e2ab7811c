package layers

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// A View is what an overlay of layers over a base shows, worked out from the folders without
// a mount. Whiteouts, opaque folders and redirects count as they do for the kernel. A View
// reads only what is asked for. Changes that are written meanwhile may be seen half done. Its
// methods are for one goroutine.
type View struct {
	trees  []*tree // topmost first
	top    int     // trees from this index on are the base's
	root   Node
	prefix string // of the overlay's own attributes
}

// A Node is something in a View.
type Node struct {
	Stat
	places []place // topmost first: of a folder all that are merged in it, else one
}

// place is one folder or file of one layer.
type place struct {
	layer int // of View.trees
	path  string
}

// OpenView opens a view of layers (chain) over a base, the lowest first. base is a folder,
// and others may follow, such as a mask (of whiteouts) or the layers of an image. None of
// them counts as a layer. userXattr is as in Overlay. The caller closes it.
func OpenView(base, chain []string, userXattr bool) (_ *View, err error) {
	v := &View{prefix: Overlay{UserXattr: userXattr}.xattrPrefix()}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.Close())
		}
	}()
	for _, dir := range slices.Concat(base, chain) {
		t, err := openTree(dir)
		if err != nil {
			return nil, err
		}
		v.trees = slices.Insert(v.trees, 0, t)
	}
	v.top = len(chain)
	for i := range v.trees {
		v.root.places = append(v.root.places, place{layer: i})
	}
	v.root.Stat, err = v.stat(v.root.places[0])
	return v, err
}

// KeepOpen keeps folders open that are on the way to a name that was looked up. Then a walk
// through deep folders opens each of them only a few times. The layers must not change any
// more.
func (v *View) KeepOpen() {
	const together = 64
	for _, t := range v.trees {
		t.most = max(2, together/len(v.trees))
	}
}

// Close lets go of the layers.
func (v *View) Close() (err error) {
	for _, t := range v.trees {
		err = errors.Join(err, t.close())
	}
	return err
}

// Root is the topmost folder.
func (v *View) Root() Node { return v.root }

// Base is the topmost folder as the base alone shows it. Lookup finds what else the base has.
func (v *View) Base() (n Node, err error) {
	n.places = v.root.places[v.top:]
	n.Stat, err = v.stat(n.places[0])
	return n, err
}

// OnBase reports whether the base's folder at a path is merged in a folder.
func (v *View) OnBase(n Node, at string) bool {
	last := n.places[len(n.places)-1]
	return last.layer >= v.top && last.path == at
}

// FromBase reports whether nothing of a node is any layer's.
func (v *View) FromBase(n Node) bool { return n.places[0].layer >= v.top }

func (v *View) stat(p place) (s Stat, err error) {
	err = v.trees[p.layer].at(p.path, func(fd int) error {
		if s, err = statOf(fd); err == nil {
			s.Attrs, err = attributes(fd)
		}
		return err
	})
	return s, err
}

// Open opens a regular file.
func (v *View) Open(n Node) (*os.File, error) {
	return v.trees[n.places[0].layer].open(n.places[0].path)
}

// Names lists all names that may be in a folder, sorted. Names that layers have deleted there
// are included. withBase includes the names of the base, too.
func (v *View) Names(n Node, withBase bool) ([]string, error) {
	places := n.places
	if !withBase {
		places = slices.DeleteFunc(slices.Clone(places), func(p place) bool { return p.layer >= v.top })
	}
	return v.names(places)
}

func (v *View) names(places []place) (all []string, err error) {
	for _, p := range places {
		names, err := v.trees[p.layer].names(p.path)
		if err != nil && !gone(err) {
			return nil, err
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Lookup finds a name in a folder; false: there is none.
func (v *View) Lookup(dir Node, name string) (n Node, found bool, err error) {
	if n.places, err = v.lookup(dir.places, name); err != nil || n.places == nil {
		return n, false, err
	}
	n.Stat, err = v.stat(n.places[0])
	if gone(err) {
		return n, false, nil
	}
	return n, err == nil, err
}

// lookup is the kernel's ovl_lookup: it finds the places that are merged under a name of a
// folder.
func (v *View) lookup(stack []place, name string) (found []place, err error) {
	l := lookup{name: name}
	for i := 0; i < len(stack) && !l.stop; i++ {
		at := stack[i]
		p, err := v.in(&l, at)
		if err != nil {
			return nil, err
		}
		if p == nil {
			continue
		}
		found = append(found, *p)
		if strings.HasPrefix(l.name, "/") && stack[0] != v.root.places[0] { // the rest is found from the root
			stack, i = v.root.places, at.layer
		}
	}
	return found, nil
}

// in looks in a folder of one layer, part by part where the name is a path.
func (v *View) in(l *lookup, at place) (*place, error) {
	t := v.trees[at.layer]
	base := at.layer == len(v.trees)-1
	parts := l.parts()
	for i, part := range parts {
		last := i == len(parts)-1
		if at.path != "" {
			at.path += "/"
		}
		at.path += part
		var st Stat
		var opaque, redirect string
		err := t.at(at.path, func(fd int) (err error) {
			if st, err = statOf(fd); err == nil && st.IsDir() && !base {
				opaque, redirect = mark(fd, v.prefix+"opaque"), mark(fd, v.prefix+"redirect")
			}
			return err
		})
		switch {
		case gone(err):
			return nil, nil
		case err != nil:
			return nil, err
		case st.whiteout() && !base, !st.IsDir() && (l.isDir || !last):
			l.stop = true
			return nil, nil
		case !st.IsDir():
			l.stop = true
			return &at, nil
		}
		if err := l.folder(parts[i+1:], opaque, redirect); err != nil {
			return nil, fmt.Errorf("%s in the layer %s: %w", inBrief(at.path), t.dir, err)
		}
	}
	return &at, nil
}

// lookup goes down the layers under a name. The name changes on the way: if a layer has
// renamed a folder, the layers below have it under the old name.
type lookup struct {
	name  string // of the folder at hand, or a path from the root
	isDir bool   // something was found, a folder
	stop  bool   // the layers below do not count
	done  string // the beginning of name before the part at hand
}

// parts are the parts of the name, to be looked up in the next layer.
func (l *lookup) parts() []string {
	parts := strings.Split(strings.TrimPrefix(l.name, "/"), "/")
	l.done = strings.TrimSuffix(l.name, strings.Join(parts, "/"))
	return parts
}

// folder notes the marks of a folder that a layer has for a part of the name. rest are the
// parts after it.
func (l *lookup) folder(rest []string, opaque, redirect string) error {
	l.isDir = l.isDir || len(rest) == 0
	post := strings.Join(append([]string{""}, rest...), "/")
	switch {
	case opaque == "y":
		l.stop = true
	case redirect != "":
		if !soundRedirect(redirect) {
			return errors.New("an impossible redirect")
		}
		if redirect[0] == '/' {
			l.stop, l.done = false, ""
		}
		l.name = l.done + redirect + post
	}
	l.done = strings.TrimSuffix(l.name, post) + "/"
	return nil
}

// soundRedirect reports whether a redirect is one that the kernel would follow: a
// name, or a path from the root.
func soundRedirect(to string) bool {
	parts := strings.Split(strings.TrimPrefix(to, "/"), "/")
	return (to[0] == '/' || len(parts) == 1) && !slices.ContainsFunc(parts, func(p string) bool { return p == "" || p == "." || p == ".." })
}
