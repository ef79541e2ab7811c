package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// layerStore has the layers of all disks.
type layerStore struct {
	folder folder
	userNS bool // see Runtime
	base   *preparer
}

// Dir is the folder of a layer.
func (s *layerStore) Dir(layer string) layers.Dir {
	return layers.Dir{Path: s.folder.layer(layer), UserXattr: s.userNS}
}

// disk returns the mounts of a chain of layers, the last of which is written. A
// disk stays on the skeleton that it was made over; the host's programs below it
// are those of today.
func (s *layerStore) disk(chain []string, b base.Base) ([]shim.Mount, error) {
	if len(chain) == 0 {
		return nil, errors.New("a disk has a layer at least")
	}
	record, err := s.base.baseOf(chain[0], b)
	if err != nil {
		return nil, err
	}
	skeleton := filepath.Join(s.folder.bases(), record.Skeleton)
	if _, err := os.Stat(skeleton); err != nil {
		return nil, fmt.Errorf("the base that this sprite was made over is gone: %w", err)
	}
	overlay := func(name string, base ...string) layers.Overlay {
		top := filepath.Join(s.folder.layer(chain[len(chain)-1]), name)
		o := layers.Overlay{Upper: filepath.Join(top, "upper"), Work: filepath.Join(top, "work"), UserXattr: s.userNS}
		for i := len(chain) - 2; i >= 0; i-- {
			// A layer made on a machine, or at a time, with fewer folders of programs
			// does not have them all.
			if sealed := filepath.Join(s.folder.layer(chain[i]), name, "upper"); exists(sealed) {
				o.Lowers = append(o.Lowers, sealed)
			}
		}
		o.Lowers = append(o.Lowers, base...)
		return o
	}
	mounts := []shim.Mount{{Target: "", Overlay: overlay("root", skeleton)}}
	for _, name := range b.Mounts {
		o := overlay(name, programs(b, name)...)
		if base.Guardable("/" + name) {
			o.Guard = s.folder.guard()
		}
		mounts = append(mounts, shim.Mount{Target: name, Overlay: o})
	}
	return mounts, nil
}

// programs are the lower folders that show the host's folder of programs, the topmost first.
func programs(b base.Base, name string) []string {
	if mask := b.Mask.For(name); mask != "" {
		return []string{mask, "/" + name}
	}
	return []string{"/" + name}
}

// Open opens what a chain of layers shows.
func (s *layerStore) Open(_ context.Context, chain []string) (_ sprite.Disk, err error) {
	prep, err := s.base.current()
	if err != nil {
		return nil, err
	}
	mounts, err := s.disk(chain, prep.base)
	if err != nil {
		return nil, err
	}
	var disk sprite.Disk
	for _, m := range mounts {
		o, ofBase := m.Overlay, 1
		if m.Target != "" {
			ofBase = len(programs(prep.base, m.Target))
		}
		all := slices.Clone(o.Lowers)
		slices.Reverse(all)
		if exists(o.Upper) { // it has been written
			all = append(all, o.Upper)
		}
		v, err := layers.OpenView(all[:ofBase], all[ofBase:], s.userNS)
		if err != nil {
			return nil, errors.Join(err, disk.Close())
		}
		disk = append(disk, sprite.DiskPart{Target: m.Target, View: v})
	}
	return disk, nil
}

// Base is what a new disk lies on.
func (s *layerStore) Base(context.Context) (archive.Base, error) {
	prep, err := s.base.prepare()
	return archive.Base{Name: base.Host, Fingerprint: prep.base.Fingerprint, Mounts: prep.base.Mounts}, err
}

// Stage makes a folder for a layer, with the record of the base that it lies on.
func (s *layerStore) Stage(context.Context) (layers.Dir, error) {
	prep, err := s.base.prepare()
	if err != nil {
		return layers.Dir{}, err
	}
	if err := os.MkdirAll(s.folder.imports(), 0o700); err != nil {
		return layers.Dir{}, err
	}
	dir, err := os.MkdirTemp(s.folder.imports(), "") // of mode 0700
	if err != nil {
		return layers.Dir{}, err
	}
	if _, err := baseIn(dir, prep.base); err != nil {
		return layers.Dir{}, errors.Join(err, layers.Remove(dir))
	}
	return layers.Dir{Path: dir, UserXattr: s.userNS}, nil
}

// Adopt makes what was staged a layer.
func (s *layerStore) Adopt(_ context.Context, staged layers.Dir, layer string) error {
	to := filepath.Join(s.folder.layers(), layer)
	if err := errors.Join(syncAll(staged.Path), os.MkdirAll(filepath.Dir(to), 0o700)); err != nil {
		return err
	}
	if err := os.Rename(staged.Path, to); err != nil {
		return err
	}
	return syncAll(filepath.Dir(to))
}

// syncAll has all of a folder's file system on disk.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// mounted are the layers that any sandbox has mounted, or is about to have, as the
// sandboxes' own files say.
func (s *layerStore) mounted() ([]string, error) {
	entries, err := os.ReadDir(s.folder.runs())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		st, err := shim.ReadState(s.folder.run(e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		all = append(all, st.Mounted()...)
	}
	return all, nil
}

// remove removes a layer.
func (s *layerStore) remove(layer string) error {
	if layer == "" || layer != filepath.Base(layer) || layer[0] == '.' {
		return fmt.Errorf("remove a layer: bad name %q", layer)
	}
	dir := s.folder.layer(layer)
	if err := layers.Remove(dir); err != nil {
		return err
	}
	if old := filepath.Dir(dir); filepath.Base(dir) == "disk" {
		return os.Remove(old)
	}
	return nil
}

// Merge makes a layer of others. It is on disk when this returns: the others
// may be removed then.
func (s *layerStore) Merge(_ context.Context, into string, chain []string) error {
	dir := s.folder.layer(into)
	parts := map[string][]string{} // of each mount, the layers that have it
	for _, layer := range chain {
		entries, err := os.ReadDir(s.folder.layer(layer))
		if errors.Is(err, os.ErrNotExist) {
			continue // of a sprite that never ran
		} else if err != nil {
			return err
		}
		for _, e := range entries {
			if upper := filepath.Join(s.folder.layer(layer), e.Name(), "upper"); e.IsDir() && exists(upper) {
				parts[e.Name()] = append(parts[e.Name()], upper)
			}
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, uppers := range parts {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
		if err := layers.Merge(filepath.Join(dir, name, "upper"), uppers, s.userNS); err != nil {
			return err
		}
	}
	record, err := os.ReadFile(filepath.Join(s.folder.layer(chain[0]), "base.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "base.json"), record, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return syncAll(dir)
}
