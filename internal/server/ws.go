package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/jsonbody"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// socketRoutes serves GET /v1/ws: requests, which are calls of this very API, and notifications.
type socketRoutes struct {
	feed    *feed
	loop    *http.Client // to this very server
	sockets *quota
	pages   *quota        // of sockets that this very server opens for its web page: they only subscribe, so there may be more
	every   time.Duration // of pings
	log     *slog.Logger
}

// method is a call of the API under the name that it has on a socket.
type method struct {
	pattern string
	query   []string // the parameters that go there; else they go into the body, if there is one
}

const (
	maxAsked     = 16               // requests of a socket at once
	maxRequest   = maxPlan + 64<<10 // a plan, and what is around it
	maxAnswer    = 32 << 20
	maxHeld      = 64 << 20 // of a socket's requests and answers in memory, beside the message that is being written
	maxSockets   = 128      // a token may have a quarter
	pingInterval = 15 * time.Second
	maxMethod    = 64
)

// serve serves a socket until either side ends it.
func (g *socketRoutes) serve(w http.ResponseWriter, r *http.Request) error {
	if err := checkUpgrade(r); err != nil {
		return err
	}
	count := g.sockets
	if inMemory(r.Context()) {
		count = g.pages
	}
	done, err := count.add(principalOf(r))
	if err != nil {
		return err
	}
	defer done()
	var client side
	if err := acceptSocket(w, r, &client); err != nil { // which has answered
		g.log.Debug("accepting a WebSocket", "err", err)
		return nil
	}
	client.conn.SetReadLimit(maxRequest)
	s := &socket{
		routes: g, conn: client.conn, principal: principalOf(r), authorization: r.Header.Get("Authorization"),
		out: make(chan []byte), asked: map[int64]context.CancelFunc{}, held: budget{left: maxHeld, over: make(chan struct{})},
	}
	s.ctx, s.end = context.WithCancel(context.WithoutCancel(r.Context())) // the client is told first that that has ended
	s.run(r.Context())
	return nil
}

// socket is one client. Its reader, its writer and each of its requests have a goroutine.
type socket struct {
	routes        *socketRoutes
	conn          *websocket.Conn
	principal     principal
	authorization string

	ctx context.Context
	end context.CancelFunc
	wg  sync.WaitGroup
	out chan []byte // unbuffered: senders wait for the client

	held budget

	mu        sync.Mutex
	asked     map[int64]context.CancelFunc
	subscribe func() // ends the subscription, and waits for that; nil: there is none. Only the reader uses it.
}

// budget counts the bytes that a socket holds in memory: requests that are being answered, and
// answers that the client has not taken.
type budget struct {
	mu   sync.Mutex
	left int
	over chan struct{} // closed once there are too many
	full bool          // over is closed
}

// fits counts n bytes, if there is room for them.
func (b *budget) fits(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return false
	}
	b.left -= n
	return true
}

// hold counts n bytes that are there already. It fails for good once they are too many.
func (b *budget) hold(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left -= n; b.left < 0 && !b.full {
		b.full = true
		close(b.over)
	}
	if b.full {
		return errHeld
	}
	return nil
}

func (b *budget) release(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

// errHeld is also what the client is told, in 125 bytes at most.
var errHeld = fmt.Errorf("more than %d MiB of answers wait for you: read them, ask for less at once, and subscribe from your last number", maxHeld>>20)

// holder is a reader whose bytes are held until release.
type holder struct {
	io.Reader
	b *budget
	n int
}

func (h *holder) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	h.n += n
	if held := h.b.hold(n); held != nil {
		return 0, held
	}
	return n, err
}

func (h *holder) release() { h.b.release(h.n) }

// run reads until the client leaves, or whole ends, and waits for all that was started.
func (s *socket) run(whole context.Context) {
	s.wg.Go(s.write)
	s.wg.Go(s.ping)
	s.wg.Go(func() {
		select {
		case <-s.held.over:
			s.routes.log.Info("dropping a client that does not read its answers", "token", s.principal.name)
		case <-s.ctx.Done():
		}
	})
	context.AfterFunc(s.ctx, func() { _ = s.conn.CloseNow() })
	told := make(chan struct{})
	stop := context.AfterFunc(whole, func() {
		defer close(told)
		closeFor(whole, s.conn)
	})
	err := s.read()
	switch {
	case !stop():
		<-told
	case errors.Is(err, errNoText):
		closeWithin(closeGrace, s.conn, websocket.StatusUnsupportedData, err.Error())
	}
	s.end()
	if s.subscribe != nil {
		s.subscribe()
	}
	s.wg.Wait()
}

var errNoText = errors.New("messages are text, with JSON")

func (s *socket) read() error {
	for {
		kind, text, err := s.conn.Read(context.Background()) // it ends with the connection
		if err != nil {
			return err
		}
		if kind != websocket.MessageText {
			return errNoText
		}
		s.take(text)
	}
}

// write is the socket's only writer. It drops a client that takes nothing for long, or that
// too much is held for. The client can come again, with the last number that it has.
func (s *socket) write() {
	defer s.end()
	for {
		select {
		case <-s.held.over:
			closeWithin(2*s.routes.every, s.conn, websocket.StatusTryAgainLater, errHeld.Error())
			return
		default:
		}
		select {
		case <-s.held.over: // looked at above
		case text := <-s.out:
			ctx, cancel := context.WithTimeout(s.ctx, 2*s.routes.every)
			err := s.conn.Write(ctx, websocket.MessageText, text)
			cancel()
			if err != nil {
				return
			}
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *socket) ping() {
	defer s.end()
	tick := time.NewTicker(s.routes.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(s.ctx, 2*s.routes.every)
		err := s.conn.Ping(ctx)
		cancel()
		if err != nil {
			return
		}
	}
}

// send hands a message to the writer, and waits until that has it. It fails once the socket ends.
func (s *socket) send(m cove.SocketMessage) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	select {
	case s.out <- text:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// refuse answers a request with an error, as HTTP would.
func (s *socket) refuse(id int64, err error) {
	status, body := refusals{log: s.routes.log, ending: s.ctx}.describe(err)
	e, ok := body.(sprites.ErrorBody)
	if !ok {
		e = sprites.ErrorBody{Code: "failed", Message: err.Error()}
	}
	_ = s.send(cove.SocketMessage{ID: id, Error: socketError(status, e)})
}

func socketError(status int, e sprites.ErrorBody) *cove.SocketError {
	return &cove.SocketError{Code: e.Code, Message: e.Message, Hint: e.Hint, Status: status, Limit: e.Limit, CurrentCount: e.CurrentCount, RetryAfterSeconds: e.RetryAfterSeconds}
}

// take begins what a message asks for.
func (s *socket) take(text []byte) {
	var req cove.SocketRequest
	err := jsonbody.Decode(text, &req)
	if err == nil && req.ID < 1 {
		err = errors.New("its id must be a number from 1")
	}
	if err != nil {
		s.refuse(max(req.ID, 0), fail.New(sprite.CodeBadRequest, "the request can't be read: "+clean(err.Error(), maxGuestText), `such as {"id":1,"method":"jobs.list","params":{}}`))
		return
	}
	if len(bytes.TrimSpace(req.Params)) == 0 || bytes.Equal(req.Params, []byte("null")) {
		req.Params = json.RawMessage("{}")
	}
	switch req.Method {
	case "subscribe":
		s.resubscribe(req)
	case "cancel":
		s.cancel(req)
	default:
		s.ask(req)
	}
}

// resubscribe has a subscription in the place of the one before.
func (s *socket) resubscribe(req cove.SocketRequest) {
	var sub cove.Subscription
	if err := jsonbody.Decode(req.Params, &sub); err != nil {
		s.refuse(req.ID, badParams(err))
		return
	}
	f, answer, err := s.routes.feed.begin(s.ctx, s.principal, sub)
	if err != nil {
		s.refuse(req.ID, err)
		return
	}
	if s.subscribe != nil {
		s.subscribe()
		s.subscribe = nil
	}
	s.answer(req.ID, answer)
	if len(sub.Topics) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	over := make(chan struct{})
	s.subscribe = func() { cancel(); <-over }
	go func() {
		defer close(over)
		err := f.tell(ctx, func(n cove.Notification) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return s.send(cove.SocketMessage{Notification: n})
		})
		if ctx.Err() == nil {
			s.routes.log.Error("sending changes to a client", "err", err)
			s.end() // it can come again
		}
	}()
}

func (s *socket) answer(id int64, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		s.refuse(id, err)
		return
	}
	_ = s.send(cove.SocketMessage{ID: id, Result: text})
}

// cancel ends a request of this socket, which is answered with an error.
func (s *socket) cancel(req cove.SocketRequest) {
	var which struct {
		Request int64 `json:"request"`
	}
	if err := jsonbody.Decode(req.Params, &which); err != nil {
		s.refuse(req.ID, badParams(err))
		return
	}
	s.mu.Lock()
	cancel := s.asked[which.Request]
	s.mu.Unlock()
	if cancel == nil {
		s.refuse(req.ID, fail.Newf("not_found", "", "no request %d is being answered", which.Request))
		return
	}
	cancel()
	s.answer(req.ID, nil)
}

func badParams(err error) error {
	return fail.New(sprite.CodeBadRequest, "the params can't be read: "+clean(err.Error(), maxGuestText), "")
}

// ask has this server's API answer a request, beside others.
func (s *socket) ask(req cove.SocketRequest) {
	m, ok := methods[req.Method]
	if !ok {
		s.refuse(req.ID, fail.Newf("not_found", "GET /v1/openapi.json lists all methods in x-websocket-methods", "there is no method %s", clean(req.Method, maxMethod)))
		return
	}
	call, err := m.request(req.Params)
	if err != nil {
		s.refuse(req.ID, err)
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	if err := s.begin(req, cancel); err != nil {
		cancel()
		s.refuse(req.ID, err)
		return
	}
	call = call.WithContext(ctx)
	call.Header.Set("Authorization", s.authorization)
	s.wg.Go(func() {
		result, done, err := s.call(call, req.ID)
		defer done()
		s.held.release(len(req.Params))
		cancelled := ctx.Err() != nil
		s.mu.Lock()
		delete(s.asked, req.ID) // before the answer: the client may use the number again
		s.mu.Unlock()
		cancel()
		var refused *refusedError
		switch {
		case err == nil:
			_ = s.send(cove.SocketMessage{ID: req.ID, Result: result})
		case errors.As(err, &refused):
			_ = s.send(cove.SocketMessage{ID: req.ID, Error: refused.SocketError})
		case cancelled:
			_ = s.send(cove.SocketMessage{ID: req.ID, Error: &cove.SocketError{Code: "cancelled", Message: "the request was cancelled", Status: http.StatusInternalServerError}})
		default:
			s.refuse(req.ID, fmt.Errorf("the answer broke off: %w", err))
		}
	})
}

// begin notes that a request is being answered, with the function that cancels it; or refuses
// it.
func (s *socket) begin(req cove.SocketRequest, cancel context.CancelFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, taken := s.asked[req.ID]; {
	case taken:
		return fail.Newf(sprite.CodeBadRequest, "give each request a number of its own", "the request %d is still being answered", req.ID)
	case len(s.asked) >= maxAsked:
		err := fail.Newf("limit", "wait for an answer first", "%d requests of this socket are being answered, which is the most at once", maxAsked)
		err.Limit, err.Count = maxAsked, maxAsked
		return err
	case !s.held.fits(len(req.Params)):
		return fail.Newf("limit", "wait for an answer first", "with this one, the requests of this socket that are being answered and their answers have more than %d bytes", maxHeld)
	}
	s.asked[req.ID] = cancel
	return nil
}

// refusedError is an answer of HTTP that tells of an error.
type refusedError struct{ *cove.SocketError }

func (e *refusedError) Error() string { return e.Message }

// call makes a call of this server's API. Lines are sent as they come. The result is held
// until done is called.
func (s *socket) call(r *http.Request, id int64) (result json.RawMessage, done func(), err error) {
	resp, err := s.routes.loop.Do(r)
	if err != nil {
		return nil, func() {}, err
	}
	defer func() { _ = resp.Body.Close() }()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode < 400 && kind == "application/x-ndjson" {
		return json.RawMessage("null"), func() {}, s.lines(resp.Body, id)
	}
	held := &holder{Reader: http.MaxBytesReader(nil, resp.Body, maxAnswer), b: &s.held}
	body, err := io.ReadAll(held)
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		err = fail.Newf("too_large", "ask for it over HTTP", "the answer has more than %d bytes", maxAnswer)
	}
	if err != nil {
		return nil, held.release, err
	}
	body = bytes.TrimSpace(body)
	if resp.StatusCode >= 400 {
		var e sprites.ErrorBody
		_ = json.Unmarshal(body, &e) // withCode makes one of nothing
		return nil, held.release, &refusedError{socketError(resp.StatusCode, withCode(e, resp.StatusCode))}
	}
	if len(body) == 0 {
		body = []byte("null")
	}
	return body, held.release, nil
}

func (s *socket) lines(body io.Reader, id int64) error {
	in := bufio.NewReader(body)
	for {
		line, err := in.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 && json.Valid(line) {
			err := s.held.hold(len(line))
			if err == nil {
				err = s.send(cove.SocketMessage{ID: id, Line: line})
			}
			s.held.release(len(line))
			if err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// request is the call that a method stands for.
func (m method) request(params json.RawMessage) (*http.Request, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(params, &all); err != nil {
		return nil, badParams(errors.New("they must be an object: {…}"))
	}
	verb, path, _ := strings.Cut(m.pattern, " ")
	for _, name := range m.path() {
		var value string
		if err := json.Unmarshal(all[name], &value); err != nil || value == "" {
			return nil, badParams(fmt.Errorf("the field %q must be a text that is not empty", name))
		}
		delete(all, name)
		path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(value))
	}
	if !plainPath(path) {
		return nil, fail.New("not_found", "there is nothing with this name", "")
	}
	query := url.Values{}
	for _, name := range m.query {
		values, err := queryValues(all[name])
		if err != nil {
			return nil, badParams(fmt.Errorf("the field %q %w", name, err))
		}
		if values != nil {
			query[name] = values
		}
		delete(all, name)
	}
	target := "http://localhost" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	if verb != http.MethodPost {
		for name := range all {
			return nil, badParams(fmt.Errorf("there is no field %q", name))
		}
		return http.NewRequest(verb, target, nil)
	}
	body, err := json.Marshal(all) // in another order: what a field has is as it came
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequest(verb, target, bytes.NewReader(body))
	if err == nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, err
}

var pathParam = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{([a-z]+)\}`) })

// path are the names of the parameters in the path.
func (m method) path() (names []string) {
	for _, found := range pathParam().FindAllStringSubmatch(m.pattern, -1) {
		names = append(names, found[1])
	}
	return names
}

// queryValues are what a parameter of the query has; nil: nothing.
func queryValues(raw json.RawMessage) ([]string, error) {
	if raw == nil || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	var one any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&one); err != nil {
		return nil, err
	}
	list, ok := one.([]any)
	if !ok {
		list = []any{one}
	}
	var values []string
	for _, v := range list {
		switch v.(type) {
		case string, bool, json.Number:
			values = append(values, fmt.Sprint(v))
		default:
			return nil, errors.New("must be a text, a number, true or false, or a list of texts")
		}
	}
	return values, nil
}
