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

// FuzzDefinition: what is taken for a service's definition is whole, comes back
// from the disk as it went there, and can be run.
func FuzzDefinition(f *testing.F) {
	for _, seed := range []string{
		`{"name":"web","cmd":"python3","args":["-m","http.server"],"http_port":8080}`, `{"cmd":"a\u0000"}`, `{"name":"signal","cmd":"x"}`,
		`{"name":"a","cmd":"b","env":{"A=":"c"}}`, `{"name":"a","cmd":"b","needs":["a","a"],"args":null,"state":{"pid":1}}`, `{"name":"../../etc","cmd":"x"}`,
		`{"name":"a","cmd":"b","env":{"\xff":"\xff"},"args":["\xff"]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var def sprites.Service
		if json.Unmarshal([]byte(text), &def) != nil || checkService(&def) != nil {
			return
		}
		if strings.ContainsAny(def.Name, "/\x00") || def.Name == "." || def.Name == ".." || def.Args == nil || def.Needs == nil {
			t.Fatalf("%q is taken: %+v", text, def)
		}
		set := &services{srv: &Server{}, dir: t.TempDir()}
		if err := set.save(def, true); err != nil {
			t.Fatal(err)
		}
		back, err := readDefinition(filepath.Join(set.dir, def.Name+".json"), def.Name)
		if err != nil || !back.Stopped || !sameService(back.Service, def) {
			t.Fatalf("%+v comes back as %+v, %v", def, back, err)
		}
		if files, err := os.ReadDir(set.dir); err != nil || len(files) != 1 {
			t.Fatalf("%d files, %v", len(files), err)
		}
	})
}

// FuzzLogged: a line of a log is what was written, or nothing.
func FuzzLogged(f *testing.F) {
	f.Add("2026-02-03T10:11:12.821Z [stderr] text\n")
	f.Add("2026-02-03T10:11:12.821Z [evil] text")
	f.Add(" [stdout] ")
	f.Fuzz(func(t *testing.T, line string) {
		e, ok := parseLogged(line)
		if !ok {
			return
		}
		if len(e.Data) > maxLine || !strings.Contains(line, e.Data) {
			t.Fatalf("%q reads as %+v", line, e)
		}
		if e.Type != sprites.ServiceEventStdout && e.Type != sprites.ServiceEventStderr && e.Type != sprites.ServiceEventError {
			t.Fatalf("%q reads as %+v", line, e)
		}
	})
}

// FuzzCommand: what is taken for a command can be handed to the kernel.
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
		c, err := s.parseCommand(q)
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

// FuzzControl: a text message on an exec's socket never does harm, however odd.
func FuzzControl(f *testing.F) {
	for _, seed := range []string{`{"type":"resize","cols":80,"rows":24}`, `{"type":"signal","signal":"TERM"}`, `{"type":"resize","cols":-1}`, `{"type":1}`, "", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := &session{srv: &Server{}, cmd: &command{}}
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
