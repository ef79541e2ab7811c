package sprite_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// TestWebPage: a terminal in a browser survives a kill of the server, with its shell and
// output. The terminal, the list of sprites and the start page say that the server is away, and
// go on without a reload. The page makes an upload, a checkpoint and a fork.
func TestWebPage(t *testing.T) {
	h := e2e.NewHost(t)
	addr := covetest.Address(t) // nobody else can listen there after the kill
	h.Serve(nil, "--addr", addr)
	h.Run("", "cove", "create", "paint")
	b := webtest.Start(t)
	page := b.Open(h.Client(), webtest.Desktop)
	list := b.Open(h.Client(), webtest.Phone)
	list.Goto("/web/sprites")
	list.Wait(`#list a[href="/web/sprites/paint"]`)
	start := b.Open(h.Client(), webtest.Desktop) // the start page

	shows := func(text string) {
		page.Until("the terminal shows "+text, `[...document.querySelectorAll(".terminal-panel:not([hidden]) .xterm-rows")].some(e => e.innerText.includes("`+text+`"))`)
	}
	enter := func(line string) {
		page.Do(input.InsertText(line))
		page.Type("\r")
	}
	page.Goto("/web/sprites/paint/terminal")
	page.Until("the sprite is awake", `(() => { const wake = document.getElementById("wake"); if (wake) wake.click(); return !wake && document.readyState === "complete"; })()`)
	page.Click("#terminal-new-first:not([disabled])")
	page.Wait(".terminal-panel[data-session]")
	enter("mine=here; echo kept-$((40+2)) >~/kept; cat ~/kept")
	shows("kept-42")

	for _, p := range []*webtest.Page{page, list, start} {
		p.Eval(`window.same = true`, nil)
		p.AllowAway()
	}
	e2e.SignalAll(t, syscall.SIGKILL, h.PID())
	page.Until("the page says that the server is away", `document.getElementById("terminal-state").innerText.includes("Trying to come back")`)
	for _, p := range []*webtest.Page{list, start} {
		p.Until("it says that it connects again", `(e => !e.hidden && e.innerText.includes("Connecting again"))(document.getElementById("connection"))`)
	}
	h.Serve(nil, "--addr", addr)
	page.Until("the terminal is back", `document.querySelectorAll(".terminal-panel[data-session][data-state=open]").length === 1`)
	shows("kept-42")
	page.Do(chromedp.Focus(".terminal-panel:not([hidden]) textarea", chromedp.ByQuery))
	enter("echo still-$mine")
	shows("still-here")
	page.Until("it is the same page", `window.same`)
	h.Run("", "cove", "create", "later")
	list.Wait(`#list a[href="/web/sprites/later"]`)
	repo := h.Repository("repo", map[string]string{"plan.md": "# Paint it\n```sh\necho red >shed.txt\n```\n"})
	job, _ := h.Push(repo, "plan.md", "--agent", "shell", "-s", "paint")
	start.Wait(`#review a[href="/web/jobs/` + job + `"]`)
	for _, p := range []*webtest.Page{list, start} {
		p.Until("it is the same page, which says nothing more", `window.same && document.getElementById("connection").hidden`)
	}

	upload := filepath.Join(t.TempDir(), "drawing.bin")
	if err := os.WriteFile(upload, []byte("up\x00load"), 0o600); err != nil {
		t.Fatal(err)
	}
	list.Goto("/web/sprites/paint/files?path=/home/sprite")
	list.Do(chromedp.SetUploadFiles("#upload", []string{upload}, chromedp.ByQuery))
	list.Until("the upload is listed", `[...document.querySelectorAll(".tree-file a")].some(a => a.innerText === "drawing.bin")`)
	if got := h.Run("", "cove", "exec", "-s", "paint", "cat", "drawing.bin"); got != "up\x00load" {
		t.Errorf("the upload has %q", got)
	}

	page.Goto("/web/sprites/paint/checkpoints")
	page.Fill(`[name="comment"]`, "by the page")
	page.Click("#checkpoint")
	page.Wait(`.point a[href$="/v1"]`)
	page.Goto("/web/sprites/paint/checkpoints/v1")
	page.Click("#open-fork")
	page.Fill(`#fork-point [name="to"]`, "copy")
	page.Click("#fork-point button.primary")
	page.Until("the copy is shown", `location.pathname === "/web/sprites/copy"`)
	if got := h.Run("", "cove", "exec", "-s", "copy", "cat", "/home/sprite/kept"); got != "kept-42\n" {
		t.Errorf("the copy has %q", got)
	}
}
