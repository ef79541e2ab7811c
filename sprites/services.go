package sprites

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Services describes the sprite's services.
func (s *Sprite) Services(ctx context.Context) ([]Service, error) {
	var answer RawJSON
	err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("services"), Retry: true}, &answer)
	if err != nil {
		return nil, fmt.Errorf("list services of %s: %w", s.describe(), err)
	}
	var list []Service
	var wrapped struct{ Services []Service }
	switch {
	case json.Unmarshal(answer, &list) == nil:
		return list, nil
	case json.Unmarshal(answer, &wrapped) == nil: // some servers
		return wrapped.Services, nil
	}
	return nil, fmt.Errorf("list services of %s: the answer is not a list", s.describe())
}

// Service describes one. ErrNotFound is a service, or a sprite, that is not there.
func (s *Sprite) Service(ctx context.Context, name string) (Service, error) {
	var d Service
	if err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("services", name), Retry: true}, &d); err != nil {
		return Service{}, fmt.Errorf("service %s of %s: %w", name, s.describe(), err)
	}
	return d, nil
}

// Follow says how the calls that change a service are followed. The zero value
// returns as soon as the change is under way.
type Follow struct {
	Duration time.Duration      // tell what happens for so long
	Events   func(ServiceEvent) // is called with each event, on the caller's goroutine; nil: nobody
}

// PutService defines a service, or defines it anew, and starts it; def.State is
// ignored. One that runs as defined already is left alone.
func (s *Sprite) PutService(ctx context.Context, def Service, follow Follow) error {
	return s.changeService(ctx, "define", def.Name, follow, Request{
		Method: http.MethodPut, Path: s.path("services", def.Name), JSON: def, Query: follow.query(),
	})
}

// StartService starts a service, and first those that it needs.
func (s *Sprite) StartService(ctx context.Context, name string, follow Follow) error {
	return s.changeService(ctx, "start", name, follow, Request{
		Method: http.MethodPost, Path: s.path("services", name, "start"), Query: follow.query(),
	})
}

// RestartService ends a service, if it runs, and starts it.
func (s *Sprite) RestartService(ctx context.Context, name string, follow Follow) error {
	return s.changeService(ctx, "restart", name, follow, Request{
		Method: http.MethodPost, Path: s.path("services", name, "restart"), Query: follow.query(),
	})
}

// StopService ends a service, which then stays so, over boots too: TERM, and
// after grace KILL, to all that it started. It returns when that is done; events
// are as in Follow. A service that does not run is an *Error with status 409.
func (s *Sprite) StopService(ctx context.Context, name string, grace time.Duration, events func(ServiceEvent)) error {
	return s.changeService(ctx, "stop", name, Follow{Events: events}, Request{
		Method: http.MethodPost, Path: s.path("services", name, "stop"), Query: url.Values{"timeout": {grace.String()}},
	})
}

// ServiceLogs calls f with the last lines of a service's log, and then, for as
// long as follow, with what comes. An error of f ends it and is returned.
func (s *Sprite) ServiceLogs(ctx context.Context, name string, lines int, follow time.Duration, f func(ServiceEvent) error) error {
	err := s.serviceEvents(ctx, Request{
		Method: http.MethodGet,
		Path:   s.path("services", name, "logs"),
		Query:  url.Values{"lines": {strconv.Itoa(lines)}, "duration": {follow.String()}},
		Retry:  true,
	}, f)
	if err != nil {
		return fmt.Errorf("logs of service %s of %s: %w", name, s.describe(), err)
	}
	return nil
}

// SignalService sends a signal to a service's main process.
func (s *Sprite) SignalService(ctx context.Context, name string, sig Signal) error {
	body := ServiceSignal{Name: name, Signal: sig.String()}
	if err := s.client.Call(ctx, Request{Method: http.MethodPost, Path: s.path("services", "signal"), JSON: body}, nil); err != nil {
		return fmt.Errorf("signal service %s of %s: %w", name, s.describe(), err)
	}
	return nil
}

// DeleteService ends a service and forgets its definition. Its log stays.
func (s *Sprite) DeleteService(ctx context.Context, name string) error {
	if err := s.client.Call(ctx, Request{Method: http.MethodDelete, Path: s.path("services", name)}, nil); err != nil {
		return fmt.Errorf("delete service %s of %s: %w", name, s.describe(), err)
	}
	return nil
}

func (f Follow) query() url.Values { return url.Values{"duration": {f.Duration.String()}} }

func (s *Sprite) changeService(ctx context.Context, verb, name string, follow Follow, r Request) error {
	err := s.serviceEvents(ctx, r, func(e ServiceEvent) error {
		if follow.Events != nil {
			follow.Events(e)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s service %s of %s: %w", verb, name, s.describe(), err)
	}
	return nil
}

// errNoComplete is a stream of events that was cut.
var errNoComplete = errors.New("the answer ended before it was complete")

// serviceEvents makes a call that is answered by events. One that does not end in a
// complete event has been cut.
func (s *Sprite) serviceEvents(ctx context.Context, r Request, f func(ServiceEvent) error) error {
	resp, err := s.client.Do(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	complete := false
	err = readLines(resp.Body, func(line []byte) error {
		var e ServiceEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		complete = complete || e.Type == ServiceEventComplete
		return f(e)
	})
	if err == nil && !complete {
		err = errNoComplete
	}
	return err
}
