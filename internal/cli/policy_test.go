package cli

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/sprites"
)

func TestNetworkText(t *testing.T) {
	agent, rule := sprites.NetworkRule{Include: "agent"}, sprites.NetworkRule{Domain: "a.b", Action: "allow"}
	for want, rules := range map[string][]sprites.NetworkRule{
		"open, without rules": nil, "agent": {agent}, "1 rule": {rule}, "agent, 2 rules": {rule, agent, rule},
	} {
		if got := networkText(&sprites.NetworkPolicy{Rules: rules}); got != want {
			t.Errorf("%v: got %q, want %q", rules, got, want)
		}
	}
	if got := networkText(nil); got != "" {
		t.Errorf("none: got %q", got)
	}
}

// TestPresetNames: hosts that a preset allows although a wider rule denies them are said.
func TestPresetNames(t *testing.T) {
	agent := sprites.NetworkRule{Include: "agent"}
	deny := func(domain string) sprites.NetworkRule { return sprites.NetworkRule{Domain: domain, Action: "deny"} }
	for _, test := range []struct {
		policy []sprites.NetworkRule
		rule   sprites.NetworkRule
		want   string
	}{
		{[]sprites.NetworkRule{agent}, deny("*.openai.com"), "api.openai.com auth.openai.com"},
		{[]sprites.NetworkRule{agent, deny("auth.openai.com")}, deny("*.openai.com"), "api.openai.com"},
		{[]sprites.NetworkRule{agent}, deny("api.openai.com"), ""}, // which decides
		{[]sprites.NetworkRule{agent}, deny("*.example.org"), ""},
		{[]sprites.NetworkRule{{Include: "open"}}, deny("*.openai.com"), ""},
		{[]sprites.NetworkRule{{Include: "newer"}}, deny("*.openai.com"), ""},
		{[]sprites.NetworkRule{{Include: "defaults"}}, deny("*.github.com"), ""},
		{[]sprites.NetworkRule{agent}, sprites.NetworkRule{Domain: "*.openai.com", Action: "allow"}, ""},
	} {
		p := sprites.NetworkPolicy{Rules: append(test.policy, test.rule)}
		got := presetNames(p, builtinPresets(p).Rules, []sprites.NetworkRule{test.rule})
		if strings.Join(got, " ") != test.want {
			t.Errorf("%v and %v: got %q, want %q", test.policy, test.rule, got, test.want)
		}
	}
}
