package cli

import (
	"html"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/executable"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// TestOpenBrowserHidesTheLink: the program that opens a browser gets the name of a file that only the
// user can read, never the link. The file of a call just before stays, since its browser may not have
// read it yet. An old file is removed.
func TestOpenBrowserHidesTheLink(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	told := filepath.Join(home, "told")
	if err := os.Mkdir(filepath.Join(home, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"xdg-open", "open"} {
		script := "#!/bin/sh\nprintf '%s\\n' \"$*\" >'" + told + "'\n"
		executable.Write(t, filepath.Join(home, "bin", name), script)
	}
	t.Setenv("PATH", filepath.Join(home, "bin")+":"+os.Getenv("PATH"))
	// To read a pipe waits for the program.
	if err := unix.Mkfifo(told, 0o600); err != nil {
		t.Fatal(err)
	}
	const link = "http://127.0.0.1:7777/web/login?code=SECRETCODE&a=b"
	var before string
	for range 2 {
		if err := openBrowser(t.Context(), link); err != nil {
			t.Fatal(err)
		}
		args, err := os.ReadFile(told)
		if err != nil {
			t.Fatal(err)
		}
		page := strings.TrimSpace(string(args))
		if strings.Contains(page, "SECRETCODE") || !filepath.IsAbs(page) {
			t.Fatalf("the program was told %q", page)
		}
		text, err := os.ReadFile(page)
		if err != nil || !strings.Contains(string(text), "url="+html.EscapeString(link)+`"`) {
			t.Errorf("the page is %q, %v", text, err)
		}
		for path, mode := range map[string]os.FileMode{page: 0o600, filepath.Dir(page): 0o700} {
			if st, err := os.Stat(path); err != nil {
				t.Error(err)
			} else if st.Mode().Perm() != mode {
				t.Errorf("%s has the mode %v", path, st.Mode())
			}
		}
		if before == page {
			t.Errorf("two calls have the file %s", page)
		}
		if before != "" {
			if _, err := os.Stat(before); err != nil {
				t.Errorf("the page of a call just before: %v", err)
			}
			old := time.Now().Add(-2 * linkPageTime)
			if err := os.Chtimes(before, old, old); err != nil {
				t.Fatal(err)
			}
			after, err := writeLinkPage(filepath.Dir(page), link)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(before); !os.IsNotExist(err) {
				t.Errorf("the page of an old call: %v", err)
			}
			for _, page := range []string{page, after} {
				if _, err := os.Stat(page); err != nil {
					t.Error(err)
				}
			}
		}
		before = page
	}
}

// TestLinkPageInABrowser: the page of cove web, a file, leads a real browser to the question whether it should log in.
func TestLinkPageInABrowser(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	link, err := cove.Web{Client: s.Client()}.Link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	page, err := writeLinkPage(filepath.Join(t.TempDir(), "web"), link.URL)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		t.Fatal(err)
	}
	tab := webtest.Start(t).Tab(u.Scheme+"://"+u.Host, webtest.Desktop)
	tab.Allow("a request to file://" + page)
	tab.Do(chromedp.Navigate("file://" + page))
	tab.Click(`form[action="/web/login"] button`)
	tab.Until("it is logged in", `document.readyState === "complete" && !!document.getElementById("now")`)
}
