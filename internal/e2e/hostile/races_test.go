package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// swapper is a program of root's in a sprite. While the file /tmp/at-it exists, it swaps
// a folder and a link again and again. Then it prints how often.
const swapper = `
import os, shutil, sys
base, outside = sys.argv[1:3]
os.chdir(base)
n = 0
while os.path.exists('/tmp/at-it'):
    try:
        os.rename('d', 'aside')
        os.symlink(outside, 'd')
        os.unlink('d')
        os.rename('aside', 'd')
        n += 1
        if n == 1000: open('/tmp/enough', 'w').close()
    except OSError:
        if os.path.islink('d'): os.unlink('d')
        shutil.rmtree('aside', ignore_errors=True)
        os.makedirs('d', exist_ok=True)
        shutil.chown('d', 'sprite')
print(n)
`

// meanwhile calls f again and again while a program of root's runs in the sprite paint,
// and returns the program's output. It goes on for at least the time long. Then it ends
// once f has seen enough and the program has made /tmp/enough, or after LastResort.
func meanwhile(h e2e.SyncHost, long time.Duration, program string, args []string, f func(i int) (enough bool)) string {
	h.T.Helper()
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", "rm -f /tmp/enough; touch /tmp/at-it")
	_, said := h.Background("", "cove", append([]string{"exec", "-s", "paint", "--user", "root", "--", "python3", "-c", program}, args...)...)
	worked := func() bool {
		_, code := h.Try("", "cove", "exec", "-s", "paint", "--", "test", "-e", "/tmp/enough")
		return code == 0
	}
	began := time.Now()
	for i, enough := 0, false; time.Since(began) < long || !enough && time.Since(began) < e2e.LastResort; i++ {
		enough = f(i) && worked()
	}
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "rm", "-f", "/tmp/at-it")
	out, err := said()
	if err != nil {
		h.T.Fatalf("%v: %s", err, out)
	}
	return out
}

// TestHostileRaces: root of a sprite puts links where a copy is being written (statement
// 2), and changes files that are being read (statement 7).
func TestHostileRaces(t *testing.T) {
	base := e2e.NewSyncHost(t)
	limit := 1500 * time.Millisecond
	if e2e.Soak() {
		limit = time.Minute
	}
	row := func(name string, f func(h e2e.SyncHost)) {
		t.Run(name, func(t *testing.T) { f(base.On(t)) })
	}
	row("2 a sync through a link", func(h e2e.SyncHost) { racePush(h, limit) })
	row("2 an archive through a link", func(h e2e.SyncHost) { raceArchive(h, limit) })
	row("7 a file that changes", func(h e2e.SyncHost) { raceReads(h, limit) })
}

// racePush: a sync writes only below its root, whoever owns the place that a link leads
// to.
func racePush(h e2e.SyncHost, limit time.Duration) {
	h.Write("race/d/file", "first")
	h.Write("race/e", "e")
	h.Sh("mkdir outside; ln -s ~/outside planted; mkdir sub; ln -s ~/outside sub/d")
	for _, policy := range []string{"fail", "ours"} {
		if r, code := h.Sync("race", "push", ".", "sub", "--on-conflict", policy); code != 3 {
			h.T.Errorf("over a link that was planted, %s: %d, %+v", policy, code, r)
		}
	}
	h.Synced("race", "push", ".", "race")
	codes := map[int]int{}
	tries := meanwhile(h, limit, swapper, []string{"/home/sprite/race", "/home/sprite/outside"}, func(i int) bool {
		for j := range 40 {
			h.Write(fmt.Sprintf("race/d/f%d", j), fmt.Sprint(i))
		}
		_, code := h.Sync("race", "push", ".", "race", "--on-conflict", "ours")
		codes[code]++
		return true
	})
	h.T.Logf("the folder was a link %s times; the pushes ended with %v", strings.TrimSpace(tries), codes)
	if got := h.Sh("ls -A outside"); got != "" {
		h.T.Errorf("written through the link: %s", got)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(tries)); err != nil || n < 1000 {
		h.T.Errorf("the folder was a link only %s times", tries)
	}
	h.Synced("race", "push", ".", "race", "--on-conflict", "ours")
}

// raceArchive: tar unpacks cp's files in a sprite, as the sprite's user. Through a link
// it may reach places where that user may write, but root's files stay as they are. The
// files API applies the same rights.
func raceArchive(h e2e.SyncHost, limit time.Duration) {
	for j := range 200 {
		h.Write(fmt.Sprintf("tree/d/f%d", j), "mine")
	}
	root := func(script string) string {
		return h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", script)
	}
	list := "ls -la --time-style=full-iso /srv/owned; cat /srv/owned/*"
	root("mkdir -p /srv/owned && chmod 755 /srv/owned && for i in 0 1 2; do echo root >/srv/owned/f$i; done")
	before := root(list)
	h.Sh("mkdir -p into/tree && ln -s /srv/owned into/tree/d")
	h.Try("", "cove", "cp", "tree", "paint:into")
	if got := h.Sh("readlink into/tree/d || ls into/tree/d | wc -l"); got != "200\n" {
		h.T.Errorf("over a link that was planted: %q", got)
	}
	codes := map[int]int{}
	sprite := h.Client().Sprite("paint")
	tries := meanwhile(h, limit, swapper, []string{"/home/sprite/into/tree", "/srv/owned"}, func(int) bool {
		_, code := h.Try("", "cove", "cp", "tree", "paint:into")
		codes[code]++
		for j := range 20 {
			_ = sprite.WriteFile(h.T.Context(), fmt.Sprintf("into/tree/d/f%d", j), strings.NewReader("mine"), sprites.WriteOptions{}) // it may be refused
		}
		return true
	})
	h.T.Logf("the folder was a link %s times; cp ended with %v", strings.TrimSpace(tries), codes)
	if n, err := strconv.Atoi(strings.TrimSpace(tries)); err != nil || n < 1000 {
		h.T.Errorf("the folder was a link only %s times", tries)
	}
	if after := root(list); after != before {
		h.T.Errorf("root's folder was\n%s\nand is\n%s", before, after)
	}
}

// changer is a program of root's in a sprite. It makes a file grow, shrink, vanish, and
// become another file, a pipe, a folder or a device. The file only ever holds the letter
// A.
const changer = `
import os, stat, sys, time
os.chdir(sys.argv[1])
def write(name, n):
    with open(name, 'wb') as f: f.write(b'A' * n)
n = 0
while os.path.exists('/tmp/at-it'):
    for what in range(7):
        try:
            if what == 0: os.rename('f', 'was'); write('f', 3_000_000)
            if what == 1: os.truncate('f', 5)
            if what == 2:
                with open('f', 'ab') as f:
                    for i in range(20): f.write(b'A' * 100_000)
            if what == 3: os.mkfifo('new'); os.rename('new', 'f')
            if what == 4: write('new', 2_000_000); os.rename('new', 'f')
            if what == 5: os.unlink('f'); os.mkdir('f'); os.rmdir('f'); os.mknod('f', 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            if what == 6: write('new', 1_000_000); os.rename('new', 'f'); os.unlink('f'); write('f', 2_500_000)
        except OSError: pass
        n += 1
        if n == 50: open('/tmp/enough', 'w').close()
        time.sleep(0.001)
print(n)
`

// raceReads: whatever happens to a file while it is read, only its own bytes arrive, and
// no call waits for ever.
func raceReads(h e2e.SyncHost, limit time.Duration) {
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", "cd /home/sprite; mkdir dir other; head -c 5000000 /dev/zero | tr '\\0' B >other/b; chown -R sprite dir other")
	sprite := h.Client().Sprite("paint")
	arrived := map[string]int{}
	look := func(how, name string) {
		content, err := os.ReadFile(h.Path(name))
		if err != nil {
			return
		}
		arrived[how]++
		if i := bytes.IndexFunc(content, func(r rune) bool { return r != 'A' }); i >= 0 {
			h.T.Errorf("%s: at %d of %d there is %q", how, i, len(content), content[i])
		}
	}
	n := meanwhile(h, limit, changer, []string{"/home/sprite/dir"}, func(int) bool {
		h.Try("", "cove", "cp", "paint:dir/f", "f")
		look("cp of the file", "f")
		h.Try("", "cove", "cp", "paint:dir", "dir")
		look("cp of the folder", "dir/f")
		h.Try("", "cove", "sync", "pull", "-s", "paint", "dir", "synced", "--on-conflict", "theirs")
		look("sync pull", "synced/f")
		ctx, cancel := context.WithTimeout(h.T.Context(), e2e.LastResort)
		content, err := sprite.ReadFile(ctx, "dir/f")
		cancel()
		if err == nil {
			h.Write("read/f", string(content))
			look("read", "read/f")
		}
		h.Run("", "rm", "-rf", "f", "dir", "read")
		return len(arrived) > 0
	})
	h.T.Logf("%s changes; arrived: %v", strings.TrimSpace(n), arrived)
	if len(arrived) < 1 { // a changing folder may give neither an archive nor a manifest
		h.T.Errorf("arrived only: %v", arrived)
	}
	for _, name := range []string{"f", "dir", "read"} {
		if left, _ := filepath.Glob(h.Path(name) + "*/.cove-*"); len(left) > 0 {
			h.T.Errorf("left: %v", left)
		}
	}
	if left, _ := filepath.Glob(h.Path(".cove-*")); len(left) > 0 {
		h.T.Errorf("left: %v", left)
	}
	if out := h.Run("", "cove", "exec", "-s", "paint", "--", "echo", "well"); out != "well\n" {
		h.T.Errorf("afterwards: %q", out)
	}
}

// TestHostilePaths: whatever path a call of the files API has, it stays in the sprite
// that the call names (statement 6).
func TestHostilePaths(t *testing.T) {
	h := e2e.NewSyncHost(t)
	h.Run("", "cove", "create", "other")
	h.Run("", "cove", "exec", "-s", "other", "--", "sh", "-c", "echo of the other >/tmp/secret")
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", `cd /home/sprite && ln -s / top && ln -s top/top/proc/self/root chain && ln -s /proc/1/root magic && ln -s ../../../../../.. up &&
		ln -s /proc/1/cwd cwd; for i in 0 1 2 3 4 5 6 7 8 9; do ln -s /proc/1/fd/$i fd$i; done; ln -s loop loop; chown -h sprite *`)
	h.Write("outside/canary", "of the host")
	canary := h.Path("outside/canary")
	token := strings.TrimSpace(h.Run("", "cove", "token", "create", "one", "-s", "paint", "-q"))
	api := e2e.JSONString(t, filepath.Join(h.Data, "server.json"), "url")
	call := func(method, target, body string) (int, string) {
		t.Helper()
		u, err := url.Parse(api)
		if err != nil {
			t.Fatal(err)
		}
		path, query, _ := strings.Cut(target, "?")
		u.Opaque, u.RawQuery = "//"+u.Host+path, query // unchanged, without escaping
		req := (&http.Request{Method: method, URL: u, Host: u.Host, Header: http.Header{"Authorization": {"Bearer " + token}}}).WithContext(t.Context())
		if body != "" {
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		}
		client := &http.Client{Timeout: e2e.LastResort, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s %s: %v", method, target, err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			t.Errorf("%s %s: %v", method, target, err)
		}
		return resp.StatusCode, string(text)
	}
	const fs = "/v1/sprites/paint/fs/"
	if code, text := call("GET", fs+"read?path=/etc/hostname", ""); code != 200 || strings.TrimSpace(text) != "paint" {
		t.Fatalf("an honest call: %d %s", code, text)
	}
	up := strings.Repeat("../", 20)
	prefixes := []string{"", "/", "//", "/" + up, up, "/home/sprite/" + up, "/./.", "//proc/self/root", "/proc/1/root", "/proc/thread-self/root", "/home/sprite/chain", "/home/sprite/magic", "/home/sprite/up",
		"/home/sprite/up/" + up, "/home/sprite/top/top/top", "/home/sprite/cwd/" + up, "/home/sprite/loop", "/.sprite/", "/proc/1/cwd", "/dev/fd/../.."}
	for i := range 4 {
		prefixes = append(prefixes, fmt.Sprintf("/proc/1/fd/%d", i), fmt.Sprintf("/home/sprite/fd%d/", i))
	}
	for _, prefix := range prefixes {
		path := prefix + canary
		for _, target := range []string{
			"read?path=" + path, "read?asRoot=true&path=" + path, "read?asRoot=true&path=" + strings.ReplaceAll(path, "../", "%2e%2e%2f"),
			"read?asRoot=true&path=" + strings.ReplaceAll(path, "/", "%2F"), "read?asRoot=true&path=" + strings.ReplaceAll(path, "../", "%252e%252e%252f"),
			"read?asRoot=true&path=" + path + "%00", "list?asRoot=true&path=" + strings.TrimSuffix(path, "/canary"),
		} {
			if code, text := call("GET", fs+target, ""); code < 400 || strings.Contains(text, "of the host") {
				t.Errorf("%s: %d %s", target, code, text)
			}
		}
	}
	for _, prefix := range prefixes { // in the sprite it may well succeed
		call("PUT", fs+"write?path="+prefix+h.Path("outside/new")+"&asRoot=true&mkdirParents=true", "evil")
	}
	if got := h.Run("", "ls", "outside"); got != "canary\n" {
		t.Errorf("outside there is %q", got)
	}
	// The path of the call itself is no file's, and leads to no other sprite.
	for _, path := range []string{"paint/../other/fs/", "paint%2f..%2fother/fs/", "paint/fs/../../other/fs/", "paint/fs/%2e%2e/%2e%2e/other/fs/", "other/fs/", "/other/fs/", "./other/fs/", "paint/./../other/fs/", "%6fther/fs/", "paint/../../sprites/other/fs/"} {
		if code, text := call("GET", "/v1/sprites/"+path+"read?path=/tmp/secret", ""); code == 200 || strings.Contains(text, "of the other") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
}
