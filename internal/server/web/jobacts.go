package web

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	rules "github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// jobPath is the page of a job.
func jobPath(id string) string { return "/web/jobs/" + id }

// shown answers a button of a job's page: the stream tells what came of it.
func (v *view) shown(id string) error {
	return done(v, jobPath(id))
}

func answerJob(v *view) error {
	id := v.r.PathValue("id")
	if _, err := v.api.AnswerJob(v.r.Context(), id, cove.JobAnswer{Question: v.r.PostFormValue("question"), Option: v.r.PostFormValue("option")}); err != nil {
		return err
	}
	v.say("Your answer was sent.")
	return v.shown(id)
}

// said is the text of a form's field, which can't be empty.
func said(v *view, field string) (string, error) {
	text := strings.TrimSpace(strings.ReplaceAll(v.r.PostFormValue(field), "\r\n", "\n"))
	if text == "" {
		return "", fail.New("bad_request", "the message is empty", "")
	}
	return text, nil
}

func sendJob(v *view) error {
	id := v.r.PathValue("id")
	if v.r.PostFormValue("close") != "" {
		if _, err := v.api.SendJob(v.r.Context(), id, cove.JobMessage{Close: true}); err != nil {
			return err
		}
		v.say("The conversation is closed.")
		return v.shown(id)
	}
	text, err := said(v, "message")
	if err != nil {
		return err
	}
	if _, err := v.api.SendJob(v.r.Context(), id, cove.JobMessage{Text: text}); err != nil {
		return err
	}
	v.say("Your message was sent.")
	return v.shown(id)
}

func stopJob(v *view) error {
	id := v.r.PathValue("id")
	if _, err := v.api.StopJob(v.r.Context(), id); err != nil {
		return err
	}
	v.say("Job %s was told to stop: its work so far is kept.", id) // which is true, too, once it has ended
	return v.shown(id)
}

func resumeJob(v *view) error {
	text, err := said(v, "message")
	if err != nil {
		return err
	}
	next, err := v.api.ResumeJob(v.r.Context(), v.r.PathValue("id"), cove.JobResume{Message: text})
	if err != nil {
		return err
	}
	v.say("This job resumes job %s.", v.r.PathValue("id"))
	return v.redirect(jobPath(next.ID))
}

// retryJob begins a job anew: by another agent, with another plan or in the same sprite if the form says so.
func retryJob(v *view) error {
	how := cove.JobRetry{
		Early: true, Agent: v.r.PostFormValue("agent"), Model: strings.TrimSpace(v.r.PostFormValue("model")),
		SameSprite: v.r.PostFormValue("same_sprite") != "", Plan: strings.ReplaceAll(v.r.PostFormValue("plan"), "\r\n", "\n"),
	}
	if v.r.PostForm.Has("plan") && strings.TrimSpace(how.Plan) == "" {
		return fail.New("bad_plan", "the plan is empty", "write what is to be done")
	}
	next, err := v.api.RetryJob(v.r.Context(), v.r.PathValue("id"), how)
	if err != nil {
		return err
	}
	v.say("This job retries job %s.", v.r.PathValue("id"))
	return v.redirect(jobPath(next.ID))
}

// planPage is a job's plan, to be changed for a new job that has all else as this one.
type planPage struct {
	jobView
	Plan    string
	Network string
	Env     []string // names of the variables that it was given
	Machine string   // the sprite's memory, CPUs, disk and image, as far as they were asked for
	Mark    string
}

// planAgain shows the plan of a job, to be changed. For an agent that can't be told comments,
// the plan has the comments on its changes below it. Nothing begins by it, and the comments
// stay. If a job can't be done again with its settings, the page of a new job is filled in. It
// says which settings it does not have.
func planAgain(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	if !j.Write {
		return fail.New("forbidden", "starting a job needs the verb write; this token does not have it", "log in by the link of a token that has it: cove web")
	}
	plan, err := cove.PlanOf(v.r.Context(), v.api, j.ID)
	if err != nil {
		return err
	}
	text := strings.TrimRight(plan.Plan, "\n") + "\n"
	if v.r.PostFormValue("comments") != "" {
		all, err := v.comments(j, false)
		if err != nil {
			return err
		}
		if len(all.Comments) > 0 {
			text += "\nThis was done before, as job " + j.ID + ", whose changes are not here. A review of them has these remarks:\n" + cove.Remarks(all.Comments)
		}
	}
	if j.Ended() && j.Again() {
		page := planPage{jobView: j, Plan: text, Network: networkText(j.NetworkPolicy), Env: plan.EnvNames, Machine: strings.Join(machineOf(plan.Config), ", "), Mark: v.session.mark()}
		if j.Sprite != "" && !j.OwnsSprite {
			page.Network = "the rules of the sprite " + line(j.Sprite)
		}
		l := v.layout("Change the plan · " + title(j.Job))
		l.Path = "/web/jobs"
		render(v.w, v.r, http.StatusOK, l, "job-plan", page)
		return nil
	}
	form, left := formOf(j.Job, plan)
	form.Plan = text
	v.w.Header().Set("HX-Push-Url", "/web/new")
	return showNewJob(v, form, left, true)
}

// formOf is a job as the form of a new one, and the settings that the form has no field for.
func formOf(j cove.Job, plan cove.JobPlan) (form newJob, left []string) {
	form = newJob{Profile: j.Profile, Agent: j.Agent, Model: j.Model, Machine: j.URL == "", URL: j.URL, Publish: j.Publish}
	if j.URL != "" {
		form.Branch = j.Branch
	}
	if j.TimeoutSec > 0 {
		form.Minutes = strconv.FormatFloat(float64(j.TimeoutSec)/60, 'f', -1, 64)
	}
	if j.Guards.Turns > 0 {
		form.Turns = strconv.FormatInt(j.Guards.Turns, 10)
	}
	if j.Guards.CostUSD > 0 {
		form.Cost = strconv.FormatFloat(j.Guards.CostUSD, 'f', -1, 64)
	}
	if p := j.NetworkPolicy; p != nil && !j.ProfilePolicy {
		form.Network = noWider(p.Rules)
		for _, r := range p.Rules {
			if r.Include != form.Network {
				left = append(left, "the rule "+ruleText(r))
			}
		}
	}
	for what, is := range map[string]bool{
		"its variables: --env " + strings.Join(plan.EnvNames, ", --env "): len(plan.EnvNames) > 0,
		"the command of its agent":                                        j.AgentCommand != "",
		"who answers its agent's questions: " + j.Permissions:             j.Permissions != "",
		"its own definition of the agent":                                 j.Definition != nil,
		"its MCP servers":                                                 len(j.MCP) > 0,
		"its login " + j.Login:                                            j.Login != "",
		"its role " + j.Role:                                              j.Role != "",
		"that it talks with you":                                          j.Converse,
		"its limits of disk and of time without an event":                 j.Guards.DiskBytes > 0 || j.Guards.IdleSec > 0,
		"its backend " + j.Backend:                                        j.Backend != "",
		"its sprite " + j.Sprite:                                          !j.OwnsSprite,
	} {
		if is {
			left = append(left, what)
		}
	}
	for _, text := range machineOf(plan.Config) {
		left = append(left, "of its sprite: "+text)
	}
	slices.Sort(left)
	return form, left
}

// noWider is the preset that opens nothing that the rules keep shut. That is the rules' own
// preset, if they have only one and deny nothing, or else none.
func noWider(all []sprites.NetworkRule) string {
	name := ""
	for _, r := range all {
		if r.Action == "deny" || r.Include != "" && name != "" {
			return rules.None
		}
		name = cmp.Or(name, r.Include)
	}
	return cmp.Or(name, rules.None)
}

// machineOf is the machine that was asked for a job's sprite.
func machineOf(c *sprites.Config) (all []string) {
	if c == nil {
		return nil
	}
	if c.RAMMB > 0 {
		all = append(all, fmt.Sprintf("memory of %d MiB", c.RAMMB))
	}
	if c.CPUs > 0 {
		all = append(all, printable.Count(c.CPUs, "CPU"))
	}
	if n := c.DiskLimit(); n > 0 {
		all = append(all, fmt.Sprintf("disk of %d MiB", n>>20))
	}
	if c.Image != "" {
		all = append(all, "the image "+c.Image)
	}
	return all
}

// otherAgent is an agent that could try the same, and what it needs first.
type otherAgent struct{ Name, Lacks string }

// otherAgentsView are the agents that could try the same.
type otherAgentsView struct {
	All   []otherAgent
	Admin bool // the session may store the missing keys and log-ins
}

// None reports whether all of them would fail.
func (o otherAgentsView) None() bool {
	return len(o.All) > 0 && !slices.ContainsFunc(o.All, func(a otherAgent) bool { return a.Lacks == "" })
}

// otherAgents says of each agent that could try the same whether it has the key that it needs, or the log-in.
func otherAgents(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	all := otherAgentsView{Admin: j.Admin}
	for _, name := range j.Others() {
		all.All = append(all.All, otherAgent{name, lacks(v, j.Job, name)})
	}
	return v.fragment("other-agents", all)
}

// lacks is why a job would fail with an agent, as far as the server knows before; empty: it would not.
func lacks(v *view, job cove.Job, agent string) string {
	const plan = "# Try\n\n```sh\ntrue\n```\n" // of the right form for each
	req := cove.JobRequest{
		Plan: plan, Author: cove.Person{Name: "cove", Email: "cove@localhost"},
		JobSettings: cove.JobSettings{Agent: agent, Profile: job.Profile, Backend: job.Backend},
		JobSource:   cove.JobSource{PlanName: "plan.md", Repository: "repository", Branch: "main", Base: strings.Repeat("0", 40)},
	}
	if job.URL != "" {
		req.JobSource = cove.JobSource{PlanName: req.PlanName, URL: job.URL, Branch: job.Branch}
	}
	preview, err := v.api.PreviewJob(v.r.Context(), req)
	if err != nil {
		return describe(err).Message
	}
	for _, c := range preview.Connectors {
		if !c.SecretSet {
			return "no key or log-in is set for " + c.Name
		}
	}
	return strings.Join(preview.Warnings, "; ")
}

func deleteJob(v *view) error {
	if err := v.api.DeleteJob(v.r.Context(), v.r.PathValue("id"), true); err != nil {
		return err
	}
	v.say("Job %s is deleted.", v.r.PathValue("id"))
	return v.redirect("/web")
}

// commentsView are the comments that are gathered for an agent.
type commentsView struct {
	jobView
	Comments []cove.JobComment
	Beside   bool // it is sent with something else, and takes its own place
}

// How says how they reach the agent; empty: they can't now.
func (c commentsView) How() string {
	switch {
	case c.Talks():
		return "send"
	case c.Resumable():
		return "resume"
	}
	return ""
}

// Deaf reports whether its agent can't be told them, now or later.
func (c commentsView) Deaf() bool { return c.Agent == "shell" || c.Ended() && c.How() == "" }

// MaySend reports whether the session could send them: they are gone from here then.
func (c commentsView) MaySend() bool { return c.Write && (c.Exec || c.How() != "send") }

func (v *view) comments(j jobView, beside bool) (commentsView, error) {
	all, err := cove.Review{Client: v.api}.Comments(v.r.Context(), j.ID)
	return commentsView{jobView: j, Comments: all, Beside: beside}, err
}

// addComment stores a comment, and shows it in the place of the form.
func addComment(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	text, err := said(v, "text")
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(v.r.PostFormValue("line"))
	made, err := cove.Review{Client: v.api}.Add(v.r.Context(), j.ID, cove.JobComment{
		Path: v.r.PostFormValue("path"), Side: v.r.PostFormValue("side"), Line: n, Quote: cut(v.r.PostFormValue("quote"), 1000), Text: text,
	})
	if err != nil {
		return err
	}
	all, err := v.comments(j, true)
	if err != nil {
		return err
	}
	v.say("The comment is kept. %s", map[bool]string{true: "A new job can begin with the plan and the comments.", false: "The agent gets it when you send the comments."}[all.Deaf()])
	return v.fragment("comment-added", dictOf("Comment", made, "All", all))
}

func deleteComment(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(v.r.PathValue("comment"), 10, 64)
	if err != nil {
		return fail.New("not_found", "there is no such comment", "")
	}
	if err := (cove.Review{Client: v.api}).Delete(v.r.Context(), j.ID, n); err != nil {
		return err
	}
	all, err := v.comments(j, false)
	if err != nil {
		return err
	}
	v.say("The comment is deleted.")
	return v.fragment("comment-deleted", dictOf("ID", n, "All", all))
}

// sendComments tells the agent the comments as one message, and then deletes them: the
// conversation has them from now on. If the message arrives twice, the agent gets it once.
func sendComments(v *view) error {
	j, err := v.job()
	if err != nil {
		return err
	}
	all, err := v.comments(j, false)
	if err != nil {
		return err
	}
	if len(all.Comments) == 0 {
		return fail.New("bad_request", "there are no comments to send", "")
	}
	text, to := cove.CommentsMessage(all.Comments), j.ID
	if note := strings.TrimSpace(v.r.PostFormValue("note")); note != "" {
		text += "\n" + note + "\n"
	}
	switch all.How() {
	case "send":
		sum := sha256.Sum256([]byte(text))
		_, err = v.api.SendJob(v.r.Context(), j.ID, cove.JobMessage{Text: text, Key: "review-" + hex.EncodeToString(sum[:12])})
	case "resume":
		var next cove.Job
		next, err = v.api.ResumeJob(v.r.Context(), j.ID, cove.JobResume{Message: text})
		to = next.ID
	default:
		err = fail.New("conflict", "the agent of this job takes no message now", "wait until it has ended; if it can't go on then, its changes' page begins a new job with its plan and the comments")
	}
	if err != nil {
		return err
	}
	ids := make([]int64, 0, len(all.Comments))
	for _, c := range all.Comments {
		ids = append(ids, c.ID)
	}
	if err := (cove.Review{Client: v.api}).Delete(v.r.Context(), j.ID, ids...); err != nil {
		return err
	}
	v.say("Comments sent to the agent: %d.", len(all.Comments))
	return v.redirect(jobPath(to))
}
