package guest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove/internal/guest"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// listenerEnv makes this binary a program that listens where it is told to.
const listenerEnv = "COVE_GUEST_TEST_LISTENER"

func TestMain(m *testing.M) {
	if os.Getenv(listenerEnv) != "" {
		if err := listener(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	if code, ok := among(os.Args); ok {
		os.Exit(code)
	}
	covetest.DefaultSignals()
	os.Exit(m.Run())
}

// aloneEnv says that the tests have a view of processes of their own.
const aloneEnv = "COVE_TEST_ALONE"

// among runs the tests in a PID namespace of their own, as a guest runs, if this user may make
// one. If the machine had very many processes (of other tests, say), the search for a socket's
// holder could end before it finds one. Its shell is the init process there.
func among(args []string) (code int, ok bool) {
	unshare, err := exec.LookPath("unshare")
	if err != nil || os.Geteuid() != 0 || os.Getenv(aloneEnv) != "" {
		return 0, false
	}
	cmd := exec.Command(unshare, append([]string{"--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", `"$0" "$@"; exit $?`}, args...)...)
	cmd.Env = append(os.Environ(), aloneEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exit, exited := errors.AsType[*exec.ExitError](err); exited {
		return exit.ExitCode(), true
	}
	return 0, err == nil
}

// listener takes lines "listen ADDRESS" and "close", which closes all.
func listener() error {
	var open []net.Listener
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		word, addr, _ := strings.Cut(in.Text(), " ")
		switch word {
		case "listen":
			l, err := net.Listen("tcp", addr)
			if err != nil {
				return err
			}
			open = append(open, l)
			fmt.Println(l.Addr(), os.Getpid())
		case "close":
			for _, l := range open {
				if err := l.Close(); err != nil {
					return err
				}
			}
			open = nil
			fmt.Println("closed")
		}
	}
	return nil
}

// listening is a running listener, in a session of its own.
type listening struct {
	*sprites.Cmd
	m      *machine
	in     io.WriteCloser
	out    *bufio.Reader
	events chan sprites.PortEvent
}

// startListener starts a listener as a descendant of its session's command, which
// prints a word at its end. Its client puts the port events that it gets into events.
func (m *machine) startListener() *listening {
	m.t.Helper()
	self, err := filepath.Abs(os.Args[0])
	m.must(err)
	cmd := m.Command("sh", "-c", `exec 3<&0; setsid "$0" <&3 & exec 3<&-; wait; echo end`, self)
	cmd.Env = []string{listenerEnv + "=1"}
	l := &listening{Cmd: cmd, m: m, events: make(chan sprites.PortEvent, 4000)}
	cmd.OnPort = func(e sprites.PortEvent) { l.events <- e }
	l.in, err = cmd.StdinPipe()
	m.must(err)
	out, err := cmd.StdoutPipe()
	m.must(err, cmd.Start())
	l.out = bufio.NewReader(out)
	return l
}

// tell gives the listener a line and returns its answer.
func (l *listening) tell(line string) string {
	l.m.t.Helper()
	l.m.write(l.in, line+"\n")
	answer, err := l.out.ReadString('\n')
	l.m.must(err)
	return strings.TrimSpace(answer)
}

// listen makes it listen, and returns the event that must follow.
func (l *listening) listen(addr string) sprites.PortEvent {
	l.m.t.Helper()
	text, pid, _ := strings.Cut(l.tell("listen "+addr), " ")
	bound, err := netip.ParseAddrPort(text)
	l.m.must(err)
	e := sprites.PortEvent{Type: sprites.PortOpened, Port: int(bound.Port()), Address: bound.Addr().String()}
	_, err = fmt.Sscan(pid, &e.PID)
	l.m.must(err)
	return e
}

func closed(e sprites.PortEvent) sprites.PortEvent {
	e.Type = sprites.PortClosed
	return e
}

// wantEvent waits for an event.
func wantEvent(t *testing.T, events <-chan sprites.PortEvent, want sprites.PortEvent) {
	t.Helper()
	select {
	case got := <-events:
		same(t, "event", got, want)
	case <-time.After(lastResort):
		t.Fatalf("nothing came, want %v", want)
	}
}

// Statement 57: port_opened comes after a process listens, port_closed after it stops. Both go
// to the clients of the process's session, before its exit. (How soon is a matter of gVisor's
// tables, which are much quicker to read than those of some hosts: see internal/e2e/sprite.)
func TestExecPorts(t *testing.T) {
	t.Parallel()
	followers(t, func(t *testing.T, m *machine, _ family) {
		t.Parallel()
		other, l := m.startListener(), m.startListener()
		web := l.listen("127.0.0.1:0")
		wantEvent(t, l.events, web)
		// A client that joins is told of the open ports.
		joined := make(chan sprites.PortEvent, 10)
		second := m.Attach(t.Context(), l.SessionID())
		second.OnPort = func(e sprites.PortEvent) { joined <- e }
		m.must(second.Start())
		wantEvent(t, joined, web)
		all := l.listen("[::]:0")
		wantEvent(t, l.events, all)
		wantEvent(t, joined, all)
		same(t, "answer", l.tell("close"), "closed")
		for _, events := range []<-chan sprites.PortEvent{l.events, joined} { // in either order
			got := map[sprites.PortEvent]bool{<-events: true, <-events: true}
			same(t, "the closed ones are told", got[closed(web)] && got[closed(all)], true)
		}
		last := l.listen("127.0.0.1:0")
		wantEvent(t, l.events, last)
		m.must(l.in.Close()) // it ends, and its port with it
		exit(t, second.Wait(), 0, "")
		exit(t, l.Wait(), 0, "")
		wantEvent(t, l.events, closed(last))
		m.must(other.in.Close())
		exit(t, other.Wait(), 0, "")
		same(t, "events of the other session", len(other.events), 0)
	})
}

// watchPorts returns the port_list of a watch and a channel of what comes after it.
func (m *machine) watchPorts() (list []sprites.PortEvent, events <-chan sprites.PortEvent) {
	m.t.Helper()
	w, err := m.WatchPorts(m.t.Context())
	m.must(err)
	c := make(chan sprites.PortEvent, 4000)
	done := make(chan struct{})
	m.t.Cleanup(func() { m.must(w.Close()); <-done })
	go func() {
		defer close(done)
		for {
			e, err := w.Next()
			if err != nil {
				return
			}
			c <- e
		}
	}()
	return w.Open(), c
}

// of waits for the next event of a port; the machine may have others.
func of(t *testing.T, events <-chan sprites.PortEvent, port int) sprites.PortEvent {
	t.Helper()
	for timeout := time.After(lastResort); ; {
		select {
		case e := <-events:
			if e.Port == port {
				return e
			}
		case <-timeout:
			t.Fatalf("nothing came of port %d", port)
		}
	}
}

// Statement 124: a watch has a list of the open ports, then those that open and close, each
// with the process.
func TestPortsWatch(t *testing.T) {
	t.Parallel()
	m := start(t, &guest.Server{})
	l := m.startListener()
	before := l.listen("127.0.0.1:0")
	list, events := m.watchPorts()
	same(t, "it is in the list", slices.Contains(list, before), true)
	own := slices.ContainsFunc(list, func(e sprites.PortEvent) bool { return strings.HasSuffix(m.url, fmt.Sprint(":", e.Port)) })
	same(t, "the guest's own port is", own, false)
	after := l.listen("127.0.0.1:0")
	same(t, "event", of(t, events, after.Port), after)
	m.must(l.in.Close())
	same(t, "event", of(t, events, after.Port), closed(after))
	exit(t, l.Wait(), 0, "")
	m.call("GET", "/v1/ports/watch", "", http.StatusUpgradeRequired)
}

// The number of reported ports is bounded. The test does not run beside others, which would
// find no room for their ports.
func TestManyPorts(t *testing.T) {
	m := start(t, &guest.Server{})
	l := m.startListener()
	first := l.listen("127.0.0.1:0")
	for range 1029 {
		l.listen("127.0.0.1:0")
	}
	list, events := m.watchPorts()
	if len(list) < 1000 || len(list) > 1024 {
		t.Errorf("%d ports are told of", len(list))
	}
	same(t, "answer", l.tell("close"), "closed")
	own := slices.IndexFunc(list, func(e sprites.PortEvent) bool { return e.PID == first.PID }) // others may be of this machine's
	if own < 0 {
		t.Fatalf("none of the listener's ports is in %v", list)
	}
	of(t, events, list[own].Port)
	fresh := l.listen("127.0.0.1:0") // for which there is room again
	e := of(t, events, fresh.Port)
	for e.Type == "port_closed" || e.PID != fresh.PID { // one of those before had its number
		e = of(t, events, fresh.Port)
	}
	same(t, "event", e, fresh)
	m.must(l.in.Close())
	exit(t, l.Wait(), 0, "")
}

// socket opens a WebSocket to the guest.
func (m *machine) socket(path string) *websocket.Conn {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), lastResort)
	m.t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, m.url+path, &websocket.DialOptions{HTTPClient: m.http})
	m.must(err)
	m.t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(-1)
	return conn
}

// Statement 84: the first message of a watch is the list. In silence, keepalive messages come.
func TestPortsWatchMessages(t *testing.T) {
	t.Parallel()
	m := start(t, &guest.Server{Keepalive: 50 * time.Millisecond})
	conn := m.socket("/v1/ports/watch")
	m.must(conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"nonsense"}`)))
	var types []string
	for !slices.Contains(types, "keepalive") {
		_, text, err := conn.Read(t.Context())
		m.must(err)
		var doc struct {
			Type  string
			Ports json.RawMessage
		}
		m.must(json.Unmarshal(text, &doc))
		types = append(types, doc.Type)
		same(t, "a list", strings.HasPrefix(string(doc.Ports), "["), len(types) == 1)
	}
	same(t, "first message", types[0], "port_list")
}
