package server_test

import (
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

func token(t *testing.T, s *covetest.Server, scope cove.TokenScope, verbs ...string) cove.Token {
	t.Helper()
	tok, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "test", Scope: scope, Verbs: verbs})
	must(t, err)
	return tok
}

func bearer(tok cove.Token) edit { return header("Authorization", "Bearer "+tok.Secret) }

// deeds are requests by the verb that they need. SPRITE stands for the sprite's
// name; without it they are allowed to any token with the verb.
var deeds = map[string][]string{
	"": {"GET /v1/version", "GET /v1/openapi.json", "POST /v1/web/links", "GET /v1/web/sessions", "DELETE /v1/web/sessions", "DELETE /v1/web/sessions/none"}, // and GET /v1/ws: see TestSocketRights
	"read": {
		"GET /v1/sprites/SPRITE", "GET /v1/sprites/SPRITE/check", "GET /v1/sprites/SPRITE/stats", "GET /v1/sprites/SPRITE/exec", "HEAD /v1/sprites/SPRITE/exec",
		"GET /v1/sprites/SPRITE/checkpoints/v1/diff", "POST /v1/sprites/SPRITE/checkpoints/verify", "GET /v1/sprites/SPRITE/fs/list?path=.", "GET /v1/sprites/SPRITE/fs/read?path=missing", "GET /v1/sprites/SPRITE/ports/watch", "GET /v1/sprites/SPRITE/fs/watch", "GET /v1/sprites/SPRITE/connectors/log", "GET /v1/sprites", "GET /v1/jobs", "GET /v1/search?q=none", "GET /v1/jobs/abcdef/plan", "GET /v1/jobs/abcdef/diff", "GET /v1/jobs/abcdef/comments", "GET /v1/environments", "GET /v1/environments/none", "GET /v1/environments/orphans", "GET /v1/images", "GET /v1/images/none/of:1",
	},
	"write": {
		"POST /v1/sprites/import?name=SPRITE",
		"PUT /v1/sprites/SPRITE", "PUT /v1/sprites/SPRITE/fs/write?path=.", "DELETE /v1/sprites/SPRITE/fs/delete?path=missing",
		"POST /v1/sprites", "POST /v1/jobs/abcdef/stop", "POST /v1/jobs/abcdef/publish", "POST /v1/jobs/abcdef/seen", "DELETE /v1/jobs/abcdef/seen", "POST /v1/jobs/abcdef/comments", "DELETE /v1/jobs/abcdef/comments", "DELETE /v1/environments/none", "POST /v1/environments/destroy", "POST /v1/environments/orphans/destroy", "POST /v1/sprites/SPRITE/restart", "POST /v1/sprites/SPRITE/upgrade",
	},
	"exec": {
		"POST /v1/sprites/SPRITE/exec?cmd=cat&stdin=true", "GET /v1/sprites/SPRITE/exec/none",
		"POST /v1/sprites/SPRITE/exec/none/kill", "GET /v1/sprites/SPRITE/proxy",
	},
	"admin": {"GET /v1/tokens", "POST /v1/tokens", "DELETE /v1/tokens/none", "GET /v1/secrets", "PUT /v1/secrets/none", "DELETE /v1/secrets/none",
		"GET /v1/connectors", "GET /v1/connectors/none", "PUT /v1/connectors/none", "DELETE /v1/connectors/none", "POST /v1/connectors/none/grants", "DELETE /v1/connectors/none/grants",
		"GET /v1/webhooks", "PUT /v1/webhooks/none", "DELETE /v1/webhooks/none", "POST /v1/webhooks/none/test", "POST /v1/executors/test", "GET /v1/webhooks/none/log",
		"DELETE /v1/images/none/of:1", "POST /v1/images/pull", "POST /v1/images/import", "POST /v1/images/prune",
		"POST /v1/images/save", "POST /v1/images/tag", "POST /v1/images/push", "POST /v1/images/commit"},
}

func TestTokenScopesAndVerbs(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	for _, name := range []string{"ci-1", "ci", "other"} {
		s.Create(name)
	}
	for scope, reaches := range map[cove.TokenScope][]string{
		{All: true}: {"ci-1", "ci", "other", "ci-9"}, {Prefix: "ci-"}: {"ci-1", "ci-9"}, {Sprite: "ci"}: {"ci"},
	} {
		for _, verb := range []string{"read", "write", "exec", "admin"} {
			if verb == "admin" && !scope.All {
				continue
			}
			tok := token(t, s, scope, verb)
			c := &cove.Client{Client: &sprites.Client{URL: s.URL, Token: tok.Secret}}
			for _, name := range []string{"ci-1", "ci", "other", "ci-9"} { // the last does not exist
				reached := slices.Contains(reaches, name)
				for needed, whats := range deeds {
					for _, what := range whats {
						named := strings.Contains(what, "SPRITE") || what == "POST /v1/sprites"
						allowed := needed == "" || needed == verb && (!named || reached)
						a := ask(t, s, strings.ReplaceAll(what, "SPRITE", name), `{"name":"`+name+`"}`, bearer(tok))
						got := a.StatusCode != 403 && a.StatusCode != 401
						failIf(t, got != allowed, "%s on %s with %v %s: %d %s", what, name, scope, verb, a.StatusCode, a.body)
					}
				}
				// An exec's WebSocket is the same path as the list, with another verb.
				err := c.Sprite(name).Command("true").Run()
				failIf(t, errors.Is(err, sprites.ErrForbidden) == (verb == "exec" && reached), "exec in %s with %v %s: %v", name, scope, verb, err)
			}
			page, err := c.List(t.Context(), sprites.ListOptions{})
			for _, info := range page.Sprites {
				failIf(t, !slices.Contains(reaches, info.Name), "%v lists %s", scope, info.Name)
			}
			n := page.Totals.Running + page.Totals.Cold
			failIf(t, verb == "read" && (err != nil || n == 0 || n != len(page.Sprites)), "%v lists %d sprites and counts %d, %v", scope, len(page.Sprites), n, err)
		}
	}
	// An export shows all that is in a sprite, and seals it.
	for _, verbs := range [][]string{{"read"}, {"write"}, {"exec"}, {"read", "write"}} {
		a := ask(t, s, "GET /v1/sprites/ci/export", "", bearer(token(t, s, cove.TokenScope{All: true}, verbs...)))
		failIf(t, (a.StatusCode == 403) == (len(verbs) == 2), "an export with %v: %d %s", verbs, a.StatusCode, a.body)
	}
	// Only an admin may show the host's folders to a sprite, or claim it.
	tok := token(t, s, cove.TokenScope{All: true}, "read", "write", "exec")
	for _, body := range []string{`{"name":"new","include":["/etc"]}`, `{"name":"new","owner":"job:abcdef"}`, `{"name":"new","lease_seconds":9}`} {
		ask(t, s, "POST /v1/sprites", body, bearer(tok)).refused(t, 403, "forbidden")
	}
}

// TestRouteNeedsItsVerb: each route refuses a token that has every verb but the one that the
// table names. It does so also for a sprite or a job that is not there.
func TestRouteNeedsItsVerb(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	all := []string{"read", "write", "exec", "admin"}
	tokens := map[string]cove.Token{}
	for i, verb := range all {
		tokens[verb] = token(t, s, cove.TokenScope{All: true}, slices.Delete(slices.Clone(all), i, i+1)...)
	}
	seen := 0
	for pattern, verb := range server.RouteVerbs() {
		if !strings.Contains(pattern, " ") {
			pattern = "GET " + pattern
		}
		for _, sprite := range []string{"paint", "none"} {
			what := strings.ReplaceAll(pattern, "{name}", sprite)
			what = regexp.MustCompile(`\{[a-z.]+\}`).ReplaceAllString(what, "none")
			if verb == "" {
				continue // no verb, or one by what is asked: TestTokenScopesAndVerbs
			}
			seen++
			a := ask(t, s, what, "{}", bearer(tokens[verb]))
			failIf(t, a.StatusCode != http.StatusForbidden, "%s without %s: %d %s", what, verb, a.StatusCode, a.body)
		}
	}
	failIf(t, seen < 100, "only %d requests were made", seen)
}

// Statement 1: a request without a token, or with a wrong one, is answered by 401
// and JSON.
func TestTokenLife(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	c, ctx, all := s.Client(), t.Context(), cove.TokenScope{All: true}
	unauthorized := func(what string, edits ...edit) {
		t.Helper()
		a := ask(t, s, "GET /v1/version", "", edits...)
		text := a.refused(t, 401, "unauthorized")
		failIf(t, !strings.Contains(text, what) || a.Header.Get("WWW-Authenticate") != `Bearer realm="cove"`, "got %q and %v, want %q", text, a.Header, what)
	}
	for _, text := range []string{"", "Bearer ", s.Token, "Basic " + s.Token} {
		unauthorized("no token", header("Authorization", text))
	}
	unauthorized("not known", header("Authorization", "Bearer "+s.Token+"x"))
	unauthorized("no token", func(r *http.Request) { // but in all other places
		r.Header.Del("Authorization")
		r.URL.RawQuery = url.Values{"token": {s.Token}, "access_token": {s.Token}, "authorization": {"Bearer " + s.Token}}.Encode()
		r.AddCookie(&http.Cookie{Name: "token", Value: s.Token})
		r.URL.User = url.UserPassword("token", s.Token)
	})

	// The secret is in the first answer and nowhere else.
	tok := token(t, s, all, "read")
	open(t, s, "GET /v1/version", "", bearer(tok)) // it is used
	a := ask(t, s, "GET /v1/tokens", "")
	failIf(t, strings.Contains(string(a.body), "cove_") || len(tok.Secret) < 40 || !strings.HasPrefix(tok.Secret, "cove_"), "of %q the list says %s", tok.Secret, a.body)
	list, err := c.ListTokens(ctx)
	failIf(t, err != nil || len(list) != 1 || list[0].ID != tok.ID || list[0].LastUsed == nil || list[0].Scope != tok.Scope || list[0].ExpiresAt != nil, "got %+v, %v", list, err)

	// A deleted token is unknown, and an expired one is refused.
	must(t, c.DeleteToken(ctx, tok.ID))
	unauthorized("not known", bearer(tok))
	wantError(t, c.DeleteToken(ctx, tok.ID), 404, "not_found")
	tok, err = c.CreateToken(ctx, cove.TokenRequest{Name: "short", Scope: all, Verbs: []string{"read"}, TTLSeconds: 3600})
	failIf(t, err != nil || time.Until(*tok.ExpiresAt).Round(time.Minute) != time.Hour, "got %+v, %v", tok, err)
	must(t, s.Store.Tokens.Create(ctx, store.Token{
		Hash: store.HashToken("cove_old"), Scope: all, Verbs: []string{"read"}, CreatedAt: time.Unix(1e9, 0), ExpiresAt: time.Now().Add(-time.Second),
	}))
	unauthorized("expired", bearer(cove.Token{Secret: "cove_old"}))

	for _, fields := range []string{ // the last of each key counts
		`"name":""`, `"name":"a\nb"`, `"scope":{"all":false}`, `"scope":{"prefix":"a"}`, `"verbs":[]`, `"verbs":["fly"]`, `"verbs":["read","read"]`,
		`"scope":{"all":false,"prefix":"a"},"verbs":["admin"]`, `"ttl_seconds":-1`, `"ttl_seconds":4611686018427387904`,
	} {
		ask(t, s, "POST /v1/tokens", `{"name":"x","scope":{"all":true},"verbs":["read"],`+fields+"}").refused(t, 400, "bad_request")
	}
}

// Statement 2: the operator may choose the token, slashes and all.
func TestChosenToken(t *testing.T) {
	dir, secret := t.TempDir(), "acme/1234/tok_9/s3cr3t=+"
	must(t, os.WriteFile(filepath.Join(dir, "token"), []byte(secret+"\n"), 0o600))
	s := covetest.Start(t, covetest.Options{Dir: dir})
	a := ask(t, s, "GET /v1/sprites", "", header("Authorization", "Bearer "+secret))
	failIf(t, s.Token != secret || a.StatusCode != 200, "with %s: %d %s", s.Token, a.StatusCode, a.body)
	ask(t, s, "GET /v1/sprites", "", header("Authorization", "Bearer "+strings.ReplaceAll(secret, "/", "%2F"))).refused(t, 401, "unauthorized")
}

// Statement 3: a WebSocket's handshake needs the same token, and is refused by an
// HTTP status.
// Statement 4: every answer has a Sprite-Version that clients of today know.
// Statement 5: the answer to exec's handshake says that it takes signals.
// Statement 48: the handshake for an unknown sprite is refused likewise, with a body.
// Statement 52: a handshake for an unknown session is, too.
func TestHandshakes(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	version := func(what string, h http.Header) {
		t.Helper()
		failIf(t, h.Get("Sprite-Version") != "v0.0.1-rc46", "%s: the version is %q", what, h.Get("Sprite-Version"))
	}
	for _, path := range []string{"exec?cmd=true", "exec/1", "proxy"} {
		what := "GET /v1/sprites/paint/" + path
		for _, auth := range []string{"", "Bearer wrong", "Basic " + s.Token} {
			a := ask(t, s, what, "", handshake, header("Authorization", auth))
			a.refused(t, 401, "unauthorized")
			version(what, a.Header)
		}
		a := ask(t, s, "GET /v1/sprites/none/"+path, "", handshake)
		a.refused(t, 404, "not_found")
		version(what, a.Header)
	}
	for _, path := range []string{"exec/1", "exec?id=1", "exec?session_id=1"} {
		ask(t, s, "GET /v1/sprites/paint/"+path, "", handshake).refused(t, 404, "session_not_found")
	}
	resp := open(t, s, "GET /v1/sprites/paint/exec?cmd=true", "", handshake)
	failIf(t, resp.StatusCode != 101 || resp.Header.Get("X-Sprite-Capabilities") != "signal", "got %d %v", resp.StatusCode, resp.Header)
	version("the handshake", resp.Header)
	for _, what := range []string{"GET /v1/version", "GET /v1/sprites", "HEAD /v1/sprites/paint/exec", "GET /v1/sprites/paint/fs/list?path=.", "DELETE /v1/sprites/paint", "POST /nothing"} {
		version(what, ask(t, s, what, "").Header)
	}
}

func TestForeignRequests(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.Names = []string{"cove.test"} }})
	s.Create("paint")
	port := s.URL[strings.LastIndex(s.URL, ":"):]
	good := []string{
		"Host: 127.0.0.1:PORT", "Host: localhost:PORT", "Host: LOCALHOST.", "Host: [::1]:PORT", "Host: cove.test:PORT",
		"Origin: " + s.URL, "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none",
	}
	bad := []string{ // names that somebody's DNS may lead here, and other sites
		"Host: evil.example:PORT", "Host: localhost.evil.example", "Host: 127.0.0.1.evil.example:PORT", "Host: x.cove.test",
		"Host: 192.0.2.1:PORT", "Host: 0.0.0.0:PORT", "Host: evil.example:PORT, Origin: http://evil.example:PORT",
		"Host: evil.example:PORT, Sec-Fetch-Site: same-origin", "Origin: https://evil.example", "Origin: http://127.0.0.1:1",
		"Origin: null", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site",
	}
	with := func(headers string) edit {
		return func(r *http.Request) {
			for h := range strings.SplitSeq(strings.ReplaceAll(headers, ":PORT", port), ", ") {
				key, value, _ := strings.Cut(h, ": ")
				if r.Header.Set(key, value); key == "Host" {
					r.Host = value
				}
			}
		}
	}
	upgrade := with("Connection: Upgrade, Upgrade: websocket, Sec-WebSocket-Version: 13, Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
	for _, what := range []string{"GET /v1/sprites", "PUT /v1/sprites/paint", "POST /v1/sprites/paint/fs/rename", "GET /nowhere"} {
		for _, headers := range good {
			a := ask(t, s, what, "{}", with(headers))
			failIf(t, a.StatusCode == 403, "%s, %s: %s", what, headers, a.body)
		}
		for _, headers := range bad {
			t.Run(headers, func(t *testing.T) {
				ask(t, s, what, "{}", with(headers)).refused(t, 403, "forbidden")
				ask(t, s, "GET /v1/sprites/paint/exec?cmd=true", "", upgrade, with(headers)).refused(t, 403, "forbidden")
			})
		}
	}
}

func TestLargeRequests(t *testing.T) {
	s, large := covetest.Start(t, covetest.Options{}), `{"name":"`+strings.Repeat("a", 1<<20)+`"}`
	cmd := s.Create("paint").Command("true")
	for _, what := range []string{"POST /v1/sprites", "PUT /v1/sprites/paint", "POST /v1/tokens"} {
		ask(t, s, what, large).refused(t, 413, "too_large")
		ask(t, s, what, large, func(r *http.Request) { r.ContentLength = -1 }).refused(t, 413, "too_large")
	}
	for range 9 { // a command line travels in the URL, and may be long
		cmd.Env = append(cmd.Env, "A="+strings.Repeat("a", 100_000))
	}
	must(t, cmd.Run())
	a := ask(t, s, "GET /v1/version", "", header("X-Large", strings.Repeat("a", 2<<20)))
	failIf(t, a.StatusCode != 431, "a header of 2 MiB: %d", a.StatusCode)
}

// TestInstallSprite: while a sprite installs an agent for everybody's jobs, only an
// administrator may act in it, whatever else a token reaches.
func TestInstallSprite(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	for name, owner := range map[string]string{"install-0a0b0c0d": store.InstallOwner + "k", "install-mine": ""} {
		_, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: name, Owner: owner})
		must(t, err)
	}
	by := bearer(token(t, s, cove.TokenScope{All: true}, "read", "write", "exec"))
	for _, what := range []string{
		"POST /v1/sprites/NAME/exec?cmd=true", "PUT /v1/sprites/NAME/fs/write?path=x", "GET /v1/sprites/NAME", "DELETE /v1/sprites/NAME",
	} {
		ask(t, s, strings.Replace(what, "NAME", "install-0a0b0c0d", 1), "x", by).refused(t, http.StatusForbidden, "forbidden")
		if got := ask(t, s, strings.Replace(what, "NAME", "install-mine", 1), "x", by); got.StatusCode/100 != 2 {
			t.Errorf("%s of one's own: %d %s", what, got.StatusCode, got.body)
		}
	}
	ask(t, s, "GET /", "", by, at("install-0a0b0c0d")).refused(t, http.StatusForbidden, "forbidden")
	if got := ask(t, s, "POST /v1/sprites/install-0a0b0c0d/exec?cmd=true", ""); got.StatusCode != http.StatusOK {
		t.Errorf("an administrator: %d", got.StatusCode)
	}
}
