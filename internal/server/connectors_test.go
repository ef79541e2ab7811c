package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// connected is a runtime whose sandboxes note their connectors.
type connected struct {
	*covetest.InProcess
	dir  string
	hold chan struct{} // a boot waits for it, once it has been told its connectors

	mu  sync.Mutex
	has map[string]map[string]connect.Upstream // by the sprite's name
}

func (c *connected) tell(name string, all map[string]connect.Upstream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.has == nil {
		c.has = map[string]map[string]connect.Upstream{}
	}
	c.has[name] = all
}

// of describes a sprite's connectors, in a line.
func (c *connected) of(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, key := range slices.Sorted(maps.Keys(c.has[name])) {
		u := c.has[name][key]
		out = append(out, strings.TrimSpace(key+" "+u.Header.Get("X-Key")+u.Refused))
	}
	return strings.Join(out, ", ")
}

func (c *connected) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	c.tell(m.Hostname, m.Connectors)
	if c.hold != nil {
		<-c.hold
	}
	sb, err := c.InProcess.Boot(ctx, m)
	return &connectedSandbox{sb, c, m.Hostname}, err
}

func (c *connected) Logs(_ string, of sprite.Log) []string {
	if of != sprite.LogRequests {
		return nil
	}
	return []string{filepath.Join(c.dir, "log.1"), filepath.Join(c.dir, "log")}
}

type connectedSandbox struct {
	sprite.Sandbox
	c    *connected
	name string
}

func (s *connectedSandbox) SetConnectors(_ context.Context, all map[string]connect.Upstream) error {
	s.c.tell(s.name, all)
	return nil
}

func startConnected(t *testing.T) (*covetest.Server, *connected) {
	t.Helper()
	rt := &connected{InProcess: &covetest.InProcess{Dir: t.TempDir()}, dir: t.TempDir()}
	t.Cleanup(func() { must(t, rt.Close()) })
	return covetest.Start(t, covetest.Options{Runtime: rt}), rt
}

func xKey(name string) cove.Connector {
	return cove.Connector{Name: name, Upstream: "https://a.example", Headers: map[string]string{"x-key": "{secret}"}, Secret: "key"}
}

// TestConnectorGrants: a sprite has the connectors that are granted to it, at boot and while
// it runs. Each change is in force when its call returns.
func TestConnectorGrants(t *testing.T) {
	s, rt := startConnected(t)
	c, ctx := s.Server.Client(), t.Context()
	s.Create("cold")
	_, err := c.Create(ctx, sprites.CreateRequest{Name: "paint", Labels: []string{"ci"}})
	must(t, err)
	must(t, c.Sprite("paint").Command("true").Run())
	step := func(what, want string, err error) {
		t.Helper()
		must(t, err)
		failIf(t, rt.of("paint") != want, "%s: got %q, want %q", what, rt.of("paint"), want)
	}
	_, err = c.PutConnector(ctx, xKey("api"))
	step("put", "", err)
	step("granted", "api the secret that it adds is not set", c.GrantConnector(ctx, "api", cove.ConnectorGrant{Sprite: "paint"}))
	step("with a secret", "api value-one", c.SetSecret(ctx, "key", "value-one"))
	step("with another", "api value-two", c.SetSecret(ctx, "key", "value-two"))
	_, err = c.PutConnector(ctx, xKey("other"))
	step("another connector", "api value-two", err)
	step("by a label", "api value-two, other value-two", c.GrantConnector(ctx, "other", cove.ConnectorGrant{Label: "ci", Reaches: []string{"paint"}}))
	_, err = c.Update(ctx, "paint", sprites.UpdateRequest{Labels: &[]string{"new"}})
	step("without the label", "api value-two", err)
	def := xKey("api")
	def.Headers = map[string]string{"X-Key": "plain"}
	_, err = c.PutConnector(ctx, def)
	step("put again", "api plain", err)
	_, err = c.PutConnector(ctx, xKey("api"))
	step("and back", "api value-two", err)
	step("without the secret", "api the secret that it adds is not set", c.DeleteSecret(ctx, "key", sprites.DeleteOptions{Force: true}))
	step("revoked", "", c.RevokeConnector(ctx, "api", cove.ConnectorGrant{Sprite: "paint"}))
	step("for a job", "", func() error { addJob(t, s, "abcdef", "paint"); return nil }())
	step("of a job", "api the secret that it adds is not set", c.GrantConnector(ctx, "api", cove.ConnectorGrant{Sprite: "paint", Job: "abcdef"}))
	step("after it", "", c.RevokeConnector(ctx, "api", cove.ConnectorGrant{Job: "abcdef"}))
	step("granted again", "api the secret that it adds is not set", c.GrantConnector(ctx, "api", cove.ConnectorGrant{Sprite: "paint"}))
	step("removed", "", c.DeleteConnector(ctx, "api"))

	must(t, c.SetSecret(ctx, "key", "value-one"))
	must(t, c.GrantConnector(ctx, "other", cove.ConnectorGrant{Sprite: "cold"}))
	must(t, c.Sprite("cold").Command("true").Run())
	failIf(t, rt.of("cold") != "other value-one", "at boot: got %q", rt.of("cold"))
	// A key that is not the right one is said, and not replaced.
	must(t, os.WriteFile(filepath.Join(s.Dir, store.KeyFile), []byte("short"), 0o600))
	must(t, c.GrantConnector(ctx, "other", cove.ConnectorGrant{Sprite: "paint"}))
	failIf(t, rt.of("paint") != "other the secret that it adds can't be read", "got %q", rt.of("paint"))
}

// TestConnectorGrantsAtBoot: a change during a sandbox's boot is in force once it has booted.
func TestConnectorGrantsAtBoot(t *testing.T) {
	s, rt := startConnected(t)
	c, ctx := s.Server.Client(), t.Context()
	must(t, c.SetSecret(ctx, "key", "value-one"))
	_, err := c.PutConnector(ctx, xKey("api"))
	must(t, err)
	s.Create("paint")
	must(t, c.GrantConnector(ctx, "api", cove.ConnectorGrant{Sprite: "paint"}))
	rt.hold = make(chan struct{})
	ran := make(chan error, 1)
	go func() { ran <- c.Sprite("paint").Command("true").Run() }()
	for deadline := time.Now().Add(lastResort); rt.of("paint") == "" && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
	must(t, c.RevokeConnector(ctx, "api", cove.ConnectorGrant{Sprite: "paint"}))
	close(rt.hold)
	must(t, <-ran)
	failIf(t, rt.of("paint") != "", "got %q", rt.of("paint"))
}

func TestConnectorCalls(t *testing.T) {
	s, _ := startConnected(t)
	c, ctx := s.Server.Client(), t.Context()
	s.Create("paint")
	got, err := c.PutConnector(ctx, cove.Connector{Name: "github-api", Paths: []string{"/repos/*"}, Limits: cove.ConnectorLimits{Requests: 9}})
	failIf(t, err != nil || got.Upstream != "https://api.github.com" || got.Secret != "github" || got.Limits.Requests != 9 || got.CreatedAt.IsZero(), "got %+v, %v", got, err)
	must(t, c.GrantConnector(ctx, "github-api", cove.ConnectorGrant{Label: "ci"}))
	got, err = c.Connector(ctx, "github-api")
	failIf(t, err != nil || fmt.Sprint(got.Grants) != "[{ ci  [] { false}}]", "got %+v, %v", got, err)
	list, err := c.Connectors(ctx)
	failIf(t, err != nil || len(list) != 1 || list[0].Name != "github-api", "got %+v, %v", list, err)

	for _, bad := range []cove.Connector{{Name: "x"}, {Name: "X"}, {Name: "x", Upstream: "http://a.example", Headers: map[string]string{"A": "{secret}"}}} {
		_, err := c.PutConnector(ctx, bad)
		wantError(t, err, 400, "bad_request")
	}
	// A definition with an unknown or wrong field is refused: a misspelt rule must not be
	// dropped.
	for _, bad := range []string{`{"upstream":"https://a.example","path":["/v1/*"]}`, `{"upstream":"https://a.example"}{}`, `{"upstream":1}`, ``} {
		ask(t, s, "PUT /v1/connectors/x", bad).refused(t, 400, "bad_request")
	}
	_, err = c.Connector(ctx, "x")
	wantError(t, err, 404, "not_found")
	wantError(t, c.DeleteConnector(ctx, "x"), 404, "not_found")
	wantError(t, c.GrantConnector(ctx, "x", cove.ConnectorGrant{Sprite: "paint"}), 404, "not_found")
	wantError(t, c.GrantConnector(ctx, "github-api", cove.ConnectorGrant{Sprite: "nobody"}), 404, "not_found")
	for _, bad := range []cove.ConnectorGrant{{}, {Sprite: "a", Label: "b"}, {Job: "a"}, {Label: "a", Job: "b"}} {
		wantError(t, c.GrantConnector(ctx, "github-api", bad), 400, "bad_request")
	}
	wantError(t, c.RevokeConnector(ctx, "github-api", cove.ConnectorGrant{}), 400, "bad_request")

	// A caller that may not grant can't give a sprite a label that has a grant.
	tok := token(t, s, cove.TokenScope{All: true}, "read", "write")
	ask(t, s, "POST /v1/sprites", `{"name":"new","labels":["ci"]}`, bearer(tok)).refused(t, 403, "forbidden")
	ask(t, s, "PUT /v1/sprites/paint", `{"labels":["ci"]}`, bearer(tok)).refused(t, 403, "forbidden")
	_, err = c.Update(ctx, "paint", sprites.UpdateRequest{Labels: &[]string{"ci"}})
	must(t, err)
	a := ask(t, s, "PUT /v1/sprites/paint", `{"labels":["ci","more"]}`, bearer(tok))
	failIf(t, a.StatusCode != 200, "a label that it has: %d %s", a.StatusCode, a.body)
}

func TestConnectorLog(t *testing.T) {
	s, rt := startConnected(t)
	s.Create("paint")
	f, err := os.Create(filepath.Join(rt.dir, "log"))
	must(t, err)
	for n := range 3 {
		must(t, json.NewEncoder(f).Encode(cove.ConnectorEvent{Time: time.Unix(int64(n), 0), Connector: "api", Path: fmt.Sprint(n)}))
	}
	must(t, f.Close())
	var got string
	must(t, s.Client().ConnectorLog(t.Context(), "paint", cove.ConnectorLogOptions{Since: time.Unix(1, 0)}, func(e cove.ConnectorEvent) error { got += e.Path; return nil }))
	failIf(t, got != "12", "got %q", got)
}
