package job

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

// has checks whether a job's settings, with the value of its variable, are in its sprite.
func (b *bench) has(id string, want bool) {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.folder(id), "job.json"))
	if got := err == nil && strings.Contains(string(text), canary); got != want {
		b.t.Errorf("the settings are there: %v, want %v; %s, %v", got, want, text, err)
	}
}

// TestWithdraw: S5: the settings of a job that has ended without its supervisor are taken out
// of its sprite. Anything that could still begin by them is ended. If the sprite can't be
// reached then, that is done later, by the next server too.
func TestWithdraw(t *testing.T) {
	b, s := newFarBench(t)
	o := s.work(b)
	b.env = []string{"CANARY=" + canary}
	handed := func(id string, want bool) cove.Job {
		t.Helper()
		job, err := o.client.Job(t.Context(), id)
		if err != nil || job.Handed != want {
			t.Errorf("handed: %v, want %v, %v", job.Handed, want, err)
		}
		return job
	}
	lose := func(id string) {
		t.Helper()
		if err := o.finisher.lose(t.Context(), id, "nobody hears of it", ""); err != nil {
			t.Fatal(err)
		}
	}

	job := b.begin(`echo x >"$said"`)
	handed(job.ID, true)
	b.has(job.ID, true)
	servers := filepath.Join(b.folder(job.ID), "mcp")
	if err := os.Mkdir(servers, 0o755); err != nil {
		t.Fatal(err)
	}
	lose(job.ID)
	b.has(job.ID, false)
	if exists(servers) {
		t.Error("the programs that start MCP servers, with their variables, are still there")
	}
	if job = handed(job.ID, false); job.State != cove.JobLost || len(b.processes(job.ID)) != 0 {
		t.Errorf("the job is %+v, and has the processes %v", job, b.processes(job.ID))
	}
	if services, err := spriteOf(o.client, job).Services(t.Context()); err != nil || len(services) != 0 {
		t.Errorf("the services are %+v, %v", services, err)
	}

	job = b.begin(`echo x >"$said"`)
	s.SetDown(true)
	lose(job.ID)
	handed(job.ID, true)
	if err := o.finisher.withdrawals.all(t.Context()); err == nil {
		t.Error("nothing went wrong")
	}
	b.has(job.ID, true)
	o.server.Stop()
	s.SetDown(false)
	s.Add(fakeprovider.Fault{Call: `^DELETE .*/fs/delete`, Lost: true, Times: 1}) // it is done, and tried again
	o = s.work(b)
	for handed := true; handed && t.Context().Err() == nil; {
		_ = o.finisher.withdrawals.all(t.Context()) // as the janitor does, each minute
		left, err := o.Store.Jobs.List(t.Context(), store.JobFilter{Handed: true})
		if err != nil {
			t.Fatal(err)
		}
		handed = len(left) > 0
	}
	b.has(job.ID, false)
	taken := func(job cove.Job) []fakeprovider.Call { return s.Calls("^DELETE .*/fs/delete.*" + job.ID) }
	if len(taken(job)) == 0 {
		t.Error("its settings were not taken out by a call")
	}
	if left := b.processes(job.ID); len(left) != 0 {
		t.Errorf("the processes %v are left", left)
	}

	// A job that ends as it should leaves no settings to take out.
	job = b.queue(func(req *cove.JobRequest) { req.Env = b.env })
	if job = b.await(job.ID); job.State != cove.JobSucceeded {
		t.Errorf("the job is %+v", job)
	}
	handed(job.ID, false)
	b.has(job.ID, false)
	if got := taken(job); len(got) != 0 {
		t.Errorf("it was taken out: %v", got)
	}

	// One whose sprite is gone has none either.
	job = b.begin(`echo x >"$said"`)
	s.SetDown(true)
	lose(job.ID)
	s.SetDown(false)
	if err := o.jobSprites.discard(t.Context(), job, cove.DestroyAsked); err != nil {
		t.Fatal(err)
	}
	if err := o.finisher.withdrawals.all(t.Context()); err != nil {
		t.Error(err)
	}
	handed(job.ID, false)
	if err := o.jobSprites.environments.Sweep(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Error(err)
	}
}

// TestJobOfCopy: a data folder is copied while a job is at work. In the copy the job is lost,
// and says how to go on with it. The copy boots nothing for it by itself: the job goes on in
// the original.
func TestJobOfCopy(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	job := b.begin(`echo x >"$said"`)
	pid := b.supervisor(job.ID)
	b.server.Stop()
	boots := b.runtime.Boots()
	b.runtime.Copied = true
	b.serve(0, 0)
	lost, err := b.server.Client().WaitJob(t.Context(), job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if lost.State != cove.JobLost || !strings.Contains(lost.Error, "a copy") || !strings.HasSuffix(lost.Uncollected, "cove job retry "+job.ID) {
		t.Errorf("in the copy: %s, %q, %q", lost.State, lost.Error, lost.Uncollected)
	}
	if err := b.manager.finisher.withdrawals.all(t.Context()); err != nil {
		t.Error(err)
	}
	info, err := b.server.Client().Get(t.Context(), job.Sprite)
	if err != nil || info.Status != sprites.StatusCold || !info.Cove.Elsewhere || b.runtime.Boots() != boots {
		t.Errorf("the copy's sprite: %+v, %v; %d boots, of which %d were the original's", info, err, b.runtime.Boots(), boots)
	}
	if len(b.processes(job.ID)) == 0 || syscall.Kill(pid, 0) != nil {
		t.Error("the original's job has ended")
	}
}
