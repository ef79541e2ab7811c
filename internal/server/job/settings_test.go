package job

import (
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

const canary = "canary/0123456789"

// TestReferencesAreChecked: variables that can't be given are refused before anything is made,
// in words without their values.
func TestReferencesAreChecked(t *testing.T) {
	m, client := newManager(t)
	ctx := t.Context()
	if err := client.SetSecret(ctx, "ci", canary); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		env  []string
		want string
	}{
		"no secret":   {[]string{"A=" + canary + "{secret:nobody}"}, "no_secret"},
		"one of two":  {[]string{"A={secret:ci}{secret:nobody}"}, "no_secret"},
		"no name":     {[]string{"A=" + canary + "{secret}"}, "bad_request"},
		"a bad name":  {[]string{"A=" + canary + "{secret:../key}"}, "bad_request"},
		"twice":       {[]string{"A=" + canary, "A={secret:ci}"}, "bad_request"},
		"no variable": {[]string{canary}, "bad_request"},
		"a NUL":       {[]string{"A=" + canary + "\x00"}, "bad_request"},
	} {
		req := request()
		req.Env = test.env
		_, err := client.CreateJob(ctx, req)
		_, previewErr := client.PreviewJob(ctx, req)
		if code(err) != test.want || code(previewErr) != test.want || strings.Contains(err.Error()+previewErr.Error(), canary) {
			t.Errorf("%s: got %v, and %v", name, err, previewErr)
		}
	}
	jobs, err := client.Jobs(ctx)
	list, listErr := client.List(ctx, sprites.ListOptions{})
	if err != nil || listErr != nil || len(jobs) > 0 || len(list.Sprites) > 0 {
		t.Errorf("left: %v, %v, %v, %v", jobs, err, list, listErr)
	}

	// A token that may not see secrets gets none by a job.
	req := request()
	req.Env = []string{"A={secret:ci}"}
	tok, err := client.CreateToken(ctx, cove.TokenRequest{Name: "t", Scope: cove.TokenScope{All: true}, Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	by := &cove.Client{Client: &sprites.Client{URL: client.URL, Token: tok.Secret, HTTPClient: client.HTTPClient}}
	for _, env := range [][]string{req.Env, {"A={secret:nobody}"}} {
		req.Env = env
		_, err := by.CreateJob(ctx, req)
		_, previewErr := by.PreviewJob(ctx, req)
		if code(err) != "forbidden" || code(previewErr) != "forbidden" {
			t.Errorf("%v by a token without admin: got %v, and %v", env, err, previewErr)
		}
	}
	req.Env = []string{"A={secret:ci}"}
	job, err := client.CreateJob(ctx, req)
	if err != nil || len(job.Secrets) != 1 || job.Secrets[0] != "ci" {
		t.Fatalf("got %+v, %v", job, err)
	}
	if _, err := m.Store.Jobs.Finish(ctx, job.ID, cove.JobFailed, cove.Outcome{}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := by.RetryJob(ctx, job.ID, cove.JobRetry{}); code(err) != "forbidden" {
		t.Errorf("a retry by a token without admin: got %v", err)
	}
	if _, err := by.ResumeJob(ctx, job.ID, cove.JobResume{Message: "on"}); code(err) != "forbidden" {
		t.Errorf("a resume by a token without admin: got %v", err)
	}
}

// TestReferencesAreResolved: a secret is in the job's sprite, and nowhere else. It is needed
// as long as the job has not ended. A retry gets its new value.
func TestReferencesAreResolved(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	client, ctx := b.server.Client(), t.Context()
	if err := client.SetSecret(ctx, "ci", canary); err != nil {
		t.Fatal(err)
	}
	given := filepath.Join(t.TempDir(), "given")
	b.env = []string{"KEY={secret:ci}", "URL=https://me:{secret:ci}@host.example/", `JSON={"a":{}}`, "given=" + given}
	job := b.begin(`echo "$KEY $URL $JSON" >"$given"; echo x >"$said"`)
	read := func(value string) {
		t.Helper()
		want := value + " https://me:" + value + `@host.example/ {"a":{}}` + "\n"
		if text, err := os.ReadFile(given); string(text) != want {
			t.Errorf("the agent got %q, %v; want %q", text, err, want)
		}
	}
	read(canary)
	settings, err := b.manager.Store.Jobs.Settings(ctx, job.ID)
	if err != nil || !strings.Contains(string(settings), "KEY={secret:ci}") || strings.Contains(string(settings), canary) {
		t.Errorf("the store has %s, %v", settings, err)
	}
	err = client.DeleteSecret(ctx, "ci", sprites.DeleteOptions{})
	if code(err) != "in_use" || !strings.Contains(err.Error(), "job "+job.ID) {
		t.Errorf("a secret in use: got %v", err)
	}
	stop := func(id string) {
		t.Helper()
		if _, err := client.StopJob(ctx, id); err != nil {
			t.Fatal(err)
		}
		b.await(id)
	}
	stop(job.ID)
	if err := client.DeleteSecret(ctx, "ci", sprites.DeleteOptions{}); err != nil {
		t.Errorf("a secret of a job that has ended: %v", err)
	}
	if _, err := client.RetryJob(ctx, job.ID, cove.JobRetry{}); code(err) != "no_secret" {
		t.Errorf("a retry without the secret: got %v", err)
	}

	// Between a job's row and its start, a secret can be deleted by force. It is named then, and
	// the job begins once it is back.
	if err := client.SetSecret(ctx, "ci", "another-"+canary); err != nil {
		t.Fatal(err)
	}
	req := request()
	req.Env = []string{"KEY={secret:ci}"}
	waiting, err := client.CreateJob(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.DeleteSecret(ctx, "ci", sprites.DeleteOptions{}); code(err) != "in_use" {
		t.Errorf("the secret of a queued job: got %v", err)
	}
	if err := client.DeleteSecret(ctx, "ci", sprites.DeleteOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.StartJob(ctx, waiting.ID, cove.JobStart{BundleSHA256: strings.Repeat("a", 64), BundleSize: 1}); code(err) != "no_secret" {
		t.Errorf("a start without the secret: got %v", err)
	}
	if now, err := client.Job(ctx, waiting.ID); err != nil || now.State != cove.JobQueued {
		t.Errorf("the job is %s, %v", now.State, err)
	}
	if err := client.SetSecret(ctx, "ci", "another-"+canary); err != nil {
		t.Fatal(err)
	}
	again, err := client.RetryJob(ctx, job.ID, cove.JobRetry{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(b.said); err != nil { // waits for the writer
		t.Fatal(err)
	}
	read("another-" + canary)
	stop(again.ID)
}

// TestForgottenSettings: a job whose settings were given up with a lost key can't be done
// again; one that was still being installed fails.
func TestForgottenSettings(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	ctx := t.Context()
	job := b.begin(`echo x >"$said"`)
	if _, err := b.server.Client().StopJob(ctx, job.ID); err != nil {
		t.Fatal(err)
	}
	b.await(job.ID)
	row := cove.Job{ID: "abcdef", State: cove.JobInstalling, OwnsSprite: true, JobSettings: cove.JobSettings{Agent: "shell", Sprite: "job-abcdef"}}
	if err := b.manager.Store.Jobs.Create(ctx, row, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	b.server.Stop()
	if err := os.Remove(filepath.Join(b.dir, store.KeyFile)); err != nil {
		t.Fatal(err)
	}
	st, err := store.Options{ForgetSealed: true}.Open(ctx, filepath.Join(b.dir, "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	b.serve(time.Second, 0)
	if ended := b.await("abcdef"); ended.State != cove.JobFailed || !strings.Contains(ended.Error, "a key that was lost") {
		t.Errorf("got %s, %q", ended.State, ended.Error)
	}
	if _, err := b.server.Client().RetryJob(ctx, job.ID, cove.JobRetry{}); code(err) != "not_kept" {
		t.Errorf("a retry: got %v", err)
	}
}

// TestDamagedSettings: an installing job whose settings were damaged fails, and those that came
// after it have their turn.
func TestDamagedSettings(t *testing.T) {
	b := newBench(t)
	b.serve(time.Second, 0)
	ctx := t.Context()
	if _, err := b.manager.Store.Profiles.Put(ctx, "one", 0, cove.ProfileSettings{MaxJobs: 1}); err != nil {
		t.Fatal(err)
	}
	b.server.Stop()
	st, err := store.Open(ctx, filepath.Join(b.dir, "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"aaaaaa", "bbbbbb"} {
		req := request()
		req.Profile, req.Early = "one", true
		row := newRow(req, made{}, time.Hour)
		row.ID, row.State, row.Upload, row.Sprite, row.CreatedAt = id, cove.JobInstalling, "", "job-"+id, time.Unix(int64(i+1), 0)
		settings, err := json.Marshal(req)
		if err == nil {
			err = st.Jobs.Create(ctx, row, settings)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(b.dir, "cove.db"))
	if err == nil {
		_, err = db.ExecContext(ctx, "UPDATE jobs SET sealed = zeroblob(length(sealed)) WHERE id = 'aaaaaa'")
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	b.serve(time.Second, 0)
	if ended := b.await("aaaaaa"); ended.State != cove.JobFailed || !strings.Contains(ended.Error, "damaged") || ended.Failure.Hint != "push again" {
		t.Errorf("got %s, %q, %+v", ended.State, ended.Error, ended.Failure)
	}
	changed, cancel := b.manager.Store.Jobs.Watch("bbbbbb")
	defer cancel()
	for {
		job, err := b.manager.Store.Jobs.Get(ctx, "bbbbbb")
		if err != nil {
			t.Fatal(err)
		}
		if job.State == cove.JobQueued {
			break
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Minute):
			t.Fatalf("the next job is %s", job.State)
		}
	}
}
