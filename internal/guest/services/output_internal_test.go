package services

import (
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// hasty is a program that has printed, and perhaps ended, before its start is known.
type hasty struct{ starts bool }

func (h hasty) Start(out Output) (pid int, started bool) {
	out.Write(sprites.StreamStdout, []byte("one\ntw"))
	out.Write(sprites.StreamStdout, []byte("o"))
	out.Exit(3, "")
	return 7, h.starts
}

func (hasty) Exited() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (hasty) Signal(syscall.Signal) error { return nil }
func (hasty) End(time.Duration) error     { return nil }

// TestStartedComesFirst: nothing that a program prints comes before the event of its start.
func TestStartedComesFirst(t *testing.T) {
	for starts, want := range map[bool]string{true: "started, stdout one\n, stdout two", false: "stdout one\n, stdout two"} {
		s := New(t.TempDir(), 0, slog.New(slog.DiscardHandler), func(sprites.Service) (Program, error) { return hasty{starts}, nil })
		v := s.add(sprites.Service{Name: "web", Cmd: "web"})
		sub := v.subscribe()
		if code, started := v.runOnce(t.Context()); code != 3 || started != starts {
			t.Errorf("got %d, %t", code, started)
		}
		var got []string
		for _, e := range sub.take() {
			got = append(got, strings.TrimSuffix(e.Type+" "+e.Data, " "))
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("starts %t: got %q, want %q", starts, text, want)
		}
		s.Close()
	}
}
