package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// Bounds on the deliveries to one webhook.
const (
	MaxPending    = 1000 // that wait: one more, and the oldest is dropped
	MaxDeliveries = 500  // that are kept for the log, of those that are over
)

// Webhooks are the webhooks, with their deliveries. An event is written in the
// transaction that makes the change: neither is there without the other.
type Webhooks struct {
	db      *database
	secrets *Secrets // in which the keys are
}

// Delivery is an event that waits to be sent.
type Delivery struct {
	cove.WebhookDelivery
	Seq  int64 // the store's own number, by which deliveries are in order
	Body []byte
}

// Changed gets a value after events were written. Those that nobody has received yet are one
// value. It has one receiver.
func (w *Webhooks) Changed() <-chan struct{} { return w.db.events }

// Put defines a webhook, in place of one of the same name, whose deliveries stay. If the
// webhook's secret does not exist and key is not empty, key becomes that secret, in the same
// transaction; made says so. If there is neither, the error is a NoSecretError.
func (w *Webhooks) Put(ctx context.Context, hook cove.Webhook, key string) (made bool, err error) {
	events, err := json.Marshal(hook.Events)
	if err != nil {
		return false, err
	}
	err = w.db.update(ctx, func(tx *sql.Tx) error {
		there, err := hasSecret(ctx, tx, hook.Secret)
		switch {
		case err != nil:
			return err
		case there:
		case key == "":
			return &NoSecretError{hook.Secret}
		default:
			if err := w.secrets.set(ctx, tx, hook.Secret, key, nil); err != nil {
				return err
			}
		}
		made = !there
		_, err = tx.ExecContext(ctx, `INSERT INTO webhooks (name, url, events, secret, private, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)
			ON CONFLICT (name) DO UPDATE SET url = excluded.url, events = excluded.events, secret = excluded.secret, private = excluded.private, updated_at = excluded.updated_at`,
			hook.Name, hook.URL, string(events), hook.Secret, hook.Private, micros(now()))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("store webhook %s: %w", hook.Name, err)
	}
	return made, nil
}

const webhookColumns = "name, url, events, secret, private, created_at, updated_at, (SELECT count(*) FROM webhook_deliveries d WHERE d.webhook = name AND d.state = 'pending')"

func scanWebhook(row scanner) (cove.Webhook, error) {
	var hook cove.Webhook
	var events []byte
	var created, updated sql.NullInt64
	if err := row.Scan(&hook.Name, &hook.URL, &events, &hook.Secret, &hook.Private, &created, &updated, &hook.Pending); err != nil {
		return hook, err
	}
	hook.CreatedAt, hook.UpdatedAt = fromMicros(created), fromMicros(updated)
	return hook, json.Unmarshal(events, &hook.Events)
}

// Get returns a webhook; ErrNotFound if there is none of that name.
func (w *Webhooks) Get(ctx context.Context, name string) (cove.Webhook, error) {
	hook, err := scanWebhook(w.db.read.QueryRowContext(ctx, "SELECT "+webhookColumns+" FROM webhooks WHERE name = ?", name))
	if err != nil {
		return hook, fmt.Errorf("webhook %s: %w", name, notFound(err))
	}
	return hook, nil
}

// List returns the webhooks, by name.
func (w *Webhooks) List(ctx context.Context) ([]cove.Webhook, error) {
	list, err := collect(ctx, w.db.read, scanWebhook, "SELECT "+webhookColumns+" FROM webhooks ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("list webhooks: %w", err)
	}
	return list, nil
}

// Delete forgets a webhook, what waits to be sent to it, and the secret that was made with it.
func (w *Webhooks) Delete(ctx context.Context, name string) error {
	err := w.db.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM secrets WHERE name = ?2 AND EXISTS (SELECT 1 FROM webhooks WHERE name = ?1 AND secret = ?2)", name, WebhookSecret(name))
		if err != nil {
			return err
		}
		return exactlyOne(tx.ExecContext(ctx, "DELETE FROM webhooks WHERE name = ?", name))
	})
	if err != nil {
		return fmt.Errorf("delete webhook %s: %w", name, err)
	}
	return nil
}

// Waiting returns the webhooks with deliveries that wait to be sent.
func (w *Webhooks) Waiting(ctx context.Context) ([]string, error) {
	return collect(ctx, w.db.read, func(row scanner) (name string, err error) {
		err = row.Scan(&name)
		return name, err
	}, "SELECT DISTINCT webhook FROM webhook_deliveries WHERE state = 'pending'")
}

const deliveryColumns = "seq, event, type, state, body, attempts, status, error, created_at, next_at, done_at"

func scanDelivery(row scanner) (Delivery, error) {
	var d Delivery
	var created, next, done sql.NullInt64
	err := row.Scan(&d.Seq, &d.Event, &d.Type, &d.State, &d.Body, &d.Attempts, &d.Status, &d.Error, &created, &next, &done)
	d.CreatedAt, d.NextAt, d.DoneAt = fromMicros(created), timeOrNil(next), timeOrNil(done)
	return d, err
}

func timeOrNil(n sql.NullInt64) *time.Time {
	if t := fromMicros(n); !t.IsZero() {
		return &t
	}
	return nil
}

// Next returns the next delivery to a webhook; ErrNotFound if there is none.
func (w *Webhooks) Next(ctx context.Context, name string) (Delivery, error) {
	d, err := scanDelivery(w.db.read.QueryRowContext(ctx, "SELECT "+deliveryColumns+" FROM webhook_deliveries WHERE webhook = ? AND state = 'pending' ORDER BY seq LIMIT 1", name))
	if err != nil {
		return d, fmt.Errorf("next delivery to webhook %s: %w", name, notFound(err))
	}
	return d, nil
}

// Note writes down what became of an attempt: the state of d, and its other results. One that
// was dropped meanwhile stays so. A delivery without Seq is new.
func (w *Webhooks) Note(ctx context.Context, name string, d Delivery) error {
	err := w.db.update(ctx, func(tx *sql.Tx) error {
		next, done := sql.NullInt64{}, sql.NullInt64{}
		if d.NextAt != nil {
			next = sql.NullInt64{Int64: d.NextAt.UnixMicro(), Valid: true}
		}
		body := string(d.Body)
		if d.State != cove.DeliveryPending {
			done, body = sql.NullInt64{Int64: now().UnixMicro(), Valid: true}, ""
		}
		if d.Seq == 0 {
			_, err := tx.ExecContext(ctx, "INSERT INTO webhook_deliveries (webhook, event, type, state, body, attempts, status, error, created_at, next_at, done_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
				name, d.Event, d.Type, d.State, body, d.Attempts, d.Status, d.Error, micros(d.CreatedAt), next, done)
			if err != nil {
				return err
			}
		} else if _, err := tx.ExecContext(ctx, "UPDATE webhook_deliveries SET (state, body, attempts, status, error, next_at, done_at) = (?, ?, ?, ?, ?, ?, ?) WHERE seq = ? AND state = 'pending'",
			d.State, body, d.Attempts, d.Status, d.Error, next, done, d.Seq); err != nil {
			return err
		}
		return trimDeliveries(ctx, tx, name)
	})
	if err != nil {
		return fmt.Errorf("note a delivery to webhook %s: %w", name, err)
	}
	return nil
}

// Log returns the deliveries to a webhook, the newest first; limit 0 is all.
func (w *Webhooks) Log(ctx context.Context, name string, limit int) ([]cove.WebhookDelivery, error) {
	if limit <= 0 {
		limit = -1
	}
	list, err := collect(ctx, w.db.read, func(row scanner) (cove.WebhookDelivery, error) {
		d, err := scanDelivery(row)
		return d.WebhookDelivery, err
	}, "SELECT "+deliveryColumns+" FROM webhook_deliveries WHERE webhook = ? ORDER BY seq DESC LIMIT ?", name, limit)
	if err != nil {
		return nil, fmt.Errorf("log of webhook %s: %w", name, err)
	}
	return list, nil
}

// trimDeliveries forgets the oldest of those that are over.
func trimDeliveries(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM webhook_deliveries WHERE webhook = ?1 AND state <> 'pending' AND seq <=
		(SELECT seq FROM webhook_deliveries WHERE webhook = ?1 AND state <> 'pending' ORDER BY seq DESC LIMIT 1 OFFSET ?2)`, name, MaxDeliveries)
	return err
}

// NewEvent makes an event of a type.
func NewEvent(of string) cove.WebhookEvent {
	return cove.WebhookEvent{ID: "evt_" + rand.Text(), Type: of, Time: now()}
}

// queue writes an event down for each webhook that asks for it.
func queue(ctx context.Context, tx *sql.Tx, e cove.WebhookEvent) error {
	hooks, err := collect(ctx, tx, scanWebhook, "SELECT "+webhookColumns+" FROM webhooks")
	if err != nil {
		return err
	}
	hooks = slices.DeleteFunc(hooks, func(h cove.Webhook) bool {
		return !slices.Contains(h.Events, e.Type) && !slices.Contains(h.Events, "*")
	})
	if len(hooks) == 0 {
		return nil
	}
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	for _, hook := range hooks {
		if hook.Pending >= MaxPending/2 {
			if told, err := waits(ctx, tx, hook.Name, e); err != nil {
				return err
			} else if told {
				continue
			}
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO webhook_deliveries (webhook, event, type, state, body, created_at) VALUES (?, ?, ?, 'pending', ?, ?)", hook.Name, e.ID, e.Type, string(body), micros(e.Time)); err != nil {
			return err
		}
		if hook.Pending < MaxPending {
			continue
		}
		_, err := tx.ExecContext(ctx, `UPDATE webhook_deliveries SET state = 'dropped', body = '', next_at = NULL, done_at = ?3, error = 'more than ' || ?2 || ' deliveries waited'
			WHERE webhook = ?1 AND state = 'pending' AND seq <= (SELECT seq FROM webhook_deliveries WHERE webhook = ?1 AND state = 'pending' ORDER BY seq DESC LIMIT 1 OFFSET ?2)`,
			hook.Name, MaxPending, micros(now()))
		if err == nil {
			err = trimDeliveries(ctx, tx, hook.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// waits reports whether an event of the same job and type waits to be sent already. It does so
// only for types that may come often. Otherwise one job could push out the events of others.
func waits(ctx context.Context, tx *sql.Tx, hook string, e cove.WebhookEvent) (yes bool, err error) {
	if e.Job == nil || e.Type != cove.EventJobWaiting && e.Type != cove.EventJobQuestion {
		return false, nil
	}
	err = tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM webhook_deliveries
		WHERE webhook = ? AND state = 'pending' AND type = ? AND body->>'$.job.id' = ?)`, hook, e.Type, e.Job.ID).Scan(&yes)
	return yes, err
}

// told has a receiver of Changed look for events.
func (db *database) told() {
	select {
	case db.events <- struct{}{}:
	default:
	}
}

// queueJob writes down what a change of a job tells. Without an ID, was is none.
func queueJob(ctx context.Context, tx *sql.Tx, was, is cove.Job) error {
	var types []string
	if was.ID == "" {
		types = append(types, cove.EventJobCreated)
	}
	if is.State != was.State {
		switch {
		case is.State.Terminal():
			types = append(types, cove.EventJobEnded)
		case is.State == cove.JobRunning && was.State != cove.JobWaiting:
			types = append(types, cove.EventJobStarted)
		case is.State == cove.JobWaiting:
			types = append(types, cove.EventJobWaiting)
		}
	}
	if is.Question != nil && (was.Question == nil || was.Question.ID != is.Question.ID) {
		types = append(types, cove.EventJobQuestion)
	}
	is = is.Brief()
	for _, of := range types {
		e := NewEvent(of)
		e.Job = &is
		if err := queue(ctx, tx, e); err != nil {
			return err
		}
	}
	return nil
}

// queueSprite writes down that something has happened to a sprite that people know of.
func queueSprite(ctx context.Context, tx *sql.Tx, of string, s Sprite) error {
	if strings.HasPrefix(s.Owner, InstallOwner) || s.Owner == PoolOwner || s.Owner == BuildOwner {
		return nil
	}
	e, info := NewEvent(of), s.Info()
	info.Environment = nil // it may have secrets
	e.Sprite = &info
	return queue(ctx, tx, e)
}

// queueEnvironment writes down that an environment has become degraded, or is restored.
func queueEnvironment(ctx context.Context, tx *sql.Tx, was, is cove.Environment) error {
	of := cove.EventEnvironmentDegraded
	switch {
	case is.State == cove.EnvironmentDestroying || is.State == cove.EnvironmentGone || is.Health.Degraded() == was.Health.Degraded():
		return nil
	case was.Health.Degraded():
		of = cove.EventEnvironmentRestored
	}
	e := NewEvent(of)
	is = is.Judged()
	e.Environment = &is
	return queue(ctx, tx, e)
}

// failed reports whether a change of a sprite is that it does not run, for a reason that it
// did not have before.
func failed(was, is Sprite) bool {
	return is.LastError != "" && is.LastError != was.LastError && is.Status != sprites.StatusRunning
}

// WebhookSecret is the name of the secret that is made with a webhook.
func WebhookSecret(name string) string { return "webhook-" + name }
