package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// tested is what cove test --json prints.
type tested struct {
	OK    bool                `json:"ok"`
	Steps []cove.ExecutorStep `json:"steps"`
}

// states returns the states of the steps, by their keys.
func (d tested) states() map[cove.StepKey]cove.StepState {
	all := map[cove.StepKey]cove.StepState{}
	for _, s := range d.Steps {
		all[s.Key] = s.State
	}
	return all
}

func testExecutor(h *e2e.Host, stdin string, args ...string) (doc tested, said string, code int) {
	h.T.Helper()
	cmd := h.Command("", "cove", append([]string{"test", "--json"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if len(out) > 0 {
		if err := json.Unmarshal(out, &doc); err != nil {
			h.T.Fatalf("got %s: %v", out, err)
		}
	}
	return doc, string(out) + stderr.String(), e2e.ExitCode(err)
}

// empty waits until a server has no sprite.
func empty(t *testing.T, c *cove.Client) {
	t.Helper()
	e2e.Await(t, "the end of the test's sprite", func() bool {
		page, err := c.List(t.Context(), sprites.ListOptions{})
		return err == nil && len(page.Sprites) == 0
	})
}

// TestExecutors: a server tests itself, also with a profile, and with an agent without a
// key.
func TestExecutors(t *testing.T) {
	h := e2e.NewHost(t)
	doc, said, code := testExecutor(h, "", "--full")
	if code != 0 || !doc.OK || len(doc.Steps) != 15 {
		t.Fatalf("exit %d: %s", code, said)
	}
	for _, s := range doc.Steps {
		want := cove.StepCompleted
		if slices.Contains([]cove.StepKey{cove.TestInstall, cove.TestClone, cove.TestSetupScript, cove.TestCleanupScript}, s.Key) {
			want = cove.StepSkipped
		}
		if s.State != want || s.MS < 0 || s.Total != 15 {
			t.Errorf("got %+v", s)
		}
	}
	empty(t, h.Client())
	if doc, said, code := testExecutor(h, "", "--quick"); code != 0 || !doc.OK || len(doc.Steps) != 3 {
		t.Errorf("quick: exit %d: %s", code, said)
	}

	// A profile with a closed network, and an agent without a key.
	_, err := cove.Profiles{Client: h.Client()}.Put(t.Context(), "closed", 0, cove.ProfileSettings{
		Agent: "shell", NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}, Config: &sprites.Config{RAMMB: 512},
		SetupScript: &cove.SetupScript{Name: "setup", Text: "touch $HOME/made"}, CleanupScript: &cove.SetupScript{Name: "cleanup", Text: "rm $HOME/made"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if doc, said, code := testExecutor(h, "", "--profile", "closed"); code != 0 || !doc.OK || doc.states()[cove.TestPrompt] != cove.StepCompleted || doc.states()[cove.TestSetupScript] != cove.StepCompleted || doc.states()[cove.TestCleanupScript] != cove.StepCompleted {
		t.Errorf("with a profile: exit %d: %s", code, said)
	}
	doc, said, code = testExecutor(h, "", "--profile", "closed", "--agent", "cove")
	if code != 0 || doc.states()[cove.TestPrompt] != cove.StepSkipped || !strings.Contains(said, "no key") {
		t.Errorf("without a key: exit %d: %s", code, said)
	}
	empty(t, h.Client())

	for _, args := range [][]string{{"--profile", "none"}, {"--agent", "none"}, {"--backend", "none"}, {"--token-stdin"}, {"--token-stdin", "--url", "http://127.0.0.1:9"}} {
		if _, said, code := testExecutor(h, "", args...); code == 0 || !strings.Contains(said, "hint") {
			t.Errorf("%v: exit %d: %s", args, code, said)
		}
	}
	if doc, said, code := testExecutor(h, "tok\n", "--token-stdin", "--url", "http://127.0.0.1:9"); code != 1 || doc.states()[cove.TestConnection] != cove.StepFailed || doc.states()[cove.TestDestroy] != cove.StepSkipped {
		t.Errorf("where nobody answers: exit %d: %s", code, said)
	}
}

// TestExecutorElsewhere: a server that knows only the protocol is tested by its name, and by a
// token. No file or log of the testing server has that token.
func TestExecutorElsewhere(t *testing.T) {
	h := e2e.NewHost(t)
	e2e.GoFar(h)
	far := h.Far.Client()
	if doc, said, code := testExecutor(h, "", "--backend", "far"); code != 0 || !doc.OK || doc.states()[cove.TestPrompt] != cove.StepCompleted {
		t.Errorf("exit %d: %s", code, said)
	}
	empty(t, far)
	token, err := far.CreateToken(t.Context(), cove.TokenRequest{Name: "tested", Scope: cove.TokenScope{All: true}, Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		t.Fatal(err)
	}
	if doc, said, code := testExecutor(h, token.Secret+"\n", "--token-stdin", "--url", far.URL); code != 0 || !doc.OK {
		t.Errorf("exit %d: %s", code, said)
	}
	doc, said, code := testExecutor(h, token.Secret+"x\n", "--token-stdin", "--url", far.URL)
	if code != 1 || doc.states()[cove.TestAuth] != cove.StepFailed || strings.Contains(said, token.Secret) {
		t.Errorf("with a wrong token: exit %d: %s", code, said)
	}
	found, err := e2e.Canary(token.Secret).InFiles(h.Data)
	if err != nil || len(found) > 0 {
		t.Errorf("the token is in %v, %v", found, err)
	}
	list, err := h.Client().Backends(t.Context())
	if err != nil || len(list) != 0 {
		t.Errorf("the server has kept %v, %v", list, err)
	}
	// The hint's command replaces a refused token.
	for _, put := range []struct {
		token string
		says  string
		want  cove.StepState
	}{{token.Secret + "x", "give this server a token that the backend accepts: cove backend put kept", cove.StepFailed}, {token.Secret, "which accepts it", cove.StepCompleted}} {
		cmd := h.Command("", "cove", "backend", "put", "kept", far.URL)
		cmd.Stdin = strings.NewReader(put.token + "\n")
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), put.token) || !strings.Contains(string(out), put.says) {
			t.Fatalf("%v: %s", err, out)
		}
		doc, said, _ := testExecutor(h, "", "--backend", "kept", "--quick")
		if state := doc.states()[cove.TestAuth]; state != put.want || state == cove.StepFailed && !strings.Contains(said, "cove backend put") {
			t.Errorf("got %s: %s", state, said)
		}
	}
	empty(t, far)
	empty(t, h.Client())
}

// untilStep starts cove test, and waits until a step has ended.
func untilStep(h *e2e.Host, key cove.StepKey, args ...string) *exec.Cmd {
	h.T.Helper()
	cmd := h.Command("", "cove", append([]string{"test"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		h.T.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if said = append(said, lines.Text()); strings.HasPrefix(lines.Text(), string(key)+" ") {
			return cmd
		}
	}
	h.T.Fatalf("it ended before the step %s (%v): %s", key, cmd.Wait(), said)
	return nil
}

// inTime cuts a test off by f, which returns how the test ended. A test that has ended before is
// begun again.
func inTime(t *testing.T, f func() error) {
	t.Helper()
	for range 10 {
		if f() != nil {
			return
		}
	}
	t.Error("no test was cut off")
}

// TestExecutorCutOff: Ctrl-C, or a kill of the server, in the middle of a test leaves no
// sprite, at the server or at a backend.
func TestExecutorCutOff(t *testing.T) {
	h := e2e.NewHost(t)
	e2e.GoFar(h)
	h.Env = slices.DeleteFunc(h.Env, func(kv string) bool {
		return strings.HasPrefix(kv, "COVE_BACKEND=") || strings.HasPrefix(kv, "SPRITES_TOKEN=")
	})
	far := h.Far.Client()
	h.Run("", "cove", "server", "start")
	if err := h.Client().PutBackend(t.Context(), "kept", cove.BackendRequest{URL: far.URL, Token: far.Token}); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{"here": nil, "backend": {"--backend", "kept"}} {
		t.Run("interrupted/"+name, func(t *testing.T) {
			h := h.On(t)
			inTime(t, func() error {
				cmd := untilStep(h, cove.TestCreate, args...)
				if err := cmd.Process.Signal(os.Interrupt); err != nil {
					t.Fatal(err)
				}
				err := cmd.Wait()
				if code := e2e.ExitCode(err); err != nil && code != 130 {
					t.Errorf("got %v", err)
				}
				return err
			})
			empty(t, h.Client())
			empty(t, far)
		})
		t.Run("killed/"+name, func(t *testing.T) {
			h := h.On(t)
			inTime(t, func() error {
				h.Run("", "cove", "server", "start") // unless one runs
				cmd := untilStep(h, cove.TestCreate, args...)
				h.EndServer(syscall.SIGKILL)
				err := cmd.Wait()
				if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
					t.Fatal(err)
				}
				if name != "backend" || err == nil {
					return err
				}
				page, listErr := far.List(t.Context(), sprites.ListOptions{})
				if listErr != nil || len(page.Sprites) > 1 {
					t.Fatalf("the server has left %d sprites there, %v", len(page.Sprites), listErr)
				}
				if len(page.Sprites) == 0 { // the test had just removed its sprite
					return nil
				}
				return err
			})
			h.Run("", "cove", "server", "start")
			empty(t, h.Client())
			empty(t, far)
		})
	}
}
