package services

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// TestStartAfterStop: a service that somebody starts after the services were stopped, does not
// begin. Otherwise nobody would end it, and Close would wait for it for ever.
func TestStartAfterStop(t *testing.T) {
	s := New(t.TempDir(), 0, slog.New(slog.DiscardHandler), func(sprites.Service) (Program, error) { return nil, errors.New("there is no program") })
	v := s.add(sprites.Service{Name: "web", Cmd: "web"})
	s.Stop(0)
	if v.start() {
		t.Fatal("it was started")
	}
	s.Close()
}
