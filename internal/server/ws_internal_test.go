package server

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// TestSocketBegins: a request is refused that a socket has no room for, and taken once there is room again.
func TestSocketBegins(t *testing.T) {
	s := &socket{asked: map[int64]context.CancelFunc{}, held: budget{left: 10, over: make(chan struct{})}}
	begin := func(id int64, size int) string {
		err := s.begin(cove.SocketRequest{ID: id, Params: json.RawMessage(strings.Repeat(" ", size))}, func() {})
		if e, ok := errors.AsType[*fail.Error](err); ok {
			return e.Code
		}
		return ""
	}
	for _, step := range []struct {
		id   int64
		size int
		want string
	}{{1, 11, "limit"}, {1, 6, ""}, {1, 1, "bad_request"}, {2, 5, "limit"}, {2, 4, ""}} {
		if got := begin(step.id, step.size); got != step.want {
			t.Errorf("%+v: got %q", step, got)
		}
	}
	s.held.release(6)
	if got := begin(3, 6); got != "" {
		t.Errorf("with room again: got %q", got)
	}
	if s.held.hold(0) != nil || s.held.hold(1) == nil {
		t.Error("it is full too early, or too late")
	}
	s.held.release(11)
	if s.held.hold(0) == nil {
		t.Error("one that is told to go may stay")
	}
	<-s.held.over
}
