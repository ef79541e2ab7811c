package hostile

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// usurper tries to take the guest's place, as the user that runs it. It prints each
// attempt that worked and must not.
const usurper = `
import ctypes, os, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def bad(what): print(what, flush=True)
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); probe.connect(('10.88.0.1', 9))
own = probe.getsockname()[0]
for family, addr in [(socket.AF_INET, a) for a in [own, '0.0.0.0', '127.0.0.1', '127.0.0.2']] + [(socket.AF_INET6, a) for a in ['::', '::ffff:' + own, '::ffff:127.0.0.1']]:
    for options in [(), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)]:
        for device in [None, b'eth0', b'lo']:
            s = socket.socket(family, socket.SOCK_STREAM)
            try:
                for o in options: s.setsockopt(socket.SOL_SOCKET, o, 1)
                if device: s.setsockopt(socket.SOL_SOCKET, 25, device)
                if family == socket.AF_INET6: s.setsockopt(41, 26, 0)
                s.bind((addr, 7070)); s.listen(); bad('listens at %s %s %s' % (addr, options, device))
            except OSError: pass
            s.close()
class iovec(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]
here, there = iovec(ctypes.cast(ctypes.create_string_buffer(16), ctypes.c_void_p), 16), iovec(0x400000, 16)
if libc.process_vm_readv(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0: bad('reads its memory by a call')
if libc.ptrace(0x4206, 1, 0, 0) == 0: bad('traces it') # seize, which stops nothing
for name in ['mem', 'environ', 'maps', 'auxv']:
    try:
        with open('/proc/1/' + name, 'rb') as f:
            if name == 'mem': f.seek(0x400000)
            if f.read(8): bad('reads ' + name)
    except OSError: pass
for fd in range(64):
    try: os.readlink('/proc/1/fd/%d' % fd); bad('reads descriptor %d' % fd)
    except OSError: pass
pidfd = libc.syscall(434, 1, 0)
for fd in range(64):
    if pidfd >= 0 and libc.syscall(438, pidfd, fd, 0) >= 0: bad('gets descriptor %d' % fd)
for family, kind, protocol in [(17, 3, 0x300), (2, 3, 6), (2, 3, 255), (10, 3, 6)]:
    try: socket.socket(family, kind, protocol); bad('has a raw socket %d' % family)
    except OSError: pass
for command in ['ip addr add 10.88.7.7/16 dev eth0', 'ip addr add 192.0.2.9/32 dev lo']:
    if subprocess.run(command.split(), capture_output=True).returncode == 0: bad(command)
try: open('/.sprite/bin/cove-guest', 'ab'); bad('writes its program')
except OSError: pass
for text in [b'GET /v1/health HTTP/1.1\r\nHost: guest\r\nAuthorization: Bearer x\r\n\r\n', b'x' * 200]:
    s = socket.create_connection((own, 7070), 600); s.sendall(text)
    try:
        got = s.recv(4096)
        if got: bad('is answered %r' % got)
    except ConnectionError: pass
# A user's own processes may be traced, and a network of one's own may be set up.
child = os.fork()
if child == 0:
    os.execvp('sleep', ['sleep', '1000'])
if libc.ptrace(0x4206, child, 0, 0) != 0: bad('does not trace a process of its own: %d' % ctypes.get_errno())
os.kill(child, 9); os.waitpid(child, 0)
if subprocess.run('unshare --user --map-root-user --net ip addr add 192.0.2.9/32 dev lo'.split()).returncode != 0: bad('has no network of its own')
print('tried')
`

// TestGuestsPlace: from S: no process, not even root's, can take the guest's port, read
// its memory or descriptors, or answer for it. The guest's key is sent to nobody. The
// same holds after a wake, which changes the guest's address, and after a checkpoint.
func TestGuestsPlace(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	for _, when := range []string{"booted", "checkpointed", "woken"} {
		switch when {
		case "checkpointed":
			h.Run("", "cove", "checkpoint", "create", "-s", "paint")
		case "woken":
			h.Run("", "cove", "suspend", "paint")
		}
		for _, user := range []string{"root", "sprite"} {
			if out := h.Run("", "cove", "exec", "-s", "paint", "--user", user, "--", "python3", "-c", usurper); out != "tried\n" {
				t.Errorf("%s, as %s:\n%s", when, user, out)
			}
		}
	}
	// The guest itself can still see the processes of all users.
	out := h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "grep", "^CapPrm", "/proc/1/status", "/proc/self/status")
	if lines := strings.Fields(out); len(lines) != 4 || lines[1] == lines[3] {
		t.Errorf("the guest has no rights of its own: %s", out)
	}
}
