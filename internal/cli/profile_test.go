package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/sprites"
)

// TestProfileText: the text that is printed for a profile is read as the same profile.
func TestProfileText(t *testing.T) {
	want := cove.ProfileSettings{
		Description: "\"quoted\" and ünicode", Agent: "claude", TimeoutSec: 7200, MaxJobs: 10, Guards: cove.Guards{CostUSD: 1.5, DiskBytes: 5 << 40},
		NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "agent"}, {Domain: "example.org", Action: "allow", Ports: []string{"443"}}}},
		Config:        &sprites.Config{Image: "team:1", RAMMB: 4096},
		Env:           map[string]string{"CI": "1", "MULTI": "a\nb'''\"\"\""},
		SetupScript:   &cove.SetupScript{Name: "setup", Text: "#!/bin/sh\necho 'x' \"y\" \\\n"},
		Author:        &cove.Person{Name: "Robot", Email: "robot@example.org"},
		MCP:           []cove.MCPServer{{Connector: "linear", Tools: []string{"*"}}},
	}
	text, err := profileText(cove.Profile{ProfileSettings: want})
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseProfile("p.toml", []byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", diff, text)
	}
}

func TestParseProfileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"agent = ":              "line 1",
		"agnet = 'shell'":       `unknown field "agnet"`,
		"max_jobs = 'ten'":      "max_jobs",
		"[config]\nram = 1":     `unknown field "config.ram"; did you mean config.ram_mb?`,
		"max_jobs = 1.5":        "max_jobs",
		"env = ['A=1']":         "env",
		"name = 'x'":            `unknown field "name"`,
		"timeout_seconds = '1'": "timeout_seconds",
	} {
		_, err := parseProfile("p.toml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "p.toml") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// TestProfileExample: the profile in the help is one.
func TestProfileExample(t *testing.T) {
	_, text, found := strings.Cut(findTopic("profile-file").Long, "profile so:\n")
	if !found {
		t.Fatal("the help has no profile")
	}
	got, err := parseProfile("help", []byte(text))
	if err != nil || got.MaxJobs != 10 || got.SetupScript == nil || got.NetworkPolicy == nil || len(got.NetworkPolicy.Rules) != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestRemoveDefaultProfile: if the default profile is deleted, that is said.
func TestRemoveDefaultProfile(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		name := path.Base(r.URL.Path)
		_ = json.NewEncoder(w).Encode(cove.Profile{Name: name, Default: name == "nightly"})
	}))
	t.Cleanup(server.Close)
	t.Chdir(t.TempDir())
	t.Setenv("COVE_DATA", t.TempDir())
	for name, want := range map[string]bool{"nightly": true, "weekly": false} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), []string{"profile", "rm", name, "--url", server.URL, "--token", "x"}, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		if code != 0 || out.String() != "Removed "+name+".\n" || strings.Contains(errs.String(), "was the default profile") != want {
			t.Errorf("%s: exit code %d: %s%s", name, code, &out, &errs)
		}
	}
}

// TestProfileKeys: the list of a profile's keys has each field of the type, with a value that
// can be read, and no other.
func TestProfileKeys(t *testing.T) {
	text := profileKeys()
	got, err := parseProfile("keys", []byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	seen := map[string]bool{}
	var look func(prefix string, v reflect.Value)
	look = func(prefix string, v reflect.Value) {
		for f, value := range v.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			key := prefix + name
			if name == "-" || notProfileKeys[key] {
				continue
			}
			seen[key] = true
			if value.IsZero() {
				t.Errorf("%s is not in the list", key)
				continue
			}
			if _, known := aboutProfile[key]; !known {
				t.Errorf("nothing says what %s is", key)
			}
			if value.Kind() == reflect.Pointer {
				value = value.Elem()
			}
			if value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct {
				value = value.Index(0)
			}
			if value.Kind() == reflect.Struct {
				look(key+".", value)
			}
		}
	}
	look("", reflect.ValueOf(got))
	for key := range aboutProfile {
		if !seen[key] {
			t.Errorf("%s is no key of a profile", key)
		}
	}
}

// TestTurnText: a job that waits for its turn is not said to be installing.
func TestTurnText(t *testing.T) {
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 102: "102nd", 111: "111th"} {
		if got := ordinal(n); got != want {
			t.Errorf("%d: got %s", n, got)
		}
	}
	job := cove.Job{ID: "abcdef", State: cove.JobInstalling, JobSettings: cove.JobSettings{Profile: "nightly"}, JobProgress: cove.JobProgress{Place: 3, PlaceOf: 7, Installing: &cove.InstallProgress{Agent: "claude"}}}
	want := "waiting for its turn (3rd of 7 at profile nightly)"
	var shown strings.Builder
	printJob(&shown, job, time.Now())
	printJobs(&shown, []cove.Job{job}, time.Now())
	if got := installText(job); got != want || strings.Contains(shown.String(), "install") || strings.Count(shown.String(), want) != 2 {
		t.Errorf("got %q, and\n%s", got, shown.String())
	}
	if text := waitingText(job, nil, time.Now()) + nextStep(job) + preparingTitle(job); strings.Contains(text, "install") {
		t.Errorf("got %q", text)
	}
	job.Place = 0
	if got := jobStateText(job); got != "installing" {
		t.Errorf("with its turn: %q", got)
	}
}

// TestSkippedStep: a step that was skipped took no time, whenever it had begun.
func TestSkippedStep(t *testing.T) {
	at := time.Unix(1, 0)
	var shown strings.Builder
	printSteps(&shown, cove.JobSteps{Steps: []cove.Step{
		{Key: cove.StepClone, State: cove.StepSkipped, StartedAt: &at, EndedAt: &at, Detail: "why"}, {Key: cove.StepVerifyCommit, State: cove.StepPending},
		{Key: cove.StepSetupScript, State: cove.StepCompleted, StartedAt: &at, EndedAt: &at},
	}})
	for _, line := range strings.Split(shown.String(), "\n") {
		if f := strings.Fields(line); len(f) > 2 && (f[1] == "skipped" || f[1] == "pending") && f[2] != "-" || len(f) > 2 && f[1] == "completed" && f[2] != "0s" {
			t.Errorf("got %q", line)
		}
	}
}

// TestFailedStep: a script's last lines are shown once, though its error has them too.
func TestFailedStep(t *testing.T) {
	var shown strings.Builder
	step := cove.Step{Key: cove.StepSetupScript, State: cove.StepFailed, Error: "the setup script x exited with 3:\nlooking\nnot there", Output: cove.StepOutput{Head: "looking\nnot there\n"}}
	printSteps(&shown, cove.JobSteps{Steps: []cove.Step{step}})
	if _, text, _ := strings.Cut(shown.String(), "\n\n"); text != "setup_script failed: the setup script x exited with 3\nthe last lines of its output:\nlooking\nnot there\n" {
		t.Errorf("got %q", text)
	}
}

// TestJobReason: why a job failed is shown once, though its error says the same.
func TestJobReason(t *testing.T) {
	job := cove.Job{ID: "abcdef", State: cove.JobFailed, JobResult: cove.JobResult{Outcome: &cove.Outcome{Kind: "failed", Reason: "it broke"}}}
	for err, want := range map[string]string{"it broke": "", "its bundle is gone": "its bundle is gone", "": ""} {
		job.Error = err
		var shown strings.Builder
		printJob(&shown, job, time.Now())
		if text := shown.String(); strings.Count(text, "it broke") != 1 || !strings.Contains(text, want) {
			t.Errorf("%q:\n%s", err, text)
		}
	}
}

// TestPreviewWarns: a preview of a job shows the server's warnings.
func TestPreviewWarns(t *testing.T) {
	var shown strings.Builder
	printPreview(&shown, push.Preview{Repository: "http://localhost/a", JobPreview: cove.JobPreview{Warnings: []string{"nobody is there"}}})
	if !strings.Contains(shown.String(), "warning: nobody is there\n") {
		t.Errorf("got %s", &shown)
	}
}

// TestCleanupText: the text says how a cleanup script went, and has the end of its output.
func TestCleanupText(t *testing.T) {
	at := time.Unix(1, 0)
	c := cove.JobCleanup{StartedAt: at, EndedAt: &at, Error: "it ended with exit code 3"}
	c.Output.Append("one\ntwo\n")
	if got := cleanupText(c); got != "failed: it ended with exit code 3\none\ntwo" {
		t.Errorf("got %q", got)
	}
	c.Error = ""
	if got := cleanupText(c); !strings.HasPrefix(got, "done, in 0s") {
		t.Errorf("got %q", got)
	}
}
