package registries

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cove-dev/cove/internal/test/executable"
)

func TestHosts(t *testing.T) {
	root := t.TempDir()
	bin := filepath.Join(root, "bin")
	for name, text := range map[string]string{
		"bin/npm": "#!/bin/sh\n[ \"$(pwd) $*\" = '/ config get registry' ] && echo https://npm.example/some/path/",
		"bin/go":  "#!/bin/sh\nprintf 'https://u:p@go.example,http://other.example:8080|direct\\nsums.example+abc\\n'",
		"bin/pip": "#!/bin/sh\n[ \"$(pwd) $*\" = '/ config list' ] && cat <<'E'\n:env:.cert='/no.example/x'\nglobal.index-url='https://main.example/simple'\n" +
			"global.extra-index-url='\\nhttps://more.example/a\\nhttps://most.example/b'\ninstall.trusted-host='no.example'\nE\n",
		"etc/apt/sources.list": "# deb http://no.example/ x\ndeb [arch=amd64 signed-by=/a.gpg] http://deb.example/debian x main\n" +
			"deb file:/mnt x\ndeb-src https://SRC.example/debian x",
		"etc/apt/sources.list.d/x.sources": "Types: deb\nURIs: https://one.example/ https://two.example/y\nSuites: x\n",
		"h/.cargo/config.toml":             "[source.x]\nregistry = \"sparse+https://crates.example/\" # mine\nother = \"https://no.example\"\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		executable.Write(t, path, text)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("CARGO_HOME", "/h/.cargo")
	t.Setenv("PIP_INDEX_URL", "https://pip.example/simple")
	f := &Finder{Root: root}
	ended, end := context.WithCancel(t.Context())
	end() // who asked has gone: those who ask later have the answer all the same
	if first := f.Hosts(ended); len(first) == 0 {
		t.Error("nothing is found for a call that has ended")
	}
	got := f.Hosts(t.Context())
	want := []string{"crates.example", "deb.example", "go.example", "main.example", "more.example", "most.example", "npm.example", "one.example", "other.example", "pip.example", "src.example", "sums.example", "two.example"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
