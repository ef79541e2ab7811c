package job

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/executable"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

// stepOf is a step of a job's.
func stepOf(t *testing.T, c *cove.Client, job string, key cove.StepKey) cove.Step {
	t.Helper()
	all, err := cove.Steps{Client: c}.Get(context.WithoutCancel(t.Context()), job)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all.Steps {
		if s.Key == key {
			return s
		}
	}
	t.Fatalf("there is no step %s", key)
	return cove.Step{}
}

// TestBackendArch: P11: a sprite's architecture is asked first, and the supervisor for it is
// sent, as its digest shows. If no supervisor exists for it, nothing is sent.
func TestBackendArch(t *testing.T) {
	b, s := newFarBench(t)
	o := s.work(b)
	other := "aarch64"
	if runtime.GOARCH == "arm64" {
		other = "x86_64"
	}
	arch := map[string]string{"aarch64": "arm64", "x86_64": "amd64"}[other]
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Another program than this machine's, that this machine can run all the same.
	guest, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	guest = append(guest, "foreign"...)
	foreign := filepath.Join(filepath.Dir(exe), "cove-guest-"+arch)
	uname := func(machine string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(b.home+"/bin", 0o755), executable.WriteFile(b.home+"/bin/uname", []byte("#!/bin/sh\necho '"+machine+"'\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(machine, want string) {
		t.Helper()
		uname(machine)
		before := len(s.Calls(`cove-guest`))
		job, err := o.client.CreateJob(t.Context(), farRequest())
		if err != nil {
			t.Fatal(err)
		}
		_, err = o.starter.begin(t.Context(), job, cove.JobStart{})
		if code(err) != "wrong_arch" || !strings.Contains(err.Error(), want) || len(s.Calls(`cove-guest`)) != before {
			t.Errorf("%s: got %v", machine, err)
		}
	}
	refused("riscv64", `"riscv64"`)
	refused(other, "needs cove-guest-"+arch+", which is not beside cove")

	if err := os.WriteFile(foreign, guest, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(foreign) })
	job := b.begin(`echo x >"$said"`)
	sent := s.Calls(`^PUT .*cove-guest`)
	if len(sent) != 1 || !strings.Contains(sent[0].URI, "cove-guest-"+digestOf(guest)) {
		t.Errorf("it sent %v, want %s", sent, digestOf(guest))
	}
	if got := stepOf(t, o.client, job.ID, cove.StepProbeArch); got.Detail != arch {
		t.Errorf("got %+v", got)
	}
	b.server.Stop()
	o = s.work(b) // which asks the supervisor without asking for the architecture
	job, err = o.client.StopJob(t.Context(), job.ID)
	if err != nil || job.Arch != arch {
		t.Errorf("got %+v, %v", job, err)
	}
	if job = b.await(job.ID); job.State != cove.JobCancelled || job.Commits != 1 {
		t.Errorf("got %+v", job)
	}
	if more := s.Calls(`^PUT .*cove-guest`); len(more) != 1 {
		t.Errorf("it was sent again: %v", more)
	}
}

// handed makes a job at a service, and begins to hand over its repository.
func handed(t *testing.T, o *office, change func(*cove.JobRequest)) (cove.Job, chan error) {
	t.Helper()
	req := farRequest()
	change(&req)
	job, err := o.client.CreateJob(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := o.client.StartJob(t.Context(), job.ID, cove.JobStart{BundleSHA256: strings.Repeat("0", 64), BundleSize: 1})
		ended <- err
	}()
	return job, ended
}

// TestBackendUploadProgress: P12, P4, P5: a slow upload tells how much has been sent. It goes
// on until its step's time is up, and the error then says how to give it more. If the job is
// stopped, it is cancelled.
func TestBackendUploadProgress(t *testing.T) {
	b, s := newFarBench(t)
	o := s.work(b)
	pace := make(chan struct{})
	s.Add(fakeprovider.Fault{Call: `^PUT .*cove-guest`, Pace: pace})
	job, ended := handed(t, o, func(*cove.JobRequest) {})
	some := func() (sent, size int64) {
		_, _ = fmt.Sscanf(stepOf(t, o.client, job.ID, cove.StepUploadSupervisor).Detail, "%d of %d bytes", &sent, &size)
		return sent, size
	}
	sent, size := some()
	for ; sent == 0 && t.Context().Err() == nil; sent, size = some() {
		select {
		case pace <- struct{}{}:
		default:
		}
	}
	if sent >= size || size < 1<<20 {
		t.Errorf("sent %d of %d", sent, size)
	}
	stopped, err := o.client.StopJob(t.Context(), job.ID)
	close(pace)
	if err := <-ended; code(err) != "job_ended" {
		t.Errorf("the start: %v", err)
	}
	if err != nil || stopped.State != cove.JobCancelled {
		t.Errorf("got %+v, %v", stopped, err)
	}
	if got := stepOf(t, o.client, job.ID, cove.StepUploadSupervisor); !got.State.Ended() {
		t.Errorf("got %+v", got)
	}
	s.Clear()

	b.server.Stop()
	o = s.work(b)
	stalled := make(chan struct{})
	s.Add(fakeprovider.Fault{Call: `^PUT .*cove-guest`, Pace: stalled})
	t.Cleanup(func() { close(stalled) })
	_, ended = handed(t, o, func(r *cove.JobRequest) { r.StepLimits = map[cove.StepKey]int64{cove.StepUploadSupervisor: 1} })
	err = <-ended
	e, _ := errors.AsType[*sprites.Error](err)
	if code(err) != "step_timeout" || !strings.Contains(err.Error(), "upload_supervisor took longer than the 1s that it has") || e.Hint != "give it more time: cove push --step-limit upload_supervisor=2s PLAN" {
		t.Errorf("got %v, %+v", err, e)
	}
}

// TestServerKilledInScript: P7, P4: a script goes on when the server is killed. The next one has
// each of its lines, and its exit code. A job that is stopped in its script is cancelled.
func TestServerKilledInScript(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	go_on, at := filepath.Join(t.TempDir(), "go-on"), filepath.Join(t.TempDir(), "at")
	script := "echo one; echo x >" + at + "; while ! test -e " + go_on + "; do sleep 0.1; done; for i in 2 3 4 5; do echo line $i; done; exit 7"
	job := b.prepared(&cove.SetupScript{Name: "setup", Text: script}, at)
	b.server.Stop()
	if err := os.WriteFile(go_on, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.serve(0, 0)
	job = b.await(job.ID)
	got := stepOf(t, b.server.Client(), job.ID, cove.StepSetupScript)
	if job.State != cove.JobFailed || got.State != cove.StepFailed || !strings.Contains(got.Error, "exited with 7") || got.Output.String() != "one\nline 2\nline 3\nline 4\nline 5\n" {
		t.Errorf("got %+v, %+v", job, got)
	}

	at = filepath.Join(t.TempDir(), "at")
	job = b.prepared(&cove.SetupScript{Name: "setup", Text: "(setsid sleep 100000 &); echo x >" + at + "; sleep 100000"}, at)
	if _, err := b.server.Client().StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if job = b.await(job.ID); job.State != cove.JobCancelled || job.Forced != "" {
		t.Errorf("got %+v", job)
	}
	if got := stepOf(t, b.server.Client(), job.ID, cove.StepSetupScript); got.State != cove.StepFailed || got.Error != "stopped" {
		t.Errorf("got %+v", got)
	}
}

// TestNothingInURLs: P6, S5: the script, the variables, and the secrets among them are sent in
// bodies alone, also those of 2 MiB. In the sprite they are in a file that only its user can
// read.
func TestNothingInURLs(t *testing.T) {
	b, s := newFarBench(t)
	o := s.work(b)
	if err := o.client.SetSecret(t.Context(), "planted", "canary-of-the-secret"); err != nil {
		t.Fatal(err)
	}
	big := "# canary-of-the-script\n#" + strings.Repeat("y", 2<<20) + "\necho it says $PLANTED\n"
	job := b.beginWith(`echo "again $PLANTED"; stat -c %a "$HOME"/.cove/jobs/*/job.json; echo x >"$said"`, func(r *cove.JobRequest) {
		r.SetupScript = &cove.SetupScript{Name: "setup", Text: big}
		r.Env = append(r.Env, "PLANTED={secret:planted}", "PLAIN=canary-of-the-variable")
	})
	for _, c := range s.Calls("") {
		text := c.URI
		for name, values := range c.Header {
			if name != "Authorization" {
				text += fmt.Sprint(values)
			}
		}
		if strings.Contains(text, "canary") || c.Method != http.MethodPut && strings.Contains(string(c.Body), "canary") {
			t.Errorf("%s has it", c)
		}
	}
	if _, err := o.client.StopJob(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	job = b.await(job.ID)
	if got := stepOf(t, o.client, job.ID, cove.StepSetupScript); got.Output.String() != "it says ***\n" || got.State != cove.StepCompleted {
		t.Errorf("got %+v", got)
	}
	text, err := os.ReadFile(b.home + "/.cove/jobs/" + job.ID + "/job.json")
	if err != nil || strings.Contains(string(text), "canary") {
		t.Errorf("the settings that are left have a secret: %v", err)
	}
	if _, err := os.Stat(b.home + "/.cove/jobs/" + job.ID + "/setup.sh"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the script is left: %v", err)
	}
	log, err := os.ReadFile(b.home + "/.cove/jobs/" + job.ID + "/events.jsonl")
	if err != nil || !strings.Contains(string(log), "again ***") || !strings.Contains(string(log), `"600"`) {
		t.Errorf("the log: %v", err)
	}
}

// TestStepWithin: P1: a step of the server's that panics, takes too long, or is cancelled has its end.
func TestStepWithin(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	job.StepLimits = map[cove.StepKey]int64{cove.StepProbeArch: 1}
	late := m.starter.steps.run(t.Context(), job, cove.StepProbeArch, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	if got := stepOf(t, client, job.ID, cove.StepProbeArch); code(late) != "step_timeout" || got.State != cove.StepFailed || !got.TimedOut || got.Hint == "" {
		t.Errorf("got %v, %+v", late, got)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("nobody waits"))
	_ = m.starter.steps.run(ctx, job, cove.StepUploadSupervisor, func(ctx context.Context) error { return ctx.Err() })
	if got := stepOf(t, client, job.ID, cove.StepUploadSupervisor); got.State != cove.StepFailed || got.Error != "cancelled: nobody waits" || got.TimedOut {
		t.Errorf("got %+v", got)
	}
	func() {
		defer func() { _ = recover() }()
		_ = m.starter.steps.run(t.Context(), job, cove.StepCopySettings, func(context.Context) error { panic("a fault") })
	}()
	if got := stepOf(t, client, job.ID, cove.StepCopySettings); got.State != cove.StepFailed || !strings.Contains(got.Error, "a fault in cove") {
		t.Errorf("got %+v", got)
	}
	for _, limits := range []map[cove.StepKey]int64{{"nothing": 5}, {cove.StepClone: 0}, {cove.StepClone: -1}, {cove.StepClone: int64((25 * time.Hour).Seconds())}, {cove.StepUploadRepository: 5}} {
		req := request()
		req.StepLimits = limits
		if _, err := client.CreateJob(t.Context(), req); code(err) != "bad_request" {
			t.Errorf("%v: %v", limits, err)
		}
	}
}

// TestProfileStepLimits: P9, P5: a profile is not stored if it refers to a secret that is not
// there, or limits an unknown step. A job has the limits of its profile.
func TestProfileStepLimits(t *testing.T) {
	_, client := newManager(t)
	calls := cove.Profiles{Client: client}
	for _, agent := range []string{"", "shell"} {
		for want, settings := range map[string]cove.ProfileSettings{
			"no_secret":   {Env: map[string]string{"A": "{secret:nobody}"}},
			"bad_request": {StepLimits: map[cove.StepKey]int64{"nothing": 5}},
		} {
			settings.Agent = agent
			if _, err := calls.Put(t.Context(), "nightly", 0, settings); code(err) != want {
				t.Errorf("%q: got %v, want %s", agent, err, want)
			}
		}
		good := cove.ProfileSettings{Agent: agent, StepLimits: map[cove.StepKey]int64{cove.StepClone: 7, cove.StepSetupScript: 8}}
		if _, err := calls.Put(t.Context(), "nightly", 0, good); err != nil {
			t.Fatal(err)
		}
		req := request()
		req.Profile, req.StepLimits = "nightly", map[cove.StepKey]int64{cove.StepClone: 9}
		job, err := client.CreateJob(t.Context(), req)
		if err != nil || job.StepLimits[cove.StepClone] != 9 || job.StepLimits[cove.StepSetupScript] != 8 {
			t.Errorf("got %+v, %v", job, err)
		}
	}
}
