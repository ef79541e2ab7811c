package server_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// wire is a client of GET /v1/ws.
type wire struct {
	t     *testing.T
	conn  *websocket.Conn
	asked int64
	notes []cove.Notification // that came while an answer was waited for
}

func dialWire(t *testing.T, s *covetest.Server, secret string) *wire {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), s.URL+"/v1/ws", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + secret}}})
	must(t, err)
	conn.SetReadLimit(-1)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &wire{t: t, conn: conn}
}

func (w *wire) read() (m cove.SocketMessage, err error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), lastResort)
	defer cancel()
	_, text, err := w.conn.Read(ctx)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}

func (w *wire) write(text string) {
	w.t.Helper()
	must(w.t, w.conn.Write(w.t.Context(), websocket.MessageText, []byte(text)))
}

// answer reads until the answer to a request.
func (w *wire) answer(id int64) cove.SocketMessage {
	w.t.Helper()
	for {
		m, err := w.read()
		must(w.t, err)
		switch {
		case m.Topic != "" || m.Synced:
			w.notes = append(w.notes, m.Notification)
		case m.ID == id && m.Line == nil:
			return m
		}
	}
}

func (w *wire) call(method, params string) cove.SocketMessage {
	w.t.Helper()
	w.asked++
	w.write(fmt.Sprintf(`{"id":%d,"method":%q,"params":%s}`, w.asked, method, cmp.Or(params, "{}")))
	return w.answer(w.asked)
}

func (w *wire) refused(status int, code, method, params string) {
	w.t.Helper()
	e := w.call(method, params).Error
	failIf(w.t, e == nil || e.Status != status || e.Code != code || e.Message == "", "%s %s: got %+v, want %d %s", method, params, e, status, code)
}

func (w *wire) note() cove.Notification {
	w.t.Helper()
	if len(w.notes) > 0 {
		n := w.notes[0]
		w.notes = w.notes[1:]
		return n
	}
	m, err := w.read()
	must(w.t, err)
	failIf(w.t, m.ID != 0, "got an answer: %+v", m)
	return m.Notification
}

func (w *wire) subscribe(sub cove.Subscription) (answer cove.Subscribed) {
	w.t.Helper()
	params, err := json.Marshal(sub)
	must(w.t, err)
	m := w.call("subscribe", string(params))
	failIf(w.t, m.Error != nil, "subscribe: %+v", m.Error)
	must(w.t, json.Unmarshal(m.Result, &answer))
	return answer
}

// brief is a notification in a few words.
func brief(n cove.Notification) string {
	switch {
	case n.Synced:
		return "synced"
	case n.Deleted:
		return "-" + n.Topic + " " + n.Name
	}
	return n.Topic + " " + n.Name
}

func (w *wire) wants(list ...string) {
	w.t.Helper()
	for _, want := range list {
		if got := brief(w.note()); got != want {
			w.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func withJobs(t *testing.T) covetest.Options {
	return covetest.Options{Jobs: func(st *store.Store, c *cove.Client) (server.Jobs, func() error, error) {
		m := &job.Manager{Store: st, Client: c}
		return m, m.Close, m.Resume(t.Context())
	}}
}

// TestSocketRequests: a request is answered as the same call over HTTP, also with an error.
func TestSocketRequests(t *testing.T) {
	s := covetest.Start(t, withJobs(t))
	addJob(t, s, "abcdef", "paint")
	addJob(t, s, "fedcba", "other")
	w := dialWire(t, s, s.Token)
	for call, what := range map[string]string{
		`jobs.list {"sprite":"paint"}`:                  "GET /v1/jobs?sprite=paint",
		`jobs.list {"state":["running","lost"]}`:        "GET /v1/jobs?state=running&state=lost",
		`jobs.get {"id":"abcdef","wait":null}`:          "GET /v1/jobs/abcdef",
		`jobs.steps {"id":"abcdef","follow":false}`:     "GET /v1/jobs/abcdef/steps",
		`profiles.list {}`:                              "GET /v1/profiles",
		`jobs.get {"id":"none"}`:                        "GET /v1/jobs/none",
		`jobs.get {"id":"a/b"}`:                         "GET /v1/jobs/a%2Fb",
		`jobs.get {"id":"abcdef","wait":"soon"}`:        "GET /v1/jobs/abcdef?wait=soon",
		`profiles.get {"profile":"none"}`:               "GET /v1/profiles/none",
		`jobs.send {"id":"abcdef","moonbeam":1}`:        `POST /v1/jobs/abcdef/send {"moonbeam":1}`,
		`jobs.answer {"id":"abcdef","question":[]}`:     `POST /v1/jobs/abcdef/answer {"question":[]}`,
		`jobs.create {"plan":7}`:                        `POST /v1/jobs {"plan":7}`,
		`jobs.create {"agent":"none"}`:                  `POST /v1/jobs {"agent":"none"}`,
		`sprites.test {"backend":"none"}`:               `POST /v1/executors/test {"backend":"none"}`,
		`jobs.events {"id":"none","follow":true}`:       "GET /v1/jobs/none/events",
		`jobs.delete {"id":"abcdef","force":"perhaps"}`: "DELETE /v1/jobs/abcdef?force=perhaps",
	} {
		method, params, _ := strings.Cut(call, " ")
		pattern, body, _ := strings.Cut(what, " {")
		if body != "" {
			body = "{" + body
		}
		got, want := w.call(method, params), ask(t, s, pattern, body)
		if want.StatusCode < 400 {
			failIf(t, got.Error != nil || string(got.Result) != strings.TrimSpace(string(want.body)), "%s: got %s, %+v, want %s", call, got.Result, got.Error, want.body)
			continue
		}
		var e struct{ Error, Message, Hint string }
		must(t, json.Unmarshal(want.body, &e))
		failIf(t, got.Error == nil || got.Error.Status != want.StatusCode || got.Error.Code != e.Error || got.Error.Message != e.Message || got.Error.Hint != e.Hint || got.Result != nil,
			"%s: got %+v, want %d %s", call, got.Error, want.StatusCode, want.body)
	}
	w.refused(404, "not_found", "jobs.fly", "")
	w.refused(404, "not_found", "cancel", `{"request":99}`)
	for _, params := range []string{`{"id":"abcdef","moonbeam":1}`, `{}`, `{"id":""}`, `{"id":7}`, `{"id":"abcdef","wait":{}}`, `[]`} {
		w.refused(400, "bad_request", "jobs.get", params)
	}
	w.refused(404, "not_found", "jobs.get", `{"id":".."}`)
	for _, params := range []string{`{"topics":["moons"]}`, `{"topics":["jobs"],"moonbeam":1}`, `{"topics":["jobs"],"since":3}`, `{"topics":["jobs"],"since":-1,"feed":"x"}`} {
		w.refused(400, "bad_request", "subscribe", params)
	}
	for text, id := range map[string]int64{`{"id":77,"method":"jobs.list","parms":{}}`: 77, `{"id":"x","method":"jobs.list"}`: 0, `{"method":"jobs.list"}`: 0, `no JSON`: 0, `{"id":-3,"method":"jobs.list"}`: 0} {
		w.write(text)
		m := w.answer(id)
		failIf(t, m.Error == nil || m.Error.Code != "bad_request", "%s: %+v", text, m)
	}

	// A call that goes on has lines, and can be cancelled; others are answered meanwhile.
	must(t, s.Store.Jobs.AppendEvents(t.Context(), "abcdef", []cove.JobEvent{{Seq: 1, Type: "output", Text: "one"}}))
	w.write(`{"id":500,"method":"jobs.events","params":{"id":"abcdef","follow":true}}`)
	m, err := w.read()
	failIf(t, err != nil || m.ID != 500 || !strings.Contains(string(m.Line), `"one"`), "got %+v, %v", m, err)
	w.refused(400, "bad_request", "jobs.get", `{}`)
	w.write(`{"id":500,"method":"jobs.list"}`)
	failIf(t, w.answer(500).Error.Code != "bad_request", "a number is taken twice")
	must(t, s.Store.Jobs.AppendEvents(t.Context(), "abcdef", []cove.JobEvent{{Seq: 2, Type: "output", Text: "two"}}))
	m, err = w.read()
	failIf(t, err != nil || !strings.Contains(string(m.Line), `"two"`), "got %+v, %v", m, err)
	for i := range 15 {
		w.write(fmt.Sprintf(`{"id":%d,"method":"jobs.events","params":{"id":"fedcba","follow":true}}`, 501+i))
	}
	w.refused(429, "limit", "jobs.list", "")
	w.write(`{"id":600,"method":"cancel","params":{"request":500}}`)
	seen := map[int64]string{}
	for len(seen) < 2 {
		m, err := w.read()
		must(t, err)
		if seen[m.ID] = string(m.Result); m.Error != nil {
			seen[m.ID] = m.Error.Code
		}
	}
	failIf(t, seen[500] != "cancelled" || seen[600] != "null", "got %v", seen)

	// Messages that end a socket, and clients that get none.
	must(t, w.conn.Write(t.Context(), websocket.MessageBinary, []byte("{}")))
	for err = nil; err == nil; {
		_, err = w.read()
	}
	failIf(t, websocket.CloseStatus(err) != websocket.StatusUnsupportedData, "a binary message: %v", err)
	ask(t, s, "GET /v1/ws", "").refused(t, 426, "upgrade_required")
	ask(t, s, "GET /v1/ws", "", handshake, header("Authorization", "Bearer x")).refused(t, 401, "unauthorized")
	ask(t, s, "GET /v1/ws", "", handshake, header("Origin", "https://evil.example")).refused(t, 403, "forbidden")
}

// TestFeed: a program follows what changes by one call, until it has seen enough. A
// subscription that it may not make is an error with the server's words.
func TestFeed(t *testing.T) {
	s := covetest.Start(t, withJobs(t))
	addJob(t, s, "aaaaaa", "paint")
	ctx, feed := t.Context(), cove.Feed{Client: &cove.Client{Client: &sprites.Client{URL: s.URL + "/", Token: s.Token}}}
	var seen []string
	for n, err := range feed.Follow(ctx, cove.Subscription{Topics: []string{"jobs"}}) {
		must(t, err)
		if n.Synced {
			addJob(t, s, "bbbbbb", "other")
		}
		if seen = append(seen, n.Name); n.Name == "bbbbbb" {
			break
		}
	}
	failIf(t, strings.Join(seen, " ") != "aaaaaa  bbbbbb", "got %q", seen)
	ends := func(ctx context.Context, feed cove.Feed, sub cove.Subscription) (err error) {
		for _, err = range feed.Follow(ctx, sub) {
		}
		return err
	}
	e, ok := errors.AsType[*sprites.Error](ends(ctx, feed, cove.Subscription{Topics: []string{"weather"}}))
	failIf(t, !ok || e.StatusCode != http.StatusBadRequest || !strings.Contains(e.Message, "weather"), "got %+v", e)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	failIf(t, !errors.Is(ends(gone, feed, cove.Subscription{Topics: []string{"jobs"}}), context.Canceled), "the end of the context is not told")
	feed.Client.Token = "wrong"
	failIf(t, ends(ctx, feed, cove.Subscription{Topics: []string{"jobs"}}) == nil, "a wrong token is taken")
}

// TestSocketRights: a token is told of what it reaches, and may do over a socket what it may
// do over HTTP. When it is deleted, its sockets end.
func TestSocketRights(t *testing.T) {
	s := covetest.Start(t, withJobs(t))
	addJob(t, s, "aaaaaa", "paint")
	addJob(t, s, "bbbbbb", "other")
	_, err := s.Store.Profiles.Put(t.Context(), "nightly", 0, cove.ProfileSettings{Agent: "shell", Env: map[string]string{"KEY": "the-value"}})
	must(t, err)
	tok := token(t, s, cove.TokenScope{Sprite: "paint"}, "read")
	w := dialWire(t, s, tok.Secret)
	all := cove.Subscription{Topics: []string{"jobs", "steps", "profiles"}}
	w.subscribe(all)
	w.wants("jobs aaaaaa")
	n := w.note()
	failIf(t, n.Profile == nil || strings.Contains(fmt.Sprint(n.Profile.Env), "the-value"), "got %+v", n)
	w.wants("synced")
	for _, id := range []string{"bbbbbb", "aaaaaa"} {
		must(t, s.Store.Jobs.UpdateStep(t.Context(), id, cove.StepClone, func(step *cove.Step) { store.BeginStep(step, time.Now()) }))
		must(t, s.Store.Jobs.Delete(t.Context(), id))
	}
	for n = w.note(); n.Topic == "steps" && n.Name == "aaaaaa"; { // perhaps it was there for long enough
		n = w.note()
	}
	failIf(t, brief(n) != "-jobs aaaaaa", "got %+v", n)
	addJob(t, s, "cccccc", "other")
	addJob(t, s, "dddddd", "paint")
	w.wants("jobs dddddd")
	w.refused(404, "not_found", "jobs.get", `{"id":"cccccc"}`)
	w.refused(403, "forbidden", "jobs.stop", `{"id":"dddddd"}`)
	w.refused(403, "forbidden", "sprites.status", "")

	blind := dialWire(t, s, token(t, s, cove.TokenScope{All: true}, "write").Secret)
	blind.refused(403, "forbidden", "subscribe", `{"topics":["jobs"]}`)
	blind.refused(403, "forbidden", "jobs.list", "")

	must(t, s.Client().DeleteToken(t.Context(), tok.ID))
	for err = nil; err == nil; {
		_, err = w.read()
	}
	failIf(t, websocket.CloseStatus(err) != websocket.StatusPolicyViolation, "its token is gone: %v", err)
	_, err = s.Store.Jobs.Get(t.Context(), "dddddd")
	must(t, err)
}

// TestSocketSteps: over each socket the steps of a job begin with a snapshot, and the output
// is whole.
func TestSocketSteps(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	addJob(t, s, "aaaaaa", "paint")
	addJob(t, s, "bbbbbb", "paint")
	begin := func(id string) {
		t.Helper()
		must(t, s.Store.Jobs.UpdateStep(t.Context(), id, cove.StepSetupScript, func(step *cove.Step) { store.BeginStep(step, time.Now()) }))
	}
	begin("aaaaaa")
	begin("bbbbbb")
	w := dialWire(t, s, s.Token)
	w.subscribe(cove.Subscription{Topics: []string{"steps"}, Job: "aaaaaa"})
	n := w.note()
	failIf(t, len(n.Steps) != 1 || n.Steps[0].Snapshot == nil || n.Name != "aaaaaa", "got %+v", n)
	w.wants("synced")
	const lines = 200
	text, want := "", strings.Builder{}
	go func() {
		for i := range lines {
			err := s.Store.Jobs.UpdateStep(t.Context(), "aaaaaa", cove.StepSetupScript, func(step *cove.Step) { step.Output.Append(fmt.Sprintf("line %d\n", i)) })
			if err != nil {
				t.Error(err)
			}
		}
		_, err := s.Store.Jobs.Finish(t.Context(), "aaaaaa", cove.JobSucceeded, cove.Outcome{}, nil)
		if err != nil {
			t.Error(err)
		}
	}()
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	var over bool
	for !over {
		n := w.note()
		for _, news := range n.Steps {
			failIf(t, news.Snapshot != nil, "a second snapshot")
			over = over || news.Over
			if news.Step != nil && news.Step.Key == cove.StepSetupScript {
				failIf(t, news.At != int64(len(text)), "byte %d comes after %d", news.At, len(text))
				text += news.Text
			}
		}
	}
	failIf(t, text != want.String(), "got %d bytes, want %d", len(text), want.Len())

	// A subscriber to all jobs is not told of a job that has ended; a subscriber to that job
	// is.
	w.subscribe(cove.Subscription{Topics: []string{"steps"}})
	w.wants("steps bbbbbb", "synced")
	w.subscribe(cove.Subscription{Topics: []string{"steps"}, Job: "aaaaaa"})
	n = w.note()
	failIf(t, len(n.Steps) != 2 || n.Steps[0].Snapshot == nil || n.Steps[0].Snapshot.State != cove.JobSucceeded || !n.Steps[1].Over, "got %+v", n)
	w.wants("synced")
	w.subscribe(cove.Subscription{})
	begin("bbbbbb")
	failIf(t, w.call("jobs.list", "").Error != nil || len(w.notes) > 0, "it was told after the end: %+v", w.notes)
}

// viewer follows the jobs over as many connections as it takes.
type viewer struct {
	t    *testing.T
	feed string
	seq  int64
	jobs map[string]cove.Job
	n    int // notifications
}

func (v *viewer) take(n cove.Notification) {
	v.t.Helper()
	if n.Synced {
		return
	}
	v.n++
	failIf(v.t, n.Seq <= v.seq, "%d comes after %d", n.Seq, v.seq)
	v.seq = n.Seq
	if n.Deleted {
		delete(v.jobs, n.Name)
	} else {
		v.jobs[n.Name] = *n.Job
	}
}

// is compares what a viewer knows with what there is.
func (v *viewer) is(s *covetest.Server) error {
	all, err := s.Store.Jobs.List(v.t.Context(), store.JobFilter{})
	if err != nil || len(all) != len(v.jobs) {
		return errors.Join(err, fmt.Errorf("it knows %d of %d jobs", len(v.jobs), len(all)))
	}
	for _, job := range all {
		if v.jobs[job.ID].Place != job.Place {
			return fmt.Errorf("job %s: it knows %d, and that is %d", job.ID, v.jobs[job.ID].Place, job.Place)
		}
	}
	return nil
}

// TestSocketResumes: T5, T6: over 100 cuts and some restarts of the server, nothing is lost and nothing
// comes twice. A number that the server can't know is an explicit gap, and all comes anew.
func TestSocketResumes(t *testing.T) {
	dir := t.TempDir()
	start := func() *covetest.Server { return covetest.Start(t, covetest.Options{Dir: dir}) }
	s := start()
	rng := rand.New(rand.NewPCG(1, 2))
	v := &viewer{t: t, jobs: map[string]cove.Job{}}
	change := func(i int) {
		id := fmt.Sprintf("%06d", rng.IntN(20))
		switch _, err := s.Store.Jobs.Get(t.Context(), id); {
		case errors.Is(err, store.ErrNotFound):
			addJob(t, s, id, "paint")
		case rng.IntN(5) == 0:
			must(t, s.Store.Jobs.Delete(t.Context(), id))
		default:
			must(t, s.Store.Jobs.Update(t.Context(), id, func(j *cove.Job) error { j.Place = i + 1; return nil }))
		}
	}
	for cut := range 100 {
		if cut%33 == 32 {
			s.Stop()
			s = start()
		}
		w := dialWire(t, s, s.Token)
		answer := w.subscribe(cove.Subscription{Topics: []string{"jobs"}, Since: v.seq, Feed: v.feed})
		failIf(t, answer.Gap, "cut %d: a gap after %d", cut, v.seq)
		v.feed = answer.Feed
		for i := range 3 + rng.IntN(5) {
			change(cut*10 + i)
		}
		for range rng.IntN(4) { // and no more: the rest is on its way, or is not
			n := w.note()
			v.take(n)
			if n.Synced {
				break
			}
		}
		_ = w.conn.CloseNow()
	}
	w := dialWire(t, s, s.Token)
	failIf(t, w.subscribe(cove.Subscription{Topics: []string{"jobs"}, Since: v.seq, Feed: v.feed}).Gap, "a gap at the end")
	for n := w.note(); !n.Synced; n = w.note() {
		v.take(n)
	}
	must(t, v.is(s))

	for _, sub := range []cove.Subscription{{Since: v.seq, Feed: "of another server"}, {Since: v.seq + 100, Feed: s.Store.Changes.Feed()}} {
		sub.Topics = []string{"jobs"}
		failIf(t, !w.subscribe(sub).Gap, "no gap at %+v", sub)
		anew := &viewer{t: t, jobs: map[string]cove.Job{}}
		for n := w.note(); !n.Synced; n = w.note() {
			failIf(t, n.Deleted, "%s is deleted, which nobody knew", n.Name)
			anew.take(n)
		}
		must(t, anew.is(s))
	}
}

// TestSocketSlow: T8: a viewer that does not read holds up neither what happens nor another
// viewer. When it reads again, it gets what there is then, and not all that was.
func TestSocketSlow(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.Heartbeat = time.Hour }})
	const jobs, rounds = 4, 15
	ids := make([]string, jobs)
	for i := range ids {
		ids[i] = fmt.Sprintf("%06d", i)
		addJob(t, s, ids[i], "paint")
	}
	slow, quick := dialWire(t, s, s.Token), dialWire(t, s, s.Token)
	slow.subscribe(cove.Subscription{Topics: []string{"jobs"}})
	quick.subscribe(cove.Subscription{Topics: []string{"jobs"}})
	large := strings.Repeat("x", 1<<20) // more than what connections hold
	seen := &viewer{t: t, jobs: map[string]cove.Job{}}
	for round := range rounds {
		for _, id := range ids {
			must(t, s.Store.Jobs.Update(t.Context(), id, func(j *cove.Job) error { j.Place, j.Error = round+1, large; return nil }))
		}
		for seen.jobs[ids[jobs-1]].Place != round+1 {
			seen.take(quick.note())
		}
	}
	must(t, seen.is(s))
	late := &viewer{t: t, jobs: map[string]cove.Job{}}
	for late.is(s) != nil {
		late.take(slow.note())
	}
	failIf(t, late.n > jobs*rounds*3/4, "%d notifications were kept for one that did not read", late.n)
}

// sight closes itself when something has been written that has a text in it.
type sight struct {
	text string
	once sync.Once
	seen chan struct{}
}

func (s *sight) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.text) {
		s.once.Do(func() { close(s.seen) })
	}
	return len(p), nil
}

// TestSocketBudget: a client that asks for much and reads nothing is told so and dropped. It
// goes on from its last number. A client that reads gets as much.
func TestSocketBudget(t *testing.T) {
	dropped := &sight{text: "dropping a client", seen: make(chan struct{})}
	s := covetest.Start(t, covetest.Options{Log: dropped, Configure: func(s *server.Server) { s.Heartbeat = time.Hour }})
	addJob(t, s, "aaaaaa", "paint")
	must(t, s.Store.Jobs.Update(t.Context(), "aaaaaa", func(j *cove.Job) error { j.Error = strings.Repeat("x", 6<<20); return nil }))
	w := dialWire(t, s, s.Token)
	feed := w.subscribe(cove.Subscription{Topics: []string{"jobs"}}).Feed
	v := &viewer{t: t, jobs: map[string]cove.Job{}}
	v.take(w.note())
	w.wants("synced")
	for i := range 16 { // 96 MiB in all
		w.write(fmt.Sprintf(`{"id":%d,"method":"jobs.get","params":{"id":"aaaaaa"}}`, 100+i))
	}
	select {
	case <-dropped.seen:
	case <-time.After(lastResort):
		t.Fatal("nothing becomes of a client that reads nothing")
	}
	must(t, s.Store.Jobs.Update(t.Context(), "aaaaaa", func(j *cove.Job) error { j.Place = 7; return nil }))
	answers := 0
	var err error
	for {
		var m cove.SocketMessage
		if m, err = w.read(); err != nil {
			break
		}
		if m.ID >= 100 {
			failIf(t, m.Error != nil || len(m.Result) < 6<<20, "an answer is cut: %+v, %d bytes", m.Error, len(m.Result))
			answers++
		}
	}
	var closing websocket.CloseError
	failIf(t, !errors.As(err, &closing) || closing.Code != websocket.StatusTryAgainLater || !strings.Contains(closing.Reason, "64 MiB of answers wait for you"), "it ended with %v", err)
	failIf(t, answers > 10, "%d answers came, of more than there was room for", answers)

	again := dialWire(t, s, s.Token)
	failIf(t, again.subscribe(cove.Subscription{Topics: []string{"jobs"}, Since: v.seq, Feed: feed}).Gap, "a gap")
	v.take(again.note())
	again.wants("synced")
	must(t, v.is(s))
	for range 12 { // one after the other: 72 MiB
		m := again.call("jobs.get", `{"id":"aaaaaa"}`)
		failIf(t, m.Error != nil || len(m.Result) < 6<<20, "one that reads: %+v", m.Error)
	}
	// An answer that is too large is an error, and the socket goes on.
	again.subscribe(cove.Subscription{})
	must(t, s.Store.Jobs.Update(t.Context(), "aaaaaa", func(j *cove.Job) error { j.Error = strings.Repeat("x", 33<<20); return nil }))
	again.refused(413, "too_large", "jobs.get", `{"id":"aaaaaa"}`)
	failIf(t, again.call("jobs.get", `{"id":"none"}`).Error.Code != "not_found", "after that")
}

// TestSocketsOfToken: a token has a quarter of all sockets, and another one, and the owner, have theirs.
func TestSocketsOfToken(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	dial := func(secret string) (*websocket.Conn, error) {
		conn, resp, err := websocket.Dial(t.Context(), s.URL+"/v1/ws", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + secret}}})
		if err == nil {
			t.Cleanup(func() { _ = conn.CloseNow() })
		} else if resp == nil || resp.StatusCode != http.StatusTooManyRequests {
			t.Fatalf("got %v, %v", resp, err)
		}
		return conn, err
	}
	first, second := token(t, s, cove.TokenScope{All: true}, "read"), token(t, s, cove.TokenScope{All: true}, "read")
	var last *websocket.Conn
	for range 32 {
		conn, err := dial(first.Secret)
		must(t, err)
		last = conn
	}
	_, err := dial(first.Secret)
	failIf(t, err == nil, "a token has more than 32")
	for _, secret := range []string{second.Secret, s.Token} {
		_, err := dial(secret)
		must(t, err)
	}
	_ = last.CloseNow()
	for deadline := time.Now().Add(lastResort); ; {
		if _, err = dial(first.Secret); err == nil || time.Now().After(deadline) {
			break
		}
	}
	must(t, err)
}

// TestSocketSilent: each client is pinged, and one that answers no ping is dropped.
func TestSocketSilent(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Configure: func(s *server.Server) { s.Heartbeat = 50 * time.Millisecond }})
	addJob(t, s, "aaaaaa", "paint")
	pinged := make(chan struct{}, 1)
	dial := func(answers bool) *websocket.Conn {
		t.Helper()
		conn, _, err := websocket.Dial(t.Context(), s.URL+"/v1/ws", &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}},
			OnPingReceived: func(context.Context, []byte) bool {
				if answers {
					select {
					case pinged <- struct{}{}:
					default:
					}
				}
				return answers
			},
		})
		must(t, err)
		t.Cleanup(func() { _ = conn.CloseNow() })
		return conn
	}
	silent := dial(false)
	_, _, err := silent.Read(t.Context())
	failIf(t, err == nil, "something came")
	good := &wire{t: t, conn: dial(true)}
	go func() { _, _ = good.read() }()
	<-pinged
	s.Stop()
}

// TestSocketMethods: each method is a route, and the description has them all.
func TestSocketMethods(t *testing.T) {
	s, verbs := covetest.Start(t, covetest.Options{}), server.RouteVerbs()
	var doc struct {
		Paths map[string]map[string]struct {
			Methods map[string]string `json:"x-websocket-methods"`
		} `json:"paths"`
	}
	must(t, json.Unmarshal(ask(t, s, "GET /v1/openapi.json", "").body, &doc))
	described := doc.Paths["/v1/ws"]["get"].Methods
	failIf(t, len(described) < 15 || len(described) != len(server.SocketMethods()), "%d methods are described", len(described))
	for name, pattern := range server.SocketMethods() {
		_, ok := verbs[pattern]
		failIf(t, !ok || described[name] != pattern, "%s is %s, described as %q", name, pattern, described[name])
	}
	for _, name := range []string{"jobs.list", "jobs.get", "jobs.create", "jobs.stop", "jobs.send", "jobs.answer", "jobs.steps", "profiles.list", "profiles.get", "sprites.test", "sprites.status", "sprites.instances.list", "sprites.instances.destroy", "sprites.instances.destroy_all"} {
		failIf(t, described[name] == "", "there is no %s", name)
	}
}
