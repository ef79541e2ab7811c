package server

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
)

// jobRoutes makes jobs, acts on them, and tells how they are. A token sees the jobs
// of the sprites that it reaches.
type jobRoutes struct {
	image string // see Server.DefaultImage

	manager  Jobs // nil: jobs are not available
	jobs     *store.Jobs
	profiles *store.Profiles
	host     *sprite.Host
	access   *access
	labels   *labelRights
	confined *confines
	turns    *turns // of streams of events
}

// jobRecords tell what has happened in a job: the steps of its preparation, and its events.
type jobRecords struct{ *jobRoutes }

const (
	maxPlan       = 8 << 20 // of a job request, which has the whole plan
	maxJobs       = 1000    // in a list
	maxWait       = time.Minute
	eventPage     = 16               // events, which may be large:
	eventBytes    = 256 << 10        // after which no more of them are sent at once
	eventInterval = 20 * time.Second // of blank lines on a quiet stream of events
)

// available returns the server's half of jobs, if it has one.
func (g *jobRoutes) available() (Jobs, error) {
	if g.manager == nil {
		return nil, fail.New("not_available", "this server does not run jobs", "")
	}
	return g.manager, nil
}

// job reads the job that the path names. If the token does not see it, the error is as if it
// did not exist.
func (g *jobRoutes) job(r *http.Request) (cove.Job, error) {
	id := r.PathValue("id")
	job, err := g.jobs.Get(r.Context(), id)
	if errors.Is(err, store.ErrNotFound) || err == nil && !principalOf(r).sees(job) {
		return job, fail.New(sprite.CodeNotFound, fmt.Sprintf("there is no job %.40q", id), "see what there is with: cove job list")
	}
	return job, err
}

// asked is the request that a job was made from.
func (g *jobRoutes) asked(r *http.Request, id string) (req cove.JobRequest, err error) {
	settings, err := g.jobs.Settings(r.Context(), id)
	switch {
	case errors.Is(err, store.ErrForgotten), errors.Is(err, store.ErrDamaged):
		return req, fail.Wrap("not_kept", err, "push again")
	case err != nil:
		return req, secretError(err)
	}
	if err := json.Unmarshal(settings, &req); err != nil {
		return req, fmt.Errorf("read the settings of job %s: %w", id, err)
	}
	return req, nil
}

// again reads the request for a job that follows another. It returns the other job and its
// request, and fills in how.
func (g *jobRoutes) again(w http.ResponseWriter, r *http.Request, limit int64, how any) (jobs Jobs, old cove.Job, asked cove.JobRequest, err error) {
	if jobs, err = g.available(); err != nil {
		return nil, old, asked, err
	}
	if err = readJSON(w, r, limit, how); err != nil {
		return nil, old, asked, err
	}
	if old, err = g.job(r); err != nil {
		return nil, old, asked, err
	}
	asked, err = g.asked(r, old.ID)
	return jobs, old, asked, err
}

func (g *jobRoutes) create(w http.ResponseWriter, r *http.Request) error {
	jobs, req, err := g.request(w, r)
	if err != nil {
		return err
	}
	labelled, err := g.mayMake(r, req)
	if err != nil {
		return err
	}
	defer labelled()
	chosen := req.Config != nil && req.Config.Image != ""
	if req.Sprite == "" && req.Backend == "" {
		req.Config = withImage(req.Config, g.image) // also for what depends on it, such as a shared installation
	}
	if err := g.room(req); err != nil {
		return err
	}
	req.By = asker(r)
	job, err := jobs.Create(r.Context(), req)
	if err != nil && !chosen {
		err = noDefault(err, g.image)
	}
	if err != nil {
		return ofBackend(req.Backend, ofProfile(err, req.Profile))
	}
	writeJSON(w, http.StatusCreated, job)
	return nil
}

// digestOf is the digest of a request with a key: of its path and body; empty: it has no key.
func digestOf(r *http.Request, key string, body any) string {
	text, err := json.Marshal(body)
	if key == "" || err != nil { // it has just been read from JSON
		return ""
	}
	sum := sha256.Sum256(slices.Concat([]byte(r.URL.Path), []byte{0}, text))
	return hex.EncodeToString(sum[:])
}

// asker is the token that makes a request, by ID; empty: the server's owner.
func asker(r *http.Request) string {
	if p := principalOf(r); !p.owner {
		return p.name
	}
	return ""
}

// room refuses a job whose settings the disk has no room for: they are kept until the job is deleted.
func (g *jobRoutes) room(req cove.JobRequest) error {
	if g.host.Data == "" { // it keeps nothing on a disk
		return nil
	}
	settings, err := json.Marshal(req)
	if err == nil {
		err = sprite.Room(g.host, int64(len(settings)))
	}
	if errors.Is(err, sprite.ErrNoRoom) {
		return fail.New(sprite.CodeNoSpace, "the disk of the server has not enough space for another job", "see how full the disk is: cove doctor; delete jobs that nobody needs: cove job gc")
	}
	return err
}

// preview says what a job would be, if the caller could begin it.
func (g *jobRoutes) preview(w http.ResponseWriter, r *http.Request) error {
	jobs, req, err := g.request(w, r)
	if err != nil {
		return err
	}
	preview, err := jobs.Preview(r.Context(), req)
	if err != nil {
		return ofBackend(req.Backend, ofProfile(err, req.Profile))
	}
	writeJSON(w, http.StatusOK, preview)
	return nil
}

// request reads the request for a job, and refuses it if the caller may not begin the job.
func (g *jobRoutes) request(w http.ResponseWriter, r *http.Request) (Jobs, cove.JobRequest, error) {
	var req cove.JobRequest
	jobs, err := g.available()
	if err == nil {
		err = readJSON(w, r, maxPlan, &req)
	}
	if err == nil {
		req.Digest = digestOf(r, req.Key, req)
		err = g.mayBegin(r, req)
	}
	if err == nil {
		req, err = g.completed(r, req) // a profile may give more than its user may ask for
	}
	return jobs, req, err
}

// mayBegin refuses a job that the caller has no right to.
func (g *jobRoutes) mayBegin(r *http.Request, req cove.JobRequest) error {
	p := principalOf(r)
	switch {
	case !p.may(exec):
		return fail.New("forbidden", "a job runs commands, but the token does not have the verb exec", "")
	case req.Backend != "" && (!p.scope.All || !p.may(admin)):
		return fail.New("forbidden", "only a token for everything, with the verb admin, may begin jobs at a backend", "")
	case p.scope.Profile != "" && req.Profile != p.scope.Profile:
		return fail.New("forbidden", "the token may begin jobs by the profile "+p.scope.Profile+" only", "cove push --profile "+p.scope.Profile+" PLAN")
	case req.Sprite == "" && !p.scope.All && p.scope.Profile == "":
		return fail.New("forbidden", "the token does not reach new sprites", "name one that it reaches")
	case len(req.Include) > 0 && !p.may(admin):
		return fail.New("forbidden", "only a token with the verb admin may show the host's folders to a sprite", "")
	case req.URL != "" && !p.may(admin):
		return fail.New("forbidden", "only a token with the verb admin may let a job clone a URL: the connector that leads there is granted to the job", "use a profile that names the repository: cove run PLAN --profile NAME; or push from a clone")
	case req.Publish != "" && !p.may(admin):
		return fail.New("forbidden", "only a token with the verb admin may let a job's commits be published; a profile may do so for others", "")
	case slices.ContainsFunc(req.MCP, func(s cove.MCPServer) bool { return s.Connector != "" }) && !p.may(admin):
		return fail.New("forbidden", "only a token with the verb admin may give a job MCP servers outside of its sprite: their connectors are granted to the job", "")
	case len(connect.EnvSecrets(slices.Concat(req.Env, cove.MCPEnv(req.MCP)))) > 0 && !p.may(admin):
		return fail.New("forbidden", "only a token with the verb admin may give a job the server's secrets", "")
	case req.CleanupScript != nil && !p.may(admin):
		return fail.New("forbidden", "only a profile gives its jobs a cleanup script", "cove profile edit NAME")
	case req.Definition != nil && !p.may(admin):
		return fail.New("forbidden", "only a token with the verb admin may bring an agent of its own: the connectors that the agent names are granted to the job", "")
	case req.Sprite != "" && req.Backend == "":
		if err := g.access.mayActIn(r.Context(), p, req.Sprite); err != nil {
			return err
		}
		if req.NetworkPolicy != nil {
			if _, err := g.confined.mayOpen(r, req.Sprite); err != nil {
				return err
			}
		}
	}
	return mayOpen(r, g.host, req.Sprite, req.NetworkPolicy)
}

// mayMake is labelRights.mayGive for the sprite that a job makes.
func (g *jobRoutes) mayMake(r *http.Request, req cove.JobRequest) (done func(), err error) {
	if req.Sprite != "" || req.Backend != "" {
		return func() {}, nil
	}
	_, done, err = g.labels.mayGive(r, "", []string{store.JobLabel})
	return done, err
}

// get describes a job; with wait, once it has ended or the wait is over. With while as
// well, it is answered once the job is in another state than that, or its installation
// has got further.
func (g *jobRoutes) get(w http.ResponseWriter, r *http.Request) error {
	var wait time.Duration
	if text := r.URL.Query().Get("wait"); text != "" {
		var err error
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 {
			return fail.New(sprite.CodeBadRequest, fmt.Sprintf("wait must be a duration such as 30s, not %.40q", text), "")
		}
	}
	changed, cancel := g.jobs.Watch(r.PathValue("id"))
	defer cancel()
	over := time.NewTimer(min(wait, maxWait))
	defer over.Stop()
	while := cove.JobState(r.URL.Query().Get("while"))
	var first *cove.Job
	for waiting := wait > 0; ; {
		job, err := g.job(r)
		if err != nil {
			return err
		}
		if first == nil {
			first = &job
		}
		news := while != "" && (job.State != while || job.Place != first.Place || !reflect.DeepEqual(job.Installing, first.Installing))
		if !waiting || job.State.Terminal() || news {
			if job.Place > 0 {
				if job.PlaceOf, err = g.jobs.Waiting(r.Context(), job.Profile); err != nil {
					return err
				}
			}
			writeJSON(w, http.StatusOK, job)
			return nil
		}
		select {
		case <-changed:
		case <-over.C:
			waiting = false
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

func (g *jobRoutes) start(w http.ResponseWriter, r *http.Request) error {
	var req cove.JobStart
	return g.act(w, r, &req, func(jobs Jobs, id string) (cove.Job, error) {
		return jobs.Start(r.Context(), id, req)
	})
}

func (g *jobRoutes) stop(w http.ResponseWriter, r *http.Request) error {
	return g.act(w, r, nil, func(jobs Jobs, id string) (cove.Job, error) {
		return jobs.Stop(r.Context(), id)
	})
}

// send hands a message to a job's agent. It may be as long as a plan.
func (g *jobRoutes) send(w http.ResponseWriter, r *http.Request) error {
	var msg cove.JobMessage
	return g.act(w, r, &msg, func(jobs Jobs, id string) (cove.Job, error) {
		return jobs.Send(r.Context(), id, msg)
	})
}

// answer answers what a job's agent has asked.
func (g *jobRoutes) answer(w http.ResponseWriter, r *http.Request) error {
	var a cove.JobAnswer
	return g.act(w, r, &a, func(jobs Jobs, id string) (cove.Job, error) {
		return jobs.Answer(r.Context(), id, a)
	})
}

// retry begins a job anew, with the right to begin it in the first place.
func (g *jobRoutes) retry(w http.ResponseWriter, r *http.Request) error {
	var how cove.JobRetry
	jobs, old, req, err := g.again(w, r, maxPlan, &how)
	if err != nil {
		return err
	}
	if how.Agent == "" && how.Model != "" {
		return fail.New(sprite.CodeBadRequest, "a model needs another agent, and the request names none", "")
	}
	req = how.Of(req)
	if how.SameSprite {
		req.Sprite, req.Include, req.NetworkPolicy, req.Config = old.Sprite, nil, nil, nil
	}
	if err := g.mayAgain(r, req, old.Sprite); err != nil {
		return err
	}
	labelled, err := g.mayMake(r, req)
	if err != nil {
		return err
	}
	defer labelled()
	if err := g.room(req); err != nil {
		return err
	}
	how.By, how.Digest = asker(r), digestOf(r, how.Key, how)
	job, err := jobs.Retry(r.Context(), old.ID, how)
	if err != nil {
		return ofBackend(old.Backend, ofProfile(err, req.Profile))
	}
	writeJSON(w, http.StatusCreated, job)
	return nil
}

// resume has a job's agent go on. The caller must have the right to begin a job in its sprite.
func (g *jobRoutes) resume(w http.ResponseWriter, r *http.Request) error {
	var how cove.JobResume
	jobs, old, next, err := g.again(w, r, maxBody, &how)
	if err != nil {
		return err
	}
	next.Backend, next.Sprite, next.Definition = old.Backend, cmp.Or(how.Sprite, old.Sprite), old.Definition
	next.Config, next.Include, next.NetworkPolicy = nil, nil, nil // an existing sprite keeps its settings
	if len(next.MCP) == 0 {
		next.MCP = old.MCP
	}
	if err := g.mayAgain(r, next, old.Sprite); err != nil {
		return err
	}
	how.By, how.Digest = asker(r), digestOf(r, how.Key, how)
	job, err := jobs.Continue(r.Context(), old.ID, how)
	if err != nil {
		return ofBackend(old.Backend, err)
	}
	writeJSON(w, http.StatusCreated, job)
	return nil
}

// publish has a job's commits published again, if the caller could begin the job now: its profile may
// give less than it did.
func (g *jobRoutes) publish(w http.ResponseWriter, r *http.Request) error {
	if !principalOf(r).may(admin) {
		old, err := g.job(r)
		if err != nil {
			return err
		}
		req, err := g.asked(r, old.ID)
		if err != nil {
			return err
		}
		err = g.mayAgain(r, req, old.Sprite)
		if noSprite(err) { // which is gone: it gets no rules
			req.NetworkPolicy = nil
			err = g.mayAgain(r, req, old.Sprite)
		}
		if err != nil {
			return err
		}
	}
	return g.act(w, r, nil, func(jobs Jobs, id string) (cove.Job, error) {
		return jobs.Publish(r.Context(), id)
	})
}

// collect removes old jobs, of the sprites that the token reaches.
func (g *jobRoutes) collect(w http.ResponseWriter, r *http.Request) error {
	jobs, err := g.available()
	if err != nil {
		return err
	}
	var req cove.JobGC
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	result, err := jobs.Collect(r.Context(), req, principalOf(r).reachesAt)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, result)
	return nil
}

func (g *jobRoutes) pulled(w http.ResponseWriter, r *http.Request) error {
	var req cove.JobPulled
	return g.act(w, r, &req, func(jobs Jobs, id string) (cove.Job, error) {
		return jobs.Pulled(r.Context(), id, req.Head)
	})
}

// act reads the request into body, if that is not nil, does act, and answers
// with the job.
func (g *jobRoutes) act(w http.ResponseWriter, r *http.Request, body any, act func(Jobs, string) (cove.Job, error)) error {
	jobs, err := g.available()
	if err != nil {
		return err
	}
	if body != nil {
		if err := readJSON(w, r, maxBody, body); err != nil {
			return err
		}
	}
	job, err := g.job(r)
	if err != nil {
		return err
	}
	backend := job.Backend
	if job, err = act(jobs, job.ID); err != nil {
		return ofBackend(backend, err)
	}
	writeJSON(w, http.StatusOK, job)
	return nil
}

func (g *jobRoutes) delete(w http.ResponseWriter, r *http.Request) error {
	jobs, err := g.available()
	if err != nil {
		return err
	}
	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	job, err := g.job(r)
	if err != nil {
		return err
	}
	if err := jobs.Delete(r.Context(), job.ID, force); err != nil {
		return ofBackend(job.Backend, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// events streams a job's events as lines of JSON, from number from on (the
// first if it is not said). With follow it goes on until the last of a job that
// has ended; blank lines keep a quiet stream alive.
func (g jobRecords) events(w http.ResponseWriter, r *http.Request) error {
	from := int64(1)
	if text := r.URL.Query().Get("from"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fail.New(sprite.CodeBadRequest, fmt.Sprintf("from must be a number, not %.40q", text), "")
		}
		from = max(n, 1)
	}
	follow, err := flag(r, "follow")
	if err != nil {
		return err
	}
	if _, err := g.job(r); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	stream := &eventStream{w: w, rc: http.NewResponseController(w), next: from, turns: g.turns}
	if err := stream.rc.Flush(); err != nil { // the headers, at once
		return nil // the client has gone
	}
	changed, cancel := g.jobs.Watch(r.PathValue("id"))
	defer cancel()
	quiet := time.NewTicker(eventInterval)
	defer quiet.Stop()
	for {
		job, err := g.job(r) // before its events: nothing comes after those of one that has ended
		if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == sprite.CodeNotFound {
			return nil // it has been deleted
		}
		if err == nil {
			err = stream.send(r, g.jobs)
		}
		if err != nil { // too late for an answer: cut the stream
			panic(http.ErrAbortHandler)
		}
		if !follow || stream.ended || job.State.Terminal() && stream.next > job.LastSeq {
			return nil
		}
		select {
		case <-changed:
		case <-quiet.C:
			if stream.blank() != nil {
				return nil
			}
		case <-r.Context().Done():
			return nil
		}
	}
}

// eventStream writes events to a client.
type eventStream struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	next  int64
	ended bool // the last event has been sent
	turns *turns
}

// send sends all events that there are from next on.
func (e *eventStream) send(r *http.Request, jobs *store.Jobs) error {
	for !e.ended {
		text, more, err := e.read(r, jobs)
		if err != nil || len(text) == 0 {
			return err
		}
		if _, err := e.w.Write(text); err != nil {
			return err
		}
		if err := e.rc.Flush(); err != nil {
			return err
		}
		if !more {
			break
		}
	}
	return nil
}

// read takes a turn, and has the next events as they are sent; more says that there may be others after them. A client
// that takes nothing holds no turn.
func (e *eventStream) read(r *http.Request, jobs *store.Jobs) (text []byte, more bool, err error) {
	done, err := e.turns.take(r.Context(), principalOf(r))
	if err != nil {
		return nil, false, err
	}
	defer done()
	events, err := jobs.Events(r.Context(), r.PathValue("id"), e.next, eventPage)
	if err != nil {
		return nil, false, err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	for n, event := range events {
		if n > 0 && out.Len() >= eventBytes {
			return out.Bytes(), true, nil
		}
		if err := enc.Encode(event); err != nil {
			return nil, false, err
		}
		e.next = event.Seq + 1
		e.ended = event.Type == "end"
	}
	return out.Bytes(), len(events) == eventPage, nil
}

// blank sends a line that readers skip.
func (e *eventStream) blank() error {
	if _, err := e.w.Write([]byte("\n")); err != nil {
		return err
	}
	return e.rc.Flush()
}
