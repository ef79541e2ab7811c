package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/profile"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// profileRoutes keeps the profiles of jobs.
type profileRoutes struct {
	profiles *store.Profiles
	jobs     *store.Jobs
	manager  Jobs // nil: jobs are not available
	host     *sprite.Host
	client   *cove.Client // of the server's own
	settings *store.Settings
	backends *store.Backends
}

// defaultProfile is the setting that has the name of the default profile; empty: there is none.
const defaultProfile = "default_profile"

func (g *profileRoutes) defaultName(ctx context.Context) (string, error) {
	name, err := g.settings.Get(ctx, defaultProfile)
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return name, err
}

// setDefault names the profile for requests that name none.
func (g *profileRoutes) setDefault(w http.ResponseWriter, r *http.Request) error {
	var req cove.DefaultProfile
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Name != "" {
		if _, err := g.profiles.Get(r.Context(), req.Name); err != nil {
			return profileError(req.Name, err)
		}
	}
	if err := g.settings.Set(r.Context(), defaultProfile, req.Name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

var profileName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`) })

const (
	maxProfile     = 2 << 20 // of a profile's document
	maxDescription = 1000
	maxProfileJobs = 10_000 // at once
	maxProfileEnv  = 1000
	maxProfileWait = 100 * 24 * 3600 // seconds
)

var profileVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

func (g *profileRoutes) list(w http.ResponseWriter, r *http.Request) error {
	all, err := g.profiles.List(r.Context())
	if err != nil {
		return err
	}
	preset, err := g.defaultName(r.Context())
	if err != nil {
		return err
	}
	list := cove.ProfileList{Profiles: []cove.Profile{}}
	for _, p := range all {
		if !principalOf(r).knows(p.Name) {
			continue
		}
		p.Default = p.Name == preset
		list.Profiles = append(list.Profiles, visibleProfile(r, p))
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (g *profileRoutes) get(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("profile")
	if !principalOf(r).knows(name) {
		return profileError(name, store.ErrNotFound)
	}
	p, err := g.profiles.Get(r.Context(), name)
	if err != nil {
		return profileError(name, err)
	}
	preset, err := g.defaultName(r.Context())
	if err != nil {
		return err
	}
	p.Default = p.Name == preset
	writeJSON(w, http.StatusOK, visibleProfile(r, p))
	return nil
}

// visibleProfile is the part of a profile that the caller may see.
func visibleProfile(r *http.Request, p cove.Profile) cove.Profile {
	if principalOf(r).may(admin) {
		return p
	}
	return profile.Hidden(p)
}

// put checks a profile by the job that it would make, and stores it. It does not refuse a
// missing key, which may come later.
func (g *profileRoutes) put(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("profile")
	if !profileName().MatchString(name) {
		return fail.New(sprite.CodeBadRequest, "a profile's name has lower-case letters, digits and hyphens, at most 63", "")
	}
	expected, err := ifMatch(r)
	if err != nil {
		return err
	}
	var settings cove.ProfileSettings
	if err := readJSON(w, r, maxProfile, &settings); err != nil {
		return err
	}
	nameScript(settings.SetupScript, "setup_script")
	nameScript(settings.CleanupScript, "cleanup_script")
	warnings, err := g.check(r.Context(), cove.Profile{Name: name, ProfileSettings: settings})
	if err != nil {
		return err
	}
	p, err := g.profiles.Put(r.Context(), name, expected, settings)
	if err != nil {
		return profileError(name, err)
	}
	writeJSON(w, http.StatusOK, cove.ProfilePut{Profile: p, Warnings: warnings})
	return nil
}

// nameScript gives a script, or nil, a name if it has none.
func nameScript(s *cove.SetupScript, name string) {
	if s != nil && strings.TrimSpace(s.Name) == "" {
		s.Name = name
	}
}

// check refuses a profile that no job could be made of.
func (g *profileRoutes) check(ctx context.Context, p cove.Profile) (warnings []string, err error) {
	switch {
	case len(p.Description) > maxDescription || strings.ContainsFunc(p.Description, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return nil, fail.Newf(sprite.CodeBadRequest, "", "a description must be a line of at most %d bytes", maxDescription)
	case p.MaxJobs < 0 || p.MaxJobs > maxProfileJobs:
		return nil, fail.Newf(sprite.CodeBadRequest, "0 means any number", "max_jobs must be from 0 to %d, not %d", maxProfileJobs, p.MaxJobs)
	case len(p.Env) > maxProfileEnv:
		return nil, fail.Newf(sprite.CodeBadRequest, "", "%d variables are more than %d", len(p.Env), maxProfileEnv)
	case p.Agent == "" && (p.Model != "" || p.AgentCommand != "" || p.Permissions != "" || p.Definition != nil):
		return nil, fail.New(sprite.CodeBadRequest, "a model, a command, permissions and a definition need an agent, and the profile names none", "")
	case p.Branch != "" && p.URL == "":
		return nil, fail.New(sprite.CodeBadRequest, "a branch needs a URL, and the profile has none", "")
	case p.Publish != "" && p.URL == "":
		return nil, fail.New(sprite.CodeBadRequest, "publish needs a URL, and the profile has none", "")
	case p.Author != nil && (strings.TrimSpace(p.Author.Name) == "" || strings.TrimSpace(p.Author.Email) == ""):
		return nil, fail.New(sprite.CodeBadRequest, "an author must have a name and an email", "")
	case p.MaxWaitSec < 0 || p.MaxWaitSec > maxProfileWait:
		return nil, fail.Newf(sprite.CodeBadRequest, "0 means no limit", "max_wait_seconds must be from 0 to %d, not %d", maxProfileWait, p.MaxWaitSec)
	}
	for key := range p.Env {
		if !profileVariable().MatchString(key) {
			return nil, fail.Newf(sprite.CodeBadRequest, "", "%.40q can't be a variable's name", key)
		}
	}
	if p.NetworkPolicy != nil {
		err := g.host.OpensInward(ctx, "", *p.NetworkPolicy)
		if e, ok := errors.AsType[*fail.Error](err); err != nil && !(ok && e.Code == sprite.CodeForbidden) { // who stores it may
			return nil, err
		}
	}
	if err := g.checkPlace(ctx, p); err != nil {
		return nil, err
	}
	if warnings, err = g.checkImage(ctx, p); err != nil || g.manager == nil {
		return warnings, err
	}
	trial := profile.Trial(p)
	if p.Agent == "" { // each job names its own
		trial.Agent, trial.MCP, trial.Guards.CostUSD = "shell", nil, 0
	}
	preview, err := g.manager.Preview(ctx, trial)
	if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == "no_key" {
		return append(warnings, strings.TrimSpace(e.Error()+"; "+e.Hint)), nil
	}
	if err != nil {
		return nil, err
	}
	more, err := g.checkRules(ctx, p, preview)
	return slices.Concat(warnings, preview.Warnings, more), err
}

// checkPlace refuses a backend that is not there, and a machine or folders that no sprite here could have.
func (g *profileRoutes) checkPlace(ctx context.Context, p cove.Profile) error {
	if p.Backend == "" {
		return sprite.CheckPlace(g.host, p.Config, p.Include)
	}
	_, _, err := g.backends.Get(ctx, p.Backend)
	if errors.Is(err, store.ErrNotFound) {
		return fail.Newf("no_backend", "see which there are: cove backend list", "there is no backend %.40q", p.Backend)
	}
	return err
}

// checkImage refuses what can't be the name of an image, and warns of one that is not here.
func (g *profileRoutes) checkImage(ctx context.Context, p cove.Profile) ([]string, error) {
	if p.Backend != "" || p.Config == nil || p.Config.Image == "" || p.Config.Image == sprites.HostBase {
		return nil, nil
	}
	_, err := cove.Images{Client: g.client}.Get(ctx, p.Config.Image)
	e, ok := errors.AsType[*sprites.Error](err)
	switch {
	case errors.Is(err, sprites.ErrNotFound), ok && e.Code == "image_not_found":
		return []string{"the image " + p.Config.Image + " is not here; before the first job: cove image pull " + p.Config.Image}, nil
	case ok:
		return nil, fail.New(e.Code, e.Message, e.Hint)
	}
	return nil, err
}

// checkRules warns of hosts that the profile's agent needs, and its rules do not let through.
func (g *profileRoutes) checkRules(ctx context.Context, p cove.Profile, job cove.JobPreview) ([]string, error) {
	if p.NetworkPolicy == nil || p.Agent == "" {
		return nil, nil
	}
	blocked, err := sprite.Blocked(ctx, g.host, *p.NetworkPolicy, job.Installs, job.Hosts...)
	var warnings []string
	for _, host := range blocked {
		warnings = append(warnings, fmt.Sprintf("the rules do not let through %s, which the agent %s needs in its sprite; add the rule { domain = %q, action = \"allow\" }", host, p.Agent, host))
	}
	return warnings, err
}

func (g *profileRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("profile")
	if err := g.profiles.Delete(r.Context(), name); err != nil {
		return profileError(name, err)
	}
	if preset, err := g.defaultName(r.Context()); err != nil {
		return err
	} else if preset == name { // another of that name is not meant
		if err := g.settings.Set(r.Context(), defaultProfile, ""); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// apply gives the profile's present network policy to the jobs that have an older revision's.
// A profile without a policy changes none. If one job fails, the answer says so, and the
// others get the policy. If a sprite's rules are not those that its job was given, somebody
// has set them: it keeps them unless force is set.
func (g *profileRoutes) apply(w http.ResponseWriter, r *http.Request) error {
	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	p, err := g.profiles.Get(r.Context(), r.PathValue("profile"))
	if err != nil {
		return profileError(r.PathValue("profile"), err)
	}
	if p.NetworkPolicy == nil {
		return fail.New(sprite.CodeBadRequest, "the profile "+p.Name+" has no network policy", "give it one: cove profile edit "+p.Name)
	}
	jobs, err := g.jobs.List(r.Context(), store.JobFilter{States: unended})
	if err != nil {
		return err
	}
	applied := cove.ProfileApplied{Jobs: []cove.ProfileJob{}}
	for _, job := range jobs {
		if job.Profile != p.Name || job.ProfileRevision >= p.Revision || !job.ProfilePolicy {
			continue // it has other rules, which are its own
		}
		result := cove.ProfileJob{Job: job.ID, Sprite: job.Sprite}
		if err := g.applyTo(r.Context(), p, job, force); err != nil {
			result.Error, result.Kept = err.Error(), errors.Is(err, errOwnRules)
		}
		applied.Jobs = append(applied.Jobs, result)
	}
	writeJSON(w, http.StatusOK, applied)
	return nil
}

// errOwnRules is why a sprite does not get a profile's rules.
var errOwnRules = errors.New("somebody has set its rules since, so they stay")

func (g *profileRoutes) applyTo(ctx context.Context, p cove.Profile, job cove.Job, force bool) error {
	rules := *p.NetworkPolicy
	if job.State == cove.JobInstalling {
		return fail.New("job_installing", fmt.Sprintf("it has no sprite yet, and will get the rules of revision %d", job.ProfileRevision), "push it again")
	}
	if job.Backend != "" { // as its job was given them
		var err error
		if rules, err = g.host.NamesOnly(ctx, rules); err != nil {
			return err
		}
	}
	s := g.client.At(job.Backend).Sprite(job.Sprite)
	if !force && job.NetworkPolicy != nil {
		now, err := s.NetworkPolicy(ctx)
		if err != nil {
			return err
		}
		if !sameRules(now, *job.NetworkPolicy) && !sameRules(now, rules) { // rules: of an apply that was cut off
			return errOwnRules
		}
		rules.Revision = now.Revision
	}
	if err := s.SetNetworkPolicy(ctx, rules); err != nil {
		return err
	}
	return g.jobs.Update(ctx, job.ID, func(j *cove.Job) error {
		j.NetworkPolicy, j.ProfileRevision = &rules, p.Revision
		return nil
	})
}

// sameRules reports whether two policies say the same in the same words.
func sameRules(a, b sprites.NetworkPolicy) bool {
	same := func(a, b sprites.NetworkRule) bool { return reflect.DeepEqual(a, b) }
	return slices.EqualFunc(a.Rules, b.Rules, same) && reflect.DeepEqual(a.Limits, b.Limits)
}

// completed is a request with its profile's settings. If the profile gives what the caller
// could not ask for, the caller can't change the settings that confine that.
func (g *jobRoutes) completed(r *http.Request, req cove.JobRequest) (cove.JobRequest, error) {
	req.ProfileRevision, req.ProfilePolicy = 0, false
	if req.Profile == "" {
		return req, nil
	}
	p, err := g.profiles.Get(r.Context(), req.Profile)
	if err != nil {
		return req, profileError(req.Profile, err)
	}
	if err := g.mayOverride(r, p, req, false); err != nil {
		return req, err
	}
	if req = profile.Apply(p, req); req.Agent == "" {
		return req, fail.New("no_agent", "the profile "+p.Name+" names no agent", "choose one with --agent, or give the profile one: cove profile edit "+p.Name)
	}
	return req, g.bounded(r, p, req)
}

// bounded refuses a job that asks for more than its caller may ask of a profile.
func (g *jobRoutes) bounded(r *http.Request, p cove.Profile, req cove.JobRequest) error {
	by := principalOf(r)
	if by.scope.Profile != "" && req.Backend != "" {
		return fail.New("forbidden", "the sprites of the profile "+p.Name+" are at the backend "+req.Backend+", which a token for a profile does not reach", "use a token for all sprites: --all")
	}
	if e := profile.Exceeds(p, req); e != nil && !by.may(admin) {
		return fail.Newf("forbidden", "ask for no more: "+e.Flag+"; or use a token with the verb admin",
			"%s (%s) is limited to %s in jobs of the profile %s, and %s was asked for", e.What, e.Field, e.Most, p.Name, cmp.Or(e.Asked, "no limit"))
	}
	return nil
}

// mayAgain refuses to do a job of a profile again, unless the caller may ask for everything
// that the profile does not give any more. The job is in the sprite that it had before (had),
// or in a new one.
func (g *jobRoutes) mayAgain(r *http.Request, req cove.JobRequest, had string) error {
	if req.Profile == "" || principalOf(r).may(admin) {
		return g.mayBegin(r, req)
	}
	p, err := g.profiles.Get(r.Context(), req.Profile)
	if err != nil {
		return profileError(req.Profile, err)
	}
	asked := profile.Asked(p, req, g.image)
	if err := g.mayBegin(r, asked); err != nil {
		return ofProfile(err, req.Profile)
	}
	if err := g.mayOverride(r, p, asked, req.Sprite == had); err != nil {
		return err
	}
	return g.bounded(r, p, req)
}

// mayOverride refuses settings in place of a profile's, unless the caller has the verb admin.
// A token for the profile chooses no other agent. If the profile gives more than the caller
// could ask for, its jobs override nothing; else they override nothing that says what they may
// do. A sprite that is the job's already (own) overrides nothing.
func (g *jobRoutes) mayOverride(r *http.Request, p cove.Profile, req cove.JobRequest, own bool) error {
	if own {
		req.Sprite = ""
	}
	by := principalOf(r)
	if by.may(admin) {
		return nil
	}
	if names := profile.OtherAgent(p, req); by.scope.Profile != "" && len(names) > 0 { // by another, the server's keys would be used
		return fail.Newf("forbidden", "leave it out, or use a token with the verb admin",
			"the profile %s names the agent of its jobs, so a token for it can't choose another %s", p.Name, strings.Join(names, ", "))
	}
	if names := profile.Opens(p, req); len(names) > 0 && !profile.Gives(p) {
		return fail.Newf("forbidden", "leave it out, or use a token with the verb admin",
			"the profile %s says what its jobs may do, so they can't have their own %s", p.Name, strings.Join(names, ", "))
	}
	names := profile.Overrides(req)
	if len(names) == 0 {
		return nil
	}
	gives := profile.Gives(p)
	if p.NetworkPolicy != nil && !gives {
		gives = g.host.OpensInward(r.Context(), "", *p.NetworkPolicy) != nil
	}
	if !gives {
		return nil
	}
	return fail.Newf("forbidden", "leave it out, or use a token with the verb admin",
		"the profile %s gives what only the verb admin may ask for, so its jobs can't have their own %s", p.Name, strings.Join(names, ", "))
}

// ofProfile adds to a hint that names flags of push that the profile may have said the same.
func ofProfile(err error, name string) error {
	e, ok := errors.AsType[*fail.Error](err)
	if !ok || name == "" || !strings.Contains(e.Hint, "--") || strings.Contains(e.Hint, "cove profile ") {
		return err
	}
	more := *e
	more.Hint += "; or, if the profile sets it: cove profile edit " + name
	return &more
}

func profileError(name string, err error) error {
	name = clean(name, maxGuestText)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fail.New("no_profile", fmt.Sprintf("there is no profile %q", name), "see which there are: cove profile list")
	case errors.Is(err, store.ErrRevision):
		return fail.New("profile_changed", fmt.Sprintf("the profile %s: %v", name, err), "look at it again: cove profile show "+name)
	}
	return err
}

// ifMatch is the revision that a caller expects; 0: any.
func ifMatch(r *http.Request) (int64, error) {
	text := strings.Trim(r.Header.Get("If-Match"), `"`)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || slices.Contains(r.Header.Values("If-Match"), "*") {
		return 0, fail.Newf(sprite.CodeBadRequest, "", "If-Match is the revision of a profile, such as \"3\", not %.40q", text)
	}
	return n, nil
}
