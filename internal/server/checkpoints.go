package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// postCheckpoint makes a checkpoint, and tells of it (protocol section 8.1).
func (s *Server) postCheckpoint(w http.ResponseWriter, r *http.Request) error {
	var req sprites.CheckpointRequest
	if r.ContentLength != 0 {
		if err := readJSON(w, r, maxBody, &req); err != nil {
			return err
		}
	}
	name := r.PathValue("name")
	if _, err := s.Host.Get(r.Context(), name); err != nil {
		return err
	}
	return s.tellCheckpoint(w, r, "Creating a checkpoint...", func(ctx context.Context) (sprites.CheckpointEvent, error) {
		c, err := s.Host.Checkpoint(ctx, name, req)
		return sprites.CheckpointEvent{Data: fmt.Sprintf("Checkpoint %s created", c.ID), Checkpoint: &c}, err
	})
}

// postRestore brings a sprite back to a checkpoint (protocol section 8.5).
func (s *Server) postRestore(w http.ResponseWriter, r *http.Request) error {
	name, id := r.PathValue("name"), r.PathValue("checkpoint")
	var req sprites.RestoreRequest
	if r.ContentLength != 0 {
		if err := readJSON(w, r, maxBody, &req); err != nil {
			return err
		}
	}
	if id == sprite.CurrentState {
		return fail.New("bad_request", "the sprite is what is current already", "name a checkpoint: cove checkpoint list -s "+name)
	}
	if _, err := s.Host.CheckpointOf(r.Context(), name, id); err != nil {
		return err
	}
	return s.tellCheckpoint(w, r, "Restoring "+clean(id, maxGuestText)+"...", func(ctx context.Context) (sprites.CheckpointEvent, error) {
		done, err := s.Host.Restore(ctx, name, id, req.Boot)
		return sprites.CheckpointEvent{Data: fmt.Sprintf("Restored %s; what was before is %s", done.Checkpoint, done.Replaced), Restored: &done}, err
	})
}

// tellCheckpoint answers with a line that f has begun, and one of its end.
func (s *Server) tellCheckpoint(w http.ResponseWriter, r *http.Request, begun string, f func(context.Context) (sprites.CheckpointEvent, error)) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	say := func(e sprites.CheckpointEvent) {
		e.Time = time.Now().UTC()
		_ = json.NewEncoder(w).Encode(e) // it has gone: what was begun goes on
		_ = http.NewResponseController(w).Flush()
	}
	say(sprites.CheckpointEvent{Type: "info", Data: begun})
	end, err := f(r.Context())
	if err != nil {
		status, described := s.refusals.describe(err)
		body, _ := described.(sprites.ErrorBody)
		if faulty(status, body) {
			s.Logger.Error("checkpoint", "path", r.URL.Path, "err", err)
		}
		say(sprites.CheckpointEvent{Type: "error", Error: body.Message, Data: body.Message, Code: body.Code, Hint: body.Hint})
		return nil
	}
	end.Type = "complete"
	say(end)
	return nil
}

// listCheckpoints answers with a bare array, what the sprite is now first. The
// history of one checkpoint is text where that is all that is accepted, because
// some clients read it so.
func (s *Server) listCheckpoints(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	auto, err := flag(r, "includeAuto")
	if err != nil {
		return err
	}
	of := r.URL.Query().Get("history")
	list, err := s.Host.Checkpoints(r.Context(), name, auto || of != "")
	if err != nil {
		return err
	}
	if of == "" {
		writeJSON(w, http.StatusOK, list)
		return nil
	}
	one, err := s.Host.CheckpointOf(r.Context(), name, of)
	if err != nil {
		return err
	}
	if strings.HasPrefix(r.Header.Get("Accept"), "text/plain") {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, err := fmt.Fprintln(w, strings.Join(append([]string{one.ID}, one.History...), "\n"))
		return err
	}
	kept := []sprites.Checkpoint{one}
	for _, id := range one.History {
		for _, c := range list {
			if c.ID == id {
				kept = append(kept, c)
			}
		}
	}
	writeJSON(w, http.StatusOK, kept)
	return nil
}

func (s *Server) getCheckpoint(w http.ResponseWriter, r *http.Request) error {
	c, err := s.Host.CheckpointOf(r.Context(), r.PathValue("name"), r.PathValue("checkpoint"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, c)
	return nil
}

// diffCheckpoint answers, line by line, with the files by which a state of a sprite's
// disk differs from a checkpoint. An error before the first of them has its status.
func (s *Server) diffCheckpoint(w http.ResponseWriter, r *http.Request) error {
	out := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	w.Header().Set("Content-Type", "application/x-ndjson")
	var sum sprites.DiffSummary
	told := false
	to := cmp.Or(r.URL.Query().Get("to"), sprite.CurrentState)
	err := s.Host.Diff(r.Context(), r.PathValue("name"), r.PathValue("checkpoint"), to, func(e sprites.DiffEntry) error {
		told = true
		sum.Add(e)
		return lines.Encode(sprites.DiffLine{Entry: &e})
	})
	switch {
	case err != nil && !told:
		return err
	case err != nil:
		_, described := s.refusals.describe(err)
		body, _ := described.(sprites.ErrorBody)
		_ = lines.Encode(sprites.DiffLine{Error: &body})
	default:
		_ = lines.Encode(sprites.DiffLine{Summary: &sum})
	}
	_ = out.Flush() // a client that went away is nobody's error
	return nil
}

// verifyCheckpoints reads checkpoints, and tells line by line how far it is, and what
// is wrong with them.
func (s *Server) verifyCheckpoints(w http.ResponseWriter, r *http.Request) error {
	name, id := r.PathValue("name"), r.URL.Query().Get("checkpoint")
	if _, err := s.Host.CheckpointOf(r.Context(), name, cmp.Or(id, sprite.CurrentState)); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	say := func(line sprites.VerifyLine) error {
		return errors.Join(json.NewEncoder(w).Encode(line), http.NewResponseController(w).Flush())
	}
	sum, err := s.Host.Verify(r.Context(), name, id, say)
	if err == nil {
		sum.Damaged, err = s.Host.Damaged(r.Context(), name)
	}
	if err != nil {
		_, described := s.refusals.describe(err)
		body, _ := described.(sprites.ErrorBody)
		_ = say(sprites.VerifyLine{Error: &body})
		return nil
	}
	_ = say(sprites.VerifyLine{Summary: &sum}) // a client that went away is nobody's error
	return nil
}

func (s *Server) deleteCheckpoint(w http.ResponseWriter, r *http.Request) error {
	if err := s.Host.DeleteCheckpoint(r.Context(), r.PathValue("name"), r.PathValue("checkpoint")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) pruneCheckpoints(w http.ResponseWriter, r *http.Request) error {
	var req sprites.PruneRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	result, err := s.Host.Prune(r.Context(), r.PathValue("name"), req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, result)
	return nil
}

// forkSprite makes a copy of a sprite, for who reaches both names.
func (s *Server) forkSprite(w http.ResponseWriter, r *http.Request) error {
	var req sprites.ForkRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	p := principalOf(r)
	names := slices.Clone(req.Names)
	if req.Name != "" || len(names) == 0 { // both count
		names = append(names, req.Name)
	}
	for _, name := range names {
		if !p.reaches(name) {
			return fail.New("forbidden", "the token does not reach a sprite of that name", "")
		}
	}
	if !p.may(admin) && req.Owner != "" {
		return fail.New("forbidden", "only a token with the verb admin may give a sprite an owner", "")
	}
	_, labelled, err := s.labels.mayGive(r, "", req.Labels)
	if err != nil {
		return err
	}
	defer labelled()
	infos, err := s.Host.Fork(r.Context(), r.PathValue("name"), req, p.may(admin))
	switch {
	case err != nil:
		return err
	case len(req.Names) > 0:
		writeJSON(w, http.StatusCreated, sprites.ListResponse{Sprites: infos})
	default:
		writeJSON(w, http.StatusCreated, infos[0])
	}
	return nil
}
