package trees

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestSync checks the statements S1 to S17, with a real sandbox.
func TestSync(t *testing.T) {
	base := e2e.NewSyncHost(t)
	row := func(name string, f func(h e2e.SyncHost)) {
		t.Run(name, func(t *testing.T) { f(base.On(t)) })
	}
	row("S1 round trip is identity", syncS1)
	row("S2 memory is constant", syncS2)
	row("S3 one change sends one file", syncS3)
	row("S4 deletes and renames propagate", syncS4)
	row("S5 excludes are anchored, both ways", syncS5)
	row("S6 pull stays inside, and out of git", syncS6)
	row("S7 hostile trees", syncS7)
	row("S8 conflicts are found and refused", syncS8)
	row("S10 what is overwritten comes back", syncS10)
	row("S11 a cut changes nothing", syncS11)
	row("S12 full disks", syncS12)
	row("S13 S14 a failed pull keeps the sprite and says what next", syncS13)
	row("S15 parallel pushes", syncS15)
	row("S16 a dry run is what is done", syncS16)
	row("S17 git inside takes what was pushed for its own, and knows the person", syncS17)
}

func syncS1(h e2e.SyncHost) {
	files := 1000
	if e2e.Soak() {
		files = 10_000
	}
	for i := range files {
		h.Write(fmt.Sprintf("s1/d%d/e%d/f%d", i%13, i%7, i), strings.Repeat(fmt.Sprintln(i), i%50))
	}
	for i, name := range []string{"-rf", "a b", "new\nline", "\x1b[31mred", "\xff\xfe", "$(id)", "'\"`", "a:b", "back\\slash", "caf\u00e9", "cafe\u0301", strings.Repeat("x", 255)} {
		h.Write("s1/odd/"+name, fmt.Sprint(i))
	}
	root := h.Path("s1")
	for link, target := range map[string]string{"link": "odd/a b", "odd/up": "../d1", "dangling": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			h.T.Fatal(err)
		}
	}
	old := time.Unix(1_000_000_000, 123_456_789)
	err := errors.Join(os.MkdirAll(filepath.Join(root, "empty/inner"), 0o755), os.Chmod(filepath.Join(root, "odd/a b"), 0o755),
		os.Chmod(filepath.Join(root, "odd/-rf"), 0o600), os.Chmod(filepath.Join(root, "empty"), 0o700), os.Chtimes(filepath.Join(root, "odd/a:b"), old, old))
	if err != nil {
		h.T.Fatal(err)
	}
	h.Synced("s1", "push")
	h.Synced("", "pull", "s1", "s1-back")
	e2e.SameTree(h.T, e2e.TreeOf(h.T, h.Path("s1-back")), e2e.TreeOf(h.T, root))
}

// usage runs cove, which must succeed, and returns the most memory that it had, in bytes.
func usage(h e2e.SyncHost, args ...string) (peak int64) {
	h.T.Helper()
	out, code, peak := e2e.Peak(h.Host, "", args...)
	if code != 0 {
		h.T.Fatalf("cove %q: exit code %d, %s", args, code, out)
	}
	return peak
}

func syncS2(h e2e.SyncHost) {
	size := int64(100 << 20)
	if e2e.Soak() {
		size = 5 << 30
	}
	h.Write("s2/x", "")
	f, err := os.Create(h.Path("s2/big"))
	if err != nil {
		h.T.Fatal(err)
	}
	block := make([]byte, 1<<20)
	r := rand.NewChaCha8([32]byte{1})
	for at := int64(0); at < size; at += int64(len(block)) {
		_, _ = r.Read(block) // never fails
		if _, err := f.Write(block); err != nil {
			h.T.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		h.T.Fatal(err)
	}
	for _, args := range [][]string{{"push", "s2"}, {"pull", "s2", "s2-back"}} {
		peak := usage(h, append([]string{"sync", "-s", "paint"}, args...)...)
		if h.T.Logf("%s took %d MiB", args[0], peak>>20); peak > 64<<20 {
			h.T.Errorf("that is more than 64")
		}
	}
	h.Run("", "cmp", "s2/big", "s2-back/big")
	h.Run("", "rm", "-r", "s2", "s2-back")
	h.Sh("rm -r s2")
}

func syncS3(h e2e.SyncHost) {
	for i := range 500 {
		h.Write(fmt.Sprintf("s3/d%d/f%d", i%9, i), strings.Repeat(fmt.Sprint(i), 500))
	}
	h.Synced("s3", "push")
	h.Write("s3/d1/f1", "changed")
	<-time.After(50 * time.Millisecond)
	again := h.Synced("s3", "push")
	if again.Modified.Count != 1 || again.Bytes != 7 || again.Sent > 20_000 {
		h.T.Errorf("got %+v", again)
	}
	if nothing := h.Synced("s3", "push"); nothing.Bytes != 0 || nothing.Backup != "" {
		h.T.Errorf("got %+v", nothing)
	}
}

func syncS4(h e2e.SyncHost) {
	for _, name := range []string{"gone/a/b", "gone/c", "old/name", "stays"} {
		h.Write("s4/"+name, strings.Repeat(name, 10_000))
	}
	h.Synced("s4", "push")
	h.Run("s4", "rm", "-r", "gone")
	h.Run("s4", "mv", "old", "new")
	r := h.Synced("s4", "push")
	if r.Sent > 20_000 {
		h.T.Errorf("%d bytes were sent for a rename", r.Sent)
	}
	if got := h.Sh("cd s4 && find . | sort | tr '\\n' ' '"); got != ". ./new ./new/name ./stays " {
		h.T.Errorf("got %q", got)
	}
	h.Sh("cd s4 && rm stays && mv new/name new/other")
	h.Synced("s4", "pull")
	if got := h.Run("s4", "find", ".", "-type", "f"); got != "./new/other\n" {
		h.T.Errorf("got %q", got)
	}
}

func syncS5(h e2e.SyncHost) {
	h.Repository("s5", map[string]string{"build/x": "1", "src/build/y": "2", "a.tmp": "3", "b.tmp": "4", ".gitignore": "*.log\nout/\n", "keep.log": "t"})
	h.Run("s5", "git", "add", "-f", "keep.log")
	h.Run("s5", "git", "commit", "-q", "-m", "keep.log")
	h.Write("s5/x.log", "ignored")
	h.Write("s5/out/z", "ignored")
	h.Write("s5/untracked", "5")
	flags := []string{"--exclude", "/build", "--exclude", "*.tmp"}
	r := h.Synced("s5", "push", flags...)
	list := func() string { return h.Sh("cd s5 && find . -type f | sort | tr '\\n' ' '") }
	if got := list(); got != "./.gitignore ./keep.log ./src/build/y ./untracked " {
		h.T.Errorf("got %q", got)
	}
	if len(r.Skipped) < 2 {
		h.T.Errorf("it does not say what was left out: %+v", r.Skipped)
	}
	h.Sh("cd s5 && mkdir -p build out && echo r > build/r && echo r > c.tmp && echo r > y.log && echo r > out/r && echo r > src/build/r")
	h.Synced("s5", "pull", flags...)
	for name, want := range map[string]bool{"build/r": false, "c.tmp": false, "y.log": false, "out/r": false, "src/build/r": true, "build/x": true, "x.log": true} {
		if _, err := os.Lstat(h.Path("s5/" + name)); (err == nil) != want {
			h.T.Errorf("%s: %v", name, err)
		}
	}
	h.Synced("s5", "push", "--no-ignore", "--exclude", "build", "--exclude", "out", "--exclude", "*.tmp", "--on-conflict", "ours")
	if got := list(); !strings.Contains(got, "./x.log") || strings.Contains(got, ".git/") {
		h.T.Errorf("got %q", got)
	}
}

func syncS6(h e2e.SyncHost) {
	h.Sh(`mkdir -p s6 && cd s6 && mkdir -p .git/hooks .GIT sub/.Git through && echo evil > .git/hooks/post-checkout && echo evil > .GIT/config &&
		echo evil > sub/.Git/x && echo evil > through/file && ln -s /etc/passwd abs && ln -s ../../x up && ln -s .git/hooks hooks && echo ok > ok`)
	h.Write("s6/ok", "ok\n")
	h.Write("s6-outside/file", "mine")
	if err := os.Symlink(h.Path("s6-outside"), h.Path("s6/through")); err != nil {
		h.T.Fatal(err)
	}
	h.Run("s6", "git", "init", "-q")
	before := e2e.TreeOf(h.T, h.Path("s6/.git"))
	// The person has a link where the sprite has a folder.
	for _, policy := range []string{"fail", "theirs"} {
		if r, code := h.Sync("s6", "pull", "--on-conflict", policy); code != 3 || !strings.Contains(r.Error.Message, "through") {
			h.T.Errorf("code %d, %+v", code, r)
		}
	}
	h.Synced("s6", "pull", "--exclude", "/through")
	content, err := os.ReadFile(h.Path("s6-outside/file"))
	if err != nil || string(content) != "mine" {
		h.T.Errorf("outside: %q, %v", content, err)
	}
	e2e.SameTree(h.T, e2e.TreeOf(h.T, h.Path("s6/.git")), before)
	for _, name := range []string{".GIT/config", "sub/.Git", "abs", "up", "hooks"} {
		if info, err := os.Lstat(h.Path("s6/" + name)); err == nil && !strings.HasPrefix(name, ".GIT") {
			h.T.Errorf("%s came: %v", name, info.Mode())
		}
	}
}

func syncS7(h e2e.SyncHost) {
	h.Sh(`mkdir -p s7 && cd s7 && echo ok > ok && mkfifo fifo && python3 -c "
import os, socket
socket.socket(socket.AF_UNIX).bind('socket')
open('\xff\xfe\x1b[31m\n', 'w').close()
os.link('ok', 'hard')
fd = os.open('.', os.O_RDONLY)
for i in range(3000):
    os.mkdir('d', dir_fd=fd)
    fd2 = os.open('d', os.O_RDONLY, dir_fd=fd)
    os.close(fd)
    fd = fd2
"`)
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", "cd /home/sprite/s7 && chmod 4755 ok; mknod null c 1 3 || true")
	r := h.Synced("", "pull", "s7")
	reasons := ""
	for _, s := range r.Skipped {
		reasons += s.Reason + ","
	}
	if !strings.Contains(reasons, "neither file") || !strings.Contains(reasons, "too") {
		h.T.Errorf("got %q", reasons)
	}
	info, err := os.Lstat(h.Path("s7/ok"))
	if err != nil || info.Mode() != 0o755 {
		h.T.Errorf("%v, %v", info, err)
	}
	// A sparse file that is larger than any disk.
	h.Sh("mkdir -p s7b && truncate -s 5T s7b/bomb && echo x > s7b/x")
	if r, code := h.Sync("", "pull", "s7b"); code != 6 {
		h.T.Errorf("code %d, %+v", code, r.Error)
	}
	h.Sh("truncate -s 20M s7b/bomb")
	if r, code := h.Sync("", "pull", "s7b", "--max-size", "10M"); code != 6 {
		h.T.Errorf("code %d, %+v", code, r.Error)
	}
	if left, err := os.ReadDir(h.Path("s7b")); err == nil && len(left) > 0 {
		h.T.Errorf("%v is left", left)
	}
}

func syncS8(h e2e.SyncHost) {
	h.Write("s8/both", "1\n2\n3\n4\n5\n6\n7\n")
	h.Write("s8/clash", "base\n")
	h.Synced("s8", "push")
	h.Write("s8/both", "one\n2\n3\n4\n5\n6\n7\n")
	h.Write("s8/clash", "local\n")
	h.Sh("cd s8 && sed -i s/7/seven/ both && echo remote > clash")
	before := e2e.TreeOf(h.T, h.Path("s8"))
	for _, verb := range []string{"push", "pull"} {
		r, code := h.Sync("s8", verb)
		if code != 3 || len(r.Conflicts) == 0 || r.Conflicts[len(r.Conflicts)-1].Path != "clash" {
			h.T.Errorf("%s: code %d, %+v", verb, code, r)
		}
	}
	e2e.SameTree(h.T, e2e.TreeOf(h.T, h.Path("s8")), before)
	if got := h.Sh("cat s8/clash"); got != "remote\n" {
		h.T.Errorf("got %q", got)
	}
	if out, code := h.Try("s8", "cove", "sync", "pull", "-s", "paint"); code != 3 || !strings.Contains(out, "conflict: clash (changed here, changed in paint)") || !strings.Contains(out, "--on-conflict") {
		h.T.Errorf("code %d, %s", code, out)
	}
	r := h.Synced("s8", "pull", "--on-conflict", "both")
	if r.Merged.Count != 1 {
		h.T.Errorf("got %+v", r)
	}
	for name, want := range map[string]string{"both": "one\n2\n3\n4\n5\n6\nseven\n", "clash": "local\n", "clash.cove-theirs": "remote\n"} {
		if got, err := os.ReadFile(h.Path("s8/" + name)); err != nil || string(got) != want {
			h.T.Errorf("%s: %q, %v", name, got, err)
		}
	}
	h.Synced("s8", "push")
	if got := h.Sh("cat s8/clash s8/both; ls s8"); got != "local\none\n2\n3\n4\n5\n6\nseven\nboth\nclash\n" {
		h.T.Errorf("got %q", got)
	}
}

func syncS10(h e2e.SyncHost) {
	h.Write("s10/change", "old")
	h.Write("s10/gone/a", "1")
	h.Synced("s10", "push")
	h.Write("s10/change", "newer")
	h.Run("s10", "rm", "-r", "gone")
	h.Synced("s10", "push")
	content := func() string {
		return h.Sh("cd s10 && for f in change gone/a; do cat $f 2>/dev/null; echo -n ' '; done")
	}
	for _, want := range []string{"newer  ", "old 1 ", "newer  "} {
		if got := content(); got != want {
			h.T.Errorf("got %q, want %q", got, want)
		}
		h.Run("s10", "cove", "sync", "undo", "-s", "paint")
	}
	h.Sh("cd s10 && echo theirs > change && rm -r gone")
	before := e2e.TreeOf(h.T, h.Path("s10"))
	h.Synced("s10", "pull", "--on-conflict", "theirs")
	out := h.Run("s10", "cove", "sync", "status", "-s", "paint")
	if !strings.Contains(out, "  pull ") || !strings.Contains(out, "  undo ") {
		h.T.Errorf("got %s", out)
	}
	h.Run("s10", "cove", "sync", "undo", "-s", "paint")
	e2e.SameTree(h.T, e2e.TreeOf(h.T, h.Path("s10")), before)
}

// noise makes a file that can't be compressed.
func noise(h e2e.SyncHost, name string, size int) {
	h.T.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(content) // never fails
	h.Write(name, string(content))
}

func syncS11(h e2e.SyncHost) {
	for i := 0; !cutSync(h, fmt.Sprintf("s11-%d", i)); i++ {
		if i == 9 {
			h.T.Fatal("each sync ended before it was seen at work")
		}
	}
}

// cutSync cuts a sync that has staged some of its files. It returns false if the sync ended before
// this machine looked at what is staged.
func cutSync(h e2e.SyncHost, dir string) bool {
	defer func() {
		h.Run("", "rm", "-r", dir)
		h.Sh("rm -r " + dir)
	}()
	h.Write(dir+"/a", "1")
	h.Synced(dir, "push")
	for i := range 8 {
		noise(h, fmt.Sprintf("%s/big%d", dir, i), 8<<20)
	}
	h.Write(dir+"/a", "2")
	pid, wait := h.Background(dir, "cove", "sync", "push", "-s", "paint", "--json")
	over := false
	e2e.Await(h.T, "some of it is staged", func() bool {
		// It stands still, so that not all of it is staged by the time that the connection goes. 24 MB
		// are more than can be on their way.
		if over = e2e.Signal(pid, syscall.SIGSTOP) != nil; over {
			return true
		}
		_, code := h.Try("", "cove", "exec", "-s", "paint", "--", "sh", "-c", `ls -l ~/.local/state/cove/.cove-sync/*/stage/ | awk '{n+=$5} END {exit !(n > 12000000 && n < 40000000)}'`)
		if code != 0 {
			_ = e2e.Signal(pid, syscall.SIGCONT)
		}
		return code == 0
	})
	if over {
		if out, err := wait(); err != nil {
			h.T.Errorf("a sync that nothing cut: %v, %s", err, out)
		}
		return false
	}
	// The connection is lost, and the command line survives to report it.
	id := ""
	var list struct {
		Sessions []struct{ ID, Command string }
	}
	if err := json.Unmarshal([]byte(h.Run("", "cove", "session", "list", "-s", "paint", "--json")), &list); err != nil {
		h.T.Fatal(err)
	}
	for _, s := range list.Sessions {
		if strings.Contains(s.Command, "sync") {
			id = s.ID
		}
	}
	if id == "" {
		h.T.Fatalf("no sync among %+v", list)
	}
	h.Run("", "cove", "session", "kill", "-s", "paint", id)
	_ = e2e.Signal(pid, syscall.SIGCONT)
	out, err := wait()
	if err == nil || !strings.Contains(out, `"lost"`) {
		h.T.Errorf("process %d: %v, %s", pid, err, out)
	}
	if got := h.Sh("cat " + dir + "/a; ls " + dir); got != "1a\n" {
		h.T.Errorf("after the cut there is %q", got)
	}
	if r := h.Synced(dir, "push"); r.Sent > 56<<20 {
		h.T.Errorf("%d MiB were sent again of 64", r.Sent>>20)
	}
	return true
}

func syncS12(h e2e.SyncHost) {
	for i := range 20 {
		h.Write(fmt.Sprintf("s12/old%d", i), "old")
	}
	tiny := func(n int) {
		for i := range n {
			h.Write(fmt.Sprintf("s12/tiny/d%d/f%d", i%20, i), "x")
		}
	}
	// A full disk in the sprite: tiny files need more room than their bytes, so the sync
	// can't know it before.
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", "mkdir -p /small && mount -t tmpfs -o size=66m,mode=777 none /small")
	h.Synced("", "push", "s12", "/small/s12")
	tiny(1200)
	h.Sh("dd if=/dev/zero of=/small/filler bs=1M count=64 2>/dev/null; true")
	r, code := h.Sync("", "push", "s12", "/small/s12")
	if code != 6 || r.Error.Code != "no_space" {
		h.T.Errorf("code %d, %+v", code, r.Error)
	}
	if got := strings.TrimSpace(h.Sh("ls /small/s12 | wc -l")); got != "20" {
		h.T.Errorf("%s files are there after a full disk", got)
	}
	h.Sh("rm /small/filler")
	h.Synced("", "push", "s12", "/small/s12")
	if os.Geteuid() != 0 {
		return // mounts are root's
	}
	small := h.Path("s12-small")
	e2e.SmallDisk(h.T, small, "66m")
	if err := os.WriteFile(filepath.Join(small, "filler"), make([]byte, 1<<20), 0o600); err != nil {
		h.T.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(small, "back"), 0o755); err != nil {
		h.T.Fatal(err)
	}
	if r, code := h.Sync("", "pull", "/small/s12", small+"/back"); code != 0 && code != 6 {
		h.T.Errorf("code %d, %+v", code, r.Error)
	}
	before := e2e.TreeOf(h.T, filepath.Join(small, "back"))
	h.Sh("cd /small/s12 && for i in $(seq 300); do echo y > new$i; done; echo changed > old1; rm old2")
	if err := os.WriteFile(filepath.Join(small, "filler"), make([]byte, 64<<20), 0o600); err != nil && !errors.Is(err, syscall.ENOSPC) {
		h.T.Fatal(err)
	}
	if r, code := h.Sync("", "pull", "/small/s12", small+"/back"); code != 6 {
		h.T.Errorf("code %d, %+v", code, r.Error)
	}
	e2e.SameTree(h.T, e2e.TreeOf(h.T, filepath.Join(small, "back")), before)
}

func syncS13(h e2e.SyncHost) {
	h.Sh("mkdir -p s13 && echo theirs > s13/a")
	h.Write("s13/a", "mine")
	out, code := h.Try("s13", "cove", "sync", "pull", "-s", "paint")
	if code != 3 || !strings.Contains(out, "hint: ") {
		h.T.Errorf("code %d, %s", code, out)
	}
	if got := h.Sh("cat s13/a"); got != "theirs\n" {
		h.T.Errorf("got %q", got)
	}
	out, code = h.Try("", "cove", "sync", "pull", "-s", "paint", "not-there")
	if code != 1 || !strings.Contains(out, "there is no folder /home/sprite/not-there") {
		h.T.Errorf("code %d, %s", code, out)
	}
}

func syncS15(h e2e.SyncHost) {
	for i := range 100 {
		h.Write(fmt.Sprintf("s15/f%d", i), strings.Repeat(fmt.Sprint(i), 1000))
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if out, err := h.Command("s15", "cove", "sync", "push", "-s", "paint").CombinedOutput(); err != nil {
				h.T.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	h.Synced("", "pull", "s15", "s15-back")
	e2e.SameTree(h.T, e2e.TreeOf(h.T, h.Path("s15-back")), e2e.TreeOf(h.T, h.Path("s15")))
}

func syncS16(h e2e.SyncHost) {
	h.Write("s16/a", "1")
	h.Write("s16/b/c", "2")
	for range 2 {
		plan := h.Synced("s16", "push", "--dry-run")
		before := h.Sh("ls -lR s16 2>/dev/null || true")
		if again := h.Sh("ls -lR s16 2>/dev/null || true"); again != before {
			h.T.Error("a dry run did something")
		}
		done := h.Synced("s16", "push")
		if !slices.Equal(plan.Added.Paths, done.Added.Paths) || !slices.Equal(plan.Modified.Paths, done.Modified.Paths) || !slices.Equal(plan.Deleted.Paths, done.Deleted.Paths) || plan.Bytes != done.Bytes {
			h.T.Errorf("planned %+v, done %+v", plan, done)
		}
		h.Write("s16/a", "changed")
		h.Run("s16", "rm", "-rf", "b")
		h.Write("s16/new", "3")
	}
}

func syncS17(h e2e.SyncHost) {
	h.Write("s17/a", "1")
	h.Synced("s17", "push")
	for key, value := range map[string]string{"user.name": "Ada Lovelace", "user.email": "ada@example.org", "credential.helper": "store"} {
		h.Run("", "git", "config", "--global", key, value)
	}
	h.Run("", "cove", "update", "paint", "--git-identity")
	if got := h.Sh("cd s17 && git init -q && git add a && git commit -q -m first && git log -1 --format='%an <%ae>' && git config user.email && ! git config credential.helper"); got != "Ada Lovelace <ada@example.org>\nada@example.org\n" {
		h.T.Errorf("got %q", got)
	}
	if got := h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "git", "-C", "/home/sprite/s17", "status", "--short", "--branch"); !strings.HasPrefix(got, "## ") {
		h.T.Errorf("as root: %q", got)
	}
}

// TestSyncWatch: changes on either side reach the other.
func TestSyncWatch(t *testing.T) {
	h := e2e.NewSyncHost(t)
	h.Write("w/a", "1")
	pid, wait := h.Background("w", "cove", "sync", "push", "-s", "paint", "--watch")
	inSprite := func(name, want string) {
		t.Helper()
		e2e.Await(t, name+" in the sprite", func() bool {
			out, _ := h.Try("", "cove", "exec", "-s", "paint", "--", "cat", "w/"+name)
			return out == want
		})
	}
	inSprite("a", "1")
	h.Write("w/sub/b", "2")
	inSprite("sub/b", "2")
	h.Sh("echo -n 3 > w/sub/c")
	e2e.Await(t, "c here", func() bool {
		b, err := os.ReadFile(h.Path("w/sub/c"))
		return err == nil && string(b) == "3"
	})
	h.Run("w", "rm", "a")
	e2e.Await(t, "a to go", func() bool {
		_, code := h.Try("", "cove", "exec", "-s", "paint", "--", "test", "-e", "w/a")
		return code == 1
	})
	e2e.SignalAll(t, syscall.SIGINT, pid)
	if out, err := wait(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSoakSyncKill kills the command line or the sprite's end at random moments, with -9.
// Afterwards the target has the old tree or the new one, and the next sync goes on (S9).
func TestSoakSyncKill(t *testing.T) {
	rounds, seed := 2, uint64(1)
	if e2e.Soak() {
		rounds, seed = 60, uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 3))
	h := e2e.NewSyncHost(t)
	write := func(round int) {
		for i := range 60 {
			h.Write(fmt.Sprintf("k/d%d/f%d", i%5, i), strings.Repeat(fmt.Sprint(round), 30_000))
		}
		h.Write(fmt.Sprintf("k/new%d/x", round), "x")
		h.Run("k", "rm", "-rf", fmt.Sprintf("new%d", round-1))
	}
	write(0)
	h.Synced("k", "push")
	versions := func(out string) string { return strings.Join(strings.Fields(out), " ") }
	state := `cd k && { ls -d new*; for f in d*/*; do head -c 1 $f; echo; done | sort | uniq -c; }`
	for round := 1; round <= rounds; round++ {
		write(round)
		old, want := versions(h.Sh(state)), versions(h.Run("", "sh", "-c", state))
		pid, wait := h.Background("k", "cove", "sync", "push", "-s", "paint")
		<-time.After(time.Duration(r.IntN(400)) * time.Millisecond)
		if r.IntN(2) == 0 {
			_ = e2e.Signal(pid, syscall.SIGKILL) // it may have ended
		} else {
			h.Try("", "cove", "exec", "-s", "paint", "--", "pkill", "-KILL", "-f", "cove-guest sync")
		}
		out, err := wait()
		// The next sync command ends the interrupted sync. This one does nothing else.
		h.Try("k", "cove", "sync", "undo", "-s", "paint", "--id", "20000101T000000.000-NONE")
		if now := versions(h.Sh(state)); now != old && now != want {
			t.Fatalf("round %d: %v, %s\nold %s\nnew %s\nnow %s", round, err, out, old, want, now)
		}
		h.Synced("k", "push")
		if now := versions(h.Sh(state)); now != want {
			t.Fatalf("round %d, pushed again: %s, want %s", round, now, want)
		}
		// The other direction: a pull is killed, and the next pull completes.
		h.Sh(fmt.Sprintf("cd k && for f in d*/*; do echo %dr > $f; done", round%10))
		old, want = versions(h.Run("", "sh", "-c", state)), versions(h.Sh(state))
		pid, wait = h.Background("k", "cove", "sync", "pull", "-s", "paint")
		<-time.After(time.Duration(r.IntN(300)) * time.Millisecond)
		_ = e2e.Signal(pid, syscall.SIGKILL)
		out, err = wait()
		h.Try("k", "cove", "sync", "undo", "-s", "paint", "--id", "20000101T000000.000-NONE")
		if now := versions(h.Run("", "sh", "-c", state)); now != old && now != want {
			t.Fatalf("round %d: %v, %s\nold %s\nnew %s\nnow %s", round, err, out, old, want, now)
		}
		h.Synced("k", "pull")
		if now := versions(h.Run("", "sh", "-c", state)); now != want {
			t.Fatalf("round %d, pulled again: %s, want %s", round, now, want)
		}
	}
}

// TestSoakSyncShare: /usr/share, with its links, modes and odd names, is pushed and
// pulled unchanged. Links that lead out of it are left out.
func TestSoakSyncShare(t *testing.T) {
	if !e2e.Soak() {
		t.Skip("takes minutes: make soak")
	}
	h := e2e.NewSyncHost(t)
	h.Run("", "cove", "sync", "push", "-s", "paint", "--no-ignore", "/usr/share", "share")
	if peak := usage(h, "sync", "pull", "-s", "paint", "--no-ignore", "share"); peak > 64<<20 {
		t.Errorf("the pull took %d MiB", peak>>20)
	}
	want, got := e2e.TreeOf(t, "/usr/share"), e2e.TreeOf(t, h.Path("share"))
	out := 0
	for name, v := range want {
		target, link := strings.CutPrefix(v, "-> ")
		if link && (filepath.IsAbs(target) || !filepath.IsLocal(filepath.Join(filepath.Dir(name), target))) {
			if _, ok := got[name]; ok {
				t.Errorf("%s leads out, to %s, and came", name, target)
			}
			out++
			delete(want, name)
		}
	}
	t.Logf("%d paths, and %d links that lead out", len(want), out)
	e2e.SameTree(t, got, want)
}

// TestGuestUpload: an uploaded guest runs, and a second upload adds no other file. Find
// prefers the guest that the server brings.
func TestGuestUpload(t *testing.T) {
	h := e2e.NewSyncHost(t)
	sprite := h.Client().Sprite("paint")
	file, err := os.Open(filepath.Join(e2e.BinDir, "cove-guest"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for range 2 {
		name, err := guestbin.Upload(t.Context(), sprite, file)
		if err != nil {
			t.Fatal(err)
		}
		out, err := sprite.Command(name, "version").Output()
		if err != nil || !strings.HasPrefix(string(out), "cove-guest ") {
			t.Errorf("%s: %q, %v", name, out, err)
		}
		if got := h.Sh("ls " + filepath.Dir(name)); strings.Count(got, "\n") != 1 {
			t.Errorf("there is %q", got)
		}
	}
	if found, err := guestbin.Find(t.Context(), sprite); err != nil || !strings.HasPrefix(found, "/.sprite/") {
		t.Errorf("found %q, %v", found, err)
	}
}
