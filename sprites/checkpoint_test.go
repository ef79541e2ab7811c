package sprites_test

import (
	"encoding/json"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// TestKeepMemory: a request says by a word whether the memory is kept, or by yes or no.
func TestKeepMemory(t *testing.T) {
	for body, want := range map[string]sprites.KeepMemory{
		`{}`: "", `{"memory":true}`: sprites.KeepAuto, `{"memory":false}`: sprites.KeepNever, `{"memory":"always"}`: sprites.KeepAlways,
	} {
		var got sprites.CheckpointRequest
		if err := json.Unmarshal([]byte(body), &got); err != nil || got.Memory != want {
			t.Errorf("%s: got %q, %v, want %q", body, got.Memory, err, want)
		}
	}
	var got sprites.CheckpointRequest
	if err := json.Unmarshal([]byte(`{"memory":1}`), &got); err == nil {
		t.Errorf("a number is %q", got.Memory)
	}
}
