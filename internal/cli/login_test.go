package cli

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// jwt is a token that expires at a time, as nobody has signed it.
func jwt(at time.Time) string {
	return "e30." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, at.Unix())) + ".x"
}

func TestReadCodexLogin(t *testing.T) {
	home := t.TempDir()
	t.Setenv("CODEX_HOME", home)
	path := filepath.Join(home, "auth.json")
	at := time.Unix(2e9, 0).UTC()
	file := `{"auth_mode":"chatgpt","OPENAI_API_KEY":null,"tokens":{"id_token":"i.d.x","access_token":"` + jwt(at) + `","refresh_token":"the-refresh-token","account_id":"the-account"}}`
	for text, want := range map[string]string{
		"":  "codex login",
		"{": "codex login",
		`{"OPENAI_API_KEY":"sk-x","tokens":null}`:                  "cove secret set openai",
		`{"tokens":{"access_token":"x"}}`:                          "codex login",
		`{"tokens":{"access_token":5,"account_id":"the-account"}}`: "codex login",
		`{"tokens":{"account_id":"the-account"}}`:                  "codex login",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, token, _, err := readCodexLogin()
		if e, ok := errors.AsType[hintError](err); !ok || token != "" || !strings.HasPrefix(e.hint, want) {
			t.Errorf("%s: got %q, %v", text, token, err)
		}
	}
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	got, token, login, err := readCodexLogin()
	if err != nil || got != path || token != jwt(at) || login.Client != "codex" || login.Account != "the-account" || login.ExpiresAt == nil || !login.ExpiresAt.Equal(at) {
		t.Errorf("got %s, %q, %+v, %v", got, token, login, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := readCodexLogin(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: got %v", err)
	}
	for _, token := range []string{"", "a.b", "a.b.c", "a.e30.c", "a." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":"x"}`)) + ".c"} {
		if at := expiry(token); at != nil {
			t.Errorf("%q: got %v", token, at)
		}
	}
}
