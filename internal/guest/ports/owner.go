package ports

import (
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// GetOwner names the process that has a socket, by the socket's own address. The socket is of
// a connection out of the sandbox, or of one that is being opened.
func GetOwner(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	from, err := netip.ParseAddrPort(q.Get("from"))
	proto := q.Get("protocol")
	if err != nil || proto != "tcp" && proto != "udp" {
		return wire.BadRequest("from is an address and a port, protocol is tcp or udp")
	}
	p, ok := owner(proto, from)
	if !ok {
		return fail.New("not_found", "no process has that socket", "")
	}
	return wire.Respond(w, p)
}

func owner(proto string, from netip.AddrPort) (sprites.Process, bool) {
	wanted := map[uint64]*listener{}
	for _, table := range []string{"/proc/net/" + proto, "/proc/net/" + proto + "6"} {
		// gVisor lists no UDP socket of IPv6.
		_ = eachSocket(table, "", func(id socket) {
			own := id.addr.Addr()
			if id.addr.Port() == from.Port() && (own == from.Addr() || own.IsUnspecified()) {
				wanted[id.inode] = &listener{}
			}
		})
	}
	if len(wanted) == 0 {
		return sprites.Process{}, false
	}
	for _, l := range findHolders(wanted) {
		name, err := os.ReadFile("/proc/" + strconv.Itoa(l.pid) + "/comm")
		if err == nil {
			return sprites.Process{PID: l.pid, Name: strings.TrimSpace(string(name))}, true
		}
	}
	return sprites.Process{}, false
}
