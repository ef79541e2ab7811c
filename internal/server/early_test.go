package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/covetest"
)

// TestInterruptedBetweenReads: a client has paused in the middle of its body. If the server
// refuses the request, it answers at once, and not when the client sends more.
func TestInterruptedBetweenReads(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	for name, call := range map[string]struct {
		call   string
		length int64 // -1: it is not said
		status int
	}{
		"an archive":                      {"POST /v1/sprites/import?name=copy", -1, http.StatusNotImplemented},
		"an archive of a known length":    {"POST /v1/sprites/import?name=copy", 1000, http.StatusNotImplemented},
		"a file for a sprite not there":   {"PUT /v1/sprites/none/fs/write?path=/tmp/x", -1, http.StatusNotFound},
		"a file in the place of a folder": {fsCall("PUT", "write", "path", t.TempDir()), -1, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			method, path, _ := strings.Cut(call.call, " ")
			body, more := io.Pipe()
			defer more.Close()
			go func() { _, _ = io.WriteString(more, "the beginning") }() // and then nothing
			req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, body)
			must(t, err)
			req.ContentLength = call.length
			req.Header.Set("Authorization", "Bearer "+s.Token)
			resp, err := http.DefaultClient.Do(req)
			must(t, err)
			text, err := io.ReadAll(resp.Body)
			failIf(t, err != nil || resp.StatusCode != call.status || !strings.Contains(string(text), "message"), "got %d %s (%v), want %d", resp.StatusCode, text, err, call.status)
			_ = resp.Body.Close()
		})
	}
}

// TestRefusedWhileSending: a client that reads the answer only after it has sent its whole
// body does get the answer. The server has refused the request long before that.
func TestRefusedWhileSending(t *testing.T) {
	s := withImages(t)
	s.Create("paint")
	for name, call := range map[string]struct{ call, begin, want string }{
		"import, a bad name":          {"POST /v1/images/import?name=Bad%20Name", "", "bad_reference"},
		"import, no archive":          {"POST /v1/images/import", "", "image_bad"},
		"build, a bad line":           {"POST /v1/images/build", `{"dockerfile":"FROM scratch\nRUM x\n"}` + "\n", "dockerfile_bad"},
		"build, no request":           {"POST /v1/images/build", "?\n", "bad_request"},
		"import of a sprite":          {"POST /v1/sprites/import?name=copy", "", "message"},
		"a file for no sprite":        {"PUT /v1/sprites/none/fs/write?path=/tmp/x", "", "not_found"},
		"a file in place of a folder": {fsCall("PUT", "write", "path", t.TempDir()), "", "EISDIR"},
		"a wrong method":              {"PUT /v1/images/import", "", "method_not_allowed"},
		"no such path":                {"PUT /v1/nothing", "", "not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			method, path, _ := strings.Cut(call.call, " ")
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
			must(t, err)
			defer conn.Close()
			const size = 32 << 20 // more than the buffers of a connection have
			_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
				method, path, strings.TrimPrefix(s.URL, "http://"), s.Token, len(call.begin)+size, call.begin)
			must(t, err)
			chunk := []byte(strings.Repeat("x", 64<<10))
			for range size / len(chunk) {
				if _, err := conn.Write(chunk); err != nil {
					t.Fatalf("the server closed the connection under the body: %v", err)
				}
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			must(t, err)
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			failIf(t, err != nil || !strings.Contains(string(text), call.want), "got %d %s (%v), want %s", resp.StatusCode, text, err, call.want)
		})
	}
}
