package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

func mapKeys[V any](m map[string]V) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// execs adds the calls on commands and sessions by WebSocket.
func (s *callSet) execs() {
	ctx := s.b.Context()
	command := func(name, size string, tty bool, input []byte, args ...string) {
		s.golang(name, size, nil, func(to *target, _ int) error {
			cmd := to.sprite.CommandContext(ctx, args[0], args[1:]...)
			if tty {
				cmd.TTY = new(sprites.Terminal)
			}
			if input != nil {
				cmd.Stdin = bytes.NewReader(input)
			}
			return cmd.Run()
		})
	}
	data := make([]byte, slices.Max(bodySizes))
	command("exec", "true", false, nil, "true")
	command("tty", "true", true, nil, "true")
	s.js("exec", "true", 0, nil)
	s.js("tty", "true", 0, nil)
	for _, n := range bodySizes {
		size := sizeName(n)
		head := []string{"head", "-c", strconv.Itoa(n), "/dev/zero"}
		command("exec-out", size, false, nil, head...)
		command("tty-out", size, true, nil, head...)
		command("exec-in", size, false, data[:n], "sh", "-c", "cat >/dev/null")
		s.js("exec-out", size, n, nil)
		s.js("exec-in", size, n, nil)
	}
	for name, mode := range map[string]websocket.CompressionMode{"plain": websocket.CompressionDisabled, "deflate": websocket.CompressionContextTakeover} {
		s.add("exec-out/1MiB/ws-"+name, nil, func(to *target, _ int) error {
			return wsExec(ctx, to, mode, nil, "head", "-c", strconv.Itoa(1<<20), "/dev/zero")
		})
		s.add("exec-in/1000x64B/ws-"+name, nil, func(to *target, _ int) error {
			return wsExec(ctx, to, mode, data[:64], "sh", "-c", "cat >/dev/null")
		})
	}
	for _, tty := range []bool{false, true} {
		s.echo(tty)
	}
	s.golang("exec", "holder", nil, func(to *target, _ int) error { // a child holds the output on
		return to.sprite.CommandContext(ctx, "sh", "-c", "sleep 5 & echo done").Run()
	})
	s.golang("tty", "holder", nil, func(to *target, _ int) error {
		cmd := to.sprite.CommandContext(ctx, "sh", "-c", "sleep 5 & echo done")
		cmd.TTY = new(sprites.Terminal)
		return cmd.Run()
	})
	s.plain("sessions", "GET", "/v1/sprites/paint/exec", "", nil)
	var sleeper *sprites.Cmd
	start := func(int) error {
		sleeper = s.to.sprite.CommandContext(ctx, "sh", "-c", "echo; exec sleep 1000")
		out, err := sleeper.StdoutPipe()
		if err := errors.Join(err, sleeper.Start()); err != nil {
			return err
		}
		_, err = io.ReadFull(out, make([]byte, 1)) // before its start there is nothing to kill
		return err
	}
	s.golang("kill", "-", start, func(to *target, _ int) error {
		if to != s.to {
			return exited(s.end(sleeper))
		}
		_, err := to.sprite.Kill(ctx, sleeper.SessionID(), sprites.SIGTERM, 10*time.Second)
		return errors.Join(err, exited(sleeper.Wait()))
	})
	s.golang("attach", "-", start, func(to *target, _ int) error {
		if to != s.to {
			return exited(s.end(sleeper))
		}
		cmd := to.sprite.Attach(ctx, sleeper.SessionID())
		if err := cmd.Start(); err != nil {
			return err
		}
		if err := sleeper.Signal(sprites.SIGKILL); err != nil {
			return err
		}
		return errors.Join(exited(cmd.Wait()), exited(sleeper.Wait()))
	})
}

// end ends a command that is needed no more.
func (s *callSet) end(cmd *sprites.Cmd) error {
	return errors.Join(cmd.Signal(sprites.SIGKILL), cmd.Wait())
}

// exited returns nil if a command has ended, with any exit code.
func exited(err error) error {
	if _, ok := errors.AsType[*sprites.ExitError](err); ok {
		return nil
	}
	return err
}

// echo adds the round trip of a byte to a command.
func (s *callSet) echo(tty bool) {
	name := "exec-echo"
	if tty {
		name = "tty-echo"
	}
	type open struct {
		in  io.Writer
		out io.Reader
	}
	running := map[*target]open{}
	s.golang(name, "1B", nil, func(to *target, _ int) error {
		o, ok := running[to]
		if !ok {
			cmd := to.sprite.CommandContext(s.b.Context(), "cat")
			if tty {
				cmd = to.sprite.CommandContext(s.b.Context(), "sh", "-c", "stty raw -echo; echo ready; exec cat")
				cmd.TTY = new(sprites.Terminal)
			}
			in, err := cmd.StdinPipe()
			out, err2 := cmd.StdoutPipe()
			if err := errors.Join(err, err2, cmd.Start()); err != nil {
				return err
			}
			s.b.Cleanup(func() { _ = cmd.Detach() })
			if tty {
				if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
					return err
				}
			}
			o = open{in, out}
			running[to] = o
		}
		if _, err := o.in.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(o.out, make([]byte, 1))
		return err
	})
}

// wsExec runs a command by a WebSocket client of another make. It sends input, if not
// nil, a thousand times, each in a message of its own.
func wsExec(ctx context.Context, to *target, mode websocket.CompressionMode, input []byte, args ...string) error {
	q := url.Values{"cmd": args}
	if input == nil {
		q.Set("stdin", "false")
	}
	conn, resp, err := websocket.Dial(ctx, to.client.URL+"/v1/sprites/paint/exec?"+q.Encode(), &websocket.DialOptions{
		HTTPHeader:      http.Header{"Authorization": {"Bearer " + to.client.Token}},
		CompressionMode: mode,
	})
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseNow() }()
	if resp.Body != nil {
		defer func() { _ = resp.Body.Close() }()
	}
	conn.SetReadLimit(-1)
	if input != nil {
		for range 1000 {
			if err := conn.Write(ctx, websocket.MessageBinary, append([]byte{byte(sprites.StreamStdin)}, input...)); err != nil {
				return err
			}
		}
		if err := conn.Write(ctx, websocket.MessageBinary, []byte{byte(sprites.StreamStdinEOF)}); err != nil {
			return err
		}
	}
	for {
		typ, msg, err := conn.Read(ctx)
		if err != nil {
			return fmt.Errorf("no exit: %w", err)
		}
		if typ == websocket.MessageBinary && len(msg) == 2 && sprites.Stream(msg[0]) == sprites.StreamExit {
			return conn.Close(websocket.StatusNormalClosure, "")
		}
	}
}

// others adds the calls on services, checkpoints, policies, ports and the sprite's URL.
func (s *callSet) others() {
	ctx := s.b.Context()
	const one = "/v1/sprites/paint/"
	put := func(name string) func(int) error {
		return func(int) error {
			return s.to.sprite.PutService(ctx, sprites.Service{Name: name, Cmd: "sleep", Args: []string{"1000"}}, sprites.Follow{})
		}
	}
	stop := func(int) error { return s.to.sprite.StopService(ctx, "one", 10*time.Second, nil) }
	s.plain("service-put", "PUT", one+"services/one?duration=0s", `{"cmd":"sleep","args":["1000"]}`, nil)
	s.js("service-put", "-", 0, nil)
	s.plain("services", "GET", one+"services", "", nil)
	s.js("services", "-", 0, nil)
	s.plain("service-get", "GET", one+"services/one", "", put("one"))
	s.plain("service-stop", "POST", one+"services/one/stop?timeout=10s", "", put("one"))
	s.plain("service-start", "POST", one+"services/one/start?duration=0s", "", inTurn(put("one"), stop))
	s.plain("service-restart", "POST", one+"services/one/restart?duration=0s", "", put("one"))
	s.plain("service-logs", "GET", one+"services/one/logs?lines=10&duration=0s", "", put("one"))
	s.plain("service-signal", "POST", one+"services/signal", `{"name":"one","signal":"CONT"}`, put("one"))
	s.plain("service-delete", "DELETE", one+"services/gone", "", put("gone"))
	s.golang("service", "first line", nil, func(to *target, _ int) error {
		if to != s.to {
			return nil
		}
		return firstLine(ctx, to.sprite)
	})

	s.plain("checkpoints", "GET", one+"checkpoints", "", nil)
	s.plain("checkpoint", "POST", one+"checkpoint", `{"comment":"x"}`, nil)
	s.plain("checkpoint-get", "GET", one+"checkpoints/v1", "", nil)
	s.plain("checkpoint-diff", "GET", one+"checkpoints/v1/diff", "", nil)
	s.plain("restore", "POST", one+"checkpoints/v1/restore", "", func(int) error { return e2e.RunIn(s.to.client, "paint", "true") })
	s.plain("restore-then-exec", "POST", one+"exec?cmd=true", "", func(int) error {
		_, err := s.to.sprite.RestoreCheckpoint(ctx, "v1", sprites.RestoreRequest{}, nil)
		return err
	})

	s.plain("policy-get", "GET", one+"policy/network", "", nil)
	s.plain("policy-post", "POST", one+"policy/network", `{"rules":[{"domain":"example.com","action":"allow"}]}`, nil)
	s.plain("policy-test", "GET", one+"policy/test?target=example.com", "", nil)
	s.plain("policy-log", "GET", one+"policy/log", "", nil)
	s.js("policy-get", "-", 0, nil)
	s.plain("policy-off", "POST", one+"policy/network", `{"rules":[]}`, nil)

	s.ports()
	s.plain("suspend", "POST", one+"suspend", "", func(int) error { return e2e.RunIn(s.to.client, "paint", "true") })
	s.plain("wake-cold", "POST", one+"wake", "", func(int) error { _, err := s.to.sprite.Suspend(ctx); return err })
	s.plain("export", "GET", one+"export", "", nil)
}

// firstLine starts a service that prints a line, and returns once the line has arrived.
func firstLine(ctx context.Context, sprite *sprites.Sprite) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := sprite.PutService(ctx, sprites.Service{Name: "prints", Cmd: "sh", Args: []string{"-c", "echo line; exec sleep 1000"}}, sprites.Follow{
		Duration: time.Minute,
		Events: func(e sprites.ServiceEvent) {
			if strings.Contains(e.Data, "line") {
				cancel()
			}
		},
	})
	if ctx.Err() == nil {
		return fmt.Errorf("no line: %w", err)
	}
	return sprite.DeleteService(context.WithoutCancel(ctx), "prints")
}

// ports adds proxied connections, the watch of ports, and the sprite's URL.
func (s *callSet) ports() {
	ctx := s.b.Context()
	started := false
	start := func(int) error {
		if !started {
			started = true
			startStreams(s.b, s.to.sprite)
			if err := s.to.sprite.PutService(ctx, sprites.Service{Name: "web", Cmd: "python3", Args: []string{"-m", "http.server", "--directory", "/tmp", "8080"}, HTTPPort: 8080}, sprites.Follow{}); err != nil {
				return err
			}
		}
		return nil
	}
	s.golang("proxy", "first byte", start, func(to *target, _ int) error {
		if to != s.to {
			return nil
		}
		conn, err := to.sprite.Dial(ctx, "localhost", 7)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		_, err = io.ReadFull(conn, make([]byte, 1))
		return err
	})
	s.golang("ports-watch", "first", start, func(to *target, _ int) error {
		if to != s.to {
			return nil
		}
		w, err := to.sprite.WatchPorts(ctx)
		if err != nil {
			return err
		}
		return w.Close() // the first message has the open ports
	})
	for _, n := range bodySizes {
		s.add("url/"+sizeName(n)+"/http", inTurn(start, s.file("url", n)), func(to *target, _ int) error {
			return throughURL(ctx, to, fmt.Sprintf("/url%d", n))
		})
	}
}

// inTurn calls one after the other.
func inTurn(first, second func(int) error) func(int) error {
	return func(i int) error { return errors.Join(first(i), second(i)) }
}

// throughURL reads a file through the sprite's URL.
func throughURL(ctx context.Context, to *target, path string) error {
	u, err := url.Parse(to.client.URL)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.client.URL+path, nil)
	if err != nil {
		return err
	}
	req.Host = "paint.localhost:" + u.Port()
	req.Header.Set("Authorization", "Bearer "+to.client.Token)
	resp, err := urlTransport.RoundTrip(req)
	if err != nil {
		return err
	}
	return answered(resp)
}

var urlTransport = &http.Transport{DisableCompression: true}
