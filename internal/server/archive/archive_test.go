package archive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/server/extract"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/test/need"
)

// tree describes all that is below a folder, as a kernel shows it.
func tree(t testing.TB, root string) string {
	t.Helper()
	var all []string
	inodes := map[uint64]string{}
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		what := fmt.Sprintf("%q %o %d:%d %d", rel, st.Mode, st.Uid, st.Gid, st.Mtim.Nano())
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			what += fmt.Sprint(" of ", st.Size, " holes ", st.Blocks*512 < st.Size/2)
			if st.Size < 16<<20 {
				data, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				what += fmt.Sprintf(" %x %x", sha256.Sum256(data), data[:min(len(data), 64)])
			}
			if first, ok := inodes[st.Ino]; ok {
				what += " is " + first
			} else if st.Nlink > 1 {
				inodes[st.Ino] = rel
			}
		case unix.S_IFLNK:
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			what += " -> " + to
		}
		buf := make([]byte, 256)
		for _, attr := range []string{"user.note", "user.a=b", "security.capability"} {
			if n, err := unix.Lgetxattr(name, attr, buf); err == nil {
				what += fmt.Sprintf(" %s %x", attr, buf[:n])
			}
		}
		all = append(all, what)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// odd makes, below a folder, some of what an archive has to keep.
func odd(t testing.TB, root string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(root, name) }
	long := strings.Repeat("n", 255)
	var errs []error
	do := func(err error) { errs = append(errs, err) }
	do(os.RemoveAll(in("d")))
	do(os.MkdirAll(in("d/"+long+"/deep"), 0o755))
	for _, name := range []string{"plain", ".wh.file", ".wh..wh..opq", "new\nline", "\xff\xfe", "sp ace", "d/" + long + "/deep/" + long, "-rf", "ünï", "end.json"} {
		do(os.WriteFile(in(name), []byte(name), 0o640))
	}
	do(os.WriteFile(in("empty"), nil, 0o600))
	do(os.WriteFile(in("suid"), []byte("s"), 0o755))
	do(os.Chown(in("suid"), 1234, 70_000))
	do(os.Chmod(in("suid"), 0o755|fs.ModeSetuid|fs.ModeSetgid))
	do(os.Mkdir(in("sticky"), 0o777))
	do(os.Chmod(in("sticky"), 0o777|fs.ModeSticky))
	do(os.Link(in("plain"), in("hard")))
	do(os.Link(in("plain"), in("d/hard too")))
	do(os.Symlink("/etc/passwd", in("abs")))
	do(os.Symlink("../../..", in("d/up")))
	do(unix.Mkfifo(in("fifo"), 0o620))
	do(unix.Setxattr(in("plain"), "user.note", []byte("n\x00\n"), 0))
	do(unix.Setxattr(in("d"), "user.a=b", []byte("c"), 0))
	do(unix.Setxattr(in("suid"), "security.capability", []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	for name, size := range map[string]int64{"hole": 10 << 20, "all hole": 1 << 30} {
		f, err := os.Create(in(name))
		do(err)
		do(f.Truncate(size))
		if name == "hole" {
			_, err = f.WriteAt([]byte("in the middle"), 5<<20)
			do(err)
		}
		do(f.Close())
	}
	do(os.Chtimes(in("plain"), time.Time{}, time.Unix(-5, 123456789)))
	do(os.Chtimes(in("sticky"), time.Time{}, time.Unix(1e9, 1)))
	do(os.Lchown(in("abs"), 7, 8))
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// inMountNamespace runs f with a mount namespace of its own.
func inMountNamespace(t *testing.T, f func()) {
	t.Helper()
	need.Root(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it is not given back, and ends with this goroutine
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// over mounts layers, the lowest first, with another folder to be written.
func over(t *testing.T, dir string, user bool, chain []string, f func(root string)) {
	t.Helper()
	o := layers.Overlay{UserXattr: user, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work")}
	for _, l := range slices.Backward(chain) {
		o.Lowers = append(o.Lowers, l)
	}
	root := filepath.Join(dir, "root")
	if err := errors.Join(os.MkdirAll(root, 0o755), o.Create(), o.Mount(root)); err != nil {
		t.Error(err)
		return
	}
	f(root)
	if err := layers.Unmount(root); err != nil {
		t.Error(err)
	}
}

// scramble changes what is below a folder at random.
func scramble(r *rand.Rand, root string, times int) {
	pick := func() string {
		parts := make([]string, 1+r.IntN(3))
		for i := range parts {
			parts[i] = string("abcd"[r.IntN(4)])
		}
		return filepath.Join(append([]string{root}, parts...)...)
	}
	for n := range times {
		p, q := pick(), pick() // what can't be done is not
		switch r.IntN(8) {
		case 0:
			_ = os.WriteFile(p, fmt.Append(nil, n), 0o644)
		case 1, 2:
			_ = os.Mkdir(p, 0o755)
		case 3:
			_ = os.RemoveAll(p)
		case 4, 5, 6:
			_ = os.Rename(p, q)
		case 7:
			if os.RemoveAll(p) == nil {
				_ = os.Mkdir(p, 0o700)
			}
		}
	}
}

func pack(t testing.TB, base string, chain []string, user bool) []byte {
	t.Helper()
	v, err := layers.OpenView([]string{base}, chain, user)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var out bytes.Buffer
	if _, err := Write(t.Context(), &out, Header{Name: "paint", Created: time.Unix(1, 0)}, nil, []Part{{"", v}}); err != nil {
		t.Error(err)
	}
	return out.Bytes()
}

func unpack(t testing.TB, data []byte, upper string, user bool) error {
	t.Helper()
	_, err := Read(t.Context(), bytes.NewReader(data), Options{MaxSize: 64 << 20, Begin: func(Header, io.Reader) (Target, error) {
		return Target{Uppers: map[string]string{"": upper, "usr": filepath.Join(filepath.Dir(upper), "usr-upper")}, UserXattr: user}, nil
	}})
	return err
}

// TestEqualTrees: after an export and an import, a disk shows the same over its base.
// Over another base, nothing of that base shines through where nothing of the first
// did.
func TestEqualTrees(t *testing.T) {
	inMountNamespace(t, func() {
		for seed := range uint64(6) {
			user := seed%3 == 2
			r := rand.New(rand.NewPCG(seed, 4))
			dir := t.TempDir()
			base := filepath.Join(dir, "base")
			if err := os.Mkdir(base, 0o755); err != nil {
				t.Error(err)
				return
			}
			scramble(r, base, 60)
			var chain []string
			for n := range 4 {
				at := filepath.Join(dir, fmt.Sprint("layer", n))
				over(t, at, user, append([]string{base}, chain...), func(root string) {
					scramble(r, root, 30)
					if n == 2 {
						odd(t, root)
					}
				})
				chain = append(chain, filepath.Join(at, "upper"))
			}
			var want, got string
			over(t, filepath.Join(dir, "old"), user, append([]string{base}, chain...), func(root string) { want = tree(t, root) })
			data := pack(t, base, chain, user)
			if len(data) > 1<<20 {
				t.Errorf("holes were packed: %d bytes", len(data))
			}
			upper := filepath.Join(dir, "in", "upper")
			if err := unpack(t, data, upper, user); err != nil {
				t.Errorf("seed %d: %v", seed, err)
				return
			}
			over(t, filepath.Join(dir, "new"), user, []string{base, upper}, func(root string) { got = tree(t, root) })
			if got != want {
				t.Errorf("seed %d: what came out is not what went in:\n%s\nwant\n%s", seed, got, want)
				return
			}
			if again := pack(t, base, []string{upper}, user); seed == 0 && len(again) != len(data) {
				t.Errorf("packed again it has %d bytes, and had %d", len(again), len(data))
			}
		}
	})
}

// members are what a test puts into an archive, as is.
func members(t testing.TB, all ...any) []byte {
	t.Helper()
	var out bytes.Buffer
	zw, err := zstd.NewWriter(&out, zstd.WithWindowSize(maxWindow))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := zw.Write(plain(t, all...)); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// plain is a tar of a good header, members, and a good end.
func plain(t testing.TB, all ...any) []byte {
	t.Helper()
	return plainOf(t, Format, all...)
}

// plainOf is plain, of a format.
func plainOf(t testing.TB, format int, all ...any) []byte {
	t.Helper()
	var out bytes.Buffer
	w := writer{tar: tar.NewWriter(&out), sum: newDigest()}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(w.document(headerName, time.Unix(0, 0), Header{Format: format, Name: "paint"}))
	for i, m := range all {
		h, ok := m.(tar.Header)
		if !ok {
			continue
		}
		h.Format, h.ModTime = tar.FormatPAX, time.Unix(0, 0)
		var data string
		if i+1 < len(all) {
			data, _ = all[i+1].(string)
		}
		if h.Size == 0 {
			h.Size = int64(len(data))
		}
		check(w.sum.member(&h))
		check(w.tar.WriteHeader(&h))
		_, err := io.WriteString(io.MultiWriter(w.tar, w.sum), data)
		check(err)
		if h.Name == imageName {
			continue
		}
		w.end.Members++
		w.end.Bytes += h.Size
	}
	w.end.Digest = w.sum.text()
	check(w.document(endName, time.Unix(0, 0), w.end))
	check(w.tar.Close())
	return out.Bytes()
}

var (
	rootDir = tar.Header{Typeflag: tar.TypeDir, Name: "disk/", Mode: 0o755}
	subDir  = tar.Header{Typeflag: tar.TypeDir, Name: "disk/d/", Mode: 0o755}
	usrDir  = tar.Header{Typeflag: tar.TypeDir, Name: "disk/usr/", Mode: 0o755}
)

func reg(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
}

func hardLink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

func withRecord(h tar.Header, key, value string) tar.Header {
	h.PAXRecords = map[string]string{key: value}
	return h
}

func part(offset, size uint64, data string) string {
	return string(putPart(nil, int64(offset), int64(size))) + data
}

// hostile archives, by the text of the refusal.
var hostile = map[string][]any{
	"has \"..\"":                                  {rootDir, reg("disk/../evil")},
	"its name is absolute":                        {rootDir, reg("/disk/evil")},
	"not in the folder disk":                      {rootDir, reg("evil")},
	"does not follow its folder":                  {reg("disk/evil")},
	"shortest form":                               {rootDir, reg("disk//evil")},
	"must end with a slash":                       {rootDir, tar.Header{Typeflag: tar.TypeDir, Name: "disk/d"}},
	"is there twice":                              {rootDir, reg("disk/a"), reg("disk/a")},
	"disk/d/x\": it does not follow":              {rootDir, tar.Header{Typeflag: tar.TypeSymlink, Name: "disk/d", Linkname: "/etc"}, reg("disk/d/x")},
	"disk/d/y\": it does not follow":              {rootDir, subDir, reg("disk/e"), reg("disk/d/y")},
	"it is a device":                              {rootDir, tar.Header{Typeflag: tar.TypeChar, Name: "disk/null", Devmajor: 1, Devminor: 3}},
	"disk/sda\": it is a device":                  {rootDir, tar.Header{Typeflag: tar.TypeBlock, Name: "disk/sda", Devmajor: 8}},
	"is not a file of the disk":                   {rootDir, hardLink("disk/a", "/etc/passwd")},
	"\"disk/../../x\", which is not a":            {rootDir, hardLink("disk/a", "disk/../../x")},
	"which is not a file before it":               {rootDir, hardLink("disk/a", "disk/b")},
	"\"disk/d\", which is not a file":             {rootDir, subDir, hardLink("disk/a", "disk/d")},
	"\"disk/.wh\", which is not a file":           {rootDir, reg("disk/.wh..wh"), hardLink("disk/a", "disk/.wh")},
	"the target's folder does not come before it": {rootDir, tar.Header{Typeflag: tar.TypeSymlink, Name: "disk/l", Linkname: "/etc"}, hardLink("disk/a", "disk/l/passwd")},
	"which is on another mount":                   {rootDir, reg("disk/a"), usrDir, hardLink("disk/usr/a", "disk/a")},
	"can only be a folder":                        {rootDir, tar.Header{Typeflag: tar.TypeSymlink, Name: "disk/usr", Linkname: "/"}},
	"a whiteout that names nothing":               {rootDir, reg("disk/.wh.")},
	"disk/.wh...\": it is a whiteout":             {rootDir, reg("disk/.wh...")},
	"is a whiteout, but has content":              {rootDir, reg("disk/.wh.a"), "content"},
	"\"trusted.overlay.redirect\"":                {rootDir, withRecord(subDir, paxXattr+"trusted.overlay.redirect", "/etc")},
	"\"user.overlay.redirect\"":                   {rootDir, withRecord(subDir, paxXattr+"user.overlay.redirect", "/etc")},
	"attribute without a name":                    {rootDir, withRecord(subDir, paxXattrHex+"zz", "/etc")},
	"a file of 4611686018427387904":               {rootDir, withRecord(reg("disk/a"), paxSparse, "4611686018427387904"), part(1<<62-1, 1, "x")},
	"impossible mode or owner":                    {rootDir, tar.Header{Typeflag: tar.TypeReg, Name: "disk/a", Uid: 1<<32 - 1}},
	"impossible mode":                             {rootDir, tar.Header{Typeflag: tar.TypeReg, Name: "disk/a", Mode: 0o40644}},
	"impossible size":                             {rootDir, withRecord(reg("disk/a"), paxSparse, "-1")},
	"do not match its size":                       {rootDir, withRecord(reg("disk/a"), paxSparse, "100"), "short"},
	"out of order":                                {rootDir, withRecord(reg("disk/a"), paxSparse, "100"), part(50, 1, "x") + part(0, 1, "y")},
	"disk/b\": its parts are out of":              {rootDir, withRecord(reg("disk/b"), paxSparse, "100"), part(99, 2, "xy")},
	"disk/c\": its parts are out of":              {rootDir, withRecord(reg("disk/c"), paxSparse, "100"), part(1<<63, 1, "x")},
	"disk/f\": its parts are out of":              {rootDir, withRecord(reg("disk/f"), paxSparse, "100"), part(0, 1<<62, "x")},
	"link to nowhere":                             {rootDir, tar.Header{Typeflag: tar.TypeSymlink, Name: "disk/l"}},
	"of a kind":                                   {rootDir, tar.Header{Typeflag: '7', Name: "disk/l"}},
	"is larger than 67108864 bytes":               {rootDir, tar.Header{Typeflag: tar.TypeReg, Name: "disk/zeros", Size: 64 << 20}, strings.Repeat("\x00", 64<<20)},
	"longer than 255":                             {rootDir, reg("disk/" + strings.Repeat("x", 256))},
	"its name is too long":                        {rootDir, reg("disk/" + strings.Repeat("x/", 2100) + "x")},
	"hold a file of 9223372036854775807":          {rootDir, withRecord(reg("disk/a"), paxSparse, "9223372036854775807")},
}

func TestRefusesHostileArchives(t *testing.T) {
	for want, all := range hostile {
		dir := t.TempDir()
		err := unpack(t, members(t, all...), filepath.Join(dir, "root", "upper"), true)
		_, after, _ := strings.Cut(want, "a file of ")
		if size, no := strconv.ParseInt(after, 10, 64); no == nil && holdsFileOf(t, size) {
			if err != nil {
				t.Errorf("a file of %d bytes: %v", size, err)
			}
			continue
		}
		if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Error(), want) || strings.Count(err.Error(), "was refused") != 1 {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 1 {
			t.Errorf("%s: left %v, %v", want, entries, err)
		}
	}
}

// holdsFileOf reports whether the tests' file system can hold a file of this size that
// is one hole. Tmpfs and XFS can; ext4 can't if the size is very large.
func holdsFileOf(t *testing.T, size int64) bool {
	t.Helper()
	name := filepath.Join(t.TempDir(), "hole")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return os.Truncate(name, size) == nil
}

// A header of 2 MiB, which no writer makes, is the archive's fault.
func TestRefusesLongHeader(t *testing.T) {
	var long bytes.Buffer
	w := tar.NewWriter(&long)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Size: 2 << 20, Format: tar.FormatUSTAR}); err != nil {
		t.Fatal(err)
	}
	b := append(long.Bytes(), make([]byte, 2<<20)...)
	var sum int64
	if _, err := fmt.Sscanf(string(b[148:154]), "%o", &sum); err != nil {
		t.Fatal(err)
	}
	b[156] = tar.TypeXHeader
	copy(b[148:], fmt.Sprintf("%06o", sum+tar.TypeXHeader-tar.TypeReg))
	zw, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	err = unpack(t, zw.EncodeAll(b, nil), filepath.Join(t.TempDir(), "upper"), true)
	if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Why, "header in it is too long") {
		t.Errorf("got %v", err)
	}
}

// A time that is far out is the nearest that a sandbox can see.
func TestFarTimes(t *testing.T) {
	for seconds, want := range map[int64]int64{1 << 62: math.MaxInt64 / 1_000_000_000, -1 << 62: math.MinInt64/1_000_000_000 - 1, 1e9: 1e9} {
		if got := extract.Times(time.Unix(seconds, 0)); got[0].Sec != want || got[1] != got[0] {
			t.Errorf("%d: got %+v, want %d", seconds, got, want)
		}
	}
}

// An archive that is damaged, cut short or added to anywhere is refused.
func TestRefusesDamage(t *testing.T) {
	data := plain(t, rootDir, reg("disk/a"), "content", subDir, reg("disk/d/b"), "more")
	compress := func(b []byte) []byte {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return w.EncodeAll(b, nil)
	}
	n := 0
	try := func(what string, data []byte, refused bool) {
		t.Helper()
		n++
		err := unpack(t, data, filepath.Join(t.TempDir(), "upper"), true)
		if _, ok := errors.AsType[*Error](err); ok != refused || !refused && err != nil || refused && strings.Count(err.Error(), "was refused") != 1 {
			t.Errorf("%s: %v", what, err)
		}
	}
	packed := compress(data)
	try("whole", packed, false)
	for at := range len(packed) {
		try(fmt.Sprint("cut at ", at), packed[:at], true)
	}
	for at := 0; at < len(data)-512; at += 37 {
		bad := slices.Clone(data)
		bad[at] ^= 0x01
		if err := unpack(t, compress(bad), filepath.Join(t.TempDir(), "upper"), true); err == nil && !bytes.Equal(data, bad) {
			// Padding, and the numbers of a user's or of a device, are nobody's.
			if h := at % 512; data[at] != 0 && h < 257 {
				t.Errorf("changed at %d (%q): it was taken", at, data[at])
			}
		}
	}
	for _, n := range []int{512, 9728} {
		try(fmt.Sprint("padded with ", n), compress(append(slices.Clone(data), make([]byte, n)...)), false)
	}
	for _, n := range []int{1, 10240, 1 << 20} {
		try(fmt.Sprint("padded with ", n), compress(append(slices.Clone(data), make([]byte, n)...)), true)
	}
	try("with more behind its padding", compress(append(append(slices.Clone(data), make([]byte, 511)...), 1)), true)
	try("with more behind it", compress(append(slices.Clone(data), 1)), true)
	try("twice", append(slices.Clone(packed), packed...), true)
	try("nothing", nil, true)
	try("another file", []byte(strings.Repeat("hello ", 1000)), true)
	try("another tar", compress(make([]byte, 1024)), true)
}

// TestReadErrors: an error of the source is returned as it is, and does not blame the
// archive.
func TestReadErrors(t *testing.T) {
	broken := errors.New("broken pipe")
	data := members(t, rootDir)
	_, err := Read(t.Context(), io.MultiReader(bytes.NewReader(data[:20]), errorReader{broken}), Options{MaxSize: 1 << 20, Begin: func(Header, io.Reader) (Target, error) { return Target{}, nil }})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	refused := errors.New("no such name")
	if _, err = Read(t.Context(), bytes.NewReader(data), Options{MaxSize: 1 << 20, Begin: func(Header, io.Reader) (Target, error) { return Target{}, refused }}); !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	many := []any{rootDir}
	for n := range 20 {
		many = append(many, reg(fmt.Sprint("disk/", n)))
	}
	_, err = Read(t.Context(), bytes.NewReader(members(t, many...)), Options{MaxSize: 1 << 30, MaxFiles: 10, Begin: func(Header, io.Reader) (Target, error) {
		return Target{Uppers: map[string]string{"": filepath.Join(t.TempDir(), "upper")}}, nil
	}})
	if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Why, "more than 10 members") {
		t.Errorf("got %v", err)
	}
}

type errorReader struct{ error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.error }

// FuzzRead takes any tar apart: nothing outside of its folder changes, and no device
// is made.
func FuzzRead(f *testing.F) {
	for want, all := range hostile {
		if !strings.Contains(want, "larger") {
			f.Add(plain(f, all...))
		}
	}
	f.Add(plain(f, rootDir, reg("disk/a"), "content", subDir, hardLink("disk/d/b", "disk/a"), reg("disk/d/.wh.x"), reg("disk/d/.wh..wh..opq"), usrDir))
	f.Add(plain(f, rootDir, withRecord(reg("disk/a"), paxSparse, "100"), part(50, 1, "x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		outside := filepath.Join(dir, "outside")
		if err := errors.Join(os.Mkdir(outside, 0o700), os.WriteFile(filepath.Join(outside, "file"), []byte("mine"), 0o600), os.Mkdir(filepath.Join(dir, "in"), 0o700)); err != nil {
			t.Fatal(err)
		}
		before := tree(t, outside)
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		_ = unpack(t, w.EncodeAll(data, nil), filepath.Join(dir, "in", "upper"), true) // whether it is taken or refused
		if tree(t, outside) != before {
			t.Error("something outside was changed")
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 2 {
			t.Errorf("beside it there is now %v, %v", entries, err)
		}
		_ = filepath.WalkDir(filepath.Join(dir, "in"), func(name string, _ fs.DirEntry, _ error) error {
			var st unix.Stat_t
			if unix.Lstat(name, &st) == nil && (st.Mode&unix.S_IFMT == unix.S_IFBLK || st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev != 0) {
				t.Errorf("%s is a device", name)
			}
			return nil
		})
	})
}
