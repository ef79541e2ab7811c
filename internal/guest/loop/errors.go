package loop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// APIError is why a model has not answered.
type APIError struct {
	Status     int           // of HTTP; 0: the connection was lost, or broke off
	Kind       string        // the API's own word for it
	Text       string        // for people
	RetryAfter time.Duration // as the API has it; 0: it does not say
}

// Error is the text, with status and kind. SDKs make long texts of answers that they can't
// read: their middle is left out.
func (e *APIError) Error() string {
	text := e.Text
	if e.Kind != "" {
		text = e.Kind + ": " + text
	}
	text = headAndTail(text, maxShown)
	if e.Status == 0 {
		return text
	}
	return fmt.Sprintf("%s (status %d)", text, e.Status)
}

// passing are the kinds of temporary errors that come in a stream, after the status 200.
var passing = []string{
	"overloaded_error", "rate_limit_error", "api_error", "timeout_error", // Anthropic
	"overloaded", "server_is_overloaded", "rate_limit_exceeded", "server_error", // OpenAI
	"UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", // Gemini
}

// lasting are the kinds of permanent errors, whatever their status is.
var lasting = []string{"insufficient_quota", "billing_error"}

// Retryable reports whether the same request may be answered later. This is so after too many
// requests, a failure or overload of the API, or a lost connection.
func (e *APIError) Retryable() bool {
	switch {
	case slices.Contains(lasting, e.Kind):
		return false
	case e.Status == http.StatusOK:
		return slices.Contains(passing, e.Kind)
	}
	return e.Status == 0 || e.Status == http.StatusTooManyRequests || e.Status >= 500
}

// tooLong recognises the refusal of more context than a model has.
func (e *APIError) tooLong() bool {
	text := strings.ToLower(e.Kind + " " + e.Text)
	return e.Status == http.StatusRequestEntityTooLarge || slices.ContainsFunc(
		[]string{"prompt is too long", "context_length_exceeded", "context window", "maximum number of tokens", "maximum context length"},
		func(part string) bool { return strings.Contains(text, part) })
}

const (
	firstWait   = time.Second
	longestWait = time.Minute
	patience    = 5 * time.Minute // with an API that names a time itself
)

// wait returns how long to wait before attempt number n (from 2 on); false: a retry is of no
// use.
func (l Limits) wait(err *APIError, n int) (time.Duration, bool) {
	if !err.Retryable() || n > l.Attempts || err.RetryAfter > patience {
		return 0, false
	}
	if err.RetryAfter > 0 {
		return err.RetryAfter, true
	}
	first := l.FirstWait
	d := min(first<<min(n-2, 20), longestWait)
	return d/2 + rand.N(d/2+1), true
}

// lost is a connection's end in the middle, or before it has begun.
func lost(err error) *APIError {
	return &APIError{Text: "the connection to the model's API was lost: " + err.Error()}
}

var errCut = errors.New("the answer broke off")

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(text string) time.Duration {
	if n, err := strconv.ParseFloat(text, 64); err == nil && n > 0 && n < 1e9 {
		return time.Duration(n * float64(time.Second))
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// causeOf is why ctx has ended, or err if it has not.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
