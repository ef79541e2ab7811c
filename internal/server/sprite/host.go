package sprite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// Times of a sandbox's life.
const (
	bootLimit     = 2 * time.Minute
	stopGrace     = 10 * time.Second       // when it falls asleep
	stopLimit     = time.Minute            // beyond the grace, until the runtime is given up
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
	URL         func(name string) string // where a sprite's HTTP service is reached; nil: nowhere

	// HibernateDefault is after how long unused the memory of a sprite that does not
	// say goes to disk; until then it is paused. 0: never. Where that is no longer than
	// it stays awake, it is not paused before.
	HibernateDefault time.Duration

	// DiskReserve is how much of the file system of Data sprites are to leave free, in
	// bytes: at less, those that write are held. 0: none.
	DiskReserve int64

	Pool int // sandboxes that are kept ready for new sprites, besides MaxRunning

	// Registries lists the hosts of the package registries that this machine's own
	// clients are configured for, for presets; nil: none.
	Registries func(context.Context) []string

	// Connectors are the upstreams of every sprite, besides those of the store that
	// are granted to it, which come first where the names are the same.
	Connectors map[string]connect.Upstream

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	layers  *layerKeeper
	setting keyedMutex // of something that sandboxes are told: what, and of which sprite
	room    diskRoom
	older   atomic.Bool // some of what an older store does not know is not aside yet

	mu        sync.Mutex
	closed    bool
	machines  map[string]*machine // by sprite ID
	changes   int                 // counts changes of connectors and network policies
	spares    []spare             // the pool
	poolTaken chan struct{}       // has a value when it is less than it was
	disk      diskWatch
	diskNews  chan struct{} // has a value when there is something else to watch
}

// machine is the part of a sprite that is in memory only. It exists once the
// sprite has been used, until it is deleted. Its fields are guarded by Host.mu.
type machine struct {
	id      string
	name    string
	idle    time.Duration   // unused, until it sleeps; 0: for ever
	sandbox Sandbox         // live, or nil
	paused  bool            // it is, if there is one
	told    int             // Host.changes of which it has heard inside, if it is paused
	ending  Sandbox         // the last one that was told to end
	undone  Sandbox         // the last one that a restore has ended
	leases  map[*Lease]bool // held, or waiting for the sandbox
	timer   *time.Timer     // to the next stage of sleep; runs while the sandbox is live and unused, and idle is set
	epoch   int             // counts timers and their ends, so that a late one knows that it is
	busy    *transition     // the sandbox is starting or ending
	spare   Sandbox         // of the pool, to be the one that starts; nil: none
	dead    bool            // being deleted: nothing may use it
	lost    string          // why what ran in it is gone, until a command was told; empty: it is not

	hibernate time.Duration // unused, until its memory goes to disk; 0: for ever

	disk diskGauge
}

// transition is a sandbox's start or end, which its waiters share.
type transition struct {
	done  chan struct{}
	err   error // of the start; valid once done is closed
	begun time.Time

	given  context.Context // ends when it is to be given up
	giveUp context.CancelFunc
	alone  bool // it changes the disk: only a delete gives that up
}

func newTransition() *transition {
	t := &transition{done: make(chan struct{}), begun: time.Now()}
	t.given, t.giveUp = context.WithCancel(context.Background())
	return t
}

// Start takes up the sandboxes that run already and finishes what an earlier
// server left half done. Sandboxes that can't be taken up are logged: their
// sprites are cold.
func (h *Host) Start(ctx context.Context) error {
	if h.Logger == nil {
		h.Logger = slog.New(slog.DiscardHandler)
	}
	h.ctx, h.cancel = context.WithCancel(context.WithoutCancel(ctx))
	h.machines = map[string]*machine{}
	h.poolTaken = make(chan struct{}, 1)
	h.diskNews = make(chan struct{}, 1)
	h.layers = newLayerKeeper(h.ctx, h)

	live, err := h.Runtime.Live(ctx)
	if err != nil {
		h.Logger.Warn("some sandboxes could not be taken up", "err", err)
	}
	byID := make(map[string]Sandbox, len(live))
	for _, sb := range live {
		byID[sb.ID()] = sb
	}
	rows, err := h.agree(ctx, byID)
	if err != nil {
		return fmt.Errorf("take up the sprites: %w", err)
	}
	known, err := h.knownLayers(ctx)
	if err != nil {
		return fmt.Errorf("take up the sprites: %w", err)
	}
	if len(rows) > 0 {
		prepare(h)
	}
	for _, row := range rows {
		sb := byID[row.ID]
		delete(byID, row.ID)
		h.takeUp(row, sb, known)
	}
	h.layers.collect()
	if !h.older.Load() { // else that was done
		if _, err := h.sweep(ctx, rows, false); err != nil {
			h.Logger.Error("looking for what the store does not know", "err", err)
		}
	}
	h.layers.begin(func() { h.layers.list() })
	h.wg.Go(func() { h.watchDisks(h.ctx) })
	if h.Pool > 0 {
		h.wg.Go(func() { h.fillPool(h.ctx) })
	}
	for _, sb := range byID {
		h.wg.Go(func() { _ = h.retire(sb, whyNoSprite) }) // logged; the next start tries again
	}
	return nil
}

// takeUp makes the store and the memory agree on a sprite whose live sandbox, or
// nil, was found at the start. known are the layers that the store knows.
func (h *Host) takeUp(row store.Sprite, sb Sandbox, known map[string]bool) {
	if row.Held != nil && row.Held.Code == CodeDiskFull {
		h.mu.Lock()
		h.machine(row) // for the watch to let it go on
		h.mu.Unlock()
	}
	switch {
	case row.Deleting || row.Owner == store.PoolOwner:
		h.mu.Lock()
		m := h.machine(row)
		m.sandbox, m.ending, m.dead = sb, sb, true
		h.mu.Unlock()
		h.wg.Go(func() {
			if err := h.destroy(m); err != nil {
				h.Logger.Error("finishing a delete", "sprite", row.Name, "err", err)
			}
		})
	case sb != nil && !isFor(sb, row):
		h.mu.Lock()
		m := h.machine(row)
		m.sandbox = sb
		m.beginEnd()
		h.mu.Unlock()
		h.wg.Go(func() { _ = h.endSandbox(m, false) }) // logged; the next start tries again
	case sb != nil && !isOver(sb, row, known):
		h.reached(row, sb)
		h.mu.Lock()
		m := h.machine(row)
		m.sandbox = sb
		m.beginEnd()
		h.mu.Unlock()
		h.wg.Go(func() { h.endForeign(m, sb) })
	case sb != nil:
		h.reached(row, sb)
		h.mu.Lock()
		m := h.machine(row)
		m.sandbox, m.paused, m.told = sb, sb.Status().Paused, -1
		h.wg.Go(func() { h.watch(m, sb) })
		h.wg.Go(func() { h.reviveNetwork(row, sb) })
		h.wg.Go(func() { h.reviveConnectors(row.Name, sb) })
		h.arm(m)
		paused := m.paused
		h.mu.Unlock()
		if paused != (row.Status == sprites.StatusWarm) || row.Status == sprites.StatusCold {
			h.noteStage(m)
		}
		if strings.HasPrefix(row.Lost, notKept) { // it did not end
			h.lose(m, "")
			h.note(row.ID, func(s *store.Sprite) { s.Lost = "" })
		}
	case h.lost(row.ID) != "":
		h.note(row.ID, func(s *store.Sprite) {
			if s.Status = sprites.StatusCold; h.warm(row.ID) {
				s.Status = sprites.StatusWarm
			}
			s.LastError = h.lost(row.ID)
			if s.Status == sprites.StatusCold && row.Status != sprites.StatusCold && elsewhere(h.Runtime, row) != nil {
				s.Lost = s.LastError // by the time that another can start
			}
		})
	case h.warm(row.ID):
		if row.Status != sprites.StatusWarm { // a thousand writes take seconds
			h.note(row.ID, func(s *store.Sprite) { s.Status = sprites.StatusWarm })
		}
	case row.Status != sprites.StatusCold:
		h.note(row.ID, func(s *store.Sprite) {
			s.Status = sprites.StatusCold
			s.LastError = "its sandbox ended while no server was running"
			if strings.HasPrefix(s.Lost, notKept) {
				s.LastError = s.Lost
			}
			s.Lost = s.LastError
		})
	}
}

// isFor reports whether a sandbox is a sprite's. One of the pool's may not have become
// so when the server died.
func isFor(sb Sandbox, row store.Sprite) bool {
	name := sb.Status().Hostname
	return name == "" || name == row.Name
}

// warm reports whether the memory of a sprite that sleeps is kept.
func (h *Host) warm(id string) bool {
	r, ok := h.Runtime.(Rememberer)
	return ok && r.Warm(id)
}

// lost is why a sprite's sandbox was not taken up; empty: it was, or has ended.
func (h *Host) lost(id string) string {
	r, ok := h.Runtime.(Distinguisher)
	if !ok {
		return ""
	}
	return r.Lost(id)
}

// Close stops looking after the sprites, and waits for what is in the middle.
// The sandboxes go on: they outlive the server.
func (h *Host) Close() error {
	if h.cancel == nil {
		return nil // never started
	}
	h.mu.Lock()
	h.closed = true
	for _, m := range h.machines {
		m.disarm()
	}
	h.mu.Unlock()
	h.cancel()
	h.wg.Wait()
	h.emptyPool()
	h.layers.close()
	return nil
}

// Get describes a sprite. It does not wake it.
func (h *Host) Get(ctx context.Context, name string) (sprites.Info, error) {
	row, err := h.row(ctx, name)
	if err != nil {
		return sprites.Info{}, err
	}
	return h.info(row), nil
}

// Describe is Get with what keeps the sprite awake from inside, which it asks the
// guest.
func (h *Host) Describe(ctx context.Context, name string) (sprites.Info, error) {
	row, err := h.row(ctx, name)
	if err != nil {
		return sprites.Info{}, err
	}
	info := h.info(row)
	if info.Revision, err = revisionOf(changeable(row)); err != nil {
		return sprites.Info{}, err
	}
	info.Cove.MemoryKills = h.memoryKills(row.ID)
	info.Cove.DiskUsed = h.diskUsed(ctx, row)
	if usages, err := h.Store.Sprites.Usages(ctx, row.ID); err == nil {
		info.Cove.DiskUse = disks{layers: usages}.use(usages[row.Layer].Parent)
	}
	if sb, err := h.Live(ctx, name); err == nil && sb != nil {
		ctx, cancel := context.WithTimeout(ctx, describeLimit)
		defer cancel()
		inside, err := h.activity(ctx, sb)
		if err != nil {
			h.Logger.Debug("asking a sandbox what runs in it", "sprite", name, "err", err)
		}
		info.Cove.AwakeBy = append(info.Cove.AwakeBy, reasons(inside)...)
	}
	return info, nil
}

// MachineID is the number by which a sprite knows itself (/etc/machine-id): the
// same for all of its sandboxes.
func (h *Host) MachineID(ctx context.Context, name string) (string, error) {
	row, err := h.row(ctx, name)
	return row.MachineID, err
}

// List describes the sprites that filter selects, by name, without those in which
// agents are being installed, and those of the pool.
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
	row, err := h.row(ctx, name)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.machines[row.ID]; m != nil && m.busy == nil && !m.dead && !m.paused {
		return m.sandbox, nil
	}
	return nil, nil
}

// row reads a sprite by name.
func (h *Host) row(ctx context.Context, name string) (store.Sprite, error) {
	if CheckName(name) != nil {
		return store.Sprite{}, fail.Newf(CodeNotFound, "", "there is no sprite %.80q, nor can there be: a name has letters, digits and hyphens", name)
	}
	row, err := h.Store.Sprites.Get(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return row, fail.Newf(CodeNotFound, "see what there is with: cove list", "there is no sprite named %s", name)
	}
	return row, err
}

// info describes a sprite.
func (h *Host) info(row store.Sprite) sprites.Info {
	idle, hibernate := h.times(row)
	info := sprites.Info{
		ID:           row.ID,
		Name:         row.Name,
		Organization: Organization,
		URLSettings:  row.URL,
		Status:       sprites.StatusCold,
		Labels:       row.Labels,
		Environment:  row.Env,
		CreatedAt:    row.CreatedAt,
		UpdatedAt:    row.UpdatedAt.UTC(),
		Cove: &sprites.Details{
			Base:        row.Base,
			Include:     row.Include,
			Incarnation: row.Incarnation,
			IdleSeconds: int64(idle / time.Second),

			HibernateSeconds: int64(hibernate / time.Second),

			Owner:     row.Owner,
			Removing:  row.Deleting,
			LastError: row.LastError,
		},
	}
	if info.Labels == nil {
		info.Labels = []string{}
	}
	if row.Config != (sprites.Config{}) {
		info.Config = &row.Config
	}
	if !row.LastRunning.IsZero() {
		info.LastRunning = &row.LastRunning
	}
	if row.Retention != (sprites.Retention{}) {
		info.Cove.Retention = &row.Retention
	}
	if !row.LeaseUntil.IsZero() {
		info.Cove.LeaseUntil = &row.LeaseUntil
	}

	if h.URL != nil {
		info.URL = h.URL(row.Name)
	}

	if row.Status == sprites.StatusWarm {
		info.Status = row.Status
	}
	if u, ok := h.Runtime.(Unlimiter); ok && (row.Config.RAMMB > 0 || row.Config.CPUs > 0) {
		info.Cove.Unlimited = u.Unlimited() // of one that runs, what it started with
	}
	if r, ok := h.Runtime.(Reserver); ok && row.Config.RAMMB > 0 {
		if mb := r.MemoryMB(row.Config.RAMMB); mb < row.Config.RAMMB {
			info.Cove.MemoryMB = mb
		}
	}
	h.mu.Lock()
	m := h.machines[row.ID]
	var sb Sandbox
	paused := false
	held := row.Held
	if m != nil {
		sb, paused, held = m.sandbox, m.paused, m.disk.held
		info.Cove.Removing = info.Cove.Removing || m.dead
		info.Cove.AwakeBy = m.awakeBy()
		info.Cove.DiskUsed = m.disk.used
	}
	if held != nil {
		info.Cove.Held = describeHeld(row.Name, *held)
	}
	h.mu.Unlock()
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
const Organization = "local"

// awakeBy names what keeps the machine awake, each once.
func (m *machine) awakeBy() []string {
	whys := map[string]bool{}
	for l := range m.leases {
		whys[l.why] = true
	}
	return slices.Sorted(maps.Keys(whys))
}

// machine returns the machine of a sprite. h.mu is held.
func (h *Host) machine(row store.Sprite) *machine {
	m := h.machines[row.ID]
	if m == nil {
		m = &machine{id: row.ID, name: row.Name, leases: map[*Lease]bool{}, lost: row.Lost}
		m.idle, m.hibernate = h.times(row)
		m.disk.limit = row.Config.DiskLimit()
		if row.Held != nil {
			m.disk.held = new(*row.Held)
		}
		h.machines[row.ID] = m
	}
	return m
}

// times are after how long unused a sprite is paused, and its memory goes to disk: its own,
// or the server's present ones. 0: never.
func (h *Host) times(row store.Sprite) (idle, hibernate time.Duration) {
	idle, hibernate = seconds(row.IdleSeconds), seconds(row.Hibernate)
	if row.IdleSeconds == store.ServersOwn {
		idle = h.IdleDefault.Truncate(time.Second)
	}
	if row.Hibernate == store.ServersOwn {
		hibernate = h.HibernateDefault.Truncate(time.Second)
	}
	return idle, hibernate
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// note changes a sprite's row after something has happened to its sandbox. What
// can't be written now, on a full disk say, is logged: memory goes before the
// store, and the next start makes them agree.
func (h *Host) note(id string, f func(*store.Sprite)) {
	_, err := h.Store.Sprites.Update(context.WithoutCancel(h.ctx), id, func(s *store.Sprite) error {
		f(s)
		return nil
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		h.Logger.Error("noting the state of a sprite", "id", id, "err", err)
	}
}
