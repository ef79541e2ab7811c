// Package environmenttest has the tests that each executor of environments passes, whatever
// server is behind it.
package environmenttest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/environment"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Place is a place under test. It has no environments.
type Place struct {
	Keeper  *environment.Keeper
	Store   *store.Store // of the keeper
	Backend string       // of the environments; empty: the keeper's own server

	// Behind is a client of the server that has the sprites, which nothing comes in between.
	Behind *cove.Client

	jobs int
}

// Plan makes the row of an environment, as a job does, and nothing else.
func (p *Place) Plan(t *testing.T) cove.Environment {
	t.Helper()
	p.jobs++
	id := fmt.Sprintf("a%05d", p.jobs)
	job := cove.Job{
		ID: id, State: cove.JobInstalling, OwnsSprite: true, JobSettings: cove.JobSettings{Backend: p.Backend, Sprite: p.Keeper.Name(p.Backend, id)},
		JobSource: cove.JobSource{PlanName: "plan.md"}, JobProgress: cove.JobProgress{Execution: "e" + id},
	}
	if err := p.Store.Jobs.Create(t.Context(), job, nil); err != nil {
		t.Fatal(err)
	}
	return p.Env(t, job.Execution)
}

// Env is an environment as its row is now.
func (p *Place) Env(t *testing.T, id string) cove.Environment {
	t.Helper()
	env, err := p.Store.Environments.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// Ready is an environment that is prepared.
func (p *Place) Ready(t *testing.T) cove.Environment {
	t.Helper()
	env := p.Plan(t)
	_, err := p.Keeper.Make(t.Context(), env.ID, environment.Plan{})
	if err == nil {
		err = p.Keeper.Furnished(t.Context(), env.ID)
	}
	if err == nil {
		err = p.Store.Jobs.Update(t.Context(), env.Job, func(j *cove.Job) error { j.State = cove.JobRunning; return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.is(t, env.ID, cove.EnvironmentReady)
}

// is checks the state of an environment.
func (p *Place) is(t *testing.T, id string, want ...cove.EnvironmentState) cove.Environment {
	t.Helper()
	env := p.Env(t, id)
	if !slices.Contains(want, env.State) {
		t.Errorf("environment %s is %+v, want %s", id, env, want)
	}
	return env
}

// Sprites are the names of the sprites that are there.
func (p *Place) Sprites(t *testing.T) (names []string) {
	t.Helper()
	for info, err := range p.Behind.All(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Name)
	}
	return names
}

// Run runs the tests, each at a place of its own.
func Run(t *testing.T, start func(*testing.T) *Place) {
	for name, test := range map[string]func(*testing.T, *Place){
		"provision": testProvision, "once": testOnce, "foreign": testForeign, "attach": testAttach, "suspend": testSuspend,
		"list": testList, "destroy": testDestroy, "life": testLife, "deleted": testDeleted, "orphans": testOrphans,
	} {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

// testProvision: a second call takes the sprite that the first one has made.
func testProvision(t *testing.T, p *Place) {
	env, at := p.Plan(t), p.Keeper.At(p.Backend)
	if _, err := at.Status(t.Context(), env); !errors.Is(err, environment.ErrGone) {
		t.Errorf("before it is made: %v", err)
	}
	policy := &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "example.org", Action: "allow"}}}
	made, err := at.Provision(t.Context(), env, environment.Plan{Policy: policy})
	if err != nil || made.SpriteID == "" || made.Name != env.Name {
		t.Fatalf("made %+v, %v", made, err)
	}
	again, err := at.Provision(t.Context(), env, environment.Plan{})
	if err != nil || again.SpriteID != made.SpriteID {
		t.Errorf("made again: %+v, %v", again, err)
	}
	if got := p.Sprites(t); !slices.Equal(got, []string{env.Name}) {
		t.Errorf("there are %v", got)
	}
	can, err := at.Capabilities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set, err := p.Behind.Sprite(env.Name).NetworkPolicy(t.Context())
	if has := len(set.Rules) == 1; err != nil || has != can.Policy {
		t.Errorf("its policy is %+v, %v, and %+v", set, err, can)
	}
	env.SpriteID = made.SpriteID
	if status, err := at.Status(t.Context(), env); err != nil || status.SpriteID != made.SpriteID || status.State != cove.EnvironmentAsleep && status.State != cove.EnvironmentReady {
		t.Errorf("it is %+v, %v", status, err)
	}
}

// testOnce: C6: if several calls make an environment at once, one makes the sprite.
func testOnce(t *testing.T, p *Place) {
	env := p.Plan(t)
	ids := make([]string, 4)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			got, err := p.Keeper.Make(t.Context(), env.ID, environment.Plan{})
			if err != nil || got.State != cove.EnvironmentPolicy {
				t.Errorf("made %+v, %v", got, err)
			}
			ids[i] = got.SpriteID
		})
	}
	wg.Wait()
	if got := p.Sprites(t); len(got) != 1 || len(slices.Compact(ids)) != 1 || ids[0] == "" {
		t.Errorf("there are %v, by the ids %v", got, ids)
	}
}

// testForeign: D7: another's sprite of the same name is neither taken nor deleted.
func testForeign(t *testing.T, p *Place) {
	env, at := p.Plan(t), p.Keeper.At(p.Backend)
	if _, err := p.Behind.Create(t.Context(), sprites.CreateRequest{Name: env.Name}); err != nil {
		t.Fatal(err)
	}
	if _, err := at.Provision(t.Context(), env, environment.Plan{}); !errors.Is(err, sprites.ErrNameTaken) || errors.Is(err, environment.ErrUnclear) {
		t.Errorf("made: %v", err)
	}
	if _, err := at.Status(t.Context(), env); !errors.Is(err, environment.ErrForeign) {
		t.Errorf("it is ours: %v", err)
	}
	if err := at.Destroy(t.Context(), env, cove.DestroyAsked); !errors.Is(err, environment.ErrForeign) {
		t.Errorf("destroyed: %v", err)
	}
	if list, err := at.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("listed %+v, %v", list, err)
	}
	if got, err := p.Keeper.Make(t.Context(), env.ID, environment.Plan{}); !errors.Is(err, sprites.ErrNameTaken) || got.State != cove.EnvironmentGone {
		t.Errorf("made %+v, %v", got, err)
	}
	if got := p.Sprites(t); len(got) != 1 {
		t.Errorf("there are %v", got)
	}
}

func testAttach(t *testing.T, p *Place) {
	at := p.Keeper.At(p.Backend)
	if _, err := at.Attach(t.Context(), p.Plan(t)); !errors.Is(err, environment.ErrGone) {
		t.Errorf("attached to one that is not there: %v", err)
	}
	sprite, err := at.Attach(t.Context(), p.Ready(t))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := sprite.CommandContext(t.Context(), "echo", "hi").Output(); err != nil || strings.TrimSpace(string(out)) != "hi" {
		t.Errorf("it says %q, %v", out, err)
	}
}

// testSuspend: R3: one that sleeps is there, and is woken by its next use, but not by a look.
func testSuspend(t *testing.T, p *Place) {
	at, env := p.Keeper.At(p.Backend), p.Ready(t)
	can, err := at.Capabilities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sprite, err := at.Attach(t.Context(), env)
	if err == nil {
		err = sprite.CommandContext(t.Context(), "true").Run() // one that has run
	}
	if err != nil {
		t.Fatal(err)
	}
	err = at.Suspend(t.Context(), env)
	if !can.Suspend {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("suspended: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	slept, err := p.Behind.Get(t.Context(), env.Name)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // no check wakes it, or is a use of it
		if err := p.Keeper.Survey(t.Context()); err != nil {
			t.Fatal(err)
		}
		e := p.is(t, env.ID, cove.EnvironmentAsleep)
		if e.Health.Word != cove.HealthAsleep || e.Health.Failures != 0 || e.Health.CheckedAt == nil {
			t.Errorf("its health is %+v", e.Health)
		}
	}
	now, err := p.Behind.Get(t.Context(), env.Name)
	if err != nil || now.Status != slept.Status || now.LastRunning == nil || !now.LastRunning.Equal(*slept.LastRunning) || !now.UpdatedAt.Equal(slept.UpdatedAt) {
		t.Errorf("after the checks it is %+v, %v, and was %+v", now, err, slept)
	}
	if err := sprite.CommandContext(t.Context(), "true").Run(); err != nil {
		t.Fatal(err)
	}
	if err := p.Keeper.Survey(t.Context()); err != nil {
		t.Fatal(err)
	}
	if env = p.is(t, env.ID, cove.EnvironmentReady); env.WokenAt == nil {
		t.Errorf("it does not say when it woke: %+v", env)
	}
}

// testList: one list has all that are ours, on all pages.
func testList(t *testing.T, p *Place) {
	want := map[string]string{}
	for range 5 {
		env := p.Ready(t)
		want[env.Name] = env.SpriteID
		if _, err := p.Behind.Create(t.Context(), sprites.CreateRequest{Name: env.Name + "-x"}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := p.Keeper.At(p.Backend).List(t.Context())
	for _, s := range list {
		if want[s.Name] != s.SpriteID {
			t.Errorf("listed %+v", s)
		}
		delete(want, s.Name)
	}
	if err != nil || len(want) != 0 {
		t.Errorf("the list lacks %v, %v", want, err)
	}
}

// testDestroy: D2, D3: it needs a reason; that it is not there is proof.
func testDestroy(t *testing.T, p *Place) {
	at, env := p.Keeper.At(p.Backend), p.Ready(t)
	for _, reason := range []cove.DestroyReason{"", "because"} {
		if err := at.Destroy(t.Context(), env, reason); !errors.Is(err, environment.ErrReason) {
			t.Errorf("for %q: %v", reason, err)
		}
		if got, err := p.Keeper.Destroy(t.Context(), env.ID, reason); !errors.Is(err, environment.ErrReason) {
			t.Errorf("for %q: %+v, %v", reason, got, err)
		}
	}
	if p.is(t, env.ID, cove.EnvironmentReady); len(p.Sprites(t)) != 1 {
		t.Error("it is gone")
	}
	for range 2 {
		if err := at.Destroy(t.Context(), env, cove.DestroyAsked); err != nil || len(p.Sprites(t)) != 0 {
			t.Errorf("destroyed: %v, and there are %v", err, p.Sprites(t))
		}
	}
	if _, err := at.Status(t.Context(), env); !errors.Is(err, environment.ErrGone) {
		t.Errorf("it is there: %v", err)
	}
}

// testLife goes through the states of an environment.
func testLife(t *testing.T, p *Place) {
	env := p.Plan(t)
	id := env.ID
	p.is(t, id, cove.EnvironmentPlanned)
	if _, err := p.Keeper.Make(t.Context(), id, environment.Plan{}); err != nil {
		t.Fatal(err)
	}
	p.is(t, id, cove.EnvironmentPolicy)
	if err := p.Keeper.Furnished(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	p.is(t, id, cove.EnvironmentPreparing)
	if err := p.Keeper.Survey(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.is(t, id, cove.EnvironmentPreparing)
	if err := p.Store.Jobs.Update(t.Context(), env.Job, func(j *cove.Job) error { j.State = cove.JobRunning; return nil }); err != nil {
		t.Fatal(err)
	}
	p.is(t, id, cove.EnvironmentReady)
	if err := p.Keeper.Survey(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.is(t, id, cove.EnvironmentReady, cove.EnvironmentAsleep)
	got, err := p.Keeper.Destroy(t.Context(), id, cove.DestroyAsked)
	if err != nil || got.State != cove.EnvironmentGone || len(p.Sprites(t)) != 0 {
		t.Errorf("destroyed: %+v, %v, and there are %v", got, err, p.Sprites(t))
	}
	if got, err := p.Keeper.Make(t.Context(), id, environment.Plan{}); !errors.Is(err, environment.ErrGone) || len(p.Sprites(t)) != 0 {
		t.Errorf("made again: %+v, %v", got, err)
	}
	// One that nobody has asked for goes without a word to its place.
	planned := p.Plan(t)
	if got, err := p.Keeper.Destroy(t.Context(), planned.ID, cove.DestroyNeverUsed); err != nil || got.State != cove.EnvironmentGone {
		t.Errorf("destroyed: %+v, %v", got, err)
	}
}

// testDeleted: R4: if somebody else has deleted an environment's sprite, the environment is gone,
// even if another sprite has its name. The other sprite stays.
func testDeleted(t *testing.T, p *Place) {
	deleted, replaced, kept := p.Ready(t), p.Ready(t), p.Ready(t)
	for _, env := range []cove.Environment{deleted, replaced} {
		if err := p.Behind.Delete(t.Context(), env.Name, sprites.DeleteOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Behind.Create(t.Context(), sprites.CreateRequest{Name: replaced.Name}); err != nil {
		t.Fatal(err)
	}
	if err := p.Keeper.Survey(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.is(t, deleted.ID, cove.EnvironmentGone)
	p.is(t, replaced.ID, cove.EnvironmentGone)
	p.is(t, kept.ID, cove.EnvironmentReady, cove.EnvironmentAsleep)
	if got := p.Sprites(t); !slices.Equal(got, []string{replaced.Name, kept.Name}) {
		t.Errorf("there are %v", got)
	}
}

// Lose has the server forget an environment and its job, and not its sprite.
func (p *Place) Lose(t *testing.T, env cove.Environment) {
	t.Helper()
	_, err := p.Store.Jobs.Finish(t.Context(), env.Job, cove.JobCancelled, cove.Outcome{}, nil)
	if err == nil {
		_, err = p.Store.Environments.Change(t.Context(), env.ID, func(e *cove.Environment) error { e.State = cove.EnvironmentGone; return nil })
	}
	if err == nil {
		err = p.Store.Jobs.Delete(t.Context(), env.Job)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// testOrphans: D10: a sprite of ours that nothing needs, and that is old enough, is listed. It is
// deleted only if somebody asks for that, and if it is then still ours and not needed.
func testOrphans(t *testing.T, p *Place) {
	live, lost, working := p.Ready(t), p.Ready(t), p.Ready(t)
	p.Lose(t, lost)
	if p.Backend != "" { // its place has said, falsely, that it is gone; its job goes on
		if _, err := p.Store.Environments.Change(t.Context(), working.ID, func(e *cove.Environment) error { e.State = cove.EnvironmentGone; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Behind.Create(t.Context(), sprites.CreateRequest{Name: lost.Name + "-x"}); err != nil {
		t.Fatal(err)
	}
	orphans := func(now time.Time, want ...string) (list []cove.Orphan) {
		t.Helper()
		list, unheard, err := p.Keeper.Orphans(t.Context(), now)
		var names []string
		for _, o := range list {
			names = append(names, o.Name)
		}
		if err != nil || len(unheard) != 0 || !slices.Equal(names, want) {
			t.Fatalf("the orphans are %+v, want %v, %v, %v", list, want, unheard, err)
		}
		return list
	}
	info, err := p.Behind.Get(t.Context(), lost.Name)
	if err != nil {
		t.Fatal(err)
	}
	young, old := info.CreatedAt.Add(cove.OrphanAge-time.Second), info.CreatedAt.Add(cove.OrphanAge)
	orphans(young)
	o := orphans(old, lost.Name)[0]
	if o.Backend != p.Backend || o.SpriteID != info.ID || o.Job != lost.Job || !o.CreatedAt.Equal(info.CreatedAt) {
		t.Errorf("the orphan is %+v", o)
	}

	if err := errors.Join(p.Keeper.Survey(t.Context()), p.Keeper.Sweep(t.Context(), old)); err != nil {
		t.Error(err)
	}
	orphans(old, lost.Name) // nothing goes by itself

	foreign, needed := o, cove.Orphan{Name: live.Name, Backend: p.Backend, SpriteID: live.SpriteID, Job: live.Job, CreatedAt: o.CreatedAt}
	foreign.SpriteID = live.SpriteID
	if err := p.Keeper.DestroyOrphan(t.Context(), foreign, old); !errors.Is(err, environment.ErrForeign) {
		t.Errorf("another sprite of its name: %v", err)
	}
	if err := p.Keeper.DestroyOrphan(t.Context(), needed, old); !errors.Is(err, environment.ErrNeeded) {
		t.Errorf("one that is needed: %v", err)
	}
	if err := p.Keeper.DestroyOrphan(t.Context(), o, young); !errors.Is(err, environment.ErrNeeded) {
		t.Errorf("one that is too young: %v", err)
	}
	orphans(old, lost.Name)
	for range 2 {
		if err := p.Keeper.DestroyOrphan(t.Context(), o, old); err != nil {
			t.Error(err)
		}
		orphans(old)
	}

	// One of its name that does not have our mark stays.
	again, err := p.Behind.Create(t.Context(), sprites.CreateRequest{Name: lost.Name})
	if err != nil {
		t.Fatal(err)
	}
	o.SpriteID = again.ID
	if err := p.Keeper.DestroyOrphan(t.Context(), o, old); !errors.Is(err, environment.ErrForeign) {
		t.Errorf("one without our mark: %v", err)
	}
	want := []string{live.Name, lost.Name, lost.Name + "-x", working.Name}
	if got := p.Sprites(t); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("there are %v, want %v", got, want)
	}
}
