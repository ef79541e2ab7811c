package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// own makes a job with an environment of its own.
func own(t *testing.T, s *Store, id, backend string) cove.Environment {
	t.Helper()
	must(t, s.Jobs.Create(t.Context(), cove.Job{
		ID: id, State: cove.JobInstalling, OwnsSprite: true, JobSettings: cove.JobSettings{Backend: backend, Sprite: "job-" + id},
		JobSource: cove.JobSource{PlanName: "plan.md", Repository: "repo"}, JobProgress: cove.JobProgress{Execution: "x" + id},
	}, nil))
	e, err := s.Environments.Get(t.Context(), "x"+id)
	must(t, err)
	return e
}

// TestEnvironmentStates has all pairs of states.
func TestEnvironmentStates(t *testing.T) {
	const rows = `
		          planned creating policy preparing ready asleep failed unknown destroying gone
		planned      =       x       .       .       .     .      .       .        x        x
		creating     .       =       x       .       .     .      .       x        x        x
		policy       .       .       =       x       .     .      x       x        x        x
		preparing    .       .       .       =       x     .      x       x        x        x
		ready        .       .       .       .       =     x      .       x        x        x
		asleep       .       .       .       .       x     =      .       x        x        x
		failed       .       .       .       .       x     .      =       x        x        x
		unknown      .       x       x       x       x     x      x       =        x        x
		destroying   .       .       .       .       .     .      .       .        =        x
		gone         .       .       .       .       .     .      .       .        .        .`
	lines := strings.Split(strings.TrimSpace(rows), "\n")
	to := strings.Fields(lines[0])
	if len(lines) != len(cove.EnvironmentStates())+1 || len(to) != len(cove.EnvironmentStates()) {
		t.Fatal("the table lacks states")
	}
	for _, line := range lines[1:] {
		marks := strings.Fields(line)
		from := cove.EnvironmentState(marks[0])
		for i, mark := range marks[1:] {
			next := cove.EnvironmentState(to[i])
			if !from.Valid() || !next.Valid() {
				t.Fatalf("%s or %s is no state", from, next)
			}
			if got, want := mayBecome(from, next), mark != "."; got != want {
				t.Errorf("%s to %s: %v, want %v", from, next, got, want)
			}
		}
	}
}

// TestEnvironmentRow: C1, C6: the row of an environment is there with its job's, once, and says
// what the job does of its sprite.
func TestEnvironmentRow(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	e := own(t, s, "a", "far")
	if e.State != cove.EnvironmentPlanned || e.Name != "job-a" || e.Backend != "far" || e.Job != "a" || e.JobTitle != "plan.md" || e.Repository != "repo" || !e.Busy || e.Work || e.Orphan || e.CreatedAt.IsZero() || e.ChangedAt.IsZero() {
		t.Errorf("got %+v", e)
	}
	for _, job := range []cove.Job{
		{ID: "b", OwnsSprite: true, JobSettings: cove.JobSettings{Backend: "far", Sprite: "job-a"}, JobProgress: cove.JobProgress{Execution: "xb"}},
		{ID: "b", OwnsSprite: true, JobSettings: cove.JobSettings{Backend: "far", Sprite: "job-b"}, JobProgress: cove.JobProgress{Execution: "xa"}},
	} {
		if err := s.Jobs.Create(ctx, job, nil); !errors.Is(err, ErrExists) {
			t.Errorf("a second one: %v", err)
		}
		if _, err := s.Jobs.Get(ctx, "b"); !errors.Is(err, ErrNotFound) {
			t.Errorf("of which the job is there: %v", err)
		}
	}
	here := own(t, s, "c", "")
	step := func(e cove.Environment, states ...cove.EnvironmentState) cove.Environment {
		t.Helper()
		for _, state := range states {
			e.State = state
			var err error
			e, err = s.Environments.Update(ctx, e)
			must(t, err)
		}
		return e
	}
	e.SpriteID = "sprite-1"
	e = step(e, cove.EnvironmentCreating, cove.EnvironmentPolicy)
	if _, err := s.Environments.Update(ctx, func() cove.Environment { bad := e; bad.State = cove.EnvironmentAsleep; return bad }()); !errors.Is(err, ErrTransition) {
		t.Errorf("asleep before it was prepared: %v", err)
	}
	job, err := s.Jobs.Get(ctx, "a")
	if err != nil || !job.OwnsSprite || job.SpriteID != "sprite-1" || job.SpriteRemoval != nil {
		t.Errorf("the job is %+v, %v", job, err)
	}
	e.Removal, e.Error, e.Hint = &cove.EnvironmentRemoval{Reason: cove.DestroyJobGone, Since: now(), Tries: 2, NextAt: now()}, "why", "what"
	e = step(e, cove.EnvironmentDestroying)
	job, err = s.Jobs.Get(ctx, "a")
	if r := job.SpriteRemoval; err != nil || r == nil || r.Tries != 2 || r.Error != "why" || r.Hint != "what" || !r.Since.Equal(e.Removal.Since) {
		t.Errorf("the job's sprite is removed: %+v, %v", r, err)
	}
	must(t, s.Backends.Put(ctx, "far", cove.BackendRequest{URL: "http://far.example", Token: "t"}))
	must(t, s.Jobs.Delete(ctx, "a"))
	if err := s.Backends.Delete(ctx, "far"); !errors.Is(err, ErrInUse) {
		t.Errorf("its backend was forgotten: %v", err)
	}
	if err := s.Jobs.Create(ctx, cove.Job{ID: "d", JobSettings: cove.JobSettings{Backend: "far", Sprite: "job-a"}}, nil); !errors.Is(err, ErrDestroying) {
		t.Errorf("another job begins in it: %v", err)
	}
	e, err = s.Environments.Get(ctx, "xa")
	if err != nil || !e.Orphan || e.Busy || e.State != cove.EnvironmentDestroying {
		t.Errorf("without its job it is %+v, %v", e, err)
	}
	e = step(e, cove.EnvironmentGone)
	must(t, s.Backends.Delete(ctx, "far"))

	// A sprite of this server that is deleted is gone in the same transaction.
	must(t, s.Sprites.Create(ctx, &Sprite{ID: "1", Name: "job-c", Owner: JobOwner("c")}))
	must(t, s.Jobs.Create(ctx, cove.Job{ID: "f", State: cove.JobRunning, JobSettings: cove.JobSettings{Sprite: "job-c"}}, nil))
	here = step(here, cove.EnvironmentCreating, cove.EnvironmentPolicy, cove.EnvironmentPreparing)
	stale := here
	stale.Version--
	if err := s.Environments.Inherit(ctx, stale, "f"); !errors.Is(err, ErrRevision) {
		t.Errorf("a stale one was inherited: %v", err)
	}
	must(t, s.Environments.Inherit(ctx, here, "f"))
	from, err := s.Jobs.Get(ctx, "c")
	must(t, err)
	heir, err := s.Jobs.Get(ctx, "f")
	must(t, err)
	if row, err := s.Sprites.Get(ctx, "job-c"); err != nil || row.Owner != "job:f" || from.OwnsSprite || !heir.OwnsSprite {
		t.Errorf("inherited: %v, %v, owned by %s, %v", from.OwnsSprite, heir.OwnsSprite, row.Owner, err)
	}
	list := func(f cove.EnvironmentFilter) (ids []string) {
		all, err := s.Environments.List(ctx, f)
		must(t, err)
		for _, e := range all {
			ids = append(ids, e.ID)
		}
		return ids
	}
	backend, none := "far", ""
	own(t, s, "g", "far")
	for want, filter := range map[string]cove.EnvironmentFilter{
		"[xg xc]": {}, "[xc]": {Backend: &none}, "[xg]": {Backend: &backend}, "[xa]": {States: []cove.EnvironmentState{cove.EnvironmentGone}}, "[]": {Profile: "p"},
	} {
		if got := fmt.Sprint(list(filter)); got != want {
			t.Errorf("listed %s, want %s", got, want)
		}
	}
	must(t, s.Sprites.Delete(ctx, "1"))
	if e, err = s.Environments.Get(ctx, "xc"); err != nil || e.State != cove.EnvironmentGone {
		t.Errorf("after its sprite was deleted it is %+v, %v", e, err)
	}
	if _, err := s.Environments.Update(ctx, e); !errors.Is(err, ErrTransition) {
		t.Errorf("one that is gone was changed: %v", err)
	}
	must(t, s.Jobs.Delete(ctx, "f"))
	if _, err := s.Environments.Get(ctx, "xc"); !errors.Is(err, ErrNotFound) {
		t.Errorf("without its job it is there: %v", err)
	}
}

// TestEnvironmentOfJob: what becomes of a job becomes of its environment, in one transaction.
func TestEnvironmentOfJob(t *testing.T) {
	const preparing, failed, unknown, ready, asleep, destroying = cove.EnvironmentPreparing, cove.EnvironmentFailed, cove.EnvironmentUnknown, cove.EnvironmentReady, cove.EnvironmentAsleep, cove.EnvironmentDestroying
	for _, c := range []struct {
		is, was cove.EnvironmentState
		job     cove.JobState
		want    cove.EnvironmentState
	}{
		{preparing, "", cove.JobPreparing, preparing},
		{preparing, "", cove.JobRunning, ready},
		{preparing, "", cove.JobWaiting, ready},
		{preparing, "", cove.JobSucceeded, ready},
		{preparing, "", cove.JobFailed, failed},
		{preparing, "", cove.JobCancelled, failed},
		{failed, "", cove.JobRunning, ready},
		{failed, "", cove.JobLost, failed},
		{unknown, preparing, cove.JobRunning, ready},
		{unknown, ready, cove.JobRunning, unknown},
		{unknown, preparing, cove.JobLost, failed},
		{ready, "", cove.JobFailed, ready},
		{asleep, "", cove.JobRunning, ready},
		{asleep, "", cove.JobLost, asleep},
		{destroying, "", cove.JobRunning, destroying},
		{cove.EnvironmentCreating, "", cove.JobFailed, cove.EnvironmentCreating},
		{cove.EnvironmentGone, "", cove.JobRunning, cove.EnvironmentGone},
	} {
		got := advanced(cove.Environment{State: c.is, Was: c.was}, cove.Job{State: cove.JobInstalling}, cove.Job{State: c.job})
		if got.State != c.want || got.State != c.is && !mayBecome(c.is, got.State) {
			t.Errorf("%s (%s), with a job that is %s: %s, want %s", c.is, c.was, c.job, got.State, c.want)
		}
	}
	// An outage that the job has heard of, and its end.
	out, well := cove.Job{State: cove.JobRunning}, cove.Job{State: cove.JobRunning}
	out.Unknown = &cove.JobUnknown{Code: "down"}
	for _, state := range cove.EnvironmentStates() {
		e := cove.Environment{State: state}
		if state == unknown {
			e.Was = asleep
		}
		during := advanced(e, well, out)
		if can := mayBecome(state, unknown); (during.State == unknown) != can || can && state != unknown && (during.Was != state || during.Unknown.Code != "down") {
			t.Errorf("%s is %+v in an outage", state, during)
		}
		if after := advanced(during, out, well); after.State != state && state != unknown {
			t.Errorf("%s is %+v after an outage", state, after)
		}
	}
	s, ctx := newStore(t), t.Context()
	own(t, s, "a", "")
	for _, state := range []cove.EnvironmentState{cove.EnvironmentCreating, cove.EnvironmentPolicy, preparing} {
		_, err := s.Environments.Change(ctx, "xa", func(e *cove.Environment) error { e.State = state; return nil })
		must(t, err)
	}
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepClone, func(st *cove.Step) { EndStep(st, cove.StepFailed, now()) }))
	_, err := s.Jobs.Finish(ctx, "a", cove.JobFailed, cove.Outcome{}, func(j *cove.Job) { j.Error = "no room" })
	must(t, err)
	if e, err := s.Environments.Get(ctx, "xa"); err != nil || e.State != failed || e.Step != cove.StepClone || e.Error != "no room" || e.Busy {
		t.Errorf("got %+v, %v", e, err)
	}
}

// TestEnvironmentHasOneWriter: R9: of all who change a row as they have read it, one does. The
// others change nothing, and say so.
func TestEnvironmentHasOneWriter(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	own(t, s, "a", "")
	const writers, rounds = 4, 250 // 1,000 changes
	var mu sync.Mutex
	var won []string
	for range rounds {
		var wg sync.WaitGroup
		read, err := s.Environments.Get(ctx, "xa")
		must(t, err)
		wins := 0
		for w := range writers {
			wg.Go(func() {
				e := read
				if rand.IntN(2) == 0 { // some read it anew, before the others have written or after
					if e, err := s.Environments.Get(ctx, "xa"); err != nil || e.Version < read.Version {
						t.Errorf("read %+v, %v", e, err)
					}
				}
				e.SpriteID = fmt.Sprintf("%d by %d", read.Version, w)
				got, err := s.Environments.Update(ctx, e)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					wins++
					won = append(won, got.SpriteID)
				case !errors.Is(err, ErrRevision):
					t.Errorf("writer %d: %v", w, err)
				}
			})
		}
		wg.Wait()
		now, err := s.Environments.Get(ctx, "xa")
		must(t, err)
		if wins != 1 || now.Version != read.Version+1 || now.SpriteID != won[len(won)-1] {
			t.Fatalf("%d have changed version %d, which is %d now, by %q; %q has won", wins, read.Version, now.Version, now.SpriteID, won[len(won)-1])
		}
	}
	// Change goes on from what the others have left.
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range 25 {
				if _, err := s.Environments.Change(ctx, "xa", func(e *cove.Environment) error { e.Health.Failures++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if e, err := s.Environments.Get(ctx, "xa"); err != nil || e.Health.Failures != writers*25 {
		t.Errorf("after all changes there are %+v, %v", e.Health, err)
	}
}

// TestOlderEnvironments: a store of an earlier cove has a row afterwards for each sprite that
// was made for a job.
func TestOlderEnvironments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	all := migrations
	migrations = all[:slices.Index(all, environmentsMigration)]
	db := &database{path: path, key: filepath.Join(filepath.Dir(path), KeyFile)}
	must(t, makePrivate(path))
	db.openWrite()
	must(t, db.migrate(t.Context(), false))
	migrations = all
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, job := range []struct{ id, state, sprite, doc string }{
		{"a1", "installing", "job-a1", `{}`},
		{"a2", "queued", "job-a2", `{}`},
		{"a3", "running", "far/job-a3", `{"sprite_id":"s3"}`},
		{"a4", "succeeded", "far/job-a4", `{"sprite_id":"s4","plan_name":"p.md","bundle":{"size":7}}`},
		{"a5", "cancelled", "far/job-a5", `{"sprite_removal":{"since":"2026-01-02T03:04:05Z","tries":3,"next_at":"2026-01-02T04:04:05Z","error":"why","hint":"what"}}`},
		{"a6", "failed", "job-a6", `{}`},
		{"a7", "failed", "job-a7", `{}`},
		{"a8", "running", "job-a6", `{"owns_sprite":false}`},
		{"a9", "succeeded", "far/job-b1", `{}`}, // its heir has it, too
		{"b1", "running", "far/job-b1", `{}`},
	} {
		_, err := db.write.Exec(`INSERT INTO jobs (id, state, sprite, created_at, doc) VALUES (?1, ?2, ?3, ?4, json_patch(json_object('id', ?1, 'state', ?2, 'owns_sprite', json('true'), 'execution_id', 'x' || ?1, 'created_at', ?5), ?6))`,
			job.id, job.state, job.sprite, at.UnixMicro()+int64(i), at.Format(time.RFC3339), job.doc)
		must(t, err)
	}
	_, err := db.write.Exec(`INSERT INTO layers (id) VALUES ('1');
		INSERT INTO sprites (id, name, machine_id, base, include, env, config, labels, url_settings, idle_seconds, owner, status, incarnation, last_error, created_at, updated_at, layer)
		VALUES ('1', 'job-a6', 'm', 'host', '[]', '{}', '{}', '[]', '{}', 0, 'job:a6', 'cold', 0, '', 1, 1, '1')`)
	must(t, err)
	must(t, db.write.Close())

	s := open(t, path)
	got := map[string]string{}
	list, err := s.Environments.List(t.Context(), cove.EnvironmentFilter{States: cove.EnvironmentStates()})
	must(t, err)
	for _, e := range list {
		got[e.ID] = fmt.Sprint(e.Job, " ", place(e.Backend, e.Name), " ", e.State)
		if !e.ChangedAt.Equal(at) || e.CreatedAt.IsZero() || e.Version != 1 {
			t.Errorf("got %+v", e)
		}
	}
	want := map[string]string{
		"xa1": "a1 job-a1 creating", "xa2": "a2 job-a2 preparing", "xa3": "a3 far/job-a3 ready", "xa4": "a4 far/job-a4 unknown", "xa5": "a5 far/job-a5 destroying",
		"xa6": "a6 job-a6 ready", "xa7": "a7 job-a7 gone", "xb1": "b1 far/job-b1 ready",
	}
	for id, is := range want {
		if got[id] != is {
			t.Errorf("%s is %q, want %q", id, got[id], is)
		}
	}
	if len(got) != len(want) {
		t.Errorf("there are %v", got)
	}
	e, err := s.Environments.Get(t.Context(), "xa5")
	if r := e.Removal; err != nil || r == nil || r.Tries != 3 || !r.Reason.Valid() || e.Error != "why" || e.Hint != "what" || !r.NextAt.Equal(at.Add(time.Hour)) {
		t.Errorf("got %+v, %v", e, err)
	}
	e, err = s.Environments.Get(t.Context(), "xa4")
	if err != nil || e.SpriteID != "s4" || e.Was != cove.EnvironmentReady || e.Unknown == nil || e.Unknown.Since.IsZero() || !e.Work || e.JobTitle != "p.md" {
		t.Errorf("got %+v, %v", e, err)
	}
	for id, owns := range map[string]bool{"a1": true, "a7": true, "a8": false, "a9": false, "b1": true} {
		if job, err := s.Jobs.Get(t.Context(), id); err != nil || job.OwnsSprite != owns {
			t.Errorf("job %s owns its sprite: %v, %v", id, job.OwnsSprite, err)
		}
	}
}
