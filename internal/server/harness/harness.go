// Package harness tests executors. Jobs work at executors: the server itself and its backends.
// A test makes a sprite, does step by step what a job needs, and removes the sprite. It reaches
// every executor as a client of its protocol.
//
// A test may be cut off at any moment. Its sprite's name has the server's own mark. So the next
// start of the server, or the next test of the same executor, finds the sprite and removes it.
// A token that the server was not told to keep is in no row and no file. Only the next test
// can remove the sprite of a test with such a token.
package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/profile"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Harness tests executors. Set the exported fields before Start. Its methods may be called
// from any goroutine.
type Harness struct {
	Client   *cove.Client    // of the server's own; required
	Settings *store.Settings // required; keeps the server's mark, and the sprites at backends
	Logger   *slog.Logger    // required

	// Secret is the value of one of the server's secrets.
	Secret func(ctx context.Context, name string) (string, error)

	// NamesOnly translates a policy into rules that every server of the protocol knows.
	NamesOnly func(context.Context, sprites.NetworkPolicy) (sprites.NetworkPolicy, error)

	wg     sync.WaitGroup
	cancel context.CancelFunc

	mu      sync.Mutex
	running map[string]bool // sprites of tests that are under way
	unsure  chan struct{}   // tells clearing that something may be left
	keeping sync.Mutex      // held while a setting is read and changed
}

// Trial is a test that may run.
type Trial struct {
	h     *Harness
	test  cove.ExecutorTest
	job   cove.JobRequest // of the profile, if there is one
	agent agents.Agent
	at    *cove.Client
	here  bool // the executor is this very server

	name   string // of the sprite
	sprite *sprites.Sprite
	asked  bool // its creation was asked for
	lost   bool // and perhaps carried out later

	guest   string // the path of cove-guest inside
	home    string // of the sprite's user
	port    int    // at which the service listens
	scripts scripts
	granted []string
	out     *output // of the step that runs
	warning string  // of it
}

// Prepare checks a test before it runs. It does not call the executor.
func (h *Harness) Prepare(ctx context.Context, test cove.ExecutorTest) (*Trial, error) {
	t := &Trial{h: h, test: test}
	t.scripts.t = t
	given := 0
	for _, name := range []string{test.Profile, test.Backend, test.URL} {
		if name != "" {
			given++
		}
	}
	if given > 1 {
		return nil, fail.New("bad_request", "profile, backend and url exclude each other", "give one of them, or none for the server itself")
	}
	if test.Token != "" && test.URL == "" {
		return nil, fail.New("bad_request", "a token needs a url", "leave the token out: the server has that of a backend")
	}
	if test.Profile != "" {
		p, err := cove.Profiles{Client: h.Client}.Get(ctx, test.Profile)
		if err != nil {
			return nil, err
		}
		t.job = profile.Trial(p)
		t.test.Backend = t.job.Backend
	}
	if test.Agent != "" {
		if test.Agent != t.job.Agent {
			t.job.Definition, t.job.Model, t.job.AgentCommand = nil, "", ""
		}
		t.job.Agent = test.Agent
	}
	if t.job.Agent == "" {
		t.job.Agent = "shell"
	}
	var err error
	if t.agent, err = agents.Of(t.job.Agent, t.job.Definition); err != nil {
		return nil, fail.Newf("no_agent", "see which there are: cove agent list", "%v", err)
	}
	if err := t.reach(ctx); err != nil {
		return nil, err
	}
	mark, err := h.mark(ctx)
	if err != nil {
		return nil, err
	}
	t.name = mark + randomHex(4)
	t.sprite = t.at.Sprite(t.name)
	return t, nil
}

// reach makes the client of the executor.
func (t *Trial) reach(ctx context.Context) error {
	switch {
	case t.test.URL != "":
		u, err := url.Parse(t.test.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return fail.New("bad_request", "a url is an http or https URL without user and query", "")
		}
		if strings.ContainsFunc(t.test.Token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return fail.New("bad_request", "a token is printable ASCII without spaces", "")
		}
		t.at = &cove.Client{Client: &sprites.Client{URL: strings.TrimRight(t.test.URL, "/"), Token: t.test.Token}}
	case t.test.Backend != "":
		known, err := t.h.Client.Backends(ctx)
		if err != nil {
			return err
		}
		found := false
		for _, b := range known {
			found = found || b.Name == t.test.Backend
		}
		if !found {
			return fail.Newf("no_backend", "see which it knows: cove backend list", "this server knows no backend %.63q", t.test.Backend)
		}
		t.at = t.h.Client.At(t.test.Backend)
	default:
		t.at, t.here = t.h.Client, true
	}
	return nil
}

// Limits of steps.
const (
	createLimit  = 5 * time.Minute
	stepLimit    = 5 * time.Minute
	installLimit = 15 * time.Minute
	promptLimit  = 15 * time.Minute
	undoLimit    = time.Minute
)

// errSkip says why a step is not needed.
type errSkip struct{ why string }

func (e errSkip) Error() string { return e.why }

func skip(format string, args ...any) error { return errSkip{fmt.Sprintf(format, args...)} }

// part is a step of a test.
type part struct {
	key   cove.StepKey
	limit time.Duration
	do    func(context.Context) (detail string, err error)
}

// Run does the test, and tells of each step when it begins and when it ends. It returns when
// the sprite is removed, also if ctx ends before. It may be called once.
func (t *Trial) Run(ctx context.Context, tell func(cove.ExecutorNews)) (ok bool) {
	t.h.begin(t.name)
	defer t.h.end(t.name)
	parts := []part{{cove.TestConnection, stepLimit, t.connect}, {cove.TestAuth, stepLimit, t.auth}, {cove.TestList, stepLimit, t.list}}
	if !t.test.Quick {
		parts = append(parts, part{cove.TestCreate, createLimit, t.create}, part{cove.TestPolicy, stepLimit, t.policy}, part{cove.TestUpload, stepLimit, t.upload},
			part{cove.TestInstall, installLimit, t.install}, part{cove.TestService, stepLimit, t.service}, part{cove.TestTunnel, stepLimit, t.tunnel},
			part{cove.TestHealth, stepLimit, t.health}, part{cove.TestClone, cove.StepLimit(t.job.StepLimits, cove.StepClone), t.scripts.clone},
			part{cove.TestSetupScript, t.scripts.setupTime(), t.scripts.setup}, part{cove.TestPrompt, promptLimit, t.prompt},
			part{cove.TestCleanupScript, t.scripts.cleanupTime(), t.scripts.cleanup}, part{cove.TestDestroy, undoLimit, t.destroy})
	}
	n := &narrator{total: len(parts), tell: tell}
	ok, destroyed := true, t.test.Quick
	undo := func(p part) {
		destroyed = destroyed || p.key == cove.TestDestroy
		if ctx.Err() != nil { // nobody waits any more
			p.limit = min(p.limit, undoLimit)
		}
		ok = t.step(context.WithoutCancel(ctx), n, p) && ok
	}
	defer func() {
		if !destroyed { // a step has panicked
			undo(part{cove.TestDestroy, undoLimit, t.destroy})
		}
	}()
	failed := cove.StepKey("")
	for _, p := range parts {
		switch {
		case p.key == cove.TestDestroy || p.key == cove.TestCleanupScript && t.scripts.begun:
			undo(p)
		case failed != "":
			n.end(n.begin(p.key), cove.StepSkipped, func(s *cove.Step) { s.Detail = fmt.Sprintf("%s failed", failed) })
		case !t.step(ctx, n, p):
			failed, ok = p.key, false
		}
	}
	made := ""
	if t.asked {
		made = t.name
	}
	tell(cove.ExecutorNews{Over: true, OK: ok, Sprite: made})
	return ok
}

// step does one step.
func (t *Trial) step(ctx context.Context, n *narrator, p part) (ok bool) {
	step := n.begin(p.key)
	t.out, t.warning = &output{}, ""
	limited, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	detail, err := "", ctx.Err()
	if err == nil {
		detail, err = p.do(limited)
	}
	skipped, isSkip := errors.AsType[errSkip](err)
	state := cove.StepCompleted
	switch {
	case isSkip:
		state, detail = cove.StepSkipped, skipped.why
	case err != nil && ctx.Err() != nil:
		state, err = cove.StepFailed, fmt.Errorf("cancelled: %w", context.Cause(ctx))
	case err != nil && limited.Err() != nil:
		state, err = cove.StepFailed, fmt.Errorf("not done within %v: %w", p.limit, err)
	case err != nil:
		state = cove.StepFailed
	}
	n.end(step, state, func(s *cove.Step) {
		s.Warning, s.Output = t.warning, t.out.all()
		if state == cove.StepFailed {
			s.Error, s.Hint = message(err), hint(err)
		} else {
			s.Detail = detail
		}
	})
	return state != cove.StepFailed
}

// message is an error's text without its hint.
func message(err error) string {
	text := err.Error()
	if h := hint(err); h != "" {
		text = strings.ReplaceAll(text, " ("+h+")", "")
	}
	return text[:min(len(text), maxMessage)]
}

const maxMessage = 4000

// hint is what an error says to type next; empty: nothing.
func hint(err error) string {
	if e, ok := errors.AsType[*fail.Error](err); ok {
		return e.Hint
	}
	if e, ok := errors.AsType[*sprites.Error](err); ok {
		return e.Hint
	}
	return ""
}

// narrator tells of steps.
type narrator struct {
	total, last int
	tell        func(cove.ExecutorNews)
}

func (n *narrator) begin(key cove.StepKey) *cove.Step {
	n.last++
	now := time.Now().UTC()
	s := &cove.Step{Key: key, Index: n.last, Total: n.total, State: cove.StepRunning, Attempt: 1, StartedAt: &now}
	n.tell(cove.ExecutorNews{Step: &cove.ExecutorStep{Step: *s}})
	return s
}

func (n *narrator) end(s *cove.Step, state cove.StepState, set func(*cove.Step)) {
	now := time.Now().UTC()
	s.State, s.EndedAt = state, &now
	set(s)
	n.tell(cove.ExecutorNews{Step: &cove.ExecutorStep{Step: *s, MS: float64(now.Sub(*s.StartedAt).Microseconds()) / 1000}})
}

// output is what the commands of a step print, in whole lines.
type output struct {
	mu   sync.Mutex
	out  cove.StepOutput
	held []byte // a line that has not ended
}

const maxHeld = 16 << 10

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = append(o.held, p...)
	i := strings.LastIndexByte(string(o.held), '\n') + 1
	if i == 0 && len(o.held) > maxHeld {
		i = len(o.held)
	}
	o.out.Append(string(o.held[:i]))
	o.held = o.held[i:]
	return len(p), nil
}

func (o *output) all() cove.StepOutput {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.out.Append(string(o.held))
	o.held = nil
	return o.out
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
