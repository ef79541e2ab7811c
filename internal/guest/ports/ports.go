// Package ports finds the ports that programs in the sandbox listen on, and the process that
// has a socket.
package ports

import (
	"cmp"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/sprites"
)

// How ports are looked for. A new port is reported within a second, unless there are very many
// sockets. Then looks are rarer, so that they take only a small share of the sandbox's time.
const (
	portPause    = 500 * time.Millisecond // between two looks
	portShare    = 4                      // a pause is so many times what the look took, at least
	portPauseMax = 5 * time.Second        // but no longer: clocks jump
	portSearches = 8                      // for the process that has a socket; then it counts for nobody's
	maxPorts     = 1024                   // listening sockets that are followed
	maxWatches   = 64                     // clients of GetWatch
)

// Watcher notices the TCP ports that are listened on in the sandbox's own network. It looks
// only while it has followers. Close it when done.
type Watcher struct {
	sessions func() map[int]string // the session of each process that has one
	away     func(pid int) bool    // whether a process is in another network
	silence  time.Duration         // before a client of GetWatch is sent a keepalive message
	watches  *wire.Watches
	wg       sync.WaitGroup

	looking sync.Mutex // held for a look; guards what follows
	sockets map[socket]*listener
	last    int64 // the last port's id

	mu        sync.Mutex
	followers map[*Follower]bool
	stop      chan struct{} // ends run; nil when nobody follows
	seen      bool          // there was a look since somebody follows
	open      []openPort    // what it found; replaced, never changed
}

// socket is a socket by its own address. Linux reuses inode numbers.
type socket struct {
	inode uint64
	addr  netip.AddrPort
}

// listener is what is known of a socket.
type listener struct {
	pid, fd  int    // who has it; 0: not known
	away     bool   // that process is in another network
	searches int    // for that, in vain
	session  string // of that process, or ""
	port     int64  // id of its port; 0: none, because it is the guest's own or nobody's
}

// openPort is an address and port that one or more sockets listen on. Its id
// stays the same as long as there is always one.
type openPort struct {
	id      int64
	event   sprites.PortEvent
	session string
}

// Follower is a client that is told of ports. The Watcher keeps only what it has told the
// client, however late the client asks for news.
type Follower struct {
	watcher *Watcher
	session string        // "": every port of the sandbox
	changed chan struct{} // there may be news
	told    map[int64]sprites.PortEvent
}

// New makes a Watcher. sessions returns the session of each process that has one. silence is
// how long a client of GetWatch hears nothing before a keepalive message.
func New(sessions func() map[int]string, silence time.Duration) *Watcher {
	return &Watcher{sessions: sessions, away: away, silence: silence, watches: wire.NewWatches(maxWatches, chunk)}
}

// away reports whether a process is in another network namespace than this one, as a
// container's processes are. The /proc/net/tcp of gVisor lists the sockets of all namespaces.
// But those of other namespaces can't be reached at the sandbox's addresses.
func away(pid int) bool {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false
	}
	its, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	return err == nil && its != own
}

// Close ends the calls of GetWatch, and waits for all goroutines. All other followers
// must have left.
func (w *Watcher) Close() {
	w.watches.Close()
	w.wg.Wait()
}

// Follow adds a follower of a session's ports, or, without one, of all. Its first news are the
// open ports. The follower must Leave.
func (w *Watcher) Follow(session string) *Follower {
	f := &Follower{watcher: w, session: session, changed: make(chan struct{}, 1), told: map[int64]sprites.PortEvent{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.followers == nil {
		w.followers = map[*Follower]bool{}
	}
	w.followers[f] = true
	if w.stop == nil {
		w.stop = make(chan struct{})
		w.seen, w.open = false, nil
		stop := w.stop
		w.wg.Go(func() { w.run(stop) })
	}
	if w.seen {
		f.changed <- struct{}{}
	}
	return f
}

// Leave ends the following. When the last follower leaves, the looks end.
func (f *Follower) Leave() {
	w := f.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.followers, f)
	if len(w.followers) == 0 && w.stop != nil {
		close(w.stop)
		w.stop = nil
	}
}

// Changed has an element when there may be news.
func (f *Follower) Changed() <-chan struct{} { return f.changed }

// News returns the changes since the last call: first the closed ports, then the opened ones.
func (f *Follower) News() []sprites.PortEvent {
	w := f.watcher
	w.mu.Lock()
	open := w.open
	w.mu.Unlock()
	var events []sprites.PortEvent
	still := map[int64]sprites.PortEvent{}
	for _, p := range open {
		if f.session != "" && f.session != p.session {
			continue
		}
		if was, ok := f.told[p.id]; ok {
			still[p.id] = was
			continue
		}
		still[p.id] = p.event
		events = append(events, p.event)
	}
	for _, id := range slices.Sorted(maps.Keys(f.told)) {
		if _, ok := still[id]; !ok {
			e := f.told[id]
			e.Type = sprites.PortClosed
			events = append(events, e)
		}
	}
	f.told = still
	slices.SortStableFunc(events, func(a, b sprites.PortEvent) int { return cmp.Compare(a.Type, b.Type) }) // port_closed first
	return events
}

// run looks until stop is closed.
func (w *Watcher) run(stop <-chan struct{}) {
	for {
		began := time.Now()
		w.Look()
		timer := time.NewTimer(min(max(portPause, portShare*time.Since(began)), portPauseMax))
		select {
		case <-stop:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// Look finds the ports that are listened on. If anything has changed, it wakes the followers.
func (w *Watcher) Look() {
	w.looking.Lock()
	defer w.looking.Unlock()
	changed := w.find()
	w.mu.Lock()
	defer w.mu.Unlock()
	if changed || !w.seen {
		w.open = w.group()
	}
	if !changed && w.seen {
		return
	}
	w.seen = true
	for f := range w.followers {
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

// find brings the sockets up to date, and reports whether anything is different.
func (w *Watcher) find() (changed bool) {
	now, fresh := w.listening()
	for id := range w.sockets {
		if !now[id] {
			delete(w.sockets, id)
			changed = true
		}
	}
	if w.sockets == nil {
		w.sockets = map[socket]*listener{}
	}
	for _, id := range fresh[:min(len(fresh), maxPorts-len(w.sockets))] {
		w.sockets[id] = &listener{}
	}
	// A process may hand its listening socket on and end, as a daemon does.
	wanted := map[uint64]*listener{}
	for id, l := range w.sockets {
		if l.searches < portSearches && (l.pid == 0 || !holds(l.pid, l.fd, id.inode)) {
			l.searches++
			wanted[id.inode] = l
		}
	}
	if len(wanted) == 0 {
		return changed
	}
	found := findHolders(wanted)
	if len(found) == 0 {
		return changed
	}
	sessions := w.sessions()
	for _, l := range found {
		l.searches, l.session, l.away = 0, sessions[l.pid], w.away(l.pid)
	}
	return true
}

// listening returns which of the known sockets still listen, and others that do.
func (w *Watcher) listening() (known map[socket]bool, fresh []socket) {
	known = map[socket]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		// If there is no such table, there are no such sockets.
		_ = eachListening(table, func(id socket) {
			if w.sockets[id] != nil {
				known[id] = true
			} else if len(fresh) < maxPorts {
				fresh = append(fresh, id)
			}
		})
	}
	return known, fresh
}

// group makes ports of the sockets that a process other than this one has, in this network.
func (w *Watcher) group() []openPort {
	ports := map[netip.AddrPort]openPort{}
	self := os.Getpid()
	for _, isNew := range []bool{false, true} { // a new socket may join others at a port
		for id, l := range w.sockets {
			if l.pid == 0 || l.pid == self || l.away || (l.port == 0) != isNew {
				continue
			}
			p, joins := ports[id.addr]
			if !joins {
				if isNew {
					w.last++
					l.port = w.last
				}
				p.id = l.port
			}
			l.port = p.id
			if !joins || l.pid < p.event.PID {
				p.session = l.session
				p.event = sprites.PortEvent{
					Type: sprites.PortOpened, Port: int(id.addr.Port()), Address: id.addr.Addr().String(), PID: l.pid,
				}
			}
			ports[id.addr] = p
		}
	}
	return slices.SortedFunc(maps.Values(ports), func(a, b openPort) int {
		return cmp.Or(cmp.Compare(a.event.Port, b.event.Port), cmp.Compare(a.event.Address, b.event.Address))
	})
}
