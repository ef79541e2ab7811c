package web

import (
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove"
)

// component is one state of a component, as /web/components shows it.
type component struct {
	Name  string // of the template
	State string
	Data  any
}

// shown are the components in all of their states. TestComponents fails if a template of
// templates/components is missing.
func shown() []component {
	all := []component{
		{"error", "with a hint", problem{Status: 409, Code: "in_use", Title: "Conflict", Message: "the sprite paint is in use", Hint: "cove job stop 0a1b2c"}},
		{"error", "without one", problem{Status: 500, Code: "internal", Title: "Internal Server Error", Message: "the disk is full"}},
		{"todo", "a command", "cove job stop 0a1b2c"},
		{"todo", "a secret", "cove secret set anthropic"},
		{"empty", "nothing there", dictOf("Text", "No job has begun yet.", "Command", "cove push plan.md")},
		{"copy", "a command", "cove pull 0a1b2c"},

		// Components of lists.
		{"job-row", "at work", rowOf(shownJob(func(j *cove.Job) { j.Latest = &cove.JobLatest{Said: "go test ./...", Turns: 7, CostUSD: 0.41} }), true, true)},
		{"job-row", "is prepared", rowOf(shownJob(func(j *cove.Job) {
			j.State, j.Latest = cove.JobPreparing, &cove.JobLatest{Step: cove.StepClone, Said: "Receiving objects: 42%"}
		}), true, true)},
		{"job-row", "asks", rowOf(shownJob(shownQuestion), true, true)},
		{"job-row", "asks, to who may not answer", rowOf(shownJob(shownQuestion), false, false)},
		{"job-row", "waits for a message", rowOf(shownJob(func(j *cove.Job) { j.State, j.Converse = cove.JobWaiting, true }), true, true)},
		{"job-row", "failed", rowOf(shownJob(func(j *cove.Job) {
			j.State, j.Outcome = cove.JobFailed, &cove.Outcome{Kind: "agent_failed", Reason: "exit 1:\nnpm ERR! missing script"}
		}), true, true)},
		{"job-row", "set aside", rowOf(shownJob(func(j *cove.Job) { now := time.Now(); j.State, j.Commits, j.SeenAt = cove.JobSucceeded, 3, &now }), true, true)},
		{"set-aside", "done", dictOf("Row", nil, "ID", "0a1b2c", "Undone", false)},
		{"set-aside", "undone", dictOf("Row", nil, "ID", "0a1b2c", "Undone", true)},
		{"job-row", "ready for review", rowOf(shownJob(func(j *cove.Job) { j.State, j.Commits = cove.JobSucceeded, 3 }), true, true)},
		{"question", "with options", dictOf("Job", jobRow{ID: "0a1b2c", MayExec: true}, "Question", rowOf(shownJob(shownQuestion), true, true).Question)},
		{"sprite-row", "runs", spriteRow{Name: "paint", To: "/web/sprites/paint", Status: "running", State: "running", Labels: []string{"ci"}, Memory: "2.0 GiB", Disk: "812.0 MiB", Awake: []string{"exec"}}},
		{"sprite-row", "held", spriteRow{Name: "paint", To: "/web/sprites/paint", Status: "warm", State: "paused (held)", Why: "sprite paint has reached its disk limit: it takes 1024 MiB of 1024, and is paused", Hint: "raise the limit with: cove update paint --disk 1536M; then it resumes"}},
		{"section", "with rows", section{ID: "shown-rows", Title: "Working", Count: "1", Rows: []row{{"job-0a1b2c", "job-row", rowOf(shownJob(nil), true, true)}}, More: "/web/jobs?group=working"}},
		{"section", "empty", section{ID: "shown-empty", Title: "Needs me", Count: "0", Empty: "Nothing waits for you."}},
		{"job-filter", "of all lists", jobForm{Action: "/web", Profiles: []string{"fast"}}},
		{"job-filter", "in use", jobForm{Action: "/web/jobs", Wide: true, Repository: "paint", By: "tok_1", Profiles: []string{"fast"}}},
		{"tabs", "two", []tab{{"All", 12, "/web/jobs", true}, {"Held", -1, "/web/sprites?state=held", false}}},
		{"pages", "in the middle", listPage{First: "/web/jobs", Next: "/web/jobs?after=x"}},

		// Components of one sprite.

		// Components of a new job.

		// Components of settings.
	}
	return slices.Concat(all, jobComponents(), spriteComponents(), shownOfNew(), shownOfSettings())
}

// shownJob is a job of no server.
func shownJob(edit func(*cove.Job)) cove.Job {
	job := cove.Job{
		ID: "0a1b2c", State: cove.JobRunning, CreatedAt: time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC),
		JobSettings: cove.JobSettings{Agent: "claude", Profile: "fast", Sprite: "job-0a1b2c"},
		JobSource:   cove.JobSource{PlanName: "make-it-blue.md", Repository: "paint", Branch: "main"},
	}
	if edit != nil {
		edit(&job)
	}
	return job
}

func shownQuestion(j *cove.Job) {
	j.State = cove.JobWaiting
	j.Question = &cove.JobQuestion{ID: "q1", Title: "Run npm install", Kind: "execute", Detail: "npm install left-pad", Path: "package.json", Options: []cove.QuestionOption{
		{ID: "a", Name: "Allow", Kind: "allow_once"}, {ID: "b", Name: "Allow always", Kind: "allow_always"}, {ID: "c", Name: "Reject", Kind: "reject_once"},
	}}
}

func dictOf(pairs ...any) map[string]any {
	m, err := dict(pairs...)
	if err != nil {
		panic(err) // the arguments are in this package
	}
	return m
}

// components shows each component as it is in a page, for people who build pages.
func components(v *view) error {
	type rendered struct {
		component
		Body any
		Item bool // of a list
	}
	all := make([]rendered, 0, len(shown()))
	for _, c := range shown() {
		body, err := markup(c.Name, c.Data)
		if err != nil {
			return err
		}
		all = append(all, rendered{c, body, strings.HasPrefix(strings.TrimSpace(string(body)), "<li")})
	}
	return v.page("Components", "", "components", all)
}
