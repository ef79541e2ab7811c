package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/environment"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

// site is a service at which servers have jobs.
type site struct {
	*fakeprovider.Provider
	t      *testing.T
	server *covetest.Server // behind the service
	grace  time.Duration    // of the servers that have jobs; 0: as usual
}

func newSite(t *testing.T) *site {
	t.Helper()
	far := covetest.Start(t, covetest.Options{})
	return &site{Provider: fakeprovider.Start(t, far.URL, far.Token), t: t, server: far}
}

// office is a server that has jobs at a site.
type office struct {
	*Manager
	server *covetest.Server
	client *cove.Client
	dir    string
	pauses []time.Duration // between calls that are tried again
}

// open starts a server over a data folder, perhaps that of a stopped server.
func (s *site) open(dir string) *office {
	s.t.Helper()
	o := &office{dir: dir}
	o.server = covetest.Start(s.t, covetest.Options{Dir: dir, Jobs: func(st *store.Store, client *cove.Client) (server.Jobs, func() error, error) {
		o.Manager = &Manager{Store: st, Client: client, Grace: s.grace, NamesOnly: func(_ context.Context, p sprites.NetworkPolicy) (sprites.NetworkPolicy, error) { return p, nil }}
		return o.Manager, o.Close, o.Resume(s.t.Context())
	}})
	o.jobSprites.patience.pause = func(_ context.Context, d time.Duration) error {
		o.pauses = append(o.pauses, d)
		return nil
	}
	o.client = o.server.Client()
	if err := o.client.PutBackend(s.t.Context(), "far", cove.BackendRequest{URL: s.URL, Token: s.Token}); err != nil {
		s.t.Fatal(err)
	}
	return o
}

// mark is the label that a server recognizes its own job's sprite by.
func mark(o *office, job cove.Job) string {
	return "cove-" + o.jobSprites.environments.Installation + "-" + job.Execution
}

// sprites are the sprites of the service, as it knows them.
func (s *site) sprites() (all []sprites.Info) {
	s.t.Helper()
	for info, err := range s.server.Client().All(s.t.Context(), "") {
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, info)
	}
	return all
}

func farRequest() cove.JobRequest {
	req := request()
	req.Backend = "far"
	req.NetworkPolicy = &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "example.org", Action: "allow"}}}
	return req
}

// TestBackendCreate: C2, C3: a call that fails in passing is tried again, in bounds; a refused
// call is not. However the answer is lost, there is one sprite for the job.
func TestBackendCreate(t *testing.T) {
	seconds := func(n ...time.Duration) []time.Duration {
		for i := range n {
			n[i] *= time.Second
		}
		return n
	}
	const made = "<nil>"
	post := `^POST /v1/sprites$`
	after := func(s string) http.Header { return http.Header{"Retry-After": {s}} }
	for name, test := range map[string]struct {
		faults []fakeprovider.Fault
		want   string // the error's code
		posts  int
		pauses []time.Duration
	}{
		"all well":                {nil, made, 1, nil},
		"the answer is lost":      {[]fakeprovider.Fault{{Call: post, Lost: true, Times: 1}}, made, 1, seconds(1)},
		"the next look fails too": {[]fakeprovider.Fault{{Call: post, Lost: true, Times: 1}, {Call: `^GET /v1/sprites/job-[^/]*$`, After: 1, Times: 2, Status: 503}}, made, 1, seconds(1, 2, 4)},
		"the answer is cut":       {[]fakeprovider.Fault{{Call: post, CutAnswer: 9, Times: 1}}, made, 1, seconds(1)},
		"the request is cut":      {[]fakeprovider.Fault{{Call: post, CutRequest: 9, Times: 1}}, made, 2, seconds(1)},
		"out of order, twice":     {[]fakeprovider.Fault{{Call: post, Status: 500, Times: 2}}, made, 3, seconds(1, 2)},
		"out of order":            {[]fakeprovider.Fault{{Call: post, Status: 502}}, "backend_failed", 6, seconds(1, 2, 4, 8, 16)},
		"too fast":                {[]fakeprovider.Fault{{Call: post, Status: 429, Header: after("7"), Times: 1}}, made, 2, seconds(7)},
		"too fast, it says only":  {[]fakeprovider.Fault{{Call: post, Status: 429, Body: `{"error":"sprite_creation_rate_limited","retry_after_seconds":9}`, Times: 1}}, made, 2, seconds(9)},
		"far too fast":            {[]fakeprovider.Fault{{Call: post, Status: 429, Header: after("3600"), Body: `{"error":"rate","message":"m"}`}}, "rate", 1, nil},
		"too many":                {[]fakeprovider.Fault{{Call: post, Status: 429, Body: `{"error":"concurrent_sprite_limit_exceeded","message":"3 of 3"}`}}, "concurrent_sprite_limit_exceeded", 1, nil},
		"a bad request":           {[]fakeprovider.Fault{{Call: post, Status: 400, Body: `{"error":"bad","message":"m"}`}}, "bad", 1, nil},
		"a refused token":         {[]fakeprovider.Fault{{Call: post, Status: 401}}, "backend_refused", 1, nil},
		"no money":                {[]fakeprovider.Fault{{Call: post, Status: 402, Body: `{"error":"payment","message":"m"}`}}, "payment", 1, nil},
		"no right":                {[]fakeprovider.Fault{{Call: post, Status: 403, Body: `{"error":"scope","message":"m"}`}}, "scope", 1, nil},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s := newSite(t)
			o := s.open(t.TempDir())
			for _, f := range test.faults {
				s.Add(f)
			}
			job, err := o.client.CreateJob(t.Context(), farRequest())
			if got := code(err); got != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if posts := len(s.Calls(post)); posts != test.posts || !slices.Equal(o.pauses, test.pauses) {
				t.Errorf("it was asked %d times, with pauses of %v; want %d, %v", posts, o.pauses, test.posts, test.pauses)
			}
			all := s.sprites()
			if err != nil {
				if len(all) != 0 {
					t.Errorf("%d sprites are left", len(all))
				}
				return
			}
			if len(all) != 1 || all[0].Name != job.Sprite || all[0].ID != job.SpriteID || job.State != cove.JobQueued {
				t.Errorf("there are %d sprites, and the job is %+v", len(all), job)
			}
		})
	}
}

// TestBackendErrors: U2: a call about a job at a service fails with a code, a message and a
// hint. Its status says whose fault it is. It never fails with 500, or with 401, which is
// about the caller's own token.
func TestBackendErrors(t *testing.T) {
	post := `^POST /v1/sprites$`
	for name, test := range map[string]struct {
		fault  fakeprovider.Fault
		status int
		code   string
	}{
		"400":              {fakeprovider.Fault{Status: 400, Body: `{"error":"bad","message":"m"}`}, 400, "bad"},
		"401":              {fakeprovider.Fault{Status: 401, Body: `{"error":"unauthorized"}`}, 502, "backend_refused"},
		"402":              {fakeprovider.Fault{Status: 402}, 402, "payment_required"},
		"402 with a code":  {fakeprovider.Fault{Status: 402, Body: `{"error":"plan_limit","message":"m"}`}, 402, "plan_limit"},
		"403":              {fakeprovider.Fault{Status: 403}, 403, "forbidden"},
		"404":              {fakeprovider.Fault{Status: 404}, 404, "not_found"},
		"409":              {fakeprovider.Fault{Status: 409, Body: `{"error":"conflict","message":"m"}`}, 409, "conflict"},
		"429":              {fakeprovider.Fault{Status: 429, Body: `{"error":"concurrent_sprite_limit_exceeded","message":"3 of 3"}`}, 429, "concurrent_sprite_limit_exceeded"},
		"429 without code": {fakeprovider.Fault{Status: 429}, 429, "limit"},
		"500":              {fakeprovider.Fault{Status: 500, Body: `{"error":"internal","message":"m"}`}, 502, "backend_failed"},
		"501":              {fakeprovider.Fault{Status: 501, Body: `no JSON`}, 502, "backend_failed"},
		"502":              {fakeprovider.Fault{Status: 502}, 502, "backend_failed"},
		"503":              {fakeprovider.Fault{Status: 503}, 502, "backend_failed"},
		"504":              {fakeprovider.Fault{Status: 504}, 504, "timeout"},
		"lost":             {fakeprovider.Fault{CutRequest: 1}, 502, "backend_unreachable"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s := newSite(t)
			o := s.open(t.TempDir())
			test.fault.Call = post
			s.Add(test.fault)
			_, err := o.client.CreateJob(t.Context(), farRequest())
			e, ok := errors.AsType[*sprites.Error](err)
			if !ok || e.StatusCode != test.status || e.Code != test.code || e.Message == "" || e.Hint == "" {
				t.Fatalf("got %+v, want %d %s", err, test.status, test.code)
			}
		})
	}
}

// TestBackendRowFirst: C1: the job's row, with the sprite's name, is there before the call
// that makes the sprite. From the row alone the sprite is found, and deleted.
func TestBackendRowFirst(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	pace := make(chan struct{})
	s.Add(fakeprovider.Fault{Call: `^POST /v1/sprites$`, Pace: pace})
	type answer struct {
		job cove.Job
		err error
	}
	answered := make(chan answer)
	go func() {
		job, err := o.client.CreateJob(t.Context(), farRequest())
		answered <- answer{job, err}
	}()
	for len(s.Calls(`^POST /v1/sprites$`)) == 0 && t.Context().Err() == nil { // it has come, and is not carried out yet
		runtime.Gosched()
	}
	rows, err := o.Store.Jobs.List(t.Context(), store.JobFilter{})
	if err != nil || len(rows) != 1 || rows[0].SpriteID != "" || !rows[0].OwnsSprite || len(s.sprites()) != 0 {
		t.Fatalf("before the call there are %+v, %v", rows, err)
	}
	close(pace)
	got := <-answered
	if got.err != nil || got.job.ID != rows[0].ID || got.job.Sprite != rows[0].Sprite {
		t.Fatalf("got %+v, %v", got.job, got.err)
	}
	// A server that died before it noted the sprite's id.
	if _, err := o.Store.Environments.Change(t.Context(), got.job.Execution, func(e *cove.Environment) error { e.SpriteID = ""; return nil }); err != nil {
		t.Fatal(err)
	}
	o.server.Stop()
	o = s.open(o.dir)
	if err := o.janitor.expire(t.Context(), time.Now().Add(2*o.Lease)); err != nil {
		t.Fatal(err)
	}
	job, err := o.client.Job(t.Context(), got.job.ID)
	if err != nil || job.State != cove.JobCancelled || job.SpriteRemoval != nil || len(s.sprites()) != 0 {
		t.Errorf("the job is %+v, %v, and %d sprites are left", job, err, len(s.sprites()))
	}
}

// TestBackendInstallations: C5: a server's sprites have its installation in their names and
// marks. The installation stays the same. A server takes and deletes no other's sprites,
// whatever their names.
func TestBackendInstallations(t *testing.T) {
	s := newSite(t)
	one, two := s.open(t.TempDir()), s.open(t.TempDir())
	job, err := one.client.CreateJob(t.Context(), farRequest())
	if err != nil {
		t.Fatal(err)
	}
	installation := one.jobSprites.environments.Installation
	if other := two.jobSprites.environments.Installation; installation == "" || installation == other {
		t.Errorf("the installations are %q and %q", installation, other)
	}
	if all := s.sprites(); len(all) != 1 || all[0].Name != "job-"+installation+"-"+job.ID || !slices.Contains(all[0].Labels, mark(one, job)) {
		t.Errorf("the sprites are %+v", all)
	}
	// The other server believes that this is its own, and has lost the note of its id.
	claim := job
	claim.SpriteID, claim.Execution = "", randomID(8)
	if err := two.Store.Jobs.Create(t.Context(), claim, nil); err != nil {
		t.Fatal(err)
	}
	theirs, err := two.jobSprites.of(t.Context(), claim.ID)
	if err != nil || theirs.ID != claim.Execution || theirs.Name != job.Sprite {
		t.Fatalf("the other server's is %+v, %v", theirs, err)
	}
	theirs.State = cove.EnvironmentCreating
	if _, err := two.jobSprites.environments.Store.Update(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if err := two.jobSprites.environments.At("far").Destroy(t.Context(), theirs, cove.DestroyAsked); !errors.Is(err, environment.ErrForeign) {
		t.Errorf("the other server deleted it: %v", err)
	}
	if env, err := two.jobSprites.environments.Make(t.Context(), theirs.ID, environment.Plan{}); !errors.Is(err, sprites.ErrNameTaken) || errors.Is(err, environment.ErrUnclear) || env.State != cove.EnvironmentGone {
		t.Errorf("the other server made it: %+v, %v", env, err)
	}
	if gone, err := two.jobSprites.remove(t.Context(), claim, cove.DestroyAsked); !gone || err != nil {
		t.Errorf("the other server removed it: %v, %v", gone, err)
	}
	if _, err := two.client.StopJob(t.Context(), job.ID); err != nil {
		t.Error(err)
	}
	if err := two.client.DeleteJob(t.Context(), job.ID, true); err != nil {
		t.Error(err)
	}
	if len(s.sprites()) != 1 || len(s.Calls("^DELETE /v1/sprites/[^/]*$")) != 0 {
		t.Error("the other server has deleted it")
	}
	one.server.Stop()
	if one = s.open(one.dir); one.jobSprites.environments.Installation != installation {
		t.Errorf("after a restart it is %q", one.jobSprites.environments.Installation)
	}
	if err := one.client.DeleteJob(t.Context(), job.ID, true); err != nil || len(s.sprites()) != 0 {
		t.Errorf("its own server left %d sprites, %v", len(s.sprites()), err)
	}
}

// TestBackendPolicy: N1, N2: the policy comes right after the sprite. If the service refuses
// it, the job fails with the service's words, and its sprite is deleted.
func TestBackendPolicy(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	for _, test := range []struct {
		status int
		said   string
		want   string
		calls  int
	}{{422, "bad_rule", "bad_rule", 1}, {503, "down", "backend_failed", 6}} {
		s.Add(fakeprovider.Fault{Call: "/policy/network$", Status: test.status, Body: `{"error":"` + test.said + `","message":"rule 1: example.org is not allowed here"}`})
		before := len(s.Calls("/policy/network$"))
		_, err := o.client.CreateJob(t.Context(), farRequest())
		if code(err) != test.want || !strings.Contains(err.Error(), "rule 1: example.org") {
			t.Errorf("got %v, want %s", err, test.want)
		}
		if calls := len(s.Calls("/policy/network$")) - before; calls != test.calls {
			t.Errorf("%d: it was asked %d times", test.status, calls)
		}
		rows, err := o.client.Jobs(t.Context())
		if err != nil || len(rows) != 0 || len(s.sprites()) != 0 {
			t.Errorf("%d: %d jobs and %d sprites are left, %v", test.status, len(rows), len(s.sprites()), err)
		}
		s.Clear()
	}
	if acted := s.Calls(`/(exec|fs|services|checkpoint)`); len(acted) != 0 {
		t.Errorf("before the policy there was %v", acted)
	}
}

// TestBackendProfileApply: the rules of a changed profile reach a job's sprite at a backend,
// in the form that the backend knows. They do not replace rules that somebody has set there.
func TestBackendProfileApply(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	ctx, calls := t.Context(), cove.Profiles{Client: o.client}
	put := func(revision int64, rule sprites.NetworkRule) {
		t.Helper()
		settings := cove.ProfileSettings{Agent: "shell", Backend: "far", NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{rule}}}
		if _, err := calls.Put(ctx, "far", revision, settings); err != nil {
			t.Fatal(err)
		}
	}
	put(0, sprites.NetworkRule{Domain: "example.org", Action: "allow"})
	req := farRequest()
	req.Profile, req.Backend, req.NetworkPolicy = "far", "", nil
	job, err := o.client.CreateJob(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	sprite := s.server.Client().Sprite(job.Sprite)
	rules := func() []sprites.NetworkRule {
		t.Helper()
		p, err := sprite.NetworkPolicy(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return p.Rules
	}
	put(1, sprites.NetworkRule{Domain: "example.net", Action: "allow", Ports: []string{"443"}})
	applied, err := calls.Apply(ctx, "far", false)
	want := []sprites.NetworkRule{{Domain: "example.net", Action: "allow"}}
	if err != nil || len(applied.Jobs) != 1 || applied.Jobs[0].Error != "" || !reflect.DeepEqual(rules(), want) {
		t.Errorf("got %+v, %v; the sprite has %+v", applied, err, rules())
	}
	want = []sprites.NetworkRule{{Domain: "example.net", Action: "deny"}}
	if err := sprite.SetNetworkPolicy(ctx, sprites.NetworkPolicy{Rules: want}); err != nil {
		t.Fatal(err)
	}
	put(2, sprites.NetworkRule{Domain: "example.com", Action: "allow"})
	applied, err = calls.Apply(ctx, "far", false)
	if err != nil || len(applied.Jobs) != 1 || !applied.Jobs[0].Kept || !reflect.DeepEqual(rules(), want) {
		t.Errorf("over rules set there: %+v, %v; the sprite has %+v", applied, err, rules())
	}
}

// TestBackendRemoval: D3, D6: if a sprite can't be deleted, the server notes why and what to
// do, and so does the next one. The deletion is tried again until the service says that the
// sprite is gone.
func TestBackendRemoval(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	ctx := t.Context()
	job, err := o.client.CreateJob(ctx, farRequest())
	if err != nil {
		t.Fatal(err)
	}
	s.SetDown(true)
	job, err = o.client.StopJob(ctx, job.ID)
	if err != nil || job.State != cove.JobCancelled || job.SpriteRemoval == nil || job.SpriteRemoval.Tries != 1 {
		t.Fatalf("stopped: %+v, %v", job, err)
	}
	look := func(words, hint string) {
		t.Helper()
		tries := 0
		if job.SpriteRemoval != nil {
			tries = job.SpriteRemoval.Tries
		}
		if err := o.jobSprites.environments.Sweep(ctx, time.Now()); err != nil { // too early
			t.Error(err)
		}
		err := o.jobSprites.environments.Sweep(ctx, time.Now().Add(2*time.Hour))
		if job, _ = o.client.Job(ctx, job.ID); (err == nil) != (words == "") || (job.SpriteRemoval == nil) != (words == "") {
			t.Fatalf("got %v, and the job is %+v", err, job)
		}
		if r := job.SpriteRemoval; r != nil && (!strings.Contains(r.Error, words) || !strings.Contains(r.Hint, hint) || r.Tries != tries+1 || !r.NextAt.After(time.Now())) {
			t.Errorf("after %d tries it says %+v", tries, r)
		}
		if left := len(s.sprites()); left != 1 && words != "" {
			t.Errorf("%d sprites are left", left)
		}
	}
	look("does not answer", "cove ping --backend far")
	if err := o.client.DeleteBackend(ctx, "far"); code(err) != "backend_in_use" {
		t.Errorf("the backend was forgotten: %v", err)
	}
	if err := o.client.DeleteJob(ctx, job.ID, true); code(err) != "backend_unreachable" {
		t.Errorf("the job was forgotten: %v", err)
	}
	job, _ = o.client.Job(ctx, job.ID)
	o.server.Stop()
	s.SetDown(false)
	token := s.Token
	o = s.open(o.dir)
	s.SetToken("another")
	look("refused the token", "cove backend put far")
	s.SetToken(token)
	s.Add(fakeprovider.Fault{Call: "^DELETE ", Status: 500, Body: `{"error":"broken","message":"out of order"}`})
	look("out of order", "")
	s.Clear()
	look("", "")
	if left := s.sprites(); len(left) != 0 {
		t.Errorf("%+v is left", left)
	}
	if err := o.collector.goOn(ctx); err != nil { // somebody has asked for that
		t.Error(err)
	}
	if _, err := o.client.Job(ctx, job.ID); code(err) != "not_found" {
		t.Errorf("the job is left: %v", err)
	}
	if err := o.client.DeleteBackend(ctx, "far"); err != nil {
		t.Error(err)
	}
}

// newFarBench is a bench whose jobs are at a service. The test binary is the supervisor that
// is brought there.
func newFarBench(t *testing.T) (*bench, *site) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	guest := filepath.Join(filepath.Dir(exe), "cove-guest")
	if err := os.Link(exe, guest); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(guest) })
	b := newBench(t)
	b.backend = "far"
	far := covetest.Start(t, covetest.Options{Runtime: b.runtime})
	return b, &site{Provider: fakeprovider.Start(t, far.URL, far.Token), t: t, server: far}
}

// work opens a bench's server.
func (s *site) work(b *bench) *office {
	o := s.open(b.dir)
	b.server, b.manager = o.server, o.Manager
	return o
}

// until waits until a job is as it should be.
func (o *office) until(t *testing.T, id string, is func(cove.Job) bool) cove.Job {
	t.Helper()
	limit := time.After(5 * time.Minute)
	changed, stop := o.Store.Jobs.Watch(id)
	defer stop()
	for {
		job, err := o.Store.Jobs.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if is(job) {
			return job
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("the job stays %+v", job)
		}
	}
}

// TestBackendOutage: R1, S6: whatever the service of a running job answers, or if it does not,
// the job becomes unknown and nothing else. It goes on when the service answers again. It is
// lost only when its sprite is known to be gone.
func TestBackendOutage(t *testing.T) {
	b, s := newFarBench(t)
	o := s.work(b)
	job := b.begin(`echo x >"$said"`)
	known := func(j cove.Job) bool { return j.Unknown == nil && j.State == cove.JobRunning }
	because := func(code string) func(cove.Job) bool {
		return func(j cove.Job) bool {
			if j.State.Terminal() {
				t.Fatalf("the job has ended: %+v", j)
			}
			return j.Unknown != nil && j.Unknown.Code == code
		}
	}
	o.until(t, job.ID, known)

	s.SetDown(true)
	o.until(t, job.ID, because("backend_unreachable"))
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); code(err) != "backend_unreachable" {
		t.Errorf("stopped: %v", err)
	}
	if err := o.Store.Jobs.Update(t.Context(), job.ID, func(j *cove.Job) error { j.Stopping = false; return nil }); err != nil {
		t.Fatal(err)
	}
	b.server.Stop()
	o = s.work(b)
	o.until(t, job.ID, because("backend_unreachable"))
	s.SetDown(false)
	o.until(t, job.ID, known)

	old := s.Token
	s.SetToken("another")
	refused := o.until(t, job.ID, because("backend_refused"))
	if !strings.Contains(refused.Unknown.Message, "refused the token") || !strings.Contains(refused.Unknown.Hint, "cove backend put far") {
		t.Errorf("of a refused token it says %+v", refused.Unknown)
	}
	if err := b.server.Client().PutBackend(t.Context(), "far", cove.BackendRequest{URL: s.URL, Token: "another"}); err != nil {
		t.Fatal(err)
	}
	o.until(t, job.ID, known)

	s.Add(fakeprovider.Fault{Call: `/exec`, Status: 404, Times: 3})
	s.Add(fakeprovider.Fault{Call: `/exec`, Status: 500, Body: `{"error":"broken"}`})
	s.Cut()
	o.until(t, job.ID, because("broken")) // after three times "not found"
	s.Clear()
	o.until(t, job.ID, known)

	for _, c := range s.Calls("") { // S4
		for name, values := range c.Header {
			if text := fmt.Sprint(values); name != "Authorization" && (strings.Contains(text, old) || strings.Contains(text, s.server.Token)) {
				t.Errorf("%s has a token in %s", c, name)
			}
		}
		if strings.Contains(c.URI, old) || strings.Contains(string(c.Body), old) {
			t.Errorf("%s has the token", c)
		}
	}
	if deleted := s.Calls("^DELETE /v1/sprites/[^/]*$"); len(deleted) != 0 {
		t.Errorf("there was %v", deleted)
	}
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if job = b.await(job.ID); job.State != cove.JobCancelled || job.Commits != 1 || job.Bundle.Size == 0 || job.Unknown != nil {
		t.Errorf("got %+v", job)
	}
}

// TestBackendPreparedLater: R1, C2, N1: a server finds a job in preparation while its service
// does not answer. The job does not fail. The sprite that an earlier server had made for it is
// taken, and given its policy.
func TestBackendPreparedLater(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	s.SetDown(true)
	req := farRequest()
	req.Early = true
	settings, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	row := newRow(req, made{}, time.Hour)
	row.State, row.Sprite, row.Upload = cove.JobInstalling, o.jobSprites.environments.Name(row.Backend, row.ID), ""
	if err := o.Store.Jobs.Create(t.Context(), row, settings); err != nil {
		t.Fatal(err)
	}
	if _, err := s.server.Client().Create(t.Context(), sprites.CreateRequest{Name: row.Sprite, Labels: []string{label, mark(o, row)}}); err != nil {
		t.Fatal(err)
	}
	if err := o.preparer.takeUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	job := o.until(t, row.ID, func(j cove.Job) bool { return j.Unknown != nil })
	if job.State != cove.JobInstalling || !strings.Contains(job.Unknown.Hint, "cove ping --backend far") {
		t.Errorf("the job is %+v", job)
	}
	s.SetDown(false)
	for job.State == cove.JobInstalling && t.Context().Err() == nil {
		if err := o.preparer.takeUp(t.Context()); err != nil { // as the janitor does, each minute
			t.Fatal(err)
		}
		runtime.Gosched()
		if job, err = o.client.Job(t.Context(), row.ID); err != nil {
			t.Fatal(err)
		}
	}
	if all := s.sprites(); job.State != cove.JobQueued || job.Unknown != nil || len(all) != 1 || all[0].Name != row.Sprite {
		t.Errorf("the job is %+v, and the sprites %+v", job, all)
	}
	if made, policies := s.Calls(`^POST /v1/sprites$`), s.Calls(`^POST .*/policy/network$`); len(made) != 0 || len(policies) != 1 || job.SpriteID == "" {
		t.Errorf("it made %d sprites, and set %d policies", len(made), len(policies))
	}
}

// TestBackendLateSprite: C2: a server gave up a call that may still make a job's sprite. The
// next server takes the job up, and prepares it once that call can't make the sprite any more.
func TestBackendLateSprite(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	req := farRequest()
	req.Early = true
	settings, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	row := newRow(req, made{}, time.Hour)
	row.State, row.Sprite, row.Upload = cove.JobInstalling, o.jobSprites.environments.Name(row.Backend, row.ID), ""
	if err := o.Store.Jobs.Create(t.Context(), row, settings); err != nil {
		t.Fatal(err)
	}
	environments := o.jobSprites.environments
	env, err := environments.Store.Change(t.Context(), row.Execution, func(e *cove.Environment) error { e.State = cove.EnvironmentCreating; return nil })
	if err == nil {
		env, err = environments.Destroy(t.Context(), env.ID, cove.DestroyNeverUsed)
	}
	if err != nil || env.State != cove.EnvironmentDestroying || env.LateUntil == nil {
		t.Fatalf("it is %+v, %v", env, err)
	}
	takeUp := func() cove.Job {
		t.Helper()
		if err := o.preparer.takeUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		for o.preparations.of(row.ID) != nil && t.Context().Err() == nil {
			runtime.Gosched()
		}
		job, err := o.client.Job(t.Context(), row.ID)
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	if job := takeUp(); job.State != cove.JobInstalling || len(s.Calls(`^POST /v1/sprites$`)) != 0 {
		t.Errorf("the job is %+v", job)
	}
	if err := environments.Sweep(t.Context(), *env.LateUntil); err != nil {
		t.Fatal(err)
	}
	if job := takeUp(); job.State != cove.JobQueued || job.SpriteID == "" || job.Execution == row.Execution || len(s.sprites()) != 1 {
		t.Errorf("the job is %+v, and there are %d sprites", job, len(s.sprites()))
	}
}

// TestBackendGone: R1, R4: a job is lost when its sprite is gone, or another one has its name.
func TestBackendGone(t *testing.T) {
	b, s := newFarBench(t)
	s.work(b)
	job := b.begin(`echo x >"$said"`)
	far := s.server.Client()
	if err := far.Delete(t.Context(), job.Sprite, sprites.DeleteOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	s.Cut() // a real one ends what ran in it
	if job, err := b.server.Client().WaitJob(t.Context(), job.ID); err != nil || job.State != cove.JobLost || !strings.Contains(job.Error, "its sprite was deleted") {
		t.Errorf("got %+v, %v", job, err)
	}
}

// TestBackendPreparation: N1, P11, P12: after the sprite come its policy, the repository, the
// question what it runs on, and the supervisor, in this order. If the supervisor's connection
// is cut in the middle, it is sent once more; if the answer to its rename is lost, it is not.
// Nothing else is left of it.
func TestBackendPreparation(t *testing.T) {
	b, s := newFarBench(t)
	o := s.work(b)
	s.Add(fakeprovider.Fault{Call: `^PUT .*cove-guest`, CutRequest: 1 << 20, Times: 1})
	s.Add(fakeprovider.Fault{Call: `^POST .*/fs/rename`, Lost: true, Times: 1})
	policy := &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "example.org", Action: "allow"}}}
	job := b.beginWith(`echo x >"$said"`, func(req *cove.JobRequest) { req.NetworkPolicy = policy })
	var order []string
	for _, c := range s.Calls("") {
		what := strings.TrimPrefix(c.String(), c.Method+" /v1/sprites/"+job.Sprite)
		switch {
		case strings.Contains(c.URI, "uname"):
			what = "uname"
		case c.Method == http.MethodPut && strings.Contains(c.URI, "cove-guest"):
			what = "supervisor"
		case c.Method == http.MethodPut && strings.Contains(c.URI, "in.bundle"):
			what = "repository"
		case c.String() == "POST /v1/sprites":
			what = "create"
		case c.Method != http.MethodPost:
			continue
		}
		if !slices.Contains(order, what) {
			order = append(order, what)
		}
	}
	if got := strings.Join(order, " "); !strings.HasPrefix(got, "create /policy/network repository uname supervisor /fs/rename") {
		t.Errorf("the order was %s", got)
	}
	if sent := len(s.Calls(`^PUT .*cove-guest`)); sent != 2 {
		t.Errorf("the supervisor was sent %d times", sent)
	}
	left, err := os.ReadDir(filepath.Join(b.home, ".local/share/cove/guest"))
	if err != nil || len(left) != 1 || strings.HasSuffix(left[0].Name(), ".part") {
		t.Errorf("there is %v, %v", left, err)
	}
	if len(o.pauses) != 2 {
		t.Errorf("it paused %v", o.pauses)
	}
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	b.await(job.ID)
}
