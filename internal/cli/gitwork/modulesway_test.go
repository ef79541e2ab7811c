package gitwork_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
)

// A job may put a file or a link in the place of a submodule, or of a folder above it. The
// submodule's folder then keeps its content: changes, ignored files, and its repository.
func TestForwardKeepsModules(t *testing.T) {
	home(t, "[user]\n\tname = T\n\temail = t@example.com\n[protocol \"file\"]\n\tallow = always\n")
	module := newRepo(t)
	link := func(a repo, name string) {
		a.git("rm", "-q", "-r", "--cached", name)
		if err := os.RemoveAll(filepath.Join(a.dir, name)); err != nil {
			t.Fatal(err)
		}
		a.link(name, "README")
	}
	for _, test := range []struct {
		name   string
		work   func(repo) // the agent's
		mine   func(repo) // in the submodule
		whole  bool       // its repository is in its folder
		merged bool       // the branch has gone on
	}{
		{name: "a link, over what is ignored", work: func(a repo) { link(a, "libs/mod") }, mine: func(m repo) {
			m.write(".gitignore", "/.gitignore\nkey\n")
			m.write("key", "precious\n")
		}},
		{name: "a file, over a change", work: func(a repo) {
			link(a, "libs/mod")
			_ = os.Remove(filepath.Join(a.dir, "libs/mod"))
			a.write("libs/mod", "x\n")
		},
			mine: func(m repo) { m.write("README", "mine\n") }},
		{name: "a link for the folder above", work: func(a repo) { link(a, "libs") }, mine: func(m repo) { m.write("note", "mine\n") }},
		{name: "a repository with a branch", work: func(a repo) { link(a, "libs/mod") }, mine: func(m repo) { m.git("branch", "work") }, whole: true},
		{name: "by a merge", work: func(a repo) { link(a, "libs/mod") }, mine: func(m repo) { m.write("note", "mine\n") }, merged: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRepo(t)
			r.write("libs/a", "a\n")
			r.git("-c", "protocol.file.allow=always", "submodule", "-q", "add", module.dir, "libs/mod")
			base := r.commit("base")
			a := r.agent()
			test.work(a)
			head := a.commit("the job's work")
			path, want := a.bundle(base)
			if err := r.imports(path, want); err != nil {
				t.Fatal(err)
			}
			m := repo{t, filepath.Join(r.dir, "libs/mod"), r.home}
			if test.whole {
				if err := os.Remove(filepath.Join(m.dir, ".git")); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(filepath.Join(r.dir, ".git/modules/libs/mod"), filepath.Join(m.dir, ".git")); err != nil {
					t.Fatal(err)
				}
				r.git("config", "--file", filepath.Join(m.dir, ".git/config"), "--unset", "core.worktree")
			}
			test.mine(m)
			forward := func() error { return r.forward(base, head) }
			if test.merged {
				r.write("own", "mine\n")
				r.git("add", "own")
				r.git("commit", "-q", "-m", "mine")
				forward = func() error { _, err := r.integrate(base, head, gitwork.Merge); return err }
			}
			before := r.git("for-each-ref") + r.git("status", "--porcelain") + m.git("status", "--porcelain", "--ignored") + m.git("for-each-ref")
			e := refusal(t, forward(), "overlap")
			if !slices.Equal(e.Paths, []string{"libs/mod"}) || !strings.Contains(strings.Join(e.Next, "\n"), "submodule deinit -- libs/mod && cove ") {
				t.Errorf("got paths %q and commands %q", e.Paths, e.Next)
			}
			after := r.git("for-each-ref") + r.git("status", "--porcelain") + m.git("status", "--porcelain", "--ignored") + m.git("for-each-ref")
			if after != before {
				t.Errorf("changed:\n%s\n---\n%s", before, after)
			}
			// As the refusal says.
			r.git("submodule", "deinit", "-q", "-f", "--", "libs/mod")
			if err := forward(); err != nil {
				t.Errorf("with an empty folder: %v", err)
			}
			if got := r.git("status", "--porcelain"); got != "" {
				t.Errorf("not clean:\n%s", got)
			}
		})
	}
}
