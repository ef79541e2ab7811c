package sprite

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// receiver reads the data of a client on the same machine, and prints the size of its
// receive buffer before and after.
const receiver = `import socket, threading
ln = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(ln.getsockname())
server, _ = ln.accept()
size = lambda: server.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
before = size()
threading.Thread(target=lambda: (client.sendall(bytes(64 << 20)), client.close())).start()
while server.recv(1 << 16): pass
print(before, size())
`

// TestReceiveBuffer checks that receive buffers in a sandbox do not grow. When gVisor
// grows a buffer, its TCP may not announce that the window is open again, and the sender
// pauses for 200 ms. Then a call with 1 MiB of input takes ten times as long as one with
// 64 KiB.
func TestReceiveBuffer(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	if got := h.Run("", "cove", "exec", "-s", "paint", "--", "python3", "-c", receiver); got != "2097152 2097152\n" {
		t.Errorf("the receive buffer had %s bytes before and after", got)
	}
}

// TestExec checks what cove exec promises, row by row, in one real sandbox.
func TestExec(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	t.Run("E1", func(t *testing.T) { execStreams(h.On(t)) })
	t.Run("E2", func(t *testing.T) { execCodes(h.On(t)) })
	t.Run("E3", func(t *testing.T) { execInput(h.On(t)) })
	t.Run("E4", func(t *testing.T) { execArguments(h.On(t)) })
	t.Run("E8", func(t *testing.T) { execTerminals(h.On(t)) })
	t.Run("E9", func(t *testing.T) { execJSON(h.On(t)) })
	t.Run("E10", func(t *testing.T) { execErrors(h.On(t)) })
}

// execStreams: 100 MiB of noise on one output stream arrive unchanged, while 10 MiB
// arrive on the other.
func execStreams(h *e2e.Host) {
	h.Run("", "cove", "exec", "-s", "paint", "sh", "-c", "head -c 104857600 /dev/urandom >out; head -c 10485760 /dev/urandom >err")
	cmd := h.Command("", "cove", "exec", "-s", "paint", "sh", "-c", "cat err >&2 & cat out; wait")
	out, errs := sha256.New(), sha256.New()
	var outSize, errSize byteCount
	cmd.Stdout, cmd.Stderr = io.MultiWriter(out, &outSize), io.MultiWriter(errs, &errSize)
	if err := cmd.Run(); err != nil {
		h.T.Fatal(err)
	}
	want := h.Run("", "cove", "exec", "-s", "paint", "sh", "-c", "sha256sum out err; rm out err")
	if got := fmt.Sprintf("%x  out\n%x  err\n", out.Sum(nil), errs.Sum(nil)); got != want || outSize != 100<<20 || errSize != 10<<20 {
		h.T.Errorf("got %d and %d bytes:\n%swant\n%s", outSize, errSize, got, want)
	}
}

type byteCount int64

func (c *byteCount) Write(p []byte) (int, error) { *c += byteCount(len(p)); return len(p), nil }

// execCodes: the code is the command's own, and 128+N for a death by signal N.
func execCodes(h *e2e.Host) {
	for _, test := range []struct {
		code int
		args []string
	}{
		{0, []string{"true"}},
		{42, []string{"sh", "-c", "exit 42"}},
		{255, []string{"sh", "-c", "exit 255"}},
		{137, []string{"sh", "-c", "kill -9 $$"}},
		{143, []string{"sh", "-c", "kill -TERM $$"}},
		{134, []string{"sh", "-c", "ulimit -c 0; kill -ABRT $$"}},
		{127, []string{"no-such-program"}},
		{126, []string{"/etc/passwd"}},
	} {
		if _, stderr, code := h.Streams(append([]string{"exec", "-s", "paint"}, test.args...)...); code != test.code {
			h.T.Errorf("%q: code %d, want %d; %s", test.args, code, test.code, stderr)
		}
	}
	h.Sh("paint", "mkdir -p /tmp/closed/in && chmod 0 /tmp/closed") // its own user's
	for _, dir := range []string{"/tmp/closed", "/tmp/closed/in"} {
		_, stderr, code := h.Streams("exec", "-s", "paint", "--dir", dir, "true")
		if want := "working directory " + dir + ": permission denied"; code != 126 || !strings.Contains(stderr, want) {
			h.T.Errorf("in a closed folder: code %d, want 126; %s, want %s", code, stderr, want)
		}
	}
}

// execInput: without -i a command's input is at its end, even if cove's own is held open.
// With -i all input arrives as it is given, and so does its end.
func execInput(h *e2e.Host) {
	t := h.T
	ctx, cancel := context.WithTimeout(t.Context(), e2e.LastResort)
	defer cancel()
	start := func(args ...string) (io.WriteCloser, io.Reader, func() error) {
		cmd := h.Command("", "cove", append([]string{"exec", "-s", "paint"}, args...)...)
		stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // it has started by then
		in, err := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		return in, out, func() error { defer stop(); return cmd.Wait() }
	}
	in, out, wait := start("sh", "-c", "cat; echo ended")
	if text, err := io.ReadAll(out); err != nil || string(text) != "ended\n" { // in is open all the time
		t.Errorf("closed input: got %q, %v", text, err)
	}
	if err := errors.Join(wait()); err != nil {
		t.Error(err)
	}
	_ = in.Close() // wait may have

	noise := make([]byte, 5<<20)
	_, _ = rand.Read(noise)
	in, out, wait = start("-i", "sh", "-c", "head -n 1; cat; echo ended")
	first := make([]byte, len("one\n"))
	_, err := io.WriteString(in, "one\n")
	_, err2 := io.ReadFull(out, first)
	if err := errors.Join(err, err2); err != nil || string(first) != "one\n" {
		t.Fatalf("before the rest was given: got %q, %v", first, err)
	}
	go func() {
		_, _ = in.Write(noise) // the output is compared below
		_ = in.Close()
	}()
	text, err := io.ReadAll(out)
	if err := errors.Join(err, wait()); err != nil || !bytes.Equal(text, append(noise, "ended\n"...)) {
		t.Errorf("got %d bytes of %d, %v", len(text), len(noise)+len("ended\n"), err)
	}
}

// execArguments: arguments after the command reach it unchanged, even those that are
// flags of cove.
func execArguments(h *e2e.Host) {
	args := []string{"-la", "--json", "test", "-s", "nobody", "--", "-i", "", "a b", "it's", `say "x"`, "$(id)", "`id`", "*", "a\nb", `\n`, "世界🦊", "--url=http://x", "-"}
	for _, before := range [][]string{nil, {"--"}} {
		line := append(append([]string{"exec", "-s", "paint"}, before...), "sh", "-c", `printf '%s\0' "$@"`, "sh")
		if got, want := h.Run("", "cove", append(line, args...)...), strings.Join(args, "\x00")+"\x00"; got != want {
			h.T.Errorf("%v: got %q, want %q", before, got, want)
		}
	}
	if got := h.Run("", "cove", "exec", "-s", "paint", "ls", "-d", "--", "/home"); got != "/home\n" {
		h.T.Errorf("got %q", got)
	}
}

// execTerminals: a command in a terminal is listed while nobody is attached. A kill ends
// it with all that it has started. TestTerminal resizes, leaves and joins a terminal.
func execTerminals(h *e2e.Host) {
	t := h.T
	id := strings.TrimSpace(h.Run("", "cove", "exec", "-s", "paint", "-t", "--detach", "sh", "-c", "tty >where; sleep 4545 & sleep 4545"))
	awaitFile(h, "where")
	if got := h.Run("", "cove", "exec", "-s", "paint", "cat", "where"); !strings.HasPrefix(got, "/dev/pts/") {
		t.Errorf("its terminal is %q", got)
	}
	if list := h.Run("", "cove", "session", "list", "-s", "paint", "--json"); !strings.Contains(list, `"`+id+`"`) || !strings.Contains(list, `"tty": true`) {
		t.Errorf("the list of sessions: %s", list)
	}
	h.Run("", "cove", "session", "kill", "-s", "paint", id)
	if list := h.Run("", "cove", "session", "list", "-s", "paint", "--json"); strings.Contains(list, `"`+id+`"`) {
		t.Errorf("after the kill: %s", list)
	}
	if out, code := h.Try("", "cove", "exec", "-s", "paint", "pgrep", "-f", "sleep 4[5]45"); code != 1 {
		t.Errorf("left are %q", out)
	}
}

// awaitFile waits for a file in the sprite paint that is not empty.
func awaitFile(h *e2e.Host, name string) {
	h.T.Helper()
	e2e.Await(h.T, name, func() bool {
		_, code := h.Try("", "cove", "exec", "-s", "paint", "test", "-s", name)
		return code == 0
	})
}

// execJSON: with --json, standard output has exactly one document, also for errors, and
// with -v.
func execJSON(h *e2e.Host) {
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	for _, line := range []string{
		"version", "list", "info paint", "create json", "rm json", "update paint --idle 1h", "session list -s paint", "exec -s paint --detach true",
		"checkpoint create -s paint", "checkpoint list -s paint", "service list -s paint", "policy show -s paint", "connector list", "secret list", "token list",
		"agent list", "agent show shell", "config show", "job list", "url paint", "ping", "tool call -s paint Glob {\"pattern\":\"*\"}",
		"info nobody", "create Bad_Name", "exec -s paint true", "job show 000000", "no-such-verb", "tool call -s paint Read {\"file_path\":\"none\"}", "rm nobody",
	} {
		stdout, stderr, code := h.Streams(append([]string{"--json", "-v"}, strings.Fields(line)...)...)
		d := json.NewDecoder(strings.NewReader(stdout))
		var doc any
		if err := d.Decode(&doc); err != nil {
			h.T.Errorf("%s: code %d, no JSON: %v: %q; %q", line, code, err, stdout, stderr)
			continue
		}
		if _, err := d.Token(); err != io.EOF {
			h.T.Errorf("%s: after the document: %v, in %q", line, err, stdout)
		}
		object, _ := doc.(map[string]any)
		if _, failed := object["error"].(map[string]any); failed != (code != 0) {
			h.T.Errorf("%s: code %d with %s", line, code, stdout)
		}
	}
}

// execErrors: errors differ in their code for programs, and in their exit code.
func execErrors(h *e2e.Host) {
	t := h.T
	for _, test := range []struct {
		what, code string
		exit       int
		args       []string
	}{
		{"not found", "not_found", 1, []string{"info", "nobody"}},
		{"auth", "unauthorized", 1, []string{"list", "--token", "wrong"}},
		{"unreachable", "unreachable", 1, []string{"list", "--url", "http://127.0.0.1:1", "--token", "x"}},
	} {
		stdout, _, exit := h.Streams(append([]string{"--json"}, test.args...)...)
		var doc struct{ Error struct{ Code, Hint string } }
		if err := json.Unmarshal([]byte(stdout), &doc); err != nil || doc.Error.Code != test.code || exit != test.exit {
			t.Errorf("%s: got %s, code %d, %v", test.what, stdout, exit, err)
		}
	}
	// For exec, cove's own errors have exit codes of their own (124, 125; 2 for wrong
	// usage).
	for _, test := range []struct {
		what, says string
		exit       int
		args       []string
	}{
		{"not found", "no sprite named nobody", 125, []string{"exec", "-s", "nobody", "true"}},
		{"auth", "the token is not known", 125, []string{"exec", "-s", "paint", "--token", "wrong", "true"}},
		{"unreachable", "is the server running", 125, []string{"exec", "-s", "paint", "--url", "http://127.0.0.1:1", "--token", "x", "true"}},
		{"timeout", "killed after 300ms (--timeout)", 124, []string{"exec", "-s", "paint", "--timeout", "300ms", "sleep", "60"}},
		{"usage", "which command", 2, []string{"exec", "-s", "paint"}},
	} {
		if stdout, stderr, exit := h.Streams(test.args...); exit != test.exit || stdout != "" || !strings.Contains(stderr, test.says) {
			t.Errorf("%s: code %d, %q, %q", test.what, exit, stdout, stderr)
		}
	}
	h.Run("", "cove", "create", "gone")
	stopped := h.Command("", "cove", "exec", "-s", "gone", "sh", "-c", "echo begun; sleep 6000")
	var errs bytes.Buffer
	stopped.Stderr = &errs
	out, err := stopped.StdoutPipe()
	if err := errors.Join(err, stopped.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "rm", "--force", "gone")
	if err := stopped.Wait(); err == nil || !strings.Contains(errs.String(), "the sprite was removed") {
		t.Errorf("stopped: %v, %q", err, errs.String())
	}
}
