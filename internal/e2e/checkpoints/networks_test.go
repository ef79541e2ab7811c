package checkpoints

import (
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// dweller is a program of the sprite's user in a network namespace of its own. Its first
// argument says what is in there. At each file ask.N it checks that this is unchanged.
const dweller = `
import fcntl, os, socket, struct, subprocess, sys, time
kind = sys.argv[1]
def ip(*args): subprocess.run(['ip', *args], check=True)
def loopback():
    s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
    c = socket.create_connection(s.getsockname()); a, _ = s.accept()
    return s, c, a
ip('link', 'set', 'lo', 'up')
if kind == 'sockets':
    s, c, a = loopback()
    def look():
        c.sendall(b'x')
        d = socket.create_connection(s.getsockname()); b, _ = s.accept(); d.sendall(b'y')
        return (a.recv(1) + b.recv(1)).decode()
elif kind == 'bridge': # it has learned an address
    ip('link', 'add', 'name', 'br0', 'type', 'bridge')
    ip('addr', 'add', '10.9.0.1/24', 'dev', 'br0')
    inner = subprocess.Popen(['unshare', '-n', sys.executable, '-c', '''if True:
        import socket, sys
        sys.stdin.readline()
        s = socket.socket(); s.bind(('10.9.0.2', 80)); s.listen(); print('listens', flush=True)
        while True: c, _ = s.accept(); c.sendall(b'z'); c.close()'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    own = os.readlink('/proc/self/ns/net')
    while os.readlink('/proc/%d/ns/net' % inner.pid) == own: time.sleep(0.01)
    ip('link', 'add', 'name', 'v0', 'type', 'veth', 'peer', 'name', 'v1')
    ip('link', 'set', 'v1', 'netns', '/proc/%d/ns/net' % inner.pid)
    ip('link', 'set', 'v0', 'master', 'br0')
    for link in 'br0', 'v0': ip('link', 'set', link, 'up')
    for args in ['addr', 'add', '10.9.0.2/24', 'dev', 'v1'], ['link', 'set', 'v1', 'up']:
        subprocess.run(['nsenter', '-t', str(inner.pid), '-n', 'ip', *args], check=True)
    inner.stdin.write(b'\n'); inner.stdin.flush(); inner.stdout.readline()
    def look(): return socket.create_connection(('10.9.0.2', 80)).recv(1).decode()
    look()
elif kind == 'tunnel':
    tun = os.open('/dev/net/tun', os.O_RDWR)
    fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH22x', b'tun7', 0x1001)) # TUNSETIFF, IFF_TUN|IFF_NO_PI
    def look(): return ' '.join(name for _, name in socket.if_nameindex())
elif kind == 'nothing': # a sandbox of an agent's, without a network
    def look(): return 'here'
n = 0
open('ready.' + kind, 'w').close()
while True:
    while not os.path.exists('ask.%s.%d' % (kind, n)): time.sleep(0.01)
    open('said', 'w').write(look())
    os.rename('said', 'said.%s.%d' % (kind, n))
    n += 1
`

// TestOwnNetworks: gVisor saves only the sprite's own network. If programs have another
// network, no checkpoint is made and no memory is kept for a sleep, and the programs go on
// with their connections. Otherwise the sprite would hang, or lose them. An empty network
// does not prevent either.
func TestOwnNetworks(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	h.Write("dweller.py", dweller)
	h.Run("", "cove", "cp", h.Path("dweller.py"), "paint:dweller.py")
	n := 0
	look := func(kind, want string) {
		t.Helper()
		said := h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c",
			`touch ask.$0.$1; until [ -e said.$0.$1 ]; do sleep 0.02; if [ -s failed ]; then cat failed; exit 1; fi; done; cat said.$0.$1`, kind, string(rune('0'+n)))
		n++
		if said != want {
			t.Fatalf("%s: got %q, want %q", kind, said, want)
		}
	}
	for _, test := range []struct{ kind, look, said string }{
		{"nothing", "here", ""},
		{"sockets", "xy", "has sockets"},
		{"bridge", "z", `has links "br0"`},
		{"tunnel", "lo tun7", `"tun7"`},
	} {
		n = 0
		h.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", `exec unshare -Urn python3 dweller.py "$0" >failed 2>&1`, test.kind)
		h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", `until [ -e ready.$0 ] || [ -s failed ]; do sleep 0.02; done; cat failed`, test.kind)
		look(test.kind, test.look)
		w, err := h.Client().Sprite("paint").WatchPorts(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", test.kind, err)
		}
		if open := w.Open(); len(open) > 0 {
			t.Fatalf("%s: %v is open in the sprite", test.kind, open)
		}
		if err := w.Close(); err != nil {
			t.Fatalf("%s: %v", test.kind, err)
		}
		for _, args := range [][]string{{"checkpoint", "create", "-s", "paint"}, {"checkpoint", "create", "-s", "paint", "--memory=always"}, {"suspend", "paint"}} {
			out, code := h.Try("", "cove", args...)
			switch {
			case test.said == "" && code != 0:
				t.Fatalf("%s: %s: exit code %d: %s", test.kind, args, code, out)
			case test.said != "" && (code != 1 || !strings.Contains(out, "networks of their own") || !strings.Contains(out, test.said) || !strings.Contains(out, "cove service stop -s paint docker")):
				t.Fatalf("%s: %s: exit code %d: %s", test.kind, args, code, out)
			}
			look(test.kind, test.look)
		}
		h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "pkill python3; while pgrep python3; do sleep 0.02; done; : >failed")
	}
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
}

// TestSuspendOwnNetworks: a server that ends with its container can't keep the memory of a
// sprite with such a network. The next server says why the memory is gone.
func TestSuspendOwnNetworks(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil, "--suspend-at-end", "--idle", "0")
	h.Run("", "cove", "create", "paint")
	h.Write("dweller.py", dweller)
	h.Run("", "cove", "cp", h.Path("dweller.py"), "paint:dweller.py")
	h.Run("", "cove", "exec", "-s", "paint", "--detach", "--", "sh", "-c", `exec unshare -Urn python3 dweller.py sockets >failed 2>&1`)
	h.Sh("paint", `until [ -e ready.sockets ] || [ -s failed ]; do sleep 0.02; done; cat failed`)
	h.EndServer(syscall.SIGTERM)
	st, shims := h.SandboxState(), h.Shims()
	e2e.SignalAll(t, syscall.SIGKILL, append(shims, st.PID)...) // as all processes of the container
	for _, pid := range append(shims, st.PID) {
		if err := e2e.AwaitEnd(pid); err != nil {
			t.Fatal(err)
		}
	}
	h.Serve(nil, "--idle", "0")
	out, code := h.Try("", "cove", "exec", "-s", "paint", "--", "ls")
	if code != 0 || !strings.Contains(out, "its memory was not kept: programs have networks of their own") || !strings.Contains(out, "ready.sockets") {
		t.Errorf("exit code %d: %s", code, out)
	}
}
