package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/netrules"
	rules "github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// newJob is the form of a new job, as it was sent. An empty field has the profile's value, or
// else the server's.
type newJob struct {
	Plan, Profile, Agent, Model string
	Machine                     bool // the repository is on the person's machine
	URL, Branch, Depth, Issue   string
	Publish, Network            string
	Minutes, Turns, Cost        string
}

// newPage is the page of a new job.
type newPage struct {
	Form     newJob
	Profiles []cove.Profile
	Agents   []string
	Networks []string
	Mark     string
	Check    planCheck
	Left     []string // of the job whose form it is: settings that have no field
}

// planCheck is what the server says of the form, and the headings of its plan.
type planCheck struct {
	Steps   []planStep
	Profile *cove.Profile    // that was chosen; nil: none
	Preview *cove.JobPreview // nil: there is a problem, or no plan
	Problem *problem
	Push    *pushCommand // of a repository on the person's machine
	Network string       // the rules that the job would have, in words
	Source  string       // the repository that the sprite would clone
}

// pushCommand is the command to type where the repository is.
type pushCommand struct{ File, Command, Plan string }

// newJobPage shows an empty form. A link fills in nothing. One in a mail, or on a sprite's
// page, could have a plan, a repository and an open network. Then one click would begin the
// job.
func newJobPage(v *view) error {
	if !v.session.May(cove.VerbWrite) {
		return fail.New("forbidden", "starting a job needs the verb write; this token does not have it", "log in by the link of a token that has it: cove web")
	}
	return showNewJob(v, newJob{}, nil, false)
}

func showNewJob(v *view, form newJob, left []string, checked bool) error {
	page := newPage{Form: form, Left: left, Agents: agents.Names(), Networks: rules.Presets, Mark: v.session.mark()}
	var err error
	if page.Profiles, err = (cove.Profiles{Client: v.api}).List(v.r.Context()); err != nil {
		return err
	}
	if v.r.Method == http.MethodGet {
		if i := slices.IndexFunc(page.Profiles, func(p cove.Profile) bool { return p.Default }); i >= 0 {
			page.Form.Profile = page.Profiles[i].Name
		}
	}
	if checked {
		page.Check = v.check(v.r.Context(), page.Form, page.Profiles)
	} else {
		page.Check = planCheck{Steps: planSteps(page.Form.Plan), Profile: profileOf(page.Profiles, page.Form.Profile)}
	}
	return v.page("New job", "", "new", page)
}

func profileOf(all []cove.Profile, name string) *cove.Profile {
	if i := slices.IndexFunc(all, func(p cove.Profile) bool { return p.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

func readNewJob(f url.Values) newJob {
	one := func(name string) string { return strings.TrimSpace(f.Get(name)) }
	return newJob{
		Plan: strings.ReplaceAll(f.Get("plan"), "\r\n", "\n"), Profile: one("profile"), Agent: one("agent"), Model: one("model"),
		Machine: f.Get("from") == "machine", URL: one("url"), Branch: one("branch"), Depth: one("depth"), Issue: one("issue"),
		Publish: one("publish"), Network: one("network"), Minutes: one("minutes"), Turns: one("turns"), Cost: one("cost"),
	}
}

// previewJob says what the job of a form would be: beside the form, or with it to a browser
// without scripts.
func previewJob(v *view) error {
	f := v.r.PostForm
	form := readNewJob(f)
	if wantsPage(v.r) {
		return showNewJob(v, form, nil, true)
	}
	profiles, err := cove.Profiles{Client: v.api}.List(v.r.Context())
	if err != nil {
		return err
	}
	return v.fragment("plan-check", v.check(v.r.Context(), form, profiles))
}

// check asks the server what it would make of a form.
func (v *view) check(ctx context.Context, form newJob, profiles []cove.Profile) planCheck {
	c := planCheck{Steps: planSteps(form.Plan), Profile: profileOf(profiles, form.Profile)}
	req, err := form.request()
	if err == nil && form.Machine {
		c.Push = form.push(c.Steps)
		req.Base = strings.Repeat("0", 40) // the commit is found where the command is typed
	}
	if strings.TrimSpace(form.Plan) == "" {
		return c
	}
	var p cove.JobPreview
	if err == nil {
		p, err = v.api.PreviewJob(ctx, req)
	}
	if err != nil {
		problem := describe(err)
		c.Problem = &problem
		return c
	}
	c.Preview, c.Network = &p, networkText(p.NetworkPolicy)
	if !form.Machine {
		c.Source = cmp.Or(form.URL, profileURL(c.Profile))
	}
	return c
}

func profileURL(p *cove.Profile) string {
	if p == nil {
		return ""
	}
	return p.URL
}

// startJob begins the job of a form. Its sprite clones the repository.
func startJob(v *view) error {
	f := v.r.PostForm
	form := readNewJob(f)
	switch {
	case strings.TrimSpace(form.Plan) == "":
		return fail.New("bad_plan", "the plan is empty", "write what is to be done")
	case form.Machine:
		return fail.New("bad_request", "the repository is on your machine", "type there the command that the page shows")
	}
	req, err := form.request()
	if err != nil {
		return err
	}
	req.Begin = true
	job, err := v.api.CreateJob(v.r.Context(), req)
	if err != nil {
		return err
	}
	v.say("The job is begun.")
	return v.redirect("/web/jobs/" + url.PathEscape(job.ID))
}

// request is what the form asks of the server.
func (f newJob) request() (req cove.JobRequest, err error) {
	req.Plan, req.PlanName = f.Plan, planName(planSteps(f.Plan))
	req.Profile, req.Agent, req.Model = f.Profile, f.Agent, f.Model
	if req.Agent == "" && f.Profile == "" {
		return req, fail.New("bad_request", "no agent is chosen", "choose one, or a profile that names one")
	}
	minutes, err := number(f.Minutes, "minutes", strconv.ParseFloat)
	if err != nil {
		return req, err
	}
	req.TimeoutSec = int64(minutes * 60)
	if req.Guards.Turns, err = number(f.Turns, "turns", wholeNumber); err != nil {
		return req, err
	}
	if req.Guards.CostUSD, err = number(f.Cost, "dollars", strconv.ParseFloat); err != nil {
		return req, err
	}
	if f.Network != "" || f.Profile == "" {
		req.NetworkPolicy = preset(cmp.Or(f.Network, rules.Agent))
	}
	if f.Machine {
		return req, nil
	}
	depth, err := number(f.Depth, "commits", wholeNumber)
	if err != nil {
		return req, err
	}
	issue, err := number(f.Issue, "an issue", wholeNumber)
	if err != nil {
		return req, err
	}
	if f.URL == "" && f.Profile == "" {
		return req, fail.New("bad_request", "no repository is named", "give its https URL, or choose: on your machine")
	}
	req.URL, req.Branch, req.Depth, req.Issue, req.Publish = f.URL, f.Branch, int(depth), int(issue), f.Publish
	if n := cmp.Or(f.Network, rules.Agent); req.NetworkPolicy != nil && (n == rules.Agent || n == rules.Defaults) {
		rule, err := netrules.Repository(f.URL)
		if err != nil {
			return req, err
		}
		if rule != nil {
			req.NetworkPolicy.Rules = append(req.NetworkPolicy.Rules, *rule)
		}
	}
	return req, nil
}

// preset is a policy of one preset's rules.
func preset(name string) *sprites.NetworkPolicy {
	return &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: name}}}
}

func wholeNumber(s string, bits int) (int64, error) { return strconv.ParseInt(s, 10, bits) }

// number reads a number that may be left out.
func number[T int64 | float64](text, what string, parse func(string, int) (T, error)) (n T, err error) {
	if text == "" {
		return 0, nil
	}
	if n, err = parse(text, 64); err != nil || !(n >= 0) || n > 1e9 {
		return 0, fail.Newf("bad_request", "write a number, or leave the field empty", "%.40q is not a number of %s", text, what)
	}
	return n, nil
}

// push is the command that does the same where the repository is.
func (f newJob) push(steps []planStep) *pushCommand {
	p := &pushCommand{File: planName(steps), Plan: f.Plan}
	words := []string{"cove", "push", p.File}
	add := func(flag, value string) {
		if value != "" {
			words = append(words, flag, printable.Word(value))
		}
	}
	words = append(words, "--profile", printable.Word(f.Profile))
	add("--agent", f.Agent)
	add("--model", f.Model)
	add("--network", f.Network)
	if f.Minutes != "" {
		add("--timeout", f.Minutes+"m")
	}
	add("--max-turns", f.Turns)
	add("--max-cost", f.Cost)
	p.Command = strings.Join(words, " ")
	return p
}

// profileNetwork says what the policy of a profile lets through.
func profileNetwork(p *sprites.NetworkPolicy) string {
	if p == nil {
		p = preset(rules.Agent)
	}
	return networkText(p)
}

// networkText says what a policy lets through.
func networkText(p *sprites.NetworkPolicy) string {
	if p == nil {
		return "everything: it has no rules"
	}
	var all []string
	for _, r := range p.Rules {
		switch {
		case r.Include != "":
			all = append(all, "the preset "+r.Include)
		case r.Action == "deny":
			all = append(all, "not "+reachText(r))
		default:
			all = append(all, reachText(r))
		}
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// reachText is that which a rule is about.
func reachText(r sprites.NetworkRule) string {
	text := cmp.Or(r.Domain, r.CIDR)
	if len(r.Ports) > 0 {
		text += ":" + strings.Join(r.Ports, ",")
	}
	return text
}
