package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// replay is the floor of BenchmarkCalls: a bare HTTP server. For each call it gets the
// answer once from a server of the protocol. From then on it reads the request to its end
// and replays that answer. Commands by WebSocket it carries out itself.
type replay struct {
	url string

	mu      sync.Mutex
	answers map[string]*replayed
}

type replayed struct {
	status int
	header http.Header
	length int64
	body   []byte
}

func newReplay(url string) *replay { return &replay{url: url, answers: map[string]*replayed{}} }

// callNumber matches the part of a name that makes each call's object different.
var callNumber = regexp.MustCompile(`-u[0-9]+`)

func (f *replay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "" {
		replayExec(w, r)
		return
	}
	host, _, _ := net.SplitHostPort(r.Host)
	key := callNumber.ReplaceAllString(strings.Join([]string{r.Method, host, r.URL.String(), strconv.FormatInt(r.ContentLength, 10)}, " "), "")
	f.mu.Lock()
	a := f.answers[key]
	f.mu.Unlock()
	if a == nil {
		var err error
		if a, err = f.hear(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		if a.status < 300 {
			f.mu.Lock()
			f.answers[key] = a
			f.mu.Unlock()
		}
	} else if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	for _, k := range []string{"Content-Type", "Sprite-Version"} {
		w.Header()[k] = a.header[k]
	}
	if a.length >= 0 && a.status != http.StatusNoContent {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.status)
	if a.length < 0 {
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = w.Write(a.body)
}

// hear makes a call to the server of the protocol.
func (f *replay) hear(r *http.Request) (*replayed, error) {
	req, err := http.NewRequestWithContext(r.Context(), r.Method, f.url+r.URL.String(), r.Body)
	if err != nil {
		return nil, err
	}
	req.Header = r.Header.Clone()
	req.Header.Del("Expect")
	req.ContentLength = r.ContentLength
	if host, _, _ := net.SplitHostPort(r.Host); strings.HasSuffix(host, ".localhost") {
		req.Host = host + ":" + req.URL.Port()
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return &replayed{resp.StatusCode, resp.Header, resp.ContentLength, body}, err
}

// replayExec acts like the commands of BenchmarkCalls: it reads input to its end, echoes
// it, or writes as many bytes as head does.
func replayExec(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(-1)
	q, ctx := r.URL.Query(), r.Context()
	tty, args := q.Get("tty") == "true", q["cmd"]
	_ = conn.Write(ctx, websocket.MessageText, []byte(`{"type":"session_info","session_id":"1","tty":`+strconv.FormatBool(tty)+`}`))
	script := args[len(args)-1]
	switch {
	case args[0] == "head":
		left, _ := strconv.Atoi(args[2])
		frame := make([]byte, 32<<10+1)
		frame[0] = byte(sprites.StreamStdout)
		for left > 0 {
			n := min(left, len(frame)-1)
			p := frame[:1+n]
			if tty {
				p = frame[1:][:n]
			}
			if conn.Write(ctx, websocket.MessageBinary, p) != nil {
				return
			}
			left -= n
		}
	case strings.HasSuffix(script, "cat"):
		if strings.Contains(script, "ready") {
			_ = conn.Write(ctx, websocket.MessageBinary, []byte("ready\n"))
		}
		for {
			typ, msg, err := conn.Read(ctx)
			if err != nil {
				return
			}
			if typ != websocket.MessageBinary {
				continue
			}
			if !tty {
				msg[0] = byte(sprites.StreamStdout)
			}
			if conn.Write(ctx, typ, msg) != nil {
				return
			}
		}
	case strings.HasPrefix(script, "cat"):
		for {
			_, msg, err := conn.Read(ctx)
			if err != nil {
				return
			}
			if len(msg) > 0 && sprites.Stream(msg[0]) == sprites.StreamStdinEOF {
				break
			}
		}
	}
	_ = conn.Write(ctx, websocket.MessageText, []byte(`{"type":"exit","exit_code":0}`))
	if !tty {
		_ = conn.Write(ctx, websocket.MessageBinary, []byte{byte(sprites.StreamExit), 0})
	}
	_ = conn.Close(websocket.StatusNormalClosure, "")
}

// nodeCaller is a process of Node with the JavaScript SDK, which makes calls.
type nodeCaller struct {
	in   io.Writer
	out  *json.Decoder
	took time.Duration // of the last call, by its own clock
}

func startNode(b *testing.B, client *cove.Client) *nodeCaller {
	b.Helper()
	modules := e2e.JSModules(b)
	dir := b.TempDir()
	for _, name := range []string{"calls.mjs"} {
		data, err := os.ReadFile(filepath.Join(e2e.JSTests, name))
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(modules, ".bin", "node"), "calls.mjs")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "COVE_URL="+client.URL, "COVE_TOKEN="+client.Token, "NODE_OPTIONS=")
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("node: %v", err)
		}
	})
	return &nodeCaller{in: in, out: json.NewDecoder(bufio.NewReader(out))}
}

// call makes a call and notes how long it took.
func (n *nodeCaller) call(name string, size, i int) error {
	if err := json.NewEncoder(n.in).Encode(map[string]any{"name": name, "size": size, "i": i}); err != nil {
		return err
	}
	var answer struct {
		Took  float64 // in milliseconds
		Error string
	}
	if err := n.out.Decode(&answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	n.took = time.Duration(answer.Took * float64(time.Millisecond))
	return nil
}
