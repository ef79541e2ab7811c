package guest

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// FuzzCommand: if a query is accepted as a command, the command can be handed to the kernel.
func FuzzCommand(f *testing.F) {
	for _, seed := range []string{"cmd=a&cmd=b&env=A%3Db&dir=x", "path=a&tty=true&rows=70000", "cmd=%00", "cmd=a&env=%3D", "cmd[]=a&timeout=1h&grace=x", "cmd=a&user=4294967296"} {
		f.Add(seed)
	}
	s := &Server{User: strconv.Itoa(os.Getuid())}
	s.init()
	f.Cleanup(func() { _ = s.Close() })
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		c, err := s.sessions.commands.parse(q)
		if err != nil {
			return
		}
		if len(c.argv) == 0 || !filepath.IsAbs(c.dir) || c.timeout < 0 || c.grace < 0 || c.maxRun < 0 {
			t.Fatalf("%q is %+v", query, c)
		}
		for _, text := range append(append([]string{c.path, c.dir}, c.argv...), c.env...) {
			if strings.ContainsRune(text, 0) {
				t.Fatalf("%q has a NUL: %+v", query, c)
			}
		}
		seen := map[string]bool{}
		for _, pair := range c.env {
			key, _, ok := strings.Cut(pair, "=")
			if !ok || key == "" || seen[key] {
				t.Fatalf("%q has the variable %q twice, or it is none", query, pair)
			}
			seen[key] = true
		}
	})
}

// FuzzControl: no text message on an exec's socket does harm.
func FuzzControl(f *testing.F) {
	for _, seed := range []string{`{"type":"resize","cols":80,"rows":24}`, `{"type":"signal","signal":"TERM"}`, `{"type":"resize","cols":-1}`, `{"type":1}`, "", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := &session{set: &sessions{}, cmd: &command{}}
		if err := s.control(strings.NewReader(text)); err != nil {
			t.Fatalf("%q ends the connection: %v", text, err)
		}
		var m, again sprites.Message
		if json.Unmarshal([]byte(text), &m) != nil {
			return
		}
		data, err := json.Marshal(m)
		if err != nil || json.Unmarshal(data, &again) != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%q changes: %+v, %+v, %v", text, m, again, err)
		}
	})
}
