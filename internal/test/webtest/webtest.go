// Package webtest drives a real browser over the web page, for tests. A console error, a report
// of the content policy, an exception of a script, or a request to anywhere else fails the test.
package webtest

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/need"
)

// patience is how long a page may take for an awaited change. It ends a test that hangs. No
// test passes or fails by it on a machine that is merely slow.
const patience = 4 * time.Minute

// Browser is one browser. It shares nothing with other browsers.
type Browser struct {
	t   testing.TB
	ctx context.Context
}

// Size is the size of a page.
type Size struct{ Width, Height int64 }

// The sizes at which tests look at pages.
var (
	Desktop = Size{1280, 800}
	Phone   = Size{360, 740}
)

// Start starts a browser, which ends with the test.
func Start(t testing.TB) *Browser {
	t.Helper()
	chromium := need.Program(t, "chromium", "chromium")
	dir, err := os.MkdirTemp("", "cove-browser-")
	if err != nil {
		t.Fatal(err)
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium), chromedp.UserDataDir(dir), chromedp.NoSandbox,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("no-proxy-server", true),
		chromedp.Flag("allow-pre-commit-input", true),
		chromedp.WSURLReadTimeout(patience),
	)
	alloc, endAlloc := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), opts...)
	ctx, end := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {})) // it complains of events that are newer than it is
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the process
		end()
		endAlloc()
		err := os.RemoveAll(dir)
		for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); err = os.RemoveAll(dir) {
			<-time.After(pollInterval) // the browser's helpers may end later than it does, and write until then
		}
		if err != nil {
			t.Errorf("the browser's folder: %v", err)
		}
	})
	if err := chromedp.Run(ctx); err != nil {
		t.Fatalf("start %s: %v", chromium, err)
	}
	return &Browser{t: t, ctx: ctx}
}

// Page is one tab.
type Page struct {
	t      testing.TB
	ctx    context.Context
	origin string
	size   Size

	mu       sync.Mutex
	problems []string
	allowed  []string
}

// Open logs a new tab in to a server, by a link of the client's, and waits for the start page.
func (b *Browser) Open(c *cove.Client, size Size) *Page {
	b.t.Helper()
	link, err := cove.Web{Client: c}.Link(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		b.t.Fatal(err)
	}
	p := b.Tab(u.Scheme+"://"+u.Host, size)
	p.Do(chromedp.Navigate(link.URL))
	p.Click(`form[action="/web/login"] button`)
	p.Until("the start page is there", `document.readyState === "complete" && !!document.getElementById("now")`)
	return p
}

// Tab opens an empty tab with a context (cookies) of its own, for pages of one origin.
func (b *Browser) Tab(origin string, size Size) *Page {
	b.t.Helper()
	ctx, end := chromedp.NewContext(b.ctx, chromedp.WithTargetID(b.target()))
	p := &Page{t: b.t, ctx: ctx, origin: origin, size: size}
	b.t.Cleanup(func() {
		p.Check()
		end()
	})
	chromedp.ListenTarget(ctx, p.heard)
	if err := chromedp.Run(ctx); err != nil { // the tab ends with the context of its first call
		b.t.Fatalf("open a tab: %v", err)
	}
	p.Do(network.Enable(), runtime.Enable(), log.Enable(),
		p.window(size.Height),
		browser.SetDownloadBehavior(browser.SetDownloadBehaviorBehaviorDeny))
	return p
}

// target opens a window with cookies of its own.
func (b *Browser) target() (id target.ID) {
	b.t.Helper()
	ctx := cdp.WithExecutor(b.ctx, chromedp.FromContext(b.ctx).Browser)
	profile, err := target.CreateBrowserContext().WithDisposeOnDetach(true).Do(ctx)
	if err == nil {
		id, err = target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(ctx)
	}
	if err != nil {
		b.t.Fatalf("open a window: %v", err)
	}
	return id
}

// heard records events that must not happen.
func (p *Page) heard(event any) {
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening: // a person says yes
		go func() { _ = chromedp.Run(p.ctx, page.HandleJavaScriptDialog(true)) }() // in a goroutine: it waits for the caller of heard
	case *runtime.EventExceptionThrown:
		p.problem("exception: " + e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeAssert {
			var said []string
			for _, a := range e.Args {
				said = append(said, string(a.Value)+a.Description)
			}
			p.problem("console: " + strings.Join(said, " "))
		}
	case *log.EventEntryAdded:
		if strings.Contains(e.Entry.Text, "Blocked attempt to show a 'beforeunload'") { // nobody has typed: a script of the test's has
			return
		}
		if e.Entry.Level == log.LevelError || e.Entry.Source == log.SourceSecurity {
			p.problem(fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, p.origin+"/") && !strings.HasPrefix(u, "data:") && !strings.HasPrefix(u, "blob:") {
			p.problem("a request to " + u)
		}
	}
}

func (p *Page) problem(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problems = append(p.problems, text)
}

// Allow ignores problems that contain a text, such as a status that the test provokes.
func (p *Page) Allow(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowed = append(p.allowed, text)
}

// AllowAway ignores what a browser says while the server is away. A request may be under way at
// its end, or begin without it.
func (p *Page) AllowAway() {
	for _, text := range []string{"ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "WebSocket", "htmx:afterRequest", "htmx:sendError"} {
		p.Allow(text)
	}
}

// Check fails the test if anything happened that must not.
func (p *Page) Check() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
next:
	for _, problem := range p.problems {
		for _, text := range p.allowed {
			if strings.Contains(problem, text) {
				continue next
			}
		}
		p.t.Errorf("in the browser: %s", problem)
	}
	p.problems = nil
}

// Do runs actions.
func (p *Page) Do(actions ...chromedp.Action) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		p.t.Fatalf("in the browser: %v\n%s", err, p.look())
	}
}

// look returns the page's content, for a failed test's message.
func (p *Page) look() string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), time.Minute)
	defer cancel()
	var at, text string
	_ = chromedp.Run(ctx, chromedp.Location(&at), chromedp.Evaluate("document.body ? document.body.innerText.slice(0, 4000) : ''", &text))
	return at + "\n" + text
}

// Goto opens a path of the site, and waits until it is there.
func (p *Page) Goto(path string) {
	p.t.Helper()
	p.Do(chromedp.Navigate(p.origin + path))
	p.Until("the page is there", `document.readyState === "complete"`)
}

// visible returns an expression for the first element that a CSS selector finds, if it can be
// seen.
func visible(selector string) string {
	return fmt.Sprintf("[...document.querySelectorAll(%q)].find(e => e.checkVisibility() && e.getClientRects().length > 0)", selector)
}

// Wait waits until an element that a CSS selector finds can be seen.
func (p *Page) Wait(selector string) {
	p.t.Helper()
	p.Until(selector+" can be seen", "!!"+visible(selector))
}

// Click clicks on an element with the mouse, once it can be seen and nothing is above it. A
// browser passes no click to a page that is not drawn yet. If the element moves meanwhile, the
// click hits its surroundings. Then Click clicks again. A stream may have put a new element in the
// place of the old one, and that has the click then.
func (p *Page) Click(selector string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		var at []float64
		p.poll("click on "+selector, fmt.Sprintf(`(() => {
			const find = () => %s, e = find();
			if (!e || document.readyState !== "complete") return null;
			if (e.closest(".htmx-added, .htmx-swapping, .htmx-settling")) return null; // htmx does not hear it yet
			e.scrollIntoView({block: "center", behavior: "instant"});
			const r = e.getClientRects()[0], x = r.x + r.width / 2, y = r.y + r.height / 2, top = document.elementFromPoint(x, y);
			if (!top || !e.contains(top) && !top.contains(e)) return null;
			window.unclicked = true;
			window.addEventListener("click", c => { if (e.contains(c.target) || c.target === top || find()?.contains(c.target)) delete window.unclicked; }, {capture: true, once: true});
			return [x, y];
		})()`, visible(selector)), &at, func() bool { return len(at) == 2 })
		p.Do(chromedp.MouseClickXY(at[0], at[1]))
		if p.clicked() {
			return
		}
	}
	p.t.Fatalf("%s was not clicked within %v\n%s", selector, patience, p.look())
}

// clicked reports whether the last click arrived. If the page is being left, or asks whether it
// may be, it does not answer, but has had the click. A browser that is slow answers the next time.
func (p *Page) clicked() bool {
	for deadline := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
		var not bool
		err := chromedp.Run(ctx, chromedp.Evaluate("!!window.unclicked", &not))
		silent := ctx.Err() != nil && p.ctx.Err() == nil
		cancel()
		if !silent || time.Now().After(deadline) {
			return err != nil || !not
		}
	}
}

// Fill replaces a field's text, once the page's scripts hear of it.
func (p *Page) Fill(selector, text string) {
	p.t.Helper()
	p.Until(selector+" can be filled in", fmt.Sprintf(`document.readyState === "complete" && (e => e && !e.closest(".htmx-added, .htmx-swapping, .htmx-settling"))(%s)`, visible(selector)))
	p.Eval(fmt.Sprintf(`(() => {
		const e = %s;
		e.focus();
		e.value = %q;
		e.dispatchEvent(new Event("input", {bubbles: true}));
		e.dispatchEvent(new Event("change", {bubbles: true}));
	})()`, visible(selector), text), nil)
}

// Type presses keys, as a person would, in the focused element.
func (p *Page) Type(keys string) {
	p.t.Helper()
	p.Do(chromedp.KeyEvent(keys))
}

// Text waits for the first element that a selector finds, and returns its text.
func (p *Page) Text(selector string) (text string) {
	p.t.Helper()
	var found *string
	p.poll("read "+selector, fmt.Sprintf("document.querySelector(%q)?.innerText ?? null", selector), &found, func() bool { return found != nil })
	return *found
}

// Until waits until a JavaScript expression is true, over navigations.
func (p *Page) Until(what, expression string) {
	p.t.Helper()
	var yes bool
	p.poll(what, "!!("+expression+")", &yes, func() bool { return yes })
}

// Sees waits until the page shows a text.
func (p *Page) Sees(text string) {
	p.t.Helper()
	p.Until("the page shows "+text, fmt.Sprintf("document.body?.innerText.includes(%q)", text))
}

// pollInterval is how often a page is asked.
const pollInterval = 50 * time.Millisecond

// poll evaluates an expression into to until done. A page that is being left gives no
// answer.
func (p *Page) poll(what, expression string, to any, done func() bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := chromedp.Run(ctx, chromedp.Evaluate(expression, to))
		if err == nil && done() {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			p.t.Fatalf("%s: not within %v (%v)\n%s", what, patience, err, p.look())
		}
	}
}

// Eval evaluates a JavaScript expression, and awaits a promise.
func (p *Page) Eval(expression string, to any) {
	p.t.Helper()
	p.Do(chromedp.Evaluate(expression, to, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
}

// Shot returns a picture of the whole page, as PNG. For it the window gets as high as the page:
// parts outside the window may not be drawn.
func (p *Page) Shot() (png []byte) {
	p.t.Helper()
	var height int64
	p.Eval("document.documentElement.scrollHeight", &height)
	p.Do(p.window(max(p.size.Height, min(height, maxShot))))
	p.Eval("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))))", nil)
	p.Do(chromedp.CaptureScreenshot(&png))
	p.Do(p.window(p.size.Height))
	return png
}

// Glance returns a picture of the page's window, as PNG.
func (p *Page) Glance() (png []byte) {
	p.t.Helper()
	p.Do(chromedp.CaptureScreenshot(&png))
	return png
}

// maxShot bounds the height of a picture, in pixels.
const maxShot = 4000

// window returns an action that sets the height of the window.
func (p *Page) window(height int64) chromedp.Action {
	return emulation.SetDeviceMetricsOverride(p.size.Width, height, 1, p.size == Phone)
}

// Resize gives the page another size, and the theme of a person's system.
func (p *Page) Resize(size Size, theme string) {
	p.t.Helper()
	p.size = size
	p.Do(p.window(size.Height), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}))
}

//go:embed testdata/axe.js
var axe string

// Pass lets time pass for the page's clock and timers, as fast as the machine can. Afterwards
// they stand still, and the tab loads no other page.
func (p *Page) Pass(d time.Duration) {
	p.t.Helper()
	passed := make(chan struct{})
	ctx, stop := context.WithCancel(p.ctx)
	defer stop()
	chromedp.ListenTarget(ctx, func(event any) {
		if _, ok := event.(*emulation.EventVirtualTimeBudgetExpired); ok {
			close(passed)
		}
	})
	policy := emulation.SetVirtualTimePolicy(emulation.VirtualTimePolicyAdvance).WithBudget(float64(d.Milliseconds()))
	p.Do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := policy.Do(ctx)
		return err
	}))
	select {
	case <-passed:
	case <-time.After(patience):
		p.t.Fatalf("%v have not passed in the page", d)
	}
}

// Axe has axe-core check the page as it is. It returns the serious and critical findings: the
// rule, and elements that break it. Without rules, all are checked.
func (p *Page) Axe(rules ...string) (found []string) {
	p.t.Helper()
	var there bool
	if p.Eval("!!window.axe", &there); !there {
		p.Do(chromedp.Evaluate(axe+";0", nil))
	}
	only, err := json.Marshal(rules)
	if err != nil {
		p.t.Fatal(err)
	}
	p.Eval(fmt.Sprintf(`((only) => axe.run(document, {resultTypes: ["violations"], ...(only ? {runOnly: {type: "rule", values: only}} : {})}).then(r => r.violations
		.filter(v => ["serious", "critical"].includes(v.impact))
		.map(v => v.id + ": " + v.nodes.slice(0, 4).map(n => n.html.slice(0, 160) + " " + n.any.concat(n.all, n.none).map(c => c.message).join("; ").slice(0, 200)).join("\n    "))))(%s)`, only), &found)
	return found
}
