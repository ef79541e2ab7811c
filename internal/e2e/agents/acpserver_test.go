package agents

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/acp-go-sdk"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// editor is a client of `cove acp`, made with the official SDK. It would act on this
// machine, and notes each request to do so.
type editor struct {
	*acp.ClientSideConnection
	cmd *exec.Cmd
	end func() error // of its input

	mu      sync.Mutex
	asked   []string // to do here
	permits []string
	said    strings.Builder
	updates []acp.SessionUpdate
}

func (e *editor) note(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, what)
}

func (e *editor) ReadTextFile(_ context.Context, p acp.ReadTextFileRequest) (acp.ReadTextFileResponse, error) {
	e.note("read " + p.Path)
	text, err := os.ReadFile(p.Path)
	return acp.ReadTextFileResponse{Content: string(text)}, err
}

func (e *editor) WriteTextFile(_ context.Context, p acp.WriteTextFileRequest) (acp.WriteTextFileResponse, error) {
	e.note("write " + p.Path)
	return acp.WriteTextFileResponse{}, os.WriteFile(p.Path, []byte(p.Content), 0o600)
}

func (e *editor) CreateTerminal(_ context.Context, p acp.CreateTerminalRequest) (acp.CreateTerminalResponse, error) {
	e.note("run " + p.Command)
	return acp.CreateTerminalResponse{}, exec.Command(p.Command, p.Args...).Run()
}

func (e *editor) KillTerminal(context.Context, acp.KillTerminalRequest) (acp.KillTerminalResponse, error) {
	return acp.KillTerminalResponse{}, errors.New("no")
}

func (e *editor) TerminalOutput(context.Context, acp.TerminalOutputRequest) (acp.TerminalOutputResponse, error) {
	return acp.TerminalOutputResponse{}, errors.New("no")
}

func (e *editor) ReleaseTerminal(context.Context, acp.ReleaseTerminalRequest) (acp.ReleaseTerminalResponse, error) {
	return acp.ReleaseTerminalResponse{}, errors.New("no")
}

func (e *editor) WaitForTerminalExit(context.Context, acp.WaitForTerminalExitRequest) (acp.WaitForTerminalExitResponse, error) {
	return acp.WaitForTerminalExitResponse{}, errors.New("no")
}

func (e *editor) RequestPermission(_ context.Context, p acp.RequestPermissionRequest) (acp.RequestPermissionResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.permits = append(e.permits, *p.ToolCall.Title)
	once := slices.IndexFunc(p.Options, func(o acp.PermissionOption) bool { return o.Kind == acp.PermissionOptionKindAllowOnce })
	if once < 0 {
		return acp.RequestPermissionResponse{}, errors.New("there is no such option")
	}
	return acp.RequestPermissionResponse{Outcome: acp.NewRequestPermissionOutcomeSelected(p.Options[once].OptionId)}, nil
}

func (e *editor) SessionUpdate(_ context.Context, n acp.SessionNotification) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.updates = append(e.updates, n.Update)
	if c := n.Update.AgentMessageChunk; c != nil && c.Content.Text != nil {
		e.said.WriteString(c.Content.Text.Text)
	}
	return nil
}

func (e *editor) text() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.said.String()
}

// newEditor starts `cove acp` in a folder.
func newEditor(h *e2e.Host, dir string, args ...string) *editor {
	h.T.Helper()
	e := &editor{cmd: h.Command(dir, "cove", append([]string{"acp"}, args...)...)}
	e.cmd.Stderr = h.T.Output()
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		h.T.Fatal(err)
	}
	in, err := e.cmd.StdinPipe()
	if err != nil {
		h.T.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		h.T.Fatal(err)
	}
	ended := sync.OnceValue(func() error { _ = in.Close(); <-e.Done(); return e.cmd.Wait() })
	e.end = ended
	h.T.Cleanup(func() { _ = ended() })
	e.ClientSideConnection = acp.NewClientSideConnection(e, in, out)
	e.SetLogger(slog.New(slog.DiscardHandler))
	return e
}

// open greets the agent and opens a session in a folder.
func (e *editor) open(t testing.TB, cwd string) acp.InitializeResponse {
	t.Helper()
	hello, err := e.Initialize(t.Context(), acp.InitializeRequest{
		ProtocolVersion: 1, ClientCapabilities: acp.ClientCapabilities{Fs: acp.FileSystemCapabilities{ReadTextFile: true, WriteTextFile: true}, Terminal: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := acp.McpServer{Stdio: &acp.McpServerStdio{Name: "db", Command: "/usr/bin/db", Args: []string{}, Env: []acp.EnvVariable{{Name: "KEY", Value: "secret"}}}}
	s, err := e.NewSession(t.Context(), acp.NewSessionRequest{Cwd: cwd, McpServers: []acp.McpServer{server}})
	if err != nil || s.SessionId == "" {
		t.Fatalf("a session: %+v, %v", s, err)
	}
	return hello
}

func (e *editor) prompt(ctx context.Context, blocks ...acp.ContentBlock) (acp.StopReason, error) {
	r, err := e.Prompt(ctx, acp.PromptRequest{SessionId: "the-session", Prompt: blocks})
	return r.StopReason, err
}

// TestACPEditor: an agent that an editor talks with works in the sprite. This machine's
// files stay as they are, even if the sandbox ends in the middle of a turn.
func TestACPEditor(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	_, agent := scripted(h)
	for name, text := range map[string]string{"site/greeting.txt": "hello\n", "canary": "untouched\n", "site/canary": "untouched\n"} {
		h.Write(name, text)
	}
	site, canary := h.Path("site"), h.Path("canary")
	h.Run("", "cove", "create", "paint")
	h.Run("", "cove", "cp", agent, "paint:agent")
	flags := []string{"-s", "paint", "--agent", "acp", "--agent-command", "$HOME/agent"}
	if out, code := h.Try("site", "cove", append([]string{"acp"}, flags...)...); code != 1 || !strings.Contains(out, "cove sync push -s paint "+site) {
		t.Errorf("without the folder: %d, %s", code, out)
	}
	h.Run("", "cove", "sync", "push", "-s", "paint", site, "/home/sprite/code")

	e := newEditor(h, "", append(flags, "--project", site, "--dir", "code")...)
	hello := e.open(t, site)
	if len(hello.AuthMethods) > 0 || hello.AgentCapabilities.McpCapabilities.Http || !hello.AgentCapabilities.LoadSession {
		t.Errorf("it says %+v", hello)
	}
	stop, err := e.prompt(t.Context(), acp.TextBlock(scriptedPlan("can", "read greeting.txt", "write greeting.txt changed", "write "+canary+" inside", "run hostname; pwd; exit 3",
		"ask to paint", "hostread /etc/hostname")), acp.ResourceLinkBlock("x", "file://"+site+"/x"))
	if err != nil || stop != acp.StopReasonEndTurn {
		t.Errorf("the turn ended with %s, %v", stop, err)
	}
	for _, want := range []string{"fs true, terminal true\n", "read: hello\n", "run: paint\n/home/sprite/code, code 3\n", "ask: selected yes\n", "extension: ", "Method not found", "link file:///home/sprite/code/x\n"} {
		if !strings.Contains(e.text(), want) {
			t.Errorf("it did not say %q:\n%s", want, e.text())
		}
	}
	e.looked(t, site)
	if got := h.Run("", "cove", "exec", "-s", "paint", "cat", "/home/sprite/code/greeting.txt", canary); got != "changed\ninside\n" {
		t.Errorf("in the sprite there is %q", got)
	}
	untouched := func() {
		t.Helper()
		if got := h.Run("", "cat", canary, site+"/canary", site+"/greeting.txt"); got != "untouched\nuntouched\nhello\n" {
			t.Errorf("on this machine there is %q", got)
		}
		if len(e.asked) > 0 {
			t.Errorf("the editor was asked to %v", e.asked)
		}
	}
	untouched()
	if _, err := e.NewSession(t.Context(), acp.NewSessionRequest{Cwd: filepath.Dir(site), McpServers: []acp.McpServer{}}); err == nil || !strings.Contains(err.Error(), "--project") {
		t.Errorf("a session in another folder: %v", err)
	}
	editorCancels(h, e)
	editorEnds(h, flags, site)

	// The sandbox ends in the middle.
	ended := make(chan error, 1)
	go func() {
		_, err := e.prompt(t.Context(), acp.TextBlock(scriptedPlan("say Waiting.", "hang")))
		ended <- err
	}()
	e2e.Await(t, "the turn's beginning", func() bool { return strings.Contains(e.text(), "Waiting.\n") })
	h.Run("", "cove", "rm", "paint", "--force")
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "nothing was done on this machine") || !strings.Contains(err.Error(), "sandbox_gone") {
			t.Errorf("the turn ended with %v", err)
		}
	case <-time.After(e2e.LastResort):
		t.Fatal("the turn does not end")
	}
	if _, err := e.prompt(t.Context(), acp.TextBlock(scriptedPlan("write canary more"))); err == nil || !strings.Contains(err.Error(), "sandbox_gone") {
		t.Errorf("a turn without a sandbox: %v", err)
	}
	untouched()
	if exit, ok := errors.AsType[*exec.ExitError](e.end()); !ok || exit.ExitCode() != 75 {
		t.Errorf("cove acp ended with %v", exit)
	}
}

// looked checks the tool calls that the editor is shown: they have its own paths, and the
// output of terminals that it does not know.
func (e *editor) looked(t *testing.T, site string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	var paths []string
	output := ""
	for _, u := range e.updates {
		if c := u.ToolCall; c != nil {
			for _, l := range c.Locations {
				paths = append(paths, l.Path)
			}
		}
		if c := u.ToolCallUpdate; c != nil {
			for _, part := range c.Content {
				if part.Terminal != nil {
					t.Errorf("a terminal that the editor does not have: %+v", part.Terminal)
				}
				if part.Content != nil && part.Content.Content.Text != nil {
					output += part.Content.Content.Text.Text
				}
			}
		}
	}
	if want := site + "/greeting.txt"; len(paths) != 3 || paths[0] != want || paths[1] != want || !strings.HasPrefix(paths[2], "/sprites/paint/") {
		t.Errorf("the paths: %q", paths)
	}
	if !strings.Contains(output, "paint\n/home/sprite/code\n") {
		t.Errorf("the output: %q", output)
	}
	if !slices.Equal(e.permits, []string{"to paint"}) {
		t.Errorf("permissions: %q", e.permits)
	}
}

// editorEnds: once the editor has ended, its agent is gone.
func editorEnds(h *e2e.Host, flags []string, site string) {
	t := h.T
	t.Helper()
	agents := func() string {
		out, _ := h.Try("", "cove", "exec", "-s", "paint", "pgrep", "-cx", "agent")
		return strings.TrimSpace(out)
	}
	e := newEditor(h, "site", append(flags, "--dir", "code")...)
	e.open(t, site)
	if n := agents(); n != "2" {
		t.Errorf("there are %s agents", n)
	}
	if err := e.end(); err != nil {
		t.Errorf("cove acp ended with %v", err)
	}
	if n := agents(); n != "1" {
		t.Errorf("there are %s agents left", n)
	}
}

// editorCancels: a turn that the editor cancels ends, and so do its commands.
func editorCancels(h *e2e.Host, e *editor) {
	t := h.T
	t.Helper()
	ended := make(chan acp.StopReason, 1)
	go func() {
		stop, _ := e.prompt(t.Context(), acp.TextBlock(scriptedPlan("say Hanging.", "hang"))) // the reason says it
		ended <- stop
	}()
	e2e.Await(t, "the turn's beginning", func() bool { return strings.Contains(e.text(), "Hanging.\n") })
	if err := e.Cancel(t.Context(), acp.CancelNotification{SessionId: "the-session"}); err != nil {
		t.Error(err)
	}
	select {
	case stop := <-ended:
		if stop != acp.StopReasonCancelled {
			t.Errorf("a turn that was cancelled ended with %q", stop)
		}
	case <-time.After(e2e.LastResort):
		t.Fatal("a turn that was cancelled does not end")
	}
}
