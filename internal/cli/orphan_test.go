package cli

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Orphans are listed apart, and destroyed by the names that the list has.
func TestOrphans(t *testing.T) {
	const orphan = `{"name":"job-ab12-aa","backend":"far","sprite_id":"s1","job":"aa","status":"cold","created_at":"2020-02-03T10:11:12Z"}`
	var asked, unheard, failure string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = r.Method + " " + r.URL.Path + " " + string(body)
		if r.Method == http.MethodPost {
			_, _ = io.WriteString(w, `{"results":[{"orphan":`+orphan+failure+`}]`+unheard+`}`)
			return
		}
		_, _ = io.WriteString(w, `{"orphans":[`+orphan+`]`+unheard+`}`)
	}))
	t.Cleanup(server.Close)
	t.Chdir(t.TempDir())
	t.Setenv("COVE_DATA", t.TempDir())
	run := func(args ...string) (code int, out, errs string) {
		var o, e bytes.Buffer
		code = Main(t.Context(), append(args, "--url", server.URL, "--token", "x"), Streams{In: strings.NewReader(""), Out: &o, Err: &e})
		return code, o.String(), e.String()
	}
	code, out, errs := run("environment", "list", "--orphans")
	if code != 0 || !strings.Contains(out, "far/job-ab12-aa  aa   cold") || errs != "" || asked != "GET /v1/environments/orphans " {
		t.Errorf("exit code %d, %s, %s, asked %s", code, out, errs, asked)
	}
	code, out, errs = run("environment", "rm", "--orphans", "far/job-ab12-aa", "job-bb")
	if code != 0 || out != "far/job-ab12-aa: destroyed\n" || asked != `POST /v1/environments/orphans/destroy {"orphans":[{"backend":"far","name":"job-ab12-aa"},{"name":"job-bb"}]}` {
		t.Errorf("exit code %d, %s, %s, asked %s", code, out, errs, asked)
	}
	code, out, errs = run("environment", "rm", "--orphans", "--json")
	if code != 0 || !strings.Contains(out, `"sprite_id"`) || asked != `POST /v1/environments/orphans/destroy {}` {
		t.Errorf("exit code %d, %s, %s, asked %s", code, out, errs, asked)
	}
	failure = `,"failure":{"error":"not_an_orphan","message":"it stays"}`
	if code, out, errs = run("environment", "rm", "--orphans"); code != 1 || !strings.Contains(out, "far/job-ab12-aa: it stays") || !strings.Contains(errs, "1 orphan of 1 not destroyed") {
		t.Errorf("exit code %d, %s, %s", code, out, errs)
	}
	failure, unheard = "", `,"unheard":[{"backend":"far","failure":{"error":"backend_unreachable","message":"no answer"}}]`
	if code, out, errs = run("environment", "list", "--orphans"); code != 0 || !strings.Contains(errs, "backend far did not list its sprites, and may have orphans: no answer") {
		t.Errorf("exit code %d, %s, %s", code, out, errs)
	}
	if code, out, errs = run("environment", "rm", "--orphans"); code != 1 || !strings.Contains(errs, "1 place did not answer") {
		t.Errorf("exit code %d, %s, %s", code, out, errs)
	}
	asked = ""
	for _, line := range []string{"environment list --orphans --all", "environment list --orphans --state gone", "environment rm --orphans --all", "environment rm --orphans --force"} {
		if code, _, errs := run(strings.Fields(line)...); code != exitUsage || asked != "" {
			t.Errorf("%s: exit code %d, %s, asked %s", line, code, errs, asked)
		}
	}
}

// The list has the health, the age, the uptime and the last check of each environment.
func TestEnvironmentColumns(t *testing.T) {
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }
	const day = 24 * time.Hour
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"environments":[
			{"id":"a1","name":"n1","job":"j1","state":"ready","health":{"word":"degraded","detail":"d","provider":"running","checked_at":"`+ago(5*day+time.Hour)+`"},"created_at":"`+ago(9*day+time.Hour)+`","woken_at":"`+ago(7*day+time.Hour)+`"},
			{"id":"b2","name":"n2","job":"j2","state":"asleep","created_at":"`+ago(9*day+time.Hour)+`","woken_at":"`+ago(7*day)+`"}]}`)
	}))
	t.Cleanup(server.Close)
	t.Chdir(t.TempDir())
	t.Setenv("COVE_DATA", t.TempDir())
	var out, errs bytes.Buffer
	code := Main(t.Context(), []string{"environment", "list", "--url", server.URL, "--token", "x"}, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	var rows []string
	for line := range strings.Lines(out.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"ID NAME JOB PLAN PROFILE STATE HEALTH WORK AGE UPTIME CHECKED",
		"a1 n1 j1 - - ready degraded - 9d 7d 5d ago",
		"b2 n2 j2 - - asleep - - 9d - never",
	}
	if code != 0 || strings.Join(rows, "\n") != strings.Join(want, "\n") {
		t.Errorf("exit code %d, %s\n%s", code, errs.String(), strings.Join(rows, "\n"))
	}
}

// TestFindEnvironment: an environment is shown by its id, its sprite or its job. If several
// match, the error names each; one that is gone counts only alone.
func TestFindEnvironment(t *testing.T) {
	rows := []string{
		`{"id":"a1","name":"job-a3f7b2-aa","job":"a3f7b2","state":"ready"}`,
		`{"id":"b2","name":"job-b4","backend":"far","job":"b4","state":"gone"}`,
		`{"id":"c3","name":"job-b4","job":"c5","state":"ready"}`,
		`{"id":"d4","name":"twice","backend":"far","job":"d6","state":"ready"}`,
		`{"id":"e5","name":"twice","job":"e7","state":"unknown"}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, one := strings.CutPrefix(r.URL.Path, "/v1/environments/")
		for _, row := range rows {
			if one && strings.HasPrefix(row, `{"id":"`+id+`"`) {
				_, _ = io.WriteString(w, row)
				return
			}
		}
		if one {
			http.Error(w, `{"error":"not_found","message":"there is no environment"}`, http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, `{"environments":[`+strings.Join(rows, ",")+`]}`)
	}))
	t.Cleanup(server.Close)
	t.Chdir(t.TempDir())
	t.Setenv("COVE_DATA", t.TempDir())
	for word, want := range map[string]string{
		"a1": "a1", "job-a3f7b2-aa": "a1", "a3f7b2": "a1", "b4": "b2", "far/job-b4": "b2", "job-b4": "c3", "far/twice": "d4", "e7": "e5",
		"twice": "cove environment show --url " + server.URL + " d4 (far/twice, job d6, ready)", "nobody": "cove environment list", "ffff": "cove environment list",
	} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), []string{"environment", "show", word, "--url", server.URL, "--token", "x"}, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		if ok := len(want) == 2; ok != (code == 0) || ok && !strings.Contains(out.String(), want) || !ok && !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d, want %s in: %s%s", word, code, want, &out, &errs)
		}
	}
}
