package cove

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// JobGroup says what a job needs of a person.
type JobGroup string

// The groups of jobs. Each job is in one of them.
const (
	// JobsNeeds are those that need a person. A question waits for its answer, or a message
	// is waited for. The sprite may not run, because it has reached its disk limit or the
	// server's disk is full. The job failed, ran out of time or was lost, or its commits
	// were not published. A job that has ended leaves the group when it is seen
	// (Job.SeenAt) or pulled.
	JobsNeeds JobGroup = "needs"

	JobsWorking JobGroup = "working" // they have not ended, and need nobody
	JobsReview  JobGroup = "review"  // they have ended, and nobody has pulled or published their work, nor marked it as seen
	JobsDone    JobGroup = "done"    // all others
)

// JobGroups are all of them.
var JobGroups = []JobGroup{JobsNeeds, JobsWorking, JobsReview, JobsDone}

// Group is the group of a job, as the server lists it.
func (j Job) Group() JobGroup {
	failed := j.State == JobFailed || j.State == JobTimedOut || j.State == JobLost
	published := ""
	if j.Published != nil {
		published = j.Published.State
	}
	switch {
	case !j.State.Terminal() && (j.State == JobWaiting || j.Held != nil):
		return JobsNeeds
	case !j.State.Terminal():
		return JobsWorking
	case j.SeenAt != nil || j.PulledAt != nil:
		return JobsDone
	case failed || published == PublishHeld || published == PublishFailed:
		return JobsNeeds
	case published == PublishDone || j.WorkDeleted || j.Commits == 0 && j.Leftover == "":
		return JobsDone
	}
	return JobsReview
}

// FirstJobRepo is the JobSource.RepoID of the repository that the web page makes for somebody's first job.
const FirstJobRepo = "f6282423ad2dd03441412eb67ea55426abd42315"

// CopiesOnly reports whether the job's repository is on no person's machine, as that of a
// first job. Its work can't be pulled as commits: a person copies its files (cove sync
// pull).
func (j Job) CopiesOnly() bool { return j.RepoID == FirstJobRepo && j.Backend == "" }

// Bring is the command that brings the job's work to a person's machine. The server makes
// the names in it, which need no quotes.
func (j Job) Bring() string {
	if j.CopiesOnly() {
		return fmt.Sprintf("cove sync pull -s %s %s ./job-%s", j.Sprite, j.Workdir, j.ID)
	}
	return "cove pull " + j.ID
}

// Times returns how long the agent of a job has worked since it began, and how long the job
// has waited meanwhile. It waits for a person, or because it is held. Both are 0 if the
// agent has not begun.
func (j Job) Times(now time.Time) (worked, waited time.Duration) {
	if j.StartedAt == nil {
		return 0, 0
	}
	if j.EndedAt != nil {
		now = *j.EndedAt
	}
	waited = time.Duration(j.StoodMS)*time.Millisecond + j.stood(now)
	whole := max(0, now.Sub(*j.StartedAt))
	waited = min(waited, whole)
	return whole - waited, waited
}

// stood is for how long it has stood still since StandsSince, once its agent had begun.
func (j Job) stood(now time.Time) time.Duration {
	if j.StandsSince == nil || j.StartedAt == nil {
		return 0
	}
	from := *j.StandsSince
	if from.Before(*j.StartedAt) {
		from = *j.StartedAt
	}
	return max(0, now.Sub(from))
}

// StandStill notes whether the job stands still: StandsSince and StoodMS.
func (j *Job) StandStill(stands bool, now time.Time) {
	switch {
	case !stands:
		j.StoodMS += j.stood(now).Milliseconds()
		j.StandsSince = nil
	case j.StandsSince == nil:
		j.StandsSince = &now
	}
}

// JobLatest is a job's latest news. Its texts are the agent's.
type JobLatest struct {
	Said string  `json:"said,omitempty"` // the last output of its agent, or of a command of its preparation: one line
	Step StepKey `json:"step,omitempty"` // of its preparation, that runs; empty: none does

	// Turns and CostUSD are the agent's reports so far. Some agents report nothing before
	// their end.
	Turns   int64   `json:"turns,omitempty"`
	CostUSD float64 `json:"cost_usd,omitempty"`
}

// JobQuery selects jobs. The zero value is all of them, the newest first.
type JobQuery struct {
	Group      JobGroup
	States     []JobState
	Text       string // that stands in its ID, sprite, plan's name, title and headings, repository, branch, URL, agent or profile
	Label      string // of its sprite, on the server itself
	Profile    string
	Repository string // by name
	By         string // a token, by ID; "owner": the server's owner; "me": the caller
	Sprite     string
	Backend    string // of Sprite
	Of         string // a job, by ID: those that do it again, or go on with it
	Limit      int    // of the answer; 0: 1000, which is the most
	After      string // JobList.Next of the page before
	Counts     bool   // the answer has JobList.Counts
}

// Values is the query as a URL has it.
func (q JobQuery) Values() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"group": string(q.Group), "q": q.Text, "label": q.Label, "profile": q.Profile, "repository": q.Repository,
		"by": q.By, "sprite": q.Sprite, "backend": q.Backend, "of": q.Of, "after": q.After,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	for _, state := range q.States {
		v.Add("state", string(state))
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Counts {
		v.Set("counts", "true")
	}
	return v
}

// JobList answers GET /v1/jobs, newest first.
type JobList struct {
	Jobs   []Job            `json:"jobs"`
	Next   string           `json:"next,omitempty"`   // the parameter after of the next page; empty: there is none
	Counts map[JobGroup]int `json:"counts,omitempty"` // how many jobs of each group the other parameters select
}

// ListJobs returns one page of the jobs that q selects.
func ListJobs(ctx context.Context, c *Client, q JobQuery) (JobList, error) {
	var list JobList
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs"), Query: q.Values()}, &list); err != nil {
		return JobList{}, fmt.Errorf("list jobs: %w", err)
	}
	return list, nil
}

// MarkSeen says that a person has seen how a job ended: it needs nobody any more.
func MarkSeen(ctx context.Context, c *Client, id string) (Job, error) {
	return callJob(ctx, c, "mark job "+id+" as seen", sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", id, "seen")})
}

// MarkUnseen takes MarkSeen back: the job is again in the group that it would be in without it.
func MarkUnseen(ctx context.Context, c *Client, id string) (Job, error) {
	return callJob(ctx, c, "mark job "+id+" as not seen", sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "jobs", id, "seen")})
}

// JobPlan is the text that the agent of a job was given (GET /v1/jobs/{id}/plan). It is the
// plan or, if the job goes on from another one, the message that it was resumed with.
type JobPlan struct {
	Name string `json:"plan_name"` // its file name, for people
	Plan string `json:"plan"`      // without the text, which the server adds

	// EnvNames are the variables that the job was given, without those that the agent
	// needs. Config is the configuration that was asked for its new sprite; nil: none was.
	EnvNames []string        `json:"env_names,omitempty"`
	Config   *sprites.Config `json:"config,omitempty"`
}

// PlanOf returns the plan of a job. An error with the code not_kept says that the server can't read it any more.
func PlanOf(ctx context.Context, c *Client, id string) (JobPlan, error) {
	var plan JobPlan
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", id, "plan")}, &plan); err != nil {
		return plan, fmt.Errorf("the plan of job %s: %w", id, err)
	}
	return plan, nil
}

// Found is the result of a search (GET /v1/search), with the first ones of each kind. It
// has only things that the caller's token reaches.
type Found struct {
	Jobs    []Job          `json:"jobs"`
	Sprites []sprites.Info `json:"sprites"`
	Commits []FoundCommit  `json:"commits"`
	Lines   []FoundLine    `json:"lines"`

	// Older says that the server did not look through the logs of some older jobs: in one
	// search it looks at the newest only.
	Older bool `json:"older,omitempty"`
}

// FoundCommit is a commit that a job began with or made. The server knows of a job's commits
// the first and the last.
type FoundCommit struct {
	Job    string `json:"job"`
	Commit string `json:"commit"`
	Role   string `json:"role"` // "base", "head", or "leftover": of the uncommitted changes
}

// FoundLine is an event of a job's log that has the text.
type FoundLine struct {
	Job  string `json:"job"`
	Seq  int64  `json:"seq"`  // of the JobEvent
	Text string `json:"text"` // around the place
}

// Search looks for a text in jobs, sprites, commits (by the beginning of their hash) and logs.
func Search(ctx context.Context, c *Client, text string) (Found, error) {
	var found Found
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "search"), Query: url.Values{"q": {text}}}, &found); err != nil {
		return found, fmt.Errorf("search: %w", err)
	}
	return found, nil
}
