package supervise_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// hostile is a text of parts that a shell, git or a terminal could take for something else.
func hostile(rnd *rand.Rand, parts []string) string {
	var b strings.Builder
	for range 1 + rnd.IntN(6) {
		b.WriteString(parts[rnd.IntN(len(parts))])
	}
	return b.String()
}

// TestLiteral: P8: names of branches, paths, people, scripts and the values of variables are
// taken literally. No shell and no option parser sees them.
func TestLiteral(t *testing.T) {
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, seed))
	inRefs := []string{"$(touch pwned)", "`touch pwned`", "'", `"`, ";touch$IFS", "ä", "日", "&", "|", "{}", "-x", "%s", "#", "=", "!"}
	for i, part := range inRefs { // git has no spaces there
		inRefs[i] = strings.ReplaceAll(part, " ", "$IFS")
	}
	anywhere := append(slices.Clone(inRefs), " ", "\n", "-", "--", "\\", "*", "~", "$HOME", "\x1b[2J", "<", "\t")
	var inNames []string
	for _, part := range anywhere { // git takes these out of a person's name
		if !strings.ContainsAny(part, "<\n") {
			inNames = append(inNames, part)
		}
	}
	for range 12 {
		t.Setenv("HOME", t.TempDir())
		j := newJob(t, `printf '%s\n' "$V" >value; pwd >where; git symbolic-ref --short HEAD >branch; test ! -e pwned`)
		branch, value, name := "b"+hostile(rnd, inRefs), hostile(rnd, anywhere), "n"+hostile(rnd, inNames)+"n"
		j.spec.Branch, j.spec.Author.Name = branch, name
		j.spec.Workdir = filepath.Join(filepath.Dir(j.spec.Workdir), "-w"+strings.ReplaceAll(hostile(rnd, anywhere), "\n", ""))
		j.spec.Env = []string{"V=" + value, "EMPTY="}
		j.spec.SetupScript = &cove.SetupScript{Name: hostile(rnd, inNames), Text: `test -z "$EMPTY" && printf '%s\n' "$V" >from-setup`, Repository: value}
		j.spec.Setup = [][]string{{"printf", "%s", value}}
		end := j.run()
		if end.Phase != "done" || end.ExitCode != 0 {
			t.Fatalf("branch %q, value %q, name %q, in %q: %+v", branch, value, name, j.spec.Workdir, end)
		}
		for file, want := range map[string]string{"value": value, "from-setup": value, "where": j.spec.Workdir, "branch": branch} {
			if got := j.read(filepath.Join(j.spec.Workdir, file)); got != want+"\n" {
				t.Errorf("%s is %q, want %q", file, got, want)
			}
		}
		if got := j.gitIn(j.spec.Workdir, "config", "user.name"); got != strings.TrimSpace(name) {
			t.Errorf("the person is %q, want %q", got, name)
		}
		if found, _ := filepath.Glob(filepath.Join(filepath.Dir(j.spec.Workdir), "*", "pwned*")); len(found) > 0 {
			t.Fatalf("something ran: %q", found)
		}
	}
}
