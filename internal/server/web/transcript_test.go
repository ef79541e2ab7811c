package web_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// TestLargeTranscript: an agent writes long diffs. The page of its job stays small when it is
// loaded, when more is asked for, and when it is left open.
func TestLargeTranscript(t *testing.T) {
	const budget, rows = 2 << 20, 16000
	s := covetest.Start(t, covetest.Options{Log: io.Discard})
	put(t, s, 1, func(j *cove.Job) {})
	diff, err := json.Marshal("```diff\n" + strings.Repeat("+\n", rows))
	must(t, err)
	seq := int64(1)
	talks := func(n int, last string) {
		t.Helper()
		var events []cove.JobEvent
		for range n {
			events = append(events, cove.JobEvent{Seq: seq, Type: "output", Stream: "stdout", Text: `{"type":"assistant","message":{"content":[{"type":"text","text":` + string(diff) + `}]}}`})
			seq++
		}
		events = append(events, cove.JobEvent{Seq: seq, Type: "output", Stream: "stdout", Text: last})
		seq++
		must(t, s.Store.Jobs.Append(t.Context(), "000001", events, &cove.JobLatest{Said: last, Turns: seq}))
	}
	for range 4 {
		talks(80, "so far")
	}
	c := visitor(t, s)
	for _, path := range []string{"/web/jobs/000001", "/web/jobs/000001/earlier?before=200"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		must(t, err)
		resp, err := c.Do(req)
		must(t, err)
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		must(t, resp.Body.Close())
		if len(body) > budget || !strings.Contains(string(body), "lines more") || !strings.Contains(string(body), "Show earlier") {
			t.Errorf("%s has %d bytes", path, len(body))
		}
	}

	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Desktop)
	page.Goto("/web/jobs/000001")
	const atEnd = `(ol => ol.scrollTop > 0 && ol.scrollHeight - ol.scrollTop - ol.clientHeight < 40)(document.getElementById("transcript"))`
	page.Until("it begins at its newest lines", atEnd)
	opensAtNewest(t, s, b)
	for _, last := range []string{"first", "second", "third"} {
		talks(100, last)
		page.Until(last+" is there", `document.querySelector("#transcript > li:last-child")?.textContent.includes("`+last+`")`)
	}
	page.Until("it follows what comes", atEnd)
	page.Until("the page has let go of what is old", `document.getElementsByTagName("*").length < 62000 && !!document.querySelector("#earlier button")`)
	page.Eval(`document.querySelector("#earlier button").click(); true`, nil)
	page.Until("what was before is there", `document.querySelector("#earlier") && !document.querySelector(".htmx-request") && document.querySelectorAll("#transcript > [data-seq]").length > 0`)
}

// opensAtNewest: on a phone, things that need a person come first, then the conversation, then the rest. The
// conversation begins at its newest lines, or at the event that the address names.
func opensAtNewest(t *testing.T, s *covetest.Server, b *webtest.Browser) {
	t.Helper()
	put(t, s, 2, func(j *cove.Job) {
		j.State = cove.JobWaiting
		j.Question = &cove.JobQuestion{ID: "q", Title: "Run it?", Options: []cove.QuestionOption{{ID: "yes", Name: "Yes", Kind: "allow_once"}}}
	})
	for n := range int64(200) {
		must(t, s.Store.Jobs.Append(t.Context(), "000002", []cove.JobEvent{{Seq: n + 1, Type: "input", Text: "message " + strconv.FormatInt(n+1, 10)}}, nil))
	}
	phone := b.Open(s.Client(), webtest.Phone)
	phone.Goto("/web/jobs/000002")
	const sees = `(e => { const box = document.getElementById("transcript").getBoundingClientRect(), r = e.getBoundingClientRect(); return r.top >= box.top - 1 && r.bottom <= box.bottom + 1; })`
	phone.Until("the last message is seen", sees+`(document.querySelector("#transcript > li:last-child"))`)
	phone.Until("what needs me, the conversation, the rest", `(tops => tops.every((top, i) => i === 0 || tops[i - 1] < top))(["job-head", "job-question", "transcript", "job-acts", "job-steps"].map(id => document.getElementById(id).getBoundingClientRect().top))`)
	narrow(t, phone)
	shot(t, phone, "job-newest-phone")
	phone.Eval(`document.getElementById("said").innerHTML = '<p class="saying" data-before>The job is begun.</p>'; document.querySelector("main").insertAdjacentHTML("beforeend", '<form class="comment-form"><textarea></textarea></form>'); true`, nil)
	phone.Until("a comment that has no text is left", `dispatchEvent(new Event("beforeunload", { cancelable: true }))`)
	phone.Eval(`document.querySelector(".comment-form textarea").value = "Use blue."; true`, nil)
	phone.Until("one that is being written is not", `!dispatchEvent(new Event("beforeunload", { cancelable: true }))`)
	phone.Eval(`document.querySelector(".comment-form").remove(); true`, nil)
	desk := b.Open(s.Client(), webtest.Desktop)
	desk.Goto("/web/jobs/000002")
	for n := range int64(60) {
		must(t, s.Store.Jobs.Append(t.Context(), "000002", []cove.JobEvent{{Seq: 201 + n, Type: "output", Stream: "stdout", Text: "line " + strconv.FormatInt(n, 10) + "\n"}}, nil))
		if n == 30 {
			desk.Sees("line 30")
		}
	}
	const last = `(p => p?.textContent.includes("line 59") && p.scrollTop > 0 && p.scrollHeight - p.scrollTop - p.clientHeight < 40)([...document.querySelectorAll("#transcript pre.screen")].at(-1))`
	desk.Until("a long output is followed", last)
	desk.Goto("/web/jobs/000002")
	desk.Until("and begins at its end", last)
	_, err := s.Store.Jobs.Finish(t.Context(), "000002", cove.JobSucceeded, cove.Outcome{Kind: "success"}, func(j *cove.Job) { j.Question, j.Commits, j.Head = nil, 1, "cafe" })
	must(t, err)
	phone.Until("the tab counts the commits, and what the page before has said of the job at work is gone", `document.querySelector("#job-tabs .count")?.textContent === "1" && document.getElementById("said").textContent === ""`)
	phone.Goto("/web/jobs/000002#event-20")
	phone.Until("the event that the address names is seen", sees+`(document.querySelector('#transcript > .named[data-seq="20"]'))`)
}
