package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/leakcheck"
	"github.com/cove-dev/cove/sprites"
)

// echoServer is a program that echoes its input at port 7.
const echoServer = `import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536): self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer): allow_reuse_address = daemon_threads = True
Server(("0.0.0.0", 7), Echo).serve_forever()
`

// TestSoakLoad puts a mixed load on many sprites at once: commands, files, proxied
// connections, and sessions that are left and joined. No call fails, and nothing of the
// load is left. make soak runs it for ten minutes on 20 sprites.
func TestSoakLoad(t *testing.T) {
	n, long := 3, 5*time.Second
	if e2e.Soak() {
		n, long = 20, 10*time.Minute
	}
	h := e2e.NewLoneHost(t)
	h.Serve(nil)
	before, err := leakcheck.Take(filepath.Join(h.Data, "run", "*"), filepath.Join(h.Data, "layers", "*"), filepath.Join(h.Data, "images", "*"))
	if err != nil {
		t.Fatal(err)
	}
	loads := make([]*load, n)
	for i := range loads {
		loads[i] = newLoad(t, h.Client(), i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), e2e.LastResort)
	defer cancel()
	for _, l := range loads { // opens the files that are opened once
		l.each(ctx)
	}
	settle(t, h, 1<<20) // until files being closed are closed
	held, running := held(h), goroutines(h)
	var wg sync.WaitGroup
	end := time.Now().Add(long)
	for _, l := range loads {
		for range 2 {
			wg.Go(func() {
				for time.Now().Before(end) && !t.Failed() {
					l.one(t.Context())
				}
			})
		}
	}
	wg.Wait()
	total := int64(0)
	for _, l := range loads {
		total += l.calls.Load()
	}
	t.Logf("%d calls in %v on %d sprites", total, long, n)
	settle(t, h, held+20*n)                                                                              // connections that wait for the next call: 8 for a guest, held by server and shim
	e2e.Await(t, "the server's goroutines to end", func() bool { return goroutines(h) <= running+20*n }) // of the same connections
	for _, l := range loads {
		l.must(h.Client().Delete(t.Context(), l.name, sprites.DeleteOptions{}))
	}
	ctx, cancel2 := context.WithTimeout(t.Context(), e2e.LastResort)
	defer cancel2()
	left, err := leakcheck.Left(ctx, before)
	if err := errors.Join(err, leakcheck.Error(left)); err != nil {
		t.Error(err)
	}
}

// settle waits until the server and the shims have no more files open than allowed.
func settle(t *testing.T, h *e2e.Host, allowed int) {
	t.Helper()
	var now int
	deadline := time.Now().Add(e2e.LastResort)
	for stable := 0; stable < 5; <-time.After(100 * time.Millisecond) {
		last := now
		now = held(h)
		if now > allowed || now != last {
			stable = 0
		} else {
			stable++
		}
		if time.Now().After(deadline) {
			if now > allowed {
				t.Errorf("the server and the shims hold %d files, and held %d before", now, allowed)
			}
			return
		}
	}
}

// held returns how many files the server and the shims have open.
func held(h *e2e.Host) int {
	n := holdings(h.T, h.PID())
	for _, pid := range h.Shims() {
		n += holdings(h.T, pid)
	}
	return n
}

// goroutines returns how many goroutines the server has.
func goroutines(h *e2e.Host) int {
	info, err := h.Client().Version(h.T.Context())
	if err != nil {
		h.T.Fatal(err)
	}
	return info.Goroutines
}

// load is the load on one sprite.
type load struct {
	t      *testing.T
	name   string
	sprite *sprites.Sprite
	calls  atomic.Int64

	mu  sync.Mutex
	rng *rand.Rand
}

func newLoad(t *testing.T, c *cove.Client, i int) *load {
	l := &load{t: t, name: fmt.Sprintf("load-%d", i), rng: rand.New(rand.NewPCG(1, uint64(i)))}
	_, err := c.Create(t.Context(), sprites.CreateRequest{Name: l.name})
	if err != nil {
		t.Fatal(err)
	}
	l.sprite = c.Sprite(l.name)
	def := sprites.Service{Name: "echo", Cmd: "python3", Args: []string{"-c", echoServer}}
	l.must(l.sprite.PutService(t.Context(), def, sprites.Follow{}))
	e2e.Await(t, "the echo server", func() bool {
		conn, err := l.sprite.Dial(t.Context(), "localhost", 7)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return l
}

func (l *load) must(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		l.t.Errorf("%s, call %d: %v", l.name, l.calls.Load(), err)
	}
}

func (l *load) random(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.IntN(n)
}

func (l *load) kinds() []func(context.Context, int) {
	return []func(context.Context, int){l.exec, l.output, l.file, l.proxy, l.session}
}

func (l *load) each(ctx context.Context) {
	for _, f := range l.kinds() {
		f(ctx, 1)
	}
}

func (l *load) one(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e2e.LastResort)
	defer cancel()
	kinds := l.kinds()
	l.calls.Add(1)
	kinds[l.random(len(kinds))](ctx, l.random(1<<20)+1)
}

func (l *load) exec(ctx context.Context, n int) {
	cmd := l.sprite.CommandContext(ctx, "sh", "-c", fmt.Sprintf("cat; exit %d", n%200))
	cmd.Stdin = bytes.NewReader([]byte(l.name))
	out, err := cmd.Output()
	code := 0
	if e, ok := errors.AsType[*sprites.ExitError](err); ok {
		code = e.Code
	} else if err != nil {
		l.must(err)
	}
	if string(out) != l.name || code != n%200 {
		l.must(fmt.Errorf("exec gave %q and %d, want %d", out, code, n%200))
	}
}

func (l *load) output(ctx context.Context, n int) {
	out, err := l.sprite.CommandContext(ctx, "head", "-c", fmt.Sprint(n), "/dev/zero").Output()
	if len(out) != n {
		err = errors.Join(err, fmt.Errorf("%d bytes of %d", len(out), n))
	}
	l.must(err)
}

func (l *load) file(ctx context.Context, n int) {
	data := bytes.Repeat([]byte{byte(n)}, n)
	name := fmt.Sprintf("files/%d-%d", n, l.random(1<<30))
	l.must(l.sprite.WriteFile(ctx, name, bytes.NewReader(data), sprites.WriteOptions{}))
	got, err := l.sprite.ReadFile(ctx, name)
	if !bytes.Equal(got, data) {
		err = errors.Join(err, fmt.Errorf("%d bytes came back as %d", n, len(got)))
	}
	l.must(err, l.sprite.Remove(ctx, name, false))
}

func (l *load) proxy(ctx context.Context, n int) {
	conn, err := l.sprite.Dial(ctx, "localhost", 7)
	if err != nil {
		l.must(err)
		return
	}
	defer func() { _ = conn.Close() }()
	data := bytes.Repeat([]byte{byte(n)}, n)
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		wrote <- err
	}()
	got := make([]byte, n)
	_, err = io.ReadFull(conn, got)
	if err == nil && !bytes.Equal(got, data) {
		err = errors.New("other bytes came back")
	}
	l.must(err, <-wrote)
}

func (l *load) session(ctx context.Context, _ int) {
	cmd := l.sprite.CommandContext(ctx, "sh", "-c", "echo ready; exec cat")
	cmd.TTY = new(sprites.Terminal)
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		l.must(err)
		return
	}
	_, err = io.ReadFull(out, make([]byte, len("ready")))
	l.must(err, cmd.Detach())
	again := l.sprite.Attach(ctx, cmd.SessionID())
	var shown bytes.Buffer
	again.Stdout = &shown
	if err := again.Start(); err != nil {
		l.must(err)
		return
	}
	_, err = l.sprite.Kill(ctx, cmd.SessionID(), sprites.SIGKILL, time.Minute)
	l.must(err)
	if _, ok := errors.AsType[*sprites.ExitError](again.Wait()); !ok || !bytes.HasPrefix(shown.Bytes(), []byte("ready")) {
		l.must(fmt.Errorf("the joined session showed %q", shown.String()))
	}
}
