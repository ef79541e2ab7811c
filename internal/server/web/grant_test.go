package web_test

import (
	"slices"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

// TestGrantToLabel: a connector is granted to a label only if the person has named the sprites
// that have the label already. Somebody else may have labelled theirs to get it.
func TestGrantToLabel(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	c := s.Client()
	_, err := c.Create(t.Context(), sprites.CreateRequest{Name: "strange", Labels: []string{"team"}})
	must(t, err)
	_, err = c.PutConnector(t.Context(), cove.Connector{Name: "api", Upstream: "https://api.example.org"})
	must(t, err)
	grants := func() []cove.ConnectorGrant {
		def, err := c.Connector(t.Context(), "api")
		must(t, err)
		return def.Grants
	}

	page := webtest.Start(t).Open(c, webtest.Desktop)
	page.Allow("409")
	page.Goto("/web/settings?tab=connectors")
	page.Click("#grant-api summary")
	page.Fill("#grant-label-api", "team")
	page.Click("#grant-api button")
	page.Sees("the grant does not name them: strange")
	if got := grants(); len(got) != 0 {
		t.Errorf("refused, and granted: %+v", got)
	}
	page.Fill("#grant-reaches-api", "strange, ")
	page.Click("#grant-api button")
	page.Sees("The connector api is granted to all sprites with the label team.")
	if got := grants(); !slices.ContainsFunc(got, func(g cove.ConnectorGrant) bool { return g.Label == "team" }) {
		t.Errorf("granted are %+v", got)
	}
}
