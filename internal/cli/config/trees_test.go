package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cove-dev/cove/internal/cli/config"
)

// A tree is for one repository, by whatever path that is reached, or for each.
func TestTrees(t *testing.T) {
	p := world(t, map[string]string{"top/x": ""}, nil)
	p.Personal = filepath.Join(p.Top, "../config.toml")
	err := os.WriteFile(p.Personal, []byte("[[pull.sync]]\nfrom = \"dist\"\nto = \"build/dist\"\ninclude = [\"*.whl\"]\nexclude = [\"/tmp/\"]\n"+
		"[[pull.sync]]\nfrom = \"/srv/www\"\nto = \"site\"\nrepository = \""+p.Top+"\"\n"+
		"[[pull.sync]]\nfrom = \"dist\"\nto = \"site\"\nrepository = \"/nonexistent\"\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s, err := config.Load(p)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(p.Top, link); err != nil {
		t.Fatal(err)
	}
	for top, want := range map[string][]string{p.Top: {"dist", "/srv/www"}, link: {"dist", "/srv/www"}, t.TempDir(): {"dist"}} {
		trees, err := s.Trees(top)
		var from []string
		for _, tree := range trees {
			from = append(from, tree.From)
		}
		if err != nil || !slices.Equal(from, want) {
			t.Errorf("%s: got %q, %v, want %q", top, from, err, want)
		}
	}
	if got := s.AllTrees[0]; got.Line != 1 || got.To != "build/dist" || !slices.Equal(got.Patterns(), []string{"*", "!*/", "!*.whl", "/tmp/"}) {
		t.Errorf("got %+v, %q", got, got.Patterns())
	}
	if got := s.AllTrees[1].Patterns(); len(got) > 0 {
		t.Errorf("without patterns: %q", got)
	}
}
