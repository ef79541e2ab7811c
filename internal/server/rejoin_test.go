package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// cut is where a connection breaks off: after so many bytes to the server, or from it.
type cut struct {
	up bool
	at int64
}

// cutter is a proxy before a server. Its first connections break off as planned.
type cutter struct {
	target string
	ln     net.Listener
	plan   []cut

	mu    sync.Mutex
	taken int // connections
	wg    sync.WaitGroup
}

// cutting is a client of the server that goes through a cutter.
func cutting(t *testing.T, s *covetest.Server, plan ...cut) (*cutter, *sprites.Client) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{target: strings.TrimPrefix(s.URL, "http://"), ln: ln, plan: plan}
	c.wg.Go(c.serve)
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(func() {
		_ = ln.Close()
		c.wg.Wait()
	})
	return c, &sprites.Client{URL: "http://" + ln.Addr().String(), Token: s.Token, HTTPClient: &http.Client{Transport: transport}}
}

func (c *cutter) serve() {
	for {
		near, err := c.ln.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		up, down := int64(-1), int64(-1)
		if c.taken < len(c.plan) {
			if p := c.plan[c.taken]; p.up {
				up = p.at
			} else {
				down = p.at
			}
		}
		c.taken++
		c.mu.Unlock()
		far, err := net.Dial("tcp", c.target)
		if err != nil {
			_ = near.Close()
			continue
		}
		for _, way := range []struct {
			to, from net.Conn
			most     int64
		}{{far, near, up}, {near, far, down}} {
			c.wg.Go(func() {
				if way.most < 0 {
					_, _ = io.Copy(way.to, way.from)
				} else {
					_, _ = io.CopyN(way.to, way.from, way.most)
				}
				_ = near.Close()
				_ = far.Close()
			})
		}
	}
}

func (c *cutter) connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken
}

// paced is an input of which no more than ahead has not come back as output: so much a
// sprite keeps.
type paced struct {
	mu     sync.Mutex
	change sync.Cond
	data   []byte
	read   int
	out    bytes.Buffer
	ended  bool
}

const (
	ahead    = 48 << 10
	leastGap = 4 << 10 // to read at once
)

func newPaced(data []byte) *paced {
	p := &paced{data: data}
	p.change.L = &p.mu
	return p
}

func (p *paced) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.ended && p.read < len(p.data) && p.out.Len()+ahead-p.read < leastGap {
		p.change.Wait()
	}
	if p.ended || p.read == len(p.data) {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.out.Len()+ahead-p.read)], p.data[p.read:])
	p.read += n
	return n, nil
}

func (p *paced) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change.Broadcast()
	return p.out.Write(b)
}

func (p *paced) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.change.Broadcast()
}

func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

// TestRejoin: a program that has only package sprites rejoins a command whose connection is
// cut again and again. The cuts are in the middle of its output, of its input, and of the
// rejoining. No byte is lost, and none comes twice.
func TestRejoin(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	plan := []cut{
		{false, 150_000}, {true, 200_000}, {false, 60}, {true, 90}, {false, 300_001},
		{true, 100_003}, {false, 700}, {true, 1_000}, {true, 350_000}, {false, 65_536},
	}
	c, client := cutting(t, s, plan...)
	data := noise(1_500_000)
	in := newPaced(data)
	defer in.end()
	var errs bytes.Buffer
	cmd := client.Sprite("paint").CommandContext(t.Context(), "sh", "-c", "tee /dev/stderr; exit 7")
	cmd.MaxRunAfterDisconnect = new(time.Hour)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, in, &errs
	var lost []error
	cmd.Rejoin = func(_ context.Context, err error) (*sprites.Sprite, error) {
		lost = append(lost, err)
		return client.Sprite("paint"), nil
	}
	err := cmd.Run()
	if exit, ok := errors.AsType[*sprites.ExitError](err); !ok || exit.Code != 7 {
		t.Errorf("got %v, want exit 7", err)
	}
	if !bytes.Equal(in.out.Bytes(), data) || !bytes.Equal(errs.Bytes(), data) {
		t.Errorf("of %d bytes, %d came back as output and %d as error output, or others", len(data), in.out.Len(), errs.Len())
	}
	if len(lost) != len(plan) || c.connections() != len(plan)+1 {
		t.Errorf("%d cuts made %d connections, and Rejoin was called %d times: %v", len(plan), c.connections(), len(lost), lost)
	}
	if !slices.ContainsFunc(lost, func(err error) bool { return errors.Is(err, sprites.ErrNoExit) }) {
		t.Errorf("no connection was lost: %v", lost)
	}
}

// Input at a terminal is numbered, too, and its size is told again.
func TestRejoinTerminal(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	_, client := cutting(t, s, cut{false, 3_000}, cut{true, 2_000})
	cmd := client.Sprite("paint").CommandContext(t.Context(), "sh", "-c", "stty -echo -onlcr; echo go; while read -r line; do echo $line; done; stty size; exit 3")
	cmd.TTY = &sprites.Terminal{}
	cmd.MaxRunAfterDisconnect = new(time.Hour)
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	away := 0
	cmd.Rejoin = func(context.Context, error) (*sprites.Sprite, error) {
		away++
		if err := cmd.Resize(31, 41); err != nil {
			t.Errorf("resize meanwhile: %v", err)
		}
		if err := cmd.Signal(sprites.SIGTERM); err == nil {
			t.Error("a signal was sent without a connection")
		}
		return client.Sprite("paint"), nil
	}
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	want := "go\n"
	if _, err := io.ReadFull(stdout, make([]byte, len(want))); err != nil {
		t.Fatal(err)
	}
	line := []byte(strings.Repeat("x", 99) + "\n")
	for i := range 100 {
		if _, err := stdin.Write(line); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(line))
		if _, err := io.ReadFull(stdout, got); err != nil || !bytes.Equal(got, line) {
			t.Fatalf("line %d: got %q, %v", i, got, err)
		}
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(stdout); err != nil || string(rest) != "31 41\n" {
		t.Errorf("the terminal's size: got %q, %v", rest, err)
	}
	if exit, ok := errors.AsType[*sprites.ExitError](cmd.Wait()); !ok || exit.Code != 3 || away != 2 {
		t.Errorf("got %v after %d absences", exit, away)
	}
}

// none waits until no command runs in the sprite.
func none(t *testing.T, sprite *sprites.Sprite) {
	t.Helper()
	for {
		list, err := sprite.Sessions(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		if len(list) == 0 {
			return
		}
	}
}

// TestRejoinLostOutput checks that an error says, with the exit code, that output is no longer
// kept when the command is rejoined. It says the same if the session is not kept.
func TestRejoinLostOutput(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	direct := s.Create("paint")
	for _, code := range []int{0, 5} {
		_, client := cutting(t, s, cut{false, 20_000})
		var out, errs bytes.Buffer
		cmd := client.Sprite("paint").CommandContext(t.Context(), "sh", "-c", `head -c 600000 /dev/zero | tr '\0' x; echo last; echo done >&2; exit $CODE`)
		cmd.Env = []string{"CODE=" + string(rune('0'+code))}
		cmd.MaxRunAfterDisconnect = new(time.Hour)
		cmd.Stdout, cmd.Stderr = &out, &errs
		cmd.Rejoin = func(context.Context, error) (*sprites.Sprite, error) {
			none(t, direct)
			return direct, nil
		}
		err := cmd.Run()
		e, ok := errors.AsType[*sprites.LostOutputError](err)
		if _, exit := errors.AsType[*sprites.ExitError](err); !ok || e.Code != code || exit {
			t.Errorf("got %v, want lost output and code %d", err, code)
		}
		if n := out.Len(); n < 100_000 || n >= 600_000 || !strings.HasSuffix(out.String(), "xlast\n") || errs.String() != "done\n" {
			t.Errorf("%d bytes came, error output %q", n, errs.String())
		}
	}

	_, client := cutting(t, s, cut{false, 20_000})
	cmd := client.Sprite("paint").CommandContext(t.Context(), "sh", "-c", "head -c 100000 /dev/zero; read x")
	cmd.MaxRunAfterDisconnect = new(time.Hour)
	cmd.Rejoin = func(context.Context, error) (*sprites.Sprite, error) {
		if err := s.Client().Delete(t.Context(), "paint", sprites.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		s.Create("paint")
		return direct, nil
	}
	if err := cmd.Run(); !errors.Is(err, sprites.ErrNoExit) || !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("a session that is not there: got %v", err)
	}
}

// A command that nobody comes back to: Wait returns Rejoin's own error; a context's end, and
// Detach, end the wait for another connection.
func TestRejoinGivenUp(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	direct := s.Create("paint")
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		rejoin func(ctx context.Context, cancel func(), cmd *sprites.Cmd) error
		want   error
		killed bool
	}{
		"refused": {func(context.Context, func(), *sprites.Cmd) error { return boom }, boom, false},
		"context": {func(ctx context.Context, cancel func(), _ *sprites.Cmd) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}, context.Canceled, false},
		"context, and back": {func(ctx context.Context, cancel func(), _ *sprites.Cmd) error {
			cancel()
			<-ctx.Done()
			return nil
		}, context.Canceled, true},
		"detach": {func(ctx context.Context, _ func(), cmd *sprites.Cmd) error {
			go func() {
				if err := cmd.Detach(); err != nil {
					t.Errorf("detach: %v", err)
				}
			}()
			<-ctx.Done()
			return boom
		}, sprites.ErrDetached, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, client := cutting(t, s, cut{false, 20_000})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := client.Sprite("paint").CommandContext(ctx, "sh", "-c", "head -c 100000 /dev/zero; exec sleep 100000")
			cmd.MaxRunAfterDisconnect = new(time.Hour)
			cmd.Rejoin = func(ctx context.Context, _ error) (*sprites.Sprite, error) {
				return direct, test.rejoin(ctx, cancel, cmd)
			}
			if err := cmd.Run(); !errors.Is(err, test.want) || test.want == boom && err != boom {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if test.killed {
				none(t, direct)
				return
			}
			if code, err := direct.Kill(t.Context(), cmd.SessionID(), sprites.SIGKILL, time.Second); code != 137 || err != nil {
				t.Errorf("it does not run on: %d, %v", code, err)
			}
		})
	}
}
