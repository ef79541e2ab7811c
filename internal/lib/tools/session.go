package tools

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/sprites"
)

const (
	openLimit   = 5 * time.Minute  // to find the sprite's half, and again to start it and be greeted
	endLimit    = 45 * time.Second // for the sprite's half to end by itself; more than killLimit
	cancelLimit = 45 * time.Second // for a cancelled call's end to be told; likewise
)

// A Session is a sprite's tools in use. Many goroutines may make calls at once.
type Session struct {
	Dir   string   // the working directory, in the sprite
	Tools []string // that its role allows

	name   string // of the sprite, for hints
	cmd    *sprites.Cmd
	cancel context.CancelFunc
	in     io.WriteCloser
	frames chan []byte // to be sent
	said   guestbin.Said
	once   sync.Once

	ended chan struct{} // closed when no more answers come; err says why
	err   *fail.Error

	mu      sync.Mutex
	last    uint64
	pending map[uint64]*pending
}

// pending is a call that is not answered yet.
type pending struct {
	done     chan answer // buffered
	progress func(Progress)
}

// Open starts the tools in a sprite, and wakes the sprite. The working directory is dir;
// empty: the home of the sprite's user. The roles are as ParseRole has them. If one is
// unknown, or there is none, every call is denied. The end of ctx ends the session. Its errors
// are *fail.Error.
func Open(ctx context.Context, sprite *sprites.Sprite, dir string, roles ...string) (*Session, error) {
	program, err := findGuest(ctx, sprite)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	silent := time.AfterFunc(openLimit, cancel)
	args := []string{"tool", "serve", "--dir=" + dir}
	for _, role := range roles {
		args = append(args, "--role="+role)
	}
	cmd := sprite.CommandContext(ctx, program, args...)
	cmd.Label = "the tools"
	s := &Session{
		name: sprite.Name(), cmd: cmd, cancel: cancel, frames: make(chan []byte), ended: make(chan struct{}), pending: map[uint64]*pending{},
	}
	cmd.Stderr = &s.said
	out, err := cmd.StdoutPipe()
	if err == nil {
		s.in, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		silent.Stop()
		cancel()
		return nil, ending(s.name, err, "")
	}
	greeted := make(chan *hello, 1)
	go s.send()
	go s.receive(out, greeted)
	select {
	case h := <-greeted:
		if !silent.Stop() {
			break
		}
		s.Dir, s.Tools = h.Dir, h.Tools
		return s, nil
	case <-s.ended:
		if silent.Stop() {
			cancel()
			return nil, s.err
		}
	}
	return nil, noAnswer()
}

// findGuest finds the program, within openLimit: anything may answer in a sprite.
func findGuest(parent context.Context, sprite *sprites.Sprite) (string, error) {
	ctx, cancel := context.WithTimeout(parent, openLimit)
	defer cancel()
	program, err := guestbin.Find(ctx, sprite)
	switch {
	case err == nil:
		return program, nil
	case ctx.Err() != nil && parent.Err() == nil:
		return "", noAnswer()
	}
	return "", ending(sprite.Name(), err, "")
}

func noAnswer() *fail.Error {
	return errorf(CodeUnreachable, "the tools in the sandbox have not answered for %v; nothing was done anywhere else", openLimit)
}

// send writes frames, one after the other.
func (s *Session) send() {
	for {
		select {
		case frame := <-s.frames:
			if _, err := s.in.Write(frame); err != nil {
				return // the reader knows more of it
			}
		case <-s.ended:
			return
		}
	}
}

// receive hands answers to the waiting calls, until the session's end.
func (s *Session) receive(out io.ReadCloser, greeted chan<- *hello) {
	r := bufio.NewReaderSize(out, 64<<10)
	var wrong *fail.Error
	for wrong == nil {
		var a answer
		if err := readFrame(r, maxAnswer, &a); err != nil {
			if errors.Is(err, errFrame) && !errors.Is(err, io.EOF) {
				wrong = errorf(CodeProtocol, "what the sprite sent is %v", err)
			}
			break
		}
		wrong = s.take(a, greeted)
	}
	if wrong != nil {
		s.cancel()
	}
	_ = out.Close()
	_ = s.in.Close()
	err := s.cmd.Wait()
	if wrong == nil {
		wrong = ending(s.name, err, s.said.String())
	}
	s.cancel()
	s.err = wrong
	close(s.ended)
}

// take handles one answer.
func (s *Session) take(a answer, greeted chan<- *hello) *fail.Error {
	if a.Hello != nil {
		if a.Hello.Version != version {
			return errorf(CodeProtocol, "the sprite's cove-guest is of another version of cove; restart the sprite, so that it gets this one's: cove restart %s", s.name)
		}
		select {
		case greeted <- a.Hello:
			return nil
		default:
			return errorf(CodeProtocol, "the sprite greets twice")
		}
	}
	s.mu.Lock()
	p := s.pending[a.ID]
	if p != nil && a.Progress == nil {
		delete(s.pending, a.ID)
	}
	s.mu.Unlock()
	switch {
	case p == nil: // given up meanwhile
	case a.Progress != nil:
		if p.progress != nil {
			p.progress(*a.Progress)
		}
	default:
		p.done <- a
	}
	return nil
}

// Call calls a tool with an input, a JSON object. Its errors are *fail.Error. When ctx ends,
// Call ends what the call has begun, and waits for that.
func (s *Session) Call(ctx context.Context, tool string, input json.RawMessage) (*Result, error) {
	return s.CallProgress(ctx, tool, input, nil)
}

// CallProgress is Call for a caller that wants to hear of its progress. Unless progress is
// nil, one goroutine for the whole session calls it about once a second. It must not block,
// nor call a tool.
func (s *Session) CallProgress(ctx context.Context, tool string, input json.RawMessage, progress func(Progress)) (*Result, error) {
	if len(input) == 0 {
		input = json.RawMessage("{}")
	}
	if !json.Valid(input) {
		return nil, errorf(CodeBadInput, "the input is no JSON object")
	}
	p := &pending{done: make(chan answer, 1), progress: progress}
	s.mu.Lock()
	s.last++
	id := s.last
	s.pending[id] = p
	s.mu.Unlock()
	defer s.forget(id)
	frame, err := frameOf(request{ID: id, Tool: tool, Input: input}, maxRequest)
	if err != nil {
		return nil, coded("", err)
	}
	select {
	case s.frames <- frame:
	case <-s.ended:
		return nil, s.err
	case <-ctx.Done():
		return nil, coded("", ctx.Err())
	}
	select {
	case a := <-p.done:
		return a.result(tool)
	case <-s.ended:
		return s.late(p, tool)
	case <-ctx.Done():
		return nil, s.giveUp(ctx, id, p)
	}
}

// CallLast is CallProgress for the last call of a session. It ends processes that a command of
// Bash has left running, and the result says that.
func (s *Session) CallLast(ctx context.Context, tool string, input json.RawMessage, progress func(Progress)) (*Result, error) {
	result, err := s.CallProgress(ctx, tool, input, progress)
	if err != nil || tool != "Bash" {
		return result, err
	}
	var left, rest BashResult
	if json.Unmarshal(result.Data, &left) != nil || !left.Left {
		return result, nil // it was read once before
	}
	kill, err := json.Marshal(BashInput{Kill: left.BackgroundID})
	if err != nil {
		return nil, coded("", err)
	}
	end, err := s.Call(ctx, tool, kill)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(end.Data, &rest); err != nil {
		return nil, coded("", err)
	}
	left.Left, left.BackgroundID = false, ""
	left.Ended, left.Survivors = rest.Killed, rest.Survivors
	left.Stdout.add(rest.Stdout)
	left.Stderr.add(rest.Stderr)
	data, err := json.Marshal(left)
	if err != nil {
		return nil, coded("", err)
	}
	return newResult(tool, data)
}

// add adds output that came after the last look.
func (o *Output) add(more Output) {
	o.Text += more.Text
	o.Bytes += more.Bytes
	o.Omitted += more.Omitted
	o.Log = cmp.Or(o.Log, more.Log)
}

func (s *Session) forget(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, id)
}

// late returns the answer if it came just before the session's end, else the session's error.
func (s *Session) late(p *pending, tool string) (*Result, error) {
	select {
	case a := <-p.done:
		return a.result(tool)
	default:
		return nil, s.err
	}
}

func (a answer) result(tool string) (*Result, error) {
	if a.Error != nil {
		return nil, a.Error
	}
	return newResult(tool, a.Result)
}

// giveUp cancels a call and waits for its end.
func (s *Session) giveUp(ctx context.Context, id uint64, p *pending) error {
	timer := time.NewTimer(cancelLimit)
	defer timer.Stop()
	frame, err := frameOf(request{ID: id, Cancel: true}, maxRequest)
	if err != nil {
		return coded("", err)
	}
	select {
	case s.frames <- frame:
	case <-s.ended:
	case <-timer.C:
	}
	select {
	case <-p.done:
	case <-s.ended:
	case <-timer.C:
	}
	return coded("", ctx.Err())
}

// Offers are the tools that may be called.
func (s *Session) Offers() []Tool {
	return slices.DeleteFunc(slices.Clone(all()), func(t Tool) bool { return !slices.Contains(s.Tools, t.Name) })
}

// Ended reports whether the session has ended: every call fails then.
func (s *Session) Ended() bool { return isClosed(s.ended) }

// Close ends the session, with the commands that it has in the background. Calls
// under way fail.
func (s *Session) Close() error {
	s.once.Do(func() {
		_ = s.in.Close()
		select {
		case <-s.ended:
		case <-time.After(endLimit):
		}
		s.cancel()
	})
	<-s.ended
	if s.err.Code == CodeSessionEnded || s.err.Code == CodeCancelled {
		return nil
	}
	return s.err
}

// ending is the reason why a session has ended, or did not begin. said is the output of the
// sprite's half.
func ending(sprite string, err error, said string) *fail.Error {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e
	}
	exit, exited := errors.AsType[*sprites.ExitError](err)
	switch {
	case err == nil:
		return errorf(CodeSessionEnded, "the tools have ended in the sprite; open them again")
	case errors.Is(err, context.Canceled):
		return errorf(CodeCancelled, "the session was cancelled")
	case exited && (exit.Reason == "stopped" || exit.Reason == "restored"), errors.Is(err, sprites.ErrSandboxEnded), errors.Is(err, sprites.ErrNotFound), errors.Is(err, sprites.ErrRemoved):
		return errorf(CodeSandboxGone, "the sandbox is gone (%v); nothing was done anywhere else", plain(err))
	case errors.Is(err, sprites.ErrUnauthorized), errors.Is(err, sprites.ErrForbidden):
		return errorf(CodeDenied, "the server does not let this token use the sandbox: %v", err)
	case errors.Is(err, sprites.ErrLimited):
		return errorf(CodeBusy, "reach the sandbox: %v", err)
	case exited && exit.Code == 1 && said != "":
		return errorf(CodeFailed, "%s", said)
	case exited && exit.Code == 2:
		return errorf(CodeFailed, "the sprite's cove-guest has no tools: it is older than this cove; restart the sprite: cove restart %s", sprite)
	case exited:
		return errorf(CodeSessionEnded, "the tools have ended in the sprite (%v); open them again", err)
	case errors.Is(err, sprites.ErrNoExit):
		return errorf(CodeUnreachable, "the connection to the sandbox was lost (%v); nothing was done anywhere else", err)
	}
	return errorf(CodeFailed, "reach the sandbox: %v", err)
}

// plain is a server's message, without its hint.
func plain(err error) error {
	if e, ok := errors.AsType[*sprites.Error](err); ok {
		return errors.New(strings.TrimSuffix(e.Message, "."))
	}
	return err
}
