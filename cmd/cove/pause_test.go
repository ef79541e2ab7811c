package main

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

	"github.com/cove-dev/cove/sprites"
)

// A standing program counts, as a counter does, notes what comes on a connection that
// it opened, and serves its mark.
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

// farServer is a machine that a sprite keeps a connection open to. What is said goes
// down that connection.
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

// stage waits until a sprite is asleep, paused or on disk.
func (h *host) stage(sprite string, paused bool) {
	h.t.Helper()
	await(h.t, "sleep", func() bool {
		info, err := h.client().Get(h.t.Context(), sprite)
		return err == nil && info.Status == sprites.StatusWarm && info.Cove.Paused == paused
	})
}

// counted is what a counter in a sprite has written so far, as the host sees it.
func (h *host) counted() string {
	h.t.Helper()
	files, _ := filepath.Glob(filepath.Join(h.data, "layers", "*", "root", "upper", "home", "sprite", "count")) // the pattern is right
	if len(files) != 1 {
		h.t.Fatalf("there are %d counts", len(files))
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

// containerFile is the size of what gVisor notes of a sprite's sandbox.
func (h *host) containerFile(sprite string) int64 {
	h.t.Helper()
	files, err := filepath.Glob(filepath.Join(h.data, "run", h.info(sprite).ID, "runsc", "*.state"))
	if err != nil || len(files) != 1 {
		h.t.Fatalf("files of containers: %v, %v", files, err)
	}
	st, err := os.Stat(files[0])
	if err != nil {
		h.t.Fatal(err)
	}
	return st.Size()
}

// TestPause: a sprite that nobody uses is paused. Nothing in it runs; what comes for it
// on a connection that it has open waits, and is not lost; a request to its URL wakes
// it. It stays paused when its shim dies, or the server. Later its memory goes to disk.
func TestPause(t *testing.T) {
	h := newHost(t)
	far, say := farServer(t)
	h.serve(nil, "--connector", "far="+far)
	h.run("", "cove", "create", "paint", "--idle", "1s", "--hibernate", "0")
	h.write("standing.py", standing)
	h.run("", "cove", "cp", h.home+"/../standing.py", "paint:standing.py")
	h.run("", "cove", "url", "--public", "paint")
	h.run("", "cove", "service", "put", "-s", "paint", "--http-port", "8080", "standing", "python3", "standing.py")
	// It may fall asleep before the program has come to its connection, and nobody wakes it.
	await(t, "the program to listen", func() bool {
		select {
		case say <- "one":
			return true
		case <-time.After(200 * time.Millisecond):
			h.run("", "cove", "wake", "paint")
			return false
		}
	})
	await(t, "the counter", func() bool {
		_, code := h.try("", "cove", "exec", "-s", "paint", "--", "grep", "one", "got")
		return code == 0
	})
	mark, _ := h.counts("paint")

	size := h.containerFile("paint")
	h.stage("paint", true)
	if out := h.run("", "cove", "list"); !strings.Contains(out, "paused") {
		t.Errorf("the list says %s", out)
	}
	if got := h.containerFile("paint"); got != size {
		t.Errorf("gVisor's file of the container has %d bytes, not %d: it was written anew, for which a full disk has no room", got, size)
	}
	then := h.counted()
	select {
	case say <- "two":
	case <-time.After(lastResort):
		t.Fatal("its connection is lost")
	}
	<-time.After(300 * time.Millisecond) // for what must not happen
	if got := h.counted(); got != then {
		t.Errorf("paused, it goes on counting: %s", got[len(then):])
	}
	h.stage("paint", true)
	if got := h.visit("paint"); got != mark {
		t.Errorf("woken by its URL, it has the mark %q, not %q", got, mark)
	}
	await(t, "what came while it was paused", func() bool {
		return h.run("", "cove", "exec", "-s", "paint", "--", "cat", "got") == "one\ntwo\n"
	})

	h.stage("paint", true)
	signalAll(t, syscall.SIGKILL, h.shims()...)
	await(t, "the next shim", func() bool { return len(h.shims()) == 1 })
	h.stage("paint", true)
	h.counting("paint", mark)

	h.stage("paint", true)
	signalAll(t, syscall.SIGKILL, h.pid())
	h.serve(nil, "--connector", "far="+far)
	h.stage("paint", true)
	h.counting("paint", mark)

	h.run("", "cove", "update", "paint", "--hibernate", "2s")
	h.stage("paint", false)
	if _, asleep := h.memories(); len(asleep) != 1 {
		t.Errorf("on disk, there are the images %q", asleep)
	}
	await(t, "the shim's end", func() bool { return len(h.shims()) == 0 })
	h.counting("paint", mark)
	h.run("", "cove", "rm", "paint")
}

// visit makes a request to a sprite's URL, and returns the answer.
func (h *host) visit(sprite string) string {
	h.t.Helper()
	addr := strings.TrimPrefix(h.client().URL, "http://")
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		h.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	req.Host = sprite + ".localhost:" + port
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		h.t.Errorf("a visit: %s, %s, %v", resp.Status, body, err)
	}
	return string(body)
}

// TestPauseLimit: a paused sprite takes no place from one that runs, and wakes only
// where there is one.
func TestPauseLimit(t *testing.T) {
	h := newHost(t)
	h.serve(nil, "--max-running", "1", "--idle", "1s", "--hibernate", "0")
	for i := range 2 {
		name := "paint" + strconv.Itoa(i)
		h.run("", "cove", "create", name)
		h.run("", "cove", "exec", "-s", name, "--user", "root", "--", "sh", "-c", "echo "+name+" >/dev/shm/mark")
		h.stage(name, true)
	}
	pid, _ := h.background("", "cove", "exec", "-s", "paint0", "--", "sleep", "1000")
	await(t, "the command", func() bool {
		info, err := h.client().Get(t.Context(), "paint0")
		return err == nil && info.Status == sprites.StatusRunning
	})
	if out, code := h.try("", "cove", "exec", "-s", "paint1", "true"); code == 0 || !strings.Contains(out, "as many sprites are running as the server allows: 1") {
		t.Errorf("a second one woke: %s", out)
	}
	h.run("", "cove", "policy", "deny", "-s", "paint1", "denied.test") // which is told when it wakes
	signalAll(t, syscall.SIGKILL, pid)
	h.run("", "cove", "rm", "paint0")
	out := h.run("", "cove", "exec", "-s", "paint1", "--", "sh", "-c", "cat /dev/shm/mark /.sprite/policy/network.json")
	if !strings.HasPrefix(out, "paint1\n") || !strings.Contains(out, "denied.test") {
		t.Errorf("the other has %s", out)
	}
}
