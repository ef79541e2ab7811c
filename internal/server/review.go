package server

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
)

// Bounds on a comment, in bytes.
const (
	maxCommentText  = 16 << 10
	maxCommentQuote = 2000
	maxCommentPath  = 4096
)

// reviewRoutes tells what jobs have changed, and keeps the comments on that.
type reviewRoutes struct {
	*jobRoutes
	made  *store.Comments
	diffs *quota
}

// maxDiffs bounds the diffs that are made at once. A sprite may let one wait, and each is held in memory.
const maxDiffs = 64

// diff says what a job has changed.
func (g reviewRoutes) diff(w http.ResponseWriter, r *http.Request) error {
	jobs, err := g.available()
	if err != nil {
		return err
	}
	job, err := g.job(r)
	if err != nil {
		return err
	}
	part := r.URL.Query().Get("part")
	if part != "" && part != cove.DiffLeftover {
		return fail.New(sprite.CodeBadRequest, fmt.Sprintf("part must be %s, or be left out, not %.40q", cove.DiffLeftover, part), "")
	}
	who := principalOf(r)
	by := who.name
	if who.owner {
		by = ""
	}
	done, err := g.diffs.add(who)
	if err != nil {
		return err
	}
	defer done()
	diff, free, err := jobs.Diff(r.Context(), job.ID, part, by)
	if err != nil {
		return ofBackend(job.Backend, err)
	}
	defer free()
	writeJSON(w, http.StatusOK, diff)
	return nil
}

func (g reviewRoutes) comments(w http.ResponseWriter, r *http.Request) error {
	job, err := g.job(r)
	if err != nil {
		return err
	}
	list := cove.JobComments{}
	if list.Comments, err = g.made.List(r.Context(), job.ID); err != nil {
		return err
	}
	if list.Comments == nil {
		list.Comments = []cove.JobComment{}
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (g reviewRoutes) addComment(w http.ResponseWriter, r *http.Request) error {
	var c cove.JobComment
	if err := readJSON(w, r, maxBody, &c); err != nil {
		return err
	}
	job, err := g.job(r)
	if err != nil {
		return err
	}
	if c.Side == "" {
		c.Side = cove.SideNew
	}
	if err := checkComment(c); err != nil {
		return err
	}
	c.Text, c.By = strings.TrimSpace(c.Text), asker(r)
	c, err = g.made.Add(r.Context(), job.ID, c)
	if errors.Is(err, store.ErrTooManyComments) {
		return fail.Newf("conflict", "send the comments to the agent, or delete some", "job %s has %d comments, which is the most that a job can have", job.ID, store.MaxComments)
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, c)
	return nil
}

func checkComment(c cove.JobComment) error {
	for _, f := range []struct {
		name, value string
		most        int
		empty       bool
	}{{"path", c.Path, maxCommentPath, false}, {"text", strings.TrimSpace(c.Text), maxCommentText, false}, {"quote", c.Quote, maxCommentQuote, true}} {
		if f.value == "" && !f.empty {
			return fail.New(sprite.CodeBadRequest, f.name+" can't be empty", "")
		}
		if len(f.value) > f.most || !utf8.ValidString(f.value) || strings.ContainsRune(f.value, 0) {
			return fail.New(sprite.CodeBadRequest, fmt.Sprintf("%s must be text of at most %d bytes", f.name, f.most), "")
		}
	}
	switch {
	case c.Side != cove.SideOld && c.Side != cove.SideNew:
		return fail.New(sprite.CodeBadRequest, fmt.Sprintf("side must be %s or %s, not %.40q", cove.SideOld, cove.SideNew, c.Side), "")
	case c.Line < 1 || c.Line > 1<<30:
		return fail.New(sprite.CodeBadRequest, fmt.Sprintf("line must be the number of a line, from 1, not %d", c.Line), "")
	}
	return nil
}

func (g reviewRoutes) deleteComments(w http.ResponseWriter, r *http.Request) error {
	job, err := g.job(r)
	if err != nil {
		return err
	}
	var ids []int64
	for _, text := range r.URL.Query()["id"] {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || len(ids) == store.MaxComments {
			return fail.New(sprite.CodeBadRequest, fmt.Sprintf("id must be the number of a comment, of at most %d, not %.40q", store.MaxComments, text), "")
		}
		ids = append(ids, id)
	}
	if err := g.made.Delete(r.Context(), job.ID, ids); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// plan tells what the agent of a job was told.
func (g *reviewRoutes) plan(w http.ResponseWriter, r *http.Request) error {
	job, err := g.job(r)
	if err != nil {
		return err
	}
	req, err := g.asked(r, job.ID)
	if err != nil {
		return err
	}
	plan := cove.JobPlan{Name: job.PlanName, Plan: req.Plan, Config: req.Config}
	for _, kv := range req.Env {
		name, _, _ := strings.Cut(kv, "=")
		plan.EnvNames = append(plan.EnvNames, name)
	}
	writeJSON(w, http.StatusOK, plan)
	return nil
}
