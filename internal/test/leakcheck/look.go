package leakcheck

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// mounts lists the mounts of this process's namespace (proc_pid_mountinfo(5)).
func mounts() ([]Thing, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []Thing
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		if len(f) < 5 || dash < 0 || dash+2 >= len(f) {
			return nil, fmt.Errorf("/proc/self/mountinfo: unknown line %q", line)
		}
		// The mount's number tells a second mount on the same folder from the first.
		out = append(out, Thing{Mount, f[4] + " #" + f[0], f[dash+1] + " of " + f[dash+2]})
	}
	return out, nil
}

// namespaceKinds are the kinds of namespaces that a sandbox has of its own.
var namespaceKinds = []string{"mnt", "net", "user", "pid"}

// namespaces lists namespaces by their keepers: processes in them, open files of
// processes, and mounts.
func namespaces() ([]Thing, error) {
	found := map[string]string{}
	note := func(name, holder string) {
		if kind, _, ok := strings.Cut(name, ":["); ok && slices.Contains(namespaceKinds, kind) && found[name] == "" {
			found[name] = holder
		}
	}
	pids, err := allProcesses()
	if err != nil {
		return nil, err
	}
	for _, p := range pids {
		for _, kind := range namespaceKinds {
			if name, err := os.Readlink(filepath.Join(p.dir(), "ns", kind)); err == nil {
				note(name, "held by "+p.String())
			}
		}
		fds, err := os.ReadDir(filepath.Join(p.dir(), "fd"))
		if err != nil {
			continue // it ended, or is another user's
		}
		for _, fd := range fds {
			if name, err := os.Readlink(filepath.Join(p.dir(), "fd", fd.Name())); err == nil {
				note(name, "open in "+p.String())
			}
		}
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 { // the root of an nsfs mount is the namespace
			note(f[3], "mounted at "+f[4])
		}
	}
	var out []Thing
	for name, holder := range found {
		out = append(out, Thing{Namespace, name, holder})
	}
	return out, nil
}

// interfaces lists the network interfaces of this process's namespace.
func interfaces() ([]Thing, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []Thing
	for _, i := range all {
		out = append(out, Thing{Interface, fmt.Sprintf("%s #%d", i.Name, i.Index), ""})
	}
	return out, nil
}

// cgroups lists cove's folders at any depth of every hierarchy, v1 and v2.
func cgroups() ([]Thing, error) {
	var out []Thing
	err := filepath.WalkDir("/sys/fs/cgroup", func(dir string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENODEV) {
			return nil // it went away meanwhile, or is not ours to see
		}
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "cove-") {
			out = append(out, Thing{Cgroup, dir, ""})
		}
		return err
	})
	return out, err
}

// programs are the names under which cove's processes run. runsc gives its own
// processes the names runsc-sandbox and runsc-gofer.
var programs = []string{"cove", "cove-guest", "cove-runsc", "runsc", "runsc-sandbox", "runsc-gofer"}

func processes() ([]Thing, error) {
	all, err := allProcesses()
	if err != nil {
		return nil, err
	}
	var out []Thing
	for _, p := range all {
		if len(p.argv) > 0 && slices.Contains(programs, filepath.Base(p.argv[0])) {
			out = append(out, Thing{Process, fmt.Sprintf("%d since %s", p.pid, p.start), strings.Join(p.argv, " ")})
		}
	}
	return out, nil
}

// process is a line of ps. Zombies do not count: they hold nothing, and only their parent
// has yet to reap them.
type process struct {
	pid   int
	start string // in clock ticks since the host's boot
	argv  []string
}

func (p process) dir() string { return "/proc/" + strconv.Itoa(p.pid) }

func (p process) String() string {
	text := strings.Join(p.argv, " ")
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return fmt.Sprintf("%d: %s", p.pid, text)
}

func allProcesses() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

// readProcess returns false for a process that has ended.
func readProcess(pid int) (process, bool) {
	p := process{pid: pid}
	stat, err := os.ReadFile(p.dir() + "/stat")
	if err != nil {
		return p, false
	}
	// The name in parentheses may hold anything, so count from its end.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return p, false
	}
	p.start = f[19]
	cmdline, err := os.ReadFile(p.dir() + "/cmdline")
	if err != nil {
		return p, false
	}
	if text := strings.TrimRight(string(cmdline), "\x00"); text != "" {
		p.argv = strings.Split(text, "\x00")
	}
	return p, true
}

func matching(patterns []string) ([]Thing, error) {
	var out []Thing
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		for _, name := range names {
			out = append(out, Thing{File, name, ""})
		}
	}
	return out, nil
}
