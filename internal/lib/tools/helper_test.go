package tools

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

// TestMain is also what keeps the commands of Bash.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"tool", "keep"}) {
		if err := Keep(os.Stdin, os.NewFile(3, "report")); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A served is a Server at work in a folder of its own, and its other half.
type served struct {
	t   testing.TB
	dir string
	in  *io.PipeWriter
	end func() error

	mu       sync.Mutex
	last     uint64
	answers  map[uint64]chan answer
	progress []Progress
}

// serve starts a server. It ends with the test.
func serve(t testing.TB, role string) *served {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return serveIn(t, role, dir)
}

func serveIn(t testing.TB, role, dir string) *served {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	parsed, _ := ParseRole(role) // an unknown one allows nothing
	toServer, in := io.Pipe()
	out, fromServer := io.Pipe()
	s := &served{t: t, dir: dir, in: in, answers: map[uint64]chan answer{}}
	ended := make(chan error, 1)
	server := &Server{Role: parsed, Dir: dir, Keeper: []string{os.Args[0], "tool", "keep"}, grace: 200 * time.Millisecond}
	go func() {
		ended <- server.Serve(context.Background(), toServer, fromServer)
		_ = fromServer.Close()
	}()
	r := bufio.NewReader(out)
	var first answer
	if err := readFrame(r, maxAnswer, &first); err != nil || first.Hello == nil {
		t.Fatalf("the server greets by %+v, %v", first, err)
	}
	go s.receive(r)
	s.end = sync.OnceValue(func() error { _ = in.Close(); return <-ended })
	t.Cleanup(func() {
		if err := s.end(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s
}

func (s *served) receive(r io.Reader) {
	for {
		var a answer
		if readFrame(r, maxAnswer, &a) != nil {
			return
		}
		s.mu.Lock()
		c := s.answers[a.ID]
		if a.Progress != nil {
			s.progress = append(s.progress, *a.Progress)
			c = nil
		}
		s.mu.Unlock()
		if c != nil {
			c <- a
		}
	}
}

// send begins a call.
func (s *served) send(tool string, input any) (uint64, <-chan answer) {
	s.t.Helper()
	data, err := json.Marshal(input)
	if err != nil {
		s.t.Fatal(err)
	}
	c := make(chan answer, 1)
	s.mu.Lock()
	s.last++
	id := s.last
	s.answers[id] = c
	s.mu.Unlock()
	s.write(request{ID: id, Tool: tool, Input: data})
	return id, c
}

func (s *served) write(q request) {
	s.t.Helper()
	frame, err := frameOf(q, maxRequest)
	if err == nil {
		_, err = s.in.Write(frame)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// try makes a call.
func (s *served) try(tool string, input any) (*Result, *fail.Error) {
	s.t.Helper()
	_, c := s.send(tool, input)
	a := <-c
	if a.Error != nil {
		return nil, a.Error
	}
	r, err := newResult(tool, a.Result)
	if err != nil {
		s.t.Fatal(err)
	}
	return r, nil
}

// call makes one that must succeed.
func call1[Out any](s *served, tool string, input any) Out {
	s.t.Helper()
	r, err := s.try(tool, input)
	if err != nil {
		s.t.Fatalf("%s %+v: %v", tool, input, Told(err))
	}
	var out Out
	if err := json.Unmarshal(r.Data, &out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// fails makes one that must fail, and returns the message.
func (s *served) fails(code, tool string, input any) string {
	s.t.Helper()
	r, err := s.try(tool, input)
	if err == nil {
		s.t.Fatalf("%s %.200v succeeded, want the error %s: %.500s", tool, input, code, r.Text())
	}
	if err.Code != code {
		s.t.Fatalf("%s %.200v: got %s, want the code %s", tool, input, Told(err), code)
	}
	return err.Message
}

func (s *served) path(name string) string { return filepath.Join(s.dir, name) }

// put writes files: pairs of name and content.
func (s *served) put(pairs ...string) {
	s.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		name := s.path(pairs[i])
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(pairs[i+1]), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *served) get(name string) string {
	s.t.Helper()
	data, err := os.ReadFile(s.path(name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}

// clean reports what Write or Edit left beside their files.
func (s *served) clean() {
	s.t.Helper()
	left, err := filepath.Glob(s.path(".cove-*"))
	if err != nil || len(left) > 0 {
		s.t.Errorf("left behind: %v %v", left, err)
	}
}
