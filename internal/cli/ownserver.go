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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
)

// A server that was killed leaves its address behind, which may be anybody's by now, and so
// may the address of one that a command is connected to. Whoever listens there would be given
// the owner's token. So nothing is sent to this machine's server before it is known to be the
// process that holds the lock of the data folder, which no other user can.

// ownHTTP makes the connections to the server of a data folder.
func ownHTTP(dir string) *http.Client {
	dialer := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dialer.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				// It lives after the connection was made: then it has made it.
				if server, err := readServerFile(dir); err != nil || server.URL != "http://"+address || !serves(filepath.Join(dir, "lock"), server) {
					_ = conn.Close() // nothing was sent
					return nil, notOursError{address, dir}
				}
				return conn, nil
			},
			MaxIdleConns:          256,
			MaxIdleConnsPerHost:   64,
			IdleConnTimeout:       90 * time.Second,
			ExpectContinueTimeout: time.Second,
			DisableCompression:    true,
		},
	}
}

// notOursError says that a server has gone, and that another program has its address. It is
// an ECONNREFUSED, since nothing was sent.
type notOursError struct{ address, dir string }

func (e notOursError) Error() string {
	return "the server of " + e.dir + " does not listen at " + e.address + " any more"
}

func (notOursError) Is(target error) bool { return target == syscall.ECONNREFUSED }

// serves reports whether the process that a data folder names is this user's, and holds the
// lock. Its number may be another one's by now, and another file may have the lock's.
func serves(lock string, server serverFile) bool {
	pid := server.PID
	if pid < 1 || server.Started != "" && server.Started != private.StartOf(pid) {
		return false
	}
	var st unix.Stat_t
	if unix.Stat(lock, &st) != nil {
		return false
	}
	// The device is not compared: of some file systems stat gives another one.
	holds, err := lockListed(func(f []string) bool {
		return len(f) > 5 && f[1] == "FLOCK" && f[4] == strconv.Itoa(pid) && strings.HasSuffix(f[5], ":"+strconv.FormatUint(st.Ino, 10))
	})
	return err == nil && holds && userOf(pid) == os.Geteuid()
}

// elsewhereError says that a server of another container or machine uses a data folder.
type elsewhereError struct {
	dir    string
	server serverFile
}

func (e *elsewhereError) Error() string {
	return fmt.Sprintf("a server of another container or machine, named %s (process %d there), uses %s", cmp.Or(e.server.Host, "?"), e.server.PID, e.dir)
}

// runsElsewhere is an elsewhereError if the server that a data folder names, of another
// container or machine, holds the folder's lock, and else errNoServer. The kernel's list has
// no locks of processes that have no number here. So the lock itself is tried, for a moment:
// a server that starts tries more than once.
func runsElsewhere(dir string, server serverFile) error {
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
	case startsHere(f):
		return errNoServer
	}
	return &elsewhereError{dir, server}
}

// endingElsewhere is runsElsewhere for a data folder that names no server: the last one may be
// about to end, and still write memory to disk.
func endingElsewhere(dir string) error {
	last, err := readPublished(filepath.Join(dir, "spare"))
	if err != nil || !private.Elsewhere(last.Processes) || private.Check(dir) != nil {
		return errNoServer
	}
	return runsElsewhere(dir, last)
}

// startsHere reports whether a process of this container holds a lock: a server that has not
// said yet that it is one.
func startsHere(lock *os.File) bool {
	var st unix.Stat_t
	if unix.Fstat(int(lock.Fd()), &st) != nil {
		return false
	}
	held, err := lockListed(func(f []string) bool {
		if len(f) < 6 || f[1] != "FLOCK" || f[3] != "WRITE" || !strings.HasSuffix(f[5], ":"+strconv.FormatUint(st.Ino, 10)) {
			return false
		}
		status, err := os.ReadFile("/proc/" + f[4] + "/status")
		return err == nil && oneNumber.Match(status)
	})
	return err == nil && held
}

// oneNumber is in the status of a process that has no other number in a namespace below.
var oneNumber = regexp.MustCompile(`(?m)^NSpid:\s+\d+$`)

// lockListed reports whether the kernel's list of locks has one that is wanted, by the
// fields of its line. The kernel gives the list page by page, and if others come and go
// between two pages it leaves out locks that hold all the time: so it is read again.
func lockListed(wanted func(fields []string) bool) (bool, error) {
	const reads = 10 // beside a hundred locks that change all the time, 1 in 300 fails
	for range reads {
		list, err := os.ReadFile("/proc/locks")
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(list)) {
			if wanted(strings.Fields(line)) {
				return true, nil
			}
		}
	}
	return false, nil
}

// userOf is the user of a process; -1: there is none of that number, or it is of several,
// as a program that takes another's rights is.
func userOf(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == "Uid:" && f[1] == f[2] && f[2] == f[3] {
			if uid, err := strconv.Atoi(f[1]); err == nil {
				return uid
			}
		}
	}
	return -1
}
