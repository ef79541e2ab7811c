package acp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	acp "github.com/coder/acp-go-sdk"

	"github.com/cove-dev/cove/sprites"
)

// cancelRequest is the notification that takes a request back.
const cancelRequest = "$/cancel_request"

const (
	greetLimit   = 3 * time.Minute // for the answer to initialize
	defaultGrace = 5 * time.Second
)

// ErrFailed says that the agent did not do what it was asked to do; the events say why.
var ErrFailed = errors.New("the agent has not done its work")

// Job is an agent's work on one prompt. Set the fields before Run.
type Job struct {
	Argv        []string
	Dir         string // the session's folder, absolute
	Prompt      string
	Session     string // to be continued; empty: a new one
	Permissions Permissions
	Keeper      []string // the command line of a keeper (tools.Keep)
	Servers     []Server // MCP servers that the agent is to start

	// Grace is how long an agent that is told to stop may take to say so; 0: 5 s.
	Grace time.Duration

	Events  io.Writer // gets a line of JSON for each Event
	Noise   io.Writer // gets what the agent prints that is no message
	Answers io.Reader // Answer by Answer, a line each; nil: nobody answers
}

// Server is an MCP server, which speaks by its standard streams.
type Server struct{ Name, Program string }

// servers are those of the job, as a session begins with them.
func (j *Job) servers() []acp.McpServer {
	all := []acp.McpServer{} // not null
	for _, s := range j.Servers {
		all = append(all, acp.McpServer{Stdio: &acp.McpServerStdio{Name: s.Name, Command: s.Program, Args: []string{}, Env: []acp.EnvVariable{}}})
	}
	return all
}

// runner is a Job at work. It is the SDK's client, too.
type runner struct {
	local
	job     *Job
	events  *events
	agent   *process
	conn    *acp.ClientSideConnection
	answers chan Answer   // from people
	stopped chan struct{} // closed when the work is to end

	asking sync.Mutex // one question after the other
	asked  int

	mu        sync.Mutex
	replaying bool // what comes is what an earlier session said
	session   acp.SessionId
	lost      string // which answer can't be had
	lostCh    chan struct{}
	cost      float64
	calls     calls
}

// Run makes the agent do its work, and returns nil when the agent says that it is done. The
// last event says so, too; if the agent did not answer, there is no such event. The end of ctx
// cancels the work: Run tells the agent, and then ends it.
func (j *Job) Run(ctx context.Context) error {
	r := &runner{
		local: local{dir: j.Dir, keeper: j.Keeper}, job: j, events: &events{w: j.Events},
		answers: make(chan Answer), stopped: make(chan struct{}), lostCh: make(chan struct{}),
	}
	var err error
	if r.agent, err = start(j.Argv, j.Dir); err != nil {
		r.events.add(Event{Type: "notice", Text: short(err.Error(), maxText)})
		return err
	}
	messages, toSDK := io.Pipe()
	r.conn = acp.NewClientSideConnection(r, r.agent.in, messages)
	r.conn.SetLogger(quiet)
	go func() { <-r.conn.Done(); _ = messages.Close() }()
	printed := make(chan struct{})
	go func() {
		r.agent.lines(func(m Message, line []byte) { r.take(m, line, toSDK) }, r.noise, r.loseAnswer)
		_ = toSDK.Close()
		close(printed)
	}()
	if j.Answers != nil {
		go r.readAnswers() // ends with the process, where its input does not
	}
	err = r.work(ctx)
	r.agent.quit()
	r.close()
	<-printed
	<-r.conn.Done()
	return errors.Join(err, r.events.close())
}

// take handles a message of the agent's. It reports updates at once, in their order, and
// ignores other notifications. The SDK would end the connection if many of them came faster
// than they are handled.
func (r *runner) take(m Message, line []byte, toSDK io.Writer) {
	if m.asked() || m.Method == cancelRequest {
		_, _ = toSDK.Write(append(line, '\n')) // it fails when the connection has ended
		return
	}
	if m.Method != acp.ClientMethodSessionUpdate {
		return
	}
	var u update
	if json.Unmarshal(m.Params, &u) != nil {
		r.events.add(Event{Type: "notice", Text: "an update can't be read"})
		return
	}
	r.mu.Lock()
	skip := r.replaying || r.session != "" && u.SessionID != string(r.session)
	if c := u.Update.Cost; c != nil && c.Currency == "USD" {
		r.cost = c.Amount
	}
	if !skip {
		r.calls.note(u.Update)
	}
	r.mu.Unlock()
	if !skip {
		r.events.tell(u)
	}
}

// noise passes on what the agent prints beside the protocol.
func (r *runner) noise(text string) { _, _ = io.WriteString(r.job.Noise, text+"\n") }

// loseAnswer notes that the agent's answer has come but can't be used.
func (r *runner) loseAnswer(Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost == "" {
		r.lost = "its answer " + ErrLong.Error()[len("a message "):]
		close(r.lostCh)
	}
}

// SessionUpdate is not called: take handles updates.
func (r *runner) SessionUpdate(context.Context, acp.SessionNotification) error { return nil }

// call makes a call to the agent. The call ends when the agent or ctx ends.
func call[T any](ctx context.Context, r *runner, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-r.lostCh:
			cancel(errors.New(r.lost))
		case <-ctx.Done():
		}
	}()
	v, err := f(ctx)
	if err == nil {
		return v, nil
	}
	if ctx.Err() == nil && r.hungUp() {
		r.agent.quit()
		return v, goneError{"it " + r.agent.howEnded()}
	}
	if cause := context.Cause(ctx); cause != nil {
		return v, cause
	}
	return v, err
}

// hungUp reports whether the agent has closed its output, or its input: it will not
// answer any more.
func (r *runner) hungUp() bool {
	select {
	case <-r.conn.Done():
		return true
	default:
		return r.agent.in.Err() != nil
	}
}

// goneError says that the agent has ended before it answered.
type goneError struct{ how string }

func (e goneError) Error() string { return "the agent has ended before it answered: " + e.how }

// work is the conversation. It reports a failure as an event, unless ctx has ended.
func (r *runner) work(ctx context.Context) error {
	err := r.begin(ctx)
	if err == nil {
		err = r.prompt(ctx)
	}
	switch {
	case err == nil, errors.Is(err, ErrFailed):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if gone, ok := errors.AsType[goneError](err); ok {
		// The agent has not said how it went, so there is no result.
		r.events.add(Event{Type: "notice", Text: short(gone.Error(), maxText)})
		return err
	}
	r.events.add(Event{Type: typeResult, Error: errorText(err), SessionID: string(r.session)})
	return ErrFailed
}

// begin greets the agent and opens the session.
func (r *runner) begin(ctx context.Context) error {
	greeting, cancel := context.WithTimeoutCause(ctx, greetLimit, fmt.Errorf("it did not answer within %v: does it speak ACP on its standard streams?", greetLimit))
	defer cancel()
	hello, err := call(greeting, r, func(ctx context.Context) (acp.InitializeResponse, error) {
		return r.conn.Initialize(ctx, acp.InitializeRequest{
			ProtocolVersion: acp.ProtocolVersionNumber, ClientCapabilities: capabilities,
			ClientInfo: &acp.Implementation{Name: "cove", Version: sprites.Version},
		})
	})
	if err != nil {
		return err
	}
	if hello.ProtocolVersion != acp.ProtocolVersionNumber {
		return fmt.Errorf("it speaks version %d of ACP, and cove version %d", hello.ProtocolVersion, acp.ProtocolVersionNumber)
	}
	ev := Event{Type: "session", Loaded: r.job.Session != "", Once: !hello.AgentCapabilities.LoadSession}
	if info := hello.AgentInfo; info != nil {
		ev.Agent = short(info.Name+" "+info.Version, maxName)
	}
	id := acp.SessionId(r.job.Session)
	if ev.Loaded {
		err = r.load(ctx, id, hello.AgentCapabilities)
	} else {
		var answer acp.NewSessionResponse
		answer, err = call(ctx, r, func(ctx context.Context) (acp.NewSessionResponse, error) {
			return r.conn.NewSession(ctx, acp.NewSessionRequest{Cwd: r.job.Dir, McpServers: r.job.servers()})
		})
		id = answer.SessionId
	}
	if err == nil && len(id) > maxName {
		err = errors.New("its name for the session is too long")
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.session = id
	r.mu.Unlock()
	ev.SessionID = string(id)
	r.events.add(ev)
	return nil
}

// load continues a session, whose history the agent tells again.
func (r *runner) load(ctx context.Context, id acp.SessionId, can acp.AgentCapabilities) error {
	if !can.LoadSession {
		return errors.New("it can't continue a session")
	}
	r.replay(true)
	defer r.replay(false)
	_, err := call(ctx, r, func(ctx context.Context) (acp.LoadSessionResponse, error) {
		return r.conn.LoadSession(ctx, acp.LoadSessionRequest{SessionId: id, Cwd: r.job.Dir, McpServers: r.job.servers()})
	})
	return err
}

func (r *runner) replay(is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replaying = is
}

// prompt lets the agent work until it says that its turn has ended. When ctx ends, prompt
// tells the agent, and waits for a while.
func (r *runner) prompt(ctx context.Context) error {
	patient, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		_ = r.conn.Cancel(context.WithoutCancel(ctx), acp.CancelNotification{SessionId: r.session})
		close(r.stopped) // who waits for a person's answer gives up
		select {
		case <-time.After(cmp.Or(r.job.Grace, defaultGrace)):
			giveUp(context.Cause(ctx))
		case <-patient.Done():
		}
	})
	answer, err := call(patient, r, func(ctx context.Context) (acp.PromptResponse, error) {
		return r.conn.Prompt(ctx, acp.PromptRequest{SessionId: r.session, Prompt: []acp.ContentBlock{acp.TextBlock(r.job.Prompt)}})
	})
	giveUp(nil)
	if !stop() {
		<-told
	}
	if err != nil {
		return err
	}
	result := Event{Type: typeResult, StopReason: short(string(answer.StopReason), maxName), SessionID: string(r.session)}
	r.mu.Lock()
	if u := answer.Usage; u != nil || r.cost > 0 {
		result.Usage = &Usage{CostUSD: r.cost}
		if u != nil {
			result.Usage.InputTokens = int64(u.InputTokens) + int64(deref(u.CachedReadTokens)) + int64(deref(u.CachedWriteTokens))
			result.Usage.OutputTokens = int64(u.OutputTokens)
		}
	}
	r.mu.Unlock()
	r.events.add(result)
	if answer.StopReason != acp.StopReasonEndTurn {
		return ErrFailed
	}
	return nil
}

func deref(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// errorText is an error of the agent's, or of its connection, for people.
func errorText(err error) string {
	e, ok := errors.AsType[*acp.RequestError](err)
	if !ok {
		return short(err.Error(), maxText)
	}
	text := e.Message
	if data, err := json.Marshal(e.Data); err == nil && e.Data != nil {
		text += ": " + string(data)
	}
	return short(fmt.Sprintf("%s (error %d)", text, e.Code), maxText)
}

// Main is `cove-guest acp run`: a Job whose streams are the process's, and whose events
// go to file descriptor 3.
func Main(ctx context.Context, j Job, promptFile string) error {
	text, err := os.ReadFile(promptFile)
	if err != nil {
		return err
	}
	out := os.NewFile(3, "events")
	if err := setCloseOnExec(out); err != nil {
		return fmt.Errorf("file descriptor 3, for events: %w", err)
	}
	j.Prompt, j.Events, j.Noise, j.Answers = string(text), out, os.Stdout, os.Stdin
	return j.Run(ctx)
}
