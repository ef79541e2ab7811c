package server_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// inwardRules are rules that only the verb admin may set: for the metadata service, the host
// itself, and its own network.
func inwardRules(t *testing.T) []sprites.NetworkRule {
	t.Helper()
	rules := []sprites.NetworkRule{{Domain: "metadata.google.internal"}, {Domain: "*.localhost"}, {CIDR: "169.254.169.254"}, {CIDR: "10.0.0.0/8", Ports: []string{"22"}}, {CIDR: "fd00:ec2::254"}, {CIDR: "::ffff:127.0.0.1"}}
	addrs, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range addrs {
		rules = append(rules, sprites.NetworkRule{CIDR: strings.Split(a.String(), "/")[0]})
	}
	for i := range rules {
		rules[i].Action = "allow"
	}
	return rules
}

// TestInwardRulesNeedAdmin: a rule that opens the host's own network needs the verb admin, by
// whatever call it comes.
func TestInwardRulesNeedAdmin(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Jobs: func(st *store.Store, c *cove.Client) (server.Jobs, func() error, error) {
		m := &job.Manager{Store: st, Client: c}
		return m, m.Close, m.Resume(t.Context())
	}})
	ctx, sp := t.Context(), s.Create("ci-1")
	ci := bearer(token(t, s, cove.TokenScope{Prefix: "ci-"}, "read", "write", "exec"))
	all := bearer(token(t, s, cove.TokenScope{All: true}, "read", "write", "exec"))
	text := func(rules ...sprites.NetworkRule) string {
		doc, err := json.Marshal(rules)
		must(t, err)
		return `{"rules":` + string(doc) + `}`
	}
	policyOf := func() string {
		p, err := sp.NetworkPolicy(ctx)
		must(t, err)
		return text(p.Rules...)
	}
	refused := func(what, body string, as edit) {
		t.Helper()
		a := ask(t, s, what, body, as)
		a.refused(t, 403, "forbidden")
		var e sprites.ErrorBody
		failIf(t, json.Unmarshal(a.body, &e) != nil || !strings.Contains(e.Hint, "admin"), "%s %s: the hint is %q", what, body, e.Hint)
	}
	public := sprites.NetworkRule{Domain: "example.org", Action: "allow"}
	for _, rule := range inwardRules(t) {
		doc := text(public, rule)
		refused("POST /v1/sprites/ci-1/policy/network", doc, ci)
		refused("POST /v1/sprites", `{"name":"ci-2","network_policy":`+doc+`}`, ci)
		for _, what := range []string{"POST /v1/jobs", "POST /v1/jobs/preview"} {
			refused(what, `{"sprite":"ci-1","network_policy":`+doc+`}`, ci)
			refused(what, `{"network_policy":`+doc+`}`, all)
		}
	}
	failIf(t, policyOf() != text([]sprites.NetworkRule{}...) && policyOf() != `{"rules":null}`, "the policy is %s", policyOf())
	_, err := s.Client().Get(ctx, "ci-2")
	wantError(t, err, 404, "not_found")

	// An old job's rules are begun anew with the same right.
	settings, err := json.Marshal(cove.JobRequest{JobSettings: cove.JobSettings{NetworkPolicy: &sprites.NetworkPolicy{Rules: inwardRules(t)[:3]}}})
	must(t, err)
	must(t, s.Store.Jobs.Create(ctx, cove.Job{ID: "aaaaaa", State: cove.JobSucceeded, JobSettings: cove.JobSettings{Sprite: "ci-1"}}, settings))
	refused("POST /v1/jobs/aaaaaa/retry", `{}`, all)

	// Anyone may set rules that open no protected address, and the machine's presets.
	open := text(public, sprites.NetworkRule{CIDR: "0.0.0.0/0", Action: "allow"}, sprites.NetworkRule{CIDR: "8.8.8.8", Action: "allow"}, sprites.NetworkRule{CIDR: "10.0.0.0/8", Action: "deny"})
	for _, doc := range []string{open, `{"rules":[{"include":"agent"}]}`, `{"rules":[{"include":"open"}]}`, `{"rules":[]}`} {
		a := ask(t, s, "POST /v1/sprites/ci-1/policy/network", doc, ci)
		failIf(t, a.StatusCode != 204, "%s: %d %s", doc, a.StatusCode, a.body)
	}

	// Others may keep or remove a rule that a token with the verb has given. They may
	// neither widen it nor hand it on.
	given := sprites.NetworkRule{CIDR: "10.0.0.0/8", Action: "allow"}
	except := sprites.NetworkRule{CIDR: "10.1.2.3", Action: "deny"}
	must(t, sp.SetNetworkPolicy(ctx, sprites.NetworkPolicy{Rules: []sprites.NetworkRule{given, except}}))
	refused("POST /v1/sprites/ci-1/policy/network", text(given), ci)
	refused("POST /v1/sprites/ci-1/policy/network", text(given, except, sprites.NetworkRule{CIDR: "192.168.1.1", Action: "allow"}), ci)
	refused("POST /v1/sprites/ci-1/fork", `{"name":"ci-2"}`, ci)
	for _, doc := range []string{text(public, except, given), text(public)} {
		a := ask(t, s, "POST /v1/sprites/ci-1/policy/network", doc, ci)
		failIf(t, a.StatusCode != 204, "%s: %d %s", doc, a.StatusCode, a.body)
	}
	failIf(t, policyOf() != text(public), "the policy is %s", policyOf())
	refused("POST /v1/sprites/ci-1/policy/network", text(public, given), ci) // gone is gone
	_, err = s.Client().Get(ctx, "ci-2")
	wantError(t, err, 404, "not_found")
}

// Every name that a fork is asked for is looked at.
func TestForkNamesInScope(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("ci-1")
	ci := bearer(token(t, s, cove.TokenScope{Prefix: "ci-"}, "read", "write", "exec"))
	for _, body := range []string{`{"name":"other"}`, `{"names":["ci-2","other"]}`, `{"name":"other","names":["ci-2"]}`, `{"name":"ci-2","names":["other"]}`, `{}`} {
		a := ask(t, s, "POST /v1/sprites/ci-1/fork", body, ci)
		failIf(t, a.StatusCode != 403, "%s: %d %s", body, a.StatusCode, a.body)
	}
	list, err := s.Client().List(t.Context(), sprites.ListOptions{})
	failIf(t, err != nil || len(list.Sprites) != 1, "there are %v, %v", fmt.Sprint(list.Sprites), err)
}
