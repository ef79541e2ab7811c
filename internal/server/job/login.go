package job

import (
	"context"
	"slices"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// login is how a request's agent asks its model. It refuses a login that the agent can't have,
// that is not there, or whose token has expired.
func (in *intake) login(ctx context.Context, req cove.JobRequest, agent agents.Agent) (string, error) {
	if err := agents.CheckLogin(agent, req.Login); err != nil || req.Login == cove.LoginKey {
		return req.Login, err
	}
	s, ok := agent.(agents.Subscriber)
	if !ok {
		return "", nil
	}
	of := s.Login()
	req.Login = agents.LoginOf(agent, req.Login, req.Env)
	switch {
	case req.Login == cove.LoginInside:
		return cove.LoginInside, nil
	case of.Connector == "":
		return "", nil
	case req.Backend != "" && req.Login == "":
		return "", nil
	case req.Backend != "":
		return "", fail.Newf("bad_request", "use --login inside", "connectors, which keep a login outside, are not available at the backend %s", req.Backend)
	}
	secrets, err := in.client.Secrets(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(secrets, func(s cove.Secret) bool { return s.Name == of.Connector && s.Login != nil })
	switch {
	case i < 0 && req.Login == "":
		return "", nil
	case i < 0:
		return "", fail.Newf("no_login", "cove secret set "+of.Connector+" --from-login", "the server has no login for the agent %s", req.Agent)
	case secrets[i].Login.Expired(time.Now()):
		return "", fail.Newf("login_expired", connect.LoginHint(of.Connector, *secrets[i].Login)+"; or use a key: --login key",
			"the token of the login %s, which the agent %s uses for its model, has expired", of.Connector, req.Agent)
	}
	return cove.LoginOutside, nil
}
