package nest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/guest/ports"
)

// mirror listens in the sprite on the ports that are listened on in the nest, and carries
// connections there.
type mirror struct {
	netns   *os.File // the nest's
	ns      string   // a link that names it
	open    map[string]*image
	carried *carried
}

// image is a listener in the sprite.
type image struct {
	listener net.Listener // nil: the port is not to be had now
	wg       sync.WaitGroup
}

// mirrorPause is the pause between two looks.
const mirrorPause = 200 * time.Millisecond

// run looks until ctx ends.
func (m *mirror) run(ctx context.Context) {
	holders := ports.Holders{}
	tick := time.NewTicker(mirrorPause)
	defer tick.Stop()
	for {
		m.show(holders.Look(m.isOurs))
		select {
		case <-ctx.Done():
			m.show(nil)
			return
		case <-tick.C:
		}
	}
}

// isOurs says whether a process is in the nest's network, and not in a container's.
func (m *mirror) isOurs(pid int) bool {
	nest, err := os.Readlink(m.ns)
	if err != nil {
		return false
	}
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && its == nest
}

// show makes the mirror listen on these addresses, and on no others.
func (m *mirror) show(listening []netip.AddrPort) {
	wanted := map[string]netip.AddrPort{}
	for _, at := range listening {
		switch a := at.Addr(); {
		case a.IsUnspecified():
			wanted[fmt.Sprintf(":%d", at.Port())] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
		case a == netip.AddrFrom4([4]byte{127, 0, 0, 1}): // the others are of name servers in containers' networks
			wanted[at.String()] = at
		}
	}
	for at, image := range m.open {
		if _, ok := wanted[at]; !ok {
			if image.listener != nil {
				image.listener.Close()
			}
			image.wg.Wait()
			delete(m.open, at)
		}
	}
	for at, to := range wanted {
		was := m.open[at]
		if was != nil && was.listener != nil {
			continue
		}
		image, err := m.listen(at, to) // perhaps again: who had the port may have ended
		if m.open[at] = image; err != nil && was == nil {
			slog.Warn("a port of the containers can't be opened in the sprite now", "port", at, "err", err)
		}
	}
}

// listen opens a port. If it is not to be had, the image has no listener.
func (m *mirror) listen(at string, to netip.AddrPort) (*image, error) {
	image := &image{}
	var err error
	if image.listener, err = net.Listen("tcp", at); err != nil {
		return image, err
	}
	image.wg.Go(func() {
		m.carried.serve(image.listener, func(in *net.TCPConn) {
			out, err := dialIn(m.netns, to)
			if err != nil {
				reset(in)
				return
			}
			pipe(in, out.(*net.TCPConn))
		})
	})
	return image, nil
}
