package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/private"
)

// A killed server leaves its address behind, and another program may listen there by now. The
// same may happen to a server while a command is connected to it. The program that listens would
// get the owner's token. So nothing is sent to this machine's server before it is known to hold
// the data folder's lock: no other user can hold it.

// ownTransport makes the connections to the server of a data folder.
type ownTransport struct {
	*http.Transport
	dir string

	// again, if set, is called if no server answers; nothing was sent then. It returns nil if
	// a server runs again.
	again atomic.Pointer[func(context.Context) error]
}

// ownHTTP makes the connections to the server of a data folder.
func ownHTTP(dir string) *http.Client {
	t := &ownTransport{dir: dir, Transport: &http.Transport{
		MaxIdleConns:          256,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
	}}
	t.DialContext = t.dial
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     t,
	}
}

// dial connects to the server at an address, or to the one that has taken its place.
func (t *ownTransport) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := t.connect(ctx, network, address)
	again := t.again.Load()
	if again == nil || !errors.Is(err, syscall.ECONNREFUSED) {
		return conn, err
	}
	if err := (*again)(ctx); err != nil {
		return nil, err
	}
	server, err := datafolder.Read(t.dir)
	if err != nil {
		return nil, notOursError{address, t.dir} // it has ended again
	}
	return t.connect(ctx, network, strings.TrimPrefix(server.URL, "http://"))
}

// connect connects to the server at an address.
func (t *ownTransport) connect(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	// It lives after the connection was made: then it has made it.
	if server, err := datafolder.Read(t.dir); err != nil || server.URL != "http://"+address || !datafolder.Serves(t.dir, server) {
		_ = conn.Close() // nothing was sent
		return nil, notOursError{address, t.dir}
	}
	return conn, nil
}

// stayWith has a client of a data folder's server find the next one if that one is gone. A server
// that was killed is started again, if commands may start one.
func (s *chosenServer) stayWith(c *cove.Client, dir string, byDefault bool) {
	t, ok := c.HTTPClient.Transport.(*ownTransport)
	if !ok {
		return
	}
	var mu sync.Mutex
	again := func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if _, err := localClient(ctx, dir, ""); !errors.Is(err, errNoServer) {
			return err
		}
		if err := s.mayStart(dir); err != nil {
			return err
		}
		if !serverKilled(dir) {
			return stoppedMeanwhile(dir)
		}
		return s.restartKilled(ctx, dir, byDefault)
	}
	t.again.Store(&again)
}

// stoppedMeanwhile says that somebody has stopped a server that a command uses.
func stoppedMeanwhile(dir string) error {
	return fail.Newf("no_server", "start it with: cove server start", "the server of %s was stopped meanwhile", dir)
}

// restartKilled starts the server of a data folder again, and says so.
func (s *chosenServer) restartKilled(ctx context.Context, dir string, byDefault bool) error {
	s.out.say("cove: the server of %s was killed; starting it again", dir)
	return s.start(ctx, dir, byDefault)
}

// serverKilled reports whether the last server of a data folder has ended without taking its
// leave.
func serverKilled(dir string) bool {
	_, err := datafolder.Read(dir)
	return err == nil
}

// notOursError says that a server has gone, and that another program has its address. It is
// an ECONNREFUSED, since nothing was sent.
type notOursError struct{ address, dir string }

func (e notOursError) Error() string {
	return "the server of " + e.dir + " does not listen at " + e.address + " any more"
}

func (notOursError) Is(target error) bool { return target == syscall.ECONNREFUSED }

// elsewhereError says that a server of another container or machine uses a data folder.
type elsewhereError struct {
	dir    string
	server datafolder.Server
}

func (e *elsewhereError) Error() string {
	return fmt.Sprintf("a server of another container or machine, named %s (process %d there), uses %s", cmp.Or(e.server.Host, "?"), e.server.PID, e.dir)
}

// runsElsewhere is an elsewhereError if the server that a data folder names, of another
// container or machine, holds the folder's lock, and else errNoServer. The kernel's list has
// no locks of processes that have no number here. So the lock itself is tried, for a moment:
// a server that starts tries more than once.
func runsElsewhere(dir string, server datafolder.Server) error {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return errNoServer
	}
	if err != nil {
		return fmt.Errorf("look whether a server runs: %w", err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	switch {
	case err == nil:
		return errNoServer
	case !errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("look whether a server runs: %s: %w", f.Name(), err)
	case datafolder.StartsHere(f):
		return errNoServer
	}
	return &elsewhereError{dir, server}
}

// endingElsewhere is runsElsewhere for a data folder that names no server: the last one may be
// about to end, and still write memory to disk.
func endingElsewhere(dir string) error {
	last, err := datafolder.Last(dir)
	if err != nil || !private.Elsewhere(last.Processes) || private.Check(dir) != nil {
		return errNoServer
	}
	return runsElsewhere(dir, last)
}
