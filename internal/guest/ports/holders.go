package ports

import "net/netip"

// Holders knows which listening TCP sockets belong to certain processes. The zero value knows
// none. It is not safe for concurrent use.
type Holders struct {
	sockets map[socket]*holder
}

// holder is what is known of a socket's process.
type holder struct {
	ours     bool
	known    bool
	searches int
}

// Look returns the addresses that processes listen on for which ours reports true. ours is asked
// once for each socket.
func (h *Holders) Look(ours func(pid int) bool) []netip.AddrPort {
	if h.sockets == nil {
		h.sockets = map[socket]*holder{}
	}
	now := map[socket]bool{}
	wanted := map[uint64]*listener{}
	by := map[*listener]*holder{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		// If there is no such table, there are no such sockets.
		_ = eachListening(table, func(id socket) {
			if len(now) == maxPorts {
				return
			}
			now[id] = true
			it := h.sockets[id]
			if it == nil {
				it = &holder{}
				h.sockets[id] = it
			}
			if !it.known && it.searches < portSearches {
				it.searches++
				l := &listener{}
				wanted[id.inode] = l
				by[l] = it
			}
		})
	}
	if len(wanted) > 0 {
		for _, l := range findHolders(wanted) {
			by[l].known, by[l].ours = true, ours(l.pid)
		}
	}
	var found []netip.AddrPort
	for id, it := range h.sockets {
		if !now[id] {
			delete(h.sockets, id)
		} else if it.ours {
			found = append(found, id.addr)
		}
	}
	return found
}
