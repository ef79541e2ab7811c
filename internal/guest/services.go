package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/guest/smallfile"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// services are the programs that the sprite keeps running. Their definitions are
// files, one each, so that they live as long as the sprite's disk.
type services struct {
	srv *Server
	dir string // of the definitions; "" where there are no services

	changing sync.Mutex // held while definitions change

	mu     sync.Mutex
	all    map[string]*service
	closed bool
}

// maxServices bounds the definitions.
const maxServices = 256

// serviceName is what may be a service's name. "signal" stands where a name would
// in a path, and is none.
var serviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// definition is what is kept of a service.
type definition struct {
	sprites.Service
	Stopped bool      `json:"stopped"` // by somebody: the boot leaves it alone
	State   *struct{} `json:"state,omitempty"`
}

func (s *services) open() {
	s.all = map[string]*service{}
	if s.srv.Dir != "" {
		s.dir = filepath.Join(s.srv.Dir, "services")
	}
}

// boot reads the definitions and starts those that nobody has stopped.
func (s *services) boot() {
	if s.dir == "" {
		return
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	wanted := map[string]bool{}
	for _, d := range s.readDefinitions() {
		if s.add(d.Service) != nil && !d.Stopped {
			wanted[d.Name] = true
		}
	}
	for _, v := range s.list() {
		s.startInOrder(v, wanted)
	}
}

// readDefinitions returns what the disk has, by name. A file that is no
// definition, or one that needs itself, is left for somebody to mend.
func (s *services) readDefinitions() []definition {
	files, err := filepath.Glob(filepath.Join(s.dir, "*.json"))
	if err != nil {
		s.srv.Logger.Error("read the services", "err", err)
	}
	var all []definition
	needs := map[string][]string{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		d, err := readDefinition(file, name)
		if err != nil {
			s.srv.Logger.Error("read a service's definition", "file", file, "err", err)
			continue
		}
		all, needs[name] = append(all, d), d.Needs
	}
	return slices.DeleteFunc(all, func(d definition) bool {
		err := checkCircle(needs, d.Name)
		if err != nil {
			s.srv.Logger.Error("read a service's definition", "file", s.file(d.Name), "err", err)
		}
		return err != nil
	})
}

// startInOrder starts a service if it is wanted, after those that it needs. Each
// then waits by itself until it can count on them.
func (s *services) startInOrder(v *service, wanted map[string]bool) {
	if !wanted[v.def.Name] {
		return
	}
	delete(wanted, v.def.Name)
	for _, name := range v.def.Needs {
		if need, err := s.get(name); err == nil {
			s.startInOrder(need, wanted)
		}
	}
	v.start()
}

func readDefinition(file, name string) (definition, error) {
	var d definition
	data, err := smallfile.Read(file)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return d, err
	}
	d.Name = name
	return d, checkService(&d.Service)
}

// add makes the service of a definition, unless the guest is stopping.
func (s *services) add(def sprites.Service) *service {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.all) >= maxServices {
		return nil
	}
	v := &service{
		set: s, def: def, events: map[*subscription]bool{},
		log:   serviceLog{path: s.logFile(def.Name), max: maxServiceLog},
		state: sprites.ServiceState{Name: def.Name, Status: sprites.ServiceStopped},
	}
	s.all[def.Name] = v
	return v
}

func (s *services) logFile(name string) string {
	return filepath.Join(s.srv.Dir, "logs", "services", name+".log")
}

func (s *services) get(name string) (*service, error) {
	if s.dir == "" {
		return nil, noServices()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.all[name]; v != nil {
		return v, nil
	}
	return nil, fail.New("service_not_found", fmt.Sprintf("service not found: %.64q", name), "")
}

// list returns the services by name.
func (s *services) list() []*service {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*service, 0, len(s.all))
	for _, v := range s.all {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b *service) int { return strings.Compare(a.def.Name, b.def.Name) })
	return all
}

// put takes a definition, new or changed, and returns its service. Of a service
// that runs as something else, the old program is ended first.
func (s *services) put(def sprites.Service) (v *service, changed bool, err error) {
	if s.dir == "" {
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
		if err := s.save(def, false); err != nil {
			return nil, false, err
		}
		if v = s.add(def); v == nil {
			_ = os.Remove(s.file(def.Name)) // it can't be had
			return nil, false, fail.New("too_many_services", fmt.Sprintf("There are %d services already, or the sprite is stopping.", maxServices), "")
		}
		return v, true, nil
	}
	v.mu.Lock()
	changed = !sameService(v.def, def)
	v.mu.Unlock()
	if err := s.save(def, false); err != nil {
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

// checkService checks a definition by itself, and fills in what is left out.
func checkService(def *sprites.Service) error {
	if !serviceName.MatchString(def.Name) || def.Name == "signal" {
		return wire.BadRequest("A service's name is letters, digits, dots, dashes and underscores, at most 63, and not signal: %.64q is none.", def.Name)
	}
	if def.Cmd == "" {
		return wire.BadRequest("cmd is missing: the program to run.")
	}
	if def.HTTPPort < 0 || def.HTTPPort > 65535 {
		return wire.BadRequest("http_port %d is no port.", def.HTTPPort)
	}
	if err := checkAfterRestore(def.AfterRestore); err != nil {
		return err
	}
	for key, value := range def.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(value, 0) {
			return wire.BadRequest("%.64q can't be an environment variable.", key)
		}
	}
	for _, text := range append([]string{def.Cmd, def.Dir}, def.Args...) {
		if strings.ContainsRune(text, 0) {
			return wire.BadRequest("A NUL can't be part of a command.")
		}
	}
	if def.Args == nil {
		def.Args = []string{}
	}
	if def.Needs == nil {
		def.Needs = []string{}
	}
	def.State = sprites.ServiceState{}
	return nil
}

// checkFit checks a definition against the others.
func (s *services) checkFit(def sprites.Service) error {
	needs := map[string][]string{def.Name: def.Needs}
	for _, other := range s.list() {
		d := other.describe()
		if d.Name == def.Name {
			continue
		}
		needs[d.Name] = d.Needs
		if def.HTTPPort != 0 && d.HTTPPort != 0 {
			return fail.New("http_port_taken", "another service already has an HTTP port configured", "")
		}
	}
	for _, name := range def.Needs {
		if _, ok := needs[name]; !ok {
			return wire.BadRequest("needs names %.64q, and there is no such service; define that one first.", name)
		}
	}
	return checkCircle(needs, def.Name)
}

// checkCircle refuses a service that needs itself by way of others.
func checkCircle(needs map[string][]string, name string) error {
	seen := map[string]bool{}
	for _, next := range needs[name] {
		if reaches(needs, next, name, seen) {
			return wire.BadRequest("needs goes round in a circle: %.64q needs %.64q.", next, name)
		}
	}
	return nil
}

func reaches(needs map[string][]string, from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	if seen[from] {
		return false
	}
	seen[from] = true
	return slices.ContainsFunc(needs[from], func(next string) bool { return reaches(needs, next, to, seen) })
}

func sameService(a, b sprites.Service) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}

func (s *services) file(name string) string { return filepath.Join(s.dir, name+".json") }

// save writes a definition to the disk: the old one or the new one is there,
// never half of one. Only root may read it, for the secrets in environments.
func (s *services) save(def sprites.Service, stopped bool) error {
	data, err := json.MarshalIndent(definition{Service: def, Stopped: stopped}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(s.file(def.Name), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("save service %s: %w", def.Name, err)
	}
	return nil
}

// want starts a service, and first what it needs, and says so on the disk.
func (s *services) want(v *service) (started bool, err error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	return s.wantInOrder(v, map[string]bool{})
}

// wantInOrder is want for who holds changing. seen has those that were wanted
// already: many may need the same one.
func (s *services) wantInOrder(v *service, seen map[string]bool) (started bool, err error) {
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
	if err := s.save(def, false); err != nil {
		return false, err
	}
	return v.start(), nil
}

// unwant stops a service, and the boot will leave it alone.
func (s *services) unwant(v *service, grace time.Duration) (stopped bool, err error) {
	s.changing.Lock()
	err = s.save(v.definition(), true)
	s.changing.Unlock()
	if err != nil {
		return false, err
	}
	return v.stop(grace), nil
}

func (v *service) definition() sprites.Service {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.def
}

// remove ends a service and deletes its definition; its log stays.
func (s *services) remove(name string) error {
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
	if err := os.Remove(s.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	v.stop(defaultStop)
	s.mu.Lock()
	delete(s.all, name)
	s.mu.Unlock()
	return nil
}

// awaitNeeds waits until what a service needs can be counted on.
func (s *services) awaitNeeds(ctx context.Context, needs []string) error {
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

// needing returns the services that need another one, and run or are to.
func (s *services) needing(name string) []*service {
	return slices.DeleteFunc(s.list(), func(v *service) bool {
		return !v.kept() || !slices.Contains(v.definition().Needs, name)
	})
}

// retryNeeding has the services that wait for one that has started look again.
func (s *services) retryNeeding(name string) {
	for _, v := range s.needing(name) {
		v.retry()
	}
}

// launch prepares a service's program as a session that is in no list.
func (s *services) launch(def sprites.Service) (*session, error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, fail.New("stopping", "The sprite is stopping.", "")
	}
	q := url.Values{"cmd": append([]string{def.Cmd}, def.Args...)}
	for key, value := range def.Env {
		q.Add("env", key+"="+value)
	}
	if def.Dir != "" {
		q.Set("dir", def.Dir)
	}
	cmd, err := s.srv.parseCommand(q)
	if err != nil {
		return nil, err
	}
	return s.srv.unlistedSession(cmd, "service-"+def.Name), nil
}

// stop ends all services, each before those that it needs.
func (s *services) stop(grace time.Duration) {
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

func notRunning(name string) error {
	return fail.New("service_not_running", "service "+name+" is not running", "")
}

func noServices() error {
	return fail.New("not_available", "There are no services here.", "")
}
