package services

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// stubborn is a program that ends only when the test lets it.
type stubborn struct {
	*fixture

	exited chan struct{}
	out    Output
}

func (p *stubborn) Start(out Output) (pid int, started bool) {
	p.out = out
	p.starts <- struct{}{}
	return 7, true
}

func (p *stubborn) Exited() <-chan struct{}     { return p.exited }
func (p *stubborn) Signal(syscall.Signal) error { return nil }

func (p *stubborn) End(time.Duration) error {
	select {
	case <-p.exited:
		return nil
	default:
	}
	p.ends <- struct{}{}
	<-p.mayEnd
	close(p.exited)
	p.out.Exit(143, "")
	return nil
}

// fixture is a set with one service, web, whose programs are stubborn.
type fixture struct {
	t   *testing.T
	set *Set
	web *service

	starts chan struct{} // has an element for each start of a program
	ends   chan struct{} // has one for each program that is about to be ended
	mayEnd chan struct{} // when closed, programs end
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, starts: make(chan struct{}, 10), ends: make(chan struct{}, 10), mayEnd: make(chan struct{})}
	f.set = New(t.TempDir(), 0, slog.New(slog.DiscardHandler), func(sprites.Service) (Program, error) {
		return &stubborn{fixture: f, exited: make(chan struct{})}, nil
	})
	var err error
	if f.web, _, err = f.set.put(sprites.Service{Name: "web", Cmd: "web"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.letEnd()
		f.set.Stop(0)
		f.web.stop(0) // the set may have it no more
		f.set.Close()
	})
	return f
}

// run starts the service, and returns when its program runs.
func (f *fixture) run() {
	f.t.Helper()
	if started, err := f.set.want(f.web); err != nil || !started {
		f.t.Fatalf("start: %t, %v", started, err)
	}
	<-f.starts
}

// letEnd lets the programs end.
func (f *fixture) letEnd() {
	select {
	case <-f.mayEnd:
	default:
		close(f.mayEnd)
	}
}

// TestRemovedStaysAway: a caller that got a service before it was removed neither starts it nor
// saves its definition again. A restart gets there while the removal waits for the program's end.
func TestRemovedStaysAway(t *testing.T) {
	changes := map[string]func(s *Set, web *service) error{
		"start": func(s *Set, web *service) error { _, err := s.want(web); return err },
		"stop":  func(s *Set, web *service) error { _, err := s.unwant(web, 0); return err },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if err := f.set.remove("web"); err != nil {
				t.Fatal(err)
			}
			err := change(f.set, f.web)
			if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != "service_not_found" {
				t.Errorf("got %v, want service_not_found", err)
			}
			if _, err := os.Stat(f.set.saved.file("web")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the definition's file: %v, want none", err)
			}
			if f.web.kept() {
				t.Error("the service runs")
			}
		})
	}
}

// TestStartDuringStop: a service that somebody starts while it is being stopped starts when it has
// ended. If somebody stops it once more before that, it stays down.
func TestStartDuringStop(t *testing.T) {
	f := newFixture(t)
	f.run()
	stopping := func() (done <-chan struct{}) {
		t.Helper()
		done, err := f.set.beginUnwant(f.web, 0)
		if err != nil || done == nil {
			t.Fatalf("stop: %v", err)
		}
		return done
	}
	done := stopping()
	<-f.ends
	for range 2 {
		if started, err := f.set.want(f.web); err != nil || !started {
			t.Fatalf("start: %t, %v", started, err)
		}
	}
	f.letEnd()
	<-done
	<-f.starts
	if status := f.web.describe().State.Status; status == sprites.ServiceStopped {
		t.Errorf("the service is %s", status)
	}

	f.mayEnd = make(chan struct{}) // the program that runs has not read it yet
	done = stopping()
	<-f.ends
	if _, err := f.set.want(f.web); err != nil {
		t.Fatal(err)
	}
	again := stopping()
	f.letEnd()
	<-done
	<-again
	if f.web.kept() {
		t.Error("the service runs after the second stop")
	}
}

// TestStopDuringRestart: a stop that comes while a restart waits for the program's end stands. A
// restart that comes while the service is being stopped, after a restore, leaves it down too.
func TestStopDuringRestart(t *testing.T) {
	restarts := map[string]func(f *fixture){
		"of a copy": func(f *fixture) { f.set.copied() },
		"by hand": func(f *fixture) {
			if err := f.set.restart(f.web); err == nil {
				f.t.Error("the restart has no error")
			}
		},
	}
	for name, restart := range restarts {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.run()
			restarted := make(chan struct{})
			go func() {
				defer close(restarted)
				restart(f)
			}()
			<-f.ends
			stopped, err := f.set.beginUnwant(f.web, 0)
			if err != nil {
				t.Fatal(err)
			}
			f.letEnd()
			<-stopped
			<-restarted
			if f.web.kept() {
				t.Error("the service runs")
			}
		})
	}

	t.Run("of a copy that is being stopped", func(t *testing.T) {
		f := newFixture(t)
		f.run()
		stopped, err := f.set.beginUnwant(f.web, 0)
		if err != nil {
			t.Fatal(err)
		}
		<-f.ends
		sub := f.web.subscribe()
		copied := make(chan struct{})
		go func() {
			defer close(copied)
			f.set.copied()
		}()
		select {
		case <-copied:
		case <-sub.wake:
			t.Error("it waits for that service")
		}
		f.letEnd()
		<-stopped
		<-copied
		if f.web.kept() {
			t.Error("the service runs")
		}
	})
}

// TestStopBetweenRestart: if a restart has ended a service's program, but not started it yet, a stop
// answers that the service does not run. That holds afterwards, too.
func TestStopBetweenRestart(t *testing.T) {
	f := newFixture(t)
	f.run()
	f.set.changing.Lock()
	restarted := make(chan struct{})
	f.letEnd()
	go func() {
		defer close(restarted)
		f.set.copied()
	}()
	<-f.ends
	f.web.mu.Lock()
	done := f.web.done
	f.web.mu.Unlock()
	<-done
	answer := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/services/web/stop", nil)
	r.SetPathValue("name", "web")
	if e, ok := errors.AsType[*fail.Error](api{set: f.set}.postStop(answer, r)); !ok || e.Code != "service_not_running" {
		t.Errorf("stop: got %v, want service_not_running", e)
	}
	f.set.changing.Unlock()
	<-restarted
	if f.web.kept() {
		t.Error("the service runs")
	}
}
