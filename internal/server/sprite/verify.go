package sprite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// maxProblems is how many files of a layer a verification names.
const maxProblems = 100

// Verify reads the files of a checkpoint, and compares them with what they were when
// they were sealed. If id is empty, it verifies all checkpoints of a sprite, and the
// state that it goes on from. It calls tell with its progress and with each problem; an
// error of tell ends it. Layers with a problem are refused until a verification finds
// none.
func (h *Host) Verify(ctx context.Context, name, id string, tell func(sprites.VerifyLine) error) (sum sprites.VerifySummary, err error) {
	disks := h.Runtime.Layers()
	if disks == nil {
		return sum, fail.Newf(CodeNotAvailable, "", "this server can't read the disks of sprites")
	}
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return sum, err
	}
	ctx, end := h.layers.reading(ctx, allOf(row.ID))
	defer end()
	v := verifier{checkpoints: h.checkpoints, disks: disks, tell: tell, seen: map[string]bool{}}
	defer v.unpin()
	for again := true; again && err == nil; {
		again, err = v.pass(ctx, row, id)
	}
	if err != nil && errors.Is(context.Cause(ctx), errAbandoned) {
		err = errAbandoned
	}
	return v.sum, err
}

type verifier struct {
	*checkpoints
	disks LayerStore
	tell  func(sprites.VerifyLine) error
	all   []string // layers of this pass
	seen  map[string]bool
	pins  []func()
	read  int64 // bytes
	total int64
	said  int64 // of read
	sum   sprites.VerifySummary
}

// pass verifies the layers that are there, and have not been verified. again: some were
// merged meanwhile, so there is another in their place. Layers with damage may have been
// merged before the damage was noted, so there may be another in their place, too.
func (v *verifier) pass(ctx context.Context, row store.Sprite, id string) (again bool, err error) {
	v.all = nil
	if err := v.find(ctx, row, id); err != nil {
		return false, err
	}
	for _, layer := range v.all {
		noted, err := v.layer(ctx, layer)
		again = again || noted
		switch {
		case errors.Is(err, errAbandoned) && ctx.Err() == nil:
			again = true
		case err != nil:
			return false, err
		}
	}
	return again, nil
}

func (v *verifier) unpin() {
	for _, unpin := range v.pins {
		unpin()
	}
}

// find pins the layers that are to be verified.
func (v *verifier) find(ctx context.Context, row store.Sprite, id string) error {
	ids := []string{id}
	if id == "" || id == CurrentState {
		ids = []string{""}
	}
	if id == "" {
		list, err := v.store.Checkpoints(ctx, row.ID)
		if err != nil {
			return err
		}
		for _, c := range list {
			ids = append(ids, c.Name)
		}
	}
	for _, id := range ids {
		err := onLayer(func() error {
			layer, err := v.sealed(ctx, row, id)
			if err != nil || layer == "" {
				return err
			}
			chain, unpin, err := v.layers.pin(ctx, layer)
			if err != nil {
				return err
			}
			v.pins = append(v.pins, unpin)
			for _, layer := range chain {
				if !v.seen[layer] {
					v.seen[layer] = true
					v.all = append(v.all, layer)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, layer := range v.all {
		f, err := v.store.FactsOf(ctx, layer)
		if err != nil {
			return err
		}
		v.total += min(f.Size, f.Disk) // holes are not read
	}
	return nil
}

// layer verifies a layer, and reports whether it has noted damage. errAbandoned: the layer is in
// no disk and no checkpoint any more.
func (v *verifier) layer(ctx context.Context, layer string) (noted bool, err error) {
	ctx, end := v.layers.reading(ctx, layer)
	defer end()
	defer func() {
		if err != nil && errors.Is(context.Cause(ctx), errAbandoned) {
			err = errAbandoned
		}
	}()
	listed, err := v.layers.listLayer(ctx, layer)
	if err != nil {
		return false, err
	}
	if listed {
		v.sum.Unlisted++
		return false, nil
	}
	f, err := v.store.FactsOf(ctx, layer)
	if err != nil {
		return false, err
	}
	if f.Digest == "" { // nobody has it any more, so it was not listed
		return false, errAbandoned
	}
	damage, problems := "", 0
	err = v.disks.Dir(layer).Verify(ctx, listingOf(f), true, v.progress, func(p layers.Problem) error {
		if problems++; problems == 1 {
			damage = strings.ToValidUTF8(p.Path+": "+p.What, string(utf8.RuneError))
		}
		v.sum.Problems++
		if problems > maxProblems {
			return nil
		}
		problem := sprites.VerifyProblem{Path: p.Path, What: p.What}
		if !utf8.ValidString(p.Path) {
			problem.Path, problem.RawPath = strings.ToValidUTF8(p.Path, string(utf8.RuneError)), []byte(p.Path)
		}
		return v.tell(sprites.VerifyLine{Problem: &problem})
	})
	if err != nil {
		return false, err
	}
	v.sum.Layers++
	v.sum.Files += f.Files
	v.sum.Bytes = v.read
	if f.Damage == damage {
		return false, nil
	}
	f.Damage = damage
	return damage != "", v.store.SetFacts(ctx, layer, f)
}

// progressStep is how many bytes are read between two words of it.
const progressStep = 16 << 20

func (v *verifier) progress(n int64) {
	if v.read += n; v.read-v.said < progressStep {
		return
	}
	v.said = v.read
	_ = v.tell(sprites.VerifyLine{Progress: &sprites.VerifyProgress{Bytes: v.read, Total: max(v.total, v.read)}}) // ctx ends it
}

// Damaged names a sprite's checkpoints that have damage.
func (h *Host) Damaged(ctx context.Context, name string) (ids []string, err error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return nil, err
	}
	all, err := h.checkpoints.describeAll(ctx, row)
	for _, c := range all {
		if c.Health != "" {
			ids = append(ids, c.ID)
		}
	}
	slices.Reverse(ids)
	return ids, err
}
