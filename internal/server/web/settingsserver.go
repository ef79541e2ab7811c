package web

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/sprites"
)

type serverInfo = sprites.ServerInfo

// finding is one thing that the server knows of itself. Findings that need its machine are
// those of cove doctor.
type finding struct {
	Level  string // ok, warn or fail
	Name   string
	Detail string
	Fix    string // a command, or what to do
}

func serverTab(v *view) (any, error) {
	ctx, page := v.r.Context(), serverPage{}
	var err error
	if page.Info, err = v.api.Version(ctx); err != nil {
		return nil, err
	}
	if page.Executors, err = (cove.Executors{Client: v.api}).List(ctx); err != nil {
		return nil, err
	}
	if page.Installs, err = v.api.Installs(ctx); err != nil {
		return nil, err
	}
	orphans, err := cove.Environments{Client: v.api}.Orphans(ctx)
	if err != nil {
		return nil, err
	}
	page.Findings = findings(page.Info, page.Executors, orphans)
	return page, nil
}

// findings judge what the API says of the server.
func findings(info serverInfo, executors []cove.ExecutorStatus, orphans cove.OrphanList) (all []finding) {
	switch free, keep := info.DiskFree, info.DiskReserve; {
	case free == 0:
	case free < keep:
		all = append(all, finding{"fail", "disk", formatBytes(free) + " are free, less than the reserve of " + formatBytes(keep) + ": sprites are held", "cove image prune --all, or delete sprites that nobody needs: cove rm NAME"})
	case free < 2*keep:
		all = append(all, finding{"warn", "disk", formatBytes(free) + " are free; below " + formatBytes(keep) + " sprites are held", "cove image prune --all"})
	default:
		all = append(all, finding{"ok", "disk", formatBytes(free) + " are free", ""})
	}
	if info.Pool != nil {
		f := finding{"ok", "pool", fmt.Sprintf("%d of %d are ready", info.Pool.Ready, info.Pool.Size), ""}
		for _, part := range info.Pool.Parts {
			if part.Error != "" {
				f.Level, f.Detail, f.Fix = "warn", part.Image+": "+part.Error, part.Hint
			}
		}
		all = append(all, f)
	}
	for _, e := range executors {
		f := finding{"ok", "this server", "answers", ""}
		if e.Backend != "" {
			f.Name = "backend " + e.Backend
		}
		if e.Error != nil {
			f.Level, f.Detail, f.Fix = "fail", e.Error.Message, e.Error.Hint
		}
		all = append(all, f)
	}
	if n := len(orphans.Orphans); n > 0 {
		all = append(all, finding{"warn", "orphans", printable.Count(n, "sprite") + " that no job has", "cove environment list --orphans"})
	}
	return all
}

// runningPage lists environments.
type runningPage struct {
	Environments []environmentRow
	Sprites      int // that were made for no job: they are not destroyed here
	All          ask
	Orphans      cove.OrphanList
	OrphansAsk   ask
	Mark         string
	rights
}

type environmentRow struct {
	cove.Environment
	Lost []string
	Ask  ask
}

func runningTab(v *view) (any, error) {
	ctx, page := v.r.Context(), runningPage{Mark: v.session.mark(), rights: v.session.rights()}
	calls := cove.Environments{Client: v.api}
	all, err := calls.List(ctx, cove.EnvironmentFilter{})
	if err != nil {
		return nil, err
	}
	if page.Orphans, err = calls.Orphans(ctx); err != nil {
		return nil, err
	}
	page.All = ask{ID: "destroy-all", Button: "Destroy all", Title: fmt.Sprintf("Destroy the sprites of all jobs (%d)?", len(all)), Action: "/web/settings/running/destroy", Into: "destroyed"}
	var idle, needed []string
	for i, e := range all {
		row := environmentRow{Environment: e, Lost: lostWith(e)}
		row.Ask = ask{
			ID: fmt.Sprintf("destroy-%d", i), Button: "Destroy", Title: "Destroy the sprite " + line(e.Name) + "?", Action: "/web/settings/running/destroy", Into: "destroyed",
			Fields: map[string]string{"id": e.ID}, Lost: row.Lost,
		}
		if e.Busy || e.Work {
			row.Ask.Choice, row.Ask.Must = "I don't need what is lost", true
			needed = append(needed, line(e.Name)+": "+strings.TrimSuffix(row.Lost[0], seeJobs))
		} else {
			idle = append(idle, line(e.Name))
		}
		page.Environments = append(page.Environments, row)
	}
	if len(idle) > 0 {
		page.All.Lost = append(page.All.Lost, "the files and checkpoints of "+strings.Join(few(idle), ", ")+"; no commits that nobody has pulled")
	}
	if len(idle) == 0 {
		page.All.Lost, page.All.Must = []string{"nothing, unless you choose so"}, true
	}
	if len(needed) > 0 {
		page.All.Choice = "Also these, which lose more. Without this they stay:"
		page.All.Chosen = few(needed)
	}
	page.OrphansAsk = ask{ID: "destroy-orphans", Button: "Destroy the orphans", Title: "Destroy " + printable.Count(len(page.Orphans.Orphans), "orphan") + "?", Action: "/web/settings/running/orphans", Into: "destroyed", Lost: []string{"Their files. No job of this server has them."}}
	return page, nil
}

// maxNamed bounds the sprites that a question names.
const maxNamed = 12

// few are the first names, and how many more there are.
func few(names []string) []string {
	if n := len(names) - maxNamed; n > 1 {
		return append(names[:maxNamed:maxNamed], fmt.Sprintf("and %d more", n))
	}
	return names
}

// seeJobs is how a person finds out more.
const seeJobs = "; see, in a terminal: cove job list"

// lostWith says what is lost with an environment. There is always a line.
func lostWith(e cove.Environment) (all []string) {
	if e.Busy {
		all = append(all, "a job works in it: "+line(e.JobTitle)+" ("+e.Job+"). It ends, and what it has done is lost")
	}
	if e.Work {
		all = append(all, "work of jobs that nobody has pulled"+seeJobs)
	}
	if len(all) == 0 {
		all = append(all, "its files and checkpoints; no commits that nobody has pulled")
	}
	return all
}

// lossCodes are those of refusals because something would be lost.
var lossCodes = []string{"job_running", "unpulled_work", "uncollected_work"}

// destroyed says what became of sprites that were to be destroyed.
type destroyed struct{ Results []destroyedRow }

type destroyedRow struct {
	Name  string
	State string // gone, or destroying: the server tries again
	Kept  bool   // as was asked: something would be lost
	Error *problem
}

func destroyEnvironments(v *view) error {
	f := v.r.PostForm
	order := cove.EnvironmentDestroy{IDs: f["id"], Force: f.Get("force") != ""}
	results, err := cove.Environments{Client: v.api}.DestroyAll(v.r.Context(), order)
	if err != nil {
		return err
	}
	var d destroyed
	for _, r := range results {
		d.Results = append(d.Results, destroyedRow{r.Environment.Name, string(r.Environment.State), !order.Force && r.Error != nil && slices.Contains(lossCodes, r.Error.Code), failure(r.Error)})
	}
	return showDestroyed(v, d)
}

func destroyOrphans(v *view) error {
	done, err := cove.Environments{Client: v.api}.DestroyOrphans(v.r.Context(), cove.OrphanDestroy{})
	if err != nil {
		return err
	}
	var d destroyed
	for _, r := range done.Results {
		d.Results = append(d.Results, destroyedRow{r.Orphan.Name, string(cove.EnvironmentGone), false, failure(r.Error)})
	}
	return showDestroyed(v, d)
}

func showDestroyed(v *view, d destroyed) error {
	gone := 0
	for _, r := range d.Results {
		if r.Error == nil {
			gone++
		}
	}
	v.say("Sprites destroyed: %d of %d.", gone, len(d.Results))
	if wantsPage(v.r) {
		return v.page("Destroyed", "", "destroyed-page", d)
	}
	return answerBeside(v, "running", "destroyed", d)
}

// failure is an error that an answer tells of.
func failure(e *sprites.ErrorBody) *problem {
	if e == nil {
		return nil
	}
	p := describe(&sprites.Error{StatusCode: 409, ErrorBody: *e})
	return &p
}
