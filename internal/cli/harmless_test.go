package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
)

// evil has a character of each kind that misleads a terminal or its reader: controls (C0, C1,
// DEL, direction of writing), line separators, zero width, fillers, selectors, tags.
const evil = "\x1b]0;pwned\a\u009b31m\x7f\u202e\u2066\u200f\u2028\u200b\u2060\ufeff\u3164\ufe00\u2800\U000e0041"

// mark is how the last character of evil is shown, as text and in JSON.
var mark = []string{`⟦U+E0041⟧`, `\udb40\udc41`}

// spoil appends evil to every string of a document that is not a time or an address. It
// keeps the fields that commands decide by.
func spoil(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			if key != "type" && key != "state" && key != "seq" {
				v[key] = spoil(v[key])
			}
		}
	case []any:
		for i := range v {
			v[i] = spoil(v[i])
		}
	case string:
		_, err1 := time.Parse(time.RFC3339, v)
		_, err2 := netip.ParseAddr(v)
		if err1 != nil && err2 != nil {
			return v + evil
		}
	}
	return v
}

// spoiler is a server whose answers are another's, spoiled.
func spoiler(t *testing.T, of string) string {
	to, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.StatusCode == http.StatusSwitchingProtocols {
			return nil
		}
		r.Header.Del("Content-Length")
		body, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return err
		}
		var out bytes.Buffer
		for dec := json.NewDecoder(bytes.NewReader(body)); ; {
			dec.UseNumber()
			var v any
			if err := dec.Decode(&v); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				out.Reset()
				out.Write(body)
				break
			}
			if err := json.NewEncoder(&out).Encode(spoil(v)); err != nil {
				return err
			}
		}
		r.ContentLength, r.Body = int64(out.Len()), io.NopCloser(&out)
		return nil
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = to.Host
		r.Header.Del("Accept-Encoding")
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// Text that a sandbox or a server has chosen does nothing to a terminal, as text or as
// JSON, on standard output or error.
func TestHarmless(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Jobs: func(st *store.Store, c *cove.Client) (server.Jobs, func() error, error) {
		m := &job.Manager{Store: st, Client: c}
		return m, m.Close, m.Resume(t.Context())
	}})
	s.Create("paint")
	ctx := t.Context()
	code := 7
	err := errors.Join(
		s.Store.Jobs.Create(ctx, cove.Job{ID: "abcdef", State: cove.JobRunning, JobSettings: cove.JobSettings{Sprite: "paint", Agent: "shell"}, JobSource: cove.JobSource{Branch: "main", Repository: "r"}}, nil),
		s.Store.Jobs.AppendEvents(ctx, "abcdef", []cove.JobEvent{
			{Seq: 1, Type: "state", State: cove.JobRunning}, {Seq: 2, Type: "output", Stream: "stdout", Text: "one"},
			{Seq: 3, Type: "notice", Text: "two"}, {Seq: 4, Type: "event", Text: "{}"}, {Seq: 5, Type: "exit", ExitCode: &code, Reason: "signal"},
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	at := spoiler(t, s.URL)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Chdir(t.TempDir())
	for _, line := range []string{
		"list", "info -s paint", "url -s paint", "ping", "version", "job list", "job show abcdef", "job events abcdef",
		"checkpoint list -s paint", "checkpoint show v1 -s paint", "service list -s paint", "service show web -s paint",
		"policy show -s paint", "policy log -s paint", "connector list", "connector log -s paint", "secret list", "token list", "image list",
		"session list -s paint", "diagnose paint", "info -s nosuch", "job show 000000", "rm paint-2 --force", "job gc --dry-run",
	} {
		for _, flag := range []string{"", "--json"} {
			args := append(strings.Fields(line), "--url", at, "--token", s.Token)
			if flag != "" {
				args = append(args, flag)
			}
			var out, errs bytes.Buffer
			exit := Main(ctx, args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
			if exit == exitUsage {
				t.Errorf("cove %s %s is no command line: %s", line, flag, &errs)
			}
			for _, r := range out.String() + errs.String() {
				if r != '\r' && !printable.Safe(r) {
					t.Errorf("cove %s %s prints %U, with exit code %d:\n%q\n%q", line, flag, r, exit, &out, &errs)
					break
				}
			}
			if strings.Contains(out.String(), "\r") {
				t.Errorf("cove %s %s prints a carriage return: %q", line, flag, &out)
			}
			said := strings.Contains(out.String()+errs.String(), mark[0]) || strings.Contains(out.String()+errs.String(), mark[1])
			if first := strings.Fields(line)[0]; !said && (first == "list" || first == "info" || strings.HasPrefix(line, "job ") && line != "job gc --dry-run") {
				t.Errorf("cove %s %s shows nothing of it: %q %q", line, flag, &out, &errs)
			}
		}
	}
}

// Escaped JSON is the same document, however it is cut into writes between characters.
func TestHarmlessJSON(t *testing.T) {
	want := map[string]any{"a" + evil: "ü🙂" + evil + "\\u202e\u2029"}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	text = append(bytes.ReplaceAll(text, []byte(`\u2028`), []byte("\u2028")), "\r\n\t"...)
	var out bytes.Buffer
	if n, err := (harmlessJSON{&out}).Write(text); n != len(text) || err != nil {
		t.Fatalf("%d of %d bytes, %v", n, len(text), err)
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got["a"+evil] != want["a"+evil] {
		t.Errorf("got %q, %v", out.Bytes(), err)
	}
	for _, r := range out.String() {
		if r != '\r' && !printable.Safe(r) {
			t.Errorf("%U is in %q", r, &out)
		}
	}
}
