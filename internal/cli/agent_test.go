package cli

import (
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
)

func TestConnectorState(t *testing.T) {
	m := models{secrets: []cove.Secret{{Name: "anthropic"}, {Name: "own"}}}
	for _, test := range []struct {
		name, secret string
		there        bool
		state, next  string
	}{
		{"anthropic", "", false, "set", ""}, // a job makes it
		{"openai", "", false, "missing", "give it a key: cove secret set openai"},
		{"anthropic", "own", true, "set", ""},
		{"anthropic", "other", true, "missing", "give it a key: cove secret set other"},
		{"local", "", true, "none", ""},
		{"local", "", false, "no connector", "make its connector: cove connector put local --upstream URL"},
	} {
		var headers map[string]string
		if test.secret != "" {
			headers = map[string]string{"X-Api-Key": "{secret}"}
		}
		got := m.stateOf(test.name, cove.Connector{Name: test.name, Secret: test.secret, Headers: headers}, test.there)
		if want := (connectorState{test.name, test.state, test.next}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		doc := agentJSON{State: agentNoKey, Connectors: []connectorState{got}}
		if text := stateText(doc); text != test.next {
			t.Errorf("%s: it says %q, want %q", test.name, text, test.next)
		}
	}
}

func TestAgentSettingsWithoutHome(t *testing.T) {
	t.Setenv("HOME", "")
	agent, err := agents.Find("claude")
	if err != nil {
		t.Fatal(err)
	}
	_, err = readAgentSettings(newInvocation(Streams{}), agent)
	if got, want := classify(err).hint, "set HOME, or leave out --agent-settings"; got != want {
		t.Errorf("got %v with the hint %q, want %q", err, got, want)
	}
}
