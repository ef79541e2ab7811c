// Package profile makes of a request for a job, and of the profile that it names, the whole
// request. It decides nothing of the request's rights, and keeps nothing.
package profile

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
	"github.com/cove-dev/cove/sprites"
)

// Apply puts into a request what it leaves out and the profile says. A request with a sprite
// that is there gets nothing of what a new one is made with.
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
	}
	req.TimeoutSec = cmp.Or(req.TimeoutSec, p.TimeoutSec)
	req.Guards = guards(req.Guards, p.Guards)
	if len(req.MCP) == 0 {
		req.MCP = slices.Clone(p.MCP)
	}
	if p.SetupScript != nil {
		script := *p.SetupScript
		req.SetupScript = &script
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
		req.NetworkPolicy = &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: policy.Agent}}}
	}
	req.Config = config(req.Config, p.Config)
	if len(req.Include) == 0 {
		req.Include = slices.Clone(p.Include)
	}
	return req
}

func guards(given, of cove.Guards) cove.Guards {
	return cove.Guards{
		IdleSec: cmp.Or(given.IdleSec, of.IdleSec), Turns: cmp.Or(given.Turns, of.Turns),
		DiskBytes: cmp.Or(given.DiskBytes, of.DiskBytes), CostUSD: cmp.Or(given.CostUSD, of.CostUSD),
	}
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

// Trial is a request for a job that the profile alone would make: what is wrong with that is
// wrong with the profile.
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

// Hidden is what of a profile those see who do not keep it: enough to choose one. A job of
// theirs gets the rest all the same.
func Hidden(p cove.Profile) cove.Profile {
	hidden := cove.Profile{Name: p.Name, Revision: p.Revision, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt, ProfileSettings: cove.ProfileSettings{
		Description: p.Description, URL: p.URL, Branch: p.Branch, Publish: p.Publish, Backend: p.Backend, Agent: p.Agent, Model: p.Model, TimeoutSec: p.TimeoutSec, Guards: p.Guards,
		Config: p.Config, Author: p.Author, MaxJobs: p.MaxJobs,
	}}
	for key := range p.Env {
		if hidden.Env == nil {
			hidden.Env = map[string]string{}
		}
		hidden.Env[key] = ""
	}
	return hidden
}

// Gives reports whether a profile gives a job what only an administrator may ask for, rules
// for the server's own network aside. Then the rest of the profile is what confines it.
func Gives(p cove.Profile) bool {
	return p.Backend != "" || p.URL != "" || p.Publish != "" || len(p.Include) > 0 || len(p.MCP) > 0 || p.Definition != nil || len(connect.EnvSecrets(p.Variables())) > 0
}

// Overrides are the settings of a request that would take the place of what confines a job
// of a profile: none of a profile that gives much.
func Overrides(req cove.JobRequest) []string {
	var names []string
	for name, set := range map[string]bool{
		"agent": req.Agent != "", "agent_command": req.AgentCommand != "", "agent_definition": req.Definition != nil, "sprite": req.Sprite != "",
		"network_policy": req.NetworkPolicy != nil, "config": req.Config != nil, "backend": req.Backend != "",
	} {
		if set {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
