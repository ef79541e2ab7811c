// Package profile makes of a request for a job, and of the profile that it names, the whole
// request. It decides nothing of the request's rights, and keeps nothing.
package profile

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// Apply puts into a request what it leaves out and the profile says. A request with a sprite
// that is there gets nothing of what a new one is made with.
func Apply(p cove.Profile, req cove.JobRequest) cove.JobRequest {
	req.Profile, req.ProfileRevision = p.Name, p.Revision
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
	if req.NetworkPolicy == nil {
		req.NetworkPolicy = p.NetworkPolicy
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
	return Apply(p, req)
}

// Hidden is a profile without the values of its variables, which may be anybody's.
func Hidden(p cove.Profile) cove.Profile {
	p.Env = maps.Clone(p.Env)
	for key := range p.Env {
		p.Env[key] = ""
	}
	return p
}
