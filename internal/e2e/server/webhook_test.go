package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/webhook"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// webhookReceiver is a receiver of webhooks, which may be away.
type webhookReceiver struct {
	web *httptest.Server
	key []byte

	mu   sync.Mutex
	away bool
	got  []cove.WebhookEvent
	bad  []string
}

func receiveWebhooks(t *testing.T) *webhookReceiver {
	r := &webhookReceiver{}
	r.web = httptest.NewUnstartedServer(r)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.web.Listener = ln
	r.web.Start()
	t.Cleanup(r.web.Close)
	return r
}

func (r *webhookReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	var e cove.WebhookEvent
	if err == nil {
		err = json.Unmarshal(body, &e)
	}
	at, err2 := strconv.ParseInt(req.Header.Get("Webhook-Timestamp"), 10, 64)
	if err != nil || err2 != nil || req.Header.Get("Webhook-Signature") != webhook.Sign(r.key, req.Header.Get("Webhook-Id"), time.Unix(at, 0), body) || e.ID != req.Header.Get("Webhook-Id") {
		r.bad = append(r.bad, fmt.Sprintf("%v %v: %v %s", err, err2, req.Header, body))
	}
	if r.away {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	r.got = append(r.got, e)
}

func (r *webhookReceiver) goAway(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
}

// types returns the types of the events received, each event once, with its job or
// sprite.
func (r *webhookReceiver) types() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	for _, e := range r.got {
		if seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		whose := ""
		if e.Job != nil {
			whose = e.Job.ID
		} else if e.Sprite != nil {
			whose = e.Sprite.Name
		}
		all = append(all, strings.TrimSpace(e.Type+" "+whose))
	}
	return all
}

// TestWebhooks: events of jobs and sprites are delivered, signed. If the server is killed with
// undelivered events while the receiver is away, the next server delivers them in order.
func TestWebhooks(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	r := receiveWebhooks(t)
	secret := strings.TrimSpace(h.Run("", "cove", "webhook", "put", r.web.URL, "--name", "mine", "--events", "*", "--private"))
	var err error
	if r.key, err = webhook.Key(secret); err != nil || !strings.HasPrefix(secret, webhook.KeyPrefix) {
		t.Fatalf("the key is %q, %v", secret, err)
	}
	h.Run("", "cove", "webhook", "test", "mine")
	if list := h.Run("", "cove", "webhook", "list"); !strings.Contains(list, r.web.URL) || strings.Contains(list, secret) {
		t.Errorf("the list is %s", list)
	}
	out, code := h.Try("", "cove", "webhook", "put", r.web.URL, "--name", "other", "--events", "*")
	if code == 0 || !strings.Contains(out, "--private") {
		t.Errorf("loopback, without --private: exit %d, %s", code, out)
	}

	repo := h.Repository("repo", map[string]string{"plan.md": "~~~sh\necho one > one\ngit add one\ngit commit -qm One\n~~~\n"})
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell")
	h.Run("", "cove", "job", "wait", job)
	want := []string{"webhook.test", "job.created " + job, "sprite.created " + sprite, "job.started " + job, "job.ended " + job}
	e2e.Await(t, "the events of a job", func() bool { return len(r.types()) >= len(want) })
	got := r.types()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	// The receiver is away, and the server is killed with undelivered events.
	r.goAway(true)
	const more = 5
	for i := range more {
		h.Run("", "cove", "create", fmt.Sprintf("s%d", i))
	}
	pid := h.PID()
	e2e.SignalAll(t, syscall.SIGKILL, pid)
	r.goAway(false)
	h.Run("", "cove", "server", "start")
	e2e.Await(t, "the events from before the kill", func() bool { return len(r.types()) >= len(want)+more })
	for i, of := range r.types()[len(want):] {
		if want := fmt.Sprintf("sprite.created s%d", i); of != want {
			t.Errorf("after the kill, number %d is %s, want %s", i, of, want)
		}
	}
	if len(r.bad) > 0 {
		t.Errorf("came badly: %s", r.bad)
	}
	var log cove.WebhookLog
	e2e.Await(t, "the log", func() bool {
		if err := json.Unmarshal([]byte(h.Run("", "cove", "webhook", "log", "mine", "--limit", "100", "--json")), &log); err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(log.Deliveries, func(d cove.WebhookDelivery) bool { return d.State == cove.DeliveryPending })
	})
	if n := len(log.Deliveries); n != len(want)+more {
		t.Errorf("the log has %d deliveries: %+v", n, log)
	}

	// The webhook uses the person's own secret, which stays when the webhook is removed.
	h.Run("", "sh", "-c", "echo a-secret-of-my-own | cove secret set mine")
	if out := h.Run("", "cove", "webhook", "put", r.web.URL, "--name", "mine", "--events", "sprite.deleted", "--secret", "mine", "--private"); strings.TrimSpace(out) != "" {
		t.Errorf("a key is shown again: %s", out)
	}
	h.Run("", "cove", "webhook", "rm", "mine")
	if list := h.Run("", "cove", "secret", "list"); !strings.Contains(list, "mine") {
		t.Errorf("the secrets are %s", list)
	}
}
