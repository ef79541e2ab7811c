package guest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// tasks hold the sprite awake. They live as long as the sandbox does.
type tasks struct {
	mu    sync.Mutex
	all   map[string]sprites.Task
	ended time.Time // when the last one did
}

const maxTasks = 256

var taskName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`) })

// live drops expired tasks, and returns the rest by name. t.mu is held.
func (t *tasks) live() []sprites.Task {
	now := time.Now()
	list := []sprites.Task{}
	for _, task := range t.all {
		if !task.ExpiresAt.After(now) {
			t.drop(task, task.ExpiresAt)
			continue
		}
		list = append(list, task)
	}
	slices.SortFunc(list, func(a, b sprites.Task) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// drop forgets a task that has ended. t.mu is held.
func (t *tasks) drop(task sprites.Task, at time.Time) {
	delete(t.all, task.Name)
	if at.After(t.ended) {
		t.ended = at
	}
}

func (t *tasks) list() []sprites.Task {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live()
}

// put makes a task. If refresh is set and the task exists, put changes its end.
func (t *tasks) put(name string, expire time.Duration, refresh bool) (sprites.Task, error) {
	if !taskName().MatchString(name) {
		return sprites.Task{}, wire.BadRequest("A task's name must have at most 63 letters, digits, dots, dashes and underscores: %.64q is not allowed.", name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.live())
	task, there := t.all[name]
	switch {
	case there && !refresh:
		return task, fail.New("task_exists", fmt.Sprintf("task %s exists", name), "")
	case !there && n >= maxTasks:
		return task, wire.Full("too_many_tasks", maxTasks, "there are %d tasks already", n)
	case !there:
		task = sprites.Task{Name: name, StartedAt: time.Now().UTC()}
	}
	task.ExpiresAt = time.Now().Add(min(expire, sprites.LongestTask)).UTC()
	if t.all == nil {
		t.all = map[string]sprites.Task{}
	}
	t.all[name] = task
	return task, nil
}

func (t *tasks) get(name string) (sprites.Task, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live()
	task, ok := t.all[name]
	if !ok {
		return task, fail.New("task_not_found", fmt.Sprintf("task not found: %.64q", name), "")
	}
	return task, nil
}

func (t *tasks) remove(name string) error {
	task, err := t.get(name)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(task, time.Now())
	return nil
}

// taskRequest is the body of the calls that make or refresh a task.
type taskRequest struct {
	Name   string          `json:"name"`
	Expire json.RawMessage `json:"expire"` // seconds, or a duration such as "30m"
}

func (r taskRequest) expire() (time.Duration, error) {
	if len(r.Expire) == 0 {
		return sprites.LongestTask, nil
	}
	text := string(r.Expire)
	_ = json.Unmarshal(r.Expire, &text) // else it is a number, or fails below
	d, err := sprites.TaskExpiry(text)
	if err != nil {
		return 0, wire.BadRequest("%v.", err)
	}
	return d, nil
}

// routes are the calls of the API.
func (t *tasks) routes() wire.Routes {
	return wire.Routes{
		"GET /v1/tasks":           t.getAll,
		"POST /v1/tasks":          t.write,
		"PUT /v1/tasks":           t.write,
		"GET /v1/tasks/{name}":    t.getOne,
		"PUT /v1/tasks/{name}":    t.write,
		"DELETE /v1/tasks/{name}": t.delete,
	}
}

func (t *tasks) getAll(w http.ResponseWriter, _ *http.Request) error {
	return wire.Respond(w, sprites.TaskList{Tasks: t.list()})
}

func (t *tasks) getOne(w http.ResponseWriter, r *http.Request) error {
	task, err := t.get(r.PathValue("name"))
	if err != nil {
		return err
	}
	return wire.Respond(w, task)
}

// write makes a task with POST, and makes or refreshes one with PUT. With PUT, the name may be
// in the path.
func (t *tasks) write(w http.ResponseWriter, r *http.Request) error {
	var body taskRequest
	if err := wire.ReadJSON(r, &body); err != nil {
		return err
	}
	if name := r.PathValue("name"); name != "" {
		body.Name = name
	}
	d, err := body.expire()
	if err != nil {
		return err
	}
	task, err := t.put(body.Name, d, r.Method == http.MethodPut)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if r.Method == http.MethodPost {
		status = http.StatusCreated
	}
	wire.RespondStatus(w, status, task)
	return nil
}

func (t *tasks) delete(w http.ResponseWriter, r *http.Request) error {
	if err := t.remove(r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// lastEnd is when the last task ended; zero if none did.
func (t *tasks) lastEnd() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

func (s *Server) getActivity(w http.ResponseWriter, _ *http.Request) error {
	a := sprites.Activity{Tasks: []string{}}
	for _, task := range s.tasks.list() {
		a.Tasks = append(a.Tasks, task.Name)
	}
	running, last := s.sessions.table.activity()
	a.Sessions = running
	if end := s.tasks.lastEnd(); end.After(last) {
		last = end
	}
	if !last.IsZero() {
		quiet := time.Since(last).Seconds()
		a.QuietSeconds = &quiet
	}
	return wire.Respond(w, a)
}
