package supervise

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
)

// ErrNoInput says that the job's agent takes no messages, or none any more.
var ErrNoInput = errors.New("the job's agent takes no messages")

// ErrAnswered says that the question that a message answers has another answer.
var ErrAnswered = errors.New("the question has been answered")

// ErrKeyTaken says that another message has had a message's key.
var ErrKeyTaken = errors.New("another message has had that key")

// ErrNotTaken says that the agent did not get a message, and will not. The log may have the
// message all the same: it is there before the agent gets it.
var ErrNotTaken = errors.New("the agent has ended, or does not read")

// Bounds on messages.
const (
	maxMessage  = 8 << 20 // one, as it comes to the supervisor, twice and escaped
	maxSenders  = 8       // messages that are on their way at once
	sendTimeout = 45 * time.Second
)

// input receives messages at a socket in the job's folder, and hands them to the agent.
type input struct {
	log    *journal
	guards *guards
	pipe   *os.File // the agent's standard input

	listener net.Listener
	slots    chan struct{}
	wg       sync.WaitGroup

	mu       sync.Mutex // held while a message is written: each is whole
	closed   bool
	taken    map[string]string // by key, contentOf of messages that the agent has
	answered map[string]bool   // the questions that have been answered
}

// answer is what a sender is told.
type answer struct {
	Error string `json:"error,omitempty"`
}

// listen begins to take messages for the agent that reads pipe. The first message is in a
// file.
func (a *agent) listen(pipe *os.File) (*input, error) {
	var first []byte
	if name := a.spec.Input.First; name != "" {
		var err error
		if first, err = os.ReadFile(name); err != nil {
			return nil, err
		}
	}
	name := a.folder.file("input.sock")
	_ = os.Remove(name) // of a supervisor that died
	l, err := net.Listen("unix", name)
	if err != nil {
		return nil, fmt.Errorf("take messages: %w", err)
	}
	if err := os.Chmod(name, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	in := &input{log: a.log, guards: a.guards, pipe: pipe, listener: l, slots: make(chan struct{}, maxSenders), taken: map[string]string{}, answered: map[string]bool{}}
	in.wg.Go(func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		_, _ = pipe.Write(first) // an agent that does not read it ends without a result
	})
	in.wg.Go(in.accept)
	return in, nil
}

// close takes no more messages. Those that the agent has not read are refused.
func (in *input) close() {
	_ = in.listener.Close()
	_ = in.pipe.Close() // a write to it ends
	in.wg.Wait()
}

func (in *input) accept() {
	for {
		conn, err := in.listener.Accept()
		if err != nil {
			return
		}
		in.slots <- struct{}{}
		in.wg.Go(func() {
			defer func() { <-in.slots; _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(sendTimeout))
			var a answer
			if err := in.take(conn); err != nil {
				a.Error = err.Error()
			}
			_ = json.NewEncoder(conn).Encode(a) // who has gone is not told
		})
	}
}

// contentOf distinguishes a message from others with the same key; it is not empty.
func contentOf(m cove.JobInputLine) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %v", m.Line, m.Question, m.Close))
	return string(sum[:])
}

// take reads a message and hands it on.
func (in *input) take(r io.Reader) error {
	var m cove.JobInputLine
	if err := json.NewDecoder(io.LimitReader(r, maxMessage)).Decode(&m); err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case m.Key != "" && in.taken[m.Key] == contentOf(m):
		return nil // its first answer was lost
	case m.Key != "" && in.taken[m.Key] != "":
		return ErrKeyTaken
	case in.answered[m.Question]:
		return ErrAnswered
	case in.closed:
		return ErrNoInput
	}
	if m.Line != "" {
		text := m.Text
		if len(text) > maxLine {
			text = text[:wholeRunes([]byte(text[:maxLine]))] + "…"
		}
		in.log.add(cove.JobEvent{Type: "input", Text: text, Key: m.Key, Question: m.Question}) // before what the agent makes of it
		in.guards.wait(false)                                                                  // which may be that it waits again
		if _, err := io.WriteString(in.pipe, m.Line+"\n"); err != nil {
			in.log.add(cove.JobEvent{Type: "notice", Text: "the agent has not taken that message", Key: m.Key})
			return fmt.Errorf("%w: %w", ErrNotTaken, err)
		}
	}
	if m.Key != "" {
		in.taken[m.Key] = contentOf(m)
	}
	if m.Question != "" {
		in.answered[m.Question] = true
	}
	if m.Close {
		in.closed = true
		in.log.notice("there will be no more messages: the agent ends when it is done")
		in.guards.wait(false)
		return in.pipe.Close()
	}
	return nil
}

// Send hands a message, a cove.JobInputLine that r gives, to the agent of a
// job, and returns when the agent has it in its input. ErrDead: no supervisor is
// at work. ErrNoInput: the agent takes none. ErrAnswered: the question has another answer.
// ErrKeyTaken: its key is another message's. ErrNotTaken: the agent did not get it. A message that the agent has, by its key, is not handed on again.
func Send(dir string, r io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(r, maxMessage))
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("unix", filepath.Join(dir, "input.sock"), sendTimeout)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		if dead(dir) {
			return ErrDead
		}
		return ErrNoInput
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(sendTimeout + time.Second))
	if _, err := conn.Write(text); err != nil {
		return fmt.Errorf("send a message: %w", err)
	}
	var a answer
	if err := json.NewDecoder(bufio.NewReader(conn)).Decode(&a); err != nil {
		return fmt.Errorf("send a message: no answer: %w", err)
	}
	switch a.Error {
	case "":
		return nil
	case ErrNoInput.Error():
		return ErrNoInput
	case ErrAnswered.Error():
		return ErrAnswered
	case ErrKeyTaken.Error():
		return ErrKeyTaken
	}
	if cause, ok := strings.CutPrefix(a.Error, ErrNotTaken.Error()); ok {
		return fmt.Errorf("%w%s", ErrNotTaken, cause)
	}
	return errors.New(a.Error)
}
