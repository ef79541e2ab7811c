// Command agent is an agent that speaks ACP and has a script for a model: the lines of
// its prompt that begin with "! " say what it does. It ends at a line that it can't carry out.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	acp "github.com/coder/acp-go-sdk"
)

func main() {
	// An agent that has to be made to end.
	if os.Getenv("STUBBORN") != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	a := &agent{}
	out := &whole{}
	a.out = out
	a.conn = acp.NewAgentSideConnection(a, out, os.Stdin)
	a.conn.SetLogger(slog.New(slog.DiscardHandler))
	<-a.conn.Done()
	if os.Getenv("STUBBORN") != "" {
		select {}
	}
}

// whole writes whole lines, the SDK's and the script's own.
type whole struct{ mu sync.Mutex }

func (w *whole) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return os.Stdout.Write(p)
}

type agent struct {
	conn  *acp.AgentSideConnection
	out   *whole
	cwd   string
	calls int
	can   acp.ClientCapabilities

	mu     sync.Mutex
	cancel context.CancelFunc // of the turn
}

func (a *agent) Authenticate(context.Context, acp.AuthenticateRequest) (acp.AuthenticateResponse, error) {
	return acp.AuthenticateResponse{}, nil
}

func (a *agent) Initialize(_ context.Context, p acp.InitializeRequest) (acp.InitializeResponse, error) {
	a.can = p.ClientCapabilities
	if os.Getenv("MUTE") != "" {
		select {}
	}
	return acp.InitializeResponse{
		ProtocolVersion: acp.ProtocolVersionNumber, AgentInfo: &acp.Implementation{Name: "scripted", Version: "1"},
		AgentCapabilities: acp.AgentCapabilities{LoadSession: true, McpCapabilities: acp.McpCapabilities{Http: true}},
		AuthMethods: []acp.AuthMethod{{Agent: &acp.AuthMethodAgent{Id: "login", Name: "Log in", Meta: map[string]any{
			"terminal-auth": map[string]any{"command": "/usr/bin/id"},
		}}}},
	}, nil
}

func (a *agent) Cancel(context.Context, acp.CancelNotification) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel != nil {
		a.cancel()
	}
	return nil
}

func (a *agent) CloseSession(context.Context, acp.CloseSessionRequest) (acp.CloseSessionResponse, error) {
	return acp.CloseSessionResponse{}, nil
}

func (a *agent) ListSessions(context.Context, acp.ListSessionsRequest) (acp.ListSessionsResponse, error) {
	return acp.ListSessionsResponse{}, nil
}

func (a *agent) ResumeSession(context.Context, acp.ResumeSessionRequest) (acp.ResumeSessionResponse, error) {
	return acp.ResumeSessionResponse{}, errors.New("no")
}

func (a *agent) SetSessionConfigOption(context.Context, acp.SetSessionConfigOptionRequest) (acp.SetSessionConfigOptionResponse, error) {
	return acp.SetSessionConfigOptionResponse{}, errors.New("no")
}

func (a *agent) SetSessionMode(context.Context, acp.SetSessionModeRequest) (acp.SetSessionModeResponse, error) {
	return acp.SetSessionModeResponse{}, nil
}

func (a *agent) NewSession(_ context.Context, p acp.NewSessionRequest) (acp.NewSessionResponse, error) {
	for _, s := range p.McpServers {
		return acp.NewSessionResponse{}, fmt.Errorf("I was given the MCP server %s, %s", s.Stdio.Name, s.Stdio.Command)
	}
	a.cwd = p.Cwd
	return acp.NewSessionResponse{SessionId: "the-session"}, nil
}

func (a *agent) LoadSession(ctx context.Context, p acp.LoadSessionRequest) (acp.LoadSessionResponse, error) {
	if p.SessionId != "the-session" {
		return acp.LoadSessionResponse{}, fmt.Errorf("there is no session %s", p.SessionId)
	}
	a.cwd = p.Cwd
	for range 3000 { // more than the SDK queues
		if err := a.say(ctx, "said before\n"); err != nil {
			return acp.LoadSessionResponse{}, err
		}
	}
	return acp.LoadSessionResponse{}, nil
}

func (a *agent) say(ctx context.Context, text string) error {
	return a.update(ctx, acp.UpdateAgentMessageText(text))
}

func (a *agent) update(ctx context.Context, u acp.SessionUpdate) error {
	return a.conn.SessionUpdate(ctx, acp.SessionNotification{SessionId: "the-session", Update: u})
}

func (a *agent) Prompt(ctx context.Context, p acp.PromptRequest) (acp.PromptResponse, error) {
	text := ""
	for _, b := range p.Prompt {
		switch {
		case b.Text != nil:
			text += b.Text.Text
		case b.ResourceLink != nil:
			text += "! say link " + b.ResourceLink.Uri + "\n"
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	a.cancel = cancel
	a.mu.Unlock()
	_ = a.say(ctx, fmt.Sprintf("A prompt of %d bytes.\n", len(text)))
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "! "); ok {
			verb, rest, _ := strings.Cut(strings.TrimSpace(command), " ")
			if stop, err := a.do(ctx, verb, rest); stop != "" || err != nil {
				return acp.PromptResponse{StopReason: stop}, err
			}
		}
		if ctx.Err() != nil {
			return acp.PromptResponse{StopReason: acp.StopReasonCancelled}, nil
		}
	}
	return acp.PromptResponse{StopReason: acp.StopReasonEndTurn, Usage: &acp.Usage{InputTokens: 100, OutputTokens: 20, TotalTokens: 120}}, nil
}

// do carries out one line. A stop reason ends the turn.
func (a *agent) do(ctx context.Context, verb, rest string) (acp.StopReason, error) {
	switch verb {
	case "say":
		return "", a.say(ctx, rest+"\n")
	case "read", "write", "run", "ask", "askbare": // the last tells what it is about before it asks
		return "", a.tool(ctx, verb, rest)
	case "stop":
		return acp.StopReason(rest), nil
	case "fail":
		return "", errors.New(rest)
	case "crash":
		os.Exit(7)
	case "hang":
		<-ctx.Done()
	case "deaf": // to a cancel
		time.Sleep(time.Hour)
	case "garbage":
		fmt.Fprint(a.out, "Loading model...\n{\"half\": \n[1,2]\n\x00\xff\x1b[31mred\n{}\n")
	case "giant":
		n, err := strconv.Atoi(rest)
		if err != nil {
			return "", err
		}
		return "", a.say(ctx, strings.Repeat("g", n)+"\n")
	case "giantask":
		err := a.tool(ctx, "write", "big.txt "+strings.Repeat("b", 9<<20))
		if err == nil {
			err = errors.New("no error")
		}
		return "", a.say(ctx, "giant request: "+err.Error()+"\n")
	case "giantanswer":
		return acp.StopReason(strings.Repeat("x", 9<<20)), nil
	case "flood":
		for i := range 5000 {
			if err := a.say(ctx, fmt.Sprintf("flood %d\n", i)); err != nil {
				return "", err
			}
			_ = a.conn.NotifyExtension(ctx, "_unknown", nil)
		}
		return "", nil
	case "unknown":
		_, err := fmt.Fprintf(a.out, `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"the-session","update":{"sessionUpdate":"hologram","x":[1]}}}`+"\n")
		return "", err
	case "hostread": // a method that the other side must not serve
		_, err := a.conn.CallExtension(ctx, "_host/read", map[string]string{"path": rest})
		return "", a.say(ctx, fmt.Sprintf("extension: %v\n", err))
	case "can":
		return "", a.say(ctx, fmt.Sprintf("fs %v, terminal %v\n", a.can.Fs.ReadTextFile && a.can.Fs.WriteTextFile, a.can.Terminal))
	case "sleep":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return "", err
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
		return "", nil
	default:
		return "", fmt.Errorf("the script says %q", verb)
	}
	return "", nil
}

// tool tells of a tool, and uses it.
func (a *agent) tool(ctx context.Context, verb, rest string) error {
	a.calls++
	id := acp.ToolCallId("call-" + strconv.Itoa(a.calls))
	title := verb + " " + rest[:min(len(rest), 60)]
	var opts []acp.ToolCallStartOpt
	if verb == "askbare" {
		opts = append(opts, acp.WithStartRawInput(map[string]any{"command": "rm -r build"}))
	} else if verb != "run" && verb != "ask" {
		path, _, _ := strings.Cut(rest, " ")
		opts = append(opts, acp.WithStartLocations([]acp.ToolCallLocation{{Path: a.path(path)}}))
	}
	if err := a.update(ctx, acp.StartToolCall(id, title, append(opts, acp.WithStartKind(acp.ToolKindExecute), acp.WithStartStatus(acp.ToolCallStatusInProgress))...)); err != nil {
		return err
	}
	text, err := a.use(ctx, id, verb, rest)
	status := acp.ToolCallStatusCompleted
	if err != nil {
		status, text = acp.ToolCallStatusFailed, err.Error()
	}
	update := []acp.ToolCallUpdateOpt{acp.WithUpdateStatus(status)}
	if verb != "run" || err != nil {
		update = append(update, acp.WithUpdateContent([]acp.ToolCallContent{acp.ToolContent(acp.TextBlock(text))}))
	}
	if err := a.update(ctx, acp.UpdateToolCall(id, update...)); err != nil {
		return err
	}
	if verb == "write" {
		return err
	}
	return a.say(ctx, verb+": "+text+"\n")
}

func (a *agent) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(a.cwd, name)
}

func (a *agent) use(ctx context.Context, id acp.ToolCallId, verb, rest string) (string, error) {
	name, text, _ := strings.Cut(rest, " ")
	switch verb {
	case "read":
		r, err := a.conn.ReadTextFile(ctx, acp.ReadTextFileRequest{SessionId: "the-session", Path: a.path(name)})
		return r.Content, err
	case "write":
		_, err := a.conn.WriteTextFile(ctx, acp.WriteTextFileRequest{SessionId: "the-session", Path: a.path(name), Content: text + "\n"})
		return "written", err
	case "run":
		return a.run(ctx, id, rest)
	}
	about := acp.ToolCallUpdate{ToolCallId: id}
	if verb == "ask" {
		about.Title, about.RawInput = &rest, map[string]any{"command": "rm -rf \x1b[2J/"}
	}
	r, err := a.conn.RequestPermission(ctx, acp.RequestPermissionRequest{
		SessionId: "the-session",
		ToolCall:  about,
		Options: []acp.PermissionOption{
			{OptionId: "forever", Name: "Always", Kind: acp.PermissionOptionKindAllowAlways},
			{OptionId: "yes", Name: "Yes\x1b[1m", Kind: acp.PermissionOptionKindAllowOnce},
			{OptionId: "no", Name: "No", Kind: acp.PermissionOptionKindRejectOnce},
		},
	})
	switch {
	case err != nil:
		return "", err
	case r.Outcome.Selected != nil:
		return "selected " + string(r.Outcome.Selected.OptionId), nil
	}
	return "cancelled", nil
}

// run has the client run a command in a terminal, which the tool call shows.
func (a *agent) run(ctx context.Context, id acp.ToolCallId, command string) (string, error) {
	t, err := a.conn.CreateTerminal(ctx, acp.CreateTerminalRequest{
		SessionId: "the-session", Command: "sh", Args: []string{"-c", command}, Cwd: &a.cwd, Env: []acp.EnvVariable{{Name: "GREETING", Value: "hello"}},
	})
	if err != nil {
		return "", err
	}
	if err := a.update(ctx, acp.UpdateToolCall(id, acp.WithUpdateContent([]acp.ToolCallContent{acp.ToolTerminalRef(t.TerminalId)}))); err != nil {
		return "", err
	}
	end, err := a.conn.WaitForTerminalExit(ctx, acp.WaitForTerminalExitRequest{SessionId: "the-session", TerminalId: t.TerminalId})
	if err != nil {
		return "", err
	}
	out, err := a.conn.TerminalOutput(ctx, acp.TerminalOutputRequest{SessionId: "the-session", TerminalId: t.TerminalId})
	if err != nil {
		return "", err
	}
	if _, err := a.conn.ReleaseTerminal(ctx, acp.ReleaseTerminalRequest{SessionId: "the-session", TerminalId: t.TerminalId}); err != nil {
		return "", err
	}
	if end.ExitCode == nil {
		return fmt.Sprintf("%s, signal %v", out.Output, *end.Signal), nil
	}
	return fmt.Sprintf("%s, code %d", strings.TrimSpace(out.Output), *end.ExitCode), nil
}
