package cove_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// serve returns a client of a server that ends with the test.
func serve(t *testing.T, handler http.Handler) *cove.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	})
	return &cove.Client{Client: &sprites.Client{URL: server.URL, Token: "s3cret", HTTPClient: &http.Client{Transport: transport}}}
}

// record serves answer to every request and notes the requests.
func record(t *testing.T, status int, answer string) (*cove.Client, *[]string) {
	var got []string
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = append(got, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(b)))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	})), &got
}

func TestRequests(t *testing.T) {
	ctx := t.Context()
	for _, tt := range []struct {
		do   func(c *cove.Client) error
		want string
	}{
		{func(c *cove.Client) error {
			_, err := c.CreateToken(ctx, cove.TokenRequest{Name: "ci", Scope: cove.TokenScope{Prefix: "ci-"}, Verbs: []string{cove.VerbExec}, TTLSeconds: 60})
			return err
		}, `POST /v1/tokens {"name":"ci","scope":{"prefix":"ci-"},"verbs":["exec"],"ttl_seconds":60}`},
		{func(c *cove.Client) error { _, err := c.ListTokens(ctx); return err }, `GET /v1/tokens`},
		{func(c *cove.Client) error { return c.DeleteToken(ctx, "t1") }, `DELETE /v1/tokens/t1`},
		{func(c *cove.Client) error { _, err := c.Job(ctx, "a3f7b2"); return err }, `GET /v1/jobs/a3f7b2`},
		{func(c *cove.Client) error { _, err := c.Jobs(ctx); return err }, `GET /v1/jobs`},
		{func(c *cove.Client) error {
			_, err := c.PreviewJob(ctx, cove.JobRequest{JobSettings: cove.JobSettings{Agent: "shell"}})
			return err
		}, `POST /v1/jobs/preview {"agent":"shell","timeout_seconds":0,"plan_name":"","repository":"","repo_id":"","branch":"","base":"","plan":"","author":{"name":"","email":""}}`},
		{func(c *cove.Client) error {
			_, err := c.StartJob(ctx, "a3f7b2", cove.JobStart{BundleSHA256: "00", BundleSize: 9})
			return err
		}, `POST /v1/jobs/a3f7b2/start {"bundle_sha256":"00","bundle_size":9}`},
		{func(c *cove.Client) error { _, err := c.StopJob(ctx, "a3f7b2"); return err }, `POST /v1/jobs/a3f7b2/stop`},
		{func(c *cove.Client) error { _, err := c.MarkPulled(ctx, "a3f7b2", "beef"); return err }, `POST /v1/jobs/a3f7b2/pulled {"head":"beef"}`},
		{func(c *cove.Client) error { _, err := cove.MarkUnseen(ctx, c, "a3f7b2"); return err }, `DELETE /v1/jobs/a3f7b2/seen`},
		{func(c *cove.Client) error { _, err := cove.PlanOf(ctx, c, "a3f7b2"); return err }, `GET /v1/jobs/a3f7b2/plan`},
		{func(c *cove.Client) error { return c.DeleteJob(ctx, "../../x", true) }, `DELETE /v1/jobs/..%2F..%2Fx?force=true`},
		{func(c *cove.Client) error { _, err := c.At("far").Get(ctx, "paint"); return err }, `GET /v1/backends/far/v1/sprites/paint`},
		{func(c *cove.Client) error { _, err := c.At("").Get(ctx, "paint"); return err }, `GET /v1/sprites/paint`},
		{func(c *cove.Client) error { return c.SetSecret(ctx, "key", "v") }, `PUT /v1/secrets/key {"value":"v"}`},
		{func(c *cove.Client) error { _, err := c.Check(ctx, "paint"); return err }, `GET /v1/sprites/paint/check`},
	} {
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
		if _, err := client.WaitJob(t.Context(), name); !errors.Is(err, sprites.ErrBadName) {
			t.Errorf("job %q: got %v", name, err)
		}
	}
	if len(*got) > 0 {
		t.Errorf("asked for %v", *got)
	}
}

// The log of connectors is read a line at a time. Empty lines and a line that is cut off
// are no events. The caller ends the reading.
func TestConnectorLog(t *testing.T) {
	client, got := record(t, 200, "{\"connector\":\"a\"}\n\n{\"connector\":\"b\"}\n{\"conn")
	var names []string
	each := func(e cove.ConnectorEvent) error { names = append(names, e.Connector); return nil }
	err := client.ConnectorLog(t.Context(), "paint", cove.ConnectorLogOptions{Since: time.UnixMilli(7), Follow: true}, each)
	if !errors.Is(err, io.ErrUnexpectedEOF) || strings.Join(names, ",") != "a,b" {
		t.Errorf("got %v, %v", names, err)
	}
	enough := errors.New("enough")
	if err := client.ConnectorLog(t.Context(), "paint", cove.ConnectorLogOptions{}, func(cove.ConnectorEvent) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("the caller's error: got %v", err)
	}
	if diff := cmp.Diff([]string{"GET /v1/sprites/paint/connectors/log?follow=true&since=7", "GET /v1/sprites/paint/connectors/log"}, *got); diff != "" {
		t.Error(diff)
	}
}
