package sprite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// setConnectorsLimit is for a shim to take its sandbox's connectors.
const setConnectorsLimit = time.Minute

// connectors are those of a sprite, with their secrets: those that the server was
// started with, and those that are granted to it. A connector with a missing secret is
// among them, and says so.
func (n *network) connectors(ctx context.Context, name string) (map[string]connect.Upstream, error) {
	granted, err := n.store.Connectors.Granted(ctx, name)
	if err != nil {
		return nil, err
	}
	all := map[string]connect.Upstream{}
	if strings.HasPrefix(name, store.BuildName) {
		row, err := n.store.Sprites.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		if row.Owner == store.BuildOwner { // what a Dockerfile runs has nobody's credentials
			return all, nil
		}
	}
	maps.Copy(all, n.given)
	for _, c := range granted {
		missing := c.Secret
		u, err := connect.Resolve(c, func(name string) (connect.Value, error) {
			missing = name
			return n.store.Secrets.Whole(ctx, name)
		})
		switch {
		case errors.Is(err, store.ErrNotFound):
			u = connect.Upstream{Refused: "the secret that it adds is not set", Hint: "on the host: cove secret set " + missing}
		case errors.Is(err, connect.ErrNoLogin):
			u = connect.Upstream{Refused: err.Error(), Hint: "on the host: cove secret set " + c.Secret + " --from-login"}
		case errors.Is(err, store.ErrKey):
			n.logger.Error("reading the secret of a connector", "connector", c.Name, "err", err)
			u = connect.Upstream{Refused: "the secret that it adds can't be read", Hint: "see the log of the server"}
		case err != nil:
			return nil, fmt.Errorf("connector %s: %w", c.Name, err)
		}
		u.Limit(c.Grants)
		all[c.Name] = u
	}
	return all, nil
}

// SyncConnectors brings every running sandbox to its connectors, after secrets,
// connectors, grants or labels have changed in the store. When it returns without an
// error, each has what the store says.
func (h *Host) SyncConnectors(ctx context.Context) error {
	h.network.changes.Add(1) // a sandbox that boots or wakes meanwhile looks again
	live := map[string]Sandbox{}
	for _, m := range h.machines.list() {
		if sb := m.now().sandbox; sb != nil {
			live[m.name] = sb
		}
	}
	var mu sync.Mutex
	var errs error
	var wg sync.WaitGroup
	for name, sb := range live {
		wg.Go(func() {
			if err := h.network.tellConnectors(context.WithoutCancel(ctx), name, sb); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = errors.Join(errs, err)
			}
		})
	}
	wg.Wait()
	return errs
}

// tellConnectors brings a sandbox to its sprite's connectors: those that were stored last
// are in force. A guest that is slow holds up its own sprite.
func (n *network) tellConnectors(ctx context.Context, name string, sb Sandbox) error {
	done, err := n.setting.lock(ctx, "the connectors of "+sb.ID())
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), setConnectorsLimit)
	defer cancel()
	all, err := n.connectors(ctx, name)
	if err == nil {
		err = sb.SetConnectors(ctx, all)
	}
	if err == nil { // that git inside knows, too, is up to those inside
		n.showGit(ctx, name, sb, connect.GitConfig(all))
	}
	if err != nil && !endsSoon(ctx, sb) {
		e := fail.Newf(CodeUnavailable, "restart the sprite, which then has all connectors that are granted to it: cove restart "+name, "the running sandbox of %s did not get its connectors", name)
		e.Err = err
		return e
	}
	return nil
}

// showGit has the guest tell git how it reaches connectors.
func (n *network) showGit(ctx context.Context, name string, sb Sandbox, config string) {
	ctx, cancel := context.WithTimeout(ctx, showLimit)
	defer cancel()
	_, err := askGuest(ctx, sb, http.MethodPut, "git/config", []byte(config))
	n.noteUndelivered("setting up git in a sandbox for its connectors", name, sb, err)
}

// reviveConnectors tells a sandbox that was found running, or whose connectors
// changed while it was booted, its connectors.
func (n *network) reviveConnectors(name string, sb Sandbox) {
	if err := n.tellConnectors(n.tasks.ctx, name, sb); err != nil && n.tasks.ctx.Err() == nil {
		n.logger.Error("sending a sandbox its connectors", "sprite", name, "err", err)
	}
}
