package cli

import (
	"fmt"
	"net/netip"
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

// What is completed is a rule, whatever the sandbox has said.
func TestEventRule(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("2001:db8::1")
	for want, e := range map[string]sprites.NetworkEvent{
		"a.b":                  {Protocol: "dns", Name: "a.b"},
		"10.1.2.3:80":          {Protocol: "tcp", Address: &v4, Port: 80},
		"[2001:db8::1]:53/udp": {Protocol: "udp", Address: &v6, Port: 53},
		"a.b:443":              {Protocol: "tcp", Name: "a.b", Address: &v4, Port: 443},
		"":                     {Protocol: "dns", Name: "a b\x1b[2J"},
	} {
		if got := eventRule(e); got != want {
			t.Errorf("%+v: got %q, want %q", e, got, want)
		}
	}
}

// The first rule of a sprite without rules closes nothing.
func TestAddRules(t *testing.T) {
	allow, deny := sprites.NetworkRule{Domain: "a.b", Action: "allow"}, sprites.NetworkRule{Domain: "a.b", Action: "deny"}
	for _, test := range []struct {
		have, add []sprites.NetworkRule
		want      string
	}{
		{nil, []sprites.NetworkRule{allow}, "[{  open  [] } {a.b   allow [] }]"},
		{nil, []sprites.NetworkRule{deny}, "[{*   allow [] } {a.b   deny [] }]"},
		{[]sprites.NetworkRule{{Include: "none"}, allow}, []sprites.NetworkRule{{Domain: "*", Action: "allow", Ports: []string{"443"}}}, "[{a.b   allow [] } {*   allow [443] }]"},
		{[]sprites.NetworkRule{{Include: "none"}}, []sprites.NetworkRule{allow}, "[{  none  [] } {a.b   allow [] }]"},
		{[]sprites.NetworkRule{{Include: "agent"}, allow}, []sprites.NetworkRule{deny, deny}, "[{  agent  [] } {a.b   deny [] }]"},
	} {
		if got := fmt.Sprint(addRules(sprites.NetworkPolicy{Rules: test.have}, test.add).Rules); got != test.want {
			t.Errorf("%v and %v: got %s, want %s", test.have, test.add, got, test.want)
		}
	}
}

// What was reached, and no more.
func TestLearned(t *testing.T) {
	v4 := netip.MustParseAddr("203.0.113.1")
	got := learned([]sprites.NetworkEvent{
		{Protocol: "dns", Name: "a.b"},
		{Protocol: "tcp", Name: "a.b", Address: &v4, Port: 443},
		{Protocol: "tcp", Name: "a.b", Address: &v4, Port: 80},
		{Protocol: "tcp", Name: "a.b", Address: &v4, Port: 443},
		{Protocol: "udp", Address: &v4, Port: 123},
	})
	if want := "[{ 203.0.113.1  allow [123] udp} {a.b   allow [80 443] }]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}

	// The name of what is in a private network does not open it.
	near, near6, other := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5"), netip.MustParseAddr("10.1.0.9")
	got = learned([]sprites.NetworkEvent{
		{Protocol: "tcp", Name: "db.example", Address: &near, Port: 5432, Rule: "10.0.0.5:5432"},
		{Protocol: "tcp", Name: "db.example", Address: &near6, Port: 5432, Rule: "[fd00::5]:5432,5433"},
		{Protocol: "udp", Name: "db.example", Address: &near6, Port: 53, Rule: "fd00::5/udp"},
		{Protocol: "tcp", Name: "a.b", Address: &v4, Port: 443, Rule: "203.0.113.0/24"},
		{Protocol: "tcp", Name: "web.example", Address: &other, Port: 80, Rule: "10.1.0.0/16"},
		{Protocol: "tcp", Name: "web.example", Address: &other, Port: 81, Rule: "10.1.0.0/16:80-90 (mine)"},
		{Protocol: "tcp", Name: "c.d", Address: &v4, Port: 443, Rule: "c.d:443"},
	})
	if want := "[{ 10.0.0.5  allow [5432] } { 10.1.0.9  allow [80 81] } { fd00::5  allow [5432] } { fd00::5  allow [53] udp} {a.b   allow [443] } {c.d   allow [443] }]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
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
