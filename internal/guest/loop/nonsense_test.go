package loop_test

import (
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cove-dev/cove/internal/guest/loop"
	"github.com/cove-dev/cove/internal/test/modeltest"
)

// If the response is not an answer of a model's API, and a retry would not give one, the loop
// ends at once.
func TestNoAnswer(t *testing.T) {
	page := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<html>Please log in.</html>")
	}
	endless := func(provider string) func(http.ResponseWriter) {
		event := []byte(strings.Repeat(": nothing\n", 6000) + "\n")
		if provider == "gemini" { // whose SDK knows no remarks
			event = []byte("data: {\"responseId\": \"" + strings.Repeat("x", 60_000) + "\"}\n\n")
		}
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			for range 700 { // 42 MB, if it is let
				if _, err := w.Write(event); err != nil {
					return
				}
			}
		}
	}
	each(t, func(t *testing.T, provider string) {
		for _, test := range []struct {
			answer func(http.ResponseWriter)
			want   string
		}{{page, "a web page answers"}, {endless(provider), "more than 33554432 bytes"}} {
			var asked atomic.Int32
			url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				test.answer(w)
			}))
			b := set(t, provider, "full", script{})
			var err error
			if b.Provider, err = loop.Open(provider, loop.Access{BaseURL: url + servers[provider].path, Key: key}, os.Getenv); err != nil {
				t.Fatal(err)
			}
			if r := b.run(loop.Unanswered); !strings.Contains(r.Text, test.want) || asked.Load() != 1 {
				t.Errorf("got %.1000q after %d requests, want %q after one", r.Text, asked.Load(), test.want)
			}
		}
	})
}

// Events have the part of a text that can be shown, whatever its length.
func TestLongText(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		long := "Begin." + strings.Repeat("x", 1<<20) + "End."
		b := set(t, provider, "full", script{turns: []modeltest.Turn{turn(long)}})
		r := b.run(loop.Done)
		said := b.of("text")
		if len(said) != 1 {
			t.Fatalf("got %d texts", len(said))
		}
		for _, text := range []string{said[0].Text, r.Text} {
			if len(text) > 300<<10 || !strings.HasPrefix(text, "Begin.") || !strings.HasSuffix(text, "End.") {
				t.Errorf("got %d bytes", len(text))
			}
		}
	})
}

// Calls after finish in the same answer are not carried out.
func TestCallsBehindFinish(t *testing.T) {
	each(t, func(t *testing.T, provider string) {
		b := set(t, provider, "full", script{turns: []modeltest.Turn{turn("",
			bash("touch before"), call("finish", object{"outcome": "done", "summary": "All of it."}), bash("touch behind"))}})
		if r := b.run(loop.Done); r.Text != "All of it." {
			t.Errorf("got %+v", r)
		}
		if b.read("before") != "" || b.read("behind") == "" {
			t.Errorf("before: %q, behind: %q", b.read("before"), b.read("behind"))
		}
	})
}
