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

	"github.com/cove-dev/cove/internal/agents"
	"github.com/cove-dev/cove/internal/boot"
	"github.com/cove-dev/cove/internal/fault"
	"github.com/cove-dev/cove/internal/store"
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
	Installs(ctx context.Context) ([]sprites.AgentInstall, error)

	// DropInstall forgets one that was not used since it was listed.
	DropInstall(ctx context.Context, in sprites.AgentInstall) (bool, error)
}

const (
	installLimit   = 15 * time.Minute
	installPause   = 5 * time.Minute // after one that failed
	installPreset  = "agent"         // the network that an agent is installed with
	maxInstallSaid = 2000            // bytes of what a command says that fails
)

// install is where the agent of a job is from, for which it is installed if it has not
// been yet; nil: there is nothing to install. A job that brings folders or a PATH of its
// own may have it there, and one in a sprite that is there already has what that has.
func (m *Manager) install(ctx context.Context, req sprites.JobRequest, agent agents.Agent) (*sprites.JobInstall, error) {
	work, err := agents.Trial(agent, boot.Home)
	ownPath := func(kv string) bool { return strings.HasPrefix(kv, "PATH=") }
	if err != nil || m.Installer == nil || len(work.Install) == 0 || req.Backend != "" || req.Sprite != "" ||
		len(req.Include) > 0 || slices.ContainsFunc(req.Env, ownPath) {
		return nil, err
	}
	in := store.Install{Agent: agent.Name(), Version: work.Version}
	if in.Key, err = m.installKey(ctx, in.Agent, work); err != nil {
		return nil, err
	}
	have, err := m.Store.Installs.Use(ctx, in.Key)
	if errors.Is(err, store.ErrNotFound) {
		have, err = m.installOnce(ctx, in, work)
	}
	what := strings.TrimSpace(in.Agent + " " + in.Version)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		m.Logger.Warn("an agent is not installed for jobs to share", "agent", in.Agent, "err", err)
		return &sprites.JobInstall{Detail: fmt.Sprintf("%s is installed for this job alone: %v", what, err)}, nil
	}
	return &sprites.JobInstall{Key: in.Key, Detail: fmt.Sprintf("%s is from the installation that jobs share, %.12s of %s", what, in.Key, have.CreatedAt.UTC().Format(time.RFC3339))}, nil
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

// installOnce installs an agent, unless somebody else has meanwhile: who needs the same
// waits. It goes on when the one who asked is gone.
func (m *Manager) installOnce(ctx context.Context, in store.Install, work agents.Work) (store.Install, error) {
	unlock, err := m.locks.lock(ctx, "install "+in.Key)
	if err != nil {
		return in, err
	}
	defer unlock()
	if have, err := m.Store.Installs.Use(ctx, in.Key); !errors.Is(err, store.ErrNotFound) {
		return have, err
	}
	if err := m.failedInstall(in.Key, nil); err != nil {
		return in, err
	}
	ctx, cancel := context.WithTimeout(m.ctx, installLimit)
	defer cancel()
	name := store.InstallName + randomID(4)
	m.setBuilding(name, true)
	defer m.setBuilding(name, false)
	if err := m.installIn(ctx, name, in, work); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		gone := m.Client.Delete(undo, name, sprites.DeleteOptions{Force: true})
		if errors.Is(gone, sprites.ErrNotFound) {
			gone = nil
		}
		return in, m.failedInstall(in.Key, errors.Join(err, gone))
	}
	return m.Store.Installs.Use(ctx, in.Key)
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
func (m *Manager) installIn(ctx context.Context, name string, in store.Install, work agents.Work) error {
	began := time.Now()
	_, err := m.Client.Create(ctx, sprites.CreateRequest{
		Name: name, Owner: store.InstallOwner + in.Key,
		NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: installPreset}}},
	})
	if err != nil {
		return err
	}
	fault.Reach(fault.InstallBegun)
	sprite := m.Client.Sprite(name)
	for _, argv := range append(slices.Clone(work.Install), work.Verify) {
		var said tail
		cmd := sprite.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env, cmd.Stdout, cmd.Stderr = work.Env, &said, &said
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

// tail is the last of what a command says.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-maxInstallSaid):]
	return len(p), nil
}

func (t *tail) String() string { return string(bytes.ToValidUTF8(bytes.TrimSpace(t.buf), []byte("?"))) }

// key is that of the install that a job's sprite begins with; empty: with none.
func key(in *sprites.JobInstall) string {
	if in == nil {
		return ""
	}
	return in.Key
}

// furnishAlone is furnishAll for a job whose agent is not installed yet.
func (m *Manager) furnishAlone(ctx context.Context, job sprites.Job, req sprites.JobRequest) (made bool, err error) {
	job.Install = &sprites.JobInstall{Detail: job.Agent + " is installed for this job alone: the shared installation was removed"}
	if err := m.Store.Jobs.Update(ctx, job.ID, func(j *sprites.Job) error { j.Install = job.Install; return nil }); err != nil {
		return false, err
	}
	return m.furnishAll(ctx, job, req)
}

// commands are what is left to do of an agent's before it starts.
func commands(work agents.Work, in *sprites.JobInstall) [][]string {
	if key(in) != "" {
		return work.Setup
	}
	return work.Commands()
}

// notices are what a job's log begins with.
func notices(in *sprites.JobInstall) []string {
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
func (m *Manager) dropInstalls(ctx context.Context, req sprites.JobGC) ([]sprites.JobGCItem, error) {
	if m.Installer == nil {
		return nil, nil
	}
	all, err := m.Installer.Installs(ctx)
	if err != nil {
		return nil, err
	}
	var items []sprites.JobGCItem
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
			items = append(items, sprites.JobGCItem{Agent: what, Why: fmt.Sprintf("no job has begun with this installation for %v", age.Round(time.Second))})
		}
	}
	return items, nil
}
