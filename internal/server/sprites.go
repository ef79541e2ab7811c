package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

const (
	maxBody      = 1 << 20 // of a JSON body
	pageDefault  = 50
	checkTimeout = 2 * time.Second
)

// readBody reads a request's body, which has to arrive in time.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, fail.New(sprite.CodeBadRequest, "the body did not arrive in time", "")
		}
		return nil, fmt.Errorf("read the body: %w", err)
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	return body, nil
}

// readJSON decodes a request's body.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	body, err := readBody(w, r, limit)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fail.New(sprite.CodeBadRequest, "the body can't be read as JSON: "+err.Error(), "")
	}
	return nil
}

// flag reads a boolean of the query.
func flag(r *http.Request, key string) (bool, error) {
	switch text := r.URL.Query().Get(key); text {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, fail.New(sprite.CodeBadRequest, fmt.Sprintf("%s must be true or false, not %.40q", key, text), "")
	}
}

func (s *Server) getVersion(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, sprites.ServerInfo{
		Version: s.Version, URL: s.url, Data: s.Dir, PID: os.Getpid(), Goroutines: runtime.NumGoroutine(), Pool: s.pool(),
		DiskFree: s.Host.DiskFree(), DiskReserve: s.Host.DiskReserve,
	})
	return nil
}

// pool describes the pool; nil: the server has none.
func (s *Server) pool() *sprites.Pool {
	size, ready := s.Host.PoolState()
	if size == 0 {
		return nil
	}
	return &sprites.Pool{Size: size, Ready: ready}
}

func (s *Server) createSprite(w http.ResponseWriter, r *http.Request) error {
	var req sprites.CreateRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	p := principalOf(r)
	if !p.reaches(req.Name) {
		return fail.New("forbidden", "the token does not reach a sprite of that name", "")
	}
	if !p.may(admin) && (len(req.Include) > 0 || req.Owner != "" || req.LeaseSeconds != 0 || req.Install != "") {
		return fail.New("forbidden", "only a token with the verb admin may show the host's folders to a sprite, give it an owner, or say what its disk begins with", "")
	}
	_, labelled, err := mayLabel(s, r, "", req.Labels)
	if err != nil {
		return err
	}
	defer labelled()
	if err := s.mayOpen(r, req.Name, req.NetworkPolicy); err != nil {
		return err
	}
	info, err := s.Host.Create(r.Context(), req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, info)
	return nil
}

func (s *Server) getSprite(w http.ResponseWriter, r *http.Request) error {
	info, err := s.Host.Describe(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	w.Header().Set("ETag", info.Revision)
	writeJSON(w, http.StatusOK, info)
	return nil
}

// updateSprite changes a sprite: the one of the revision in If-Match, if that is given.
func (s *Server) updateSprite(w http.ResponseWriter, r *http.Request) error {
	var req sprites.UpdateRequest
	if err := readJSON(w, r, maxBody, &req); err != nil {
		return err
	}
	if req.Revision = r.Header.Get("If-Match"); req.Revision == "*" {
		req.Revision = ""
	}
	if req.Labels != nil {
		kept, labelled, err := mayLabel(s, r, r.PathValue("name"), *req.Labels)
		if err != nil {
			return err
		}
		defer labelled()
		if req.Revision = cmp.Or(req.Revision, kept); kept != "" && req.Revision != kept {
			return fail.Newf(sprite.CodeSpriteChanged, "read it again, and make the change in what it is now", "sprite %s has been changed since it was read", r.PathValue("name"))
		}
	}
	info, err := s.Host.Update(r.Context(), r.PathValue("name"), req)
	if err != nil {
		return err
	}
	if !isPublic(info) {
		s.rights.end(everybody(info).name)
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

func (s *Server) deleteSprite(w http.ResponseWriter, r *http.Request) error {
	force, err := flag(r, "force")
	if err != nil {
		return err
	}
	if err := s.Host.Delete(r.Context(), r.PathValue("name"), force); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// restartSprite ends a sprite's sandbox, with all that runs in it; the next use
// starts another from the same disk.
func (s *Server) restartSprite(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if err := stopFor(r.Context(), s, name, "its sprite "+name+" was restarted"); err != nil {
		return err
	}
	machine, err := s.Host.MachineID(r.Context(), name)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, sprites.RestartResult{
		SpriteName: name, MachineID: machine, Message: "stopped; its next use starts it",
	})
	return nil
}

// upgradeSprite does the same, for another reason: a sandbox keeps the programs
// that it was started with, and the next one gets this server's.
func (s *Server) upgradeSprite(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("name")
	if err := stopFor(r.Context(), s, name, "its sprite "+name+" was upgraded"); err != nil {
		return err
	}
	return s.getSprite(w, r)
}

// stopFor ends a sprite's sandbox. The jobs that end with it say why.
func stopFor(ctx context.Context, s *Server, name, why string) error {
	jobs, err := s.Store.Jobs.List(ctx, store.JobFilter{Sprite: name, States: []cove.JobState{cove.JobPreparing, cove.JobRunning, cove.JobWaiting}})
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	note := func(to string) (errs error) {
		for _, job := range jobs {
			if job.Stopping { // somebody has asked for that
				continue
			}
			err := s.Store.Jobs.Update(ctx, job.ID, func(j *cove.Job) error {
				if !j.State.Terminal() {
					j.StopReason = to
				}
				return nil
			})
			if !errors.Is(err, store.ErrNotFound) {
				errs = errors.Join(errs, err)
			}
		}
		return errs
	}
	if err := note(why); err != nil {
		return err
	}
	if err := s.Host.Stop(ctx, name); err != nil {
		return errors.Join(err, note(""))
	}
	return nil
}

// suspendSprite has a sprite sleep now, as it would when nobody uses it.
func (s *Server) suspendSprite(w http.ResponseWriter, r *http.Request) error {
	if err := s.Host.Suspend(r.Context(), r.PathValue("name")); err != nil {
		return err
	}
	return s.getSprite(w, r)
}

// wakeSprite wakes a sprite, and answers once it is awake.
func (s *Server) wakeSprite(w http.ResponseWriter, r *http.Request) error {
	lease, err := s.Host.Use(r.Context(), r.PathValue("name"), "wake")
	if err != nil {
		return err
	}
	defer lease.Release()
	return s.getSprite(w, r)
}

// listSprites answers with a page of the sprites that the token reaches.
func (s *Server) listSprites(w http.ResponseWriter, r *http.Request) error {
	if strings.Contains(r.Header.Get("Accept"), "application/x-ndjson") {
		return s.watchSprites(w, r)
	}
	q := r.URL.Query()
	scope, filter := spriteFilters(r)
	after, err := base64.RawURLEncoding.DecodeString(q.Get("continuation_token"))
	if err != nil || len(after) > 100 {
		return fail.New(sprite.CodeBadRequest, "the continuation_token is not one of this server's", "")
	}
	filter.After = string(after)
	size := pageSize(q.Get("max_results"))
	filter.Limit = size + 1 // one more tells whether there are more
	list, err := s.Host.List(r.Context(), filter)
	if err != nil {
		return err
	}
	totals, err := s.totals(r.Context(), scope)
	if err != nil {
		return err
	}
	page := sprites.ListResponse{Sprites: list, Totals: totals, Org: totals}
	if len(list) > size {
		page.Sprites = list[:size]
		page.HasMore = true
		token := base64.RawURLEncoding.EncodeToString([]byte(list[size-1].Name))
		page.NextToken = &token
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

// spriteFilters select the sprites that the token reaches, and of those the ones
// that the query wants.
func spriteFilters(r *http.Request) (scope, filter store.SpriteFilter) {
	p, q := principalOf(r), r.URL.Query()
	scope = store.SpriteFilter{Name: p.scope.Sprite, Scope: p.scope.Prefix}
	filter = scope
	filter.Prefix, filter.Label = q.Get("prefix"), q.Get("label")
	return scope, filter
}

// pageSize clamps what a client asks for.
func pageSize(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return pageDefault
	}
	return min(n, sprites.MaxPage)
}

func (s *Server) totals(ctx context.Context, filter store.SpriteFilter) (sprites.Totals, error) {
	filter.Public = true
	count, err := s.Store.Sprites.Count(ctx, filter)
	return sprites.Totals{
		Name:         sprite.Organization,
		Running:      count[sprites.StatusRunning],
		Warm:         count[sprites.StatusWarm],
		Cold:         count[sprites.StatusCold],
		RunningLimit: s.Host.MaxRunning,
	}, err
}

// checkSprite asks a sprite's guest for a sign of life, and wakes nobody.
func (s *Server) checkSprite(w http.ResponseWriter, r *http.Request) error {
	info, err := s.Host.Get(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	sandbox, err := s.Host.Live(r.Context(), info.Name)
	if err != nil {
		return err
	}
	started := time.Now()
	c := cove.Check{Name: info.Name, ID: info.ID, Status: "hibernated", CheckedAt: started.UTC()}
	if sandbox != nil {
		c.Status = "healthy"
		var err error
		if c.Cove, err = s.alive(r, sandbox); err != nil {
			c.Status, c.Reason = "unhealthy", err.Error()
		}
	}
	c.Elapsed = time.Since(started).Milliseconds()
	writeJSON(w, http.StatusOK, c)
	return nil
}

// alive asks the guest something small, over a connection of its own, so that each
// part of the way is gone and timed.
func (s *Server) alive(r *http.Request, sandbox sprite.Sandbox) (*cove.CheckTimes, error) {
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	began := time.Now()
	conn, err := sandbox.Dial(ctx, guestPort)
	if err != nil {
		return nil, fmt.Errorf("the guest can't be reached: %w", err)
	}
	defer conn.Close()
	reached := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, guestURL("exec", ""), nil)
	if err != nil {
		return nil, err
	}
	authorize(req.Header, sandbox)
	once := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: guestHeader,
	}
	resp, err := once.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("the guest does not answer")
		}
		return nil, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the guest answers with status %d", resp.StatusCode)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return &cove.CheckTimes{Shim: ms(reached.Sub(began)), Guest: ms(time.Since(reached))}, nil
}

// guestPort is where every guest's API is dialled.
const guestPort = boot.API
