package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/webhook"
	"github.com/cove-dev/cove/internal/test/covetest"
)

// TestWebhookRoutes: a webhook's key is told once, and ends with it. A request that can't be a
// webhook is refused, and the error says what to do.
func TestWebhookRoutes(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	status := http.StatusOK
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(web.Close)
	hooks := cove.Webhooks{Client: s.Client()}
	ctx := t.Context()
	for body, want := range map[string]string{
		`{"events":["job.ended"]}`:                                                       "url",
		`{"url":"https://x.example.org/"}`:                                               "no events",
		`{"url":"https://x.example.org/","events":["job.paused"]}`:                       "job.paused",
		`{"url":"https://x.example.org/","events":["*","job.ended"]}`:                    "no other event",
		`{"url":"https://x.example.org/","events":["job.ended","job.ended"]}`:            "twice",
		`{"url":"https://x.example.org/","events":["job.ended"],"secret":"none"}`:        "no secret none",
		`{"url":"https://x.example.org/","events":["job.ended"],"secret":"a b"}`:         "letters",
		`{"url":"https://10.0.0.1/","events":["job.ended"]}`:                             "not public",
		`{"url":"` + web.URL + `","events":["job.ended"]}`:                               "https",
		`{"url":"https://x.example.org/","events":["job.ended"],"moon":true}`:            "moon",
		`{"url":"https://x.example.org/","events":"job.ended"}`:                          "events",
		`{"url":"https://ada:secret@x.example.org/","events":["job.ended"],"name":"no"}`: "password",
	} {
		text := ask(t, s, "PUT /v1/webhooks/mine", body).refused(t, 400, "bad_request")
		failIf(t, !strings.Contains(text, want), "%s: %s", body, text)
	}
	ask(t, s, "PUT /v1/webhooks/Not_A_Name", `{"url":"https://x.example.org/","events":["*"]}`).refused(t, 400, "bad_request")
	list, err := hooks.List(ctx)
	failIf(t, err != nil || len(list) != 0, "got %v, %v", list, err)
	secrets, err := s.Client().Secrets(ctx)
	failIf(t, err != nil || len(secrets) != 0, "a refused webhook has left %v, %v", secrets, err)

	def := cove.Webhook{Name: "mine", URL: web.URL, Events: []string{"*"}, Private: true}
	made, err := hooks.Put(ctx, def)
	must(t, err)
	key, err := webhook.Key(made.SigningSecret)
	failIf(t, err != nil || len(key) != 32 || made.Secret != "webhook-mine", "made %+v, %v", made, err)
	again, err := hooks.Put(ctx, def)
	failIf(t, err != nil || again.SigningSecret != "" || !again.CreatedAt.Equal(made.CreatedAt), "made again %+v, %v", again, err)
	a := ask(t, s, "GET /v1/webhooks", "")
	failIf(t, strings.Contains(string(a.body), made.SigningSecret), "the list tells the key: %s", a.body)

	d, err := hooks.Test(ctx, "mine")
	failIf(t, err != nil || d.State != cove.DeliveryDelivered || d.Status != 200, "tried: %+v, %v", d, err)
	status = http.StatusTeapot
	d, err = hooks.Test(ctx, "mine")
	failIf(t, err != nil || d.State != cove.DeliveryFailed || d.Status != status || d.Error == "", "tried again: %+v, %v", d, err)
	log, err := hooks.Log(ctx, "mine", 1)
	failIf(t, err != nil || len(log) != 1 || log[0].Event != d.Event, "the log is %+v, %v", log, err)
	ask(t, s, "GET /v1/webhooks/mine/log?limit=0", "").refused(t, 400, "bad_request")
	for _, what := range []string{"POST /v1/webhooks/none/test", "GET /v1/webhooks/none/log", "DELETE /v1/webhooks/none"} {
		ask(t, s, what, "").refused(t, 404, "not_found")
	}

	// A secret that is not a key is refused.
	must(t, s.Client().SetSecret(ctx, "mine", webhook.KeyPrefix+"???"))
	ask(t, s, "PUT /v1/webhooks/other", `{"url":"https://x.example.org/","events":["*"],"secret":"mine"}`).refused(t, 400, "bad_request")
	must(t, hooks.Delete(ctx, "mine"))
	secrets, err = s.Client().Secrets(ctx)
	failIf(t, err != nil || len(secrets) != 1 || secrets[0].Name != "mine", "afterwards the secrets are %v, %v", secrets, err)
	var raw map[string]any
	must(t, json.Unmarshal(ask(t, s, "GET /v1/webhooks", "").body, &raw))
	failIf(t, len(raw["webhooks"].([]any)) != 0, "afterwards: %v", raw)
}
