package job

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/gitserver"
	"github.com/cove-dev/cove/sprites"
)

// oneAtATime makes a profile that lets one job work.
func (b *bench) oneAtATime() (profile string) {
	b.t.Helper()
	if _, err := b.manager.Store.Profiles.Put(b.t.Context(), "one", 0, cove.ProfileSettings{MaxJobs: 1}); err != nil {
		b.t.Fatal(err)
	}
	return "one"
}

// waits has a job done again, while another job has the turn of its profile. It returns the job
// that waits. goOn ends the other one.
func (b *bench) waits(id, plan string) (again cove.Job, goOn func()) {
	b.t.Helper()
	c := b.server.Client()
	other := b.beginWith(`echo x >"$said"`, func(r *cove.JobRequest) { r.Profile = "one" })
	again, err := c.RetryJob(b.t.Context(), id, cove.JobRetry{Plan: plan})
	if err != nil || again.State != cove.JobInstalling {
		b.t.Fatalf("got %+v, %v", again, err)
	}
	return again, func() {
		b.t.Helper()
		if _, err := c.StopJob(b.t.Context(), other.ID); err != nil {
			b.t.Fatal(err)
		}
	}
}

// TestRetryWaits: as long as a retry waits for its turn, the job that it does again stays, with
// its repository. If that job was to lose its sprite by a pull, the sprite goes afterwards.
func TestRetryWaits(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	ctx, c, one := t.Context(), b.server.Client(), b.oneAtATime()
	job := b.beginWith(`echo x >"$said"`, func(r *cove.JobRequest) { r.Profile, r.Remove = one, true })
	if _, err := c.StopJob(ctx, job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	again, goOn := b.waits(job.ID, "```sh\ntrue\n```\n")

	there := func(after string) {
		t.Helper()
		if _, err := c.Get(ctx, job.Sprite); err != nil {
			t.Fatalf("after %s, its sprite: %v", after, err)
		}
	}
	if _, err := c.MarkPulled(ctx, job.ID, job.Head); err != nil {
		t.Fatal(err)
	}
	there("a pull")
	refused := func(what string, err error) {
		t.Helper()
		if e, _ := errors.AsType[*sprites.Error](err); code(err) != "job_running" || !strings.Contains(err.Error(), again.ID) || !strings.Contains(e.Hint, "cove job stop "+again.ID) || !strings.Contains(e.Hint, "--force") {
			t.Errorf("%s: got %v", what, err)
		}
		there(what)
	}
	refused("a removal", c.DeleteJob(ctx, job.ID, false))
	_, err := cove.Environments{Client: c}.Destroy(ctx, job.Execution, false)
	refused("its environment's", err)
	for _, force := range []bool{false, true} {
		if result, err := c.CollectJobs(ctx, cove.JobGC{Force: force}); err != nil || len(result.Removed) != 0 || len(result.Kept) != 3 {
			t.Errorf("collected %+v, %v", result, err)
		}
		there("a collection")
	}
	goOn()
	if again = b.await(again.ID); again.State != cove.JobSucceeded {
		t.Errorf("it was done again: %+v", again)
	}
	for {
		_, err := c.Get(ctx, job.Sprite)
		if errors.Is(err, sprites.ErrNotFound) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond)
	}
	if err := c.DeleteJob(ctx, job.ID, false); err != nil {
		t.Errorf("removed afterwards: %v", err)
	}
}

// TestRemoteRetryAlone: a retry that clones a URL does not need the job that it does again.
func TestRemoteRetryAlone(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	ctx, c, one := t.Context(), b.server.Client(), b.oneAtATime()
	req := remoteRequest(gitserver.Start(t, "", "").Repository("project.git", map[string]string{"README": "hello\n"}))
	req.Begin, req.Profile, req.Plan = true, one, "```sh\ntrue\n```\n"
	job, err := c.CreateJob(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	b.await(job.ID)
	again, goOn := b.waits(job.ID, "")
	if err := c.DeleteJob(ctx, job.ID, false); err != nil {
		t.Errorf("removed: %v", err)
	}
	goOn()
	if again = b.await(again.ID); again.State != cove.JobSucceeded {
		t.Errorf("got %s: %s", again.State, again.Error)
	}
}
