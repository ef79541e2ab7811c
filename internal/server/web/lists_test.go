package web_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/server/web"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

// agents hands answers and messages to jobs that only the store has, as a job's supervisor tells of them.
type agents struct {
	server.Jobs
	store *store.Store
}

func (a agents) Answer(ctx context.Context, id string, answer cove.JobAnswer) (cove.Job, error) {
	return a.heard(ctx, id, func(j *cove.Job) { j.Question, j.Answered = nil, &answer })
}

func (a agents) Send(ctx context.Context, id string, m cove.JobMessage) (cove.Job, error) {
	return a.heard(ctx, id, func(j *cove.Job) { j.Branch = m.Text })
}

func (a agents) heard(ctx context.Context, id string, edit func(*cove.Job)) (cove.Job, error) {
	err := a.store.Jobs.Update(ctx, id, func(j *cove.Job) error {
		edit(j)
		j.State = cove.JobRunning
		return nil
	})
	if err != nil {
		return cove.Job{}, err
	}
	return a.store.Jobs.Get(ctx, id)
}

// hostile is a text that an agent may say, as the store has it: valid UTF-8.
var hostile = strings.ToValidUTF8(web.Hostile, "\uFFFD")

// site is a server with a job for each need.
func site(t testing.TB) *covetest.Server {
	t.Helper()
	s := covetest.Start(t, covetest.Options{Jobs: func(st *store.Store, _ *cove.Client) (server.Jobs, func() error, error) {
		return agents{store: st}, func() error { return nil }, nil
	}})
	said, detail := hostile, "rm -rf build "+strings.Repeat("x", 400)
	if shots() != "" { // which show what an agent says as a rule
		said, detail = "npm install", "npm install --save-dev vitest"
	}
	ended := time.Now().Add(-3 * time.Minute)
	for n, edit := range []func(*cove.Job){
		func(j *cove.Job) { j.PlanName = "repair-tests.md" },
		func(j *cove.Job) {
			j.PlanName, j.State = "add-vitest.md", cove.JobWaiting
			j.Question = &cove.JobQuestion{ID: "q", Title: "Run " + said, Kind: "execute", Detail: detail, Options: []cove.QuestionOption{{ID: "yes", Name: "Allow " + said, Kind: "allow_once"}, {ID: "always", Name: "Allow always", Kind: "allow_always"}, {ID: "no", Name: "Reject", Kind: "reject_once"}}}
		},
		func(j *cove.Job) { j.PlanName, j.State, j.Converse = "new-search.md", cove.JobWaiting, true },
		func(j *cove.Job) {
			j.PlanName, j.State, j.EndedAt, j.Outcome = "failed "+said+".md", cove.JobFailed, &ended, &cove.Outcome{Kind: "agent_failed", Reason: "exit code 1:\nnpm ERR!"}
		},
		func(j *cove.Job) {
			j.PlanName, j.State, j.EndedAt, j.Commits, j.Head, j.Usage = "faster-lists.md", cove.JobSucceeded, &ended, 3, strings.Repeat("cafe", 10), &cove.Usage{Turns: 12, CostUSD: 0.834}
		},
		func(j *cove.Job) { j.PlanName, j.State = "update-docs.md", cove.JobPreparing },
	} {
		put(t, s, n+1, edit)
	}
	must(t, s.Store.Jobs.UpdateStep(t.Context(), "000006", cove.StepClone, func(step *cove.Step) { store.BeginStep(step, time.Now()) }))
	say(t, s, 1, 1, "reading the tests")
	held := &sprites.Held{Code: "disk_limit", Since: time.Now(), UsedBytes: 2 << 30, LimitBytes: 1 << 30}
	must(t, s.Store.Sprites.Create(t.Context(), &store.Sprite{ID: "0123456789abcdef", Name: "full", MachineID: strings.Repeat("1", 32), Base: "host", Status: sprites.StatusCold, Labels: []string{"team"}, Held: held}))
	return s
}

// put puts a job into the store.
func put(t testing.TB, s *covetest.Server, n int, edit func(*cove.Job)) {
	t.Helper()
	job := cove.Job{
		ID: fmt.Sprintf("%06x", n), State: cove.JobRunning, CreatedAt: time.Now().Add(-time.Duration(n) * time.Minute),
		JobSettings: cove.JobSettings{Agent: "claude", Sprite: fmt.Sprintf("job-%06x", n), Profile: "fast"},
		JobSource:   cove.JobSource{PlanName: fmt.Sprintf("plan-%d.md", n), Repository: "paint", Branch: "main", Base: strings.Repeat("ab", 20)},
	}
	edit(&job)
	must(t, s.Store.Jobs.Create(t.Context(), job, nil))
}

// say adds a line to a job's log.
func say(t testing.TB, s *covetest.Server, n int, seq int64, text string) {
	t.Helper()
	must(t, s.Store.Jobs.Append(t.Context(), fmt.Sprintf("%06x", n), []cove.JobEvent{{Seq: seq, Type: "output", Stream: "stdout", Text: text}}, &cove.JobLatest{Said: text, Turns: seq}))
}

// TestNow: the start page shows what needs a person, takes answers on the spot, and changes with the
// jobs: row by row, and without growing.
func TestNow(t *testing.T) {
	s := site(t)
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Desktop)
	phone := b.Open(s.Client(), webtest.Phone)
	for _, p := range []*webtest.Page{page, phone} {
		for id, in := range map[string]string{"job-000002": "needs", "job-000003": "needs", "job-000004": "needs", "sprite-full": "needs", "job-000001": "working", "job-000006": "working", "job-000005": "review"} {
			p.Wait("#" + in + " #" + id)
		}
		for _, text := range []string{"Needs me 4", "Working 2", "Ready for review 1", "reading the tests", "clone", "exit code 1", "cove pull 000005", "3 commits", "12 turns", "$0.83", "cove update full --disk"} {
			p.Sees(text)
		}
		narrow(t, p)
	}
	shot(t, page, "now")
	shot(t, phone, "now-phone")
	if shots() != "" {
		page.Resize(webtest.Desktop, "dark")
		shot(t, page, "now-dark")
		page.Resize(webtest.Desktop, "light")
	}

	// One row changes: the others are the very same elements.
	page.Eval(`window.kept = ["job-000002", "job-000005", "job-000006"].map(id => document.getElementById(id)); true`, nil)
	page.Fill("#send-000003", "half a message")
	say(t, s, 1, 2, "running the tests")
	page.Sees("running the tests")
	page.Sees("2 turns")
	page.Until("other rows are kept", `window.kept.every(e => e.isConnected)`)

	// After many changes, the page is as large as before.
	var before, after int
	page.Eval(`document.querySelectorAll("*").length`, &before)
	for n := int64(3); n < 203; n++ {
		say(t, s, 1, n, fmt.Sprint("line ", n))
	}
	page.Sees("line 202")
	page.Eval(`document.querySelectorAll("*").length`, &after)
	if after != before {
		t.Errorf("%d elements became %d", before, after)
	}

	// And after a day.
	for _, path := range []string{"/web", "/web/jobs/000001", "/web/sprites/full"} {
		day := b.Open(s.Client(), webtest.Desktop)
		day.Goto(path)
		day.Eval(`document.querySelectorAll("*").length`, &before)
		day.Pass(24 * time.Hour)
		day.Until("its times are of a day later", `[...document.querySelectorAll("time")].some(t => t.textContent.startsWith("24 h"))`)
		day.Eval(`document.querySelectorAll("*").length`, &after)
		if after != before {
			t.Errorf("%s: %d elements became %d in a day", path, before, after)
		}
	}

	// A list gets another row: what a person has typed stays.
	put(t, s, 7, func(j *cove.Job) { j.PlanName, j.State = "also.md", cove.JobWaiting })
	page.Wait("#needs #job-000007")
	page.Until("the message is there", `document.getElementById("send-000003").value === "half a message"`)
	page.Click("#job-000003 form button")
	page.Wait("#working #job-000003")
	page.Sees("@ half a message")

	phone.Click(`#job-000002 button[value="always"]`)
	phone.Wait("#working #job-000002")
	page.Wait("#working #job-000002")
	job, err := s.Store.Jobs.Get(t.Context(), "000002")
	must(t, err)
	if job.Answered == nil || job.Answered.Question != "q" || job.Answered.Option != "always" {
		t.Errorf("answered %+v", job.Answered)
	}
	page.Click(`#job-000004 [aria-label="Set aside 000004"]`)
	phone.Until("it has left", `!document.getElementById("job-000004")`)
	page.Until("it has left", `!document.querySelector("#needs #job-000004")`)
	page.Sees("Job 000004 is set aside.")
	shot(t, page, "set-aside-desktop")
	page.Click("#undo [hx-post]")
	page.Wait("#needs #job-000004")
	phone.Wait("#needs #job-000004")
	page.Sees("Job 000004 is back.")
	page.Click("#undo [data-empties]")
	phone.Click(`#job-000004 [aria-label="Set aside 000004"]`)
	phone.Sees("Job 000004 is set aside.")
	narrow(t, phone)
	shot(t, phone, "set-aside-phone")
	page.Until("it has left again", `!document.querySelector("#needs #job-000004") && !document.getElementById("undo").textContent`)
	page.Goto("/web/jobs?group=done")
	page.Click(`[aria-label="Bring back 000004"]`)
	phone.Wait("#needs #job-000004")

	// Filters are the lists' own, and their stream's.
	page.Goto("/web?repository=none")
	page.Sees("Nothing waits for you.")
	put(t, s, 8, func(j *cove.Job) { j.Repository = "none" })
	page.Wait("#working #job-000008")
}

// TestListPages: jobs and sprites have pages and filters; the search finds all kinds.
func TestListPages(t *testing.T) {
	s := site(t)
	for n := 100; n < 220; n++ {
		put(t, s, n, func(j *cove.Job) { j.State = cove.JobSucceeded })
	}
	for n := range 60 {
		must(t, s.Store.Sprites.Create(t.Context(), &store.Sprite{ID: fmt.Sprintf("%016x", n+1), Name: fmt.Sprintf("p-%02d", n), MachineID: strings.Repeat("1", 32), Base: "host", Status: sprites.StatusCold}))
	}
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Phone)
	page.Goto("/web/jobs")
	page.Sees("Jobs 126")
	narrow(t, page)
	for range 2 {
		page.Until("it is a full page", `document.querySelectorAll("#list .item").length === 50`)
		page.Eval(`window.old = true`, nil)
		page.Click("a[rel=next]")
		page.Until("the next page", `!window.old && document.readyState === "complete"`)
	}
	page.Until("the last page", `document.querySelectorAll("#list .item").length === 26 && !document.querySelector("a[rel=next]")`)
	page.Goto("/web/jobs?group=needs")
	page.Sees("Jobs 3")
	page.Wait("#job-000004")
	page.Click(".filter summary")
	page.Fill("select[name=state]", "failed")
	page.Click(".filter-form button")
	page.Sees("Jobs 1")
	page.Wait("#job-000004")
	put(t, s, 9, func(j *cove.Job) { j.State = cove.JobFailed })
	page.Wait("#job-000009")
	page.Until("the tab counts as the list does", `document.querySelector("#kinds [aria-current] .count").innerText === "2" && document.querySelector("#list-title .count").innerText === "2"`)

	page.Goto("/web/sprites")
	page.Until("it is a full page", `document.querySelectorAll("#list .item").length === 50`)
	narrow(t, page)
	page.Click("a[rel=next]")
	page.Until("the rest", `document.querySelectorAll("#list .item").length === 11`)
	page.Goto("/web/sprites?state=held")
	page.Wait("#sprite-full")
	page.Until("only that", `document.querySelectorAll("#list .item").length === 1`)
	must(t, s.Store.Sprites.Delete(t.Context(), "0123456789abcdef"))
	page.Sees("No sprite matches.")

	page.Fill(".find input", "cafeca")
	page.Type("\r")
	page.Sees("the last commit of job 000005")
	narrow(t, page)
	if shots() != "" {
		wide := b.Open(s.Client(), webtest.Desktop)
		for name, path := range map[string]string{"jobs": "/web/jobs?group=needs", "sprites": "/web/sprites", "search": "/web/search?q=reading"} {
			wide.Goto(path)
			glance(t, wide, name)
		}
	}
	page.Goto("/web/search?q=READING+the")
	page.Wait("#lines li")
	said := "onerror"
	if shots() != "" {
		said = "npm"
	}
	page.Goto("/web/search?q=" + said)
	page.Wait("#job-000004")
	narrow(t, page)
	page.Goto("/web/search?q=%3Cscript%3E")
	page.Sees("Nothing has “<script>”")
	page.Goto("/web/search?q=x")
	page.Sees("2 to 200 bytes")
	page.Goto("/web/components")
	narrow(t, page)
}
