package ports

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// A port of a process in another network is not the sandbox's. A process in this network that
// listens at the same port is reported.
func TestAway(t *testing.T) {
	if away(os.Getpid()) {
		t.Error("this process is in another network than it is in")
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	w := New(func() map[int]string { return nil }, time.Minute)
	asked := false
	w.away = func(pid int) bool { asked = asked || pid == os.Getpid(); return true }
	w.find()
	if !asked {
		t.Fatal("nobody asked in which network the process is")
	}
	for _, p := range w.group() {
		t.Errorf("%+v is told", p.event)
	}
	at := netip.MustParseAddrPort("0.0.0.0:80")
	w.sockets = map[socket]*listener{{1, at}: {pid: 1 << 30, away: true}, {2, at}: {pid: 1<<30 + 1}}
	if got := w.group(); len(got) != 1 || got[0].event.PID != 1<<30+1 {
		t.Errorf("got %+v, want the second one's alone", got)
	}
}
