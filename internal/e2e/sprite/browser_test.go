package sprite

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// TestBrowser opens a sprite's URL in a real Chromium. The page's service is private,
// then was asleep, then has just crashed. Its page tries to see the codes of later links.
func TestBrowser(t *testing.T) {
	chromium := need.Program(t, "chromium", "chromium")
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "1s", "--hibernate", "1s")
	h.Write("index.html", `<!doctype html><title>t</title><p id=p>waiting</p><script>
const p = document.getElementById("p");
p.textContent = "script ran, cookie " + (document.cookie || "unseen");
const seen = [location.href, document.referrer].concat(performance.getEntries().map(e => e.name)).join(" ");
if (seen.includes("cove_code")) p.textContent += ", code seen";
let asking = true;
navigator.serviceWorker.register("/worker.js").then(() => navigator.serviceWorker.ready).then(() => p.textContent += ", worker ready", () => p.textContent += ", refused").finally(() => asking = false);
(async () => { for (let n = 0; asking && n < 50; n++) await fetch("/index.html", {cache: "no-store"}); })(); // time stands still meanwhile
</script>`)
	h.Write("worker.js", `
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", e => e.waitUntil(clients.claim()));
self.addEventListener("fetch", e => { if (e.request.mode === "navigate") e.respondWith(new Response("worker saw " + e.request.url)); });`)
	for _, file := range []string{"index.html", "worker.js"} {
		h.Run("", "cove", "cp", file, "paint:"+file)
	}
	h.Run("", "cove", "service", "put", "-s", "paint", "--http-port", "8080", "web", "python3", "-m", "http.server", "8080")
	profile := e2e.TempDir(t)
	open := func(url string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=5000",
			"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE *.localhost", "--user-data-dir="+profile, "--dump-dom", url)
		cmd.WaitDelay = e2e.LastResort
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		page, _, _ := strings.Cut(string(out), "<script>")
		if strings.Contains(page, "code seen") || strings.Contains(page, "worker") {
			t.Errorf("%s: there is %q", url, page)
		}
		return page
	}
	// The browser has a cookie that the page can't read. The page can't register a worker
	// that would see the code of the next link.
	const want = "script ran, cookie unseen"
	openLink := func() (page string) {
		t.Helper()
		e2e.Await(t, "an answer", func() bool {
			page = open(strings.TrimSpace(h.Run("", "cove", "url", "--link", "paint")))
			return !strings.Contains(page, "does not answer at its HTTP port") && !strings.Contains(page, "nothing answers at the URL") // after ten seconds: a visitor may try again
		})
		return page
	}
	url := strings.TrimSpace(h.Run("", "cove", "url", "-q", "paint"))
	if got := open(url); !strings.Contains(got, "not public") {
		t.Errorf("a stranger sees %q", got)
	}
	if got := openLink(); !strings.Contains(got, want) {
		t.Errorf("who has a link sees %q", got)
	}
	h.Run("", "cove", "url", "--public", "paint")
	h.Run("", "cove", "service", "signal", "web", "KILL", "-s", "paint")
	e2e.Await(t, "the page after a crash", func() bool { return strings.Contains(open(url), want) })
	e2e.Await(t, "sleep", func() bool {
		info, err := h.Client().Get(t.Context(), "paint")
		return err == nil && info.Status == sprites.StatusWarm
	})
	e2e.Await(t, "the page of a sprite that was asleep", func() bool { return strings.Contains(open(url), want) })
	h.Run("", "cove", "url", "--private", "paint")
	if got := openLink(); !strings.Contains(got, want) { // no worker is left of when it was public
		t.Errorf("who has a link when it is private again sees %q", got)
	}
	h.Run("", "cove", "rm", "paint")
}
