package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// BenchmarkPost measures one command on a running sprite by plain HTTP. The server paces
// the frames of its answer, for clients that take all bytes of one read for one frame.
func BenchmarkPost(b *testing.B) {
	for _, parallel := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			client, _, floor := benchSprite(b)
			floor.keepRunning(b)
			web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: parallel}}
			post := func() error {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, client.URL+"/v1/sprites/paint/exec?cmd=true&path=true", nil)
				if err != nil {
					return err
				}
				req.Header.Set("Authorization", "Bearer "+client.Token)
				resp, err := web.Do(req)
				if err != nil {
					return err
				}
				body, err := io.ReadAll(resp.Body)
				if err == nil && !bytes.HasSuffix(body, []byte{3, 0}) {
					err = fmt.Errorf("got %d %q", resp.StatusCode, body)
				}
				return errors.Join(err, resp.Body.Close())
			}
			var ours, bare []time.Duration
			for b.Loop() {
				ours = append(ours, atOnce(b, parallel, post)...)
				bare = append(bare, floor.run(b, floorCall{N: parallel, Parallel: parallel, Args: []string{"exec", floorID, "true"}})...)
			}
			report(b, ours, bare)
		})
	}
}

// benchSprite starts a server, and in it a sprite named paint that is awake.
func benchSprite(b *testing.B) (*cove.Client, *sprites.Sprite, *floor) {
	b.Helper()
	client, _ := benchServer(b)
	floor := startFloor(b)
	if _, err := client.Create(b.Context(), sprites.CreateRequest{Name: "paint"}); err != nil {
		b.Fatal(err)
	}
	if err := e2e.RunIn(client, "paint", "true"); err != nil {
		b.Fatal(err)
	}
	return client, client.Sprite("paint"), floor
}

// bareDial connects to a port of the sandbox through its shim: the bare tap and
// TCP/IP stack, without server or guest.
func bareDial(b *testing.B, client *cove.Client, port int) net.Conn {
	b.Helper()
	info, err := client.Version(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	runs, err := filepath.Glob(filepath.Join(info.Data, "run", "*"))
	if err != nil || len(runs) != 1 {
		b.Fatalf("%d sandboxes, %v", len(runs), err)
	}
	conn, err := shim.Client{Dir: runs[0]}.Dial(b.Context(), port)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// streamServer reads a number of bytes at port 5, and sends one back. At port 6 it sends
// as many bytes as a line asks for. At port 7 it echoes.
const streamServer = `import socket, threading
def serve(port, f):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("0.0.0.0", port)); s.listen()
    while True:
        c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); threading.Thread(target=f, args=(c,)).start()
def sink(c):
    left = int(c.makefile("rb", 0).readline()); buf = bytearray(1 << 20)
    while left > 0: left -= c.recv_into(buf)
    c.sendall(b"!")
def source(c):
    left = int(c.makefile("rb", 0).readline()); buf = bytes(1 << 20)
    while left > 0: left -= c.send(buf[:left])
def echo(c):
    while d := c.recv(65536): c.sendall(d)
for p, f in ((5, sink), (6, source), (7, echo)): threading.Thread(target=serve, args=(p, f)).start()
`

func startStreams(b *testing.B, sprite *sprites.Sprite) {
	b.Helper()
	def := sprites.Service{Name: "streams", Cmd: "python3", Args: []string{"-c", streamServer}}
	if err := sprite.PutService(b.Context(), def, sprites.Follow{}); err != nil {
		b.Fatal(err)
	}
	e2e.Await(b, "the streams", func() bool {
		conn, err := sprite.Dial(b.Context(), "localhost", 7)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// proxySize is how many bytes BenchmarkProxy moves each way.
const proxySize = 256 << 20

// BenchmarkProxy measures a proxied connection, beside one through the bare tap and
// TCP/IP stack. It reports throughput each way, and the time to the first byte of a new
// connection.
func BenchmarkProxy(b *testing.B) {
	client, sprite, _ := benchSprite(b)
	startStreams(b, sprite)
	dials := []func(port int) net.Conn{
		func(port int) net.Conn {
			conn, err := sprite.Dial(b.Context(), "localhost", port)
			if err != nil {
				b.Fatal(err)
			}
			return conn
		},
		func(port int) net.Conn { return bareDial(b, client, port) },
	}
	chunk := make([]byte, 1<<20)
	kinds := []struct {
		name string
		f    func(dial func(int) net.Conn) error
	}{
		{"in", func(dial func(int) net.Conn) error {
			conn := dial(5)
			defer func() { _ = conn.Close() }()
			if _, err := fmt.Fprintln(conn, proxySize); err != nil {
				return err
			}
			for sent := 0; sent < proxySize; sent += len(chunk) {
				if _, err := conn.Write(chunk); err != nil {
					return err
				}
			}
			_, err := io.ReadFull(conn, make([]byte, 1))
			return err
		}},
		{"out", func(dial func(int) net.Conn) error {
			conn := dial(6)
			defer func() { _ = conn.Close() }()
			if _, err := fmt.Fprintln(conn, proxySize); err != nil {
				return err
			}
			_, err := io.CopyN(io.Discard, conn, proxySize)
			return err
		}},
		{"first", func(dial func(int) net.Conn) error {
			conn := dial(7)
			defer func() { _ = conn.Close() }()
			if _, err := conn.Write([]byte("x")); err != nil {
				return err
			}
			_, err := io.ReadFull(conn, make([]byte, 1))
			return err
		}},
	}
	for _, kind := range kinds {
		b.Run(kind.name, func(b *testing.B) {
			var took [2][]time.Duration
			for b.Loop() {
				for i, dial := range dials {
					took[i] = append(took[i], timed(b, func() error { return kind.f(dial) }))
				}
			}
			report(b, took[0], took[1])
		})
	}
}

// BenchmarkEcho times a keystroke to a terminal and back. Its floor is a byte to a
// program in the sandbox and back, through the bare tap and stack.
func BenchmarkEcho(b *testing.B) {
	client, sprite, _ := benchSprite(b)
	startStreams(b, sprite)
	cmd := sprite.Command("sh", "-c", "echo ready; exec cat")
	cmd.TTY = new(sprites.Terminal)
	out, err := cmd.StdoutPipe()
	in, err2 := cmd.StdinPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\r\n"))); err != nil {
		b.Fatal(err)
	}
	bare := bareDial(b, client, 7)
	key := func(w io.Writer, r io.Reader) error {
		if _, err := w.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(r, make([]byte, 1))
		return err
	}
	var ours, floor []time.Duration
	for b.Loop() {
		ours = append(ours, timed(b, func() error { return key(in, out) }))
		floor = append(floor, timed(b, func() error { return key(bare, bare) }))
	}
	report(b, ours, floor)
	if err := cmd.Detach(); err != nil {
		b.Error(err)
	}
}

// smallFiles is how many files BenchmarkSmallFiles writes and reads, and smallSize their
// size.
const (
	smallFiles = 10_000
	smallSize  = 4 << 10
)

// BenchmarkSmallFiles writes and reads 10,000 files of 4 KiB, 16 calls at a time, beside
// tar through the pipe of a bare runsc exec.
func BenchmarkSmallFiles(b *testing.B) {
	_, sprite, floor := benchSprite(b)
	floor.keepRunning(b)
	dir := b.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "src"), 0o755); err != nil {
		b.Fatal(err)
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), smallSize/16)
	for i := range smallFiles {
		if err := os.WriteFile(filepath.Join(dir, "src", strconv.Itoa(i)), data, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	archive := filepath.Join(dir, "src.tar")
	if out, err := exec.Command("tar", "-C", dir, "-cf", archive, "src").CombinedOutput(); err != nil {
		b.Fatalf("tar: %v: %s", err, out)
	}
	b.Run("write", func(b *testing.B) {
		var ours, bare []time.Duration
		for b.Loop() {
			ours = append(ours, timed(b, func() error {
				return each(b, func(ctx context.Context, i int) error {
					return sprite.WriteFile(ctx, fmt.Sprintf("src/%d", i), bytes.NewReader(data), sprites.WriteOptions{})
				})
			}))
			bare = append(bare, floor.run(b, floorCall{N: 1, Stdin: archive, Args: []string{"exec", floorID, "tar", "-C", "/home", "-xf", "-"}})...)
		}
		report(b, ours, bare)
	})
	b.Run("read", func(b *testing.B) {
		var ours, bare []time.Duration
		for b.Loop() {
			ours = append(ours, timed(b, func() error {
				return each(b, func(ctx context.Context, i int) error {
					got, err := sprite.ReadFile(ctx, fmt.Sprintf("src/%d", i))
					if err == nil && !bytes.Equal(got, data) {
						err = fmt.Errorf("file %d has other bytes", i)
					}
					return err
				})
			}))
			bare = append(bare, floor.run(b, floorCall{N: 1, Stdout: filepath.Join(dir, "out.tar"), Args: []string{"exec", floorID, "tar", "-C", "/home", "-cf", "-", "src"}})...)
		}
		report(b, ours, bare)
	})
}

// each calls f for every file, 16 at a time.
func each(b *testing.B, f func(ctx context.Context, i int) error) error {
	var wg sync.WaitGroup
	next := make(chan int)
	errs := make(chan error, 16)
	for range 16 {
		wg.Go(func() {
			var failed error
			for i := range next {
				if failed == nil {
					failed = f(b.Context(), i)
				}
			}
			errs <- failed
		})
	}
	for i := range smallFiles {
		next <- i
	}
	close(next)
	wg.Wait()
	var all error
	for range 16 {
		all = errors.Join(all, <-errs)
	}
	return all
}
