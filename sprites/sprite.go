package sprites

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Sprite is a handle on one sprite of a Client. Making one sends nothing and
// does not say that the sprite exists. Its methods may be called from any
// goroutine. Those that reach inside wake the sprite.
type Sprite struct {
	client *Client
	name   string
	base   string // escaped path under which the sprite's own calls are
}

// Name is the sprite's name; empty for Client.Self.
func (s *Sprite) Name() string { return s.name }

// Client is the client that the handle belongs to.
func (s *Sprite) Client() *Client { return s.client }

// path is the path of one of the sprite's own calls.
func (s *Sprite) path(segments ...string) string { return s.base + Path(segments...) }

// describe names the sprite in errors.
func (s *Sprite) describe() string {
	if s.name == "" {
		return "the guest"
	}
	return s.name
}

// Sessions lists the commands that run in the sprite.
func (s *Sprite) Sessions(ctx context.Context) ([]Session, error) {
	var list SessionList
	err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("exec"), Retry: true}, &list)
	if err != nil {
		return nil, fmt.Errorf("list the sessions of %s: %w", s.describe(), err)
	}
	return list.Sessions, nil
}

// Kill sends a signal to a session's command and everything it started, and
// after timeout KILL; empty means TERM. It waits for the end, and returns the
// exit code. A zero timeout does not wait: the code is then -1 if the command has
// not ended yet. ErrGone is a session that had ended, ErrNotFound one that never
// was.
func (s *Sprite) Kill(ctx context.Context, id string, sig Signal, timeout time.Duration) (int, error) {
	code, err := s.kill(ctx, id, sig, timeout)
	if err != nil {
		return code, fmt.Errorf("kill session %s of %s: %w", id, s.describe(), err)
	}
	return code, nil
}

func (s *Sprite) kill(ctx context.Context, id string, sig Signal, timeout time.Duration) (int, error) {
	if sig == "" {
		sig = SIGTERM
	}
	resp, err := s.client.Do(ctx, Request{
		Method: http.MethodPost,
		Path:   s.path("exec", id, "kill"),
		Query:  url.Values{"signal": {sig.String()}, "timeout": {timeout.String()}},
		Retry:  true,
	})
	if err != nil {
		return -1, err
	}
	defer func() { _ = resp.Body.Close() }()

	code, complete := -1, false
	err = readLines(resp.Body, func(line []byte) error {
		var e KillEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		switch e.Type {
		case "error":
			return errors.New(printable(e.Message))
		case "complete":
			complete = true
			if e.ExitCode != nil {
				code = *e.ExitCode
			}
		}
		return nil
	})
	if err == nil && !complete && timeout > 0 {
		err = ErrNoExit
	}
	return code, err
}

// SandboxLogs returns the logs of what runs the sprite: to look into what went wrong.
func (s *Sprite) SandboxLogs(ctx context.Context) ([]SandboxLog, error) {
	var all SandboxLogs
	if err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("sandbox", "logs")}, &all); err != nil {
		return nil, fmt.Errorf("logs of %s's sandbox: %w", s.describe(), err)
	}
	return all.Logs, nil
}
