package server_test

import (
	"bytes"
	"cmp"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// exited reports whether err is a command's end with the given code.
func exited(err error, code int) bool {
	e, ok := errors.AsType[*sprites.ExitError](err)
	return ok && e.Code == code
}

func TestExec(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp := s.Create("paint")
	var stdout, stderr bytes.Buffer
	cmd := sp.Command("sh", "-c", `cat; echo "$A $0" >&2; exit 7`, "zero")
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{"A=b c"}, strings.NewReader("input\n"), &stdout, &stderr
	err := cmd.Run()
	failIf(t, !exited(err, 7) || stdout.String() != "input\n" || stderr.String() != "b c zero\n", "got %q, %q and %v", &stdout, &stderr, err)

	// A session that its client has left is listed, joined and killed.
	cmd = sp.Command("sh", "-c", "echo ready; exec cat")
	cmd.TTY = new(sprites.Terminal)
	out, err := cmd.StdoutPipe()
	must(t, errors.Join(err, cmd.Start()))
	_, err = io.ReadFull(out, make([]byte, len("ready\r\n")))
	must(t, errors.Join(err, cmd.Detach()))
	list, err := sp.Sessions(t.Context())
	failIf(t, err != nil || len(list) != 1 || list[0].ID != cmd.SessionID() || !list[0].TTY, "the sessions are %+v, %v", list, err)
	again := sp.Attach(t.Context(), cmd.SessionID())
	stdout.Reset()
	again.Stdout = &stdout
	err = again.Start()
	_, err2 := sp.Kill(t.Context(), cmd.SessionID(), "KILL", 0)
	must(t, errors.Join(err, err2))
	err = again.Wait()
	failIf(t, !exited(err, 128+9) || stdout.String() != "ready\r\n", "the joined session gave %q and %v", &stdout, err)
	for _, id := range []string{"none", "a.b", strings.Repeat("a", 65), "../a"} {
		wantError(t, sp.Attach(t.Context(), id).Run(), 404, "session_not_found")
	}

	// The same over plain HTTP: a byte that names the stream before each piece.
	a := ask(t, s, "POST /v1/sprites/paint/exec?cmd=sh&cmd=-c&cmd=cat%3Bexit+3&stdin=true", "input")
	failIf(t, a.StatusCode != 200 || string(a.body) != "\x01input\x03\x03" || a.Header.Get("Content-Type") != "application/octet-stream", "got %d %v %q", a.StatusCode, a.Header, a.body)
	ask(t, s, "POST /v1/sprites/paint/exec?cmd=true&tty=true", "").refused(t, 400, "invalid_request")
}

func TestFiles(t *testing.T) {
	sp := covetest.Start(t, covetest.Options{}).Create("paint")
	ctx, dir, data := t.Context(), t.TempDir()+"/a folder", bytes.Repeat([]byte("0123456789\x00\xff\n"), 250_000)
	name := dir + "/ä+?&%2f"
	must(t, sp.WriteFile(ctx, name, bytes.NewReader(data[1:]), sprites.WriteOptions{}))
	must(t, sp.WriteFile(ctx, name, struct{ io.Reader }{bytes.NewReader(data)}, sprites.WriteOptions{Mode: 0o600})) // of unknown length
	must(t, errors.Join(sp.Copy(ctx, name, dir+"/copy"), sp.Rename(ctx, name, dir+"/moved"), sp.Chmod(ctx, dir+"/copy", 0o400)))
	got, err := sp.ReadFile(ctx, dir+"/copy")
	failIf(t, err != nil || !bytes.Equal(data, got), "read %d bytes, %v", len(got), err)
	list, err := sp.ReadDir(ctx, dir)
	failIf(t, err != nil || len(list) != 2 || list[0].Name() != "copy" || list[1].Name() != "moved", "the folder has %v, %v", list, err)
	info, err := sp.Stat(ctx, dir+"/copy")
	failIf(t, err != nil || info.Mode() != 0o400 || info.Size() != int64(len(data)), "got %v, %v", info, err)
	_, err = sp.ReadFile(ctx, name)
	wantError(t, err, 404, "ENOENT")
	wantError(t, sp.Remove(ctx, dir, false), 409, "ENOTEMPTY")
	must(t, sp.Remove(ctx, dir, true))
}

// hostile starts a server whose sprites' guests are a function.
func hostile(t *testing.T, guest http.HandlerFunc) (*covetest.Server, *sprites.Sprite) {
	t.Helper()
	return hostileWith(t, covetest.Options{}, guest)
}

func hostileWith(t *testing.T, opts covetest.Options, guest http.HandlerFunc) (*covetest.Server, *sprites.Sprite) {
	t.Helper()
	rt := &covetest.InProcess{Dir: t.TempDir(), Handler: guest}
	t.Cleanup(func() { _ = rt.Close() })
	opts.Runtime = rt
	s := covetest.Start(t, opts)
	return s, s.Create("evil")
}

// raw takes a connection over, says something on it, and closes it.
func raw(w http.ResponseWriter, text string) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = io.WriteString(conn, text) // who has gone is what the tests are about
	for err == nil && strings.HasSuffix(text, "silence") {
		_, err = conn.Read(make([]byte, 100))
	}
	for err == nil && strings.HasSuffix(text, "endless") {
		_, err = conn.Write(make([]byte, 1<<10))
	}
	_ = conn.Close()
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nSet-Cookie: evil=1\r\nUpgrade: "

func TestHostileAnswers(t *testing.T) {
	headers := []string{
		"Content-Type", "Content-Encoding", "Set-Cookie", "Location", "X-Evil", "Access-Control-Allow-Origin", "WWW-Authenticate", "Sprite-Version",
	}
	evil := strings.Join(headers, ": evil\r\n") + ": evil\r\n"
	answers := map[string]string{
		"/headers":       "HTTP/1.1 200 OK\r\n" + evil + "\r\n<script>",
		"/redirect":      "HTTP/1.1 302 Found\r\n" + evil + "\r\n",
		"/unauthorized":  "HTTP/1.1 401 Who?\r\n" + evil + "\r\n{}",
		"/large-header":  "HTTP/1.1 200 OK\r\nX-Large: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
		"/nonsense":      "nonsense \x1b[2J" + strings.Repeat("n", 9000) + "\r\n\r\n",
		"/switch":        switching + "evil\r\n\r\nsilence", // which nobody asked for
		"/colours":       `HTTP/1.1 403 No` + "\r\n\r\n" + `{"code":"EACCES","error":"\u001b[2J","message":"\u001b]0;b\u0007` + strings.Repeat("x", 20<<10) + `"}`,
		"/html":          "HTTP/1.1 404 No\r\n\r\n<script>\x1b[2J</script>",
		"/endless-error": "HTTP/1.1 500 No\r\n\r\nendless",
		"/short":         "HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("a", 100_000),
		"/endless":       "HTTP/1.1 200 OK\r\n\r\nendless",
		"/teapot":        "HTTP/1.1 418 Tea\r\n\r\n",
		"/silence":       "silence",
	}
	checks, left := make(chan string, 2), make(chan string, 100)
	s, _ := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Query().Get("path")
		if path == "" {
			path = <-checks
		}
		raw(w, answers[path])
		left <- path
	})
	const path = "GET /v1/sprites/evil/fs/read?path="
	a := ask(t, s, path+"/headers", "")
	failIf(t, string(a.body) != "<script>" || a.Header.Get("Content-Type") != "application/octet-stream", "got %v %q", a.Header, a.body)
	for _, key := range headers {
		failIf(t, a.Header.Get(key) == "evil", "the guest's header %s reaches the client", key)
	}
	for _, what := range []string{"/redirect", "/unauthorized", "/large-header", "/nonsense", "/switch", "/teapot"} {
		a := ask(t, s, path+what, "")
		text := a.refused(t, 502, "bad_guest")
		failIf(t, a.Header.Get("Location") != "" || a.Header.Get("WWW-Authenticate") != "" || len(a.body) > 2<<10 || strings.Contains(text, "\x1b"), "%s: %v %s", what, a.Header, a.body)
	}
	a = ask(t, s, path+"/colours", "")
	failIf(t, a.StatusCode != 403 || bytes.Contains(a.body, []byte(`\u00`)) || len(a.body) > 16<<10 || !bytes.Contains(a.body, []byte(`"EACCES"`)), "got %d %.200s", a.StatusCode, a.body)
	texts := ask(t, s, path+"/html", "").refused(t, 404, "not_found") + ask(t, s, path+"/endless-error", "").refused(t, 500, "failed")
	failIf(t, len(texts) > 2<<10 || strings.Contains(texts, "\x1b"), "got %q", texts)
	a = ask(t, s, path+"/short", "")
	failIf(t, !errors.Is(a.err, io.ErrUnexpectedEOF), "a cut answer looks whole: %d bytes, %v", len(a.body), a.err)
	// When a client leaves, an endless answer ends.
	resp := open(t, s, path+"/endless", "")
	_, err := io.CopyN(io.Discard, resp.Body, 1<<20)
	must(t, errors.Join(err, resp.Body.Close()))
	for what := ""; what != "/endless"; {
		what = <-left
	}
	checks <- "/teapot"
	checks <- "/silence"
	// A guest that talks nonsense, or says nothing, is unhealthy.
	status, reason := checked(t, s, "evil")
	failIf(t, status != "unhealthy" || !strings.Contains(reason, "418"), "it is %s: %s", status, reason)
	status, reason = checked(t, s, "evil")
	failIf(t, status != "unhealthy" || reason != "the guest does not answer", "it is %s: %s", status, reason)
	eventually(t, s, "evil", func(i sprites.Info) bool { return len(i.Cove.AwakeBy) == 0 }) // each request has ended in the server, too
}

func TestHostileWebSockets(t *testing.T) {
	const lost = websocket.StatusInternalError
	ends := map[string]struct {
		frames string
		code   websocket.StatusCode
	}{
		"reserved opcode":   {"\x83\x00", lost},
		"reserved bit":      {"\xc2\x01x", lost},
		"long ping":         {"\x89\x7e\x01\x00" + strings.Repeat("x", 256), lost},
		"negative length":   {"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff", lost},
		"lone continuation": {"\x80\x01x", lost},
		"interrupted":       {"\x02\x01x\x82\x01x", lost},
		"long text":         {"\x81\x7f\x00\x00\x00\x00\x00\x20\x00\x00" + strings.Repeat("x", 2<<20), lost},
		"cut":               {"\x82\x05x", lost},
		"nothing":           {"", lost},
		"bad close code":    {"\x88\x02\x00\x01", lost},
		"close, no code":    {"\x88\x00", websocket.StatusNormalClosure},
		"close, own code":   {"\x88\x05\x0f\xa1a\x1bb", 4001},
		// Texts that are none, and then a good end.
		"/good": {"\x81\x01{\x81\x02[]\x81\x04null\x81\x02\xff\xfe\x82\x00\x82\x06\x01hello\x82\x02\x03\x05\x88\x02\x03\xe8", websocket.StatusNormalClosure},
	}
	refusals := map[string]string{
		"/redirect":  "HTTP/1.1 307 There\r\nLocation: /v1/tokens\r\n\r\n",
		"/accept":    switching + "websocket\r\nSec-WebSocket-Accept: " + strings.Repeat("x", 9000) + "\r\n\r\n", // without having read the key
		"/ok":        "HTTP/1.1 200 OK\r\n\r\n<script>",
		"/connect 1": switching + "stream\r\n\r\nhello",
		"/connect 2": "HTTP/1.1 200 OK\r\n\r\n<script>",
		"/connect 3": "HTTP/1.1 503 No\r\n\r\n" + `{"error":"not_connected","message":"a\u001bb"}`,
		"/connect 4": "HTTP/1.1 101 x\r\n" + strings.Repeat("X: y\r\n", 20_000),
		"/refuse":    "HTTP/1.1 429 No\r\n\r\n" + `{"error":"too_many","message":"a\u001bb"}`,
	}
	s, sp := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		upgraded := switching + "websocket\r\nSec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n"
		what := r.URL.Query().Get("cmd")
		if strings.HasSuffix(r.URL.Path, "/connect") {
			what = "/connect " + r.URL.Query().Get("port")
		}
		raw(w, cmp.Or(refusals[what], upgraded+ends[what].frames))
	})
	for _, what := range []string{"/redirect", "/accept", "/ok"} {
		err := sp.Command(what).Run()
		wantError(t, err, 502, "bad_guest")
		failIf(t, len(err.Error()) > 2<<10, "a bad handshake is told in %d bytes", len(err.Error()))
	}
	wantError(t, sp.Command("/refuse").Run(), 429, "limit") // by its status: the guest has no such code
	out, err := sp.Command("/good").Output()
	failIf(t, string(out) != "hello", "got %q and %v", out, err)
	for port, want := range map[int]string{2: "status 200", 3: "connect to nowhere:3 in evil: ab", 4: "can't be reached"} {
		_, err := sp.Dial(t.Context(), "nowhere", port)
		failIf(t, err == nil || !strings.Contains(err.Error(), want), "port %d: %v", port, err)
	}
	conn, err := sp.Dial(t.Context(), "nowhere", 1)
	must(t, err)
	text, err := io.ReadAll(conn)
	failIf(t, string(text) != "hello" || errors.Join(err, conn.Close()) != nil, "the proxied connection gives %q, %v", text, err)
	for what, end := range ends {
		t.Run(what, func(t *testing.T) {
			conn, resp, err := websocket.Dial(t.Context(), s.URL+"/v1/sprites/evil/exec?cmd="+strings.ReplaceAll(what, " ", "+"),
				&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Token}}})
			must(t, err)
			for err == nil {
				_, _, err = conn.Read(t.Context())
			}
			e, _ := errors.AsType[websocket.CloseError](err)
			failIf(t, e.Code != end.code || strings.Contains(e.Reason, "\x1b") || resp.Header.Get("Set-Cookie") != "", "got %v after %v, want status %v", err, resp.Header, end.code)
			err = sp.Command(what).Run()
			failIf(t, err == nil || exited(err, 5) != (what == "/good"), "the command's end is %v", err)
			a := ask(t, s, "POST /v1/sprites/evil/exec?cmd="+strings.ReplaceAll(what, " ", "+"), "")
			failIf(t, (a.err == nil) != (what == "/good") || a.err == nil && string(a.body) != "\x01hello\x03\x05", "by POST: %q, %v", a.body, a.err)
		})
	}
	eventually(t, s, "evil", func(i sprites.Info) bool { return len(i.Cove.AwakeBy) == 0 }) // each request has ended in the server, too
}

// Statement 7: an answer 429, whichever limit it is of, has Retry-After and the
// three headers X-RateLimit.
func TestLimits(t *testing.T) {
	s := covetest.Start(t, covetest.Options{
		Host: &sprite.Host{MaxRunning: 1}, Configure: func(s *server.Server) { s.MaxStreams = 2 },
	})
	sp := s.Create("paint")
	for range 2 {
		cmd := sp.Command("cat")
		in, err := cmd.StdinPipe()
		must(t, errors.Join(err, cmd.Start()))
		defer func() { must(t, errors.Join(in.Close(), cmd.Wait())) }()
	}
	err := sp.Command("true").Run()
	e, ok := errors.AsType[*sprites.Error](err)
	failIf(t, !ok || e.StatusCode != 429 || e.Code != "limit" || e.Limit != 2 || e.RetryAfter() <= 0, "got %v", err)
	a := ask(t, s, "GET /v1/sprites/paint/exec?cmd=true", "", handshake)
	a.refused(t, 429, "limit")
	wantRetry(t, a)

	s.Create("other")
	a = ask(t, s, "POST /v1/sprites/other/exec?cmd=true", "")
	a.refused(t, 429, sprite.CodeRunningLimit)
	wantRetry(t, a)

	s, _ = hostile(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) })
	wantRetry(t, ask(t, s, "GET /v1/sprites/evil/fs/list?path=/", ""))

	// A guest's own limit comes from the guest.
	for text, want := range map[string]string{
		`{"error":"too_many_watches","message":"full","limit":64,"current_count":64}`:                  "64",
		`{"error":"too_many_watches","message":"full","limit":-9,"current_count":-9}`:                  "0",
		`{"error":"too_many_watches","message":"full","limit":999999999999,"current_count":999999999}`: "1048576",
	} {
		s, _ = hostile(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(429)
			_, _ = io.WriteString(w, text)
		})
		for _, edits := range [][]edit{nil, {handshake}} {
			a = ask(t, s, "GET /v1/sprites/evil/fs/watch?path=/", "", edits...)
			if edits == nil {
				a = ask(t, s, "GET /v1/sprites/evil/services", "")
			}
			a.refused(t, 429, "too_many_watches")
			wantRetry(t, a)
			failIf(t, a.Header.Get("X-RateLimit-Limit") != want, "%s: the limit is %s, want %s", text, a.Header.Get("X-RateLimit-Limit"), want)
		}
	}
}

// TestHolders: the holder of a token can't take the places of others, by WebSockets or by
// plain streams. Nobody can take the owner's.
func TestHolders(t *testing.T) {
	s, _ := hostileWith(t, covetest.Options{Configure: func(s *server.Server) { s.MaxStreams = 8 }}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/watch"):
			conn, err := websocket.Accept(w, r, nil)
			if err == nil {
				_, _, _ = conn.Read(r.Context()) // until it has gone
			}
		case strings.HasSuffix(r.URL.Path, "/list"):
			_, _ = io.WriteString(w, "{}")
		default:
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	const logs, list, watch = "GET /v1/sprites/evil/services/web/logs?duration=1000h", "GET /v1/sprites/evil/fs/list?path=/", "GET /v1/sprites/evil/ports/watch"
	var some [4]edit
	for i := range some {
		some[i] = bearer(token(t, s, cove.TokenScope{Sprite: "evil"}, "read"))
	}
	hold := func(what string, n int, edits ...edit) (held []*http.Response) {
		t.Helper()
		for range n {
			resp := open(t, s, what, "", edits...)
			failIf(t, resp.StatusCode != 200 && resp.StatusCode != 101, "%s: got %d after %d", what, resp.StatusCode, len(held))
			held = append(held, resp)
		}
		return held
	}
	held := hold(logs, 6, some[0])
	for _, what := range []string{logs, list} {
		a := ask(t, s, what, "", some[0])
		a.refused(t, 429, "limit")
		wantRetry(t, a)
		hold(list, 1, some[1])
	}
	must(t, held[0].Body.Close())
	for deadline := time.Now().Add(lastResort); ask(t, s, list, "", some[0]).StatusCode != 200; {
		failIf(t, time.Now().After(deadline), "its place is not free again")
	}
	for _, resp := range held {
		must(t, resp.Body.Close())
	}
	for _, edits := range some[:3] {
		hold(watch, 2, handshake, edits)
		a := ask(t, s, watch, "", handshake, edits)
		a.refused(t, 429, "limit")
		wantRetry(t, a)
	}
	wantRetry(t, ask(t, s, watch, "", handshake, some[3])) // together they have all but the owner's
	hold(watch, 2, handshake)
	wantRetry(t, ask(t, s, watch, "", handshake))
}

// handshake makes a request one for a WebSocket.
func handshake(r *http.Request) {
	for key, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		r.Header.Set(key, value)
	}
}

func TestServices(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	sp := s.Create("paint")
	ctx := t.Context()
	var said strings.Builder
	follow := sprites.Follow{Duration: 500 * time.Millisecond, Events: func(e sprites.ServiceEvent) { said.WriteString(e.Type + " " + e.Data) }}
	def := sprites.Service{Name: "shop", Cmd: "sh", Args: []string{"-c", "echo open; exec sleep 1000"}, HTTPPort: 4100}
	for said.String() != "started stdout open\ncomplete " { // on a slow machine that takes longer
		failIf(t, follow.Duration > lastResort, "a definition gave %q", &said)
		if said.Len() > 0 {
			must(t, sp.DeleteService(ctx, "shop"))
			follow.Duration *= 6
		}
		said.Reset()
		must(t, sp.PutService(ctx, def, follow))
	}
	follow.Duration = 500 * time.Millisecond
	list, err := sp.Services(ctx)
	failIf(t, err != nil || len(list) != 1 || list[0].Name != "shop" || list[0].HTTPPort != 4100 || list[0].State.PID == 0, "the services are %+v, %v", list, err)
	must(t, errors.Join(sp.RestartService(ctx, "shop", follow), sp.SignalService(ctx, "shop", "CONT"), sp.StopService(ctx, "shop", time.Second, nil)))
	d, err := sp.Service(ctx, "shop")
	failIf(t, err != nil || d.State.Status != sprites.ServiceStopped, "got %+v, %v", d, err)
	wantError(t, sp.StopService(ctx, "shop", time.Second, nil), 409, "service_not_running")
	wantError(t, sp.PutService(ctx, sprites.Service{Name: "other", Cmd: "true", HTTPPort: 1}, follow), 409, "http_port_taken")
	must(t, errors.Join(sp.StartService(ctx, "shop", follow), sp.DeleteService(ctx, "shop")))
	for _, name := range []string{"shop", "a b", "..a", strings.Repeat("a", 64)} {
		wantError(t, sp.StartService(ctx, name, follow), 404, "service_not_found")
	}
	// A service that is defined anew keeps its logs. A cut answer is an error.
	must(t, sp.PutService(ctx, def, sprites.Follow{}))
	said.Reset()
	must(t, sp.ServiceLogs(ctx, "shop", 1, 0, func(e sprites.ServiceEvent) error { said.WriteString(e.Data); return nil }))
	failIf(t, said.String() != "open\n", "the log is %q", &said)
	_, evil := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"type":"started"}`+"\n") // who has gone is what the tests are about
	})
	err = evil.StartService(ctx, "a", follow)
	failIf(t, err == nil || !strings.Contains(err.Error(), "complete"), "a cut answer gave %v", err)
}

// TestEndedInCall: a sandbox that ends while it is called is often seen by the end of the
// connection first. The caller is told that it has ended, by a code.
func TestEndedInCall(t *testing.T) {
	rt := &covetest.InProcess{Dir: t.TempDir()}
	var id string
	rt.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "exec") || strings.Contains(r.URL.Path, "fs/") {
			raw(w, "")
			go rt.Kill(id, "out of memory")
		}
	})
	t.Cleanup(func() { _ = rt.Close() })
	s := covetest.Start(t, covetest.Options{Runtime: rt})
	s.Create("paint")
	info, err := s.Client().Get(t.Context(), "paint")
	must(t, err)
	id = info.ID
	for _, call := range []string{"POST /v1/sprites/paint/exec?cmd=true", "GET /v1/sprites/paint/fs/list?path=/tmp"} {
		a := ask(t, s, call, "")
		a.refused(t, http.StatusServiceUnavailable, sprite.CodeUnavailable)
		failIf(t, !strings.Contains(string(a.body), "the sandbox has ended: out of memory"), "%s: %s", call, a.body)
	}
	err = s.Client().Sprite("paint").Command("true").Run()
	wantError(t, err, http.StatusServiceUnavailable, sprite.CodeUnavailable)
}
