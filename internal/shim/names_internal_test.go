package shim

import (
	"strings"
	"testing"
)

// TestOurs: which processes a shim may end by their command lines.
func TestOurs(t *testing.T) {
	const id = "0123456789abcdef"
	own := &names{id: id, dir: "/data/run/" + id, prefix: prefixOf(id, "1:2")}
	earlier := &names{id: id, dir: own.dir, prefix: id}
	for line, want := range map[string][2]bool{ // by the shim, and by one of an earlier cove's sandbox
		"": {}, "init": {}, "sleep 1000": {}, "cove shim": {},
		"runsc-sandbox --root=/data/run/" + id + "/runsc boot":                                        {},
		"runsc-sandbox --root=/data/run/" + id + "/runsc boot " + container(own.prefix, 3):            {true, false},
		"runsc-sandbox --root=/before/run/" + id + "/runsc boot " + container(own.prefix, 3):          {true, false},
		"runsc-sandbox --root=/copy/run/" + id + "/runsc boot " + container(prefixOf(id, "1:3"), 3):   {},
		"runsc-sandbox --root=/data/run/" + id + "/runsc boot " + container(prefixOf(id, "1:3"), 3):   {},
		"runsc-sandbox --root=/data/run/" + id + "/runsc boot " + container(id, 3):                    {false, true},
		"runsc-sandbox --root=/copy/run/" + id + "/runsc boot " + container(id, 3):                    {},
		"runsc-sandbox --root=/data/run/" + id + "/runsc boot " + id + "-00000x":                      {},
		"runsc-sandbox --root=/data/run/" + id + "/runsc boot " + container("f"+id[1:], 3) + " " + id: {},
	} {
		args := append(strings.Split(line, " "), "")
		for i, n := range []*names{own, earlier} {
			ends, named := false, false
			for _, arg := range args {
				ends = ends || n.isContainer(arg) && n.ours(args, arg)
				named = named || n.ours(args, "")
			}
			if ends != want[i] || named {
				t.Errorf("shim %d, %q: got %v, want %v; %v for no name", i, line, ends, want[i], named)
			}
		}
	}
}
