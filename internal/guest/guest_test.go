package guest_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/sprites"
)

// lastResort bounds what a test waits for. It keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

// longEnough calls f with a time, and again with a longer one if f says that the time was not
// enough for this machine.
func longEnough(t *testing.T, d time.Duration, f func(d time.Duration) (enough bool)) {
	t.Helper()
	for ; !f(d); d *= 6 {
		if d > lastResort/2 {
			t.Fatalf("%v are not enough", d)
		}
	}
}

// machine is a guest in this process, whose commands run on the host in dir.
type machine struct {
	*sprites.Sprite
	t               *testing.T
	url, token, dir string
	http            *http.Client // whose connections have passed the handshake
	uid             int
}

func start(t *testing.T, s *guest.Server) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir(), token: "secret", uid: os.Getuid()}
	if s.User == "" {
		s.User = strconv.Itoa(m.uid)
	}
	s.Token, s.Workdir = m.token, m.dir
	web := httptest.NewUnstartedServer(s.Handler())
	web.Listener = s.Door(web.Listener)
	web.Start()
	m.url = web.URL
	transport := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			err = boot.GreetWithin(ctx.Done(), conn, m.token)
		}
		return conn, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	m.http = &http.Client{Transport: transport}
	m.Sprite = (&sprites.Client{URL: web.URL, HTTPClient: m.http}).Self()
	t.Cleanup(func() {
		s.Stop(0)
		web.CloseClientConnections()
		web.Close()
		m.must(s.Close())
	})
	return m
}

func (m *machine) must(errs ...error) {
	m.t.Helper()
	if err := errors.Join(errs...); err != nil {
		m.t.Fatal(err)
	}
}

func same[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%.500s: got %.500q, want %.500q", what, fmt.Sprint(got), fmt.Sprint(want))
	}
}

func is(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", what, err, target)
	}
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// shell prepares a shell script that may run without a client for ever.
func (m *machine) shell(ctx context.Context, script string) *sprites.Cmd {
	cmd := m.CommandContext(ctx, "sh", "-c", script)
	cmd.MaxRunAfterDisconnect = new(time.Duration)
	return cmd
}

// startUntil starts cmd and returns when its output has begun with want.
func (m *machine) startUntil(cmd *sprites.Cmd, want string) io.Reader {
	m.t.Helper()
	out, err := cmd.StdoutPipe()
	m.must(err, cmd.Start())
	m.expect(out, want)
	return out
}

func (m *machine) expect(r io.Reader, want string) {
	m.t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(r, got)
	m.must(err)
	same(m.t, "output", string(got), want)
}

func (m *machine) write(w io.Writer, text string) {
	m.t.Helper()
	_, err := io.WriteString(w, text)
	m.must(err)
}

// call makes a request of its own, checks the answer's status and returns the body.
func (m *machine) call(method, target, body string, want int) string {
	m.t.Helper()
	req, err := http.NewRequestWithContext(m.t.Context(), method, m.url+target, strings.NewReader(body))
	m.must(err)
	resp, err := m.http.Do(req)
	m.must(err)
	answer, err := io.ReadAll(resp.Body)
	m.must(err, resp.Body.Close())
	same(m.t, method+" "+target+" "+body+": "+string(answer), resp.StatusCode, want)
	return string(answer)
}

// dial connects to the guest, to send bytes that no HTTP client would send.
func (m *machine) dial() *net.TCPConn {
	conn, err := net.Dial("tcp", strings.TrimPrefix(m.url, "http://"))
	m.must(err, boot.GreetWithin(m.t.Context().Done(), conn, m.token), conn.SetDeadline(time.Now().Add(lastResort)))
	m.t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

// fifo makes a FIFO in the guest's folder and opens this end of it.
func (m *machine) fifo(name string, flag int) *os.File {
	m.must(syscall.Mkfifo(m.path(name), 0o600))
	f, err := os.OpenFile(m.path(name), flag|syscall.O_NONBLOCK, 0)
	m.must(err, f.SetDeadline(time.Now().Add(lastResort)))
	m.t.Cleanup(func() { _ = f.Close() })
	return f
}

// await waits until no process has the other end of f open.
func (m *machine) await(f *os.File) {
	m.t.Helper()
	_, err := io.Copy(io.Discard, f)
	m.must(err)
}

func exit(t *testing.T, err error, code int, reason string) {
	t.Helper()
	e, ok := errors.AsType[*sprites.ExitError](err)
	if code == 0 && err != nil || code != 0 && (!ok || e.Code != code || e.Reason != reason) {
		t.Errorf("got %v, want code %d, reason %q", err, code, reason)
	}
}

func TestExitCodes(t *testing.T) {
	m := start(t, &guest.Server{})
	m.tree("bare=echo $0 $1 >&2; exit 9", "locked=")
	m.must(os.Chmod(m.path("bare"), 0o755))
	for _, test := range []struct {
		args           []string
		code           int
		reason, stderr string
	}{
		{[]string{"true"}, 0, "", ""},
		{[]string{"sh", "-c", "echo no >&2; exit 42"}, 42, "", "no\n"},
		{[]string{"sh", "-c", "exit 255"}, 255, "", ""},
		{[]string{"sh", "-c", "exit 143"}, 143, "", ""}, // which no signal was
		{[]string{"sh", "-c", "kill -TERM $$"}, 143, "signal:TERM", ""},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137, "signal:KILL", ""},
		{[]string{"no-such-program"}, 127, "", "cove: no-such-program: command not found\n"},
		{[]string{"./nowhere"}, 127, "", "cove: ./nowhere: no such file or directory\n"},
		{[]string{"./locked"}, 126, "", "cove: ./locked: permission denied\n"},
		{[]string{"./bare", "arg"}, 9, "", m.path("bare") + " arg\n"},
	} {
		var stderr strings.Builder
		cmd := m.Command(test.args[0], test.args[1:]...)
		cmd.Stderr = &stderr
		exit(t, cmd.Run(), test.code, test.reason)
		same(t, fmt.Sprint(test.args), stderr.String(), test.stderr)
	}
	cmd := m.Command("sh", "-c", `echo "$A $B $C"; pwd; cat`) // whose input is empty
	cmd.Env, cmd.Dir = []string{"A=x y", "B=", "C=a=b", "A=z&"}, "/"
	out, err := cmd.Output()
	exit(t, err, 0, "")
	same(t, "output", string(out), "z&  a=b\n/\n")
}

func noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return string(b)
}

func TestStreams(t *testing.T) {
	m := start(t, &guest.Server{})
	data := noise(6<<20 + 123)
	cmd := m.Command("sh", "-c", "cat >in; cat in & cat in >&2; wait")
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(data), &stdout, &stderr
	exit(t, cmd.Run(), 0, "")
	same(t, "output", stdout.String(), data)
	same(t, "error output", stderr.String(), data)

	cmd = m.Command("sh", "-c", "read a; echo got $a; cat; echo end")
	stdin, _ := cmd.StdinPipe()
	out := m.startUntil(cmd, "")
	m.write(stdin, "one\n")
	m.expect(out, "got one\n")
	m.write(stdin, "rest")
	m.expect(out, "rest")
	m.must(stdin.Close())
	m.expect(out, "end\n")
	exit(t, cmd.Wait(), 0, "")
	// A command that does not read its input can end all the same.
	cmd = m.Command("sh", "-c", "exec <&-; exit 3")
	cmd.Stdin = strings.NewReader(data)
	exit(t, cmd.Run(), 3, "")
}

// A caller that has not proved that it knows the token gets only the guest's proof. The token
// itself is never sent.
func TestHandshake(t *testing.T) {
	m := start(t, &guest.Server{})
	for target, want := range map[string]int{"/v1/health": 200, "/v1/nowhere": 404, "/v1/stop": 405, "/v1/connect": 426} {
		m.call("GET", target, "", want)
	}
	addr := strings.TrimPrefix(m.url, "http://")
	var calls []net.Conn
	raw := func() net.Conn {
		conn, err := net.Dial("tcp", addr)
		m.must(err, conn.SetDeadline(time.Now().Add(lastResort)))
		t.Cleanup(func() { _ = conn.Close() })
		calls = append(calls, conn)
		return conn
	}
	for _, text := range []string{
		"GET /v1/health HTTP/1.1\r\nHost: guest\r\nAuthorization: Bearer secret\r\n\r\n", "cove-guest/0\r\n\r\n" + strings.Repeat("n", 32), strings.Repeat("x", 1000),
	} {
		conn := raw()
		_, _ = io.WriteString(conn, text) // it may have been closed already
		if got, _ := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("%q is answered by %q", text, got)
		}
	}
	for _, key := range []string{"", "secre", "secrets", "wrong"} {
		conn := raw()
		is(t, "another key "+key, boot.Greet(conn, key), boot.ErrHandshake)
	}
	// A listener that has seen a handshake can't replay it, nor pose as the guest.
	var heard bytes.Buffer
	conn := raw()
	m.must(boot.Greet(struct {
		io.Reader
		io.Writer
	}{conn, io.MultiWriter(conn, &heard)}, m.token))
	again := raw()
	m.write(again, heard.String()+"GET /v1/health HTTP/1.1\r\nHost: guest\r\n\r\n")
	if got, _ := io.ReadAll(again); len(got) != 64 {
		t.Errorf("a handshake once more is answered by %q", got)
	}
	// Silent connections keep nobody out.
	for range 300 {
		raw()
	}
	_, err := calls[len(calls)-300].Read(make([]byte, 1)) // so most of them are counted before the next one comes
	is(t, "the oldest of many that are silent", err, io.EOF)
	conn = raw()
	m.must(boot.Greet(conn, m.token))
	m.write(conn, "GET /v1/health HTTP/1.1\r\nHost: guest\r\n\r\n")
	m.expect(conn, "HTTP/1.1 200 OK")
}

// family is a script that starts descendants of all kinds. Each has life open, ignores TERM
// and HUP, and prints a dot.
type family struct {
	script, dots string
	life         *os.File
}

// followers runs a test with both ways to follow a session's processes: through /proc, and in
// cgroups, if this machine lets the test make some.
func followers(t *testing.T, test func(t *testing.T, m *machine, f family)) {
	for _, mount := range []string{"", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		root, f := "", family{dots: "...", script: `exec 9>life; trap "" TERM HUP
			wait='printf .; exec sleep 60'
			sh -c "$wait" &
			setsid sh -c "$wait" &
			sh -c 'setsid sh -c "$1" & wait' sh "$wait" &` + "\n"}
		if mount != "" { // which alone finds who left the process tree before anyone looked
			f.script, f.dots = f.script+"(setsid sh -c \"$wait\" &)\n", "...."
			root = filepath.Join(mount, fmt.Sprintf("cove-guest-test-%d", os.Getpid()))
			if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil || os.Mkdir(root, 0o755) != nil {
				continue
			}
			t.Cleanup(func() { is(t, "remove the cgroup", os.Remove(root), nil) })
		}
		t.Run("in "+mount, func(t *testing.T) {
			m := start(t, &guest.Server{CgroupRoot: root})
			f.life = m.fifo("life", os.O_RDONLY)
			test(t, m, f)
		})
	}
}

func TestEnds(t *testing.T) {
	followers(t, func(t *testing.T, m *machine, f family) {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := m.shell(ctx, f.script+"wait")
		m.startUntil(cmd, f.dots)
		cancel()
		same(t, "end", cmd.Wait(), context.Canceled) // itself: the end is confirmed
		m.await(f.life)
		longEnough(t, 1500*time.Millisecond, func(limit time.Duration) bool {
			cmd := m.shell(t.Context(), f.script+"while :; do wait; done")
			cmd.Timeout, cmd.Grace = limit, 50*time.Millisecond
			out, err := cmd.StdoutPipe()
			m.must(err, cmd.Start())
			begun, err := io.ReadAll(out)
			m.must(err)
			exit(t, cmd.Wait(), 124, "timeout")
			m.await(f.life)
			return string(begun) == f.dots
		})
	})
}

// kill returns the events of a session's kill, in short, and the exit code.
func (m *machine) kill(id, query, body string) (events string) {
	answer, code := m.call("POST", "/v1/exec/"+id+"/kill?"+query, body, http.StatusOK), -1
	for line := range strings.Lines(answer) {
		var e sprites.KillEvent
		m.must(json.Unmarshal([]byte(line), &e))
		if e.ExitCode != nil {
			code = *e.ExitCode
		}
		events += cmp.Or(e.Signal, e.Type) + " "
	}
	return events + strconv.Itoa(code)
}

// late reports whether the events of a kill say that what had to end by itself did not end in
// time.
func late(events, want string) bool {
	return slices.ContainsFunc([]string{"timeout", "killed"}, func(word string) bool {
		return strings.Contains(events, word) && !strings.Contains(want, word)
	})
}

func TestKillEvents(t *testing.T) {
	followers(t, func(t *testing.T, m *machine, f family) {
		mild := "exec 9>life; trap 'exit 6' USR1; printf .; while :; do sleep 0.01; done"
		for _, test := range []struct{ script, dots, query, body, want, reason string }{
			{mild, ".", "", "", "SIGTERM exited complete 143 143", "signal:TERM"},
			{mild, ".", "signal=usr1&timeout=9s", `{"signal":"KILL"}`, "SIGUSR1 exited complete 6 6", ""},
			{mild, ".", "", `{"signal":"SIGUSR1","timeout":"9s"}`, "SIGUSR1 exited complete 6 6", ""},
			{mild, ".", "signal=10&timeout=0s", "", "SIGUSR1 complete -1 6", ""},
			{f.script + "while :; do wait; done", f.dots, "timeout=100ms", "", "SIGTERM timeout killed complete 137 137", "signal:KILL"},
			{f.script + "trap - TERM; printf .; while :; do sleep 0.01; done", f.dots + ".", "timeout=LIMIT", "", "SIGTERM exited killed complete 143 143", "signal:TERM"},
			{f.script + "wait", f.dots, "signal=KILL", "", "SIGKILL exited complete 137 137", "signal:KILL"},
			{f.script + "wait", f.dots, "signal=KILL&timeout=0s", "", "SIGKILL complete -1 137", "signal:KILL"},
		} {
			longEnough(t, 500*time.Millisecond, func(limit time.Duration) bool {
				cmd := m.shell(t.Context(), test.script)
				m.startUntil(cmd, test.dots)
				events := m.kill(cmd.SessionID(), strings.ReplaceAll(test.query, "LIMIT", limit.String()), test.body)
				err := cmd.Wait()
				e, ok := errors.AsType[*sprites.ExitError](err)
				if !ok {
					t.Fatalf("%s%s: after %s: got %v", test.query, test.body, events, err)
				}
				m.await(f.life)
				if late(events, test.want) {
					t.Logf("%s%s: %s", test.query, test.body, events)
					return false // this machine has much to do
				}
				same(t, "events and end of "+test.query+test.body, fmt.Sprint(events, " ", e.Code, e.Reason), test.want+test.reason)
				return true
			})
		}
	})
}

func TestBackground(t *testing.T) {
	followers(t, func(t *testing.T, m *machine, f family) {
		ask, answer := m.fifo("ask", os.O_RDWR), m.fifo("answer", os.O_RDWR)
		for query, want := range map[string]string{"timeout=0s": "SIGTERM complete -1", "": "SIGTERM exited complete 7", "signal=9&timeout=0s": "SIGKILL complete -1"} {
			longEnough(t, time.Second, func(time.Duration) bool {
				// Its output no longer has a reader. It must neither die nor block.
				cmd := m.shell(t.Context(), `exec 9>life; (while read x <ask; do head -c 300000 /dev/zero; echo "$x" >answer; done) & exit 7`)
				exit(t, cmd.Run(), 7, "")
				same(t, "sessions", m.call("GET", "/v1/exec", "", http.StatusOK), `{"count":0,"sessions":[]}`+"\n")
				m.write(ask, "there?\n")
				m.expect(answer, "there?\n")
				events := m.kill(cmd.SessionID(), query, "")
				m.await(f.life)
				if late(events, want) {
					t.Logf("%s: %s", query, events)
					return false // this machine has much to do
				}
				same(t, "events of "+query, events, want)
				return true
			})
		}
	})
}

func TestSessions(t *testing.T) {
	m, began := start(t, &guest.Server{MaxSessions: 1}), time.Now()
	cmd := m.shell(t.Context(), `printf out; printf err >&2; read a; printf "$a"; read b; printf "$b"; exit 3`)
	_, _ = cmd.StdinPipe() // which stays open
	first := m.startUntil(cmd, "out")
	list, err := m.Sessions(t.Context())
	m.must(err)
	same(t, "sessions listed", len(list), 1)
	id := cmd.SessionID()
	if s := list[0]; s.ID != id || !strings.HasPrefix(s.Command, "sh -c printf out;") || s.Workdir != m.dir || s.TTY || time.Since(s.Created) > lastResort {
		t.Errorf("got %+v", s)
	}
	if s := list[0]; s.LastActivity == nil || s.LastActivity.Before(began) || !s.IsActive && time.Since(*s.LastActivity) < 5*time.Second { // it is active for 5 s
		t.Errorf("its output is not its last activity: %+v", s)
	}
	m.call("GET", "/v1/exec/"+id, "", http.StatusOK)
	is(t, "one too many", m.Command("true").Run(), sprites.ErrLimited)
	// A second client gets the old output, then the new, and may type.
	var stderr strings.Builder
	second := m.Attach(t.Context(), id)
	second.Stderr = &stderr
	input, _ := second.StdinPipe()
	out := m.startUntil(second, "out")
	m.write(input, "one\n")
	m.expect(out, "one")
	m.expect(first, "one")
	m.must(cmd.Detach())
	m.write(input, "two\n")
	m.expect(out, "two")
	exit(t, second.Wait(), 3, "")
	same(t, "stderr", stderr.String(), "err")
}

func TestUnknownSessions(t *testing.T) {
	m := start(t, &guest.Server{})
	_, err := m.Kill(t.Context(), "12345", "", 0)
	is(t, "kill", err, sprites.ErrNotFound)
	is(t, "attach", m.Attach(t.Context(), "12345").Run(), sprites.ErrNotFound)
	m.call("GET", "/v1/exec/12345", "", http.StatusNotFound)
	cmd := m.Command("sh", "-c", "printf .; exec sleep 60")
	m.startUntil(cmd, ".")
	id := cmd.SessionID()
	for _, bad := range []string{"signal=NOPE", "signal=0", "signal=65", "signal=-9", "timeout=x", "timeout=-1s"} {
		m.call("POST", "/v1/exec/"+id+"/kill?"+bad, "", http.StatusBadRequest)
	}
	m.must(cmd.Signal(os.Interrupt))
	exit(t, cmd.Wait(), 130, "signal:INT")
	for err = nil; err == nil; { // it is gone just after its exit
		_, err = m.Kill(t.Context(), id, "", 0)
	}
	is(t, "kill of one that ended", err, sprites.ErrGone)
	exit(t, m.Attach(t.Context(), id).Run(), 130, "signal:INT") // its end may not have been heard
}

// detached starts a script that may run without a client, leaves it, and returns the session's
// id when it has ended.
func (m *machine) detached(script string) string {
	m.t.Helper()
	cmd := m.shell(m.t.Context(), script)
	m.must(cmd.Start())
	id := cmd.SessionID()
	if err := cmd.Detach(); err != nil {
		is(m.t, "detach", err, sprites.ErrGone)
	}
	for deadline := time.Now().Add(lastResort); ; {
		list, err := m.Sessions(m.t.Context())
		m.must(err)
		if len(list) == 0 {
			return id
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%+v goes on", list)
		}
		<-time.After(time.Millisecond)
	}
}

// TestKeptSessions: if a command ends without a client, a later client gets its output and its
// exit.
func TestKeptSessions(t *testing.T) {
	m := start(t, &guest.Server{})
	attach := func(id string) (stdout, stderr string, err error) {
		t.Helper()
		var out, errs strings.Builder
		cmd := m.Attach(t.Context(), id)
		cmd.Stdout, cmd.Stderr = &out, &errs
		err = cmd.Run()
		return out.String(), errs.String(), err
	}
	first := m.detached("echo one; echo two >&2; exit 5")
	for range 2 {
		stdout, stderr, err := attach(first)
		same(t, "stdout", stdout, "one\n")
		same(t, "stderr", stderr, "two\n")
		exit(t, err, 5, "")
	}
	_, err := m.Kill(t.Context(), first, "", 0)
	is(t, "kill", err, sprites.ErrGone)
	m.call("GET", "/v1/exec/"+first, "", http.StatusNotFound)

	none := m.Command("no-such-program")
	none.MaxRunAfterDisconnect = new(time.Duration)
	exit(t, none.Run(), 127, "")
	_, stderr, err := attach(none.SessionID())
	exit(t, err, 127, "")
	if !strings.Contains(stderr, "command not found") {
		t.Errorf("got %q", stderr)
	}

	for range 20 {
		m.detached("head -c 300000 /dev/zero") // more than is kept of all together
	}
	last := m.detached("head -c 300000 /dev/zero; echo end")
	_, _, err = attach(first)
	is(t, "attach to one of long ago", err, sprites.ErrNotFound)
	stdout, _, err := attach(last)
	m.must(err)
	if !strings.HasSuffix(stdout, "\x00end\n") || len(stdout) < 200<<10 {
		t.Errorf("the last one's end is %d bytes, %q", len(stdout), stdout[max(0, len(stdout)-10):])
	}
	for range 40 {
		m.detached("true")
	}
	_, _, err = attach(last)
	is(t, "attach after many others", err, sprites.ErrNotFound)
}

func TestTerminal(t *testing.T) {
	m := start(t, &guest.Server{})
	cmd := m.Command("sh", "-c", `stty -echo; stty size; test -t 0 && test -t 1 && test -t 2 && echo $TERM; read x; stty size; echo "$x" >&2; exec cat`)
	cmd.TTY = &sprites.Terminal{Rows: 31, Cols: 101}
	stdin, _ := cmd.StdinPipe()
	out := m.startUntil(cmd, "31 101\r\nxterm-256color\r\n")
	m.must(cmd.Resize(50, 132))
	m.write(stdin, "typed\n")
	m.expect(out, "50 132\r\ntyped\r\n")
	m.write(stdin, "\x03") // Ctrl-C
	exit(t, cmd.Wait(), 130, "signal:INT")
	cmd = m.Command("sh", "-c", "stty -echo; stty size; cat; exit 2") // Ctrl-D ends it
	cmd.TTY = &sprites.Terminal{}
	stdin, _ = cmd.StdinPipe()
	m.startUntil(cmd, "24 80\r\n")
	m.must(stdin.Close())
	exit(t, cmd.Wait(), 2, "")
}
