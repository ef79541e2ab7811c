package supervise

import (
	"context"
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

// stopFile marks a job that was told to stop. A supervisor looks for it once it has signed the
// lock: so it hears of a stop that came before anybody could signal it.
const stopFile = "stop"

// stopped is a context that has ended already if the job was told to stop.
func (j *job) stopped(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if _, err := os.Lstat(j.folder.file(stopFile)); err == nil {
		cancel()
	}
	return ctx, cancel
}

// Stop tells the supervisor of a job to stop the agent and to collect. It does not wait for
// that. A supervisor that begins later stops at once. ErrDead: no supervisor is at work. The
// signal goes to the supervisor alone, since its git must not be disturbed while it collects.
func Stop(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, stopFile), os.O_CREATE|os.O_WRONLY, 0o600)
	marked := err == nil && f.Close() == nil // else only a supervisor that has signed hears of it
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
	switch {
	case marked && n == 0:
		return nil // it signs the lock, and then looks for the mark
	case err != nil || pid <= 1:
		return fmt.Errorf("stop the job: its lock names no process")
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return fmt.Errorf("stop the job: %w", err)
	}
	return nil
}
