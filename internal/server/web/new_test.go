package web_test

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/gitserver"
	"github.com/cove-dev/cove/internal/test/jobtest"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// TestFirstRun: somebody who has not seen cove before comes to a finished first job with two clicks,
// on a phone too. Its repository is in the sprite alone, and its commits repair the repository.
func TestFirstRun(t *testing.T) {
	s := jobtest.Start(t)
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Phone)
	page.Goto("/web/first")
	page.Sees("Repair the greeting")
	narrow(t, page)
	shot(t, page, "first-phone")
	page.Click("#first-start")
	page.Sees("It is done")
	page.Sees("cove push plan.md")
	narrow(t, page)
	shot(t, page, "first-done-phone-all")
	glance(t, page, "first-done-phone")
	jobs, err := s.Client().Jobs(t.Context())
	must(t, err)
	page.Sees("cove run plan.md --agent shell")
	for _, path := range []string{"/web", "/web/jobs/" + jobs[0].ID} {
		page.Goto(path)
		page.Until("a command that needs no repository here is offered", `(c => c.some(t => t.startsWith("cove sync pull -s `+jobs[0].Sprite+` /")) && !c.some(t => t.startsWith("cove pull")))([...document.querySelectorAll(".copy code")].map(e => e.textContent))`)
		narrow(t, page)
	}
	page.Until("the plan is there", `document.getElementById("told").textContent.includes("Repair the greeting")`)
	shot(t, page, "first-job-phone")
	page.Goto("/web/first")
	if len(jobs) != 1 || !jobs[0].CopiesOnly() || jobs[0].State != cove.JobSucceeded || jobs[0].Commits != 2 || jobs[0].Repository != "hello" {
		t.Fatalf("the jobs are %+v", jobs)
	}
	newJob(t, s.Client(), b)
	destroyAll(t, s.Client(), page)
}

// newJob: a plan is checked as it is typed, with its headings beside it. A refusal is shown
// with its hint. The command for one's own machine says what was chosen, and a job by URL
// begins.
func newJob(t *testing.T, c *cove.Client, b *webtest.Browser) {
	_, err := cove.Profiles{Client: c}.Put(t.Context(), "nightly", 0, cove.ProfileSettings{Agent: "shell", Description: "Repairs at night", TimeoutSec: 600, Env: map[string]string{"CI": "1"}})
	must(t, err)
	git := gitserver.Start(t, "", "")
	url := git.Repository("team/project.git", map[string]string{"README": "hello\n"})
	_, err = c.PutConnector(t.Context(), cove.Connector{Name: "forge", Upstream: git.URL, Git: true})
	must(t, err)

	page := b.Open(c, webtest.Desktop)
	page.Goto("/web/new")
	const asks = `!dispatchEvent(new Event("beforeunload", { cancelable: true }))`
	page.Until("an empty page may be left", "!("+asks+")")
	page.Fill("#plan", "# Say more\n\nNothing to run.\n")
	page.Until("a plan that was typed is not left without a question", asks)
	page.Fill("[name=agent]", "shell")
	page.Fill("[name=url]", url)
	page.Sees("has no block for a shell")
	page.Fill("#plan", "# Say more\n\n## Write it\n\n```sh\necho more >>README\n```\n")
	page.Sees("The server would take it")
	page.Until("the steps are beside it", `document.querySelectorAll(".plan-steps li").length === 2`)
	page.Fill("[name=profile]", "nightly")
	page.Fill("[name=turns]", "9")
	page.Sees("The profile nightly gives")
	narrow(t, page)
	shot(t, page, "new-desktop")

	page.Click("[name=from][value=machine]")
	page.Until("the command is there", `document.querySelector("#check .copy code")?.innerText === "cove push say-more.md --profile nightly --agent shell --max-turns 9"`)
	shot(t, page, "new-machine-desktop")
	page.Click("[name=from][value=url]")
	page.Until("it can be started", `document.querySelector("#start:not([disabled])")`)
	page.Allow("404") // the job's own page
	page.Click("#start")
	page.Until("the job's page", `location.pathname.startsWith("/web/jobs/")`)
	var id string
	page.Eval(`location.pathname.slice("/web/jobs/".length)`, &id)
	job, err := c.WaitJob(t.Context(), id)
	must(t, err)
	if job.State != cove.JobSucceeded || job.Commits != 1 || job.Profile != "nightly" || job.Guards.Turns != 9 || job.PlanName != "say-more.md" || !strings.HasSuffix(job.URL, "team/project.git") {
		t.Errorf("got %+v", job)
	}

	phone := b.Open(c, webtest.Phone)
	phone.Goto("/web/new?profile=nightly&network=open&plan=rm&url=" + url)
	phone.Until("a link has filled in nothing", `document.readyState === "complete" && ["profile", "network", "plan", "url"].every(name => document.querySelector("[name=" + name + "]").value === "")`)
	phone.Fill("[name=profile]", "nightly")
	phone.Sees("The profile nightly gives")
	narrow(t, phone)
	shot(t, phone, "new-phone")
}
