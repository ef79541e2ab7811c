package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/dockerfile"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// folder makes a folder of files. A name that ends with a slash is a folder's, and a content
// that begins with -> a symbolic link's.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	var errs []error
	for name, data := range files {
		at := filepath.Join(dir, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(at), 0o755))
		switch to, link := strings.CutPrefix(data, "-> "); {
		case strings.HasSuffix(name, "/"):
			errs = append(errs, os.MkdirAll(at, 0o755))
		case link:
			errs = append(errs, os.Symlink(to, at))
		default:
			errs = append(errs, os.WriteFile(at, []byte(data), 0o644))
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tree(t testing.TB, files map[string]string) Context {
	t.Helper()
	root, err := os.OpenRoot(folder(t, files))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	})
	return Context{Root: root}
}

// contents are what a layer has: the last of each name.
func contents(t testing.TB, layer []byte) (all []string) {
	t.Helper()
	last := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		text := h.Name
		switch h.Typeflag {
		case tar.TypeReg:
			text += "=" + string(data)
		case tar.TypeSymlink:
			text += " -> " + h.Linkname
		case tar.TypeLink:
			text += " is " + h.Linkname
		}
		if h.Uid+h.Gid > 0 {
			text += fmt.Sprintf(" %d:%d", h.Uid, h.Gid)
		}
		if h.Typeflag == tar.TypeReg && h.Mode != 0o644 || h.Typeflag == tar.TypeDir && h.Mode != 0o755 {
			text += " " + strconv.FormatInt(h.Mode, 8)
		}
		last[strings.TrimSuffix(h.Name, "/")] = text
	}
	for _, text := range last {
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

// instruction is the last instruction's copy.
func instruction(t testing.TB, text string) dockerfile.Copy {
	t.Helper()
	doc, err := dockerfile.Parse([]byte("FROM scratch\nWORKDIR /w\n"+text), "Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages, err := doc.Stages("", nil, platform)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := stages[0].Steps(nil)
	if err != nil {
		t.Fatal(err)
	}
	return *steps[len(steps)-1].Copy
}

func TestCopy(t *testing.T) {
	from := tree(t, map[string]string{
		"a": "1", "b": "2", "d/x": "3", "d/sub/y": "4", "d/sub/.hidden": "5", "link": "-> d", "d/to": "-> ../a", "up": "-> ../../../etc/passwd", "e/": "", "p1/q/r.go": "6", "p2/q/r.txt": "7", "loop": "-> loop",
	})
	parent := tree(t, map[string]string{
		"etc/passwd": "root:x:0:0::/:\nweb:x:33:34::/:\n", "etc/group": "root:x:0:\nstaff:x:50:\n", "srv": "-> var/srv", "var/srv/old": "o", "out": "-> ../../../var", "w/abs": "-> /var", "file": "f", "w/sub/": "",
	})
	for text, want := range map[string]string{
		"COPY a /x":              "x=1",
		"COPY a /x/":             "x/ x/a=1",
		"COPY a .":               "w/a=1",
		"COPY /../a /deep/er/x":  "deep/ deep/er/ deep/er/x=1",
		"COPY d /n":              "n/ n/sub/ n/sub/.hidden=5 n/sub/y=4 n/to -> ../a n/x=3",
		"COPY d/ /n/":            "n/ n/sub/ n/sub/.hidden=5 n/sub/y=4 n/to -> ../a n/x=3",
		"COPY d/sub .":           "w/.hidden=5 w/y=4",
		"COPY d .":               "w/sub/ w/sub/.hidden=5 w/sub/y=4 w/to -> ../a w/x=3",
		"COPY link /n/":          "n/ n/sub/ n/sub/.hidden=5 n/sub/y=4 n/to -> ../a n/x=3",
		"COPY d/to /n":           "n=1",
		"COPY a /srv/":           "var/srv/a=1",
		"COPY a /srv":            "var/srv/a=1",
		"COPY a /out/z":          "var/z=1",
		"COPY a abs/z":           "var/z=1",
		"COPY a b /srv":          "var/srv/a=1 var/srv/b=2",
		"COPY [ab] nothing* /n/": "n/ n/a=1 n/b=2",
		"COPY nothing* /n/":      "",
		"COPY d/*/y /n/":         "n/ n/y=4",
		"COPY e /n/":             "n/",
		"COPY --chown=web a /x":  "x=1 33:34",
		"COPY --chown=web:staff --chmod=u=rwx,go=r a /n/": "n/ 33:50 n/a=1 33:50 744",
		"COPY --chown=7 --chmod=4711 a /x":                "x=1 7:7 4711",
		"COPY --link a /srv/":                             "srv/ srv/a=1",
		"COPY --exclude=sub --exclude=t* d /n/":           "n/ n/x=3",
		"COPY --parents p*/q/*.go /n/":                    "n/ n/p1/ n/p1/q/ n/p1/q/r.go=6",
		"COPY --parents d/./sub/y /n/":                    "n/ n/sub/ n/sub/y=4",
		"COPY <<one <<\"two\" /n/\n$NO\none\n$NO\ntwo":    "n/ n/one=\n n/two=$NO\n",
		"COPY <<one /n\nx\none":                           "n=x\n",
		"COPY a /file":                                    "file=1",

		"COPY missing /x":           `error: "missing" does not exist or is ignored`,
		"COPY up /x":                `error: "etc/passwd" does not exist or is ignored`,
		"COPY loop /x":              `error: "loop" leads through more than 40 symbolic links`,
		"COPY a b /n":               `error: there are several sources, so "/n" must be a folder and end with a slash`,
		"COPY a /file/x":            `error: "/file" is not a folder in the image`,
		"COPY d /file":              `error: "/file" is not a folder in the image`,
		"COPY [z-a /n/":             `error: "[z-a" is not a pattern`,
		"COPY --chown=who a /":      `error: --chown: the image's /etc/passwd has no "who"`,
		"COPY --parents d/none /n/": `error: "d/none" does not exist or is ignored`,
	} {
		var out bytes.Buffer
		err := Layer(t.Context(), &out, instruction(t, text), from, parent)
		got := ""
		if err != nil {
			got = "error: " + err.Error()
			if !errors.Is(err, &fail.Error{Code: "dockerfile_bad"}) {
				t.Errorf("%s: %v has no code", text, err)
			}
		} else {
			got = strings.Join(contents(t, out.Bytes()), " ")
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// archive is a tar.
func archive(t testing.TB, members ...tar.Header) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range members {
		data := ""
		if h.Typeflag == tar.TypeReg {
			data = h.Name
		}
		h.Size, h.Mode = int64(len(data)), 0o644
		if h.Typeflag == tar.TypeDir {
			h.Mode = 0o755
		}
		err := w.WriteHeader(&h)
		if err == nil {
			_, err = io.WriteString(w, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestAdd(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Uid: 5} }
	good := archive(t, tar.Header{Typeflag: tar.TypeDir, Name: "d/"}, file("d/x"), tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../../../../d2"}, file("l/through"), tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/x"}, tar.Header{Typeflag: tar.TypeChar, Name: "null"})
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	if _, err := io.WriteString(zw, good); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	from := tree(t, map[string]string{
		"plain.tar": good, "good.tgz": gz.String(), "text": "t", "cut.tar": good[:len(good)-1600],
		"out.tar": archive(t, file("../x")), "hard.tar": archive(t, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}),
		"mark.tar": archive(t, file("d/.wh.x")), "x.tar.xz": "\xfd7zXZ\x00 and more",
		"deep.tar": archive(t, file(strings.Repeat("a/", 500_000)+"f")), "long.tar": archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: strings.Repeat("b", 5000)}),
		"far.tar": archive(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: strings.Repeat("./", 2040) + "x"}, tar.Header{Typeflag: tar.TypeSymlink, Name: "x", Linkname: strings.Repeat("./", 2040) + "y"},
			tar.Header{Typeflag: tar.TypeSymlink, Name: "y", Linkname: strings.Repeat("./", 2040) + "z"}, file("l/f")),
	})
	const want = "d2/ d2/through=l/through 5:0 n/ n/d/ n/d/x=d/x 5:0 n/h is n/d/x 5:0 n/l -> ../../../../d2"
	for text, want := range map[string]string{
		"ADD plain.tar /n/":               want,
		"ADD good.tgz /n":                 want,
		"ADD text /n/":                    "n/ n/text=t",
		"ADD --unpack=false plain.tar /n": "n=" + good,
		"ADD cut.tar /n/":                 `error: the archive "cut.tar" is damaged: unexpected EOF`,
		"ADD out.tar /n/":                 `error: the archive has "../x", which leads out of it`,
		"ADD hard.tar /n/":                `error: the archive's "h" is a hard link to "/etc/passwd", which is not a file before it`,
		"ADD mark.tar /n/":                `error: "/n/d/.wh.x": a layer can't have a file whose name begins with .wh.`,
		"ADD deep.tar /n/":                `error: the archive has a name of more than 4096 bytes or 128 folders: "` + strings.Repeat("a/", 50) + `"`,
		"ADD long.tar /n/":                `error: the archive has a name of more than 4096 bytes or 128 folders: "l"`,
		"ADD far.tar /n/":                 `error: "n/l" leads through more than 4096 names`,
		"ADD x.tar.xz /n/":                "error: ADD does not extract an archive that is compressed with xz",
	} {
		var out bytes.Buffer
		got := ""
		if err := Layer(t.Context(), &out, instruction(t, text), from, Empty{}); err != nil {
			got = "error: " + err.Error()
		} else {
			got = strings.Join(contents(t, out.Bytes()), " ")
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// TestDigest: a change that a copy sees changes its digest, and another one does not.
func TestDigest(t *testing.T) {
	dir := folder(t, map[string]string{"d/a": "1", "d/l": "-> a", "other": "2"})
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	c := instruction(t, "COPY d /n/")
	digest := func() string {
		sum, err := Digest(t.Context(), c, Context{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	last := digest()
	for what, change := range map[string]func() error{
		"":          func() error { return os.WriteFile(filepath.Join(dir, "other"), []byte("3"), 0o600) },
		"a content": func() error { return os.WriteFile(filepath.Join(dir, "d/a"), []byte("2"), 0o600) },
		"a mode":    func() error { return os.Chmod(filepath.Join(dir, "d/a"), 0o755) },
		"a link": func() error {
			return errors.Join(os.Remove(filepath.Join(dir, "d/l")), os.Symlink("b", filepath.Join(dir, "d/l")))
		},
		"a name": func() error { return os.WriteFile(filepath.Join(dir, "d/new"), nil, 0o600) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		now := digest()
		if changed := now != last; changed != (what != "") {
			t.Errorf("%s: the digest changed: %v", what, changed)
		}
		last = now
	}
}

// TestImage: a stage's files are those that its layers show, with their owners.
func TestImage(t *testing.T) {
	low := folder(t, map[string]string{"app/gone": "1", "app/kept": "2", "app/below/z": "3", "bin": "-> app"})
	high := folder(t, map[string]string{"app/new": "4"})
	if err := os.Link(filepath.Join(high, "app/new"), filepath.Join(high, "app/same")); err != nil {
		t.Fatal(err)
	}
	view, err := layers.OpenView([]string{low}, []string{high}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	var out bytes.Buffer
	c := instruction(t, "COPY --chown=1:1 --exclude=gone bin/ /n/")
	if err := Layer(t.Context(), &out, c, NewImage(view), Empty{}); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(contents(t, out.Bytes()), " ")
	if want := "n/ 1:1 n/below/ 1:1 n/below/z=3 1:1 n/kept=2 1:1 n/new=4 1:1 n/same is n/new 1:1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	out.Reset()
	if err := Folder(&out, "/bin/x/y", "9", NewImage(view)); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(contents(t, out.Bytes()), " "); got != "app/x/ 9:9 app/x/y/ 9:9" {
		t.Errorf("the folder: got %q", got)
	}
}

// FuzzFollow: no link of a tree leads out of it, and none is followed for ever.
func FuzzFollow(f *testing.F) {
	f.Add("a/b", "../../x", "/a")
	f.Fuzz(func(t *testing.T, at, one, two string) {
		lstat := func(at string) (Info, error) {
			if !fs.ValidPath(at) || at == "." {
				t.Errorf("%q was looked at", at)
			}
			switch _, name := split(at); {
			case strings.HasPrefix(name, "a"):
				return Info{Mode: fs.ModeSymlink, Target: one}, nil
			case strings.HasPrefix(name, "b"):
				return Info{Mode: fs.ModeSymlink, Target: two}, nil
			}
			return Info{}, fs.ErrNotExist
		}
		if strings.ToValidUTF8(at+one+two, "") != at+one+two {
			return // fs.ValidPath is about UTF-8, too
		}
		to, err := follow(lstat, at)
		if err == nil && to != "" && !fs.ValidPath(to) {
			t.Errorf("%q leads to %q", at, to)
		}
	})
}

var platform = v1.Platform{OS: "linux", Architecture: "amd64"}
