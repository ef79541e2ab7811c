package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// Statement 100: without a policy there are no rules. A policy that was set comes back; the
// answer to setting it has no body.
func TestNetworkPolicy(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp := s.Create("paint")
	a := ask(t, s, "GET /v1/sprites/paint/policy/network", "")
	failIf(t, a.StatusCode != 200 || strings.TrimSpace(string(a.body)) != `{"rules":[]}`, "got %d %s", a.StatusCode, a.body)
	doc := `{"rules":[{"include":"defaults"},{"domain":"api.example.org","action":"allow"},{"domain":"*","action":"deny"}]}`
	a = ask(t, s, "POST /v1/sprites/paint/policy/network", doc)
	failIf(t, a.StatusCode != 204 || len(a.body) != 0, "got %d %q", a.StatusCode, a.body)
	a = ask(t, s, "GET /v1/sprites/paint/policy/network", "")
	failIf(t, a.StatusCode != 200 || strings.TrimSpace(string(a.body)) != doc, "got %d %s", a.StatusCode, a.body)
	// Rules of the protocol's other forms, and of cove's.
	p := sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{CIDR: "10.1.0.0/16", Action: "allow", Ports: []string{"5432", "8000-8999"}, Protocol: "udp"}, {Include: "agent"}}}
	must(t, sp.SetNetworkPolicy(t.Context(), p))
	got, err := sp.NetworkPolicy(t.Context())
	failIf(t, err != nil || fmt.Sprint(got.Rules) != fmt.Sprint(p.Rules), "got %v, %v", got, err)
	limits := sprites.NetworkLimits{BytesPerSecond: 1000, ConnectionsPerSecond: 2}
	must(t, sp.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{Limits: &limits}))
	got, err = sp.NetworkPolicy(t.Context())
	failIf(t, err != nil || got.Limits == nil || *got.Limits != limits, "got %+v, %v", got.Limits, err)
	ask(t, s, "POST /v1/sprites/paint/policy/network", `{"rules":[],"limits":{"bytes_per_second":-1}}`).refused(t, 400, "bad_request")
	must(t, sp.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{}))
	_, err = s.Server.Client().Sprite("nobody").NetworkPolicy(t.Context())
	wantError(t, err, 404, "not_found")
}

// Statement 101: a policy that is malformed is refused, and changes nothing.
func TestBadNetworkPolicy(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp := s.Create("paint")
	good := sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "example.org", Action: "deny"}}}
	must(t, sp.SetNetworkPolicy(t.Context(), good))
	for _, bad := range []string{
		``, `{}`, `[]`, `{"rules":null}`, `{"rules":[{}]}`, `{"rules":[{"domain":"a.b","include":"defaults","action":"allow"}]}`, `{"rules":[{"domain":"a.b"}]}`,
		`{"rules":[{"domain":"a.b","action":"allow","color":"red"}]}`, `{"rules":[],"more":1}`, `{"rules":[]}{}`, `{"rules":[{"include":"nosuch"}]}`,
		`{"rules":[{"domain":"a b","action":"allow"}]}`, `{"rules":[` + strings.Repeat(`{"domain":"a.b","action":"allow"},`, 5000) + `{"domain":"a.b","action":"allow"}]}`,
	} {
		ask(t, s, "POST /v1/sprites/paint/policy/network", bad).refused(t, 400, "bad_request")
	}
	a := ask(t, s, "POST /v1/sprites/paint/policy/network", `{"rules":[`+strings.Repeat(" ", 2<<20)+`]}`)
	failIf(t, a.StatusCode != 413, "a long one: %d", a.StatusCode)
	_, err := s.Server.Client().Create(t.Context(), sprites.CreateRequest{Name: "other", NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "nosuch"}}}})
	wantError(t, err, 400, "bad_request")
	got, err := sp.NetworkPolicy(t.Context())
	failIf(t, err != nil || fmt.Sprint(got.Rules) != fmt.Sprint(good.Rules), "got %v, %v", got, err)
}

// TestPolicyChangesAtOnce has many change one policy at the same time. No change is lost, and
// a caller that has read another policy than the current one replaces nothing.
func TestPolicyChangesAtOnce(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp := s.Create("paint")
	old, err := sp.NetworkPolicy(t.Context())
	failIf(t, err != nil || old.Revision == "", "got %+v, %v", old, err)
	const n = 12
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := sp.ChangeNetworkPolicy(t.Context(), func(p sprites.NetworkPolicy) (sprites.NetworkPolicy, error) {
				p.Rules = append(slices.Clone(p.Rules), sprites.NetworkRule{Domain: fmt.Sprintf("h%d.example.org", i), Action: "allow"})
				return p, nil
			})
			must(t, err)
		})
	}
	wg.Wait()
	now, err := sp.NetworkPolicy(t.Context())
	failIf(t, err != nil || len(now.Rules) != n, "%d of %d rules are there: %v, %v", len(now.Rules), n, now, err)
	wantError(t, sp.SetNetworkPolicy(t.Context(), old), 412, sprite.CodePolicyChanged)
	same, err := sp.NetworkPolicy(t.Context())
	failIf(t, err != nil || fmt.Sprint(same) != fmt.Sprint(now), "got %v, %v", same, err)
	must(t, sp.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{})) // the protocol's clients know no revision
}

// policed is a runtime whose sandboxes note their rules.
type policed struct {
	*covetest.InProcess
	dir string

	mu   sync.Mutex
	told []string
}

func (p *policed) tell(set policy.Set) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, fmt.Sprint(set.Rules))
}

func (p *policed) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	p.tell(m.Network)
	sb, err := p.InProcess.Boot(ctx, m)
	return &policedSandbox{sb, p}, err
}

func (p *policed) Logs(_ string, of sprite.Log) []string {
	if of != sprite.LogRefused && of != sprite.LogConnections {
		return nil
	}
	connections := of == sprite.LogConnections
	return []string{filepath.Join(p.dir, fmt.Sprint(connections, ".1")), filepath.Join(p.dir, fmt.Sprint(connections))}
}

type policedSandbox struct {
	sprite.Sandbox
	p *policed
}

func (s *policedSandbox) SetNetwork(_ context.Context, set policy.Set) error {
	s.p.tell(set)
	return nil
}

// The policy is there before the sandbox is, and a running one is told of each
// change; inside, a file shows it.
func TestPolicyInForce(t *testing.T) {
	rt := &policed{InProcess: &covetest.InProcess{Dir: t.TempDir()}, dir: t.TempDir()}
	t.Cleanup(func() { must(t, rt.Close()) })
	s := covetest.Start(t, covetest.Options{Runtime: rt, Host: &sprite.Host{Registries: func(context.Context) []string { return []string{"registry.example"} }}})
	c := s.Server.Client()
	info, err := c.Create(t.Context(), sprites.CreateRequest{Name: "paint", NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}})
	must(t, err)
	sp := c.Sprite("paint")
	must(t, sp.Command("true").Run())
	shows := func(want string) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(rt.Dir, info.ID, "sprite/policy/network.json"))
		failIf(t, err != nil || string(data) != want+"\n", "the sandbox shows %s, %v, want %s", data, err, want)
	}
	shows(`{"rules":[{"include":"none"}]}`)
	must(t, sp.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "example.org", Action: "allow", Ports: []string{"443"}}}}))
	must(t, sp.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "agent"}}}))
	shows(`{"rules":[{"include":"agent"}]}`)
	must(t, sp.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{}))
	shows(`{"rules":[]}`)
	rt.mu.Lock()
	told := rt.told
	rt.mu.Unlock()
	failIf(t, len(told) != 4 || told[0] != "[deny * (none)]" || told[1] != "[example.org:443]" || !strings.Contains(told[2], "registry.example:80,443 (agent)") || told[3] != "[]", "told %q", told)

	for target, want := range map[string]bool{"127.0.0.1:80": false, "10.0.0.1": false, "192.175.48.1:22": true, "192.175.48.1:22/udp": false, "printer.local": false} {
		d, err := sp.TestNetworkPolicy(t.Context(), target)
		failIf(t, err != nil || d.Allow != want || !want && d.Hint == "", "%s: %+v, %v", target, d, err)
	}
	for _, bad := range []string{"", "*.a.b", "10.0.0.0/8", "a.b:1-2", "a.b:1,2", "a b"} {
		_, err := sp.TestNetworkPolicy(t.Context(), bad)
		wantError(t, err, 400, "bad_request")
	}
}

// The host's resolver, which knows names of the host's own network, is asked for a token
// that may do everything, and for no other.
func TestPolicyTestLooksUpForAdmin(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	ask := func(token string) sprites.PolicyDecision {
		d, err := (&cove.Client{Client: &sprites.Client{URL: s.URL, Token: token}}).Sprite("paint").TestNetworkPolicy(t.Context(), "nas.example")
		failIf(t, err != nil || !d.Allow, "got %+v, %v", d, err)
		return d
	}
	for _, verbs := range [][]string{{"read"}, {"read", "write", "exec"}} {
		d := ask(token(t, s, cove.TokenScope{Sprite: "paint"}, verbs...).Secret)
		failIf(t, len(d.Addresses) > 0 || !strings.Contains(d.Hint, "not looked up"), "%v: got %+v", verbs, d)
	}
	d := ask(token(t, s, cove.TokenScope{All: true}, "read", "admin").Secret)
	failIf(t, len(d.Addresses) == 0 && !strings.Contains(d.Hint, "can't be looked up"), "admin: got %+v", d)
}

// The log is what the files say, in order, and follows them when they are replaced.
func TestPolicyLog(t *testing.T) {
	rt := &policed{InProcess: &covetest.InProcess{Dir: t.TempDir()}, dir: t.TempDir()}
	t.Cleanup(func() { must(t, rt.Close()) })
	s := covetest.Start(t, covetest.Options{Runtime: rt})
	sp := s.Create("paint")
	begin := time.Now().Add(-time.Hour)
	write := func(file string, n int) {
		f, err := os.OpenFile(filepath.Join(rt.dir, file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		must(t, err)
		must(t, json.NewEncoder(f).Encode(sprites.NetworkEvent{Time: begin.Add(time.Duration(n) * time.Second), Name: fmt.Sprint(n), Protocol: "dns", Rule: "r"}))
		must(t, f.Close())
	}
	read := func(opts sprites.NetworkLogOptions) (names string) {
		must(t, sp.NetworkLog(t.Context(), opts, func(e sprites.NetworkEvent) error { names += e.Name + " "; return nil }))
		return names
	}
	failIf(t, read(sprites.NetworkLogOptions{}) != "", "an empty log is not")
	write("false.1", 1)
	write("false", 3)
	must(t, os.WriteFile(filepath.Join(rt.dir, "junk"), nil, 0o600))
	write("true", 2)
	for opts, want := range map[sprites.NetworkLogOptions]string{
		{}: "1 3 ", {Connections: true}: "1 2 3 ", {Since: begin.Add(2 * time.Second)}: "3 ",
	} {
		got := read(opts)
		failIf(t, got != want, "%+v: got %q, want %q", opts, got, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), lastResort)
	defer cancel()
	seen := 0
	err := sp.NetworkLog(ctx, sprites.NetworkLogOptions{Follow: true}, func(e sprites.NetworkEvent) error {
		seen++
		failIf(t, e.Name != []string{"1", "3", "4", "5"}[seen-1], "event %d is %s", seen, e.Name)
		switch seen {
		case 2:
			write("false", 4)
		case 3:
			must(t, os.Rename(filepath.Join(rt.dir, "false"), filepath.Join(rt.dir, "false.1")))
			write("false", 5)
		case 4:
			cancel()
		}
		return nil
	})
	failIf(t, seen != 4, "saw %d, %v", seen, err)
}
