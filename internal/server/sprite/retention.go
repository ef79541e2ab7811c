package sprite

import (
	"context"
	"errors"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// maxRetention bounds the numbers of a rule.
const maxRetention = 100_000

func checkRetention(r *sprites.Retention) error {
	if r != nil && (min(r.Last, r.Daily) < 0 || max(r.Last, r.Daily) > maxRetention) {
		return fail.Newf(CodeBadRequest, "0 turns the rule off", "rules keep 0 to %d checkpoints", maxRetention)
	}
	return nil
}

// Prune deletes those of a sprite's checkpoints that nobody asked for, and with req.All
// the others, too, which no rule keeps. Those with a label stay, and the one that the
// sprite goes on from.
func (h *Host) Prune(ctx context.Context, name string, req sprites.PruneRequest) (sprites.PruneResult, error) {
	if err := checkRetention(req.Retention); err != nil {
		return sprites.PruneResult{}, err
	}
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return sprites.PruneResult{}, err
	}
	rule := row.Retention
	if req.Retention != nil {
		rule = *req.Retention
	}
	if rule == (sprites.Retention{}) {
		return sprites.PruneResult{}, fail.Newf(CodeBadRequest, "give a rule: cove checkpoint prune --keep-last 10; or set one for good: cove update "+name+" --keep-last 10",
			"no rule says which checkpoints of sprite %s to keep", name)
	}
	return h.checkpoints.prune(ctx, row, rule, req)
}

// pruneAutomatic applies a sprite's own rules.
func (cs *checkpoints) pruneAutomatic(ctx context.Context, id string) error {
	row, err := cs.store.ByID(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && row.Retention == (sprites.Retention{}) {
		return nil
	}
	if err == nil {
		_, err = cs.prune(ctx, row, row.Retention, sprites.PruneRequest{})
	}
	return err
}

func (cs *checkpoints) prune(ctx context.Context, row store.Sprite, rule sprites.Retention, req sprites.PruneRequest) (sprites.PruneResult, error) {
	result := sprites.PruneResult{Removed: []sprites.PruneItem{}, Kept: []sprites.PruneItem{}}
	list, err := cs.store.Checkpoints(ctx, row.ID)
	if err != nil {
		return result, err
	}
	why := retain(list, row.Source, rule, req.All)
	defer cs.layers.collect()
	for i, c := range list {
		item := sprites.PruneItem{ID: c.Name, CreateTime: c.CreatedAt, Why: why[i]}
		if item.Why != "" {
			result.Kept = append(result.Kept, item)
			continue
		}
		if !req.DryRun {
			if c, err = cs.store.Checkpoint(ctx, row.ID, c.Name); err == nil { // as it is now that others are deleted
				err = cs.delete(ctx, row.ID, c)
			}
			if errors.Is(err, store.ErrInUse) { // a restore of it has ended since the list was read
				item.Why = goesOn
				result.Kept = append(result.Kept, item)
				continue
			}
			if errors.Is(err, store.ErrNotFound) {
				continue // somebody else was faster
			}
			if err != nil {
				return result, err
			}
		}
		result.Removed = append(result.Removed, item)
	}
	return result, nil
}

// goesOn is why a sprite's source is kept.
const goesOn = "the sprite goes on from it"

// retain says why each of a sprite's checkpoints, the newest first, is kept; empty: it
// is not. The sprite goes on from the checkpoint source. Each rule counts the
// checkpoints that somebody asked for and the automatic ones separately. A list does
// not show the automatic ones. And the state that a restore has replaced must not push
// out others.
func retain(list []store.Checkpoint, source string, rule sprites.Retention, all bool) []string {
	why := make([]string, len(list))
	type tally struct {
		counted, days int
		day           time.Time // of the last checkpoint that was counted
	}
	var tallies [2]tally
	for i, c := range list {
		if !all && !c.Auto {
			why[i] = "somebody asked for it"
			continue
		}
		t := &tallies[0]
		if c.Auto {
			t = &tallies[1]
		}
		t.counted++
		first := false
		if d := c.CreatedAt.UTC().Truncate(24 * time.Hour); t.counted == 1 || d.Before(t.day) {
			first, t.day = true, d
			t.days++
		}
		switch {
		case c.Name == source:
			why[i] = goesOn
		case len(c.Labels) > 0:
			why[i] = "it has a label"
		case t.counted <= rule.Last:
			why[i] = "it is one of the last"
		case first && t.days <= rule.Daily:
			why[i] = "it is the last of its day"
		}
	}
	return why
}
