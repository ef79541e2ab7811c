package cli

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
)

func TestConnectorDefinition(t *testing.T) {
	o := connectorOptions{headers: []string{"X-Key: a:{secret}", "B:c"}, limits: []string{"60/minute", "5", "500M/day"}}
	def, err := o.definition(&cobra.Command{}, "ci")
	want := cove.ConnectorLimits{RequestsPerMinute: 60, Requests: 5, BytesPerDay: 500 << 20}
	if err != nil || def.Headers["X-Key"] != "a:{secret}" || def.Headers["B"] != "c" || def.Limits != want {
		t.Errorf("got %+v, %v", def, err)
	}
	for _, bad := range []connectorOptions{
		{headers: []string{"X-Key"}}, {headers: []string{": a"}}, {headers: []string{"a:"}}, {limits: []string{""}}, {limits: []string{"0"}},
		{limits: []string{"5/"}}, {limits: []string{"5/hour"}}, {limits: []string{"-1/minute"}}, {limits: []string{"/day"}}, {limits: []string{"0M/day"}}, {limits: []string{"1KM/day"}},
	} {
		if def, err := bad.definition(&cobra.Command{}, "ci"); err == nil {
			t.Errorf("%+v: got %+v", bad, def)
		}
	}
	if _, err := new(connectorOptions).definition(&cobra.Command{}, "No"); err == nil {
		t.Error("a bad name was taken")
	}
}
