package web_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// seenWhole is an expression that an element of the conversation is in view, in its box and in the window.
const seenWhole = `(e => { if (!e) return false; const box = document.getElementById("transcript").getBoundingClientRect(), r = e.getBoundingClientRect(); return r.height > 0 && r.top >= Math.max(0, box.top - 1) && r.bottom <= Math.min(innerHeight, box.bottom + 1); })`

// TestSearchHit: a hit of a search in a long log leads to its line, which is in view and
// marked alone. The lines before and after it can be shown, and the job's present work is not
// put behind a gap.
func TestSearchHit(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	put(t, s, 1, func(*cove.Job) {})
	const all = 20_000
	var seq int64
	adds := func(n int64) {
		t.Helper()
		var events []cove.JobEvent
		for range n {
			seq++
			events = append(events, cove.JobEvent{Seq: seq, Type: "output", Stream: "stdout", Text: fmt.Sprintf("%d a line of the log", seq-16)})
		}
		must(t, s.Store.Jobs.Append(t.Context(), "000001", events, &cove.JobLatest{Said: "a line", Turns: seq}))
	}
	for seq < all {
		adds(500)
	}
	page := webtest.Start(t).Open(s.Client(), webtest.Desktop)
	marked := func(n int64) string {
		return fmt.Sprintf(`(all => all.length === 1 && all[0].dataset.seq === "%d" && all[0].textContent.trim() === "%d a line of the log" && %s(all[0]))([...document.querySelectorAll(".named")])`, n, n-16, seenWhole)
	}
	page.Goto("/web/search?q=7345+a+line")
	page.Click(`#lines a[href$="?at=7361#event-7361"]`)
	page.Until("the line is marked, and seen", marked(7361))
	page.Until("its neighbours stand beside it", `(li => li.previousElementSibling.firstChild.scrollTop > 0 && li.nextElementSibling.firstChild.scrollTop === 0)(document.querySelector(".named"))`)
	glance(t, page, "job-hit")
	has := func(n int64) string {
		return fmt.Sprintf(`document.getElementById("transcript").textContent.includes("\n%d a line of the log")`, n-16)
	}
	page.Until("the lines around it are there", has(7350)+" && "+has(7400))
	page.Click("#earlier button")
	page.Until("those before are shown above", has(6900)+` && document.querySelectorAll(".named").length === 1`)
	page.Click("#later button")
	page.Until("those after are shown below", has(7900)+` && document.getElementById("transcript").lastElementChild.id === "later"`)
	adds(1)
	must(t, s.Store.Jobs.Update(t.Context(), "000001", func(j *cove.Job) error { j.Branch = "told"; return nil }))
	page.Until("the page has heard of the job", `document.getElementById("job-head").textContent.includes("told")`)
	page.Until("what is new is not put behind a gap", "!("+has(seq)+")")
	page.Click("#later a")
	page.Until("the newest lines are there", has(seq)+` && location.search === "" && !document.getElementById("later")`)
	adds(1)
	page.Until("and what is new", has(seq))

	page.Goto(fmt.Sprintf("/web/jobs/000001#event-%d", seq-10))
	page.Until("a line among others is marked alone", marked(seq-10))
	const lacks = `!document.querySelector(".named") && document.getElementById("event-lacks")?.textContent.startsWith("Event %d can’t be shown: ")`
	for _, path := range []string{"/web/jobs/000001?at=%d#event-%[1]d", "/web/jobs/000001#event-%d"} {
		page.Goto(fmt.Sprintf(path, 30_000))
		page.Until("nothing else is marked", fmt.Sprintf(lacks, 30_000))
		page.Goto("/web")
	}
	must(t, s.Store.Jobs.Create(t.Context(), cove.Job{ID: "000002", State: cove.JobSucceeded, JobSettings: cove.JobSettings{Agent: "claude"}, JobSource: cove.JobSource{PlanName: "plan.md"}}, nil))
	var events []cove.JobEvent
	for n := range int64(700) {
		if n == 99 {
			events = append(events, cove.JobEvent{Seq: n + 1, Type: "later than this cove"})
		} else {
			events = append(events, cove.JobEvent{Seq: n + 1, Type: "output", Stream: "stdout", Text: fmt.Sprintf(`{"type":"assistant","message":{"content":[{"type":"thinking","thinking":"thought %d."}]}}`, n+1)})
		}
	}
	must(t, s.Store.Jobs.Append(t.Context(), "000002", events, &cove.JobLatest{}))
	page.Goto("/web/jobs/000002?at=100#event-100")
	page.Until("nothing is marked in the place of what can't be shown", fmt.Sprintf(lacks, 100)+` && document.getElementById("later")`)
	page.Goto("/web/jobs/000002?at=120#event-120")
	page.Until("what is folded is opened", `document.querySelector(".named details[open]")?.textContent.includes("thought 120.") && `+seenWhole+`(document.querySelector(".named"))`)
	page.Click("#later button")
	page.Until("the end is reached", `document.getElementById("transcript").textContent.includes("thought 700.") && !document.getElementById("later")`)
}

// TestConversationInWindow: the newest line of a job's conversation is in the window when its page is opened.
func TestConversationInWindow(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	put(t, s, 1, func(*cove.Job) {})
	for n := range int64(100) {
		must(t, s.Store.Jobs.Append(t.Context(), "000001", []cove.JobEvent{{Seq: n + 1, Type: "input", Text: fmt.Sprintf("message %d", n+1)}}, nil))
	}
	page := webtest.Start(t).Open(s.Client(), webtest.Desktop)
	for _, size := range []webtest.Size{webtest.Desktop, {Width: 1366, Height: 768}, {Width: 1440, Height: 900}, {Width: 1920, Height: 1080}} {
		page.Resize(size, "light")
		page.Goto("/web/jobs/000001")
		page.Until(fmt.Sprintf("the newest line is seen at %d×%d", size.Width, size.Height), seenWhole+`(document.querySelector("#transcript > li:last-child")) && document.getElementById("transcript").getBoundingClientRect().bottom <= innerHeight`)
		var box [2]float64
		page.Eval(`(r => [r.top, r.height])(document.getElementById("transcript").getBoundingClientRect())`, &box)
		t.Logf("%v: the box begins at %.0f, and is %.0f high", size, box[0], box[1])
	}
}
