package sprites

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Statement 25: the query is built as the protocol has it.
func TestExecQuery(t *testing.T) {
	minute := time.Minute
	stays := func(_ context.Context, lost error) (*Sprite, error) { return nil, lost }
	tests := []struct {
		cmd  Cmd
		want string
	}{
		{Cmd{Args: []string{"sh", "-c", "exit 42"}}, "cmd=sh&cmd=-c&cmd=exit+42&path=sh&stdin=false"},
		{Cmd{Path: "/bin/sh", Args: []string{"-sh", ""}, Stdin: strings.NewReader("")}, "cmd=-sh&cmd=&path=%2Fbin%2Fsh&stdin=true"},
		{Cmd{Args: []string{"a"}, Env: []string{"A=1&2", "B=ü"}, Dir: "/x y", User: "root"},
			"cmd=a&dir=%2Fx+y&env=A%3D1%262&env=B%3D%C3%BC&path=a&stdin=false&user=root"},
		{Cmd{Args: []string{"a"}, Timeout: 90 * time.Second, Grace: time.Second, MaxRunAfterDisconnect: &minute},
			"cmd=a&grace=1s&max_run_after_disconnect=1m0s&path=a&stdin=false&timeout=1m30s"},
		{Cmd{Args: []string{"a"}, MaxRunAfterDisconnect: new(time.Duration)}, "cmd=a&max_run_after_disconnect=0s&path=a&stdin=false"},
		{Cmd{Args: []string{"a"}, TTY: &Terminal{}}, "cmd=a&path=a&stdin=false&tty=true"},
		{Cmd{Args: []string{"a"}, TTY: &Terminal{Rows: 30, Cols: 100}}, "cmd=a&cols=100&path=a&rows=30&stdin=false&tty=true"},
		{Cmd{Args: []string{"a"}, Stdin: strings.NewReader(""), Rejoin: stays}, "cmd=a&path=a&resume=true&stdin=true"},
		{Cmd{Args: []string{"a"}, Rejoin: stays}, "cmd=a&path=a&stdin=false"},
		{Cmd{session: "7", Stdin: strings.NewReader(""), Rejoin: stays}, "stdin=true"},
		{Cmd{session: "7", Args: []string{"a"}, Dir: "/", TTY: &Terminal{}}, "stdin=false"},
	}
	for _, tt := range tests {
		got := tt.cmd.query()
		if got.Encode() != tt.want {
			t.Errorf("got  %s\nwant %s", got.Encode(), tt.want)
		}
		if back, err := url.ParseQuery(got.Encode()); err != nil || strings.Join(back["cmd"], "\x00") != strings.Join(got["cmd"], "\x00") {
			t.Errorf("%s reads back as %v, %v", tt.want, back, err)
		}
	}
}

func TestWriteQuery(t *testing.T) {
	for want, got := range map[string]url.Values{
		"mkdirParents=true&mode=0644&path=%2Fa&workingDir=%2F":                           WriteOptions{}.query("/a"),
		"asRoot=true&mkdirParents=true&mode=4755&path=a%2Fb&workingDir=%2Fhome%2Fsprite": WriteOptions{Mode: 0o755 | os.ModeSetuid, AsRoot: true}.query("a/b"),
	} {
		if got.Encode() != want {
			t.Errorf("got %s, want %s", got.Encode(), want)
		}
	}
}

// Statement 6: structured errors are parsed; the JSON value beats the header; bad numbers are
// ignored. A body that is not JSON, and an empty one, are texts.
func TestParseError(t *testing.T) {
	tests := []struct {
		body, code, message string
		seconds             int
	}{
		{`{"error":"limited","message":"Too many.","retry_after_seconds":20,"limit":3}`, "limited", "Too many.", 20},
		{`{"error":"limited"}`, "limited", "limited", 7},
		{`{"error":"limited","retry_after_seconds":-5}`, "limited", "limited", 7},
		{`{"error":"sprite not found"}`, "", "sprite not found", 7},
		{`{"errors":["name has already been taken","too long",7]}`, "", "name has already been taken; too long; 7", 7},
		{`{"error":{"code":"x","message":"y","hint":"z"}}`, "x", "y", 7},
		{`{"error":"no such file","code":"ENOENT","path":"/x"}`, "ENOENT", "no such file", 7},
		{`{"error":"ENOENT","code":"ENOENT","message":"no such file"}`, "ENOENT", "no such file", 7},
		{`{"error":"limited","message":"m","limit":"three"}`, "limited", "m", 7},
		{`{"code":5,"error":"x"}`, "x", "x", 7},
		{"upstream \x1b[31mdied\n", "", "upstream [31mdied", 7},
		{`[1,2]`, "", "[1,2]", 7},
		{`null`, "", "API error (status 500)", 7},
		{"  \n", "", "API error (status 500)", 7},
		{"\xff\xfe", "", "\uFFFD", 7},
	}
	for _, tt := range tests {
		e := parseError(500, http.Header{"Retry-After": {"7"}}, []byte(tt.body))
		if e.Code != tt.code || e.Message != tt.message || e.RetryAfter() != time.Duration(tt.seconds)*time.Second {
			t.Errorf("%q: got code %q, message %q, retry after %v", tt.body, e.Code, e.Message, e.RetryAfter())
		}
	}
	if e := parseError(429, http.Header{"Retry-After": {"tomorrow"}}, nil); e.RetryAfter() != 0 || e.Error() != "API error (status 429)" {
		t.Errorf("got %v, %v", e, e.RetryAfter())
	}
}

func FuzzParseError(f *testing.F) {
	for _, s := range []string{`{"error":"x","message":"y"}`, `{"errors":["a"]}`, `{"error":{"code":"x"}}`, `plain`, ``, `{"code":1,"error":[]}`} {
		f.Add(404, "3", []byte(s))
	}
	f.Fuzz(func(t *testing.T, status int, after string, body []byte) {
		e := parseError(status, http.Header{"Retry-After": {after}}, body)
		if e.Message == "" || strings.ContainsRune(e.Message, 0x1b) || e.RetryAfterSeconds < 0 || strings.ContainsAny(e.Code, " \n\t") {
			t.Errorf("%d %q %q: got %#v", status, after, body, e)
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{0}, []byte(`{"type":"exit","exit_code":3}`))
	f.Add([]byte{0, 0, 0, 42}, []byte(`{"type":"exit","code":0}`))
	f.Add([]byte{255, 255, 255, 255}, []byte(`{"type":"exit"}`))
	f.Fuzz(func(t *testing.T, payload, text []byte) {
		code, err := parseExit(payload)
		if good := len(payload) >= 1 && len(payload) <= 4; good != (err == nil) {
			t.Fatalf("%x: got %d, %v", payload, code, err)
		}
		if err == nil && (code == 0) != (len(bytes.Trim(payload, "\x00")) == 0) {
			t.Errorf("%x reads as %d: failure and success are mixed up", payload, code)
		}
		if m, ok := parseMessage(text); ok && m.Type == "" {
			t.Errorf("%q: a message without a type", text)
		} else if exit := m.exit(); exit != nil && m.ExitCode == nil && m.Code == nil {
			t.Errorf("%q: an exit without a code", text)
		}
	})
}

func TestWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var log []string
		note := func(what string) { log = append(log, what+" "+time.Since(start).String()) }
		busyUntil := start.Add(20 * time.Second)
		d := watchdog{
			quiet:  func() bool { return time.Now().After(busyUntil) },
			ping:   func() { note("ping") },
			giveUp: func() { note("end") },
		}
		ticker := time.NewTicker(watchTick)
		defer ticker.Stop()
		d.run(ticker.C, nil)
		if got, want := strings.Join(log, ", "), "ping 35s, ping 50s, end 1m5s"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestWatchdogAfterSleep has a machine that stood still for an hour between two
// ticks: that is one silent tick, not an hour of silence.
func TestWatchdogAfterSleep(t *testing.T) {
	ticks, stop := make(chan time.Time), make(chan struct{})
	done := make(chan struct{})
	heard := false
	d := watchdog{
		quiet:  func() bool { return !heard },
		ping:   func() { heard = true },
		giveUp: func() { t.Error("given up") },
	}
	go func() { defer close(done); d.run(ticks, stop) }()
	now := time.Now()
	for i := range 20 {
		ticks <- now.Add(time.Duration(i) * time.Hour)
	}
	close(stop)
	<-done
}

func TestPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe()
		data := bytes.Repeat([]byte("0123456789"), 50_000)
		go func() {
			_, err := p.Write(data)
			if err != nil {
				t.Error(err)
			}
			p.end(nil)
		}()
		var got []byte
		for n := 1; ; n = n*7%9973 + 1 {
			buf := make([]byte, n)
			m, err := p.Read(buf)
			got = append(got, buf[:m]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, data) {
			t.Errorf("%d bytes went in, %d came out, or others", len(data), len(got))
		}
	})
}

func TestPipeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe()
		if err := p.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := p.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := p.Write(make([]byte, 2*pipeSize))
			done <- err
		}()
		synctest.Wait() // it waits for room
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v", err)
		}
		if _, err := p.Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

// TestOutbox has a connection whose other side reads only when the test does.
func TestOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		o := newOutbox(near)
		for range 2 {
			if _, err := o.Write(make([]byte, outboxRoom/2)); err != nil { // at once
				t.Fatal(err)
			}
		}
		waited := make(chan error)
		go func() { waited <- o.waitRoom() }()
		synctest.Wait()
		select {
		case err := <-waited:
			t.Fatalf("there was room: %v", err)
		default:
		}
		if _, err := io.ReadFull(far, make([]byte, outboxRoom)); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; err != nil {
			t.Error(err)
		}

		if _, err := o.Write(make([]byte, outboxMax)); err != nil {
			t.Error(err)
		}
		synctest.Wait() // it is being sent, and the queue is empty again
		if _, err := o.Write(make([]byte, outboxMax+1)); !errors.Is(err, errOutbox) {
			t.Errorf("an unbounded queue: %v", err)
		}
		o.setDeadline(time.Now().Add(time.Second))
		if err := o.waitRoom(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		start := time.Now()
		if err := o.Close(); err != nil || time.Since(start) != outboxFlush {
			t.Errorf("closing a stuck connection: %v after %v", err, time.Since(start))
		}
		if _, err := o.Write(nil); err == nil {
			t.Error("written after Close")
		}
	})
}

func TestOutboxSendsBeforeClose(t *testing.T) {
	near, far := net.Pipe()
	o := newOutbox(near)
	if _, err := o.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() {
		b, _ := io.ReadAll(far)
		got <- string(b)
	}()
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != "last words" {
		t.Errorf("got %q", s)
	}
}

func TestReadLines(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	var got []string
	err := readLines(strings.NewReader("a\n\n \r\n"+long+"\nb\ncut"), func(line []byte) error {
		got = append(got, strings.TrimSuffix(string(line), "\n"))
		return nil
	})
	if err != io.ErrUnexpectedEOF || strings.Join(got, ",") != "a,"+long+",b" {
		t.Errorf("got %d lines, %v", len(got), err)
	}
	if err := readLines(strings.NewReader(strings.Repeat("x", maxLine+100_000)), nil); err == nil {
		t.Error("a line without bound")
	}
}
