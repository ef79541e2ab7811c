package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// These tests speak the protocol's exec by bare WebSockets, as clients do that
// are not ours.

// socket is an exec's WebSocket, and what has come on it so far.
type socket struct {
	t      *testing.T
	conn   *websocket.Conn
	header http.Header
	frames []frame
}

type frame struct {
	text bool
	data []byte
}

// argv is the query of a command.
func argv(args ...string) string {
	q := url.Values{"cmd": args, "path": args[:1]}
	return "?" + q.Encode()
}

func dial(t *testing.T, s *covetest.Server, path string) *socket {
	t.Helper()
	conn, resp, err := websocket.Dial(t.Context(), s.URL+"/v1/sprites/paint/exec"+path, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}},
	})
	must(t, err)
	conn.SetReadLimit(-1)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &socket{t: t, conn: conn, header: resp.Header}
}

// next reads a message.
func (s *socket) next() (frame, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), lastResort)
	defer cancel()
	typ, data, err := s.conn.Read(ctx)
	if err != nil {
		return frame{}, err
	}
	f := frame{typ == websocket.MessageText, data}
	s.frames = append(s.frames, f)
	return f, nil
}

func (s *socket) send(data string) {
	s.t.Helper()
	must(s.t, s.conn.Write(s.t.Context(), websocket.MessageBinary, []byte(data)))
}

func (s *socket) say(text string) {
	s.t.Helper()
	must(s.t, s.conn.Write(s.t.Context(), websocket.MessageText, []byte(text)))
}

// until reads until the output of a stream ends in want; terminals have stream -1.
func (s *socket) until(stream int, want string) {
	s.t.Helper()
	for !strings.HasSuffix(s.output(stream), want) {
		if _, err := s.next(); err != nil {
			s.t.Fatalf("after %q: %v", s.output(stream), err)
		}
	}
}

func (s *socket) output(stream int) string {
	var b strings.Builder
	for _, f := range s.frames {
		switch {
		case f.text || len(f.data) == 0:
		case stream < 0:
			b.Write(f.data)
		case int(f.data[0]) == stream:
			b.Write(f.data[1:])
		}
	}
	return b.String()
}

// message finds a text message.
func (s *socket) message(typ string) (m sprites.Message, ok bool) {
	for _, f := range s.frames {
		if f.text && json.Unmarshal(f.data, &m) == nil && m.Type == typ {
			return m, true
		}
	}
	return sprites.Message{}, false
}

// end reads to the close, and returns the exit code and the close's status. The end must be as
// every client understands it. After all output come the text message, without a terminal also
// the frame, and then nothing but the close.
func (s *socket) end(tty bool) (code int, status websocket.StatusCode) {
	s.t.Helper()
	var err error
	for err == nil {
		_, err = s.next()
	}
	e, ok := errors.AsType[websocket.CloseError](err)
	if !ok {
		s.t.Fatalf("no close: %v", err)
	}
	n := 1
	if !tty {
		n = 2
	}
	if len(s.frames) < n {
		s.t.Fatalf("only %d messages", len(s.frames))
	}
	last := s.frames[len(s.frames)-n:]
	var m sprites.Message
	if err := json.Unmarshal(last[0].data, &m); !last[0].text || err != nil || m.Type != "exit" || m.ExitCode == nil || m.Code == nil || *m.Code != *m.ExitCode {
		s.t.Fatalf("the end is %q", last[0].data)
	}
	if !tty && !bytes.Equal(last[1].data, []byte{3, byte(*m.ExitCode)}) {
		s.t.Errorf("the exit frame is %x", last[1].data)
	}
	return *m.ExitCode, e.Code
}

// ran runs a command to its end.
func ran(t *testing.T, s *covetest.Server, query string) *socket {
	t.Helper()
	c := dial(t, s, query)
	c.end(false)
	return c
}

func (s *socket) wants(stdout, stderr string, code int) {
	s.t.Helper()
	m, _ := s.message("exit")
	if s.output(1) != stdout || s.output(2) != stderr || m.ExitCode == nil || *m.ExitCode != code {
		s.t.Errorf("got %.200q, %.200q and %+v, want %.200q, %.200q and %d", s.output(1), s.output(2), m, stdout, stderr, code)
	}
	if info, ok := s.message("session_info"); !ok || !s.frames[0].text || info.SessionID == "" || info.TTY {
		s.t.Errorf("the first message is %q", s.frames[0].data)
	}
}

// Statement 26: argv is not split again; output exact.
// Statement 28: dir=/tmp → pwd prints /tmp.
// Statement 29: env pairs are visible, the program still found through PATH.
// Statement 30: the exit code passes: 42.
// Statement 34: stdout and stderr are separate without a terminal.
// Statement 39: without a terminal 03 NN and the text exit come after all output.
// Statement 47: program not found → 101, stderr text, exit 127.
func TestRawExec(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	ran(t, s, argv("printf", "%s|", "a b", "$HOME", `"`, "*", "")).wants(`a b|$HOME|"|*||`, "", 0)
	ran(t, s, argv("pwd")+"&dir=/tmp").wants("/tmp\n", "", 0)
	ran(t, s, argv("sh", "-c", "echo $A $B; command -v ls >/dev/null")+"&env=A%3Db+c&env=B%3D").wants("b c\n", "", 0)
	ran(t, s, argv("sh", "-c", "echo out; echo err >&2; exit 42")).wants("out\n", "err\n", 42)
	c := dial(t, s, argv("no-such-program"))
	c.end(false)
	c.wants("", "cove: no-such-program: command not found\n", 127)
	for range 20 { // quick commands lose nothing
		ran(t, s, argv("sh", "-c", "echo 1; echo 2 >&2; exit 3")).wants("1\n", "2\n", 3)
	}
}

// TestRawExactly: whatever can be an argument or a variable arrives as it is.
func TestRawExactly(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	large := strings.Repeat("x", 120_000)
	args := []string{"a\nb", "$(id)", "`id`", "a;b", "-rf", " ", "\x01\x7f", "ü", large}
	c := ran(t, s, argv(append([]string{"printf", "%s\\n--\\n"}, args...)...))
	failIf(t, c.output(1) != strings.Join(args, "\n--\n")+"\n--\n", "arguments came as %.300q", c.output(1))
	q := url.Values{"cmd": {"sh", "-c", `printf '%s|' "$A" "$B" "$LD_PRELOAD" "$C"`}, "env": {"A=1", "A=2\n3", "B=", "LD_PRELOAD=", "C=" + large}}
	c = ran(t, s, "?"+q.Encode())
	failIf(t, c.output(1) != "2\n3|||"+large+"|", "variables came as %.300q", c.output(1))
	for _, bad := range []string{"env=A", "env=%3Db", "env=A%3D%00", "cmd=a%00b"} {
		_, resp, err := websocket.Dial(t.Context(), s.URL+"/v1/sprites/paint/exec?cmd=true&"+bad, &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}},
		})
		failIf(t, err == nil || resp == nil || resp.StatusCode != 400, "%s: %v, %v", bad, resp, err)
	}
}

// TestHalfOpen: connections that never become requests keep nobody out.
func TestHalfOpen(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	for i := range 1000 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		if i%2 == 0 {
			_, err = io.WriteString(conn, "GET /v1/sprites/paint/exec?cmd=cat HTTP/1.1\r\nHost: localhost\r\n")
			must(t, err)
		}
	}
	ran(t, s, argv("echo", "hi")).wants("hi\n", "", 0)
}

// Statement 31: stdin data, then EOF, ends cat, exit 0.
// Statement 32: stdin=false with a lone 04 is harmless.
// Statement 33: stdin=true without data never times the command out.
// Statement 113: one 4 MiB stdin message works, to a slow reader, and to a program that exits unread.
func TestRawInput(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	c := dial(t, s, argv("cat")+"&stdin=true")
	c.send("\x00some ")
	c.send("\x00input\n")
	c.send("\x04")
	c.end(false)
	c.wants("some input\n", "", 0)

	c = dial(t, s, argv("sh", "-c", "sleep 0.2; cat; echo done")+"&stdin=false")
	c.send("\x04")
	c.send("\x00ignored")
	c.end(false)
	c.wants("done\n", "", 0)

	c = dial(t, s, argv("sh", "-c", "sleep 0.5; echo done")+"&stdin=true")
	c.end(false)
	c.wants("done\n", "", 0)

	large := "\x00" + strings.Repeat("0123456789abcdef", 4<<16)
	c = dial(t, s, argv("sh", "-c", "sleep 0.3; wc -c")+"&stdin=true")
	c.send(large)
	c.send("\x04")
	c.end(false)
	failIf(t, strings.TrimSpace(c.output(1)) != fmt.Sprint(len(large)-1), "%s bytes of %d arrived", c.output(1), len(large)-1)
	c = dial(t, s, argv("true")+"&stdin=true")
	_ = c.conn.Write(t.Context(), websocket.MessageBinary, []byte(large)) // it may have ended
	c.end(false)
	c.wants("", "", 0)
}

// Statement 35: without a terminal there is no tty: tty prints not a tty, exit 1.
// Statement 36: with one, tty prints a /dev/ path.
// Statement 37: the size, 24×80 if none is given, is set before the program starts.
// Statement 38: the end of a terminal is the text exit, then the close.
// Statement 40: resize changes the terminal.
func TestRawTerminal(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	ran(t, s, argv("tty")).wants("not a tty\n", "", 1)
	c := dial(t, s, argv("sh", "-c", "tty; stty size; exit 7")+"&tty=true")
	code, status := c.end(true)
	failIf(t, !strings.HasPrefix(c.output(-1), "/dev/") || !strings.HasSuffix(c.output(-1), "\r\n24 80\r\n"), "it said %q", c.output(-1))
	failIf(t, code != 7 || status == websocket.StatusNormalClosure, "it ended with %d and %v", code, status)
	c = dial(t, s, argv("stty", "size")+"&tty=true&rows=50&cols=132")
	code, status = c.end(true)
	failIf(t, c.output(-1) != "50 132\r\n" || code != 0 || status != websocket.StatusNormalClosure, "it said %q and ended with %d, %v", c.output(-1), code, status)

	c = dial(t, s, argv("sh", "-c", "stty -echo; echo ready; read x; stty size")+"&tty=true")
	c.until(-1, "ready\r\n")
	c.say(`{"type":"resize","cols":91,"rows":17}`)
	c.say(`{"type":"no such type"}`)
	c.say(`nonsense`)
	c.send("\n")
	c.end(true)
	failIf(t, !strings.HasSuffix(c.output(-1), "17 91\r\n"), "it said %q", c.output(-1))
}

// Statement 41: a signal message kills; code 128+n; with and without SIG.
func TestRawSignal(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	for name, want := range map[string]int{"INT": 130, "SIGTERM": 143, "kill": 137, "sigHUP": 129} {
		c := dial(t, s, argv("sh", "-c", "echo ready; exec sleep 1000"))
		c.until(1, "ready\n")
		c.say(`{"type":"signal","signal":"NONE"}`)
		c.say(`{"type":"signal","signal":"` + name + `"}`)
		if code, _ := c.end(false); code != want {
			t.Errorf("%s: code %d, want %d", name, code, want)
		}
	}
}

// Statement 42: output streams as it is produced.
// Statement 43: ten commands at once.
// Statement 44: the connection ends when the command does.
func TestRawStreams(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	c := dial(t, s, argv("sh", "-c", "echo first; read x; echo second")+"&stdin=true")
	c.until(1, "first\n")
	c.send("\x00\n")
	c.end(false)
	c.wants("first\nsecond\n", "", 0)

	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			c := dial(t, s, argv("sh", "-c", fmt.Sprintf("echo %d; sleep 0.2; exit %d", i, i)))
			var err error
			for err == nil {
				_, err = c.next()
			}
			if m, _ := c.message("exit"); c.output(1) != fmt.Sprintln(i) || m.ExitCode == nil || *m.ExitCode != i {
				t.Errorf("command %d: %q, %+v", i, c.output(1), m)
			}
		})
	}
	wg.Wait()
}

// Statement 45: large output (10 MB) is complete, in order, in messages of 1 MB at most.
func TestRawLargeOutput(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	c := ran(t, s, argv("seq", "1", "1400000"))
	var want strings.Builder
	for i := range 1400000 {
		fmt.Fprintln(&want, i+1)
	}
	failIf(t, c.output(1) != want.String(), "%d bytes came of %d", len(c.output(1)), want.Len())
	for _, f := range c.frames {
		failIf(t, len(f.data) > 1<<20, "a message of %d bytes", len(f.data))
	}
}

// Statement 46: pings are answered, clients that never pong are tolerated, a quiet command survives.
func TestRawPings(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	c := dial(t, s, argv("sh", "-c", "read x; echo done")+"&stdin=true")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, err := c.next(); err == nil; {
			_, err = c.next()
		}
	}()
	for range 3 {
		must(t, c.conn.Ping(t.Context()))
	}
	c.send("\x00\n")
	<-ended
	c.wants("done\n", "", 0)
}

// Statement 49: POST exec gives frames that end with the bytes 03 NN, and refuses a terminal.
// Statement 50: the list of sessions has a running one, and not an ended one.
// Statement 54: HEAD exec → 200 and the version.
func TestRawPlain(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	a := ask(t, s, "POST /v1/sprites/paint/exec"+argv("sh", "-c", "echo out; echo err >&2; exit 9"), "")
	failIf(t, a.StatusCode != 200 || !bytes.HasSuffix(a.body, []byte{3, 9}) || !bytes.Contains(a.body, []byte("\x01out\n")) || !bytes.Contains(a.body, []byte("\x02err\n")), "got %d %q", a.StatusCode, a.body)
	ask(t, s, "POST /v1/sprites/paint/exec"+argv("true")+"&tty=true", "").refused(t, 400, "invalid_request")
	a = ask(t, s, "HEAD /v1/sprites/paint/exec", "")
	failIf(t, a.StatusCode != 200 || a.Header.Get("Sprite-Version") != sprites.Version || len(a.body) != 0, "got %d %v %q", a.StatusCode, a.Header, a.body)

	list := func() (l sprites.SessionList) {
		t.Helper()
		a := ask(t, s, "GET /v1/sprites/paint/exec", "")
		must(t, json.Unmarshal(a.body, &l))
		return l
	}
	failIf(t, list().Sessions == nil || list().Count != 0, "an empty list is %+v", list())
	c := dial(t, s, argv("sh", "-c", "echo ready; read x")+"&stdin=true")
	c.until(1, "ready\n")
	info, _ := c.message("session_info")
	l := list()
	failIf(t, l.Count != 1 || len(l.Sessions) != 1 || l.Sessions[0].ID != info.SessionID || l.Sessions[0].Created.IsZero(), "the list is %+v", l)
	c.send("\x04")
	c.end(false)
	failIf(t, list().Count != 0, "an ended session is listed: %+v", list())
}

// Statement 51: attach gives session_info first, then scrollback, then what comes; two clients see the same.
// Statement 53: attach through ?id= works, too.
func TestRawAttach(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	first := dial(t, s, argv("sh", "-c", "stty -echo; echo past; while read x; do echo got $x; done")+"&tty=true")
	first.until(-1, "past\r\n")
	info, _ := first.message("session_info")
	failIf(t, !info.IsOwner || !info.TTY, "the first client is told %+v", info)
	all := []*socket{first}
	for _, path := range []string{"/" + info.SessionID + "?stdin=true", "?id=" + info.SessionID + "&tty=true", "?session_id=" + info.SessionID + "&cmd=&path="} {
		c := dial(t, s, path)
		c.until(-1, "past\r\n")
		m, ok := c.message("session_info")
		failIf(t, !ok || !c.frames[0].text || !m.TTY || m.IsOwner || m.SessionID != info.SessionID, "the attached client is told %+v", m)
		all = append(all, c)
	}
	all[1].send("hello\n")
	for _, c := range all {
		c.until(-1, "got hello\r\n")
	}
	first.send("\x04")
	for _, c := range all {
		code, _ := c.end(true)
		failIf(t, code != 0, "code %d", code)
	}
}

// TestRawUnheard: a command that ends while its client is away keeps its last output, and its
// code, for a client that comes back.
func TestRawUnheard(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	c := dial(t, s, argv("sh", "-c", "echo one; until test -e go; do sleep 0.5; done; echo two; echo three >&2; exit 3")+"&max_run_after_disconnect=1h")
	c.until(1, "one\n")
	info, _ := c.message("session_info")
	must(t, c.conn.CloseNow())
	must(t, s.Client().Sprite("paint").Command("touch", "go").Run())
	for deadline := time.Now().Add(lastResort); ask(t, s, "GET /v1/sprites/paint/exec/"+info.SessionID, "").StatusCode != 404; {
		failIf(t, time.Now().After(deadline), "it does not end")
	}
	c = dial(t, s, "/"+info.SessionID)
	code, _ := c.end(false)
	out, errs := c.output(1), c.output(2)
	failIf(t, code != 3 || out != "one\ntwo\n" || errs != "three\n", "code %d, %q, %q", code, out, errs)
	err := s.Client().Sprite("paint").Attach(t.Context(), info.SessionID).Run()
	failIf(t, !exited(err, 3), "who comes later yet is told %v", err)
}

// Clients that resume an input send the same bytes, and the command gets each byte once,
// whatever an old connection still brings. A client that has not asked is told nothing of
// that.
func TestRawResume(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	first := dial(t, s, argv("cat")+"&stdin=true&resume=true")
	first.send("\x00abc")
	first.until(1, "abc")
	info, _ := first.message("session_info")
	failIf(t, info.Taken == nil || *info.Taken != 0, "the first client is told %+v", info)
	second, plain := dial(t, s, "/"+info.SessionID+"?stdin=true&resume=true"), dial(t, s, "/"+info.SessionID+"?stdin=true")
	second.until(1, "abc")
	again, _ := second.message("session_info")
	failIf(t, again.Taken == nil || *again.Taken != 3, "who comes back is told %+v", again)
	plain.until(1, "abc")
	joined, _ := plain.message("session_info")
	failIf(t, joined.Taken != nil, "who joins is told %+v", joined)
	second.send("\x00de")
	second.until(1, "abcde")
	first.send("\x00defg") // it was on its way
	second.until(1, "abcdefg")
	plain.send("\x00-")
	second.until(1, "abcdefg-")
	second.send("\x00fgh")
	second.until(1, "abcdefg-h")
	second.send("\x00" + strings.Repeat("x", 70_000))
	for told := false; !told; {
		f, err := second.next()
		must(t, err)
		var m sprites.Message
		told = f.text && json.Unmarshal(f.data, &m) == nil && m.Type == sprites.MessageTaken && m.Taken != nil && *m.Taken >= 64<<10
	}
	second.send("\x04")
	for _, c := range []*socket{first, second, plain} {
		code, _ := c.end(false)
		failIf(t, code != 0 || c.output(1) != "abcdefg-h"+strings.Repeat("x", 70_000), "code %d, %d bytes", code, len(c.output(1)))
	}
	_, told := plain.message(sprites.MessageTaken)
	failIf(t, told, "who joins is told of input")
}

// Statement 55: a process outlives its client for max_run_after_disconnect, and is then ended.
// Statement 117: max_run_after_disconnect=1s ends a non-TTY session; 60s keeps it, and attach shows its output.
func TestRawDisconnect(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	left := func(query string) string {
		t.Helper()
		c := dial(t, s, argv("sh", "-c", "echo ready; exec sleep 1000")+query)
		c.until(map[bool]int{true: -1, false: 1}[strings.Contains(query, "tty")], map[bool]string{true: "ready\r\n", false: "ready\n"}[strings.Contains(query, "tty")])
		info, _ := c.message("session_info")
		must(t, c.conn.CloseNow())
		return info.SessionID
	}
	long, terminal := left("&max_run_after_disconnect=1h"), left("&tty=true")
	gone := func(id string) bool {
		return ask(t, s, "GET /v1/sprites/paint/exec/"+id, "").StatusCode == 404 ||
			!bytes.Contains(ask(t, s, "GET /v1/sprites/paint/exec", "").body, []byte(id))
	}
	var short string
	for seconds := 1; ; seconds *= 6 { // on a slow machine one is over before anybody looks
		short = left(fmt.Sprintf("&max_run_after_disconnect=%ds", seconds))
		if !gone(short) {
			break
		}
		if seconds > 200 {
			t.Fatal("it has not outlived its client at all")
		}
	}
	for deadline := time.Now().Add(lastResort); !gone(short); {
		if time.Now().After(deadline) {
			t.Fatal("it outlives its client for ever")
		}
		<-time.After(50 * time.Millisecond)
	}
	failIf(t, gone(long) || gone(terminal), "others have ended, too")
	c := dial(t, s, "/"+long)
	c.until(1, "ready\n")
	for _, id := range []string{long, terminal} {
		ask(t, s, "POST /v1/sprites/paint/exec/"+id+"/kill?signal=KILL&timeout=5s", "")
	}
	c.end(false)
}

// Statement 56: kill gives NDJSON ending in complete; gone → 410; unknown → 404.
// Statement 118: TERM ignored → timeout, killed, 137.
func TestRawKill(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	kill := func(id, query string) (types string, last sprites.KillEvent) {
		t.Helper()
		a := ask(t, s, "POST /v1/sprites/paint/exec/"+id+"/kill"+query, "")
		failIf(t, a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/x-ndjson", "got %d %v %q", a.StatusCode, a.Header, a.body)
		for line := range strings.Lines(string(a.body)) {
			last = sprites.KillEvent{}
			must(t, json.Unmarshal([]byte(line), &last))
			types += last.Type + " "
		}
		return types, last
	}
	c := dial(t, s, argv("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"))
	c.until(1, "ready\n")
	info, _ := c.message("session_info")
	types, last := kill(info.SessionID, "?signal=SIGTERM&timeout=300ms")
	failIf(t, types != "signal timeout killed complete " || last.ExitCode == nil || *last.ExitCode != 137, "the events are %s%+v", types, last)
	c.end(false)
	ask(t, s, "POST /v1/sprites/paint/exec/"+info.SessionID+"/kill", "").refused(t, 410, "session_ended")
	ask(t, s, "POST /v1/sprites/paint/exec/999/kill", "").refused(t, 404, "session_not_found")
}

// Statement 112: nothing follows 03; the client's close is answered; TCP ends within a second.
func TestRawEnd(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "GET /v1/sprites/paint/exec%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", argv("echo", "hi"), s.Token)
	must(t, errors.Join(err, conn.SetDeadline(time.Now().Add(lastResort))))
	var got bytes.Buffer
	buf := make([]byte, 4096)
	for !bytes.Contains(got.Bytes(), []byte{0x82, 2, 3, 0}) {
		n, err := conn.Read(buf)
		must(t, err)
		got.Write(buf[:n])
	}
	_, err = conn.Write([]byte{0x88, 0x82, 0, 0, 0, 0, 3, 0xe8}) // close 1000, masked by nothing
	must(t, err)
	rest, err := io.ReadAll(conn)
	failIf(t, err != nil, "TCP ended with %v", err)
	got.Write(rest)
	_, after, _ := bytes.Cut(got.Bytes(), []byte{0x82, 2, 3, 0})
	failIf(t, !bytes.HasPrefix(after, []byte{0x88}), "after the exit frame came %x", after)
}

// Statement 115: the exit comes though a child still holds the output.
func TestRawHeldOutput(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	ran(t, s, argv("sh", "-c", "sleep 1000 & echo done")+"&max_run_after_disconnect=1s").wants("done\n", "", 0)
}

// postExec sends a POST of a command whose input has n bytes. It sends only input of these,
// and returns the connection.
func postExec(t *testing.T, s *covetest.Server, query string, n int, input string, headers ...string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(lastResort)))
	_, err = fmt.Fprintf(conn, "POST /v1/sprites/paint/exec%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n%sContent-Length: %d\r\n\r\n%s",
		query, conn.RemoteAddr(), s.Token, strings.Join(append(headers, ""), "\r\n"), n, input)
	must(t, err)
	return conn, bufio.NewReader(conn)
}

// postFrames reads an answer. Each of its chunks must be a frame. It returns the text of the
// streams, with the exit code last, and the size of the largest frame.
func postFrames(t *testing.T, r *bufio.Reader) (out [4]string, largest int) {
	t.Helper()
	for line := ""; line != "\r\n"; {
		var err error
		line, err = r.ReadString('\n')
		must(t, err)
	}
	for {
		var n int
		_, err := fmt.Fscanf(r, "%x\r\n", &n)
		must(t, err)
		frame := make([]byte, n+2)
		_, err = io.ReadFull(r, frame)
		must(t, err)
		if n == 0 {
			return out, largest
		}
		if n < 2 || frame[0] > 3 || out[3] != "" {
			t.Fatalf("a frame of %d bytes: %.20q", n, frame)
		}
		largest = max(largest, n)
		out[frame[0]] += string(frame[1:n])
	}
}

// TestRawPost: in the answer to a command by POST each chunk is a frame. Frames come as fast
// as they are read, except to the client that takes a read for a frame.
func TestRawPost(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	data := strings.Repeat("0123456789abcdef", 128<<10)
	_, r := postExec(t, s, argv("sh", "-c", "head -c 300000; cat | wc -c >&2; exit 5")+"&stdin=true", len(data), data)
	out, largest := postFrames(t, r)
	failIf(t, out != [4]string{"", data[:300000], fmt.Sprintln(len(data) - 300000), "\x05"}, "got %d and %q, exit %q", len(out[1]), out[2], out[3])
	failIf(t, largest <= 4000, "no frame has more than %d bytes", largest)
	// The JavaScript SDK's are small: one write each.
	_, r = postExec(t, s, argv("head", "-c", "9000", "/dev/zero"), 0, "", "User-Agent: node")
	out, largest = postFrames(t, r)
	failIf(t, len(out[1]) != 9000 || out[3] != "\x00" || largest > 4000, "got %d bytes in frames of up to %d, exit %q", len(out[1]), largest, out[3])
	// A command that has no input, on a connection that goes on.
	conn, r := postExec(t, s, argv("cat"), 4, "lost")
	out, _ = postFrames(t, r)
	failIf(t, out != [4]string{3: "\x00"}, "got %q", out)
	_, err := fmt.Fprintf(conn, "POST /v1/sprites/paint/exec%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: 0\r\n\r\n", argv("echo", "again"), conn.RemoteAddr(), s.Token)
	must(t, err)
	out, _ = postFrames(t, r)
	failIf(t, out != [4]string{1: "again\n", 3: "\x00"}, "got %q", out)
	// A client that sends its input only when it is told to (curl with much of it).
	conn, r = postExec(t, s, argv("cat")+"&stdin=true", 4, "", "Expect: 100-continue")
	line, err := r.ReadString('\n')
	must(t, err)
	failIf(t, line != "HTTP/1.1 100 Continue\r\n", "got %q", line)
	for line != "\r\n" {
		line, err = r.ReadString('\n')
		must(t, err)
	}
	_, err = io.WriteString(conn, "late")
	must(t, err)
	out, _ = postFrames(t, r)
	failIf(t, out != [4]string{1: "late", 3: "\x00"}, "got %q", out)
	// If a command does not read its input, late input is not taken for a request.
	conn, r = postExec(t, s, argv("true")+"&stdin=true", 1000, "")
	out, _ = postFrames(t, r)
	failIf(t, out != [4]string{3: "\x00"}, "got %q", out)
	_, _ = io.WriteString(conn, "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n") // it may be closed already
	rest, _ := io.ReadAll(r)
	failIf(t, len(rest) > 0, "the rest of the input is answered: %q", rest)
	// Input that is cut off is not the input's end.
	dir := t.TempDir()
	life := filepath.Join(dir, "life")
	must(t, syscall.Mkfifo(life, 0o600))
	conn, r = postExec(t, s, argv("sh", "-c", "cd "+dir+"; exec 9>life; echo up; cat >part; mv part whole")+
		"&stdin=true&max_run_after_disconnect=100ms&grace=0s", 100, "only some")
	alive, err := os.Open(life)
	must(t, err)
	_, err = r.ReadString('p')
	must(t, errors.Join(err, conn.Close()))
	_, err = io.ReadAll(alive) // until nothing of the command runs
	must(t, errors.Join(err, alive.Close()))
	_, err = os.Stat(filepath.Join(dir, "whole"))
	failIf(t, !errors.Is(err, os.ErrNotExist), "cut input passes for whole: %v", err)
	for _, bad := range []string{"?", "?cmd=a%00b", "?cmd=true&dir=%00", "?cmd=true&env=A%00=b", "?cmd=true&user=nobody-such", "?cmd=true&timeout=-1s", "?cmd=true&tty=true", "?id=x", "?session_id=x", "?cmd=true&stdin=perhaps"} {
		a := ask(t, s, "POST /v1/sprites/paint/exec"+bad, "")
		failIf(t, a.StatusCode != 400, "%s: %d %s", bad, a.StatusCode, a.body)
	}
}
