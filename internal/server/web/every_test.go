package web_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/web"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/gitserver"
	"github.com/cove-dev/cove/internal/test/jobtest"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

// pages has the addresses at which TestEveryPage opens a route, where {job} and {other} are
// jobs' IDs. A route without addresses is not a page: it is a part of one, or a stream.
var pages = map[string][]string{
	"/web":            {"/web"},
	"/web/components": {"/web/components"},
	"/web/jobs":       {"/web/jobs", "/web/jobs?state=failed&q=nothing"},
	"/web/sprites":    {"/web/sprites"},
	"/web/search":     {"/web/search", "/web/search?q=onerror", "/web/search?q=nothing-has-it"},
	"/web/new":        {"/web/new"},
	"/web/first":      {"/web/first"},
	"/web/compare":    {"/web/compare?a={job}&b={other}"},
	"/web/settings": {
		"/web/settings?tab=profiles&name=nightly", "/web/settings?tab=secrets", "/web/settings?tab=connectors", "/web/settings?tab=tokens", "/web/settings?tab=sessions",
		"/web/settings?tab=images", "/web/settings?tab=backends", "/web/settings?tab=webhooks", "/web/settings?tab=running", "/web/settings?tab=server",
	},
	"/web/jobs/{id}":         {"/web/jobs/{job}", "/web/jobs/{job}?at=1#event-1", "/web/jobs/000001", "/web/jobs/000001?at=99", "/web/jobs/000002"},
	"/web/jobs/{id}/changes": {"/web/jobs/{job}/changes", "/web/jobs/{job}/changes?view=side"},

	"/web/sprites/{name}":                          {"/web/sprites/paint", "/web/sprites/asleep"},
	"/web/sprites/{name}/terminal":                 {"/web/sprites/paint/terminal"},
	"/web/sprites/{name}/files":                    {"/web/sprites/paint/files?path=/home/sprite", "/web/sprites/paint/files?path=/home/sprite/notes.txt", "/web/sprites/asleep/files"},
	"/web/sprites/{name}/services":                 {"/web/sprites/paint/services"},
	"/web/sprites/{name}/services/{service}":       {"/web/sprites/paint/services/talk"},
	"/web/sprites/{name}/checkpoints":              {"/web/sprites/paint/checkpoints"},
	"/web/sprites/{name}/checkpoints/{checkpoint}": {"/web/sprites/paint/checkpoints/v1"},
	"/web/sprites/{name}/diff":                     {"/web/sprites/paint/diff?from=v1"},
	"/web/sprites/{name}/network":                  {"/web/sprites/paint/network"},
	"/web/sprites/{name}/connectors":               {"/web/sprites/paint/connectors"},
}

// parts are the routes that are not pages of their own, besides streams (/live).
var parts = []string{
	"/web/alive", "/web/jobs/{id}/earlier", "/web/jobs/{id}/later", "/web/jobs/{id}/usage", "/web/jobs/{id}/agents", "/web/jobs/{id}/diff",
	"/web/sprites/{name}/terminal/sessions", "/web/sprites/{name}/terminal/socket", "/web/sprites/{name}/files/branch", "/web/sprites/{name}/files/raw",
	"/web/sprites/{name}/preview", "/web/sprites/{name}/network/allow", "/web/sprites/{name}/network/test", "/web/sprites/{name}/network/learn",
}

// TestEveryPage: each page is full of what hostile sprites, agents and repositories say. It
// has no serious fault for people with a keyboard or a screen reader, in both themes and at
// both widths. It is no wider than its window, and shows the hostile texts as texts.
func TestEveryPage(t *testing.T) {
	for _, pattern := range web.Patterns() {
		path, get := strings.CutPrefix(pattern, "GET ")
		isPart := strings.HasSuffix(path, "/live")
		for _, p := range parts {
			isPart = isPart || p == path
		}
		if get && (pages[path] != nil) == isPart {
			t.Errorf("%s is to be in pages, or in parts", pattern)
		}
	}
	s := jobtest.Start(t)
	populate(t, s)
	jobs := strings.NewReplacer("{job}", realJob(t, s.Client()), "{other}", realJob(t, s.Client()))
	must(t, cove.Profiles{Client: s.Client()}.SetDefault(t.Context(), "nightly"))
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Desktop)
	page.Allow("501") // of what the server in this process has not: images, and disks to compare
	for _, at := range pages {
		for _, path := range at {
			path = jobs.Replace(path)
			page.Resize(webtest.Desktop, "light")
			page.Goto(path)
			report := func(how string, found []string) {
				for _, f := range found {
					t.Errorf("%s, %s: %s", path, how, f)
				}
			}
			report("light", page.Axe())
			page.Resize(webtest.Phone, "light")
			narrow(t, page)
			report("phone", page.Axe())
			page.Resize(webtest.Phone, "dark")
			report("dark phone", page.Axe("color-contrast"))
			page.Resize(webtest.Desktop, "dark")
			report("dark", page.Axe("color-contrast"))
			harmless(t, page, path)
			page.Check()
		}
	}
	login := b.Tab(s.URL, webtest.Phone)
	login.Allow("401")
	login.Goto("/web")
	for _, f := range login.Axe() {
		t.Errorf("the login: %s", f)
	}
}

// harmless fails if a hostile text ran, became an element, or has characters that act on others.
func harmless(t *testing.T, page *webtest.Page, path string) {
	t.Helper()
	var found []string
	page.Eval(`(() => {
		const bad = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/, found = [];
		if (window.__owned) found.push("it ran");
		for (const e of document.querySelectorAll("main *")) {
			if (e.hasAttribute("onerror") || e.hasAttribute("onload") || e.matches("img[src=x]")) found.push("an element: " + e.outerHTML);
			for (const a of ["title", "aria-label", "alt", "placeholder"]) if (bad.test(e.getAttribute(a) || "")) found.push(a + ": " + JSON.stringify(e.getAttribute(a)));
			for (const n of e.childNodes) if (n.nodeType === 3 && bad.test(n.data)) found.push("text: " + JSON.stringify(n.data.slice(0, 200)) + " in " + e.outerHTML.slice(0, 100));
		}
		if (bad.test(document.title)) found.push("title " + document.title);
		return found;
	})()`, &found)
	for _, f := range found {
		t.Errorf("%s: a hostile text is not harmless: %s", path, f)
	}
}

// populate gives a server something for each page, said by the hostile.
func populate(t *testing.T, s *covetest.Server) {
	c := s.Client()
	_, err := cove.Profiles{Client: c}.Put(t.Context(), "nightly", 0, cove.ProfileSettings{Agent: "shell", Description: "Repairs <img src=x onerror=window.__owned=1>", TimeoutSec: 600, Env: map[string]string{"CI": "1"}})
	must(t, err)
	must(t, c.SetSecret(t.Context(), "team", "sesame-opens-it"))
	_, err = c.CreateToken(t.Context(), cove.TokenRequest{Name: "ci", Scope: cove.TokenScope{All: true}, Verbs: []string{"read"}})
	must(t, err)

	named := func(j *cove.Job) { j.PlanName, j.Repository, j.Branch = hostile, hostile, hostile }
	put(t, s, 1, func(j *cove.Job) { named(j) })
	put(t, s, 2, func(j *cove.Job) {
		named(j)
		j.State = cove.JobWaiting
		j.Question = &cove.JobQuestion{ID: "q", Title: hostile, Kind: "execute", Detail: hostile, Path: hostile, Options: []cove.QuestionOption{{ID: "yes", Name: hostile, Kind: "allow_once"}, {ID: "no", Name: "Reject", Kind: "reject_once"}}}
	})
	put(t, s, 3, func(j *cove.Job) {
		named(j)
		j.State, j.Outcome = cove.JobFailed, &cove.Outcome{Kind: "agent_failed", Reason: hostile}
	})
	for n, line := range []any{
		hostile,
		map[string]any{"type": "assistant", "message": map[string]any{"content": []any{
			map[string]any{"type": "text", "text": hostile + "\n```diff\n-" + hostile + "\n```"}, map[string]any{"type": "thinking", "thinking": hostile},
			map[string]any{"type": "tool_use", "id": "a", "name": "Bash", "input": map[string]any{"command": hostile}},
			map[string]any{"type": "tool_use", "id": "b", "name": hostile, "input": map[string]any{"file_path": hostile, "old_string": hostile, "new_string": "y"}},
		}}},
		map[string]any{"type": "user", "message": map[string]any{"content": []any{map[string]any{"type": "tool_result", "tool_use_id": "a", "content": hostile}}}},
		map[string]any{"type": "result", "result": hostile},
	} {
		text, ok := line.(string)
		if !ok {
			b, err := json.Marshal(line)
			must(t, err)
			text = string(b)
		}
		say(t, s, 1, int64(n+1), text)
	}

	s.Create("asleep")
	paint := s.Create("paint")
	for _, name := range []string{"notes.txt", hostile} {
		must(t, paint.WriteFile(t.Context(), "/home/sprite/"+name, strings.NewReader("one\n"+hostile), sprites.WriteOptions{}))
	}
	must(t, paint.PutService(t.Context(), sprites.Service{Name: "talk", Cmd: "/bin/sh", Args: []string{"-c", `printf '%s\n' "$0"; exec sleep 1000`, hostile}}, sprites.Follow{}))
	must(t, paint.StopService(t.Context(), "talk", 0, nil))
	_, err = paint.Suspend(t.Context())
	must(t, err)
	_, err = paint.Checkpoint(t.Context(), sprites.CheckpointRequest{Comment: hostile, Labels: []string{"green"}}, nil)
	must(t, err)
	must(t, paint.WriteFile(t.Context(), "/home/sprite/later.txt", strings.NewReader("later\n"), sprites.WriteOptions{})) // which wakes it
}

// realJob has a job commit hostile texts, adds a comment on them, and returns the job's ID.
func realJob(t *testing.T, c *cove.Client) string {
	quoted := "'" + strings.ReplaceAll(hostile, "'", "") + "'"
	plan := "# Paint\n\n## Write it\n\n```sh\nname=" + quoted + "\nprintf '%s\\n' \"$name\"\necho \"$name\" >>README\necho \"$name\" >\"$name\"\ngit add . && git commit -q -m \"$name\"\n```\n"
	git := gitserver.Start(t, "", "")
	url := git.Repository("team/project.git", map[string]string{"README": "hello\n"})
	_, err := c.PutConnector(t.Context(), cove.Connector{Name: "forge", Upstream: git.URL, Git: true})
	must(t, err)
	job, err := c.CreateJob(t.Context(), cove.JobRequest{Begin: true, Plan: plan, JobSettings: cove.JobSettings{Agent: "shell", TimeoutSec: 600}, JobSource: cove.JobSource{URL: url, PlanName: "paint.md"}})
	must(t, err)
	job, err = c.WaitJob(t.Context(), job.ID)
	must(t, err)
	if job.State != cove.JobSucceeded || job.Commits == 0 {
		t.Fatalf("the job is %+v", job)
	}
	_, err = cove.Review{Client: c}.Add(t.Context(), job.ID, cove.JobComment{Path: "README", Side: cove.SideNew, Line: 2, Text: hostile})
	must(t, err)
	return job.ID
}
