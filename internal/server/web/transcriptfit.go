package web

import (
	"maps"
	"slices"
	"strings"
)

// Bounds on what a page takes of a transcript at once, as it is sent.
const (
	maxShownBytes = 1 << 20
	maxShownTags  = 20000
)

// fits is the number of the first event from which on the entries are within the bounds; 0: all
// are. The newest event is shown in any case.
func fits(entries []*entry) (int64, error) {
	type weight struct{ bytes, tags int }
	of := map[int64]weight{}
	add := func(seq int64, name string, data any) error {
		text, err := html(name, data)
		w := of[seq]
		of[seq] = weight{w.bytes + len(text), w.tags + strings.Count(text, "<")}
		return err
	}
	for _, e := range entries {
		alone := *e
		if a := e.Answer; a != nil && a.Seq != e.Seq {
			alone.Answer = nil
			if err := add(a.Seq, "entry-answer", a); err != nil {
				return 0, err
			}
		}
		if err := add(e.Seq, "entry", alone); err != nil {
			return 0, err
		}
	}
	var sum weight
	from := int64(0)
	for _, seq := range slices.Backward(slices.Sorted(maps.Keys(of))) {
		sum = weight{sum.bytes + of[seq].bytes, sum.tags + of[seq].tags}
		if from != 0 && (sum.bytes > maxShownBytes || sum.tags > maxShownTags) {
			return from, nil
		}
		from = seq
	}
	return 0, nil
}
