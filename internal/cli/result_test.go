package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/test/covetest"
)

// TestMain exits if the program is started as a server. A verb that starts a server starts this
// program, and would run these tests again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// commandLine is set in a process of a test's that is a command line, and nothing else: its
// arguments, as JSON.
const commandLine = "COVE_TEST_COMMAND_LINE"

// beCommandLine turns this process into the command line that a test asks for, if one does.
func beCommandLine() {
	text := os.Getenv(commandLine)
	if text == "" {
		return
	}
	var args []string
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		panic(err)
	}
	os.Exit(Main(context.Background(), args, Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// asProcess is a command line in a process of its own, which runs the test that calls it.
func asProcess(t *testing.T, s *covetest.Server, args ...string) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(append([]string{"--url", s.URL, "--token", s.Token, "-s", "paint"}, args...))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), commandLine+"="+string(text))
	return cmd
}

// full is a file that takes nothing.
func full(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestLostResult: no verb ends well if its result could not be written.
func TestLostResult(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("COVE_DATA", t.TempDir())
	t.Chdir(t.TempDir())
	t.Setenv(AutostartVariable, "0")
	out := full(t)
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	lost := func(want string, args ...string) {
		t.Helper()
		var errs bytes.Buffer
		code := Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: out, Err: &errs})
		if said := errs.String(); code != exitNoSpace || !strings.Contains(said, "no space left on device") || !strings.Contains(said, want) {
			t.Errorf("%v: exit code %d: %s", args, code, said)
		}
	}
	for _, args := range []string{
		"", "--help", "--version", "help exec", "version", "version --json", "completion bash", "completion zsh", "completion fish", "completion powershell",
		"agent list", "agent list --json", "config show", "config show --json", "server status --json", "__complete cr",
	} {
		lost("", strings.Fields(args)...)
	}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		lost("the command was carried out, but its result could not be written", append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	inv := newInvocation(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	walk(newRootCommand(inv))
	for _, test := range []struct{ want, args string }{
		{"", "list"}, {"", "list --json"}, {"", "info paint"}, {"", "info paint --json"}, {"", "ping"}, {"", "ping --json"},
		{"cove token rm ", "token create one --all"}, {"cove token rm ", "token create two --all --json"}, {"", "token list"}, {"", "token list --json"},
		{"", "exec -s paint echo x"}, {"", "exec -s paint -t echo x"}, {"cove session kill ", "exec -s paint --detach true"}, {"", "session list -s paint --json"},
		{"", "policy show -s paint"}, {"", "checkpoint list -s paint --json"}, {"", "service list -s paint --json"}, {"", "url -s paint"}, {"", "job list --json"},
		{"", "create other"}, {"", "create third --json"}, {"", "rm other --json"},
		{"", "info nosuch --json"}, // its error would be the result
	} {
		lost := lost
		if strings.HasPrefix(test.args, "info nosuch") {
			lost = func(want string, args ...string) {
				var errs bytes.Buffer
				if code := Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: out, Err: &errs}); code == 0 || !strings.Contains(errs.String(), "nosuch") {
					t.Errorf("%v: exit code %d: %s", args, code, &errs)
				}
			}
		}
		lost(test.want, append([]string{"--url", s.URL, "--token", s.Token}, strings.Fields(test.args)...)...)
	}
}

// TestBrokenOutput: if the reader of its output goes away, exec ends the command before it
// ends itself.
func TestBrokenOutput(t *testing.T) {
	beCommandLine()
	s := covetest.Start(t, covetest.Options{})
	paint := s.Create("paint")
	for _, tty := range []string{"-t=false", "-t"} {
		cmd := asProcess(t, s, "exec", tty, "--", "sh", "-c", "while echo line; do :; done; exec sleep 1000000")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "line" {
			t.Errorf("%s: got %q, %v", tty, line, err)
		}
		_ = out.Close()
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != exitBrokenPipe || errs.Len() > 0 {
			t.Errorf("%s: %v, %s", tty, cmd.ProcessState, &errs)
		}
		sessions, err := paint.Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, session := range sessions {
			t.Errorf("%s: %v is still there", tty, session.Command)
		}
	}
}

// TestHangUp: a closed terminal ends a command as SIGTERM does, and under nohup does nothing.
func TestHangUp(t *testing.T) {
	beCommandLine()
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		cmd := asProcess(t, s, "proxy", "0:80") // any verb that lasts
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatalf("got %q, %v", line, err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if !cmd.ProcessState.Exited() || cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("%v: %v", sig, cmd.ProcessState)
		}
	}
	if !slices.Contains(endSignals(), os.Signal(syscall.SIGHUP)) {
		t.Error("SIGHUP does not end a command")
	}
}

// TestTerminalWithoutInput: a command in a terminal gets the end of an input that is none.
func TestTerminalWithoutInput(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	for _, test := range []struct{ flags, in, want string }{
		{"-t", "unread", ""},
		{"-it", "", ""},
		{"-it", "whole\n", "whole\r\nwhole\r\n"},
		{"-it", "half", "halfhalf"},
	} {
		var out, errs bytes.Buffer
		args := []string{"exec", test.flags, "-s", "paint", "--url", s.URL, "--token", s.Token, "cat"}
		code := Main(t.Context(), args, Streams{In: strings.NewReader(test.in), Out: &out, Err: &errs})
		got := strings.ReplaceAll(out.String(), "^D\b\b", "") // a terminal's echo of Ctrl-D
		if code != 0 || got != test.want {
			t.Errorf("%s of %q: exit code %d, got %q, want %q: %s", test.flags, test.in, code, got, test.want, &errs)
		}
	}
}

// TestQuietCreate: with -q, what makes a sprite prints nothing.
func TestQuietCreate(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	s := covetest.Start(t, covetest.Options{})
	for _, args := range [][]string{{"create", "paint", "-q"}, {"fork", "paint", "copy", "-q"}} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), append(args, "--url", s.URL, "--token", s.Token), Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		if code != 0 || out.Len()+errs.Len() > 0 {
			t.Errorf("%v: exit code %d, %q, %q", args, code, &out, &errs)
		}
	}
}

// TestBrokenOff: if an answer breaks off in the middle, the exit code is 75, and the error says so
// in words, not as EOF.
func TestBrokenOff(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for _, test := range []struct {
		args       []string
		begin      string // of the answer
		says, hint string
	}{
		{[]string{"export", "paint"}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\narchive\r\n", "the archive is cut short", "try again"},
		{[]string{"export", "paint"}, "", "the archive is cut short", "try again"},
		{[]string{"job", "gc"}, "", "the server went away in the middle", "cove job list"},
		{[]string{"list"}, "", "list sprites", "cove server start"},
		{[]string{"rm", "paint"}, "", "delete sprite paint", "cove server start"},
		{[]string{"create", "paint"}, "", "create sprite paint", "cove server start"},
		{[]string{"image", "rm", "tools:1"}, "", "the server went away in the middle", "cove image list"},
		{[]string{"image", "prune"}, "", "the server went away in the middle", "cove image list"},
		{[]string{"import", "copy"}, "", "before the whole archive was sent; no sprite was made", " copy < FILE"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, test.begin)
			_ = conn.Close()
		}))
		var errs bytes.Buffer
		code := Main(t.Context(), append(test.args, "--url", s.URL, "--token", "x"), Streams{In: endless{}, Out: io.Discard, Err: &errs})
		s.Close()
		if said := errs.String(); code != exitLost || !strings.Contains(said, test.says) || !strings.Contains(said, test.hint) || strings.Contains(said, "EOF") {
			t.Errorf("%v: exit code %d: %s", test.args, code, said)
		}
	}
}

// endless is an input without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestImportInterrupted: Ctrl-C in the middle of an archive says that nothing was made, and
// how to go on.
func TestImportInterrupted(t *testing.T) {
	err := importError(fmt.Errorf("import: %w", context.Canceled), false, "copy")
	if f := classify(err); f.exit != exitInterrupted || !strings.Contains(f.message, "no sprite was made") || !strings.Contains(f.hint, "cove import copy < FILE") {
		t.Errorf("%+v", f)
	}
	err = importError(fmt.Errorf("import: %w", context.Canceled), true, "copy")
	if f := classify(err); f.exit != exitInterrupted || !strings.Contains(f.message, "the server completes what it has begun") || !strings.Contains(f.hint, "cove list") {
		t.Errorf("%+v", f)
	}
}

// TestUseStartsNoServer: cove use with an unknown name starts no server, and notes nothing. Git
// does not show the file that cove use writes.
func TestUseStartsNoServer(t *testing.T) {
	home, data, work := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("COVE_DATA", data)
	t.Chdir(work)
	use := func(args ...string) (int, string) {
		var errs bytes.Buffer
		code := Main(t.Context(), append([]string{"use"}, args...), Streams{In: strings.NewReader(""), Out: &errs, Err: &errs})
		return code, errs.String()
	}
	if code, said := use("nosuch"); code == 0 || !strings.Contains(said, "hint: ") {
		t.Errorf("exit code %d: %s", code, said)
	}
	if entries, err := os.ReadDir(data); err != nil || len(entries) > 0 {
		t.Errorf("there is %v in the data folder, %v", entries, err)
	}
	if _, err := os.Lstat(filepath.Join(work, spriteFileName)); err == nil {
		t.Error("a sprite is noted")
	}
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	git("init", "-q")
	if err := os.Mkdir("sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{work, filepath.Join(work, "sub"), work} {
		t.Chdir(dir)
		if code, said := use("paint", "--url", s.URL, "--token", s.Token); code != 0 {
			t.Errorf("exit code %d: %s", code, said)
		}
	}
	if got := git("status", "--porcelain", "--untracked-files=all"); got != "" {
		t.Errorf("git shows %s", got)
	}
	exclude, err := os.ReadFile(filepath.Join(work, ".git/info/exclude"))
	if err != nil || strings.Count(string(exclude), "\n.sprite\n") != 1 {
		t.Errorf("the exclude file says %q, %v", exclude, err)
	}
}
