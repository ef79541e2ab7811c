package server

import (
	"net/http"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// policyRoutes has the network policies of sprites, and tells what came of them.
type policyRoutes struct {
	host     *sprite.Host
	confined *confines
}

// maxPolicy bounds a document of rules.
const maxPolicy = 1 << 20

// get answers with the policy; with presets=true, also with the rules that its presets stand for.
func (g *policyRoutes) get(w http.ResponseWriter, r *http.Request) error {
	p, err := g.host.NetworkPolicy(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	if p.Rules == nil {
		p.Rules = []sprites.NetworkRule{}
	}
	w.Header().Set("ETag", p.Revision)
	if r.URL.Query().Get("presets") != "true" {
		writeJSON(w, http.StatusOK, p)
		return nil
	}
	presets, err := sprite.PresetRules(r.Context(), g.host, r.PathValue("name"), principalOf(r).may(admin))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		sprites.NetworkPolicy
		Presets sprites.PresetRules `json:"presets"`
	}{p, presets})
	return nil
}

// post replaces the policy; with If-Match, only the one of that revision. An unknown field is
// refused, so that no rule is taken for less than it says.
func (g *policyRoutes) post(w http.ResponseWriter, r *http.Request) error {
	var p sprites.NetworkPolicy
	if err := readObject(w, r, maxPolicy, &p, "the network policy", `such as {"rules":[{"domain":"example.org","action":"allow"}]}`); err != nil {
		return err
	}
	if p.Rules == nil {
		return fail.New("bad_request", "the network policy has no rules", `to remove all rules, send "rules":[]`)
	}
	if p.Revision = r.Header.Get("If-Match"); p.Revision == "*" {
		p.Revision = ""
	}
	judged, err := g.confined.mayOpen(r, r.PathValue("name"))
	if err != nil {
		return err
	}
	if err := g.host.SetNetworkPolicy(judged, r.PathValue("name"), p, principalOf(r).may(admin)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// mayOpen refuses rules for a new sprite, or for a job, that open something of the host's own
// network. A token with the verb admin may have them. A nil policy has no rules.
func mayOpen(r *http.Request, host *sprite.Host, name string, p *sprites.NetworkPolicy) error {
	if p == nil || principalOf(r).may(admin) {
		return nil
	}
	return host.OpensInward(r.Context(), name, *p)
}

func (g *policyRoutes) test(w http.ResponseWriter, r *http.Request) error {
	d, err := g.host.TestNetworkPolicy(r.Context(), r.PathValue("name"), r.URL.Query().Get("target"), principalOf(r).may(admin))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

// log tells what a sprite was refused, and, if asked, what it reached.
func (g *policyRoutes) log(w http.ResponseWriter, r *http.Request) error {
	var logs [][]string
	for _, of := range []sprite.Log{sprite.LogRefused, sprite.LogConnections}[:1+btoi(r.URL.Query().Get("connections") == "true")] {
		paths, err := g.host.Logs(r.Context(), r.PathValue("name"), of)
		if err != nil {
			return err
		}
		logs = append(logs, paths)
	}
	return tellEvents(w, r, logs, func(e sprites.NetworkEvent) time.Time { return e.Time })
}
