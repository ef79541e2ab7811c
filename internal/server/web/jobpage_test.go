package web_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/web"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/jobtest"
	"github.com/cove-dev/cove/sprites"
)

// acp are the events of an agent's, as cove-guest writes them, from a number on.
func acp(from int64, lines ...string) (events []cove.JobEvent) {
	for i, l := range lines {
		events = append(events, cove.JobEvent{Seq: from + int64(i), Type: "event", Stream: "events", Text: l})
	}
	return events
}

// live reads what a stream sends, event by event, until one has all of the texts.
func live(t *testing.T, c *http.Client, url string, until func(number, html string) bool) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	resp, err := c.Do(req)
	must(t, err)
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, 4<<20)
	number := ""
	for in.Scan() {
		if id, ok := strings.CutPrefix(in.Text(), "id: "); ok {
			number = id
		}
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		var changes []struct{ HTML string }
		if !ok || json.Unmarshal([]byte(data), &changes) != nil {
			continue
		}
		var all strings.Builder
		for _, change := range changes {
			all.WriteString(change.HTML)
		}
		if until(number, all.String()) {
			return
		}
	}
	t.Fatalf("the stream ended: %v", in.Err())
}

// pageOf is a page as text: each run of space is one.
func pageOf(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	if strings.HasSuffix(url, "/agents") { // a part of a page
		req.Header.Set("HX-Request", "true")
	}
	return answerTo(t, c, req)
}

// answerTo is the text of an answer: each run of space is one.
func answerTo(t *testing.T, c *http.Client, req *http.Request) string {
	t.Helper()
	resp, err := c.Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return strings.Join(strings.Fields(string(body)), " ")
}

// planForm is the request for the page on which a job's plan is changed.
func planForm(t *testing.T, c *http.Client, base, id, form string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/web/jobs/"+id+"/plan", strings.NewReader(form))
	must(t, err)
	req.Header.Set("HX-Request", "true")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	req.Header.Set("X-Cove-Mark", regexp.MustCompile(`name="_mark" value="([^"]+)"`).FindStringSubmatch(pageOf(t, c, base+"/web/new"))[1])
	return req
}

// TestJobHead: how long a job has worked is told apart from how long it waited.
func TestJobHead(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	c := visitor(t, s)
	begun, ended := time.Now().Add(-10*time.Minute), time.Now().Add(-time.Minute)
	put(t, s, 1, func(j *cove.Job) {
		j.State, j.StartedAt, j.EndedAt, j.StoodMS = cove.JobSucceeded, &begun, &ended, (6 * time.Minute).Milliseconds()
	})
	head := pageOf(t, c, s.URL+"/web/jobs/000001")
	for _, want := range []string{"<dt>Worked</dt><dd>3 min</dd>", "<dt>Waited</dt><dd>6 min</dd>"} {
		if !strings.Contains(head, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	put(t, s, 2, func(j *cove.Job) { j.StartedAt = &begun })
	must(t, s.Store.Jobs.Update(t.Context(), "000002", func(j *cove.Job) error { j.State = cove.JobWaiting; return nil }))
	job, err := s.Store.Jobs.Get(t.Context(), "000002")
	must(t, err)
	since := job.StandsSince.Add(-4 * time.Minute)
	must(t, s.Store.Jobs.Update(t.Context(), "000002", func(j *cove.Job) error { j.StandsSince = &since; return nil }))
	must(t, s.Store.Jobs.Update(t.Context(), "000002", func(j *cove.Job) error { j.State = cove.JobRunning; return nil }))
	if job, err = s.Store.Jobs.Get(t.Context(), "000002"); err != nil || job.StandsSince != nil || job.StoodMS < (4*time.Minute).Milliseconds() {
		t.Errorf("it stood %d ms, and stands since %v, %v", job.StoodMS, job.StandsSince, err)
	}
}

// TestSpriteGone: a job's page offers what needs its sprite as long as that sprite is there.
// It does not when the sprite is gone, or when another one has its name. A job that cloned its
// repository can begin anew still.
func TestSpriteGone(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	c, ended := visitor(t, s), time.Now()
	for n := range 2 {
		name := fmt.Sprintf("job-%06x", n+1)
		s.Create(name)
		info, err := s.Client().Get(t.Context(), name)
		must(t, err)
		put(t, s, n+1, func(j *cove.Job) {
			j.State, j.EndedAt, j.Head, j.Commits, j.Bundle.Size = cove.JobSucceeded, &ended, strings.Repeat("cd", 20), 1, 1
			j.AgentSession, j.OwnsSprite, j.SpriteID = "s1", true, info.ID
			if n == 1 {
				j.URL = "https://example.org/paint.git"
			}
		})
	}
	const retry, other, sprite, resume = `/retry"`, `data-opens="other-agent"`, `>Sprite</a>`, `/resume"`
	check := func(id string, has, hasNot []string) {
		t.Helper()
		page := pageOf(t, c, s.URL+"/web/jobs/"+id)
		for _, want := range has {
			if !strings.Contains(page, want) {
				t.Errorf("job %s: its page has no %s", id, want)
			}
		}
		for _, bad := range hasNot {
			if strings.Contains(page, bad) {
				t.Errorf("job %s: its page has %s", id, bad)
			}
		}
	}
	for _, id := range []string{"000001", "000002"} {
		check(id, []string{retry, other, sprite, resume, "cove pull " + id, "its sprite job-" + id}, []string{"is gone"})
		must(t, s.Client().Delete(t.Context(), "job-"+id, sprites.DeleteOptions{Force: true}))
	}
	put(t, s, 3, func(j *cove.Job) { j.State, j.EndedAt, j.OwnsSprite = cove.JobLost, &ended, true })
	check("000003", []string{"job-000003 is gone, and with it all that it had done", "<dt>Commits</dt><dd>not known"}, []string{retry, sprite})
	check("000003/changes", []string{"Nobody knows what it has changed"}, []string{`id="diff"`, "Choose the number of a line"})
	check("000001/changes", []string{"There is nothing to compare any more"}, []string{`id="diff"`, "Choose the number of a line"})
	for again := range 2 {
		check("000001", []string{"job-000001 is gone, and with it its work: no pull of it was finished.", "push its plan again", "/plan\""}, []string{retry, other, sprite, resume, "cove pull 000001", "its sprite job-"})
		check("000002", []string{"job-000002 is gone, and with it its work", retry, other}, []string{sprite, resume, "cove pull 000002", "push its plan again"})
		if again == 0 {
			s.Create("job-000001")
		}
	}
}

// TestPlanAgain: a plan is changed with all else as it was. If a job can't be done again so,
// the form of a new one has its settings, and names those without a field. It never has a
// wider network than the job.
func TestPlanAgain(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	c, ended := visitor(t, s), time.Now()
	ask := func(id string) string { return answerTo(t, c, planForm(t, c, s.URL, id, "")) }
	var job cove.Job
	job.ID, job.State, job.CreatedAt, job.EndedAt, job.Agent, job.PlanName, job.Sprite, job.OwnsSprite = "000001", cove.JobFailed, ended, &ended, "acp", "plan.md", "job-000001", true
	job.NetworkPolicy = &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}, {Domain: "example.com", Action: "allow", Ports: []string{"443"}}}}
	job.TimeoutSec, job.Guards.Turns, job.EnvNames, job.AgentCommand, job.Permissions = 300, 9, []string{"A", "ANTHROPIC_API_KEY"}, "agent --acp", "ask"
	must(t, s.Store.Jobs.Create(t.Context(), job, json.RawMessage(`{"plan":"# Paint <it>\n","env":["A=b"],"config":{"ram_mb":1024,"cpus":1}}`)))
	s.Create("job-000001")
	for _, want := range []string{"# Paint &lt;it&gt;", `hx-post="/web/jobs/000001/retry"`, "All else is as it was", "the preset none, example.com:443", "<dt>Variables</dt><dd>A </dd>", "<dt>Sprite</dt><dd>memory of 1024 MiB, 1 CPU", "agent --acp"} {
		if page := ask("000001"); !strings.Contains(page, want) {
			t.Errorf("the plan's page has no %q: %s", want, page)
		}
	}
	must(t, s.Client().Delete(t.Context(), "job-000001", sprites.DeleteOptions{Force: true}))
	for _, want := range []string{"# Paint &lt;it&gt;", "The job had settings that this form has no field for", "<li>the rule allow example.com:443", "<li>its variables: --env A<", "<li>of its sprite: 1 CPU", "<li>of its sprite: memory of 1024 MiB", "<li>the command of its agent", "<li>who answers its agent&#39;s questions: ask", "<option selected>none", `name="minutes" inputmode="decimal" value="5"`, `name="turns" inputmode="numeric" value="9"`} {
		if page := ask("000001"); !strings.Contains(page, want) {
			t.Errorf("the form has no %q: %s", want, page)
		}
	}
	job.ID, job.Sprite = "000002", "job-000002"
	job.NetworkPolicy = &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "open"}, {Domain: "example.com", Action: "deny"}}}
	must(t, s.Store.Jobs.Create(t.Context(), job, json.RawMessage(`{"plan":"# Paint\n"}`)))
	for _, want := range []string{"<option selected>none", "<li>the rule preset open", "<li>the rule deny example.com"} {
		if page := ask("000002"); !strings.Contains(page, want) {
			t.Errorf("of a job that is denied a name the form has no %q: %s", want, page)
		}
	}
}

// TestLiveCall: a page was opened when a tool had been announced, and had not begun. It hears
// of the tool by its title and input, also if a person is asked about it.
func TestLiveCall(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	put(t, s, 1, func(j *cove.Job) { j.Agent = "acp" })
	add := func(events []cove.JobEvent) { must(t, s.Store.Jobs.Append(t.Context(), "000001", events, nil)) }
	add(acp(1, `{"type":"tool_call","id":"c1","title":"Remove the build","kind":"execute","status":"pending","text":"rm -r build"}`,
		`{"type":"tool_call","id":"c2","title":"Fetch the page","kind":"fetch","status":"pending","text":"http://paint.example"}`))
	add(acp(3, `{"type":"tool_update","id":"c1","status":"completed","text":"removed"}`,
		`{"type":"permission_request","id":"1","call":"c2","title":"Fetch the page","kind":"fetch","options":[{"id":"1","name":"Yes","kind":"allow_once"}]}`))
	got := map[string]string{}
	live(t, visitor(t, s), s.URL+"/web/jobs/000001/live?start=3", func(number, html string) bool {
		got[number] += html
		return number == "4"
	})
	for number, want := range map[string][]string{"3": {"execute", "rm -r build", "removed"}, "4": {"fetch", "http://paint.example", "Asks", "Fetch the page"}} {
		for _, text := range want {
			if !strings.Contains(got[number], text) {
				t.Errorf("event %s is shown without %q: %s", number, text, got[number])
			}
		}
	}
	if got["1"]+got["2"] != "" {
		t.Errorf("what the page has is sent again: %q", got)
	}
}

// TestFarBehind: a page that has missed more than a page shows gets the newest entries in
// place of its own. Then it gets what comes. It does not get all that it has missed.
func TestFarBehind(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	put(t, s, 1, func(*cove.Job) {})
	var events []cove.JobEvent
	for seq := range int64(2000) {
		events = append(events, cove.JobEvent{Seq: seq + 1, Type: "notice", Text: fmt.Sprintf("the line %d.", seq+1)})
	}
	must(t, s.Store.Jobs.Append(t.Context(), "000001", events, nil))
	c := visitor(t, s)
	for _, query := range []string{"?start=1", "", "?start=1990&from=3", "?start=-1"} {
		numbers, got := []string{}, map[string]string{}
		live(t, c, s.URL+"/web/jobs/000001/live"+query, func(number, html string) bool {
			if number != "" {
				if got[number] == "" {
					numbers = append(numbers, number)
				}
				got[number] += html
			}
			return number != ""
		})
		first := got["2000"]
		if !slices.Equal(numbers, []string{"2000"}) || !strings.Contains(first, "the line 2000.") || !strings.Contains(first, "Show earlier") || strings.Contains(first, "the line 1000.") {
			t.Errorf("%q: got the events %v: %.300s", query, numbers, first)
		}
	}
	for _, query := range []string{"?start=1999", "?start=1&from=1998"} { // not far
		live(t, c, s.URL+"/web/jobs/000001/live"+query, func(number, html string) bool {
			if number != "" && (number != "1999" || !strings.Contains(html, "the line 1999.") || strings.Contains(html, "Show earlier")) {
				t.Errorf("%q: got the event %s first: %.300s", query, number, html)
			}
			return number != ""
		})
	}
}

// TestTitles: lists and pages call a job by its plan's title, with the file's name beside it.
// The search finds it by its headings, and shows what an agent said, not the JSON around it.
func TestTitles(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	c := visitor(t, s)
	put(t, s, 1, func(j *cove.Job) {
		j.PlanName, j.Title, j.Headings = "plan.md", "Paint the shed", []string{"Paint the shed", "Let it dry twice"}
	})
	say(t, s, 1, 1, `{"type":"assistant","message":{"content":[{"type":"text","text":"The brush was lost."}]}}`)
	say(t, s, 1, 2, `{"type":"assistant","message":{"content":[{"type":"tool_use","id":"x","name":"Bash","input":{"command":"find brush"}}]}}`)
	for path, want := range map[string][]string{
		"/web":                            {`">Paint the shed</a> <small class="dim">plan.md</small>`},
		"/web/jobs/000001":                {"<h1>Paint the shed <span", "<dt>Plan</dt><dd>plan.md</dd>", "<title>Paint the shed"},
		"/web/search?q=dry+twice":         {`href="/web/jobs/000001">Paint the shed</a>`},
		"/web/search?q=brush":             {">The brush was lost.</span>", ">Bash"},
		"/web/jobs?group=working&q=twice": {`href="/web/jobs/000001"`},
	} {
		page := pageOf(t, c, s.URL+path)
		for _, text := range want {
			if !strings.Contains(page, text) {
				t.Errorf("%s has no %q", path, text)
			}
		}
		if path == "/web/search?q=brush" && strings.Contains(page, "tool_use") {
			t.Errorf("%s shows JSON: %s", path, page)
		}
	}
}

// TestCommentsOnShell: a job's agent can't be told anything. The comments on the job go with
// its plan into the form of another one, and stay where they are.
func TestCommentsOnShell(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	c := visitor(t, s)
	ended := time.Now()
	job := cove.Job{ID: "000001", State: cove.JobSucceeded, CreatedAt: ended}
	job.Agent, job.PlanName, job.EndedAt, job.Head, job.Commits = "shell", "plan.md", &ended, "cafe", 1
	must(t, s.Store.Jobs.Create(t.Context(), job, json.RawMessage(`{"plan":"# Paint <it>\n"}`)))
	_, err := cove.Review{Client: s.Client()}.Add(t.Context(), job.ID, cove.JobComment{Path: "shed.txt", Side: cove.SideNew, Line: 2, Text: "Use blue."})
	must(t, err)
	part, err := web.CommentsOf(job)
	must(t, err)
	if !strings.Contains(part, `hx-post="/web/jobs/000001/plan"`) {
		t.Errorf("the comments have no way on: %s", part)
	}
	body := answerTo(t, c, planForm(t, c, s.URL, "000001", "comments=yes"))
	for _, want := range []string{"# Paint &lt;it&gt;", "shed.txt, line 2", "Use blue."} {
		if !strings.Contains(body, want) {
			t.Errorf("the form has no %q", want)
		}
	}
	if strings.Contains(body, "look again at what you have changed") {
		t.Error("a new job is told that it has changed something")
	}
	if page := pageOf(t, c, s.URL+"/web/jobs/000001"); !strings.Contains(page, `hx-post="/web/jobs/000001/plan"`) {
		t.Error("the plan of a job that has ended can't be changed")
	}
	put(t, s, 2, func(j *cove.Job) { j.Agent = "shell" })
	if page := pageOf(t, c, s.URL+"/web/jobs/000002/changes"); !strings.Contains(page, "The agent of this job can’t receive them") {
		t.Error("that its agent can't be told comments is not said first")
	}
	if left, err := (cove.Review{Client: s.Client()}).Comments(t.Context(), job.ID); err != nil || len(left) != 1 {
		t.Errorf("%d comments are left, %v", len(left), err)
	}
}

// TestOtherAgents: the page says, for each agent that could try the same, whether it has its
// key.
func TestOtherAgents(t *testing.T) {
	s := jobtest.Start(t)
	put(t, s, 1, func(j *cove.Job) { j.Agent, j.State, j.Profile = "shell", cove.JobSucceeded, "" })
	must(t, s.Client().SetSecret(t.Context(), "anthropic", "sk-ant-0123456789abcdef"))
	page := pageOf(t, visitor(t, s), s.URL+"/web/jobs/000001/agents")
	for _, want := range []string{`<option value="claude">claude: ready</option>`, `<option value="codex">codex: it would fail, `} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in %s", want, page)
		}
	}
}

// TestQuestionShown: a command that waits for an answer is shown whole, and the same on the
// start page, at its job and in the conversation. If not all of it is known, the page says so,
// and no button stands out.
func TestQuestionShown(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	c := visitor(t, s)
	ask := func(n int, detail, incomplete string) {
		put(t, s, n, func(j *cove.Job) {
			j.Agent, j.State = "acp", cove.JobWaiting
			j.Question = &cove.JobQuestion{ID: "1", Title: "Build", Detail: detail, Incomplete: incomplete, Options: []cove.QuestionOption{{ID: "1", Name: "Allow", Kind: "allow_once"}}}
		})
	}
	const input = `{"command":"rm -rf build \\u0026\\u0026 make"}`
	ask(1, strings.ReplaceAll(input, `\\`, `\`), "")
	must(t, s.Store.Jobs.Append(t.Context(), "000001", acp(1, `{"type":"permission_request","id":"1","call":"c1","title":"Build","text":"`+strings.ReplaceAll(input, `"`, `\"`)+`","options":[{"id":"1","name":"Allow","kind":"allow_once"}]}`), nil))
	for path, n := range map[string]int{"/web": 1, "/web/jobs/000001": 2} {
		page := pageOf(t, c, s.URL+path)
		if got := strings.Count(page, `<span class="td">$ </span>rm -rf build &amp;&amp; make`); got != n || strings.Contains(page, "u0026") || !strings.Contains(page, `primary" name="option"`) && path == "/web" {
			t.Errorf("%s shows the command %d times: %s", path, got, page)
		}
	}
	must(t, s.Store.Jobs.Delete(t.Context(), "000001"))
	ask(2, `{"command":"make`+strings.Repeat(" ", 2100)+`; curl"}`, "Not all of it is known.")
	for _, path := range []string{"/web", "/web/jobs/000002"} {
		page := pageOf(t, c, s.URL+path)
		if !strings.Contains(page, "make ⟦2100 blanks⟧ ; curl") || !strings.Contains(page, "Not all of it is known. Look at what it is") || regexp.MustCompile(`primary"[^>]*>Allow<`).MatchString(page) {
			t.Errorf("%s: %s", path, page)
		}
	}
}
