// Package services keeps the programs running that a sprite's owner has defined. It also is
// their API: definitions, events, logs, and the port that the sprite's URL leads to.
package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/guest/signals"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// Set is the services of a sprite: programs that it keeps running. Their definitions are
// files, one each, so that they live as long as the sprite's disk. Close it when done.
type Set struct {
	logger  *slog.Logger
	program func(def sprites.Service) (Program, error)
	saved   definitions
	logs    string // the folder of the log files
	port    int    // see New
	closing chan struct{}
	wg      sync.WaitGroup

	changing sync.Mutex // held while definitions change

	mu     sync.Mutex
	all    map[string]*service
	closed bool // nothing is started any more
}

// A Program is a service's program, with all that it has started.
type Program interface {
	// Start starts the program, and reports whether it could be. If it could not start, out
	// gets the reason. In either case, out gets its end.
	Start(out Output) (pid int, started bool)
	// Exited is closed when the program itself has ended.
	Exited() <-chan struct{}
	// Signal sends a signal to the program itself. If that has ended, the error is
	// os.ErrProcessDone.
	Signal(sig syscall.Signal) error
	// End ends the program and all that it has started: TERM, and after grace by force.
	End(grace time.Duration) error
}

// Output is where a program's output goes. Its methods are called from several
// goroutines.
type Output interface {
	// Write takes output. p is only lent.
	Write(stream sprites.Stream, p []byte)
	// Exit is called once all output is out, with the code and, of a death by a signal or
	// for want of memory, the reason. The first of several calls counts.
	Exit(code int, reason string)
}

// New makes the services of a sprite, with their files in dir. If dir is empty, the sprite has
// no services. port is where the sprite's URL leads if no service says it (0: 8080). program
// prepares the program of a definition.
func New(dir string, port int, logger *slog.Logger, program func(sprites.Service) (Program, error)) *Set {
	s := &Set{logger: logger, program: program, port: port, closing: make(chan struct{}), all: map[string]*service{}}
	s.saved.logger = logger
	if dir != "" {
		s.saved.dir = filepath.Join(dir, "services")
		s.logs = filepath.Join(dir, "logs", "services")
	}
	return s
}

// Close ends the answers that still tell of events, and waits for all goroutines. Stop
// must have been called before.
func (s *Set) Close() {
	close(s.closing)
	s.wg.Wait()
}

// Bounds on the definitions. Those of an older version may be larger: they are kept until they are changed.
const (
	Max           = 256
	MaxDefinition = 64 << 10 // bytes of one, as JSON
	MaxTogether   = 1 << 20  // bytes of all
)

// Boot reads the definitions and starts those that nobody has stopped. Call it once.
func (s *Set) Boot() {
	if s.saved.dir == "" {
		return
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	wanted := map[string]bool{}
	for _, d := range s.saved.readAll() {
		if s.add(d.Service) != nil && !d.Stopped {
			wanted[d.Name] = true
		}
	}
	for _, v := range s.list() {
		s.startInOrder(v, wanted)
	}
}

// startInOrder starts a service if it is wanted, after those that it needs. Each
// then waits by itself until it can count on them. A service that somebody has stopped stays down.
func (s *Set) startInOrder(v *service, wanted map[string]bool) {
	if !wanted[v.def.Name] {
		return
	}
	delete(wanted, v.def.Name)
	for _, name := range v.def.Needs {
		if need, err := s.get(name); err == nil {
			s.startInOrder(need, wanted)
		}
	}
	v.resume()
}

// add makes the service of a definition, unless the guest is stopping.
func (s *Set) add(def sprites.Service) *service {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.all) >= Max {
		return nil
	}
	v := &service{
		set: s, def: def, events: map[*subscription]bool{},
		log:   logFile{path: filepath.Join(s.logs, def.Name+".log"), max: maxLog},
		state: sprites.ServiceState{Name: def.Name, Status: sprites.ServiceStopped},
	}
	s.all[def.Name] = v
	return v
}

func (s *Set) get(name string) (*service, error) {
	if s.saved.dir == "" {
		return nil, noServices()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.all[name]; v != nil {
		return v, nil
	}
	return nil, serviceNotFound(name)
}

// holds fails if a service was removed after somebody got it. A caller that holds changing must
// ask before it saves the service's definition or starts its program: nobody could reach that.
func (s *Set) holds(v *service) error {
	name := v.definition().Name
	if now, err := s.get(name); err != nil || now != v {
		return serviceNotFound(name)
	}
	return nil
}

// list returns the services by name.
func (s *Set) list() []*service {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*service, 0, len(s.all))
	for _, v := range s.all {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *service) int { return strings.Compare(a.def.Name, b.def.Name) })
	return all
}

// put takes a definition, new or changed, and returns its service. If the service runs with
// another definition, the old program is ended first.
func (s *Set) put(def sprites.Service) (v *service, changed bool, err error) {
	if s.saved.dir == "" {
		return nil, false, noServices()
	}
	if err := checkService(&def); err != nil {
		return nil, false, err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.checkFit(def); err != nil {
		return nil, false, err
	}
	v, err = s.get(def.Name)
	if err != nil {
		if err := s.saved.save(def, false); err != nil {
			return nil, false, err
		}
		if v = s.add(def); v == nil {
			_ = os.Remove(s.saved.file(def.Name)) // it can't be had
			return nil, false, wire.Full("too_many_services", Max, "There are %d services already, or the sprite is stopping.", Max)
		}
		return v, true, nil
	}
	v.mu.Lock()
	changed = !sameService(v.def, def)
	v.mu.Unlock()
	if err := s.saved.save(def, false); err != nil {
		return nil, false, err
	}
	if changed {
		v.stop(defaultStop)
		v.mu.Lock()
		v.def = def
		v.mu.Unlock()
	}
	return v, changed, nil
}

// defaultStop is how long a service may take to end.
const defaultStop = 10 * time.Second

// sizeOf is how long a definition is as JSON, in bytes.
func sizeOf(def sprites.Service) int {
	text, err := json.Marshal(def)
	if err != nil { // it has come as JSON
		return MaxTogether
	}
	return len(text)
}

// checkFit checks a definition against the others.
func (s *Set) checkFit(def sprites.Service) error {
	size := sizeOf(def)
	if size > MaxDefinition {
		return fail.Newf("too_large", "", "The definition of the service %s has %d bytes, more than %d; put long arguments and variables into a file, and have the program read that.", def.Name, size, MaxDefinition)
	}
	needs := map[string][]string{def.Name: def.Needs}
	for _, other := range s.list() {
		d := other.describe()
		if d.Name == def.Name {
			continue
		}
		needs[d.Name] = d.Needs
		size += sizeOf(other.definition())
		if def.HTTPPort != 0 && d.HTTPPort != 0 {
			return fail.New("http_port_taken", "another service already has an HTTP port configured", "")
		}
	}
	if size > MaxTogether {
		return fail.Newf("too_large", "", "With the service %s, all definitions of this sprite have %d bytes, more than %d; delete a service that nobody needs, or put long arguments into files.", def.Name, size, MaxTogether)
	}
	for _, name := range def.Needs {
		if _, ok := needs[name]; !ok {
			return wire.BadRequest("needs names %.64q, and there is no such service; define that one first.", name)
		}
	}
	return checkCircle(needs, def.Name)
}

// want starts a service, after those that it needs, and records on the disk that it is wanted.
func (s *Set) want(v *service) (started bool, err error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.wantInOrder(v, map[string]bool{})
}

// wantInOrder is want. The caller must hold changing. seen has the services that were handled
// already: many may need the same one.
func (s *Set) wantInOrder(v *service, seen map[string]bool) (started bool, err error) {
	if err := s.holds(v); err != nil {
		return false, err
	}
	def := v.definition()
	seen[def.Name] = true
	for _, name := range def.Needs {
		if seen[name] {
			continue
		}
		need, err := s.get(name)
		if err != nil {
			return false, err
		}
		if _, err := s.wantInOrder(need, seen); err != nil {
			return false, err
		}
	}
	if err := s.saved.save(def, false); err != nil {
		return false, err
	}
	return v.start(), nil
}

// restart ends a service and starts it. If somebody stops the service before it has ended, it
// stays down.
func (s *Set) restart(v *service) error {
	v.want(true)
	v.stop(defaultStop)
	s.changing.Lock()
	defer s.changing.Unlock()
	if !v.wanted() {
		return fail.Newf("service_not_running", "", "somebody has stopped service %s meanwhile", v.definition().Name)
	}
	_, err := s.wantInOrder(v, map[string]bool{})
	return err
}

// unwant stops a service, so that the next boot does not start it.
func (s *Set) unwant(v *service, grace time.Duration) (stopped bool, err error) {
	done, err := s.beginUnwant(v, grace)
	if err != nil || done == nil {
		return false, err
	}
	<-done
	return true, nil
}

// beginUnwant is unwant, but does not wait, just as beginStop. The stop begins before anybody else
// changes services: a start that comes after the stop was recorded finds it begun.
func (s *Set) beginUnwant(v *service, grace time.Duration) (done <-chan struct{}, err error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := s.holds(v); err != nil {
		return nil, err
	}
	if err := s.saved.save(v.definition(), true); err != nil {
		return nil, err
	}
	v.want(false)
	return v.beginStop(grace), nil
}

func (v *service) definition() sprites.Service {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.def
}

// remove ends a service and deletes its definition; its log stays.
func (s *Set) remove(name string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	v, err := s.get(name)
	if err != nil {
		return err
	}
	for _, other := range s.list() {
		if slices.Contains(other.definition().Needs, name) {
			return fail.New("service_needed", fmt.Sprintf("service %s needs it; delete that one first", other.definition().Name), "")
		}
	}
	if err := os.Remove(s.saved.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	v.stop(defaultStop)
	s.mu.Lock()
	delete(s.all, name)
	s.mu.Unlock()
	return nil
}

// awaitNeeds waits until the services that a service needs are ready.
func (s *Set) awaitNeeds(ctx context.Context, needs []string) error {
	for _, name := range needs {
		v, err := s.get(name)
		if err != nil {
			return err
		}
		if err := v.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// needing returns the services that need another one, and run or will run.
func (s *Set) needing(name string) []*service {
	return slices.DeleteFunc(s.list(), func(v *service) bool {
		return !v.kept() || !slices.Contains(v.definition().Needs, name)
	})
}

// retryNeeding makes the services that wait for one that has started check again.
func (s *Set) retryNeeding(name string) {
	for _, v := range s.needing(name) {
		v.retry()
	}
}

// prepare prepares a service's program.
func (s *Set) prepare(def sprites.Service) (Program, error) {
	if s.stopping() {
		return nil, fail.New("stopping", "The sprite is stopping.", "")
	}
	return s.program(def)
}

// stopping reports whether Stop was called.
func (s *Set) stopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// begin runs f in a goroutine that Close waits for. After Stop it does not run f, and reports
// so: nobody would end the programs that f starts.
func (s *Set) begin(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Go(f)
	return true
}

// Stop ends all services, each before those that it needs: TERM, and after grace by
// force. None starts afterwards.
func (s *Set) Stop(grace time.Duration) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	all := s.list()
	done := map[string]chan struct{}{}
	for _, v := range all {
		done[v.def.Name] = make(chan struct{})
	}
	var wg sync.WaitGroup
	for _, v := range all {
		wg.Go(func() {
			defer close(done[v.def.Name])
			for _, other := range all {
				if slices.Contains(other.definition().Needs, v.def.Name) {
					<-done[other.def.Name] // there are no circles
				}
			}
			v.stop(grace)
		})
	}
	wg.Wait()
}

// Copied handles services that are copies. It restarts those that run, each after those that
// it needs. If a definition's AfterRestore names a signal, it sends that instead; with none,
// it does nothing. A service that somebody stops stays down. It does not wait.
func (s *Set) Copied() { s.wg.Go(s.copied) }

func (s *Set) copied() {
	wanted := map[string]bool{}
	var ending sync.WaitGroup
	for _, v := range s.list() {
		def := v.definition()
		switch {
		case !v.kept() || !v.wanted() || def.AfterRestore == sprites.AfterRestoreNone:
		case def.AfterRestore == "" || def.AfterRestore == sprites.AfterRestoreRestart:
			wanted[def.Name] = true
			ending.Go(func() { v.stop(defaultStop) })
		default:
			sig, err := signals.Parse(def.AfterRestore)
			if err == nil {
				err = v.signal(sig)
			}
			if err != nil { // it may have just ended, and begins anew then
				s.logger.Warn("signal a service that was copied", "service", def.Name, "err", err)
			}
		}
	}
	ending.Wait()
	s.changing.Lock()
	defer s.changing.Unlock()
	for _, v := range s.list() {
		if s.stopping() {
			return
		}
		s.startInOrder(v, wanted)
	}
}

func serviceNotFound(name string) error {
	return fail.New("service_not_found", fmt.Sprintf("service not found: %.64q", name), "")
}

func notRunning(name string) error {
	return fail.New("service_not_running", "service "+name+" is not running", "")
}

func noServices() error {
	return fail.New("not_available", "There are no services here.", "")
}
