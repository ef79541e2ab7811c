package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// Limits are what a running sandbox may use. Zero is no limit.
type Limits struct {
	MemoryMB int `json:"memory_mb"`
	CPUs     int `json:"cpus"`
}

// ErrMemoryUsed says that a sandbox uses more memory than it would be left with.
var ErrMemoryUsed = errors.New("more memory is in use")

// setLimits gives other limits to the sandbox, and to the sandboxes that checkpoints
// make of it. If it fails, the limits are as before, except that the limit of processors
// may be the new one. Without cgroups nothing is limited, and the state says so.
func (s *Shim) setLimits(l Limits) error {
	s.moves.turn.Lock()
	defer s.moves.turn.Unlock()
	st := s.record.get()
	if !alive(st.PID, st.StartTime) {
		return ErrEnded
	}
	if !s.containers.cgroups {
		return nil
	}
	if enforced(st, "cpu") {
		if err := setProcessors(st.cgroup(), l.CPUs); err != nil {
			return fmt.Errorf("limit the processors: %w", err)
		}
	}
	limit := int64(l.MemoryMB) << 20
	if limit != st.MemoryLimit && enforced(st, "memory") {
		if err := changeMemory(st.cgroup(), limit); err != nil {
			return err
		}
		if err := s.record.set(func(st *State) { st.MemoryLimit = limit }); err != nil {
			return err
		}
	}
	s.cfg.MemoryMB, s.cfg.CPUs = l.MemoryMB, l.CPUs
	spec, err := s.folder.readBundle(st)
	if err != nil {
		return err
	}
	if spec.Linux.Resources == nil {
		spec.Linux.Resources = &specs.LinuxResources{}
	}
	fresh := onlyEnforced(s.cfg.resources(), st, nil) // an adopted one was told only some of these
	spec.Linux.Resources.Memory, spec.Linux.Resources.CPU = fresh.Memory, fresh.CPU
	if err := s.containers.saveBundle(st, spec); err != nil {
		return err
	}
	s.memory.changed()
	return nil
}

// quotaOf is the time of so many processors in each cgroup.Period, but at most what the
// server's own cgroups may use. In cgroup v1 a limit must not be above the parent's,
// which may be half a processor. 0 is no limit.
func quotaOf(server cgroup.Limits, cpus int) int64 {
	quota := int64(cpus) * cgroup.Period
	if server.Quota > 0 && quota > 0 {
		quota = min(quota, server.Quota)
	}
	return quota
}

// setProcessors limits the time of processors that a sandbox has.
func setProcessors(group string, cpus int) error {
	n := quotaOf(cgroup.Process{}.Limits(), cpus)
	dir := filepath.Join(cgroupRoot, "cpu", group)
	if _, err := os.Stat(filepath.Join(dir, "cpu.cfs_quota_us")); err == nil {
		if n == 0 {
			n = -1
		}
		return os.WriteFile(filepath.Join(dir, "cpu.cfs_quota_us"), []byte(strconv.FormatInt(n, 10)), 0)
	}
	quota := "max"
	if n > 0 {
		quota = strconv.FormatInt(n, 10)
	}
	return os.WriteFile(filepath.Join(cgroupRoot, group, "cpu.max"), fmt.Appendf(nil, "%s %d", quota, cgroup.Period), 0)
}

// changeMemory limits the memory of a sandbox. A sandbox that uses more is not ended for
// that: the limit stays as it was. Its reserve is held anew by the memoryWatch.
func changeMemory(group string, limit int64) error {
	g := openMemoryGroup(group, limit)
	if limit == 0 {
		if g.v1 {
			if err := g.write("memory.oom_control", "0"); err != nil {
				return fmt.Errorf("limit the memory: %w", err)
			}
			return g.write("memory.limit_in_bytes", "-1")
		}
		return g.write("memory.max", "max")
	}
	free, err := g.spareSoon()
	if err != nil {
		return fmt.Errorf("limit the memory: %w", err)
	}
	if free <= 0 {
		return fmt.Errorf("%w: %d MiB, and %d MiB of the limit are kept free", ErrMemoryUsed, (limit-reserve(limit)-free)>>20, reserve(limit)>>20)
	}
	if err := g.setLimit(limit); err != nil {
		return fmt.Errorf("%w: %w", ErrMemoryUsed, err) // of cache that can't be taken back at once
	}
	if g.v1 {
		g.hold() // before its programs go on; the memoryWatch does it again
	}
	return nil
}
