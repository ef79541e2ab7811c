package server

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/server/webhook"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// webhookRoutes defines webhooks, tries them, and tells what became of their deliveries.
type webhookRoutes struct {
	webhooks *store.Webhooks
	secrets  *store.Secrets
	sender   *webhook.Sender
}

// maxWebhooks bounds the webhooks: each event is stored for each of them.
const maxWebhooks = 50

func (g *webhookRoutes) list(w http.ResponseWriter, r *http.Request) error {
	all, err := g.webhooks.List(r.Context())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, cove.WebhookList{Webhooks: append([]cove.Webhook{}, all...)})
	return nil
}

// put replaces a whole definition, or nothing. A webhook that names no secret gets one.
func (g *webhookRoutes) put(w http.ResponseWriter, r *http.Request) error {
	var hook cove.Webhook
	if err := readObject(w, r, maxBody, &hook, "the webhook", `such as {"url":"https://hooks.example.org/cove","events":["job.ended"]}`); err != nil {
		return err
	}
	hook.Name = r.PathValue("webhook")
	if err := g.check(r, &hook); err != nil {
		return err
	}
	key := ""
	if hook.Secret == "" {
		random := make([]byte, 32)
		_, _ = rand.Read(random) // never fails
		hook.Secret, key = store.WebhookSecret(hook.Name), webhook.KeyPrefix+base64.StdEncoding.EncodeToString(random)
	}
	value, err := g.secrets.Value(r.Context(), hook.Secret)
	switch {
	case errors.Is(err, store.ErrNotFound): // Put decides
	case err != nil:
		return secretError(err)
	default:
		if _, err := webhook.Key(value); err != nil {
			return fail.New(sprite.CodeBadRequest, "secret "+hook.Secret+": "+err.Error(), "")
		}
	}
	made, err := g.webhooks.Put(r.Context(), hook, key)
	if e, ok := errors.AsType[*store.NoSecretError](err); ok {
		return fail.New(sprite.CodeBadRequest, "there is no secret "+clean(e.Name, maxGuestText), "set it with: cove secret set "+clean(e.Name, maxGuestText))
	} else if err != nil {
		return secretError(err)
	}
	g.sender.Wake(hook.Name)
	if hook, err = g.webhooks.Get(r.Context(), hook.Name); err != nil {
		return err
	}
	if made {
		hook.SigningSecret = key
	}
	writeJSON(w, http.StatusOK, hook)
	return nil
}

// check refuses a definition that can't be one.
func (g *webhookRoutes) check(r *http.Request, hook *cove.Webhook) error {
	if err := connect.CheckName(hook.Name); err != nil {
		return fail.Newf(sprite.CodeBadRequest, "", "%.60q can't be a webhook's name: it has lower-case letters, digits and hyphens, at most 40", hook.Name)
	}
	if err := webhook.CheckURL(*hook); err != nil {
		return fail.New(sprite.CodeBadRequest, err.Error(), "if that is what you want: cove webhook put --private …")
	}
	if err := webhook.CheckEvents(hook.Events); err != nil {
		return fail.New(sprite.CodeBadRequest, err.Error(), "there are "+strings.Join(cove.WebhookEvents, ", ")+`, and "*"`)
	}
	if hook.Secret != "" && !secretName().MatchString(hook.Secret) {
		return fail.New(sprite.CodeBadRequest, "a secret's name has letters, digits, _ and -, at most 64", "")
	}
	all, err := g.webhooks.List(r.Context())
	if err != nil {
		return err
	}
	if len(all) >= maxWebhooks && !slices.ContainsFunc(all, func(h cove.Webhook) bool { return h.Name == hook.Name }) {
		e := fail.New("limit", "there are as many webhooks as there may be", "delete one: cove webhook rm NAME")
		e.Limit, e.Count = maxWebhooks, len(all)
		return e
	}
	return nil
}

// noWebhook turns store.ErrNotFound into an error about the path's webhook.
func noWebhook(r *http.Request, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return fail.New(sprite.CodeNotFound, "there is no webhook "+clean(r.PathValue("webhook"), maxGuestText), "see which there are with: cove webhook list")
	}
	return err
}

// delete forgets a webhook, and the secret that was made with it.
func (g *webhookRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	if err := g.webhooks.Delete(r.Context(), r.PathValue("webhook")); err != nil {
		return noWebhook(r, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (g *webhookRoutes) test(w http.ResponseWriter, r *http.Request) error {
	d, err := g.sender.Test(r.Context(), r.PathValue("webhook"))
	if err != nil {
		return noWebhook(r, err)
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

func (g *webhookRoutes) log(w http.ResponseWriter, r *http.Request) error {
	limit := 0
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return fail.Newf(sprite.CodeBadRequest, "", "limit must be a number from 1 on, not %.40q", text)
		}
	}
	if _, err := g.webhooks.Get(r.Context(), r.PathValue("webhook")); err != nil {
		return noWebhook(r, err)
	}
	list, err := g.webhooks.Log(r.Context(), r.PathValue("webhook"), limit)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, cove.WebhookLog{Deliveries: append([]cove.WebhookDelivery{}, list...)})
	return nil
}
