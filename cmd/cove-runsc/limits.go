package main

import (
	"slices"
	"strconv"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// leastCPUs is what gVisor's --cpu-num-from-quota leaves a sandbox.
const leastCPUs = 2

// limited returns the arguments of a boot, changed so that the sandbox sees no more memory
// and processors than its cgroup has. runsc reads these limits itself unless it ignores
// cgroups. Once the process has its own root it sees no cgroups, and the arguments stay as
// they are.
func limited(args []string, l cgroup.Limits, cpus int) []string {
	boot := slices.Index(args, "boot")
	if boot < 0 {
		return args
	}
	args = slices.Clone(args)
	if i := slices.Index(args, "--total-memory") + 1; i > 0 && i < len(args) {
		if n, err := strconv.ParseInt(args[i], 10, 64); err == nil && l.Memory > 0 && l.Memory < n {
			args[i] = strconv.FormatInt(l.Memory, 10)
		}
	}
	if n := max(l.CPUs, leastCPUs); l.CPUs > 0 && n < cpus && !slices.Contains(args, "--cpu-num") {
		args = slices.Insert(args, boot+1, "--cpu-num", strconv.Itoa(n))
	}
	return args
}
