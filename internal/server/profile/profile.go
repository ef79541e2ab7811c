// Package profile completes a request for a job with the profile that it names. It does not
// check the request's rights, and stores nothing.
package profile

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// Apply completes a request with the profile's settings. The profile's scripts and author
// replace the request's; other settings count only if the request leaves them out. A request
// with an existing sprite gets none of the settings for new sprites.
func Apply(p cove.Profile, req cove.JobRequest) cove.JobRequest {
	req.Profile, req.ProfileRevision, req.ProfilePolicy = p.Name, p.Revision, false
	if p.URL != "" && req.URL == "" && req.Base == "" {
		req.URL, req.Branch = p.URL, cmp.Or(req.Branch, p.Branch)
	}
	if req.URL != "" {
		req.Publish = cmp.Or(req.Publish, p.Publish)
	}
	if req.Agent == "" {
		req.Agent = p.Agent
		req.AgentCommand = cmp.Or(req.AgentCommand, p.AgentCommand)
		req.Permissions = cmp.Or(req.Permissions, p.Permissions)
		if req.Definition == nil {
			req.Definition = p.Definition
		}
		req.Model = cmp.Or(req.Model, p.Model) // a model goes with its agent
		req.Login = cmp.Or(req.Login, p.Login) // and so does a login
	}
	req.TimeoutSec = cmp.Or(req.TimeoutSec, p.TimeoutSec)
	req.Guards = guards(req.Guards, p.Guards)
	req.StepLimits = limits(req.StepLimits, p.StepLimits)
	if len(req.MCP) == 0 {
		req.MCP = slices.Clone(p.MCP)
	}
	if p.SetupScript != nil {
		script := *p.SetupScript
		req.SetupScript = &script
	}
	if p.CleanupScript != nil {
		script := *p.CleanupScript
		req.CleanupScript = &script
	}
	if p.Author != nil {
		req.Author = *p.Author
	}
	req.Env = env(req.Env, p.Env)
	if req.Sprite != "" {
		return req
	}
	req.Backend = cmp.Or(req.Backend, p.Backend)
	switch {
	case req.NetworkPolicy != nil:
	case p.NetworkPolicy != nil:
		req.NetworkPolicy, req.ProfilePolicy = p.NetworkPolicy, true
	default: // nobody has asked for more
		req.NetworkPolicy = preset()
	}
	req.Config = config(req.Config, p.Config)
	if len(req.Include) == 0 {
		req.Include = slices.Clone(p.Include)
	}
	return req
}

// preset is the policy of new sprites if the profile has none.
func preset() *sprites.NetworkPolicy {
	return &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: policy.Agent}}}
}

func guards(given, of cove.Guards) cove.Guards {
	return cove.Guards{
		IdleSec: cmp.Or(given.IdleSec, of.IdleSec), Turns: cmp.Or(given.Turns, of.Turns),
		DiskBytes: cmp.Or(given.DiskBytes, of.DiskBytes), CostUSD: cmp.Or(given.CostUSD, of.CostUSD),
	}
}

// limits are the profile's, and over them those that were given.
func limits(given, of map[cove.StepKey]int64) map[cove.StepKey]int64 {
	if len(of) == 0 {
		return given
	}
	all := maps.Clone(of)
	maps.Copy(all, given)
	return all
}

func config(given, of *sprites.Config) *sprites.Config {
	if given == nil || of == nil {
		return cmp.Or(given, of)
	}
	c := *given
	c.RAMMB, c.CPUs = cmp.Or(c.RAMMB, of.RAMMB), cmp.Or(c.CPUs, of.CPUs)
	c.Region, c.Image = cmp.Or(c.Region, of.Region), cmp.Or(c.Image, of.Image)
	if c.StorageGB == 0 && c.StorageMB == 0 {
		c.StorageGB, c.StorageMB = of.StorageGB, of.StorageMB
	}
	return &c
}

// env is the profile's variables, and over them those that were given.
func env(given []string, of map[string]string) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if !slices.ContainsFunc(given, func(kv string) bool { return strings.HasPrefix(kv, key+"=") }) {
			all = append(all, key+"="+of[key])
		}
	}
	return append(all, given...)
}

// Trial is a request for a job that has all its settings from the profile. An error in the
// request is then an error in the profile.
func Trial(p cove.Profile) cove.JobRequest {
	req := cove.JobRequest{
		JobSource: cove.JobSource{PlanName: "plan.md", Repository: "repository", Branch: "main", Base: strings.Repeat("0", 40)},
		Plan:      "## Try\n```sh\ntrue\n```\n",
		Author:    cove.Person{Name: "cove", Email: "cove@localhost"},
	}
	if p.URL != "" {
		req.JobSource = cove.JobSource{PlanName: req.PlanName}
	}
	return Apply(p, req)
}

// Hidden is the part of a profile that is shown to people who do not keep it: enough to choose
// one. Their jobs still get the rest.
func Hidden(p cove.Profile) cove.Profile {
	hidden := cove.Profile{Name: p.Name, Revision: p.Revision, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, ProfileSettings: cove.ProfileSettings{
		Description: p.Description, URL: p.URL, Branch: p.Branch, Publish: p.Publish, Backend: p.Backend, Agent: p.Agent, Model: p.Model, TimeoutSec: p.TimeoutSec, Guards: p.Guards,
		Config: p.Config, Author: p.Author, MaxJobs: p.MaxJobs, MaxWaitSec: p.MaxWaitSec,
	}}
	hidden.Default = p.Default
	for key := range p.Env {
		if hidden.Env == nil {
			hidden.Env = map[string]string{}
		}
		hidden.Env[key] = ""
	}
	return hidden
}

// Gives reports whether a profile gives a job settings that only an administrator may ask for,
// apart from rules for the server's own network. The rest of the profile then confines the job.
func Gives(p cove.Profile) bool {
	return p.Backend != "" || p.URL != "" || p.Publish != "" || len(p.Include) > 0 || len(p.MCP) > 0 || p.Definition != nil || len(connect.EnvSecrets(p.Variables())) > 0
}

// Overrides are the settings of a request that would replace what confines a job of a
// profile. If the profile Gives, its jobs may have none of them.
func Overrides(req cove.JobRequest) []string {
	return append(agentOf(req), others(map[string]bool{
		"sprite": req.Sprite != "", "network_policy": req.NetworkPolicy != nil, "config": req.Config != nil, "backend": req.Backend != "",
	})...)
}

// Opens are the settings of a request that would replace what a profile lets its jobs do. A
// network policy is one of them, unless it equals the profile's or lets the job reach nothing. If
// the profile does not allow all of its agent's requests, the settings that choose an agent
// are, too: another agent might not ask.
func Opens(p cove.Profile, req cove.JobRequest) []string {
	closed := &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: policy.None}}}
	names := others(map[string]bool{
		"network_policy": p.NetworkPolicy != nil && req.NetworkPolicy != nil && !reflect.DeepEqual(req.NetworkPolicy, p.NetworkPolicy) && !reflect.DeepEqual(req.NetworkPolicy, closed),
	})
	if p.Permissions != "" && strictness(p.Permissions) < strictness("") {
		names = append(agentOf(req), names...)
	}
	return names
}

// OtherAgent are the settings of a request that choose another agent, or another model, than the profile
// names. There are none if the profile names no agent.
func OtherAgent(p cove.Profile, req cove.JobRequest) []string {
	if p.Agent == "" {
		return nil
	}
	if req.Agent == p.Agent {
		req.Agent = ""
	}
	names := agentOf(req)
	if p.Model != "" && req.Model != "" && req.Model != p.Model {
		names = append(names, "model")
	}
	return names
}

// agentOf are the settings of a request that choose its agent.
func agentOf(req cove.JobRequest) []string {
	return others(map[string]bool{"agent": req.Agent != "", "agent_command": req.AgentCommand != "", "agent_definition": req.Definition != nil})
}

// others are the names of those that are set, sorted.
func others(set map[string]bool) []string {
	maps.DeleteFunc(set, func(_ string, is bool) bool { return !is })
	return slices.Sorted(maps.Keys(set))
}

// strictness orders the answers to an agent's requests for permission. The least is the strictest.
func strictness(permissions string) int {
	return slices.Index([]string{"deny", "ask", "allow"}, cmp.Or(permissions, "allow"))
}

// Asked is the part of a whole request that its profile, as it is now, does not give. Somebody has
// asked for it, or an older revision gave it. image is that of new sprites that name none.
func Asked(p cove.Profile, req cove.JobRequest, image string) cove.JobRequest {
	if req.Agent == p.Agent && req.AgentCommand == p.AgentCommand && reflect.DeepEqual(req.Definition, p.Definition) {
		req.Agent, req.AgentCommand, req.Definition = "", "", nil // Exceeds looks at its permissions
	}
	if req.Backend == p.Backend {
		req.Backend = ""
	}
	if slices.Equal(req.Include, p.Include) {
		req.Include = nil
	}
	if reflect.DeepEqual(req.MCP, p.MCP) {
		req.MCP = nil
	}
	of := cmp.Or(p.NetworkPolicy, preset())
	if reflect.DeepEqual(req.NetworkPolicy, of) || req.ProfilePolicy && req.ProfileRevision == p.Revision { // at a backend it is said in other words
		req.NetworkPolicy = nil
	}
	whole := config(p.Config, nil)
	if image != "" && (whole == nil || whole.Image == "") {
		whole = config(whole, &sprites.Config{Image: image})
	}
	if reflect.DeepEqual(req.Config, p.Config) || reflect.DeepEqual(req.Config, whole) {
		req.Config = nil
	}
	if reflect.DeepEqual(req.CleanupScript, p.CleanupScript) {
		req.CleanupScript = nil
	}
	if req.URL == p.URL {
		req.URL = ""
		if req.Publish == p.Publish {
			req.Publish = ""
		}
	}
	given := p.Variables()
	req.Env = slices.DeleteFunc(slices.Clone(req.Env), func(kv string) bool { return slices.Contains(given, kv) })
	return req
}

// An Excess is a limit of a profile that a request is beyond.
type Excess struct {
	Field string // of the request, as in JSON
	What  string // that is limited
	Asked string // empty: no limit at all
	Most  string
	Flag  string // by which push asks for no more
}

// Exceeds is the first limit of a profile that a whole request is beyond; nil: none. A sprite that is there has
// limits of its own.
func Exceeds(p cove.Profile, req cove.JobRequest) *Excess {
	type limit struct {
		field, what, unit, flag string
		asked, most             float64
	}
	limits := []limit{
		{"timeout_seconds", "the running time", " seconds", "--timeout %gs", float64(req.TimeoutSec), float64(p.TimeoutSec)},
		{"guards.idle_seconds", "the time without an event", " seconds", "--max-idle %gs", float64(req.Guards.IdleSec), float64(p.Guards.IdleSec)},
		{"guards.turns", "the number of turns", "", "--max-turns %g", float64(req.Guards.Turns), float64(p.Guards.Turns)},
		{"guards.disk_bytes", "the growth of its files", " bytes", "--max-disk %.0f", float64(req.Guards.DiskBytes), float64(p.Guards.DiskBytes)},
		{"guards.cost_usd", "the cost of its model", " dollars", "--max-cost %g", req.Guards.CostUSD, p.Guards.CostUSD},
	}
	for _, key := range cove.StepKeys() {
		limits = append(limits, limit{
			"step_limits." + string(key), "the time of the step " + string(key), " seconds", "--step-limit " + string(key) + "=%gs",
			stepLimit(req.StepLimits, req.SetupScript, key), float64(said(p.StepLimits, p.SetupScript, key)),
		})
	}
	if req.Sprite == "" && p.Config != nil {
		var asked sprites.Config
		if req.Config != nil {
			asked = *req.Config
		}
		limits = append(limits,
			limit{"config.ram_mb", "the memory", " MiB", "--memory %gM", float64(asked.RAMMB), float64(p.Config.RAMMB)},
			limit{"config.cpus", "the number of CPUs", "", "--cpus %g", float64(asked.CPUs), float64(p.Config.CPUs)},
			limit{"config.storage_mb", "the disk", " MiB", "--disk %gM", storage(asked), storage(*p.Config)})
	}
	for _, l := range limits {
		if l.most == 0 || l.asked > 0 && l.asked <= l.most {
			continue
		}
		e := &Excess{Field: l.field, What: l.what, Most: fmt.Sprintf("%.10g", l.most) + l.unit, Flag: fmt.Sprintf(l.flag, l.most)}
		if l.asked > 0 {
			e.Asked = fmt.Sprintf("%.10g", l.asked) + l.unit
		}
		return e
	}
	if p.Permissions != "" && strictness(req.Permissions) > strictness(p.Permissions) {
		return &Excess{"permissions", "the answer to the agent's requests for permission", cmp.Or(req.Permissions, "allow"), p.Permissions, "--permissions " + p.Permissions}
	}
	return nil
}

// said is the limit of a step in seconds, if something says one: that of the setup script may be with
// the script.
func said(limits map[cove.StepKey]int64, script *cove.SetupScript, key cove.StepKey) int64 {
	if key == cove.StepSetupScript && script != nil {
		return cmp.Or(limits[key], script.TimeoutSec)
	}
	return limits[key]
}

// stepLimit is the limit that a step has in a job, in seconds.
func stepLimit(limits map[cove.StepKey]int64, script *cove.SetupScript, key cove.StepKey) float64 {
	return cmp.Or(float64(said(limits, script, key)), cove.StepLimit(nil, key).Seconds())
}

// storage is a disk limit in MiB.
func storage(c sprites.Config) float64 {
	if c.StorageMB > 0 {
		return float64(c.StorageMB)
	}
	return float64(c.StorageGB) * 1024
}
