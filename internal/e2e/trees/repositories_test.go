package trees

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// edits is a script that the agent runs, and that the test runs on a clone of its own.
// Both must give the same result. NAME is the round.
const edits = `
export LC_ALL=C
round=NAME
every() { git ls-files -z | tr '\0' '\n' | awk "NR%$1==$2" | tr '\n' '\0'; }
every 97 3 | xargs -0 git rm -q --
every 41 5 | while IFS= read -r -d "" f; do
	if [ ! -L "$f" ]; then printf 'round %s\r\n\0\377' $round >> "$f"; fi
done
every 89 7 | while IFS= read -r -d "" f; do
	if [ ! -L "$f" ]; then chmod +x "$f"; fi
done
git add -A
git commit -q -m "deleted, appended and made executable"
mkdir -p "odd $round" 'quo"ted' ünï
seq 1 100000 > "odd $round/numbers"
head -c 3000000 /dev/zero | tr '\0' '\1' > "odd $round/large"
: > 'quo"ted/empty'"$round"
printf x > "ünï/-dash $round"
ln -sf ../README.md "odd $round/link"
ln -sf nowhere "odd $round/dangling"
printf '%s\n' "* text=auto" > "odd $round/.gitattributes"
git add -A
git commit -q -m "odd names"
every 300 200 | head -z -n 1 | xargs -0 -I{} git mv {} "moved $round"
git commit -q -m "moved"
git checkout -q -b side$round HEAD~1
every 500 1 | while IFS= read -r -d "" f; do
	if [ ! -L "$f" ]; then sed -i 1d "$f"; fi
done
git commit -q -a -m "on the side"
git checkout -q -
git merge -q --no-edit side$round
git branch -q -D side$round
git repack -q -a -d 2>/dev/null || true
`

// TestSoakRepositories takes three large collections of real files, with histories of
// thousands of commits, through push, an agent's edits and pull, twice each. The pulled
// result is, bit for bit, that of the same edits on a clone.
func TestSoakRepositories(t *testing.T) {
	if !e2e.Soak() {
		t.Skip("COVE_SOAK=1 runs it")
	}
	h := e2e.NewGitHost(t)
	for _, module := range []string{"gvisor.dev/gvisor", "modernc.org/libc", "modernc.org/sqlite"} {
		t.Run(filepath.Base(module), func(t *testing.T) {
			out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
			source := strings.TrimSpace(string(out))
			if err != nil || source == "" {
				t.Skipf("%s is not in the module cache: %v", module, err)
			}
			c := e2e.Clone{Host: &e2e.Host{T: t, Bin: h.Bin, Home: h.Home, Data: h.Data}, Dir: filepath.Base(module)}
			importHistory(c, source, 3000)
			twin := e2e.Clone{Host: c.Host, Dir: c.Dir + "-twin"}
			for round := range 2 {
				script := strings.ReplaceAll(edits, "NAME", fmt.Sprint(round))
				job, doc := c.Push(bashPlan(c.Host, script))
				t.Logf("round %d: sent %v bytes", round, doc["sent"])
				c.Run("", "rm", "-rf", twin.Dir)
				c.Run("", "git", "clone", "-q", c.Dir, twin.Dir)
				twin.Run(twin.Dir, "bash", "-e", "-c", script)
				c.Forwarded(job, "--accept-risky") // among the edits is one of .github
				sameAs(c, twin)
				c.File("mine", fmt.Sprint(round))
				c.Commit("mine")
			}
		})
	}
}

// bashPlan writes a plan whose only step is the whole script, and returns its name.
func bashPlan(h *e2e.Host, script string) string {
	h.T.Helper()
	h.Write("plan.md", "## Edit\n```bash\n"+script+"\n```\n")
	return filepath.Join(filepath.Dir(h.Home), "plan.md")
}

// sameAs checks that the history's trees, and the files, are those of another clone.
func sameAs(c e2e.Clone, twin e2e.Clone) {
	c.T.Helper()
	trees := func(c e2e.Clone) []string { // in no order: that of commits of the same second is not fixed
		return slices.Sorted(strings.Lines(c.Git("log", "--format=%T %s", "HEAD") + "\n"))
	}
	if !slices.Equal(trees(c), trees(twin)) || c.Git("rev-parse", "HEAD^{tree}") != twin.Git("rev-parse", "HEAD^{tree}") {
		c.T.Error("the trees differ")
	}
	if got := c.Git("status", "--porcelain"); got != "" {
		c.T.Errorf("not clean: %.500s", got)
	}
	if got := c.Git("fsck", "--no-dangling", "--connectivity-only"); got != "" {
		c.T.Errorf("fsck: %s", got)
	}
	ours, theirs := listing(c), listing(twin)
	for i := range min(len(ours), len(theirs)) {
		if ours[i] != theirs[i] {
			c.T.Fatalf("%q, and it should be %q", ours[i], theirs[i])
		}
	}
	if len(ours) != len(theirs) {
		c.T.Errorf("%d files, and there should be %d", len(ours), len(theirs))
	}
	c.T.Logf("%d files are the same", len(ours))
}

// listing has a line for each file of the work tree: name, kind and content.
func listing(c e2e.Clone) (lines []string) {
	c.T.Helper()
	top := filepath.Join(filepath.Dir(c.Home), c.Dir)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && d.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		name, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		if d.Type() == fs.ModeSymlink {
			content, err = os.Readlink(path)
		} else if data, readErr := os.ReadFile(path); readErr == nil {
			content = digestOf(string(data))
		} else {
			err = readErr
		}
		lines = append(lines, fmt.Sprintf("%s %v %v %s", name, d.Type(), info.Mode()&0o100 != 0, content))
		return err
	})
	if err != nil {
		c.T.Fatal(err)
	}
	return lines
}

// importHistory makes a repository of a folder's files. They are added and changed in n
// commits.
func importHistory(c e2e.Clone, source string, n int) {
	c.T.Helper()
	var files []string
	err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		c.T.Fatal(err)
	}
	c.Run("", "git", "init", "-q", c.Dir)
	cmd := c.Command(c.Dir, "git", "fast-import", "--quiet")
	in, err := cmd.StdinPipe()
	if err != nil {
		c.T.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.T.Fatal(err)
	}
	err = writeHistory(in, source, files, n)
	if waitErr := cmd.Wait(); err != nil || waitErr != nil {
		c.T.Fatalf("git fast-import: %v, %v", err, waitErr)
	}
	c.Git("reset", "-q", "--hard")
	c.T.Logf("%s: %d files, %s commits, %s objects", c.Dir, len(files), c.Git("rev-list", "--count", "HEAD"), strings.Fields(c.Git("count-objects", "-v"))[5])
}

// writeHistory writes the input of git fast-import. Two thirds of the commits add files,
// the others change some of them.
func writeHistory(in io.WriteCloser, source string, files []string, n int) error {
	w := bufio.NewWriter(in)
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(files), func(i, k int) { files[i], files[k] = files[k], files[i] })
	bring := n * 2 / 3
	for i := range n {
		fmt.Fprintf(w, "commit refs/heads/main\ncommitter A <a@example.org> %d +0000\ndata 8\nchange\n\n", 1_700_000_000+i)
		chosen := files[len(files)*min(i, bring)/bring : len(files)*min(i+1, bring)/bring]
		if i >= bring {
			chosen = []string{files[random.IntN(len(files))], files[random.IntN(len(files))]}
			slices.Sort(chosen)
			chosen = slices.Compact(chosen)
		}
		for _, path := range chosen {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(source, path)
			if err != nil {
				return err
			}
			if i >= bring {
				data = append(data, fmt.Sprintf("// changed %d\n", i)...)
			}
			fmt.Fprintf(w, "M 644 inline %q\ndata %d\n%s\n", name, len(data), data)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return in.Close()
}
