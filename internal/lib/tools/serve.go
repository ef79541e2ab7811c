package tools

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// maxCalls is how many calls are carried out at once.
const maxCalls = 64

// Server carries out calls, in the sprite: those of a stream (Serve), or of the
// program that it is in (Begin, Call, Close). Set its fields first.
type Server struct {
	Role Role
	Dir  string // what relative paths are relative to; empty: the current folder

	// Keeper is the program, with its arguments, that runs Keep for each command,
	// with the report as its file 3. Bash needs it.
	Keeper []string

	grace time.Duration // tests: killGrace

	w     workspace
	out   *frameWriter
	calls sync.WaitGroup

	mu      sync.Mutex
	running map[uint64]context.CancelFunc
}

// Serve answers the calls of a stream until the stream or ctx ends. No command that it started
// is left when it returns.
func (s *Server) Serve(ctx context.Context, r io.Reader, w io.Writer) error {
	if err := s.Begin(); err != nil {
		return err
	}
	s.out, s.running = &frameWriter{w: w}, map[uint64]context.CancelFunc{}
	first := answer{Hello: &hello{Version: version, Dir: s.w.dir, Role: s.Role.String(), Tools: s.Role.Tools()}}
	if err := s.out.send(first, maxAnswer); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	requests := make(chan error, 1)
	go func() { requests <- s.receive(ctx, r) }() // ends with the process, where r does not end
	var err error
	select {
	case err = <-requests:
	case <-ctx.Done():
	}
	cancel()
	s.w.shells.close()
	s.calls.Wait()
	s.w.shells.close() // what the last calls left
	return err
}

// Begin prepares the Server for Call. Serve does so itself.
func (s *Server) Begin() error {
	dir, err := filepath.Abs(s.Dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("the working directory %s is no folder", dir)
	}
	s.w.dir = dir
	s.w.shells.program, s.w.shells.logs, s.w.shells.grace = s.Keeper, logDir(), cmp.Or(s.grace, killGrace)
	if s.Role.Allows("Bash") {
		if err := s.w.shells.init(); err != nil {
			return err
		}
	}
	return nil
}

// Offers are the tools that may be called.
func (s *Server) Offers() []Tool { return List(s.Role) }

// Call carries out one call, if the role allows it. Its errors are *fail.Error. Many
// goroutines may make calls at once, after Begin and before Close.
func (s *Server) Call(ctx context.Context, tool string, input json.RawMessage) (*Result, error) {
	a := s.call(ctx, request{Tool: tool, Input: input}, func(Progress) {})
	return a.result(tool)
}

// Close ends what Begin has begun, with the commands that are in the background.
func (s *Server) Close() { s.w.shells.close() }

// receive reads requests.
func (s *Server) receive(ctx context.Context, r io.Reader) error {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		var q request
		if err := readFrame(in, maxRequest, &q); err != nil {
			if err == io.EOF {
				return nil
			}
			return fmt.Errorf("read a call: %w", err)
		}
		if err := s.request(ctx, q); err != nil {
			return err
		}
	}
}

func (s *Server) request(ctx context.Context, q request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel, ok := s.running[q.ID]; ok {
		if !q.Cancel {
			return fmt.Errorf("read a call: %w: the number %d is taken", errFrame, q.ID)
		}
		cancel()
		return nil
	}
	if q.Cancel || ctx.Err() != nil {
		return nil // it has just ended
	}
	if len(s.running) == maxCalls {
		return s.out.send(answer{ID: q.ID, Error: errorf(CodeBusy, "%d calls are being carried out", maxCalls)}, maxAnswer)
	}
	ctx, cancel := context.WithCancel(ctx)
	s.running[q.ID] = cancel
	s.calls.Go(func() {
		defer cancel()
		a := s.call(ctx, q, func(p Progress) {
			_ = s.out.send(answer{ID: q.ID, Progress: &p}, maxAnswer) // the connection's end is the reader's to see
		})
		s.mu.Lock()
		delete(s.running, q.ID)
		s.mu.Unlock()
		if err := s.out.send(a, maxAnswer); err != nil {
			if e, ok := errors.AsType[*fail.Error](err); ok {
				_ = s.out.send(answer{ID: q.ID, Error: e}, maxAnswer) // the connection's end is the reader's to see
			}
		}
	})
	return nil
}

// call carries out a call, if the role allows it.
func (s *Server) call(ctx context.Context, q request, progress func(Progress)) (a answer) {
	a.ID = q.ID
	defer func() {
		if p := recover(); p != nil {
			a = answer{ID: q.ID, Error: errorf(CodeFailed, "%s failed: %v", q.Tool, p)}
		}
	}()
	result, err := s.run(ctx, q, progress)
	if err == nil {
		a.Result, err = json.Marshal(result)
	}
	if err != nil {
		a.Result, a.Error = nil, coded("", err)
	}
	return a
}

func (s *Server) run(ctx context.Context, q request, progress func(Progress)) (any, error) {
	if err := s.Role.refuse(q.Tool); err != nil {
		return nil, err
	}
	tool, ok := find(q.Tool)
	if !ok {
		return nil, errorf(CodeDenied, "there is no tool %q", q.Tool)
	}
	return tool.run(ctx, &s.w, call{input: q.Input, progress: progress})
}
