package cove

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// EnvironmentState is where an environment is.
type EnvironmentState string

// The states of an environment, in the order that most go through. Unknown can follow all
// but planned and destroying. It ends when the environment's place answers. Nothing follows
// gone.
const (
	EnvironmentPlanned    EnvironmentState = "planned"    // the row exists, and its sprite was not asked for
	EnvironmentCreating   EnvironmentState = "creating"   // its sprite is asked for, and may be there
	EnvironmentPolicy     EnvironmentState = "policy"     // its sprite is there, and gets its network policy
	EnvironmentPreparing  EnvironmentState = "preparing"  // it gets its repository, supervisor and agent
	EnvironmentReady      EnvironmentState = "ready"      // it is prepared, and its sprite is awake
	EnvironmentAsleep     EnvironmentState = "asleep"     // it is prepared, and its next use wakes it
	EnvironmentFailed     EnvironmentState = "failed"     // its preparation failed, at Step; its sprite is there
	EnvironmentUnknown    EnvironmentState = "unknown"    // its place does not answer, or refuses; it is as it was, perhaps
	EnvironmentDestroying EnvironmentState = "destroying" // it is deleted, again and again, until its place says that it is gone, and will not come (LateUntil)
	EnvironmentGone       EnvironmentState = "gone"       // its sprite is not there
)

// EnvironmentStates are all states, in that order.
func EnvironmentStates() []EnvironmentState {
	return []EnvironmentState{
		EnvironmentPlanned, EnvironmentCreating, EnvironmentPolicy, EnvironmentPreparing, EnvironmentReady, EnvironmentAsleep,
		EnvironmentFailed, EnvironmentUnknown, EnvironmentDestroying, EnvironmentGone,
	}
}

// Valid reports whether s is one of the states.
func (s EnvironmentState) Valid() bool { return slices.Contains(EnvironmentStates(), s) }

// DestroyReason says why an environment is destroyed. Nothing else destroys one.
type DestroyReason string

// The reasons to destroy an environment.
const (
	DestroyAsked     DestroyReason = "asked"         // somebody asked for it
	DestroyJobGone   DestroyReason = "job_removed"   // its job is removed
	DestroyPulled    DestroyReason = "pulled"        // its job said so, and was pulled
	DestroyNeverUsed DestroyReason = "launch_failed" // its job ended before it began
)

// Valid reports whether r is one of the reasons.
func (r DestroyReason) Valid() bool {
	switch r {
	case DestroyAsked, DestroyJobGone, DestroyPulled, DestroyNeverUsed:
		return true
	}
	return false
}

// Environment is a sprite that was made for a job: here, or at a backend.
type Environment struct {
	ID      string `json:"id"`                // the execution id, which is never used again
	Version int64  `json:"version"`           // grows with each change
	Name    string `json:"name"`              // of the sprite
	Backend string `json:"backend,omitempty"` // has the sprite; empty: this server has it

	// SpriteID is what its place calls the sprite; empty: it has not said.
	SpriteID string `json:"sprite_id,omitempty"`

	// Job has the environment. It may be another one than the job that it was made for.
	Job             string `json:"job"`
	JobTitle        string `json:"job_title,omitempty"` // the name of its plan
	Repository      string `json:"repository,omitempty"`
	Profile         string `json:"profile,omitempty"`
	ProfileRevision int64  `json:"profile_revision,omitempty"`
	Orphan          bool   `json:"orphan,omitempty"` // Job was removed

	State EnvironmentState `json:"state"`
	Was   EnvironmentState `json:"was,omitempty"`   // unknown: the state before
	Step  StepKey          `json:"step,omitempty"`  // failed: the step that did
	Error string           `json:"error,omitempty"` // failed: why; destroying: why not yet
	Hint  string           `json:"hint,omitempty"`  // what to do

	Unknown *JobUnknown `json:"unknown,omitempty"` // unknown: why, and since when

	Removal *EnvironmentRemoval `json:"removal,omitempty"` // destroying and after: how far that is; nil: it was not asked for

	// LateUntil is when the backend will not make the sprite any more, late, of a call for it that was
	// not answered. Until then a deletion has not ended. Nil: no such call is open, or one is under way.
	LateUntil *time.Time `json:"late_until,omitempty"`

	Health EnvironmentHealth `json:"health,omitzero"`

	Busy bool `json:"busy"` // a job that has not ended works in it
	Work bool `json:"work"` // it has work that nobody has pulled

	CreatedAt time.Time  `json:"created_at"`
	ChangedAt time.Time  `json:"changed_at"`         // when it came into its state
	WokenAt   *time.Time `json:"woken_at,omitempty"` // when it was last seen to have woken; nil: never
}

// EnvironmentRemoval is how far the destruction of an environment is.
type EnvironmentRemoval struct {
	Reason DestroyReason `json:"reason"`
	Since  time.Time     `json:"since"`
	Tries  int           `json:"tries"`   // that failed
	NextAt time.Time     `json:"next_at"` // when it is tried again, at the earliest
}

// EnvironmentHealth is the result of the last check of an environment, by two signals. The
// zero value means that it was never checked. A check reads the list of the sprite's place,
// and how the jobs in the sprite are followed. It never wakes the sprite, and does not
// count as a use.
type EnvironmentHealth struct {
	Word   string `json:"word,omitempty"`   // one of the health words; empty: there is nothing to say
	Detail string `json:"detail,omitempty"` // why, for people

	Provider   string           `json:"provider,omitempty"`   // the sprite's status in the place's own word, or unreachable
	Supervisor SupervisorSignal `json:"supervisor,omitempty"` // of the jobs at work in it; empty: none is
	CheckedAt  *time.Time       `json:"checked_at,omitempty"`
	Failures   int              `json:"failures,omitempty"` // checks that failed in a row; no more than DegradedAfter are counted
}

// The health words.
const (
	HealthHealthy  = "healthy"  // the last check succeeded, and the sprite is awake
	HealthAsleep   = "asleep"   // the last check succeeded, and the sprite is not awake
	HealthUnknown  = "unknown"  // the last check failed, or its place has not answered a job since
	HealthDegraded = "degraded" // the last DegradedAfter checks failed, or more
)

// ProviderUnreachable is EnvironmentHealth.Provider of a place that did not answer, or refused.
const ProviderUnreachable = "unreachable"

// DegradedAfter is the number of checks that fail in a row until an environment is degraded. The
// first check that succeeds restores it.
const DegradedAfter = 3

// Degraded reports whether so many checks have failed.
func (h EnvironmentHealth) Degraded() bool { return h.Failures >= DegradedAfter }

// SupervisorSignal says whether the supervisor of a job answers: whether the server's connection
// to its log is open.
type SupervisorSignal string

// The signals of supervisors. Several jobs in one sprite have the worst, which is the last here.
const (
	SupervisorAnswers  SupervisorSignal = "answers"
	SupervisorHeld     SupervisorSignal = "held"     // it stands still with its sprite, for lack of disk
	SupervisorStarting SupervisorSignal = "starting" // the server has not connected to it yet
	SupervisorSilent   SupervisorSignal = "silent"   // the last connection failed, or brought nothing
)

// Judged is the environment with the word and the detail of its health.
func (e Environment) Judged() Environment {
	h := &e.Health
	h.Word, h.Detail = "", ""
	if h.CheckedAt == nil || e.State == EnvironmentPlanned || e.State == EnvironmentDestroying || e.State == EnvironmentGone {
		return e
	}
	sprite, supervisor := "the sprite is "+h.Provider, "no job works in it"
	if h.Provider == ProviderUnreachable || e.State == EnvironmentUnknown {
		sprite = "its backend does not answer, or refuses"
	}
	switch h.Supervisor {
	case SupervisorAnswers:
		supervisor = "the supervisor answers"
	case SupervisorHeld:
		supervisor = "the supervisor is paused with its sprite"
	case SupervisorStarting:
		supervisor = "the supervisor has not answered yet"
	case SupervisorSilent:
		supervisor = "the supervisor does not answer"
	}
	h.Detail = sprite + "; " + supervisor
	switch {
	case h.Degraded():
		h.Word = HealthDegraded
	case h.Failures > 0 || e.State == EnvironmentUnknown:
		h.Word = HealthUnknown
	case h.Provider != string(sprites.StatusRunning):
		h.Word = HealthAsleep
	default:
		h.Word = HealthHealthy
	}
	return e
}

// Uptime is how long an environment has been awake since it last woke. Known is false if it
// is not awake, or was never seen to wake.
func (e Environment) Uptime(now time.Time) (up time.Duration, known bool) {
	if e.State != EnvironmentReady || e.WokenAt == nil {
		return 0, false
	}
	return max(now.Sub(*e.WokenAt), 0), true
}

// EnvironmentList is the answer to GET /v1/environments.
type EnvironmentList struct {
	Environments []Environment `json:"environments"` // the newest first
}

// EnvironmentDestroy asks to destroy environments (POST /v1/environments/destroy).
type EnvironmentDestroy struct {
	IDs     []string `json:"ids,omitempty"`     // empty: all
	Backend *string  `json:"backend,omitempty"` // only those there; "": here; nil: anywhere
	Force   bool     `json:"force,omitempty"`   // also those where a job works, or with work that nobody has pulled
}

// EnvironmentDestroyed is the answer to an EnvironmentDestroy.
type EnvironmentDestroyed struct {
	Results []EnvironmentResult `json:"results"`
}

// EnvironmentResult is the result of destroying an environment.
type EnvironmentResult struct {
	Environment Environment        `json:"environment"`       // as it is now
	Error       *sprites.ErrorBody `json:"failure,omitempty"` // why it is not gone; nil: it is
}

// Environments are the calls about environments.
type Environments struct{ Client *Client }

// EnvironmentFilter selects environments. The zero value is all that are not gone.
type EnvironmentFilter struct {
	States  []EnvironmentState // empty: all but gone
	Profile string             // empty: any, and none
	Backend *string            // "": this server's; nil: anywhere
}

// List returns the environments that a filter selects, the newest first.
func (e Environments) List(ctx context.Context, filter EnvironmentFilter) ([]Environment, error) {
	query := url.Values{}
	for _, state := range filter.States {
		query.Add("state", string(state))
	}
	if filter.Profile != "" {
		query.Set("profile", filter.Profile)
	}
	if filter.Backend != nil {
		query.Set("backend", *filter.Backend)
	}
	var list EnvironmentList
	if err := e.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "environments"), Query: query}, &list); err != nil {
		return nil, fmt.Errorf("list environments: %w", err)
	}
	return list.Environments, nil
}

// Get returns an environment.
func (e Environments) Get(ctx context.Context, id string) (Environment, error) {
	var env Environment
	if err := e.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "environments", id)}, &env); err != nil {
		return env, fmt.Errorf("environment %s: %w", id, err)
	}
	return env, nil
}

// Destroy destroys an environment, and returns its new state: gone, or destroying if its
// place has not deleted it yet. The server then tries again until it is gone. Without
// force, the server refuses if a job works in the environment, or if its work has not been
// pulled.
func (e Environments) Destroy(ctx context.Context, id string, force bool) (Environment, error) {
	var env Environment
	req := sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "environments", id)}
	if force {
		req.Query = url.Values{"force": {"true"}}
	}
	if err := e.Client.Call(ctx, req, &env); err != nil {
		return env, fmt.Errorf("destroy environment %s: %w", id, err)
	}
	return env, nil
}

// DestroyAll destroys several, each for itself, and says what became of each.
func (e Environments) DestroyAll(ctx context.Context, ask EnvironmentDestroy) ([]EnvironmentResult, error) {
	var all EnvironmentDestroyed
	if err := e.Client.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "environments", "destroy"), JSON: ask}, &all); err != nil {
		return nil, fmt.Errorf("destroy environments: %w", err)
	}
	return all.Results, nil
}
