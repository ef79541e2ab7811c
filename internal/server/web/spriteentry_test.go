package web_test

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
)

var hiddenOf = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`)

// TestOtherEntry: if something has taken the place of a file or folder since it was shown, it
// is not deleted, renamed or written. Nothing is written through a link that was put there
// since. An entry that is as it was shown is changed.
func TestOtherEntry(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Runtime: runtimeOf(t)})
	_, err := s.Create("paint").Wake(t.Context())
	must(t, err)
	c, home := visitor(t, s), t.TempDir()
	at := func(name string) string { return filepath.Join(home, name) }
	write := func(name, text string) { t.Helper(); must(t, os.WriteFile(at(name), []byte(text), 0o600)) }
	is := func(name, want string) {
		t.Helper()
		if got, err := os.ReadFile(at(name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v, want %q", name, got, err, want)
		}
	}
	// form is what a form of the page of a file has, as it is shown now.
	form := func(name, deed string) url.Values {
		t.Helper()
		_, page := read(t, c, s.URL+"/web/sprites/paint/files?path="+url.QueryEscape(at(name)))
		values := url.Values{}
		for _, f := range formsOf.FindAllStringSubmatch(page, -1) {
			if strings.HasSuffix(f[1], deed) {
				for _, m := range hiddenOf.FindAllStringSubmatch(f[2], -1) {
					values.Set(m[1], strings.NewReplacer("&#34;", `"`, "&amp;", "&").Replace(m[2]))
				}
			}
		}
		if values.Get("path") != at(name) {
			t.Fatalf("the page of %s has no form %s:\n%s", name, deed, page)
		}
		return values
	}
	do := func(deed string, form url.Values, status int, want string) {
		t.Helper()
		got, text := send(t, c, http.MethodPost, s.URL+"/web/sprites/paint/files/"+deed, formKind, form.Encode(), map[string]string{"HX-Request": "true"})
		if got != status || !strings.Contains(text, want) {
			t.Errorf("%s: got %d %s, want %d and %q", deed, got, text, status, want)
		}
	}
	const changed, done = http.StatusPreconditionFailed, http.StatusNoContent

	write("plain", "x")
	deletion, renaming := form("plain", "do/delete"), form("plain", "do/rename")
	must(t, os.Mkdir(at("real"), 0o700))
	write("real/kept", "kept")
	must(t, os.Remove(at("plain")))
	must(t, os.Rename(at("real"), at("plain")))
	renaming.Set("to", "moved")
	do("do/delete", deletion, changed, "there is a folder now; nothing was done")
	do("do/rename", renaming, changed, "there is a folder now; nothing was done")
	is("plain/kept", "kept")
	deletion = form("plain", "do/delete")
	write("plain/more", "of which the page does not know")
	do("do/delete", deletion, changed, "has changed since it was shown here; nothing was done")
	is("plain/kept", "kept")
	deletion.Del("version")
	do("do/delete", deletion, changed, "nothing was done")
	renaming = form("plain", "do/rename")
	renaming.Set("to", "moved")
	do("do/rename", renaming, done, "")
	renaming.Set("path", at("moved"))
	do("do/rename", renaming, changed, "has changed") // a renaming is a change, too
	do("do/delete", form("moved", "do/delete"), done, "")
	if _, err := os.Lstat(at("moved")); !os.IsNotExist(err) {
		t.Errorf("a folder that is as it was shown is not deleted: %v", err)
	}

	// A link with the same content behind it, put in the place of a file.
	write("notes", "one\n")
	write("elsewhere", "one\n")
	save := form("notes", "save")
	save.Set("text", "mine\n")
	must(t, os.Remove(at("notes")))
	must(t, os.Symlink("elsewhere", at("notes")))
	do("save", save, changed, "is a link to elsewhere by now; nothing was written")
	is("elsewhere", "one\n")
	save = form("notes", "save")
	save.Set("text", "mine\n")
	must(t, os.Remove(at("notes")))
	write("notes", "one\n")
	do("save", save, changed, "is not a link any more; nothing was written")
	must(t, os.Remove(at("notes")))
	must(t, os.Symlink("elsewhere", at("notes")))
	do("save", save, done, "") // through the link that was shown
	is("elsewhere", "mine\n")
	if st, err := os.Stat(at("elsewhere")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("a file that was saved through a link has the mode %v, %v", st.Mode(), err)
	}
	must(t, os.Remove(at("elsewhere"))) // a link that leads nowhere
	save.Set("over", "gone")
	do("save", save, changed, "is a link to elsewhere by now; nothing was written")
	if _, err := os.Lstat(at("elsewhere")); !os.IsNotExist(err) {
		t.Errorf("a file was made where a link leads: %v", err)
	}
}

// TestUploadOverAnother: an upload replaces the file that the page has asked about, and no
// other one.
func TestUploadOverAnother(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Runtime: runtimeOf(t)})
	_, err := s.Create("paint").Wake(t.Context())
	must(t, err)
	home, from := t.TempDir(), t.TempDir()
	name, up := filepath.Join(home, "notes"), filepath.Join(from, "notes")
	must(t, os.WriteFile(up, []byte("mine"), 0o600))
	must(t, os.WriteFile(name, []byte("one"), 0o600))
	page := webtest.Start(t).Open(s.Client(), webtest.Desktop)
	page.Allow("409")
	page.Allow("412")
	asks := func() {
		t.Helper()
		page.Goto("/web/sprites/paint/files?path=" + home)
		page.Do(chromedp.SetUploadFiles("#upload", []string{up}, chromedp.ByQuery))
		page.Wait(`#replace-it[open] .danger`)
	}
	asks()
	must(t, os.WriteFile(name, []byte("somebody else's"), 0o600))
	page.Click("#replace-it .danger")
	page.Sees("has changed since it was shown here; nothing was done")
	if got, err := os.ReadFile(name); err != nil || string(got) != "somebody else's" {
		t.Errorf("the file has %q, %v", got, err)
	}
	must(t, os.Remove(name))
	must(t, os.Symlink("other", name))
	must(t, os.WriteFile(filepath.Join(home, "other"), []byte("other"), 0o640))
	asks()
	page.Click("#replace-it .danger")
	page.Sees("notes is uploaded.")
	other := filepath.Join(home, "other")
	got, err := os.ReadFile(other)
	must(t, err)
	st, err := os.Stat(other)
	must(t, err)
	if string(got) != "mine" || st.Mode().Perm() != 0o640 {
		t.Errorf("where the link leads is %q, %v", got, st.Mode())
	}
}
