package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// toolchains are this machine's folders of tools outside /usr. A sprite has them only if
// it includes them. Folders in /usr/local are not among them.
func toolchains(getenv func(string) string, home func() (string, error)) []string {
	var candidates []string
	add := func(dirs ...string) { candidates = append(candidates, dirs...) }
	if dir := getenv("GOROOT"); dir != "" {
		add(dir)
	}
	add("/opt/go", "/snap/go/current")
	if dir := getenv("NVM_DIR"); dir != "" {
		add(filepath.Join(dir, "versions"))
	}
	if dir := getenv("PYENV_ROOT"); dir != "" {
		add(dir)
	}
	cargo, rustup := getenv("CARGO_HOME"), getenv("RUSTUP_HOME")
	if dir, err := home(); err == nil {
		add(filepath.Join(dir, "go-sdk"), filepath.Join(dir, "sdk"), filepath.Join(dir, ".nvm", "versions"), filepath.Join(dir, ".pyenv"))
		if cargo == "" {
			cargo = filepath.Join(dir, ".cargo")
		}
		if rustup == "" {
			rustup = filepath.Join(dir, ".rustup")
		}
	}
	// Not all of cargo's folder: its credentials are beside the programs.
	if cargo != "" {
		add(filepath.Join(cargo, "bin"))
	}
	if rustup != "" {
		add(filepath.Join(rustup, "toolchains"))
	}
	var found []string
	for _, dir := range candidates {
		dir = filepath.Clean(dir)
		if dir == "/usr" || strings.HasPrefix(dir, "/usr/") || !filepath.IsAbs(dir) || slices.Contains(found, dir) {
			continue
		}
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			found = append(found, dir)
		}
	}
	return found
}

// programFolders are the folders of programs in toolchains, in the order for a sprite's PATH.
// The folders of versions come before those of programs that choose a version. Such a program,
// as rustup's, works only with its own settings.
func programFolders(toolchains []string) []string {
	var versions, choosers []string
	for _, dir := range toolchains {
		for _, pattern := range []string{"*/*/bin", "*/bin"} {
			found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the pattern is right
			versions = append(versions, found...)
		}
		if filepath.Base(dir) == "bin" {
			choosers = append(choosers, dir)
		} else if st, err := os.Stat(filepath.Join(dir, "bin")); err == nil && st.IsDir() {
			choosers = append(choosers, filepath.Join(dir, "bin"))
		}
	}
	return append(versions, choosers...)
}
