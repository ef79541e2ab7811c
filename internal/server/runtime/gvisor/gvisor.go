// Package gvisor is the sprite.Runtime that runs each sandbox under gVisor,
// looked after by a shim process of its own.
//
// Runtime is the API, and makes the rooms behind it. Each room is a type with a file of its own.
// No room knows Runtime, and each knows only rooms above it in this table.
//
//	folder       where the data folder has what belongs to sandboxes
//	tasks        what goes on in the background, and ends before Close returns (gvisor)
//	preparer     makes what all sandboxes start from: the guest, the base, its mask
//	images       the images that disks lie on instead of the host base
//	layerStore   the layers of disks, and what they lie on (ground): mounts, reads, merges, removes
//	memoryStore  the memories of sprites that sleep, and of checkpoints
//	stock        lists layers and memories, and moves them aside
//	cgroups      where cgroups of sandboxes are made (limits)
//	launcher     starts shims
//	sandbox      a live sandbox, behind its shim (sandbox, told, unnamed, written)
//	watcher      waits for the ends of sandboxes, and replaces shims that die
//	takeover     takes up the sandboxes that an earlier server has left
//
// Each type guards its own fields with a mutex, which only its methods take. While one is held,
// no other of this package is taken.
package gvisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// hostPidsMax is the host's backstop behind the sandbox's own limit. gVisor needs host
// threads of its own, and panics if it can't have them.
const hostPidsMax = 10 * boot.PidsMax

// Runtime runs sandboxes with gVisor. Set the exported fields before use; Close
// leaves the sandboxes running.
type Runtime struct {
	Dir    string       // the server's data folder
	Shim   []string     // command line of the shim process
	Runsc  string       // path of cove-runsc
	Guest  string       // path of cove-guest
	UserNS bool         // this process is root in a user namespace only
	Logger *slog.Logger // nil: discard

	// Images finds the images that disks can lie on, by digest. An error that is not this
	// machine's fault is a *fail.Error. nil: there are none.
	Images func(ctx context.Context, digest string) (base.Image, error)

	// Patience is how long the guest of a sandbox that was restored may take to answer,
	// before its sandbox is ended; 0: shim.BootTimeout.
	Patience time.Duration

	once sync.Once // makes the rooms (see the package)

	folder   folder
	tasks    *tasks
	base     *preparer
	images   *images
	layers   *layerStore
	memories *memoryStore
	stock    *stock
	cgroups  *cgroups
	launcher *launcher
	watcher  *watcher
	takeover *takeover
}

func (r *Runtime) init() {
	r.once.Do(func() {
		if r.Logger == nil {
			r.Logger = slog.New(slog.DiscardHandler)
		}
		r.folder = folder(r.Dir)
		r.tasks = &tasks{closed: make(chan struct{})}
		r.base = &preparer{folder: r.folder, runsc: r.Runsc, guest: r.Guest, userNS: r.UserNS, tasks: r.tasks, logger: r.Logger}
		r.images = &images{folder: r.folder, userNS: r.UserNS, get: r.Images}
		r.layers = &layerStore{folder: r.folder, userNS: r.UserNS, base: r.base, images: r.images}
		r.memories = &memoryStore{folder: r.folder, base: r.base}
		r.stock = &stock{folder: r.folder}
		r.cgroups = &cgroups{userNS: r.UserNS}
		r.launcher = &launcher{folder: r.folder, shim: r.Shim, runsc: r.Runsc, patience: r.Patience, cgroups: r.cgroups}
		r.watcher = &watcher{folder: r.folder, base: r.base, layers: r.layers, launcher: r.launcher, tasks: r.tasks, logger: r.Logger}
		r.takeover = &takeover{folder: r.folder, userNS: r.UserNS, launcher: r.launcher, watcher: r.watcher, images: r.images, logger: r.Logger}
	})
}

// tasks are what a Runtime does in the background.
type tasks struct {
	wg     sync.WaitGroup
	closed chan struct{} // when the Runtime is
}

func (t *tasks) begin(f func()) { t.wg.Go(f) }

// close tells the tasks to end, and waits for them.
func (t *tasks) close() {
	close(t.closed)
	t.wg.Wait()
}

// Prepare makes what the first sandbox over the host base would otherwise have to wait for.
func (r *Runtime) Prepare() error {
	r.init()
	_, err := r.base.prepare()
	return err
}

// Close stops looking after sandboxes, which go on running, and waits for its
// goroutines.
func (r *Runtime) Close() error {
	r.init()
	r.tasks.close()
	return nil
}

// Boot starts the sandbox of a sprite that has none, from its memory on disk if there is one.
func (r *Runtime) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	r.init()
	if m.Base != "" && m.Base != base.Host && !base.IsImage(m.Base) {
		return nil, fmt.Errorf("boot %s: unknown base %q, want %q or the digest of an image", m.Hostname, m.Base, base.Host)
	}
	for _, dir := range m.Include {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() || !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("boot %s: included %s is not a folder of this machine", m.Hostname, dir)
		}
	}
	programs, err := r.base.programs()
	if err != nil {
		return nil, err
	}
	on, err := r.layers.ground(ctx, disk{base: cmp.Or(m.Base, base.Host), bare: m.Bare, chain: m.Layers}, r.base.current)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", m.Hostname, err)
	}
	shown, err := json.Marshal(m.NetworkPolicy)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", m.Hostname, err)
	}
	image, err := r.memories.takeImage(m.ID)
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", m.Hostname, err)
	}
	if image != "" {
		fault.Reach(fault.WakeTaken)
	}
	share := shareOf(cgroup.Process{}.Limits(), m.MemoryMB, m.CPUs)
	state, err := r.launcher.start(ctx, shim.Config{
		Dir: r.folder.run(m.ID), Runsc: r.Runsc, Guest: programs.guest,
		ID: m.ID, Hostname: m.Hostname, MachineID: m.MachineID, Incarnation: m.Incarnation,
		Token: newToken(), Env: m.Env, Shown: shim.Shown{Include: m.Include, Binds: binds(m.Binds)}, Defaults: on.defaults,
		Layers: m.Layers, Disk: r.layers.disk(m.Layers, on), Cgroups: r.cgroups.place(), MemoryMB: share.memoryMB, CPUs: share.cpus, PidsMax: share.hostTasks, Tasks: share.tasks, Connectors: m.Connectors, Network: &m.Network, NetworkPolicy: shown,
		Build: programs.build, Image: image, Patience: r.Patience,
	})
	if errors.Is(err, errShimDied) {
		r.takeover.endUnborn(ctx, m.ID)
	}
	switch {
	case image == "":
	case err != nil && shim.Unspent(image): // also if no shim has begun
		err = errors.Join(err, os.Rename(image, r.folder.image(m.ID)))
	default: // used up
		r.tasks.begin(func() { _ = layers.Remove(image) }) // else by the next start
	}
	if err != nil {
		return nil, fmt.Errorf("boot %s: %w", m.Hostname, err)
	}
	s := r.watcher.follow(m.ID, state)
	s.setNetwork(m.Network)
	s.setConnectors(m.Connectors)
	return s, nil
}

func binds(all []sprite.Bind) (out []shim.Bind) {
	for _, b := range all {
		out = append(out, shim.Bind(b))
	}
	return out
}

// Live takes up the sandboxes that an earlier server left running.
func (r *Runtime) Live(ctx context.Context) ([]sprite.Sandbox, error) {
	r.init()
	return r.takeover.live(ctx)
}

// Lost says why Live did not take up a sprite's sandbox of this folder. It is empty if
// Live took the sandbox up, or if the sandbox has ended.
func (r *Runtime) Lost(id string) string {
	r.init()
	return r.takeover.lostOf(id)
}

// Occupied says where a sandbox of a sprite runs that this server can't look after; nil: there
// is none.
func (r *Runtime) Occupied(id string) error {
	r.init()
	if err := shim.Occupied(r.folder.run(id)); err != nil {
		return fmt.Errorf("%w: %w", sprite.ErrOccupied, err)
	}
	return nil
}

// Destroy removes what is left of a sprite's sandboxes. If one of them still runs, it
// fails.
func (r *Runtime) Destroy(ctx context.Context, id string) error {
	r.init()
	if id == "" || id != filepath.Base(id) {
		return fmt.Errorf("destroy: bad sprite id %q", id)
	}
	if err := r.Occupied(id); err != nil {
		return fmt.Errorf("destroy %s: %w", id, err)
	}
	if st, err := shim.ReadState(r.folder.run(id)); err == nil && st.PID != 0 {
		asking, cancel := context.WithTimeout(ctx, statusLimit)
		defer cancel()
		if _, err := (shim.Client{Dir: r.folder.run(id)}).Status(asking); err == nil || errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("destroy %s: its sandbox is running", id)
		}
	}
	group := shim.RemoveOwnGroup(r.folder.run(id), id, r.cgroups.place())
	if err := keepCrash(r.Dir, id, r.folder.logs(id, sprite.LogSandbox)); err != nil {
		r.Logger.Warn("keeping the report of a crash; it is removed with its sprite", "sandbox", id, "err", err)
	}
	return errors.Join(group, r.memories.Drop(ctx, id), layers.Remove(r.folder.run(id)))
}

// Unlimited are the limits that a sandbox would not have if it started now.
func (r *Runtime) Unlimited() []string {
	if !r.UserNS {
		return shim.Unlimited()
	}
	return shim.UnlimitedUser()
}

// MemoryMB is what a sandbox with this limit gets if it starts now, in MiB.
func (r *Runtime) MemoryMB(limit int) int {
	return shareOf(cgroup.Process{}.Limits(), limit, 0).memoryMB
}

// Logs are the files of a log about a sprite's sandboxes.
func (r *Runtime) Logs(id string, of sprite.Log) []string {
	r.init()
	return r.folder.logs(id, of)
}

// Layers has the disks.
func (r *Runtime) Layers() sprite.LayerStore {
	r.init()
	return r.layers
}

// Memories has the memories of sprites.
func (r *Runtime) Memories() sprite.MemoryStore {
	r.init()
	return r.memories
}

// RemoveLayer removes a layer.
func (r *Runtime) RemoveLayer(_ context.Context, layer string) error {
	r.init()
	return r.layers.remove(layer)
}

// Mounted are the layers that any sandbox has mounted, or is about to have.
func (r *Runtime) Mounted(context.Context) ([]string, error) {
	r.init()
	return r.layers.mounted()
}

// Stock lists the layers and the memories that there are.
func (r *Runtime) Stock(context.Context) ([]sprite.Item, error) {
	r.init()
	return r.stock.list()
}

// SetAside moves an item aside.
func (r *Runtime) SetAside(_ context.Context, item sprite.Item, why string) (to string, err error) {
	r.init()
	return r.stock.setAside(item, why)
}
