package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// FuzzProxyInit: what is taken for a proxy's first message names either a port or
// a socket.
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

// FuzzTexts: whatever a guest says on a socket, what is passed on is JSON of the
// known fields, or nothing.
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
