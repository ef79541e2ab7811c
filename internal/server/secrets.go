package server

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
)

// secretRoutes stores, names and deletes secrets. No answer has a secret's value.
type secretRoutes struct {
	secrets *store.Secrets
	host    *sprite.Host // its running sandboxes get the changes
}

// Bounds on a secret's value. A shorter value would be found by chance in an upstream's
// answers, where it is redacted.
const (
	minSecret = 8
	maxSecret = 64 << 10
)

var secretName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`) })

// put stores a secret. Neither its answers nor its errors repeat the value.
func (g *secretRoutes) put(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("secret")
	if !secretName().MatchString(name) {
		return fail.New(sprite.CodeBadRequest, "a secret's name has letters, digits, _ and -, at most 64", "")
	}
	var req cove.SecretRequest
	if err := readObject(w, r, maxBody, &req, "the secret", `it is {"value":"…"}`); err != nil {
		return err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(req.Value, "\n"), "\r")
	switch {
	case len(value) > maxSecret:
		return fail.New("too_large", fmt.Sprintf("a secret has at most %d bytes", maxSecret), "")
	case len(value) < minSecret:
		return fail.New(sprite.CodeBadRequest, fmt.Sprintf("a secret has at least %d bytes", minSecret), "")
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fail.New(sprite.CodeBadRequest, "a secret is one line, without control characters", "a header's value can't have any")
	}
	if err := checkLogin(req.Login); err != nil {
		return err
	}
	var err error
	if req.Login != nil {
		err = g.secrets.SetLogin(r.Context(), name, value, *req.Login)
	} else {
		err = g.secrets.Set(r.Context(), name, value)
	}
	if err != nil {
		return secretError(err)
	}
	return synced(w, r, g.host)
}

// loginText matches the names that a login's program and account may have: an account goes
// into a header.
var loginText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}$`) })

func checkLogin(l *cove.SecretLogin) error {
	if l != nil && (!loginText().MatchString(l.Client) || l.Account != "" && !loginText().MatchString(l.Account)) {
		return fail.New(sprite.CodeBadRequest, "a login's program and account can have letters, digits and . _ : @ -, at most 200", "")
	}
	return nil
}

// secretError gives an error about the data key (store.ErrKey) its code.
func secretError(err error) error {
	if errors.Is(err, store.ErrKey) {
		return fail.New("bad_key", err.Error(), "")
	}
	return err
}

func (g *secretRoutes) list(w http.ResponseWriter, r *http.Request) error {
	all, err := g.secrets.List(r.Context())
	if err != nil {
		return err
	}
	list := cove.SecretList{Secrets: make([]cove.Secret, len(all))}
	for i, v := range all {
		list.Secrets[i] = cove.Secret(v)
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (g *secretRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	name := clean(r.PathValue("secret"), maxGuestText)
	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	err = g.secrets.Delete(r.Context(), r.PathValue("secret"), force)
	used, isUsed := errors.AsType[*store.SecretInUseError](err)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fail.New(sprite.CodeNotFound, "there is no secret "+name, "see which there are with: cove secret list")
	case isUsed:
		return fail.New("in_use", "the secret "+name+" is not deleted: "+used.Error(), "wait for the jobs, and remove the others; or delete it all the same: cove secret rm --force "+name)
	case err != nil:
		return err
	}
	return synced(w, r, g.host)
}
