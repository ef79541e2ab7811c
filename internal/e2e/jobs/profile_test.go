package jobs

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
)

const shellPlan = "## One\n```sh\necho \"$GREETING\" >greeting\n```\n"

const robotProfile = `description = "Greets"
agent = "shell"
timeout_seconds = 600
max_jobs = 1

[config]
ram_mb = 700

[network_policy]
rules = [{ include = "none" }]

[env]
GREETING = "from the profile"

[author]
name = "Robot"
email = "robot@example.org"
`

// TestProfile: a push by a profile gets the profile's settings, and flags override them. A
// token that may begin jobs gets settings by a profile that it could not ask for.
func TestProfile(t *testing.T) {
	h := e2e.NewHost(t)
	repo := h.Repository("repo", map[string]string{"plan.md": shellPlan})
	h.Write("robot.toml", robotProfile)
	h.Serve(nil)
	h.Run(repo, "cove", "profile", "put", "robot", "../robot.toml")
	if out := h.Run("", "cove", "profile", "list"); !strings.Contains(out, "robot") || !strings.Contains(out, "Greets") {
		t.Errorf("list: %s", out)
	}
	job, sprite := h.Push(repo, "plan.md", "--profile", "robot")
	h.Run(repo, "cove", "pull", job, "--wait=10m")
	if got := h.Run(repo, "git", "log", "-1", "--format=%an <%ae>") + h.Run(repo, "cat", "greeting"); got != "Robot <robot@example.org>\nfrom the profile\n" {
		t.Errorf("got %q", got)
	}
	j := h.Job(job)
	if j.Profile != "robot" || j.ProfileRevision != 1 || j.TimeoutSec != 600 || h.Info(sprite).Config == nil || h.Info(sprite).Config.RAMMB != 700 {
		t.Errorf("got %+v", j)
	}
	// In an existing sprite a job has its turn at once, and a job can be retried.
	next, _ := h.Push(repo, "plan.md", "--profile", "robot", "-s", sprite)
	h.Run("", "cove", "job", "wait", next)
	again := e2e.JSONField(t, h.Run(repo, "cove", "job", "retry", "--json", job), "job")
	h.Run("", "cove", "job", "wait", again)
	if j := h.Job(again); j.Profile != "robot" || j.RetryOf != job || j.TurnAt == nil {
		t.Errorf("again: %+v", j)
	}
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--profile", "other"); code == 0 || !strings.Contains(out, "cove profile list") {
		t.Errorf("no such profile: %d: %s", code, out)
	}

	// A profile with a mistake is refused when it is put, and the stored one stays.
	for text, want := range map[string]string{
		"agent = 'nobody'": "nobody",
		"max_jobs = -1":    "max_jobs",
		"[network_policy]\nrules = [{ domain = 'a b', action = 'allow' }]": "a b",
		"[network_policy]\nrules = [{ include = 'no-such' }]":              "no-such",
		"agnet = 'shell'":    "agnet",
		"[env]\n'A B' = '1'": "A B",
	} {
		h.Write("bad.toml", text)
		if out, code := h.Try(repo, "cove", "profile", "put", "robot", "../bad.toml"); code == 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exited with %d: %s", text, code, out)
		}
	}
	if out := h.Run("", "cove", "profile", "show", "robot"); !strings.Contains(out, "from the profile") {
		t.Errorf("show: %s", out)
	}
	h.Write("keyless.toml", "agent = 'claude'\n")
	if out, _ := h.Try(repo, "cove", "profile", "put", "keyless", "../keyless.toml"); !strings.Contains(out, "warning: ") || !strings.Contains(out, "cove secret set anthropic") {
		t.Errorf("without a key: %s", out)
	}

	// An editor's change is another revision, unless it comes too late.
	h.Write("edit.sh", "#!/bin/sh\nsed -i 's/Greets/Greets everybody/' \"$1\"\n")
	h.Run("", "env", "EDITOR=sh "+h.Path("edit.sh"), "cove", "profile", "edit", "robot")
	if out := h.Run("", "cove", "profile", "show", "robot", "--json"); !strings.Contains(out, `"revision": 2`) || !strings.Contains(out, "Greets everybody") {
		t.Errorf("after the change: %s", out)
	}
	h.Write("late.sh", "#!/bin/sh\nsed 's/everybody/all/' \"$1\" | cove profile put robot -; sed -i 's/everybody/nobody/' \"$1\"\n")
	out, code := h.Try("", "env", "EDITOR=sh "+h.Path("late.sh"), "cove", "profile", "edit", "robot")
	_, kept, _ := strings.Cut(out, "your text is in ")
	kept, _, _ = strings.Cut(kept, ";")
	if code == 0 || !strings.Contains(out, "has changed since") || !strings.Contains(h.Run("", "cat", kept), "Greets nobody") {
		t.Errorf("too late: %d: %s", code, out)
	}
	h.Run("", "rm", "-r", strings.TrimSuffix(kept, "/robot.toml"))

	// A pusher sees no values, and changes nothing.
	_, secret := h.Token("pusher", "--all", "--verbs", "read,write,exec")
	asPusher := func(args ...string) (string, int) {
		return h.Try(repo, "cove", append([]string{"--token", secret}, args...)...)
	}
	if out, code := asPusher("profile", "show", "robot"); code != 0 || strings.Contains(out, "from the profile") || !strings.Contains(out, "GREETING") {
		t.Errorf("a pusher's look exited with %d: %s", code, out)
	}
	if out, code := asPusher("profile", "rm", "robot"); code == 0 {
		t.Errorf("a pusher removed it: %s", out)
	}

	// If a profile gives more than the pusher could ask for, the pusher can't change its
	// confining settings.
	shown := h.Path("shown")
	h.Run("", "mkdir", shown)
	h.Write("gives.toml", "agent = 'shell'\ninclude = ['"+shown+"']\n\n[network_policy]\nrules = [{ include = 'none' }]\n")
	h.Run(repo, "cove", "profile", "put", "gives", "../gives.toml")
	for _, args := range [][]string{{"--network", "open"}, {"--agent", "shell"}, {"-s", sprite}, {"--memory", "1G"}} {
		if out, code := asPusher(append([]string{"push", "plan.md", "--profile", "gives"}, args...)...); code == 0 || !strings.Contains(out, "gives what only the verb admin may ask for") {
			t.Errorf("%q exited with %d: %s", args, code, out)
		}
	}
	if out, code := asPusher("push", "plan.md", "--profile", "gives", "--dry-run"); code != 0 {
		t.Errorf("as it is: %d: %s", code, out)
	}
	h.Run("", "cove", "profile", "rm", "gives")

	// Pushes that name no profile use the default one, unless they say --profile "".
	h.Run("", "cove", "profile", "default", "robot")
	if out, _ := h.Try(repo, "cove", "push", "plan.md", "--dry-run"); !strings.Contains(out, "default profile, robot") || !strings.Contains(out, "GREETING") {
		t.Errorf("by the default: %s", out)
	}
	if out := h.Run(repo, "cove", "push", "plan.md", "--dry-run", "--agent", "shell", "--profile", ""); strings.Contains(out, "GREETING") {
		t.Errorf("by none: %s", out)
	}
	if out, _ := h.Try("", "cove", "profile", "default", "--none"); !strings.Contains(out, "use none") {
		t.Errorf("no default: %s", out)
	}
	out = h.Run(repo, "env", "COVE_PROFILE=robot", "cove", "push", "plan.md", "--dry-run")
	if !strings.Contains(out, "GREETING") {
		t.Errorf("by the setting: %s", out)
	}

	// A token for the profile pushes by it, and pulls. It gets no more than the profile's
	// limits.
	narrow := strings.TrimSpace(h.Run("", "cove", "token", "create", "robot", "--profile", "robot", "-q"))
	mine := e2e.JSONField(t, h.Run(repo, "cove", "--token", narrow, "push", "plan.md", "--profile", "robot", "--json"), "job")
	h.Run(repo, "cove", "--token", narrow, "pull", mine, "--wait=10m")
	if out, code := h.Try(repo, "cove", "--token", narrow, "push", "plan.md", "--profile", "robot", "--timeout", "20m"); code == 0 || !strings.Contains(out, "--timeout 600s") {
		t.Errorf("beyond a limit: %d: %s", code, out)
	}
	if out, code := h.Try(repo, "cove", "--token", narrow, "info", sprite); code == 0 {
		t.Errorf("another's sprite: %s", out)
	}
	h.Run("", "cove", "profile", "rm", "robot", "keyless")
}

// TestProfileApply: the current rules of a profile can be applied to the jobs of an older
// revision.
func TestProfileApply(t *testing.T) {
	h := e2e.NewHost(t)
	repo := h.Repository("repo", map[string]string{"plan.md": "## One\n```sh\nuntil test -e ~/go; do sleep 0.1; done\n```\n"})
	h.Write("p.toml", robotProfile)
	h.Serve(nil)
	h.Run(repo, "cove", "profile", "put", "robot", "../p.toml")
	job, sprite := h.Push(repo, "plan.md", "--profile", "robot")
	if out, _ := h.Try("", "cove", "profile", "apply", "robot"); !strings.Contains(out, "current revision") {
		t.Errorf("nothing to do: %s", out)
	}
	h.Write("p.toml", strings.Replace(robotProfile, `{ include = "none" }`, `{ domain = "example.org", action = "allow" }`, 1))
	h.Run(repo, "cove", "profile", "put", "robot", "../p.toml")
	if out := h.Run("", "cove", "policy", "show", "-s", sprite); strings.Contains(out, "example.org") {
		t.Errorf("before: %s", out)
	}
	if out := h.Run("", "cove", "profile", "apply", "robot"); !strings.Contains(out, job) {
		t.Errorf("apply: %s", out)
	}
	if out := h.Run("", "cove", "policy", "show", "-s", sprite); !strings.Contains(out, "example.org") {
		t.Errorf("after: %s", out)
	}
	if j := h.Job(job); j.ProfileRevision != 2 {
		t.Errorf("got %+v", j)
	}

	// Rules that somebody has set meanwhile stay, unless --force is given.
	h.Run("", "cove", "policy", "deny", "-s", sprite, "example.org")
	h.Write("p.toml", strings.Replace(robotProfile, `{ include = "none" }`, `{ domain = "example.net", action = "allow" }`, 1))
	h.Run(repo, "cove", "profile", "put", "robot", "../p.toml")
	before := h.Run("", "cove", "policy", "show", "-s", sprite)
	if out, code := h.Try("", "cove", "profile", "apply", "robot"); code != 1 || !strings.Contains(out, "somebody has set its rules since, so they stay") || !strings.Contains(out, "cove profile apply robot --force") {
		t.Errorf("apply over rules set by hand: %d: %s", code, out)
	}
	if out := h.Run("", "cove", "policy", "show", "-s", sprite); out != before || h.Job(job).ProfileRevision != 2 {
		t.Errorf("it has other rules: %s", out)
	}
	h.Run("", "cove", "profile", "apply", "robot", "--force")
	if out := h.Run("", "cove", "policy", "show", "-s", sprite); !strings.Contains(out, "example.net") || h.Job(job).ProfileRevision != 3 {
		t.Errorf("after --force: %s", out)
	}
	h.Sh(sprite, "touch ~/go")
	h.Run("", "cove", "job", "wait", job)
}

// TestSoakTurns: no more jobs of a profile are at work than it says, and the others get their
// turns in order. A server is killed while jobs are at work, and while the next ones begin:
// no job is lost or doubled.
func TestSoakTurns(t *testing.T) {
	jobs, atOnce, kills, pause := 7, 2, 2, "0.1"
	if e2e.Soak() {
		jobs, atOnce, kills, pause = 100, 10, 5, "1"
	}
	kill := func(h *e2e.Host) {
		h.EndServer(syscall.SIGKILL)
		h.Run("", "cove", "server", "start")
		kills--
	}
	h := e2e.NewHost(t)
	repo := h.Repository("repo", map[string]string{"plan.md": "## One\n```sh\nuntil test -e ~/go; do sleep " + pause + "; done\n```\n"})
	h.Write("p.toml", fmt.Sprintf("agent = 'shell'\nmax_jobs = %d\n", atOnce))
	h.Serve(nil)
	h.Run(repo, "cove", "profile", "put", "few", "../p.toml")
	list := func() []cove.Job {
		t.Helper()
		var all cove.JobList
		if err := json.Unmarshal([]byte(h.Run("", "cove", "job", "list", "--json")), &all); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(all.Jobs, func(a, b cove.Job) int { return a.CreatedAt.Compare(b.CreatedAt) })
		return all.Jobs
	}
	var pushed []func() (string, error)
	for range jobs {
		_, wait := h.Background(repo, "cove", "push", "plan.md", "--profile", "few", "--json")
		pushed = append(pushed, wait)
	}
	defer func() {
		if t.Failed() {
			t.Log(h.Try("", "cove", "job", "list"))
			// Newest first: otherwise the waiting jobs would get turns, and new sprites, as
			// sprites are removed.
			for _, j := range slices.Backward(list()) {
				if j.State == cove.JobInstalling {
					h.Run("", "cove", "job", "stop", j.ID)
				}
			}
		}
	}()
	for done := 0; done < jobs; {
		var working []string
		e2e.Await(t, "the next jobs at work", func() bool {
			working = nil
			waiting := 0
			for _, j := range list() {
				if j.Place > 0 && (j.State != cove.JobInstalling || j.TurnAt != nil) {
					t.Fatalf("job %s is %s, had its turn at %v, and waits as number %d", j.ID, j.State, j.TurnAt, j.Place)
				}
				if !j.State.Terminal() && j.TurnAt != nil {
					waiting-- // it has not begun
				}
				switch {
				case j.State == cove.JobRunning:
					working, waiting = append(working, j.ID), waiting+1
				case j.Place > 0:
					if waiting++; waiting != j.Place {
						return false // it has not been told yet
					}
				}
			}
			if len(working) > atOnce {
				t.Fatalf("%d jobs are at work, %d may be", len(working), atOnce)
			}
			return len(working) == min(atOnce, jobs-done) && waiting == jobs-done-len(working)
		})
		if kills > 0 && done/atOnce%4 == 0 {
			kill(h)
		}
		for _, id := range working {
			h.Sh("job-"+id, "touch ~/go")
		}
		if kills > 0 && done/atOnce%4 == 2 {
			kill(h)
		}
		for _, id := range working {
			h.Run("", "cove", "job", "wait", id)
			done++
		}
	}
	for _, wait := range pushed {
		if out, err := wait(); err != nil {
			t.Errorf("push: %v: %s", err, out)
		}
	}
	all := list()
	if kills != 0 || len(all) != jobs {
		t.Errorf("%d jobs, of %d pushes; %d kills are left", len(all), jobs, kills)
	}
	for i, j := range all {
		if j.State != cove.JobSucceeded || j.TurnAt == nil || j.Place != 0 {
			t.Errorf("job %d: %+v", i, j)
		} else if i >= atOnce && j.TurnAt.Before(*all[i-atOnce].TurnAt) { // as many have it at once
			t.Errorf("job %d had its turn before one that came earlier", i)
		}
	}
}
