package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/sprites"
)

// Bounds of asking the guest.
const (
	askLimit  = 2 * time.Second
	maxAnswer = 64 << 10
)

// guestSocket is where the sprite's own API is, for programs in it.
var guestSocket = filepath.Join(boot.Dir, boot.Socket)

// guestAt is a client of the API at a socket. The host of its URLs is sprite.
func guestAt(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
}

// outOfMemory reports whether an agent that ended with code ended for want of memory since
// then, and which process was killed. If that can't be found out, the answer is no.
func outOfMemory(ctx context.Context, code int, since time.Time) (string, bool) {
	if code != 128+int(syscall.SIGKILL) {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	client := guestAt(guestSocket)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sprite/v1/memory/kills", nil)
	if err != nil {
		return "", false
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", false
	}
	defer resp.Body.Close()
	var all sprites.MemoryKills
	if resp.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&all) != nil || len(all.Kills) == 0 {
		return "", false
	}
	k := all.Kills[len(all.Kills)-1]
	if k.Time.Before(since) {
		return "", false
	}
	return fmt.Sprintf("%s (process %d) was ended, the largest with %d MiB of the sprite's %d; give it more: cove push --memory SIZE PLAN", k.Name, k.PID, k.ResidentBytes>>20, k.LimitBytes>>20), true
}
