package guest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// watched is a watch of a machine's files.
type watched struct {
	*sprites.Watcher
	m    *machine
	last string
}

func (m *machine) watch(opts sprites.WatchOptions, names ...string) *watched {
	m.t.Helper()
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = m.path(name)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), lastResort)
	m.t.Cleanup(cancel)
	w, err := m.Watch(ctx, opts, paths...)
	m.must(err)
	m.t.Cleanup(func() { m.must(w.Close()) })
	return &watched{Watcher: w, m: m}
}

// next is the next event, as "create dir/file". It skips an event that repeats the last one.
func (w *watched) next() (string, sprites.WatchEvent) {
	w.m.t.Helper()
	for {
		e, err := w.Next()
		w.m.must(err)
		text := string(e.Event) + " " + strings.TrimPrefix(e.Path, w.m.dir+"/")
		if text != w.last {
			w.last = text
			return text, e
		}
	}
}

// want waits for exactly these events.
func (w *watched) want(events ...string) {
	w.m.t.Helper()
	for _, want := range events {
		if got, _ := w.next(); got != want {
			w.m.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// Statement 79: watch emits write, create, remove, rename and chmod.
func TestWatch(t *testing.T) {
	m := start(t, &guest.Server{})
	m.tree("d/old=x", "d/sub/", "other/")
	w := m.watch(sprites.WatchOptions{}, "d")
	before := time.Now()
	m.must(os.WriteFile(m.path("d/new"), []byte("hello"), 0o600))
	w.want("create d/new")
	text, e := w.next()
	same(t, "event", text, "write d/new")
	if e.Size != 5 || e.IsDir || e.Timestamp.Before(before.Add(-time.Minute)) || e.Timestamp.Location() != time.UTC {
		t.Errorf("got %+v", e)
	}
	m.must(os.Chmod(m.path("d/old"), 0o600), os.Rename(m.path("d/old"), m.path("d/moved")), os.Remove(m.path("d/moved")))
	w.want("chmod d/old", "rename d/old", "create d/moved", "remove d/moved")
	m.must(os.Mkdir(m.path("d/dir"), 0o700))
	text, e = w.next()
	same(t, text, e.IsDir, true)
	m.must(os.Remove(m.path("d/dir")))
	text, e = w.next()
	same(t, text, e.IsDir, true)
	same(t, "event", text, "remove d/dir")
	// Not events further down, but those of the folder itself.
	m.tree("d/sub/deep=x")
	m.must(os.Rename(m.path("d/new"), m.path("other/new")), os.Rename(m.path("other/new"), m.path("d/back")), os.Chmod(m.path("d"), 0o700))
	w.want("rename d/new", "create d/back", "chmod d")
	m.must(os.Rename(m.path("d"), m.path("e")))
	w.want("rename d")
	_, err := w.Next()
	if e, ok := errors.AsType[*sprites.WatchError](err); !ok || e.Code != "ended" {
		t.Errorf("got %v", err)
	}
	if _, err = w.Next(); websocket.CloseStatus(err) != websocket.StatusInternalError {
		t.Errorf("got %v", err)
	}
}

// TestWatchUpload: a file that fs/write replaces is written; it was there before.
func TestWatchUpload(t *testing.T) {
	m := start(t, &guest.Server{})
	m.tree("d/old=x")
	w := m.watch(sprites.WatchOptions{}, "d")
	seen := func() (events []string) {
		t.Helper()
		for {
			text, _ := w.next()
			if text == "create d/end" {
				return events
			}
			if !strings.Contains(text, "d/.cove-") {
				events = append(events, text)
			}
		}
	}
	for _, name := range []string{"old", "new", "new"} {
		m.must(m.WriteFile(t.Context(), m.path("d/"+name), strings.NewReader("y"), sprites.WriteOptions{}))
	}
	m.tree("d/end=")
	same(t, "events", strings.Join(seen(), ", "), "write d/old, create d/new, write d/new")
}

// Statement 122: first subscribed, then create, write and remove; several paths;
// recursive; a missing path is an error.
func TestWatchRecursive(t *testing.T) {
	m := start(t, &guest.Server{})
	m.tree("a/b/c/", "x/y/", "plain/", "link=->x")
	w := m.watch(sprites.WatchOptions{Recursive: true}, "a", "x", "a/b")
	m.tree("a/b/c/f=1")
	w.want("create a/b/c/f", "write a/b/c/f")
	m.must(os.Chown(m.path("a/b/c/f"), m.uid, -1)) // as tree did
	w.want("chmod a/b/c/f")
	m.must(os.Remove(m.path("a/b/c/f")), os.Mkdir(m.path("x/y/z"), 0o700))
	w.want("remove a/b/c/f", "create x/y/z")
	// A folder takes its watches along when it moves, and leaves them when it goes.
	m.must(os.Rename(m.path("a/b/c"), m.path("a/c")), os.WriteFile(m.path("a/c/g"), nil, 0o600))
	w.want("rename a/b/c", "create a/c", "create a/c/g")
	m.must(os.Rename(m.path("a/c"), m.path("plain/c")), os.Remove(m.path("plain/c/g")), os.Remove(m.path("x/y/z")))
	w.want("rename a/c", "remove x/y/z")
	m.must(os.Rename(m.path("plain/c"), m.path("x/c")))
	w.want("create x/c")
	m.must(os.Symlink(m.dir, m.path("x/c/up")), os.RemoveAll(m.path("a")))
	w.want("create x/c/up", "remove a/b", "remove a")
	// A link that was asked for is followed.
	l := m.watch(sprites.WatchOptions{}, "link")
	m.must(os.Remove(m.path("x/c/up")), os.Mkdir(m.path("x/n"), 0o700))
	l.want("create link/n")
	w.want("remove x/c/up", "create x/n")

	_, err := m.Watch(t.Context(), sprites.WatchOptions{}, m.path("x"), m.path("none"))
	is(t, "a missing path", err, fs.ErrNotExist)
	if !strings.Contains(err.Error(), m.path("none")+": no such file or directory") {
		t.Errorf("got %v", err)
	}
}

// TestWatchNewFolders makes files in folders that were made a moment ago. Each file is
// reported exactly once.
func TestWatchNewFolders(t *testing.T) {
	m := start(t, &guest.Server{})
	const trees = 100
	w := m.watch(sprites.WatchOptions{Recursive: true}, ".")
	made := make(chan error, 1)
	go func() {
		for i := range trees {
			dir := m.path(fmt.Sprintf("%d/a/b", i))
			if err := errors.Join(os.MkdirAll(dir+"/c", 0o700), os.Mkdir(dir+"/c/d", 0o700), os.Mkdir(dir+"/e", 0o700)); err != nil {
				made <- err
				return
			}
		}
		made <- os.Mkdir(m.path("end"), 0o700)
	}()
	seen := map[string]int{}
	for text := ""; text != "create end"; seen[text]++ {
		text, _ = w.next()
	}
	m.must(<-made)
	for i := range trees {
		for _, name := range []string{"", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/a/b/e"} {
			same(t, fmt.Sprint(i, name), seen[fmt.Sprintf("create %d%s", i, name)], 1)
		}
	}
	same(t, "events", len(seen), 6*trees+1)
	// A tree that is moved in is new, too.
	outside := t.TempDir() + "/t"
	m.must(os.MkdirAll(outside+"/u/v", 0o700), os.Rename(outside, m.path("t")), os.Mkdir(m.path("t/u/v/w"), 0o700))
	w.want("create t", "create t/u", "create t/u/v", "create t/u/v/w")
}

// TestWatchFile watches single files, which editors replace, and links to them.
func TestWatchFile(t *testing.T) {
	m := start(t, &guest.Server{})
	m.tree("d/f=1", "d/g=1", "d/not=1", "e/h=1", "link=->e/h")
	w := m.watch(sprites.WatchOptions{}, "d/f", "d/g", "link")
	replace := func(name string) {
		m.must(os.WriteFile(m.path(name+"~"), []byte("22"), 0o600), os.Rename(m.path(name+"~"), m.path(name)))
	}
	replace("d/f")
	w.want("create d/f")
	m.tree("d/not=2")
	replace("d/g")
	w.want("create d/g")
	replace("e/h")
	w.want("create link")
	m.must(os.WriteFile(m.path("e/h"), []byte("3"), 0o600))
	w.want("write link")
	m.must(os.Remove(m.path("d/f")), os.Rename(m.path("d/g"), m.path("d/x")), os.WriteFile(m.path("d/f"), nil, 0o600))
	w.want("remove d/f", "rename d/g", "create d/f")
	m.must(os.Rename(m.path("d"), m.path("c")))
	w.last = ""
	for range 2 { // in any order
		if text, _ := w.next(); text != "rename d/f" && text != "rename d/g" {
			t.Errorf("got %q", text)
		}
	}
	// If the folder is watched, too, the file's event comes once.
	both := m.watch(sprites.WatchOptions{}, "c/f", "c")
	m.must(os.Chmod(m.path("c/f"), 0o640), os.Remove(m.path("c/f")), os.Mkdir(m.path("c/end"), 0o700))
	both.want("chmod c/f", "remove c/f", "create c/end")
}

// TestWatchRights watches folders that are closed to the user.
func TestWatchRights(t *testing.T) {
	need.Root(t)
	m := start(t, &guest.Server{User: "65534"})
	m.must(os.Chmod(m.dir, 0o755), os.Chmod(m.path(".."), 0o755))
	m.tree("d/closed/in/", "d/open/", "closed/f=1")
	m.must(os.Chmod(m.path("closed"), 0o711), os.Chmod(m.path("d/closed"), 0o711)) // which can be entered, not listed
	for _, name := range []string{"closed", "closed/f", "d/closed"} {
		_, err := m.Watch(t.Context(), sprites.WatchOptions{}, m.path(name))
		is(t, name, err, fs.ErrPermission)
	}
	root := m.watch(sprites.WatchOptions{AsRoot: true, Recursive: true}, ".")
	w := m.watch(sprites.WatchOptions{Recursive: true}, "d")
	m.must(os.Mkdir(m.path("d/closed/in/x"), 0o700), os.Mkdir(m.path("d/open/x"), 0o700))
	root.want("create d/closed/in/x", "create d/open/x")
	w.want("create d/open/x")
	m.must(os.Chmod(m.path("d/closed"), 0o755)) // from now on it can be
	w.want("chmod d/closed", "create d/closed/in", "create d/closed/in/x")
	m.must(os.Mkdir(m.path("d/closed/in/y"), 0o700))
	w.want("create d/closed/in/y")
}

// rawWatch opens a watch's WebSocket, and sends text.
func (m *machine) rawWatch(typ websocket.MessageType, text string) *websocket.Conn {
	m.t.Helper()
	conn, _, err := websocket.Dial(m.t.Context(), m.url+"/v1/fs/watch", &websocket.DialOptions{
		HTTPClient: m.http,
	})
	m.must(err)
	m.t.Cleanup(func() { _ = conn.CloseNow() })
	m.must(conn.Write(m.t.Context(), typ, []byte(text)))
	return conn
}

func (m *machine) message(conn *websocket.Conn) (msg sprites.WatchMessage) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), lastResort)
	defer cancel()
	_, data, err := conn.Read(ctx)
	m.must(err)
	m.must(json.Unmarshal(data, &msg))
	return msg
}

// TestWatchSubscribe sends good and bad first messages.
func TestWatchSubscribe(t *testing.T) {
	m := start(t, &guest.Server{})
	m.call("GET", "/v1/fs/watch", "", http.StatusUpgradeRequired)
	m.tree("d/e/f/", "file=")
	conn := m.rawWatch(websocket.MessageText, `{"type":"subscribe","paths":["f","../../file","/"],"workingDir":"d/e","extra":1}`)
	msg := m.message(conn)
	same(t, "answer", fmt.Sprint(msg.Type, msg.Paths), fmt.Sprintf("subscribed[%s %s /]", m.path("d/e/f"), m.path("d/e")+"/../../file"))
	m.must(conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"subscribe","paths":["x"]}`)))
	same(t, "second subscription", m.message(conn).Code, "EINVAL")
	m.must(os.Mkdir(m.path("d/e/f/g"), 0o700))
	same(t, "event", m.message(conn).Event, sprites.WatchCreate)

	many, err := json.Marshal(make([]string, 257))
	m.must(err)
	for text, code := range map[string]string{
		"":                                      "EINVAL",
		"{":                                     "EINVAL",
		"[]":                                    "EINVAL",
		`{"type":"subscribe"}`:                  "EINVAL",
		`{"type":"x","paths":["d"]}`:            "EINVAL",
		`{"type":"subscribe","paths":["d",""]}`: "EINVAL",
		`{"type":"subscribe","paths":"d"}`:      "EINVAL",
		`{"type":"subscribe","paths":` + strings.ReplaceAll(string(many), `""`, `"d"`) + `}`: "EINVAL",
		`{"type":"subscribe","paths":["` + strings.Repeat("x", 64<<10) + `"]}`:               "EINVAL",
		`{"type":"subscribe","paths":["d\u0000"]}`:                                           "EINVAL",
		`{"type":"subscribe","paths":["file/x"]}`:                                            "ENOTDIR",
		`{"type":"subscribe","paths":["d","none"]}`:                                          "ENOENT",
	} {
		conn := m.rawWatch(websocket.MessageText, text)
		msg := m.message(conn)
		same(t, text+": "+msg.Type+" "+msg.Message, msg.Code, code)
		_, _, err := conn.Read(t.Context())
		same(t, text, websocket.CloseStatus(err), websocket.StatusInternalError)
	}
	same(t, "binary", m.message(m.rawWatch(websocket.MessageBinary, `{"type":"subscribe","paths":["d"]}`)).Type, "error")
}

// TestWatchLimits makes more watched folders, and more watches, than are allowed.
func TestWatchLimits(t *testing.T) {
	m := start(t, &guest.Server{})
	for i := range 4095 {
		m.must(os.Mkdir(m.path(fmt.Sprint(i)), 0o700))
	}
	w := m.watch(sprites.WatchOptions{Recursive: true}, ".") // one for itself
	m.must(os.Mkdir(m.path("one-more"), 0o700), os.Mkdir(m.path("another"), 0o700))
	w.want("create one-more")
	_, err := w.Next()
	is(t, "one more", err, sprites.ErrLimited)
	w.want("create another") // what is said once is enough
	m.must(os.Remove(m.path("1")), os.RemoveAll(m.path("another")), os.Mkdir(m.path("third"), 0o700), os.Mkdir(m.path("third/f"), 0o700))
	w.want("remove 1", "remove another", "create third", "create third/f") // for which there is room, though not for what is in it
	_, err = w.Next()
	is(t, "one more", err, sprites.ErrLimited)
	_, err = m.Watch(t.Context(), sprites.WatchOptions{Recursive: true}, m.dir)
	is(t, "all of it again", err, sprites.ErrLimited)
	m.must(w.Close())
	var all []*sprites.Watcher
	for len(all) < 32 { // until the other's end has been noticed, there is no room
		w, err := m.Watch(t.Context(), sprites.WatchOptions{}, m.path("2"))
		if err == nil {
			all = append(all, w)
			defer w.Close()
		} else if !errors.Is(err, sprites.ErrLimited) {
			t.Fatal(err)
		}
	}
	_, err = m.Watch(t.Context(), sprites.WatchOptions{}, m.path("2"))
	if e, ok := errors.AsType[*sprites.Error](err); !ok || e.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one too many: got %v", err)
	}
}

// TestWatchSlowClient has a client that reads nothing while much happens. It learns that
// events were lost, and then gets the later ones.
func TestWatchSlowClient(t *testing.T) {
	m := start(t, &guest.Server{})
	request, err := json.Marshal(sprites.WatchRequest{Type: "subscribe", Paths: []string{m.dir}})
	m.must(err)
	conn := m.rawWatch(websocket.MessageText, string(request))
	same(t, "answer", m.message(conn).Type, "subscribed")
	const made = 20_000
	name := m.path(strings.Repeat("x", 250))
	for range made {
		m.must(os.Mkdir(name, 0o700), os.Remove(name))
	}
	got := 0
	for {
		msg := m.message(conn)
		if msg.Code == "events_lost" {
			break
		}
		got++
	}
	if got >= 2*made {
		t.Errorf("got all %d events", got)
	}
	after := m.path("after")
	m.must(os.Mkdir(after, 0o700))
	for msg := m.message(conn); msg.WatchEvent == nil || msg.Path != after; msg = m.message(conn) {
		if msg.Code == "events_lost" { // once more, with that one perhaps
			m.must(os.Remove(after), os.Mkdir(after, 0o700))
		}
	}
}

func TestWatchEnds(t *testing.T) {
	m := start(t, &guest.Server{})
	ctx, cancel := context.WithCancelCause(t.Context())
	w, err := m.Watch(ctx, sprites.WatchOptions{}, m.dir)
	m.must(err)
	why := errors.New("enough")
	cancel(why)
	_, err = w.Next()
	is(t, "cancelled", err, why)
	m.must(w.Close())
	w, err = m.Watch(t.Context(), sprites.WatchOptions{}, m.dir)
	m.must(err, w.Close(), w.Close())
	_, err = w.Next()
	is(t, "closed", err, net.ErrClosed)
}
