package covetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/internal/test/executable"
)

// InProcess is a sprite.Runtime without real sandboxes. Each is a real guest in this
// process; its commands run on the host as the test's user, in a folder of its own. Close
// ends them all. The sandboxes can't be paused, saved or moved to another disk. A disk
// can't be read without a sandbox.
type InProcess struct {
	Dir      string          // holds the sprites' folders
	Handler  http.Handler    // answers in place of the guest; nil: a real guest
	BootGate <-chan struct{} // if not nil, Boot waits until it is closed
	Copied   bool            // the server's folder is a copy: live sandboxes are the original's

	mu    sync.Mutex
	boots int
	live  map[string]*Sandbox
}

// Sandbox is a sandbox of InProcess.
type Sandbox struct {
	runtime *InProcess
	machine sprite.Machine
	started time.Time
	token   string
	guest   *guest.Server // nil: Handler answers
	http    *http.Server
	ln      net.Listener
	done    chan struct{}

	once  sync.Once
	mu    sync.Mutex
	ended string
}

// Boot starts a guest.
func (r *InProcess) Boot(ctx context.Context, m sprite.Machine) (sprite.Sandbox, error) {
	if r.BootGate != nil {
		select {
		case <-r.BootGate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.boots++
	if r.live[m.ID] != nil {
		return nil, fmt.Errorf("sprite %s is live already", m.Hostname)
	}
	sb, err := r.start(m)
	if err != nil {
		return nil, err
	}
	if r.live == nil {
		r.live = map[string]*Sandbox{}
	}
	r.live[m.ID] = sb
	return sb, nil
}

func (r *InProcess) start(m sprite.Machine) (*Sandbox, error) {
	DefaultSignals()
	home, err := r.home(m.Layers)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	sb := &Sandbox{
		runtime: r, machine: m, started: time.Now(), token: rand.Text(), ln: ln, done: make(chan struct{}),
	}
	handler := r.Handler
	if handler == nil {
		env := map[string]string{"HOME": home}
		for k, v := range m.Env {
			env[k] = v
		}
		sb.guest = &guest.Server{
			Token: sb.token, Incarnation: m.Incarnation, Env: env, User: strconv.Itoa(os.Getuid()), Workdir: home,
			Dir: filepath.Join(r.Dir, m.ID, "sprite"),
		}
		if err := errors.Join(sb.guest.ShowPolicy(m.NetworkPolicy), sb.guest.ShowGitConfig(connect.GitConfig(m.Connectors))); err != nil {
			return nil, errors.Join(err, ln.Close())
		}
		handler = sb.guest.Handler()
		sb.guest.StartServices()
	}
	sb.http = &http.Server{Handler: settled(handler), ReadHeaderTimeout: time.Minute}
	if sb.guest != nil {
		ln = sb.guest.Door(ln)
	}
	go func() { _ = sb.http.Serve(ln) }() // ends with Close
	return sb, nil
}

// settled has a program that a request wrote be free to start, by the time that the request ends.
// In a sandbox no kernel minds.
func settled(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		executable.Settle()
	})
}

// home returns the folder where the commands of a sprite start: its disk. If the chain's
// last layer is new, it copies the layer below.
func (r *InProcess) home(chain []string) (string, error) {
	dir := func(layer string) string { return filepath.Join(r.Dir, "layers", layer) }
	home := dir(chain[len(chain)-1])
	for i := len(chain) - 1; i >= 0; i-- {
		from := dir(chain[i])
		if _, err := os.Stat(from); err != nil {
			continue
		}
		if from == home {
			return home, nil
		}
		return home, os.CopyFS(home, os.DirFS(from))
	}
	return home, os.MkdirAll(home, 0o755)
}

// Usage is the usage of this process, which the sandbox is part of.
func (s *Sandbox) Usage() sprite.Usage {
	var use unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &use) // fails for no process
	return sprite.Usage{Memory: use.Maxrss << 10, CPU: time.Duration(use.Utime.Nano() + use.Stime.Nano()), Written: use.Oublock * 512}
}

// RemoveLayer removes a layer.
func (r *InProcess) RemoveLayer(_ context.Context, layer string) error {
	return os.RemoveAll(filepath.Join(r.Dir, "layers", layer))
}

// Mounted returns the layers of the running sandboxes.
func (r *InProcess) Mounted(context.Context) (all []string, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sb := range r.live {
		all = append(all, sb.machine.Layers...)
	}
	return all, nil
}

// Stock lists the layers.
func (r *InProcess) Stock(context.Context) (all []sprite.Item, _ error) {
	entries, err := os.ReadDir(filepath.Join(r.Dir, "layers"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		all = append(all, sprite.Item{Kind: sprite.ItemLayer, Name: e.Name()})
	}
	return all, nil
}

// SetAside moves a layer to a folder beside the layers. It does not record the reason.
func (r *InProcess) SetAside(_ context.Context, item sprite.Item, _ string) (to string, err error) {
	from := filepath.Join(r.Dir, "layers", item.Name)
	if _, err := os.Stat(from); err != nil || item.Kind != sprite.ItemLayer {
		return "", nil
	}
	to = filepath.Join(r.Dir, "aside", item.Name)
	return to, errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(from, to))
}

// Prepare has nothing to make.
func (r *InProcess) Prepare() error { return nil }

// Lost returns sprite.Elsewhere for a live sandbox if the server's folder is a copy. Else
// it returns "": all sandboxes are in this process.
func (r *InProcess) Lost(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Copied && r.live[id] != nil {
		return sprite.Elsewhere
	}
	return ""
}

// Occupied returns nil: all sandboxes are in this process.
func (r *InProcess) Occupied(string) error { return nil }

// Unlimited returns the limits that Status reports as not enforced for a running sandbox.
func (r *InProcess) Unlimited() []string { return []string{"everything: the sandbox is the host"} }

// MemoryMB returns the limit: a sandbox may use all of it.
func (r *InProcess) MemoryMB(limit int) int { return limit }

// Logs returns nil: there are no logs.
func (r *InProcess) Logs(string, sprite.Log) []string { return nil }

// Layers returns nil: the disks can't be read.
func (r *InProcess) Layers() sprite.LayerStore { return nil }

// Memories returns nil: no sandbox is a sprite.Hibernator.
func (r *InProcess) Memories() sprite.MemoryStore { return nil }

// Boots returns how many calls of Boot succeeded.
func (r *InProcess) Boots() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.boots
}

// Live returns the running sandboxes.
func (r *InProcess) Live(context.Context) ([]sprite.Sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var live []sprite.Sandbox
	if r.Copied {
		return nil, nil
	}
	for _, sb := range r.live {
		live = append(live, sb)
	}
	return live, nil
}

// Destroy removes a sprite's folder.
func (r *InProcess) Destroy(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live[id] != nil {
		return errors.New("the sandbox is live")
	}
	return os.RemoveAll(filepath.Join(r.Dir, id))
}

// Kill ends a sprite's sandbox as if it had died.
func (r *InProcess) Kill(id, why string) {
	r.mu.Lock()
	sb := r.live[id]
	r.mu.Unlock()
	if sb != nil {
		_ = sb.end(why, 0) // it is dead, whatever it says
	}
}

// Close ends every sandbox.
func (r *InProcess) Close() error {
	live, _ := r.Live(context.Background()) // never fails
	var errs error
	for _, sb := range live {
		errs = errors.Join(errs, sb.Stop(context.Background(), 0))
	}
	return errs
}

// ID is the machine's.
func (s *Sandbox) ID() string { return s.machine.ID }

// Dial connects to a port of the host's loopback; boot.API is the guest's API.
func (s *Sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if port == boot.API {
		addr = s.ln.Addr().String()
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil || port != boot.API || s.guest == nil {
		return conn, err
	}
	if err := boot.GreetWithin(ctx.Done(), conn, s.token); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Status describes the sandbox.
func (s *Sandbox) Status() sprite.SandboxStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sprite.SandboxStatus{
		Incarnation: s.machine.Incarnation, Address: "127.0.0.1", Started: s.started,
		Unlimited: s.runtime.Unlimited(), Ended: s.ended,
	}
}

// SetNetwork has no effect: the network is the host's, which has no policy.
func (s *Sandbox) SetNetwork(context.Context, policy.Set) error { return nil }

// SetConnectors has no effect: there is no gateway to reach them through.
func (s *Sandbox) SetConnectors(context.Context, map[string]connect.Upstream) error { return nil }

// Limit has no effect: see Unlimited.
func (s *Sandbox) Limit(context.Context, int, int) error { return nil }

// WrittenBytes returns 0: the bytes that commands write on the host are not counted.
func (s *Sandbox) WrittenBytes() (int64, error) { return 0, nil }

// UnnamedBytes returns 0, for the same reason.
func (s *Sandbox) UnnamedBytes() (int64, error) { return 0, nil }

// Stop ends the guest and its commands.
func (s *Sandbox) Stop(_ context.Context, grace time.Duration) error { return s.end("stopped", grace) }

func (s *Sandbox) end(why string, grace time.Duration) error {
	var err error
	s.once.Do(func() {
		if s.guest != nil {
			s.guest.Stop(grace)
		}
		err = s.http.Close()
		if s.guest != nil {
			err = errors.Join(err, s.guest.Close())
		}
		s.mu.Lock()
		s.ended = why
		s.mu.Unlock()
		s.runtime.mu.Lock()
		delete(s.runtime.live, s.machine.ID)
		s.runtime.mu.Unlock()
		close(s.done)
	})
	<-s.done
	return err
}

// Done is closed at the end.
func (s *Sandbox) Done() <-chan struct{} { return s.done }
