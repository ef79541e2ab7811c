package sprite

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// unreadable makes files and folders that only root may read. Nobody else can even reach
// the files in shut/.
const unreadable = `set -e
mkdir -p /opt/seen /tmp/seen /opt/shut
for d in /opt/seen /tmp/seen; do
	cd $d; echo x >file; chmod 600 file; mkdir -m 700 folder; ln -s file link; mkfifo -m 600 fifo
done
echo x >/opt/shut/file; chmod 700 /opt/shut`

// attributes prints the answers that a program gets for those files' attributes, if it
// may not read the files.
const attributes = `
import os
for path, follow in ('/opt/seen/file', True), ('/opt/seen/link', True), ('/opt/seen/link', False), ('/opt/shut/file', True), ('/opt/seen/none', True):
    for name in 'security.selinux', 'system.posix_acl_access', 'user.a':
        try: told = os.getxattr(path, name, follow_symlinks=follow).decode()
        except OSError as e: told = e.strerror
        print(os.path.basename(path), follow, name, '->', told)
`

// TestListUnreadable: ls -l asks for attributes of the files that it lists. Linux tells
// everybody the kernel's own attributes.
func TestListUnreadable(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", unreadable)
	out := h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "ls -l /opt/seen /tmp/seen 2>&1; ls -ld /etc/shadow /root 2>&1")
	if strings.Contains(out, "denied") || strings.Count(out, " folder\n") != 2 {
		t.Errorf("ls -l prints\n%s", out)
	}
	const want = `file True security.selinux -> No data available
file True system.posix_acl_access -> Operation not supported
file True user.a -> Permission denied
link True security.selinux -> No data available
link True system.posix_acl_access -> Operation not supported
link True user.a -> Permission denied
link False security.selinux -> No data available
link False system.posix_acl_access -> Operation not supported
link False user.a -> No data available
file True security.selinux -> Permission denied
file True system.posix_acl_access -> Permission denied
file True user.a -> Permission denied
none True security.selinux -> No such file or directory
none True system.posix_acl_access -> No such file or directory
none True user.a -> No such file or directory
`
	if got := h.Run("", "cove", "exec", "-s", "paint", "--", "python3", "-c", attributes); got != want {
		t.Errorf("attributes: %s", e2e.FirstDifference(want, got))
	}
}

// renamed renames names of one file to one another with each such system call, on a disk
// and in memory. It prints the calls' results and the remaining names.
const renamed = `
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
HERE, NOREPLACE, EXCHANGE = -100, 1, 2
names = {'rename': {'x86_64': 82}, 'renameat': {'x86_64': 264, 'aarch64': 38}, 'renameat2': {'x86_64': 316, 'aarch64': 276}}
def call(name, *args):
    error = libc.syscall(names[name][platform.machine()], *(a.encode() if isinstance(a, str) else a for a in args))
    return os.strerror(ctypes.get_errno()) if error else 'done'
def show(what, said):
    print(what, said, *(('%s=%d' % (n, os.lstat(n).st_nlink)) for n in sorted(os.listdir('.')) if not os.path.isdir(n)))
for folder in '/home/sprite/links', '/tmp/links':
    os.makedirs(folder + '/sub'); os.chdir(folder)
    open('a', 'w').write('one'); os.link('a', 'b'); os.link('a', 'sub/c')
    show('rename', call('rename', 'a', 'b') if platform.machine() == 'x86_64' else call('renameat', HERE, 'a', HERE, 'b'))
    sub = os.open('sub', os.O_RDONLY)
    show('renameat', call('renameat', HERE, 'a', sub, 'c'))
    show('renameat2', call('renameat2', sub, 'c', HERE, 'b', 0))
    show('noreplace', call('renameat2', HERE, 'a', HERE, 'b', NOREPLACE))
    show('exchange', call('renameat2', HERE, 'a', HERE, 'b', EXCHANGE))
    show('slash', call('renameat', HERE, 'a', HERE, 'b/'))
    show('missing', call('renameat', HERE, 'none', HERE, 'b'))
    show('itself', call('renameat', HERE, 'a', sub, '../a'))
    os.symlink('a', 'to'); os.link('to', 'too', follow_symlinks=False)
    show('symlinks', call('renameat', HERE, 'to', HERE, 'too'))
    show('symlink', call('renameat', HERE, 'to', HERE, 'a'))
    print(os.readlink('a'), sorted(os.listdir('sub')), os.stat('sub/c').st_nlink)
    held = open('b'); open('new', 'w').write('two')
    show('over', call('renameat', HERE, 'new', HERE, 'b'))
    print(os.fstat(held.fileno()).st_nlink, held.read(), open('b').read(), os.stat('sub/c').st_nlink)
    os.link('b', 'd')
`

// TestRenameLinks: a program sees the right names, and the disk has them once gVisor has
// dropped its cache.
func TestRenameLinks(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	in := func(args ...string) string {
		t.Helper()
		return h.Run("", "cove", append([]string{"exec", "-s", "paint", "--"}, args...)...)
	}
	const once = `rename done a=3 b=3
renameat done a=3 b=3
renameat2 done a=3 b=3
noreplace File exists a=3 b=3
exchange done a=3 b=3
slash Not a directory a=3 b=3
missing No such file or directory a=3 b=3
itself done a=3 b=3
symlinks done a=3 b=3 to=2 too=2
symlink done a=2 b=2 too=2
a ['c'] 2
over done a=2 b=1 too=2
1 one two 1
`
	if got := in("python3", "-c", renamed); got != once+once {
		t.Errorf("names: %s", e2e.FirstDifference(once+once, got))
	}
	const list = "cd links; find . -type d -o -printf '%p %n %Y\\n' | sort; cat b d sub/c"
	names := in("sh", "-c", list)
	if want := "./a 2 L\n./b 2 f\n./d 2 f\n./sub/c 1 f\n./too 2 L\ntwotwoone"; names != want {
		t.Errorf("names on the disk: %s", e2e.FirstDifference(want, names))
	}
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	if now := in("sh", "-c", list); now != names {
		t.Errorf("after a checkpoint: %s", e2e.FirstDifference(names, now))
	}
	in("sh", "-c", "cd links; rm b d; echo 3 >b; ln b d; python3 -c 'import os; os.rename(\"d\", \"b\")'")
	names = in("sh", "-c", list)
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	h.Run("", "cove", "restore", "-s", "paint", "v2")
	if now := in("sh", "-c", list); now != names {
		t.Errorf("after a restore: %s", e2e.FirstDifference(names, now))
	}
}

// TestSpecialFiles: docs/limits.md says of FIFOs and sockets that they are not on the disk.
func TestSpecialFiles(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	in := func(script string) string {
		t.Helper()
		return h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", script)
	}
	const all = "fifo\nfile\nsocket\n"
	if got := in("mkdir f; cd f; echo x >file; mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; ls"); got != all {
		t.Fatalf("made %q", got)
	}
	h.Run("", "cove", "checkpoint", "create", "-s", "paint", "--memory")
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	h.Run("", "cove", "suspend", "paint")
	if got := in("ls f"); got != all {
		t.Errorf("after a sleep: %q", got)
	}
	h.Run("", "cove", "restore", "-s", "paint", "v2")
	if got := in("ls f"); got != "file\n" {
		t.Errorf("after a restore without memory: %q", got)
	}
	h.Run("", "cove", "restore", "-s", "paint", "v1")
	if got := in("ls f"); got != all {
		t.Errorf("after a restore with memory: %q", got)
	}
}
