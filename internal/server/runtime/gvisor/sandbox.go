package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// sandbox is a live sandbox, behind its shim.
type sandbox struct {
	id     string
	client shim.Client
	folder folder
	base   *preparer
	layers *layerStore
	closed <-chan struct{} // when the Runtime is
	done   chan struct{}

	mu      sync.Mutex
	state   shim.State  // guarded by mu
	down    string      // why it has no shim, and so no network; guarded by mu
	ended   string      // guarded by mu
	network *policy.Set // the last that was set; nil: none yet; guarded by mu

	connectors map[string]connect.Upstream // likewise; guarded by mu
}

// A Host looks for these when it needs one.
var (
	_ sprite.Pauser       = (*sandbox)(nil)
	_ sprite.Hibernator   = (*sandbox)(nil)
	_ sprite.Checkpointer = (*sandbox)(nil)
	_ sprite.Assigner     = (*sandbox)(nil)
)

func (s *sandbox) ID() string            { return s.id }
func (s *sandbox) Done() <-chan struct{} { return s.done }

func (s *sandbox) setState(st shim.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.down = st, ""
}

// adopted is setState for what the next shim has found. It may have been told since to
// pause the sandbox, or to let it go on.
func (s *sandbox) adopted(st shim.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Paused = s.state.Paused
	s.state, s.down = st, ""
}

func (s *sandbox) setDown(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = why
}

func (s *sandbox) end(reason string) {
	s.mu.Lock()
	s.ended = reason
	s.mu.Unlock()
	close(s.done)
}

// Dial opens a connection to a port of the sandbox, or to its guest's API.
func (s *sandbox) Dial(ctx context.Context, port int) (conn net.Conn, err error) {
	if port == boot.API && s.Status().Token != "" {
		port = boot.Port // its guest knows no handshake, and maybe its shim neither
	}
	// The guest may not listen yet, or not any more. Any other port may refuse at once.
	guest, until := port == boot.API || port == boot.Port, time.Now().Add(guestPatience)
	lost := func(err error) bool {
		return shim.Died(err) || guest && errors.Is(err, syscall.ECONNREFUSED) && time.Now().Before(until)
	}
	err = s.told(ctx, lost, func() (err error) {
		conn, err = s.client.Dial(ctx, port)
		return err
	})
	return conn, err
}

// guestPatience is for a guest that takes no connections.
const guestPatience = 2 * time.Second

// Limit gives the sandbox other limits.
func (s *sandbox) Limit(ctx context.Context, memoryMB, cpus int) error {
	share := shareOf(cgroup.Process{}.Limits(), memoryMB, cpus)
	err := s.told(ctx, shim.Died, func() error {
		return s.client.SetLimits(ctx, shim.Limits{MemoryMB: share.memoryMB, CPUs: share.cpus})
	})
	if text, is := strings.CutPrefix(fmt.Sprint(err), "shim: "+shim.ErrMemoryUsed.Error()); is && errors.Is(err, shim.ErrMemoryUsed) {
		return fmt.Errorf("%w%s", sprite.ErrMemoryUsed, text)
	}
	return err
}

// SetNetwork replaces what the sandbox's network is decided by.
func (s *sandbox) SetNetwork(ctx context.Context, set policy.Set) error {
	s.setNetwork(set) // which a shim that is about to be started gets
	return s.told(ctx, shim.Died, func() error { return s.client.SetNetwork(ctx, set) })
}

func (s *sandbox) setNetwork(set policy.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.network = &set
}

// SetConnectors replaces the sandbox's connectors.
func (s *sandbox) SetConnectors(ctx context.Context, all map[string]connect.Upstream) error {
	s.setConnectors(all) // likewise
	return s.told(ctx, shim.Died, func() error { return s.client.SetConnectors(ctx, all) })
}

func (s *sandbox) setConnectors(all map[string]connect.Upstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connectors = all
}

// last returns what was set last, for another shim.
func (s *sandbox) last() (*policy.Set, map[string]connect.Upstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.network, s.connectors
}

// Status describes the sandbox.
func (s *sandbox) Status() sprite.SandboxStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sprite.SandboxStatus{
		Hostname: s.state.Hostname, Incarnation: s.state.Incarnation, Layers: s.state.Layers, Address: s.state.Address, Address6: s.state.Address6,
		Token: bearer(s.state), Started: s.state.Started, Paused: s.state.Paused, Stopping: s.state.Stopping, Unlimited: s.state.Unlimited,
		NetworkDown: s.down, Ended: s.ended, Woken: s.state.Woken, Unused: s.state.Unused,
	}
}

// bearer is the token that a guest without a handshake wants.
func bearer(st shim.State) string {
	if st.Handshake > 0 {
		return ""
	}
	return st.Token
}

// Checkpoint moves the sandbox to a disk with another layer to write.
func (s *sandbox) Checkpoint(ctx context.Context, chain []string, memory sprite.Memory) (sprite.Pause, error) {
	on, err := s.ground(ctx, chain)
	if err != nil {
		return sprite.Pause{}, err
	}
	req := shim.Checkpoint{Layers: chain, Disk: s.layers.disk(chain, on), Always: memory.Always, Leave: memory.Leave}
	if memory.Name != "" {
		if req.Keep, err = s.folder.memory(memory.Name); err != nil {
			return sprite.Pause{}, err
		}
	}
	var done shim.Checkpointed
	err = s.told(ctx, shim.IsNoShim, func() (err error) {
		done, err = s.client.Checkpoint(ctx, req)
		return err
	})
	if err != nil {
		s.awaitEnd(err)
		return sprite.Pause{}, unsavable(err)
	}
	s.setState(done.State)
	return sprite.Pause{
		Total: done.Pause, Save: done.Save, Mount: done.Mount, Copy: done.Copy, Restore: done.Restore, Copied: done.Copied,
		Kept: done.Kept, NotKept: done.NotKept, Open: done.Open,
	}, nil
}

// ground is what another chain of layers for the sandbox's disk lies on: the same as the disk.
func (s *sandbox) ground(ctx context.Context, chain []string) (ground, error) {
	if now := s.Status().Layers; len(now) > 0 && len(chain) > 0 && now[0] != chain[0] {
		if err := s.layers.inherit(chain[0], now[0]); err != nil {
			return ground{}, err
		}
	}
	return s.layers.ground(ctx, disk{chain: chain}, s.base.prepare)
}

// Settle asks the shim which layers the sandbox has, once it does not move any more,
// nor will to this layer. If its shim has died, the next one is asked.
func (s *sandbox) Settle(ctx context.Context, layer string) ([]string, error) {
	for {
		st, err := s.client.Settle(ctx, layer)
		switch {
		case err == nil:
			s.setState(st)
			return st.Layers, nil
		case !shim.Died(err):
			s.awaitEnd(err)
			return nil, err
		}
		select {
		case <-s.done:
			return nil, err
		case <-ctx.Done():
			return nil, err
		case <-time.After(stopPause):
		}
	}
}

// awaitEnd waits until the sandbox is done, if err says that it has ended. It has a
// time limit of its own, because the caller's may be over.
func (s *sandbox) awaitEnd(err error) {
	if !errors.Is(err, shim.ErrEnded) {
		return
	}
	select {
	case <-s.done:
	case <-time.After(endLimit):
	case <-s.closed:
	}
}

// Hibernate saves the sandbox's memory, and ends it.
func (s *sandbox) Hibernate(ctx context.Context) error {
	dir := s.folder.image(s.id)
	if err := s.told(ctx, shim.IsNoShim, func() error { return s.client.Hibernate(ctx, dir) }); err != nil {
		s.awaitEnd(err)
		select {
		case <-s.done:
			if s.folder.warm(s.id) {
				return nil // the answer was lost, and not the memory
			}
			return err
		default:
			if room, is := shim.RoomOf(err); is {
				return &sprite.NoRoomError{Free: room.Free, Needed: room.Needed}
			}
			return unsavable(err)
		}
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Assign makes a sandbox that was booted for nobody that of a sprite.
func (s *sandbox) Assign(ctx context.Context, m sprite.Machine) error {
	shown, err := json.Marshal(m.NetworkPolicy)
	if err != nil {
		return err
	}
	st, err := s.client.Assign(ctx, shim.Assignment{
		Hostname: m.Hostname, MachineID: m.MachineID, Incarnation: m.Incarnation, Token: newToken(),
		Env: m.Env, Connectors: m.Connectors, Network: m.Network, NetworkPolicy: shown,
	})
	if err != nil {
		return err
	}
	s.setNetwork(m.Network)
	s.setConnectors(m.Connectors)
	s.setState(st)
	return nil
}

// newToken is the key of a guest's API.
func newToken() string {
	token := make([]byte, 32)
	_, _ = rand.Read(token) // never fails
	return hex.EncodeToString(token)
}

// Pause freezes the sandbox in memory.
func (s *sandbox) Pause(ctx context.Context) error { return s.freeze(ctx, true, s.client.Pause) }

// Resume undoes Pause.
func (s *sandbox) Resume(ctx context.Context) error { return s.freeze(ctx, false, s.client.Resume) }

// freeze changes whether the sandbox is paused. If its shim has died, the next one is
// told.
func (s *sandbox) freeze(ctx context.Context, paused bool, call func(context.Context) error) error {
	for {
		err := call(ctx)
		switch {
		case err == nil:
			s.mu.Lock()
			defer s.mu.Unlock()
			s.state.Paused = paused
			return nil
		case !shim.Died(err):
			s.awaitEnd(err)
			s.learnPaused()
			return err
		}
		select {
		case <-s.done:
			return err
		case <-ctx.Done():
			s.learnPaused()
			return err
		case <-time.After(stopPause):
		}
	}
}

// learnPaused asks whether the sandbox is paused, after the answer of a call was lost.
// If nobody knows, it counts as paused: to resume one that runs changes nothing.
func (s *sandbox) learnPaused() {
	ctx, cancel := context.WithTimeout(context.Background(), statusLimit)
	defer cancel()
	st, err := s.client.Status(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Paused = err != nil || st.Paused
}
