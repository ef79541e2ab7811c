package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// resources are the limits that the sandbox's cgroups have.
func (cfg Config) resources() *specs.LinuxResources {
	r := &specs.LinuxResources{}
	if cfg.MemoryMB > 0 {
		limit := int64(cfg.MemoryMB) << 20
		r.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	if quota := quotaOf(cgroup.Process{}.Limits(), cfg.CPUs); quota > 0 {
		period := uint64(cgroup.Period)
		r.CPU = &specs.LinuxCPU{Period: &period, Quota: &quota}
	}
	if cfg.PidsMax > 0 {
		r.Pids = &specs.LinuxPids{Limit: int64(cfg.PidsMax)}
	}
	return r
}

// writeBundle writes the OCI bundle of a sandbox that is about to boot in a network namespace.
func (c *containers) writeBundle(cfg Config, st State, netns string) error {
	spec := &specs.Spec{
		Version:  "1.1.0",
		Hostname: cfg.Hostname,
		Root:     &specs.Root{Path: c.folder.rootfs(st)},
		Process: &specs.Process{
			Cwd:          "/",
			Args:         []string{filepath.Join(boot.BinDir, "cove-guest"), "init"},
			Env:          []string{"PATH=" + boot.BinDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=" + guestProcs(cfg.CPUs)},
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 65536, Hard: 1 << 20}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "nodev", "noexec"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"rw", "nosuid", "nodev", "noexec"}},
			{Destination: boot.BinDir, Type: "bind", Source: cfg.Guest, Options: []string{"bind", "ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: netns},
			},
		},
	}
	for _, dir := range cfg.Include {
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: dir, Type: "bind", Source: dir, Options: []string{"rbind", "ro"}})
	}
	for _, b := range cfg.Binds {
		options := []string{"rbind", "rw"}
		if b.ReadOnly {
			options[1] = "ro"
		}
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: b.Target, Type: "bind", Source: b.Source, Options: options})
	}
	if c.cgroups {
		spec.Linux.CgroupsPath = st.cgroup()
		spec.Linux.Resources = onlyEnforced(cfg.resources(), st, cgroup.Look().Have)
	}
	since, err := upperSince(cfg.Disk)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	spec.Annotations = map[string]string{boot.UpperSince: strconv.FormatInt(since.UnixNano(), 10)}
	return c.saveBundle(st, spec)
}

// saveBundle writes the configuration of the bundle of a generation. It makes the generation's
// cgroup if runsc would not make it.
func (c *containers) saveBundle(st State, spec *specs.Spec) error {
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.MkdirAll(c.folder.bundle(st), 0o700); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(c.folder.bundle(st), "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if c.cgroups {
		return errors.Join(makeGroup(cgroupRoot, st.cgroup(), spec.Linux.Resources), writeCpuset(st.cgroup()))
	}
	return nil
}

// guestProcs bounds the guest's own threads: it moves bytes, and each thread of
// it costs the host memory.
func guestProcs(cpus int) string {
	if n := runtime.NumCPU(); cpus == 0 || n < cpus {
		cpus = n
	}
	return fmt.Sprint(min(cpus, 4))
}

// capabilities are the guest's. They act on the sandbox's own kernel, which is gVisor's.
// NET_RAW is left out: with it, root inside could answer for the guest on the link. (ping does
// not need it.) Programs that the guest starts have fewer: the guest withholds some from its
// bounding set (guest.withhold).
var capabilities = []string{
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH",
	"CAP_FOWNER", "CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN",
	"CAP_MAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_SETFCAP", "CAP_SETGID",
	"CAP_SETPCAP", "CAP_SETUID", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_CHROOT", "CAP_SYS_MODULE", "CAP_SYS_NICE",
	"CAP_SYS_PACCT", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
}
