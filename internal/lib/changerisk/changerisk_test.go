package changerisk_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/changerisk"
)

// memory is objects by their names.
type memory map[string]string

func (m memory) Links(_ context.Context, blobs []string) (map[string]string, bool, error) {
	targets := map[string]string{}
	for _, blob := range blobs {
		if text, ok := m[blob]; ok && len(text) <= changerisk.MaxTarget {
			targets[blob] = text
		}
	}
	return targets, true, nil
}

func (m memory) Text(_ context.Context, blob string) (string, bool, error) {
	text, ok := m[blob]
	return text, ok, nil
}

func (m memory) Config(_ context.Context, blob string) (bool, error) { return m[blob] != "bad", nil }

// TestChanges: a judgement needs nothing but names, modes and texts, and says which texts
// these are. If a tree is known only in part, all changes are held.
func TestChanges(t *testing.T) {
	objects := memory{"l": "src/run.sh", "out": "../x", "p0": `{}`, "p1": `{"husky": {}}`, "i0": "a\nb\n", "i1": "a\n", "long": strings.Repeat("x", 5000)}
	changes := []changerisk.Change{
		{Path: "src/run.sh", Status: "M", OldMode: "100644", OldBlob: "a", Mode: "100755", Blob: "b"},
		{Path: "src/other.sh", Status: "M", OldMode: "100644", OldBlob: "a", Mode: "100755", Blob: "b"},
		{Path: "away", Status: "A", Mode: changerisk.LinkMode, Blob: "out"},
		{Path: "endless", Status: "A", Mode: changerisk.LinkMode, Blob: "long"},
		{Path: "package.json", Status: "M", OldMode: "100644", OldBlob: "p0", Mode: "100644", Blob: "p1"},
		{Path: ".gitignore", Status: "M", OldMode: "100644", OldBlob: "i0", Mode: "100644", Blob: "i1"},
		{Path: "sub/.gitignore", Status: "M", OldMode: "100644", OldBlob: "unread", Mode: "100644", Blob: "i1"},
		{Path: "vendored", Status: "A", Mode: changerisk.GitlinkMode, Blob: "c"},
		{Path: "Makefile", Status: "D", OldMode: "100644", OldBlob: "m"},
	}
	texts, links := changerisk.Texts(changes)
	if want := []string{"p0", "p1", "i0", "i1", "unread", "i1"}; !slices.Equal(texts, want) || !slices.Equal(links, []string{"out", "long"}) {
		t.Errorf("the texts are %q and %q", texts, links)
	}
	judge := func(partial bool) (held, listed []string) {
		tree := changerisk.NewTree()
		tree.Entry("120000 blob l\t.envrc")
		tree.Entry("nonsense")
		if partial {
			tree.Partial()
		}
		j, err := changerisk.New(t.Context(), tree, objects, changerisk.Here{})
		if err != nil {
			t.Fatal(err)
		}
		risky, told, err := j.Changes(t.Context(), changes)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range risky {
			held = append(held, r.Path)
		}
		for _, r := range told {
			listed = append(listed, r.Path)
		}
		return held, listed
	}
	held, listed := judge(false)
	if want := []string{"src/run.sh", "package.json", ".gitignore", "sub/.gitignore", "vendored", "away", "endless"}; !slices.Equal(held, want) || !slices.Equal(listed, []string{"Makefile"}) {
		t.Errorf("held %q, listed %q", held, listed)
	}
	if held, listed = judge(true); !slices.Contains(held, "src/other.sh") || len(listed) != 0 {
		t.Errorf("in part: held %q, listed %q", held, listed)
	}
}
