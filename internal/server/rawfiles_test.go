package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// fsCall makes the path of a call of the /fs family.
func fsCall(method, call string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Add(pairs[i], pairs[i+1])
	}
	return method + " /v1/sprites/paint/fs/" + call + "?" + q.Encode()
}

func decode[T any](t *testing.T, a answer) (v T) {
	t.Helper()
	failIf(t, a.StatusCode != 200, "got %d %s", a.StatusCode, a.body)
	must(t, json.Unmarshal(a.body, &v))
	return v
}

// noFile checks a failure of the /fs family.
func noFile(t *testing.T, a answer, status int, code string) {
	t.Helper()
	var e sprites.FileError
	failIf(t, json.Unmarshal(a.body, &e) != nil || a.StatusCode != status || e.Code != code || e.Error == "", "got %d %s, want %d %s", a.StatusCode, a.body, status, code)
}

// Statement 68: write, then read, returns identical bytes, also binary and empty.
// Statement 69: mode is octal (0644, 644, 0755).
// Statement 70: mkdirParents=true and mkdir=true make parents.
// Statement 71: POST to write → 405.
// Statement 77: a relative path is resolved against workingDir.
func TestRawWrite(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	dir := t.TempDir()
	for i, data := range []string{"", "text\n", "\x00\xff\r\n" + strings.Repeat("\x80", 100_000)} {
		name := "f" + strconv.Itoa(i)
		w := decode[sprites.WriteResult](t, ask(t, s, fsCall("PUT", "write", "path", name, "workingDir", dir), data))
		failIf(t, w.Path != filepath.Join(dir, name) || w.Size != int64(len(data)) || w.Mode != "0644", "got %+v", w)
		a := ask(t, s, fsCall("GET", "read", "path", filepath.Join(dir, name), "workingDir", "/"), "")
		failIf(t, string(a.body) != data || a.Header.Get("Content-Type") != "application/octet-stream", "%d bytes came back as %d", len(data), len(a.body))
	}
	for text, want := range map[string]fs.FileMode{"0600": 0o600, "640": 0o640, "0755": 0o755} {
		ask(t, s, fsCall("PUT", "write", "path", "m", "workingDir", dir, "mode", text), "")
		st, err := os.Stat(filepath.Join(dir, "m"))
		failIf(t, err != nil || st.Mode().Perm() != want, "mode %s made %v, %v", text, st.Mode(), err)
	}
	for _, key := range []string{"mkdirParents", "mkdir"} {
		decode[sprites.WriteResult](t, ask(t, s, fsCall("PUT", "write", "path", key+"/a/b", "workingDir", dir, key, "true"), "x"))
	}
	ask(t, s, fsCall("POST", "write", "path", "p", "workingDir", dir), "x").refused(t, 405, "method_not_allowed")
	noFile(t, ask(t, s, fsCall("PUT", "write", "path", "no/such", "workingDir", dir, "mkdirParents", "false"), "x"), 404, "ENOENT")
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestWriteIfMatch: a write does not replace a file that has changed since it was read:
// replaced, written to, or deleted. Nor does an upload that was under way. An unchanged file
// is written.
func TestWriteIfMatch(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	paint := s.Create("paint")
	name := filepath.Join(t.TempDir(), "notes")
	ctx := t.Context()
	tag := func() string {
		t.Helper()
		f, err := paint.Open(ctx, name)
		must(t, err)
		must(t, f.Close())
		failIf(t, f.ETag() == "", "a file has no ETag")
		return f.ETag()
	}
	write := func(text, match string) error {
		return paint.WriteFile(ctx, name, strings.NewReader(text), sprites.WriteOptions{IfMatch: match})
	}
	is := func(want string) {
		t.Helper()
		got, err := os.ReadFile(name)
		failIf(t, err != nil || string(got) != want, "the file has %q, %v, want %q", got, err, want)
	}
	must(t, write("one", ""))
	first := tag()
	failIf(t, tag() != first, "the ETag changes by itself")
	must(t, write("two", first))
	is("two")
	wantError(t, write("mine", first), 412, "ESTALE")
	is("two")
	second := tag()
	must(t, os.WriteFile(name, []byte("TWO!"), 0o600)) // in the same file
	wantError(t, write("mine", second), 412, "ESTALE")
	is("TWO!")
	third := tag()
	changed, written := false, make(chan struct{})
	slow := io.MultiReader(strings.NewReader("mi"), readerFunc(func(p []byte) (int, error) {
		if !changed { // while the upload is under way
			changed = true
			if err := os.WriteFile(name, []byte("others"), 0o600); err != nil {
				return 0, err
			}
			close(written)
			return copy(p, "ne"), nil
		}
		return 0, io.EOF
	}))
	wantError(t, paint.WriteFile(ctx, name, slow, sprites.WriteOptions{IfMatch: third}), 412, "ESTALE")
	<-written // it may be refused for the first half of that
	is("others")
	last := tag()
	must(t, os.Remove(name))
	wantError(t, write("mine", last), 412, "ESTALE")
	_, err := os.Stat(name)
	failIf(t, !os.IsNotExist(err), "a file that was deleted is back: %v", err)
	left, err := os.ReadDir(filepath.Dir(name))
	failIf(t, err != nil || len(left) != 0, "left are %v, %v", left, err)
}

// TestFileConditions: a file that has taken the place of another since that was looked at is
// neither deleted nor renamed. A request that expects nothing in a place replaces nothing.
func TestFileConditions(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	paint := s.Create("paint")
	dir, ctx := t.TempDir(), t.Context()
	at := func(name string) string { return filepath.Join(dir, name) }
	tag := func(name string) string {
		t.Helper()
		e := decode[sprites.ListFiles](t, ask(t, s, fsCall("GET", "list", "path", at(name), "stat", "true"), "")).Entries[0]
		failIf(t, e.ETag == "", "%s has no ETag: %+v", name, e)
		return e.ETag
	}
	when := func(header, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(header, value) }
	}
	rename := func(from, to string, how func(*http.Request)) answer {
		return ask(t, s, "POST /v1/sprites/paint/fs/rename", fmt.Sprintf(`{"source":%q,"dest":%q}`, at(from), at(to)), how)
	}
	there := func(want ...string) {
		t.Helper()
		left, err := os.ReadDir(dir)
		must(t, err)
		var names []string
		for _, e := range left {
			names = append(names, e.Name())
		}
		failIf(t, !slices.Equal(names, want), "there are %v, want %v", names, want)
	}
	must(t, os.WriteFile(at("plain"), []byte("x"), 0o600))
	must(t, os.MkdirAll(at("real/kept"), 0o700))
	plain := tag("plain")
	must(t, os.Remove(at("plain")))
	must(t, os.Rename(at("real"), at("plain")))
	noFile(t, ask(t, s, fsCall("DELETE", "delete", "path", at("plain"), "recursive", "true"), "", when("If-Match", plain)), 412, "ESTALE")
	noFile(t, rename("plain", "other", when("If-Match", plain)), 412, "ESTALE")
	there("plain")
	must(t, os.Symlink("plain", at("link")))
	link := tag("link") // which is not what it leads to
	noFile(t, ask(t, s, fsCall("DELETE", "delete", "path", at("plain"), "recursive", "true"), "", when("If-Match", link)), 412, "ESTALE")
	noFile(t, rename("link", "plain", when("If-None-Match", "*")), 412, "ESTALE")
	must(t, os.Symlink("nothing", at("dangling")))
	noFile(t, ask(t, s, fsCall("PUT", "write", "path", at("dangling")), "x", when("If-None-Match", "*")), 412, "ESTALE")
	wantError(t, paint.WriteFile(ctx, at("link"), strings.NewReader("x"), sprites.WriteOptions{IfNew: true}), 412, "ESTALE")
	there("dangling", "link", "plain")
	must(t, paint.WriteFile(ctx, at("new"), strings.NewReader("x"), sprites.WriteOptions{IfNew: true}))
	decode[struct{}](t, rename("new", "newer", func(r *http.Request) { r.Header.Set("If-Match", tag("new")); r.Header.Set("If-None-Match", "*") }))
	decode[struct{}](t, ask(t, s, fsCall("DELETE", "delete", "path", at("link")), "", when("If-Match", link)))
	decode[struct{}](t, ask(t, s, fsCall("DELETE", "delete", "path", at("plain"), "recursive", "true"), "", when("If-Match", tag("plain"))))
	there("dangling", "newer")
	noFile(t, ask(t, s, fsCall("DELETE", "delete", "path", at("plain"), "recursive", "true"), "", when("If-Match", plain)), 412, "ESTALE")
}

// Statement 72: the list of a directory has entries with seven keys; an empty one has entries [] and count 0.
// Statement 73: the list of a file is that one entry.
// Statement 74: a missing path → 404 and ENOENT.
func TestRawList(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	dir := t.TempDir()
	a := ask(t, s, fsCall("GET", "list", "path", dir), "")
	failIf(t, !strings.Contains(string(a.body), `"entries":[]`) || decode[sprites.ListFiles](t, a).Count != 0, "an empty folder is %s", a.body)
	must(t, os.MkdirAll(filepath.Join(dir, "src"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("hello"), 0o640)) //nolint:gosec // the mode is what is looked at
	var list struct {
		Count   int
		Entries []map[string]any
	}
	must(t, json.Unmarshal(ask(t, s, fsCall("GET", "list", "path", dir), "").body, &list))
	failIf(t, list.Count != 2 || len(list.Entries) != 2, "the list is %+v", list)
	for _, e := range list.Entries {
		for _, key := range []string{"name", "path", "type", "size", "mode", "modTime", "isDir"} {
			_, ok := e[key]
			failIf(t, !ok, "%v has no %s", e, key)
		}
	}
	one := decode[sprites.ListFiles](t, ask(t, s, fsCall("GET", "list", "path", "a.txt", "workingDir", dir), ""))
	failIf(t, one.Count != 1 || one.Entries[0].Name != "a.txt" || one.Entries[0].Size != 5 || one.Entries[0].Mode != "0640" || one.Entries[0].Type != "file", "a file is %+v", one)
	for _, call := range []string{"list", "read"} {
		noFile(t, ask(t, s, fsCall("GET", call, "path", "nothing", "workingDir", dir), ""), 404, "ENOENT")
	}
	noFile(t, ask(t, s, fsCall("GET", "read", "path", dir), ""), 400, "EISDIR")
}

// Statement 75: delete by query and by JSON body; recursive is needed for full directories.
// Statement 76: rename, copy (recursive), chmod (string and number), chown.
func TestRawChanges(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "full", "sub"), 0o755))
	noFile(t, ask(t, s, fsCall("DELETE", "delete", "path", "full", "workingDir", dir), ""), 409, "ENOTEMPTY")
	type deleted struct {
		Deleted []string
		Count   int
	}
	d := decode[deleted](t, ask(t, s, fsCall("DELETE", "delete", "path", "full", "workingDir", dir, "recursive", "true"), ""))
	failIf(t, d.Count != 2 || len(d.Deleted) != 2, "got %+v", d)
	must(t, os.MkdirAll(filepath.Join(dir, "full", "sub"), 0o755))
	d = decode[deleted](t, ask(t, s, "DELETE /v1/sprites/paint/fs/delete", `{"path":"full","workingDir":"`+dir+`","recursive":true}`))
	failIf(t, d.Count != 2, "got %+v", d)

	post := func(call, body string) answer {
		t.Helper()
		return ask(t, s, "POST /v1/sprites/paint/fs/"+call, strings.ReplaceAll(body, "DIR", dir))
	}
	must(t, os.MkdirAll(filepath.Join(dir, "a", "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a", "f"), []byte("hello"), 0o644)) //nolint:gosec // likewise
	moved := decode[struct{ Source, Dest string }](t, post("rename", `{"source":"a","dest":"b","workingDir":"DIR"}`))
	failIf(t, moved.Source != filepath.Join(dir, "a") || moved.Dest != filepath.Join(dir, "b"), "got %+v", moved)
	copied := decode[struct{ Count, TotalBytes int }](t, post("copy", `{"source":"b","dest":"c","workingDir":"DIR","recursive":true}`))
	failIf(t, copied.Count == 0 || copied.TotalBytes != 5, "got %+v", copied)
	for body, want := range map[string]string{`"0600"`: "0600", `493`: "0755", `"755"`: "0755"} {
		c := decode[struct{ Affected []struct{ Path, Mode string } }](t, post("chmod", `{"path":"c/f","workingDir":"DIR","mode":`+body+`}`))
		failIf(t, len(c.Affected) != 1 || c.Affected[0].Mode != want, "mode %s: %+v", body, c)
	}
	uid := os.Getuid()
	o := decode[struct{ Affected []struct{ UID, GID int } }](t, post("chown", `{"path":"c","workingDir":"DIR","recursive":true,"uid":`+strconv.Itoa(uid)+`,"gid":`+strconv.Itoa(os.Getgid())+`}`))
	failIf(t, len(o.Affected) != 3 || o.Affected[0].UID != uid, "got %+v", o)
}
