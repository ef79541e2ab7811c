package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newStore(t *testing.T) *Store {
	return open(t, filepath.Join(t.TempDir(), "cove.db"))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMigrations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd ?name#&.db")
	s := open(t, path)
	must(t, s.Settings.Set(t.Context(), "k", "v"))
	must(t, s.Close())

	s = open(t, path) // the schema is there already
	if v, err := s.Settings.Get(t.Context(), "k"); err != nil || v != "v" {
		t.Errorf("after opening again: got %q, %v", v, err)
	}
	var version int
	var mode string
	must(t, s.db.read.QueryRow("PRAGMA user_version").Scan(&version))
	must(t, s.db.read.QueryRow("PRAGMA journal_mode").Scan(&mode))
	if version != len(migrations) || mode != "wal" {
		t.Errorf("got schema %d in mode %s, want %d in wal", version, mode, len(migrations))
	}
	if _, err := s.db.write.Exec("PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	must(t, s.Close())
	if _, err := Open(t.Context(), path); err == nil || !strings.Contains(err.Error(), "later cove") {
		t.Errorf("opening a later schema: got %v", err)
	}
}

// TestMigrationsAreAppended: a store knows the migrations that it has had by their numbers. So
// the migrations of a cove that people have must keep their content and their places. New ones
// come after them.
func TestMigrationsAreAppended(t *testing.T) {
	for n, want := range map[int]string{
		23: "23c7b6040fe4f8af3ba8d63a41e0e392e1a2907f3dcf11e07bc241d9c27822ff",
		27: "4c49c104d67563c04a5eae082067e1816b015ab9b72db824b5d2e3bcdd293833",
	} {
		if len(migrations) < n {
			t.Fatalf("there are %d migrations, and were %d", len(migrations), n)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(migrations[:n], "\x00")))); got != want {
			t.Errorf("the first %d migrations have changed: %s", n, got)
		}
	}
}

func TestMigrationIsAtomic(t *testing.T) {
	db, err := sql.Open("sqlite", dsn(filepath.Join(t.TempDir(), "a.db"), "immediate"))
	must(t, err)
	defer db.Close()
	defer func(m []string) { migrations = m }(migrations)
	migrations = []string{"CREATE TABLE a (x TEXT)", "CREATE TABLE b (x TEXT); CREATE TABLE nonsense"}
	if err := (&database{write: db}).migrate(t.Context(), false); err == nil {
		t.Fatal("a broken migration succeeded")
	}
	var version, tables int
	must(t, db.QueryRow("PRAGMA user_version").Scan(&version))
	must(t, db.QueryRow("SELECT count(*) FROM sqlite_schema").Scan(&tables))
	if version != 1 || tables != 1 {
		t.Errorf("got schema %d with %d tables, want the first migration alone", version, tables)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	a, err := Lock(dir)
	must(t, err)
	if _, err := Lock(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("second lock: got %v, want ErrLocked", err)
	}
	must(t, a.Close())
	b, err := Lock(dir)
	must(t, err)
	must(t, b.Close())
}

func TestSprites(t *testing.T) {
	s, ctx := newStore(t).Sprites, t.Context()
	in := Sprite{
		ID: "0011223344556677", Name: "paint", MachineID: "m", Base: "host", Include: []string{"/opt/go"},
		Env: map[string]string{"A": "b"}, Config: sprites.Config{CPUs: 2}, Labels: []string{"ci"},
		URL: sprites.URLSettings{Auth: "sprite"}, IdleSeconds: 300, Status: sprites.StatusCold,
		Owner: "job:a", LeaseUntil: time.Now().UTC().Truncate(time.Microsecond),
	}
	must(t, s.Create(ctx, &in))
	got, err := s.Get(ctx, "paint")
	must(t, err)
	if diff := cmp.Diff(in, got); diff != "" {
		t.Errorf("what was stored differs:\n%s", diff)
	}
	again := in
	again.ID = "8"
	if err := s.Create(ctx, &again); !errors.Is(err, ErrExists) {
		t.Errorf("a taken name: got %v, want ErrExists", err)
	}

	must(t, s.Create(ctx, &Sprite{ID: "1", Name: "paint-2", Labels: []string{"red", "ci"}, Status: sprites.StatusRunning}))
	must(t, s.Create(ctx, &Sprite{ID: "2", Name: "tool", Status: sprites.StatusCold}))
	for _, c := range []struct {
		filter SpriteFilter
		want   string
	}{
		{SpriteFilter{}, "paint paint-2 tool"},
		{SpriteFilter{Limit: 2}, "paint paint-2"},
		{SpriteFilter{After: "paint", Limit: 1}, "paint-2"},
		{SpriteFilter{Prefix: "paint"}, "paint paint-2"},
		{SpriteFilter{Prefix: "p%"}, ""},
		{SpriteFilter{Prefix: "paint", Scope: "paint-"}, "paint-2"},
		{SpriteFilter{Name: "tool", Prefix: "t"}, "tool"},
		{SpriteFilter{Label: "ci"}, "paint paint-2"},
		{SpriteFilter{Label: "c"}, ""},
	} {
		list, err := s.List(ctx, c.filter)
		must(t, err)
		var names []string
		for _, sp := range list {
			names = append(names, sp.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("List(%+v): got %q, want %q", c.filter, got, c.want)
		}
	}
	count, err := s.Count(ctx, SpriteFilter{})
	must(t, err)
	if count[sprites.StatusCold] != 2 || count[sprites.StatusRunning] != 1 {
		t.Errorf("Count: got %v", count)
	}

	_, err = s.Update(ctx, in.ID, func(sp *Sprite) error {
		sp.Labels, sp.Name, sp.Incarnation = nil, "tool", 77
		return nil
	})
	must(t, err)
	if got, _ := s.Get(ctx, "paint"); got.Labels != nil || got.Incarnation != 0 {
		t.Errorf("after Update: got %+v", got)
	}
	must(t, s.Delete(ctx, in.ID))
	if _, err := s.Get(ctx, "paint"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after Delete: got %v", err)
	}
	if err := s.Delete(ctx, in.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("second Delete: got %v", err)
	}
}

// Statement 17: every sprite is on one page, whatever the size of the pages.
func TestPages(t *testing.T) {
	s, ctx := newStore(t).Sprites, t.Context()
	const n = 23
	for i := range n {
		must(t, s.Create(ctx, &Sprite{ID: fmt.Sprint(i), Name: fmt.Sprintf("p%d", i*7%n), Status: sprites.StatusCold}))
		must(t, s.Create(ctx, &Sprite{ID: fmt.Sprint("q", i), Name: fmt.Sprintf("q%d", i), Status: sprites.StatusCold}))
	}
	for limit := 1; limit < n+2; limit++ {
		seen := map[string]bool{}
		for f := (SpriteFilter{Prefix: "p", Limit: limit}); ; {
			page, err := s.List(ctx, f)
			must(t, err)
			for _, sprite := range page {
				if sprite.Name <= f.After || seen[sprite.Name] {
					t.Fatalf("%s comes after %s", sprite.Name, f.After)
				}
				f.After, seen[sprite.Name] = sprite.Name, true
			}
			if len(page) < limit {
				break
			}
		}
		if len(seen) != n {
			t.Errorf("pages of %d give %d sprites", limit, len(seen))
		}
	}
}

func TestWatchSprites(t *testing.T) {
	s, ctx := newStore(t).Sprites, t.Context()
	changed, cancel := s.Watch()
	told := func(after string, want bool) {
		t.Helper()
		select {
		case <-changed:
			if !want {
				t.Errorf("told of %s", after)
			}
		default:
			if want {
				t.Errorf("not told of %s", after)
			}
		}
	}
	must(t, s.Create(ctx, &Sprite{ID: "1", Name: "a"}))
	must(t, s.Create(ctx, &Sprite{ID: "2", Name: "b"})) // not received: must not block
	told("two creates", true)
	told("nothing", false)
	if _, err := s.Update(ctx, "1", func(*Sprite) error { return nil }); err != nil {
		t.Fatal(err)
	}
	told("an update", true)
	must(t, s.Delete(ctx, "1"))
	told("a delete", true)
	if s.Delete(ctx, "1") == nil || s.Create(ctx, &Sprite{ID: "3", Name: "b"}) == nil {
		t.Error("what can't be done is")
	}
	told("failures", false)
	cancel()
	must(t, s.Delete(ctx, "2"))
	told("a delete after cancel", false)
	if len(s.all) != 0 {
		t.Errorf("%d watchers are left", len(s.all))
	}
}

func TestNextIsUnique(t *testing.T) {
	s := newStore(t).Sprites
	must(t, s.Create(t.Context(), &Sprite{ID: "1", Name: "a"}))
	var seen sync.Map
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			n, err := s.Next(t.Context(), "1")
			if _, dup := seen.LoadOrStore(n, true); dup || err != nil {
				t.Errorf("Next: got %d, %v", n, err)
			}
		})
	}
	wg.Wait()
	if n, err := s.Next(t.Context(), "1"); err != nil || n != 21 {
		t.Errorf("the 21st: got %d, %v", n, err)
	}
	if _, err := s.Next(t.Context(), "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no sprite: got %v", err)
	}
}

func TestTokens(t *testing.T) {
	s, ctx := newStore(t).Tokens, t.Context()
	at := time.Now().UTC().Truncate(time.Microsecond)
	in := Token{
		ID: "1", Name: "ci", Hash: HashToken("secret"), Scope: cove.TokenScope{Prefix: "ci-"},
		Verbs: []string{"read"}, CreatedAt: at, ExpiresAt: at.Add(time.Hour),
	}
	must(t, s.Create(ctx, in))
	if err := s.Create(ctx, in); !errors.Is(err, ErrExists) {
		t.Errorf("again: got %v", err)
	}
	must(t, s.Used(ctx, "1", at.Add(time.Minute)))
	in.LastUsed = at.Add(time.Minute)
	got, err := s.ByHash(ctx, HashToken("secret"))
	if diff := cmp.Diff(in, got); diff != "" || err != nil {
		t.Errorf("ByHash: %v\n%s", err, diff)
	}
	if list, err := s.List(ctx); err != nil || len(list) != 1 {
		t.Errorf("List: got %v, %v", list, err)
	}
	must(t, s.Delete(ctx, "1"))
	if _, err := s.ByHash(ctx, HashToken("secret")); !errors.Is(err, ErrNotFound) {
		t.Errorf("after Delete: got %v", err)
	}
}

func TestJobRow(t *testing.T) {
	s, ctx := newStore(t).Jobs, t.Context()
	job := cove.Job{ID: "a1b2c3", State: cove.JobQueued, JobSettings: cove.JobSettings{Sprite: "paint"}, JobProgress: cove.JobProgress{LastSeq: 9}}
	must(t, s.Create(ctx, job, json.RawMessage(`{"plan":"x"}`)))
	if err := s.Create(ctx, job, nil); !errors.Is(err, ErrExists) {
		t.Errorf("again: got %v", err)
	}
	must(t, s.Update(ctx, job.ID, func(j *cove.Job) error { j.State, j.Session = cove.JobRunning, "7"; return nil }))
	if err := s.Update(ctx, job.ID, func(j *cove.Job) error { j.Session = "8"; return errors.New("no") }); err == nil {
		t.Error("an error of the change is lost")
	}
	if err := s.Update(ctx, job.ID, func(j *cove.Job) error { j.State = cove.JobFailed; return nil }); !errors.Is(err, ErrTerminal) {
		t.Errorf("an end by Update: got %v", err)
	}
	got, err := s.Get(ctx, job.ID)
	if err != nil || got.State != cove.JobRunning || got.Session != "7" || got.LastSeq != 0 || got.CreatedAt.IsZero() {
		t.Errorf("Get: got %+v, %v", got, err)
	}
	if settings, err := s.Settings(ctx, job.ID); err != nil || string(settings) != `{"plan":"x"}` {
		t.Errorf("Settings: got %s, %v", settings, err)
	}
	must(t, s.Create(ctx, cove.Job{ID: "2", State: cove.JobQueued, CreatedAt: time.Now().Add(time.Hour), JobSettings: cove.JobSettings{Sprite: "tool"}}, nil))
	for _, c := range []struct {
		filter JobFilter
		want   string
	}{
		{JobFilter{}, "2 a1b2c3"},
		{JobFilter{Limit: 1}, "2"},
		{JobFilter{Sprite: "paint"}, "a1b2c3"},
		{JobFilter{States: []cove.JobState{cove.JobRunning, cove.JobWaiting}}, "a1b2c3"},
		{JobFilter{States: []cove.JobState{cove.JobLost}}, ""},
	} {
		list, err := s.List(ctx, c.filter)
		must(t, err)
		var ids []string
		for _, j := range list {
			ids = append(ids, j.ID)
		}
		if got := strings.Join(ids, " "); got != c.want {
			t.Errorf("List(%+v): got %q, want %q", c.filter, got, c.want)
		}
	}
	must(t, s.Delete(ctx, job.ID))
	if _, err := s.Get(ctx, job.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("after Delete: got %v", err)
	}
}

func TestFinishHasOneWinner(t *testing.T) {
	s, ctx := newStore(t).Jobs, t.Context()
	must(t, s.Create(ctx, cove.Job{ID: "1", State: cove.JobRunning}, nil))
	if _, err := s.Finish(ctx, "1", cove.JobRunning, cove.Outcome{}, nil); err == nil {
		t.Error("Finish took a state that is no end")
	}
	// Whoever wants to end it wants another end: its supervisor, a person, a reconciler.
	ends := []cove.JobState{cove.JobSucceeded, cove.JobFailed, cove.JobTimedOut, cove.JobCancelled, cove.JobLost}
	var winners atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			state := ends[i%len(ends)]
			reason := fmt.Sprint(state, i)
			won, err := s.Finish(ctx, "1", state, cove.Outcome{Reason: reason}, func(j *cove.Job) { j.Head = reason })
			if err != nil {
				t.Error(err)
			}
			if won {
				winners.Add(1)
			}
		})
	}
	wg.Wait()
	job, err := s.Get(ctx, "1")
	if winners.Load() != 1 || err != nil || job.Outcome.Reason != job.Head || !strings.HasPrefix(job.Head, string(job.State)) || job.EndedAt == nil {
		t.Errorf("got %d winners, %+v, %v", winners.Load(), job, err)
	}
	err = s.Update(ctx, "1", func(j *cove.Job) error { j.State = cove.JobRunning; return nil })
	if !errors.Is(err, ErrTerminal) {
		t.Errorf("leaving an end: got %v", err)
	}
	must(t, s.Update(ctx, "1", func(j *cove.Job) error { t := now(); j.PulledAt = &t; return nil }))
}

func TestAppendEvents(t *testing.T) {
	s, ctx := newStore(t).Jobs, t.Context()
	must(t, s.Create(ctx, cove.Job{ID: "1", State: cove.JobRunning}, nil))
	event := func(seq int64, text string) cove.JobEvent {
		return cove.JobEvent{Seq: seq, Type: "output", Text: text, Time: time.Now().UTC()}
	}
	must(t, s.AppendEvents(ctx, "1", []cove.JobEvent{event(1, "a"), event(2, "b")}))
	must(t, s.AppendEvents(ctx, "1", []cove.JobEvent{event(1, "X"), event(2, "X"), event(3, "c")}))
	if err := s.AppendEvents(ctx, "1", []cove.JobEvent{event(4, "d"), event(6, "f")}); !errors.Is(err, ErrEventGap) {
		t.Errorf("a gap: got %v", err)
	}
	if err := s.AppendEvents(ctx, "1", []cove.JobEvent{event(0, "z")}); !errors.Is(err, ErrEventGap) {
		t.Errorf("number 0: got %v", err)
	}
	if err := s.AppendEvents(ctx, "none", []cove.JobEvent{event(1, "a")}); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no job: got %v", err)
	}
	texts := func(from int64, limit int) string {
		events, err := s.Events(ctx, "1", from, limit)
		must(t, err)
		var b strings.Builder
		for _, e := range events {
			b.WriteString(e.Text)
		}
		return b.String()
	}
	if got := texts(1, 10); got != "abc" {
		t.Errorf("all events: got %q", got)
	}
	if got := texts(2, 1); got != "b" {
		t.Errorf("one from 2: got %q", got)
	}
	if job, err := s.Get(ctx, "1"); err != nil || job.LastSeq != 3 {
		t.Errorf("LastSeq: got %d, %v", job.LastSeq, err)
	}
	must(t, s.Delete(ctx, "1"))
	if got := texts(1, 10); got != "" {
		t.Errorf("after Delete: got %q", got)
	}
}

func TestWatch(t *testing.T) {
	s, ctx := newStore(t).Jobs, t.Context()
	must(t, s.Create(ctx, cove.Job{ID: "1", State: cove.JobRunning}, nil))
	changed, cancel := s.Watch("1")
	wait := func(after string) {
		t.Helper()
		ctx, stop := context.WithTimeout(ctx, 10*time.Minute)
		defer stop()
		select {
		case <-changed:
		case <-ctx.Done():
			t.Errorf("no signal after %s", after)
		}
	}
	must(t, s.AppendEvents(ctx, "1", []cove.JobEvent{{Seq: 1}}))
	wait("AppendEvents")
	must(t, s.Update(ctx, "1", func(*cove.Job) error { return nil }))
	must(t, s.Update(ctx, "1", func(*cove.Job) error { return nil })) // not received: must not block
	wait("Update")
	must(t, s.Delete(ctx, "1"))
	wait("Delete")
	cancel()
	if len(s.watchers) != 0 {
		t.Errorf("after cancel: %d watchers", len(s.watchers))
	}
}

func TestBlocking(t *testing.T) {
	s, ctx := newStore(t).Jobs, t.Context()
	pulled := time.Now()
	for _, j := range []cove.Job{
		{ID: "empty", State: cove.JobSucceeded, JobSettings: cove.JobSettings{Sprite: "a"}},
		{ID: "pulled", State: cove.JobSucceeded, JobSettings: cove.JobSettings{Sprite: "a"}, JobResult: cove.JobResult{Bundle: cove.Artifact{Size: 5}, PulledAt: &pulled}},
		{ID: "work", State: cove.JobFailed, JobSettings: cove.JobSettings{Sprite: "b"}, JobResult: cove.JobResult{Bundle: cove.Artifact{Size: 5}}},
		{ID: "work2", State: cove.JobFailed, JobSettings: cove.JobSettings{Sprite: "c"}, JobResult: cove.JobResult{Bundle: cove.Artifact{Size: 5}}},
		{ID: "runs", State: cove.JobRunning, JobSettings: cove.JobSettings{Sprite: "c"}},
		{ID: "rest", State: cove.JobSucceeded, SpriteID: "ours", JobSettings: cove.JobSettings{Sprite: "d"}, JobResult: cove.JobResult{Bundle: cove.Artifact{Size: 5}, PulledAt: &pulled, Uncollected: "a repository"}},
		{ID: "elsewhere", State: cove.JobLost, SpriteID: "deleted", JobSettings: cove.JobSettings{Sprite: "e"}, JobResult: cove.JobResult{Uncollected: "a repository"}},
	} {
		must(t, s.Create(ctx, j, nil))
	}
	for sprite, want := range map[string]string{"a": "", "b": "work", "c": "runs", "d": "rest", "e": "", "none": ""} {
		job, err := s.Blocking(ctx, sprite, "ours")
		if job.ID != want || (want == "") != errors.Is(err, ErrNotFound) {
			t.Errorf("Blocking(%s): got %q, %v, want %q", sprite, job.ID, err, want)
		}
	}
}

// A sprite of the pool becomes another, once, and keeps its disk and its incarnation.
func TestTake(t *testing.T) {
	s, ctx := open(t, filepath.Join(t.TempDir(), "cove.db")), t.Context()
	pooled := Sprite{ID: "aaaaaaaaaaaaaaaa", Name: "pool.a", Owner: PoolOwner}
	if err := s.Sprites.Create(ctx, &pooled); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sprites.Next(ctx, pooled.ID); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Sprites.List(ctx, SpriteFilter{Public: true}); err != nil || len(list) != 0 {
		t.Errorf("the pool is listed: %v, %v", list, err)
	}
	other := Sprite{ID: "bbbbbbbbbbbbbbbb", Name: "other"}
	if err := s.Sprites.Create(ctx, &other); err != nil {
		t.Fatal(err)
	}
	taken := Sprite{ID: pooled.ID, Name: "other"}
	if err := s.Sprites.Take(ctx, &taken); !errors.Is(err, ErrExists) {
		t.Errorf("a name that is taken: %v", err)
	}
	taken = Sprite{ID: pooled.ID, Name: "paint", Base: "sha256:a"}
	if err := s.Sprites.Take(ctx, &taken); !errors.Is(err, ErrNotFound) {
		t.Errorf("over another base: %v", err)
	}
	taken = Sprite{ID: pooled.ID, Name: "paint", MachineID: "m", Env: map[string]string{"A": "b"}, Labels: []string{"x"}}
	if err := s.Sprites.Take(ctx, &taken); err != nil || taken.Layer != pooled.Layer || taken.Incarnation != 1 {
		t.Errorf("got %+v, %v", taken, err)
	}
	got, err := s.Sprites.Get(ctx, "paint")
	if err != nil || got.ID != pooled.ID || got.Owner != "" || got.MachineID != "m" || got.Env["A"] != "b" || got.Layer != pooled.Layer || got.Incarnation != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, id := range []string{pooled.ID, other.ID, "cccccccccccccccc"} {
		if err := s.Sprites.Take(ctx, &Sprite{ID: id, Name: "again"}); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s, which is not the pool's: %v", id, err)
		}
	}
}
