package web

import (
	"context"
	"strconv"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// Bounds of the start page.
const (
	nowRows   = 20               // of a group
	nowAgain  = 30 * time.Second // how often the sprites are read: no notification tells of their limits
	maxAnswer = 64 << 10         // bytes of a message
)

// nowPage is the start page: the jobs, by what they need.
type nowPage struct {
	Form     jobForm
	Sections []section
	Nothing  bool // there is no job at all, or none that the token reaches
	Token    bool // it is a token's page, not the owner's
	rights
}

func now(v *view) error {
	form := v.jobForm("/web", false)
	profiles, err := profileNames(v)
	if err != nil {
		return err
	}
	form.Profiles = profiles
	sections, total, err := v.now(v.r.Context(), form)
	if err != nil {
		return err
	}
	page := nowPage{Form: form, Sections: sections, Nothing: total == 0 && !form.Active(), Token: v.session.Name != "", rights: v.session.rights()}
	return v.page("Now", form.address("/web/now/live", "", "have", listsDigest(sections)), "now", page)
}

func nowLive(v *view) error {
	form := v.jobForm("/web", false)
	return v.follow(nowAgain, func(ctx context.Context) ([]section, error) {
		sections, _, err := v.now(ctx, form)
		return sections, err
	}, v.jobRow)
}

// profileNames are the names of the profiles, for people to choose from.
func profileNames(v *view) (names []string, err error) {
	profiles, err := cove.Profiles{Client: v.api}.List(v.r.Context())
	for _, p := range profiles {
		names = append(names, p.Name)
	}
	return names, err
}

// groupTitles are the groups of the start page.
var groupTitles = []struct {
	group        cove.JobGroup
	title, empty string
}{
	{cove.JobsNeeds, "Needs me", "Nothing waits for you."},
	{cove.JobsWorking, "Working", "No job is at work."},
	{cove.JobsReview, "Ready for review", "No finished work waits to be pulled."},
}

// now reads the start page. total counts the jobs, those that are done included.
func (v *view) now(ctx context.Context, form jobForm) (sections []section, total int, err error) {
	var counts map[cove.JobGroup]int
	for _, g := range groupTitles {
		q := form.query()
		q.Group, q.Limit, q.Counts = g.group, nowRows, counts == nil
		list, err := cove.ListJobs(ctx, v.api, q)
		if err != nil {
			return nil, 0, err
		}
		if counts == nil {
			counts = list.Counts
		}
		s := section{ID: string(g.group), Title: g.title, Empty: g.empty}
		if list.Next != "" {
			s.More = form.address("/web/jobs", g.group)
		}
		held := map[string]bool{}
		for _, job := range list.Jobs {
			held[job.Sprite] = held[job.Sprite] || job.Backend == ""
			s.Rows = append(s.Rows, v.jobRow(job))
		}
		n := counts[g.group]
		if g.group == cove.JobsNeeds && !form.Active() {
			rows, err := v.heldRows(ctx, held)
			if err != nil {
				return nil, 0, err
			}
			s.Rows = append(rows, s.Rows...)
			n += len(rows)
		}
		s.Count = strconv.Itoa(n)
		sections = append(sections, s)
	}
	for _, n := range counts {
		total += n
	}
	return sections, total, nil
}

// heldRows are the sprites that may not run, without those whose jobs say so (but).
func (v *view) heldRows(ctx context.Context, but map[string]bool) (rows []row, err error) {
	list, err := v.api.List(ctx, sprites.ListOptions{State: "held", MaxResults: nowRows})
	for _, info := range list.Sprites {
		if info.Cove != nil && info.Cove.Held != nil && !but[info.Name] {
			rows = append(rows, row{ID: spriteRowID(info.Name), Template: "sprite-row", Data: spriteRowOf(info)})
		}
	}
	return rows, err
}

// answered answers a form of a row with the row's new state.
func (v *view) answered(job cove.Job) error {
	if wantsPage(v.r) {
		return v.redirect("/web")
	}
	r := v.jobRow(job)
	return v.fragment(r.Template, r.Data)
}

// nowAnswer answers the question of a job by one of its options.
func nowAnswer(v *view) error {
	job, err := v.api.AnswerJob(v.r.Context(), v.r.PathValue("id"), cove.JobAnswer{Question: v.r.PostFormValue("question"), Option: v.r.PostFormValue("option")})
	if err != nil {
		return err
	}
	v.say("Your answer was sent to job %s.", job.ID)
	return v.answered(job)
}

// nowSend sends a message to the agent of a job that waits for one.
func nowSend(v *view) error {
	text := v.r.PostFormValue("text")
	if text == "" || len(text) > maxAnswer {
		return fail.New("bad_request", "a message has 1 byte to 64 KiB", "")
	}
	job, err := v.api.SendJob(v.r.Context(), v.r.PathValue("id"), cove.JobMessage{Text: text})
	if err != nil {
		return err
	}
	v.say("Your message was sent to job %s.", job.ID)
	return v.answered(job)
}

// nowSeen takes a job that has ended out of the start page, and says how to take that back.
func nowSeen(v *view) error {
	job, err := cove.MarkSeen(v.r.Context(), v.api, v.r.PathValue("id"))
	if err != nil {
		return err
	}
	if wantsPage(v.r) {
		return v.redirect("/web")
	}
	return v.fragment("set-aside", dictOf("Row", v.jobRow(job).Data, "ID", job.ID, "Undone", false))
}

// nowUnseen brings back a job that was set aside.
func nowUnseen(v *view) error {
	job, err := cove.MarkUnseen(v.r.Context(), v.api, v.r.PathValue("id"))
	if err != nil {
		return err
	}
	if wantsPage(v.r) {
		return v.redirect("/web")
	}
	return v.fragment("set-aside", dictOf("Row", nil, "ID", job.ID, "Undone", true))
}
