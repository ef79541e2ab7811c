package job

import (
	"context"
	"errors"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// intake decides which requests become jobs. It asks the store and the server for the
// connectors that there are, and changes nothing.
type intake struct {
	connectors *connectors
	secrets    *store.Secrets
	client     *cove.Client
	namesOnly  func(context.Context, sprites.NetworkPolicy) (sprites.NetworkPolicy, error) // nil: backends have no policies
}

// settle refuses a request that could not become a job, and fills in what it leaves to the
// server. It makes nothing.
func (in *intake) settle(ctx context.Context, req cove.JobRequest) (_ cove.JobRequest, _ agents.Agent, work agents.Work, _ error) {
	if req.Author == (cove.Person{}) { // git commits by nobody
		req.Author = cove.Person{Name: "cove", Email: "cove@localhost"}
	}
	if req.Repository == "" && req.URL != "" {
		req.Repository = strings.TrimSuffix(path.Base(req.URL), ".git")
	}
	agent, err := check(req)
	if err != nil {
		return req, nil, work, err
	}
	if err := checkSettings(req.Settings); err != nil {
		return req, nil, work, err
	}
	if err := in.checkSecrets(ctx, req.Env); err != nil {
		return req, nil, work, err
	}
	for _, s := range req.MCP {
		if err := in.checkSecrets(ctx, s.Env); err != nil {
			return req, nil, work, err
		}
	}
	if req.Skill, err = checkSkill(req.Skill); err != nil {
		return req, nil, work, err
	}
	if err := in.checkMCP(ctx, req, agent); err != nil {
		return req, nil, work, err
	}
	if req.Login, err = in.login(ctx, req, agent); err != nil {
		return req, nil, work, err
	}
	if req, err = in.choose(ctx, req, agent); err != nil {
		return req, nil, work, err
	}
	work, err = agent.Prepare(task(req, "000000"))
	if err != nil {
		return req, nil, work, fail.Newf("bad_plan", "", "%v", err)
	}
	if req.Backend != "" {
		if req, err = in.atBackend(ctx, req, work); err != nil {
			return req, nil, work, err
		}
	}
	if err := in.connectors.checkRepository(ctx, req); err != nil {
		return req, nil, work, err
	}
	if err := in.checkKey(ctx, req, work); err != nil {
		return req, nil, work, err
	}
	if req.Guards.Turns > 0 && work.Turn == nil {
		return req, nil, work, fail.Newf("bad_request", "leave out --max-turns", "the agent %s does not report its turns", req.Agent)
	}
	return req, agent, work, nil
}

// preview says what Create would make of a request, or refuses it as Create would. It makes
// nothing. It does not check whether a sprite of a backend exists.
func (in *intake) preview(ctx context.Context, req cove.JobRequest) (cove.JobPreview, error) {
	req, agent, work, err := in.settle(ctx, req)
	if err != nil {
		return cove.JobPreview{}, err
	}
	if req.Sprite != "" && req.Backend == "" {
		if _, err := in.client.Get(ctx, req.Sprite); err != nil {
			return cove.JobPreview{}, err
		}
	}
	p := cove.JobPreview{
		Agent: agent.Name(), AgentVersion: work.Version, Model: req.Model, Backend: req.Backend, Sprite: req.Sprite,
		EnvNames: envNames(work.Env, req.Env), Secrets: connect.EnvSecrets(slices.Concat(req.Env, cove.MCPEnv(req.MCP))), Settings: settingsPaths(req.Settings), Guards: req.Guards, TimeoutSec: req.TimeoutSec, NetworkPolicy: req.NetworkPolicy,
	}
	if warning, err := in.connectors.unreachable(ctx, req); err != nil {
		return p, err
	} else if warning != "" {
		p.Warnings = append(p.Warnings, warning)
	}
	p.Installs = len(work.Install) > 0 && req.Sprite == "" && ownInstall(req)
	if s, ok := agent.(agents.Subscriber); ok && req.Login == cove.LoginInside {
		p.Hosts = s.Login().Hosts
	}
	if req.Backend != "" { // it has no connectors
		p.Hosts = append(slices.Clone(p.Hosts), upstreams(work.Connectors)...)
		return p, nil
	}
	secrets, err := in.client.Secrets(ctx)
	for _, name := range work.Connectors {
		c, getErr := in.connectors.store.Get(ctx, name)
		if errors.Is(getErr, store.ErrNotFound) {
			c, getErr = connect.Complete(cove.Connector{Name: name}), nil
		}
		err = errors.Join(err, getErr)
		missing := slices.ContainsFunc(connect.SecretsOf(c), func(needed string) bool {
			return !slices.ContainsFunc(secrets, func(s cove.Secret) bool { return s.Name == needed })
		})
		p.Connectors = append(p.Connectors, cove.JobConnector{Name: name, Upstream: c.Upstream, SecretSet: !missing})
	}
	return p, err
}

// upstreams are the hosts that connectors of an agent's are known to lead to.
func upstreams(connectors []string) (hosts []string) {
	for _, name := range connectors {
		if u, err := url.Parse(connect.Complete(cove.Connector{Name: name}).Upstream); err == nil && u.Hostname() != "" {
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts
}

// checkKey refuses a request if a connector that its agent needs has no key. The agent would
// be installed first, and then fail in words of its own. Nothing is checked at a backend, or
// if a folder, an existing sprite or a variable may bring a key.
func (in *intake) checkKey(ctx context.Context, req cove.JobRequest, work agents.Work) error {
	own := envNames(work.Env, work.Keys) // which may say where the model is, or have its key
	if len(work.Keys) == 0 || req.Backend != "" || req.Sprite != "" || len(req.Include) > 0 ||
		slices.ContainsFunc(envNames(req.Env), func(name string) bool { return slices.Contains(own, name) }) {
		return nil
	}
	for _, name := range work.Connectors {
		if missing, err := in.connectors.missing(ctx, name); err != nil {
			return err
		} else if missing != "" {
			return fail.Newf("no_key", missing, "the connector %s, which the agent %s needs, has no key", name, req.Agent)
		}
	}
	return nil
}

// atBackend makes of a request one that can be fulfilled at its backend.
func (in *intake) atBackend(ctx context.Context, req cove.JobRequest, work agents.Work) (cove.JobRequest, error) {
	if len(req.Include) > 0 {
		return req, fail.Newf("bad_request", "leave out --include", "folders of this machine can't be in a sprite of the backend %s", req.Backend)
	}
	given := func(name string) bool {
		return slices.ContainsFunc(req.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	if len(work.Keys) > 0 && !slices.ContainsFunc(work.Keys, given) {
		return req, fail.Newf("no_key", "give it a key, which will be inside the sprite: --env "+work.Keys[0]+"=…, or a line in .cove/sandbox.env",
			"the agent %s needs a key: connectors, which keep a key outside, are not available at the backend %s", req.Agent, req.Backend)
	}
	if req.NetworkPolicy == nil {
		return req, nil
	}
	if in.namesOnly == nil {
		return req, fail.Newf("bad_request", "", "this server has no policies for backends")
	}
	plain, err := in.namesOnly(ctx, *req.NetworkPolicy)
	req.NetworkPolicy = &plain
	return req, err
}
