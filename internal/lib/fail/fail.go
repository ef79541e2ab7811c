// Package fail is the one error with a code: for programs a code, for people a message and
// what to type next. A table here says what a code means to a shell and to an HTTP client.
package fail

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"time"
)

// Error is a failure that has a code. A hint is never part of its text. The JSON form goes
// between the two halves of cove.
type Error struct {
	Code    string   `json:"code"`
	Message string   `json:"message"`
	Hint    string   `json:"hint,omitempty"`  // what to type next, one proposal a line; empty: nothing is known
	Paths   []string `json:"paths,omitempty"` // the files that it is about, if a caller needs them

	Limit      int           `json:"-"` // of how many there may be, if that many are there
	Count      int           `json:"-"` // how many there are
	RetryAfter time.Duration `json:"-"` // when to try again; 0: nobody knows
	Err        error         `json:"-"` // the cause, or nil
}

// New makes an error. Hint may be empty.
func New(code, message, hint string) *Error {
	return &Error{Code: code, Message: message, Hint: hint}
}

// Newf is New with a formatted message.
func Newf(code, hint, format string, args ...any) *Error {
	return New(code, fmt.Sprintf(format, args...), hint)
}

// Wrap gives err a code, and leaves its text as it is. Hint may be empty.
func Wrap(code string, err error, hint string) *Error {
	return &Error{Code: code, Hint: hint, Err: err}
}

// Error is the message, and the cause if there is one.
func (e *Error) Error() string {
	switch {
	case e.Err == nil:
		return e.Message
	case e.Message == "":
		return e.Err.Error()
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is compares codes, so that errors.Is finds an error by a target that has a code and no
// message. An error with the code cancelled is a context.Canceled, too.
func (e *Error) Is(target error) bool {
	if target == context.Canceled {
		return e.Code == "cancelled"
	}
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// meaning is what a code says to those who don't read the message. The zero value is a
// failure for which the other end is not to blame.
type meaning struct {
	exit   int  // of the command line; 0: 1
	status int  // of an HTTP answer; 0: only a client gives it, or a server with 500
	retry  bool // the same may succeed if it is tried again
}

var meanings = map[string]meaning{
	// The request is wrong, or can't be met.
	"EINVAL":                 {status: http.StatusBadRequest},
	"bad_agent":              {status: http.StatusBadRequest},
	"bad_input":              {exit: 2, status: http.StatusBadRequest},
	"bad_job":                {exit: 2},
	"bad_name":               {exit: 2, status: http.StatusBadRequest},
	"bad_option":             {exit: 2},
	"bad_pattern":            {exit: 2},
	"bad_plan":               {status: http.StatusBadRequest},
	"bad_reference":          {exit: 2, status: http.StatusBadRequest}, // no name of an image
	"bad_request":            {status: http.StatusBadRequest},
	"bad_session":            {exit: 2},
	"bad_skill":              {status: http.StatusBadRequest},
	"bad_url":                {exit: 2},
	"build_failed":           {status: http.StatusUnprocessableEntity}, // a RUN ended with another code than 0
	"dockerfile_bad":         {exit: 2, status: http.StatusBadRequest},
	"dockerfile_unsupported": {exit: 2, status: http.StatusNotImplemented},      // right, and not to be had here
	"host_base":              {status: http.StatusUnprocessableEntity},          // a sprite has no image to be committed over
	"image_bad":              {exit: 5, status: http.StatusUnprocessableEntity}, // hostile or damaged
	"image_platform":         {status: http.StatusUnprocessableEntity},          // made for other machines
	"invalid_request":        {status: http.StatusBadRequest},
	"no_agent":               {status: http.StatusBadRequest},
	"no_connector":           {status: http.StatusBadRequest},
	"is_login":               {status: http.StatusBadRequest}, // no secret that a variable may have
	"no_forge":               {status: http.StatusBadRequest},
	"no_issue":               {status: http.StatusBadRequest},
	"no_key":                 {status: http.StatusBadRequest},
	"no_login":               {status: http.StatusBadRequest},
	"no_price":               {status: http.StatusBadRequest},
	"no_secret":              {status: http.StatusBadRequest},
	"no_sprite":              {exit: 2}, // none was named
	"not_delivered":          {status: http.StatusBadRequest},
	"path_too_long":          {status: http.StatusUnprocessableEntity},
	"rejected":               {exit: 5, status: http.StatusUnprocessableEntity}, // the other end sent what no honest one sends
	"too_large":              {status: http.StatusRequestEntityTooLarge},
	"too_much":               {status: http.StatusBadRequest},
	"usage":                  {exit: 2},

	"method_not_allowed": {status: http.StatusMethodNotAllowed},
	"not_acceptable":     {status: http.StatusNotAcceptable},
	"not_available":      {status: http.StatusNotImplemented},
	"upgrade_required":   {status: http.StatusUpgradeRequired},

	// The caller may not do this.
	"forbidden":    {status: http.StatusForbidden},
	"image_denied": {status: http.StatusForbidden}, // by a registry
	"unauthorized": {status: http.StatusUnauthorized},

	// Something does not exist, or its name is taken.
	"exists":            {status: http.StatusConflict},
	"image_not_found":   {status: http.StatusNotFound},
	"name_taken":        {status: http.StatusConflict},
	"not_found":         {status: http.StatusNotFound},
	"no_profile":        {exit: 2, status: http.StatusNotFound},
	"nothing_to_end":    {status: http.StatusNotFound},
	"service_not_found": {status: http.StatusNotFound},
	"session_not_found": {status: http.StatusNotFound},
	"task_exists":       {status: http.StatusConflict},
	"task_not_found":    {status: http.StatusNotFound},

	// The present state does not allow it.
	"active_checkpoint":   {status: http.StatusConflict},
	"backend_in_use":      {status: http.StatusConflict},
	"already_answered":    {status: http.StatusConflict},
	"key_taken":           {status: http.StatusConflict},
	"being_deleted":       {status: http.StatusConflict},
	"conflict":            {exit: 3, status: http.StatusConflict}, // both ends have changed: nothing was applied
	"damaged":             {status: http.StatusConflict},
	"http_port_taken":     {status: http.StatusConflict},
	"image_in_use":        {status: http.StatusConflict},
	"in_use":              {status: http.StatusConflict},
	"job_ended":           {status: http.StatusConflict},
	"job_installing":      {status: http.StatusConflict},
	"job_queued":          {status: http.StatusConflict},
	"job_running":         {status: http.StatusConflict},
	"no_backend":          {exit: 2, status: http.StatusConflict},
	"not_an_orphan":       {status: http.StatusConflict},
	"profile_changed":     {status: http.StatusConflict},
	"wrong_arch":          {status: http.StatusConflict},
	"login_expired":       {status: http.StatusConflict},
	"no_git":              {status: http.StatusConflict}, // in the sprite or its image
	"no_input":            {status: http.StatusConflict},
	"no_question":         {status: http.StatusConflict},
	"no_session":          {status: http.StatusConflict},
	"not_kept":            {status: http.StatusConflict},
	"own_networks":        {status: http.StatusConflict},
	"policy_changed":      {status: http.StatusPreconditionFailed},
	"file_changed":        {status: http.StatusPreconditionFailed},
	"not_published":       {status: http.StatusConflict},
	"risky":               {exit: 4, status: http.StatusConflict}, // held, for a person to look at
	"service_needed":      {status: http.StatusConflict},
	"service_not_running": {status: http.StatusConflict},
	"sprite_changed":      {status: http.StatusPreconditionFailed},
	"sprite_elsewhere":    {status: http.StatusConflict},
	"sprite_gone":         {status: http.StatusConflict},
	"sprite_in_use":       {status: http.StatusConflict},
	"uncollected":         {exit: 75}, // of what a job left, something is in its sprite alone
	"uncollected_work":    {status: http.StatusConflict},
	"unpulled_work":       {status: http.StatusConflict},

	// A limit is reached, or room is used up.
	"payment_required":                 {status: http.StatusPaymentRequired}, // at a backend
	"concurrent_sprite_limit_exceeded": {status: http.StatusTooManyRequests},

	"disk_full":            {exit: 6, status: http.StatusInsufficientStorage},
	"disk_limit":           {exit: 6, status: http.StatusInsufficientStorage},
	"limit":                {status: http.StatusTooManyRequests},
	"result_lost":          {exit: 6}, // it could not be written
	"no_space":             {exit: 6, status: http.StatusInsufficientStorage},
	"ENOSPC":               {exit: 6, status: http.StatusInsufficientStorage},
	"too_many_clients":     {status: http.StatusTooManyRequests},
	"too_many_connections": {status: http.StatusTooManyRequests},
	"too_many_services":    {status: http.StatusTooManyRequests},
	"too_many_sessions":    {status: http.StatusTooManyRequests},
	"too_many_tasks":       {status: http.StatusTooManyRequests},
	"too_many_watches":     {status: http.StatusTooManyRequests},

	// Something ended, was lost, or is not there yet.
	"backend_failed":        {status: http.StatusBadGateway},
	"backend_refused":       {status: http.StatusBadGateway},
	"backend_unreachable":   {status: http.StatusBadGateway},
	"bad_guest":             {status: http.StatusBadGateway},
	"busy":                  {exit: 75, retry: true},
	"asleep":                {}, // what is asked for is in a sprite that sleeps
	"cancelled":             {exit: 130, retry: true},
	"changed":               {exit: 75, retry: true}, // by somebody else, meanwhile
	"connection_lost":       {exit: 75},
	"declined":              {exit: 130}, // by the person who was asked
	"interrupted":           {exit: 130}, // by the person
	"lost":                  {exit: 75},  // the connection ended too early
	"not_connected":         {status: http.StatusServiceUnavailable},
	"nothing_listens":       {status: http.StatusServiceUnavailable},
	"output_lost":           {exit: 75}, // of a command, some
	"protocol":              {exit: 5},
	"registry_unreachable":  {exit: 75, status: http.StatusBadGateway, retry: true},
	"sandbox_gone":          {exit: 75},
	"service_not_listening": {status: http.StatusServiceUnavailable},
	"session_ended":         {exit: 75, status: http.StatusGone, retry: true},
	"sprite_removed":        {exit: 75},
	"start_failed":          {status: http.StatusBadGateway},
	"stopping":              {status: http.StatusServiceUnavailable},
	"timed_out":             {exit: 124}, // what was waited for
	"timeout":               {status: http.StatusGatewayTimeout},
	"unavailable":           {exit: 75, status: http.StatusServiceUnavailable},
	"unreachable":           {exit: 75, retry: true},
	"wait_timeout":          {exit: 124}, // a job goes on that was waited for
}

// Known reports whether a code is in the table. A code that is not there means a failure for
// which the other end is not to blame.
func Known(code string) bool {
	_, ok := meanings[code]
	return ok
}

// Codes are the codes of the table, in no order.
func Codes() iter.Seq[string] { return maps.Keys(meanings) }

// Statuses are the codes that a server answers with, each with its HTTP status. Those that only
// a client gives have none.
func Statuses() map[string]int {
	all := map[string]int{}
	for code, m := range meanings {
		if m.status != 0 {
			all[code] = m.status
		}
	}
	return all
}

// ExitCode is the command line's exit code for this error.
func (e *Error) ExitCode() int { return max(meanings[e.Code].exit, 1) }

// Status is the HTTP status of an answer with this error.
func (e *Error) Status() int { return cmp.Or(meanings[e.Code].status, http.StatusInternalServerError) }

// Retryable reports whether the same may succeed if it is tried again.
func (e *Error) Retryable() bool { return meanings[e.Code].retry }
