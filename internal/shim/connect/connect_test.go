package connect

import (
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

func TestPresets(t *testing.T) {
	for _, name := range Presets() {
		c := Complete(cove.Connector{Name: name})
		if err := Check(c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := SecretsOf(c); len(got) != 1 || !strings.HasPrefix(name, got[0]) {
			t.Errorf("%s needs the secrets %q", name, got)
		}
	}
	c := Complete(cove.Connector{Name: "anthropic", Upstream: "http://127.0.0.1:8080", Secret: "other", Methods: []string{"post"}})
	if err := Check(c); err != nil || c.Upstream != "http://127.0.0.1:8080" || c.Headers["X-Api-Key"] != "{secret}" || !slices.Equal(SecretsOf(c), []string{"other"}) || c.Methods[0] != "POST" {
		t.Errorf("got %+v, %v", c, err)
	}
	if c := Complete(cove.Connector{Name: "openai", Headers: map[string]string{}}); len(SecretsOf(c)) != 0 || c.Secret != "" {
		t.Errorf("without headers: got %+v", c)
	}
}

func TestCheck(t *testing.T) {
	h := func(name, value string) cove.Connector {
		return cove.Connector{Name: "a", Upstream: "https://a.example", Headers: map[string]string{name: value}}
	}
	for what, c := range map[string]cove.Connector{
		"only":            {Name: "a"},
		"name":            {Name: "A_b", Upstream: "https://a.example"},
		"in the clear":    {Name: "a", Upstream: "http://a.example", Headers: map[string]string{"X-Key": "{secret}"}},
		"by all":          {Name: "a", Upstream: "https://u:p@a.example"},
		"URL of":          {Name: "a", Upstream: "https://a.example/?q=1"},
		"is not a method": {Name: "a", Upstream: "https://a.example", Methods: []string{"GET /"}},
		"pattern":         {Name: "a", Upstream: "https://a.example", DenyPaths: []string{"admin"}},
		"negative":        {Name: "a", Upstream: "https://a.example", Limits: cove.ConnectorLimits{Requests: -1}},
		"braces":          h("X-Key", "{secrets}"),
		"control":         h("X-Key", "a\nb"),
		"is not a header": h("X Key", "a"),
		"can't be set":    h("Host", "b.example"),
		"secret's":        h("X-Key", "{secret:../key}"),
	} {
		if err := Check(Complete(c)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: got %v, want an error with %q", c, err, what)
		}
	}
}

func TestResolve(t *testing.T) {
	c := Complete(cove.Connector{Name: "a", Upstream: "https://a.example", Headers: map[string]string{
		"x-key": "{secret}", "X-Two": "one {secret} two {secret:b}", "Authorization": "Basic {basic:user}", "X-Plain": "text",
	}})
	u, err := Resolve(c, func(name string) (Value, error) { return Value{Text: "value/of " + name}, nil })
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"X-Key": "value/of a", "X-Two": "one value/of a two value/of b", "Authorization": "Basic dXNlcjp2YWx1ZS9vZiBh", "X-Plain": "text"} {
		if got := u.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	for _, want := range []string{"value/of a", "value/of b", "dXNlcjp2YWx1ZS9vZiBh", "value%2Fof+a"} {
		if !slices.Contains(u.Hidden, want) {
			t.Errorf("%q is not hidden", want)
		}
	}
	missing := errors.New("missing")
	if _, err := Resolve(c, func(string) (Value, error) { return Value{}, missing }); !errors.Is(err, missing) {
		t.Errorf("got %v", err)
	}
}

// A login's account goes into a header, and the upstream knows when its token expires.
func TestResolveLogin(t *testing.T) {
	c := Complete(cove.Connector{Name: "chatgpt"})
	if err := Check(c); err != nil || !slices.Equal(SecretsOf(c), []string{"chatgpt"}) {
		t.Fatalf("got %+v, %v", c, err)
	}
	at := time.Unix(2e9, 0).UTC()
	login := &cove.SecretLogin{Client: "codex", Account: "the-account", ExpiresAt: &at}
	u, err := Resolve(c, func(string) (Value, error) { return Value{Text: "the-access-token", Login: login}, nil })
	if err != nil || u.Header.Get("Authorization") != "Bearer the-access-token" || u.Header.Get("Chatgpt-Account-Id") != "the-account" {
		t.Errorf("got %+v, %v", u.Header, err)
	}
	if !u.Expires.Equal(at) || !strings.Contains(u.ExpiredHint, "cove secret set chatgpt --from-login") || !slices.Contains(u.Secrets, "the-access-token") {
		t.Errorf("got %v, %q, %q", u.Expires, u.ExpiredHint, u.Secrets)
	}
	for path, want := range map[string]bool{"/responses": true, "/responses/compact": true, "/models": false, "/../wham/accounts/check": false} {
		if got := u.Allows("POST", path) == ""; got != want {
			t.Errorf("%s: allowed is %v", path, got)
		}
	}
	if u.Allows("GET", "/responses") == "" {
		t.Error("a GET is allowed")
	}
	if _, err := Resolve(c, func(string) (Value, error) { return Value{Text: "a-mere-text"}, nil }); !errors.Is(err, ErrNoLogin) {
		t.Errorf("a secret that is no login: got %v", err)
	}
}

// The usual encodings of a secret are hidden, too, wherever an upstream puts them.
func TestHiddenForms(t *testing.T) {
	const value = "Sk-test/0123&456?789"
	u, err := Resolve(cove.Connector{Name: "x", Secret: "x", Headers: map[string]string{"X-Key": "{secret}"}}, func(string) (Value, error) { return Value{Text: value}, nil })
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{value, strings.ToLower(value), strings.ToUpper(value), fmt.Sprintf("%x", value), fmt.Sprintf("%X", value), url.QueryEscape(value), html.EscapeString(value), `Sk-test/0123\u0026456?789`}
	var wide []byte
	for _, c := range value {
		wide = append(wide, 0, byte(c))
	}
	texts = append(texts, string(wide), string(append(wide[1:], 0)))
	for before := range 6 {
		all := []byte("abcdef"[:before] + value + "xyz")
		texts = append(texts, base64.StdEncoding.EncodeToString(all), base64.RawURLEncoding.EncodeToString(all))
	}
	for _, text := range texts {
		if !slices.ContainsFunc(u.Hidden, func(form string) bool { return strings.Contains(text, form) }) {
			t.Errorf("%q would not be redacted", text)
		}
	}
	for _, form := range u.Hidden {
		if len(form) < leastForm {
			t.Errorf("%q is too short to be hidden", form)
		}
	}
}

func TestUnset(t *testing.T) {
	set := []cove.Secret{{Name: "upk"}}
	for _, test := range []struct {
		header string
		want   []string
	}{
		{"{secret:upk}", nil}, {"{secret}", []string{"up"}}, {"{secret:upk} {secret:other}", []string{"other"}}, {"plain", nil},
	} {
		c := cove.Connector{Name: "up", Secret: "up", Headers: map[string]string{"X-Key": test.header}}
		if got := Unset(c, set); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", test.header, got, test.want)
		}
	}
}

func TestAllows(t *testing.T) {
	u := Upstream{Methods: []string{"GET", "POST"}, Paths: []string{"/v1/*", "/health"}, DenyPaths: []string{"/v1/admin*", "*/secrets/*"}}
	for _, path := range []string{"/v1/", "/v1/messages", "/health", "/v1/a%20b", "/v1/a/b", "/v1/100%", "/v1/%zz/%2"} {
		if why := u.Allows("GET", path); why != "" {
			t.Errorf("%s: %s", path, why)
		}
	}
	for _, path := range []string{
		"/", "/v1", "/v2/x", "/health/x", "/v1/admin", "/v1/admin/x", "/v1/a/secrets/b", "/v1/ADMIN", "/v1//admin", "/v1/%61dmin", "/v1/%2561dmin",
		`/v1/\admin`, "/v1/;x/admin", "/x/../v1/", "/v1/a/secrets;x/b", "/v1/%252561dmin",
		"/v1/%61dmin/%", "/v1/%61dmin%zz", "/v1/%2561dmin/%25", "/health%",
	} {
		if why := u.Allows("GET", path); why == "" {
			t.Errorf("%s is let through", path)
		}
	}
	if u.Allows("DELETE", "/v1/x") == "" || u.Allows("get", "/v1/x") == "" {
		t.Error("a method that is not allowed is let through")
	}
	if why := new(Upstream).Allows("ANY", "//x/%61"); why != "" {
		t.Error(why)
	}
}

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		pattern, path string
		want          bool
	}{
		{"/a", "/a", true}, {"/a", "/ab", false}, {"/a*", "/ab/c", true}, {"*", "", true}, {"*b", "/a/b", true}, {"*b", "/b/a", false},
		{"/a*b*c", "/a1b2c", true}, {"/a*b*c", "/a1c2b", false}, {"/a*a", "/a", false}, {"/ab*b", "/ab", false},
	} {
		if got := Match(test.pattern, test.path); got != test.want {
			t.Errorf("%s on %s: got %v", test.pattern, test.path, got)
		}
	}
}
