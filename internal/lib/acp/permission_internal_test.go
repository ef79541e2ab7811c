package acp

import (
	"testing"

	acp "github.com/coder/acp-go-sdk"
)

// TestChoose: A8: a request is allowed by an option that allows, once if possible, or not at all.
func TestChoose(t *testing.T) {
	const once, always, reject, never = acp.PermissionOptionKindAllowOnce, acp.PermissionOptionKindAllowAlways, acp.PermissionOptionKindRejectOnce, acp.PermissionOptionKindRejectAlways
	for _, test := range []struct {
		kinds []acp.PermissionOptionKind
		want  int
	}{
		{nil, -1},
		{[]acp.PermissionOptionKind{reject, never}, -1},
		{[]acp.PermissionOptionKind{"", "allow", "ALLOW_ONCE", reject}, -1},
		{[]acp.PermissionOptionKind{reject, always, once}, 2},
		{[]acp.PermissionOptionKind{never, always}, 1},
	} {
		var options []acp.PermissionOption
		for _, kind := range test.kinds {
			options = append(options, acp.PermissionOption{Kind: kind, Name: "Yes, allow"})
		}
		if got := choose(options, once, always); got != test.want {
			t.Errorf("%q: got option %d, want %d", test.kinds, got, test.want)
		}
	}
}
