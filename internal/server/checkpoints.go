package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// checkpointRoutes makes checkpoints of sprites, compares, verifies and deletes them, and
// restores sprites to them.
type checkpointRoutes struct {
	host     *sprite.Host
	refusals refusals // for answers that have begun
}

// checkpointBody also has a field that clients of the protocol send, and that has no effect
// (section 8.1).
type checkpointBody struct {
	sprites.CheckpointRequest
	ID json.RawMessage `json:"id"`
}

// create makes a checkpoint, and tells of it (protocol section 8.1).
func (g *checkpointRoutes) create(w http.ResponseWriter, r *http.Request) error {
	var body checkpointBody
	if r.ContentLength != 0 {
		if err := readJSON(w, r, maxBody, &body); err != nil {
			return err
		}
	}
	req := body.CheckpointRequest
	name := r.PathValue("name")
	if _, err := g.host.Get(r.Context(), name); err != nil {
		return err
	}
	return g.tell(w, r, "Creating a checkpoint...", func(ctx context.Context) (sprites.CheckpointEvent, error) {
		c, err := g.host.Checkpoint(ctx, name, req)
		return sprites.CheckpointEvent{Data: fmt.Sprintf("Checkpoint %s created", c.ID), Checkpoint: &c}, err
	})
}

// restore brings a sprite back to a checkpoint (protocol section 8.5).
func (g *checkpointRoutes) restore(w http.ResponseWriter, r *http.Request) error {
	name, id := r.PathValue("name"), r.PathValue("checkpoint")
	var req sprites.RestoreRequest
	if r.ContentLength != 0 {
		if err := readJSON(w, r, maxBody, &req); err != nil {
			return err
		}
	}
	if id == sprite.CurrentState {
		return fail.New("bad_request", "the sprite is in its current state already", "name a checkpoint: cove checkpoint list -s "+name)
	}
	if _, err := g.host.CheckpointOf(r.Context(), name, id); err != nil {
		return err
	}
	return g.tell(w, r, "Restoring "+clean(id, maxGuestText)+"...", func(ctx context.Context) (sprites.CheckpointEvent, error) {
		done, err := g.host.Restore(ctx, name, id, req.Boot)
		return sprites.CheckpointEvent{Data: fmt.Sprintf("Restored %s; the state before is %s", done.Checkpoint, done.Replaced), Restored: &done}, err
	})
}

// tell answers with a line when f begins, and a line when it ends.
func (g *checkpointRoutes) tell(w http.ResponseWriter, r *http.Request, begun string, f func(context.Context) (sprites.CheckpointEvent, error)) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	say := func(e sprites.CheckpointEvent) {
		e.Time = time.Now().UTC()
		_ = json.NewEncoder(w).Encode(e) // if the client has gone, f goes on
		_ = http.NewResponseController(w).Flush()
	}
	say(sprites.CheckpointEvent{Type: "info", Data: begun})
	end, err := f(r.Context())
	if err != nil {
		status, described := g.refusals.describe(err)
		body, _ := described.(sprites.ErrorBody)
		if faulty(status, body) {
			g.refusals.log.Error("checkpoint", "path", r.URL.Path, "err", err)
		}
		say(sprites.CheckpointEvent{Type: "error", Error: body.Message, Data: body.Message, Code: body.Code, Hint: body.Hint})
		return nil
	}
	end.Type = "complete"
	say(end)
	return nil
}

// list answers with a bare array, the present state first. If a client accepts only text, the
// history of one checkpoint is text, because some clients read it so.
func (g *checkpointRoutes) list(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	auto, err := flag(r, "includeAuto")
	if err != nil {
		return err
	}
	of := r.URL.Query().Get("history")
	list, err := g.host.Checkpoints(r.Context(), name, auto || of != "")
	if err != nil {
		return err
	}
	if of == "" {
		writeJSON(w, http.StatusOK, list)
		return nil
	}
	one, err := g.host.CheckpointOf(r.Context(), name, of)
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

func (g *checkpointRoutes) get(w http.ResponseWriter, r *http.Request) error {
	c, err := g.host.CheckpointOf(r.Context(), r.PathValue("name"), r.PathValue("checkpoint"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, c)
	return nil
}

// diff answers, line by line, with the files that differ between a checkpoint and another
// state of a sprite's disk. An error before the first line is answered with its own status.
func (g *checkpointRoutes) diff(w http.ResponseWriter, r *http.Request) error {
	out := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	w.Header().Set("Content-Type", "application/x-ndjson")
	var sum sprites.DiffSummary
	told := false
	to := cmp.Or(r.URL.Query().Get("to"), sprite.CurrentState)
	err := g.host.Diff(r.Context(), r.PathValue("name"), r.PathValue("checkpoint"), to, func(e sprites.DiffEntry) error {
		told = true
		sum.Add(e)
		return lines.Encode(sprites.DiffLine{Entry: &e})
	})
	switch {
	case err != nil && !told:
		return err
	case err != nil:
		_, described := g.refusals.describe(err)
		body, _ := described.(sprites.ErrorBody)
		_ = lines.Encode(sprites.DiffLine{Error: &body})
	default:
		_ = lines.Encode(sprites.DiffLine{Summary: &sum})
	}
	_ = out.Flush() // a client that went away is nobody's error
	return nil
}

// verify reads checkpoints, and tells its progress and the damage line by line.
func (g *checkpointRoutes) verify(w http.ResponseWriter, r *http.Request) error {
	name, id := r.PathValue("name"), r.URL.Query().Get("checkpoint")
	if _, err := g.host.CheckpointOf(r.Context(), name, cmp.Or(id, sprite.CurrentState)); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	say := func(line sprites.VerifyLine) error {
		return errors.Join(json.NewEncoder(w).Encode(line), http.NewResponseController(w).Flush())
	}
	sum, err := g.host.Verify(r.Context(), name, id, say)
	if err == nil {
		sum.Damaged, err = g.host.Damaged(r.Context(), name)
	}
	if err != nil {
		_, described := g.refusals.describe(err)
		body, _ := described.(sprites.ErrorBody)
		_ = say(sprites.VerifyLine{Error: &body})
		return nil
	}
	_ = say(sprites.VerifyLine{Summary: &sum}) // a client that went away is nobody's error
	return nil
}

func (g *checkpointRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	if err := g.host.DeleteCheckpoint(r.Context(), r.PathValue("name"), r.PathValue("checkpoint")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (g *checkpointRoutes) prune(w http.ResponseWriter, r *http.Request) error {
	var req sprites.PruneRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	result, err := g.host.Prune(r.Context(), r.PathValue("name"), req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, result)
	return nil
}
