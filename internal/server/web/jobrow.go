package web

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// jobRow is a job in a list. It has all that the row shows, and nothing else.
type jobRow struct {
	ID    string
	Group cove.JobGroup
	stateBadge
	rowTitle
	Repository string
	Branch     string
	Agent      string
	Profile    string
	Backend    string
	Sprite     string // on this server; empty: it is elsewhere
	At         time.Time
	Doing      string // before At: "began", "ended"
	Step       string // of its preparation
	Said       string
	Turns      int64
	Cost       string
	Why        string // it needs somebody
	Hint       string
	Question   *cove.JobQuestion
	Hears      bool // it waits for a message
	Result     string
	Get        string // the command that brings its work; empty: there is nothing to bring
	Aside      bool   // it was set aside, and would be in another group else

	MayExec, MayWrite bool
}

// stateBadge is a job's state, as a badge has it.
type stateBadge struct {
	State     cove.JobState
	StateText string
	Held      bool // it has not ended, and may not run
}

// rowTitle is what a job is called.
type rowTitle struct {
	Title string
	File  string // of the plan, if the title is not its name
}

func titleOf(job cove.Job) rowTitle {
	t := rowTitle{Title: cmp.Or(line(job.Name()), "a job")}
	if job.Title != "" {
		t.File = line(job.PlanName)
	}
	return t
}

// Ended reports whether the job has.
func (r jobRow) Ended() bool { return r.State.Terminal() }

func jobRowID(id string) string { return "job-" + id }

// jobRow makes the row of a job.
func (v *view) jobRow(job cove.Job) row {
	return row{ID: jobRowID(job.ID), Template: "job-row", Data: rowOf(job, v.session.May(cove.VerbExec), v.session.May(cove.VerbWrite))}
}

// rowOf makes a row's data.
func rowOf(job cove.Job, mayExec, mayWrite bool) jobRow {
	r := jobRow{
		ID: job.ID, Group: job.Group(), stateBadge: stateBadge{job.State, job.StateText(), job.Held != nil && !job.State.Terminal()}, rowTitle: titleOf(job), Repository: job.Repository, Branch: job.Branch,
		Agent: job.Agent, Profile: job.Profile, Backend: job.Backend, At: job.CreatedAt.UTC(), Doing: "began",
		MayExec: mayExec, MayWrite: mayWrite,
	}
	if job.Backend == "" {
		r.Sprite = job.Sprite
	}
	if job.EndedAt != nil {
		r.At, r.Doing = job.EndedAt.UTC(), "ended"
	}
	cost := 0.0
	if job.Latest != nil && !job.State.Terminal() {
		r.Said, r.Step = job.Latest.Said, strings.ReplaceAll(string(job.Latest.Step), "_", " ")
		r.Turns, cost = job.Latest.Turns, job.Latest.CostUSD
	}
	if job.Usage != nil {
		r.Turns, cost = job.Usage.Turns, job.Usage.CostUSD
	}
	if cost > 0 {
		r.Cost = "$" + strconv.FormatFloat(cost, 'f', 2, 64)
	}
	if job.Place > 0 {
		r.Step = "waits for its turn: " + strconv.Itoa(job.Place) + " of " + strconv.Itoa(max(job.Place, job.PlaceOf))
	}
	r.result(job)
	before := job
	before.SeenAt = nil
	r.Aside = job.SeenAt != nil && before.Group() != r.Group
	if r.Group == cove.JobsNeeds {
		r.needs(job)
	}
	return r
}

// result says what there is to pull.
func (r *jobRow) result(job cove.Job) {
	var parts []string
	if job.Commits > 0 {
		parts = append(parts, printable.Count(job.Commits, "commit"))
	}
	if job.Leftover != "" {
		parts = append(parts, "uncommitted changes")
	}
	r.Result = strings.Join(parts, ", ")
	if r.Result != "" && job.State.Terminal() && job.PulledAt == nil && !job.WorkDeleted {
		r.Get = job.Bring()
	}
	if job.WorkDeleted && r.Result != "" {
		r.Result += ", deleted with its sprite"
	}
	if job.PulledAt != nil && r.Result != "" {
		r.Result += ", pulled"
	}
}

// needs says why a job needs somebody.
func (r *jobRow) needs(job cove.Job) {
	switch {
	case job.Held != nil:
		r.Why, r.Hint = job.Held.Message, job.Held.Hint
	case job.Question != nil && !job.State.Terminal():
		r.Question = job.Question
	case job.State == cove.JobWaiting:
		r.Hears = job.Converse
		r.Why = "It waits for a message."
	case job.Failure != nil:
		r.Why, r.Hint = job.Failure.Message, job.Failure.Hint
	case job.Published != nil && job.Published.State == cove.PublishHeld:
		r.Why = "Not published: some changes could run code on your machine."
		if len(job.Published.Risky) > 0 {
			r.Why = "Not published: " + job.Published.Risky[0].Path + " " + job.Published.Risky[0].Why + "."
		}
	case job.Published != nil && job.Published.State == cove.PublishFailed:
		r.Why = "Not published: " + job.Published.Error
	case job.Outcome != nil:
		r.Why = job.Outcome.Headline()
	default:
		r.Why = job.Error
	}
}

// jobForm is the filter of a list of jobs, as the page's address has it.
type jobForm struct {
	Action                                             string
	Group, State, Text, Label, Profile, Repository, By string
	Profiles                                           []string // to choose from
	Wide                                               bool     // with group, state and text
}

// jobForm reads the filter of the page.
func (v *view) jobForm(action string, wide bool) (f jobForm) {
	q := v.r.URL.Query()
	f = jobForm{Action: action, Label: q.Get("label"), Profile: q.Get("profile"), Repository: q.Get("repository"), By: q.Get("by"), Wide: wide}
	if wide {
		f.Group, f.State, f.Text = q.Get("group"), q.Get("state"), q.Get("q")
	}
	return f
}

// Active reports whether something is filtered by besides the group.
func (f jobForm) Active() bool {
	return f.State+f.Text+f.Label+f.Profile+f.Repository+f.By != ""
}

// Told are the filters that are on, for people.
func (f jobForm) Told() (all []string) {
	for _, of := range [][2]string{{"text", f.Text}, {"", f.State}, {"repository", f.Repository}, {"label", f.Label}, {"profile", f.Profile}, {"by", f.By}} {
		if of[1] != "" {
			all = append(all, strings.TrimSpace(of[0]+" "+of[1]))
		}
	}
	return all
}

// Other is the token whose jobs are shown, if it is not one of the choices.
func (f jobForm) Other() string {
	if f.By == "me" || f.By == "owner" {
		return ""
	}
	return f.By
}

// query is what the API is asked.
func (f jobForm) query() cove.JobQuery {
	q := cove.JobQuery{Group: cove.JobGroup(f.Group), Text: f.Text, Label: f.Label, Profile: f.Profile, Repository: f.Repository, By: f.By}
	if f.State != "" {
		q.States = []cove.JobState{cove.JobState(f.State)}
	}
	return q
}

// address is a path with the filter.
func (f jobForm) address(path string, group cove.JobGroup, more ...string) string {
	q := f.query()
	q.Group = group
	values := q.Values()
	for i := 0; i+1 < len(more); i += 2 {
		values.Set(more[i], more[i+1])
	}
	if len(values) == 0 {
		return path
	}
	return path + "?" + values.Encode()
}

// spriteAddress is the page of a sprite.
func spriteAddress(name string) string { return "/web/sprites/" + url.PathEscape(name) }
