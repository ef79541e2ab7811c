package sprites_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove/sprites"
)

// record serves answer to every request and notes the requests.
func record(t *testing.T, status int, answer string) (*sprites.Client, *[]string) {
	var got []string
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(b)))
		if got, want := r.Header.Get("Authorization"), "Bearer s3cret"; got != want {
			t.Errorf("authorization: got %q", got)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	})), &got
}

func TestWatchList(t *testing.T) {
	answer, contentType, status := "", "application/x-ndjson", 200
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/v1/sprites?prefix=a%26b" || r.Header.Get("Accept") != "application/x-ndjson" {
			t.Errorf("got %s %v", r.URL.RequestURI(), r.Header)
		}
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	watch := func() (got []sprites.StateEvent, err error) {
		for e, failed := range client.Watch(t.Context(), "a&b") {
			if err = failed; err == nil {
				got = append(got, e)
			}
		}
		return got, err
	}
	answer = `{"name":"a&b","status":"running","running_version":"v1","last_warming_at":null,"timestamp":"2026-02-03T10:11:12Z","org":{"running":1}}` +
		"\n\n" + `{"type":"heartbeat","org":{"name":"acme","cold":4}}` + "\n"
	got, err := watch()
	if err != nil || len(got) != 2 || got[0].Status != sprites.StatusRunning || got[0].Org.Running != 1 || got[1].Type != "heartbeat" || got[1].Org.Cold != 4 {
		t.Errorf("got %+v, %v", got, err)
	}
	for range client.Watch(t.Context(), "a&b") {
		break // enough
	}
	answer = "{}\n{"
	if got, err := watch(); len(got) != 1 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut stream: got %+v, %v", got, err)
	}
	answer = "[]\n"
	if got, err := watch(); len(got) != 0 || err == nil {
		t.Errorf("no event: got %+v, %v", got, err)
	}
	answer, contentType = `{"sprites":[]}`, "application/json"
	if _, err := watch(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a list: got %v", err)
	}
	status = 406
	if _, err := watch(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("406: got %v", err)
	}
	status = 403
	if _, err := watch(); !errors.Is(err, sprites.ErrForbidden) {
		t.Errorf("403: got %v", err)
	}
}

// Statement 9: the caller's own HTTP client is used (as in all tests of this package, for WebSockets too).
func TestRequests(t *testing.T) {
	ctx := context.Background()
	public := &sprites.URLSettings{Auth: "public"}
	tests := []struct {
		do   func(c *sprites.Client) error
		want string
	}{
		{func(c *sprites.Client) error {
			_, err := c.Create(ctx, sprites.CreateRequest{Name: "paint", Labels: []string{"ci"}})
			return err
		}, `POST /v1/sprites {"name":"paint","labels":["ci"]}`},
		{func(c *sprites.Client) error { _, err := c.Get(ctx, "a/b ü?"); return err }, `GET /v1/sprites/a%2Fb%20%C3%BC%3F`},
		{func(c *sprites.Client) error {
			_, err := c.Update(ctx, "paint", sprites.UpdateRequest{URLSettings: public, Labels: &[]string{}})
			return err
		}, `PUT /v1/sprites/paint {"url_settings":{"auth":"public"},"labels":[]}`},
		{func(c *sprites.Client) error { return c.Delete(ctx, "paint", sprites.DeleteOptions{}) }, `DELETE /v1/sprites/paint`},
		{func(c *sprites.Client) error { return c.Delete(ctx, "paint", sprites.DeleteOptions{Force: true}) }, `DELETE /v1/sprites/paint?force=true`},
		{func(c *sprites.Client) error {
			_, err := c.List(ctx, sprites.ListOptions{Prefix: "p&q", MaxResults: 7, Token: "="})
			return err
		}, `GET /v1/sprites?continuation_token=%3D&max_results=7&prefix=p%26q`},
		{func(c *sprites.Client) error { _, err := c.Restart(ctx, "paint"); return err }, `POST /v1/sprites/paint/restart`},
		{func(c *sprites.Client) error { return c.Upgrade(ctx, "a/b") }, `POST /v1/sprites/a%2Fb/upgrade`},
		{func(c *sprites.Client) error { _, err := c.Version(ctx); return err }, `GET /v1/version`},
		{func(c *sprites.Client) error { _, err := c.Sprite("paint").Sessions(ctx); return err }, `GET /v1/sprites/paint/exec`},
		{func(c *sprites.Client) error { _, err := c.Self().Sessions(ctx); return err }, `GET /v1/exec`},
		{func(c *sprites.Client) error {
			return c.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "a/b"), Query: url.Values{"q": {"&"}}, JSON: []int{1}}, nil)
		}, `POST /v1/a%2Fb?q=%26 [1]`},
	}
	for _, tt := range tests {
		client, got := record(t, 200, `{}`)
		if err := tt.do(client); err != nil {
			t.Errorf("%s: %v", tt.want, err)
		}
		if diff := cmp.Diff([]string{tt.want}, *got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestNamesThatArePaths(t *testing.T) {
	client, got := record(t, 200, `{}`)
	for _, name := range []string{"", ".", ".."} {
		if _, err := client.Get(t.Context(), name); !errors.Is(err, sprites.ErrBadName) {
			t.Errorf("%q: got %v", name, err)
		}
		if err := client.Sprite(name).Command("true").Run(); !errors.Is(err, sprites.ErrBadName) {
			t.Errorf("exec in %q: got %v", name, err)
		}
	}
	if len(*got) > 0 {
		t.Errorf("asked for %v", *got)
	}
	if _, err := new(sprites.Client).Get(t.Context(), "paint"); err == nil {
		t.Error("a client without a URL")
	}
}

func TestNameTaken(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   string
		taken  bool
	}{
		{409, `{"error":"name_taken","message":"there is a sprite called paint"}`, true},
		{409, `conflict`, true},
		{400, `{"error":"name already taken"}`, true},
		{422, `{"errors":["name has already been taken"]}`, true},
		{422, `{"errors":["name is too long"]}`, false},
		{409, `{"error":"base_changed"}`, false},
		{400, ``, false},
	} {
		client, _ := record(t, tt.status, tt.body)
		_, err := client.Create(t.Context(), sprites.CreateRequest{Name: "paint"})
		if err == nil || errors.Is(err, sprites.ErrNameTaken) != tt.taken {
			t.Errorf("%d %s: got %v", tt.status, tt.body, err)
		}
	}
}

func TestAll(t *testing.T) {
	loop := false
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("max_results"); got != "100" { // fifty would be twice as many calls
			t.Errorf("pages of %q are asked for", got)
		}
		page := map[string]sprites.ListResponse{}
		next := func(s string) *string { return &s }
		page[""] = sprites.ListResponse{Sprites: []sprites.Info{{Name: "p1"}, {Name: "p2"}}, HasMore: true, NextToken: next("x")}
		page["x"] = sprites.ListResponse{Sprites: []sprites.Info{{Name: "p3"}}, HasMore: loop, NextToken: next("x")}
		_ = json.NewEncoder(w).Encode(page[r.URL.Query().Get("continuation_token")])
	}))
	names := func() (got []string, err error) {
		for info, e := range client.All(t.Context(), "p") {
			if e != nil {
				return got, e
			}
			got = append(got, info.Name)
		}
		return got, nil
	}
	if got, err := names(); fmt.Sprint(got) != "[p1 p2 p3]" || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	loop = true
	if got, err := names(); err == nil {
		t.Errorf("a list without an end: got %v", got)
	}
	for range client.All(t.Context(), "p") {
		break
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere, got := record(t, 200, `{}`)
	client := serve(t, http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	e, ok := errors.AsType[*sprites.Error](func() error { _, err := client.Get(t.Context(), "paint"); return err }())
	if !ok || e.StatusCode != http.StatusTemporaryRedirect || len(*got) > 0 {
		t.Errorf("got %v, and the other server was asked for %v", e, *got)
	}
}

// Statement 8: a trailing slash of the base URL is removed. (There is no default base: a server is always named.)
func TestUserAgentAndPathPrefix(t *testing.T) {
	var got string
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.UserAgent() + " " + r.URL.Path
		w.WriteHeader(http.StatusNoContent)
	}))
	client.URL += "prefix/"
	if err := client.Upgrade(t.Context(), "x"); err != nil || got != sprites.DefaultUserAgent+" /prefix/v1/sprites/x/upgrade" {
		t.Errorf("got %q, %v", got, err)
	}
	client.UserAgent = "me"
	if err := client.Upgrade(t.Context(), "x"); err != nil || got != "me /prefix/v1/sprites/x/upgrade" {
		t.Errorf("got %q, %v", got, err)
	}
}
