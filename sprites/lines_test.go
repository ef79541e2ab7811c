package sprites_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// answers is a transport that answers each request by a body.
type answers func(ctx context.Context) io.ReadCloser

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: a(r.Context()), Request: r}, nil
}

// A caller may take longer for a line than a server may be silent, and then stop. Only a server
// that sends nothing is silent.
func TestLinesTakeTheirTime(t *testing.T) {
	lines := func(ctx context.Context, a answers) func(func([]byte, error) bool) {
		c := &sprites.Client{URL: "http://cove", HTTPClient: &http.Client{Transport: a}}
		return c.Lines(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs")})
	}
	three := answers(func(context.Context) io.ReadCloser { return io.NopCloser(strings.NewReader("a\nb\nc\n")) })
	synctest.Test(t, func(t *testing.T) {
		var got []string
		for line, err := range lines(t.Context(), three) {
			if err != nil {
				t.Errorf("after %q: %v", got, err)
			}
			got = append(got, strings.TrimSpace(string(line)))
			time.Sleep(time.Hour)
		}
		if strings.Join(got, "") != "abc" {
			t.Errorf("got %q, want a, b and c", got)
		}
		for range lines(t.Context(), three) {
			time.Sleep(time.Hour)
			break
		}
	})
	synctest.Test(t, func(t *testing.T) {
		silent := answers(func(ctx context.Context) io.ReadCloser {
			r, w := io.Pipe()
			go func() {
				_, _ = io.WriteString(w, "a\n") // until it is read
			}()
			context.AfterFunc(ctx, func() { _ = w.CloseWithError(context.Cause(ctx)) })
			return r
		})
		began, n := time.Now(), 0
		for _, err := range lines(t.Context(), silent) {
			if n++; n == 1 && err == nil {
				continue
			}
			if took := time.Since(began); !errors.Is(err, sprites.ErrSilent) || n != 2 || took != 90*time.Second {
				t.Errorf("yield %d after %v: %v", n, took, err)
			}
		}
		if n != 2 {
			t.Errorf("%d yields, want a line and an error", n)
		}
	})
}
