package checkpoints

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// A standing program counts as a counter does, notes the lines that come on a connection
// that it opened, and serves its mark by HTTP.
const standing = `
import http.server, os, threading, time, urllib.request
mark = os.urandom(8).hex()
def listen():
    for line in urllib.request.urlopen('http://far.connect.internal/'):
        with open('/home/sprite/got', 'ab') as out: out.write(line)
def count():
    with open('/home/sprite/count', 'a') as out:
        n = 0
        while True:
            n += 1
            out.write('%s %d\n' % (mark, n)); out.flush()
            time.sleep(0.02)
class Serve(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(mark.encode())
for f in listen, count: threading.Thread(target=f).start()
http.server.ThreadingHTTPServer(('', 8080), Serve).serve_forever()
`

// farServer is a machine that a sprite keeps a connection open to. The words sent to say
// go down that connection.
func farServer(t *testing.T) (url string, say chan<- string) {
	t.Helper()
	words := make(chan string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case word := <-words:
				fmt.Fprintln(w, word)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL, words
}

// counted returns the file that a counter in a sprite has written so far, read on the
// host.
func counted(h *e2e.Host) string {
	h.T.Helper()
	files, _ := filepath.Glob(filepath.Join(h.Data, "layers", "*", "root", "upper", "home", "sprite", "count")) // the pattern is right
	if len(files) != 1 {
		h.T.Fatalf("there are %d counts", len(files))
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		h.T.Fatal(err)
	}
	return string(text)
}

// containerFile returns the size of gVisor's state file of a sprite's sandbox.
func containerFile(h *e2e.Host, sprite string) int64 {
	h.T.Helper()
	files, err := filepath.Glob(filepath.Join(h.Data, "run", h.Info(sprite).ID, "runsc", "*.state"))
	if err != nil || len(files) != 1 {
		h.T.Fatalf("files of containers: %v, %v", files, err)
	}
	st, err := os.Stat(files[0])
	if err != nil {
		h.T.Fatal(err)
	}
	return st.Size()
}

// TestPause: a sprite that nobody uses is paused. Nothing in it runs. Data for its open
// connections waits, and is not lost. A request to its URL wakes it. It stays paused if
// its shim or the server dies. Later its memory goes to disk.
func TestPause(t *testing.T) {
	h := e2e.NewHost(t)
	far, say := farServer(t)
	h.Serve(nil, "--connector", "far="+far)
	h.Run("", "cove", "create", "paint", "--idle", "1s", "--hibernate", "0")
	h.Write("standing.py", standing)
	h.Run("", "cove", "cp", h.Home+"/../standing.py", "paint:standing.py")
	h.Run("", "cove", "url", "--public", "paint")
	h.Run("", "cove", "service", "put", "-s", "paint", "--http-port", "8080", "standing", "python3", "standing.py")
	// The sprite may fall asleep before its program has opened the connection. Then nothing
	// else wakes it.
	e2e.Await(t, "the program to listen", func() bool {
		select {
		case say <- "one":
			return true
		case <-time.After(200 * time.Millisecond):
			h.Run("", "cove", "wake", "paint")
			return false
		}
	})
	e2e.Await(t, "the counter", func() bool {
		_, code := h.Try("", "cove", "exec", "-s", "paint", "--", "grep", "one", "got")
		return code == 0
	})
	mark, _ := counts(h, "paint")

	size := containerFile(h, "paint")
	h.Stage("paint", true)
	if out := h.Run("", "cove", "list"); !strings.Contains(out, "paused") {
		t.Errorf("the list says %s", out)
	}
	if got := containerFile(h, "paint"); got != size {
		t.Errorf("gVisor's file of the container has %d bytes, not %d: it was written anew, for which a full disk has no room", got, size)
	}
	then := counted(h)
	select {
	case say <- "two":
	case <-time.After(e2e.LastResort):
		t.Fatal("its connection is lost")
	}
	<-time.After(300 * time.Millisecond) // time for the counter to count, which it must not
	if got := counted(h); got != then {
		t.Errorf("paused, it goes on counting: %s", got[len(then):])
	}
	h.Stage("paint", true)
	if got := visit(h, "paint"); got != mark {
		t.Errorf("woken by its URL, it has the mark %q, not %q", got, mark)
	}
	e2e.Await(t, "what came while it was paused", func() bool {
		return h.Run("", "cove", "exec", "-s", "paint", "--", "cat", "got") == "one\ntwo\n"
	})

	h.Stage("paint", true)
	e2e.SignalAll(t, syscall.SIGKILL, h.Shims()...)
	e2e.Await(t, "the next shim", func() bool { return len(h.Shims()) == 1 })
	h.Stage("paint", true)
	counting(h, "paint", mark)

	h.Stage("paint", true)
	e2e.SignalAll(t, syscall.SIGKILL, h.PID())
	h.Serve(nil, "--connector", "far="+far)
	h.Stage("paint", true)
	counting(h, "paint", mark)

	h.Run("", "cove", "update", "paint", "--hibernate", "2s")
	h.Stage("paint", false)
	if _, asleep := memories(h); len(asleep) != 1 {
		t.Errorf("on disk, there are the images %q", asleep)
	}
	e2e.Await(t, "the shim's end", func() bool { return len(h.Shims()) == 0 })
	counting(h, "paint", mark)
	h.Run("", "cove", "rm", "paint")
}

// visit makes a request to a sprite's URL, and returns the answer.
func visit(h *e2e.Host, sprite string) string {
	h.T.Helper()
	addr := strings.TrimPrefix(h.Client().URL, "http://")
	req, err := http.NewRequestWithContext(h.T.Context(), http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		h.T.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	req.Host = sprite + ".localhost:" + port
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.T.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		h.T.Errorf("a visit: %s, %s, %v", resp.Status, body, err)
	}
	return string(body)
}

// TestPauseLimit: a paused sprite does not count as running. It wakes only if the limit
// of running sprites allows one more.
func TestPauseLimit(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil, "--max-running", "1", "--idle", "1s", "--hibernate", "0")
	for i := range 2 {
		name := "paint" + strconv.Itoa(i)
		h.Run("", "cove", "create", name)
		h.Run("", "cove", "exec", "-s", name, "--user", "root", "--", "sh", "-c", "echo "+name+" >/dev/shm/mark")
		h.Stage(name, true)
	}
	pid, _ := h.Background("", "cove", "exec", "-s", "paint0", "--", "sleep", "100000")
	e2e.Await(t, "the command", func() bool {
		info, err := h.Client().Get(t.Context(), "paint0")
		return err == nil && info.Status == sprites.StatusRunning
	})
	if out, code := h.Try("", "cove", "exec", "-s", "paint1", "true"); code == 0 || !strings.Contains(out, "as many sprites are running as the server allows: 1") {
		t.Errorf("a second one woke: %s", out)
	}
	h.Run("", "cove", "policy", "deny", "-s", "paint1", "denied.test") // the sprite is told when it wakes
	e2e.SignalAll(t, syscall.SIGKILL, pid)
	h.Run("", "cove", "rm", "paint0")
	out := h.Run("", "cove", "exec", "-s", "paint1", "--", "sh", "-c", "cat /dev/shm/mark /.sprite/policy/network.json")
	if !strings.HasPrefix(out, "paint1\n") || !strings.Contains(out, "denied.test") {
		t.Errorf("the other has %s", out)
	}
}
