package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/server/webhook"
)

const secret = "a secret of the test"

// receiver is the other end, by status: it is asked with each attempt.
type receiver struct {
	answer func(hook string, e cove.WebhookEvent) int // 0: no answer

	mu  sync.Mutex
	got []string // HOOK JOB TYPE, with each attempt
	at  []time.Time
}

func (r *receiver) of(hook cove.Webhook) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		var e cove.WebhookEvent
		if err := json.Unmarshal(body, &e); err != nil {
			return nil, err
		}
		var at int64
		if _, err := fmt.Sscan(req.Header.Get("Webhook-Timestamp"), &at); err != nil {
			return nil, err
		}
		if sign := webhook.Sign([]byte(secret), e.ID, time.Unix(at, 0), body); req.Header.Get("Webhook-Id") != e.ID || req.Header.Get("Webhook-Signature") != sign {
			return nil, fmt.Errorf("signed as %v", req.Header)
		}
		job := ""
		if e.Job != nil {
			job = e.Job.ID
		}
		r.mu.Lock()
		r.got = append(r.got, strings.TrimSpace(hook.Name+" "+job+" "+e.Type))
		r.at = append(r.at, time.Now())
		r.mu.Unlock()
		status := r.answer(hook.Name, e)
		if status == 0 {
			return nil, errors.New("connection refused")
		}
		return &http.Response{StatusCode: status, Body: http.NoBody, Header: http.Header{}}, nil
	})
}

// told returns what has come, and forgets it.
func (r *receiver) told() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	r.got, r.at = nil, nil
	return got
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// world is a store with webhooks, and a sender.
type world struct {
	t *testing.T
	*store.Store
	sender *webhook.Sender
	r      *receiver
}

func open(t *testing.T, dir string, r *receiver) *world {
	t.Helper()
	st, err := store.Open(t.Context(), filepath.Join(dir, "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t, st, nil, r}
	w.start()
	return w
}

func (w *world) start() {
	w.sender = &webhook.Sender{Store: w.Webhooks, Secret: func(context.Context, string) (string, error) { return secret, nil }, Transport: w.r.of}
	w.sender.Start(context.WithoutCancel(w.t.Context()))
}

func (w *world) close() { w.must(errors.Join(w.sender.Close(), w.Close())) }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) hook(name string, events ...string) {
	w.t.Helper()
	_, err := w.Webhooks.Put(w.t.Context(), cove.Webhook{Name: name, URL: "https://" + name + ".example.org/", Events: events, Secret: "s"}, secret)
	w.must(err)
}

func (w *world) job(id string) {
	w.t.Helper()
	w.must(w.Jobs.Create(w.t.Context(), cove.Job{ID: id, State: cove.JobQueued, JobSettings: cove.JobSettings{Sprite: "paint", Definition: &cove.AgentDefinition{}}}, nil))
}

// log is the states of the deliveries, the oldest first.
func (w *world) log(hook string) (states []string) {
	w.t.Helper()
	list, err := w.Webhooks.Log(w.t.Context(), hook, 0)
	w.must(err)
	for _, d := range slices.Backward(list) {
		states = append(states, fmt.Sprintf("%s %s %d %d", d.Type, d.State, d.Attempts, d.Status))
	}
	return states
}

func equal(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// TestEvents: each change of a job is told once, to the webhooks that asked for it, in order.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(string, cove.WebhookEvent) int { return 204 }}
		w := open(t, t.TempDir(), r)
		defer w.close()
		ctx := t.Context()
		w.hook("all", "*")
		w.hook("ends", cove.EventJobEnded)
		w.job("aaaaaa")
		change := func(f func(*cove.Job)) {
			w.must(w.Jobs.Update(ctx, "aaaaaa", func(j *cove.Job) error { f(j); return nil }))
		}
		change(func(j *cove.Job) { j.State = cove.JobRunning })
		change(func(j *cove.Job) { j.Workdir = "elsewhere" })
		change(func(j *cove.Job) { j.State, j.Question = cove.JobWaiting, &cove.JobQuestion{ID: "q1"} })
		change(func(j *cove.Job) { j.State = cove.JobRunning })
		change(func(j *cove.Job) { j.Question = &cove.JobQuestion{ID: "q2"} })
		for range 2 { // the first wins
			_, err := w.Jobs.Finish(ctx, "aaaaaa", cove.JobFailed, cove.Outcome{}, nil)
			w.must(err)
		}
		w.must(w.Jobs.Delete(ctx, "aaaaaa")) // its end was told
		w.job("bbbbbb")
		w.must(w.Jobs.Delete(ctx, "bbbbbb")) // it never began
		synctest.Wait()
		time.Sleep(time.Second)
		var all, ends []string
		for _, line := range r.told() {
			if strings.HasPrefix(line, "all ") {
				all = append(all, line)
			} else {
				ends = append(ends, line)
			}
		}
		equal(t, "all", all, "all aaaaaa job.created", "all aaaaaa job.started", "all aaaaaa job.waiting", "all aaaaaa job.question", "all aaaaaa job.question", "all aaaaaa job.ended", "all bbbbbb job.created", "all bbbbbb job.ended")
		equal(t, "ends", ends, "ends aaaaaa job.ended", "ends bbbbbb job.ended")
		equal(t, "log", w.log("ends"), "job.ended delivered 1 204", "job.ended delivered 1 204")
	})
}

// TestBackoff: a receiver that does not answer is tried less and less often. It delays its own
// webhook's later events, and no other webhook. After a day, an event is given up.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := true
		r := &receiver{answer: func(hook string, _ cove.WebhookEvent) int {
			if hook == "dead" && dead {
				return 0
			}
			return 200
		}}
		w := open(t, t.TempDir(), r)
		defer w.close()
		w.hook("dead", cove.EventJobCreated)
		w.hook("live", cove.EventJobCreated)
		w.job("aaaaaa")
		w.job("bbbbbb")
		time.Sleep(time.Minute)
		got := r.told()
		if n := len(got); n < 6 || n > 12 || slices.Contains(got, "dead bbbbbb job.created") || !slices.Contains(got, "live bbbbbb job.created") {
			t.Errorf("in a minute: %q", got)
		}
		time.Sleep(time.Hour)
		if n := len(r.told()); n < 6 || n > 25 {
			t.Errorf("in an hour: %d attempts", n)
		}
		// A change of the webhook ends the pause.
		dead = false
		w.sender.Wake("dead")
		synctest.Wait()
		time.Sleep(time.Second)
		equal(t, "woken", r.told(), "dead aaaaaa job.created", "dead bbbbbb job.created")
		dead = true
		w.job("cccccc")
		time.Sleep(webhook.Patience + time.Hour)
		r.told()
		states := w.log("dead")
		if len(states) != 3 || !strings.HasPrefix(states[2], "job.created failed ") {
			t.Errorf("after a day: %q", states)
		}
		time.Sleep(time.Hour)
		equal(t, "given up", r.told())
	})
}

// TestAnotherOfTheName: what waits for a deleted webhook is not sent to a new one of its name.
// Nor does it delay what that one is told.
func TestAnotherOfTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := true
		r := &receiver{answer: func(string, cove.WebhookEvent) int {
			if dead {
				return 0
			}
			return 200
		}}
		w := open(t, t.TempDir(), r)
		defer w.close()
		w.hook("one", cove.EventJobCreated)
		w.job("aaaaaa")
		time.Sleep(time.Hour) // its worker is in a long pause
		r.told()
		dead = false
		w.must(w.Webhooks.Delete(t.Context(), "one"))
		w.hook("one", cove.EventJobCreated)
		w.job("bbbbbb")
		w.sender.Wake("one")
		time.Sleep(time.Second)
		equal(t, "sent", r.told(), "one bbbbbb job.created")
		equal(t, "log", w.log("one"), "job.created delivered 1 200")
	})
}

// TestRefused: an event that a receiver refuses is given up sooner, and later events are sent.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(_ string, e cove.WebhookEvent) int {
			switch e.Job.ID {
			case "aaaaaa":
				return 422
			case "bbbbbb":
				return 302
			}
			return 200
		}}
		w := open(t, t.TempDir(), r)
		defer w.close()
		w.hook("one", cove.EventJobCreated)
		for _, id := range []string{"aaaaaa", "bbbbbb", "cccccc"} {
			w.job(id)
		}
		time.Sleep(time.Hour)
		states := w.log("one")
		if len(states) != 3 || !strings.HasPrefix(states[0], "job.created failed ") || !strings.HasPrefix(states[1], "job.created failed ") || states[2] != "job.created delivered 1 200" {
			t.Errorf("got %q", states)
		}
	})
}

// TestRestart: the next sender sends the events that were not delivered when the last one ended. It
// goes on counting the attempts.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		r := &receiver{answer: func(string, cove.WebhookEvent) int {
			if down {
				return 503
			}
			return 200
		}}
		dir := t.TempDir()
		w := open(t, dir, r)
		w.hook("one", cove.EventJobCreated)
		w.job("aaaaaa")
		time.Sleep(time.Minute)
		before := len(r.told())
		w.close()
		down = false
		w = open(t, dir, r)
		defer w.close()
		time.Sleep(time.Hour)
		equal(t, "sent", r.told(), "one aaaaaa job.created")
		equal(t, "log", w.log("one"), fmt.Sprintf("job.created delivered %d 200", before+1))
	})
}

// TestBound: of more than may wait the oldest are dropped, and the log says so.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(string, cove.WebhookEvent) int { return 0 }}
		w := open(t, t.TempDir(), r)
		defer w.close()
		w.hook("one", cove.EventJobCreated)
		const more = 3
		for i := range store.MaxPending + more {
			w.job(fmt.Sprintf("%06x", i))
		}
		hook, err := w.Webhooks.Get(t.Context(), "one")
		w.must(err)
		dropped := 0
		list, err := w.Webhooks.Log(t.Context(), "one", 0)
		w.must(err)
		for i, d := range slices.Backward(list) {
			if d.State == cove.DeliveryDropped {
				dropped++
				if i < store.MaxPending || d.Error == "" || d.DoneAt == nil {
					t.Errorf("number %d was dropped: %+v", i, d)
				}
			}
		}
		if hook.Pending != store.MaxPending || dropped != more {
			t.Errorf("%d wait, %d were dropped", hook.Pending, dropped)
		}
	})
}

// TestFlood: a job that waits and goes on endlessly does not push out the events of others.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(string, cove.WebhookEvent) int { return 0 }}
		w := open(t, t.TempDir(), r)
		defer w.close()
		w.hook("one", "*")
		w.job("aaaaaa")
		w.job("bbbbbb")
		for range store.MaxPending + 10 {
			for _, state := range []cove.JobState{cove.JobWaiting, cove.JobRunning} {
				w.must(w.Jobs.Update(t.Context(), "bbbbbb", func(j *cove.Job) error { j.State = state; return nil }))
			}
		}
		hook, err := w.Webhooks.Get(t.Context(), "one")
		w.must(err)
		list, err := w.Webhooks.Log(t.Context(), "one", 0)
		w.must(err)
		if hook.Pending > store.MaxPending/2+10 || slices.ContainsFunc(list, func(d cove.WebhookDelivery) bool { return d.State == cove.DeliveryDropped }) {
			t.Errorf("%d wait, the last of them %+v", hook.Pending, list[0])
		}
	})
}

// TestSprites: events of sprites are sent, without the sprites' environment. The server's own sprites
// have none.
func TestSprites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var env []string
		r := &receiver{answer: func(_ string, e cove.WebhookEvent) int {
			mu.Lock()
			defer mu.Unlock()
			for key := range e.Sprite.Environment {
				env = append(env, key)
			}
			return 200
		}}
		w := open(t, t.TempDir(), r)
		defer w.close()
		ctx := t.Context()
		w.hook("one", "*")
		for _, owner := range []string{"", store.PoolOwner, store.BuildOwner, store.InstallOwner + "k"} {
			s := &store.Sprite{ID: fmt.Sprintf("%016x", len(owner)), Name: "s" + strings.Trim(owner, ":"), Base: "host", Owner: owner, Env: map[string]string{"KEY": "value"}}
			w.must(w.Store.Sprites.Create(ctx, s))
			for _, why := range []string{"it fell", "it fell", ""} {
				_, err := w.Store.Sprites.Update(ctx, s.ID, func(s *store.Sprite) error { s.LastError = why; return nil })
				w.must(err)
			}
			w.must(w.Store.Sprites.Delete(ctx, s.ID))
		}
		time.Sleep(time.Minute)
		equal(t, "sprites", r.told(), "one  sprite.created", "one  sprite.failed", "one  sprite.deleted")
		if len(env) > 0 {
			t.Errorf("told the environment: %v", env)
		}
	})
}

// TestGuard: an address that is not public is refused, whatever name leads to it. So is a metadata
// service whose address is not in the URL itself. A redirect is not followed.
func TestGuard(t *testing.T) {
	for url, want := range map[string]string{
		"https://hooks.example.org/x": "", "https://[2606:4700::1111]/": "",
		"http://hooks.example.org/": "https", "ftp://hooks.example.org/": "not the http", "https:///x": "not the http", "https://ada:pw@example.org/": "password", "https://a.example.org/#x": "not the http",
		"https://127.0.0.1/": "not public", "https://10.1.2.3/": "not public", "https://169.254.169.254/": "not public", "https://[::1]/": "not public", "https://[::ffff:10.0.0.1]/": "not public", "https://localhost/": "this machine", "https://a.localhost/": "this machine",
	} {
		err := webhook.CheckURL(cove.Webhook{URL: url})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", url, err, want)
		}
		if strings.Contains(want, "not public") {
			if err := webhook.CheckURL(cove.Webhook{URL: url, Private: true}); err != nil {
				t.Errorf("%s, private: %v", url, err)
			}
		}
	}

	elsewhere := false
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere = elsewhere || r.URL.Path == "/elsewhere"
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer web.Close()
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	sender := &webhook.Sender{Store: st.Webhooks, Secret: func(context.Context, string) (string, error) { return secret, nil }}
	sender.Start(t.Context())
	defer func() { _ = sender.Close() }()
	try := func(url string, private bool) cove.WebhookDelivery {
		t.Helper()
		if _, err := st.Webhooks.Put(t.Context(), cove.Webhook{Name: "one", URL: url, Events: []string{"*"}, Secret: "s", Private: private}, secret); err != nil {
			t.Fatal(err)
		}
		d, err := sender.Test(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	// The name is looked up, and leads here.
	name := strings.Replace(web.URL, "127.0.0.1", "localhost", 1)
	if d := try(name, false); d.State != cove.DeliveryFailed || d.Status != 0 || !strings.Contains(d.Error, "not public") {
		t.Errorf("a name that leads inward: %+v", d)
	}
	if d := try(name, true); d.State != cove.DeliveryFailed || d.Status != http.StatusTemporaryRedirect || !strings.Contains(d.Error, "redirect") || elsewhere {
		t.Errorf("a redirect: %+v, followed: %v", d, elsewhere)
	}
}

// TestSignature is the example of the Standard Webhooks specification.
func TestSignature(t *testing.T) {
	key, err := webhook.Key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := webhook.Sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("got %s", got)
	}
	if _, err := webhook.Key("whsec_!"); err == nil {
		t.Error("a key that is no base64 is taken")
	}
}
