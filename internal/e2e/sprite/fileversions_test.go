package sprite

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// TestFileVersions: in a sandbox, a file keeps its ETag while nobody changes it, even if many
// others are read. A replaced file is not deleted by the old file's ETag. A write on condition
// that there is no file replaces none.
func TestFileVersions(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Sh("paint", "mkdir -p folder/sub; echo one >file; ln -s file link; echo two >folder/file")
	c, ctx := h.Client(), t.Context()
	call := func(method, verb string, r sprites.Request, out any) int {
		t.Helper()
		r.Method, r.Path = method, sprites.Path("v1", "sprites", "paint", "fs", verb)
		err := c.Call(ctx, r, out)
		if e, ok := errors.AsType[*sprites.Error](err); ok {
			return e.StatusCode
		}
		if err != nil {
			t.Fatal(err)
		}
		return http.StatusOK
	}
	tag := func(name string) string {
		t.Helper()
		var list sprites.ListFiles
		call(http.MethodGet, "list", sprites.Request{Query: url.Values{"path": {"/home/sprite/" + name}, "stat": {"true"}}}, &list)
		if len(list.Entries) != 1 || list.Entries[0].ETag == "" {
			t.Fatalf("%s is described as %+v", name, list)
		}
		return list.Entries[0].ETag
	}
	names := []string{"file", "link", "folder", "/../../etc/passwd"}
	before := map[string]string{}
	for _, name := range names {
		before[name] = tag(name)
	}
	h.Sh("paint", "cat file link folder/file >/dev/null; find /usr/bin /usr/share -exec stat {} + >/dev/null 2>&1 || true; sync")
	for _, name := range names {
		if now := tag(name); now != before[name] {
			t.Errorf("%s has another ETag: %s, it was %s", name, now, before[name])
		}
	}

	remove := func(name, tag string) int {
		t.Helper()
		return call(http.MethodDelete, "delete", sprites.Request{Query: url.Values{"path": {"/home/sprite/" + name}, "recursive": {"true"}}, Header: http.Header{"If-Match": {tag}}}, nil)
	}
	h.Sh("paint", "rm file; mv folder file")
	if got := remove("file", before["file"]); got != http.StatusPreconditionFailed {
		t.Errorf("a folder in the place of a file is deleted: %d", got)
	}
	rename := func(from, to string) int {
		t.Helper()
		return call(http.MethodPost, "rename", sprites.Request{
			JSON:   map[string]string{"source": "/home/sprite/" + from, "dest": "/home/sprite/" + to},
			Header: http.Header{"If-Match": {tag(from)}, "If-None-Match": {"*"}},
		}, nil)
	}
	if got := rename("file", "link"); got != http.StatusPreconditionFailed {
		t.Errorf("a link is replaced: %d", got)
	}
	if got := rename("file", "moved"); got != http.StatusOK {
		t.Errorf("a renaming: %d", got)
	}
	err := c.Sprite("paint").WriteFile(ctx, "new", strings.NewReader("new"), sprites.WriteOptions{IfNew: true})
	if err != nil {
		t.Errorf("a new file: %v", err)
	}
	if got := h.Sh("paint", "cat moved/file new; ls"); got != "two\nnewlink\nmoved\nnew\n" {
		t.Errorf("there is %q", got)
	}
	if got := remove("moved", tag("moved")); got != http.StatusOK {
		t.Errorf("a deletion: %d", got)
	}
}
