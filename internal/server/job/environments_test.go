package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

// environmentsLeft are the environments that are not gone, by state.
func (o *office) environmentsLeft(t *testing.T) (states []cove.EnvironmentState) {
	t.Helper()
	list, err := cove.Environments{Client: o.client}.List(t.Context(), cove.EnvironmentFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		states = append(states, e.State)
	}
	return states
}

// TestLaunchLeavesNothing: D4: however a step of a launch fails, no sprite and no environment
// of it is left. They are removed at once, or when the service answers again and the next
// server has looked around.
func TestLaunchLeavesNothing(t *testing.T) {
	const (
		post   = `^POST /v1/sprites$`
		look   = `^GET /v1/sprites/job-[^/]*$`
		policy = `/policy/network$`
	)
	refuse := func(call string) []fakeprovider.Fault {
		return []fakeprovider.Fault{{Call: call, Status: 400, Body: `{"error":"bad","message":"m"}`}}
	}
	broken := func(call string) []fakeprovider.Fault {
		return []fakeprovider.Fault{{Call: call, Status: 500}}
	}
	lost := func(call string) []fakeprovider.Fault {
		return []fakeprovider.Fault{{Call: call, Lost: true}, {Call: look, After: 1, Status: 503}}
	}
	s := newSite(t)
	for name, faults := range map[string][]fakeprovider.Fault{
		"look refused": refuse(look), "look broken": broken(look),
		"create refused": refuse(post), "create broken": broken(post), "create lost": lost(post),
		"policy refused": refuse(policy), "policy broken": broken(policy), "policy lost": {{Call: policy, Lost: true}},
		"policy refused, and deletion broken": append(refuse(policy), broken("^DELETE ")...),
	} {
		o := s.open(t.TempDir())
		for _, f := range faults {
			s.Add(f)
		}
		if job, err := o.client.CreateJob(t.Context(), farRequest()); err == nil {
			t.Errorf("%s: made %+v", name, job)
		}
		s.Clear()
		o.server.Stop()
		o = s.open(o.dir)
		err := errors.Join(o.janitor.leftovers(t.Context()), o.jobSprites.environments.Sweep(t.Context(), time.Now().Add(2*time.Hour)))
		if left := o.environmentsLeft(t); err != nil || len(left) != 0 || len(s.sprites()) != 0 {
			t.Errorf("%s: there are %v and %d sprites, %v", name, left, len(s.sprites()), err)
		}
		o.server.Stop()
	}

	// The caller goes away while the sprite is made.
	o := s.open(t.TempDir())
	pace := make(chan struct{})
	s.Add(fakeprovider.Fault{Call: post, Pace: pace})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := o.client.CreateJob(ctx, farRequest())
		ended <- err
	}()
	pace <- struct{}{} // it has come
	cancel()
	if err := <-ended; err == nil {
		t.Error("a job was made for nobody")
	}
	close(pace)
	o.server.Stop() // once the request is over
	s.Clear()
	o = s.open(o.dir)
	err := errors.Join(o.janitor.leftovers(t.Context()), o.jobSprites.environments.Sweep(t.Context(), time.Now().Add(2*time.Hour)))
	if jobs, listErr := o.client.Jobs(t.Context()); len(jobs) > 0 && listErr == nil { // it was made when its caller had gone, and nobody heard of it
		err = errors.Join(err, o.janitor.expire(t.Context(), time.Now().Add(2*o.Lease)))
	}
	if left := o.environmentsLeft(t); err != nil || len(left) != 0 || len(s.sprites()) != 0 {
		t.Errorf("without a caller there are %v and %d sprites, %v", left, len(s.sprites()), err)
	}
}

// TestDestroyEnvironments: D7, D8: a needed environment is not destroyed, and the error says
// what would be lost. With force its job ends. Several are destroyed independently. If the
// service of one does not answer, it stays, and is deleted later.
func TestDestroyEnvironments(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	ctx := t.Context()
	calls := cove.Environments{Client: o.client}
	begin := func(req cove.JobRequest) (cove.Job, cove.Environment) {
		t.Helper()
		job, err := o.client.CreateJob(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		env, err := calls.Get(ctx, job.Execution)
		if err != nil || env.Job != job.ID || env.JobTitle != job.PlanName || env.State != cove.EnvironmentPreparing || !env.Busy {
			t.Fatalf("got %+v, %v", env, err)
		}
		return job, env
	}
	far, farEnv := begin(farRequest())
	_, hereEnv := begin(request())
	if _, err := calls.Destroy(ctx, farEnv.ID, false); code(err) != "job_running" || !strings.Contains(err.Error(), far.ID) || !strings.Contains(err.Error(), far.Branch) {
		t.Errorf("one at work was destroyed: %v", err)
	}
	if _, err := calls.Destroy(ctx, "0123", true); code(err) != "not_found" {
		t.Errorf("one that is not there: %v", err)
	}
	if err := o.Store.Jobs.Update(ctx, far.ID, func(j *cove.Job) error { j.Bundle.Size, j.Commits, j.Leftover = 7, 3, "abc"; return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Store.Jobs.Finish(ctx, far.ID, cove.JobSucceeded, cove.Outcome{}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := calls.Destroy(ctx, farEnv.ID, false); code(err) != "unpulled_work" || !strings.Contains(err.Error(), "3 commits, and uncommitted changes") {
		t.Errorf("one with work was destroyed: %v", err)
	}
	if list, err := calls.List(ctx, cove.EnvironmentFilter{}); err != nil || len(list) != 2 || !slices.ContainsFunc(list, func(e cove.Environment) bool { return e.ID == farEnv.ID && e.Work && !e.Busy }) {
		t.Errorf("listed %+v, %v", list, err)
	}
	results, err := calls.DestroyAll(ctx, cove.EnvironmentDestroy{})
	if err != nil || len(results) != 2 || results[0].Error == nil || results[1].Error == nil {
		t.Errorf("without force: %+v, %v", results, err)
	}

	s.SetDown(true)
	results, err = calls.DestroyAll(ctx, cove.EnvironmentDestroy{Force: true})
	if err != nil || len(results) != 2 {
		t.Fatalf("destroyed %+v, %v", results, err)
	}
	for _, r := range results {
		switch r.Environment.ID {
		case hereEnv.ID:
			if r.Error != nil || r.Environment.State != cove.EnvironmentGone || r.Environment.Busy {
				t.Errorf("here: %+v, %+v", r.Environment, r.Error)
			}
		case farEnv.ID:
			if r.Error == nil || r.Error.Code != "still_deleting" || !strings.Contains(r.Error.Hint, "cove ping --backend far") || r.Environment.State != cove.EnvironmentDestroying || r.Environment.Removal.Reason != cove.DestroyAsked {
				t.Errorf("far: %+v, %+v", r.Environment, r.Error)
			}
		}
	}
	if left := o.environmentsLeft(t); !slices.Equal(left, []cove.EnvironmentState{cove.EnvironmentDestroying}) {
		t.Errorf("there are %v", left)
	}
	if here, err := o.client.Job(ctx, hereEnv.Job); err != nil || here.State != cove.JobCancelled {
		t.Errorf("its job is %+v, %v", here, err)
	}
	s.SetDown(false)
	late := farRequest()
	late.Sprite = farEnv.Name
	if job, err := o.client.CreateJob(ctx, late); code(err) != "being_deleted" {
		t.Errorf("a job begins where one is deleted: %+v, %v", job, err)
	}
	if err := o.jobSprites.environments.Sweep(ctx, time.Now().Add(2*time.Hour)); err != nil {
		t.Error(err)
	}
	if left := o.environmentsLeft(t); len(left) != 0 || len(s.sprites()) != 0 {
		t.Errorf("there are %v and %d sprites", left, len(s.sprites()))
	}
	if env, err := calls.Destroy(ctx, farEnv.ID, false); err != nil || env.State != cove.EnvironmentGone {
		t.Errorf("destroyed again: %+v, %v", env, err)
	}
}

// TestEnvironmentsGone: R4: if somebody has deleted an environment's sprite, a local
// environment says so at once, and another one with the next look. If another job has
// inherited it, it has it instead.
func TestEnvironmentsGone(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	ctx := t.Context()
	for _, req := range []cove.JobRequest{request(), farRequest()} {
		job, err := o.client.CreateJob(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		behind := o.client
		if job.Backend != "" {
			behind = s.server.Client()
		}
		if err := behind.Delete(ctx, job.Sprite, sprites.DeleteOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		if job.Backend != "" {
			if err := o.jobSprites.environments.Survey(ctx); err != nil {
				t.Error(err)
			}
		}
		env, err := o.Store.Environments.Get(ctx, job.Execution)
		if err != nil || env.State != cove.EnvironmentGone {
			t.Errorf("at %q it is %+v, %v", job.Backend, env, err)
		}
		if err := o.client.DeleteJob(ctx, job.ID, true); err != nil {
			t.Error(err)
		}
		if _, err := o.Store.Environments.Get(ctx, job.Execution); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("without its job it is there: %v", err)
		}
	}
}

// TestOrphans: D10: the API lists orphans, with the places that were not heard. It deletes
// them by name, or all of them, after another look. A name that is no orphan deletes nothing.
func TestOrphans(t *testing.T) {
	s := newSite(t)
	o := s.open(t.TempDir())
	ctx := t.Context()
	calls := cove.Environments{Client: o.client}
	installation := o.jobSprites.environments.Installation
	row := func(name, label string) string {
		return fmt.Sprintf(`{"id":"id-%s","name":"job-%s-%[1]s","status":"cold","labels":["cove-job","cove-%[3]s-0123"],"created_at":"2020-02-03T10:11:12Z"}`, name, installation, label)
	}
	const list, del = `^GET /v1/sprites\?`, `^DELETE `
	s.Add(fakeprovider.Fault{Call: list, Status: 200, Body: `{"sprites":[` + row("aa", installation) + "," + row("bb", installation) + "," + row("cc", "11223344") + `],"has_more":false}`})
	s.Add(fakeprovider.Fault{Call: `^GET /v1/sprites/.*-aa$`, Status: 200, Body: row("aa", installation)})
	s.Add(fakeprovider.Fault{Call: `^GET /v1/sprites/.*-bb$`, Status: 200, Body: row("bb", "11223344")}) // its labels were changed
	s.Add(fakeprovider.Fault{Call: del, Status: 204})
	got, err := calls.Orphans(ctx)
	if err != nil || len(got.Orphans) != 2 || got.Orphans[0].Job != "aa" || got.Orphans[1].Job != "bb" || len(got.Unheard) != 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	aa, bb := got.Orphans[0], got.Orphans[1]
	names := func(all ...cove.OrphanName) cove.OrphanDestroy { return cove.OrphanDestroy{Orphans: all} }
	if done, err := calls.DestroyOrphans(ctx, names(cove.OrphanName{Backend: "far", Name: aa.Name}, cove.OrphanName{Backend: "far", Name: "paint"})); code(err) != "not_found" || len(s.Calls(del)) != 0 {
		t.Errorf("with a name that is none: %+v, %v", done, err)
	}
	done, err := calls.DestroyOrphans(ctx, cove.OrphanDestroy{})
	if err != nil || len(done.Results) != 2 || done.Results[0].Error != nil || done.Results[1].Error == nil || done.Results[1].Error.Code != "not_an_orphan" || done.Results[1].Orphan != bb {
		t.Errorf("destroyed %+v, %v", done, err)
	}
	if deleted := s.Calls(del); len(deleted) != 1 || !strings.Contains(deleted[0].String(), aa.Name) {
		t.Errorf("there was %v", deleted)
	}
	done, err = calls.DestroyOrphans(ctx, names(cove.OrphanName{Backend: "far", Name: aa.Name}))
	if err != nil || len(done.Results) != 1 || done.Results[0].Error != nil {
		t.Errorf("by its name: %+v, %v", done, err)
	}
	s.SetDown(true)
	if got, err = calls.Orphans(ctx); err != nil || len(got.Orphans) != 0 || len(got.Unheard) != 1 || got.Unheard[0].Backend != "far" || got.Unheard[0].Error.Code != "backend_unreachable" {
		t.Errorf("while it is down: %+v, %v", got, err)
	}
	done, err = calls.DestroyOrphans(ctx, names(cove.OrphanName{Backend: "far", Name: aa.Name}))
	if err != nil || len(done.Results) != 0 || len(done.Unheard) != 1 || len(s.Calls(del)) != 2 {
		t.Errorf("while it is down: %+v, %v", done, err)
	}
}
