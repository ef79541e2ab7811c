package image

import (
	"encoding/json"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// TestManyVariables: a configuration's environment has a bound.
func TestManyVariables(t *testing.T) {
	for n, refused := range map[int]bool{maxEnv: false, maxEnv + 1: true} {
		raw, err := json.Marshal(v1.ConfigFile{OS: thisOS, RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{}}, Config: v1.Config{Env: slices.Repeat([]string{"A=1"}, n)}})
		must(t, err)
		d, _, err := readConfig(raw, &v1.Manifest{}, "x")
		if !refused {
			must(t, err)
			if len(d.Config.Env) != n {
				t.Errorf("got %d of %d variables", len(d.Config.Env), n)
			}
			continue
		}
		wantCode(t, err, "image_bad", "environment")
	}
}
