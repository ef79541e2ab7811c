package sprite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// TestImportedPolicy: an import takes no rule over that opens an address, or a name of
// this machine's network. Leaving out a rule opens nothing else.
func TestImportedPolicy(t *testing.T) {
	allow := func(domain, cidr string) sprites.NetworkRule {
		return sprites.NetworkRule{Domain: domain, CIDR: cidr, Action: "allow"}
	}
	for _, test := range []struct {
		rules []sprites.NetworkRule
		want  string
		notes int
	}{
		{nil, "[]", 0},
		{[]sprites.NetworkRule{allow("example.org", ""), allow("", "169.254.169.254"), allow("", "8.8.8.8"), {CIDR: "10.0.0.0/8", Action: "deny"}}, "[example.org deny 10.0.0.0/8]", 2},
		{[]sprites.NetworkRule{allow("metadata.google.internal", ""), allow("*.localhost", "")}, "[deny * (none)]", 2},
		{[]sprites.NetworkRule{allow("", "127.0.0.1")}, "[deny * (none)]", 1},
	} {
		i := importer{network: &network{}, row: store.Sprite{Name: "paint"}}
		p, err := i.policy(t.Context(), sprites.NetworkPolicy{Rules: test.rules})
		set, err2 := i.network.compile(t.Context(), p)
		if got := fmt.Sprint(set.Rules); err != nil || err2 != nil || got != test.want || len(i.done.Notes) != test.notes {
			t.Errorf("%v: got %s, %q, %v, %v, want %s", test.rules, got, i.done.Notes, err, err2, test.want)
		}
	}
}

// The command that a note names allows what the rule allowed, and no more.
func TestImportedPolicyHint(t *testing.T) {
	for _, test := range []struct {
		rule sprites.NetworkRule
		want string
	}{
		{sprites.NetworkRule{CIDR: "203.0.113.80", Ports: []string{"80"}}, "203.0.113.80:80"},
		{sprites.NetworkRule{CIDR: "10.1.0.0/16", Ports: []string{"53", "8000-8999"}, Protocol: "udp"}, "10.1.0.0/16:53,8000-8999/udp"},
		{sprites.NetworkRule{CIDR: "2001:db8::1", Ports: []string{"443"}}, "'[2001:db8::1]:443'"},
		{sprites.NetworkRule{Domain: "*.localhost", Ports: []string{"80"}}, "'*.localhost:80'"},
		{sprites.NetworkRule{CIDR: "203.0.113.80"}, "203.0.113.80"},
	} {
		test.rule.Action = "allow"
		i := importer{network: &network{}, row: store.Sprite{Name: "paint"}}
		if _, err := i.policy(t.Context(), sprites.NetworkPolicy{Rules: []sprites.NetworkRule{test.rule}}); err != nil {
			t.Fatal(err)
		}
		if want := ": cove policy allow -s paint " + test.want; len(i.done.Notes) != 1 || !strings.HasSuffix(i.done.Notes[0], want) {
			t.Errorf("%v: got %q, want ...%q", test.rule, i.done.Notes, want)
		}
	}
}
