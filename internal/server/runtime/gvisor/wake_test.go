package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestUnbornWake: if a shim ends before it has begun to wake a sprite, the sprite's memory stays.
// It is used up once the shim has noted that programs may run.
func TestUnbornWake(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	m := sprite.Machine{ID: "00112233aabbccdd", Hostname: "paint", Base: base.Host, MachineID: strings.Repeat("0", 32), Incarnation: 1, Layers: []string{"1111222233334444"}}
	for name, c := range map[string]struct {
		shim func(image string) []string
		warm bool
	}{
		"no process for the shim": {func(string) []string { return []string{filepath.Join(t.TempDir(), "none")} }, true},
		"the shim dies at once":   {func(string) []string { return []string{"false"} }, true},
		"the shim answers":        {func(string) []string { return []string{"sh", "-c", `echo '{"error":"no lock"}' >&3`} }, true},
		"the shim dies after it woke": {func(image string) []string {
			return []string{"sh", "-c", "mv " + image + "/cove.json " + image + "/cove.json.spent"}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			rt := newRuntime(t, dir)
			image := folder(rt.Dir).image(m.ID)
			rt.Shim = c.shim(image + usedSuffix)
			if err := os.MkdirAll(image, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(image, shim.ImageFile), fmt.Appendln(nil, "{}"), 0o600); err != nil {
				t.Fatal(err)
			}
			if sb, err := rt.Boot(t.Context(), m); err == nil {
				t.Fatalf("it booted: %v", sb)
			}
			if warm := rt.Memories().Warm(m.ID); warm != c.warm {
				t.Errorf("its memory is kept: %v, want %v", warm, c.warm)
			}
		})
	}
}
