package web

import (
	"context"
	"strconv"

	"github.com/cove-dev/cove"
)

// listRows is the size of a page of a list.
const listRows = 50

// tab is one of the views of a list.
type tab struct {
	Title   string
	Count   int
	To      string
	Current bool
}

// listPage is a list of jobs or sprites.
type listPage struct {
	Form    any
	Section section
	First   string // the first page; empty: this is it
	Next    string // the next page; empty: there is none
}

func jobs(v *view) error {
	form := v.jobForm("/web/jobs", true)
	profiles, err := profileNames(v)
	if err != nil {
		return err
	}
	form.Profiles = profiles
	after := v.r.URL.Query().Get("after")
	s, list, err := v.jobs(v.r.Context(), form, after)
	if err != nil {
		return err
	}
	page := listPage{Form: form, Section: s}
	group := cove.JobGroup(form.Group)
	if after != "" {
		page.First = form.address("/web/jobs", group)
	}
	if list.Next != "" {
		page.Next = form.address("/web/jobs", group, "after", list.Next)
	}
	more := []string{"have", listsDigest([]section{s})}
	if after != "" {
		more = append(more, "after", after)
	}
	return v.page("Jobs", form.address("/web/lists/jobs/live", group, more...), "jobs", page)
}

func jobsLive(v *view) error {
	form := v.jobForm("/web/jobs", true)
	after := v.r.URL.Query().Get("after")
	return v.follow(0, func(ctx context.Context) ([]section, error) {
		s, _, err := v.jobs(ctx, form, after)
		return []section{s}, err
	}, v.jobRow)
}

// jobs reads a page of the list.
func (v *view) jobs(ctx context.Context, form jobForm, after string) (s section, list cove.JobList, err error) {
	q := form.query()
	q.Limit, q.After, q.Counts = listRows, after, true
	list, err = cove.ListJobs(ctx, v.api, q)
	s = section{ID: "list", Title: "Jobs", Empty: "No job has begun yet."}
	if v.session.Name != "" {
		s.Empty = "No job that this token reaches has begun yet."
	}
	n := 0
	for group, count := range list.Counts {
		if form.Group == "" || string(group) == form.Group {
			n += count
		}
	}
	s.Count, s.Tabs = strconv.Itoa(n), jobTabs(form, list.Counts)
	if form.Active() || form.Group != "" || after != "" {
		s.Empty = "No job matches."
	}
	for _, job := range list.Jobs {
		s.Rows = append(s.Rows, v.jobRow(job))
	}
	return s, list, err
}

// jobTabs lead to the groups of jobs, with how many there are in each.
func jobTabs(form jobForm, counts map[cove.JobGroup]int) []tab {
	total := 0
	for _, n := range counts {
		total += n
	}
	all := []tab{{"All", total, form.address("/web/jobs", ""), form.Group == ""}}
	for _, g := range append(groupTitles[:len(groupTitles):len(groupTitles)], struct {
		group        cove.JobGroup
		title, empty string
	}{group: cove.JobsDone, title: "Done"}) {
		all = append(all, tab{g.title, counts[g.group], form.address("/web/jobs", g.group), form.Group == string(g.group)})
	}
	return all
}
