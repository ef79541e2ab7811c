package checkpointtree

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

func TestCheckpointTree(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"", ""},
		{"Current<v2 v2<v1 v1<", "Current\nv2\nv1\n"},
		{"Current<v1 v3<v2 v2<v1 v1<", "*   Current\n│ * v3\n│ * v2\n*─┘ v1\n"},
		{"Current<v1 b<v1 v3<v2 a<v1 v2<v1 v1<", "*       Current\n│ *     b\n│ │ *   v3\n│ │ │ * a\n│ │ * │ v2\n*─┴─┴─┘ v1\n"},
		// One that is not listed is passed over.
		{"Current<hidden,v1 v2<v1 v1<", "*   Current\n│ * v2\n*─┘ v1\n"},
		// A server may report an impossible history.
		{"Current<Current v1<v2 v2<v1", "Current\nv1\nv2\n"},
	} {
		var list []sprites.Checkpoint
		for word := range strings.FieldsSeq(c.list) {
			id, from, _ := strings.Cut(word, "<")
			history := strings.Split(from, ",")
			list = append(list, sprites.Checkpoint{ID: id, SourceID: history[0], History: history})
		}
		var got strings.Builder
		for i, line := range Draw(list) {
			got.WriteString(line + list[i].ID + "\n")
		}
		if got.String() != c.want {
			t.Errorf("%s:\n%swant\n%s", c.list, got.String(), c.want)
		}
	}
}
