package server

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// environmentRoutes tells of environments, and destroys them. A token sees those whose sprites
// it reaches.
type environmentRoutes struct {
	manager      Jobs // nil: jobs are not available
	environments *store.Environments
	refusals     refusals
}

// maxEnvironments bounds what one call destroys.
const maxEnvironments = 1000

func (g *environmentRoutes) list(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	filter := cove.EnvironmentFilter{Profile: query.Get("profile")}
	if query.Has("backend") {
		backend := query.Get("backend")
		filter.Backend = &backend
	}
	for _, text := range query["state"] {
		state := cove.EnvironmentState(text)
		if !state.Valid() {
			return fail.New(sprite.CodeBadRequest, fmt.Sprintf("state must be a state of environments, not %.40q", text), "")
		}
		filter.States = append(filter.States, state)
	}
	all, err := g.reached(r, filter)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, cove.EnvironmentList{Environments: all})
	return nil
}

// reached are the environments that the caller's token reaches.
func (g *environmentRoutes) reached(r *http.Request, filter cove.EnvironmentFilter) ([]cove.Environment, error) {
	all, err := g.environments.List(r.Context(), filter)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(e cove.Environment) bool { return !principalOf(r).reachesAt(e.Backend, e.Name) })
	return append([]cove.Environment{}, all...), nil
}

// environment reads the environment of that ID. If the token does not reach it, the error is
// as if it did not exist.
func (g *environmentRoutes) environment(r *http.Request, id string) (cove.Environment, error) {
	env, err := g.environments.Get(r.Context(), id)
	if errors.Is(err, store.ErrNotFound) || err == nil && !principalOf(r).reachesAt(env.Backend, env.Name) {
		return env, fail.New(sprite.CodeNotFound, fmt.Sprintf("there is no environment %.40q", id), "see what there is with: cove environment list")
	}
	return env, err
}

func (g *environmentRoutes) get(w http.ResponseWriter, r *http.Request) error {
	env, err := g.environment(r, r.PathValue("environment"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, env)
	return nil
}

// delete destroys an environment. The answer says whether it is gone.
func (g *environmentRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	env, err := g.environment(r, r.PathValue("environment"))
	if err == nil {
		env, err = g.destroy(r, env.ID, force)
	}
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, env)
	return nil
}

func (g *environmentRoutes) destroy(r *http.Request, id string, force bool) (cove.Environment, error) {
	if g.manager == nil {
		return cove.Environment{}, fail.New("not_available", "this server does not run jobs", "")
	}
	return g.manager.DestroyEnvironment(r.Context(), id, force)
}

// destroyAll destroys several, each for itself.
func (g *environmentRoutes) destroyAll(w http.ResponseWriter, r *http.Request) error {
	var ask cove.EnvironmentDestroy
	if err := readObject(w, r, maxBody, &ask, "what to destroy", `it is {"ids":["ID"]}, or {} for all`); err != nil {
		return err
	}
	if len(ask.IDs) > maxEnvironments {
		return fail.New(sprite.CodeBadRequest, fmt.Sprintf("at most %d environments are destroyed at once", maxEnvironments), "")
	}
	var all []cove.Environment
	for _, id := range ask.IDs {
		env, err := g.environment(r, id)
		if err != nil {
			return err // before anything is destroyed
		}
		if ask.Backend == nil || *ask.Backend == env.Backend {
			all = append(all, env)
		}
	}
	if len(ask.IDs) == 0 {
		var err error
		if all, err = g.reached(r, cove.EnvironmentFilter{Backend: ask.Backend}); err != nil {
			return err
		}
	}
	answer := cove.EnvironmentDestroyed{Results: []cove.EnvironmentResult{}}
	for _, env := range all {
		if r.Context().Err() != nil {
			return r.Context().Err()
		}
		answer.Results = append(answer.Results, g.result(r, env, ask.Force))
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func (g *environmentRoutes) result(r *http.Request, env cove.Environment, force bool) cove.EnvironmentResult {
	now, err := g.destroy(r, env.ID, force)
	if now.ID == "" {
		now = env
	}
	result := cove.EnvironmentResult{Environment: now}
	if err != nil {
		result.Error = g.told(err)
	} else if now.State != cove.EnvironmentGone {
		result.Error = &sprites.ErrorBody{Code: "still_deleting", Message: cmp.Or(now.Error, "it is not deleted yet"), Hint: now.Hint}
	}
	return result
}

// told is an error as an answer has it.
func (g *environmentRoutes) told(err error) *sprites.ErrorBody {
	_, body := g.refusals.describe(err)
	if e, ok := body.(sprites.ErrorBody); ok {
		return &e
	}
	return &sprites.ErrorBody{Code: "internal", Message: "the server could not do it"}
}

// orphans lists the orphans at all places.
func (g *environmentRoutes) orphans(w http.ResponseWriter, r *http.Request) error {
	list, err := g.reachedOrphans(r)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// reachedOrphans are the orphans that the caller's token reaches.
func (g *environmentRoutes) reachedOrphans(r *http.Request) (list cove.OrphanList, err error) {
	if g.manager == nil {
		return list, fail.New("not_available", "this server does not run jobs", "")
	}
	all, unheard, err := g.manager.Orphans(r.Context())
	if err != nil {
		return list, err
	}
	list.Orphans = []cove.Orphan{}
	for _, o := range all {
		if principalOf(r).reachesAt(o.Backend, o.Name) {
			list.Orphans = append(list.Orphans, o)
		}
	}
	for _, backend := range slices.Sorted(maps.Keys(unheard)) {
		list.Unheard = append(list.Unheard, cove.OrphanPlace{Backend: backend, Error: *g.told(unheard[backend])})
	}
	return list, nil
}

// destroyOrphans destroys those that are named, or all, each for itself.
func (g *environmentRoutes) destroyOrphans(w http.ResponseWriter, r *http.Request) error {
	var ask cove.OrphanDestroy
	if err := readObject(w, r, maxBody, &ask, "what to destroy", `it is {"orphans":[{"backend":"NAME","name":"NAME"}]}, or {} for all`); err != nil {
		return err
	}
	if slices.ContainsFunc(ask.Orphans, func(n cove.OrphanName) bool { return n.Name == "" }) {
		return fail.New(sprite.CodeBadRequest, "one of the orphans has no name", "see which there are: cove environment list --orphans")
	}
	list, err := g.reachedOrphans(r)
	if err != nil {
		return err
	}
	all := list.Orphans
	if len(ask.Orphans) > 0 {
		if all, list.Unheard, err = named(ask.Orphans, list); err != nil {
			return err // before anything is destroyed
		}
	}
	answer := cove.OrphansDestroyed{Results: []cove.OrphanResult{}, Unheard: list.Unheard}
	for _, o := range all {
		if r.Context().Err() != nil {
			return r.Context().Err()
		}
		result := cove.OrphanResult{Orphan: o}
		if err := g.manager.DestroyOrphan(r.Context(), o); err != nil {
			result.Error = g.told(err)
		}
		answer.Results = append(answer.Results, result)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// named are the orphans with these names, and the places of these names that did not answer.
func named(names []cove.OrphanName, list cove.OrphanList) (all []cove.Orphan, unheard []cove.OrphanPlace, err error) {
	for _, n := range names {
		if i := slices.IndexFunc(list.Orphans, func(o cove.Orphan) bool { return o.Backend == n.Backend && o.Name == n.Name }); i >= 0 {
			if !slices.Contains(all, list.Orphans[i]) {
				all = append(all, list.Orphans[i])
			}
			continue
		}
		i := slices.IndexFunc(list.Unheard, func(p cove.OrphanPlace) bool { return p.Backend == n.Backend })
		if i < 0 {
			return nil, nil, fail.New(sprite.CodeNotFound, fmt.Sprintf("there is no orphan %.80q", strings.TrimPrefix(n.Backend+"/"+n.Name, "/")), "see which there are: cove environment list --orphans")
		}
		if !slices.ContainsFunc(unheard, func(p cove.OrphanPlace) bool { return p.Backend == n.Backend }) {
			unheard = append(unheard, list.Unheard[i])
		}
	}
	return all, unheard, nil
}
