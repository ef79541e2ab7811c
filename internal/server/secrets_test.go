package server_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// TestSecrets: a secret's value comes in and never out. It is in no answer, no log and no
// file.
func TestSecrets(t *testing.T) {
	var log syncBuffer
	s := covetest.Start(t, covetest.Options{Log: &log})
	c := s.Server.Client()
	const value = "sk-the-very-secret-value"
	must(t, c.SetSecret(t.Context(), "ci", value+"\r\n"))
	got, err := s.Store.Secrets.Value(t.Context(), "ci")
	failIf(t, err != nil || got != value, "got %q, %v", got, err)
	a := ask(t, s, "GET /v1/secrets", "")
	failIf(t, a.StatusCode != 200 || !strings.Contains(string(a.body), `"name":"ci"`) || strings.Contains(string(a.body), value), "got %d %s", a.StatusCode, a.body)
	list, err := c.Secrets(t.Context())
	failIf(t, err != nil || len(list) != 1 || list[0].UpdatedAt.IsZero(), "got %+v, %v", list, err)

	at := time.Unix(2e9, 0).UTC()
	must(t, cove.SetLogin(t.Context(), c, "chatgpt", value, cove.SecretLogin{Client: "codex", Account: "the-account", ExpiresAt: &at}))
	list, err = c.Secrets(t.Context())
	failIf(t, err != nil || len(list) != 2 || list[0].Login == nil || list[0].Login.Account != "the-account" || !list[0].Login.ExpiresAt.Equal(at) || list[1].Login != nil, "got %+v, %v", list, err)
	for _, bad := range []string{`{}`, `{"client":"codex","account":"a\r\nX-Other: 1"}`, `{"client":"a b"}`} {
		ask(t, s, "PUT /v1/secrets/chatgpt", `{"value":"`+value+`","login":`+bad+`}`).refused(t, 400, "bad_request")
	}
	must(t, c.SetSecret(t.Context(), "chatgpt", value))
	list, err = c.Secrets(t.Context())
	failIf(t, err != nil || list[0].Login != nil, "a key in the login's place: got %+v, %v", list, err)

	for _, bad := range []string{`{"value":"` + value + `\nX-Other: 1"}`, `{"value":"` + value + `\n\n"}`, `{"value":"short"}`, `{}`, `{"value":"` + value, `{"value":1234567890}`, `"` + value + `"`} {
		a := ask(t, s, "PUT /v1/secrets/ci", bad)
		failIf(t, a.StatusCode != 400 || strings.Contains(string(a.body), value) || strings.Contains(string(a.body), "1234567890"), "%s: got %d %s", bad, a.StatusCode, a.body)
	}
	ask(t, s, "PUT /v1/secrets/ci", `{"value":"`+strings.Repeat("x", 64<<10+1)+`"}`).refused(t, 413, "too_large")
	must(t, c.SetSecret(t.Context(), "long", strings.Repeat("x", 64<<10)))
	ask(t, s, "PUT /v1/secrets/a.b", `{"value":"`+value+`"}`).refused(t, 400, "bad_request")

	token, err := c.CreateToken(t.Context(), cove.TokenRequest{Name: "all", Scope: cove.TokenScope{All: true}, Verbs: []string{"read", "write", "exec"}})
	must(t, err)
	other := &cove.Client{Client: &sprites.Client{URL: s.URL, Token: token.Secret}}
	_, err = other.Secrets(t.Context())
	wantError(t, err, 403, "forbidden")
	wantError(t, other.SetSecret(t.Context(), "ci", value), 403, "forbidden")
	wantError(t, other.DeleteSecret(t.Context(), "ci", sprites.DeleteOptions{}), 403, "forbidden")

	must(t, c.DeleteSecret(t.Context(), "long", sprites.DeleteOptions{}))
	wantError(t, c.DeleteSecret(t.Context(), "long", sprites.DeleteOptions{}), 404, "not_found")
	must(t, os.WriteFile(filepath.Join(s.Dir, store.KeyFile), bytes.Repeat([]byte{'x'}, 32), 0o600))
	wantError(t, c.SetSecret(t.Context(), "new", value), 500, "bad_key")

	s.Stop()
	failIf(t, strings.Contains(log.String(), "secret-value"), "the log has the value")
	must(t, filepath.WalkDir(s.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		failIf(t, bytes.Contains(data, []byte("secret-value")), "%s has the value", path)
		return err
	}))
}
