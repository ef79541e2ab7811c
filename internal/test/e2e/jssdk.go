package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cove-dev/cove/internal/test/need"
)

// JSTests is the folder of the JavaScript SDK's tests, relative to any package of
// internal/e2e. Their package.json names the SDK, Playwright for Browse, and a Node to run
// them. The lock file has their digests.
const JSTests = "../sprite/testdata/jssdk"

// JSModules returns the folder node_modules with the packages of JSTests. It is
// kept in .cache, by the digest of the lock file.
func JSModules(t testing.TB) string {
	t.Helper()
	lock := ReadFile(t, JSTests+"/package-lock.json")
	digest := sha256.Sum256([]byte(lock))
	dir, err := filepath.Abs("../../../.cache/jssdk-" + hex.EncodeToString(digest[:8]))
	if err != nil {
		t.Fatal(err)
	}
	modules := filepath.Join(dir, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules
	}
	if err := jsInstall(dir, map[string]string{"package-lock.json": lock, "package.json": ReadFile(t, JSTests+"/package.json")}); err != nil {
		need.Missing(t, "the JavaScript SDK: "+err.Error(), "apt-get install npm, and a registry that it reaches")
	}
	return modules
}

// jsInstall makes dir, in one step, with the packages that the files in it name.
func jsInstall(dir string, files map[string]string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "jssdk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(temp, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	npm := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	npm.Dir = temp
	if out, err := npm.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	if err := exec.Command(filepath.Join(temp, "node_modules", ".bin", "node"), "--version").Run(); err != nil {
		return fmt.Errorf("the Node that npm has installed does not run here: %w", err)
	}
	if err := os.Rename(temp, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// ReadFile returns a file's text.
func ReadFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
