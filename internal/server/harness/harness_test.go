package harness_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/guest/probe"
	"github.com/cove-dev/cove/internal/server/harness"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// TestMain is cove-guest, too, which the harness brings into the sprites of these tests.
func TestMain(m *testing.M) {
	if strings.HasPrefix(filepath.Base(os.Args[0]), "cove-guest") {
		if len(os.Args) == 3 && os.Args[1] == "answer" {
			if err := probe.Answer(context.Background(), os.Args[2]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		os.Exit(0)
	}
	os.Exit(withGuest(m))
}

func withGuest(m *testing.M) int {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	guest := filepath.Join(filepath.Dir(self), "cove-guest")
	if err := os.Link(self, guest); err != nil {
		panic(err)
	}
	defer os.Remove(guest)
	return m.Run()
}

// bench is a server with a harness of its own. A test may break the harness's requests.
type bench struct {
	*covetest.Server
	h     *harness.Harness
	store *store.Store
	log   *bytes.Buffer
	hurt  *hurtful
	repo  string // the URL of profile's repository
}

// hurtful is an http.RoundTripper that breaks the requests of one step.
type hurtful struct {
	next   http.RoundTripper
	during atomic.Pointer[cove.StepKey]

	mu     sync.Mutex
	victim cove.StepKey
	how    func(r *http.Request, next http.RoundTripper) (*http.Response, error)
	hit    int
}

func (h *hurtful) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	now, how := h.during.Load(), h.how
	if how == nil || now == nil || *now != h.victim {
		h.mu.Unlock()
		return h.next.RoundTrip(r)
	}
	h.hit++
	h.mu.Unlock()
	return how(r, h.next)
}

// set says what to break; nil: nothing.
func (h *hurtful) set(victim cove.StepKey, how func(*http.Request, http.RoundTripper) (*http.Response, error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.victim, h.how, h.hit = victim, how, 0
}

func broken(r *http.Request) *http.Response {
	return &http.Response{
		StatusCode: 500, Status: "500 Internal Server Error", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"error":"injected","message":"a fault of the test's"}`)),
	}
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{Server: covetest.Start(t, covetest.Options{}), log: &bytes.Buffer{}}
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	b.store = st
	own := b.Server.Server.Client()
	b.hurt = &hurtful{next: own.HTTPClient.Transport}
	own.HTTPClient = &http.Client{Transport: b.hurt}
	b.h = &harness.Harness{
		Client: own, Settings: st.Settings, Logger: slog.New(slog.NewTextHandler(b.log, nil)), Secret: b.Store.Secrets.Value,
		NamesOnly: func(_ context.Context, p sprites.NetworkPolicy) (sprites.NetworkPolicy, error) {
			return sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Domain: "registry.example", Action: "allow"}}}, nil
		},
	}
	return b
}

// run runs a test, and returns its steps as they ended.
func (b *bench) run(t *testing.T, ctx context.Context, test cove.ExecutorTest, also func(cove.ExecutorNews)) (ok bool, steps []cove.ExecutorStep) {
	t.Helper()
	trial, err := b.h.Prepare(t.Context(), test)
	if err != nil {
		t.Fatal(err)
	}
	over := 0
	ok = trial.Run(ctx, func(news cove.ExecutorNews) {
		if s := news.Step; s != nil {
			key := s.Key
			if b.hurt.during.Store(&key); s.State.Ended() {
				none := cove.StepKey("")
				b.hurt.during.Store(&none)
				steps = append(steps, *s)
			}
		}
		if news.Over {
			over++
		}
		if also != nil {
			also(news)
		}
	})
	if over != 1 {
		t.Errorf("the end was told %d times", over)
	}
	return ok, steps
}

// empty fails if anything is left of a test.
func (b *bench) empty(t *testing.T) {
	t.Helper()
	page, err := b.Client().List(t.Context(), sprites.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range page.Sprites {
		t.Errorf("the sprite %s is left", info.Name)
	}
	text, err := b.store.Settings.Get(t.Context(), "executor-test-left")
	if err == nil && text != "null" && text != "[]" || err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Errorf("noted as left: %s, %v", text, err)
	}
}

// here makes a test that an in-process server can pass. The server enforces no policies, so
// the test reaches it as a backend.
func (b *bench) here(t *testing.T) cove.ExecutorTest {
	t.Helper()
	if err := b.Client().PutBackend(t.Context(), "far", cove.BackendRequest{URL: b.URL, Token: b.Token}); err != nil {
		t.Fatal(err)
	}
	return cove.ExecutorTest{Backend: "far"}
}

var all = []cove.StepKey{
	cove.TestConnection, cove.TestAuth, cove.TestList, cove.TestCreate, cove.TestPolicy, cove.TestUpload, cove.TestInstall, cove.TestService,
	cove.TestTunnel, cove.TestHealth, cove.TestClone, cove.TestSetupScript, cove.TestPrompt, cove.TestCleanupScript, cove.TestDestroy,
}

// ofProfile are the steps that need a profile.
var ofProfile = []cove.StepKey{cove.TestInstall, cove.TestClone, cove.TestSetupScript, cove.TestCleanupScript}

// TestPasses: each step is told, timed, and ends as it should. The executor is given by a backend's
// name, by a profile, and by a URL with a token that nobody keeps.
func TestPasses(t *testing.T) {
	b := newBench(t)
	for _, test := range []cove.ExecutorTest{b.here(t), b.profile(t, "true"), {URL: b.URL, Token: b.Token}} {
		ok, steps := b.run(t, t.Context(), test, nil)
		var keys []cove.StepKey
		for i, s := range steps {
			keys = append(keys, s.Key)
			want := cove.StepCompleted
			if slices.Contains(ofProfile, s.Key) && test.Profile == "" {
				want = cove.StepSkipped
			}
			if s.State != want || s.Index != i+1 || s.Total != len(all) || s.Error != "" || s.Detail == "" {
				t.Errorf("got %+v", s)
			}
		}
		if !ok || !slices.Equal(keys, all) {
			t.Errorf("ok %v: %v", ok, keys)
		}
		b.empty(t)
	}
}

// TestQuick makes nothing.
func TestQuick(t *testing.T) {
	b := newBench(t)
	test := b.here(t)
	test.Quick = true
	ok, steps := b.run(t, t.Context(), test, nil)
	if !ok || len(steps) != 3 || steps[2].Total != 3 {
		t.Errorf("ok %v: %+v", ok, steps)
	}
	b.hurt.set(cove.TestAuth, func(r *http.Request, _ http.RoundTripper) (*http.Response, error) { return broken(r), nil })
	if ok, steps = b.run(t, t.Context(), test, nil); ok || steps[1].State != cove.StepFailed || steps[2].State != cove.StepSkipped {
		t.Errorf("ok %v: %+v", ok, steps)
	}
	b.empty(t)
}

// greeter is an agent that does as the plan says, once it is installed.
func greeter(install string) *cove.AgentDefinition {
	return &cove.AgentDefinition{File: "greeter.toml", Text: `name = "greeter"
argv = ["sh", "-c", "echo yes >works.txt; git add works.txt; git commit -q -m Greet"]
install = [["sh", "-c", "` + install + `"]]
stdin = "prompt"
verify = ["true"]
`}
}

// profile stores one at the backend far, with that agent.
func (b *bench) profile(t *testing.T, install string) cove.ExecutorTest {
	t.Helper()
	if b.repo == "" {
		b.repo = repository(t)
	}
	return b.withScripts(t, install, b.repo, "grep -q Begun README.md", "test -e README.md")
}

// withScripts is profile with a URL and scripts.
func (b *bench) withScripts(t *testing.T, install, url, setup, cleanup string) cove.ExecutorTest {
	t.Helper()
	b.here(t)
	_, err := b.Store.Profiles.Put(t.Context(), "greeting", 0, cove.ProfileSettings{
		Agent: "greeter", Definition: greeter(install), Backend: "far", URL: url, Env: map[string]string{"KEY": "{secret:ci}", "PLAIN": "it's"},
		StepLimits:  map[cove.StepKey]int64{cove.StepSetupScript: 900},
		SetupScript: &cove.SetupScript{Name: "setup", Text: setup}, CleanupScript: &cove.SetupScript{Name: "cleanup", Text: cleanup},
	})
	if err == nil {
		err = b.Store.Secrets.Set(t.Context(), "ci", "hush-hush-hush")
	}
	if err != nil {
		t.Fatal(err)
	}
	return cove.ExecutorTest{Profile: "greeting"}
}

// repository serves one by HTTP, and returns its URL.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const make = `cd "$1" && git init -q -b main work && cd work && echo Begun >README.md && git add . &&
git -c user.name=a -c user.email=a@localhost commit -q -m Begin && git clone -q --bare . ../project.git && cd ../project.git && git update-server-info`
	if out, err := exec.Command("sh", "-c", make, "sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(s.Close)
	return s.URL + "/project.git"
}

// TestEachFailure: whatever fails, or is cancelled, in whatever step, nothing is left, and
// the steps after it are skipped.
func TestEachFailure(t *testing.T) {
	b := newBench(t)
	for _, victim := range all {
		for name, how := range map[string]func(cancel func(), r *http.Request, next http.RoundTripper) (*http.Response, error){
			"error": func(_ func(), r *http.Request, _ http.RoundTripper) (*http.Response, error) { return broken(r), nil },
			"lost answer": func(_ func(), r *http.Request, next http.RoundTripper) (*http.Response, error) {
				if resp, err := next.RoundTrip(r); err == nil {
					_ = resp.Body.Close()
				}
				return nil, errors.New("the connection broke")
			},
			"cancel": func(cancel func(), r *http.Request, next http.RoundTripper) (*http.Response, error) {
				cancel()
				return next.RoundTrip(r)
			},
		} {
			for where, test := range map[string]cove.ExecutorTest{"profile": b.profile(t, "true"), "here": {}} {
				if where == "here" && slices.Index(all, victim) > slices.Index(all, cove.TestPolicy) && victim != cove.TestDestroy {
					continue // no policy is enforced here, so that the test ends before
				}
				t.Run(fmt.Sprint(victim, "/", name, "/", where), func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					b.hurt.set(victim, func(r *http.Request, next http.RoundTripper) (*http.Response, error) { return how(cancel, r, next) })
					ok, steps := b.run(t, ctx, test, nil)
					hit := b.hurt.hit
					b.hurt.set("", nil)
					if hit == 0 {
						t.Fatal("nothing was asked in that step")
					}
					seen := false
					for _, s := range steps {
						switch {
						case s.Key == victim && !((victim == cove.TestDestroy || victim == cove.TestCleanupScript) && name == "cancel"):
							seen = true
							if ok || s.State != cove.StepFailed || s.Error == "" {
								t.Errorf("ok %v: %+v", ok, s)
							}
						case seen && s.Key != cove.TestDestroy && s.Key != cove.TestCleanupScript && s.State != cove.StepSkipped:
							t.Errorf("after it: %+v", s)
						}
					}
					if victim == cove.TestDestroy || victim == cove.TestCreate && name == "error" || name == "lost answer" { // which a later look removes
						if err := b.h.Clear(t.Context()); err != nil {
							t.Error(err)
						}
					}
					if victim == cove.TestCreate && name == "error" && where == "profile" {
						b.late(t)
					}
					b.empty(t)
				})
			}
		}
	}
}

// late has the time be over in which the backend may make a sprite that was asked for. Until then
// the sprite must be noted.
func (b *bench) late(t *testing.T) {
	t.Helper()
	const setting = "executor-test-left"
	text, err := b.store.Settings.Get(t.Context(), setting)
	var notes []map[string]any
	if err == nil {
		err = json.Unmarshal([]byte(text), &notes)
	}
	if err != nil || len(notes) != 1 {
		t.Fatalf("noted as left: %s, %v", text, err)
	}
	notes[0]["late"] = time.Now().Add(-time.Second)
	past, err := json.Marshal(notes)
	if err == nil {
		err = b.store.Settings.Set(t.Context(), setting, string(past))
	}
	if err == nil {
		err = b.h.Clear(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestLateSprite: a sprite whose creation nobody answered is removed, also if the backend makes it
// after the first look for it.
func TestLateSprite(t *testing.T) {
	b := newBench(t)
	var come func() error
	b.hurt.set(cove.TestCreate, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		later := r.Clone(context.WithoutCancel(r.Context()))
		later.Body = io.NopCloser(bytes.NewReader(body))
		come = func() error {
			resp, err := next.RoundTrip(later)
			if err == nil {
				err = resp.Body.Close()
			}
			return err
		}
		return nil, errors.New("the connection broke")
	})
	ok, _ := b.run(t, t.Context(), b.here(t), nil)
	b.hurt.set("", nil)
	if ok || come == nil {
		t.Fatal("the sprite was made")
	}
	if err := errors.Join(b.h.Clear(t.Context()), come(), b.h.Clear(t.Context())); err != nil {
		t.Error(err)
	}
	b.empty(t)
}

// TestInstallFails: the output of a failed installation is told.
func TestInstallFails(t *testing.T) {
	b := newBench(t)
	test := b.profile(t, "echo no such package; exit 3")
	ok, steps := b.run(t, t.Context(), test, nil)
	i := slices.IndexFunc(steps, func(s cove.ExecutorStep) bool { return s.Key == cove.TestInstall })
	if ok || steps[i].State != cove.StepFailed || steps[i].Output.String() != "no such package\n" || steps[i].Hint == "" || !strings.Contains(steps[i].Error, "greeter") {
		t.Errorf("ok %v: %+v", ok, steps[i])
	}
	b.empty(t)
}

// TestScriptsFail: the output of a failed setup script is told, without the secrets of the profile's
// variables. The cleanup script still runs.
func TestScriptsFail(t *testing.T) {
	b := newBench(t)
	test := b.withScripts(t, "true", "", "echo $KEY; echo \"$PLAIN\"; exit 3", "#!/bin/sh\necho cleaned; exit 4")
	ok, steps := b.run(t, t.Context(), test, nil)
	by := map[cove.StepKey]cove.ExecutorStep{}
	for _, s := range steps {
		by[s.Key] = s
	}
	setup, cleanup := by[cove.TestSetupScript], by[cove.TestCleanupScript]
	if ok || setup.State != cove.StepFailed || setup.Output.String() != "***\nit's\n" || !strings.Contains(setup.Error, "3") || !strings.Contains(setup.Hint, "no url") {
		t.Errorf("ok %v: %+v", ok, setup)
	}
	if cleanup.State != cove.StepFailed || cleanup.Output.String() != "cleaned\n" || by[cove.TestClone].State != cove.StepSkipped || by[cove.TestPrompt].State != cove.StepSkipped {
		t.Errorf("%+v, %+v", cleanup, by)
	}
	if got := by[cove.TestClone].Detail; got != "the profile greeting has no url" {
		t.Errorf("got %q", got)
	}
	b.empty(t)

	test = b.withScripts(t, "true", repository(t)+"/no", "true", "true")
	ok, steps = b.run(t, t.Context(), test, nil)
	i := slices.IndexFunc(steps, func(s cove.ExecutorStep) bool { return s.Key == cove.TestClone })
	if ok || steps[i].State != cove.StepFailed || !strings.Contains(steps[i].Error, "/no") || steps[i].Output.String() == "" {
		t.Errorf("ok %v: %+v", ok, steps[i])
	}
	b.empty(t)
}

// TestScriptsLimit: the profile's limit of the setup script is that of the step, and a hint
// says how it gets more.
func TestScriptsLimit(t *testing.T) {
	b := newBench(t)
	test := b.withScripts(t, "true", "", "exec sleep 1000", "true")
	p, err := b.Store.Profiles.Get(t.Context(), test.Profile)
	if err != nil {
		t.Fatal(err)
	}
	p.StepLimits = map[cove.StepKey]int64{cove.StepSetupScript: 1}
	if _, err := b.Store.Profiles.Put(t.Context(), test.Profile, 0, p.ProfileSettings); err != nil {
		t.Fatal(err)
	}
	ok, steps := b.run(t, t.Context(), test, nil)
	i := slices.IndexFunc(steps, func(s cove.ExecutorStep) bool { return s.Key == cove.TestSetupScript })
	if ok || steps[i].State != cove.StepFailed || !strings.Contains(steps[i].Error, "1s") || !strings.Contains(steps[i].Hint, "setup_script = 2: cove profile edit greeting") {
		t.Errorf("ok %v: %+v", ok, steps[i])
	}
	b.empty(t)
}
