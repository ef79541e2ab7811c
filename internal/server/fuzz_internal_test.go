package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// FuzzProxyInit: an accepted first message of a proxy names either a port or a socket.
func FuzzProxyInit(f *testing.F) {
	for _, seed := range []string{`{"host":"localhost","port":5432}`, `{"port":-1}`, `{"port":65536}`, `{"host":7,"port":1}`, `{"port":1,"half_close":true}`, `{"unix":"/run/s"}`, `{"unix":"s"}`, `{"unix":"/s","port":1}`, "", "null"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		init, ok := parseInit(text)
		if port := init.Port >= 1 && init.Port <= 65535; ok && port == strings.HasPrefix(init.Unix, "/") {
			t.Fatalf("%q is %+v", text, init)
		}
	})
}

// TestLongLists: a list that is many elements in a short text is not held whole.
func TestLongLists(t *testing.T) {
	list := func(before, element string) []byte {
		n := (maxNews - len(before)) / (len(element) + 1)
		return []byte(before + strings.Repeat(element+",", n-1) + element + "]}")
	}
	for kind, text := range map[string][]byte{
		"ports": list(`{"type":"port_list","ports":[`, "{}"), "watch": list(`{"type":"subscribed","paths":[`, `""`),
	} {
		translate := downTexts[kind]
		got := testing.Benchmark(func(b *testing.B) {
			for b.Loop() {
				translate(text)
			}
		}).AllocedBytesPerOp()
		if got > 8*maxNews {
			t.Errorf("%s: %d bytes take %d", kind, len(text), got)
		}
	}
}

// FuzzTexts: whatever a guest says on a socket, only JSON of the known fields is passed on, or
// nothing.
func FuzzTexts(f *testing.F) {
	for _, seed := range []string{
		`{"type":"session_info","session_id":"1","evil":"x"}`, `{"type":"port_opened","port":1,"address":"<script>"}`, `{"type":"event","path":"a"}`,
		`{"type":"port_list","ports":[{"port":1}]}`, `[]`, `{"type":""}`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for kind, translate := range downTexts {
			out := translate(text)
			if out == nil {
				continue
			}
			var m struct{ Type string }
			if json.Unmarshal(out, &m) != nil || m.Type == "" || strings.Contains(string(out), `"evil"`) {
				t.Fatalf("%s passes %q on as %q", kind, text, out)
			}
			var ports struct{ Ports []sprites.PortEvent }
			if json.Unmarshal(out, &ports) == nil && len(ports.Ports) > maxPorts {
				t.Fatalf("%s passes %d ports on", kind, len(ports.Ports))
			}
		}
	})
}

// FuzzGuestFailure: whatever a guest answers, its error is short, and has no control
// characters and no hint. Its code is one that a guest may give, or goes with its status.
func FuzzGuestFailure(f *testing.F) {
	f.Add(404, []byte(`{"error":"session_not_found","message":"there is none","hint":"rm -rf /"}`), false)
	f.Add(404, []byte(`{"error":"no such file","code":"ENOENT","path":"/x\u001b[2J","message":"m"}`), true)
	f.Add(403, []byte(`{"error":"forbidden"}`), false)
	f.Add(507, []byte(`{"error":"disk_full"}`), true)
	f.Add(101, []byte(nil), false)
	f.Add(500, []byte("\xff\x1b plain"), false)
	f.Fuzz(func(t *testing.T, status int, body []byte, files bool) {
		err := guestFailure(&http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(body))}, files)
		var said []string
		if e, ok := errors.AsType[*fileError](err); ok && files {
			said = []string{e.body.Error, e.body.Code, e.body.Path, e.body.Message}
		} else if e, ok := errors.AsType[*sprites.Error](err); ok {
			if honest := withCode(sprites.ErrorBody{}, status).Code; e.Code != honest && !guestCodes[e.Code] || e.Hint != "" {
				t.Errorf("%d %q: code %q, hint %q", status, body, e.Code, e.Hint)
			}
			said = []string{e.Code, e.Message}
		} else if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == "bad_guest" {
			said = []string{e.Message}
		} else {
			t.Fatalf("%d %q: got %#v", status, body, err)
		}
		for _, s := range said {
			if len(s) > 3*(maxGuestText+maxGuestPath)+8 || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
				t.Errorf("%d %q: says %q", status, body, s)
			}
		}
	})
}
