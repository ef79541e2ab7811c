package web_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-dev/cove/internal/test/webtest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shots is the folder for pictures, which make screenshots names; empty: none are made.
func shots() string { return os.Getenv("COVE_SHOTS") }

// shot keeps a picture of a page, for people.
func shot(t testing.TB, p *webtest.Page, name string) {
	t.Helper()
	if shots() != "" {
		keep(t, name, p.Shot())
	}
}

// glance keeps a picture of what is in a page's window.
func glance(t testing.TB, p *webtest.Page, name string) {
	t.Helper()
	if shots() != "" {
		keep(t, name, p.Glance())
	}
}

func keep(t testing.TB, name string, png []byte) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(shots(), name+".png"), png, 0o600))
}

// narrow fails if a page is wider than its window, and names the elements that stick out. It
// also fails if a hostile text became an image.
func narrow(t testing.TB, p *webtest.Page) {
	t.Helper()
	var wide string
	p.Eval(`document.documentElement.scrollWidth <= innerWidth ? "" : [...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre")).map(e => e.outerHTML.slice(0, 80)).join("\n") || "something"`, &wide)
	if wide != "" {
		t.Errorf("the page is wider than the window: %s", wide)
	}
	var images int
	p.Eval(`document.querySelectorAll('main img[src="x"]').length`, &images)
	if images > 0 {
		t.Errorf("the page has %d images of a hostile text", images)
	}
}
