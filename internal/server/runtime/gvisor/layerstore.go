package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

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
	images *images

	noting sync.Mutex // held while a record is written
}

// Dir is the folder of a layer.
func (s *layerStore) Dir(layer string) layers.Dir {
	return layers.Dir{Path: s.folder.layer(layer), UserXattr: s.userNS}
}

// disk returns the mounts of a chain of layers. The sandbox writes the last layer.
func (s *layerStore) disk(chain []string, g ground) []shim.Mount {
	var mounts []shim.Mount
	for _, on := range g.mounts {
		name := on.target
		if name == "" {
			name = "root"
		}
		top := filepath.Join(s.folder.layer(chain[len(chain)-1]), name)
		o := layers.Overlay{Upper: filepath.Join(top, "upper"), Work: filepath.Join(top, "work"), UserXattr: s.userNS, Guard: on.guard}
		for i := len(chain) - 2; i >= 0; i-- {
			// A layer made on a machine, or at a time, with fewer folders of programs
			// does not have them all.
			if sealed := filepath.Join(s.folder.layer(chain[i]), name, "upper"); exists(sealed) {
				o.Lowers = append(o.Lowers, sealed)
			}
		}
		o.Lowers = append(o.Lowers, on.lowers...)
		mounts = append(mounts, shim.Mount{Target: on.target, Overlay: o})
	}
	return mounts
}

// Open opens what a chain of layers shows.
func (s *layerStore) Open(ctx context.Context, name string, chain []string) (_ sprite.Disk, err error) {
	on, err := s.ground(ctx, disk{base: name, chain: chain}, s.base.current)
	if err != nil {
		return nil, err
	}
	var disk sprite.Disk
	for i, m := range s.disk(chain, on) {
		o, ofBase := m.Overlay, len(on.mounts[i].lowers)
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

// Base is what a new disk over a base lies on.
func (s *layerStore) Base(ctx context.Context, name string) (archive.Base, error) {
	if name != base.Host {
		img, err := s.images.find(ctx, name)
		return archive.Base{Name: img.Digest, Fingerprint: img.Digest}, err
	}
	prep, err := s.base.prepare()
	return archive.Base{Name: base.Host, Fingerprint: prep.base.Fingerprint, Mounts: prep.base.Mounts}, err
}

// Under names the base of the disks whose lowest layer this is.
func (s *layerStore) Under(lowest string) (string, error) {
	record, err := readRecord(s.folder.layer(lowest))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return record.base(), err
}

// Stage makes a folder for a layer.
func (s *layerStore) Stage(context.Context) (layers.Dir, error) {
	if err := os.MkdirAll(s.folder.imports(), 0o700); err != nil {
		return layers.Dir{}, err
	}
	dir, err := os.MkdirTemp(s.folder.imports(), "") // of mode 0700
	if err != nil {
		return layers.Dir{}, err
	}
	return layers.Dir{Path: dir, UserXattr: s.userNS}, nil
}

// Adopt makes what was staged a layer, with the record of the base that it lies on.
func (s *layerStore) Adopt(ctx context.Context, staged layers.Dir, layer, name string) error {
	if err := s.lay(ctx, staged, name); err != nil {
		return err
	}
	to := filepath.Join(s.folder.layers(), layer)
	if err := errors.Join(syncAll(staged.Path), os.MkdirAll(filepath.Dir(to), 0o700)); err != nil {
		return err
	}
	if err := os.Rename(staged.Path, to); err != nil {
		return err
	}
	return syncAll(filepath.Dir(to))
}

// lay notes which base what was staged lies on.
func (s *layerStore) lay(ctx context.Context, staged layers.Dir, name string) error {
	var record baseRecord
	switch name {
	case "":
		return nil
	case base.Host:
		prep, err := s.base.prepare()
		if err != nil {
			return err
		}
		record = baseRecord{Skeleton: filepath.Base(prep.base.Dir), Fingerprint: prep.base.Fingerprint}
	default:
		img, err := s.images.find(ctx, name)
		if err != nil {
			return err
		}
		fitting, err := img.Fit(s.folder.bases(), "", s.userNS)
		if err != nil {
			return err
		}
		record = baseRecord{Skeleton: fitting.Name, Fingerprint: img.Digest, Image: img.Digest}
	}
	_, err := noteRecord(staged.Path, record)
	return err
}

// syncAll writes all of a folder's file system to the disk.
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
	record, err := os.ReadFile(filepath.Join(s.folder.layer(chain[0]), recordFile))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, recordFile), record, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return syncAll(dir)
}
