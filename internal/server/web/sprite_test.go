package web_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// look keeps a picture of a page, if COVE_SHOTS names a folder for them.
func look(t testing.TB, p *webtest.Page, name string) {
	t.Helper()
	if dir := os.Getenv("COVE_SHOTS"); dir != "" {
		must(t, os.WriteFile(filepath.Join(dir, name+".png"), p.Shot(), 0o600))
	}
}

// narrow fails if a page is wider than its window.
func narrow(t testing.TB, p *webtest.Page) {
	t.Helper()
	p.Until("the page fits its window", "document.documentElement.scrollWidth <= innerWidth")
}

// runtimeOf is a runtime that outlives servers.
func runtimeOf(t testing.TB) *covetest.InProcess {
	rt := &covetest.InProcess{Dir: t.TempDir()}
	t.Cleanup(func() { must(t, rt.Close()) })
	return rt
}

// shows waits until a terminal shows a text.
func shows(p *webtest.Page, text string) {
	p.Until("the terminal shows "+text, `[...document.querySelectorAll(".terminal-panel:not([hidden]) .xterm-rows")].some(e => e.innerText.includes("`+text+`"))`)
}

// enter types a line into the terminal that has the focus.
func enter(p *webtest.Page, line string) {
	p.Do(input.InsertText(line))
	p.Type("\r")
}

// TestTerminal: a terminal goes on through the end of its server, and shows again what it had
// shown; it leaves the keyboard; a logout ends it.
func TestTerminal(t *testing.T) {
	rt, dir := runtimeOf(t), t.TempDir()
	s := covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt})
	paint := s.Create("paint")
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Desktop)

	page.Goto("/web/sprites/paint/terminal")
	page.Sees("This sprite sleeps")
	if rt.Boots() != 0 {
		t.Fatal("a page has woken the sprite")
	}
	page.Click("#wake")
	page.Click("#terminal-new-first:not([disabled])")
	page.Wait(".terminal-panel[data-session]")
	enter(page, "echo kept-$((40+2))")
	shows(page, "kept-42")
	look(t, page, "terminal")

	// Another one, and back.
	page.Click("#terminal-bar [data-terminal-new]")
	page.Until("there are two", `document.querySelectorAll(".terminal-panel[data-session]").length === 2`)
	enter(page, "echo other-$((40+2))")
	shows(page, "other-42")
	page.Click("#terminal-tab-1")
	shows(page, "kept-42")
	page.Do(chromedp.KeyEvent("t", chromedp.KeyModifiers(2|1))) // Ctrl+Alt
	page.Until("the tab has the focus", `document.activeElement.id === "terminal-tab-1"`)

	list, err := paint.Sessions(t.Context())
	must(t, err)
	if len(list) != 2 {
		t.Fatalf("sessions: %+v", list)
	}

	// Another browser joins, sees what was shown, and is cut off by a logout alone.
	other := b.Open(s.Client(), webtest.Phone)
	other.Goto("/web/sprites/paint/terminal")
	other.Click("#terminal-open li button")
	other.Wait(".terminal-panel[data-session]")
	narrow(t, other)
	look(t, other, "terminal-phone")
	other.Allow("401")
	other.Allow("WebSocket")
	page.Allow("401")
	page.Allow("WebSocket")
	must(t, s.Client().EndWebSessions(t.Context()))
	other.Sees("Log in")
	page.Sees("Log in")
}

// TestFiles: a folder is shown, a file is changed, and not over the change of somebody else; an
// upload arrives; a download is no page.
func TestFiles(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	paint := s.Create("paint")
	home := t.TempDir()
	must(t, paint.WriteFile(t.Context(), filepath.Join(home, "notes.txt"), strings.NewReader("one\ntwo\n"), sprites.WriteOptions{}))
	must(t, paint.WriteFile(t.Context(), filepath.Join(home, "sub", "deep.html"), strings.NewReader("<script>alert(1)</script>"), sprites.WriteOptions{}))
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Phone)
	page.Goto("/web/sprites/paint/files?path=" + home)
	page.Sees("notes.txt")
	narrow(t, page)
	look(t, page, "files-phone")
}
