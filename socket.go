package cove

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strings"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/cove-dev/cove/sprites"
)

// Feed tells of changes on a server, over GET /v1/ws.
type Feed struct{ Client *Client }

// maxSocketMessage is the most bytes of a message that a Feed reads.
const maxSocketMessage = 16 << 20

// Follow subscribes, and yields notifications until the caller or ctx ends it. It does not
// connect again: if the connection breaks, or the server refuses the subscription, the last
// pair has an error.
func (f Feed) Follow(ctx context.Context, sub Subscription) iter.Seq2[Notification, error] {
	return func(yield func(Notification, error) bool) {
		if err := f.follow(ctx, sub, func(n Notification) bool { return yield(n, nil) }); err != nil {
			yield(Notification{}, fmt.Errorf("follow changes: %w", err))
		}
	}
}

func (f Feed) follow(ctx context.Context, sub Subscription, each func(Notification) bool) error {
	params, err := json.Marshal(sub)
	if err != nil {
		return err
	}
	header := http.Header{}
	if f.Client.Token != "" {
		header.Set("Authorization", "Bearer "+f.Client.Token)
	}
	ws, _, err := websocket.Dial(ctx, strings.TrimRight(f.Client.URL, "/")+"/v1/ws", &websocket.DialOptions{HTTPClient: f.Client.HTTPClient, HTTPHeader: header})
	if err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(maxSocketMessage)
	if err := wsjson.Write(ctx, ws, SocketRequest{ID: 1, Method: "subscribe", Params: params}); err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	for {
		var m SocketMessage
		if err := wsjson.Read(ctx, ws, &m); err != nil {
			return cmp.Or(ctx.Err(), err)
		}
		if e := m.Error; e != nil {
			return &sprites.Error{StatusCode: e.Status, ErrorBody: sprites.ErrorBody{Code: e.Code, Message: e.Message, Hint: e.Hint}}
		}
		if m.ID == 0 && !each(m.Notification) {
			return nil
		}
	}
}

// SocketRequest is a client's text message over GET /v1/ws. A method is a call of this API
// under another name: x-websocket-methods has them all. Its parameters are one object, with
// those of the path and the query, or of the path and the body.
type SocketRequest struct {
	ID     int64           `json:"id"` // from 1; the answer has the same
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// SocketMessage is a text message of the server over GET /v1/ws: the answer to a request,
// or a notification.
type SocketMessage struct {
	ID     int64           `json:"id,omitempty"`     // of the request that it answers; 0: it is a notification, or the answer to an invalid request
	Result json.RawMessage `json:"result,omitempty"` // the answer; null if there is nothing to say
	Error  *SocketError    `json:"error,omitempty"`  // in place of Result
	Line   json.RawMessage `json:"line,omitempty"`   // of a call that answers with several lines; its Result is null, and comes last

	Notification
}

// SocketError says why a request over a socket failed, as the same call over HTTP would.
type SocketError struct {
	Code    string `json:"code"` // as "error" in ErrorBody
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do
	Status  int    `json:"status"`         // of HTTP

	Limit             int `json:"limit,omitempty"`
	CurrentCount      int `json:"current_count,omitempty"`
	RetryAfterSeconds int `json:"retry_after_seconds,omitempty"`
}

// The topics of notifications.
const (
	TopicJobs     = "jobs"
	TopicSteps    = "steps" // of the preparation of jobs
	TopicProfiles = "profiles"

	TopicEnvironments = "environments"

	TopicProgress = "progress" // of jobs: their Latest, which the topic jobs does not tell of
)

// Subscription says which notifications a socket gets (the method subscribe). It replaces
// the one before. At first the server sends everything that there is, or that has changed
// since a number. Then it sends each change, as it happens. If a thing changes several
// times, a slow reader gets its last state only.
type Subscription struct {
	Topics []string `json:"topics"`        // jobs, steps, progress, profiles, environments; none: nothing comes any more
	Job    string   `json:"job,omitempty"` // of the jobs and steps, only this job's; empty: of all
	// Since is the last number that came over an earlier socket; 0: nothing came yet. Feed
	// is Subscribed.Feed of that socket.
	Since int64  `json:"since,omitempty"`
	Feed  string `json:"feed,omitempty"`
	// Now leaves out everything that there is already: only later changes come.
	Now bool `json:"now,omitempty"`
}

// Subscribed answers the method subscribe.
type Subscribed struct {
	Feed string `json:"feed"` // is sent with Since
	// Gap says that the server can't tell the changes since. It sends everything that there
	// is instead, up to the notification synced. A thing that has not come by then is gone.
	Gap bool `json:"gap,omitempty"`
}

// Notification says that something is as told now. Numbers grow, with spaces in between, and
// hold on after a restart of the server.
type Notification struct {
	Seq   int64  `json:"seq,omitempty"` // from 1
	Topic string `json:"topic,omitempty"`
	Name  string `json:"name,omitempty"` // the job's or environment's ID, or the profile's name

	Deleted bool       `json:"deleted,omitempty"` // it is not there any more
	Job     *Job       `json:"job,omitempty"`
	Steps   []StepNews `json:"steps,omitempty"` // over each socket, a job's first has a snapshot
	Profile *Profile   `json:"profile,omitempty"`

	Environment *Environment `json:"environment,omitempty"`

	Synced bool `json:"synced,omitempty"` // by itself: all that there was at the time of the subscription has come
}
