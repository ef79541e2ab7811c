package services

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cove-dev/cove/internal/guest/signals"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// api is the calls of the API.
type api struct {
	set    *Set
	inside bool // its callers are programs in the sprite
}

// Routes are the calls of services. Programs in the sprite may make them too, but choose no
// user: inside says that they are the callers.
func (s *Set) Routes(inside bool) wire.Routes {
	a := api{s, inside}
	return wire.Routes{
		"GET /v1/services":                 a.list,
		"POST /v1/services/signal":         a.postSignal,
		"GET /v1/services/{name}":          a.get,
		"PUT /v1/services/{name}":          a.put,
		"DELETE /v1/services/{name}":       a.delete,
		"POST /v1/services/{name}/start":   a.postStart,
		"POST /v1/services/{name}/stop":    a.postStop,
		"POST /v1/services/{name}/restart": a.postRestart,
		"GET /v1/services/{name}/logs":     a.getLogs,
	}
}

func (a api) list(w http.ResponseWriter, _ *http.Request) error {
	if a.set.saved.dir == "" {
		return noServices()
	}
	list := []sprites.Service{}
	for _, v := range a.set.list() {
		list = append(list, a.shown(v))
	}
	return wire.Respond(w, list)
}

func (a api) get(w http.ResponseWriter, r *http.Request) error {
	v, err := a.set.get(r.PathValue("name"))
	if err != nil {
		return err
	}
	return wire.Respond(w, a.shown(v))
}

// shown is a service as its caller may see it. Callers inside don't see the variables of a
// service with a user of its own.
func (a api) shown(v *service) sprites.Service {
	d := v.describe()
	if a.inside && d.User != "" {
		d.Env = nil
	}
	return d
}

// mayChange refuses changes by programs inside to a service with a user of its own. Otherwise
// they could run programs as that user.
func (a api) mayChange(v *service) error {
	if a.inside && v.definition().User != "" {
		return wire.BadRequest("%s runs as a user of its own: it can't be changed from inside the sprite.", v.definition().Name)
	}
	return nil
}

// change is get, for a call that changes something.
func (a api) change(name string) (*service, error) {
	v, err := a.set.get(name)
	if err == nil {
		err = a.mayChange(v)
	}
	return v, err
}

// defaultFollow is how long changes of a service are followed.
const defaultFollow = 5 * time.Second

// put creates or replaces a definition, and starts the service.
func (a api) put(w http.ResponseWriter, r *http.Request) error {
	follow, err := wire.Duration(r.URL.Query(), "duration", defaultFollow)
	if err != nil {
		return err
	}
	var def sprites.Service
	if err := wire.ReadJSON(r, &def); err != nil {
		return err
	}
	def.Name = r.PathValue("name")
	if a.inside && def.User != "" {
		return wire.BadRequest("user can't be set from inside the sprite.")
	}
	if old, err := a.set.get(def.Name); err == nil {
		if err := a.mayChange(old); err != nil {
			return err
		}
	}
	v, _, err := a.set.put(def)
	if err != nil {
		return err
	}
	return a.start(w, r, v, follow)
}

func (a api) postStart(w http.ResponseWriter, r *http.Request) error {
	follow, err := wire.Duration(r.URL.Query(), "duration", defaultFollow)
	if err != nil {
		return err
	}
	v, err := a.change(r.PathValue("name"))
	if err != nil {
		return err
	}
	return a.start(w, r, v, follow)
}

func (a api) start(w http.ResponseWriter, r *http.Request, v *service, follow time.Duration) error {
	stream := a.stream(w, v)
	defer stream.close()
	started, err := a.set.want(v)
	if err != nil {
		return err
	}
	if !started {
		stream.send(sprites.ServiceEvent{Type: sprites.ServiceEventStarted, Data: "it runs already; to restart it, use the call restart", Timestamp: time.Now().UnixMilli()})
	}
	stream.follow(r, follow)
	return nil
}

func (a api) postStop(w http.ResponseWriter, r *http.Request) error {
	grace, err := wire.Duration(r.URL.Query(), "timeout", defaultStop)
	if err != nil {
		return err
	}
	v, err := a.change(r.PathValue("name"))
	if err != nil {
		return err
	}
	if v.staysDown() {
		return notRunning(v.def.Name)
	}
	stream := a.stream(w, v)
	defer stream.close()
	for _, other := range a.set.needing(v.def.Name) {
		stream.send(sprites.ServiceEvent{
			Type: sprites.ServiceEventStopping, Timestamp: time.Now().UnixMilli(),
			Data: "service " + other.def.Name + " needs it, and keeps running",
		})
	}
	stream.until(r, func() error {
		_, err := a.set.unwant(v, grace)
		return err
	})
	stream.complete()
	return nil
}

func (a api) postRestart(w http.ResponseWriter, r *http.Request) error {
	follow, err := wire.Duration(r.URL.Query(), "duration", defaultFollow)
	if err != nil {
		return err
	}
	v, err := a.change(r.PathValue("name"))
	if err != nil {
		return err
	}
	stream := a.stream(w, v)
	defer stream.close()
	stream.until(r, func() error { return a.set.restart(v) })
	stream.follow(r, follow)
	return nil
}

// getLogs sends the last lines, then new ones.
func (a api) getLogs(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	follow, err := wire.Duration(q, "duration", 0)
	if err != nil {
		return err
	}
	lines := 100
	if text := q.Get("lines"); text != "" {
		if lines, err = strconv.Atoi(text); err != nil || lines < 0 {
			return wire.BadRequest("lines must be a number, not %q.", text)
		}
	}
	v, err := a.set.get(r.PathValue("name"))
	if err != nil {
		return err
	}
	sub, past, err := v.subscribeAfter()
	if err != nil {
		return err
	}
	stream := a.streamOf(w, v, sub)
	defer stream.close()
	events, err := past.last(lines)
	if err != nil {
		return err
	}
	for _, e := range events {
		stream.send(e)
	}
	if follow == 0 { // what has come meanwhile was not asked for
		v.unsubscribe(sub)
		_ = sub.take()
	}
	stream.follow(r, follow)
	return nil
}

func (a api) delete(w http.ResponseWriter, r *http.Request) error {
	if v, err := a.set.get(r.PathValue("name")); err == nil {
		if err := a.mayChange(v); err != nil {
			return err
		}
	}
	if err := a.set.remove(r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a api) postSignal(w http.ResponseWriter, r *http.Request) error {
	var body sprites.ServiceSignal
	if err := wire.ReadJSON(r, &body); err != nil {
		return err
	}
	v, err := a.change(body.Name)
	if err != nil {
		return err
	}
	sig, err := signals.Parse(body.Signal)
	if err != nil {
		return wire.BadRequest("%v.", err)
	}
	if err := v.signal(sig); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// eventStream is an answer of events, one per line.
type eventStream struct {
	set   *Set
	w     http.ResponseWriter
	rc    *http.ResponseController
	v     *service
	sub   *subscription
	begun bool
}

func (a api) stream(w http.ResponseWriter, v *service) *eventStream {
	return a.streamOf(w, v, v.subscribe())
}

// streamOf is stream with an existing subscription.
func (a api) streamOf(w http.ResponseWriter, v *service, sub *subscription) *eventStream {
	return &eventStream{set: a.set, w: w, rc: http.NewResponseController(w), v: v, sub: sub}
}

func (st *eventStream) close() { st.v.unsubscribe(st.sub) }

func (st *eventStream) begin() {
	if !st.begun {
		st.begun = true
		st.w.Header().Set("Content-Type", "application/x-ndjson")
		st.w.WriteHeader(http.StatusOK)
		_ = st.rc.Flush() // who has gone is noticed by the request's context
	}
}

func (st *eventStream) send(e sprites.ServiceEvent) {
	st.begin()
	if line, err := json.Marshal(e); err == nil {
		_, _ = st.w.Write(append(line, '\n')) // as in begin
	}
}

func (st *eventStream) flush() {
	for _, e := range st.sub.take() {
		st.send(e)
	}
	_ = st.rc.Flush() // as in begin
}

// follow sends events for a time, and then completes the answer.
func (st *eventStream) follow(r *http.Request, d time.Duration) {
	st.begin()
	_ = st.rc.Flush() // of what was sent before, such as the end of a log; as in begin
	timer := time.NewTimer(d)
	defer timer.Stop()
	st.relay(r, timer.C)
	st.complete()
}

// until sends events until do returns. do goes on if the caller has gone.
func (st *eventStream) until(r *http.Request, do func() error) {
	st.begin()
	done := make(chan time.Time)
	var err error
	st.set.wg.Go(func() {
		defer close(done)
		err = do()
	})
	st.relay(r, done)
	<-done
	if err != nil {
		st.send(sprites.ServiceEvent{Type: sprites.ServiceEventError, Data: err.Error(), Timestamp: time.Now().UnixMilli()})
	}
}

func (st *eventStream) relay(r *http.Request, end <-chan time.Time) {
	silence := time.NewTicker(wire.Silence)
	defer silence.Stop()
	for {
		select {
		case <-st.sub.wake:
			st.flush()
			silence.Reset(wire.Silence)
		case <-silence.C:
			_, _ = st.w.Write([]byte("\n")) // as in begin
			_ = st.rc.Flush()
		case <-end:
			return
		case <-r.Context().Done():
			return
		case <-st.set.closing:
			return
		}
	}
}

func (st *eventStream) complete() {
	st.flush()
	file := st.v.log.path
	st.send(sprites.ServiceEvent{
		Type:      sprites.ServiceEventComplete,
		LogFiles:  &sprites.ServiceLogFiles{Stdout: file, Stderr: file, Combined: file},
		Timestamp: time.Now().UnixMilli(),
	})
	_ = st.rc.Flush() // as in begin
}

// defaultHTTP is where the sprite's URL leads unless a service or the sprite's image says
// otherwise.
const defaultHTTP = 8080

// PostHTTP answers POST /v1/http with the port that the sprite's URL leads to. If a service
// has the port and does not run, PostHTTP starts it. It waits for a listener for
// ?wait=DURATION.
func (s *Set) PostHTTP(w http.ResponseWriter, r *http.Request) error {
	wait, err := wire.Duration(r.URL.Query(), "wait", 0)
	if err != nil {
		return err
	}
	port := cmp.Or(s.port, defaultHTTP)
	var web *service
	for _, v := range s.list() {
		if d := v.definition(); d.HTTPPort != 0 {
			port, web = d.HTTPPort, v
			break
		}
	}
	if web != nil && !web.kept() {
		if _, err := s.want(web); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	end, _ := ctx.Deadline()
	for !listens(ctx, port) {
		if web != nil && web.failsUntil(end) || !sleep(ctx, 20*time.Millisecond) {
			return notListening(port, web)
		}
	}
	return wire.Respond(w, sprites.HTTPTarget{Port: port})
}

// notListening is the answer for a port that nothing listens on. web is the service that has
// the port, or nil.
func notListening(port int, web *service) error {
	text := fmt.Sprintf("nothing takes connections at port %d", port)
	if web == nil {
		return fail.New("nothing_listens", text, "")
	}
	state := web.describe().State
	status := state.Status
	if state.Error != "" {
		status += ": " + state.Error
	}
	return fail.New("service_not_listening", fmt.Sprintf("%s, the port of the service %s (%s)", text, state.Name, status), "")
}
