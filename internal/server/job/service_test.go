package job

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

// folder is a job's folder in the sprite of a bench.
func (b *bench) folder(id string) string { return filepath.Join(b.home, ".cove", "jobs", id) }

// supervisor is the process that is at work on a job.
func (b *bench) supervisor(id string) int {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.folder(id), "lock"))
	if err != nil {
		b.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		b.t.Fatalf("the lock names process %q: %v", text, err)
	}
	return pid
}

// ended waits until a job has an end in its sprite, and returns that.
func (b *bench) ended(id string) (end cove.JobEnd) {
	b.t.Helper()
	for b.t.Context().Err() == nil {
		text, err := os.ReadFile(filepath.Join(b.folder(id), "end.json"))
		if err == nil && json.Unmarshal(text, &end) == nil {
			return end
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			b.t.Fatal(err)
		}
		runtime.Gosched()
	}
	b.t.Fatal("the job has no end")
	return end
}

// supervisors are what supervisors have said of themselves in a job's log.
func (b *bench) supervisors(id string) (all []cove.JobSupervisor) {
	b.t.Helper()
	events, err := b.manager.Store.Jobs.Events(b.t.Context(), id, 1, 10000)
	if err != nil {
		b.t.Fatal(err)
	}
	for i, ev := range events {
		if ev.Seq != int64(i+1) {
			b.t.Errorf("event %d has the number %d", i+1, ev.Seq)
		}
		if ev.Supervisor != nil {
			all = append(all, *ev.Supervisor)
		}
	}
	return all
}

// TestSupervisorCrash: A1, A3: a killed supervisor comes back without a server's help. It goes
// on with its log, ends what its agent left, and collects. It does not start the agent again.
// Each time it says who it is. Its service goes with the job.
func TestSupervisorCrash(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	starts := filepath.Join(t.TempDir(), "starts")
	job := b.beginWith(`echo x >>"$starts"; echo x >"$said"`, func(req *cove.JobRequest) { req.Env = append(req.Env, "starts="+starts) })
	if want := "cove-job-" + job.ID; job.Service != want || job.Session != "" {
		t.Errorf("the supervisor is the service %q, or the session %q; want %q", job.Service, job.Session, want)
	}
	b.server.Stop()
	if err := syscall.Kill(b.supervisor(job.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if end := b.ended(job.ID); end.Reason != "lost" || end.Commits != 1 || end.Leftover == "" {
		t.Errorf("in the sprite it ended with %+v", end)
	}
	b.serve(0, 0)
	job = b.await(job.ID)
	if job.State != cove.JobLost || job.Outcome.Kind != agents.Lost || job.Commits != 1 || job.Bundle.Size == 0 || job.Uncollected != "" || job.Service != "" {
		t.Errorf("got %+v", job)
	}
	if text, err := os.ReadFile(starts); err != nil || string(text) != "x\n" {
		t.Errorf("the agent was started %q, %v", text, err)
	}
	all := b.supervisors(job.ID)
	boot := bootOfTest(t)
	if len(all) != 2 || all[0] != all[1] || all[0] != (cove.JobSupervisor{Version: sprites.Version, Protocol: cove.JobProtocol, OldestProtocol: cove.OldestJobProtocol, Job: job.ID, Execution: job.Execution, Boot: boot}) {
		t.Errorf("the supervisors say %+v", all)
	}
	if job.Supervisor == nil || *job.Supervisor != all[1] {
		t.Errorf("the job says %+v", job.Supervisor)
	}
	if left, err := spriteOf(b.server.Client(), job).Services(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("the services %+v are left, %v", left, err)
	}
}

func bootOfTest(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// TestSupervisorElsewhere: where there are no services, the supervisor is an exec session.
func TestSupervisorElsewhere(t *testing.T) {
	for _, status := range []int{404, 501} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			b, s := newFarBench(t)
			s.Add(fakeprovider.Fault{Call: "/services", Status: status, Body: `{"error":"no_services"}`})
			s.work(b)
			job := b.begin(`echo x >"$said"`)
			if job.Service != "" || job.Session == "" {
				t.Errorf("the supervisor is the service %q, or the session %q", job.Service, job.Session)
			}
			if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
				t.Fatal(err)
			}
			if job = b.await(job.ID); job.State != cove.JobCancelled || job.Commits != 1 {
				t.Errorf("got %+v", job)
			}
			if deleted := s.Calls("^DELETE .*/services/"); len(deleted) != 0 {
				t.Errorf("there was %v", deleted)
			}
		})
	}
}

// TestSupervisorService: at a service of others, the supervisor is a service as well. A lost
// answer to its definition starts it once, and it is deleted at the end.
func TestSupervisorService(t *testing.T) {
	b, s := newFarBench(t)
	s.Add(fakeprovider.Fault{Call: "^PUT .*/services/", Lost: true, Times: 1})
	o := s.work(b)
	job := b.begin(`echo x >"$said"`)
	job = o.until(t, job.ID, func(j cove.Job) bool { return j.State == cove.JobRunning })
	if job.Service != "cove-job-"+job.ID {
		t.Errorf("the job is %+v", job)
	}
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if job = b.await(job.ID); job.State != cove.JobCancelled || job.Commits != 1 || len(b.supervisors(job.ID)) != 1 {
		t.Errorf("got %+v", job)
	}
	if left, err := s.server.Client().Sprite(job.Sprite).Services(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("the services %+v are left, %v", left, err)
	}
}

// TestSupervisorOfAnother: A3: a supervisor is not used if it says that it is another job's,
// or of a version that this server does not understand.
func TestSupervisorOfAnother(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	f := follower{all: m.followers, id: job.ID}
	mine := cove.JobSupervisor{Version: "1", Protocol: cove.JobProtocol, OldestProtocol: cove.OldestJobProtocol, Job: job.ID, Execution: job.Execution, Boot: "b"}
	for name, change := range map[string]func(*cove.JobSupervisor){
		"another job":       func(s *cove.JobSupervisor) { s.Job = "ffffff" },
		"another execution": func(s *cove.JobSupervisor) { s.Execution = "other" },
		"too new":           func(s *cove.JobSupervisor) { s.Protocol, s.OldestProtocol = cove.JobProtocol+2, cove.JobProtocol+1 },
		"too old":           func(s *cove.JobSupervisor) { s.Protocol, s.OldestProtocol = cove.OldestJobProtocol-1, 0 },
	} {
		s := mine
		change(&s)
		if err := f.store(t.Context(), strings.NewReader(lines(t, cove.JobEvent{Type: "supervisor", Supervisor: &s})), 0); !errors.Is(err, errBadLog) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := f.store(t.Context(), strings.NewReader(lines(t, cove.JobEvent{Type: "supervisor"})), 0); !errors.Is(err, errBadLog) {
		t.Errorf("nobody: got %v", err)
	}
	newer := mine
	newer.Protocol++ // it understands the old one, too
	for i, s := range []cove.JobSupervisor{newer, mine} {
		text := lines(t, cove.JobEvent{Type: "supervisor", Supervisor: &s})
		if i == 1 {
			text = strings.Replace(text, `"seq":1`, `"seq":2`, 1)
		}
		if err := f.store(t.Context(), strings.NewReader(text), int64(i)); err != nil {
			t.Errorf("%+v: got %v", s, err)
		}
		if after, err := client.Job(t.Context(), job.ID); err != nil || after.Supervisor == nil || *after.Supervisor != s {
			t.Errorf("the job says %+v, %v", after.Supervisor, err)
		}
	}
}
