package web

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove/internal/lib/checkpointtree"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

const (
	maxPoints  = 500  // checkpoints that are listed
	maxChanges = 1000 // files of a comparison

	present = "Current" // the state of now, in a list of checkpoints
)

type checkpointsPage struct {
	Head   spriteHead
	Points []point
	More   int
	Auto   bool
	Prune  *sprites.PruneResult // what a prune would do; nil: nobody asked

	Request sprites.PruneRequest // that was asked about
}

// point is a checkpoint, and the lines of the tree before it that lead to its parent.
type point struct {
	sprites.Checkpoint
	Tree string
}

// Whole reports whether the sprite can be brought back to it.
func (p point) Whole() bool { return p.Health == "" }

func spriteCheckpoints(v *spriteView) error {
	h, err := v.head(v.r.Context(), "checkpoints")
	if err != nil {
		return err
	}
	p, err := v.checkpoints(v.r.Context(), h)
	if err != nil {
		return err
	}
	return v.spritePage(h, "sprite-checkpoints", p)
}

func (v *spriteView) checkpoints(ctx context.Context, h spriteHead) (checkpointsPage, error) {
	p := checkpointsPage{Head: h, Auto: v.r.URL.Query().Get("auto") == "yes"}
	all, err := v.sprite().Checkpoints(ctx, true)
	if err != nil {
		return p, err
	}
	if !p.Auto { // after a restore, people look for the state before it
		all = slices.DeleteFunc(all, func(c sprites.Checkpoint) bool { return c.IsAuto && !strings.HasPrefix(c.ID, "pre-restore-") })
	}
	if len(all) > maxPoints {
		p.More, all = len(all)-maxPoints, all[:maxPoints]
	}
	for i, tree := range checkpointtree.Draw(all) {
		p.Points = append(p.Points, point{all[i], tree})
	}
	return p, nil
}

// spriteCheckpointCreate makes one.
func spriteCheckpointCreate(v *spriteView) error {
	req := sprites.CheckpointRequest{Comment: strings.TrimSpace(v.r.PostFormValue("comment")), Labels: strings.Fields(strings.ReplaceAll(v.r.PostFormValue("labels"), ",", " "))}
	if v.r.PostFormValue("memory") == "yes" {
		req.Memory = sprites.KeepAlways
	}
	c, err := v.sprite().Checkpoint(v.r.Context(), req, nil)
	if err != nil {
		return err
	}
	v.say("The checkpoint %s is made.", c.ID)
	return v.redirect(v.at("checkpoints"))
}

// checkpointPage is one checkpoint, with what a restore would change.
type checkpointPage struct {
	Head    spriteHead
	Point   point
	Others  []string
	Since   diffPage
	Forks   string // the name that a fork is proposed
	Running bool   // something runs, which a restore would end
}

func spriteCheckpoint(v *spriteView) error {
	ctx := v.r.Context()
	h, err := v.head(ctx, "checkpoints")
	if err != nil {
		return err
	}
	c, err := v.sprite().CheckpointInfo(ctx, v.r.PathValue("checkpoint"))
	if err != nil {
		return err
	}
	all, err := v.sprite().Checkpoints(ctx, true)
	if err != nil {
		return err
	}
	p := checkpointPage{Head: h, Point: point{Checkpoint: c}, Running: h.Info.Status != sprites.StatusCold}
	for _, o := range all[:min(len(all), maxPoints)] {
		if o.ID != c.ID && o.ID != present {
			p.Others = append(p.Others, o.ID)
		}
	}
	if p.Since, err = v.compare(ctx, c.ID, "", "", 0); err != nil {
		p.Since.Failed = describe(err).Message
	}
	return v.spritePage(h, "sprite-checkpoint", p)
}

// spriteCheckpointDo restores or deletes a checkpoint.
func spriteCheckpointDo(v *spriteView) error {
	ctx, id := v.r.Context(), v.r.PathValue("checkpoint")
	var err error
	switch v.r.PathValue("deed") {
	case "restore":
		var r sprites.Restored
		r, err = v.sprite().RestoreCheckpoint(ctx, id, sprites.RestoreRequest{Boot: v.r.PostFormValue("boot") == "yes"}, nil)
		v.say("The disk is back at %s. The state before is the checkpoint %s.", id, r.Replaced)
	case "delete":
		v.say("The checkpoint %s is deleted.", id)
		err = v.sprite().DeleteCheckpoint(ctx, id)
	default:
		err = fail.New("not_found", "there is no such page", "")
	}
	if err != nil {
		return err
	}
	return v.redirect(v.at("checkpoints"))
}

// diffPage is what differs between two states of a disk.
type diffPage struct {
	Head     spriteHead
	From, To string // To is empty: now
	Below    string // the folder that was asked about
	Entries  []sprites.DiffEntry
	More     int
	Summary  sprites.DiffSummary
	Failed   string // why it is not known
}

// compare lists at most most changes below a folder, and counts all. It reads disks, and wakes
// nothing.
func (v *spriteView) compare(ctx context.Context, from, to, below string, most int) (diffPage, error) {
	p := diffPage{From: from, To: to, Below: below}
	below = strings.TrimSuffix(below, "/")
	summary, err := v.sprite().Diff(ctx, from, to, func(e sprites.DiffEntry) error {
		if below != "" && e.Path != below && !strings.HasPrefix(e.Path, below+"/") {
			return nil
		}
		p.Summary.Add(e)
		if len(p.Entries) < most {
			p.Entries = append(p.Entries, e)
		} else {
			p.More++
		}
		return nil
	})
	if below == "" && err == nil {
		p.Summary = summary
	}
	return p, err
}

func spriteDiff(v *spriteView) error {
	h, err := v.head(v.r.Context(), "checkpoints")
	if err != nil {
		return err
	}
	q := v.r.URL.Query()
	p, err := v.compare(v.r.Context(), q.Get("from"), q.Get("to"), q.Get("below"), maxChanges)
	if err != nil {
		return err
	}
	p.Head = h
	return v.spritePage(h, "sprite-diff", p)
}

// spritePrune shows what a prune would remove, and removes it if that was asked for.
func spritePrune(v *spriteView) error {
	ctx := v.r.Context()
	var keep [2]int
	for i, field := range []string{"last", "daily"} {
		n, err := strconv.Atoi(v.r.PostFormValue(field))
		if err != nil || n < 0 {
			return fail.New("bad_request", "the number of checkpoints to keep is not a number: "+line(v.r.PostFormValue(field)), "0, or more")
		}
		keep[i] = n
	}
	req := sprites.PruneRequest{
		Retention: &sprites.Retention{Last: keep[0], Daily: keep[1]}, All: v.r.PostFormValue("all") == "yes", DryRun: v.r.PostFormValue("sure") != "yes",
	}
	if !req.DryRun {
		if err := v.confirm(); err != nil {
			return err
		}
	}
	result, err := v.sprite().PruneCheckpoints(ctx, req)
	if err != nil {
		return err
	}
	h, err := v.head(ctx, "checkpoints")
	if err != nil {
		return err
	}
	if !req.DryRun {
		v.say("Checkpoints deleted: %d.", len(result.Removed))
		return v.redirect(h.Path("checkpoints"))
	}
	return v.fragment("prune-preview", checkpointsPage{Head: h, Prune: &result, Request: req})
}
