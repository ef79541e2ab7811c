// Package probe checks a sprite from inside, to find the conditions that a job would meet. It
// is a mode of the guest binary, run as the sprite's user.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
)

const (
	host      = "probe.connect.internal" // below the gateway's own zone
	written   = 1 << 20
	dnsLimit  = 5 * time.Second
	httpLimit = 15 * time.Second
	maxBody   = 16 << 10
)

// Run looks at the sprite, and asks each URL.
func Run(ctx context.Context, urls []string) cove.Probe {
	p := cove.Probe{Arch: runtime.GOARCH, Time: time.Now().UTC(), Path: os.Getenv("PATH"), HTTP: []cove.ProbeAnswer{}}
	p.User = strconv.Itoa(os.Getuid())
	if me, err := user.LookupId(p.User); err == nil {
		p.User = me.Username
	}
	p.Disk = disk()
	p.DNS = lookUp(ctx)
	for _, url := range urls {
		p.HTTP = append(p.HTTP, ask(ctx, url))
	}
	return p
}

// disk asks how much room there is where the user's files are, and tries it out.
func disk() cove.ProbeDisk {
	var d cove.ProbeDisk
	home, err := os.UserHomeDir()
	if err != nil {
		return cove.ProbeDisk{Error: err.Error()}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(home, &st); err == nil {
		d.Free, d.FreeInodes = int64(st.Bavail)*st.Bsize, int64(st.Ffree)
	}
	f, err := os.CreateTemp(home, ".cove-probe-")
	if err == nil {
		_, err = f.Write(make([]byte, written))
		err = errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
	}
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		d.Error = "no space left"
	case err != nil:
		d.Error = err.Error()
	}
	return d
}

func lookUp(ctx context.Context) cove.ProbeDNS {
	ctx, cancel := context.WithTimeout(ctx, dnsLimit)
	defer cancel()
	began := time.Now()
	_, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
	d := cove.ProbeDNS{MS: milliseconds(time.Since(began))}
	if err != nil {
		d.Error = err.Error()
	}
	return d
}

// ask makes one GET, directly and without following anything.
func ask(ctx context.Context, url string) cove.ProbeAnswer {
	a := cove.ProbeAnswer{URL: url}
	ctx, cancel := context.WithTimeout(ctx, httpLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	began := time.Now()
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	a.MS = milliseconds(time.Since(began))
	if err != nil {
		a.Error = err.Error()
		return a
	}
	defer resp.Body.Close()
	a.Status = resp.StatusCode
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody)) // a part will do
	var refusal struct {
		Error struct{ Code, Hint string }
	}
	if json.Unmarshal(body, &refusal) == nil {
		a.Code = refusal.Error.Code
	}
	return a
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
