// Package webhook sends events to webhooks. The store has the deliveries that are not sent yet.
// If the server is killed during a delivery, the next one sends it again, with the same ID.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
)

// How long an event is tried, and how often.
const (
	Patience        = 24 * time.Hour   // after which an event is given up
	RefusedPatience = 10 * time.Minute // likewise, if the receiver says that it will not take it

	attemptLimit = 15 * time.Second
	firstPause   = time.Second
	longestPause = 10 * time.Minute
	maxAnswer    = 64 << 10 // bytes of an answer that are read; none is kept
	storePause   = 5 * time.Second
)

// Sender sends the deliveries that the store has. For each webhook, it sends one at a time, in
// order. Webhooks do not wait for each other. Set the exported fields before Start.
type Sender struct {
	Store     *store.Webhooks                                        // required
	Secret    func(ctx context.Context, name string) (string, error) // required: the value of a secret
	Transport func(hook cove.Webhook) http.RoundTripper              // nil: Guarded
	Logger    *slog.Logger                                           // nil: discard

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	workers map[string]*worker // by webhook
}

// worker sends to one webhook, until nothing is left.
type worker struct {
	more bool          // something may have come since it looked; guarded by Sender.mu
	wake chan struct{} // ends a pause
}

// Start begins to send.
func (s *Sender) Start(ctx context.Context) {
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	if s.Transport == nil {
		s.Transport = newGuarded().of
	}
	s.workers = map[string]*worker{}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.wg.Go(s.run)
}

// Close stops sending, and waits for that. A delivery that it interrupts is sent again by the
// next Sender.
func (s *Sender) Close() error {
	if s.cancel == nil {
		return nil
	}
	s.cancel()
	s.wg.Wait()
	return nil
}

// Wake ends the pause of a webhook that has been changed.
func (s *Sender) Wake(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.workers[name]; w != nil {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// run starts a worker for each webhook that something waits for.
func (s *Sender) run() {
	for {
		names, err := s.Store.Waiting(s.ctx)
		if err != nil && s.ctx.Err() == nil {
			s.Logger.Error("reading which webhooks have events to send", "err", err)
		}
		for _, name := range names {
			s.begin(name)
		}
		var again <-chan time.Time
		if err != nil {
			again = time.After(storePause)
		}
		select {
		case <-s.ctx.Done():
			return
		case <-s.Store.Changed():
		case <-again:
		}
	}
}

func (s *Sender) begin(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.workers[name]; w != nil {
		w.more = true
		return
	}
	w := &worker{wake: make(chan struct{}, 1)}
	s.workers[name] = w
	s.wg.Go(func() { s.work(name, w) })
}

// work sends a webhook's waiting deliveries, in order.
func (s *Sender) work(name string, w *worker) {
	for {
		d, err := s.Store.Next(s.ctx, name)
		if errors.Is(err, store.ErrNotFound) {
			if s.over(name, w) {
				return
			}
			continue
		}
		if err == nil {
			if d.NextAt != nil && !s.pause(w, time.Until(*d.NextAt)) {
				return
			}
			err = s.send(name, d.Seq)
		}
		if err != nil {
			if s.ctx.Err() == nil {
				s.Logger.Error("sending to a webhook", "webhook", name, "err", err)
			}
			if !s.pause(w, storePause) {
				return
			}
		}
	}
}

// over ends a worker, unless something has come.
func (s *Sender) over(name string, w *worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.more {
		w.more = false
		return false
	}
	delete(s.workers, name)
	return true
}

// pause waits; false: the sender ends.
func (s *Sender) pause(w *worker, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.ctx.Done():
		return false
	case <-w.wake:
	case <-timer.C:
	}
	return s.ctx.Err() == nil
}

// send makes one attempt with a delivery, if that is still the next, and notes its result. An
// error is the store's.
func (s *Sender) send(name string, seq int64) error {
	hook, err := s.Store.Get(s.ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil // and so is its queue
	} else if err != nil {
		return err
	}
	// It is read after the webhook. A delivery to a deleted webhook does not go to a new one of
	// its name.
	d, err := s.Store.Next(s.ctx, name)
	if errors.Is(err, store.ErrNotFound) || err == nil && d.Seq != seq {
		return nil // it was dropped, and the worker takes the next
	} else if err != nil {
		return err
	}
	status, failure := s.attempt(s.ctx, hook, d)
	if s.ctx.Err() != nil {
		return nil
	}
	judge(&d, status, failure, time.Now())
	if d.State == cove.DeliveryFailed {
		s.Logger.Warn("an event was given up", "webhook", name, "event", d.Event, "type", d.Type, "err", d.Error)
	}
	return s.Store.Note(s.ctx, name, d)
}

// judge notes an attempt in a delivery: it is over, or tried again.
func judge(d *store.Delivery, status int, failure error, now time.Time) {
	d.Attempts++
	d.Status, d.Error, d.NextAt = status, "", nil
	if failure == nil {
		d.State = cove.DeliveryDelivered
		return
	}
	d.Error = failure.Error()
	patience := Patience
	if refused(status) {
		patience = RefusedPatience
	}
	next := now.Add(pauseAfter(d.Attempts)).UTC()
	if next.Sub(d.CreatedAt) > patience {
		d.State = cove.DeliveryFailed
		return
	}
	d.NextAt = &next
}

// refused reports whether a status says that the same will not be taken later either.
func refused(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 300 && status < 500
}

// pauseAfter is the time until the next attempt: about twice the one before, so that the
// attempts of many do not come at once.
func pauseAfter(attempts int) time.Duration {
	pause := longestPause
	if attempts < 10 {
		pause = min(firstPause<<attempts, longestPause)
	}
	return pause/2 + rand.N(pause/2)
}

// Test sends a test event once, without the queue, and notes the result.
func (s *Sender) Test(ctx context.Context, name string) (cove.WebhookDelivery, error) {
	hook, err := s.Store.Get(ctx, name)
	if err != nil {
		return cove.WebhookDelivery{}, err
	}
	e := store.NewEvent(cove.EventTest)
	d := store.Delivery{WebhookDelivery: cove.WebhookDelivery{Event: e.ID, Type: e.Type, State: cove.DeliveryFailed, CreatedAt: e.Time, Attempts: 1}}
	if d.Body, err = json.Marshal(e); err != nil {
		return d.WebhookDelivery, err
	}
	if d.Status, err = s.attempt(ctx, hook, d); err == nil {
		d.State = cove.DeliveryDelivered
	} else {
		d.Error = err.Error()
	}
	done := time.Now().UTC()
	d.DoneAt = &done
	return d.WebhookDelivery, s.Store.Note(context.WithoutCancel(ctx), name, d)
}

// attempt sends a delivery once. status is 0 if there was no answer.
func (s *Sender) attempt(ctx context.Context, hook cove.Webhook, d store.Delivery) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	secret, err := s.Secret(ctx, hook.Secret)
	if err != nil {
		return 0, err
	}
	key, err := Key(secret)
	if err != nil {
		return 0, fmt.Errorf("secret %s: %w", hook.Secret, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, hook.URL, bytes.NewReader(d.Body))
	if err != nil {
		return 0, err
	}
	now := time.Now()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "cove")
	req.Header.Set("Webhook-Id", d.Event)
	req.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	req.Header.Set("Webhook-Signature", Sign(key, d.Event, now, d.Body))
	resp, err := s.Transport(hook).RoundTrip(req) // which follows no redirect
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("the receiver did not answer within %v", attemptLimit)
		}
		return 0, err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode <= 299:
		return resp.StatusCode, nil
	case resp.StatusCode >= 300 && resp.StatusCode <= 399:
		return resp.StatusCode, fmt.Errorf("the receiver answers with status %d; redirects are not followed", resp.StatusCode)
	}
	return resp.StatusCode, fmt.Errorf("the receiver answers with status %d", resp.StatusCode)
}

// KeyPrefix begins a secret that is a key in base64.
const KeyPrefix = "whsec_"

// Key is the signing key in a secret.
func Key(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, KeyPrefix)
	if !ok {
		return []byte(secret), nil
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) == 0 {
		return nil, errors.New("after " + KeyPrefix + " it is not base64") // the value stays out of it
	}
	return key, nil
}

// Sign is the signature of a delivery, as the Standard Webhooks specification has it
// (https://www.standardwebhooks.com).
func Sign(key []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
