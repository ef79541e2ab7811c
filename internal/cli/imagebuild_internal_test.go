package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/sprites"
)

// TestBuildPolicy: RUN may reach the hosts of the preset, and those that are added to it.
func TestBuildPolicy(t *testing.T) {
	added := sprites.NetworkRule{CIDR: "10.1.2.3", Action: "allow", Ports: []string{"8443"}}
	for _, test := range []struct {
		network string
		allow   []string
		want    []sprites.NetworkRule
	}{
		{"", nil, nil},
		{"none", nil, []sprites.NetworkRule{{Include: "none"}}},
		{"none", []string{"10.1.2.3:8443"}, []sprites.NetworkRule{{Include: "none"}, added}},
		{"", []string{"10.1.2.3:8443"}, []sprites.NetworkRule{{Include: "open"}, added}},
	} {
		o := imageBuildOptions{network: test.network, allow: test.allow}
		req, err := o.request(new(cobra.Command))
		if err != nil {
			t.Fatal(err)
		}
		var got []sprites.NetworkRule
		if req.NetworkPolicy != nil {
			got = req.NetworkPolicy.Rules
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("--network %q --allow %q (-want +got):\n%s", test.network, test.allow, diff)
		}
	}
	o := imageBuildOptions{allow: []string{"not a rule"}}
	if _, err := o.request(new(cobra.Command)); err == nil {
		t.Error("a rule that is none was taken")
	}
}
