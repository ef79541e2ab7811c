package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// settingsOf is the request that a job was made from. Its variables refer to secrets as the
// request did.
func settingsOf(ctx context.Context, jobs *store.Jobs, id string) (req cove.JobRequest, err error) {
	settings, err := jobs.Settings(ctx, id)
	switch {
	case errors.Is(err, store.ErrForgotten), errors.Is(err, store.ErrDamaged):
		return req, fail.Wrap("not_kept", err, "push again")
	case errors.Is(err, store.ErrKey):
		return req, fail.Wrap("bad_key", err, "put the right key back, and restart the server")
	case err != nil:
		return req, err
	}
	if err := json.Unmarshal(settings, &req); err != nil {
		return req, fmt.Errorf("read the settings of job %s: %w", id, err)
	}
	return req, nil
}

// checkSecrets refuses variables that come twice, or refer to a secret that is not there. It
// names variables and secrets, and repeats no value.
func (in *intake) checkSecrets(ctx context.Context, env []string) error {
	if err := connect.CheckEnv(env); err != nil {
		return fail.Newf("bad_request", "", "%v", err)
	}
	given := map[string]bool{}
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if given[name] {
			return fail.Newf("bad_request", "leave out one of them", "the variable %s is given twice", name)
		}
		given[name] = true
	}
	for _, name := range connect.EnvSecrets(env) {
		if there, err := in.secrets.Has(ctx, name); err != nil {
			return err
		} else if !there {
			return noSecret(name)
		}
		if v, err := in.secrets.Whole(ctx, name); err == nil && v.Login != nil { // that it opens is looked at when it is needed
			return isLogin(name)
		}
	}
	return nil
}

// isLogin refuses that the token of a login goes into a sprite.
func isLogin(name string) error {
	return fail.Newf("is_login", "leave out the variable: the connector adds the token", "the secret %s is the token of a login, which stays outside of sprites", name)
}

// resolved are a job's variables with the secrets that they refer to. They are for its sprite
// alone: nothing else gets them, and nothing keeps them. used are the secrets' values.
func resolved(ctx context.Context, secrets *store.Secrets, env []string) (all, used []string, err error) {
	all, err = connect.ResolveEnv(env, func(name string) (string, error) {
		v, err := secrets.Whole(ctx, name)
		value := v.Text
		if err == nil && v.Login != nil {
			return "", isLogin(name)
		}
		if errors.Is(err, store.ErrNotFound) {
			err = noSecret(name)
		} else if errors.Is(err, store.ErrKey) {
			err = fail.Wrap("bad_key", err, "")
		}
		used = append(used, value)
		return value, err
	})
	return all, used, err
}

func noSecret(name string) error {
	return fail.Newf("no_secret", "cove secret set "+name, "there is no secret %s, to which a variable of the job refers", name)
}

// keep makes the row of a job that was asked for by req.
func keep(ctx context.Context, jobs *store.Jobs, job cove.Job, req cove.JobRequest, settings []byte) error {
	err := jobs.CreateKeyed(ctx, job, settings, keyOf(req))
	if e, ok := errors.AsType[*store.NoSecretError](err); ok {
		return noSecret(e.Name)
	}
	if e, ok := errors.AsType[*store.WaitingError](err); ok {
		full := fail.Newf("limit", "see them, and stop some: cove job list --state installing", "%v, and no more may", e)
		full.Limit, full.Count = store.MaxWaiting, e.Count
		return full
	}
	if errors.Is(err, store.ErrKey) {
		return fail.Wrap("bad_key", err, "put the right key back, and restart the server")
	}
	if errors.Is(err, store.ErrKeyTaken) {
		return keyTaken()
	}
	if errors.Is(err, store.ErrDestroying) {
		return fail.Newf("being_deleted", "name another sprite, or none", "no job can begin in sprite %s: %v", job.Sprite, store.ErrDestroying)
	}
	return err
}
