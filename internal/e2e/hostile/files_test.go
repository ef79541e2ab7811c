package hostile

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// Statements 1 to 7 of hostile sandboxes, with a real one: root in the sandbox decides
// what its programs do. The archives are made here.

// liarsTar replaces tar in a sprite. It sends the archive in the folder that cp asks for,
// or the output of a program there.
const liarsTar = `#!/bin/sh
for arg; do
	case $arg in --directory=*) dir=${arg#--directory=} ;; esac
done
if test -e "$dir/stream.py"; then exec python3 "$dir/stream.py"; fi
exec cat "$dir/archive"
`

// plainHeader is common to the programs of the corpus: it makes the header of a member.
const plainHeader = `
import sys
out = sys.stdout.buffer
def header(name, kind=b'0', size=0, link=b''):
    h = bytearray(512)
    h[0:len(name)] = name
    h[100:108] = b'0000755\0'
    h[108:124] = b'0000000\0' * 2
    h[124:136] = b'%011o\0' % size if size < 1 << 33 else b'\x80' + size.to_bytes(11, 'big')
    h[136:148] = b'00000000000\0'
    h[148:156] = b' ' * 8
    h[156:157] = kind
    h[157:157+len(link)] = link
    h[257:265] = b'ustar\x0000'
    h[148:156] = b'%06o\0 ' % sum(h)
    return bytes(h)
def pax(records):
    body = b''
    for key, value in records:
        n = len(key) + len(value) + 3
        while len(b'%d' % n) + len(key) + len(value) + 3 != n: n = len(b'%d' % n) + len(key) + len(value) + 3
        body += b'%d %s=%s\n' % (n, key, value)
    return header(b'pax', b'x', len(body)) + body + b'\0' * (-len(body) % 512)
`

type hostileArchive struct {
	members []tar.Header // or
	program string
	names   string // a part of the error
	code    int    // of cp; 0: 5, rejected
}

func hostileArchives() map[string]hostileArchive {
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
	}
	hard := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to, Mode: 0o644}
	}
	special := func(name string, kind byte) tar.Header {
		return tar.Header{Name: name, Typeflag: kind, Mode: 0o666, Devmajor: 1, Devminor: 3}
	}
	suid := file("./suid")
	suid.Mode = 0o4755
	return map[string]hostileArchive{
		// Statement 1.
		"upwards":              {members: []tar.Header{dir("./"), file("./../escaped")}, names: "./../escaped"},
		"upwards below":        {members: []tar.Header{file("./a/../../escaped")}, names: "escaped"},
		"absolute":             {members: []tar.Header{file("/tmp/cove-escaped")}, names: "/tmp/cove-escaped"},
		"link then file":       {members: []tar.Header{link("./l", "../outside"), file("./l/escaped")}, names: "./l"},
		"link inside, file":    {members: []tar.Header{dir("./d/"), link("./l", "d"), file("./l/x")}, names: "\"l\""},
		"two links":            {members: []tar.Header{dir("./d/"), dir("./d/e/"), link("./d/e/up", ".."), link("./l", "d/e/up/../../outside")}, names: "./l"},
		"absolute link":        {members: []tar.Header{link("./l", "/etc/passwd")}, names: "./l"},
		"hard link":            {members: []tar.Header{hard("./h", "../outside/mine"), file("./h")}, names: "./h"},
		"absolute hard link":   {members: []tar.Header{hard("./h", "/etc/passwd")}, names: "./h"},
		"hard link by a link":  {members: []tar.Header{link("./l", "../outside/mine"), hard("./h", "./l")}, names: "./l"},
		"character device":     {members: []tar.Header{special("./c", tar.TypeChar)}, names: "./c"},
		"block device":         {members: []tar.Header{special("./b", tar.TypeBlock)}, names: "./b"},
		"pipe":                 {members: []tar.Header{special("./p", tar.TypeFifo)}, names: "./p"},
		"setuid":               {members: []tar.Header{suid}, names: "./suid"},
		"twice":                {members: []tar.Header{file("./f"), link("./f", "g")}, names: "./f"},
		"git's":                {members: []tar.Header{dir("./.GIT/"), file("./.GIT/config")}, names: "./.GIT"},
		"a title for the term": {members: []tar.Header{special("./\x1b]0;owned\a\n", tar.TypeFifo)}, names: `\x1b]0;owned\a\n`},

		// Statement 3: none of them may need memory that grows with them.
		"8 EiB":           {program: `out.write(header(b'./big', size=(1 << 63) - 1))`, code: 6},
		"more than 8 EiB": {program: `out.write(header(b'./big', size=1 << 64) + b'x' * 1024)`},
		"a sparse map":    {program: `out.write(pax([(b'GNU.sparse.major', b'1'), (b'GNU.sparse.minor', b'0'), (b'GNU.sparse.name', b'./s'), (b'GNU.sparse.realsize', b'9' * 15)]) + header(b'./s', size=20_000_000) + b'1000000\n' + b'1\n1\n' * 5_000_000)`},
		"an old sparse map": {program: `
h = bytearray(header(b'./s', b'S'))
h[386:410] = b'00000000001\0' + b'00000000001\0'
h[482] = 1
h[148:156] = b' ' * 8
h[148:156] = b'%06o\0 ' % sum(h)
more = (b'00000000001\0' * 42)[:504] + b'\1' + b'\0' * 7
out.write(bytes(h))
for i in range(1_000_000 // 21): out.write(more)`},
		"a long path":       {program: `out.write(pax([(b'path', b'./' + b'x' * (1 << 20))]) + header(b'./x'))`},
		"a path of 900 kB":  {program: `out.write(pax([(b'path', b'./' + b'x' * 900_000)]) + header(b'./x'))`},
		"endless long name": {program: `out.write(header(b'././@LongLink', b'L', 1 << 40)); [out.write(b'x' * (1 << 20)) for i in range(64)]`},
		"long records":      {program: "for i in range(80): out.write(pax([(b'comment', b'x' * 1_000_000), (b'path', b'd%d' % i)]) + header(b'd', b'5'))\nout.write(header(b'../end'))"},
		"ten million":       {program: "block = header(b'./', b'5') * 1000\nfor i in range(10_000): out.write(block)"},
		"links":             {program: "block = header(b'./l', b'2', link=b'x') * 1000\nfor i in range(10_000): out.write(block)"},
		"deep":              {program: "out.write(pax([(b'path', b'd/' * 2040 + b'f')]) + header(b'./x', size=0)); out.write(header(b'../end'))"},

		// Statement 4: archives that would fill the disk.
		"a bomb": {program: "out.write(header(b'./zeros', size=1 << 40))\nwhile True: out.write(b'\\0' * (1 << 20))", code: 6},
		"files":  {program: "for i in range(1 << 20): out.write(header(b'./f%d' % i, size=16 << 20) + b'\\0' * (16 << 20))", code: 6},
		"cut":    {members: []tar.Header{file("./f")}, program: "out.write(header(b'./f', size=5000) + b'x' * 1000)"},
	}
}

// plantArchives takes the corpus into the sprite paint, and puts the liar in tar's
// place.
func plantArchives(h e2e.SyncHost, corpus map[string]hostileArchive) {
	h.T.Helper()
	for name, a := range corpus {
		if a.program != "" {
			h.Write("corpus/"+name+"/stream.py", plainHeader+a.program)
			continue
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, m := range a.members {
			if err := w.WriteHeader(&m); err != nil {
				h.T.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			h.T.Fatal(err)
		}
		h.Write("corpus/"+name+"/archive", b.String())
	}
	h.Write("corpus/tar", liarsTar)
	h.Run("", "cove", "cp", "corpus", "paint:")
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "install", "-m", "755", "/home/sprite/corpus/tar", "/usr/local/bin/tar")
}

// TestHostileArchives: whatever a sprite sends as an archive, cp writes nothing outside
// its folder and leaves nothing in it. It names the refused member, and its memory does
// not grow with the sizes that the archive claims.
func TestHostileArchives(t *testing.T) {
	h := e2e.NewSyncHost(t)
	h.Sh("mkdir -p honest; head -c 3000000 /dev/urandom >honest/x")
	out, code, honest := e2e.Peak(h.Host, "", "cp", "paint:honest", h.Path("honest"))
	if code != 0 {
		t.Fatalf("an honest one: %d, %s", code, out)
	}
	corpus := hostileArchives()
	if !e2e.Soak() { // the others cover these, which take a second
		for _, name := range []string{"links", "files", "endless long name", "two links", "upwards below", "absolute hard link", "block device"} {
			delete(corpus, name)
		}
	}
	plantArchives(h, corpus)
	box := h.Path("box")
	h.Write("box/outside/mine", "mine")
	h.Write("box/there/old", "old")
	if os.Geteuid() == 0 { // on a small disk of its own
		small := h.Path("small")
		e2e.SmallDisk(t, small, "120m")
		h.Run("", "cp", "-r", "box", "small/box")
		box = filepath.Join(small, "box")
	}
	before := e2e.TreeOf(t, filepath.Dir(box))
	for name, a := range corpus {
		t.Run(name, func(t *testing.T) {
			h := h.On(t)
			if a.code == 0 {
				a.code = 5
			}
			for _, dst := range []string{"new", "there"} {
				began := time.Now()
				out, code, peak := e2e.Peak(h.Host, "", "cp", "paint:corpus/"+name+"/.", filepath.Join(box, dst))
				if code != a.code || !strings.Contains(out, a.names) || strings.ContainsRune(out, 0x1b) {
					t.Errorf("into %s: code %d, want %d and %q: %q", dst, code, a.code, a.names, out)
				}
				if more := peak - honest; more > 64<<20 {
					t.Errorf("into %s: %d MiB more than an honest archive", dst, more>>20)
				}
				t.Logf("%v, %d MiB: %s", time.Since(began).Round(time.Millisecond), peak>>20, out)
				if a.program != "" {
					break // the other would be the same again
				}
			}
			e2e.SameTree(t, e2e.TreeOf(t, filepath.Dir(box)), before)
		})
	}
	if _, err := os.Lstat("/tmp/cove-escaped"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("/tmp/cove-escaped: %v", err)
	}
}
