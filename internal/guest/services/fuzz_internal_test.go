package services

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// FuzzDefinition: an accepted definition of a service is complete, comes back from the disk
// unchanged, and can be run.
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
		set := &definitions{dir: t.TempDir()}
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

// FuzzLogged: a line of a log is read as it was written, or not at all.
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
