package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// oddNames are valid file names for the kernel. A terminal, a shell, a parser or another
// file system would take them for something else.
var oddNames = []string{
	"-rf", "--help", "a b", " ", "new\nline", "tab\there", "\x01\x7f", "\x1b[31mred\x1b[0m", "\x1b]0;title\a", "\x1b]52;c;aGk=\a", "\xff\xfe", "\xc3", "\u202egnp.exe", "\u009b31m",
	"$(touch pwned)", "`touch pwned`", "'\"", "a:b", "back\\slash", "<img src=x onerror=alert(1)>", "*", "?", "~", "#x", "!x", "caf\u00e9", "cafe\u0301", "Case", "case", "CON", "a.",
	strings.Repeat("x", 255), strings.Repeat("\u00e9", 127),
}

// shownSafely checks that a text has nothing that does not belong on a terminal.
func shownSafely(t *testing.T, how, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%s: not UTF-8: %q", how, text)
	}
	for _, r := range text {
		if r != '\n' && r != '\t' && unicode.IsControl(r) || r == '\u202e' {
			t.Errorf("%s: %q is shown in %q", how, r, text)
			return
		}
	}
}

// colour matches the control sequences that cove itself sends to a terminal.
var colour = regexp.MustCompile("\x1b\\[[0-9;]*[mK]")

// TestHostileNames: names of every kind are copied unchanged in both directions, by cp
// and by sync. None is shown unescaped (statement 5).
func TestHostileNames(t *testing.T) {
	h := e2e.NewSyncHost(t)
	when := time.Unix(1_500_000_000, 0)
	for i, name := range oddNames {
		h.Write("odd/"+name, fmt.Sprint(i))
		h.Write("odd/dirs/"+name+"/f", fmt.Sprint(i))
		if err := os.Chtimes(h.Path("odd/"+name), when, when); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(h.Path("odd/dirs/"+name+"/f"), when, when); err != nil {
			t.Fatal(err)
		}
	}
	want := e2e.TreeOf(t, h.Path("odd"))
	h.Run("", "cove", "cp", "odd", "paint:cp")
	h.Run("", "cove", "cp", "paint:cp", "cp-back")
	e2e.SameTree(t, e2e.TreeOf(t, h.Path("cp-back")), want)
	h.Synced("", "push", "odd", "synced")
	h.Synced("", "pull", "synced", "sync-back")
	e2e.SameTree(t, e2e.TreeOf(t, h.Path("sync-back")), want)
	for i, name := range oddNames {
		if i%4 != 0 && utf8.ValidString(name) { // each costs two command lines
			continue
		}
		if out, code := h.Try("", "cove", "cp", "paint:cp/"+name, "single"); !utf8.ValidString(name) {
			if code != 1 || !strings.Contains(out, "copy the folder") {
				t.Errorf("cp of %q: %d, %s", name, code, out)
			}
			shownSafely(t, "cp of a name that is not UTF-8", out)
			continue
		} else if code != 0 {
			t.Errorf("cp of %q: %s", name, out)
		} else if got := h.Run("", "cat", "single"); got != fmt.Sprint(i) {
			t.Errorf("cp of %q brought %q", name, got)
		}
		out, _ := h.Try("", "cove", "cp", "paint:nowhere/"+name, "single")
		shownSafely(t, "cp of nothing", out)
	}

	// Refused files and conflicts are named safely.
	h.Sh("cd cp && for f in *; do rm -rf \"./$f\"; mkfifo \"./$f\" 2>/dev/null; done; true")
	out, code := h.Try("", "cove", "cp", "paint:cp", "pipes")
	if code != 5 || !strings.Contains(out, "it is a pipe") {
		t.Errorf("pipes: %d, %s", code, out)
	}
	shownSafely(t, "cp of pipes", out)
	out, _ = h.Try("", "cove", "sync", "pull", "-s", "paint", "-v", "cp", "pipes")
	shownSafely(t, "sync pull of pipes", out)
	h.Sh("cd synced && for f in *; do test -f \"./$f\" && echo theirs >\"./$f\"; done; true")
	for _, name := range oddNames {
		h.Write("odd/"+name, "mine")
	}
	out, code = h.Try("", "cove", "sync", "pull", "-s", "paint", "synced", "odd")
	if code != 3 || !strings.Contains(out, "conflict: ") {
		t.Errorf("conflicts: %d, %s", code, out)
	}
	shownSafely(t, "conflicts", out)
	r, _ := h.Sync("", "pull", "synced", "odd")
	if len(r.Conflicts) < len(oddNames)/2 {
		t.Errorf("got %d conflicts", len(r.Conflicts))
	}
	// A path that is too long for one call.
	h.Sh(`mkdir long && cd long && for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do n=$(printf '%0250d' $i); mkdir $n && cd $n; done; touch end`)
	if out, code := h.Try("", "cove", "cp", "paint:long", "long"); code != 5 || !strings.Contains(out, "too long") {
		t.Errorf("a long path: %d, %s", code, out)
	}
	if _, err := os.Lstat(h.Path("long")); err == nil {
		t.Error("a part of the long path is there")
	}
	if left, _ := filepath.Glob(h.Path(".cove-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestHostileNamesOfCommits: names and messages of an agent's commits arrive unchanged,
// and are shown escaped (statement 5).
func TestHostileNamesOfCommits(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("names")
	names := []string{}
	for _, name := range oddNames {
		if name != "back\\slash" && name != "CON" && name != "a." { // not allowed in a repository: other systems can't have them
			names = append(names, name)
		}
	}
	var script strings.Builder
	for i, name := range names {
		fmt.Fprintf(&script, "%03d %x\n", i, name)
	}
	h.Write("names.txt", script.String())
	h.Run("", "cove", "cp", "names.txt", e2e.GitSprite+":names.txt")
	job, _ := c.Push(h.Plan(`python3 - <<'end'
import os
for line in open(os.path.expanduser('~/names.txt')):
    i, name = line.split()
    with open(bytes.fromhex(name), 'w') as f: f.write(i)
end
git add -A
git commit -q -m "$(printf 'A \033]0;title\007 subject \233 and \342\200\256more')"`))
	for _, args := range []string{"job logs " + job, "job show " + job, "pull " + job, "job list"} {
		out, code := h.Try("names", "cove", strings.Fields(args)...)
		if code != 0 {
			t.Errorf("cove %v: %d, %s", args, code, out)
		}
		shownSafely(t, "cove "+args, out)
	}
	// Programs get git's output as it is. A terminal gets it escaped.
	for _, args := range []string{"job log " + job, "job log -p " + job, "job diff " + job, "job diff --stat " + job, "job show " + job + " head"} {
		out, code := h.Try("names", "script", "-qec", "TERM=xterm cove "+args, "/dev/null")
		if code != 0 || out == "" {
			t.Errorf("cove %v: %d, %s", args, code, out)
		}
		shownSafely(t, "cove "+args, colour.ReplaceAllString(strings.ReplaceAll(out, "\r", ""), ""))
	}
	// The review reads the commits in a sandbox of its own. Root in the job's sprite can make
	// the review fail, but can hide nothing from it.
	h.Run("", "cove", "exec", "-s", e2e.GitSprite, "--user", "root", "--", "sh", "-c", "mv /usr/bin/git /usr/bin/git.real; printf '#!/bin/sh\ncase \"$*\" in *diff*|*log*) exit 0;; esac; exec /usr/bin/git.real \"$@\"\n' >/usr/bin/git; chmod 755 /usr/bin/git")
	review := cove.Review{Client: h.Client()}
	if d, err := review.Diff(t.Context(), job); err == nil || !strings.Contains(err.Error(), "unable to read") {
		t.Errorf("objects are left out, and the review has %d files, %v", len(d.Files), err)
	}
	h.Run("", "cove", "exec", "-s", e2e.GitSprite, "--user", "root", "--", "mv", "/usr/bin/git.real", "/usr/bin/git")
	if d, err := review.Diff(t.Context(), job); err != nil || !d.Apart || len(d.Files) != len(names) {
		t.Errorf("the review has %d files of %d, apart: %v, %v", len(d.Files), len(names), d.Apart, err)
	} else {
		for _, f := range d.Files { // git is asked for the lines by names
			if len(f.Hunks) != 1 || f.LeftOut != "" || f.Added != 1 {
				t.Errorf("the lines of %q: %+v", f.Path, f)
			}
		}
	}
	for i, name := range names {
		if got, err := os.ReadFile(filepath.Join(h.Path("names"), name)); err != nil || string(got) != fmt.Sprintf("%03d", i) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	if got := c.Git("status", "--porcelain"); got != "" {
		t.Errorf("not clean: %s", got)
	}
	if _, err := os.Lstat(filepath.Join(h.Path("names"), "pwned")); err == nil {
		t.Error("a name was run")
	}
}
