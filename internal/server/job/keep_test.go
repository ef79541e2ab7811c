package job

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

func TestVerdict(t *testing.T) {
	now := time.Date(2026, 1, 10, 0, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	job := func(pulled *time.Time, size int64) cove.Job {
		return cove.Job{ID: "a3f7b2", State: cove.JobSucceeded, CreatedAt: *ago(72 * time.Hour), JobResult: cove.JobResult{EndedAt: ago(48 * time.Hour), PulledAt: pulled, Bundle: cove.Artifact{Size: size}}}
	}
	partly := job(ago(30*time.Hour), 5)
	partly.Uncollected = "git add: no"
	pending := job(ago(30*time.Hour), 5)
	pending.Published = &cove.JobPublished{State: cove.PublishPending}
	used := func(at *time.Time, by ...string) sprites.Info {
		return sprites.Info{LastRunning: at, Cove: &sprites.Details{AwakeBy: by}}
	}
	for name, test := range map[string]struct {
		job    cove.Job
		sprite sprites.Info
		hours  int64
		force  bool
		why    string
		reason string
	}{
		"pulled":              {job(ago(30*time.Hour), 5), sprites.Info{}, 24, false, "pulled", ""},
		"pulled a while ago":  {job(ago(20*time.Hour), 5), sprites.Info{}, 24, false, "it was used 20h0m0s ago", cove.KeptRecent},
		"empty":               {job(nil, 0), sprites.Info{}, 24, false, "it left nothing", ""},
		"empty, not long ago": {job(nil, 0), sprites.Info{}, 49, false, "used 48h", cove.KeptRecent},
		"its sprite was used": {job(ago(30*time.Hour), 5), used(ago(time.Hour)), 24, false, "used 1h", cove.KeptRecent},
		"its sprite is used":  {job(ago(30*time.Hour), 5), used(ago(30*time.Hour), "exec"), 24, true, "in use: exec", cove.KeptInUse},
		"not all collected":   {partly, sprites.Info{ID: "s"}, 24, false, "could be collected", cove.KeptUncollected},
		"the same, by force":  {partly, sprites.Info{ID: "s"}, 24, true, "pulled", ""},
		"the same, gone":      {partly, sprites.Info{}, 24, false, "pulled", ""},
		"to be published":     {pending, sprites.Info{}, 0, false, "not published yet", cove.KeptInUse},
		"the same, no matter": {pending, sprites.Info{}, 24, true, "pulled", ""},
		"unpulled":            {job(nil, 5), sprites.Info{}, 0, false, "cove pull a3f7b2", cove.KeptUnpulled},
		"unpulled, by force":  {job(nil, 5), sprites.Info{}, 24, true, "is lost", ""},
		"force is not age":    {job(nil, 5), sprites.Info{}, 49, true, "used 48h", cove.KeptRecent},
		"not ended":           {cove.Job{State: cove.JobRunning, CreatedAt: *ago(72 * time.Hour)}, sprites.Info{}, 0, true, "not ended", cove.KeptRunning},
		"for ever":            {job(nil, 0), sprites.Info{}, 1 << 50, true, "used 48h", cove.KeptRecent},
	} {
		reason, why := verdict(test.job, test.sprite, cove.JobGC{OlderThanSec: 3600 * test.hours, Force: test.force}, now)
		if reason != test.reason || !strings.Contains(why, test.why) {
			t.Errorf("%s: got %q, %q", name, reason, why)
		}
	}
}

// TestSweep: the server's own rule leaves a job that nobody uses until it is old enough.
// Without a rule nothing is removed.
func TestSweep(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		keep time.Duration
		left int
	}{{0, 1}, {time.Hour, 1}, {time.Nanosecond, 0}} {
		m.janitor.keep = test.keep
		if err := m.janitor.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if jobs, err := client.Jobs(t.Context()); err != nil || len(jobs) != test.left {
			t.Errorf("after %v: %d jobs, %v", test.keep, len(jobs), err)
		}
	}
}

// TestCollectLooksAgain: a collection may take minutes. A sprite that somebody begins to use
// meanwhile stays.
func TestCollectLooksAgain(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	ctx, client := t.Context(), b.server.Client()
	begun := func() cove.Job {
		t.Helper()
		job, err := client.CreateJob(ctx, request())
		if err == nil {
			_, err = b.manager.Store.Jobs.Finish(ctx, job.ID, cove.JobCancelled, cove.Outcome{}, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	used := begun()
	first := begun() // the newest is looked at first
	console := client.Sprite(used.Sprite).CommandContext(ctx, "cat")
	in, err := console.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	m := b.manager
	through, asking := m.Client.HTTPClient.Transport, *m.Client.Client
	var listed atomic.Bool
	asking.HTTPClient = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		resp, err := through.RoundTrip(r)
		if strings.HasSuffix(r.URL.Path, "/v1/sprites") && listed.CompareAndSwap(false, true) {
			err = errors.Join(err, console.Start())
		}
		return resp, err
	})}
	c := &collector{
		jobs: m.Store.Jobs, client: &cove.Client{Client: &asking}, connectors: m.connectors, installs: m.installs, jobSprites: m.jobSprites, preparations: m.preparations,
		turns: m.preparer.turns, withdrawals: m.finisher.withdrawals, locks: &m.locks,
	}
	result, err := c.collect(ctx, cove.JobGC{}, func(string, string) bool { return true })
	if err != nil || len(result.Removed) != 1 || result.Removed[0].Job != first.ID || len(result.Kept) != 1 || result.Kept[0].Reason != cove.KeptInUse {
		t.Errorf("got %+v, %v", result, err)
	}
	if err := errors.Join(in.Close(), console.Wait()); err != nil {
		t.Errorf("the console: %v", err)
	}
}

// A sprite that has a job's name, and was not made for it, is nobody's but its
// maker's.
func TestSpriteOfTheSameName(t *testing.T) {
	_, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Delete(t.Context(), job.Sprite, sprites.DeleteOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(t.Context(), sprites.CreateRequest{Name: job.Sprite, Labels: []string{label}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CollectJobs(t.Context(), cove.JobGC{Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(t.Context(), job.Sprite); err != nil {
		t.Errorf("the other sprite: %v", err)
	}
	if jobs, err := client.Jobs(t.Context()); err != nil || len(jobs) != 0 {
		t.Errorf("left: %v, %v", jobs, err)
	}
}

// TestRefusedVerbs: a message that can't be sent, or a job that can't be done again, is
// refused before anything is asked of a sprite.
func TestRefusedVerbs(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	talk := request()
	talk.Agent, talk.Plan, talk.Converse, talk.Env = "claude", "Do it.", true, []string{"ANTHROPIC_API_KEY=x"}
	talker, err := client.CreateJob(t.Context(), talk)
	if err != nil {
		t.Fatal(err)
	}
	send := func(id string, msg cove.JobMessage) error {
		_, err := client.SendJob(t.Context(), id, msg)
		return err
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"to an agent that takes none": {send(job.ID, cove.JobMessage{Text: "x"}), "no_input"},
		"too early":                   {send(talker.ID, cove.JobMessage{Text: "x"}), "job_queued"},
		"to nobody":                   {send("000000", cove.JobMessage{Text: "x"}), "not_found"},
	} {
		if got := code(test.err); got != test.want {
			t.Errorf("send %s: got %s, want %s", name, got, test.want)
		}
	}
	if err := m.Store.Jobs.Update(t.Context(), talker.ID, func(j *cove.Job) error { j.State = cove.JobWaiting; return nil }); err != nil {
		t.Fatal(err)
	}
	for name, msg := range map[string]cove.JobMessage{"nothing": {}, "blanks": {Text: " \n"}, "too much": {Text: strings.Repeat("x", maxMessage+1)}, "a NUL": {Text: "a\x00"}} {
		if got := code(send(talker.ID, msg)); got != "bad_request" {
			t.Errorf("send %s: got %s", name, got)
		}
	}
	retry := func(id string) string {
		_, err := client.RetryJob(t.Context(), id, cove.JobRetry{})
		return code(err)
	}
	if got := retry(job.ID); got != "job_running" {
		t.Errorf("retry of one at work: %s", got)
	}
	if _, err := client.StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if got := retry(job.ID); got != "not_kept" {
		t.Errorf("retry of one that never began: %s", got)
	}
	if got := code(send(job.ID, cove.JobMessage{Text: "x"})); got != "job_ended" {
		t.Errorf("send to one that has ended: %s", got)
	}
}
