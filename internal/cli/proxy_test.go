package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/covetest"
)

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

func TestParseRoutes(t *testing.T) {
	for args, want := range map[string]string{
		"3000":             "[{3000  3000  }]",
		"3001:3000 0:5432": "[{3001  3000  } {0  5432  }]",
		"0:80 0:80":        "[{0  80  } {0  80  }]",
		"/a/s 0:/b 1:/a:b": "[{0  0 /a/s } {0  0 /b } {1  0 /a:b }]",
		"./x:80 /a/b:/c/d": "[{0  80  ./x} {0  0 /c/d /a/b}]",
		"3000 3000":        "", "80 80:81": "", "0": "", "": "", ":80": "", "80:": "", "80:0": "", "-1": "", "65536": "", "65536:1": "",
		"a": "", "1:2:3": "", "host:80": "", "+80": "", ":/a": "", "x:/a": "", "./x": "", "/a:b": "", "./x:1 ./x:2": "",
	} {
		fields := strings.Fields(args)
		if args == "" {
			fields = []string{""}
		}
		got, err := parseRoutes(fields)
		if (err != nil) != (want == "") || err == nil && fmt.Sprint(got) != want {
			t.Errorf("%q: got %v, %v, want %s", args, got, err, want)
		}
	}
}

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]string{
		"22": ":22", ":22": ":22", "localhost:22": "localhost:22", "[::1]:22": "::1:22", "db.example:5432": "db.example:5432", "/a/b:c": "/a/b:c",
		"": "", ":": "", "host:": "", "host": "", "::1:22": "", "0": "", "x:70000": "",
	} {
		to, err := parseTarget(text)
		if got := to.String(); (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
}

// screen is where a command line writes to while a test reads.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// answerer listens, and answers each connection's whole input in capitals.
func answerer(t *testing.T) (port int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				b, _ := io.ReadAll(conn) // a connection that is cut gets less
				_, _ = conn.Write(bytes.ToUpper(b))
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().(*net.TCPAddr).Port
}

// deadPort is one that stays taken, and on which nothing listens.
func deadPort(t *testing.T) int {
	t.Helper()
	_, text, err := net.SplitHostPort(nobodyAt(t))
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// ask sends text on a connection of its own, ends it, and returns the answer.
func ask(addr, text string) (string, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(lastResort))
	_, err = io.WriteString(conn, text)
	err = errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	got, err2 := io.ReadAll(conn)
	return string(got), errors.Join(err, err2)
}

// running is a command line that runs beside the test.
type running struct {
	out    *bufio.Reader
	errs   *screen
	cancel context.CancelFunc
	code   chan int
}

func runMain(t *testing.T, s *covetest.Server, in io.Reader, args ...string) *running {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	p := &running{out: bufio.NewReader(r), errs: &screen{}, cancel: cancel, code: make(chan int, 1)}
	go func() {
		code := Main(ctx, append(args, "--url", s.URL, "--token", s.Token, "-s", "paint"), Streams{In: in, Out: w, Err: p.errs})
		_ = w.Close()
		p.code <- code
	}()
	t.Cleanup(func() { cancel(); _, _ = io.Copy(io.Discard, r) })
	return p
}

func (p *running) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("%v; it said %s", err, p.errs)
	}
	return strings.TrimSpace(line)
}

func TestProxy(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	good, dead := answerer(t), deadPort(t)
	p := runMain(t, s, nil, "proxy", fmt.Sprintf("0:%d", good), fmt.Sprintf("0:%d", dead))
	toGood, found := strings.CutSuffix(p.line(t), fmt.Sprintf(" -> paint:%d", good))
	toDead, found2 := strings.CutSuffix(p.line(t), fmt.Sprintf(" -> paint:%d", dead))
	if !found || !found2 || !strings.HasPrefix(toGood, "127.0.0.1:") {
		t.Fatalf("it listens at %q and %q", toGood, toDead)
	}
	// An answer arrives even if it is sent after the end of the question.
	data := strings.Repeat("abcdefgh", 100_000)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if got, err := ask(toGood, data); err != nil || got != strings.ToUpper(data) {
				t.Errorf("of %d bytes %d came back, %v", len(data), len(got), err)
			}
		})
	}
	wg.Wait()
	for range 3 {
		if got, err := ask(toDead, "x"); err == nil || got != "" {
			t.Errorf("a dead port answers %q, %v", got, err)
		}
	}
	if text := p.errs.String(); strings.Count(text, "connection refused") != 1 || !strings.Contains(text, toDead) {
		t.Errorf("it says %q", text)
	}
	if _, err := ask(toGood, "still there"); err != nil {
		t.Error(err)
	}
	// The end closes connections, and is a good one.
	open, err := net.Dial("tcp", toGood)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	p.cancel()
	if code := <-p.code; code != 0 {
		t.Errorf("it ends with %d: %s", code, p.errs)
	}
	if _, err := io.ReadAll(open); errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", toGood); err == nil {
		t.Error("it still listens")
	}
}

func TestProxyJSON(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	port := answerer(t)
	p := runMain(t, s, nil, "proxy", "--json", fmt.Sprintf("0:%d", port))
	var doc proxied
	if err := json.NewDecoder(p.out).Decode(&doc); err != nil || doc.Sprite != "paint" || len(doc.Listeners) != 1 {
		t.Fatalf("%+v, %v", doc, err)
	}
	l := doc.Listeners[0]
	if l.Remote != port || l.Address != localAddr(l.Local) {
		t.Errorf("%+v", l)
	}
	if got, err := ask(l.Address, "x"); got != "X" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestProxyRefuses(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	taken := answerer(t)
	for args, want := range map[string]string{
		"proxy 0:80":                             "there is no sprite named paint", // no such sprite
		fmt.Sprintf("proxy %d:80", taken):        fmt.Sprintf("port %d is in use on this machine", taken),
		fmt.Sprintf("proxy 0:81 %d:80", taken):   "hint: take another one: cove proxy -s paint ",
		"proxy":                                  "which port?",
		"proxy x":                                `"x" is not [LOCAL:]REMOTE`,
		"proxy -W 80 80":                         "one argument too many",
		"proxy -W nowhere":                       "is not [HOST:]PORT",
		"proxy -W " + strconv.Itoa(deadPort(t)):  "there is no sprite named paint",
		"proxy --stdio=" + strconv.Itoa(1) + ":": "is not [HOST:]PORT",
	} {
		p := runMain(t, s, nil, strings.Fields(args)...)
		code := 0
		go func() { _, _ = io.Copy(io.Discard, p.out) }()
		if code = <-p.code; code == 0 || !strings.Contains(p.errs.String(), want) {
			t.Errorf("%s: code %d, %q, want %q", args, code, p.errs, want)
		}
	}
	if port := freePort(taken); port == taken || port == 0 {
		t.Errorf("port %d is proposed in place of %d", port, taken)
	}
}

func TestProxyStdio(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	p := runMain(t, s, strings.NewReader("ping"), "proxy", "-W", fmt.Sprintf("localhost:%d", answerer(t)))
	if got, err := io.ReadAll(p.out); string(got) != "PING" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if code := <-p.code; code != 0 {
		t.Errorf("code %d: %s", code, p.errs)
	}
	p = runMain(t, s, strings.NewReader(""), "proxy", "-W", strconv.Itoa(deadPort(t)))
	if code := <-p.code; code != exitFailed || !strings.Contains(p.errs.String(), "connection refused") {
		t.Errorf("code %d: %s", code, p.errs)
	}
	// Ctrl-C, while nothing comes from either side.
	in, _ := io.Pipe()
	defer in.Close()
	p = runMain(t, s, in, "proxy", "-W", strconv.Itoa(answerer(t)))
	p.cancel()
	if code := <-p.code; code == exitOK {
		t.Error("a connection that was cut ends well")
	}
}

// Completion does not wake a sprite.
func TestCompletePort(t *testing.T) {
	rt := &covetest.InProcess{Dir: t.TempDir()}
	t.Cleanup(func() { _ = rt.Close() })
	s := covetest.Start(t, covetest.Options{Runtime: rt})
	sprite := s.Create("paint")
	complete := func() string {
		var out bytes.Buffer
		args := []string{"__complete", "proxy", "--url", s.URL, "--token", s.Token, "-s", "paint", "8080:"}
		if code := Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: &out, Err: io.Discard}); code != 0 {
			t.Errorf("code %d", code)
		}
		return out.String()
	}
	if got := complete(); got != ":4\n" || rt.Boots() != 0 {
		t.Errorf("a sleeping sprite, started %d times, gives %q", rt.Boots(), got)
	}
	if err := sprite.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.TrimSuffix(complete(), ":4\n")) { // what this machine has
		if !strings.HasPrefix(line, "8080:") {
			t.Errorf("it proposes %q", line)
		}
	}
}
