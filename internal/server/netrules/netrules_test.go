package netrules_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cove-dev/cove/internal/server/netrules"
	"github.com/cove-dev/cove/sprites"
)

// TestOf: a completion is a rule, whatever the sandbox has said. Of a refusal it is the one that opens it.
func TestOf(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("2001:db8::1")
	for want, e := range map[string]sprites.NetworkEvent{
		"a.b":                  {Protocol: "dns", Name: "a.b", Opens: "a.b"},
		"10.1.2.3:80":          {Protocol: "tcp", Name: "a.b", Address: &v4, Port: 80, Opens: "10.1.2.3:80"},
		"10.1.2.3:81":          {Protocol: "tcp", Address: &v4, Port: 81, Allowed: true},
		"[2001:db8::1]:53/udp": {Protocol: "udp", Address: &v6, Port: 53, Allowed: true},
		"a.b:443":              {Protocol: "tcp", Name: "a.b", Address: &v4, Port: 443, Allowed: true},
		"":                     {Protocol: "dns", Name: "a b\x1b[2J", Opens: "a b\x1b[2J"},
	} {
		if got := netrules.Of(e); got != want {
			t.Errorf("%+v: got %q, want %q", e, got, want)
		}
	}
}

// TestAdd: the first rule of a sprite without rules closes nothing.
func TestAdd(t *testing.T) {
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
		{[]sprites.NetworkRule{{Include: "agent"}, allow}, []sprites.NetworkRule{{Include: "agent"}}, "[{a.b   allow [] } {  agent  [] }]"},
		{[]sprites.NetworkRule{{Include: "none"}, allow}, []sprites.NetworkRule{{Include: "open"}}, "[{a.b   allow [] } {  open  [] }]"},
	} {
		if got := fmt.Sprint(netrules.Add(sprites.NetworkPolicy{Rules: test.have}, test.add).Rules); got != test.want {
			t.Errorf("%v and %v: got %s, want %s", test.have, test.add, got, test.want)
		}
	}
}

// TestLearn: the rules open the hosts that were reached, and no more.
func TestLearn(t *testing.T) {
	v4 := netip.MustParseAddr("203.0.113.1")
	got := netrules.Learn([]sprites.NetworkEvent{
		{Protocol: "dns", Name: "a.b"},
		{Protocol: "tcp", Name: "a.b", Address: &v4, Port: 443},
		{Protocol: "tcp", Name: "a.b", Address: &v4, Port: 80},
		{Protocol: "tcp", Name: "a.b", Address: &v4, Port: 443},
		{Protocol: "udp", Address: &v4, Port: 123},
	})
	if want := "[{ 203.0.113.1  allow [123] udp} {a.b   allow [80 443] }]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}

	// The name of a host in a private network does not open it.
	near, near6, other := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5"), netip.MustParseAddr("10.1.0.9")
	got = netrules.Learn([]sprites.NetworkEvent{
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
