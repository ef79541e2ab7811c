package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/guestbin"
)

// syncHost is a host with a sprite named paint, for the rows S1 to S17 of what a
// sync must hold. Each has folders of its own.
type syncHost struct{ *host }

func newSyncHost(t testing.TB) syncHost {
	h := syncHost{newHost(t)}
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	return h
}

// on is the host for another test.
func (h syncHost) on(t testing.TB) syncHost {
	other := *h.host
	other.t = t
	return syncHost{&other}
}

// path is the absolute path of a folder of the host's.
func (h *host) path(name string) string { return filepath.Join(filepath.Dir(h.home), name) }

// sh runs a script in the sprite.
func (h syncHost) sh(script string) string {
	h.t.Helper()
	return h.run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", script)
}

// syncReport is what cove sync prints for programs.
type syncReport struct {
	Added, Modified, Deleted, Merged, Newer struct {
		Count int
		Paths []string
	}
	Conflicts []struct{ Path, Local, Remote string }
	Skipped   []struct{ Reason string }
	Sent      int64
	Bytes     int64
	Backup    string
	Error     struct{ Code, Message string }
}

// sync runs cove sync in a folder, and returns its report and its exit code.
func (h syncHost) sync(dir, verb string, args ...string) (syncReport, int) {
	h.t.Helper()
	cmd := h.command(dir, "cove", append([]string{"sync", verb, "-s", "paint", "--json"}, args...)...)
	out, err := cmd.Output()
	var r syncReport
	if json.Unmarshal(out, &r) != nil {
		h.t.Fatalf("sync %s %s: %v, %s", verb, args, err, out)
	}
	return r, cmd.ProcessState.ExitCode()
}

// synced is sync that must succeed.
func (h syncHost) synced(dir, verb string, args ...string) syncReport {
	h.t.Helper()
	r, code := h.sync(dir, verb, args...)
	if code != 0 {
		h.t.Fatalf("sync %s %s: code %d, %+v %v", verb, args, code, r.Error, r.Conflicts)
	}
	return r
}

// treeOf describes a folder here: names, kinds, modes, times, contents.
func treeOf(t testing.TB, root string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			tree[rel] = "-> " + target
			return err
		case info.Mode().IsRegular():
			content, err := os.ReadFile(name)
			tree[rel] = fmt.Sprintf("%v %d %x", info.Mode(), info.ModTime().UnixNano(), sha256.Sum256(content))
			return err
		}
		tree[rel] = fmt.Sprint(info.Mode())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func sameTree(t testing.TB, got, want map[string]string) {
	t.Helper()
	bad := 0
	for name, v := range want {
		if got[name] != v {
			if bad++; bad < 10 {
				t.Errorf("%q: got %q, want %q", name, got[name], v)
			}
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			if bad++; bad < 10 {
				t.Errorf("%q is there", name)
			}
		}
	}
	if bad > 0 {
		t.Fatalf("%d differences", bad)
	}
}

// TestSync is the rows S1 to S17, with a real sandbox.
func TestSync(t *testing.T) {
	base := newSyncHost(t)
	row := func(name string, f func(h syncHost)) {
		t.Run(name, func(t *testing.T) { f(base.on(t)) })
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

func syncS1(h syncHost) {
	files := 1000
	if soak() {
		files = 10_000
	}
	for i := range files {
		h.write(fmt.Sprintf("s1/d%d/e%d/f%d", i%13, i%7, i), strings.Repeat(fmt.Sprintln(i), i%50))
	}
	for i, name := range []string{"-rf", "a b", "new\nline", "\x1b[31mred", "\xff\xfe", "$(id)", "'\"`", "a:b", "back\\slash", "caf\u00e9", "cafe\u0301", strings.Repeat("x", 255)} {
		h.write("s1/odd/"+name, fmt.Sprint(i))
	}
	root := h.path("s1")
	for link, target := range map[string]string{"link": "odd/a b", "odd/up": "../d1", "dangling": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			h.t.Fatal(err)
		}
	}
	old := time.Unix(1_000_000_000, 123_456_789)
	err := errors.Join(os.MkdirAll(filepath.Join(root, "empty/inner"), 0o755), os.Chmod(filepath.Join(root, "odd/a b"), 0o755),
		os.Chmod(filepath.Join(root, "odd/-rf"), 0o600), os.Chmod(filepath.Join(root, "empty"), 0o700), os.Chtimes(filepath.Join(root, "odd/a:b"), old, old))
	if err != nil {
		h.t.Fatal(err)
	}
	h.synced("s1", "push")
	h.synced("", "pull", "s1", "s1-back")
	sameTree(h.t, treeOf(h.t, h.path("s1-back")), treeOf(h.t, root))
}

// usage is the most memory that a command line had, in bytes, a moment before its end.
// What the kernel says of one that has ended has this process's memory in it, which it
// shared until it was executed.
func (h syncHost) usage(dir string, args ...string) (peak int64) {
	h.t.Helper()
	cmd := h.command(dir, "cove", args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if err != nil || peak == 0 {
				h.t.Fatalf("cove %s took %d: %v, %s", args, peak, err, &out)
			}
			return peak
		case <-time.After(5 * time.Millisecond):
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)) // it may have ended
		if _, text, ok := strings.Cut(string(status), "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			if err != nil {
				h.t.Fatal(err)
			}
			peak = max(peak, kib<<10)
		}
	}
}

func syncS2(h syncHost) {
	size := int64(100 << 20)
	if soak() {
		size = 5 << 30
	}
	h.write("s2/x", "")
	f, err := os.Create(h.path("s2/big"))
	if err != nil {
		h.t.Fatal(err)
	}
	block := make([]byte, 1<<20)
	r := rand.NewChaCha8([32]byte{1})
	for at := int64(0); at < size; at += int64(len(block)) {
		_, _ = r.Read(block) // never fails
		if _, err := f.Write(block); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		h.t.Fatal(err)
	}
	for _, args := range [][]string{{"push", "s2"}, {"pull", "s2", "s2-back"}} {
		peak := h.usage("", append([]string{"sync", "-s", "paint"}, args...)...)
		if h.t.Logf("%s took %d MiB", args[0], peak>>20); peak > 64<<20 {
			h.t.Errorf("that is more than 64")
		}
	}
	h.run("", "cmp", "s2/big", "s2-back/big")
	h.run("", "rm", "-r", "s2", "s2-back")
	h.sh("rm -r s2")
}

func syncS3(h syncHost) {
	for i := range 500 {
		h.write(fmt.Sprintf("s3/d%d/f%d", i%9, i), strings.Repeat(fmt.Sprint(i), 500))
	}
	h.synced("s3", "push")
	h.write("s3/d1/f1", "changed")
	<-time.After(50 * time.Millisecond)
	again := h.synced("s3", "push")
	if again.Modified.Count != 1 || again.Bytes != 7 || again.Sent > 20_000 {
		h.t.Errorf("got %+v", again)
	}
	if nothing := h.synced("s3", "push"); nothing.Bytes != 0 || nothing.Backup != "" {
		h.t.Errorf("got %+v", nothing)
	}
}

func syncS4(h syncHost) {
	for _, name := range []string{"gone/a/b", "gone/c", "old/name", "stays"} {
		h.write("s4/"+name, strings.Repeat(name, 10_000))
	}
	h.synced("s4", "push")
	h.run("s4", "rm", "-r", "gone")
	h.run("s4", "mv", "old", "new")
	r := h.synced("s4", "push")
	if r.Sent > 20_000 {
		h.t.Errorf("%d bytes were sent for a rename", r.Sent)
	}
	if got := h.sh("cd s4 && find . | sort | tr '\\n' ' '"); got != ". ./new ./new/name ./stays " {
		h.t.Errorf("got %q", got)
	}
	h.sh("cd s4 && rm stays && mv new/name new/other")
	h.synced("s4", "pull")
	if got := h.run("s4", "find", ".", "-type", "f"); got != "./new/other\n" {
		h.t.Errorf("got %q", got)
	}
}

func syncS5(h syncHost) {
	h.repository("s5", map[string]string{"build/x": "1", "src/build/y": "2", "a.tmp": "3", "b.tmp": "4", ".gitignore": "*.log\nout/\n", "keep.log": "t"})
	h.run("s5", "git", "add", "-f", "keep.log")
	h.run("s5", "git", "commit", "-q", "-m", "keep.log")
	h.write("s5/x.log", "ignored")
	h.write("s5/out/z", "ignored")
	h.write("s5/untracked", "5")
	flags := []string{"--exclude", "/build", "--exclude", "*.tmp"}
	r := h.synced("s5", "push", flags...)
	list := func() string { return h.sh("cd s5 && find . -type f | sort | tr '\\n' ' '") }
	if got := list(); got != "./.gitignore ./keep.log ./src/build/y ./untracked " {
		h.t.Errorf("got %q", got)
	}
	if len(r.Skipped) < 2 {
		h.t.Errorf("it does not say what was left out: %+v", r.Skipped)
	}
	h.sh("cd s5 && mkdir -p build out && echo r > build/r && echo r > c.tmp && echo r > y.log && echo r > out/r && echo r > src/build/r")
	h.synced("s5", "pull", flags...)
	for name, want := range map[string]bool{"build/r": false, "c.tmp": false, "y.log": false, "out/r": false, "src/build/r": true, "build/x": true, "x.log": true} {
		if _, err := os.Lstat(h.path("s5/" + name)); (err == nil) != want {
			h.t.Errorf("%s: %v", name, err)
		}
	}
	h.synced("s5", "push", "--no-ignore", "--exclude", "build", "--exclude", "out", "--exclude", "*.tmp", "--on-conflict", "ours")
	if got := list(); !strings.Contains(got, "./x.log") || strings.Contains(got, ".git/") {
		h.t.Errorf("got %q", got)
	}
}

func syncS6(h syncHost) {
	h.sh(`mkdir -p s6 && cd s6 && mkdir -p .git/hooks .GIT sub/.Git through && echo evil > .git/hooks/post-checkout && echo evil > .GIT/config &&
		echo evil > sub/.Git/x && echo evil > through/file && ln -s /etc/passwd abs && ln -s ../../x up && ln -s .git/hooks hooks && echo ok > ok`)
	h.write("s6/ok", "ok\n")
	h.write("s6-outside/file", "mine")
	if err := os.Symlink(h.path("s6-outside"), h.path("s6/through")); err != nil {
		h.t.Fatal(err)
	}
	h.run("s6", "git", "init", "-q")
	before := treeOf(h.t, h.path("s6/.git"))
	// A link of the person's own stands where the sprite has a folder.
	for _, policy := range []string{"fail", "theirs"} {
		if r, code := h.sync("s6", "pull", "--on-conflict", policy); code != 3 || !strings.Contains(r.Error.Message, "through") {
			h.t.Errorf("code %d, %+v", code, r)
		}
	}
	h.synced("s6", "pull", "--exclude", "/through")
	content, err := os.ReadFile(h.path("s6-outside/file"))
	if err != nil || string(content) != "mine" {
		h.t.Errorf("outside: %q, %v", content, err)
	}
	sameTree(h.t, treeOf(h.t, h.path("s6/.git")), before)
	for _, name := range []string{".GIT/config", "sub/.Git", "abs", "up", "hooks"} {
		if info, err := os.Lstat(h.path("s6/" + name)); err == nil && !strings.HasPrefix(name, ".GIT") {
			h.t.Errorf("%s came: %v", name, info.Mode())
		}
	}
}

func syncS7(h syncHost) {
	h.sh(`mkdir -p s7 && cd s7 && echo ok > ok && mkfifo fifo && python3 -c "
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
	h.run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", "cd /home/sprite/s7 && chmod 4755 ok; mknod null c 1 3 || true")
	r := h.synced("", "pull", "s7")
	reasons := ""
	for _, s := range r.Skipped {
		reasons += s.Reason + ","
	}
	if !strings.Contains(reasons, "neither file") || !strings.Contains(reasons, "too") {
		h.t.Errorf("got %q", reasons)
	}
	info, err := os.Lstat(h.path("s7/ok"))
	if err != nil || info.Mode() != 0o755 {
		h.t.Errorf("%v, %v", info, err)
	}
	// A file that says it is larger than any disk.
	h.sh("mkdir -p s7b && truncate -s 5T s7b/bomb && echo x > s7b/x")
	if r, code := h.sync("", "pull", "s7b"); code != 6 {
		h.t.Errorf("code %d, %+v", code, r.Error)
	}
	h.sh("truncate -s 20M s7b/bomb")
	if r, code := h.sync("", "pull", "s7b", "--max-size", "10M"); code != 6 {
		h.t.Errorf("code %d, %+v", code, r.Error)
	}
	if left, err := os.ReadDir(h.path("s7b")); err == nil && len(left) > 0 {
		h.t.Errorf("%v is left", left)
	}
}

func syncS8(h syncHost) {
	h.write("s8/both", "1\n2\n3\n4\n5\n6\n7\n")
	h.write("s8/clash", "base\n")
	h.synced("s8", "push")
	h.write("s8/both", "one\n2\n3\n4\n5\n6\n7\n")
	h.write("s8/clash", "local\n")
	h.sh("cd s8 && sed -i s/7/seven/ both && echo remote > clash")
	before := treeOf(h.t, h.path("s8"))
	for _, verb := range []string{"push", "pull"} {
		r, code := h.sync("s8", verb)
		if code != 3 || len(r.Conflicts) == 0 || r.Conflicts[len(r.Conflicts)-1].Path != "clash" {
			h.t.Errorf("%s: code %d, %+v", verb, code, r)
		}
	}
	sameTree(h.t, treeOf(h.t, h.path("s8")), before)
	if got := h.sh("cat s8/clash"); got != "remote\n" {
		h.t.Errorf("got %q", got)
	}
	if out, code := h.try("s8", "cove", "sync", "pull", "-s", "paint"); code != 3 || !strings.Contains(out, "conflict: clash (changed here, changed in paint)") || !strings.Contains(out, "--on-conflict") {
		h.t.Errorf("code %d, %s", code, out)
	}
	r := h.synced("s8", "pull", "--on-conflict", "both")
	if r.Merged.Count != 1 {
		h.t.Errorf("got %+v", r)
	}
	for name, want := range map[string]string{"both": "one\n2\n3\n4\n5\n6\nseven\n", "clash": "local\n", "clash.cove-theirs": "remote\n"} {
		if got, err := os.ReadFile(h.path("s8/" + name)); err != nil || string(got) != want {
			h.t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	h.synced("s8", "push")
	if got := h.sh("cat s8/clash s8/both; ls s8"); got != "local\none\n2\n3\n4\n5\n6\nseven\nboth\nclash\n" {
		h.t.Errorf("got %q", got)
	}
}

func syncS10(h syncHost) {
	h.write("s10/change", "old")
	h.write("s10/gone/a", "1")
	h.synced("s10", "push")
	h.write("s10/change", "newer")
	h.run("s10", "rm", "-r", "gone")
	h.synced("s10", "push")
	content := func() string {
		return h.sh("cd s10 && for f in change gone/a; do cat $f 2>/dev/null; echo -n ' '; done")
	}
	for _, want := range []string{"newer  ", "old 1 ", "newer  "} {
		if got := content(); got != want {
			h.t.Errorf("got %q, want %q", got, want)
		}
		h.run("s10", "cove", "sync", "undo", "-s", "paint")
	}
	h.sh("cd s10 && echo theirs > change && rm -r gone")
	before := treeOf(h.t, h.path("s10"))
	h.synced("s10", "pull", "--on-conflict", "theirs")
	out := h.run("s10", "cove", "sync", "status", "-s", "paint")
	if !strings.Contains(out, "  pull ") || !strings.Contains(out, "  undo ") {
		h.t.Errorf("got %s", out)
	}
	h.run("s10", "cove", "sync", "undo", "-s", "paint")
	sameTree(h.t, treeOf(h.t, h.path("s10")), before)
}

// noise makes a file that does not become smaller.
func (h syncHost) noise(name string, size int) {
	h.t.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(content) // never fails
	h.write(name, string(content))
}

func syncS11(h syncHost) {
	h.write("s11/a", "1")
	h.synced("s11", "push")
	for i := range 8 {
		h.noise(fmt.Sprintf("s11/big%d", i), 8<<20)
	}
	h.write("s11/a", "2")
	pid, wait := h.background("s11", "cove", "sync", "push", "-s", "paint", "--json")
	await(h.t, "some of it is staged", func() bool {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // so that not all of it is, by the time that the connection goes
		_, code := h.try("", "cove", "exec", "-s", "paint", "--", "sh", "-c", `ls -l ~/.local/state/cove/.cove-sync/*/stage/ | awk '{n+=$5} END {exit !(n > 12000000)}'`)
		if code != 0 {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		return code == 0
	})
	// The connection goes, and this side lives to tell.
	if sessions := h.run("", "cove", "session", "list", "-s", "paint", "--json"); !strings.Contains(sessions, "sync") {
		h.t.Fatalf("no sync among %s", sessions)
	}
	id := ""
	var list struct {
		Sessions []struct{ ID, Command string }
	}
	if err := json.Unmarshal([]byte(h.run("", "cove", "session", "list", "-s", "paint", "--json")), &list); err != nil {
		h.t.Fatal(err)
	}
	for _, s := range list.Sessions {
		if strings.Contains(s.Command, "sync") {
			id = s.ID
		}
	}
	h.run("", "cove", "session", "kill", "-s", "paint", id)
	_ = syscall.Kill(pid, syscall.SIGCONT)
	out, err := wait()
	if err == nil || !strings.Contains(out, `"lost"`) {
		h.t.Errorf("process %d: %v, %s", pid, err, out)
	}
	if got := h.sh("cat s11/a; ls s11"); got != "1a\n" {
		h.t.Errorf("after the cut there is %q", got)
	}
	if r := h.synced("s11", "push"); r.Sent > 56<<20 {
		h.t.Errorf("%d MiB were sent again of 64", r.Sent>>20)
	}
	h.run("", "rm", "-r", "s11")
	h.sh("rm -r s11")
}

func syncS12(h syncHost) {
	for i := range 20 {
		h.write(fmt.Sprintf("s12/old%d", i), "old")
	}
	tiny := func(n int) {
		for i := range n {
			h.write(fmt.Sprintf("s12/tiny/d%d/f%d", i%20, i), "x")
		}
	}
	// In the sprite: tiny files need more room than they have bytes, so that this
	// can't be known before.
	h.run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", "mkdir -p /small && mount -t tmpfs -o size=66m,mode=777 none /small")
	h.synced("", "push", "s12", "/small/s12")
	tiny(1200)
	h.sh("dd if=/dev/zero of=/small/filler bs=1M count=64 2>/dev/null; true")
	r, code := h.sync("", "push", "s12", "/small/s12")
	if code != 6 || r.Error.Code != "no_space" {
		h.t.Errorf("code %d, %+v", code, r.Error)
	}
	if got := strings.TrimSpace(h.sh("ls /small/s12 | wc -l")); got != "20" {
		h.t.Errorf("%s files are there after a full disk", got)
	}
	h.sh("rm /small/filler")
	h.synced("", "push", "s12", "/small/s12")
	if os.Geteuid() != 0 {
		return // mounts are root's
	}
	small := h.path("s12-small")
	smallDisk(h.t, small, "66m")
	if err := os.WriteFile(filepath.Join(small, "filler"), make([]byte, 1<<20), 0o600); err != nil {
		h.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(small, "back"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if r, code := h.sync("", "pull", "/small/s12", small+"/back"); code != 0 && code != 6 {
		h.t.Errorf("code %d, %+v", code, r.Error)
	}
	before := treeOf(h.t, filepath.Join(small, "back"))
	h.sh("cd /small/s12 && for i in $(seq 300); do echo y > new$i; done; echo changed > old1; rm old2")
	if err := os.WriteFile(filepath.Join(small, "filler"), make([]byte, 64<<20), 0o600); err != nil && !errors.Is(err, syscall.ENOSPC) {
		h.t.Fatal(err)
	}
	if r, code := h.sync("", "pull", "/small/s12", small+"/back"); code != 6 {
		h.t.Errorf("code %d, %+v", code, r.Error)
	}
	sameTree(h.t, treeOf(h.t, filepath.Join(small, "back")), before)
}

func syncS13(h syncHost) {
	h.sh("mkdir -p s13 && echo theirs > s13/a")
	h.write("s13/a", "mine")
	out, code := h.try("s13", "cove", "sync", "pull", "-s", "paint")
	if code != 3 || !strings.Contains(out, "hint: ") {
		h.t.Errorf("code %d, %s", code, out)
	}
	if got := h.sh("cat s13/a"); got != "theirs\n" {
		h.t.Errorf("got %q", got)
	}
	out, code = h.try("", "cove", "sync", "pull", "-s", "paint", "not-there")
	if code != 1 || !strings.Contains(out, "there is no folder /home/sprite/not-there") {
		h.t.Errorf("code %d, %s", code, out)
	}
}

func syncS15(h syncHost) {
	for i := range 100 {
		h.write(fmt.Sprintf("s15/f%d", i), strings.Repeat(fmt.Sprint(i), 1000))
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if out, err := h.command("s15", "cove", "sync", "push", "-s", "paint").CombinedOutput(); err != nil {
				h.t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	h.synced("", "pull", "s15", "s15-back")
	sameTree(h.t, treeOf(h.t, h.path("s15-back")), treeOf(h.t, h.path("s15")))
}

func syncS16(h syncHost) {
	h.write("s16/a", "1")
	h.write("s16/b/c", "2")
	for range 2 {
		plan := h.synced("s16", "push", "--dry-run")
		before := h.sh("ls -lR s16 2>/dev/null || true")
		if again := h.sh("ls -lR s16 2>/dev/null || true"); again != before {
			h.t.Error("a dry run did something")
		}
		done := h.synced("s16", "push")
		if !slices.Equal(plan.Added.Paths, done.Added.Paths) || !slices.Equal(plan.Modified.Paths, done.Modified.Paths) || !slices.Equal(plan.Deleted.Paths, done.Deleted.Paths) || plan.Bytes != done.Bytes {
			h.t.Errorf("planned %+v, done %+v", plan, done)
		}
		h.write("s16/a", "changed")
		h.run("s16", "rm", "-rf", "b")
		h.write("s16/new", "3")
	}
}

func syncS17(h syncHost) {
	h.write("s17/a", "1")
	h.synced("s17", "push")
	for key, value := range map[string]string{"user.name": "Ada Lovelace", "user.email": "ada@example.org", "credential.helper": "store"} {
		h.run("", "git", "config", "--global", key, value)
	}
	h.run("", "cove", "update", "paint", "--git-identity")
	if got := h.sh("cd s17 && git init -q && git add a && git commit -q -m first && git log -1 --format='%an <%ae>' && git config user.email && ! git config credential.helper"); got != "Ada Lovelace <ada@example.org>\nada@example.org\n" {
		h.t.Errorf("got %q", got)
	}
	if got := h.run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "git", "-C", "/home/sprite/s17", "status", "--short", "--branch"); !strings.HasPrefix(got, "## ") {
		h.t.Errorf("as root: %q", got)
	}
}

// TestSyncWatch: what changes here goes there, and the other way.
func TestSyncWatch(t *testing.T) {
	h := newSyncHost(t)
	h.write("w/a", "1")
	pid, wait := h.background("w", "cove", "sync", "push", "-s", "paint", "--watch")
	inSprite := func(name, want string) {
		t.Helper()
		await(t, name+" in the sprite", func() bool {
			out, _ := h.try("", "cove", "exec", "-s", "paint", "--", "cat", "w/"+name)
			return out == want
		})
	}
	inSprite("a", "1")
	h.write("w/sub/b", "2")
	inSprite("sub/b", "2")
	h.sh("echo -n 3 > w/sub/c")
	await(t, "c here", func() bool {
		b, err := os.ReadFile(h.path("w/sub/c"))
		return err == nil && string(b) == "3"
	})
	h.run("w", "rm", "a")
	await(t, "a to go", func() bool {
		_, code := h.try("", "cove", "exec", "-s", "paint", "--", "test", "-e", "w/a")
		return code == 1
	})
	signalAll(t, syscall.SIGINT, pid)
	if out, err := wait(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSoakSyncKill kills the command line and the sprite's end at random moments,
// with -9. What is there is the old tree or the new one, and the next sync goes on
// (S9).
func TestSoakSyncKill(t *testing.T) {
	rounds, seed := 2, uint64(1)
	if soak() {
		rounds, seed = 60, uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 3))
	h := newSyncHost(t)
	write := func(round int) {
		for i := range 60 {
			h.write(fmt.Sprintf("k/d%d/f%d", i%5, i), strings.Repeat(fmt.Sprint(round), 30_000))
		}
		h.write(fmt.Sprintf("k/new%d/x", round), "x")
		h.run("k", "rm", "-rf", fmt.Sprintf("new%d", round-1))
	}
	write(0)
	h.synced("k", "push")
	versions := func(out string) string { return strings.Join(strings.Fields(out), " ") }
	state := `cd k && { ls -d new*; for f in d*/*; do head -c 1 $f; echo; done | sort | uniq -c; }`
	for round := 1; round <= rounds; round++ {
		write(round)
		old, want := versions(h.sh(state)), versions(h.run("", "sh", "-c", state))
		pid, wait := h.background("k", "cove", "sync", "push", "-s", "paint")
		<-time.After(time.Duration(r.IntN(400)) * time.Millisecond)
		if r.IntN(2) == 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		} else {
			h.try("", "cove", "exec", "-s", "paint", "--", "pkill", "-KILL", "-f", "cove-guest sync")
		}
		out, err := wait()
		// The next look ends what was begun. It is a sync of nothing.
		h.try("k", "cove", "sync", "undo", "-s", "paint", "--id", "20000101T000000.000-NONE")
		if now := versions(h.sh(state)); now != old && now != want {
			t.Fatalf("round %d: %v, %s\nold %s\nnew %s\nnow %s", round, err, out, old, want, now)
		}
		h.synced("k", "push")
		if now := versions(h.sh(state)); now != want {
			t.Fatalf("round %d, pushed again: %s, want %s", round, now, want)
		}
		// And the other way: it is lost here, and comes back.
		h.sh(fmt.Sprintf("cd k && for f in d*/*; do echo %dr > $f; done", round%10))
		old, want = versions(h.run("", "sh", "-c", state)), versions(h.sh(state))
		pid, wait = h.background("k", "cove", "sync", "pull", "-s", "paint")
		<-time.After(time.Duration(r.IntN(300)) * time.Millisecond)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		out, err = wait()
		h.try("k", "cove", "sync", "undo", "-s", "paint", "--id", "20000101T000000.000-NONE")
		if now := versions(h.run("", "sh", "-c", state)); now != old && now != want {
			t.Fatalf("round %d: %v, %s\nold %s\nnew %s\nnow %s", round, err, out, old, want, now)
		}
		h.synced("k", "pull")
		if now := versions(h.run("", "sh", "-c", state)); now != want {
			t.Fatalf("round %d, pulled again: %s, want %s", round, now, want)
		}
	}
}

// TestSoakSyncShare: /usr/share, with its links, modes and odd names, comes back
// from a sprite as it is. Links that lead out of it are left out.
func TestSoakSyncShare(t *testing.T) {
	if !soak() {
		t.Skip("takes minutes: make soak")
	}
	h := newSyncHost(t)
	h.run("", "cove", "sync", "push", "-s", "paint", "--no-ignore", "/usr/share", "share")
	if peak := h.usage("", "sync", "pull", "-s", "paint", "--no-ignore", "share"); peak > 64<<20 {
		t.Errorf("the pull took %d MiB", peak>>20)
	}
	want, got := treeOf(t, "/usr/share"), treeOf(t, h.path("share"))
	out := 0
	for name, v := range want {
		if _, ok := got[name]; !ok && strings.HasPrefix(v, "-> ") {
			out++
			delete(want, name)
		}
	}
	t.Logf("%d paths, and %d links that lead out", len(want), out)
	sameTree(t, got, want)
}

// TestGuestUpload: a sprite of a server that brings no guest gets one, once, and it
// is what was sent.
func TestGuestUpload(t *testing.T) {
	h := newSyncHost(t)
	sprite := h.client().Sprite("paint")
	file, err := os.Open(filepath.Join(binDir, "cove-guest"))
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
		if got := h.sh("ls " + filepath.Dir(name)); strings.Count(got, "\n") != 1 {
			t.Errorf("there is %q", got)
		}
	}
	if found, err := guestbin.Find(t.Context(), sprite); err != nil || !strings.HasPrefix(found, "/.sprite/") {
		t.Errorf("found %q, %v", found, err)
	}
}
