package store

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// TestWebhookKey: a webhook and the key that is made with it are there together, and go together.
func TestWebhookKey(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "cove.db"))
	ctx := t.Context()
	hook := cove.Webhook{Name: "mine", URL: "https://hooks.example.org/", Events: []string{"*"}, Secret: WebhookSecret("mine")}
	has := func(want bool) {
		t.Helper()
		if got, err := s.Secrets.Has(ctx, hook.Secret); err != nil || got != want {
			t.Errorf("its secret is there: %v, %v", got, err)
		}
	}
	if _, err := s.Webhooks.Put(ctx, hook, ""); err == nil {
		t.Error("a webhook without its secret was stored")
	} else if e, ok := errors.AsType[*NoSecretError](err); !ok || e.Name != hook.Secret {
		t.Errorf("got %v", err)
	}
	// If the second write can't be made, the first has not been.
	_, err := s.db.write.Exec(`CREATE TEMP TRIGGER cut BEFORE INSERT ON webhooks BEGIN SELECT raise(ABORT, 'cut'); END`)
	must(t, err)
	if _, err := s.Webhooks.Put(ctx, hook, "key"); err == nil || !strings.Contains(err.Error(), "cut") {
		t.Errorf("got %v", err)
	}
	has(false)
	_, err = s.db.write.Exec(`DROP TRIGGER cut`)
	must(t, err)
	for i, want := range []bool{true, false} {
		if made, err := s.Webhooks.Put(ctx, hook, "key "+string(rune('a'+i))); err != nil || made != want {
			t.Errorf("put %d: made %v, %v", i, made, err)
		}
	}
	if value, err := s.Secrets.Value(ctx, hook.Secret); err != nil || value != "key a" {
		t.Errorf("the key is %q, %v", value, err)
	}
	_, err = s.db.write.Exec(`CREATE TEMP TRIGGER cut BEFORE DELETE ON webhooks BEGIN SELECT raise(ABORT, 'cut'); END`)
	must(t, err)
	if err := s.Webhooks.Delete(ctx, "mine"); err == nil {
		t.Error("it was deleted")
	}
	has(true)
	_, err = s.db.write.Exec(`DROP TRIGGER cut`)
	must(t, err)
	must(t, s.Webhooks.Delete(ctx, "mine"))
	has(false)
}

// TestWebhookJob: an event describes its job as lists do.
func TestWebhookJob(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "cove.db"))
	ctx := t.Context()
	_, err := s.Webhooks.Put(ctx, cove.Webhook{Name: "mine", URL: "https://hooks.example.org/", Events: []string{"*"}, Secret: "key"}, "key")
	must(t, err)
	long := strings.Repeat("long", 100)
	must(t, s.Jobs.Create(ctx, cove.Job{
		ID: "aaaaaa", State: cove.JobQueued, EnvNames: []string{long}, Settings: []string{long}, Secrets: []string{"key"},
		JobSettings: cove.JobSettings{Agent: "shell", Definition: &cove.AgentDefinition{Text: long}, MCP: []cove.MCPServer{{Connector: long}},
			NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: long}}}},
		JobProgress: cove.JobProgress{Shallow: []string{long}},
	}, nil))
	d, err := s.Webhooks.Next(ctx, "mine")
	must(t, err)
	var e cove.WebhookEvent
	must(t, json.Unmarshal(d.Body, &e))
	if e.Job == nil || e.Job.ID != "aaaaaa" || e.Job.Agent != "shell" || strings.Contains(string(d.Body), long) {
		t.Errorf("the event is %s", d.Body)
	}
	if job, err := s.Jobs.Get(ctx, "aaaaaa"); err != nil || len(job.EnvNames) != 1 || job.NetworkPolicy == nil {
		t.Errorf("the job is %+v, %v", job, err)
	}
}
