package job

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
)

// choose names the model of a request whose agent can ask several. It takes the agent's first
// that has a connector, or at a backend a key. It refuses a model that could not be asked, and
// a cost limit that nobody would keep.
func (in *intake) choose(ctx context.Context, req cove.JobRequest, agent agents.Agent) (cove.JobRequest, error) {
	chooser, ok := agent.(agents.Chooser)
	if !ok && req.Guards.CostUSD > 0 {
		return req, fail.Newf("bad_request", "leave out --max-cost, or limit the connector: cove connector put NAME --limit 5usd/day",
			"the agent %s does not watch what its model costs", req.Agent)
	}
	if !ok {
		return req, nil
	}
	models := chooser.Models()
	if req.Model != "" {
		models = []string{req.Model}
	}
	var hint string
	for _, model := range models {
		missing, err := in.cannotAsk(ctx, req, agent, model)
		if err != nil {
			return req, err
		}
		if missing != "" {
			hint = cmp.Or(hint, missing)
			continue
		}
		req.Model = model
		price, err := in.connectors.price(ctx, req)
		if err == nil && price == nil && req.Guards.CostUSD > 0 {
			provider, name, _ := strings.Cut(model, "/")
			err = fail.Newf("no_price", "cove connector put "+provider+" --price '"+name+"=INPUT/OUTPUT', in dollars for a million tokens",
				"the price of %s is not known, so its cost can't be limited", model)
		}
		return req, err
	}
	if req.Backend != "" {
		return req, nil // atBackend says which key is missing
	}
	return req, fail.Newf("no_key", hint, "there is no key for %s", strings.Join(models, ", nor for "))
}

// cannotAsk is what to type before there is a connector, or at a backend a key, for a
// model; empty: there is. A model that the agent does not know is the agent's to refuse.
func (in *intake) cannotAsk(ctx context.Context, req cove.JobRequest, agent agents.Agent, model string) (missing string, err error) {
	t := task(req, "000000")
	t.Model, t.MCP = model, nil
	work, err := agent.Prepare(t)
	if err != nil {
		return "", fail.Newf("bad_plan", "", "%v", err)
	}
	if req.Backend != "" {
		given := func(kv string) bool {
			name, _, _ := strings.Cut(kv, "=")
			return slices.Contains(work.Keys, name)
		}
		if !slices.ContainsFunc(req.Env, given) {
			missing = "--env " + work.Keys[0] + "=…"
		}
		return missing, nil
	}
	for _, name := range work.Connectors {
		if missing, err := in.connectors.missing(ctx, name); err != nil || missing != "" {
			return missing, err
		}
	}
	return "", nil
}
