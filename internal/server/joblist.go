package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// reach says what a principal sees, for SQL; nil: everything.
func (p principal) reach() *store.Reach {
	if p.scope.All {
		return nil
	}
	return &store.Reach{By: p.name, Sprite: p.scope.Sprite, Prefix: p.scope.Prefix, JobsBy: p.scope.Profile != ""}
}

// jobFilter reads the query of a list of jobs.
func jobFilter(r *http.Request) (f store.JobFilter, err error) {
	q := r.URL.Query()
	f = store.JobFilter{
		Sprite: q.Get("sprite"), Backend: q.Get("backend"), Group: cove.JobGroup(q.Get("group")), Text: strings.TrimSpace(q.Get("q")), Label: q.Get("label"),
		Profile: q.Get("profile"), Repository: q.Get("repository"), By: q.Get("by"), Of: q.Get("of"), After: q.Get("after"), Limit: maxJobs, Reach: principalOf(r).reach(),
	}
	for _, state := range q["state"] {
		f.States = append(f.States, cove.JobState(state))
	}
	if f.By == "me" {
		if f.By = asker(r); f.By == "" {
			f.By = store.ByOwner
		}
	}
	if f.Group != "" && !slices.Contains(cove.JobGroups, f.Group) {
		return f, fail.Newf(sprite.CodeBadRequest, "there are needs, working, review and done", "there is no group %s of jobs", clean(string(f.Group), maxMethod))
	}
	if f.After != "" && !store.GoodCursor(f.After) {
		return f, fail.New(sprite.CodeBadRequest, "after must be the next of a page of this server", "")
	}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n <= 0 {
			return f, fail.Newf(sprite.CodeBadRequest, "", "limit must be a number above 0, not %s", clean(text, maxMethod))
		}
		f.Limit = min(n, maxJobs)
	}
	return f, nil
}

func (g *jobRoutes) list(w http.ResponseWriter, r *http.Request) error {
	filter, err := jobFilter(r)
	if err != nil {
		return err
	}
	counts, err := flag(r, "counts")
	if err != nil {
		return err
	}
	size := filter.Limit
	filter.Limit++ // one more tells whether there are more
	all, err := g.jobs.List(r.Context(), filter)
	if err != nil {
		return err
	}
	list := cove.JobList{Jobs: make([]cove.Job, 0, len(all))}
	if len(all) > size {
		all = all[:size]
		list.Next = store.JobCursor(all[size-1])
	}
	waiting := map[string]int{}
	for _, job := range all {
		if job.Place > 0 {
			if waiting[job.Profile] == 0 {
				if waiting[job.Profile], err = g.jobs.Waiting(r.Context(), job.Profile); err != nil {
					return err
				}
			}
			job.PlaceOf = waiting[job.Profile]
		}
		list.Jobs = append(list.Jobs, job.Brief())
	}
	if counts {
		if list.Counts, err = g.jobs.Groups(r.Context(), filter); err != nil {
			return err
		}
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// seen notes that somebody has seen how a job ended, or takes that back.
func (g *jobRoutes) seen(w http.ResponseWriter, r *http.Request) error {
	job, err := g.job(r)
	if err == nil {
		err = g.jobs.MarkSeen(r.Context(), job.ID, r.Method == http.MethodPost)
	}
	if errors.Is(err, store.ErrInUse) {
		return fail.New("job_running", "job "+job.ID+" has not ended", "")
	}
	if err == nil {
		job, err = g.jobs.Get(r.Context(), job.ID)
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, job)
	return nil
}

// search finds what the token reaches.
type search struct {
	host    *sprite.Host
	jobs    *store.Jobs
	running *quota
}

const (
	minSearch   = 2 // bytes
	maxSearch   = 200
	maxSearches = 16 // at once: each reads logs
)

var hexPrefix = regexp.MustCompile(`^[0-9a-f]{4,64}$`)

func (s *search) serve(w http.ResponseWriter, r *http.Request) error {
	text := strings.TrimSpace(r.URL.Query().Get("q"))
	if len(text) < minSearch || len(text) > maxSearch {
		return fail.Newf(sprite.CodeBadRequest, "", "the text to look for must have %d to %d bytes", minSearch, maxSearch)
	}
	done, err := s.running.add(principalOf(r))
	if err != nil {
		return err
	}
	defer done()
	ctx, reach := r.Context(), principalOf(r).reach()
	found := cove.Found{Jobs: []cove.Job{}, Sprites: []sprites.Info{}, Commits: []cove.FoundCommit{}, Lines: []cove.FoundLine{}}
	jobs, err := s.jobs.List(ctx, store.JobFilter{Text: text, Reach: reach, Limit: store.MaxFound})
	if err != nil {
		return err
	}
	for _, job := range jobs {
		found.Jobs = append(found.Jobs, job.Brief())
	}
	_, filter := spriteFilters(r)
	filter.Prefix, filter.Label, filter.Text, filter.Limit = "", "", text, store.MaxFound
	infos, err := s.host.List(ctx, filter)
	if err != nil {
		return err
	}
	found.Sprites = append(found.Sprites, infos...)
	if hash := strings.ToLower(text); hexPrefix.MatchString(hash) {
		commits, err := s.jobs.Commits(ctx, hash, reach)
		if err != nil {
			return err
		}
		found.Commits = append(found.Commits, commits...)
	}
	lines, older, err := s.jobs.Lines(ctx, text, reach)
	if err != nil {
		return err
	}
	found.Lines, found.Older = append(found.Lines, s.readable(ctx, lines, text)...), older
	writeJSON(w, http.StatusOK, found)
	return nil
}

// readable turns lines of logs into text for people: a line in an agent's own form becomes its
// meaning.
func (s *search) readable(ctx context.Context, lines []cove.FoundLine, text string) []cove.FoundLine {
	known := map[string]cove.Job{}
	for i, l := range lines {
		job, ok := known[l.Job]
		if !ok {
			var err error
			if job, err = s.jobs.Get(ctx, l.Job); err != nil {
				continue // it was deleted meanwhile
			}
			known[l.Job] = job
		}
		events, err := s.jobs.Events(ctx, l.Job, l.Seq, 1)
		if err != nil || len(events) == 0 || events[0].Seq != l.Seq {
			continue
		}
		if said := meaning(job, events[0], text); said != "" {
			lines[i].Text = store.Around(strings.Join(strings.Fields(said), " "), text)
		}
	}
	return lines
}

// meaning is the part of an event's meaning that contains text, or else its first part. Empty:
// the event means nothing besides its own text.
func meaning(job cove.Job, ev cove.JobEvent, text string) (said string) {
	agent, err := agents.Of(job.Agent, job.Definition)
	if err != nil {
		return ""
	}
	for _, m := range agent.Read().Event(ev) {
		for _, part := range []string{strings.TrimSpace(m.Tool + " " + m.Text), m.Full} {
			if strings.Contains(strings.ToLower(part), strings.ToLower(text)) {
				return part
			}
			said = cmp.Or(said, part)
		}
	}
	return said
}
