package gitwork_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/cli/gitwork"
)

func TestImport(t *testing.T) {
	home(t, "")
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			r := repo{t, t.TempDir(), t.TempDir()}
			r.git("init", "-q", "-b", "main", "--object-format="+format)
			r.write("README", "hello\n")
			base := r.commit("first")
			a := r.agent()
			a.write("README", "hello\nworld\n")
			a.write("new\x1b[2J", "x\n")
			head := a.commit("change \x1b]0;title\x07it")
			path, want := a.bundle(base)
			want.Leftover = ""

			for range 2 { // the second time is no error
				if err := r.imports(path, want); err != nil {
					t.Fatal(err)
				}
			}
			if got := r.git("rev-parse", "refs/cove/"+job+"/head", "refs/cove/"+job+"/base"); got != head+"\n"+base {
				t.Errorf("refs are %q", got)
			}
			r.git("fsck", "--strict", "--full")
			if left, _ := filepath.Glob(filepath.Join(r.dir, ".git/cove/in-*")); len(left) > 0 {
				t.Errorf("quarantine is left: %v", left)
			}
			if keep, _ := filepath.Glob(filepath.Join(r.dir, ".git/objects/pack/*.keep")); len(keep) > 0 {
				t.Errorf("left: %v", keep)
			}
			sum, err := r.open().Summary(t.Context(), base, head)
			if err != nil {
				t.Fatal(err)
			}
			if sum.Commits != 1 || len(sum.Log) != 1 || sum.Log[0].SHA != head || strings.ContainsAny(sum.Log[0].Subject, "\x1b\x07") ||
				!strings.HasPrefix(sum.Log[0].Subject, "change") {
				t.Errorf("log is %+v", sum)
			}
			if len(sum.Files) != 2 || sum.Files[0].Path != "README" || sum.Files[0].Added != 1 || sum.Files[0].Status != "M" ||
				sum.Files[1].Path != "new\x1b[2J" || sum.Files[1].Status != "A" {
				t.Errorf("files are %+v", sum.Files)
			}
		})
	}
}

// A bundle that is damaged as a file, or in its header, is rejected.
func TestImportRejectsDamage(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	base := r.git("rev-parse", "HEAD")
	r.write("later", "l\n")
	later := r.commit("later, and not known to the job")
	a := r.agent()
	a.git("reset", "-q", "--hard", base)
	a.write("README", "changed\n")
	head := a.commit("change")
	path, want := a.bundle(base)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	header, pack, _ := bytes.Cut(good, []byte("\n\n"))
	ref := head + " refs/cove/" + job + "/head"
	same := func(w gitwork.Expect) gitwork.Expect { return w }

	for _, test := range []struct {
		name   string
		data   []byte
		expect func(gitwork.Expect) gitwork.Expect // nil: digest and size as the file has them
		why    string
	}{
		{"truncated", good[:len(good)-30], same, "bytes"},
		{"edited", edited(good), same, "SHA-256"},
		{"truncated, with a record to match", good[:len(good)-30], nil, "cut off"},
		{"edited, with a record to match", edited(good), nil, ""},
		{"header only", []byte(string(header) + "\n\n"), nil, "cut off"},
		{"not a bundle", []byte("<html>\n"), nil, "not a git bundle"},
		{"empty", []byte{}, nil, "cut off"},
		{"garbage after the pack", append(bytes.Clone(good), "more"...), nil, "follows"},
		{"extra ref", headed(strings.Replace(string(header), ref, ref+"\n"+head+" refs/heads/main", 1), pack), nil, "refs"},
		{"ref elsewhere", headed(strings.Replace(string(header), "refs/cove/"+job+"/head", "refs/heads/main", 1), pack), nil, "refs"},
		{"another commit", headed(strings.Replace(string(header), ref, base+" refs/cove/"+job+"/head", 1), pack), nil, "refs"},
		{"ref twice", headed(string(header)+"\n"+ref, pack), nil, "twice"},
		{"prerequisite outside the job", headed(strings.Replace(string(header), "-"+base, "-"+later, 1), pack), nil, "did not start from"},
		{"prerequisite unknown", headed(strings.Replace(string(header), "-"+base, "-"+strings.Repeat("1", 40), 1), pack), nil, "did not start from"},
		{"prerequisite as an option", headed(strings.Replace(string(header), "-"+base, "--all", 1), pack), nil, "prerequisite"},
		{"filter capability", headed("# v3 git bundle\n@filter=blob:none\n"+strings.SplitN(string(header), "\n", 2)[1], pack), nil, "asks for"},
		{"bundle list", []byte("[bundle]\nversion=1\nuri=http://127.0.0.1/\n"), nil, "not a git bundle"},
		{"million refs", headed("# v2 git bundle"+strings.Repeat("\n"+head+" refs/cove/x", 1_000_000), pack), nil, "twice"},
		{"submodules that are not here", headed(strings.Replace(string(header), ref, ref+"\n"+base+" refs/cove/"+job+"/sub/"+base, 1), pack), nil, "not here"},
		{"a submodule's ref for something else", headed(strings.Replace(string(header), ref, ref+"\n"+head+" refs/cove/"+job+"/sub/"+base, 1), pack), nil, "refs"},
		{"million other refs", headed("# v2 git bundle"+numbered(head, 1_000_000), pack), nil, "more than"},
		{"endless line", headed("# v2 git bundle\n-"+strings.Repeat("a", 1<<20), pack), nil, "too long"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := r.state()
			path := filepath.Join(t.TempDir(), "b")
			write(t, path, string(test.data))
			w := want
			if test.expect == nil {
				w = expect(t, path, base, head)
			}
			reject(t, r.imports(path, w), test.why)
			if after := r.state(); after != before {
				t.Errorf("the repository changed:\n%s\n---\n%s", before, after)
			}
		})
	}
	if err := r.imports(path, want); err != nil {
		t.Errorf("the bundle itself: %v", err)
	}
}

// numbered are the lines of so many refs.
func numbered(commit string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("\n" + commit + " refs/heads/x" + itoa(i))
	}
	return b.String()
}

// edited flips a byte near the end of the pack.
func edited(data []byte) []byte {
	data = bytes.Clone(data)
	data[len(data)-40] ^= 0xff
	return data
}

func headed(header string, pack []byte) []byte {
	return append([]byte(strings.TrimSuffix(header, "\n")+"\n\n"), pack...)
}

// reject checks that err rejects, for a reason that names why.
func reject(t *testing.T, err error, why string) {
	t.Helper()
	e, ok := errors.AsType[*gitwork.RejectedError](err)
	if !ok || e.ExitCode() != 5 {
		t.Fatalf("got %v, want a rejection", err)
	}
	if !strings.Contains(e.Reason, why) {
		t.Errorf("got %v, want %q in it", err, why)
	}
	if strings.Contains(e.Reason, "hint:") {
		t.Errorf("git's advice stands in it: %v", err)
	}
}

// A bundle with bad objects in its pack is rejected.
func TestImportRejectsObjects(t *testing.T) {
	home(t, "")
	for _, test := range []struct {
		name string
		make func(a repo) // makes the commit at HEAD
		why  string
	}{
		{".git folder", tree(".git"), ""},
		{".GIT folder", tree(".GIT"), ""},
		{"git~1 folder", tree("git~1"), ""},
		{".git with a dot", tree(".git."), ".git"},
		{".git with a space", tree(".git "), ".git"},
		{".git with a stream", tree(".git::$INDEX_ALLOCATION"), ".git"},
		{".git with a joiner", tree(".g\u200cit"), ""},
		{"..", tree(".."), ""},
		{".", tree("."), ""},
		{"slash", tree("a/../../b"), ""},
		{"backslash", tree(`a\.git\hooks`), ".git"},
		{"backslash upwards", tree(`..\..\x`), ""},
		{"long name", tree(strings.Repeat("n", 256)), "longer"},
		{"bad mode", func(a repo) { a.crafted("100777 x\x00" + a.raw("blob", "x")) }, ""},
		{"zero-padded mode", func(a repo) { a.crafted("0100644 x\x00" + a.raw("blob", "x")) }, ""},
		{"duplicate entries", func(a repo) {
			blob := a.raw("blob", "x")
			a.crafted("100644 x\x00" + blob + "100644 x\x00" + blob)
		}, ""},
		{"null object", func(a repo) { a.crafted("100644 x\x00" + strings.Repeat("\x00", 20)) }, ""},
		{"symlinked .gitmodules", func(a repo) { a.crafted("120000 .gitmodules\x00" + a.raw("blob", "evil")) }, ""},
		{"submodule url that is an option", func(a repo) {
			a.crafted("100644 .gitmodules\x00" + a.raw("blob", "[submodule \"x\"]\n\tpath = x\n\turl = -u./payload\n"))
		}, ""},
		{"submodule path with a CR", func(a repo) {
			a.crafted("100644 .gitmodules\x00" + a.raw("blob", "[submodule \"x\"]\n\tpath = \"sub\r\"\n\turl = -u./payload\n"))
		}, ""},
		{"symlinked .git", func(a repo) { a.crafted("120000 .git\x00" + a.raw("blob", "elsewhere")) }, ""},
		{"submodule name upwards", func(a repo) {
			a.crafted("100644 .gitmodules\x00" + a.raw("blob", "[submodule \"../../x\"]\n\tpath = x\n\turl = https://example.com/\n"))
		}, ""},
		{"missing blob", func(a repo) {
			blob := a.raw("blob", "soon missing")
			a.crafted("100644 x\x00" + blob)
			id := hex.EncodeToString([]byte(blob))
			if err := os.Remove(filepath.Join(a.dir, ".git/objects", id[:2], id[2:])); err != nil {
				a.t.Fatal(err)
			}
		}, ""},
		{"deep folders", func(a repo) {
			entry := "100644 f\x00" + a.raw("blob", "deep")
			for range 1100 {
				entry = "40000 d\x00" + a.raw("tree", entry)
			}
			a.crafted(entry)
		}, "deep"},
		{"tree bomb", func(a repo) {
			entry := "100644 f\x00" + a.raw("blob", "boom")
			for range 10 {
				level := a.raw("tree", entry)
				entry = ""
				for _, c := range "0123456789" {
					entry += "40000 " + string(c) + "\x00" + level
				}
			}
			a.crafted(entry)
		}, "more than 500000 files"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRepo(t)
			base := r.git("rev-parse", "HEAD")
			a := r.agent()
			test.make(a)
			before := r.state()
			path := a.rawBundle(base)
			reject(t, r.imports(path, expect(t, path, base, a.git("rev-parse", "HEAD"))), test.why)
			if after := r.state(); after != before {
				t.Errorf("the repository changed:\n%s\n---\n%s", before, after)
			}
		})
	}
}

// tree makes a commit whose tree has a file in a folder of the given name.
func tree(name string) func(repo) {
	return func(a repo) {
		inner := a.raw("tree", "100644 config\x00"+a.raw("blob", "[core]\n\tfsmonitor = touch /tmp/x\n"))
		a.crafted("40000 " + name + "\x00" + inner)
	}
}

// raw stores an object without any check, and returns its binary name.
func (r repo) raw(kind, content string) string {
	r.t.Helper()
	id := r.pipe(content, "hash-object", "-t", kind, "-w", "--literally", "--stdin")
	name, err := hex.DecodeString(id)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(name)
}

// crafted makes a commit of a raw tree, at HEAD.
func (r repo) crafted(entries string) {
	r.t.Helper()
	id := hex.EncodeToString([]byte(r.raw("tree", entries)))
	commit := r.pipe("tree "+id+"\nparent "+r.git("rev-parse", "HEAD")+
		"\nauthor T <t@example.com> 1700000000 +0000\ncommitter T <t@example.com> 1700000000 +0000\n\nx\n",
		"hash-object", "-t", "commit", "-w", "--literally", "--stdin")
	r.git("update-ref", "HEAD", commit)
}

// rawBundle packs all loose objects, of any kind, behind a header. git itself would refuse
// to read some of them.
func (r repo) rawBundle(base string) string {
	r.t.Helper()
	loose, err := filepath.Glob(filepath.Join(r.dir, ".git/objects/??/*"))
	if err != nil {
		r.t.Fatal(err)
	}
	var list strings.Builder
	for _, path := range loose {
		list.WriteString(filepath.Base(filepath.Dir(path)) + filepath.Base(path) + "\n")
	}
	cmd := exec.Command("git", "pack-objects", "--stdout", "-q")
	cmd.Dir, cmd.Env, cmd.Stdin = r.dir, env(r.home), strings.NewReader(list.String())
	pack, err := cmd.Output()
	if err != nil {
		r.t.Fatal(err)
	}
	path := filepath.Join(r.t.TempDir(), "raw.bundle")
	write(r.t, path, "# v2 git bundle\n-"+base+"\n"+r.git("rev-parse", "HEAD")+" refs/cove/"+job+"/head\n\n"+string(pack))
	return path
}

// A bundle's history must lead to the base. If a commit on the way is missing, the bundle is
// rejected: the commit must not come from elsewhere in the person's repository.
func TestImportNeedsCompleteHistory(t *testing.T) {
	home(t, "")
	r := newRepo(t)
	base := r.git("rev-parse", "HEAD")
	a := r.agent()
	a.write("x", "1\n")
	middle := a.commit("one")
	a.write("x", "2\n")
	head := a.commit("two")
	a.git("update-ref", gitwork.JobRef(job, "head"), head)
	path := filepath.Join(t.TempDir(), "b")
	a.git("bundle", "create", "-q", path, gitwork.JobRef(job, "head"), "^"+middle)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, strings.Replace(string(data), "-"+middle, "-"+base, 1))
	reject(t, r.imports(path, expect(t, path, base, head)), "")
}
