package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

var allTopics = []string{cove.TopicJobs, cove.TopicSteps, cove.TopicProfiles, cove.TopicEnvironments}

// told returns the changes after a number as TOPIC/NAME, with a "-" before things that are
// gone.
func told(t *testing.T, s *Store, topics []string, job string, seq int64) (all []string) {
	t.Helper()
	list, err := s.Changes.After(t.Context(), topics, job, seq, 1000)
	must(t, err)
	for _, c := range list {
		if c.Seq <= seq {
			t.Errorf("change %d comes after %d", c.Seq, seq)
		}
		seq = c.Seq
		text := c.Topic + "/" + c.Name
		if c.Gone {
			text = "-" + text + "@" + c.Backend + ":" + c.Sprite
		}
		all = append(all, text)
	}
	return all
}

func last(t *testing.T, s *Store) int64 {
	t.Helper()
	n, err := s.Changes.Last(t.Context())
	must(t, err)
	return n
}

// TestChanges: each change of a job, its steps and a profile gives that thing a new number, and
// each thing has one.
func TestChanges(t *testing.T) {
	s := withJob(t)
	ctx := t.Context()
	changed, cancel := s.Changes.Watch()
	defer cancel()
	want := func(what string, seq int64, list ...string) {
		t.Helper()
		if got := told(t, s, allTopics, "", seq); !slices.Equal(got, list) {
			t.Errorf("%s: got %v, want %v", what, got, list)
		}
	}
	want("a new job", 0, "jobs/a")
	must(t, s.Jobs.UpdateStep(ctx, "a", cove.StepClone, func(step *cove.Step) { BeginStep(step, time.Now()) }))
	_, err := s.Profiles.Put(ctx, "nightly", 0, cove.ProfileSettings{Agent: "shell"})
	must(t, err)
	must(t, s.Jobs.Create(ctx, cove.Job{ID: "b", State: cove.JobQueued, JobSettings: cove.JobSettings{Backend: "far", Sprite: "paint"}}, nil))
	want("more", 0, "jobs/a", "steps/a", "profiles/nightly", "jobs/b")
	<-changed

	before := last(t, s)
	must(t, s.Jobs.Update(ctx, "a", func(*cove.Job) error { return nil }))
	must(t, s.Jobs.AppendEvents(ctx, "a", []cove.JobEvent{{Seq: 1, Type: "output", Text: "x"}}))
	want("nothing is another", before)
	must(t, s.Jobs.AppendEvents(ctx, "a", []cove.JobEvent{{Seq: 2, Type: "output", Stream: "setup", Text: "x"}, {Seq: 3, Type: "state", State: cove.JobPreparing}}))
	want("the supervisor's steps", before, "steps/a")
	for range 3 {
		must(t, s.Jobs.Update(ctx, "a", func(j *cove.Job) error { j.Place++; return nil }))
	}
	_, err = s.Profiles.Put(ctx, "nightly", 0, cove.ProfileSettings{Agent: "shell"})
	must(t, err)
	want("one number each", before, "steps/a", "jobs/a", "profiles/nightly")
	want("all that there is", 0, "jobs/b", "steps/a", "jobs/a", "profiles/nightly")
	if got := told(t, s, []string{cove.TopicJobs}, "", 0); !slices.Equal(got, []string{"jobs/b", "jobs/a"}) {
		t.Errorf("the jobs: %v", got)
	}
	if got := told(t, s, allTopics, "a", 0); !slices.Equal(got, []string{"steps/a", "jobs/a", "profiles/nightly"}) {
		t.Errorf("of one job: %v", got)
	}

	before = last(t, s)
	if won, err := s.Jobs.Finish(ctx, "a", cove.JobFailed, cove.Outcome{}, nil); !won || err != nil {
		t.Fatalf("finish: %v, %v", won, err)
	}
	want("the end", before, "steps/a", "jobs/a")
	must(t, s.Jobs.Delete(ctx, "a"))
	must(t, s.Jobs.Delete(ctx, "b"))
	must(t, s.Profiles.Delete(ctx, "nightly"))
	want("all are gone", before, "-jobs/a@:", "-jobs/b@far:paint", "-profiles/nightly@:")
	must(t, s.Jobs.Create(ctx, cove.Job{ID: "a", State: cove.JobQueued}, nil))
	want("one is there again", before, "-jobs/b@far:paint", "-profiles/nightly@:", "jobs/a")

	before = last(t, s)
	e := own(t, s, "e", "far")
	want("a job with an environment", before, "jobs/e", "environments/xe")
	_, err = s.Environments.Change(ctx, e.ID, func(e *cove.Environment) error { e.State = cove.EnvironmentCreating; return nil })
	must(t, err)
	want("its job shows it", before, "environments/xe", "jobs/e")
}

// TestChangesResumed: a number holds on after a restart of the server. One of another store, of a
// state that a backup was put over, or from before deletions that are forgotten does not.
func TestChangesResumed(t *testing.T) {
	dir := t.TempDir()
	ctx := t.Context()
	open := func(dir string) *Store {
		t.Helper()
		s, err := Open(ctx, filepath.Join(dir, "cove.db"))
		must(t, err)
		return s
	}
	known := func(s *Store, feed string, seq int64) bool {
		t.Helper()
		yes, err := s.Changes.Knows(ctx, feed, seq)
		must(t, err)
		return yes
	}
	s := open(dir)
	first := s.Changes.Feed()
	must(t, s.Jobs.Create(ctx, cove.Job{ID: "a", State: cove.JobQueued}, nil))
	seq := last(t, s)
	if !known(s, first, seq) || !known(s, first, 0) || known(s, first, seq+1) || known(s, first, -1) || known(s, "other", seq) || known(s, "", 0) {
		t.Error("what is known is not from 0 to the last one, of this feed")
	}
	must(t, s.Close())
	backup := t.TempDir()
	must(t, os.CopyFS(backup, os.DirFS(dir)))
	must(t, os.Chmod(filepath.Join(backup, KeyFile), 0o600))

	s = open(dir)
	if s.Changes.Feed() == first || !known(s, first, seq) || known(s, first, seq+1) {
		t.Error("after a restart, what the first server told is not known")
	}
	must(t, s.Jobs.Create(ctx, cove.Job{ID: "b", State: cove.JobQueued}, nil))
	second, later := s.Changes.Feed(), last(t, s)
	if !known(s, first, seq) || known(s, first, later) || !known(s, second, later) {
		t.Error("each feed is known up to the next")
	}
	must(t, s.Close())

	old := open(backup) // and it goes on by itself
	for i := range 9 {
		must(t, old.Jobs.Create(ctx, cove.Job{ID: fmt.Sprint(i), State: cove.JobQueued}, nil))
	}
	if !known(old, first, seq) || known(old, second, later) || known(old, first, later) {
		t.Error("the backup takes a number for its own that is not")
	}
	must(t, old.Jobs.Delete(ctx, "1"))
	lastOfOld, feed := last(t, old), old.Changes.Feed()
	_, err := old.db.write.ExecContext(ctx, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO changes (topic, name, gone) SELECT 'profiles', 'p' || i, 1 FROM n`, maxGone-1)
	must(t, err)
	if !known(old, feed, lastOfOld) {
		t.Error("no deletion was forgotten yet")
	}
	must(t, old.Jobs.Delete(ctx, "2"))
	var n int
	must(t, old.db.read.QueryRowContext(ctx, "SELECT count(*) FROM changes WHERE gone").Scan(&n))
	if n != maxGone || known(old, feed, lastOfOld-1) || !known(old, feed, last(t, old)) {
		t.Errorf("%d deletions are kept, and a number from before them is known: %v", n, known(old, feed, lastOfOld-1))
	}
	if got := told(t, old, []string{cove.TopicJobs}, "", lastOfOld-1); !strings.HasPrefix(strings.Join(got, " "), "-jobs/2") {
		t.Errorf("after the deletions: %v", got)
	}
	must(t, old.Close())
}

// TestChangesOfOldStore: what was there before anything had a number gets one, the older the smaller.
func TestChangesOfOldStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	all := migrations
	migrations = all[:slices.Index(all, changesMigration)]
	db, err := openDatabase(t.Context(), path, Options{})
	migrations = all
	must(t, err)
	_, err = db.write.ExecContext(t.Context(), `
		INSERT INTO profiles (name, revision, doc, created_at, updated_at) VALUES ('nightly', 1, '{}', 5, 5);
		INSERT INTO jobs (id, state, sprite, created_at, doc) VALUES ('b', 'running', 'paint', 20, '{"id":"b"}'), ('a', 'running', 'far/paint', 10, '{"id":"a"}');
		INSERT INTO job_steps (job, key, doc) VALUES ('b', 'clone', '{}'), ('b', 'setup_script', '{}')`)
	must(t, err)
	must(t, db.close())
	s, err := Open(t.Context(), path)
	must(t, err)
	if got := told(t, s, allTopics, "", 0); !slices.Equal(got, []string{"profiles/nightly", "jobs/a", "jobs/b", "steps/b"}) {
		t.Errorf("got %v", got)
	}
	must(t, s.Jobs.Delete(t.Context(), "a"))
	if got := told(t, s, allTopics, "", 0); !slices.Equal(got, []string{"profiles/nightly", "jobs/b", "steps/b", "-jobs/a@far:paint"}) {
		t.Errorf("after a deletion: %v", got)
	}
	must(t, s.Close())
}
