package web

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// TestRepositoryRule: the server of a repository is opened by its name or by its address, at
// its port alone. No rule opens the host's own network: the server warns of that, and the page
// shows the warning before the start.
func TestRepositoryRule(t *testing.T) {
	for repository, want := range map[string]string{
		"https://git.example.org/team/a.git":      "allow git.example.org:443",
		"http://git.example.org:3000/team/a.git":  "allow git.example.org:3000",
		"https://1.2.3.4/team/a.git":              "allow 1.2.3.4:443",
		"http://1.2.3.4:3000/team/a.git":          "allow 1.2.3.4:3000",
		"https://[2600:db8::7]/team/a.git":        "allow 2600:db8::7:443",
		"https://[2600:DB8:0::7]:8443/team/a.git": "allow 2600:db8::7:8443",
		"http://192.168.1.4:3000/team/a.git":      "",
		"http://[fd00::4]/team/a.git":             "",
		"http://127.0.0.1/team/a.git":             "",
		"http://localhost:3000/team/a.git":        "",
		"no URL":                                  "",
		"https://[fe80::1%25eth0]/a.git":          "",
	} {
		req, err := newJob{Plan: "# Do it", Agent: "shell", URL: repository}.request()
		if err != nil {
			t.Errorf("%s: %v", repository, err)
			continue
		}
		got := ""
		for _, r := range req.NetworkPolicy.Rules[1:] {
			got += ruleText(r)
		}
		if got != want {
			t.Errorf("%s: got the rule %q, want %q", repository, got, want)
		}
	}
	for _, repository := range []string{"https://1.2.3/team/a.git", "https://git.example.org:70000/a.git"} {
		if req, err := (newJob{Plan: "# Do it", Agent: "shell", URL: repository}).request(); err == nil {
			t.Errorf("%s: got %+v, want a refusal", repository, req.NetworkPolicy)
		}
	}
	page, err := html("plan-check", planCheck{Preview: &cove.JobPreview{Agent: "shell", Warnings: []string{"the job's sprite does not reach http://192.168.1.4"}}})
	if err != nil || !strings.Contains(page, "does not reach http://192.168.1.4") || strings.Contains(page, "The server would take it") {
		t.Errorf("the warning is not shown: %v\n%s", err, page)
	}
}
