package sprite_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// TestWebPage: a terminal in a browser outlives its server, which is killed, with the shell and what it
// has shown; pages go on without being loaded again; a checkpoint and a fork are made by the page.
func TestWebPage(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	addr := strings.TrimPrefix(h.Client().URL, "http://")
	h.Run("", "cove", "create", "paint")
	b := webtest.Start(t)
	page := b.Open(h.Client(), webtest.Desktop)
	now := b.Open(h.Client(), webtest.Phone)
	now.Goto("/web/sprites")
	now.Wait(`#list a[href="/web/sprites/paint"]`)

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

	for _, p := range []*webtest.Page{page, now} {
		for _, lost := range []string{"ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", "WebSocket"} {
			p.Allow(lost)
		}
	}
	now.Eval(`window.same = true`, nil)
	e2e.SignalAll(t, syscall.SIGKILL, h.PID())
	page.Until("the page says that the server is away", `document.getElementById("terminal-state").innerText.includes("Trying to come back")`)
	now.Until("the list says so", `!document.getElementById("connection").hidden`)
	h.Serve(nil, "--addr", addr)
	page.Until("the terminal is back", `document.querySelectorAll(".terminal-panel[data-session][data-state=open]").length === 1`)
	shows("kept-42")
	page.Do(chromedp.Focus(".terminal-panel:not([hidden]) textarea", chromedp.ByQuery))
	enter("echo still-$mine")
	shows("still-here")
	h.Run("", "cove", "create", "later")
	now.Wait(`#list a[href="/web/sprites/later"]`)
	now.Until("it is the same page, which says nothing more", `window.same && document.getElementById("connection").hidden`)

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
