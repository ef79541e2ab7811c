package gvisor

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// Usage reads how much the sandbox uses: memory and processor time of its own cgroup, bytes
// written, and traffic of its network namespace (without lo).
func (s *sandbox) Usage() (u sprite.Usage) {
	s.mu.Lock()
	pid, container := s.state.PID, s.state.Container
	s.mu.Unlock()
	if pid == 0 {
		return u
	}
	group := cgroup.Process{PID: pid}
	if dir := ownCgroup(group.Dir("memory"), container); dir != "" {
		u.Memory = usedMemory(dir)
	}
	if dir := ownCgroup(group.Dir("cpu"), container); dir != "" {
		u.CPU = usedCPU(dir)
	}
	u.Written, _ = s.WrittenBytes() // 0 is what is not known
	if text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "net/dev")); err == nil {
		u.Received, u.Sent = carried(string(text))
	}
	return u
}

// ownCgroup is a sandbox's cgroup. It is empty if the sandbox was started in a cgroup that it
// shares with others: their use is not its own.
func ownCgroup(dir, container string) string {
	for at := dir; at != "" && at != "/" && at != "."; at = filepath.Dir(at) {
		if filepath.Base(at) == "cove-"+container {
			return dir
		}
	}
	return ""
}

// usedMemory is without the cache of files that the kernel can take back at once.
func usedMemory(dir string) int64 {
	used, inactive := cgroupNumber(dir, "memory.current"), "inactive_file "
	if used == 0 {
		used, inactive = cgroupNumber(dir, "memory.usage_in_bytes"), "total_inactive_file "
	}
	return max(0, used-statLine(filepath.Join(dir, "memory.stat"), inactive))
}

// usedCPU is the time of processors.
func usedCPU(dir string) time.Duration {
	if n := statLine(filepath.Join(dir, "cpu.stat"), "usage_usec "); n > 0 {
		return time.Duration(n) * time.Microsecond
	}
	return time.Duration(cgroupNumber(dir, "cpuacct.usage")) // v1, where both controllers are one hierarchy
}

func cgroupNumber(dir, file string) int64 {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// statLine is the number after a name, in a file of such lines.
func statLine(file, name string) int64 {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// carried is what interfaces other than lo have received and sent, by /proc/PID/net/dev.
func carried(text string) (received, sent int64) {
	for line := range strings.Lines(text) {
		name, numbers, ok := strings.Cut(line, ":")
		f := strings.Fields(numbers)
		if !ok || strings.TrimSpace(name) == "lo" || len(f) < 9 {
			continue
		}
		in, inErr := strconv.ParseInt(f[0], 10, 64)
		out, outErr := strconv.ParseInt(f[8], 10, 64)
		if inErr == nil && outErr == nil {
			received, sent = received+in, sent+out
		}
	}
	return received, sent
}
