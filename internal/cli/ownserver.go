package cli

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
				if server, err := readServerFile(dir); err != nil || server.URL != "http://"+address || !serves(filepath.Join(dir, "lock"), server.PID) {
					_ = conn.Close() // nothing was sent
					return nil, fmt.Errorf("what listens at %s is not the server of %s: %w", address, dir, syscall.ECONNREFUSED)
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

// serves reports whether a process of this user's holds a server's lock.
func serves(lock string, pid int) bool {
	var st unix.Stat_t
	if pid <= 1 || unix.Stat(lock, &st) != nil {
		return false
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false
	}
	// The device is not compared: of some file systems stat gives another one.
	holds := slices.ContainsFunc(strings.Split(string(locks), "\n"), func(line string) bool {
		f := strings.Fields(line)
		return len(f) > 5 && f[1] == "FLOCK" && f[4] == strconv.Itoa(pid) && strings.HasSuffix(f[5], ":"+strconv.FormatUint(st.Ino, 10))
	})
	return holds && userOf(pid) == os.Geteuid()
}

// userOf is the effective user of a process; -1: there is none of that number.
func userOf(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "Uid:" {
			if uid, err := strconv.Atoi(f[2]); err == nil {
				return uid
			}
		}
	}
	return -1
}
