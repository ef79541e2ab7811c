package job

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/lib/keylock"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// An agent is installed once for all the sprites that are made for its jobs. It is installed
// in a sprite of its own, whose disk is then sealed; the jobs' sprites begin with that disk.

// Installer keeps what the installations of agents have left (sprite.Host).
type Installer interface {
	// Fingerprint is the fingerprint of the base that new disks lie on.
	Fingerprint(ctx context.Context) (string, error)

	// KeepInstall makes what was installed in a sprite the disk that others begin
	// with. The sprite is gone then.
	KeepInstall(ctx context.Context, sprite string, in store.Install) error

	// Installs are all installations.
	Installs(ctx context.Context) ([]cove.AgentInstall, error)

	// DropInstall forgets an installation, unless it was used since it was listed.
	DropInstall(ctx context.Context, in cove.AgentInstall) (bool, error)
}

const (
	installPause  = 5 * time.Minute // after one that failed
	installPreset = "agent"         // the network that an agent is installed with
)

// installs looks after the installations of agents. It installs each agent once, for all
// jobs that wait for it, and knows which ones failed just now.
type installs struct {
	store     *store.Store
	client    *cove.Client
	installer Installer // nil: nothing is shared
	logger    *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	based  atomic.Bool   // the base of disks was there when it was asked for
	keys   keylock.Mutex // an agent is installed, by its key, one at a time

	mu       sync.Mutex
	underWay map[string]*installation // by key; guarded by mu
	failed   map[string]failure       // by key; guarded by mu
	building map[string]bool          // the sprites in which agents are being installed; guarded by mu
}

// Start lets installations begin. They end with Close, or with ctx.
func (is *installs) Start(ctx context.Context) {
	is.ctx, is.cancel = context.WithCancel(ctx)
	is.underWay, is.failed, is.building = map[string]*installation{}, map[string]failure{}, map[string]bool{}
}

// Close ends the installations that are under way, and waits. No more begin.
func (is *installs) Close() {
	is.mu.Lock()
	is.cancel()
	is.mu.Unlock()
	is.wg.Wait()
}

// wanted is an installation that a job's sprite will begin with.
type wanted struct {
	store.Install // its Key is empty until identify has been called

	work  agents.Work
	limit time.Duration // of its commands, all together
}

// what is the agent, for people. Nil: there is nothing to install.
func (w *wanted) what() string {
	if w == nil {
		return "the sprite"
	}
	return strings.TrimSpace(w.Agent + " " + w.Version)
}

// wants is the installation that a job wants; nil: there is nothing to install for jobs
// to share. A job that brings folders or a PATH of its own may have the agent there. A job in
// an existing sprite has what that sprite has. A job over an image installs the agent for
// itself: an installation goes with the base that it was made over.
func (is *installs) wants(req cove.JobRequest, agent agents.Agent) (*wanted, error) {
	work, err := agents.Trial(agent, boot.Home)
	if err != nil || is.installer == nil || len(work.Install) == 0 || req.Sprite != "" || ownInstall(req) {
		return nil, err
	}
	return &wanted{store.Install{Agent: agent.Name(), Version: work.Version}, work, cove.StepLimit(req.StepLimits, cove.StepInstallAgent)}, nil
}

// ownInstall reports whether a job in a new sprite installs a missing agent there, and shares no installation.
func ownInstall(req cove.JobRequest) bool {
	ownPath := func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }
	return req.Backend != "" || len(req.Include) > 0 || req.Config != nil && req.Config.Image != "" && req.Config.Image != sprites.HostBase || slices.ContainsFunc(req.Env, ownPath)
}

// identify finds out the key of an installation. The first time that may take long: the
// base is made then.
func (is *installs) identify(ctx context.Context, w *wanted) (err error) {
	if w.Key != "" {
		return nil
	}
	if w.Key, err = installKey(ctx, is.installer, w.Agent, w.work); err == nil {
		is.based.Store(true)
	}
	return err
}

// must reports whether a job has to wait for its installation, or may have to. It need not
// wait if the installation exists, or has just failed.
func (is *installs) must(ctx context.Context, w *wanted) (bool, error) {
	if w == nil {
		return false, nil
	}
	if !is.based.Load() {
		return true, nil
	}
	if err := is.identify(ctx, w); err != nil {
		return false, err
	}
	_, err := is.store.Installs.Use(ctx, w.Key)
	if errors.Is(err, store.ErrNotFound) {
		return is.failedNow(w.Key) == nil, nil
	}
	return false, err
}

// install returns the installation for a job's agent, and installs the agent first if need be;
// show is told the progress.
func (is *installs) install(ctx context.Context, w *wanted, show showInstall) (*cove.JobInstall, error) {
	if w == nil {
		return nil, nil
	}
	if err := is.identify(ctx, w); err != nil {
		return nil, err
	}
	have, err := is.store.Installs.Use(ctx, w.Key)
	if errors.Is(err, store.ErrNotFound) {
		have, err = is.once(ctx, w, show)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		is.logger.Warn("an agent is not installed for jobs to share", "agent", w.Agent, "err", err)
		return &cove.JobInstall{Detail: fmt.Sprintf("%s is installed for this job alone: %v", w.what(), err)}, nil
	}
	return &cove.JobInstall{Key: w.Key, Detail: fmt.Sprintf("%s is from the shared installation %.12s of %s", w.what(), w.Key, have.CreatedAt.UTC().Format(time.RFC3339))}, nil
}

// installKey is the digest of all that an installation depends on.
func installKey(ctx context.Context, installer Installer, agent string, work agents.Work) (string, error) {
	base, err := installer.Fingerprint(ctx)
	if err != nil {
		return "", err
	}
	doc, err := json.Marshal(struct {
		Base, Agent, Version string
		Install              [][]string
		Verify, Env          []string
	}{base, agent, work.Version, work.Install, work.Verify, slices.Sorted(slices.Values(work.Env))})
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:]), err
}

// errUnwanted says that no job waits for an installation any more.
var errUnwanted = errors.New("no job waits for it any more")

// showInterval is how often a job is told how far its installation is.
const showInterval = 200 * time.Millisecond

// showInstall is told how far an installation is, and what its commands have printed.
type showInstall func(cove.InstallProgress, cove.StepOutput)

// once installs an agent, or waits for its installation if that is under way. An installation
// ends when nobody waits for it any more.
func (is *installs) once(ctx context.Context, w *wanted, show showInstall) (store.Install, error) {
	inst, err := is.join(w)
	if err != nil {
		return w.Install, err
	}
	defer is.leave(w.Key, inst)
	tick := time.NewTicker(showInterval)
	defer tick.Stop()
	for {
		show(inst.sofar())
		select {
		case <-inst.done:
			return inst.have, inst.err
		case <-ctx.Done():
			return w.Install, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// join finds the installation that is under way, or begins one.
func (is *installs) join(w *wanted) (*installation, error) {
	is.mu.Lock()
	defer is.mu.Unlock()
	if inst := is.underWay[w.Key]; inst != nil {
		inst.waiting++
		return inst, nil
	}
	if is.ctx.Err() != nil {
		return nil, errors.New("the server ends")
	}
	ctx, cancel := context.WithCancelCause(is.ctx)
	inst := &installation{cancel: cancel, done: make(chan struct{}), waiting: 1}
	inst.progress = cove.InstallProgress{Agent: w.what(), Since: time.Now().UTC()}
	is.underWay[w.Key] = inst
	is.wg.Go(func() {
		defer close(inst.done)
		defer cancel(nil)
		inst.have, inst.err = is.run(ctx, w, inst)
		is.forget(w.Key, inst)
	})
	return inst, nil
}

// leave says that a job does not wait for an installation any more.
func (is *installs) leave(key string, inst *installation) {
	is.mu.Lock()
	defer is.mu.Unlock()
	if inst.waiting--; inst.waiting == 0 {
		is.forgetLocked(key, inst) // before anybody can join it
		inst.cancel(errUnwanted)
	}
}

// forget has the next job that wants an installation begin anew.
func (is *installs) forget(key string, inst *installation) {
	is.mu.Lock()
	defer is.mu.Unlock()
	is.forgetLocked(key, inst)
}

func (is *installs) forgetLocked(key string, inst *installation) {
	if is.underWay[key] == inst {
		delete(is.underWay, key)
	}
}

// run installs an agent, once those that were begun before have ended.
func (is *installs) run(ctx context.Context, w *wanted, inst *installation) (store.Install, error) {
	unlock, err := is.keys.Lock(ctx, w.Key)
	if err != nil {
		return w.Install, err
	}
	defer unlock()
	if have, err := is.store.Installs.Use(ctx, w.Key); !errors.Is(err, store.ErrNotFound) {
		return have, err
	}
	if err := is.failedNow(w.Key); err != nil {
		return w.Install, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, w.limit, overtime{cove.StepInstallAgent, w.limit})
	defer cancel()
	name := store.InstallName + randomID(4)
	is.setBuilding(name, true)
	defer is.setBuilding(name, false)
	if err := is.installIn(limited, name, w, inst); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		gone := is.client.Delete(undo, name, sprites.DeleteOptions{Force: true})
		if errors.Is(gone, sprites.ErrNotFound) {
			gone = nil
		}
		err = errors.Join(err, gone)
		if late, ok := errors.AsType[overtime](context.Cause(limited)); ok {
			err = fmt.Errorf("%w: %w", late, err)
		}
		if ctx.Err() != nil { // it did not fail
			return w.Install, errors.Join(context.Cause(ctx), err)
		}
		is.noteFailure(w.Key, err)
		return w.Install, err
	}
	return is.store.Installs.Use(ctx, w.Key)
}

// failure is an installation that failed.
type failure struct {
	at  time.Time
	err error
}

// noteFailure notes that an installation failed.
func (is *installs) noteFailure(key string, err error) {
	is.mu.Lock()
	defer is.mu.Unlock()
	is.failed[key] = failure{time.Now(), err}
}

// failedNow returns the error of an installation that failed just now, so that not each
// job waits for the next to fail; nil: none did.
func (is *installs) failedNow(key string) error {
	is.mu.Lock()
	defer is.mu.Unlock()
	if f, ok := is.failed[key]; ok && time.Since(f.at) < installPause {
		return fmt.Errorf("it failed %v ago: %w", time.Since(f.at).Round(time.Second), f.err)
	}
	delete(is.failed, key)
	return nil
}

// setBuilding notes whether an agent is being installed in a sprite.
func (is *installs) setBuilding(name string, yes bool) {
	is.mu.Lock()
	defer is.mu.Unlock()
	if yes {
		is.building[name] = true
	} else {
		delete(is.building, name)
	}
}

// installIn makes a sprite, installs the agent in it, sees that it is there, and keeps
// the disk.
func (is *installs) installIn(ctx context.Context, name string, w *wanted, inst *installation) error {
	began, in := time.Now(), w.Install
	_, err := is.client.Create(ctx, sprites.CreateRequest{
		Base: sprites.HostBase, // the key depends on it
		Name: name, Owner: store.InstallOwner + in.Key,
		NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: installPreset}}},
	})
	if err != nil {
		return err
	}
	fault.Reach(fault.InstallBegun)
	sprite := is.client.Sprite(name)
	commands := append(slices.Clone(w.work.Install), w.work.Verify)
	for i, argv := range commands {
		inst.runs(i+1, len(commands))
		cmd := sprite.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env, cmd.Stdout, cmd.Stderr = w.work.Env, inst, inst
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", argv[0], err, cmp.Or(inst.String(), "it said nothing"))
		}
	}
	in.Took = time.Since(began)
	if err := is.installer.KeepInstall(ctx, name, in); err != nil {
		return err
	}
	is.logger.Info("installed an agent for jobs to share", "agent", in.Agent, "version", in.Version, "key", in.Key, "took", in.Took)
	return nil
}

// key is the key of the installation that a job's sprite begins with; empty: it begins with
// none.
func key(in *cove.JobInstall) string {
	if in == nil {
		return ""
	}
	return in.Key
}

// installCommands are the commands still needed to install an agent.
func installCommands(work agents.Work, in *cove.JobInstall) [][]string {
	if key(in) != "" {
		return nil
	}
	return work.Install
}

// needs are the programs needed to install an agent, if it is not installed yet.
func needs(work agents.Work, in *cove.JobInstall) []string {
	if key(in) != "" || work.Program == "" {
		return nil
	}
	return []string{"node"}
}

// notices are what a job's log begins with.
func notices(in *cove.JobInstall) []string {
	if in == nil {
		return nil
	}
	return []string{in.Detail}
}

// clear deletes the sprites of installations that another server began.
func (is *installs) clear(ctx context.Context) error {
	rows, err := is.store.Sprites.List(ctx, store.SpriteFilter{Prefix: store.InstallName})
	if err != nil {
		return err
	}
	var errs []error
	for _, row := range rows {
		is.mu.Lock()
		busy := is.building[row.Name]
		is.mu.Unlock()
		if busy || row.Deleting || !strings.HasPrefix(row.Owner, store.InstallOwner) {
			continue
		}
		if err := is.client.Delete(ctx, row.Name, sprites.DeleteOptions{Force: true}); err != nil && !errors.Is(err, sprites.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// drop forgets the installations that no job has begun with for as long.
func (is *installs) drop(ctx context.Context, req cove.JobGC) ([]cove.JobGCItem, error) {
	if is.installer == nil {
		return nil, nil
	}
	all, err := is.installer.Installs(ctx)
	if err != nil {
		return nil, err
	}
	var items []cove.JobGCItem
	for _, in := range all {
		age := time.Since(in.UsedAt)
		if age < seconds(req.OlderThanSec) {
			continue
		}
		gone := req.DryRun
		if !gone {
			if gone, err = is.installer.DropInstall(ctx, in); err != nil {
				return items, err
			}
		}
		if gone {
			what := strings.TrimSpace(in.Agent + " " + in.Version)
			items = append(items, cove.JobGCItem{Agent: what, Why: fmt.Sprintf("no job has begun with this installation for %v", age.Round(time.Second))})
		}
	}
	return items, nil
}
