package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

func TestProfiles(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	must(t, err)
	defer s.Close()
	ctx := t.Context()
	if _, err := s.Profiles.Get(ctx, "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("none: %v", err)
	}
	if _, err := s.Profiles.Put(ctx, "a", 1, cove.ProfileSettings{}); !errors.Is(err, ErrRevision) {
		t.Errorf("a change of none: %v", err)
	}
	first, err := s.Profiles.Put(ctx, "a", 0, cove.ProfileSettings{Agent: "shell", Env: map[string]string{"K": "v"}})
	must(t, err)
	if first.Revision != 1 || first.Agent != "shell" || first.Env["K"] != "v" || first.CreatedAt.IsZero() {
		t.Errorf("got %+v", first)
	}
	second, err := s.Profiles.Put(ctx, "a", 1, cove.ProfileSettings{MaxJobs: 3})
	must(t, err)
	if second.Revision != 2 || second.Agent != "" || second.MaxJobs != 3 || !second.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("got %+v", second)
	}
	if _, err := s.Profiles.Put(ctx, "a", 1, cove.ProfileSettings{}); !errors.Is(err, ErrRevision) {
		t.Errorf("a change of an old one: %v", err)
	}
	list, err := s.Profiles.List(ctx)
	must(t, err)
	if len(list) != 1 || list[0].Revision != 2 {
		t.Errorf("got %+v", list)
	}
	_, err = s.Profiles.Put(ctx, "b", 0, cove.ProfileSettings{Env: map[string]string{"K": "x{secret:hidden}"}})
	must(t, err)
	must(t, s.Secrets.Set(ctx, "hidden", "0123456789"))
	if err := s.Secrets.Delete(ctx, "hidden", false); !errors.Is(err, ErrInUse) {
		t.Errorf("a secret that a profile needs: %v", err)
	}
	must(t, s.Profiles.Delete(ctx, "a"))
	must(t, s.Jobs.Create(ctx, cove.Job{ID: "1", State: cove.JobQueued, JobSettings: cove.JobSettings{Profile: "a", ProfileRevision: 2}}, nil))
	third, err := s.Profiles.Put(ctx, "a", 0, cove.ProfileSettings{})
	must(t, err)
	if third.Revision != 3 {
		t.Errorf("another one of that name has revision %d, as one before may have had", third.Revision)
	}
	must(t, s.Profiles.Delete(ctx, "a"))
	if err := s.Profiles.Delete(ctx, "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("twice: %v", err)
	}
}

// TestTakeTurn: jobs of a profile have their turn in order of age, up to the limit. A job
// that ends frees its place. Jobs of other profiles don't count.
func TestTakeTurn(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	must(t, err)
	defer s.Close()
	ctx := t.Context()
	for i := range 6 {
		job := cove.Job{ID: fmt.Sprint(i), State: cove.JobInstalling, CreatedAt: time.Unix(int64(i), 0)}
		if job.Profile = "a"; i == 5 {
			job.Profile = "b"
		}
		must(t, s.Jobs.Create(ctx, job, nil))
	}
	take := func(id, profile string, limit, want int) {
		t.Helper()
		if got, err := s.Jobs.TakeTurn(ctx, id, profile, limit); err != nil || got != want {
			t.Errorf("job %s: place %d, %v, want %d", id, got, err, want)
		}
	}
	take("4", "a", 2, 3) // it asks first, and came last
	take("1", "a", 2, 0)
	take("1", "a", 2, 0)
	take("3", "a", 2, 2)
	take("2", "a", 2, 1)
	take("0", "a", 2, 0)
	take("2", "a", 2, 1)
	take("5", "b", 1, 0)
	take("2", "a", 3, 0)
	take("3", "a", 0, 0) // any number
	job, err := s.Jobs.Get(ctx, "0")
	must(t, err)
	if job.TurnAt == nil || job.Profile != "a" {
		t.Errorf("got %+v", job)
	}
	for _, id := range []string{"0", "1", "2"} {
		_, err := s.Jobs.Finish(ctx, id, cove.JobFailed, cove.Outcome{}, nil)
		must(t, err)
	}
	take("4", "a", 1, 1)
	_, err = s.Jobs.Finish(ctx, "3", cove.JobFailed, cove.Outcome{}, nil)
	must(t, err)
	take("4", "a", 1, 0)
	if _, err := s.Jobs.TakeTurn(ctx, "3", "a", 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("one that has ended: %v", err)
	}
}

// TestPlace: a job has a place only while it waits for its turn. If a server is killed when the
// turn comes, or when the job ends without it, no place is left. A watcher learns of the turn.
func TestPlace(t *testing.T) {
	s := withJob(t)
	ctx := t.Context()
	must(t, s.Jobs.Create(ctx, cove.Job{ID: "b", State: cove.JobInstalling}, nil))
	for _, id := range []string{"a", "b"} {
		must(t, s.Jobs.Update(ctx, id, func(j *cove.Job) error { j.Profile, j.Place = "p", 1; return nil }))
	}
	changed, cancel := s.Jobs.Watch("a")
	defer cancel()
	if place, err := s.Jobs.TakeTurn(ctx, "a", "p", 1); place != 0 || err != nil {
		t.Fatalf("place %d, %v", place, err)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody is told of the turn")
	}
	_, err := s.Jobs.Finish(ctx, "b", cove.JobCancelled, cove.Outcome{}, nil)
	must(t, err)
	for _, id := range []string{"a", "b"} {
		if job, err := s.Jobs.Get(ctx, id); err != nil || job.Place != 0 || (job.TurnAt != nil) != (id == "a") {
			t.Errorf("got %+v, %v", job, err)
		}
	}
}

// TestOlderPlaces: the places that an older server left to jobs that do not wait are taken away.
func TestOlderPlaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	all := migrations
	migrations = all[:slices.Index(all, placesMigration)]
	db := &database{path: path, key: filepath.Join(filepath.Dir(path), KeyFile)}
	must(t, makePrivate(path))
	db.openWrite()
	err := db.migrate(t.Context(), false)
	migrations = all
	must(t, err)
	for id, job := range map[string]string{
		"waits": `{"state":"installing","place":3}`,
		"turn":  `{"state":"installing","place":1,"turn_at":"2026-01-02T03:04:05Z"}`,
		"works": `{"state":"running","place":2}`,
		"ended": `{"state":"succeeded","place":1}`,
	} {
		_, err := db.write.Exec("INSERT INTO jobs (id, state, sprite, created_at, doc) VALUES (?1, ?2->>'$.state', ?1, 1, json_set(?2, '$.id', ?1))", id, job)
		must(t, err)
	}
	must(t, db.write.Close())
	s := open(t, path)
	defer s.Close()
	jobs, err := s.Jobs.List(t.Context(), JobFilter{})
	must(t, err)
	for _, job := range jobs {
		if want := map[string]int{"waits": 3}[job.ID]; job.Place != want {
			t.Errorf("%s: place %d, want %d", job.ID, job.Place, want)
		}
	}
	if len(jobs) != 4 {
		t.Errorf("got %v", jobs)
	}
}

// TestMaxWaiting: a token can have MaxWaiting jobs that wait, and no more. Jobs of other
// tokens do not count.
func TestMaxWaiting(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	must(t, err)
	defer s.Close()
	ctx := t.Context()
	add := func(id, token string) error {
		return s.Jobs.Create(ctx, cove.Job{ID: id, By: token, State: cove.JobQueued}, nil)
	}
	for i := range MaxWaiting {
		must(t, add(fmt.Sprint(i), "a"))
	}
	err = add("one more", "a")
	if e, ok := errors.AsType[*WaitingError](err); !ok || e.Count != MaxWaiting {
		t.Errorf("got %v", err)
	}
	must(t, add("another's", "b"))
	must(t, add("the owner's", ""))
	must(t, s.Jobs.Update(ctx, "0", func(j *cove.Job) error { j.State = cove.JobRunning; return nil }))
	must(t, add("in its place", "a"))
	if err := add("yet one more", "a"); err == nil {
		t.Error("it was stored")
	}
	if n, err := s.Jobs.Waiting(ctx, "none"); n != 0 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}
