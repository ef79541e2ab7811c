// Package stephint says what to do about steps of a job's preparation that have failed. It is
// pure: it reads what the steps have printed, which is a sandbox's, and keeps nothing.
package stephint

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// MoreTime is how a step of the next job gets more time.
func MoreTime(job cove.Job, key cove.StepKey) string {
	more := 2 * cove.StepLimit(job.StepLimits, key)
	if job.Profile != "" {
		return fmt.Sprintf("give it more time, under [step_limits] %s = %d: cove profile edit %s", key, int64(more/time.Second), job.Profile)
	}
	return fmt.Sprintf("give it more time: cove push --step-limit %s=%v PLAN", key, more)
}

// Fill sets the hints of failed steps, if it is known what to do. The steps' output comes
// from a sandbox.
func Fill(job cove.Job, steps []cove.Step) {
	for i := range steps {
		s := &steps[i]
		switch {
		case s.State != cove.StepFailed || s.Hint != "":
		case s.TimedOut:
			s.Hint = MoreTime(job, s.Key)
		default:
			s.Hint = cmp.Or(blocked(job, s.Output.Tail, s.Output.Head, s.Error), lookUp(job, s.Key))
		}
	}
}

// lookUp is how to see more of a failed step; empty: there is no more to see.
func lookUp(job cove.Job, key cove.StepKey) string {
	switch key {
	case cove.StepInstallDeps, cove.StepClone, cove.StepSetupScript, cove.StepInstallAgent, cove.StepConfigureAgent, cove.StepVerifyCommit:
		return "see all that was printed: cove job logs " + job.ID
	}
	if job.Backend != "" {
		return "check the connection: cove ping --backend " + job.Backend
	}
	return ""
}

// unresolved are the words of programs that could not find out the address of a host, which
// is the first group. The programs are git, curl, apt, wget (of GNU and of BusyBox), ssh,
// Node.js, Go, and Python.
var unresolved = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`(?i)could not resolve (?:hostname|host|proxy)[: ]+["'‘]?([a-z0-9][a-z0-9._-]*)`),
		regexp.MustCompile(`(?i)could not resolve ["'‘]([a-z0-9][a-z0-9._-]*)`),
		regexp.MustCompile(`(?i)(?:failure|failed to|error) resolv(?:ing|e) ["'‘]([a-z0-9._-]+)`),
		regexp.MustCompile(`(?i)unable to resolve host address ["'‘]?([a-z0-9._-]+)`),
		regexp.MustCompile(`(?i)bad address ["'‘]([a-z0-9._-]+)`),
		regexp.MustCompile(`getaddrinfo (?:EAI_AGAIN|ENOTFOUND|EREFUSED) ([A-Za-z0-9._-]+)`),
		regexp.MustCompile(`(?:ENOTFOUND|EREFUSED|EAI_AGAIN) ([A-Za-z0-9-]+\.[A-Za-z0-9._-]+)`),
		regexp.MustCompile(`lookup ([A-Za-z0-9._-]+)(?: on [^ ]+)?: (?:server misbehaving|no such host|.*refused)`),
		regexp.MustCompile(`host='([A-Za-z0-9._-]+)'.*(?:[Nn]ame resolution|[Nn]ame or service not known|resolve)`),
	}
})

// blocked is what to do about a step whose programs could not find a host, because the job's
// network policy may block it. Empty: there is none. blocked searches the texts in order.
func blocked(job cove.Job, texts ...string) string {
	host := ""
	for _, text := range texts {
		for _, re := range unresolved() {
			if m := re.FindStringSubmatch(text); m != nil && host == "" {
				if name, err := policy.CanonicalName(strings.TrimRight(m[1], ".")); err == nil {
					host = name
				}
			}
		}
	}
	if host == "" {
		return blockedUnnamed(job, texts...)
	}
	if lets(job, host) {
		return ""
	}
	why := "the network policy may block " + host + ": "
	switch {
	case job.Profile != "" && job.ProfilePolicy:
		return why + fmt.Sprintf("add { domain = %q, action = \"allow\" } to the rules of the profile: cove profile edit %s", host, job.Profile)
	case job.OwnsSprite:
		return why + fmt.Sprintf("cove push --allow %s PLAN", host)
	case job.Backend != "":
		return why + fmt.Sprintf("cove policy allow -s %s --backend %s %s", job.Sprite, job.Backend, host)
	}
	return why + fmt.Sprintf("cove policy allow -s %s %s", job.Sprite, host)
}

// unnamed are the messages of programs that could not look up a name, and don't say which.
var unnamed = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`Temporary failure in name resolution|Name or service not known|EAI_AGAIN|ENOTFOUND`)
})

// blockedUnnamed is blocked for programs that don't name the host: the sprite's log names it. A
// sprite at a backend has no such log.
func blockedUnnamed(job cove.Job, texts ...string) string {
	if job.Backend != "" || job.Sprite == "" || lets(job, "anywhere.invalid") {
		return ""
	}
	if !slices.ContainsFunc(texts, unnamed().MatchString) {
		return ""
	}
	return "the network policy may block a host; see which one, and how to allow it: cove policy log -s " + job.Sprite
}

// lets reports whether the rules that a job was made with let a name through. If the job has no
// rules, it is true only if the job has a sprite of its own: other sprites may have rules.
func lets(job cove.Job, host string) bool {
	if job.NetworkPolicy == nil {
		return job.OwnsSprite
	}
	var specs []policy.Spec
	for _, r := range job.NetworkPolicy.Rules {
		specs = append(specs, policy.Spec(r))
	}
	rules, err := policy.Compile(specs, func(name string) ([]policy.Rule, error) { return policy.Preset(name, policy.Machine{}) })
	return err == nil && policy.New(rules...).Lookup(host).Allow
}
