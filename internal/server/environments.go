package server

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"

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

// environment reads the environment of that id. One that the token does not reach is not there
// for it.
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
		return cove.Environment{}, fail.New("not_available", "this server has no jobs", "")
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
		_, body := g.refusals.describe(err)
		if e, ok := body.(sprites.ErrorBody); ok {
			result.Error = &e
		} else {
			result.Error = &sprites.ErrorBody{Code: "internal", Message: "it could not be destroyed"}
		}
	} else if now.State != cove.EnvironmentGone {
		result.Error = &sprites.ErrorBody{Code: "still_deleting", Message: cmp.Or(now.Error, "it is not deleted yet"), Hint: now.Hint}
	}
	return result
}
