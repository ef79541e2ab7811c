package web_test

import (
	"fmt"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/jobtest"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

// TestSaidAtEnd: a button of a job's page says what it did. It does so though the job ends by
// it, and though the stream replaces the button before the answer is there. The message of the
// page before goes when the job ends.
func TestSaidAtEnd(t *testing.T) {
	s := jobtest.Start(t)
	for n := range 4 {
		put(t, s, n+1, func(j *cove.Job) {
			if n < 3 {
				j.State = cove.JobQueued
			}
		})
	}
	page := webtest.Start(t).Open(s.Client(), webtest.Desktop)
	says := func(id string) string {
		return fmt.Sprintf(`document.querySelector("#job-head .badge.cancelled") && document.querySelector("#said .saying")?.textContent.includes("Job %s was told to stop: its work so far is kept.")`, id)
	}
	stop := func() {
		page.Click(`[data-opens="stop-job"]`)
		page.Click("#stop-job .danger")
	}
	page.Goto("/web/jobs/000001")
	stop()
	page.Until("it says so", says("000001"))

	page.Goto("/web/jobs/000002")
	page.Eval(`(() => {
		const acts = document.getElementById("job-acts");
		document.getElementById("notice").innerHTML = '<div class="error">It was refused.</div>';
		document.addEventListener("htmx:beforeSend", () => acts.replaceWith(acts.cloneNode(true)), {once: true});
	})()`, nil)
	stop()
	page.Until("a button that is gone says so", says("000002"))
	page.Until("the error of before is gone", `!document.querySelector("#notice .error")`)

	page.Goto("/web/jobs/000004")
	page.Eval(`fetch("/web/jobs/000003/stop", {method: "POST", redirect: "manual", headers: {"X-Cove-Mark": document.querySelector('meta[name="cove-mark"]').content}}).then(() => true)`, nil)
	const before = `document.querySelector("#said .saying")?.textContent.includes("Job 000003 was told to stop")`
	page.Goto("/web/jobs/000004")
	page.Until("the page says what was done before it", before)
	_, err := s.Store.Jobs.Finish(t.Context(), "000004", cove.JobSucceeded, cove.Outcome{Kind: "success"}, func(*cove.Job) {})
	must(t, err)
	page.Until("that is over", `document.querySelector("#job-head .badge.succeeded") && document.getElementById("said").textContent === ""`)
}

// TestAskedAgain: one answer stands on the page of what a person asks for. An error takes the answer before it away, from
// its place and above the page, and a good answer takes the error away.
func TestAskedAgain(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Runtime: runtimeOf(t)})
	must(t, s.Create("paint").SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "open"}, {Include: "defaults"}}}))
	page := webtest.Start(t).Open(s.Client(), webtest.Desktop)
	page.Allow("400")
	page.Goto("/web/sprites/paint/network")
	page.Click(`[aria-label="Remove preset open"]`)
	page.Sees("The rule is removed: preset open.")
	asks := func(field, text string) {
		page.Fill(field, text)
		page.Type("\r")
	}
	const card, said, refused = `document.getElementById("allow-it")`, `document.querySelector("#said .saying")`, `document.querySelector("#notice .error")`
	asks(`[name="rule"]`, "preset agent")
	page.Until("the rule is shown, and the sentence is gone", card+" && !"+said)
	page.Eval(`document.getElementById("said").innerHTML = '<p class="saying">It was done.</p>'; true`, nil)
	asks(`[name="rule"]`, "not a host!!")
	page.Until("the error stands alone", refused+" && !"+card+" && !"+said)
	asks(`[name="rule"]`, "preset agent")
	page.Until("the card stands alone", card+" && !"+refused)
	asks("#target", "example.org:443")
	page.Until("it is decided", `document.querySelector("#decision .badge")`)
	asks("#target", "not a host!!")
	page.Until("the decision is gone", refused+` && !document.querySelector("#decision .badge")`)
	page.Until("what was asked elsewhere stays", card)
}

// TestDialogStays: a dialog that is open stays open if the part of the page around it changes. It
// goes if the page no longer has the button that opens it.
func TestDialogStays(t *testing.T) {
	s := jobtest.Start(t)
	for n := range 2 {
		put(t, s, n+1, func(j *cove.Job) { j.State = cove.JobQueued })
	}
	page := webtest.Start(t).Open(s.Client(), webtest.Desktop)
	const over = `document.querySelector("#job-head .badge.cancelled") && !document.querySelector('[data-opens="stop-job"]')`
	stop := func(id string) {
		if _, err := s.Client().StopJob(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		page.Until("the job has ended", over)
	}

	page.Goto("/web/jobs/000001")
	page.Click(`[data-opens="delete-job"]`)
	page.Wait("#delete-job[open]")
	stop("000001")
	page.Until("the dialog is open", `document.querySelector("#delete-job:modal")`)
	page.Click("#delete-job .danger")
	page.Until("the job is deleted", `location.pathname !== "/web/jobs/000001"`)

	page.Goto("/web/jobs/000002")
	page.Click(`[data-opens="stop-job"]`)
	page.Wait("#stop-job[open]")
	stop("000002")
	page.Until("there is nothing to stop", `!document.querySelector("dialog[open]")`)
}
