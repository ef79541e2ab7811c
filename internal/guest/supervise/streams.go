package supervise

import (
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// drainLimit bounds the wait for the end of output, once the program that wrote it is gone. On a
// machine that does much else, to read the rest may take seconds.
const drainLimit = 30 * time.Second

// streams are the ends of an agent's standard streams that this process holds.
type streams struct {
	theirs []*os.File
	ours   []*os.File
	input  *input // nil: the agent reads nothing
	wg     sync.WaitGroup
	run    []func()
}

// open gives cmd an input: a pipe that listen writes messages into.
func (s *streams) open(cmd *exec.Cmd, listen func(pipe *os.File) (*input, error)) error {
	r, w, err := os.Pipe()
	if err != nil {
		s.close()
		return err
	}
	cmd.Stdin, s.theirs = r, append(s.theirs, r)
	if s.input, err = listen(w); err != nil {
		_ = w.Close()
		s.close()
	}
	return err
}

// started closes the ends that the agent has now, and begins to read.
func (s *streams) started() {
	for _, f := range s.theirs {
		_ = f.Close()
	}
	s.theirs = nil
	for _, f := range s.run {
		s.wg.Go(f)
	}
}

// drain ends the input, and waits for the end of all output.
func (s *streams) drain() {
	if s.input != nil {
		s.input.close()
		s.input = nil
	}
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(drainLimit):
	}
	s.close()
	<-done
}

func (s *streams) close() {
	if s.input != nil {
		s.input.close()
	}
	for _, f := range append(s.theirs, s.ours...) {
		_ = f.Close()
	}
}

// quietWriter drops data that can't be written, on a full disk, say: the agent must not stop
// because of its raw log.
type quietWriter struct{ w io.Writer }

func (q quietWriter) Write(p []byte) (int, error) {
	_, _ = q.w.Write(p)
	return len(p), nil
}
