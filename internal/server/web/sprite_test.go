package web_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

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

// arrives waits until a page is there, with its scripts.
func arrives(p *webtest.Page, path string) {
	p.Until(path+" is there", `location.pathname === "`+path+`" && document.readyState === "complete"`)
}

// enter types a line into the terminal that has the focus.
func enter(p *webtest.Page, line string) {
	p.Do(input.InsertText(line))
	p.Type("\r")
}

// TestTerminal: a terminal goes on through the end of its server, and shows again what it had
// shown. The keyboard can leave it. A logout ends it.
func TestTerminal(t *testing.T) {
	rt, dir, at := runtimeOf(t), t.TempDir(), covetest.Address(t)
	s := covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt, Listen: at})
	paint := s.Create("paint")
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Desktop)

	page.Goto("/web/sprites/paint/terminal")
	page.Sees("This sprite sleeps")
	if rt.Boots() != 0 {
		t.Fatal("a page has woken the sprite")
	}
	page.Click("#wake")
	page.Until("it is awake", `!document.getElementById("wake") && document.readyState === "complete"`)
	page.Click("#terminal-new-first:not([disabled])")
	page.Wait(".terminal-panel[data-session]")
	enter(page, "echo kept-$((40+2))")
	shows(page, "kept-42")
	if shots() != "" { // without the name of this machine
		enter(page, "PS1='sprite@paint:~$ '; clear")
		enter(page, "for test in parse draw save_all; do echo \"$test: ok\"; done")
		shows(page, "save_all: ok")
		glance(t, page, "terminal")
		enter(page, "echo kept-$((40+2))")
		shows(page, "kept-42")
	}

	// Another one, and back.
	page.Click("#terminal-bar [data-terminal-new]")
	page.Until("there are two", `document.querySelectorAll(".terminal-panel[data-session]").length === 2`)
	enter(page, "echo other-$((40+2))")
	shows(page, "other-42")
	page.Click("#terminal-tab-1")
	shows(page, "kept-42")
	page.Do(chromedp.KeyEvent("t", chromedp.KeyModifiers(2|1))) // Ctrl+Alt
	page.Until("the tab has the focus", `document.activeElement.id === "terminal-tab-1"`)

	// Another site's page gets none of it, though the browser sent the cookie.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/web/sprites/paint/terminal/socket", nil)
	must(t, err)
	r.Header = http.Header{"Origin": {"http://evil.example"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	must(t, resp.Body.Close())
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a WebSocket of another site: %s", resp.Status)
	}

	list, err := paint.Sessions(t.Context())
	must(t, err)
	if len(list) != 2 {
		t.Fatalf("sessions: %+v", list)
	}

	// The page is loaded again, and has both.
	page.Goto("/web/sprites/paint/terminal")
	page.Until("both are there again", `document.querySelectorAll(".terminal-panel[data-session]").length === 2`)
	page.Click("#terminal-tab-2") // one that is left is offered, also beside another
	page.Click("#terminal-close")
	page.Until("it can be joined", `document.querySelectorAll("#terminal-open li").length === 1 && document.querySelector("#terminal-open li button").checkVisibility()`)
	page.Click("#terminal-open li button")
	page.Until("it is there again", `document.querySelectorAll(".terminal-panel[data-session]").length === 2 && document.getElementById("terminal-others").hidden`)
	page.Click("#terminal-tab-1")
	shows(page, "kept-42")

	// The server ends, and another takes its place. The page notices by itself.
	page.AllowAway()
	s.Stop()
	page.Until("the page says that it is away", `document.getElementById("terminal-state").innerText.includes("Trying to come back")`)
	s = covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt, Listen: at})
	page.Until("the terminal is back", `document.querySelectorAll(".terminal-panel[data-session][data-state=open]").length === 2`)
	shows(page, "kept-42")
	page.Do(chromedp.Focus("#terminal-panel-1 textarea", chromedp.ByQuery))
	enter(page, "echo back-$((40+2))")
	shows(page, "back-42")

	// Another browser joins, and sees the earlier output. Only a logout cuts it off.
	other := b.Open(s.Client(), webtest.Phone)
	other.Goto("/web/sprites/paint/terminal")
	other.Click("#terminal-open li button")
	other.Wait(".terminal-panel[data-session]")
	other.Until("its keys are there", `[...document.querySelectorAll("[data-term-key]")].every(b => b.checkVisibility())`)
	enter(other, "sh -c 'echo wait-$((40+2)); exec sleep 1000'") // which gets a Ctrl+C from then on
	shows(other, "wait-42")
	other.Click("[data-term-key=ctrl]")
	other.Do(input.InsertText("c"))
	other.Until("Ctrl is for one key", `document.querySelector("[data-term-key=ctrl]").getAttribute("aria-pressed") === "false"`)
	enter(other, "echo ended-$((40+2))")
	shows(other, "ended-42")
	narrow(t, other)
	shot(t, other, "terminal-phone")
	other.Allow("401")
	other.Allow("WebSocket")
	page.Allow("401")
	page.Goto("/web/new")
	page.Fill("#plan", "# Half a plan")
	must(t, cove.Web{Client: s.Client()}.EndAll(t.Context()))
	other.Sees("Log in")
	page.Sees("is kept in this tab")

	// The same token logs in again, and goes on to write.
	link, err := cove.Web{Client: s.Client()}.Link(t.Context())
	must(t, err)
	page.Do(chromedp.Navigate(link.URL))
	page.Click(`form[action="/web/login"] button`)
	page.Sees("you had begun to write something")
	page.Click("#undone a")
	page.Until("the text is there", `document.getElementById("plan")?.value === "# Half a plan" && sessionStorage.getItem("cove-typed") === null`)
}

// TestFiles: a file is changed, but not over the change of somebody else. An upload arrives,
// and a download is not a page.
func TestFiles(t *testing.T) {
	rt, dir, at := runtimeOf(t), t.TempDir(), covetest.Address(t)
	s := covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt, Listen: at})
	paint := s.Create("paint")
	home := t.TempDir()
	notes := filepath.Join(home, "notes.txt")
	write := func(name, text string) {
		t.Helper()
		must(t, paint.WriteFile(t.Context(), name, strings.NewReader(text), sprites.WriteOptions{}))
	}
	write(notes, "one\ntwo\n")
	write(filepath.Join(home, "sub", "deep.html"), "<script>alert(1)</script>")
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Phone)
	page.Goto("/web/sprites/paint/files?path=" + home)
	page.Sees("notes.txt")
	page.Eval(`document.querySelector("details").open = true`, nil)
	page.Sees("deep.html")
	narrow(t, page)
	shot(t, page, "files-phone")

	page.Goto("/web/sprites/paint/files?path=" + notes)
	page.Until("to leave asks nothing", `dispatchEvent(new Event("beforeunload", { cancelable: true }))`)
	page.Fill("#file-text", "one\nthree\n")
	page.Eval("window.old = true", nil)
	page.Eval(`document.dispatchEvent(new KeyboardEvent("keydown", { key: "s", ctrlKey: true, cancelable: true }))`, nil)
	page.Until("it is saved", `!window.old && document.getElementById("file-text")?.value === "one\nthree\n"`)
	narrow(t, page)
	shot(t, page, "file-phone")
	const odd = "\ufeffone\r\ntwo\u200b\nthree\r"
	unseen := filepath.Join(home, "odd.txt")
	write(unseen, odd)
	page.Goto("/web/sprites/paint/files?path=" + unseen)
	page.Sees("are saved unchanged")
	page.Eval(`document.getElementById("file-text").value += "four\n"`, nil)
	page.Eval("window.old = true", nil)
	page.Click("#save")
	page.Until("it is saved", `!window.old && document.getElementById("file-text")?.value.endsWith("four\n")`)
	if got, err := paint.ReadFile(t.Context(), unseen); err != nil || string(got) != odd+"four\n" {
		t.Fatalf("a file with characters that can't be seen: %q, %v", got, err)
	}

	// The server is away while a file is saved: the page says so until it was, though the server is back.
	page.Goto("/web/sprites/paint/files?path=" + notes)
	page.Fill("#file-text", "kept\n")
	page.AllowAway()
	s.Stop()
	page.Click("#save")
	page.Until("it says so beside the button", `document.getElementById("save").form.querySelector(".undone[role=alert]")?.innerText === "Not saved: the server was away. Save again."`)
	narrow(t, page)
	shot(t, page, "file-away-phone")
	page.Click("#open-rename")
	page.Fill("#rename-it [name=to]", "other.txt")
	page.Click("#rename-it .primary")
	page.Until("a dialog stays, and says so", `document.querySelector("#rename-it[open] .undone")?.innerText === "“Rename” may not have been done: the server did not answer."`)
	page.Click("#rename-it [data-closes]")
	covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt, Listen: at})
	page.Until("it is connected again", `document.getElementById("connection").hidden`)
	page.Until("it says so still", `document.getElementById("save").form.querySelector(".undone").checkVisibility() && document.getElementById("file-text").value === "kept\n"`)
	page.Eval("window.old = true", nil)
	page.Click("#save")
	page.Until("it is saved", `!window.old && document.getElementById("file-text")?.value === "kept\n" && !document.querySelector(".undone")`)

	page.Goto("/web/sprites/paint/files?path=" + notes)
	write(notes, "somebody else\n")
	page.Allow("412")
	page.Allow("409")
	page.Fill("#file-text", "mine\n")
	page.Click("#save")
	page.Sees("has changed since")
	page.Until("the other version can be seen", `document.getElementById("other-version")?.target === "_blank" && new URL(document.getElementById("other-version").href).searchParams.get("path") === "`+notes+`"`)
	shot(t, page, "file-changed-phone")
	page.Until("to leave asks first", `!dispatchEvent(new Event("beforeunload", { cancelable: true }))`)
	page.Until("the text is still there", `document.getElementById("file-text").value === "mine\n"`)
	if got, err := paint.ReadFile(t.Context(), notes); err != nil || string(got) != "somebody else\n" {
		t.Fatalf("the file: %q, %v", got, err)
	}

	page.Click("#save-over")
	page.Sees("notes.txt is saved. The other version is kept as notes.txt.other.")
	for name, want := range map[string]string{notes: "mine\n", notes + ".other": "somebody else\n"} {
		if got, err := paint.ReadFile(t.Context(), name); err != nil || string(got) != want {
			t.Fatalf("%s: %q, %v", name, got, err)
		}
	}

	must(t, os.Remove(notes))
	page.Fill("#file-text", "mine again\n")
	page.Click("#save")
	page.Sees("was deleted since it was shown here")
	page.Eval("window.old = true", nil)
	page.Click("#save-over")
	page.Until("it is there again", `!window.old && document.getElementById("file-text")?.value === "mine again\n"`)
	page.Fill("#file-text", "and again\n")

	// By now it is larger than the server's memory may be.
	f, err := os.OpenFile(notes, os.O_WRONLY, 0)
	must(t, err)
	must(t, f.Truncate(64<<30))
	must(t, f.Close())
	page.Click("#save")
	page.Sees("is larger than 256.0 KiB by now")
	must(t, os.Remove(notes))
	page.Eval(`(t => { t.value = t.defaultValue; })(document.getElementById("file-text"))`, nil) // or the browser asks

	up := filepath.Join(t.TempDir(), "up.bin")
	must(t, os.WriteFile(up, []byte("up\x00load"), 0o600))
	page.Goto("/web/sprites/paint/files?path=" + home)
	page.Do(chromedp.SetUploadFiles("#upload", []string{up}, chromedp.ByQuery))
	page.Until("the upload is listed", `[...document.querySelectorAll(".tree-file a")].some(a => a.innerText === "up.bin")`)
	if got, err := paint.ReadFile(t.Context(), filepath.Join(home, "up.bin")); err != nil || string(got) != "up\x00load" {
		t.Fatalf("the upload: %q, %v", got, err)
	}
	var answer struct{ Disposition, Policy, Kind string }
	page.Do(chromedp.Evaluate(`fetch("/web/sprites/paint/files/raw?path=`+home+`/sub/deep.html").then(r => ({
		Disposition: r.headers.get("Content-Disposition"), Policy: r.headers.get("Content-Security-Policy"), Kind: r.headers.get("Content-Type")}))`, &answer, awaited))
	if !strings.HasPrefix(answer.Disposition, "attachment") || !strings.HasPrefix(answer.Policy, "sandbox") || answer.Kind != "application/octet-stream" {
		t.Errorf("a download: %+v", answer)
	}
}

// awaited makes an evaluation wait for the expression's promise.
func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

// TestSpritePages: each page of a sprite is there at both widths, and looking wakes nothing. A
// service is stopped, and its log is live. A rule is shown before it is added, and a delete
// asks.
func TestSpritePages(t *testing.T) {
	rt := runtimeOf(t)
	s := covetest.Start(t, covetest.Options{Runtime: rt})
	paint := s.Create("paint")
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Desktop)
	phone := b.Open(s.Client(), webtest.Phone)
	for _, tab := range []string{"", "/terminal", "/files", "/services", "/checkpoints", "/network", "/connectors"} {
		phone.Goto("/web/sprites/paint" + tab)
		phone.Wait(".tabs [aria-current]")
		narrow(t, phone)
	}
	if rt.Boots() != 0 {
		t.Fatal("a page has woken the sprite")
	}

	must(t, paint.PutService(t.Context(), sprites.Service{Name: "talk", Cmd: "/bin/sh", Args: []string{"-c", "echo \"<b>said</b>\"; exec sleep 1000"}}, sprites.Follow{}))
	page.Goto("/web/sprites/paint/services/talk")
	page.Sees("<b>said</b>")
	shot(t, page, "log")
	page.Goto("/web/sprites/paint/services")
	page.Click(`[aria-label="Stop talk"]`)
	page.Wait(`[aria-label="Start talk"]`)
	shot(t, page, "services")
	for _, tab := range []string{"", "/services", "/checkpoints", "/network", "/connectors"} {
		phone.Goto("/web/sprites/paint" + tab)
		phone.Wait(".tabs [aria-current]")
		narrow(t, phone)
		shot(t, phone, "phone"+strings.ReplaceAll(tab, "/", "-"))
	}

	page.Goto("/web/sprites/paint/network")
	page.Fill(`[name="rule"]`, "example.org:443")
	page.Type("\r")
	page.Sees("It opens the name example.org, on port 443 alone, by TCP.")
	p, err := paint.NetworkPolicy(t.Context())
	if err != nil || len(p.Rules) != 0 {
		t.Fatalf("rules before the yes: %+v, %v", p.Rules, err)
	}
	shot(t, page, "network")
	page.Fill("#target", "half.example")
	page.Eval(`(send => { window.away = true; window.fetch = (to, ...rest) => window.away && to === "/web/alive" ? Promise.reject(new TypeError("away")) : send(to, ...rest); })(window.fetch)`, nil)
	page.Click("#allow-it")
	page.Sees("It was done. The server has gone away since") // between the answer and the page to which it leads
	page.Until("the page is kept", `document.getElementById("target").value === "half.example"`)
	page.Eval(`window.away = false`, nil)
	page.Wait(`[aria-label="Remove allow example.org:443"]`)
	page.Sees("The rule is in force: allow example.org:443.")
	page.Until("what is typed beside it stays", `document.getElementById("target").value === "half.example" && sessionStorage.getItem("cove-typed") === null`)
	page.Fill("#target", "example.org:443")
	page.Type("\r")
	page.Until("it is allowed", `document.querySelector("#decision .badge")?.innerText === "allowed"`)
	page.Click(`[aria-label="Remove preset open"]`)
	page.Sees("The rule is removed: preset open.")
	page.Fill(`[name="rule"]`, "preset defaults")
	page.Type("\r")
	page.Sees("It opens what the preset agent opens, and the usual forges of git repositories.")
	page.Click("#allow-it")
	page.Wait(`[aria-label="Remove preset defaults"]`)
	page.Sees("The rule is in force: preset defaults.")

	page.Goto("/web/sprites/paint")
	page.Sees("Written to disk")
	shot(t, page, "overview")
	if _, err := paint.Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	page.Goto("/web/sprites/paint/checkpoints")
	page.Fill(`[name="comment"]`, "tests pass")
	page.Click("#checkpoint")
	page.Sees("tests pass")
	shot(t, page, "checkpoints")
	page.Click(`.point a[href$="/v1"]`)
	arrives(page, "/web/sprites/paint/checkpoints/v1")
	page.Click("#open-restore")
	page.Sees("The present disk is kept")
	shot(t, page, "restore")
	page.Click("#restore-it button.danger")
	arrives(page, "/web/sprites/paint/checkpoints")
	page.Sees("The disk is back at v1. The state before is the checkpoint pre-restore-")
	page.Until("what was before is listed", `[...document.querySelectorAll(".point")].some(li => li.innerText.includes("pre-restore-") && li.innerText.includes("before the restore of v1"))`)
	page.Goto("/web/sprites/paint/checkpoints")
	page.Until("it is said once", `!document.querySelector("#said .saying") && document.querySelector(".points")`)
	page.Click(`[hx-target="#prune"] button`)
	page.Sees("These stay")
	page.Goto("/web/sprites/paint/checkpoints/v1")
	page.Click("#open-fork")
	page.Fill(`#fork-point [name="to"]`, "copy")
	page.Click("#fork-point button.primary")
	page.Until("the copy is shown", `location.pathname === "/web/sprites/copy"`)
	if boots := rt.Boots(); boots != 1 {
		t.Errorf("%d boots: a page has woken a sprite", boots)
	}

	page.Goto("/web/components")
	page.Sees("with work that nobody has pulled")
	page.Goto("/web/sprites/paint")
	page.Click("#open-delete")
	page.Fill(`#delete-it [name="typed"]`, "paint")
	page.Eval(`document.querySelector("#delete-it form button.danger").click()`, nil)
	page.Allow("404") // of the page with all sprites, until that is there
	page.Until("the sprite's page is left", `location.pathname === "/web/sprites"`)
	if _, err := s.Client().Get(t.Context(), "paint"); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("after the delete: %v", err)
	}
}
