package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// oldDisks is where disks were before there were layers.
const oldDisks = "sprites"

// layerDir is the folder of a layer, which has one folder for each mount of a disk:
// MOUNT/upper, and MOUNT/work for the kernel's use while it is written.
func (r *Runtime) layerDir(layer string) string {
	dir := filepath.Join(r.Dir, "layers", layer)
	if old := filepath.Join(r.Dir, oldDisks, layer, "disk"); exists(old) {
		return old
	}
	return dir
}

// LayerDir is the folder of a layer.
func (r *Runtime) LayerDir(layer string) layers.Dir {
	return layers.Dir{Path: r.layerDir(layer), UserXattr: r.UserNS}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// baseRecord notes, in the lowest layer of a disk, which base that lies on.
type baseRecord struct {
	Skeleton    string `json:"skeleton"` // folder name below DATA/base
	Fingerprint string `json:"fingerprint"`
}

// disk returns the mounts of a chain of layers, the last of which is written. A
// disk stays on the skeleton that it was made over; the host's programs below it
// are those of today.
func (r *Runtime) disk(chain []string, b base.Base) ([]shim.Mount, error) {
	if len(chain) == 0 {
		return nil, errors.New("a disk has a layer at least")
	}
	record, err := r.baseOf(chain[0], b)
	if err != nil {
		return nil, err
	}
	skeleton := filepath.Join(r.Dir, "base", record.Skeleton)
	if _, err := os.Stat(skeleton); err != nil {
		return nil, fmt.Errorf("the base that this sprite was made over is gone: %w", err)
	}
	overlay := func(name string, base ...string) layers.Overlay {
		top := filepath.Join(r.layerDir(chain[len(chain)-1]), name)
		o := layers.Overlay{Upper: filepath.Join(top, "upper"), Work: filepath.Join(top, "work"), UserXattr: r.UserNS}
		for i := len(chain) - 2; i >= 0; i-- {
			// A layer made on a machine, or at a time, with fewer folders of programs
			// does not have them all.
			if sealed := filepath.Join(r.layerDir(chain[i]), name, "upper"); exists(sealed) {
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
			o.Guard = r.guardDir()
		}
		mounts = append(mounts, shim.Mount{Target: name, Overlay: o})
	}
	return mounts, nil
}

// guardDir is the empty folder of layers.Overlay.Guard.
func (r *Runtime) guardDir() string { return filepath.Join(r.Dir, "base", "empty") }

// makeGuardDir makes it, whatever the umask is.
func (r *Runtime) makeGuardDir() error {
	if err := os.MkdirAll(r.guardDir(), 0o755); err != nil {
		return err
	}
	return os.Chmod(r.guardDir(), 0o755)
}

// programs are the lower folders that show the host's folder of programs, the topmost first.
func programs(b base.Base, name string) []string {
	if mask := b.Mask.For(name); mask != "" {
		return []string{mask, "/" + name}
	}
	return []string{"/" + name}
}

// firstMask is a server's first mask. Those of before are removed, unless there are
// sandboxes, which may have them mounted; none is started meanwhile.
func (r *Runtime) firstMask() (base.Mask, error) {
	mask, err := r.hider.Mask()
	if err == nil {
		err = r.makeGuardDir()
	}
	if err != nil {
		return mask, err
	}
	running, err := filepath.Glob(filepath.Join(r.Dir, "run", "*", "sandbox.json"))
	if err != nil || len(running) > 0 {
		return mask, err
	}
	return mask, r.hider.Prune(mask)
}

// baseOf reads what base the lowest layer lies on; b, if it is a new one.
func (r *Runtime) baseOf(lowest string, b base.Base) (baseRecord, error) {
	r.preparing.Lock() // disks that share it may be made at the same time
	defer r.preparing.Unlock()
	return baseIn(r.layerDir(lowest), b)
}

// baseIn is baseOf of a layer in a folder that nobody else has.
func baseIn(dir string, b base.Base) (baseRecord, error) {
	record := baseRecord{Skeleton: filepath.Base(b.Dir), Fingerprint: b.Fingerprint}
	file := filepath.Join(dir, "base.json")
	data, err := os.ReadFile(file)
	if err == nil {
		if err := json.Unmarshal(data, &record); err != nil {
			return record, fmt.Errorf("read %s: %w", file, err)
		}
		return record, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return record, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return record, err
	}
	if data, err = json.Marshal(record); err != nil {
		return record, err
	}
	return record, atomicfile.Write(file, data, 0o600)
}

// OpenDisk opens what a chain of layers shows.
func (r *Runtime) OpenDisk(_ context.Context, chain []string) (_ sprite.Disk, err error) {
	r.init()
	prep, err := r.current()
	if err != nil {
		return nil, err
	}
	mounts, err := r.disk(chain, prep.base)
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
		v, err := layers.OpenView(all[:ofBase], all[ofBase:], r.UserNS)
		if err != nil {
			return nil, errors.Join(err, disk.Close())
		}
		disk = append(disk, sprite.DiskPart{Target: m.Target, View: v})
	}
	return disk, nil
}

// Unlimited are the limits that a sandbox would not have if it started now.
func (r *Runtime) Unlimited() []string {
	if !r.UserNS {
		return shim.Unlimited()
	}
	return shim.UnlimitedUser()
}

// Base is what a new disk lies on.
func (r *Runtime) Base(context.Context) (archive.Base, error) {
	r.init()
	prep, err := r.prepare()
	return archive.Base{Name: base.Host, Fingerprint: prep.base.Fingerprint, Mounts: prep.base.Mounts}, err
}

// importsDir holds layers on their way in.
func (r *Runtime) importsDir() string { return filepath.Join(r.Dir, "imports") }

// StageLayer makes a folder for a layer, with the record of the base that it lies on.
func (r *Runtime) StageLayer(context.Context) (layers.Dir, error) {
	r.init()
	prep, err := r.prepare()
	if err != nil {
		return layers.Dir{}, err
	}
	if err := os.MkdirAll(r.importsDir(), 0o700); err != nil {
		return layers.Dir{}, err
	}
	dir, err := os.MkdirTemp(r.importsDir(), "") // of mode 0700
	if err != nil {
		return layers.Dir{}, err
	}
	if _, err := baseIn(dir, prep.base); err != nil {
		return layers.Dir{}, errors.Join(err, layers.Remove(dir))
	}
	return layers.Dir{Path: dir, UserXattr: r.UserNS}, nil
}

// AdoptLayer makes what was staged a layer.
func (r *Runtime) AdoptLayer(_ context.Context, staged layers.Dir, layer string) error {
	to := filepath.Join(r.Dir, "layers", layer)
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

// Mounted are the layers that any sandbox has mounted, or is about to have, as the
// sandboxes' own files say.
func (r *Runtime) Mounted(context.Context) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(r.Dir, "run"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		st, err := shim.ReadState(r.runDir(e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		all = append(all, st.Mounted()...)
	}
	return all, nil
}

// RemoveLayer removes a layer.
func (r *Runtime) RemoveLayer(_ context.Context, layer string) error {
	if layer == "" || layer != filepath.Base(layer) || layer[0] == '.' {
		return fmt.Errorf("remove a layer: bad name %q", layer)
	}
	dir := r.layerDir(layer)
	if err := layers.Remove(dir); err != nil {
		return err
	}
	if old := filepath.Dir(dir); filepath.Base(dir) == "disk" {
		return os.Remove(old)
	}
	return nil
}

// MergeLayers makes a layer of others. It is on disk when this returns: the others
// may be removed then.
func (r *Runtime) MergeLayers(_ context.Context, into string, chain []string) error {
	dir := r.layerDir(into)
	parts := map[string][]string{} // of each mount, the layers that have it
	for _, layer := range chain {
		entries, err := os.ReadDir(r.layerDir(layer))
		if errors.Is(err, os.ErrNotExist) {
			continue // of a sprite that never ran
		} else if err != nil {
			return err
		}
		for _, e := range entries {
			if upper := filepath.Join(r.layerDir(layer), e.Name(), "upper"); e.IsDir() && exists(upper) {
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
		if err := layers.Merge(filepath.Join(dir, name, "upper"), uppers, r.UserNS); err != nil {
			return err
		}
	}
	record, err := os.ReadFile(filepath.Join(r.layerDir(chain[0]), "base.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "base.json"), record, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return syncAll(dir)
}
