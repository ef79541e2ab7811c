package hostile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// TestHostileMachine: root of a sprite tries to attack the machine below it, and its
// neighbour. The numbers are the statements'.
func TestHostileMachine(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--memory", "300M", "--cpus", "1", "--idle", "0")
	h.Run("", "cove", "create", "other", "--idle", "0")
	h.Run("", "cove", "create", "victim", "--idle", "0") // may lose its sandbox
	e := &hostile{Host: h, server: h.PID()}
	e.works(t, "paint")
	e.works(t, "other")
	e.neighbour = h.Info("other").Cove.Incarnation
	for _, row := range []struct {
		name string
		test func(t *testing.T)
	}{
		{"20 paths, devices and kernel files", e.paths},
		{"21 descriptors of the runtime", e.descriptors},
		{"22 calls at random", e.calls},
		{"23 every file of proc and sys", e.everyFile},
		{"24 nothing shared", e.shared},
		{"25 no rights on the host", e.rights},
		{"26 copies differ", e.copies},
		{"14 its own part of the machine", e.ownPart},
		{"11 a fork bomb", e.forkBomb},
		{"12 too much memory", e.memory},
		{"13 spinners", e.spinners},
		{"9 a flood of files", e.flood},
	} {
		t.Run(row.name, func(t *testing.T) {
			h.T = t
			row.test(t)
			e.unharmed(t)
		})
	}
	h.T = t
}

// hostile is a host with an attacking sprite, paint, and its neighbour, other.
type hostile struct {
	*e2e.Host
	server    int   // the process
	neighbour int64 // its incarnation
}

// root runs a program as a sprite's root, and returns what it printed, and its code.
func (e *hostile) root(sprite string, args ...string) (string, int) {
	e.T.Helper()
	cmd := e.Client().Sprite(sprite).CommandContext(e.T.Context(), args[0], args[1:]...)
	cmd.User = "root"
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*sprites.ExitError](err); ok {
		return string(out), exit.Code
	}
	if err != nil {
		return string(out) + err.Error(), 125
	}
	return string(out), 0
}

// works runs a command in a sprite.
func (e *hostile) works(t *testing.T, sprite string) {
	t.Helper()
	if out, code := e.root(sprite, "true"); code != 0 {
		t.Errorf("a command in %s: %d, %s", sprite, code, out)
	}
}

// unharmed checks that the server still runs, and that the neighbour works and was not
// started again.
func (e *hostile) unharmed(t *testing.T) {
	t.Helper()
	if now := e.PID(); now != e.server {
		t.Errorf("the server was %d, and is %d", e.server, now)
	}
	e.works(t, "other")
	if now := e.Info("other").Cove.Incarnation; now != e.neighbour {
		t.Errorf("the neighbour was started again: %d, and then %d", e.neighbour, now)
	}
	e.works(t, "paint")
}

// climber tries to get at the machine. It prints each attempt that worked and must not.
const climber = `
import ctypes, glob, os, subprocess, sys
secret, word, host_pids = sys.argv[1], sys.argv[2], [int(p) for p in sys.argv[3:]]
libc = ctypes.CDLL(None, use_errno=True)
def bad(what): print(what, flush=True)
for up in ['', '/..' * 40, *('/proc/%s/%s' % (p, l) for p in ['self', '1', *map(str, host_pids)] for l in ['root', 'cwd'])]:
    for path in [up + secret, up + '/../' * 20 + secret]:
        if os.path.exists(path): bad('there is ' + path)
for dev in ['mem', 'kmem', 'port', 'kvm', 'sda', 'vda', 'nvme0n1', 'kmsg', 'loop0', 'loop-control', 'mapper/control', 'vhost-net', 'vfio/vfio']:
    try: os.close(os.open('/dev/' + dev, os.O_RDWR)); bad('opens /dev/' + dev)
    except OSError: pass
for major, minor in [(1, 1), (1, 2), (1, 4), (1, 11), (8, 0), (253, 0), (254, 0), (259, 0), (10, 232), (7, 0)]:
    for kind in [0o020600, 0o060600]:
        name = '/tmp/node'
        try:
            os.mknod(name, kind, os.makedev(major, minor))
            fd = os.open(name, os.O_RDWR); os.close(fd); bad('opens device %d:%d' % (major, minor))
        except OSError: pass
        finally:
            if os.path.lexists(name): os.unlink(name)
for name in glob.glob('/proc/sys/kernel/core_pattern') + glob.glob('/sys/fs/cgroup/**/release_agent', recursive=True) + ['/proc/sysrq-trigger', '/sys/kernel/uevent_helper', '/proc/sys/kernel/modprobe', '/proc/sys/fs/binfmt_misc/register', '/sys/power/state']:
    try: open(name, 'w').write('|/tmp/' + word)
    except OSError: pass
for number in [175, 313, 246, 320]: # init_module, finit_module, kexec_load, kexec_file_load
    if libc.syscall(number, 0, 0, b'', 0) == 0: bad('syscall %d' % number)
libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
os.makedirs('/tmp/at', exist_ok=True)
for source, kind in [(b'/dev/sda', b'ext4'), (b'/dev/sda1', b'ext4'), (b'/dev/vda', b'ext4'), (b'none', b'cgroup'), (b'none', b'proc'), (b'none', b'sysfs'), (b'none', b'devtmpfs'), (b'none', b'debugfs'), (b'none', b'securityfs'), (b'none', b'overlay')]:
    if libc.mount(source, b'/tmp/at', kind, 0, None) == 0:
        for path in ['/tmp/at' + secret, '/tmp/at/1/root' + secret, '/tmp/at/release_agent']:
            if os.path.exists(path): bad('mounted %s: there is %s' % (kind, path))
        libc.umount2(b'/tmp/at', 2)
for flags in [0x10000000, 0x00020000, 0x20000000, 0x40000000]: # of users, mounts, processes, the network
    if os.fork() == 0:
        if libc.unshare(flags) == 0 and os.path.exists(secret): bad('unshare %x' % flags)
        os._exit(0)
    os.wait()
for pid in host_pids:
    if os.path.exists('/proc/%d' % pid) and word in open('/proc/%d/cmdline' % pid).read(): bad('sees process %d' % pid)
    if pid > 1000 and not os.path.exists('/proc/%d' % pid):
        if libc.ptrace(16, pid, 0, 0) == 0: bad('traces %d' % pid)
        try: os.kill(pid, 0); bad('may signal %d' % pid)
        except OSError: pass
print('tried')
`

// 20: no way to the machine's files, devices, kernel settings and processes.
func (e *hostile) paths(t *testing.T) {
	word := fmt.Sprintf("cove-secret-%d", time.Now().UnixNano())
	e.Write(word, word)
	secret := filepath.Join(filepath.Dir(e.Home), word)
	settings := func() (all string) {
		for _, name := range []string{"core_pattern", "modprobe"} {
			data, _ := os.ReadFile("/proc/sys/kernel/" + name) // not every kernel has modules
			all += string(data)
		}
		return all
	}
	before := settings()
	args := []string{"python3", "-c", climber, secret, word}
	for _, pid := range append(e.Shims(), e.server, os.Getpid()) {
		args = append(args, strconv.Itoa(pid))
	}
	if out, code := e.root("paint", args...); code != 0 || out != "tried\n" {
		t.Errorf("%d, %s", code, out)
	}
	if after := settings(); after != before {
		t.Errorf("the machine's settings were\n%s\nand are\n%s", before, after)
	}
}

// 21: a folder or a program reached through a descriptor is the sandbox's own.
func (e *hostile) descriptors(t *testing.T) {
	out, code := e.root("paint", "sh", "-c", "for p in 1 self; do ls -l /proc/$p/fd | sed -n 's/.* -> //p'; done")
	if code != 0 {
		t.Fatalf("%d, %s", code, out)
	}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "/") && !strings.HasPrefix(line, "/dev/") && !strings.HasPrefix(line, "/proc/") && !strings.HasPrefix(line, "/sys/fs/cgroup") && !strings.HasPrefix(line, "/.sprite/") {
			t.Errorf("a descriptor is of %s", line)
		}
		if strings.Contains(line, e.Data) {
			t.Errorf("a descriptor is of the host's %s", line)
		}
	}
	word := "cove-marker"
	e.Write(word, word)
	sprite := e.Client().Sprite("paint")
	for n := range 24 {
		cmd := sprite.CommandContext(t.Context(), "sh", "-c", "pwd -P; echo * ../../../../../../../../*; read line <../../../../../../.."+filepath.Join(filepath.Dir(e.Home), word)+"; echo $line")
		cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", n)
		said, _ := cmd.CombinedOutput() // most descriptors are not folders
		if strings.Contains(string(said), e.Data) || strings.HasSuffix(string(said), word+"\n") {
			t.Errorf("from descriptor %d: %s", n, said)
		}
	}
	guest, err := filepath.Glob(filepath.Join(e.Data, "guest", "*", "cove-guest"))
	if err != nil || len(guest) != 1 {
		t.Fatalf("the guests are %v, %v", guest, err)
	}
	digest := func(name string) [32]byte {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return sha256.Sum256(data)
	}
	was, runsc := digest(guest[0]), digest(filepath.Join(e.Bin, "cove-runsc"))
	out, _ = e.root("paint", "sh", "-c", "for f in /proc/1/exe /.sprite/bin/cove-guest; do echo changed >$f; dd if=/dev/zero of=$f bs=1 count=1 conv=notrunc; chmod 777 $f; rm -f $f; done; mount -o remount,rw /.sprite/bin && echo changed >/.sprite/bin/cove-guest")
	if digest(guest[0]) != was || digest(filepath.Join(e.Bin, "cove-runsc")) != runsc {
		t.Errorf("programs of the host's were changed: %s", out)
	}
}

// thrower makes random system calls, in processes of its own, for so many seconds.
const thrower = `
import ctypes, os, random, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
end = time.time() + float(sys.argv[1])
page = ctypes.create_string_buffer(1 << 16)
at = ctypes.addressof(page)
seed = int(sys.argv[2])
while time.time() < end:
    seed += 1
    pid = os.fork()
    if pid == 0:
        r = random.Random(seed)
        os.setsid(); signal.alarm(2)
        odd = [0, 1, 2, 3, -1, at, at + 100, 1 << 12, 1 << 31, (1 << 63) - 1, -(1 << 63), 0xffffffff]
        for _ in range(300):
            number = r.choice([r.randrange(0, 470), r.randrange(0, 335), r.randrange(0, 1 << 31)])
            if number in (34, 35, 61, 230, 247, 60, 231): continue # would only wait, or end
            libc.syscall(number, *(ctypes.c_long(r.choice(odd + [r.getrandbits(63)])) for _ in range(6)))
        os._exit(0)
    late = time.time() + 2 # a call may have taken the alarm away
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.time() > late: os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
print('thrown')
`

// 22: random system calls end at most the sandbox, which starts again.
func (e *hostile) calls(t *testing.T) {
	// Root may also end its own sandbox, or its network. Then the sprite does not answer
	// for a while.
	seconds, user, limit := "1", "sprite", 10*time.Second
	if e2e.Soak() {
		seconds, user, limit = "600", "root", 12*time.Minute
	}
	seed := strconv.FormatInt(time.Now().UnixNano(), 10)
	// The calls may stop or end any process of the same user, and its parents.
	cmd := e.Client().Sprite("victim").CommandContext(t.Context(), "python3", "-c", thrower, seconds, seed)
	cmd.User, cmd.Timeout = user, limit
	out, err := cmd.CombinedOutput()
	t.Logf("with seed %s: %v, %.200q", seed, err, out)
	var last string
	defer func() {
		if t.Failed() {
			t.Logf("the last that it said: %s", last)
		}
	}()
	// A user may lock itself out of its home, and root may close any folder. That is not a
	// fault of the sandbox.
	e2e.Await(t, "the sprite works again", func() bool {
		out, code := e.Try("", "cove", "exec", "-s", "victim", "--user", "root", "--dir", "/", "--", "chmod", "755", "/", "/home", "/home/sprite")
		if last = out; code == 0 {
			last, code = e.Try("", "cove", "exec", "-s", "victim", "--", "true") // as its user, for the next test
		}
		return code == 0 // a process that was cut off may have changed it once more
	})
}

// toucher reads and writes each file below proc and sys, each for a moment.
const toucher = `
import os, signal, sys
def late(*_): raise TimeoutError()
signal.signal(signal.SIGALRM, late)
own = {'/proc/%d' % os.getpid(), '/proc/self', '/proc/thread-self'}
n = 0
for top in ['/proc', '/sys']:
    for dir, dirs, files in os.walk(top):
        if dir == '/proc': dirs[:] = [d for d in dirs if not d.isdigit() or d == '1']
        if dir.count('/') > 8: dirs[:] = []
        for name in files:
            if name == 'cgroup.kill': continue # would end this
            path = os.path.join(dir, name)
            for flags in [os.O_RDONLY, os.O_WRONLY]:
                if flags and path.startswith('/proc/sys/net'): continue # would end its own network
                signal.setitimer(signal.ITIMER_REAL, 0.5)
                try:
                    fd = os.open(path, flags | os.O_NONBLOCK)
                    n += 1
                    try:
                        if flags == os.O_RDONLY: os.read(fd, 1 << 16)
                        else:
                            for text in [b'1\n', b'x' * 5000]: os.write(fd, text)
                    finally: os.close(fd)
                except (OSError, TimeoutError): pass
                finally: signal.setitimer(signal.ITIMER_REAL, 0)
print('\nopened %d files' % n)
`

// 23: reading and writing each file of proc and sys hangs nobody outside.
func (e *hostile) everyFile(t *testing.T) {
	out, code := e.root("victim", "timeout", "-s", "KILL", "1200", "python3", "-c", toucher)
	n := 0
	// Before and after the count there may be bytes that the program wrote to its own
	// streams.
	if said := regexp.MustCompile(`opened (\d+) files`).FindStringSubmatch(out); said != nil {
		n, _ = strconv.Atoi(said[1])
	}
	if code == 137 || code == 0 && n < 50 {
		t.Errorf("%d, with %d files opened", code, n)
	}
	t.Logf("files opened: %d, code %d", n, code)
	// The sandbox's first process may have been harmed (a file closed or written to): the
	// sandbox's own loss.
}

// runtime finds the sentry and the gofer of a sprite on this machine.
func (e *hostile) runtime(sprite string) (sentry, gofer int) {
	e.T.Helper()
	root := filepath.Join(e.Data, "run", e.Info(sprite).ID, "runsc")
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(data), "--root="+root+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			e.T.Fatal(err)
		}
		switch argv := strings.Split(string(data), "\x00"); {
		case slices.Contains(argv, "boot"):
			sentry = pid
		case slices.Contains(argv, "gofer"):
			gofer = pid
		}
	}
	if sentry == 0 || gofer == 0 {
		e.T.Fatalf("sentry %d, gofer %d of %s", sentry, gofer, sprite)
	}
	return sentry, gofer
}

// procStatus reads a line of a process's status.
func procStatus(t *testing.T, pid int, field string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// 24: two sandboxes share no namespace, no writable memory or file, no socket.
func (e *hostile) shared(t *testing.T) {
	need.Root(t)
	holds := func(sprite string) map[string]bool {
		all := map[string]bool{}
		sentry, gofer := e.runtime(sprite)
		for _, pid := range []int{sentry, gofer} {
			for _, ns := range []string{"net", "mnt", "ipc", "pid"} {
				link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
				if err != nil {
					t.Fatal(err)
				}
				all[link] = true
			}
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(maps)) {
				if f := strings.Fields(line); len(f) > 5 && f[1][1] == 'w' && f[1][3] == 's' {
					all["memory "+f[3]+" "+f[4]] = true
				}
			}
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			for _, fd := range fds {
				info, err := os.ReadFile(strings.Replace(fd, "/fd/", "/fdinfo/", 1))
				link, linkErr := os.Readlink(fd)
				var st unix.Stat_t
				if err != nil || linkErr != nil || unix.Stat(fd, &st) != nil || strings.HasPrefix(link, "/dev/") || strings.HasPrefix(link, "anon_inode:") {
					continue
				}
				for line := range strings.Lines(string(info)) {
					if flags, ok := strings.CutPrefix(line, "flags:"); ok {
						if n, _ := strconv.ParseInt(strings.TrimSpace(flags), 8, 64); n&3 != int64(os.O_RDONLY) {
							all[fmt.Sprintf("open %d:%d", st.Dev, st.Ino)] = true
						}
					}
				}
			}
		}
		return all
	}
	mine, theirs := holds("paint"), holds("other")
	host, _ := os.Readlink("/proc/self/ns/net")
	for what := range mine {
		if theirs[what] || what == host {
			t.Errorf("shared: %s", what)
		}
	}
	if len(mine) < 6 {
		t.Errorf("paint holds only %v", mine)
	}
	// meet leaves, or looks for, the places where programs of two sandboxes could meet.
	const meet = `
import os, socket, sys, time
s = socket.socket(socket.AF_UNIX)
if sys.argv[1] == 'leave':
    open('/dev/shm/left', 'w').write('left'); open('/tmp/left', 'w').write('left')
    s.bind('\0left'); s.listen()
    n = socket.socket(); n.bind(('0.0.0.0', 7999)); n.listen()
    if os.fork() == 0: os.setsid(); os.close(1); os.close(2); time.sleep(1000)
else:
    for f in ['/dev/shm/left', '/tmp/left']:
        if os.path.exists(f): print(f)
    try: s.connect('\0left'); print('socket')
    except OSError: pass
    s = socket.socket(); s.settimeout(600 if sys.argv[2] == '127.0.0.1' else 1)
    try: s.connect((sys.argv[2], 7999)); print('network')
    except OSError: pass
`
	if out, code := e.root("other", "python3", "-c", meet, "leave"); code != 0 {
		t.Fatalf("%d, %s", code, out)
	}
	if out, code := e.root("other", "python3", "-c", meet, "look", "127.0.0.1"); code != 0 || len(strings.Fields(out)) != 4 {
		t.Errorf("in the sprite itself: %d, %q", code, out)
	}
	if out, code := e.root("paint", "python3", "-c", meet, "look", e.Info("other").Cove.Address); code != 0 || out != "" {
		t.Errorf("in its neighbour: %d, %q", code, out)
	}
}

// noCore fails if a process, whose memory may have secrets, could dump core.
func noCore(t *testing.T, name string, pid int) {
	t.Helper()
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(limits)) {
		if rest, ok := strings.CutPrefix(line, "Max core file size"); ok {
			if f := strings.Fields(rest); len(f) < 2 || f[0] != "0" || f[1] != "0" {
				t.Errorf("the core of the %s: %s", name, rest)
			}
			return
		}
	}
	t.Errorf("the %s has no limit of its core", name)
}

// 25: the processes that run a sandbox on the host have at most six capabilities, five of
// them for files. They have namespaces and a file tree of their own, can gain no rights,
// and know no secret.
func (e *hostile) rights(t *testing.T) {
	need.Root(t)
	// For files: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID. Also the gofer has
	// SYS_CHROOT, and the sentry SYS_PTRACE, within its own namespace.
	const ofFiles = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<4
	sentry, gofer := e.runtime("paint")
	noCore(t, "server", e.server)
	token, err := os.ReadFile(filepath.Join(e.Data, "token"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct {
		name    string
		pid     int
		allowed uint64
	}{{"sentry", sentry, ofFiles | 1<<19}, {"gofer", gofer, ofFiles | 1<<18}} {
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
			if n, err := strconv.ParseUint(procStatus(t, p.pid, set), 16, 64); err != nil || n&^p.allowed != 0 {
				t.Errorf("%s of the %s: %x, %v; want at most %x", set, p.name, n, err, p.allowed)
			}
		}
		if got := procStatus(t, p.pid, "NoNewPrivs"); got != "1" {
			t.Errorf("NoNewPrivs of the %s: %s", p.name, got)
		}
		if got := procStatus(t, p.pid, "Seccomp"); got != "2" {
			t.Errorf("Seccomp of the %s: %s", p.name, got)
		}
		noCore(t, p.name, p.pid)
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{strings.TrimSpace(string(token)), "COVE_", "TOKEN", "KEY", "SECRET", "HOME="} {
			if strings.Contains(string(environ), secret) {
				t.Errorf("the environment of the %s has %q: %q", p.name, secret, environ)
			}
		}
		for _, ns := range []string{"mnt", "pid", "net", "ipc"} {
			its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.pid, ns))
			own, ownErr := os.Readlink("/proc/self/ns/" + ns)
			if err != nil || ownErr != nil || its == own {
				t.Errorf("the %s is in the host's namespace %s, %v, %v", p.name, its, err, ownErr)
			}
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", p.pid, e.Data)); err == nil {
			t.Errorf("the %s sees %s", p.name, e.Data)
		}
	}
}

// 26: copies of a running sprite have names, numbers and random bytes of their own.
func (e *hostile) copies(t *testing.T) {
	e.Run("", "cove", "fork", "paint", "copy", "--count", "2")
	names := []string{"paint", "copy-1", "copy-2"}
	seen := map[string]string{}
	for _, name := range names {
		out := e.Run("", "cove", "exec", "-s", name, "--", "sh", "-c", "head -c 16 /dev/urandom | od -An -tx1; cat /etc/machine-id; hostname; cat /etc/ssh/ssh_host_*_key.pub 2>/dev/null; true")
		for line := range strings.Lines(out) {
			if was, ok := seen[line]; ok {
				t.Errorf("%s and %s both have %q", was, name, line)
			}
			seen[line] = name
		}
		state, err := os.ReadFile(filepath.Join(e.Data, "run", e.Info(name).ID, "sandbox.json"))
		if err != nil {
			t.Fatal(err)
		}
		token := e2e.JSONField(t, string(state), "token")
		if was, ok := seen[token]; ok || len(token) < 32 {
			t.Errorf("%s has the token of %q", name, was)
		}
		seen[token] = name
	}
	e.Run("", "cove", "rm", "copy-1", "copy-2")
}
