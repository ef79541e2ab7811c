package sprite

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestJSSDK drives a server with the unchanged official SDK for JavaScript. Each
// test of testdata/jssdk/*.test.mjs is a subtest here; its name begins with the
// number of the statement of the protocol that it shows.
func TestJSSDK(t *testing.T) { testJSSDK(t) }

// TestSoakJSSDK runs the part of that which takes more than a minute.
func TestSoakJSSDK(t *testing.T) {
	if !e2e.Soak() {
		t.Skip("make soak runs it: it waits for more than a minute")
	}
	testJSSDK(t, "soak.mjs")
}

// testJSSDK runs the tests of the files, or of all *.test.mjs.
func testJSSDK(t *testing.T, files ...string) {
	modules := e2e.JSModules(t)
	h := e2e.NewHost(t)
	h.Serve(nil)
	scripts, err := filepath.Glob(e2e.JSTests + "/*.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts {
		h.Write("jssdk/"+filepath.Base(script), e2e.ReadFile(t, script))
	}
	dir := filepath.Join(filepath.Dir(h.Home), "jssdk")
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}

	args := append([]string{"--test", "--test-force-exit", "--test-timeout=1200000", "--test-reporter=./reporter.mjs"}, files...)
	node := exec.CommandContext(t.Context(), filepath.Join(modules, ".bin", "node"), args...)
	node.Dir = dir
	client := h.Client()
	node.Env = append(os.Environ(), "HOME="+h.Home, "COVE_URL="+client.URL, "COVE_TOKEN="+client.Token, "NODE_OPTIONS=")
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

// numbered matches the beginning of a test's name.
var numbered = regexp.MustCompile(`^[0-9]+ [a-zA-Z]`)

// jsResults makes a subtest of each result that reporter.mjs reports, and returns how
// many there were.
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
