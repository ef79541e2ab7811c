package cove

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// Profile is a named set of settings for jobs on the server, so that the person who begins
// a job need not know them. Its revision grows by one with each change. A job keeps the
// settings that it was made with.
type Profile struct {
	Name      string    `json:"name"`
	Revision  int64     `json:"revision"` // from 1
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Default   bool      `json:"default,omitempty"` // pushes that name no profile use this one

	ProfileSettings
}

// ProfileSettings are the settings of a profile. A request for a job that names the profile
// gets from it the settings that it leaves out. The zero value of a field sets nothing. A
// profile may give every token that begins jobs settings that only the verb admin may ask
// for.
type ProfileSettings struct {
	Description string `json:"description,omitempty"`

	// As in JobSource: the repository that jobs of the profile clone, if they are sent none.
	URL    string `json:"url,omitempty"`
	Branch string `json:"branch,omitempty"`

	// Publish is as in JobSettings, for jobs that clone a URL.
	Publish string `json:"publish,omitempty"`

	// As in JobSettings and JobRequest.
	Backend       string                 `json:"backend,omitempty"`
	Agent         string                 `json:"agent,omitempty"`
	AgentCommand  string                 `json:"agent_command,omitempty"`
	Permissions   string                 `json:"permissions,omitempty"`
	Model         string                 `json:"model,omitempty"`
	Login         string                 `json:"login,omitempty"`
	TimeoutSec    int64                  `json:"timeout_seconds,omitempty"`
	Guards        Guards                 `json:"guards,omitzero"`
	StepLimits    map[StepKey]int64      `json:"step_limits,omitempty"`
	Definition    *AgentDefinition       `json:"agent_definition,omitempty"`
	MCP           []MCPServer            `json:"mcp,omitempty"`
	NetworkPolicy *sprites.NetworkPolicy `json:"network_policy,omitempty"` // of new sprites; nil: the preset agent
	Config        *sprites.Config        `json:"config,omitempty"`
	Include       []string               `json:"include,omitempty"`
	SetupScript   *SetupScript           `json:"setup_script,omitempty"` // replaces the request's, which is the repository's

	// CleanupScript runs in a sprite that was made for a job of the profile, before that is
	// deleted. It has the job's variables. Its time limit is a minute if it says none, and
	// ten at most. Its result is in Job.Cleanup. A failure does not hold up the deletion.
	CleanupScript *SetupScript `json:"cleanup_script,omitempty"`

	Env map[string]string `json:"env,omitempty"` // the agent's variables; the request's override them

	// Author is the author of the commits, in place of the person who begins the job. Nil:
	// that person.
	Author *Person `json:"author,omitempty"`

	// MaxJobs is how many jobs of the profile may work at once. Further jobs wait for their
	// turn, in the order of their creation. 0: any number.
	MaxJobs int `json:"max_jobs,omitempty"`

	// MaxWaitSec is how long a job may wait for a person, or be held, while others wait for
	// their turn. Then it is stopped, and its work is collected. 0: there is no limit.
	MaxWaitSec int64 `json:"max_wait_seconds,omitempty"`
}

// Variables are the variables, as NAME=VALUE, by name.
func (p ProfileSettings) Variables() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(p.Env)) {
		all = append(all, name+"="+p.Env[name])
	}
	return all
}

// ProfileList is the answer to GET /v1/profiles.
type ProfileList struct {
	Profiles []Profile `json:"profiles"` // by name
}

// ProfilePut is the answer to PUT /v1/profiles/{profile}.
type ProfilePut struct {
	Profile
	Warnings []string `json:"warnings,omitempty"` // what a job by it would lack now
}

// ProfileApplied has the results for the jobs that were made with the network policy of an
// older revision of a profile (POST /v1/profiles/{profile}/apply).
type ProfileApplied struct {
	Jobs []ProfileJob `json:"jobs"` // those that have not ended
}

// ProfileJob is a job that a profile's network policy was applied to.
type ProfileJob struct {
	Job    string `json:"job"`
	Sprite string `json:"sprite"`
	Error  string `json:"error,omitempty"` // why it was not; empty: it was
	Kept   bool   `json:"kept,omitempty"`  // it has other rules than its job was given, and keeps them
}

// Profiles are the calls about profiles. All but Get and List need the verb admin.
type Profiles struct{ Client *Client }

func profilePath(name string, more ...string) string {
	return sprites.Path(append([]string{"v1", "profiles", name}, more...)...)
}

// List returns all profiles. Values of variables are shown to tokens with the verb admin only.
func (p Profiles) List(ctx context.Context) ([]Profile, error) {
	var list ProfileList
	if err := p.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "profiles")}, &list); err != nil {
		return nil, fmt.Errorf("list profiles: %w", err)
	}
	return list.Profiles, nil
}

// Get returns a profile, as List does.
func (p Profiles) Get(ctx context.Context, name string) (Profile, error) {
	var profile Profile
	if err := p.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: profilePath(name)}, &profile); err != nil {
		return profile, fmt.Errorf("profile %s: %w", name, err)
	}
	return profile, nil
}

// Put stores a profile, in place of one of the same name. If revision is not 0, it replaces
// only a profile of that revision. The server refuses a profile that could not become a
// job.
func (p Profiles) Put(ctx context.Context, name string, revision int64, settings ProfileSettings) (ProfilePut, error) {
	var put ProfilePut
	req := sprites.Request{Method: http.MethodPut, Path: profilePath(name), JSON: settings}
	if revision != 0 {
		req.Header = http.Header{"If-Match": {fmt.Sprintf("%q", fmt.Sprint(revision))}}
	}
	if err := p.Client.Call(ctx, req, &put); err != nil {
		return put, fmt.Errorf("store profile %s: %w", name, err)
	}
	return put, nil
}

// Delete forgets a profile. Jobs that were made with it go on.
func (p Profiles) Delete(ctx context.Context, name string) error {
	if err := p.Client.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: profilePath(name)}, nil); err != nil {
		return fmt.Errorf("delete profile %s: %w", name, err)
	}
	return nil
}

// SetDefault sets the profile that clients use for pushes that name none. With an empty
// name there is no such profile. The server does not apply it: a request for a job without
// a profile has none.
func (p Profiles) SetDefault(ctx context.Context, name string) error {
	req := sprites.Request{Method: http.MethodPut, Path: sprites.Path("v1", "default-profile"), JSON: DefaultProfile{name}}
	if err := p.Client.Call(ctx, req, nil); err != nil {
		return fmt.Errorf("default profile %s: %w", name, err)
	}
	return nil
}

// DefaultProfile is the body of PUT /v1/default-profile.
type DefaultProfile struct {
	Name string `json:"name"` // empty: none
}

// Apply gives a profile's current network policy to the jobs that an older revision has
// made, and that have not ended. If somebody has changed the rules of a sprite since, they
// stay, unless force is set.
func (p Profiles) Apply(ctx context.Context, name string, force bool) (ProfileApplied, error) {
	var applied ProfileApplied
	req := sprites.Request{Method: http.MethodPost, Path: profilePath(name, "apply")}
	if force {
		req.Query = url.Values{"force": {"true"}}
	}
	if err := p.Client.Call(ctx, req, &applied); err != nil {
		return applied, fmt.Errorf("apply profile %s: %w", name, err)
	}
	return applied, nil
}
