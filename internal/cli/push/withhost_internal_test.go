package push

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// TestWithHost: the server of a repository that the sprite clones is opened by its name, or by its address, as the web
// page opens it. None is opened inward.
func TestWithHost(t *testing.T) {
	agent := sprites.NetworkRule{Include: "agent"}
	for repository, want := range map[string]*sprites.NetworkRule{
		"https://git.example.org/team/a.git": {Domain: "git.example.org", Action: "allow", Ports: []string{"443"}},
		"http://1.2.3.4:3000/team/a.git":     {CIDR: "1.2.3.4", Action: "allow", Ports: []string{"3000"}},
		"https://10.1.2.3/team/a.git":        nil,
		"https://[64:ff9b::a01:203]/a.git":   nil, // the same, wrapped
	} {
		got, err := withHost(Options{URL: repository, Remotes: true, JobSettings: cove.JobSettings{NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{agent}}}})
		if err != nil {
			t.Errorf("%s: %v", repository, err)
			continue
		}
		rules := []sprites.NetworkRule{agent}
		if want != nil {
			rules = append(rules, *want)
		}
		if diff := cmp.Diff(rules, got.Rules); diff != "" {
			t.Errorf("%s: %s", repository, diff)
		}
	}
}
