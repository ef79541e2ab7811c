// Package duplextest tests that a proxy answers while it reads the request's body.
package duplextest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

const (
	begun = "begun\n"
	early = "text/early" // has Upstream leave the body unread
	size  = 1 << 20      // of a request's body: more than net/http reads of one by itself
	limit = 5 * time.Minute
)

// Upstream begins its answer before it reads the request's body. The answer ends with
// the body's checksum.
func Upstream(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	if err := rc.EnableFullDuplex(); err != nil {
		panic(err)
	}
	if r.Header.Get("Content-Type") == early {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, begun)
		return
	}
	_, _ = io.WriteString(w, begun)
	_ = rc.Flush()
	sum := sha256.New()
	if _, err := io.Copy(sum, r.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = fmt.Fprintf(w, "%x\n", sum.Sum(nil))
}

// BothWays sends a request through a proxy to Upstream, and sends most of its body only
// once the answer has begun. Header has lines that end with \r\n. Upstream then leaves the
// body of a second request unread: no part of that may be answered like a request.
func BothWays(t testing.TB, dial func() (net.Conn, error), path, header string) {
	t.Helper()
	body := bytes.Repeat([]byte("GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"), size/35+1)[:size]
	open := func(kind string) (net.Conn, *bufio.Reader, *http.Response) {
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(limit))
		if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\n%sContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", path, header, kind, size, body[:size/16]); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s: the answer does not begin: %v", path, err)
		}
		return c, r, resp
	}

	c, _, resp := open("text/plain")
	got := make([]byte, len(begun))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != begun {
		t.Fatalf("the answer begins with %q, %v", got, err)
	}
	_, sent := c.Write(body[size/16:])
	rest, err := io.ReadAll(resp.Body)
	if want := fmt.Sprintf("%x\n", sha256.Sum256(body)); err != nil || string(rest) != want || sent != nil {
		t.Errorf("%s: the answer ends with %q, %v, want %q; sent: %v", path, rest, err, want, sent)
	}

	c, r, resp := open(early)
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode < http.StatusBadRequest {
		t.Errorf("%s, early: got %d %q, %v", path, resp.StatusCode, text, err)
	}
	// The connection may be closed, and so reset, while this is sent.
	_, _ = c.Write(body[size/16:])
	if next, err := http.ReadResponse(r, nil); err == nil {
		t.Errorf("%s, early: the rest of the body was answered with %s", path, next.Status)
	}
}
