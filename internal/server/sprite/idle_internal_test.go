package sprite

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

// TestHostileReasons: what a guest says of what keeps it awake has a bound.
func TestHostileReasons(t *testing.T) {
	var tasks []string
	for i := range 15_000 {
		tasks = append(tasks, fmt.Sprintf("%063d", i))
	}
	if all := reasons(sprites.Activity{Sessions: 1 << 40, Tasks: tasks}); len(all) > maxTasks+1 {
		t.Errorf("%d reasons to be awake", len(all))
	}
	if all := reasons(sprites.Activity{Sessions: 1, Tasks: []string{"a", "b c", "\x1b[2J", ""}}); !slices.Equal(all, []string{"a command", "task a"}) {
		t.Errorf("got %q", all)
	}
}
