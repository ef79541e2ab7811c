package sprites_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/sprites"
)

// serve starts a server for handler and returns a client of it.
func serve(t testing.TB, handler http.Handler) *sprites.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	})
	return &sprites.Client{URL: server.URL + "/", Token: "s3cret", HTTPClient: &http.Client{Transport: transport}}
}

// script serves one WebSocket as f says, byte by byte.
func script(t testing.TB, f func(ctx context.Context, ws *websocket.Conn, r *http.Request)) *sprites.Client {
	t.Helper()
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		taken := &hijacked{ResponseWriter: w}
		ws, err := websocket.Accept(taken, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = ws.CloseNow() }()
		f(r.Context(), ws, r)
		// The client sees an end, and no reset, even if it has sent a ping that nobody has read.
		if conn, ok := taken.conn.(*net.TCPConn); ok {
			_ = conn.CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
		}
	}))
}

// hijacked keeps the connection that a handler takes over.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = conn
	return conn, rw, err
}

// text sends a text message, as frame sends a binary one. If the client has gone, so may the test:
// neither logs that.
func text(t testing.TB, ws *websocket.Conn, format string, args ...any) {
	t.Helper()
	_ = ws.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, format, args...))
}

func frame(t testing.TB, ws *websocket.Conn, b ...byte) {
	t.Helper()
	_ = ws.Write(context.Background(), websocket.MessageBinary, b)
}

// machine is a small server of the in-sprite part of the protocol that runs real
// processes and serves real files.
type machine struct {
	t    testing.TB
	mu   sync.Mutex
	seen []string // method, path and query of each request
	ids  map[string]*exec.Cmd
	done map[string]chan struct{}
}

func newMachine(t testing.TB) (*machine, *sprites.Sprite) {
	m := &machine{t: t, ids: map[string]*exec.Cmd{}, done: map[string]chan struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/exec", m.exec)
	mux.HandleFunc("POST /v1/exec/{id}/kill", m.kill)
	mux.HandleFunc("GET /v1/fs/read", m.read)
	mux.HandleFunc("PUT /v1/fs/write", m.write)
	mux.HandleFunc("GET /v1/fs/list", m.list)
	mux.HandleFunc("DELETE /v1/fs/delete", m.remove)
	mux.HandleFunc("POST /v1/fs/chmod", m.chmod)
	mux.HandleFunc("GET /v1/proxy", m.proxy)
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		m.mu.Lock()
		m.seen = append(m.seen, r.Method+" "+r.URL.RequestURI())
		m.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	return m, client.Self()
}

func (m *machine) requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.seen...)
}

func (m *machine) exec(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	cmd := exec.Command(q["cmd"][0], q["cmd"][1:]...)
	cmd.Env = append(os.Environ(), q["env"]...)
	cmd.Dir = q.Get("dir")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	stderr, _ := cmd.StderrPipe()

	w.Header().Set("X-Sprite-Capabilities", "signal")
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(-1)
	ctx := context.Background()
	if err := cmd.Start(); err != nil {
		frame(m.t, ws, append([]byte{2}, err.Error()...)...)
		frame(m.t, ws, 3, 127)
		_ = ws.Close(websocket.StatusNormalClosure, "")
		return
	}
	id := strconv.Itoa(cmd.Process.Pid)
	ended := make(chan struct{})
	m.mu.Lock()
	m.ids[id], m.done[id] = cmd, ended
	m.mu.Unlock()
	text(m.t, ws, `{"type":"session_info","session_id":%q}`, id)

	gone := make(chan struct{})
	go func() {
		defer close(gone)
		m.input(ctx, ws, cmd, stdin)
	}()
	var wg sync.WaitGroup
	for i, out := range []io.Reader{stdout, stderr} {
		wg.Go(func() {
			buf := make([]byte, 32<<10)
			for {
				n, err := out.Read(buf[1:])
				if n > 0 {
					buf[0] = byte(i + 1)
					_ = ws.Write(ctx, websocket.MessageBinary, buf[:n+1])
				}
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	_ = cmd.Wait()
	close(ended)
	code := cmd.ProcessState.ExitCode()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	text(m.t, ws, `{"type":"exit","exit_code":%d,"code":%d}`, code, code)
	frame(m.t, ws, 3, byte(code))
	_ = ws.Close(websocket.StatusNormalClosure, "")
	<-gone
}

// input takes input and signals; a process that does not read holds it up.
func (m *machine) input(ctx context.Context, ws *websocket.Conn, cmd *exec.Cmd, stdin io.WriteCloser) {
	defer func() { _ = stdin.Close() }()
	for {
		typ, b, err := ws.Read(ctx)
		if err != nil {
			return
		}
		if typ == websocket.MessageText {
			var msg sprites.Message
			_ = json.Unmarshal(b, &msg)
			if msg.Type == "signal" {
				_ = syscall.Kill(-cmd.Process.Pid, signals[msg.Signal])
			}
			continue
		}
		switch b[0] {
		case 0:
			_, _ = stdin.Write(b[1:])
		case 4:
			_ = stdin.Close()
		}
	}
}

var signals = map[string]syscall.Signal{"TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "INT": syscall.SIGINT, "USR1": syscall.SIGUSR1}

func (m *machine) kill(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	cmd, ended := m.ids[r.PathValue("id")], m.done[r.PathValue("id")]
	m.mu.Unlock()
	if cmd == nil {
		http.Error(w, "session not found: "+r.PathValue("id"), http.StatusNotFound)
		return
	}
	select {
	case <-ended:
		http.Error(w, "gone", http.StatusGone)
		return
	default:
	}
	sig := strings.TrimPrefix(r.URL.Query().Get("signal"), "SIG")
	_ = syscall.Kill(-cmd.Process.Pid, signals[sig])
	fmt.Fprintf(w, `{"type":"signal","message":"sent","signal":%q,"pid":%d}`+"\n\n", sig, cmd.Process.Pid)
	wait, _ := time.ParseDuration(r.URL.Query().Get("timeout"))
	if wait == 0 {
		return
	}
	select {
	case <-ended:
	case <-time.After(wait):
		fmt.Fprintln(w, `{"type":"timeout","message":"still alive"}`)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		fmt.Fprintln(w, `{"type":"killed","message":"sent SIGKILL"}`)
		<-ended
	}
	code := cmd.ProcessState.ExitCode()
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	fmt.Fprintf(w, `{"type":"complete","exit_code":%d}`+"\n", code)
}

// fileFail answers as section 5.10 of the protocol says.
func fileFail(w http.ResponseWriter, path string, err error) {
	status, code := http.StatusInternalServerError, "EIO"
	switch {
	case errors.Is(err, syscall.ENOENT):
		status, code = http.StatusNotFound, "ENOENT"
	case errors.Is(err, syscall.EACCES):
		status, code = http.StatusForbidden, "EACCES"
	case errors.Is(err, syscall.ENOTEMPTY):
		status, code = http.StatusConflict, "ENOTEMPTY"
	case errors.Is(err, syscall.ENOTDIR):
		status, code = http.StatusBadRequest, "ENOTDIR"
	case errors.Is(err, syscall.EISDIR):
		status, code = http.StatusBadRequest, "EISDIR"
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(sprites.FileError{Error: err.Error(), Code: code, Path: path})
}

func (m *machine) read(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	f, err := os.Open(path)
	if err != nil {
		fileFail(w, path, err)
		return
	}
	defer func() { _ = f.Close() }()
	info, _ := f.Stat()
	if info.IsDir() {
		fileFail(w, path, syscall.EISDIR)
		return
	}
	if s := r.URL.Query().Get("start"); s != "" {
		start, _ := strconv.ParseInt(s, 10, 64)
		end, _ := strconv.ParseInt(r.URL.Query().Get("end"), 10, 64)
		start, end = min(start, info.Size()), min(end, info.Size())
		w.Header().Set("Content-Length", strconv.FormatInt(end-start, 10))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.Copy(w, io.NewSectionReader(f, start, end-start))
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	_, _ = io.Copy(w, f)
}

func (m *machine) write(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	if r.URL.Query().Get("mkdirParents") == "true" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			fileFail(w, path, err)
			return
		}
	}
	mode, _ := strconv.ParseUint(r.URL.Query().Get("mode"), 8, 32)
	f, err := os.CreateTemp(filepath.Dir(path), ".part*")
	if err != nil {
		fileFail(w, path, err)
		return
	}
	defer func() { _ = os.Remove(f.Name()) }()
	n, err := io.Copy(f, r.Body)
	_ = f.Close()
	if err == nil {
		_ = os.Chmod(f.Name(), os.FileMode(mode))
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		fileFail(w, path, err)
		return
	}
	_ = json.NewEncoder(w).Encode(sprites.WriteResult{Path: path, Size: n, Mode: "0644"})
}

func entry(path string, info os.FileInfo) sprites.Entry {
	e := sprites.Entry{Name: info.Name(), Path: path, Type: "file", Size: info.Size(), IsDir: info.IsDir(),
		Mode: fmt.Sprintf("%04o", info.Mode().Perm()), ModTime: info.ModTime()}
	if info.IsDir() {
		e.Type = "directory"
	}
	if info.Mode()&os.ModeSymlink != 0 {
		e.Type = "symlink"
		e.Target, _ = os.Readlink(path)
	}
	return e
}

// list knows nothing of stat=true, as the hosted service.
func (m *machine) list(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	info, err := os.Stat(path)
	if err != nil {
		fileFail(w, path, err)
		return
	}
	answer := sprites.ListFiles{Path: path, Entries: []sprites.Entry{}}
	if !info.IsDir() {
		answer.Entries = append(answer.Entries, entry(path, info))
	} else {
		entries, _ := os.ReadDir(path)
		for _, e := range entries {
			info, _ := e.Info()
			answer.Entries = append(answer.Entries, entry(filepath.Join(path, e.Name()), info))
		}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (m *machine) remove(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	_, err := os.Lstat(path)
	if err == nil && r.URL.Query().Get("recursive") == "true" {
		err = os.RemoveAll(path)
	} else if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		fileFail(w, path, err)
		return
	}
	fmt.Fprintf(w, `{"deleted":[%q],"count":1}`, path)
}

func (m *machine) chmod(w http.ResponseWriter, r *http.Request) {
	var in struct{ Path, Mode string }
	_ = json.NewDecoder(r.Body).Decode(&in)
	mode, _ := strconv.ParseUint(in.Mode, 8, 32)
	if err := os.Chmod(in.Path, os.FileMode(mode)); err != nil {
		fileFail(w, in.Path, err)
	}
}

// proxy connects to real TCP ports, with half-close.
func (m *machine) proxy(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	ctx := context.Background()
	_, b, err := ws.Read(ctx)
	if err != nil {
		return
	}
	var init sprites.ProxyInit
	_ = json.Unmarshal(b, &init)
	target := net.JoinHostPort(init.Host, strconv.Itoa(init.Port))
	conn, err := net.Dial("tcp", target)
	if err != nil {
		text(m.t, ws, `{"status":"error","target":%q,"error":"connection refused"}`, target)
		_ = ws.Close(websocket.StatusInternalError, "")
		return
	}
	defer func() { _ = conn.Close() }()
	text(m.t, ws, `{"status":"connected","target":%q,"half_close":%v}`, target, init.HalfClose)
	ws.SetReadLimit(-1)
	back := make(chan struct{})
	go func() {
		defer close(back)
		buf := make([]byte, 16<<10)
		for {
			n, err := conn.Read(buf)
			if n > 0 {
				_ = ws.Write(ctx, websocket.MessageBinary, buf[:n])
			}
			if err != nil {
				text(m.t, ws, `{"type":"eof"}`)
				return
			}
		}
	}()
	for {
		typ, b, err := ws.Read(ctx)
		if err != nil {
			return
		}
		if typ == websocket.MessageText {
			_ = conn.(*net.TCPConn).CloseWrite()
			<-back
			_ = ws.Close(websocket.StatusNormalClosure, "")
			return
		}
		_, _ = conn.Write(b)
	}
}
