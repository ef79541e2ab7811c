package web

import (
	"html/template"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// shownOfNew are the components of a new job and of the first one.
func shownOfNew() []component {
	steps := planSteps("# Repair the tests\n## Find out why\n```sh\nmake test\n```\n### Look at the log\n")
	profile := cove.Profile{Name: "nightly", Revision: 3, ProfileSettings: cove.ProfileSettings{
		Description: "Repairs what the nightly tests find", Agent: "claude", URL: "https://git.example.org/team/project.git", Branch: "main", Publish: "branch",
		TimeoutSec: 7200, Guards: cove.Guards{Turns: 50, CostUSD: 2.5}, MaxJobs: 10, Env: map[string]string{"CI": "1"},
		Config: &sprites.Config{Image: "team:1"}, SetupScript: &cove.SetupScript{Name: "setup", Text: "make deps"},
	}}
	preview := cove.JobPreview{Agent: "claude", AgentVersion: "1.2.3", Installs: true, TimeoutSec: 3600, EnvNames: []string{"CI"}, Guards: cove.Guards{Turns: 50, CostUSD: 2.5}, Connectors: []cove.JobConnector{{Name: "anthropic", Upstream: "https://api.example.org"}}}
	refused := problem{Status: 400, Code: "bad_plan", Title: "Bad Request", Message: "the plan has no block for a shell", Hint: "fence blocks by ```sh"}
	push := &pushCommand{File: "repair-the-tests.md", Command: "cove push repair-the-tests.md --profile nightly", Plan: "# Repair the tests\n"}
	job := func(state cove.JobState, outcome *cove.Outcome) firstJobView {
		return firstJobView{rights: rights{true, true, true}, Job: &cove.Job{ID: "0a1b2c", State: state, JobResult: cove.JobResult{Commits: 2, Outcome: outcome}}}
	}
	return []component{
		{"plan-check", "nothing yet", planCheck{}},
		{"plan-check", "taken", planCheck{Steps: steps, Profile: &profile, Preview: &preview, Network: "the preset agent", Source: "https://git.example.org/team/project.git"}},
		{"plan-check", "taken, but it would fail", planCheck{Steps: steps, Preview: &cove.JobPreview{Agent: "shell", Warnings: []string{"the job’s sprite does not reach http://192.168.1.4/a.git: its network policy does not open that address"}}, Network: "the preset agent"}},
		{"plan-check", "refused", planCheck{Steps: steps, Problem: &refused}},
		{"plan-check", "from the person's machine", planCheck{Steps: steps, Preview: &preview, Network: "the preset none", Push: push}},
		{"profile-gives", "much", &profile},
		{"profile-gives", "nothing", &cove.Profile{Name: "plain"}},
		{"first-run", "for the owner", nowPage{rights: rights{true, true, true}}},
		{"first-run", "for a token that may read", nowPage{Token: true}},
		{"first-job", "at work", job(cove.JobRunning, nil)},
		{"first-job", "done", job(cove.JobSucceeded, nil)},
		{"first-job", "failed", job(cove.JobFailed, &cove.Outcome{Kind: "agent_failed", Reason: "step 2 exited with 1"})},
	}
}

// shownOfSettings are the components of the settings.
func shownOfSettings() []component {
	failed := problem{Status: 409, Code: "in_use", Title: "Conflict", Message: "the secret anthropic is used by the connector anthropic", Hint: "cove secret rm --force anthropic"}
	step := func(key cove.StepKey, state cove.StepState, ms float64) cove.ExecutorStep {
		return cove.ExecutorStep{Step: cove.Step{Key: key, State: state}, MS: ms}
	}
	bad := step(cove.TestCreate, cove.StepFailed, 12)
	bad.Error, bad.Hint, bad.Output = "the image team:1 is not there", "cove image pull team:1", cove.StepOutput{Head: "no such image\n"}
	hook := cove.Webhook{Name: "chat"}
	signed := hook
	signed.SigningSecret = "whsec_example"
	return []component{
		{"ask", "simple", ask{ID: "ask-1", Button: "Delete", Title: "Delete the secret team?", Lost: []string{"The value can't be read again."}, Action: "/web/components"}},
		{"ask", "with a choice", ask{ID: "ask-2", Button: "Destroy all", Title: "Destroy the sprites of all jobs (2)?", Lost: []string{"job-0a1b2c: work of job 0a1b2c that nobody has pulled"}, Action: "/web/components", Choice: "Also those with work that would be lost", Into: "destroyed"}},
		{"trial", "begins", trial{Of: "the profile nightly"}},
		{"trial", "at work", trial{Of: "the profile nightly", Steps: []cove.ExecutorStep{step(cove.TestConnection, cove.StepCompleted, 3), step(cove.TestCreate, cove.StepRunning, 0)}}},
		{"trial", "passed", trial{Of: "this server", Over: true, OK: true, Steps: []cove.ExecutorStep{step(cove.TestConnection, cove.StepCompleted, 3)}}},
		{"trial", "failed", trial{Of: "this server", Over: true, Steps: []cove.ExecutorStep{step(cove.TestConnection, cove.StepCompleted, 3), bad, step(cove.TestPrompt, cove.StepSkipped, 0)}}},
		{"trial", "cut off", trial{Of: "this server", Over: true, Error: &failed}},
		{"profile-editor", "new", profileEditor{rights: rights{true, true, true}, Text: newProfile, Agents: []string{"shell", "claude"}}},
		{"profile-editor", "stored", profileEditor{rights: rights{true, true, true}, Name: "nightly", Revision: 4, Stored: 4, Text: newProfile, Warnings: []string{"the connector anthropic has no key"}}},
		{"profile-editor", "refused", profileEditor{rights: rights{true, true, true}, Name: "nightly", Revision: 3, Text: "agent = 7", Problem: &failed}},
		{"profile-applied", "two jobs", profileApplied{Jobs: []cove.ProfileJob{{Job: "0a1b2c", Sprite: "job-0a1b2c"}, {Job: "0a1b2d", Sprite: "job-0a1b2d", Error: "the sprite is being deleted"}}}},
		{"profile-applied", "rules that stay", profileApplied{Jobs: []cove.ProfileJob{{Job: "0a1b2c", Sprite: "job-0a1b2c", Error: "somebody has set its rules since, so they stay", Kept: true}}, Kept: true, Name: "nightly"}},
		{"profile-applied", "none", profileApplied{}},
		{"token-made", "", cove.Token{Name: "ci", Secret: "cove_example"}},
		{"webhook-made", "with a key of its own", signed},
		{"webhook-made", "with a secret", hook},
		{"delivery", "taken", cove.WebhookDelivery{State: cove.DeliveryDelivered, Status: 204}},
		{"delivery", "not taken", cove.WebhookDelivery{State: cove.DeliveryFailed, Error: "connection refused"}},
		{"pull", "asks", pull{Reference: "debian:13"}},
		{"pull", "comes", pull{Reference: "debian:13", Event: cove.ImageEvent{Phase: cove.ImageDownloading, Layers: 3, LayersDone: 1, Bytes: 1 << 20, Total: 3 << 20}}},
		{"pull", "is there", pull{Reference: "debian:13", Image: &cove.Image{DiskBytes: 90 << 20, PulledAt: time.Now()}}},
		{"pull", "failed", pull{Reference: "debian:13", Error: &failed}},
		{"destroyed", "one of two", destroyed{[]destroyedRow{{Name: "job-0a1b2c", State: "gone"}, {Name: "job-0a1b2d", Error: &failed}}}},
		{"destroyed", "none", destroyed{}},
		{"beside", "a token that was made", dictOf("Answer", template.HTML("<p>An answer.</p>"), "Tab", "tokens", "List", template.HTML("<p>The list as it is now.</p>"))},
		{"parts-of-page", "a part, and what is said", dictOf("Part", template.HTML("<p>A part of the page.</p>"), "Said", template.HTML("<p>The profile nightly is stored.</p>"))},
		{"nothing", "", nil},
		{"said", "a sentence", "The secret anthropic is set."},
		{"said", "nothing", ""},
		{"findings", "all kinds", []finding{{"ok", "this server", "answers", ""}, {"warn", "disk", "3.0 GiB are free; below 2.0 GiB sprites are held", "cove image prune --all"}, {"fail", "backend far", "can't be reached", "cove backend list"}}},
		{"findings", "none", nil},
	}
}
