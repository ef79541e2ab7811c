package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sign writes this process's number into the lock that it has just taken.
func sign(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("sign the lock: %w", err)
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("sign the lock: %w", err)
	}
	return nil
}

// Stop tells the supervisor at work on a job to stop the agent and to collect. It
// does not wait for that. ErrDead: no supervisor is at work. The signal goes to the supervisor
// alone, since its git must not be disturbed while it collects.
func Stop(dir string) error {
	lock, err := os.Open(filepath.Join(dir, "lock"))
	if os.IsNotExist(err) {
		return ErrDead
	}
	if err != nil {
		return fmt.Errorf("stop the job: %w", err)
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return ErrDead
	}
	text := make([]byte, 32)
	n, _ := lock.ReadAt(text, 0) // the end of the file, as a rule
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil || pid <= 1 {
		return fmt.Errorf("stop the job: its lock names no process")
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return fmt.Errorf("stop the job: %w", err)
	}
	return nil
}
