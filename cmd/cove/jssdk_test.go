package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/need"
)

// jsTests is where the tests of the JavaScript SDK are. Their package.json names
// the SDK and a Node to run it, and the lock file has the digests of both.
const jsTests = "testdata/jssdk"

// TestJSSDK drives a server with the unchanged official SDK for JavaScript. Each
// test of testdata/jssdk/*.test.mjs is a subtest here; its name begins with the
// number of the statement of the protocol that it shows.
func TestJSSDK(t *testing.T) { testJSSDK(t) }

// TestSoakJSSDK is what of that takes more than a minute.
func TestSoakJSSDK(t *testing.T) {
	if !soak() {
		t.Skip("make soak runs it: it waits for more than a minute")
	}
	testJSSDK(t, "soak.mjs")
}

// testJSSDK runs the tests of the files, or of all *.test.mjs.
func testJSSDK(t *testing.T, files ...string) {
	modules := jsModules(t)
	h := newHost(t)
	h.serve(nil)
	scripts, err := filepath.Glob(jsTests + "/*.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts {
		h.write("jssdk/"+filepath.Base(script), readFile(t, script))
	}
	dir := filepath.Join(filepath.Dir(h.home), "jssdk")
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}

	args := append([]string{"--test", "--test-force-exit", "--test-timeout=1200000", "--test-reporter=./reporter.mjs"}, files...)
	node := exec.CommandContext(t.Context(), filepath.Join(modules, ".bin", "node"), args...)
	node.Dir = dir
	client := h.client()
	node.Env = append(os.Environ(), "HOME="+h.home, "COVE_URL="+client.URL, "COVE_TOKEN="+client.Token, "NODE_OPTIONS=")
	node.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // each file has a process
	node.Cancel = func() error { return syscall.Kill(-node.Process.Pid, syscall.SIGKILL) }
	var stderr bytes.Buffer
	node.Stderr = &stderr
	out, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	n := jsResults(t, out)
	if err := node.Wait(); err != nil || n == 0 {
		t.Errorf("node: %v after %d tests\n%s", err, n, stderr.String())
	}
}

// numbered is how the name of a test begins.
var numbered = regexp.MustCompile(`^[0-9]+ [a-zA-Z]`)

// jsResults makes a subtest of each result that reporter.mjs tells of, and returns
// how many there were.
func jsResults(t *testing.T, out io.Reader) int {
	results, n := json.NewDecoder(out), 0
	for {
		var r struct {
			Name, Error, Output string
			OK, Skipped         bool
			Seconds             float64
		}
		err := results.Decode(&r)
		switch {
		case errors.Is(err, io.EOF):
			return n
		case err != nil:
			t.Errorf("node does not tell what came of its tests: %v", err)
			_, _ = io.Copy(io.Discard, out)
			return n
		case r.Output != "":
			t.Logf("node: %s", r.Output)
			continue
		}
		n++
		t.Run(r.Name, func(t *testing.T) {
			t.Logf("%.2f s", r.Seconds)
			if !r.OK || r.Skipped || !numbered.MatchString(r.Name) {
				t.Errorf("ok: %v, skipped: %v, numbered: %v\n%s", r.OK, r.Skipped, numbered.MatchString(r.Name), r.Error)
			}
		})
	}
}

// jsModules returns the folder node_modules with the packages of jsTests. It is
// kept in .cache, by the digest of the lock file.
func jsModules(t testing.TB) string {
	t.Helper()
	lock := readFile(t, jsTests+"/package-lock.json")
	digest := sha256.Sum256([]byte(lock))
	dir, err := filepath.Abs("../../.cache/jssdk-" + hex.EncodeToString(digest[:8]))
	if err != nil {
		t.Fatal(err)
	}
	modules := filepath.Join(dir, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules
	}
	if err := jsInstall(dir, map[string]string{"package-lock.json": lock, "package.json": readFile(t, jsTests+"/package.json")}); err != nil {
		need.Missing(t, "the JavaScript SDK: "+err.Error(), "apt-get install npm, and a registry that it reaches")
	}
	return modules
}

// jsInstall makes dir, with the packages that the files in it name, at once.
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

func readFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
