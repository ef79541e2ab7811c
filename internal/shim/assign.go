package shim

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// Assignment makes a sandbox that was started for no sprite the sandbox of one. It has
// all parts of a Config that are not fixed when a sandbox starts.
type Assignment struct {
	Hostname    string
	MachineID   string
	Incarnation int64
	Token       string // the guest's next key is made with it
	Env         map[string]string
	Connectors  map[string]connect.Upstream
	Network     policy.Set

	NetworkPolicy json.RawMessage
}

// assign makes the sandbox a sprite's. The guest is told before the state file is
// written: until then the file has the name that the sandbox was started with. After
// an error the sandbox may be half assigned, and must be ended. The caller holds
// moves.turn.
func (s *Shim) assign(ctx context.Context, a Assignment) error {
	st := s.record.get()
	if st.Paused {
		return errors.New("the sandbox is paused")
	}
	if err := s.network.gw.SetConnectors(a.Connectors); err != nil {
		return err
	}
	s.network.decide(a.Network)
	s.cfg.Hostname, s.cfg.MachineID, s.cfg.Incarnation, s.cfg.Token = a.Hostname, a.MachineID, a.Incarnation, a.Token
	s.cfg.Env, s.cfg.Connectors, s.cfg.NetworkPolicy = a.Env, a.Connectors, a.NetworkPolicy
	spec, err := s.folder.readBundle(st)
	if err != nil {
		return err
	}
	spec.Hostname = a.Hostname
	if err := s.containers.saveBundle(st, spec); err != nil {
		return err
	}
	if err := s.introduce(ctx, st); err != nil {
		return err
	}
	fault.Reach(fault.TakeTold)
	err = s.record.set(func(st *State) { st.Hostname, st.Token = a.Hostname, boot.NextKey(st.Token, a.Token) })
	fault.Reach(fault.TakeNoted)
	return err
}
