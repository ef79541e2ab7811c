package main

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// TestBrowser opens a sprite's URL in a real Chromium: a page of a service that
// is private, that was asleep, and that has just crashed.
func TestBrowser(t *testing.T) {
	chromium := requireProgram(t, "chromium")
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint", "--idle", "1s", "--hibernate", "1s")
	h.write("index.html", `<!doctype html><title>t</title><p id=p>waiting</p><script>
const p = document.getElementById("p");
p.textContent = "script ran, cookie " + (document.cookie || "unseen");
</script>`)
	h.run("", "cove", "cp", "index.html", "paint:index.html")
	h.run("", "cove", "service", "put", "-s", "paint", "--http-port", "8080", "web", "python3", "-m", "http.server", "8080")
	open := func(url string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=5000",
			"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE *.localhost", "--user-data-dir="+tempDir(t), "--dump-dom", url)
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		return string(out)
	}
	const want = "script ran, cookie unseen" // the browser has a cookie, and the page can't read it
	url := strings.TrimSpace(h.run("", "cove", "url", "-q", "paint"))
	if got := open(url); !strings.Contains(got, "not public") {
		t.Errorf("a stranger sees %q", got)
	}
	if got := open(strings.TrimSpace(h.run("", "cove", "url", "--link", "paint"))); !strings.Contains(got, want) {
		t.Errorf("who has a link sees %q", got)
	}
	h.run("", "cove", "url", "--public", "paint")
	h.run("", "cove", "service", "signal", "web", "KILL", "-s", "paint")
	if got := open(url); !strings.Contains(got, want) {
		t.Errorf("after a crash there is %q", got)
	}
	await(t, "sleep", 30*time.Second, func() bool {
		info, err := h.client().Get(t.Context(), "paint")
		return err == nil && info.Status == sprites.StatusWarm
	})
	if got := open(url); !strings.Contains(got, want) {
		t.Errorf("of a sprite that was asleep there is %q", got)
	}
	h.run("", "cove", "rm", "paint")
}
