// Package kernel is about the process of a sandbox's kernel (gVisor's sentry). It tells
// whether the process lives, to anybody who sees the sandbox's folder. It also has the
// kernel's report if it crashes.
//
// The process has the file Log of the sandbox's folder open for writing as long as it lives. A
// process of another container can't see it in /proc. But the host's kernel refuses everybody a
// read lease on a file that is open for writing somewhere (fcntl(2), F_SETLEASE).
package kernel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Log is the file, in a sandbox's folder, for the report that its kernel writes if it crashes.
// It stays as long as the folder does: Lives looks at this file.
const Log = "kernel.log"

// Kept is the file with the last report before that in Log.
const Kept = Log + ".1"

// OwnNetworks begins what a sandbox's kernel says if it refuses to be saved because programs
// are in network namespaces of their own. A list of these programs follows, with quoted names.
const OwnNetworks = "programs have networks of their own, which can't be saved"

// maxReport is how much of a report is kept, from its beginning: the cause stands there, and
// the stacks of all threads follow.
const maxReport = 256 << 10

// Flags have runsc hand Log of a folder to the sandbox's process. A kernel that hangs reports
// its stacks, and ends, at SIGUSR2.
func Flags(dir string) []string {
	return []string{"--panic-log=" + filepath.Join(dir, Log), "--panic-signal=" + strconv.Itoa(int(unix.SIGUSR2))}
}

// Lives reports whether a process of the sandbox of a folder lives, in any container. It does
// not see a sandbox that an earlier cove started, or one on a file system without leases.
func Lives(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, Log))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look whether a sandbox lives: %w", err)
	}
	defer f.Close() // which ends the lease
	switch _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); {
	case errors.Is(err, unix.EAGAIN):
		return true, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil // the file system has none
	case err != nil:
		return false, fmt.Errorf("look whether a sandbox lives: %w", &os.PathError{Op: "fcntl", Path: f.Name(), Err: err})
	}
	return false, nil
}

// Place is where a sandbox was started, as its folder's sandbox.json says.
type Place struct {
	Host      string `json:"host,omitempty"`      // the name of the container or machine
	Processes string `json:"processes,omitempty"` // see private.Processes; empty: an earlier cove did not say
}

// Started is what the file of a sandbox's state says of its place.
func Started(dir string) (Place, error) {
	var p Place
	text, err := os.ReadFile(filepath.Join(dir, "sandbox.json"))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

// Size is the length of the report in a folder. Give it to Report later: a later report begins
// there.
func Size(dir string) int64 {
	info, err := os.Stat(filepath.Join(dir, Log))
	if err != nil {
		return 0
	}
	return info.Size()
}

// Report is the head of the first report that Log has from an offset on; empty: it has none. It
// may have anything that a guest wrote.
func Report(dir string, from int64) string {
	f, err := os.Open(filepath.Join(dir, Log))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, from, maxReport))
	if err != nil {
		return ""
	}
	return Crash(string(text))
}

// Keep moves the head of the report in Log to Kept, so that the next one has Log to itself. The
// file stays, because processes have it open. Without a report nothing changes.
func Keep(dir string) error {
	log, err := os.OpenFile(filepath.Join(dir, Log), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	kept, err := os.OpenFile(filepath.Join(dir, Kept), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(kept, io.NewSectionReader(log, 0, maxReport))
	return errors.Join(err, kept.Close(), log.Truncate(0))
}

// Bound cuts a report to its first maxReport bytes.
func Bound(dir string) error {
	if Size(dir) <= maxReport {
		return nil
	}
	return os.Truncate(filepath.Join(dir, Log), maxReport)
}
