package sprite

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// Times of a sandbox's life.
const (
	bootLimit     = 2 * time.Minute
	stopGrace     = 10 * time.Second       // when it falls asleep
	stopLimit     = 3 * time.Minute        // beyond the grace, until the runtime is given up: 2,000 processes of a fork bomb end slowly
	activityLimit = 30 * time.Second       // for the guest to say what runs in it
	describeLimit = 500 * time.Millisecond // the same, while somebody waits for a description
)

// Host looks after all sprites of a server. Set the exported fields before
// Start. Its methods may be called from any goroutine.
type Host struct {
	Store       *store.Store             // required
	Runtime     Runtime                  // required
	Data        string                   // the server's folder, which no sprite may be shown; empty: none
	Logger      *slog.Logger             // nil: discard
	IdleDefault time.Duration            // how long a sprite that does not say stays awake unused; 0: for ever
	MaxRunning  int                      // sandboxes at once that are not paused; 0: no limit
	URL         func(name string) string // the address of a sprite's HTTP service; nil: there is none

	// HibernateDefault is how long a sprite is unused until its memory goes to disk, if
	// the sprite does not say. Until then it is paused. 0: never. If that is no longer
	// than the sprite stays awake, it is not paused before.
	HibernateDefault time.Duration

	// DiskReserve is how many bytes sprites must leave free in the file system of Data.
	// If less is free, the sprites that write are held. 0: none.
	DiskReserve int64

	Pool []PoolPart // sandboxes that are kept ready for new sprites, besides MaxRunning

	// Registries lists the hosts of the package registries that this machine's own
	// clients are configured for, for presets; nil: none.
	Registries func(context.Context) []string

	// Images are what sprites can start from, besides this machine's own tools; nil: nothing.
	Images Images

	// Connectors are the upstreams that every sprite has. A connector of the store that
	// is granted to the sprite comes before one of the same name.
	Connectors map[string]connect.Upstream

	// The rooms (see doc.go), which Start makes.
	tasks       *tasks // nil: not started
	rows        *rows
	machines    *machines
	layers      *layerKeeper
	memories    *memories
	checkpoints *checkpoints
	sealer      *sealer
	network     *network
	disk        *diskWatch
	lives       *lifecycle
	pool        *pool
	takeover    *takeover
}

// Start takes up the sandboxes that run already and finishes what an earlier
// server left half done. Sandboxes that can't be taken up are logged: their
// sprites are cold.
func (h *Host) Start(ctx context.Context) error {
	if h.Logger == nil {
		h.Logger = slog.New(slog.DiscardHandler)
	}
	h.furnish(ctx)

	live, err := h.Runtime.Live(ctx)
	if err != nil {
		h.Logger.Warn("some sandboxes could not be taken up", "err", err)
	}
	byID := make(map[string]Sandbox, len(live))
	for _, sb := range live {
		byID[sb.ID()] = sb
	}
	rows, err := h.takeover.agree(ctx, byID)
	if err != nil {
		return fmt.Errorf("take up the sprites: %w", err)
	}
	known, err := h.takeover.knownLayers(ctx)
	if err != nil {
		return fmt.Errorf("take up the sprites: %w", err)
	}
	if slices.ContainsFunc(rows, func(row store.Sprite) bool { return row.Base == defaultBase }) {
		prepare(h)
	}
	for _, row := range rows {
		sb := byID[row.ID]
		delete(byID, row.ID)
		h.takeover.takeUp(row, sb, known)
	}
	h.layers.collect()
	if !h.takeover.older.Load() { // else that was done
		if _, err := h.takeover.sweep(ctx, rows, false); err != nil {
			h.Logger.Error("looking for files that the store does not know", "err", err)
		}
	}
	h.layers.listLater()
	h.disk.start(h.tasks.ctx)
	h.pool.start(h.tasks.ctx)
	h.machines.meters.start(h.tasks.ctx, h.machines)
	for _, sb := range byID {
		h.tasks.more(func() { _ = h.takeover.retire(sb, whyNoSprite) }) // logged; the next start tries again
	}
	return nil
}

// furnish makes the rooms.
func (h *Host) furnish(ctx context.Context) {
	rt, sprites, logger := h.Runtime, h.Store.Sprites, h.Logger
	places := &places{limit: h.MaxRunning}
	h.tasks = newTasks(ctx)
	h.rows = &rows{sprites: sprites, tasks: h.tasks, logger: logger}
	h.machines = &machines{
		tasks: h.tasks, places: places, defaults: times{h.IdleDefault, h.HibernateDefault}, all: map[string]*machine{},
		idle:   func(m *machine, epoch int) { h.lives.idle(m, epoch) },
		meters: &meters{},
	}
	h.layers = newLayerKeeper(h.tasks.ctx, rt, sprites, logger)
	h.layers.inUse = func(ctx context.Context) (map[string]bool, error) { return layersInUse(ctx, rt, h.machines) }
	h.layers.remove = func(ctx context.Context, layer string) error { return h.takeover.removeLayer(ctx, layer) }
	h.memories = &memories{runtime: rt, store: sprites, rows: h.rows, tasks: h.tasks, logger: logger}
	h.checkpoints = &checkpoints{runtime: rt, store: sprites, layers: h.layers, memories: h.memories, tasks: h.tasks, logger: logger}
	settler := &settler{runtime: rt, store: sprites, machines: h.machines, layers: h.layers, tend: h.checkpoints.tend, tasks: h.tasks, logger: logger}
	h.sealer = &sealer{
		store: sprites, machines: h.machines, layers: h.layers, memories: h.memories, checkpoints: h.checkpoints, settler: settler,
		reserve: h.DiskReserve, tasks: h.tasks, logger: logger,
	}
	h.network = &network{store: h.Store, registries: h.Registries, given: h.Connectors, machines: h.machines, rows: h.rows, tasks: h.tasks, logger: logger}
	h.disk = &diskWatch{
		dir: h.Data, reserve: h.DiskReserve, runtime: rt, rows: h.rows, machines: h.machines, changes: &h.network.changes, logger: logger,
		pause:  func(m *machine, sb Pauser) { h.lives.pause(m, sb) },
		resume: func(m *machine) { h.lives.run(m, func() { h.lives.resume(m) }) },
		news:   make(chan struct{}, 1),
	}
	booter := &booter{runtime: rt, store: h.Store, layers: h.layers, checkpoints: h.checkpoints, network: h.network, url: h.URL, tasks: h.tasks, logger: logger}
	h.lives = &lifecycle{
		runtime: rt, store: h.Store, rows: h.rows, machines: h.machines, tasks: h.tasks, logger: logger, layers: h.layers, memories: h.memories,
		settler: settler, sealer: h.sealer, network: h.network, booter: booter, disk: h.disk, limits: &limiter{store: sprites, machines: h.machines},
	}
	h.pool = &pool{
		images: h.Images, watch: h.Store.Images.Watch, machines: h.machines, places: places, tasks: h.tasks, rows: h.rows, logger: logger,
		taken: make(chan struct{}, 1), booter: booter, lives: h.lives,
	}
	for _, part := range h.Pool {
		h.pool.parts = append(h.pool.parts, &poolPart{PoolPart: part})
	}
	h.takeover = &takeover{
		runtime: rt, store: h.Store, rows: h.rows, machines: h.machines, tasks: h.tasks, logger: logger, layers: h.layers, memories: h.memories,
		checkpoints: h.checkpoints, settler: settler, network: h.network, lives: h.lives, disk: h.disk,
	}
}

// Close stops looking after the sprites, and waits for operations under way. The
// sandboxes go on: they outlive the server.
func (h *Host) Close() error {
	if h.tasks == nil {
		return nil // never started
	}
	h.tasks.close()
	for _, m := range h.machines.list() {
		m.setTimes(times{}) // so that its timers fire no more
	}
	h.tasks.cancel()
	h.disk.close()
	h.tasks.end()
	h.pool.close()
	h.layers.close()
	return nil
}

// PoolState describes the pool; nil: there is none.
func (h *Host) PoolState() *sprites.Pool { return h.pool.state() }

// DiskFree is how much of the file system of Data an ordinary user may take, in bytes; 0:
// that is not known.
func (h *Host) DiskFree() int64 { return h.disk.sample().avail }

// Get describes a sprite. It does not wake it.
func (h *Host) Get(ctx context.Context, name string) (sprites.Info, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return sprites.Info{}, err
	}
	return h.info(row), nil
}

// Describe is Get with what keeps the sprite awake from inside, which it asks the
// guest.
func (h *Host) Describe(ctx context.Context, name string) (sprites.Info, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return sprites.Info{}, err
	}
	info := h.info(row)
	if info.Revision, err = revisionOf(changeable(row)); err != nil {
		return sprites.Info{}, err
	}
	info.Cove.MemoryKills = h.memoryKills(row.ID)
	info.Cove.DiskUsed = h.disk.usedNow(ctx, row)
	if usages, err := h.Store.Sprites.Usages(ctx, row.ID); err == nil {
		info.Cove.DiskUse = disks{layers: usages}.use(usages[row.Layer].Parent)
	}
	if sb, err := h.Live(ctx, name); err == nil && sb != nil {
		ctx, cancel := context.WithTimeout(ctx, describeLimit)
		defer cancel()
		inside, err := activity(ctx, sb)
		if err != nil {
			h.Logger.Debug("asking a sandbox what runs in it", "sprite", name, "err", err)
		}
		info.Cove.AwakeBy = append(info.Cove.AwakeBy, reasons(inside)...)
	}
	return info, nil
}

// MachineID is the sprite's /etc/machine-id, which is the same in all of its sandboxes.
func (h *Host) MachineID(ctx context.Context, name string) (string, error) {
	row, err := h.rows.named(ctx, name)
	return row.MachineID, err
}

// List describes the sprites that filter selects, by name. It leaves out the sprites of
// the pool and those that install agents.
func (h *Host) List(ctx context.Context, filter store.SpriteFilter) ([]sprites.Info, error) {
	filter.Public = true
	rows, err := h.Store.Sprites.List(ctx, filter)
	if err != nil {
		return nil, err
	}
	infos := make([]sprites.Info, len(rows))
	for i, row := range rows {
		infos[i] = h.info(row)
	}
	return infos, nil
}

// Live returns a sprite's sandbox without waking it; nil if it has none, or it is
// paused.
func (h *Host) Live(ctx context.Context, name string) (Sandbox, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return nil, err
	}
	if m := h.machines.known(row.ID); m != nil {
		if now := m.now(); now.busy == nil && !now.dead && !now.paused {
			return now.sandbox, nil
		}
	}
	return nil, nil
}

// info describes a sprite.
func (h *Host) info(row store.Sprite) sprites.Info {
	own := h.machines.defaults.of(row)
	info := row.Info()
	info.Cove.IdleSeconds = int64(own.idle / time.Second)
	info.Cove.HibernateSeconds = int64(own.hibernate / time.Second)
	if h.URL != nil {
		info.URL = h.URL(row.Name)
	}

	if row.Config.RAMMB > 0 || row.Config.CPUs > 0 {
		info.Cove.Unlimited = h.Runtime.Unlimited() // of one that runs, what it started with
	}
	if row.Config.RAMMB > 0 {
		if mb := h.Runtime.MemoryMB(row.Config.RAMMB); mb < row.Config.RAMMB {
			info.Cove.MemoryMB = mb
		}
	}
	info.Cove.Elsewhere = row.LastError == Elsewhere
	now := machineState{held: row.Held}
	if m := h.machines.known(row.ID); m != nil {
		now = m.now()
		info.Cove.Removing = info.Cove.Removing || now.dead
		info.Cove.AwakeBy, info.Cove.WokenBy = usesOf(m)
		_, info.Cove.DiskUsed, _ = m.disk.read()
	}
	if now.held != nil {
		info.Cove.Held = describeHeld(row.Name, *now.held)
	}
	sb, paused := now.sandbox, now.paused
	if sb != nil {
		status := sb.Status()
		info.Status = sprites.StatusRunning
		if paused {
			info.Status, info.Cove.Paused = sprites.StatusWarm, true
		}
		info.Cove.Incarnation = status.Incarnation
		info.Cove.Address, info.Cove.Address6 = status.Address, status.Address6
		info.Cove.Unlimited = status.Unlimited
		info.Cove.NetworkDown = status.NetworkDown
		if started := status.Started.UTC(); !started.IsZero() && row.LastRunning.Before(started) {
			info.LastRunning = &started // the store is about to hear of it
		}
	}
	return info
}

// Organization is the one that all sprites of a server belong to.
const Organization = store.Organization
