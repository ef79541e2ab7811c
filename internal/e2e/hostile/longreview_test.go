package hostile

import (
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestLongReview: a review in a sandbox shows the name and lines of each file that a pull
// holds. A file of 2.1 MiB in one line, and one of 60 MiB of lines, do not prevent that.
func TestLongReview(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("long")
	job, _ := c.Push(h.Plan(`mkdir -p zz/.vscode; echo '{"tasks":1}' >zz/.vscode/tasks.json; echo node_modules >zz/.envrc
head -c 2200000 /dev/zero | tr '\0' A >aa-data.txt; yes '' | head -c 62914560 >ab-lines.txt
git add -A; git commit -q -m long`))
	d, err := cove.Review{Client: h.Client()}.Diff(t.Context(), job)
	if err != nil || !d.Apart || d.Unnamed || len(d.Files) != 4 {
		t.Fatalf("apart: %v, cut: %q, %d files, %v", d.Apart, d.Cut, len(d.Files), err)
	}
	for i, f := range d.Files {
		held := i < 2
		if held != (f.Risk != "") || held != (len(f.Hunks) == 1) || held != (f.LeftOut == "") || f.Uncounted != (f.Path == "ab-lines.txt") || !f.Uncounted && f.Added != 1 {
			t.Errorf("got %+v", f)
		}
	}
}
