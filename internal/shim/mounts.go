package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A mount is a line of /proc/self/mountinfo (proc_pid_mountinfo(5)), as far as it is
// wanted here.
type mount struct {
	root, at string
	fs       string
	options  []string // of the file system: for cgroup v1 the controllers, and others
}

// readMounts reads the lines of mountinfo. Mounts at one place are in the order of mounting.
func readMounts(text string) ([]mount, error) {
	var all []mount
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 2 {
			return nil, fmt.Errorf("/proc/self/mountinfo: unknown line %q", line)
		}
		m := mount{root: unescapeMount(l[3]), at: unescapeMount(l[4]), fs: r[0]}
		if len(r) > 2 {
			m.options = strings.Split(r[2], ",")
		}
		all = append(all, m)
	}
	return all, nil
}

// unescapeMount reads the octal escapes of blanks and backslashes.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// wanted are folders of the host. A shim keeps the mounts on the way to each of them, and
// of trees also those below.
type wanted struct{ paths, trees []string }

// systemTrees are folders that this process and gVisor may use besides those of the
// configuration: devices, cgroups, the resolver's configuration, certificates, libraries.
var systemTrees = []string{"/proc", "/sys", "/dev", "/run", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"}

// wants are the host's folders that a sandbox needs. A shim that adopts a sandbox is not
// told the folders of its disk, and keeps all mounts.
func (cfg Config) wants() wanted {
	if cfg.Adopt {
		return wanted{trees: []string{"/"}}
	}
	w := wanted{
		paths: []string{"/", cfg.Dir, cfg.Runsc, cfg.Guest, cfg.Image, os.TempDir(), os.Getenv("SSL_CERT_FILE"), os.Getenv("SSL_CERT_DIR")},
		trees: slices.Concat(systemTrees, cfg.Include),
	}
	if self, err := os.Executable(); err == nil {
		w.paths = append(w.paths, self)
	}
	for _, b := range cfg.Binds {
		w.trees = append(w.trees, b.Source)
	}
	for _, m := range cfg.Disk {
		w.paths = append(w.paths, m.Overlay.Upper, m.Overlay.Work)
		w.trees = append(w.trees, m.Overlay.Lowers...)
	}
	resolve := func(names []string) []string { // of links on the way, the other end too
		for _, name := range slices.Clone(names) {
			if real, err := filepath.EvalSymlinks(name); err == nil && real != name {
				names = append(names, real)
			}
		}
		return slices.DeleteFunc(names, func(name string) bool { return name == "" })
	}
	w.paths, w.trees = resolve(w.paths), resolve(w.trees)
	return w
}

// has reports whether a mount is wanted.
func (w wanted) has(at string) bool {
	onWay := func(name string) bool { return below(name, at) }
	return slices.ContainsFunc(w.paths, onWay) || slices.ContainsFunc(w.trees, func(tree string) bool { return onWay(tree) || below(at, tree) })
}

// below reports whether a name is that of a folder or of something in it.
func below(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// surplus returns the mounts to detach, the last one first. They are the mounts that are not
// wanted. If several mounts show a part of one cgroup hierarchy of v1, all of these but one
// are surplus, too. In a container such a hierarchy may be mounted twice. Then runsc starts
// no sandbox ("can't make . relative to"): for each mount it takes the container's path off
// its own cgroup.
func surplus(all []mount, w wanted) []mount {
	var out []mount
	parts := map[string]bool{}
	for _, m := range all {
		twice := false
		if m.fs == "cgroup" && m.root != "/" {
			key := strings.Join(m.options, ",")
			twice, parts[key] = parts[key], true
		}
		if twice || !w.has(m.at) {
			out = append(out, m)
		}
	}
	slices.Reverse(out)
	return out
}

// detachMounts leaves in this process's own mount namespace only what the sandbox needs. If
// the host's mounts are private, as in many containers, this namespace would hold each of
// the other mounts. A disk that the host unmounts would stay in use.
func detachMounts(cfg Config) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	all, err := readMounts(string(text))
	if err != nil {
		return err
	}
	for _, m := range surplus(all, cfg.wants()) {
		// EINVAL: it went with one that was over it, or, in an ordinary user's namespace, can't
		// be taken away alone.
		if err := unix.Unmount(m.at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return fmt.Errorf("detach %s: %w", m.at, err)
		}
	}
	return nil
}
