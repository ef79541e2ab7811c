package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// TestLimited: a sandbox sees what its cgroup has, also if runsc ignores cgroups.
func TestLimited(t *testing.T) {
	const args = "runsc --root=/r boot --bundle=/b --total-memory 4096 id"
	for name, tt := range map[string]struct {
		args   string
		limits cgroup.Limits
		want   string
	}{
		"no limits":         {args, cgroup.Limits{}, args},
		"less":              {args, cgroup.Limits{Memory: 1024, CPUs: 3}, "runsc --root=/r boot --cpu-num 3 --bundle=/b --total-memory 1024 id"},
		"one processor":     {args, cgroup.Limits{CPUs: 1}, "runsc --root=/r boot --cpu-num 2 --bundle=/b --total-memory 4096 id"},
		"more":              {args, cgroup.Limits{Memory: 8192, CPUs: 8}, args},
		"runsc read it":     {"runsc boot --cpu-num 4 --total-memory 9 id", cgroup.Limits{CPUs: 3}, "runsc boot --cpu-num 4 --total-memory 9 id"},
		"another call":      {"runsc gofer --total-memory 4096", cgroup.Limits{Memory: 1}, "runsc gofer --total-memory 4096"},
		"an argument's end": {"runsc boot --total-memory", cgroup.Limits{Memory: 1}, "runsc boot --total-memory"},
	} {
		if got := limited(strings.Fields(tt.args), tt.limits, 8); !slices.Equal(got, strings.Fields(tt.want)) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
