package fakeprovider_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

func start(t *testing.T) (*fakeprovider.Provider, *cove.Client) {
	t.Helper()
	s := covetest.Start(t, covetest.Options{})
	p := fakeprovider.Start(t, s.URL, s.Token)
	return p, &cove.Client{Client: &sprites.Client{URL: p.URL, Token: p.Token}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestForeign: the service works, and shows nothing of cove.
func TestForeign(t *testing.T) {
	p, c := start(t)
	for _, name := range []string{"a", "b", "c"} {
		info, err := c.Create(t.Context(), sprites.CreateRequest{Name: name, Labels: []string{"mine"}})
		if err != nil || info.Cove != nil || info.ID == "" || len(info.Labels) != 1 {
			t.Errorf("made %+v, %v", info, err)
		}
	}
	if _, err := c.Version(t.Context()); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("its version: %v", err)
	}
	if _, err := c.Jobs(t.Context()); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("its jobs: %v", err)
	}
	var names []string
	for info, err := range c.All(t.Context(), "") {
		must(t, err)
		names = append(names, info.Name)
	}
	if pages := len(p.Calls(`^GET /v1/sprites\?`)); fmt.Sprint(names) != "[a b c]" || pages != 2 {
		t.Errorf("listed %v on %d pages", names, pages)
	}
	out, err := c.Sprite("a").CommandContext(t.Context(), "echo", "hi").Output()
	if err != nil || string(out) != "hi\n" {
		t.Errorf("got %q, %v", out, err)
	}
	must(t, c.Delete(t.Context(), "a", sprites.DeleteOptions{}))
	if err := c.Delete(t.Context(), "a", sprites.DeleteOptions{}); !errors.Is(err, sprites.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	p.SetToken("another")
	if _, err := c.Get(t.Context(), "b"); !errors.Is(err, sprites.ErrUnauthorized) {
		t.Errorf("with another token: %v", err)
	}
}

// TestFaults tries each kind of fault once.
func TestFaults(t *testing.T) {
	p, c := start(t)
	ctx := t.Context()
	create := func(name string) error {
		_, err := c.Create(ctx, sprites.CreateRequest{Name: name})
		return err
	}
	must(t, create("a"))
	sprite := c.Sprite("a")

	p.Add(fakeprovider.Fault{Call: `^GET /v1/sprites/a$`, After: 1, Times: 1, Status: 429, Header: map[string][]string{"Retry-After": {"7"}}, Body: `{"error":"rate","message":"slow down"}`})
	for i := range 3 {
		_, err := c.Get(ctx, "a")
		e, _ := errors.AsType[*sprites.Error](err)
		if limited := e != nil && e.StatusCode == 429 && e.RetryAfterSeconds == 7; limited != (i == 1) {
			t.Errorf("call %d: %v", i, err)
		}
	}

	p.Add(fakeprovider.Fault{Call: `^POST /v1/sprites$`, Lost: true})
	if err := create("b"); err == nil {
		t.Error("the lost answer came")
	}
	p.Clear()
	if _, err := c.Get(ctx, "b"); err != nil {
		t.Errorf("what was made: %v", err)
	}

	data := strings.Repeat("x", 100_000)
	write := func() error {
		return sprite.WriteFile(ctx, "/tmp/"+t.Name(), io.MultiReader(strings.NewReader(data)), sprites.WriteOptions{Size: int64(len(data))})
	}
	p.Add(fakeprovider.Fault{Call: `^PUT /v1/sprites/a/fs/write`, CutRequest: 1000, Times: 1})
	if err := write(); err == nil {
		t.Error("a cut body was taken")
	}
	calls := p.Calls("fs/write")
	if got := len(calls[len(calls)-1].Body); got != 1000 {
		t.Errorf("%d bytes came", got)
	}
	pace := make(chan struct{})
	p.Clear()
	p.Add(fakeprovider.Fault{Call: `^PUT /v1/sprites/a/fs/write`, Pace: pace})
	written := make(chan error)
	go func() { written <- write() }()
	for chunks := 0; ; chunks++ {
		select {
		case pace <- struct{}{}:
			continue
		case err := <-written:
			if err != nil || chunks < 2 {
				t.Errorf("a body in %d chunks: %v", chunks, err)
			}
		}
		break
	}
	p.Add(fakeprovider.Fault{Call: `^GET /v1/sprites/a/fs/read`, CutAnswer: 1000})
	f, err := sprite.Open(ctx, "/tmp/"+t.Name())
	must(t, err)
	got, err := io.ReadAll(f)
	if err == nil || len(got) > 1000 || !bytes.HasPrefix([]byte(data), got) {
		t.Errorf("of a cut answer came %d bytes, %v", len(got), err)
	}
	must(t, f.Close())
	must(t, sprite.Remove(ctx, "/tmp/"+t.Name(), false))

	p.Add(fakeprovider.Fault{Call: `/exec`, Silent: true})
	stalled, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- sprite.CommandContext(stalled, "true").Run() }()
	for len(p.Calls("/exec")) == 0 {
		select {
		case err := <-ended:
			t.Fatalf("the silent command ended: %v", err)
		default:
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a silent command succeeded")
	}

	p.SetDown(true)
	if _, err := c.Get(ctx, "a"); err == nil {
		t.Error("a service that is down answered")
	}
	p.SetDown(false)
	if _, err := c.Get(ctx, "a"); err != nil {
		t.Errorf("a service that is up again: %v", err)
	}
}
