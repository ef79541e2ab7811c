package stephint_test

import (
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/stephint"
	"github.com/cove-dev/cove/sprites"
)

// TestFill: N6, P5: a failed step gets a hint. If a host was not found, and the network policy
// may be why, the hint says how to allow the host. If its time was up, it says how to get more.
// Otherwise, it says how to see more of the step.
func TestFill(t *testing.T) {
	rules := func(rules ...sprites.NetworkRule) *sprites.NetworkPolicy { return &sprites.NetworkPolicy{Rules: rules} }
	agent := rules(sprites.NetworkRule{Include: "agent"})
	own := cove.Job{ID: "a3f7b2", OwnsSprite: true}
	own.NetworkPolicy = agent
	there := cove.Job{}
	there.Sprite = "paint"
	far := there
	far.Backend = "far"
	profile := own
	profile.Profile, profile.ProfilePolicy = "nightly", true
	open, allowed := own, own
	open.NetworkPolicy = nil
	allowed.NetworkPolicy = rules(sprites.NetworkRule{Domain: "*.example.org", Action: "allow"})
	const curl = "curl: (6) Could not resolve host: pkg.example.org"
	const may = "the network policy may block pkg.example.org: "
	for name, test := range map[string]struct {
		job  cove.Job
		step cove.Step
		want string
	}{
		"curl":        {own, cove.Step{Output: cove.StepOutput{Head: "x\n" + curl + "\n"}}, may + "cove push --allow pkg.example.org PLAN"},
		"in an error": {own, cove.Step{Error: "exit 6: " + curl}, may + "cove push --allow pkg.example.org PLAN"},
		"git":         {own, cove.Step{Error: "fatal: unable to access 'https://pkg.example.org/a/': Could not resolve host: pkg.example.org"}, may + "cove push --allow pkg.example.org PLAN"},
		"apt":         {own, cove.Step{Error: "Temporary failure resolving 'pkg.example.org'"}, may + "cove push --allow pkg.example.org PLAN"},
		"ssh":         {own, cove.Step{Error: "ssh: Could not resolve hostname pkg.example.org: Name or service not known"}, may + "cove push --allow pkg.example.org PLAN"},
		"npm":         {own, cove.Step{Error: "npm error network request failed, reason: getaddrinfo EAI_AGAIN pkg.example.org"}, may + "cove push --allow pkg.example.org PLAN"},
		"go":          {own, cove.Step{Error: "dial tcp: lookup pkg.example.org on 10.0.0.1:53: server misbehaving"}, may + "cove push --allow pkg.example.org PLAN"},
		"wget":        {own, cove.Step{Error: "wget: unable to resolve host address ‘pkg.example.org’"}, may + "cove push --allow pkg.example.org PLAN"},
		"busybox":     {own, cove.Step{Error: "wget: bad address 'pkg.example.org'"}, may + "cove push --allow pkg.example.org PLAN"},
		"pip":         {own, cove.Step{Error: "HTTPSConnectionPool(host='pkg.example.org', port=443): Max retries exceeded (Temporary failure in name resolution)"}, may + "cove push --allow pkg.example.org PLAN"},
		"in a sprite": {there, cove.Step{Error: curl}, may + "cove policy allow -s paint pkg.example.org"},
		"far":         {far, cove.Step{Error: curl}, may + "cove policy allow -s paint --backend far pkg.example.org"},
		"a profile":   {profile, cove.Step{Error: curl}, may + `add { domain = "pkg.example.org", action = "allow" } to the rules of the profile: cove profile edit nightly`},
		"open":        {open, cove.Step{Error: curl}, ""},
		"allowed":     {allowed, cove.Step{Error: curl}, ""},
		"hostile":     {own, cove.Step{Error: "Could not resolve host: $(reboot)"}, ""},
		"an option":   {own, cove.Step{Error: "Could not resolve host: --all"}, ""},
		"no host":     {there, cove.Step{Error: "[Errno -3] Temporary failure in name resolution"}, "the network policy may block a host; see which one, and how to allow it: cove policy log -s paint"},
		"no host far": {far, cove.Step{Error: "[Errno -3] Temporary failure in name resolution"}, "check the connection: cove ping --backend far"},
		"nothing":     {own, cove.Step{Error: "exited with 1"}, ""},
		"a script":    {own, cove.Step{Key: cove.StepSetupScript, Error: "exited with 1"}, "see all that was printed: cove job logs a3f7b2"},
		"a service":   {far, cove.Step{Key: cove.StepStartSupervisor, Error: "no"}, "check the connection: cove ping --backend far"},
		"its own":     {own, cove.Step{Error: curl, Hint: "do this"}, "do this"},
		"late":        {own, cove.Step{Key: cove.StepClone, TimedOut: true, Error: curl}, "give it more time: cove push --step-limit clone=1h0m0s PLAN"},
		"late there":  {profile, cove.Step{Key: cove.StepClone, TimedOut: true}, "give it more time, under [step_limits] clone = 3600: cove profile edit nightly"},
	} {
		test.step.State = cove.StepFailed
		steps := []cove.Step{test.step, {State: cove.StepCompleted, Error: curl}}
		stephint.Fill(test.job, steps)
		if steps[0].Hint != test.want || steps[1].Hint != "" {
			t.Errorf("%s: got %q, want %q", name, steps[0].Hint, test.want)
		}
	}
}
