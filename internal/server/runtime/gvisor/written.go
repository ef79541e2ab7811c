package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// WrittenBytes is how much the sandbox has written to files. gVisor writes for the
// processes in the sandbox. But a process writes to a mapped file itself: it runs in a
// child of gVisor's. Space that is allocated but not written (fallocate) does not count,
// nor do writes to memory or to the network.
func (s *sandbox) WrittenBytes() (int64, error) {
	s.mu.Lock()
	pid := s.state.PID
	s.mu.Unlock()
	calls, pages, err := writtenBy(strconv.Itoa(pid))
	if err != nil {
		return 0, fmt.Errorf("measure what a sandbox has written: %w", err)
	}
	// A file system in memory does not count pages.
	return max(calls, pages), nil
}

// writtenBy is what a process and its children have written: by calls, and as pages of
// files. Children that have ended are in their parent's numbers.
func writtenBy(pid string) (calls, pages int64, err error) {
	dir := filepath.Join("/proc", pid)
	text, err := os.ReadFile(filepath.Join(dir, "io"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		switch {
		case key != "wchar" && key != "write_bytes":
		case err != nil:
			return 0, 0, err
		case key == "wchar":
			calls = n
		default:
			pages = n
		}
	}
	tasks, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return 0, 0, err
	}
	for _, task := range tasks {
		children, err := os.ReadFile(filepath.Join(dir, "task", task.Name(), "children"))
		if err != nil {
			continue // it has just ended, or this kernel does not tell
		}
		for _, child := range strings.Fields(string(children)) {
			c, p, err := writtenBy(child)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // it has just ended
			}
			if err != nil {
				return 0, 0, err
			}
			calls, pages = calls+c, pages+p
		}
	}
	return calls, pages, nil
}
