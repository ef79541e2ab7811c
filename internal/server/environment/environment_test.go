package environment_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/environment"
	"github.com/cove-dev/cove/internal/server/environment/environmenttest"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

// local is a server's own place.
func local(t *testing.T) *environmenttest.Place {
	s := covetest.Start(t, covetest.Options{})
	keeper := &environment.Keeper{Store: s.Store.Environments, Client: s.Client(), Installation: "aabbccdd", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	return &environmenttest.Place{Keeper: keeper, Store: s.Store, Behind: s.Client()}
}

// backend is a place at a server of the protocol.
func backend(t *testing.T, url, token string, behind *cove.Client) *environmenttest.Place {
	p := local(t)
	if err := p.Keeper.Client.PutBackend(t.Context(), "far", cove.BackendRequest{URL: url, Token: token}); err != nil {
		t.Fatal(err)
	}
	p.Keeper.Retry = func(ctx context.Context, f func() error) error {
		var err error
		for range 3 {
			if err = f(); err == nil || !environment.Passing(err) || ctx.Err() != nil {
				break
			}
		}
		return err
	}
	p.Backend, p.Behind = "far", behind
	return p
}

func TestLocal(t *testing.T) { environmenttest.Run(t, local) }

// TestCove: another cove is a place, too.
func TestCove(t *testing.T) {
	environmenttest.Run(t, func(t *testing.T) *environmenttest.Place {
		far := covetest.Start(t, covetest.Options{})
		return backend(t, far.URL, far.Token, far.Client())
	})
}

func provider(t *testing.T) (*environmenttest.Place, *fakeprovider.Provider) {
	far := covetest.Start(t, covetest.Options{})
	s := fakeprovider.Start(t, far.URL, far.Token)
	return backend(t, s.URL, s.Token, far.Client()), s
}

// TestProvider: so is a service that speaks the public protocol.
func TestProvider(t *testing.T) {
	environmenttest.Run(t, func(t *testing.T) *environmenttest.Place {
		p, _ := provider(t)
		return p
	})
}

const (
	post = `^POST /v1/sprites$`
	list = `^GET /v1/sprites\?`
	one  = `^GET /v1/sprites/[^/]*$`
	del  = `^DELETE /v1/sprites/[^/]*$`
)

// TestLostCreate: C1, C2: whatever of the answer is lost, and by whichever server it is looked
// for, there is one sprite.
func TestLostCreate(t *testing.T) {
	for name, f := range map[string]fakeprovider.Fault{
		"lost": {Call: post, Lost: true, Times: 1}, "lost twice": {Call: post, Lost: true, Times: 2}, "cut": {Call: post, CutAnswer: 9, Times: 1}, "broken": {Call: post, Status: 500, Times: 2},
	} {
		t.Run(name, func(t *testing.T) {
			p, s := provider(t)
			s.Add(f)
			env, err := p.Keeper.Make(t.Context(), p.Plan(t).ID, environment.Plan{})
			if err != nil || env.State != cove.EnvironmentPolicy || env.SpriteID == "" || len(p.Sprites(t)) != 1 {
				t.Errorf("made %+v, %v, and there are %v", env, err, p.Sprites(t))
			}
		})
	}
	// A server that dies as the answer is lost: the next one finds the sprite by its mark.
	p, s := provider(t)
	s.Add(fakeprovider.Fault{Call: post, Lost: true})
	s.Add(fakeprovider.Fault{Call: one, After: 1, Status: 503})
	env, err := p.Keeper.Make(t.Context(), p.Plan(t).ID, environment.Plan{})
	if !errors.Is(err, environment.ErrUnclear) || env.State != cove.EnvironmentCreating {
		t.Fatalf("made %+v, %v", env, err)
	}
	s.Clear()
	if err := p.Keeper.Survey(t.Context()); err != nil {
		t.Error(err)
	}
	if env = p.Env(t, env.ID); env.State != cove.EnvironmentCreating {
		t.Errorf("it is %+v", env)
	}
	next := *p
	next.Keeper = &environment.Keeper{Store: p.Keeper.Store, Client: p.Keeper.Client, Installation: p.Keeper.Installation, Logger: p.Keeper.Logger}
	if env, err = next.Keeper.Make(t.Context(), env.ID, environment.Plan{}); err != nil || env.State != cove.EnvironmentPolicy || len(s.Calls(post)) != 1 {
		t.Errorf("the next server made %+v, %v, and asked %d times", env, err, len(s.Calls(post)))
	}
	// A refusal is clear, and leaves nothing.
	s.Add(fakeprovider.Fault{Call: post, Status: 402, Body: `{"error":"payment","message":"m"}`})
	if env, err = p.Keeper.Make(t.Context(), p.Plan(t).ID, environment.Plan{}); err == nil || errors.Is(err, environment.ErrUnclear) || env.State != cove.EnvironmentGone {
		t.Errorf("made %+v, %v", env, err)
	}
}

// TestOutage: R1, D5: if a provider does not answer, refuses, or lacks a page, its environments
// become unknown, and nothing else. They are as before when it answers. Those here do not change.
func TestOutage(t *testing.T) {
	p, s := provider(t)
	env := p.Ready(t)
	p.Ready(t)
	p.Ready(t)
	other := p.Backend
	p.Backend = ""
	here := p.Ready(t)
	p.Backend = other
	token := s.Token
	for name, fault := range map[string]struct {
		begin func()
		code  string
	}{
		"down":    {func() { s.SetDown(true) }, "backend_unreachable"},
		"refused": {func() { s.SetToken("another") }, "backend_refused"},
		"broken":  {func() { s.Add(fakeprovider.Fault{Call: list, Status: 500, Body: `{"error":"broken","message":"m"}`}) }, "broken"},
		"next page": {func() {
			s.Add(fakeprovider.Fault{Call: list, After: 1, Status: 503, Body: `{"error":"page","message":"m"}`})
		}, "page"},
		"empty": {func() {
			s.Add(fakeprovider.Fault{Call: list, Status: 200, Body: `{"sprites":[],"has_more":false}`})
			s.Add(fakeprovider.Fault{Call: one, Status: 503, Body: `{"error":"one","message":"m"}`})
		}, "one"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := len(s.Calls(""))
			fault.begin()
			var first time.Time
			for range 2 {
				if err := p.Keeper.Survey(t.Context()); (err == nil) != (name == "empty") {
					t.Errorf("the survey: %v", err)
				}
				got := p.Env(t, env.ID)
				if got.State != cove.EnvironmentUnknown || got.Was != cove.EnvironmentReady && got.Was != cove.EnvironmentAsleep || got.Unknown == nil || got.Unknown.Code != fault.code {
					t.Fatalf("got %+v, %+v", got, got.Unknown)
				}
				if !first.IsZero() && !got.Unknown.Since.Equal(first) {
					t.Errorf("it is unknown since %v, and was since %v", got.Unknown.Since, first)
				}
				first = got.Unknown.Since
			}
			if got := p.Env(t, here.ID); got.State != cove.EnvironmentReady && got.State != cove.EnvironmentAsleep {
				t.Errorf("that here is %+v", got)
			}
			s.Clear()
			s.SetDown(false)
			s.SetToken(token)
			if err := p.Keeper.Survey(t.Context()); err != nil {
				t.Error(err)
			}
			if got := p.Env(t, env.ID); got.State != cove.EnvironmentReady && got.State != cove.EnvironmentAsleep || got.Unknown != nil || got.Was != "" {
				t.Errorf("afterwards it is %+v", got)
			}
			for _, c := range s.Calls("")[calls:] {
				if c.Method != http.MethodGet {
					t.Errorf("there was %s", c)
				}
			}
		})
	}
	// H2: one list of three on two pages, and no look at each.
	before := len(s.Calls(one))
	pages := len(s.Calls(list))
	if err := p.Keeper.Survey(t.Context()); err != nil || len(s.Calls(one)) != before || len(s.Calls(list)) != pages+2 {
		t.Errorf("a survey took %d pages and %d looks, %v", len(s.Calls(list))-pages, len(s.Calls(one))-before, err)
	}
}

// TestRace: R9: if an environment changes during a survey, the survey does not change it, even if
// the provider's list is older.
func TestRace(t *testing.T) {
	p, s := provider(t)
	env := p.Ready(t)
	s.Add(fakeprovider.Fault{Call: list, Status: 200, Body: `{"sprites":[],"has_more":false}`})
	s.Add(fakeprovider.Fault{Call: one, Status: 404, Body: `{"error":"not_found"}`})
	stale := p.Env(t, env.ID)
	if _, err := p.Store.Environments.Change(t.Context(), env.ID, func(e *cove.Environment) error { e.Health.Failures = 1; return nil }); err != nil {
		t.Fatal(err)
	}
	stale.State = cove.EnvironmentGone
	if _, err := p.Store.Environments.Update(t.Context(), stale); err == nil {
		t.Error("a stale note was taken")
	}
	// One that is being made is not gone by not being there yet.
	made := p.Plan(t)
	if _, err := p.Store.Environments.Change(t.Context(), made.ID, func(e *cove.Environment) error { e.State = cove.EnvironmentCreating; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := p.Keeper.Survey(t.Context()); err != nil {
		t.Error(err)
	}
	if got := p.Env(t, made.ID); got.State != cove.EnvironmentCreating {
		t.Errorf("that which is being made is %+v", got)
	}
	if got := p.Env(t, env.ID); got.State != cove.EnvironmentGone {
		t.Errorf("that which the provider does not have is %+v", got)
	}
}

// TestDestroying: D3, D6: if a deletion fails, the row has the error. The deletion is retried, less
// and less often, also by the next server, until the provider says that the sprite is gone.
func TestDestroying(t *testing.T) {
	p, s := provider(t)
	env := p.Ready(t)
	token := s.Token
	s.SetDown(true)
	got, err := p.Keeper.Destroy(t.Context(), env.ID, cove.DestroyPulled)
	if err == nil || got.State != cove.EnvironmentDestroying || got.Removal == nil || got.Removal.Tries != 1 || got.Removal.Reason != cove.DestroyPulled || got.Error == "" || got.Hint == "" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if err := p.Keeper.Survey(t.Context()); err != nil { // there is nobody else to ask about
		t.Logf("the survey: %v", err)
	}
	last := got
	try := func(tries int) {
		t.Helper()
		if err := p.Keeper.Sweep(t.Context(), last.Removal.NextAt.Add(-time.Second)); err != nil {
			t.Errorf("too early: %v", err)
		}
		if early := p.Env(t, env.ID); early.Version != last.Version {
			t.Errorf("it was tried too early: %+v", early)
		}
		if err := p.Keeper.Sweep(t.Context(), last.Removal.NextAt); err == nil {
			t.Error("it succeeded")
		}
		now := p.Env(t, env.ID)
		if now.State != cove.EnvironmentDestroying || now.Removal.Tries != tries || !now.Removal.Since.Equal(got.Removal.Since) || !now.Removal.NextAt.After(last.Removal.NextAt) {
			t.Errorf("after %d tries it is %+v, %+v", tries, now, now.Removal)
		}
		last = now
	}
	try(2)
	s.SetDown(false)
	s.SetToken("another")
	try(3)
	s.SetToken(token)
	s.Add(fakeprovider.Fault{Call: del, Status: 500})
	p.Keeper = &environment.Keeper{Store: p.Keeper.Store, Client: p.Keeper.Client, Installation: p.Keeper.Installation, Logger: p.Keeper.Logger}
	try(4)
	s.Clear()
	s.Add(fakeprovider.Fault{Call: del, Lost: true, Times: 1})
	try(5)
	if err := p.Keeper.Sweep(t.Context(), last.Removal.NextAt); err != nil {
		t.Error(err)
	}
	if now := p.Env(t, env.ID); now.State != cove.EnvironmentGone || len(p.Sprites(t)) != 0 {
		t.Errorf("it is %+v, and there are %v", now, p.Sprites(t))
	}
	// 404 to the deletion itself is proof, too.
	env = p.Ready(t)
	s.Add(fakeprovider.Fault{Call: del, Status: 404, Body: `{"error":"not_found"}`})
	if got, err := p.Keeper.Destroy(t.Context(), env.ID, cove.DestroyAsked); err != nil || got.State != cove.EnvironmentGone {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestHealth: H1, H3: there are two signals, each kept separately. Three failed checks in a row make
// one event, and the first that succeeds makes another. A supervisor that has not answered yet
// makes no event.
func TestHealth(t *testing.T) {
	p, s := provider(t)
	var signal cove.SupervisorSignal
	p.Keeper.Supervisor = func(cove.Environment) cove.SupervisorSignal { return signal }
	env := p.Ready(t)
	if _, err := p.Store.Webhooks.Put(t.Context(), cove.Webhook{Name: "w", URL: "https://example.org", Events: []string{cove.EventEnvironmentDegraded, cove.EventEnvironmentRestored}, Secret: "s"}, "key"); err != nil {
		t.Fatal(err)
	}
	const degraded, restored = "environment.degraded", "environment.restored"
	down := func(is bool) func() { return func() { s.SetDown(is) } }
	says := func(is cove.SupervisorSignal) func() { return func() { signal = is } }
	var want []string
	for i, step := range []struct {
		first    func()
		failures int
		word     string // healthy: or asleep
		event    string
	}{
		{nil, 0, cove.HealthHealthy, ""},
		{down(true), 1, cove.HealthUnknown, ""},
		{nil, 2, cove.HealthUnknown, ""},
		{down(false), 0, cove.HealthHealthy, ""}, // not in a row
		{down(true), 1, cove.HealthUnknown, ""},
		{nil, 2, cove.HealthUnknown, ""},
		{nil, 3, cove.HealthDegraded, degraded},
		{nil, 3, cove.HealthDegraded, ""},
		{down(false), 0, cove.HealthHealthy, restored},
		{nil, 0, cove.HealthHealthy, ""},
		{says(cove.SupervisorSilent), 1, cove.HealthUnknown, ""},
		{nil, 2, cove.HealthUnknown, ""},
		{says(cove.SupervisorStarting), 2, cove.HealthUnknown, ""}, // which proves nothing
		{says(cove.SupervisorSilent), 3, cove.HealthDegraded, degraded},
		{says(cove.SupervisorStarting), 3, cove.HealthDegraded, ""}, // the next server begins so
		{says(cove.SupervisorHeld), 0, cove.HealthHealthy, restored},
		{says(cove.SupervisorAnswers), 0, cove.HealthHealthy, ""},
	} {
		if step.first != nil {
			step.first()
		}
		before := p.Env(t, env.ID)
		surveyErr := p.Keeper.Survey(t.Context())
		got := p.Env(t, env.ID)
		h := got.Health
		if step.word == cove.HealthHealthy && h.Word == cove.HealthAsleep {
			h.Word = cove.HealthHealthy // there is no job, and it may sleep
		}
		if h.Failures != step.failures || h.Word != step.word || h.Supervisor != signal || (h.Provider == cove.ProviderUnreachable) != (surveyErr != nil) || h.CheckedAt == nil {
			t.Errorf("step %d: its health is %+v, after %v", i, h, surveyErr)
		}
		if got.Health.Provider == before.Health.Provider && got.Health.Supervisor == before.Health.Supervisor && h.Failures == before.Health.Failures && got.Version != before.Version {
			t.Errorf("step %d: it has changed from %+v to %+v", i, before, got)
		}
		if step.event != "" {
			want = append([]string{step.event}, want...)
		}
		log, err := p.Store.Webhooks.Log(t.Context(), "w", 0)
		var events []string
		for _, d := range log {
			events = append(events, d.Type)
		}
		if err != nil || !slices.Equal(events, want) {
			t.Fatalf("step %d: the events are %v, want %v, %v", i, events, want, err)
		}
	}
	d, err := p.Store.Webhooks.Next(t.Context(), "w")
	var e cove.WebhookEvent
	if err == nil {
		err = json.Unmarshal(d.Body, &e)
	}
	if err != nil || e.Environment == nil || e.Environment.ID != env.ID || e.Environment.Health.Word != cove.HealthDegraded || e.Environment.Unknown == nil {
		t.Errorf("the first event is %s, %v", d.Body, err)
	}

	// A check without news is noted, but does not count as a change.
	old := time.Now().Add(-time.Hour)
	before, err := p.Store.Environments.Change(t.Context(), env.ID, func(e *cove.Environment) error { e.Health.CheckedAt = &old; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Keeper.Survey(t.Context()); err != nil {
		t.Error(err)
	}
	after := p.Env(t, env.ID)
	if !after.Health.CheckedAt.After(old) {
		t.Errorf("it was checked at %v", after.Health.CheckedAt)
	}
	if after.State == before.State && after.Version != before.Version {
		t.Errorf("it has changed from %+v to %+v", before, after)
	}
}

// TestOrphansElsewhere: D10: another server's orphans at the same service are not ours. A service
// that does not list its sprites is named, and the orphans of other services are still listed.
func TestOrphansElsewhere(t *testing.T) {
	p, s := provider(t)
	there := p.Ready(t)
	p.Backend = ""
	here := p.Ready(t)
	p.Backend = "far"
	p.Lose(t, there)
	p.Lose(t, here)
	now := time.Now().Add(2 * cove.OrphanAge)
	look := func(k *environment.Keeper, unheard int, want ...string) {
		t.Helper()
		list, failed, err := k.Orphans(t.Context(), now)
		var names []string
		for _, o := range list {
			names = append(names, o.Name)
		}
		if err != nil || !slices.Equal(names, want) || len(failed) != unheard || unheard > 0 && failed["far"] == nil {
			t.Errorf("got %v, %v, %v, want %v", names, failed, err, want)
		}
	}
	look(p.Keeper, 0, here.Name, there.Name)
	look(&environment.Keeper{Store: p.Keeper.Store, Client: p.Keeper.Client, Installation: "11223344", Logger: p.Keeper.Logger}, 0, here.Name)
	s.SetDown(true)
	look(p.Keeper, 1, here.Name)
	if err := p.Keeper.DestroyOrphan(t.Context(), cove.Orphan{Name: there.Name, Backend: "far", SpriteID: there.SpriteID, Job: there.Job, CreatedAt: there.CreatedAt}, now); err == nil {
		t.Error("one was destroyed where nobody answers")
	}
	s.SetDown(false)
	look(p.Keeper, 0, here.Name, there.Name)
	if calls := s.Calls(del); len(calls) != 0 {
		t.Errorf("there was %v", calls)
	}
}

// TestLateCreate: C2, D3: a service makes a sprite after the call for it was given up, and after it has
// said that there is none. This server, or the next one, looks for the sprite as long as it may appear,
// and deletes it.
func TestLateCreate(t *testing.T) {
	const limit = 10 * time.Minute
	// The next server sweeps.
	next := func(p *environmenttest.Place) {
		p.Keeper = &environment.Keeper{Store: p.Keeper.Store, Client: p.Keeper.Client, Installation: p.Keeper.Installation, Logger: p.Keeper.Logger}
	}
	sweep := func(t *testing.T, p *environmenttest.Place, now time.Time) {
		t.Helper()
		if err := p.Keeper.Sweep(t.Context(), now); err != nil {
			t.Error(err)
		}
	}
	awaited := func(t *testing.T, p *environmenttest.Place, id string) cove.Environment {
		t.Helper()
		env := p.Env(t, id)
		if env.State != cove.EnvironmentDestroying || env.LateUntil == nil || env.Error == "" || env.Removal.Tries != 0 || env.Removal.NextAt.After(*env.LateUntil) {
			t.Fatalf("it is %+v, with %+v, until %v", env, env.Removal, env.LateUntil)
		}
		return env
	}
	gone := func(t *testing.T, p *environmenttest.Place, id string) {
		t.Helper()
		if env := p.Env(t, id); env.State != cove.EnvironmentGone || len(p.Sprites(t)) != 0 {
			t.Errorf("it is %+v, and there are %v", env, p.Sprites(t))
		}
	}
	destroy := func(t *testing.T, p *environmenttest.Place, id string) {
		t.Helper()
		if _, err := p.Keeper.Destroy(t.Context(), id, cove.DestroyNeverUsed); err != nil {
			t.Fatal(err)
		}
	}
	for name, lost := range map[string]bool{"the call takes too long": false, "the connection is cut": true} {
		t.Run(name, func(t *testing.T) {
			p, s := provider(t)
			p.Keeper.Retry = nil // one call
			made := make(chan struct{})
			s.Add(fakeprovider.Fault{Call: post, Late: made, Lost: lost})
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			if !lost {
				go func() {
					for len(s.Calls(post)) == 0 && ctx.Err() == nil {
						runtime.Gosched()
					}
					giveUp()
				}()
			}
			env, err := p.Keeper.Make(ctx, p.Plan(t).ID, environment.Plan{})
			if !errors.Is(err, environment.ErrUnclear) || env.State != cove.EnvironmentCreating || env.LateUntil == nil || time.Until(*env.LateUntil) > limit {
				t.Fatalf("made %+v, %v", env, err)
			}
			destroy(t, p, env.ID) // it is not there
			env = awaited(t, p, env.ID)
			close(made)
			s.CarryOut()
			if len(p.Sprites(t)) != 1 {
				t.Fatalf("there are %v", p.Sprites(t))
			}
			if orphans, _, err := p.Keeper.Orphans(t.Context(), time.Now().Add(limit)); err != nil || len(orphans) != 0 {
				t.Errorf("the orphans are %+v, %v", orphans, err)
			}
			next(p)
			sweep(t, p, env.Removal.NextAt)
			if left := p.Sprites(t); len(left) != 0 {
				t.Errorf("%v are left", left)
			}
			sweep(t, p, env.LateUntil.Add(-time.Second)) // another call may be open
			awaited(t, p, env.ID)
			sweep(t, p, *env.LateUntil)
			gone(t, p, env.ID)
		})
	}
	t.Run("it never comes", func(t *testing.T) {
		p, s := provider(t)
		s.Add(fakeprovider.Fault{Call: post, Status: 504})
		env, err := p.Keeper.Make(t.Context(), p.Plan(t).ID, environment.Plan{})
		if !errors.Is(err, environment.ErrUnclear) {
			t.Fatal(err)
		}
		destroy(t, p, env.ID)
		env = awaited(t, p, env.ID)
		looks := len(s.Calls(one))
		for now := env.Removal.NextAt; now.Before(*env.LateUntil); now = p.Env(t, env.ID).Removal.NextAt {
			sweep(t, p, now)
			awaited(t, p, env.ID)
		}
		sweep(t, p, *env.LateUntil)
		gone(t, p, env.ID)
		if n := len(s.Calls(one)) - looks; n < 5 || n > 15 {
			t.Errorf("it was looked for %d times", n)
		}
	})
	t.Run("the server is killed while it asks", func(t *testing.T) {
		p, s := provider(t)
		env, err := p.Store.Environments.Change(t.Context(), p.Plan(t).ID, func(e *cove.Environment) error { e.State = cove.EnvironmentCreating; return nil })
		if err != nil {
			t.Fatal(err)
		}
		next(p)
		destroy(t, p, env.ID)
		env = awaited(t, p, env.ID)
		s.Clear()
		mark := "cove-" + p.Keeper.Installation + "-" + env.ID
		if _, err := p.Behind.Create(t.Context(), sprites.CreateRequest{Name: env.Name, Labels: []string{mark}}); err != nil {
			t.Fatal(err)
		}
		next(p)
		sweep(t, p, *env.LateUntil)
		gone(t, p, env.ID)
	})
	t.Run("another call has made it", func(t *testing.T) { // and the first is carried out when that has been deleted
		p, s := provider(t)
		made := make(chan struct{})
		s.Add(fakeprovider.Fault{Call: post, Late: made, Lost: true, Times: 1})
		env, err := p.Keeper.Make(t.Context(), p.Plan(t).ID, environment.Plan{})
		if err != nil || env.State != cove.EnvironmentPolicy || env.LateUntil == nil || len(s.Calls(post)) != 2 {
			t.Fatalf("made %+v, %v", env, err)
		}
		destroy(t, p, env.ID)
		env = awaited(t, p, env.ID)
		if left := p.Sprites(t); len(left) != 0 {
			t.Errorf("%v are left", left)
		}
		close(made)
		s.CarryOut()
		if len(p.Sprites(t)) != 1 {
			t.Fatalf("there are %v", p.Sprites(t))
		}
		sweep(t, p, *env.LateUntil)
		gone(t, p, env.ID)
	})
	t.Run("somebody else's of its name", func(t *testing.T) {
		p, s := provider(t)
		s.Add(fakeprovider.Fault{Call: post, Status: 504})
		env, err := p.Keeper.Make(t.Context(), p.Plan(t).ID, environment.Plan{})
		if !errors.Is(err, environment.ErrUnclear) {
			t.Fatal(err)
		}
		if _, err := p.Behind.Create(t.Context(), sprites.CreateRequest{Name: env.Name}); err != nil {
			t.Fatal(err)
		}
		destroy(t, p, env.ID)
		env = awaited(t, p, env.ID)
		sweep(t, p, *env.LateUntil)
		if env = p.Env(t, env.ID); env.State != cove.EnvironmentGone || len(p.Sprites(t)) != 1 {
			t.Errorf("it is %+v, and there are %v", env, p.Sprites(t))
		}
	})
}
