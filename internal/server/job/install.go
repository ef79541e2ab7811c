package job

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// An agent is installed once for all the sprites that are made for its jobs: in a sprite
// of its own, whose disk is sealed then, and is what theirs begin with.

// Installer keeps what the installations of agents have left (sprite.Host).
type Installer interface {
	// Fingerprint is that of the base that new disks lie on.
	Fingerprint(ctx context.Context) (string, error)

	// KeepInstall makes what was installed in a sprite the disk that others begin
	// with. The sprite is no more.
	KeepInstall(ctx context.Context, sprite string, in store.Install) error

	// Installs are all that there are.
	Installs(ctx context.Context) ([]cove.AgentInstall, error)

	// DropInstall forgets one that was not used since it was listed.
	DropInstall(ctx context.Context, in cove.AgentInstall) (bool, error)
}

const (
	installLimit   = 15 * time.Minute
	installPause   = 5 * time.Minute // after one that failed
	installPreset  = "agent"         // the network that an agent is installed with
	maxInstallSaid = 2000            // bytes of what a command says that fails
)

// wanted is an installation that a job's sprite is to begin with.
type wanted struct {
	store.Install // its Key is empty until identify has been called

	work agents.Work
}

// what is the agent, for people.
func (w *wanted) what() string { return strings.TrimSpace(w.Agent + " " + w.Version) }

// shared is the installation that a job wants; nil: there is nothing to install for jobs
// to share. A job that brings folders or a PATH of its own may have the agent there, and
// one in a sprite that is there already has what that has.
func (m *Manager) shared(req cove.JobRequest, agent agents.Agent) (*wanted, error) {
	work, err := agents.Trial(agent, boot.Home)
	ownPath := func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }
	if err != nil || m.Installer == nil || len(work.Install) == 0 || req.Backend != "" || req.Sprite != "" ||
		len(req.Include) > 0 || slices.ContainsFunc(req.Env, ownPath) {
		return nil, err
	}
	return &wanted{store.Install{Agent: agent.Name(), Version: work.Version}, work}, nil
}

// identify finds out the key of an installation. The first time that may take long: the
// base is made then.
func (m *Manager) identify(ctx context.Context, w *wanted) (err error) {
	if w.Key != "" {
		return nil
	}
	if w.Key, err = m.installKey(ctx, w.Agent, w.work); err == nil {
		m.based.Store(true)
	}
	return err
}

// mustInstall reports whether a job has to wait for its installation, or may have to. It
// need not wait for one that is there, nor after one that failed just now.
func (m *Manager) mustInstall(ctx context.Context, w *wanted) (bool, error) {
	if w == nil {
		return false, nil
	}
	if !m.based.Load() {
		return true, nil
	}
	if err := m.identify(ctx, w); err != nil {
		return false, err
	}
	_, err := m.Store.Installs.Use(ctx, w.Key)
	if errors.Is(err, store.ErrNotFound) {
		return m.failedInstall(w.Key, nil) == nil, nil
	}
	return false, err
}

// install is where the agent of a job is from. It is installed for that if it has not
// been yet; show is told how far that is.
func (m *Manager) install(ctx context.Context, w *wanted, show func(cove.InstallProgress)) (*cove.JobInstall, error) {
	if w == nil {
		return nil, nil
	}
	if err := m.identify(ctx, w); err != nil {
		return nil, err
	}
	have, err := m.Store.Installs.Use(ctx, w.Key)
	if errors.Is(err, store.ErrNotFound) {
		have, err = m.installOnce(ctx, w, show)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		m.Logger.Warn("an agent is not installed for jobs to share", "agent", w.Agent, "err", err)
		return &cove.JobInstall{Detail: fmt.Sprintf("%s is installed for this job alone: %v", w.what(), err)}, nil
	}
	return &cove.JobInstall{Key: w.Key, Detail: fmt.Sprintf("%s is from the installation that jobs share, %.12s of %s", w.what(), w.Key, have.CreatedAt.UTC().Format(time.RFC3339))}, nil
}

// installKey is the digest of all that an installation depends on.
func (m *Manager) installKey(ctx context.Context, agent string, work agents.Work) (string, error) {
	base, err := m.Installer.Fingerprint(ctx)
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

// installation is one that is under way, for all the jobs that wait for it.
type installation struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	have   store.Install // once done is closed, as err
	err    error

	// All below are guarded by Manager.mu.
	waiting  int
	progress cove.InstallProgress
	said     tail // of the command that runs
}

// errUnwanted says that no job waits for an installation any more.
var errUnwanted = errors.New("no job waits for it any more")

// showInterval is how often a job is told how far its installation is.
const showInterval = time.Second

// installOnce installs an agent, or waits for the installation of the same that is under
// way. That ends when nobody waits for it any more.
func (m *Manager) installOnce(ctx context.Context, w *wanted, show func(cove.InstallProgress)) (store.Install, error) {
	inst, err := m.join(w)
	if err != nil {
		return w.Install, err
	}
	defer m.leave(w.Key, inst)
	tick := time.NewTicker(showInterval)
	defer tick.Stop()
	for {
		show(m.progressOf(inst))
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
func (m *Manager) join(w *wanted) (*installation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if inst := m.installing[w.Key]; inst != nil {
		inst.waiting++
		return inst, nil
	}
	if m.closed {
		return nil, errors.New("the server ends")
	}
	ctx, cancel := context.WithCancelCause(m.ctx)
	inst := &installation{cancel: cancel, done: make(chan struct{}), waiting: 1}
	inst.progress = cove.InstallProgress{Agent: w.what(), Since: time.Now().UTC()}
	m.installing[w.Key] = inst
	m.wg.Go(func() {
		defer close(inst.done)
		defer cancel(nil)
		inst.have, inst.err = m.runInstall(ctx, w, inst)
		m.forgetInstallation(w.Key, inst)
	})
	return inst, nil
}

// leave says that a job does not wait for an installation any more.
func (m *Manager) leave(key string, inst *installation) {
	m.mu.Lock()
	inst.waiting--
	unwanted := inst.waiting == 0
	m.mu.Unlock()
	if unwanted { // the next one who wants it begins anew
		m.forgetInstallation(key, inst)
		inst.cancel(errUnwanted)
	}
}

func (m *Manager) forgetInstallation(key string, inst *installation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.installing[key] == inst {
		delete(m.installing, key)
	}
}

// progressOf is how far an installation is.
func (m *Manager) progressOf(inst *installation) cove.InstallProgress {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := inst.progress
	p.Said = inst.said.line()
	return p
}

// runInstall installs an agent, once those that were begun before have ended.
func (m *Manager) runInstall(ctx context.Context, w *wanted, inst *installation) (store.Install, error) {
	unlock, err := m.locks.lock(ctx, "install "+w.Key)
	if err != nil {
		return w.Install, err
	}
	defer unlock()
	if have, err := m.Store.Installs.Use(ctx, w.Key); !errors.Is(err, store.ErrNotFound) {
		return have, err
	}
	if err := m.failedInstall(w.Key, nil); err != nil {
		return w.Install, err
	}
	limited, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	name := store.InstallName + randomID(4)
	m.setBuilding(name, true)
	defer m.setBuilding(name, false)
	if err := m.installIn(limited, name, w, inst); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		gone := m.Client.Delete(undo, name, sprites.DeleteOptions{Force: true})
		if errors.Is(gone, sprites.ErrNotFound) {
			gone = nil
		}
		err = errors.Join(err, gone)
		if ctx.Err() != nil { // it did not fail
			return w.Install, errors.Join(context.Cause(ctx), err)
		}
		return w.Install, m.failedInstall(w.Key, err)
	}
	return m.Store.Installs.Use(ctx, w.Key)
}

// failure is an installation that failed.
type failure struct {
	at  time.Time
	err error
}

// failedInstall notes that an installation failed; without an error, it returns that of
// one that failed just now, so that not each job waits for the next to fail.
func (m *Manager) failedInstall(key string, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.failed[key] = failure{time.Now(), err}
		return err
	}
	if f, ok := m.failed[key]; ok && time.Since(f.at) < installPause {
		return fmt.Errorf("it failed %v ago: %w", time.Since(f.at).Round(time.Second), f.err)
	}
	delete(m.failed, key)
	return nil
}

func (m *Manager) setBuilding(name string, yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if yes {
		m.building[name] = true
	} else {
		delete(m.building, name)
	}
}

// installIn makes a sprite, installs the agent in it, sees that it is there, and keeps
// the disk.
func (m *Manager) installIn(ctx context.Context, name string, w *wanted, inst *installation) error {
	began, in := time.Now(), w.Install
	_, err := m.Client.Create(ctx, sprites.CreateRequest{
		Name: name, Owner: store.InstallOwner + in.Key,
		NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: installPreset}}},
	})
	if err != nil {
		return err
	}
	fault.Reach(fault.InstallBegun)
	sprite := m.Client.Sprite(name)
	commands := append(slices.Clone(w.work.Install), w.work.Verify)
	for i, argv := range commands {
		m.mu.Lock()
		inst.said = tail{}
		inst.progress.Command, inst.progress.Commands = i+1, len(commands)
		m.mu.Unlock()
		said := installOutput{m, inst}
		cmd := sprite.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env, cmd.Stdout, cmd.Stderr = w.work.Env, said, said
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", argv[0], err, cmp.Or(said.String(), "it said nothing"))
		}
	}
	in.Took = time.Since(began)
	if err := m.Installer.KeepInstall(ctx, name, in); err != nil {
		return err
	}
	m.Logger.Info("installed an agent for jobs to share", "agent", in.Agent, "version", in.Version, "key", in.Key, "took", in.Took)
	return nil
}

// installOutput takes what the command of an installation says.
type installOutput struct {
	m    *Manager
	inst *installation
}

func (o installOutput) Write(p []byte) (int, error) {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	return o.inst.said.Write(p)
}

func (o installOutput) String() string {
	o.m.mu.Lock()
	defer o.m.mu.Unlock()
	return o.inst.said.String()
}

// tail is the last of what a command says.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-maxInstallSaid):]
	return len(p), nil
}

func (t *tail) String() string { return string(bytes.ToValidUTF8(bytes.TrimSpace(t.buf), []byte("?"))) }

// maxSaidLine is how many characters of a line a job's row has.
const maxSaidLine = 160

// line is the last line, without what a terminal would obey.
func (t *tail) line() string {
	text := strings.TrimRight(string(bytes.ToValidUTF8(t.buf, []byte("?"))), "\r\n \t")
	text = text[strings.LastIndexAny(text, "\r\n")+1:]
	runes := []rune(strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text))
	return strings.TrimSpace(string(runes[:min(len(runes), maxSaidLine)]))
}

// key is that of the install that a job's sprite begins with; empty: with none.
func key(in *cove.JobInstall) string {
	if in == nil {
		return ""
	}
	return in.Key
}

// furnishAlone is furnishAll for a job whose agent is not installed yet.
func (m *Manager) furnishAlone(ctx context.Context, job cove.Job, req cove.JobRequest) (made bool, err error) {
	job.Install = &cove.JobInstall{Detail: job.Agent + " is installed for this job alone: the shared installation was removed"}
	if err := m.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error { j.Install = job.Install; return nil }); err != nil {
		return false, err
	}
	return m.furnishAll(ctx, job, req)
}

// commands are what is left to do of an agent's before it starts.
func commands(work agents.Work, in *cove.JobInstall) [][]string {
	if key(in) != "" {
		return work.Setup
	}
	return work.Commands()
}

// notices are what a job's log begins with.
func notices(in *cove.JobInstall) []string {
	if in == nil {
		return nil
	}
	return []string{in.Detail}
}

// clearInstalls deletes the sprites of installations that another server began.
func (m *Manager) clearInstalls(ctx context.Context) error {
	rows, err := m.Store.Sprites.List(ctx, store.SpriteFilter{Prefix: store.InstallName})
	if err != nil {
		return err
	}
	var errs []error
	for _, row := range rows {
		m.mu.Lock()
		busy := m.building[row.Name]
		m.mu.Unlock()
		if busy || row.Deleting || !strings.HasPrefix(row.Owner, store.InstallOwner) {
			continue
		}
		if err := m.Client.Delete(ctx, row.Name, sprites.DeleteOptions{Force: true}); err != nil && !errors.Is(err, sprites.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// dropInstalls forgets the installations that no job has begun with for as long.
func (m *Manager) dropInstalls(ctx context.Context, req cove.JobGC) ([]cove.JobGCItem, error) {
	if m.Installer == nil {
		return nil, nil
	}
	all, err := m.Installer.Installs(ctx)
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
			if gone, err = m.Installer.DropInstall(ctx, in); err != nil {
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
