// Package datafolder finds a server by its data folder. It says where the folder is, which
// process serves it, and where that process listens.
package datafolder

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/loopback"
	"github.com/cove-dev/cove/sprites"
)

// The files that a server's owner finds the server by.
const (
	LockFile    = "lock" // held by the server's process
	ServerFile  = "server.json"
	TokenFile   = "token"
	AddressFile = "address" // outlives the server: the next one is where clients look for it
	SpareFile   = "spare"   // ServerFile, while no server runs
)

// DefaultAddr is where a server listens unless told otherwise.
const DefaultAddr = "127.0.0.1:7878"

const (
	endLimit = 5 * time.Minute // for the last server's listener to be gone, once that server is
	endPoll  = 10 * time.Millisecond
)

// maxSmall is the most that a small file has.
const maxSmall = 64 << 10

// Server is the content of server.json.
type Server struct {
	sprites.ServerInfo
	Host      string `json:"host,omitempty"`      // the name of its machine or container
	Processes string `json:"processes,omitempty"` // see private.Processes
	Started   string `json:"started,omitempty"`   // see private.StartOf; empty: an earlier cove did not say

	Listener string `json:"listener,omitempty"` // the inode of its socket, see Listener; empty: not known

	Flags []string `json:"flags,omitempty"` // what it was started with, for a restart
}

// standard is where a server of this user keeps its data unless told otherwise.
func standard() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/cove", nil
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "cove"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fail.New("no_data_folder", err.Error(), "name a data folder: --data DIR or COVE_DATA")
	}
	return filepath.Join(home, ".local", "share", "cove"), nil
}

// Of returns the data folder that the flag --data, the environment or the default names. It
// also reports whether that is the default one.
func Of(dir string) (abs string, byDefault bool, err error) {
	if dir == "" {
		dir = os.Getenv("COVE_DATA")
	}
	usual, err := standard()
	if dir == "" {
		return usual, true, err
	}
	abs, absErr := filepath.Abs(dir)
	return abs, err == nil && abs == usual, absErr
}

// Read reads what the server of a data folder says of itself. The error is fs.ErrNotExist if
// no server runs, or one is about to begin or to end.
func Read(dir string) (Server, error) {
	return read(filepath.Join(dir, ServerFile))
}

// Last is Read for a server that has ended in order.
func Last(dir string) (Server, error) { return read(filepath.Join(dir, SpareFile)) }

func read(name string) (Server, error) {
	var server Server
	text, err := ReadSmall(name)
	if err == nil && !json.Valid([]byte(text)) {
		text, err = ReadSmall(name) // a server that starts writes over it in place: it may be half-read
	}
	if err != nil {
		return server, err
	}
	if err := json.Unmarshal([]byte(text), &server); err != nil {
		return server, fmt.Errorf("read %s: %w", name, err)
	}
	if server.URL == "" {
		return server, fmt.Errorf("read %s: it has no url", name)
	}
	return server, nil
}

// ReadSmall reads a small text file, without the white space around it.
func ReadSmall(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxSmall {
		return "", fmt.Errorf("read %s: longer than %d bytes", name, maxSmall)
	}
	return strings.TrimSpace(string(text)), nil
}

// Address is where the last server of a data folder listened; empty if that is not known, not
// loopback, or another program's by now. A killed server listens until its last thread has
// ended, and until each child that it had just begun has executed its program. Address waits
// for both, for at most endLimit. It is empty if that time has passed, or ctx has ended.
func Address(ctx context.Context, dir string) string {
	addr, err := ReadSmall(filepath.Join(dir, AddressFile))
	host, _, splitErr := net.SplitHostPort(addr)
	if err != nil || splitErr != nil || !net.ParseIP(host).IsLoopback() {
		return ""
	}
	for deadline := time.Now().Add(endLimit); !loopback.Free(addr); {
		if !listens(dir, addr) && !ending(dir) && !loopback.Free(addr) || time.Now().After(deadline) {
			return ""
		}
		select {
		case <-ctx.Done():
			return ""
		case <-time.After(endPoll):
		}
	}
	return addr
}
