package agents

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/tools"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// toolCode is the code of a call's error; empty: it succeeded.
func toolCode(err error) string {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e.Code
	}
	if err != nil {
		return "untyped: " + err.Error()
	}
	return ""
}

// TestTools tries the tools of a model in a real sandbox: from Go, by cove tool, and by
// MCP.
func TestTools(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	t.Run("roles", func(t *testing.T) { toolRoles(h.On(t)) })
	t.Run("files", func(t *testing.T) { toolFiles(h.On(t)) })
	t.Run("large", func(t *testing.T) { toolLarge(h.On(t)) })
	t.Run("killed", func(t *testing.T) { toolKilled(h.On(t)) })
	t.Run("timeout", func(t *testing.T) { toolTimeout(h.On(t)) })
	t.Run("cli", func(t *testing.T) { toolCLI(h.On(t)) })
	t.Run("mcp", func(t *testing.T) { mcpStdio(h.On(t)) })
	t.Run("gone", func(t *testing.T) { toolGone(h.On(t)) })
}

// toolRoles: P1: tools that the role does not name are denied inside the sandbox,
// whatever the caller believes.
func toolRoles(h *e2e.Host) {
	t := h.T
	for _, test := range []struct{ roles, allowed []string }{
		{[]string{tools.ReadOnly}, []string{"Glob", "Grep", "Read"}},
		{[]string{tools.EditOnly}, []string{"Edit", "Glob", "Grep", "Read", "Write"}},
		{[]string{tools.Full, tools.ReadOnly}, []string{"Glob", "Grep", "Read"}},
		{[]string{"Read,Bash"}, []string{"Bash", "Read"}},
		{[]string{"administrator"}, []string{}},
		{nil, []string{}},
	} {
		s := h.ToolSession(t.Context(), "paint", "/tmp", test.roles...)
		if len(s.Tools) != len(test.allowed) || !slices.Equal(append([]string{}, s.Tools...), test.allowed) || s.Dir != "/tmp" {
			t.Errorf("%v: the sprite offers %v in %s", test.roles, s.Tools, s.Dir)
		}
		for tool, input := range map[string]string{"Bash": `{"command":"touch /tmp/ran"}`, "Write": `{"file_path":"/tmp/written","content":""}`, "Read": `{"file_path":"/etc/passwd"}`, "Task": `{}`} {
			_, err := s.Call(t.Context(), tool, json.RawMessage(input))
			if want := slices.Contains(test.allowed, tool); want && err != nil || !want && toolCode(err) != tools.CodeDenied {
				t.Errorf("%v: %s: got %v, allowed: %v", test.roles, tool, err, want)
			}
		}
		want := ""
		for _, file := range []struct{ name, tool string }{{"/tmp/ran", "Bash"}, {"/tmp/written", "Write"}} {
			if slices.Contains(test.allowed, file.tool) {
				want += file.name + "\n"
			}
		}
		if got := h.Run("", "cove", "exec", "-s", "paint", "sh", "-c", "ls -d /tmp/ran /tmp/written 2>/dev/null; rm -f /tmp/ran /tmp/written"); got != want {
			t.Errorf("%v: it made %q, want %q", test.roles, got, want)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%v: close: %v", test.roles, err)
		}
	}
}

// toolFiles: the tools act as the sprite's user, on the files that its kernel shows.
func toolFiles(h *e2e.Host) {
	t := h.T
	s := h.ToolSession(t.Context(), "paint", "", tools.Full)
	if r := e2e.BashIn(t, s, `{"command":"mkfifo pipe && mkdir d && echo needle >d/f && ln -s /etc/shadow link && chmod 000 d/f && whoami"}`); r.Stdout.Text != "sprite\n" {
		t.Fatalf("got %+v", r)
	}
	for _, test := range []struct{ tool, input, code string }{
		{"Read", `{"file_path":"/etc/shadow"}`, tools.CodePermission},
		{"Read", `{"file_path":"link"}`, tools.CodePermission},
		{"Read", `{"file_path":"d/f"}`, tools.CodePermission},
		{"Read", `{"file_path":"pipe"}`, tools.CodeNotRegular},
		{"Read", `{"file_path":"none"}`, tools.CodeNotFound},
		{"Read", `{"file_path":"/proc/self/status"}`, ""},
		{"Write", `{"file_path":"/etc/passwd","content":"x"}`, tools.CodePermission},
		{"Write", `{"file_path":"/etc/new","content":"x"}`, tools.CodePermission},
		{"Edit", `{"file_path":"d/f","old_string":"needle","new_string":"x"}`, tools.CodePermission},
		{"Write", `{"file_path":"a/b/c","content":"needle","create_parents":true}`, ""},
		{"Edit", `{"file_path":"a/b/c","old_string":"needle","new_string":"$&"}`, ""},
	} {
		if _, err := s.Call(t.Context(), test.tool, json.RawMessage(test.input)); toolCode(err) != test.code {
			t.Errorf("%s %s: got %v, want %q", test.tool, test.input, err, test.code)
		}
	}
	r, err := s.Call(t.Context(), "Grep", json.RawMessage(`{"pattern":"$&","literal":true,"output_mode":"content"}`))
	if err != nil || r.Text() != "a/b/c:1:$&\n[1 match in 1 file; 1 could not be read]" {
		t.Errorf("got %v, %v", r, err)
	}
	// Many calls at once, in one session.
	type answered struct {
		n   int
		err error
	}
	answers := make(chan answered)
	for n := range 20 {
		go func() {
			_, err := s.Call(t.Context(), "Write", json.RawMessage(fmt.Sprintf(`{"file_path":"many/%d","content":"%d","create_parents":true}`, n, n)))
			answers <- answered{n, err}
		}()
	}
	for range 20 {
		if a := <-answers; a.err != nil {
			t.Errorf("%d: %v", a.n, a.err)
		}
	}
	if r, err := s.Call(t.Context(), "Glob", json.RawMessage(`{"pattern":"many/*"}`)); err != nil || strings.Count(r.Text(), "many/") != 20 {
		t.Errorf("got %v, %v", r, err)
	}
}

// toolLarge: F3: 50 MB are written unchanged, under names that a shell would split.
func toolLarge(h *e2e.Host) {
	t := h.T
	s := h.ToolSession(t.Context(), "paint", "/tmp", tools.EditOnly)
	noise := make([]byte, 36<<20)
	_, _ = rand.Read(noise)
	content := base64.StdEncoding.EncodeToString(noise) + "\r\n🦊$&"
	write := func(name, content string) {
		t.Helper()
		input, err := json.Marshal(tools.WriteInput{FilePath: name, Content: content, CreateParents: true})
		if err == nil {
			_, err = s.Call(t.Context(), "Write", input)
		}
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	write("large", content)
	if got, want := h.Run("", "cove", "exec", "-s", "paint", "sh", "-c", "sha256sum </tmp/large; rm /tmp/large"), fmt.Sprintf("%x  -\n", sha256.Sum256([]byte(content))); got != want {
		t.Errorf("of %d bytes the hash is %s, want %s", len(content), got, want)
	}
	names := []string{"a b", "it's", `say "x"`, "a\nb", "$(touch evil)", "-rf", "é世界🦊", "*", "`id`;id"}
	for _, name := range names {
		write("names/"+name, name)
	}
	slices.Sort(names)
	if got := h.Run("", "cove", "exec", "-s", "paint", "--dir", "/tmp/names", "python3", "-c", `import os,sys
for n in sorted(os.listdir(b"."),): sys.stdout.buffer.write(n + (b"" if open(n,"rb").read() == n else b" differs") + b"\0")`); got != strings.Join(names, "\x00")+"\x00" {
		t.Errorf("got %q, want %q", got, names)
	}
}

// killWriter kills the tools as soon as there is a file beside the one in its folder:
// the new content on its way.
const killWriter = `import os, time
def command(pid):
    try: return open("/proc/" + pid + "/cmdline", "rb").read()
    except OSError: return b""
serving = [int(p) for p in os.listdir("/proc") if p.isdigit() and b"\0tool\0serve\0" in command(p)]
print("ready", flush=True)
while os.listdir(".") == ["f"] and os.path.getsize("f") == 3: time.sleep(0.001)
for pid in serving: os.kill(pid, 9)`

// toolKilled: F4: the tools are killed with -9 in the middle of a write. The file is as
// before. If a write ends before it can be killed, the test tries again.
func toolKilled(h *e2e.Host) {
	t := h.T
	const big = 16 << 20
	h.Run("", "cove", "exec", "-s", "paint", "sh", "-c", "mkdir /tmp/w; printf old >/tmp/w/f; chmod 600 /tmp/w/f")
	input, err := json.Marshal(tools.WriteInput{FilePath: "f", Content: strings.Repeat("n", big)})
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	for range 20 {
		s := h.ToolSession(t.Context(), "paint", "/tmp/w", tools.EditOnly)
		killer := h.Command("", "cove", "exec", "-s", "paint", "--timeout", "10m", "--dir", "/tmp/w", "python3", "-c", killWriter)
		out, err := killer.StdoutPipe()
		if err := errors.Join(err, killer.Start()); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		_, callErr := s.Call(t.Context(), "Write", input)
		if err := killer.Wait(); err != nil {
			t.Fatal(err)
		}
		got := h.Run("", "cove", "exec", "-s", "paint", "--dir", "/tmp/w", "sh", "-c", "stat -c '%s %a' f; rm -f .cove-*")
		if killed = callErr != nil && got == "3 600\n"; killed {
			break
		}
		if got != fmt.Sprint(big, " 600\n") {
			t.Fatalf("the call came to %v, and the file is %q: neither the old nor the new", callErr, got)
		}
		h.Run("", "cove", "exec", "-s", "paint", "sh", "-c", "printf old >/tmp/w/f")
	}
	if !killed {
		t.Error("no write was killed in the middle")
	}
}

// toolTimeout: E5, E6: after a timeout or a cancellation no process of the command is
// left, not even under sudo or in another session.
func toolTimeout(h *e2e.Host) {
	t := h.T
	need.Program(t, "sudo", "sudo") // the base has this machine's
	s := h.ToolSession(t.Context(), "paint", "", tools.Full)
	running := func() string {
		out, _ := h.Try("", "cove", "exec", "-s", "paint", "pgrep", "-af", "4[2]4[2]")
		return out
	}
	const tree = `trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 4242; sleep 4242' &); sudo sh -c 'trap \"\" TERM; sleep 4242; sleep 4242' & echo begun; sleep 4242; sleep 4242`
	e2e.LongEnough(t, 800*time.Millisecond, func(limit time.Duration) bool {
		r := e2e.BashIn(t, s, fmt.Sprintf(`{"command":"%s","timeout_ms":%d}`, tree, limit.Milliseconds()))
		if !r.TimedOut || r.Survivors || r.Stdout.Text != "begun\n" && r.Stdout.Text != "" {
			t.Errorf("got %+v", r)
		}
		if out := running(); out != "" {
			t.Errorf("left after the timeout:\n%s", out)
		}
		return r.Stdout.Text != ""
	})
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan struct{})
	go func() {
		<-seen
		cancel()
	}()
	_, err := s.CallProgress(ctx, "Bash", json.RawMessage(`{"command":"(setsid sleep 4242 &); sleep 4242 & echo begun; sleep 4242"}`), func(p tools.Progress) {
		if p.Line == "begun" && ctx.Err() == nil {
			select {
			case seen <- struct{}{}:
			default:
			}
		}
	})
	if toolCode(err) != tools.CodeCancelled || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if out := running(); out != "" {
		t.Errorf("left after the call was cancelled:\n%s", out)
	}
	if r := e2e.BashIn(t, s, `{"command":"sleep 4242","run_in_background":true}`); r.BackgroundID == "" || running() == "" {
		t.Errorf("got %+v, and this runs: %q", r, running())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if out := running(); out != "" {
		t.Errorf("left after the session's end:\n%s", out)
	}
}

// toolCLI: cove tool.
func toolCLI(h *e2e.Host) {
	t := h.T
	h.Write("input.json", `{"file_path":"from-stdin","content":"`+strings.Repeat("x", 200_000)+`"}`)
	out := h.Run("", "sh", "-c", "cove tool call -s paint Write - <input.json")
	if !strings.HasPrefix(out, "[created from-stdin: 200000 bytes, sha256 ") {
		t.Errorf("got %q", out)
	}
	if out := h.Run("", "cove", "tool", "call", "-s", "paint", "--dir", "/etc", "--json", "Grep", `{"pattern":"^sprite:","path":"passwd","output_mode":"count"}`); e2e.JSONField(t, out, "tool") != "Grep" || !strings.Contains(out, `"matches": 1`) {
		t.Errorf("got %s", out)
	}
	for _, test := range []struct {
		code int
		says string
		args []string
	}{
		{1, "does not allow Bash", []string{"--role", "read-only", "Bash", `{"command":"true"}`}},
		{1, "does not allow Bash", []string{"--role", "full", "--role", "edit", "Bash", `{"command":"true"}`}},
		{1, "allows no tool", []string{"--role", "nobody", "Read", `{"file_path":"/etc/passwd"}`}},
		{1, "no such file", []string{"Read", `{"file_path":"none"}`}},
		{2, `no field "path"`, []string{"Read", `{"path":"none"}`}},
		{2, "no JSON", []string{"Read", `nonsense`}},
		{2, "cove exec -s paint --detach bash -c 'sleep 9'", []string{"Bash", `{"command":"sleep 9","run_in_background":true}`}},
		{0, "still ran, and was ended with this call]", []string{"Bash", `{"command":"setsid sleep 4343 & echo begun"}`}},
		{0, "cove exec -s paint --detach bash -c 'setsid sleep 4343'", []string{"Bash", `{"command":"setsid sleep 4343 &"}`}},
		{1, "is no folder", []string{"--dir", "/etc/passwd", "Read", `{"file_path":"x"}`}},
		{0, "[exit code 7 after", []string{"Bash", `{"command":"exit 7"}`}},
	} {
		if out, code := h.Try("", "cove", append([]string{"tool", "call", "-s", "paint"}, test.args...)...); code != test.code || !strings.Contains(out, test.says) {
			t.Errorf("%v: code %d, %s", test.args, code, out)
		}
	}
	if out, code := h.Try("", "cove", "tool", "call", "-s", "pint", "Read", `{"file_path":"x"}`); code != 1 || !strings.Contains(out, "there is no sprite named pint") || !strings.Contains(out, "hint: ") {
		t.Errorf("a name that was mistyped: code %d, %s", code, out)
	}
	if out, _ := h.Try("", "cove", "exec", "-s", "paint", "pgrep", "-af", "4[3]43"); out != "" {
		t.Errorf("left after its call:\n%s", out)
	}
	if out := h.Run("", "cove", "tool", "list", "--role", "read-only"); strings.Contains(out, "Bash") || !strings.Contains(out, "Grep") {
		t.Errorf("got %s", out)
	}
}

// toolGone: F9: the sandbox dies, or the sprite is removed, in the middle of a call.
// That is an error, and nothing is done here instead.
func toolGone(h *e2e.Host) {
	t := h.T
	canary := filepath.Join(h.Home, "canary")
	if err := os.WriteFile(canary, []byte("untouched"), 0o666); err != nil {
		t.Fatal(err)
	}
	dead := h.ToolSession(t.Context(), "paint", "", tools.Full)
	goneDuring(h, dead, func() {
		st, err := shim.ReadState(filepath.Join(h.Data, "run", e2e.JSONField(t, h.Run("", "cove", "info", "paint", "--json"), "id")))
		if err != nil {
			t.Fatal(err)
		}
		e2e.SignalAll(t, syscall.SIGKILL, st.PID)
	})
	// Another session boots the sprite again. The dead one stays dead. At the sandbox's death, a
	// caller may be told that it can't be reached.
	e2e.Await(t, "the next sandbox", func() bool {
		_, code := h.Try("", "cove", "exec", "-s", "paint", "true")
		return code == 0
	})
	s := h.ToolSession(t.Context(), "paint", "", tools.Full)
	if _, err := dead.Call(t.Context(), "Read", json.RawMessage(`{"file_path":"/etc/passwd"}`)); toolCode(err) != tools.CodeSandboxGone {
		t.Errorf("the session of a dead sandbox: got %v", err)
	}
	goneDuring(h, s, func() { h.Run("", "cove", "rm", "--force", "paint") })
	for tool, input := range map[string]string{
		"Bash":  `{"command":"echo no >` + canary + `"}`,
		"Write": `{"file_path":"` + canary + `","content":"no"}`,
		"Edit":  `{"file_path":"` + canary + `","old_string":"un","new_string":""}`,
		"Read":  `{"file_path":"` + canary + `"}`,
	} {
		if _, err := s.Call(t.Context(), tool, json.RawMessage(input)); toolCode(err) != tools.CodeSandboxGone {
			t.Errorf("%s afterwards: got %v", tool, err)
		}
	}
	if _, err := tools.Open(t.Context(), h.Client().Sprite("paint"), "", tools.Full); toolCode(err) != tools.CodeSandboxGone {
		t.Errorf("opened again: got %v", err)
	}
	if text, err := os.ReadFile(canary); err != nil || string(text) != "untouched" {
		t.Errorf("the canary is %q, %v", text, err)
	}
}

// goneDuring ends the sandbox in the middle of a call, and checks the error.
func goneDuring(h *e2e.Host, s *tools.Session, end func()) {
	t := h.T
	t.Helper()
	began := make(chan struct{}, 100)
	ended := make(chan error, 1)
	go func() {
		_, err := s.CallProgress(t.Context(), "Bash", json.RawMessage(`{"command":"sleep 6000"}`), func(tools.Progress) { began <- struct{}{} })
		ended <- err
	}()
	<-began
	end()
	select {
	case err := <-ended:
		if toolCode(err) != tools.CodeSandboxGone {
			t.Errorf("in the middle: got %v, %q", err, toolCode(err))
		}
	case <-time.After(e2e.LastResort):
		t.Fatal("the call does not end")
	}
}
