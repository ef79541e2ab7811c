package web_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// TestLargeTranscript: the page of a job whose agent writes long diffs stays small, when it is loaded, when
// more is asked for, and when it is left open.
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
		if len(body) > budget || !strings.Contains(string(body), "lines more") || !strings.Contains(string(body), "Show what was before") {
			t.Errorf("%s has %d bytes", path, len(body))
		}
	}

	page := webtest.Start(t).Open(s.Client(), webtest.Desktop)
	page.Goto("/web/jobs/000001")
	for _, last := range []string{"first", "second", "third"} {
		talks(100, last)
		page.Until(last+" is there", `document.querySelector("#transcript > li:last-child")?.textContent.includes("`+last+`")`)
	}
	page.Until("the page has let go of what is old", `document.getElementsByTagName("*").length < 62000 && !!document.querySelector("#earlier button")`)
	page.Eval(`document.querySelector("#earlier button").click(); true`, nil)
	page.Until("what was before is there", `document.querySelector("#earlier") && !document.querySelector(".htmx-request") && document.querySelectorAll("#transcript > [data-seq]").length > 0`)
}
