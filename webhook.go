package cove

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// Webhook is an address of somebody who wants to hear of events. A delivery is a POST of a
// WebhookEvent, with the headers of the Standard Webhooks specification. These are
// webhook-id (the event's ID), webhook-timestamp (seconds since 1970) and
// webhook-signature. The signature is "v1," and the base64 of the HMAC-SHA256 of
// ID.TIMESTAMP.BODY. Any status 2xx takes it. It is sent again until it is taken or 24
// hours old. It may arrive twice with the same ID, and those of one webhook arrive in
// order.
type Webhook struct {
	Name   string   `json:"name"`
	URL    string   `json:"url"`    // https; http only with Private
	Events []string `json:"events"` // of WebhookEvents, or "*" alone for all

	// Secret names the secret that signs. Empty: webhook-NAME, which is made with the webhook
	// and deleted with it. A value that begins with whsec_ is a key in base64; of any other the
	// bytes are the key.
	Secret string `json:"secret,omitempty"`

	Private bool `json:"private,omitempty"` // it may lead to addresses that are not public

	// These fields are not of the definition, and ignored in one.
	SigningSecret string    `json:"signing_secret,omitempty"` // the key, in the answer that has made it alone
	Pending       int       `json:"pending,omitempty"`        // deliveries that wait
	CreatedAt     time.Time `json:"created_at,omitzero"`
	UpdatedAt     time.Time `json:"updated_at,omitzero"`
}

// The types of events. EventTest is sent by Webhooks.Test alone.
const (
	EventJobCreated    = "job.created"
	EventJobStarted    = "job.started"  // its agent runs
	EventJobQuestion   = "job.question" // its agent has asked something
	EventJobWaiting    = "job.waiting"  // its agent waits for a person
	EventJobEnded      = "job.ended"
	EventSpriteCreated = "sprite.created"
	EventSpriteDeleted = "sprite.deleted"
	EventSpriteFailed  = "sprite.failed" // its sandbox did not start, or ended unasked

	EventEnvironmentDegraded = "environment.degraded" // DegradedAfter checks of its health failed in a row
	EventEnvironmentRestored = "environment.restored" // a check succeeded again

	EventTest = "webhook.test"
)

// WebhookEvents are the types of events that a webhook can ask for.
var WebhookEvents = []string{
	EventJobCreated, EventJobStarted, EventJobQuestion, EventJobWaiting, EventJobEnded,
	EventSpriteCreated, EventSpriteDeleted, EventSpriteFailed,
	EventEnvironmentDegraded, EventEnvironmentRestored,
}

// WebhookEvent is the body of a delivery. It has the object as it was then.
type WebhookEvent struct {
	ID   string    `json:"id"`
	Type string    `json:"type"`
	Time time.Time `json:"time"`

	Job    *Job          `json:"job,omitempty"`    // of a job's; as in lists (Job.Brief)
	Sprite *sprites.Info `json:"sprite,omitempty"` // of a sprite's; without its environment, and what its sandbox tells

	Environment *Environment `json:"environment,omitempty"` // of an environment's
}

// The states of a delivery.
const (
	DeliveryPending   = "pending"
	DeliveryDelivered = "delivered"
	DeliveryFailed    = "failed"  // given up
	DeliveryDropped   = "dropped" // too many waited
)

// WebhookDelivery is an event on its way to a webhook, or the result of its delivery.
type WebhookDelivery struct {
	Event     string     `json:"event"` // its ID
	Type      string     `json:"type"`
	State     string     `json:"state"`
	Attempts  int        `json:"attempts"`
	Status    int        `json:"status,omitempty"` // of the last attempt; 0: there was no answer
	Error     string     `json:"error,omitempty"`  // why the last attempt failed
	CreatedAt time.Time  `json:"created_at"`
	NextAt    *time.Time `json:"next_at,omitempty"` // of one that is tried again
	DoneAt    *time.Time `json:"done_at,omitempty"` // of one that is not
}

// WebhookList answers GET /v1/webhooks.
type WebhookList struct {
	Webhooks []Webhook `json:"webhooks"`
}

// WebhookLog answers GET /v1/webhooks/{webhook}/log.
type WebhookLog struct {
	Deliveries []WebhookDelivery `json:"deliveries"` // the newest first
}

// Webhooks are a server's webhooks.
type Webhooks struct{ Client *Client }

// Put defines a webhook. It replaces one of the same name, whose deliveries stay.
func (w Webhooks) Put(ctx context.Context, def Webhook) (Webhook, error) {
	var out Webhook
	if err := w.Client.Call(ctx, sprites.Request{Method: http.MethodPut, Path: sprites.Path("v1", "webhooks", def.Name), JSON: def}, &out); err != nil {
		return out, fmt.Errorf("put webhook %s: %w", def.Name, err)
	}
	return out, nil
}

// List describes all webhooks, by name.
func (w Webhooks) List(ctx context.Context) ([]Webhook, error) {
	var list WebhookList
	if err := w.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "webhooks"), Retry: true}, &list); err != nil {
		return nil, fmt.Errorf("list webhooks: %w", err)
	}
	return list.Webhooks, nil
}

// Delete deletes a webhook, and its waiting deliveries.
func (w Webhooks) Delete(ctx context.Context, name string) error {
	if err := w.Client.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "webhooks", name)}, nil); err != nil {
		return fmt.Errorf("delete webhook %s: %w", name, err)
	}
	return nil
}

// Test sends an event of the type EventTest, once and at once, and returns the result.
func (w Webhooks) Test(ctx context.Context, name string) (WebhookDelivery, error) {
	var d WebhookDelivery
	if err := w.Client.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "webhooks", name, "test")}, &d); err != nil {
		return d, fmt.Errorf("test webhook %s: %w", name, err)
	}
	return d, nil
}

// Log tells of the deliveries to a webhook, the newest first; limit 0 is as many as are kept.
func (w Webhooks) Log(ctx context.Context, name string, limit int) ([]WebhookDelivery, error) {
	query := url.Values{}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	var log WebhookLog
	if err := w.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "webhooks", name, "log"), Query: query, Retry: true}, &log); err != nil {
		return nil, fmt.Errorf("log of webhook %s: %w", name, err)
	}
	return log.Deliveries, nil
}
