package sprites_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/sprites"
)

func TestOutput(t *testing.T) {
	m, sprite := newMachine(t)
	cmd := sprite.Command("sh", "-c", `printf '%s in ' "$WORD"; pwd; echo oops >&2`)
	cmd.Env = []string{"WORD=a b&c"}
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(out), "a b&c in "+cmd.Dir+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := len(m.requests()); n != 1 {
		t.Errorf("a command took %d requests, want 1: %v", n, m.requests())
	}
}

// Statement 58: the type of an exit carries its code.
func TestExitError(t *testing.T) {
	_, sprite := newMachine(t)
	long := strings.Repeat("x", 40<<10)
	cmd := sprite.Command("sh", "-c", "cat >&2; echo end >&2; exit 42")
	cmd.Stdin = strings.NewReader(long)
	_, err := cmd.Output()
	exit, ok := errors.AsType[*sprites.ExitError](err)
	if !ok || exit.Code != 42 || exit.Signal() != "" {
		t.Fatalf("got %#v, want exit 42", err)
	}
	if want := (long + "end\n")[len(long)+4-32<<10:]; string(exit.Stderr) != want {
		t.Errorf("got %d bytes of stderr, want the last %d", len(exit.Stderr), len(want))
	}

	err = sprite.Command("sh", "-c", "kill -TERM $$").Run()
	exit, ok = errors.AsType[*sprites.ExitError](err)
	if !ok || exit.Code != 143 || exit.Signal() != sprites.SIGTERM {
		t.Errorf("got %v, want death by TERM", err)
	}

	err = sprite.Command("/no/such/program").Run()
	if exit, ok = errors.AsType[*sprites.ExitError](err); !ok || exit.Code != 127 {
		t.Errorf("got %v, want exit 127", err)
	}
}

func TestCombinedOutputIsOneWriter(t *testing.T) {
	_, sprite := newMachine(t)
	out, err := sprite.Command("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo o; echo e >&2; done").CombinedOutput()
	if err != nil || strings.Count(string(out), "o") != 9 || strings.Count(string(out), "e") != 9 {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestStdinIsWholeAndEnds(t *testing.T) {
	_, sprite := newMachine(t)
	data := make([]byte, 5<<20)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	cmd := sprite.Command("cat")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, data) {
		t.Errorf("%d bytes went in, %d came out, or others", len(data), len(out))
	}
}

func TestInputThatNobodyReads(t *testing.T) {
	_, sprite := newMachine(t)
	blocked, w := io.Pipe() // a terminal at which nobody types
	defer func() { _ = w.Close() }()
	cmd := sprite.Command("true")
	cmd.Stdin = blocked
	if err := cmd.Run(); err != nil {
		t.Errorf("a command that does not read: %v", err)
	}
	cmd = sprite.Command("head", "-c", "3")
	cmd.Stdin = endless{}
	if out, err := cmd.Output(); err != nil || string(out) != "yyy" {
		t.Errorf("got %q, %v", out, err)
	}
}

// endless is what yes(1) writes.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'y'
	}
	return len(p), nil
}

func TestInputError(t *testing.T) {
	_, sprite := newMachine(t)
	r, w := io.Pipe()
	boom := errors.New("boom")
	_ = w.CloseWithError(boom)
	cmd := sprite.Command("cat")
	cmd.Stdin = r
	if err := cmd.Run(); !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
}

func TestPipes(t *testing.T) {
	_, sprite := newMachine(t)
	cmd := sprite.Command("sh", "-c", "while read x; do echo got $x; done; echo bye >&2")
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	stderr, err3 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, err3, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	for _, word := range []string{"one", "two"} {
		if _, err := io.WriteString(stdin, word+"\n"); err != nil {
			t.Fatal(err)
		}
		if n, err := stdout.Read(buf); err != nil || string(buf[:n]) != "got "+word+"\n" {
			t.Fatalf("got %q, %v", buf[:n], err)
		}
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(stderr); err != nil || string(b) != "bye\n" {
		t.Errorf("stderr: got %q, %v", b, err)
	}
	if _, err := stdin.Write([]byte("x")); err == nil {
		t.Error("writing to a command that has ended is no error")
	}
}

func TestContextKills(t *testing.T) {
	_, sprite := newMachine(t)
	for _, what := range []string{"quiet", "output nobody reads", "input nobody reads"} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			script := "echo $$; exec sleep 1000"
			if what == "output nobody reads" {
				script = "echo $$; exec yes"
			}
			cmd := sprite.CommandContext(ctx, "sh", "-c", script)
			if what == "input nobody reads" {
				cmd.Stdin = endless{}
			}
			stdout, err := cmd.StdoutPipe()
			if err = errors.Join(err, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 1)
			if _, err := stdout.Read(buf); err != nil { // it runs
				t.Fatal(err)
			}
			id := cmd.SessionID()
			cancel()
			if err := cmd.Wait(); err != context.Canceled {
				t.Errorf("got %v, want %v itself", err, context.Canceled)
			}
			if _, err := sprite.Kill(t.Context(), id, "", 0); !errors.Is(err, sprites.ErrGone) {
				t.Errorf("kill afterwards: got %v, want gone", err)
			}
		})
	}
}

func TestContextBeforeStart(t *testing.T) {
	_, sprite := newMachine(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sprite.CommandContext(ctx, "true").Run(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestWriterErrorEndsTheCommand(t *testing.T) {
	_, sprite := newMachine(t)
	cmd := sprite.Command("yes")
	cmd.Stdout = fullDisk{}
	if err := cmd.Run(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want %v", err, syscall.ENOSPC)
	}
	cmd = sprite.Command("yes")
	stdout, err := cmd.StdoutPipe()
	if err = errors.Join(err, cmd.Start(), stdout.Close()); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if exit, ok := errors.AsType[*sprites.ExitError](err); !ok || exit.Signal() != sprites.SIGTERM {
		t.Errorf("closed pipe: got %v, want death by TERM", err)
	}
}

func TestSignals(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGUSR1, sprites.Signal("sigusr1")} {
		_, sprite := newMachine(t)
		cmd := sprite.Command("sh", "-c", `trap 'exit 5' USR1; echo; while :; do sleep 0.05; done`)
		stdout, err := cmd.StdoutPipe()
		if err = errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		if _, err := stdout.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Signal(sig); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		if exit, ok := errors.AsType[*sprites.ExitError](err); !ok || exit.Code != 5 {
			t.Errorf("%v: got %v, want exit 5", sig, err)
		}
		if err := cmd.Signal(sig); !errors.Is(err, sprites.ErrGone) {
			t.Errorf("%v after the end: got %v", sig, err)
		}
	}
	_, sprite := newMachine(t)
	if err := sprite.Command("true").Signal(syscall.SIGCHLD); err == nil {
		t.Error("SIGCHLD was taken")
	}
}

func TestKill(t *testing.T) {
	_, sprite := newMachine(t)
	cmd := sprite.Command("sh", "-c", `trap '' TERM; echo; while :; do sleep 0.05; done`)
	stdout, err := cmd.StdoutPipe()
	if err = errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	code, err := sprite.Kill(t.Context(), cmd.SessionID(), sprites.SIGTERM, 100*time.Millisecond)
	if code != 137 || err != nil {
		t.Errorf("got %d, %v, want 137", code, err)
	}
	if exit, ok := errors.AsType[*sprites.ExitError](cmd.Wait()); !ok || exit.Code != 137 {
		t.Errorf("got %v", exit)
	}
	if _, err := sprite.Kill(t.Context(), "999999", "", 0); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("unknown session: got %v", err)
	}
}

func TestDetach(t *testing.T) {
	_, sprite := newMachine(t)
	cmd := sprite.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id := cmd.SessionID()
	if err := cmd.Detach(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); !errors.Is(err, sprites.ErrDetached) {
		t.Errorf("got %v", err)
	}
	if code, err := sprite.Kill(t.Context(), id, sprites.SIGKILL, time.Second); code != 137 || err != nil {
		t.Errorf("after Detach the command did not run on: %d, %v", code, err)
	}
}

// Statement 59: pipes are set up before the start only; a context that is nil panics.
func TestUsedWrongly(t *testing.T) {
	_, sprite := newMachine(t)
	cmd := sprite.Command("true")
	if cmd.Wait() == nil {
		t.Error("Wait before Start")
	}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if cmd.Start() == nil || cmd.Wait() == nil {
		t.Error("used twice")
	}
	if _, err := cmd.StdoutPipe(); err == nil {
		t.Error("StdoutPipe after Start")
	}
	if _, err := cmd.Output(); err == nil {
		t.Error("Output of a command that has run")
	}
	defer func() {
		if recover() == nil {
			t.Error("a nil context is taken")
		}
	}()
	sprite.CommandContext(nil, "true") //nolint:staticcheck // which is the point
}

// TestEnds has servers that end a command in every way.
func TestEnds(t *testing.T) {
	const info = `{"type":"session_info","session_id":"7"}`
	closed := func(ws *websocket.Conn) { _ = ws.Close(websocket.StatusNormalClosure, "") }
	tests := []struct {
		name string
		tty  bool
		do   func(t *testing.T, ws *websocket.Conn)
		out  string
		code int // -1: no exit
	}{
		{"one byte", false, func(t *testing.T, ws *websocket.Conn) { frame(t, ws, 1, 'a'); frame(t, ws, 3, 42); closed(ws) }, "a", 42},
		{"zero", false, func(t *testing.T, ws *websocket.Conn) { frame(t, ws, 3, 0); closed(ws) }, "", 0},
		{"four bytes", false, func(t *testing.T, ws *websocket.Conn) { frame(t, ws, 3, 0, 0, 0, 42); closed(ws) }, "", 42},
		{"four bytes zero", false, func(t *testing.T, ws *websocket.Conn) { frame(t, ws, 3, 0, 0, 0, 0); closed(ws) }, "", 0},
		{"empty exit", false, func(t *testing.T, ws *websocket.Conn) { frame(t, ws, 3); closed(ws) }, "", -1},
		{"long exit", false, func(t *testing.T, ws *websocket.Conn) { frame(t, ws, 3, 0, 0, 0, 0, 0); closed(ws) }, "", -1},
		{"text only", false, func(t *testing.T, ws *websocket.Conn) { text(t, ws, `{"type":"exit","exit_code":3}`); closed(ws) }, "", 3},
		{"text, other key", false, func(t *testing.T, ws *websocket.Conn) { text(t, ws, `{"type":"exit","code":3}`); closed(ws) }, "", 3},
		{"text without a code", false, func(t *testing.T, ws *websocket.Conn) { text(t, ws, `{"type":"exit"}`); closed(ws) }, "", -1},
		{"text, then cut", true, func(t *testing.T, ws *websocket.Conn) {
			frame(t, ws, 1, 'a') // in a terminal 1 is a byte like others
			text(t, ws, `{"type":"exit","exit_code":9}`)
			_ = ws.CloseNow()
		}, "\x01a", 9},
		{"text, then held open", true, func(t *testing.T, ws *websocket.Conn) {
			text(t, ws, `{"type":"exit","exit_code":0}`)
			_, _, _ = ws.Read(context.Background())
		}, "", 0},
		{"exit, then held open", false, func(t *testing.T, ws *websocket.Conn) {
			frame(t, ws, 3, 1)
			_, _, _ = ws.Read(context.Background())
		}, "", 1},
		{"clean close", false, func(t *testing.T, ws *websocket.Conn) { frame(t, ws, 1, 'a'); closed(ws) }, "a", -1},
		{"clean close, terminal", true, func(t *testing.T, ws *websocket.Conn) { frame(t, ws, 'a'); closed(ws) }, "a", -1},
		{"cut", false, func(t *testing.T, ws *websocket.Conn) { frame(t, ws, 1, 'a'); _ = ws.CloseNow() }, "a", -1},
		{"unknown things", false, func(t *testing.T, ws *websocket.Conn) {
			text(t, ws, `not json`)
			text(t, ws, `{"type":"keepalive"}`)
			text(t, ws, `{"type":7}`)
			frame(t, ws)
			frame(t, ws, 9, 'x')
			frame(t, ws, 1)
			frame(t, ws, 1, 'b')
			frame(t, ws, 3, 0)
			closed(ws)
		}, "b", 0},
		{"cut inside a message", false, func(t *testing.T, ws *websocket.Conn) {
			w, _ := ws.Writer(context.Background(), websocket.MessageBinary)
			_, _ = w.Write(append([]byte{1}, strings.Repeat("z", 8192)...))
			_ = ws.CloseNow()
		}, "", -1},
		{"a huge text", false, func(t *testing.T, ws *websocket.Conn) {
			text(t, ws, `{"type":"debug","command":"%s"}`, strings.Repeat("x", 2<<20))
			frame(t, ws, 3, 0)
			closed(ws)
		}, "", -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := script(t, func(_ context.Context, ws *websocket.Conn, _ *http.Request) {
				text(t, ws, info)
				tt.do(t, ws)
			})
			var out bytes.Buffer
			cmd := client.Sprite("paint").Command("x")
			cmd.Stdout = &out
			if tt.tty {
				cmd.TTY = &sprites.Terminal{}
			}
			err := cmd.Run()
			exit, isExit := errors.AsType[*sprites.ExitError](err)
			switch {
			case tt.code == 0 && err != nil, tt.code > 0 && (!isExit || exit.Code != tt.code):
				t.Errorf("got %v, want exit %d", err, tt.code)
			case tt.code < 0 && (isExit || !errors.Is(err, sprites.ErrNoExit)):
				t.Errorf("got %v, want %v", err, sprites.ErrNoExit)
			}
			if tt.name != "cut inside a message" && out.String() != tt.out {
				t.Errorf("output: got %q, want %q", out.String(), tt.out)
			}
		})
	}
}

func TestReasonOfAnExit(t *testing.T) {
	client := script(t, func(_ context.Context, ws *websocket.Conn, _ *http.Request) {
		text(t, ws, `{"type":"exit","exit_code":137,"reason":"timeout"}`)
		frame(t, ws, 3, 137)
	})
	err := client.Sprite("paint").Command("x").Run()
	exit, ok := errors.AsType[*sprites.ExitError](err)
	if !ok || exit.Reason != "timeout" || exit.Error() != "exit status 137 (timeout)" {
		t.Errorf("got %v", err)
	}
}

// However a server says that a sprite was removed, it is ErrRemoved.
func TestRemoved(t *testing.T) {
	for name, do := range map[string]func(*websocket.Conn){
		"exit":  func(ws *websocket.Conn) { text(t, ws, `{"type":"exit","exit_code":137,"reason":"removed"}`) },
		"close": func(ws *websocket.Conn) { _ = ws.Close(websocket.StatusInternalError, "the sprite was removed") },
	} {
		client := script(t, func(_ context.Context, ws *websocket.Conn, _ *http.Request) { do(ws) })
		if err := client.Sprite("paint").Command("x").Run(); !errors.Is(err, sprites.ErrRemoved) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	client := script(t, func(_ context.Context, ws *websocket.Conn, _ *http.Request) {
		_ = ws.Close(websocket.StatusInternalError, "the sandbox has ended: stopped")
	})
	if err := client.Sprite("paint").Command("x").Run(); errors.Is(err, sprites.ErrRemoved) {
		t.Errorf("of another end: got %v", err)
	}
}

func TestBigMessageStreams(t *testing.T) {
	const size = 20 << 20
	client := script(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
		w, _ := ws.Writer(ctx, websocket.MessageBinary)
		_, _ = w.Write([]byte{1})
		for range size >> 16 {
			_, _ = w.Write(make([]byte, 1<<16))
		}
		_ = w.Close()
		frame(t, ws, 3, 0)
	})
	var n widest
	cmd := client.Sprite("paint").Command("x")
	cmd.Stdout = &n
	if err := cmd.Run(); err != nil || n.total != size || n.most > 64<<10 {
		t.Errorf("got %d bytes, %d at most at a time, %v", n.total, n.most, err)
	}
}

type widest struct{ total, most int }

func (w *widest) Write(p []byte) (int, error) {
	w.total += len(p)
	w.most = max(w.most, len(p))
	return len(p), nil
}

func TestAttach(t *testing.T) {
	got := make(chan string, 10)
	client := script(t, func(ctx context.Context, ws *websocket.Conn, r *http.Request) {
		got <- r.URL.RequestURI()
		text(t, ws, `{"type":"session_info","session_id":"412","tty":true}`)
		frame(t, ws, 'h', 'i')
		for range 3 {
			_, b, err := ws.Read(ctx)
			if err != nil {
				return
			}
			got <- string(b)
		}
		text(t, ws, `{"type":"exit","exit_code":0}`)
	})
	var types []string
	var out bytes.Buffer
	cmd := client.Sprite("pa int").Attach(t.Context(), "4/12")
	stdin, _ := cmd.StdinPipe()
	cmd.Stdout = &out
	cmd.OnMessage = func(m sprites.Message) { types = append(types, m.Type) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if uri := <-got; uri != "/v1/sprites/pa%20int/exec/4%2F12?stdin=true" {
		t.Errorf("asked for %s", uri)
	}
	if _, err := stdin.Write([]byte("ls\n")); err != nil {
		t.Fatal(err)
	}
	if b := <-got; b != "ls\n" { // raw: the session has a terminal
		t.Errorf("input: got %q", b)
	}
	if err := cmd.Resize(30, 100); err != nil {
		t.Fatal(err)
	}
	if b := <-got; b != `{"type":"resize","cols":100,"rows":30}` {
		t.Errorf("resize: got %s", b)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if b := <-got; b != "\x04" {
		t.Errorf("end of input: got %q", b)
	}
	if err := cmd.Wait(); err != nil || out.String() != "hi" || strings.Join(types, " ") != "session_info exit" {
		t.Errorf("got %q, %v, messages %v", out.String(), err, types)
	}
}

func TestAttachContextOnlyLeaves(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan []byte, 1)
	client := script(t, func(_ context.Context, ws *websocket.Conn, _ *http.Request) {
		text(t, ws, `{"type":"session_info","session_id":"412"}`)
		_, b, _ := ws.Read(context.Background())
		left <- b
	})
	cmd := client.Sprite("paint").Attach(ctx, "412")
	cmd.OnMessage = func(sprites.Message) { cancel() }
	if err := cmd.Run(); err != context.Canceled {
		t.Errorf("got %v", err)
	}
	if b := <-left; b != nil {
		t.Errorf("leaving sent %q", b)
	}
}

func TestRefusedHandshake(t *testing.T) {
	tests := []struct {
		status  int
		body    string
		message string
		is      error
	}{
		{429, `{"error":"concurrent_sprite_limit_exceeded","message":"You already have 3 sprites running.","limit":3,"x":"` + strings.Repeat("y", 2000) + `"}`,
			"You already have 3 sprites running.", sprites.ErrLimited},
		{404, "no such sprite\n", "no such sprite", sprites.ErrNotFound},
		{401, "", "API error (status 401)", sprites.ErrUnauthorized},
		{409, `{"error":"being_deleted","message":"sprite paint is being deleted"}`, "sprite paint is being deleted", sprites.ErrRemoved},
		{307, "", "API error (status 307)", nil},
		{200, "{}", "API error (status 200)", nil},
	}
	for _, tt := range tests {
		client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/v1/version")
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		}))
		err := client.Sprite("paint").Command("x").Run()
		e, ok := errors.AsType[*sprites.Error](err)
		if !ok || e.StatusCode != tt.status || e.Message != tt.message || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%d: got %#v", tt.status, err)
		}
	}
}

func TestUnavailableIsTriedAgain(t *testing.T) {
	m, _ := newMachine(t)
	tries := 0
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries++; tries < 3 {
			http.Error(w, "starting", http.StatusServiceUnavailable)
			return
		}
		m.exec(w, r)
	}))
	for lastResort := time.Now().Add(10 * time.Minute); ; {
		began := time.Now()
		tries = 0
		out, err := client.Sprite("paint").Command("echo", "hi").Output()
		if err != nil && time.Since(began) > 4*time.Second && began.Before(lastResort) {
			continue // on a slow machine, the time for tries was over before the third
		}
		if err != nil || string(out) != "hi\n" || tries != 3 {
			t.Errorf("got %q, %v after %d tries", out, err, tries)
		}
		break
	}
	tries = -1000
	if _, err := client.Get(t.Context(), "paint"); err == nil || tries != -999 {
		t.Errorf("a call that does not reach inside was tried again, or: %v", err)
	}
}

// As with os/exec, a pipe ends when the command does, before Wait.
func TestPipeEndsBeforeWait(t *testing.T) {
	_, sprite := newMachine(t)
	cmd := sprite.Command("sh", "-c", "echo out; exit 3")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(stdout); string(got) != "out\n" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if exit, ok := errors.AsType[*sprites.ExitError](cmd.Wait()); !ok || exit.Code != 3 {
		t.Errorf("got %+v", exit)
	}
}
