package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// putJob puts a job into the store, as old as its number says.
func putJob(t *testing.T, s *covetest.Server, n int, edit func(*cove.Job)) cove.Job {
	t.Helper()
	job := cove.Job{
		ID: fmt.Sprintf("%06x", n), State: cove.JobRunning, CreatedAt: time.Date(2024, 5, 1, 12, 0, n/2, 0, time.UTC), // two at a time
		JobSettings: cove.JobSettings{Agent: "shell", Sprite: fmt.Sprintf("job-%06x", n)},
		JobSource:   cove.JobSource{PlanName: "plan.md", Repository: "paint", Branch: "main", Base: strings.Repeat("ab", 20)},
	}
	if edit != nil {
		edit(&job)
	}
	must(t, s.Store.Jobs.Create(t.Context(), job, nil))
	return job
}

func jobIDs(jobs []cove.Job) (all []string) {
	for _, job := range jobs {
		all = append(all, job.ID)
	}
	return all
}

// TestJobGroups: each job is in the group that says what it needs of a person, until that is
// over.
func TestJobGroups(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	group := func(want cove.JobGroup, n int, edit func(*cove.Job)) cove.Job {
		t.Helper()
		job := putJob(t, s, n, edit)
		for _, g := range cove.JobGroups {
			list, err := cove.ListJobs(t.Context(), s.Client(), cove.JobQuery{Group: g, Counts: true, Limit: 100})
			must(t, err)
			failIf(t, slices.Contains(jobIDs(list.Jobs), job.ID) != (g == want), "%s: job %d is, or is not, in %s", want, n, g)
			failIf(t, slices.ContainsFunc(list.Jobs, func(j cove.Job) bool { return j.Group() != g }), "a job of %s says that it is of another group", g)
			failIf(t, list.Counts[g] != len(list.Jobs), "%s: %d counted, %d listed", g, list.Counts[g], len(list.Jobs))
		}
		return job
	}
	ended := func(state cove.JobState, commits int) func(*cove.Job) {
		return func(j *cove.Job) { j.State, j.Commits = state, commits }
	}
	published := func(state string) func(*cove.Job) {
		return func(j *cove.Job) {
			j.State, j.Commits, j.Published = cove.JobSucceeded, 1, &cove.JobPublished{State: state}
		}
	}
	pulled := time.Now()
	group(cove.JobsWorking, 1, nil)
	group(cove.JobsWorking, 2, func(j *cove.Job) { j.State = cove.JobInstalling })
	group(cove.JobsNeeds, 3, func(j *cove.Job) { j.State = cove.JobWaiting })
	group(cove.JobsNeeds, 4, func(j *cove.Job) { j.Held = &sprites.Held{Code: "disk_limit"} })
	failed := group(cove.JobsNeeds, 5, ended(cove.JobFailed, 2))
	group(cove.JobsNeeds, 6, ended(cove.JobLost, 0))
	group(cove.JobsReview, 7, ended(cove.JobSucceeded, 1))
	group(cove.JobsReview, 8, ended(cove.JobCancelled, 1))
	group(cove.JobsDone, 9, ended(cove.JobSucceeded, 0))
	group(cove.JobsDone, 10, func(j *cove.Job) { j.State, j.Commits, j.PulledAt = cove.JobSucceeded, 1, &pulled })
	group(cove.JobsDone, 11, published(cove.PublishDone))
	group(cove.JobsReview, 12, published(cove.PublishPending))
	held := group(cove.JobsNeeds, 13, published(cove.PublishHeld))
	group(cove.JobsReview, 14, func(j *cove.Job) { j.State, j.Leftover = cove.JobSucceeded, strings.Repeat("1", 40) })
	group(cove.JobsDone, 15, func(j *cove.Job) { j.State, j.Commits, j.WorkDeleted = cove.JobSucceeded, 1, true })
	group(cove.JobsWorking, 16, func(j *cove.Job) { j.RetryOf = failed.ID }) // which takes failed out of needs

	job, err := cove.MarkSeen(t.Context(), s.Client(), held.ID)
	must(t, err)
	failIf(t, job.SeenAt == nil, "seen: %+v", job)
	_, err = cove.MarkSeen(t.Context(), s.Client(), "000001")
	failIf(t, err == nil, "a job that runs was marked as seen")
	list, err := cove.ListJobs(t.Context(), s.Client(), cove.JobQuery{Group: cove.JobsNeeds})
	must(t, err)
	failIf(t, fmt.Sprint(jobIDs(list.Jobs)) != "[000006 000004 000003]", "needs: %v", jobIDs(list.Jobs))

	job, err = cove.MarkUnseen(t.Context(), s.Client(), held.ID)
	must(t, err)
	failIf(t, job.SeenAt != nil || job.Group() != cove.JobsNeeds, "no longer seen: %+v", job)
	_, err = cove.MarkUnseen(t.Context(), s.Client(), "000001")
	failIf(t, err == nil, "a job that runs was taken back")
}

// TestJobsAfter: the jobs that do a job again, or go on with it, are found from it. Nobody
// needs to look at it any more. A token that does not reach those jobs is not told of them.
func TestJobsAfter(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	first := putJob(t, s, 1, func(j *cove.Job) { j.State, j.Commits = cove.JobSucceeded, 1 })
	failed := putJob(t, s, 2, func(j *cove.Job) { j.State, j.RetryOf = cove.JobFailed, first.ID })
	putJob(t, s, 3, func(j *cove.Job) { j.RetryOf, j.Sprite = first.ID, "job-000001" })
	on := putJob(t, s, 4, nil) // the server says only later what it goes on with
	must(t, s.Store.Jobs.Update(t.Context(), on.ID, func(j *cove.Job) error { j.ResumeOf = failed.ID; return nil }))
	tok, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "narrow", Scope: cove.TokenScope{Sprite: "job-000001"}, Verbs: []string{cove.VerbRead}})
	must(t, err)
	narrow := &cove.Client{Client: &sprites.Client{URL: s.URL, Token: tok.Secret}}
	for _, want := range []struct {
		c    *cove.Client
		of   string
		jobs string
	}{{s.Client(), first.ID, "[000002 000003]"}, {s.Client(), failed.ID, "[000004]"}, {s.Client(), on.ID, "[]"}, {narrow, first.ID, "[000003]"}} {
		list, err := cove.ListJobs(t.Context(), want.c, cove.JobQuery{Of: want.of})
		must(t, err)
		failIf(t, fmt.Sprint(jobIDs(list.Jobs)) != want.jobs, "after %s: %v, want %s", want.of, jobIDs(list.Jobs), want.jobs)
	}
	job, err := s.Client().Job(t.Context(), failed.ID)
	must(t, err)
	failIf(t, job.SeenAt == nil, "somebody goes on with it, and it is not seen")
}

// TestJobPlan: the server tells what an agent was told. If it can't read a job's settings, it
// says so.
func TestJobPlan(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	const told = `{"plan":"Paint it.","env":["KEY=hidden"]}`
	must(t, s.Store.Jobs.Create(t.Context(), cove.Job{ID: "000001", State: cove.JobSucceeded, JobSource: cove.JobSource{PlanName: "plan.md"}}, []byte(told)))
	plan, err := cove.PlanOf(t.Context(), s.Client(), "000001")
	must(t, err)
	failIf(t, plan.Name != "plan.md" || plan.Plan != "Paint it." || plan.Config != nil || len(plan.EnvNames) != 1 || plan.EnvNames[0] != "KEY", "got %+v", plan)
	ask(t, s, "GET /v1/jobs/000002/plan", "", header("Authorization", "Bearer "+s.Token)).refused(t, 404, "not_found")
}

// TestJobPages: pages are whole, whatever their size, and filters select by SQL.
func TestJobPages(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	_, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: "job-000003", Labels: []string{"team"}})
	must(t, err)
	for n := 1; n <= 9; n++ {
		putJob(t, s, n, func(j *cove.Job) {
			j.Profile = fmt.Sprint("p", n%2)
			if n == 4 {
				j.Repository, j.By = "100%_real", "tok1"
			}
		})
	}
	for size := 1; size <= 10; size++ {
		var all []string
		q := cove.JobQuery{Limit: size}
		for {
			list, err := cove.ListJobs(t.Context(), s.Client(), q)
			must(t, err)
			failIf(t, len(list.Jobs) > size, "a page of %d has %d", size, len(list.Jobs))
			all = append(all, jobIDs(list.Jobs)...)
			if q.After = list.Next; q.After == "" {
				break
			}
		}
		failIf(t, fmt.Sprint(all) != "[000008 000009 000006 000007 000004 000005 000002 000003 000001]", "by %d: %v", size, all)
	}
	for want, q := range map[string]cove.JobQuery{
		"[000003]":                             {Label: "team"},
		"[000004]":                             {Text: "100%_R"},
		"[000004] ":                            {By: "tok1"},
		"[000004]  ":                           {Repository: "100%_real"},
		"[]":                                   {Text: "1%r"},
		"[000008 000006 000004 000002]":        {Profile: "p0"},
		"[000009 000007 000005 000003 000001]": {Profile: "p1", By: "me"},
	} {
		list, err := cove.ListJobs(t.Context(), s.Client(), q)
		must(t, err)
		failIf(t, fmt.Sprint(jobIDs(list.Jobs)) != strings.TrimSpace(want), "%+v: %v, want %s", q, jobIDs(list.Jobs), want)
	}
	for _, bad := range []string{"after=x", "limit=0", "group=none", "counts=maybe"} {
		ask(t, s, "GET /v1/jobs?"+bad, "", header("Authorization", "Bearer "+s.Token)).refused(t, 400, "bad_request")
	}
}

// TestSearch: jobs, sprites, commits and lines are found; a narrow token finds nothing of others.
func TestSearch(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	for _, name := range []string{"mine-1", "other-needle"} {
		_, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: name, Labels: []string{"needle"}})
		must(t, err)
	}
	narrow := map[string]cove.Token{
		"prefix": token(t, s, cove.TokenScope{Prefix: "mine-"}, cove.VerbRead),
		"sprite": token(t, s, cove.TokenScope{Sprite: "mine-1"}, cove.VerbRead),
	}
	theirs := token(t, s, cove.TokenScope{Sprite: "nothing"}, cove.VerbRead)
	_, err := cove.Profiles{Client: s.Client()}.Put(t.Context(), "fast", 0, cove.ProfileSettings{})
	must(t, err)
	worker := token(t, s, cove.TokenScope{Profile: "fast"}, cove.VerbRead)
	for n, where := range []string{"mine-1", "other-needle", "backend", "started"} {
		job := putJob(t, s, n+1, func(j *cove.Job) {
			j.Sprite, j.PlanName, j.Head = where, "Needle.md", strings.Repeat("cafe", 10)
			switch where {
			case "backend":
				j.Backend, j.Sprite = "there", "mine-1"
			case "started":
				j.By = theirs.ID
			}
		})
		must(t, s.Store.Jobs.AppendEvents(t.Context(), job.ID, []cove.JobEvent{
			{Seq: 1, Type: "output", Text: "nothing"},
			{Seq: 2, Type: "output", Text: strings.Repeat("é", 200) + ` a "NEEDLE" & more ` + strings.Repeat("é", 200)},
		}))
	}
	look := func(c *cove.Client, text string) string {
		t.Helper()
		found, err := cove.Search(t.Context(), c, text)
		must(t, err)
		var names, of []string
		for _, sp := range found.Sprites {
			names = append(names, sp.Name)
		}
		for _, l := range found.Lines {
			of = append(of, fmt.Sprint(l.Job, " ", l.Seq))
			failIf(t, !strings.Contains(l.Text, `a "NEEDLE" & more`) || len(l.Text) > 400, "line: %q", l.Text)
		}
		for _, c := range found.Commits {
			of = append(of, c.Job+" "+c.Role)
		}
		return fmt.Sprint(jobIDs(found.Jobs), names, of)
	}
	is := func(who, got, want string) {
		t.Helper()
		failIf(t, got != want, "%s: found %s, want %s", who, got, want)
	}
	as := func(tok cove.Token) *cove.Client {
		c := s.Client()
		c.Token = tok.Secret
		return c
	}
	is("owner", look(s.Client(), "needle"), "[000004 000002 000003 000001] [mine-1 other-needle] [000004 2 000002 2 000003 2 000001 2]")
	is("owner", look(s.Client(), `"needle" &`), "[] [] [000004 2 000002 2 000003 2 000001 2]")
	is("owner", look(s.Client(), "CAFEca"), "[] [] [000004 head 000002 head 000003 head 000001 head]")
	for who, tok := range narrow {
		is(who, look(as(tok), "needle"), "[000001] [mine-1] [000001 2]")
		is(who, look(as(tok), "cafe"), "[] [] [000001 head]")
		list, err := cove.ListJobs(t.Context(), as(tok), cove.JobQuery{Counts: true})
		must(t, err)
		is(who, fmt.Sprint(jobIDs(list.Jobs), list.Counts), "[000001] map[working:1]")
	}
	is("who began it", look(as(theirs), "needle"), "[000004] [] [000004 2]")
	// A token for a profile reaches the sprites that were made for its jobs, and all jobs
	// there.
	putJob(t, s, 5, func(j *cove.Job) { j.By, j.Sprite, j.OwnsSprite, j.PlanName = worker.ID, "its-own", true, "a.md" })
	must(t, s.Store.Sprites.Create(t.Context(), &store.Sprite{ID: "0123456789abcdef", Name: "its-own", MachineID: strings.Repeat("1", 32), Base: "host", Owner: "job:000005", Status: sprites.StatusCold, Labels: []string{"needle"}}))
	putJob(t, s, 6, func(j *cove.Job) { j.Sprite, j.PlanName = "its-own", "needle.md" })
	is("who uses a profile", look(as(worker), "needle"), "[000006] [its-own] []")
	list, err := cove.ListJobs(t.Context(), as(worker), cove.JobQuery{})
	must(t, err)
	is("who uses a profile", fmt.Sprint(jobIDs(list.Jobs)), "[000006 000005]")
	ask(t, s, "GET /v1/search?q=x", "", header("Authorization", "Bearer "+s.Token)).refused(t, 400, "bad_request")
}
