package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// runLine runs a command line to its end; the token is the owner's if it is empty.
func runLine(t *testing.T, s *covetest.Server, token string, args ...string) (code int, out, errs string) {
	t.Helper()
	if token == "" {
		token = s.Token
	}
	var stdout, stderr bytes.Buffer
	code = Main(t.Context(), append([]string{"--url", s.URL, "--token", token}, args...), Streams{In: strings.NewReader(""), Out: &stdout, Err: &stderr})
	return code, stdout.String(), stderr.String()
}

// TestDenyNamesRegistries: a deny rule is wider than a preset's rule for a registry of the server's
// machine. So the preset still allows the registry. It is named, but not to a token without admin.
func TestDenyNamesRegistries(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Host: &sprite.Host{Registries: func(context.Context) []string { return []string{"registry.example.org", "192.0.2.7"} }}})
	secret, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "other", Scope: cove.TokenScope{All: true}, Verbs: []string{"read", "write"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, preset := range []string{"agent", "defaults"} {
		sp := s.Create(preset)
		set := func() {
			t.Helper()
			if err := sp.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: preset}}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, zone := range []string{"*.example.org", "*.org"} {
			set()
			code, out, errs := runLine(t, s, "", "policy", "deny", "-s", preset, zone)
			if code != 0 || !strings.Contains(errs, "to deny them too: cove policy deny") || !strings.Contains(errs, "registry.example.org\n") || strings.Contains(errs, "192.0.2.7") {
				t.Errorf("%s, %s: exit code %d, %s%s", preset, zone, code, out, errs)
			}
		}
		set()
		_, _, errs := runLine(t, s, "", "policy", "deny", "-s", preset, "*.example.net", "registry.example.org")
		if strings.Contains(errs, "registry.example.org") {
			t.Errorf("%s, of what is denied itself: %s", preset, errs)
		}
		set()
		code, out, errs := runLine(t, s, secret.Secret, "policy", "deny", "-s", preset, "*.example.org", "*.openai.com")
		if code != 0 || strings.Contains(out+errs, "registry.example.org") ||
			!strings.Contains(errs, "api.openai.com auth.openai.com") || !strings.Contains(errs, "-s "+preset+" HOST") {
			t.Errorf("%s, without admin: exit code %d, %s%s", preset, code, out, errs)
		}
	}
}

// TestArgumentsBeforeServer: a command with wrong arguments, or that only looks, starts no
// server. If no server has ever run, nor does one about something that must be there.
func TestArgumentsBeforeServer(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("COVE_URL", "")
	t.Setenv("COVE_SPRITE", "")
	t.Setenv(AutostartVariable, "")
	t.Chdir(t.TempDir())
	for _, test := range []struct{ line, says string }{
		{"exec uname", "which sprite?"}, {"pull aaaaaa", "is not in a git repository"}, {"secret set foo", ""}, {"backend list", "no server"},
	} {
		for _, empty := range []bool{true, false} {
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if !empty {
				if err := os.WriteFile(filepath.Join(dir, "cove.db"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			doc := lineError(t, dir, test.line)
			if _, err := os.Stat(filepath.Join(dir, "serve.log")); err == nil {
				t.Errorf("%s (empty: %v) starts a server: %s", test.line, empty, doc)
			}
			if test.says != "" && !strings.Contains(doc, test.says) {
				t.Errorf("%s (empty: %v): %s", test.line, empty, doc)
			}
		}
	}
	for _, line := range []string{"fork x y", "setup x", "exec -s x true", "session kill 1 -s x", "service stop web -s x", "policy deny a.b -s x"} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		doc := lineError(t, dir, line)
		if _, err := os.Stat(filepath.Join(dir, "serve.log")); err == nil || !strings.Contains(doc, "no server, no sprites") {
			t.Errorf("%s: %s", line, doc)
		}
	}
}

// lineError is what a command line on a data folder says, as it fails.
func lineError(t *testing.T, dir, line string) string {
	t.Helper()
	var out bytes.Buffer
	if code := Main(t.Context(), append([]string{"--data", dir}, strings.Fields(line)...), Streams{In: strings.NewReader(""), Out: &out, Err: &out}); code == 0 {
		t.Errorf("%s ends well: %s", line, &out)
	}
	return out.String()
}

// TestDiagnoseWithoutServer: the command that it names starts a server.
func TestDiagnoseWithoutServer(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if doc := lineError(t, dir, "diagnose x"); !strings.Contains(doc, "next: cove server start") || strings.Contains(doc, "cove ping") {
		t.Errorf("it says %s", doc)
	}
}

// TestSessionListAsleep: the sessions of a sprite that sleeps can't be listed, so cove does
// not say that there are none. One that never ran has none.
func TestSessionListAsleep(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	if code, out, errs := runLine(t, s, "", "session", "list", "-s", "paint", "--json"); code != 0 || !strings.Contains(out, `"count": 0`) && !strings.Contains(out, `"count":0`) {
		t.Errorf("one that never ran: exit code %d, %s%s", code, out, errs)
	}
	if code, out, errs := runLine(t, s, "", "suspend", "paint"); code != 0 || !strings.Contains(errs, "has never run") {
		t.Errorf("suspend: exit code %d, %s%s", code, out, errs)
	}
	asleep := warm(t, s.URL)
	for _, flag := range []string{"--json", "-q", "-v"} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), []string{"--url", asleep, "--token", s.Token, "session", "list", "-s", "paint", flag}, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		said := out.String() + errs.String()
		if code != exitFailed || !strings.Contains(said, "sprite paint sleeps") || !strings.Contains(said, "cove wake ") || strings.Contains(said, "count") || flag == "--json" && !strings.Contains(said, `"asleep"`) {
			t.Errorf("%s: exit code %d, %s", flag, code, said)
		}
	}
}

// warm is a proxy before a server that reports the server's sprites as asleep.
func warm(t *testing.T, server string) string {
	t.Helper()
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ModifyResponse = func(r *http.Response) error {
		text, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		text = bytes.ReplaceAll(text, []byte(`"status":"cold"`), []byte(`"status":"warm"`))
		r.Body = io.NopCloser(bytes.NewReader(text))
		return err
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	return s.URL
}

// TestTokenHint: the token that is proposed has the scope and the verbs of the one that was refused,
// and the verb that it lacks.
func TestTokenHint(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	for want, scope := range map[string]cove.TokenScope{"NAME -s paint": {Sprite: "paint"}, "NAME --prefix pa": {Prefix: "pa"}, "NAME --all": {All: true}} {
		secret, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "other", Scope: scope, Verbs: []string{"read"}})
		if err != nil {
			t.Fatal(err)
		}
		_, out, errs := runLine(t, s, secret.Secret, "exec", "-s", "paint", "true")
		if !strings.Contains(out+errs, want+" --verbs read,exec") {
			t.Errorf("%s: %s%s", want, out, errs)
		}
	}
}

// TestInUseHint: the refusal to suspend a sprite names the commands that end what runs in it.
func TestInUseHint(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	cmd := s.Create("paint").Command("cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	_, out, errs := runLine(t, s, "", "suspend", "paint")
	if !strings.Contains(out+errs, "cove session list") || !strings.Contains(out+errs, "cove session kill ") {
		t.Errorf("it says %s%s", out, errs)
	}
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestLostCopy: a copy whose connection was lost says so, and how to see what is there.
func TestLostCopy(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	c := &copying{sprite: s.Client().Sprite("paint")}
	for _, err := range []error{&net.OpError{Op: "readfrom", Net: "tcp", Err: syscall.ECONNRESET}, &net.OpError{Op: "write", Err: syscall.EPIPE}, fmt.Errorf("x: %w", sprites.ErrNoExit)} {
		if f := classify(c.cut(err, "a b")); f.exit != exitLost || !strings.Contains(f.hint, "cove exec -s paint -- ls -la 'a b'") {
			t.Errorf("%v: got %+v", err, f)
		}
		if f := classify(fmt.Errorf("follow: %w", err)); f.exit != exitLost || f.code != "connection_lost" {
			t.Errorf("of another command, %v: got %+v", err, f)
		}
	}
	for _, err := range []error{sprites.ErrRemoved, &sprites.Error{StatusCode: 404}} {
		if got := c.cut(err, "a"); got != err {
			t.Errorf("%v: got %v", err, got)
		}
	}
}

// TestAttachHint: the command that joins one with input passes input, too.
func TestAttachHint(t *testing.T) {
	for input, want := range map[bool]string{true: "cove session attach '' -s paint -i", false: "cove session attach '' -s paint"} {
		if got := (&execution{sprite: "paint", input: input}).attach(&sprites.Cmd{}); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestEnoughDisk: the disk limit that is proposed is more than the sprite takes.
func TestEnoughDisk(t *testing.T) {
	for _, used := range []int64{0, 1, 1<<20 - 1, 2<<20 - 1, 300 << 20, 300<<20 + 7} {
		for _, limit := range []int64{0, 1, 97 << 20} {
			if got := enoughDisk(limit, used); got<<20 <= max(limit, used) {
				t.Errorf("limit %d, %d used: got %dM", limit, used, got)
			}
		}
	}
}
