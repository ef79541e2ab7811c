package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/extract"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/test/need"
)

// ownNamespace is set in the process that a test runs itself in again.
const ownNamespace = "COVE_TEST_OWN_NAMESPACE"

// inNamespaces runs f in a process that has a mount namespace of its own, and with flags
// others: the test is run again there.
func inNamespaces(t *testing.T, attr syscall.SysProcAttr, f func()) {
	t.Helper()
	if os.Getenv(ownNamespace) == t.Name() {
		f()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = append(os.Environ(), ownNamespace+"="+t.Name())
	if attr.Cloneflags == 0 {
		attr.Unshareflags = syscall.CLONE_NEWNS // in which / is private
	}
	cmd.SysProcAttr = &attr
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) {
		need.Missing(t, "this user can't have a mount namespace", "sudo make test")
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("%v: %s", err, out)
	}
}

// blobIn puts a blob into a store, and describes it as a layer of a tar.
func blobIn(t testing.TB, s *Store, blob, text []byte, below []Layer) Layer {
	t.Helper()
	l := Layer{Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(blob)), DiffID: fmt.Sprintf("sha256:%x", sha256.Sum256(text)), Bytes: int64(len(blob))}
	l.ChainID = l.DiffID
	if len(below) > 0 {
		l.ChainID = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(below[len(below)-1].ChainID+" "+l.DiffID)))
	}
	must(t, os.WriteFile(s.path(blobFolder, hexOf(l.Digest)), blob, 0o600))
	return l
}

// extracted extracts tars on top of each other, the lowest first, until one can't be.
func extracted(t testing.TB, s *Store, tars ...[]byte) (all []Layer, err error) {
	t.Helper()
	for _, text := range tars {
		all = append(all, blobIn(t, s, text, text, all))
		if err := s.extract(t.Context(), all, &meter{}); err != nil {
			return all, err
		}
	}
	return all, nil
}

// shownIn lists all that is below a folder: folders as NAME/, files as NAME=CONTENT, links as
// NAME->TARGET, FIFOs as NAME|. Mode and owner follow, if they are not the usual ones.
func shownIn(t testing.TB, root string) string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		line, err := filepath.Rel(root, name)
		usual := uint32(0o644)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			line, usual = line+"/", 0o755
		case unix.S_IFREG:
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += "=" + string(data)
		case unix.S_IFLNK:
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			line, usual = line+"->"+to, 0o777
		case unix.S_IFIFO:
			line += "|"
		default:
			line += "?"
		}
		if mode := st.Mode & 0o7777; mode != usual {
			line += fmt.Sprintf(" %o", mode)
		}
		if st.Uid != 0 || st.Gid != 0 {
			line += fmt.Sprintf(" %d:%d", st.Uid, st.Gid)
		}
		if name != root || line != "./" {
			all = append(all, line)
		}
		return err
	}))
	slices.Sort(all)
	return strings.Join(all, "  ")
}

// mounted calls f with what the kernel shows of layers on top of each other.
func mounted(t *testing.T, s *Store, lowers []string, f func(root string)) {
	t.Helper()
	dir := t.TempDir()
	o := layers.Overlay{Lowers: lowers, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work"), UserXattr: s.o.UserNS}
	root := filepath.Join(dir, "root")
	must(t, os.Mkdir(root, 0o755))
	must(t, o.Create())
	must(t, o.Mount(root))
	defer func() { must(t, layers.Unmount(root)) }()
	f(root)
}

func with(m member, change func(*member)) member {
	change(&m)
	return m
}

func owned(m member, mode int64, uid, gid int) member {
	m.Mode, m.Uid, m.Gid = mode, uid, gid
	return m
}

func special(name string, kind byte) member {
	return member{tar.Header{Name: name, Typeflag: kind, Mode: 0o644}, ""}
}

// extractCases are layers of honest images, and what the kernel shows of them.
var extractCases = map[string]struct {
	layers [][]member
	want   string
}{
	"entries before their folders": {[][]member{{file("a/b/c", "x"), owned(folder("a"), 0o700, 3, 4)}}, "a/ 700 3:4  a/b/  a/b/c=x"},
	"folders like those below": {[][]member{{owned(folder("a"), 0o1777, 5, 6), owned(folder("a/b"), 0o700, 7, 8)}, {file("a/b/c", "x")}},
		"a/ 1777 5:6  a/b/ 700 7:8  a/b/c=x"},
	"odd spellings":                    {[][]member{{folder("./"), file("./a", "1"), file("/b", "2"), file("c//./d", "3"), folder("/e/")}}, "a=1  b=2  c/  c/d=3  e/"},
	"the root":                         {[][]member{{owned(folder("./"), 0o711, 1, 2)}, {file("a", "")}}, "./ 711 1:2  a="},
	"twice":                            {[][]member{{file("a", "1"), owned(file("a", "2"), 0o600, 1, 1)}}, "a=2 600 1:1"},
	"a file, then a folder":            {[][]member{{file("a", "1"), folder("a"), file("a/b", "2")}}, "a/  a/b=2"},
	"a folder, then a link":            {[][]member{{folder("a"), file("a/b/c", "2"), symlink("a", "x")}}, "a->x"},
	"a link, then a folder":            {[][]member{{symlink("a", "/etc"), folder("a"), file("a/b", "2")}}, "a/  a/b=2"},
	"a name below a link":              {[][]member{{folder("etc"), symlink("a", "etc"), file("a/b", "2")}}, "a/  a/b=2  etc/"},
	"a name below a file":              {[][]member{{file("a", "1"), file("a/b/c", "2")}}, "a/  a/b/  a/b/c=2"},
	"a folder twice":                   {[][]member{{folder("a"), file("a/b", "1"), owned(folder("a"), 0o700, 1, 1)}}, "a/ 700 1:1  a/b=1"},
	"hard links":                       {[][]member{{file("a", "1"), hardlink("d/b", "a"), hardlink("c", "./d/b")}}, "a=1  c=1  d/  d/b=1"},
	"a hard link to a link":            {[][]member{{symlink("a", "x"), hardlink("b", "/a")}}, "a->x  b->x"},
	"a hard link to itself":            {[][]member{{file("a", "1"), hardlink("a", "a")}}, "a=1"},
	"a hard link to a layer below":     {[][]member{{owned(file("d/a", "1"), 0o4750, 9, 8), symlink("l", "x")}, {hardlink("b", "d/a"), hardlink("m", "l")}}, "b=1 4750 9:8  d/  d/a=1 4750 9:8  l->x  m->x"},
	"a hard link in place of a folder": {[][]member{{folder("a"), file("a/x", "1"), file("b", "2"), hardlink("a", "b")}}, "a=2  b=2"},
	"whiteouts":                        {[][]member{{file("a", "1"), file("b/c", "1"), file("d/e", "1"), file("d/f", "1")}, {file(".wh.a", ""), file(".wh.b", ""), file("d/.wh.e", "")}}, "d/  d/f=1"},
	"whiteouts of nothing":             {[][]member{{folder("a"), file(".wh.x", "")}, {file("a/.wh.x", ""), file("b/.wh.x", ""), file(".wh.y", "")}}, "a/"},
	"a file beside its whiteout": {[][]member{{file("a", "1"), file("b", "1"), file("c/d", "1"), file("e/f", "1")},
		{file(".wh.a", ""), file("a", "2"), file("b", "2"), file(".wh.b", ""), file(".wh.c", ""), file("c/g", "2"), file("e/h", "2"), file(".wh.e", "")}}, "a=2  b=2  c/  c/g=2  e/  e/h=2"},
	"an opaque folder":              {[][]member{{file("a/b", "1"), file("a/c/d", "1")}, {file("a/x", "2"), file("a/.wh.b", ""), file("a/c/.wh.d", ""), file("a/.wh..wh..opq", ""), file("a/c/y", "2"), file("a/.wh.c", "")}}, "a/  a/c/  a/c/y=2  a/x=2"},
	"an opaque folder that comes":   {[][]member{{file("a/b", "1")}, {file("a/.wh..wh..opq", ""), folder("a"), file("a/c", "2")}}, "a/  a/c=2"},
	"an opaque root":                {[][]member{{file("a/b", "1"), file("c", "1"), file("d", "1")}, {file("a/x", "2"), file(".wh..wh..opq", ""), file("c", "2")}}, "a/  a/x=2  c=2"},
	"three layers":                  {[][]member{{file("a/b", "1")}, {file(".wh.a", "")}, {file("a/c", "3")}}, "a/  a/c=3"},
	"devices":                       {[][]member{{file("dev/a", "1")}, {special("dev/null", tar.TypeChar), special("dev/a", tar.TypeBlock), special("p", tar.TypeFifo)}}, "dev/  p|"},
	"what aufs keeps":               {[][]member{{folder(".wh..wh.plnk"), file(".wh..wh.aufs", ""), file("a", "1")}}, "a=1"},
	"global headers":                {[][]member{{member{tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"comment": "x"}}, ""}, file("a", "1")}}, "a=1"},
	"setuid":                        {[][]member{{owned(file("a", "1"), 0o6755, 100, 200), owned(folder("b"), 0o3777, 0, 5)}}, "a=1 6755 100:200  b/ 3777 0:5"},
	"odd bytes":                     {[][]member{{file("a\nb", "1"), file("\xff\xfe", "2"), file(`\`, "3"), file(" ", "4"), file("-rf", "5"), file(strings.Repeat("n", 255), "6")}}, " =4  -rf=5  \\=3  a\nb=1  " + strings.Repeat("n", 255) + "=6  \xff\xfe=2"},
	"a file below a deleted folder": {[][]member{{file("a/b/c", "1")}, {file(".wh.a", ""), file("a/b/d", "2")}}, "a/  a/b/  a/b/d=2"},
	"a link over a folder below":    {[][]member{{file("a/b", "1")}, {symlink("a", "c"), file("c/d", "2")}}, "a->c  c/  c/d=2"},
	"a folder over a link below":    {[][]member{{symlink("a", "/etc"), folder("c")}, {file("a/b", "2")}}, "a/  a/b=2  c/"},
	"empty":                         {[][]member{{}, {}}, ""},
}

// TestExtract: the kernel shows of extracted layers what the image's maker meant, whether
// this process is root or root in a user namespace only.
func TestExtract(t *testing.T) {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 70_000}}
	for name, attr := range map[string]syscall.SysProcAttr{"root": {}, "userns": {Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: ids, GidMappings: ids}} {
		t.Run(name, func(t *testing.T) {
			need.Root(t)
			inNamespaces(t, attr, func() {
				s := storeIn(t, t.TempDir(), nil, func(o *Options) { o.UserNS = name == "userns" })
				for what, test := range extractCases {
					var tars [][]byte
					for _, l := range test.layers {
						tars = append(tars, tarOf(t, l...))
					}
					all, err := extracted(t, s, tars...)
					if err != nil {
						t.Errorf("%s: %v", what, err)
						continue
					}
					mounted(t, s, s.trees(all), func(root string) {
						if got := shownIn(t, root); got != test.want {
							t.Errorf("%s: got\n%q, want\n%q", what, got, test.want)
						}
					})
					if left, err := os.ReadDir(s.path(stagingFolder)); err != nil || len(left) > 0 {
						t.Errorf("%s: left %v, %v", what, left, err)
					}
				}
			})
		})
	}
}

// TestExtractKeeps: times, attributes and counts are the layer's own; the marks of an overlay
// are nobody's.
func TestExtractKeeps(t *testing.T) {
	need.Root(t)
	s := storeIn(t, t.TempDir(), nil)
	at := func(m member, sec int64) member {
		m.ModTime, m.Format = time.Unix(sec, 123), tar.FormatPAX
		return m
	}
	capability := string([]byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	attrs := with(at(file("d/attrs", "x"), 5), func(m *member) {
		m.PAXRecords = map[string]string{
			"SCHILY.xattr.user.note": "n", "SCHILY.xattr.security.capability": capability, "SCHILY.xattr.trusted.overlay.opaque": "y",
			"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.trusted.x": "x", "SCHILY.xattr.security.selinux": "label",
		}
	})
	all, err := extracted(t, s, tarOf(t,
		at(folder("./"), 1), at(folder("d"), 2), at(file("d/e/f", "x"), 3), at(folder("d/e"), 4), attrs, at(file("g", "x"), math.MaxInt64/1_000_000_000*4), at(symlink("l", "x"), 6),
		at(file("d/gone", ""), 1), at(file("d/e/late", ""), 1), special("dev/x", tar.TypeChar), special("dev/y", tar.TypeBlock)),
		tarOf(t, at(file("d/e/second", ""), 9)))
	must(t, err)
	tree := s.trees(all)
	for name, want := range map[string]int64{".": 1, "d": 2, "d/e": 4, "d/e/f": 3, "d/attrs": 5, "l": 6, "g": math.MaxInt64 / 1_000_000_000} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(tree[1], name), &st))
		if st.Mtim.Sec != want && (name != "g" || st.Mtim.Sec <= 0 || st.Mtim.Sec > want) { // some file systems keep less
			t.Errorf("%s was changed at %d, want %d", name, st.Mtim.Sec, want)
		}
		if over := filepath.Join(tree[0], name); name == "." || name == "d" || name == "d/e" {
			must(t, unix.Lstat(over, &st))
			if st.Mtim.Sec != want {
				t.Errorf("in the second layer, %s was changed at %d, want %d", name, st.Mtim.Sec, want)
			}
		}
	}
	buf := make([]byte, 1024)
	n, err := unix.Llistxattr(filepath.Join(tree[1], "d/attrs"), buf)
	must(t, err)
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(name string) bool { return name == "security.selinux" }) // this machine's own
	if !slices.Equal(names, []string{"security.capability", "user.note"}) {
		t.Errorf("got attributes %q", names)
	}
	if n, err := unix.Lgetxattr(filepath.Join(tree[1], "d/attrs"), "security.capability", buf); err != nil || string(buf[:n]) != capability {
		t.Errorf("got capabilities %x, %v", buf[:n], err)
	}
	if all[0].LeftOut != 2 || all[0].Files != 9 || all[0].DiskBytes < 9*fileCost || all[1].LeftOut != 0 {
		t.Errorf("got %+v", all)
	}
}

// TestExtractSparse: what GNU tar writes of a file with holes is one again, and zeros that a
// tar has become holes.
func TestExtractSparse(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "sparse"))
	must(t, err)
	must(t, f.Truncate(40<<20))
	_, err = f.WriteAt([]byte("in the middle"), 20<<20+5)
	must(t, err)
	must(t, f.Close())
	want, err := os.ReadFile(filepath.Join(dir, "sparse"))
	must(t, err)
	for _, args := range [][]string{{"--format=gnu", "-S"}, {"--format=pax", "-S", "--sparse-version=0.0"}, {"--format=pax", "-S", "--sparse-version=0.1"}, {"--format=pax", "-S", "--sparse-version=1.0"}, {"--format=pax"}} {
		cmd := exec.Command(need.Program(t, "tar", "tar"), append(args, "-c", "--numeric-owner", "-C", dir, "sparse")...)
		text, err := cmd.Output()
		must(t, err)
		s := storeIn(t, t.TempDir(), nil)
		all, err := extracted(t, s, text)
		if err != nil {
			t.Errorf("%v: %v", args, err)
			continue
		}
		got, err := os.ReadFile(filepath.Join(s.trees(all)[0], "sparse"))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: got %d bytes, which differ, %v", args, len(got), err)
		}
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(s.trees(all)[0], "sparse"), &st))
		if st.Blocks*512 > 1<<20 {
			t.Errorf("%v: it takes %d bytes", args, st.Blocks*512)
		}
	}
}

// TestExtractLong: names are as long as the kernel takes them, in either format.
func TestExtractLong(t *testing.T) {
	parts := slices.Repeat([]string{strings.Repeat("n", 254)}, 15)
	long := strings.Join(parts, "/") // 3,824 bytes
	for _, format := range []tar.Format{tar.FormatPAX, tar.FormatGNU} {
		s := storeIn(t, t.TempDir(), nil)
		all, err := extracted(t, s, tarOf(t, with(file(long, "x"), func(m *member) { m.Format = format }), with(hardlink("h", long), func(m *member) { m.Format = format })))
		must(t, err)
		if data, err := os.ReadFile(filepath.Join(s.trees(all)[0], "h")); err != nil || string(data) != "x" {
			t.Errorf("got %q, %v", data, err)
		}
	}
	s := storeIn(t, t.TempDir(), nil)
	if _, err := extracted(t, s, tarOf(t, file(strings.Repeat("d/", maxDepth-1)+"f", "x"))); err != nil {
		t.Error(err)
	}
}

func gzipped(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(text)
	must(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

func zstded(t testing.TB, text []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	must(t, err)
	return w.EncodeAll(text, nil)
}

// TestCompressions: a blob's first bytes say how it is compressed.
func TestCompressions(t *testing.T) {
	text := tarOf(t, file("a", "1"))
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 2}, zstded(t, text)...)
	two := append(gzipped(t, text[:100]), gzipped(t, text[100:])...)
	for name, blob := range map[string][]byte{"none": text, "gzip": gzipped(t, text), "zstd": zstded(t, text), "zstd after a frame to be skipped": skippable, "gzip in two": two} {
		s := storeIn(t, t.TempDir(), nil)
		l := blobIn(t, s, blob, text, nil)
		if err := s.extract(t.Context(), []Layer{l}, &meter{}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := shownIn(t, s.trees([]Layer{l})[0]); got != "a=1" {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// TestHostileLayer: a layer that leads out of its folder, or is larger than it may be, or is
// damaged, is refused, and leaves nothing.
func TestHostileLayer(t *testing.T) {
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "victim"), []byte("whole"), 0o644))
	text := tarOf(t, file("a", "1"))
	huge := func(size int64) []byte { // a header alone
		var b bytes.Buffer
		must(t, tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "huge", Typeflag: tar.TypeReg, Size: size, Mode: 0o644}))
		return b.Bytes()
	}
	below := tarOf(t, file("low", "1"), folder("dir"))
	s := storeIn(t, t.TempDir(), nil)
	for name, test := range map[string]struct {
		blob, text []byte
		says       string
	}{
		"up":                        {text: tarOf(t, file("../victim", "x")), says: ".."},
		"up from below":             {text: tarOf(t, file("a/../../victim", "x")), says: ".."},
		"a hard link up":            {text: tarOf(t, hardlink("a", "../victim")), says: "hard link"},
		"a hard link by a link":     {text: tarOf(t, symlink("out", outside), hardlink("a", "out/victim")), says: "hard link"},
		"a hard link to nothing":    {text: tarOf(t, hardlink("a", "b")), says: "hard link"},
		"a hard link to the root":   {text: tarOf(t, hardlink("a", "/")), says: "hard link"},
		"a hard link to a folder":   {text: tarOf(t, folder("b"), hardlink("a", "b")), says: "not a file"},
		"to a folder below":         {text: tarOf(t, hardlink("a", "dir")), says: "not a file"},
		"to a deleted file":         {text: tarOf(t, file(".wh.low", ""), hardlink("a", "low")), says: "not a file"},
		"to what it replaces":       {text: tarOf(t, file("a/b", "1"), hardlink("a", "a/b")), says: "replaces"},
		"the root is a file":        {text: tarOf(t, file(".", "x")), says: "the root, but not a folder"},
		"the root is a link":        {text: tarOf(t, symlink(".", outside)), says: "the root, but not a folder"},
		"a whiteout of nothing":     {text: tarOf(t, file("a/.wh.", "")), says: "names nothing"},
		"a whiteout of the folder":  {text: tarOf(t, file("a/.wh..", "")), says: "names nothing"},
		"a whiteout upwards":        {text: tarOf(t, file("a/.wh...", "")), says: "names nothing"},
		"deep":                      {text: tarOf(t, file(strings.Repeat("d/", maxDepth)+"f", "")), says: "folders"},
		"long":                      {text: tarOf(t, file(strings.Repeat("d", 200)+strings.Repeat("/"+strings.Repeat("d", 200), 20), "")), says: "bytes"},
		"a long part":               {text: tarOf(t, file(strings.Repeat("d", 256), "")), says: "255 bytes"},
		"an impossible owner":       {text: tarOf(t, owned(file("a", ""), 0o644, 1<<32-1, 0)), says: "owner"},
		"a link to nowhere":         {text: tarOf(t, symlink("a", "")), says: "nowhere"},
		"a long link":               {text: tarOf(t, symlink("a", strings.Repeat("x", 4096))), says: "nowhere"},
		"an unknown kind":           {text: tarOf(t, special("a", 'Q')), says: "not known"},
		"a size that is not there":  {text: huge(1 << 62), says: "bytes"},
		"cut short":                 {blob: gzipped(t, text)[:60], text: text, says: "damaged"},
		"cut short in a file":       {blob: text[:512], text: text[:512], says: "damaged"},
		"no tar":                    {blob: bytes.Repeat([]byte("x"), 2048), text: nil, says: "damaged"},
		"bzip2":                     {blob: []byte("BZh91AY&SY"), says: "bzip2"},
		"another tar":               {blob: text, text: tarOf(t, file("a", "2")), says: "should have"},
		"another tar's rest":        {blob: append(slices.Clone(text), 0), text: text, says: "should have"},
		"an attribute that is none": {text: tarOf(t, with(file("a", ""), func(m *member) { m.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "?"} })), says: "attribute"},
		"a large attribute":         {text: tarOf(t, with(file("a", ""), func(m *member) { m.PAXRecords = map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 100_000)} })), says: "attribute"},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := extracted(t, s, below)
			must(t, err)
			if test.blob == nil {
				test.blob = test.text
			}
			all = append(all, blobIn(t, s, test.blob, test.text, all))
			err = s.extract(t.Context(), all, &meter{})
			wantCode(t, err, "image_bad", test.says)
			if left, err := os.ReadDir(s.path(stagingFolder)); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
			if left, err := os.ReadDir(s.path(layerFolder)); err != nil || len(left) != 1 {
				t.Errorf("layers %v, %v", left, err)
			}
			if data, err := os.ReadFile(filepath.Join(outside, "victim")); err != nil || string(data) != "whole" {
				t.Errorf("the file outside is %q, %v", data, err)
			}
		})
	}
}

// TestLinksStayInside: symbolic links of a layer are kept as they are, and nothing is written
// through them.
func TestLinksStayInside(t *testing.T) {
	outside := t.TempDir()
	s := storeIn(t, t.TempDir(), nil)
	all, err := extracted(t, s, tarOf(t, symlink("a", outside), file("a/b/c", "x"), symlink("d", outside), folder("d/e"), symlink("f", outside), hardlink("f/g", "a/b/c"),
		symlink("h", outside), file("h/.wh.x", ""), symlink("i", outside), file("i/.wh..wh..opq", ""), symlink("j", outside+"/k"), file("j", "x"), symlink("l", outside+"/m"), special("l", tar.TypeChar)),
		tarOf(t, file("h/x", ""), symlink("n", outside), special("n/y", tar.TypeFifo)))
	must(t, err)
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside is %v, %v", left, err)
	}
	if to, err := os.Readlink(filepath.Join(s.trees(all[:1])[0], "h")); err != nil || to != outside {
		t.Errorf("the link is %q, %v", to, err)
	}
}

// TestBudget: the bounds are of an image, not of a layer.
func TestBudget(t *testing.T) {
	b := &budget{bytes: 3 * fileCost, files: 2, claim: func(int64) error { return nil }}
	must(t, b.file(extract.Meta{}))
	must(t, b.file(extract.Meta{}))
	wantCode(t, b.file(extract.Meta{}), "image_bad", "files")
	wantCode(t, b.take(fileCost+1), "image_bad", "bytes")
	s := storeIn(t, t.TempDir(), nil)
	all, err := extracted(t, s, tarOf(t, file("a", "1")))
	must(t, err)
	text := tarOf(t, file("b", "1"))
	all[0].Files = maxFiles
	wantCode(t, s.extract(t.Context(), append(all, blobIn(t, s, text, text, all)), &meter{}), "image_bad", "files")
	all[0].Files, all[0].DiskBytes = 1, maxBytes
	wantCode(t, s.extract(t.Context(), append(all, blobIn(t, s, text, text, all)), &meter{}), "image_bad", "bytes")
}

// TestSteps: work that makes no file is bounded, too: members that hide nothing, names of an
// opaque root (looked at once), and copies of holes.
func TestSteps(t *testing.T) {
	s := storeIn(t, t.TempDir(), nil)
	const hole = 1 << 20
	all, err := extracted(t, s, tarOf(t, file("a", strings.Repeat("\x00", hole)), file("b", ""), file("c", ""), file("d", "")))
	must(t, err)
	for what, test := range map[string]struct {
		steps   int64 // that the layer takes
		members []member
	}{
		"whiteouts of nothing": {3, []member{file(".wh.x", ""), file(".wh.y", ""), file("z/.wh.y", "")}},
		"what aufs keeps":      {2, []member{file(".wh..wh.aufs", ""), file(".wh..wh.plnk", "")}},
		"devices":              {2, []member{special("x", tar.TypeChar), special("y", tar.TypeBlock)}},
		"the root":             {2, []member{folder("./"), folder("./")}},
		"an opaque root":       {4 + 2, []member{file(".wh..wh..opq", ""), file(".wh..wh..opq", ""), file(".wh..wh..opq", "")}},
		"an opaque folder":     {2 + 1, []member{file("e/f", ""), file("e/g", ""), file("e/.wh..wh..opq", "")}},
	} {
		text := tarOf(t, test.members...)
		extract := func(left int64) (Layer, error) {
			all := slices.Clone(all)
			all[0].Steps = maxSteps - left
			all = append(all, blobIn(t, s, text, text, all))
			must(t, layers.Remove(s.path(layerFolder, hexOf(all[1].ChainID))))
			err := s.extract(t.Context(), all, &meter{})
			return all[1], err
		}
		got, err := extract(test.steps)
		if err != nil || got.Steps != test.steps {
			t.Errorf("%s: took %d steps, %v; want %d", what, got.Steps, err, test.steps)
		}
		_, err = extract(test.steps - 1)
		wantCode(t, err, "image_bad", "steps")
	}
	zeros := tarOf(t, file("zeros", strings.Repeat("\x00", 80<<20)))
	for what, text := range map[string][]byte{"zeros": zeros, "padding": append(tarOf(t), zeros...)} {
		// Zeros compress by more than 1,000: honest ones are holes, and a bomb has an end.
		all := append(slices.Clone(all), blobIn(t, s, zstded(t, text), text, all))
		must(t, s.extract(t.Context(), all, &meter{}))
		took := all[1].Steps
		if took < int64(len(text)/copyBlock) || all[1].DiskBytes > fileCost || all[1].Bytes*1000 > int64(len(text)) {
			t.Errorf("%s: took %+v", what, all[1])
		}
		all[0].Steps = maxSteps - took + 1
		must(t, layers.Remove(s.path(layerFolder, hexOf(all[1].ChainID))))
		wantCode(t, s.extract(t.Context(), all, &meter{}), "image_bad", "steps")
	}
	all[0].Steps = 0
	text := tarOf(t, hardlink("x", "a"), hardlink("y", "a"))
	all[0].DiskBytes = maxBytes - 2*hole
	err = s.extract(t.Context(), append(slices.Clip(all), blobIn(t, s, text, text, all)), &meter{})
	must(t, err)
	text = tarOf(t, hardlink("x", "a"), hardlink("y", "a"), hardlink("z", "a"))
	err = s.extract(t.Context(), append(slices.Clip(all), blobIn(t, s, text, text, all)), &meter{})
	wantCode(t, err, "image_bad", "bytes")
}

// TestCancelled: if the caller has gone, the extraction of a small blob that makes much
// work is given up.
func TestCancelled(t *testing.T) {
	gone := errors.New("the caller is gone")
	var cancel context.CancelCauseFunc
	var claims, after int
	s := storeIn(t, t.TempDir(), nil, func(o *Options) {
		o.Claim = func(int64) error {
			if claims++; claims == after {
				cancel(gone)
			}
			return nil
		}
	})
	data := strings.Repeat("compressible ", 8*copyBlock/13)
	below, err := extracted(t, s, tarOf(t, file("large", data)))
	must(t, err)
	many := make([]member, 100)
	for i := range many {
		many[i] = file(fmt.Sprint(i), "")
	}
	for what, members := range map[string][]member{"members": many, "a file": {file("a", data)}, "a copy": {hardlink("a", "large")}} {
		text := tarOf(t, members...)
		all := append(slices.Clone(below), blobIn(t, s, gzipped(t, text), text, below))
		var ctx context.Context
		ctx, cancel = context.WithCancelCause(t.Context())
		claims, after = 0, 2
		if err := s.extract(ctx, all, &meter{}); !errors.Is(err, gone) {
			t.Errorf("%s: got %v, want %v", what, err, gone)
		}
		cancel(nil)
		if claims != after {
			t.Errorf("%s: %d writes after it was cancelled", what, claims-after)
		}
	}
	if left, err := os.ReadDir(s.path(stagingFolder)); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestClaim: room is claimed for all that is written, and Claim can refuse it.
func TestClaim(t *testing.T) {
	var claimed int64
	most := int64(math.MaxInt64)
	s := storeIn(t, t.TempDir(), nil, func(o *Options) {
		o.Claim = func(n int64) error {
			if claimed += n; claimed > most {
				return errors.New("no room")
			}
			return nil
		}
	})
	_, err := extracted(t, s, tarOf(t, file("a", strings.Repeat("x", 100_000))))
	must(t, err)
	if claimed != 100_000+fileCost {
		t.Errorf("claimed %d", claimed)
	}
	claimed = 0
	note := func(m member) member {
		return with(m, func(m *member) { m.PAXRecords = map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 1000)} })
	}
	all, err := extracted(t, s, tarOf(t, note(folder(".")), note(folder("a")), note(file("b", ""))), tarOf(t, hardlink("c", "b"), file("a/d", ""))) // a and b again
	must(t, err)
	if claimed != 5*(fileCost+1006) || all[0].DiskBytes+all[1].DiskBytes != claimed {
		t.Errorf("with attributes: claimed %d; got %+v", claimed, all)
	}
	claimed, most = 0, 50_000
	_, err = extracted(t, s, tarOf(t, file("b", strings.Repeat("x", 100_000))))
	wantCode(t, err, "no_space", "no room")
	if e, _ := errors.AsType[*fail.Error](err); e.ExitCode() != 6 {
		t.Errorf("exit code %d", e.ExitCode())
	}
}

// TestUnmapped: an owner that a user namespace does not have is named, with the file.
func TestUnmapped(t *testing.T) {
	need.Root(t)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1000}}
	inNamespaces(t, syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: ids, GidMappings: ids}, func() {
		for _, m := range []member{owned(file("etc/theirs", "x"), 0o644, 1234, 0), owned(folder("etc/theirs"), 0o755, 0, 1234), owned(symlink("etc/theirs", "x"), 0o777, 1234, 1234)} {
			s := storeIn(t, t.TempDir(), nil, func(o *Options) { o.UserNS = true })
			_, err := extracted(t, s, tarOf(t, m))
			wantCode(t, err, "image_bad", "etc/theirs", "1234", "user namespace")
			if e, _ := errors.AsType[*fail.Error](err); e != nil && !strings.Contains(e.Hint, "/etc/subuid") {
				t.Errorf("the hint is %q", e.Hint)
			}
		}
	})
}

// FuzzExtract: whatever a layer is, it is extracted or refused, and nothing is written
// elsewhere.
func FuzzExtract(f *testing.F) {
	for _, test := range extractCases {
		for _, l := range test.layers {
			f.Add(tarOf(f, l...))
		}
	}
	f.Add(gzipped(f, tarOf(f, file("a", "1"))))
	f.Fuzz(func(t *testing.T, blob []byte) {
		need.Root(t)
		dir := t.TempDir()
		for _, sub := range []string{blobFolder, layerFolder, stagingFolder} {
			must(t, os.MkdirAll(filepath.Join(dir, sub), 0o700))
		}
		s := &Store{folders: folders{dir}, o: Options{Dir: dir}, pinned: map[string]int{}}
		below := tarOf(t, file("a/b", "1"), symlink("l", dir))
		all, err := extracted(t, s, below)
		must(t, err)
		text := blob
		if r, err := plain(bytes.NewReader(blob)); err == nil {
			text, _ = io.ReadAll(io.LimitReader(r, 1<<20))
			_ = r.Close()
		}
		all = append(all, blobIn(t, s, blob, text, all))
		err = s.extract(t.Context(), all, &meter{})
		if _, ok := errors.AsType[*fail.Error](err); err != nil && !ok {
			t.Errorf("got %v", err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
			t.Errorf("%v, %v", left, err)
		}
	})
}
