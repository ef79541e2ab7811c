package guest_test

import (
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/sprites"
)

// tree makes files of a guest's folder: a name with a slash at its end is a
// folder, content that begins with -> a link.
func (m *machine) tree(files ...string) {
	m.t.Helper()
	for _, file := range files {
		name, content, _ := strings.Cut(file, "=")
		m.must(os.MkdirAll(filepath.Dir(m.path(name)+"x"), 0o755))
		if target, ok := strings.CutPrefix(content, "->"); ok {
			m.must(os.Symlink(target, m.path(name)))
		} else if strings.HasSuffix(name, "/") {
			m.must(os.Mkdir(m.path(name), 0o755))
		} else {
			m.must(os.WriteFile(m.path(name), []byte(content), 0o644))
		}
		m.must(os.Lchown(m.path(name), m.uid, -1))
	}
}

func (m *machine) want(name, content string) {
	m.t.Helper()
	got, err := os.ReadFile(m.path(name))
	m.must(err)
	same(m.t, name, string(got), content)
}

func TestFiles(t *testing.T) {
	m := start(t, &guest.Server{})
	ctx, data, name := t.Context(), noise(5<<20+1), m.path("new/deep/file")
	m.must(m.WriteFile(ctx, name, strings.NewReader(data), sprites.WriteOptions{Mode: 0o750}))
	m.want("new/deep/file", data)
	got, err := m.ReadFile(ctx, name)
	m.must(err)
	same(t, "read", string(got), data)
	m.must(m.WriteFile(ctx, name, strings.NewReader("short"), sprites.WriteOptions{}))
	for query, want := range map[string]string{
		"": "short", "&start=1&end=3": "ho", "&start=4": "t", "&start=9": "", "&end=99": "short", "&start=3&end=1": "",
		"&path=": "short", "&workingDir=/": "short",
	} {
		same(t, query, m.call("GET", "/v1/fs/read?path="+name+query, "", 200), want)
	}
	same(t, "read", m.call("GET", "/v1/fs/read?path=/proc/self/comm", "", 200), "guest.test\n") // which says it is empty
	m.tree("dir/b=two", "dir/sub/c=", "dir/a=->b", "dir/z=->nowhere")
	list := func() (names string) {
		entries, err := m.ReadDir(ctx, m.path("dir"))
		m.must(err)
		for _, e := range entries {
			names += e.Name() + " " + e.Type().String()[:1] + " "
		}
		return names
	}
	same(t, "list", list(), "a L b - sub d z L ")
	m.must(m.Rename(ctx, m.path("dir/b"), m.path("dir/c")), m.Remove(ctx, m.path("dir/sub"), true), m.Remove(ctx, m.path("dir/a"), false))
	same(t, "list", list(), "c - z L ")
	m.want("dir/c", "two")
}

// TestFileErrors lists calls by the error that they must give. Each is a method and a target,
// or a verb with a source and a destination.
func TestFileErrors(t *testing.T) {
	m := start(t, &guest.Server{})
	if m.uid == 0 { // to whom nothing is closed
		m = start(t, &guest.Server{User: "65534"})
		m.uid = 65534
	}
	m.must(os.Chmod(filepath.Dir(m.dir), 0o755), os.Chown(m.dir, m.uid, -1))
	m.fifo("fifo", os.O_RDWR)
	m.tree("file=f", "full/file=", "empty/", "loop=->loop", "closed/", "secret=s")
	m.must(os.Chown(m.path("fifo"), m.uid, -1), os.Chmod(m.path("closed"), 0o500), os.Chmod(m.path("secret"), 0))
	for want, calls := range map[string]string{
		"404 ENOENT": "GET read?path=none|GET list?path=none|PUT write?path=no/such&mkdirParents=false|" +
			"DELETE delete?path=none|DELETE delete?path=none&recursive=true|rename none x|copy none x|copy file no/such",
		"403 EACCES":    "GET read?path=secret|PUT write?path=secret|PUT write?path=closed/x|copy file closed/x|rename file closed/x",
		"409 EEXIST":    "rename file empty",
		"409 ENOTEMPTY": "DELETE delete?path=full",
		"400 EISDIR":    "GET read?path=full|PUT write?path=full|copy file empty",
		"400 ENOTDIR":   "GET read?path=file/x|PUT write?path=file/x|rename full file",
		"400 EINVAL": "GET read|GET read?path=loop|GET read?path=fifo|GET read?path=fi%00le|GET read?path=file&start=-1|" +
			"GET list?path=full%00|GET list?path=full&pattern=[|PUT write?path=a%00b|PUT write?path=loop|PUT write?path=fifo|" +
			"PUT write?path=file&mode=999|DELETE delete|DELETE delete?path=full/..|DELETE delete?path=fi%00le&recursive=true|" +
			"rename full full/sub|copy full full/sub|rename a\x00b x|rename file|POST chmod?path=file|" +
			"GET read?path=" + strings.Repeat("x", 300),
	} {
		for call := range strings.SplitSeq(calls, "|") {
			word, rest, _ := strings.Cut(call, " ")
			method, target, body := word, rest, "x"
			if word == strings.ToLower(word) {
				source, dest, _ := strings.Cut(rest, " ")
				pair, err := json.Marshal(map[string]string{"source": source, "dest": dest})
				m.must(err)
				method, target, body = "POST", word, string(pair)
			} else if method != "PUT" {
				body = ""
			}
			status, err := strconv.Atoi(want[:3])
			var e sprites.FileError
			m.must(err, json.Unmarshal([]byte(m.call(method, "/v1/fs/"+target, body, status)), &e))
			same(t, call+" "+e.Error, e.Code, want[4:])
		}
	}
	m.want("file", "f")
	same(t, "files left", strings.Count(m.call("GET", "/v1/fs/list", "", 200), `"name":`), 7)
	some := m.call("GET", "/v1/fs/list?limit=2", "", 200)
	same(t, "files with a limit", strings.Count(some, `"name":`), 2)
	same(t, "how many there are is said", strings.Contains(some, `"count":7`), true)
	m.call("GET", "/v1/fs/list?limit=0", "", 400)
	is(t, "rename", m.Rename(t.Context(), m.path("file"), m.path("empty")), fs.ErrExist)
}

func TestLinks(t *testing.T) {
	m := start(t, &guest.Server{})
	m.tree("a/real/f=old", "link=->a/real", "alias=->a/real/f", "new=->a/real/made", "f=not this", "made=nor this", "hard=one")
	m.must(os.Link(m.path("hard"), m.path("hard2")))
	// A link is followed, and stays, even if its target does not exist yet.
	for _, name := range []string{"alias", "new"} {
		m.call("PUT", "/v1/fs/write?path="+name, "by "+name, 200)
		_, err := os.Readlink(m.path(name))
		m.must(err)
	}
	m.want("a/real/f", "by alias")
	m.want("a/real/made", "by new")
	// "link/.." is the parent of the link's target: a.
	m.tree("a/f=right", "a/sub/g=->../f")
	same(t, "read", m.call("GET", "/v1/fs/read?path=link/../f", "", 200), "right")
	m.call("PUT", "/v1/fs/write?path=link/../new/w", "x", 200)
	m.want("a/new/w", "x")
	got := m.call("GET", "/v1/fs/list?recursive=true&path=link/..", "", 200)
	for _, want := range []string{`link/../f"`, `link/../real/made"`, `link/../new/w"`, `link/../sub/g","type":"symlink"`, `"target":"../f"`} {
		if !strings.Contains(got, want) {
			t.Errorf("list: got %s, want %s", got, want)
		}
	}
	m.call("POST", "/v1/fs/copy", `{"source":"link/..","dest":"copy"}`, 200)
	m.want("copy/new/w", "x")
	got = m.call("POST", "/v1/fs/chmod", `{"path":"link/..","mode":"0700","recursive":true}`, 200)
	same(t, "changed "+got, strings.Contains(got, `link/../new/w"`), true)
	// A copy of a file onto itself, by any name, is refused and harms nothing.
	for _, pair := range []string{`"source":"a/real/f","dest":"alias"`, `"source":"hard","dest":"hard2"`, `"source":"hard","dest":"link/../../hard"`} {
		m.call("POST", "/v1/fs/copy", "{"+pair+"}", 400)
	}
	m.want("a/real/f", "by alias")
	m.want("hard", "one")
}

func TestCutUpload(t *testing.T) {
	m := start(t, &guest.Server{})
	m.tree("file=old")
	for _, name := range []string{"file", "none"} {
		conn := m.dial()
		m.write(conn, "PUT /v1/fs/write?path="+name+" HTTP/1.1\r\nHost: guest\r\nAuthorization: Bearer secret\r\nContent-Length: 4000000\r\n\r\n"+noise(1<<20))
		m.must(conn.CloseWrite())
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400") {
			t.Errorf("got %q, %v", answer, err)
		}
	}
	m.want("file", "old")
	same(t, "files left", strings.Count(m.call("GET", "/v1/fs/list", "", 200), `"name":`), 1)
}
