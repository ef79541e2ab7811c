package gateway

import "testing"

func TestClimbs(t *testing.T) {
	for path, want := range map[string]bool{
		"": false, "/": false, "/v1/messages": false, "/a..b/...": false, "/.well-known/x": false, "/100%": false,
		"/..": true, "/../x": true, "/a/../b": true, "/./a": true, "/a/..": true, `/..\\x`: true, "/..;v=1/x": true,
		"/%2e%2e/x": true, "/..%2fx": true, "/%252e%252e/x": true, "/a%5c..%5cb": true, "/%2e%2e/x/%": true, "/%2e%2e/x%zz": true, "/%252e%252e/x/%25": true, "/%/%2e%2e/x": true, "/a%zz": false, "/50%25": false,
	} {
		if got := climbs(path); got != want {
			t.Errorf("%q: got %v", path, got)
		}
	}
}
