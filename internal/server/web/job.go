package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/netrules"
	"github.com/cove-dev/cove/sprites"
)

// jobPage is the page of one job: what its agent does.
type jobPage struct {
	jobView
	Steps   stepsView
	Entries []*entry
	Before  int64  // the number of the first event shown, before which there are more; 0: there are none
	Next    int64  // the number of the first event after those shown; 0: there was none
	Apart   bool   // what the job does now is not shown after them
	Lacks   string // that the event which the address names is not there; empty: it is, or it names none
	Usage   bool   // there may be something to tell of its cost
	Told    toldView
}

// toldView is what the agent was told before it began.
type toldView struct {
	Name  string // of the plan; empty: the text is the message that the job resumes another one with
	Parts []part // none: the server can't tell any more
}

// told reads what the agent of a job was told. If the server can't read that any more, the
// page is shown without it.
func told(v *view, j jobView) toldView {
	plan, err := cove.PlanOf(v.r.Context(), v.api, j.ID)
	if err != nil {
		v.site.Logger.Debug("the plan of a job can't be shown", "job", j.ID, "err", err)
		return toldView{}
	}
	t := toldView{Name: plan.Name, Parts: bounded(prose(plan.Plan))}
	if j.ResumeOf != "" {
		t.Name = ""
	}
	return t
}

// jobView is what all pages of a job show.
type jobView struct {
	cove.Job
	rights
	Tab     string
	After   []cove.Job // that do it again, or go on with it
	Gone    bool       // its sprite is not there any more
	Refused []string   // what its sprite could not reach; only of a failed job
}

// viewJob is a job for its pages.
func viewJob(ctx context.Context, v *view, id string) (j jobView, err error) {
	j.rights = v.session.rights()
	if j.Job, err = v.api.Job(ctx, id); err != nil || !j.Ended() {
		return j, err
	}
	after, err := cove.ListJobs(ctx, v.api, cove.JobQuery{Of: id, Limit: maxAfter})
	if err != nil {
		return j, err
	}
	j.After = after.Jobs
	slices.Reverse(j.After) // the oldest first
	if j.Gone, err = spriteGone(ctx, v, j.Job); err != nil || j.Gone || !j.Here() || j.State == cove.JobSucceeded {
		return j, err
	}
	j.Refused = refusedOf(ctx, v, j.Job)
	return j, nil
}

// spriteGone reports whether a job's sprite is known to be gone. At a backend, the sprite's
// environment says so.
func spriteGone(ctx context.Context, v *view, j cove.Job) (bool, error) {
	if j.Sprite == "" {
		return false, nil
	}
	if j.Backend == "" {
		info, err := v.api.Get(ctx, j.Sprite)
		if errors.Is(err, sprites.ErrNotFound) {
			return true, nil
		}
		return err == nil && j.SpriteID != "" && info.ID != j.SpriteID, err
	}
	env, err := cove.Environments{Client: v.api}.Get(ctx, j.Execution)
	if errors.Is(err, sprites.ErrNotFound) { // it was made for another job, or for none
		return false, nil
	}
	return env.State == cove.EnvironmentGone, err
}

// maxRefused bounds the refused destinations that a job's page names.
const maxRefused = 3

// refusedOf lists what a job's sprite could not reach until the job ended. It helps to see why
// the job failed. If the log can't be read, the page is shown without it.
func refusedOf(ctx context.Context, v *view, j cove.Job) (all []string) {
	err := v.api.Sprite(j.Sprite).NetworkLog(ctx, sprites.NetworkLogOptions{Since: j.CreatedAt}, func(e sprites.NetworkEvent) error {
		if target := netrules.Target(e); !e.Allowed && !e.Time.After(*j.EndedAt) && len(all) <= maxRefused && !slices.Contains(all, target) {
			all = append(all, target)
		}
		return nil
	})
	if err != nil {
		v.site.Logger.Debug("what a job's sprite was refused can't be shown", "job", j.ID, "err", err)
	}
	if len(all) > maxRefused {
		all = append(all[:maxRefused], "…")
	}
	return all
}

// Here reports whether a page of this server shows the job's sprite.
func (j jobView) Here() bool { return j.Sprite != "" && j.Backend == "" && !j.Gone }

// Again reports whether the job can begin anew: its repository is in its sprite, or is cloned.
func (j jobView) Again() bool { return j.ResumeOf == "" && (!j.Gone || j.URL != "") }

// Incomparable says why there is nothing to compare any more; empty: there may be something.
func (j jobView) Incomparable() string {
	switch {
	case j.Gone && j.PulledAt != nil && j.Head != "":
		return fmt.Sprintf("Its sprite is gone; what it changed was pulled. In the clone that pulled it: git diff %.12s refs/cove/%s/head", j.Base, j.ID)
	case j.WorkDeleted:
		return "There is nothing to compare any more: its work was deleted with its sprite."
	case j.Unseen() && j.Gone:
		return "Nobody knows what it has changed: its sprite was gone before its work was collected."
	case j.Unseen():
		return "The server does not know what it has changed: its work was not collected. Its work, if any, is in its sprite."
	}
	return ""
}

// Unseen reports whether nobody knows what the job has done.
func (j jobView) Unseen() bool { return j.State == cove.JobLost && j.Head == "" }

// Brings reports whether its work can be had.
func (j jobView) Brings() bool { return j.Ended() && j.Head != "" && !j.WorkDeleted && !j.Gone }

// maxAfter bounds the jobs after a job that its page names.
const maxAfter = 20

// Worked is how long the job has worked, and Waited how long it has waited for a person meanwhile.
func (j jobView) Worked() time.Duration { worked, _ := j.Times(time.Now()); return worked }

// Waited is told from a second on.
func (j jobView) Waited() time.Duration {
	_, waited := j.Times(time.Now())
	return waited.Truncate(time.Second)
}

// Cost is what the model has cost, for people; empty: nobody has said.
func (j jobView) Cost() string {
	if j.JobResult.Usage == nil || j.JobResult.Usage.CostUSD == 0 {
		return ""
	}
	return fmt.Sprintf("$%.2f", j.JobResult.Usage.CostUSD)
}

// Sample reports whether the job is one on the first job's repository.
func (j jobView) Sample() bool { return j.CopiesOnly() }

// Ended reports whether the state is final.
func (j jobView) Ended() bool { return j.State.Terminal() }

// Resumable reports whether its agent can go on.
func (j jobView) Resumable() bool {
	return j.State.Terminal() && j.AgentSession != "" && !j.WorkDeleted && !j.Gone
}

// Talks reports whether its agent takes a message now.
func (j jobView) Talks() bool {
	return j.Converse && !j.Interactive && (j.State == cove.JobRunning || j.State == cove.JobWaiting) && !j.Stopping
}

// Sum tells two states of the job's buttons apart: the page leaves those alone that are the same.
func (j jobView) Sum() string {
	q := ""
	if j.Question != nil {
		q = j.Question.ID
	}
	return hashID(fmt.Sprint(j.State, j.Stopping, q, j.AgentSession != "", j.Head, j.WorkDeleted, j.Gone, j.PulledAt != nil))
}

// Others are the agents that could try the same.
func (j jobView) Others() (names []string) {
	for _, n := range agents.Names() {
		if n != j.Agent && n != "acp" && n != "shell" {
			names = append(names, n)
		}
	}
	return names
}

// Lost is what is lost if the job is deleted.
func (j jobView) Lost() (all []string) {
	if !j.State.Terminal() {
		all = append(all, "its agent, which is at work")
	}
	switch n := j.Commits; {
	case j.PulledAt != nil || j.WorkDeleted:
	case n > 0:
		all = append(all, printable.Count(n, "commit")+" that nobody has pulled")
	}
	if j.Uncollected != "" && !j.Gone {
		all = append(all, "work that only its sprite has")
	}
	if j.OwnsSprite && !j.WorkDeleted && !j.Gone {
		all = append(all, "its sprite "+j.Sprite+" with all files")
	}
	return append(all, "its conversation, and the comments on its changes")
}

func jobRoutes() []route {
	return []route{
		{"GET /web/jobs/{id}", job},
		{"GET /web/jobs/{id}/live", jobLive},
		{"GET /web/jobs/{id}/earlier", jobEarlier},
		{"GET /web/jobs/{id}/later", jobLater},
		{"GET /web/jobs/{id}/usage", jobUsage},
		{"GET /web/jobs/{id}/changes", changes},
		{"GET /web/jobs/{id}/changes/live", changesLive},
		{"GET /web/jobs/{id}/diff", changesDiff},
		{"POST /web/jobs/{id}/comments", addComment},
		{"POST /web/jobs/{id}/comments/send", sendComments},
		{"POST /web/jobs/{id}/comments/{comment}/delete", deleteComment},
		{"POST /web/jobs/{id}/answer", answerJob},
		{"POST /web/jobs/{id}/send", sendJob},
		{"POST /web/jobs/{id}/stop", stopJob},
		{"POST /web/jobs/{id}/resume", resumeJob},
		{"POST /web/jobs/{id}/retry", retryJob},
		{"POST /web/jobs/{id}/plan", planAgain},
		{"GET /web/jobs/{id}/agents", otherAgents},
		{"POST /web/jobs/{id}/delete", deleteJob},
		{"GET /web/compare", compare},
	}
}

// named is the job that the path names.
func (v *view) job() (jobView, error) {
	return viewJob(v.r.Context(), v, v.r.PathValue("id"))
}

func job(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	j.Tab = "talk"
	page := jobPage{jobView: j, Usage: j.Agent != "shell", Told: told(v, j)}
	steps, err := cove.Steps{Client: v.api}.Get(v.r.Context(), j.ID)
	if err != nil {
		return err
	}
	page.Steps = newStepsView(steps, j.Outcome)
	if err := page.fill(v); err != nil {
		return err
	}
	l := v.layout(title(j.Job))
	l.Path, l.Script = "/web/jobs", "job.js"
	l.Live = fmt.Sprintf("/web/jobs/%s/live?start=%d", j.ID, j.LastSeq+1) // of one that has ended: of the jobs after it
	if page.Apart {
		l.Live = jobPath(j.ID) + "/live?events=none"
	}
	render(v.w, v.r, http.StatusOK, l, "job", page)
	return nil
}

// title is what a job is called, for people.
func title(j cove.Job) string {
	return line(strings.TrimSuffix(j.Name(), ".md")) + " · " + j.ID
}

// entries are the entries of the events from one number until before another. The event at has
// an entry of its own.
func (v *view) entries(j cove.Job, from, to, at int64) ([]*entry, error) {
	t := newTranscript(j, true)
	if from >= to {
		return nil, nil
	}
	for ev, err := range v.api.JobEvents(v.r.Context(), j.ID, from, false) {
		if err != nil {
			return nil, err
		}
		if ev.Seq >= to {
			break
		}
		err = inTurn(v, func() error {
			if ev.Seq == at {
				t.alone(ev)
			} else {
				t.add(ev)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return t.entries, nil
}

// newest returns the newest entries of the events from one number until before another, as
// many as a page takes at once. The number before is that of the first event among them; 0:
// there are none before it.
func (v *view) newest(j cove.Job, from, to, at int64) (entries []*entry, before int64, err error) {
	from = max(1, from)
	if entries, err = v.entries(j, from, to, at); err != nil {
		return nil, 0, err
	}
	var start int64
	err = inTurn(v, func() error {
		start, err = fits(entries)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if start > from { // answers of calls before it stand for themselves now
		from = start
		entries, err = v.entries(j, from, to, at)
	}
	if from > 1 {
		before = from
	}
	return entries, before, err
}

// jobEarlier shows more of the beginning.
func jobEarlier(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	before, _ := strconv.ParseInt(v.r.URL.Query().Get("before"), 10, 64)
	before = min(max(before, 1), j.LastSeq+1)
	page := jobPage{jobView: j}
	if page.Entries, page.Before, err = v.newest(j.Job, before-earlier, before, 0); err != nil {
		return err
	}
	return v.fragment("entries", page)
}

// jobLive streams what happens in a job. It ends with the job, once its page has everything.
func jobLive(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	return v.stream(func(ctx context.Context, s *stream) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var parts sync.WaitGroup
		defer parts.Wait()
		defer cancel()
		parts.Go(func() {
			defer cancel() // the page comes again
			_ = v.watch(ctx, []string{cove.TopicJobs}, "", func(n cove.Notification) error {
				if !n.Synced && n.Name != j.ID && (n.Job == nil || n.Job.ResumeOf != j.ID && n.Job.RetryOf != j.ID) { // the page names those after it
					return nil
				}
				return v.sendState(ctx, s, j.ID)
			})
		})
		var outcome atomic.Pointer[cove.Outcome]
		outcome.Store(j.Outcome)
		parts.Go(func() { _ = v.followSteps(ctx, s, j.ID, &outcome) })
		if err := v.sendState(ctx, s, j.ID); err != nil {
			return err
		}
		if v.r.URL.Query().Get("events") != "none" {
			if err := v.followEvents(ctx, s, j.Job); err != nil {
				return err
			}
		}
		if _, err := v.api.WaitJob(ctx, j.ID); err != nil { // its log ends before its state does
			return err
		}
		if err := v.sendState(ctx, s, j.ID); err != nil {
			return err
		}
		steps, err := cove.Steps{Client: v.api}.Get(ctx, j.ID)
		if err != nil {
			return err
		}
		if j, err = viewJob(ctx, v, j.ID); err != nil {
			return err
		}
		outcome.Store(j.Outcome)
		if err := s.replace("job-steps", "job-steps", newStepsView(steps, j.Outcome)); err != nil {
			return err
		}
		<-ctx.Done() // what comes after it is told
		return nil
	})
}

// sendState sends the parts of the page that show a job's state.
func (v *view) sendState(ctx context.Context, s *stream, id string) error {
	j, err := viewJob(ctx, v, id)
	if err != nil {
		return err
	}
	j.Tab = "talk"
	for _, name := range []string{"job-head", "job-tabs", "job-question", "job-talk", "job-acts"} {
		if err := s.replace(name, name, j); err != nil {
			return err
		}
	}
	return nil
}

// followEvents sends each event of a job as it comes. To a page that is further behind than a window, it sends the newest
// entries in place of all that the page has.
func (v *view) followEvents(ctx context.Context, s *stream, j cove.Job) error {
	from, _ := strconv.ParseInt(v.r.URL.Query().Get("start"), 10, 64)
	if seen, err := strconv.ParseInt(v.lastSeen(), 10, 64); err == nil {
		from = seen + 1
	}
	if from <= j.LastSeq-window {
		from = j.LastSeq + 1
		if err := s.sendNewest(j); err != nil {
			return err
		}
	}
	t := newTranscript(j, false)
	for ev, err := range v.api.JobEvents(ctx, j.ID, max(from-window, 1), true) {
		if err != nil {
			return err
		}
		var changes []change
		err = inTurn(v, func() (err error) {
			all := t.add(ev)
			if ev.Seq < from { // the page has it; later events may be about it
				t.last = nil
				return nil
			}
			changes, err = changesOf(all)
			return err
		})
		if err != nil {
			return err
		}
		if ev.Seq < from {
			continue
		}
		if err := s.send(strconv.FormatInt(ev.Seq, 10), changes...); err != nil {
			return err
		}
	}
	return nil
}

// sendNewest sends the newest entries, as a job's page has them at first.
func (s *stream) sendNewest(j cove.Job) (err error) {
	page := jobPage{jobView: jobView{Job: j}}
	if page.Entries, page.Before, err = s.v.newest(j, j.LastSeq-window+1, j.LastSeq+1, 0); err != nil {
		return err
	}
	c := change{Target: "transcript", How: "inner"}
	if c.HTML, err = s.html("entries", page); err != nil {
		return err
	}
	return s.send(strconv.FormatInt(j.LastSeq, 10), c)
}

// changesOf turns changes of entries into changes of the page.
func changesOf(all []entryChange) ([]change, error) {
	changes := []change{}
	for _, n := range all {
		c, name, data := change{Target: "transcript", How: "append"}, "entry", any(n.entry)
		switch {
		case n.answer:
			c, name, data = change{Target: n.entry.ID + "-a", How: "replace"}, "entry-answer", n.entry.Answer
		case n.more != nil:
			c, name, data = change{Target: n.entry.ID + "-o", How: "append"}, "segments", n.more
		case !n.fresh:
			continue
		}
		var err error
		if c.HTML, err = html(name, data); err != nil {
			return nil, err
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// stepsView is a job's preparation.
type stepsView struct {
	Steps []stepView
	Open  bool // something is to be seen: it goes on, or has failed
}

// stepView is one step of it.
type stepView struct {
	cove.Step
	Name   string
	Screen []segment
	Above  bool // the head of the page says why it failed
}

// newStepsView is the preparation of a job with an outcome; nil: it has none yet.
func newStepsView(s cove.JobSteps, o *cove.Outcome) (view stepsView) {
	for _, step := range s.Steps {
		if step.State == cove.StepRunning || step.State == cove.StepFailed {
			view.Open = true
		}
		view.Steps = append(view.Steps, stepView{step, strings.ReplaceAll(string(step.Key), "_", " "), terminal(step.Output.String()), o != nil && step.Error != "" && strings.Contains(o.Headline(), step.Error)})
	}
	return view
}

// Done is how many steps are over, and Took how long they took together. Once one has failed, those
// that came to nothing for it are not.
func (s stepsView) Done() (n int) {
	failed := slices.ContainsFunc(s.Steps, func(step stepView) bool { return step.State == cove.StepFailed })
	for _, step := range s.Steps {
		if step.State == cove.StepCompleted || step.State == cove.StepSkipped && !failed {
			n++
		}
	}
	return n
}

// Took is how long the steps took.
func (s stepsView) Took() (d time.Duration) {
	for _, step := range s.Steps {
		d += step.Duration()
	}
	return d
}

// followSteps sends what changes in the preparation of a job.
func (v *view) followSteps(ctx context.Context, s *stream, id string, outcome *atomic.Pointer[cove.Outcome]) error {
	var now cove.JobSteps
	return cove.Steps{Client: v.api}.Follow(ctx, id, func(n cove.StepNews) error {
		switch {
		case n.Snapshot != nil:
			now = *n.Snapshot
		case n.Step != nil:
			for i := range now.Steps {
				if now.Steps[i].Key == n.Step.Key {
					was := now.Steps[i].Output
					now.Steps[i] = *n.Step
					now.Steps[i].Output = was
				}
			}
		}
		if n.Step != nil && n.Text != "" {
			for i := range now.Steps {
				if now.Steps[i].Key == n.Step.Key {
					now.Steps[i].Output.Append(n.Text)
				}
			}
		}
		if n.Snapshot == nil && n.Step == nil {
			return nil
		}
		return s.replace("job-steps", "job-steps", newStepsView(now, outcome.Load()))
	})
}
