package gitwork_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/test/gitserver"
)

// order makes an order to publish what change did to a clone.
func order(t *testing.T, s *gitserver.Server, url string, change func(work string)) cove.PublishOrder {
	t.Helper()
	work := t.TempDir()
	s.Git(work, "clone", "-q", url, ".")
	base := s.Git(work, "rev-parse", "HEAD")
	change(work)
	s.Git(work, "add", "-A")
	s.Git(work, "commit", "-q", "-m", "work")
	s.Git(work, "update-ref", "refs/cove/abc123/head", "HEAD")
	bundle := filepath.Join(t.TempDir(), "out.bundle")
	s.Git(work, "bundle", "create", "-q", bundle, "^"+base, "refs/cove/abc123/head")
	data, err := os.ReadFile(bundle)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return cove.PublishOrder{
		Job: "abc123", URL: url, Branch: "main", Base: base, Head: s.Git(work, "rev-parse", "HEAD"),
		Bundle: bundle, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data)), To: "cove/abc123",
	}
}

func addFile(t *testing.T, name string) func(string) {
	return func(work string) {
		name := filepath.Join(work, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("x\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPublish: a job's commits become a branch, if nothing is wrong with them, and else the
// server of the repository gets nothing.
func TestPublish(t *testing.T) {
	plain := func(t *testing.T) func(string) { return addFile(t, "a.txt") }
	for name, test := range map[string]struct {
		change func(*testing.T) func(string)
		before func(t *testing.T, s *gitserver.Server, o *cove.PublishOrder)
		pushed bool
		says   string // of Risky or Refused
	}{
		"plain":         {plain, nil, true, ""},
		"pushed before": {plain, func(t *testing.T, s *gitserver.Server, o *cove.PublishOrder) { mustPublish(t, *o) }, true, ""},
		"gone on": {plain, func(t *testing.T, s *gitserver.Server, o *cove.PublishOrder) {
			other := order(t, s, o.URL, addFile(t, "b.txt"))
			other.To = "main2"
			mustPublish(t, other)
			s.In("p.git", "branch", "-f", "main", "main2")
		}, true, ""},
		"risky": {func(t *testing.T) func(string) { return addFile(t, ".vscode/tasks.json") }, nil, false, ".vscode/tasks.json"},
		"another branch there": {plain, func(t *testing.T, s *gitserver.Server, o *cove.PublishOrder) {
			s.In("p.git", "branch", o.To, "main")
		}, false, "already"},
		"base gone": {plain, func(t *testing.T, s *gitserver.Server, o *cove.PublishOrder) {
			s.In("p.git", "update-ref", "refs/heads/main", s.In("p.git", "commit-tree", "-m", "anew", "main^{tree}"))
		}, false, "any more"},
		"tampered": {plain, func(t *testing.T, s *gitserver.Server, o *cove.PublishOrder) {
			o.SHA256 = strings.Repeat("0", 64)
		}, false, "bundle"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s := gitserver.Start(t, "", "")
			o := order(t, s, s.Repository("p.git", map[string]string{"README": "hello\n"}), test.change(t))
			if test.before != nil {
				test.before(t, s, &o)
			}
			refs := s.In("p.git", "for-each-ref")
			v, err := gitwork.Publish(t.Context(), t.TempDir(), o)
			if err != nil {
				t.Fatal(err)
			}
			said := v.Refused
			for _, r := range v.Risky {
				said += r.Path
			}
			if v.Pushed != test.pushed || !strings.Contains(said, test.says) || v.Pushed && said != "" {
				t.Errorf("got %+v", v)
			}
			if !test.pushed {
				if after := s.In("p.git", "for-each-ref"); after != refs {
					t.Errorf("the server has\n%s\nand had\n%s", after, refs)
				}
				return
			}
			if got := s.In("p.git", "rev-parse", o.To); got != o.Head {
				t.Errorf("%s is %s, want %s", o.To, got, o.Head)
			}
		})
	}
}

func mustPublish(t *testing.T, o cove.PublishOrder) {
	t.Helper()
	if v, err := gitwork.Publish(t.Context(), t.TempDir(), o); err != nil || !v.Pushed {
		t.Fatalf("got %+v, %v", v, err)
	}
}
