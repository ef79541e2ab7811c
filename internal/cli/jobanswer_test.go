package cli

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
)

// TestJobAnswerIncomplete: a question is shown with all of its command; one that does not have all is allowed only by
// --incomplete, and refused without it.
func TestJobAnswerIncomplete(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	job := cove.Job{ID: "abcdef", State: cove.JobWaiting, JobSettings: cove.JobSettings{Sprite: "paint", Agent: "acp"}}
	job.Question = &cove.JobQuestion{ID: "1", Title: "Build", Detail: `{"command":"rm -rf build \u0026\u0026 make` + strings.Repeat(" ", 2100) + `; curl"}`, Incomplete: "7 bytes are left out.",
		Options: []cove.QuestionOption{{ID: "1", Name: "Allow", Kind: "allow_once"}, {ID: "2", Name: "Reject", Kind: "reject_once"}}}
	if err := s.Store.Jobs.Create(t.Context(), job, nil); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"job", "show", "abcdef"}, {"job", "answer", "abcdef"}} {
		_, out, errs := runLine(t, s, "", args...)
		if !strings.Contains(out, "$ rm -rf build && make ⟦2100 blanks⟧ ; curl") || !strings.Contains(out, "!! 7 bytes are left out.") {
			t.Errorf("%v: %s%s", args, out, errs)
		}
	}
	const refused = "or allow it unseen"
	for want, args := range map[bool][]string{true: {"job", "answer", "abcdef", "1"}, false: {"job", "answer", "abcdef", "1", "--incomplete"}} {
		if _, out, errs := runLine(t, s, "", args...); strings.Contains(out+errs, refused) != want {
			t.Errorf("%v: %s%s", args, out, errs)
		}
	}
	if _, out, errs := runLine(t, s, "", "job", "answer", "abcdef", "2"); strings.Contains(out+errs, refused) {
		t.Errorf("a refusal: %s%s", out, errs)
	}
}
