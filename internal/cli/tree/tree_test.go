package tree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

var errRejected = &fail.Error{Code: "rejected"}

// member is one member of an archive made for a test.
type member struct {
	h    tar.Header
	body string
}

func reg(name, body string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))}, body}
}

func dirOf(name string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func link(name, target string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, ""}
}

func hard(name, target string) member {
	return member{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target, Mode: 0o644}, ""}
}

func archiveOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := m.h
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// receive unpacks an archive as dst, as cp does.
func receive(dst string, archive []byte) error {
	return Receive(dst, func(int) {}, nil, func(unpack func(io.Reader) error) error { return unpack(bytes.NewReader(archive)) })
}

// list names everything below a folder.
func list(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		names = append(names, strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestHostileArchives(t *testing.T) {
	sparse := reg("./s", "")
	sparse.h.PAXRecords = map[string]string{"COVE.x": "y"}
	many := make([]member, 0, 50)
	for i := range 50 {
		many = append(many, link(fmt.Sprintf("./l%d", i), fmt.Sprintf("l%d", (i+1)%50)))
	}
	special := func(name string, flag byte) member {
		return member{tar.Header{Name: name, Typeflag: flag, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
	}
	suid := reg("./suid", "x")
	suid.h.Mode = 0o4755
	sgid := dirOf("./sgid/")
	sgid.h.Mode = 0o2755
	for name, test := range map[string]struct {
		members []member
		says    string // empty: accepted
	}{
		"dotdot":                  {[]member{dirOf("./"), reg("./../outside", "x")}, "outside"},
		"dotdot in the middle":    {[]member{reg("./a/../../outside", "x")}, "outside"},
		"absolute":                {[]member{reg("/outside", "x")}, "/outside"},
		"empty name":              {[]member{reg("./", "x")}, ""},
		"link to absolute":        {[]member{link("./l", "/etc/passwd")}, `./l`},
		"link out":                {[]member{dirOf("./d/"), link("./d/l", "../../outside")}, "./d/l"},
		"link out by a name":      {[]member{dirOf("./d/"), link("./e", "d"), link("./d/l", "../e/../../outside")}, "./d/l"},
		"link to self's top":      {[]member{dirOf("./d/"), link("./d/l", "..")}, ""},
		"git's folder":            {[]member{dirOf("./.git/"), reg("./.git/config", "x")}, "git"},
		"git's by another name":   {[]member{dirOf("./a/"), dirOf("./a/GIT~1/")}, "GIT~1"},
		"a repository":            {[]member{dirOf("./d/"), reg("./d/HEAD", "x"), reg("./d/objects/x", ""), reg("./d/refs/x", "")}, "./d/refs/x"},
		"a repository of folders": {[]member{reg("./HEAD", "x"), dirOf("./objects/"), dirOf("./refs/")}, "take its folder for a repository"},
		"a repository by links":   {[]member{reg("./d/HEAD", "x"), link("./d/objects", "x"), link("./d/refs", "x")}, "./d/refs"},
		"a repository by case":    {[]member{reg("./d/head", "x"), reg("./d/Objects./x", ""), reg("./d/re\u200cfs/x", "")}, "./d/re"},
		"a linked work tree":      {[]member{reg("./d/commondir", "x"), reg("./d/HEAD", "")}, "./d/HEAD"},
		"no repository":           {[]member{reg("./d/HEAD", "x"), reg("./d/e/objects/x", ""), reg("./refs/x", "")}, ""},
		"a link into git's":       {[]member{link("./l", ".GIT/config")}, "./l"},
		"write through a link":    {[]member{link("./l", "d"), dirOf("./d/"), reg("./l/x", "x")}, `"l"`},
		"link over a file":        {[]member{reg("./f", "x"), link("./f", "g")}, "./f"},
		"same name twice":         {[]member{reg("./f", "1"), reg("./f", "2")}, "./f"},
		"folder over a file":      {[]member{reg("./f", "1"), dirOf("./f/")}, "f"},
		"hard link out":           {[]member{hard("./h", "../outside")}, "./h"},
		"hard link to absolute":   {[]member{hard("./h", "/etc/passwd")}, "./h"},
		"hard link to a link":     {[]member{link("./l", "x"), hard("./h", "l")}, "./h"},
		"hard link to nothing":    {[]member{hard("./h", "./none")}, "./h"},
		"char device":             {[]member{special("./c", tar.TypeChar)}, "device"},
		"block device":            {[]member{special("./b", tar.TypeBlock)}, "device"},
		"pipe":                    {[]member{special("./p", tar.TypeFifo)}, "pipe"},
		"setuid":                  {[]member{suid}, "./suid"},
		"setgid folder":           {[]member{sgid}, "./sgid"},
		"circle of links":         {many, ""},
		"escape codes in a name":  {[]member{special("./\x1b]0;title\a", tar.TypeFifo)}, `\x1b`},
		"a pax record of no harm": {[]member{sparse}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			outside := filepath.Join(dir, "outside")
			box := filepath.Join(dir, "box")
			if err := os.Mkdir(box, 0o755); err != nil {
				t.Fatal(err)
			}
			if name == "empty name" {
				test.says = "it stands for the folder itself"
				test.members[0].h.Name = "." // a file in place of the folder
			}
			err := receive(filepath.Join(box, "got"), archiveOf(t, test.members...))
			if _, statErr := os.Lstat(outside); !errors.Is(statErr, fs.ErrNotExist) {
				t.Fatal("something was written outside")
			}
			if test.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("error %v, want one that says %q", err, test.says)
			}
			if strings.ContainsRune(err.Error(), 0x1b) {
				t.Errorf("the error %q has an escape code", err)
			}
			if !errors.Is(err, errRejected) {
				t.Errorf("got %v, want the code rejected", err)
			}
			if left := list(t, box); len(left) != 1 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// A sparse file says a size that the archive does not have: 8 EiB, here.
func TestSparseIsRefused(t *testing.T) {
	var b bytes.Buffer
	h := &tar.Header{Name: "./big", Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatPAX}
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	h.PAXRecords = map[string]string{"GNU.sparse.major": "1"}
	if !isSparse(h) || isSparse(&tar.Header{Typeflag: tar.TypeReg}) || !isSparse(&tar.Header{Typeflag: tar.TypeGNUSparse}) {
		t.Error("isSparse is wrong")
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	u := &unpacker{root: root}
	if err := u.member(h, strings.NewReader("")); !errors.Is(err, errRejected) {
		t.Errorf("sparse member: %v", err)
	}
}

// An archive that is cut off leaves no files, and those that were there before stay as they were.
func TestTruncatedArchive(t *testing.T) {
	whole := archiveOf(t, dirOf("./"), reg("./a", strings.Repeat("x", 5000)), reg("./b", "y"))
	for _, cut := range []int{100, 700, 1500, 3000} {
		dst := filepath.Join(t.TempDir(), "got")
		if err := receive(dst, whole[:cut]); err == nil {
			t.Errorf("cut at %d: no error", cut)
		}
		if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("cut at %d: something was left", cut)
		}
	}
}

func TestReceiveIntoExisting(t *testing.T) {
	dir := t.TempDir()
	dst := filepath.Join(dir, "got")
	for _, d := range []string{"sub", "other"} {
		if err := os.MkdirAll(filepath.Join(dst, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"keep": "keep", "sub/f": "old", "other/g": "old"} {
		if err := os.WriteFile(filepath.Join(dst, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	locked := dirOf("./sub/new/")
	locked.h.Mode = 0o555
	if err := receive(dst, archiveOf(t, dirOf("./"), dirOf("./sub/"), reg("./sub/f", "new"), locked, reg("./sub/new/h", "h"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"keep": "keep", "sub/f": "new", "sub/new/h": "h", "other/g": "old"} {
		if got, err := os.ReadFile(filepath.Join(dst, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	if info, err := os.Stat(filepath.Join(dst, "sub/new")); err != nil || info.Mode().Perm() != 0o555 {
		t.Errorf("mode of sub/new: %v, %v", info.Mode(), err)
	}

	// A link in the way is not followed, and nothing is moved before that is seen.
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dst, "trap")); err != nil {
		t.Fatal(err)
	}
	err := receive(dst, archiveOf(t, dirOf("./"), reg("./aaa", "x"), dirOf("./trap/"), reg("./trap/x", "x")))
	if err == nil {
		t.Error("a folder was merged into a link")
	}
	if left := list(t, outside); len(left) != 1 {
		t.Errorf("written through the link: %q", left)
	}
	if _, err := os.Lstat(filepath.Join(dst, "aaa")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file was moved although the copy was refused")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".cove-*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// Files that are there already and files that come may together be a repository for git.
func TestReceiveCompletesNoRepository(t *testing.T) {
	for name, c := range map[string]struct {
		there   []string
		members []member
		dst     string
		refused bool
	}{
		"the last piece":     {[]string{"d/HEAD", "d/objects/x"}, []member{dirOf("./d/"), reg("./d/refs/x", "")}, ".", true},
		"its configuration":  {[]string{"d/HEAD", "d/objects/x", "d/refs/x"}, []member{dirOf("./d/"), reg("./d/config", "")}, ".", true},
		"its hooks":          {[]string{"d/HEAD", "d/commondir"}, []member{dirOf("./d/"), dirOf("./d/hooks/"), reg("./d/hooks/x", "")}, ".", true},
		"as one of its own":  {[]string{"d/HEAD", "d/objects/x"}, []member{dirOf("./"), reg("./x", "")}, "d/refs", true},
		"in its hooks":       {[]string{"d/HEAD", "d/objects/x", "d/refs/x"}, []member{dirOf("./"), reg("./x", "")}, "d/hooks/y", true},
		"git's own folder":   {nil, []member{dirOf("./"), reg("./config", "")}, ".git", true},
		"beside it":          {[]string{"d/HEAD", "d/objects/x", "d/refs/x"}, []member{dirOf("./e/"), reg("./e/config", "")}, ".", false},
		"the person's tree":  {[]string{"d/HEAD", "d/objects/x", "d/refs/x", "d/main/.git", "d/main/a"}, []member{dirOf("./d/"), dirOf("./d/main/"), reg("./d/main/a", "")}, ".", false},
		"into such a folder": {[]string{"d/HEAD", "d/objects/x", "d/refs/x", "d/main/.git"}, []member{dirOf("./"), reg("./a", "")}, "d/main", false},
	} {
		t.Run(name, func(t *testing.T) {
			top := filepath.Join(t.TempDir(), "top")
			for _, name := range append(c.there, "keep") {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(top, name)), 0o755), os.WriteFile(filepath.Join(top, name), []byte("mine"), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Dir(filepath.Join(top, c.dst)), 0o755); err != nil {
				t.Fatal(err)
			}
			before := list(t, top)
			err := receive(filepath.Join(top, c.dst), archiveOf(t, c.members...))
			if !c.refused {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, errRejected) || !slices.Equal(list(t, top), before) {
				t.Errorf("%v; there was %q, and is %q", err, before, list(t, top))
			}
		})
	}
}

// unpack restores what Pack has packed: modes, times, links, odd names.
func TestTreeRoundTrip(t *testing.T) {
	src := t.TempDir()
	when := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, mode := range map[string]fs.FileMode{
		"plain": 0o644, "run": 0o755, "secret": 0o600, "a b/ü\n'\"": 0o640, "-rf": 0o644, "a b/" + strings.Repeat("x", 255): 0o644, "\xff\xfe/\xc3": 0o644,
	} {
		full := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(full, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(full, when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(src, "empty"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("plain", filepath.Join(src, "link")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	counted := 0
	if err := Pack(&b, src, func(n int) { counted += n }, func(name string) { t.Errorf("passed over %s", name) }); err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), "got")
	if err := receive(dst, b.Bytes()); err != nil {
		t.Fatal(err)
	}
	want, got := list(t, src), list(t, dst)
	if strings.Join(want, "\x00") != strings.Join(got, "\x00") {
		t.Fatalf("got %q, want %q", got, want)
	}
	for _, name := range want[1:] {
		w, err := os.Lstat(filepath.Join(src, name))
		if err != nil {
			t.Fatal(err)
		}
		g, err := os.Lstat(filepath.Join(dst, name))
		if err != nil {
			t.Fatal(err)
		}
		if g.Mode() != w.Mode() {
			t.Errorf("%q: mode %v, want %v", name, g.Mode(), w.Mode())
		}
		if w.Mode().IsRegular() && !g.ModTime().Equal(w.ModTime()) {
			t.Errorf("%q: time %v, want %v", name, g.ModTime(), w.ModTime())
		}
	}
}

// FuzzUnpack looks for an archive that writes outside of its folder. The folder is new,
// or has a link of the person's own that leads out.
func FuzzUnpack(f *testing.F) {
	f.Add(archiveOf(f, dirOf("./"), reg("./a", "x"), link("./l", "a"), hard("./h", "a")))
	f.Add(archiveOf(f, link("./l", "../.."), reg("./l/x", "x")))
	f.Add(archiveOf(f, dirOf("./trap/"), reg("./trap/x", "x"), reg("./old", "new")))
	f.Add(archiveOf(f, reg("./"+strings.Repeat("long/", 5)+"x", "x"), dirOf("./\xff\xfe/"), link("./trap", "old")))
	f.Add(archiveOf(f, member{tar.Header{Name: "./d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, ""}, member{tar.Header{Name: "./p", Typeflag: tar.TypeFifo}, ""}))
	f.Add(archiveOf(f, member{tar.Header{Name: "./x", Typeflag: tar.TypeReg, Mode: 0o4777, PAXRecords: map[string]string{"COVE.x": "y"}, Format: tar.FormatPAX}, ""}))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		for _, d := range []string{"there", "outside"} {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		err := errors.Join(os.Symlink("../outside", filepath.Join(dir, "there/trap")), os.WriteFile(filepath.Join(dir, "there/old"), []byte("old"), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		for _, dst := range []string{"got", "there"} {
			_ = receive(filepath.Join(dir, dst), data) // any error will do
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "got" && e.Name() != "there" && e.Name() != "outside" {
				t.Fatalf("%q was written", e.Name())
			}
		}
		if left := list(t, filepath.Join(dir, "outside")); len(left) > 1 {
			t.Fatalf("through the link: %q", left)
		}
		for _, dst := range []string{"got", "there"} {
			_ = filepath.WalkDir(filepath.Join(dir, dst), func(path string, d fs.DirEntry, err error) error {
				if d != nil && d.IsDir() {
					_ = os.Chmod(path, 0o700) // so that the test's own cleaning works
				}
				if d != nil && d.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 {
					t.Fatalf("%q is a %v", path, d.Type())
				}
				return nil
			})
		}
	})
}
