package supervise_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/guest/supervise"
)

// next is another job of the same repository and store. Its bundle has the commits that are
// new since the first one's.
func (j *job) next(script string, not ...string) *job {
	j.t.Helper()
	n := newJob(j.t, script)
	n.source = j.source
	n.spec.Store, n.spec.Base = j.spec.Store, j.git("rev-parse", "HEAD")
	j.git("update-ref", "refs/cove/base", "HEAD")
	j.git(append([]string{"bundle", "create", "-q", n.spec.Bundle, "refs/cove/base"}, not...)...)
	n.spec.BundleSHA256 = n.digest(n.spec.Bundle)
	return n
}

func (j *job) have() []string {
	j.t.Helper()
	return strings.Fields(j.read(filepath.Join(j.spec.Store, "have")))
}

// The commits that were sent, and the agent's commits, are in the store for the next job. That
// job's clone is complete by itself.
func TestStore(t *testing.T) {
	j := newJob(t, "echo more > more; git add more; git commit -qm more")
	j.spec.Store = filepath.Join(t.TempDir(), "store")
	j.give()
	end := j.run()
	if have := j.have(); len(have) != 2 || have[0] != j.spec.Base || have[1] != end.Head {
		t.Errorf("has %q, want %s and %s", have, j.spec.Base, end.Head)
	}
	j.fetch(end)
	j.git("reset", "-q", "--hard", end.Head)
	for i := range 30 { // more than the packs that are kept apart
		j.write(filepath.Join(j.source, "file"), fmt.Sprint(i))
		j.git("add", "file")
		j.git("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "commit", "-q", "-m", fmt.Sprint(i))
		n := j.next("true", "^HEAD~1")
		n.give()
		if end := n.run(); end.Phase != "done" {
			t.Fatalf("job %d: %+v", i, end)
		}
		if i == 29 {
			if err := os.RemoveAll(j.spec.Store); err != nil {
				t.Fatal(err)
			}
			if out := n.gitIn(n.spec.Workdir, "fsck", "--full", "--no-dangling"); out != "" {
				t.Errorf("fsck without the store: %s", out)
			}
			if refs := n.gitIn(n.spec.Workdir, "for-each-ref", "refs/cove"); refs != "" {
				t.Errorf("refs are left: %s", refs)
			}
			packs, _ := filepath.Glob(filepath.Join(n.spec.Workdir, ".git/objects/pack/*.idx"))
			if len(packs) > 25 {
				t.Errorf("%d packs", len(packs))
			}
		}
	}
}

// If a store lacks commits that it lists, it is deleted, and the error says what to do.
func TestStoreDamaged(t *testing.T) {
	for name, damage := range map[string]func(store string) error{
		"no packs": func(store string) error { return os.RemoveAll(filepath.Join(store, "pack")) },
		"half a pack": func(store string) error {
			names, err := filepath.Glob(filepath.Join(store, "pack", "*.pack"))
			if err != nil || len(names) == 0 {
				return fmt.Errorf("no packs: %w", err)
			}
			return os.Remove(names[0])
		},
		"nonsense": func(store string) error {
			return os.WriteFile(filepath.Join(store, "have"), []byte("--help\n../../x\n"), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, "true")
			j.spec.Store = filepath.Join(t.TempDir(), "store")
			j.give()
			j.run()
			if err := damage(j.spec.Store); err != nil {
				t.Fatal(err)
			}
			j.write(filepath.Join(j.source, "file"), "x")
			j.git("add", "file")
			j.git("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "commit", "-q", "-m", "x")
			n := j.next("true", "^HEAD~1")
			n.give()
			if end := n.run(); end.Phase != "prepare" || !strings.Contains(end.Reason, "push again") {
				t.Errorf("got %+v", end)
			}
			whole := j.next("true")
			whole.give()
			if end := whole.run(); end.Phase != "done" {
				t.Errorf("then got %+v", end)
			}
		})
	}
}

func TestFilter(t *testing.T) {
	dir := t.TempDir()
	filter := func(verb, in string) string {
		t.Helper()
		var out bytes.Buffer
		if err := supervise.Filter(verb, dir, strings.NewReader(in), &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, content := range []string{"x", strings.Repeat("large\x00", 100_000), "version https://git-lfs.github.com/spec/v1\n"} {
		pointer := filter("clean", content)
		if !strings.HasPrefix(pointer, "version https://git-lfs.github.com/spec/v1\noid sha256:") || !strings.HasSuffix(pointer, fmt.Sprintf("\nsize %d\n", len(content))) {
			t.Errorf("clean gave %q", pointer)
		}
		if filter("smudge", pointer) != content || filter("clean", pointer) != pointer {
			t.Errorf("%.20q does not come back", content)
		}
		other := strings.Replace(pointer, "sha256:", "sha256:0000", 1)[:len(pointer)]
		if filter("smudge", other) != other {
			t.Errorf("no pointer: got %q", filter("smudge", other))
		}
	}
	if filter("clean", "") != "" || filter("smudge", "") != "" || filter("smudge", "plain\n") != "plain\n" {
		t.Error("what is no pointer changes")
	}
	if err := supervise.Filter("other", dir, strings.NewReader(""), &bytes.Buffer{}); err == nil {
		t.Error("an unknown filter")
	}
}
