package job

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// roundTrip is a function as an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A connector that is defined while a job is about to make it stays as it was defined.
func TestConnectorMadeMeanwhile(t *testing.T) {
	m, client := newManager(t)
	if err := client.SetSecret(t.Context(), "anthropic", "sk-0123456789"); err != nil {
		t.Fatal(err)
	}
	const own = "https://models.example.org"
	through := m.Client.HTTPClient.Transport
	asking := *m.Client.Client
	asking.HTTPClient = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/v1/secrets") { // after the look whether it is there
			if _, err := client.PutConnector(t.Context(), cove.Connector{Name: "anthropic", Upstream: own}); err != nil {
				t.Error(err)
			}
		}
		return through.RoundTrip(r)
	})}
	racing := connectors{store: m.Store.Connectors, client: &cove.Client{Client: &asking}, logger: m.Logger}
	if there, err := racing.has(t.Context(), "anthropic"); !there || err != nil {
		t.Errorf("got %v, %v", there, err)
	}
	if c, err := client.Connector(t.Context(), "anthropic"); err != nil || c.Upstream != own {
		t.Errorf("the connector leads to %q (%v), want %q", c.Upstream, err, own)
	}
}
