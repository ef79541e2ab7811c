// Package modeltest has scripted model servers for tests, so that a real agent can run
// without a real model. Each speaks as much of a model vendor's API as a coding agent
// needs, and answers as the script says.
package modeltest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// A Turn is one answer of the model: text, then calls of the agent's tools. A
// turn without calls ends the agent's work.
type Turn struct {
	Text  string
	Calls []Call
	Cut   bool // if it is streamed, the connection breaks in its middle
}

// A Call is one use of a tool.
type Call struct {
	Tool  string
	Input map[string]any
}

// A Failure is an answer that fails. The zero value answers nothing, and ends when the
// client disconnects.
type Failure struct {
	Status     int    // 200: the error comes in the stream
	Kind       string // the error's type; empty: one that fits the status
	RetryAfter string // the header, unless empty
}

// A Request is one request of an agent.
type Request struct {
	Path   string
	Key    string // the header x-api-key, or x-goog-api-key
	Auth   string // the Authorization header
	Model  string
	Tools  []string
	System string
	Last   string // the text of the last message, tool results included
	Body   json.RawMessage
}

// script is common to the servers: the requests so far, and how often they have failed.
type script struct {
	mu       sync.Mutex
	requests []Request // guarded by mu
	failed   int       // guarded by mu
}

func (s *script) asked() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// note records a request, and returns its failure, if it must fail.
func (s *script) note(req Request, fails []Failure) (Failure, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, req)
	if s.failed == len(fails) {
		return Failure{}, false
	}
	s.failed++
	return fails[s.failed-1], true
}

// begin sends the part of a failure that all APIs share. It reports whether a body must
// follow.
func (f Failure) begin(w http.ResponseWriter, r *http.Request) bool {
	if f.Status == 0 {
		<-r.Context().Done()
		return false
	}
	if f.RetryAfter != "" {
		w.Header().Set("Retry-After", f.RetryAfter)
	}
	return true
}

// turnOf returns the script's turn for a request after so many answers. A request without
// tools is the agent's own, such as for a title, and is answered with aside.
func turnOf(turns []Turn, answered int, tools bool, aside string) Turn {
	switch {
	case !tools && aside != "":
		return Turn{Text: aside}
	case !tools:
		return Turn{Text: "ok"}
	case answered < len(turns):
		return turns[answered]
	}
	return Turn{Text: "Done."}
}

// readBody reads a request's body.
func readBody(r *http.Request, into any) (json.RawMessage, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	return body, json.Unmarshal(body, into)
}

// events sends server-sent events.
type events struct{ w http.ResponseWriter }

func newEvents(w http.ResponseWriter) events {
	w.Header().Set("Content-Type", "text/event-stream")
	return events{w}
}

// send sends an event. An empty name is left out.
func (e events) send(name string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // of our own making
	}
	if name != "" {
		fmt.Fprintf(e.w, "event: %s\n", name)
	}
	fmt.Fprintf(e.w, "data: %s\n\n", text)
	_ = http.NewResponseController(e.w).Flush()
}

// cut breaks the connection off.
func (e events) cut() { panic(http.ErrAbortHandler) }

func answerJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the agent may have left
}

// jsonText returns a value as JSON.
func jsonText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // of our own making
	}
	return string(text)
}

type object = map[string]any
