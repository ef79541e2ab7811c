package sprite

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/sprites"
)

// TestFits: a container's limits refuse as the machine's size does, and the error says which
// of them it is.
func TestFits(t *testing.T) {
	machine := cgroup.Machine{Memory: 8 << 30, CPUs: 8}
	container := cgroup.Machine{Memory: 1 << 30, CPUs: 2, Server: cgroup.Limits{Memory: 1 << 30, CPUs: 2}}
	for _, tt := range []struct {
		config  sprites.Config
		machine cgroup.Machine
		want    string
	}{
		{sprites.Config{RAMMB: 4096, CPUs: 4}, machine, ""},
		{sprites.Config{RAMMB: 1024, CPUs: 2}, container, ""},
		{sprites.Config{RAMMB: 4096}, container, "a sprite can't have 4096 MiB of memory: the server may use 1024"},
		{sprites.Config{CPUs: 4}, container, "a sprite can't have 4 CPUs: the server may use 2"},
		{sprites.Config{RAMMB: 9000}, machine, "the server's machine has 8192"},
		{sprites.Config{CPUs: 9}, machine, "the server's machine has 8"},
	} {
		err := fits(tt.config, tt.machine)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: got %v, want %q", tt.config, err, tt.want)
		}
	}
}
