package gvisor

import (
	"testing"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

func TestShareOf(t *testing.T) {
	for name, tt := range map[string]struct {
		server         cgroup.Limits
		memoryMB, cpus int
		want           share
	}{
		"no limits":           {cgroup.Limits{}, 0, 0, share{0, 0, boot.PidsMax, hostPidsMax}},
		"the sprite's":        {cgroup.Limits{Memory: 1 << 30, CPUs: 2}, 512, 1, share{512, 1, boot.PidsMax, hostPidsMax}},
		"the container's all": {cgroup.Limits{Memory: 512 << 20}, 512, 0, share{448, 0, boot.PidsMax, hostPidsMax}},
		"less than the rest":  {cgroup.Limits{Memory: 512 << 20}, 448, 0, share{448, 0, boot.PidsMax, hostPidsMax}},
		"the container's":     {cgroup.Limits{Memory: 1 << 30, CPUs: 2, Processes: 200, ProcessesLeft: 170}, 0, 0, share{896, 2, 17, 154}},
		"almost no processes": {cgroup.Limits{Processes: 200, ProcessesLeft: 10}, 0, 0, share{0, 0, leastTasks, sandboxTasks}},
		"plenty of processes": {cgroup.Limits{Processes: 1 << 20, ProcessesLeft: 1 << 20}, 0, 0, share{0, 0, boot.PidsMax, hostPidsMax}},
		"hardly any memory":   {cgroup.Limits{Memory: 100 << 20}, 0, 0, share{50, 0, boot.PidsMax, hostPidsMax}},
	} {
		if got := shareOf(tt.server, tt.memoryMB, tt.cpus); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
	// Whatever a sandbox starts stays below what the server has left.
	for left := 150; left < 20_000; left += 50 {
		s := shareOf(cgroup.Limits{Processes: left, ProcessesLeft: left}, 0, 0)
		if used := sandboxTasks + 3*s.tasks; used >= s.hostTasks || s.hostTasks >= left {
			t.Errorf("of %d left: %+v", left, s)
		}
	}
}
