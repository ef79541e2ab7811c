package checkpoints

import (
	"bytes"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// oddTree makes, in a sprite, files of all kinds that an archive must keep. (gVisor keeps
// FIFOs only in memory.)
const oddTree = `
import os
h = '/home/sprite/odd'
os.mkdir(h); os.chdir(h)
os.makedirs('d/' + 'n' * 255 + '/deep')
for n in [b'plain', b'.wh.file', b'.wh..wh..opq', b'new\nline', b'\xff\xfe', b'sp ace', b'-rf', 'ünï'.encode(), b'end.json']:
    with open(n, 'wb') as f: f.write(n * 100)
open('suid', 'w').close(); os.chown('suid', 1234, 7000); os.chmod('suid', 0o6755)
os.mkdir('sticky'); os.chmod('sticky', 0o1777)
os.link('plain', 'hard'); os.link('plain', 'd/hard too')
os.symlink('/etc/passwd', 'abs'); os.symlink('../../..', 'd/up')
try:
    os.setxattr('plain', 'user.note', b'n\x00\n')
except OSError as e:
    print('no attributes here:', e)
with open('hole', 'wb') as f:
    f.truncate(64 << 20); f.seek(32 << 20); f.write(b'in the middle')
os.utime('plain', ns=(1, 1234567890123456789))
os.utime('sticky', ns=(1, 10**18 + 1))
os.lchown('abs', 7, 8)
os.mkdir('/opt/new'); os.remove('/etc/issue'); os.chmod('/etc/skel', 0o700)
import shutil
shutil.rmtree('/etc/profile.d'); os.mkdir('/etc/profile.d'); open('/etc/profile.d/only', 'w').close()
try:
    os.rename('/usr/share/dpkg', '/usr/share/renamed')
except PermissionError as e:
    print('an ordinary user:', e)
`

// listTree lists a sprite's disk, except files that change by themselves.
const listTree = `
import os, stat, hashlib
skip = ('/proc', '/sys', '/dev', '/run', '/tmp', '/.sprite', '/etc/hostname', '/etc/hosts', '/etc/resolv.conf', '/etc/machine-id', '/etc/alternatives', '/etc/ssl', '/var/lib/dpkg')
changed = ('/home/', '/opt/', '/etc/skel', '/etc/profile.d', '/usr/share/renamed')
inodes = {}
def one(p):
    st = os.lstat(p)
    s = '%r %o %d:%d' % (os.fsencode(p), st.st_mode, st.st_uid, st.st_gid)
    if p.startswith(changed): s += ' %d' % st.st_mtime_ns # each base has times of its own
    if stat.S_ISLNK(st.st_mode): s += ' -> %r' % os.readlink(os.fsencode(p))
    if stat.S_ISREG(st.st_mode):
        s += ' %d' % st.st_size
        if not p.startswith('/usr') and st.st_size < 1 << 20: s += ' ' + hashlib.sha256(open(p, 'rb').read()).hexdigest()
        if p.startswith('/home'):
            s += ' holes %s' % (st.st_blocks * 512 < st.st_size)
            if st.st_nlink > 1: s += ' is ' + inodes.setdefault(st.st_ino, p)
            try: s += ' %r' % [(n, os.getxattr(p, n)) for n in os.listxattr(p)]
            except OSError: pass
    print(s)
    if stat.S_ISDIR(st.st_mode):
        for n in sorted(os.listdir(p)):
            q = os.path.join(p, n)
            if q not in skip and not (q.startswith('/usr/') and q.count('/') > 3 and not q.startswith('/usr/share/renamed')): one(q)
one('/')
`

// TestExportImport carries a sprite to another server's data folder. There it has the
// same tree: modes, owners, times, links, attributes, holes and odd names.
func TestExportImport(t *testing.T) {
	from, to := e2e.NewHost(t), e2e.NewLoneHost(t)
	from.Run("", "cove", "create", "paint", "--memory", "300M", "--env", "SECRET=hush", "--env", "COLOUR=red", "--network", "none", "--idle", "7m", "--hibernate", "8m")
	from.Run("", "cove", "update", "paint", "--label", "mine")
	list := func(h *e2e.Host, sprite string) string {
		h.Write("list.py", listTree)
		h.Run("", "cove", "cp", "list.py", sprite+":/tmp/list.py")
		return h.Run("", "cove", "exec", "--user", "root", "-s", sprite, "--", "python3", "/tmp/list.py")
	}
	from.Write("odd.py", oddTree)
	from.Run("", "cove", "cp", "odd.py", "paint:/tmp/odd.py")
	t.Log(from.Run("", "cove", "exec", "--user", "root", "-s", "paint", "--", "python3", "/tmp/odd.py"))
	from.Run("", "cove", "checkpoint", "create", "-s", "paint")
	from.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "echo later >later; sleep 1000 & echo")
	archive := e2e.Export(from, t, "paint")
	old := e2e.Export(from, t, "paint@v1")
	// Until a sandbox ends, its folders' times may differ from the disk's.
	if _, err := from.Client().Restart(t.Context(), "paint"); err != nil {
		t.Fatal(err)
	}
	want := list(from, "paint")
	if len(archive) > 4<<20 || bytes.Contains(archive, []byte("hush")) {
		t.Errorf("the archive has %d bytes", len(archive))
	}

	out, code := e2e.Feed(to, archive, "import", "copy", "--label", "copied")
	if code != 0 || !strings.Contains(out, "Sprite copy imported") || !strings.Contains(out, "COLOUR, SECRET") || !strings.Contains(out, "labels there are not taken over: mine") || strings.Contains(out, "another base") {
		t.Errorf("import: %d, %s", code, out)
	}
	if got := list(to, "copy"); got != want {
		t.Errorf("the trees differ:\n%s", difference(want, got))
	}
	var info sprites.Info
	if err := json.Unmarshal([]byte(to.Run("", "cove", "info", "copy", "--json")), &info); err != nil {
		t.Fatal(err)
	}
	if info.Config == nil || info.Config.RAMMB != 300 || len(info.Environment) != 0 || strings.Join(info.Labels, ",") != "copied" || info.Cove.IdleSeconds != 420 || info.Cove.HibernateSeconds != 480 {
		t.Errorf("the settings are %+v %+v", info, info.Config)
	}
	if out := to.Run("", "cove", "policy", "show", "-s", "copy", "--json"); !strings.Contains(out, `"none"`) {
		t.Errorf("the policy is %s", out)
	}
	// A chain of layers over an import works like any other.
	to.Run("", "cove", "checkpoint", "create", "-s", "copy")
	to.Run("", "cove", "exec", "--user", "root", "-s", "copy", "--", "rm", "-r", "/home/sprite/odd/d", "/home/sprite/later")
	if out := to.Run("", "cove", "checkpoint", "diff", "v1", "-s", "copy"); !strings.Contains(out, "- 6 B                      /home/sprite/later\n") {
		t.Errorf("diff: %s", out)
	}
	to.Run("", "cove", "checkpoint", "verify", "-s", "copy")

	// The archive of the earlier checkpoint is imported under the sprite's own name. It
	// has no later files.
	if out, code := e2e.Feed(to, old, "import", "--json"); code != 0 || e2e.JSONField(t, out[strings.Index(out, `"sprite": `)+10:strings.Index(out, `"same_base"`)-4], "name") != "paint" {
		t.Errorf("import: %d, %s", code, out)
	}
	if out := to.Run("", "cove", "exec", "-s", "paint", "--", "ls"); out != "odd\n" {
		t.Errorf("the checkpoint had %q", out)
	}
	for _, c := range []struct {
		data []byte
		args []string
		code int
		says string
	}{
		{archive, []string{"import"}, 1, "paint already"},
		{archive[:len(archive)-9], []string{"import", "short"}, 5, "cut short"},
		{bytes.Repeat([]byte("x"), 5<<20), []string{"import", "junk"}, 5, "refused"},
		{archive, []string{"import", "small", "--max-size", "50K"}, 5, "larger than 51200 bytes"},
		{archive, []string{"import", "Bad"}, 2, "name"},
	} {
		if out, code := e2e.Feed(to, c.data, c.args...); code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%v: %d, %s; want %d, %q", c.args, code, out, c.code, c.says)
		}
	}
	e2e.NoImports(to, t)
	if out := to.Run("", "cove", "list"); strings.Count(out, "\n") != 3 {
		t.Errorf("there are %s", out)
	}
}

// TestImportKilled kills the server in the middle of an import. The next start removes
// all that is left of the import.
func TestImportKilled(t *testing.T) {
	h := e2e.NewHost(t)
	h.Run("", "cove", "create", "paint")
	h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "head -c 3000000 /dev/urandom >big")
	data := e2e.Export(h, t, "paint")
	in, feed := io.Pipe()
	defer feed.Close()
	cmd := h.Command("", "cove", "import", "copy")
	cmd.Stdin = in
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = feed.Write(data[:2<<20]) }() // and no more
	staged := func() []string {
		all, err := filepath.Glob(filepath.Join(h.Data, "imports", "*", "root", "upper", "home", "sprite", "big"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	e2e.Await(t, "the import is on its way", func() bool { return len(staged()) == 1 })
	if out := h.Run("", "cove", "list"); strings.Contains(out, "copy") {
		t.Errorf("it is listed before it is there: %s", out)
	}
	e2e.SignalAll(t, syscall.SIGKILL, h.PID())
	_ = feed.Close()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 75 || !strings.Contains(said.String(), "the server went away") || !strings.Contains(said.String(), "cove list") {
		t.Errorf("the import: %v, %s", err, said.String())
	}
	if len(staged()) != 1 {
		t.Error("nothing was left to be removed")
	}
	h.Run("", "cove", "server", "start")
	if out := h.Run("", "cove", "list"); strings.Contains(out, "copy") {
		t.Errorf("it is there: %s", out)
	}
	e2e.NoImports(h, t)
	if out, code := e2e.Feed(h, data, "import", "copy"); code != 0 {
		t.Errorf("the same again: %d, %s", code, out)
	}
	if out := h.Run("", "cove", "exec", "-s", "copy", "--", "wc", "-c", "big"); out != "3000000 big\n" {
		t.Errorf("it has %q", out)
	}
}

// difference returns the lines that only one of two texts has.
func difference(a, b string) string {
	var out strings.Builder
	for sign, texts := range map[string][2]string{"-": {a, b}, "+": {b, a}} {
		has := map[string]bool{}
		for line := range strings.Lines(texts[1]) {
			has[line] = true
		}
		for line := range strings.Lines(texts[0]) {
			if !has[line] && out.Len() < 8000 {
				out.WriteString(sign + line)
			}
		}
	}
	return out.String()
}
