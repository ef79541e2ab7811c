package cove

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// How the waits for jobs deal with a server that is away.
const (
	pollWait     = 30 * time.Second          // asked of the server
	pollPause    = 500 * time.Millisecond    // at least, between polls that the server answers at once
	pollBackoff  = 5 * time.Second           // at most, between tries to reach it
	pollPatience = 5 * time.Minute           // of tries without an answer, after which the error is returned
	pollLimit    = pollWait + 90*time.Second // without an answer, the server is away
)

// CreateJob makes a job, and a sprite for it where req names none. The work
// begins with StartJob; with req.Early it may take an AwaitInstall before that. If the answer is
// lost, the request is sent again under its key, which is made if req has none: there is one job.
func (c *Client) CreateJob(ctx context.Context, req JobRequest) (Job, error) {
	req.Key = cmp.Or(req.Key, rand.Text())
	return makeOnce(ctx, c, "create job", sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs"), JSON: req})
}

// PreviewJob says what CreateJob would make, or why it would not, and makes nothing.
func (c *Client) PreviewJob(ctx context.Context, req JobRequest) (JobPreview, error) {
	var p JobPreview
	if err := c.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", "preview"), JSON: req}, &p); err != nil {
		return p, fmt.Errorf("preview job: %w", err)
	}
	return p, nil
}

// StartJob says that the job's bundle is in place, and begins the work.
func (c *Client) StartJob(ctx context.Context, id string, req JobStart) (Job, error) {
	return callJob(ctx, c, "start job "+id, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", id, "start"), JSON: req})
}

// Job describes a job.
func (c *Client) Job(ctx context.Context, id string) (Job, error) {
	return callJob(ctx, c, "get job "+id, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", id)})
}

// Jobs lists all jobs, the newest first.
func (c *Client) Jobs(ctx context.Context) ([]Job, error) {
	var all []Job
	for q := (JobQuery{}); ; {
		page, err := ListJobs(ctx, c, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Jobs...)
		if page.Next == "" || page.Next == q.After {
			return all, nil
		}
		q.After = page.Next
	}
}

// StopJob stops a job. The job collects its work so far, and becomes cancelled.
func (c *Client) StopJob(ctx context.Context, id string) (Job, error) {
	return callJob(ctx, c, "stop job "+id, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", id, "stop")})
}

// SendJob hands a message to the agent of a job that was made with Converse, and
// returns when the agent has it. If an answer is lost, the message is sent again under its
// key, which is made if m has none: the agent gets it once. An older server, which knows no
// keys, is sent a message without one, and only once.
func (c *Client) SendJob(ctx context.Context, id string, m JobMessage) (Job, error) {
	plain := sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", id, "send"), JSON: m}
	keyed := plain
	if m.Key == "" {
		m.Key = rand.Text()
		keyed.JSON = m
	}
	return callOnce(ctx, c, "send to job "+id, keyed, plain)
}

// AnswerJob answers the question of a job's agent, and returns when the agent has it. It
// deals with lost answers, and with older servers, as SendJob does.
func (c *Client) AnswerJob(ctx context.Context, id string, a JobAnswer) (Job, error) {
	plain := sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", id, "answer"), JSON: a}
	keyed := plain
	if a.Key == "" {
		a.Key = rand.Text()
		keyed.JSON = a
	}
	return callOnce(ctx, c, "answer job "+id, keyed, plain)
}

// RetryJob begins a new job that does one that has ended again, and returns it. It deals
// with lost answers as CreateJob does.
func (c *Client) RetryJob(ctx context.Context, id string, req JobRetry) (Job, error) {
	req.Key = cmp.Or(req.Key, rand.Text())
	return makeOnce(ctx, c, "retry job "+id, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", id, "retry"), JSON: req})
}

// PublishJob has the server publish a job's commits again, after that has failed. It
// returns at once: Job.Published says how far the publication is. Commits that are
// published, or being published, stay as they are.
func PublishJob(ctx context.Context, c *Client, id string) (Job, error) {
	return callJob(ctx, c, "publish job "+id, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", id, "publish")})
}

// ResumeJob has the agent of a job that has ended go on, and returns the new job. It deals with
// lost answers as CreateJob does.
func (c *Client) ResumeJob(ctx context.Context, id string, req JobResume) (Job, error) {
	req.Key = cmp.Or(req.Key, rand.Text())
	return makeOnce(ctx, c, "resume job "+id, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", id, "resume"), JSON: req})
}

// CollectJobs removes the jobs that nobody needs any more.
func (c *Client) CollectJobs(ctx context.Context, req JobGC) (JobGCResult, error) {
	var result JobGCResult
	if err := c.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", "gc"), JSON: req}, &result); err != nil {
		return result, fmt.Errorf("remove old jobs: %w", err)
	}
	return result, nil
}

// MarkPulled tells the server that a person has the job's commits, up to head.
func (c *Client) MarkPulled(ctx context.Context, id, head string) (Job, error) {
	return callJob(ctx, c, "mark job "+id+" as pulled",
		sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "jobs", id, "pulled"), JSON: JobPulled{Head: head}})
}

// DeleteJob forgets a job. Without force, the server refuses a job that runs, or whose
// commits nobody has pulled.
func (c *Client) DeleteJob(ctx context.Context, id string, force bool) error {
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	err := c.Call(ctx, sprites.Request{Method: http.MethodDelete, Path: sprites.Path("v1", "jobs", id), Query: query}, nil)
	if err != nil {
		return fmt.Errorf("delete job %s: %w", id, err)
	}
	return nil
}

// callJob makes a call that is answered by a job, or by nothing.
func callJob(ctx context.Context, c *Client, doing string, r sprites.Request) (Job, error) {
	var job Job
	if err := c.Call(ctx, r, &job); err != nil {
		return Job{}, fmt.Errorf("%s: %w", doing, err)
	}
	return job, nil
}

// onceTries is how often a call with a key is made if its answers are lost: for some seconds.
const onceTries = 8

// callOnce is callJob for a call with a key, which is carried out once however often it is
// made. If no answer comes, it is made again. If the server refuses the call as bad (400),
// it has not carried it out. The key may be the reason, so plain, the call as the caller
// made it, is tried once.
func callOnce(ctx context.Context, c *Client, doing string, keyed, plain sprites.Request) (Job, error) {
	var again patience
	for try := 1; ; try++ {
		job, err := callJob(ctx, c, doing, keyed)
		if e, ok := errors.AsType[*sprites.Error](err); ok && e.StatusCode == http.StatusBadRequest && keyed.JSON != plain.JSON {
			return callJob(ctx, c, doing, plain)
		}
		if e, ok := errors.AsType[*sprites.Error](err); ok && e.StatusCode != http.StatusBadGateway && e.StatusCode != http.StatusGatewayTimeout {
			return job, err
		}
		if err == nil || try == onceTries {
			return job, err
		}
		if err := again.wait(ctx, err); err != nil {
			return job, err
		}
	}
}

// ErrLost says that a request for a job was sent and not answered, also when it was sent again: the
// job may have been made.
var ErrLost = errors.New("the connection was lost before the server answered")

// makeOnce is callOnce for a request that makes a job. It is sent again if its connection was lost,
// and not if it was answered, or never sent.
func makeOnce(ctx context.Context, c *Client, doing string, r sprites.Request) (Job, error) {
	var again patience
	for try := 1; ; try++ {
		job, err := callJob(ctx, c, doing, r)
		if _, said := errors.AsType[*sprites.Error](err); err == nil || said || ctx.Err() != nil {
			return job, err
		}
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && try == 1 {
			return job, err
		}
		if try == onceTries {
			return job, fmt.Errorf("%w: %w", ErrLost, err)
		}
		if err := again.wait(ctx, err); err != nil {
			return job, err
		}
	}
}

// WaitJob waits until the job's state is terminal. If the server does not answer, it is
// asked again for some minutes. If it answers with an error, it is not.
func (c *Client) WaitJob(ctx context.Context, id string) (Job, error) {
	query := url.Values{"wait": {pollWait.String()}}
	var again patience
	for {
		asked := time.Now()
		job, err := poll(ctx, c, id, query)
		switch {
		case err == nil && job.State.Terminal():
			return job, nil
		case err == nil:
			again = patience{}
			if time.Since(asked) < pollPause {
				err = pause(ctx, pollPause)
			}
		default:
			err = again.wait(ctx, err)
		}
		if err != nil {
			return Job{}, fmt.Errorf("wait for job %s: %w", id, err)
		}
	}
}

// installLook is for how long a server is asked to wait for news of an installation.
const installLook = 2 * time.Second

// AwaitInstall waits until a job that was made with Early is no longer installing. Then the
// job is queued, or has ended: Failure says why. If each is not nil, it is called with the
// job now and then. If the server does not answer, it is asked again for some minutes.
func (c *Client) AwaitInstall(ctx context.Context, id string, each func(Job)) (Job, error) {
	query := url.Values{"wait": {installLook.String()}, "while": {string(JobInstalling)}}
	var again patience
	for {
		asked := time.Now()
		job, err := poll(ctx, c, id, query)
		switch {
		case err == nil && job.State != JobInstalling:
			return job, nil
		case err == nil:
			again = patience{}
			if each != nil {
				each(job)
			}
			if time.Since(asked) < pollPause {
				err = pause(ctx, pollPause)
			}
		default:
			err = again.wait(ctx, err)
		}
		if err != nil {
			return Job{}, fmt.Errorf("wait for the installation for job %s: %w", id, err)
		}
	}
}

// poll is one long poll, which a dead connection doesn't hold for ever.
func poll(ctx context.Context, c *Client, id string, query url.Values) (Job, error) {
	limited, cancel := context.WithTimeout(ctx, pollLimit)
	defer cancel()
	var job Job
	err := c.Call(limited, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", id), Query: query}, &job)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = sprites.ErrSilent
	}
	return job, err
}

// permanentError is of the kind that is the same at the next try.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// patience paces the tries to reach a server that is away.
type patience struct {
	since time.Time
	pause time.Duration
}

// wait pauses before the next try. It returns err if another try is useless: the server
// refused, or the patience or the context has ended.
func (p *patience) wait(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := errors.AsType[*sprites.Error](err); ok && e.StatusCode < 500 && e.StatusCode != http.StatusTooManyRequests {
		return err
	}
	if _, ok := errors.AsType[permanentError](err); ok || errors.Is(err, sprites.ErrLongLine) || errors.Is(err, sprites.ErrBadName) {
		return err
	}
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
	}
	if now.Sub(p.since) > pollPatience {
		return err
	}
	p.pause = min(max(2*p.pause, 100*time.Millisecond), pollBackoff)
	return pause(ctx, p.pause)
}

// JobEvents yields the job's events from number from on. With follow it goes on until the
// job's last event, and continues by number after a lost connection. Without follow, it
// ends with the events that exist. An error is yielded once, last.
func (c *Client) JobEvents(ctx context.Context, id string, from int64, follow bool) iter.Seq2[JobEvent, error] {
	return func(yield func(JobEvent, error) bool) {
		f := follower{client: c, id: id, next: max(from, 1), follow: follow, yield: yield}
		if err := f.run(ctx); err != nil {
			yield(JobEvent{}, fmt.Errorf("events of job %s: %w", id, err))
		}
	}
}

// follower is one run of JobEvents.
type follower struct {
	client    *Client
	id        string
	next      int64 // the number to yield next; smaller ones have been
	follow    bool
	yield     func(JobEvent, error) bool
	done      bool // the last event has been yielded, or the caller has enough
	connected bool // the server took the last call
	missed    int  // streams in a row that lacked events which the job has
}

func (f *follower) run(ctx context.Context) error {
	var again patience
	for {
		had := f.next
		err := f.stream(ctx)
		if f.done || err == nil && !f.follow {
			return nil
		}
		if !f.follow {
			return err
		}
		if err == nil && f.next == had {
			var over bool
			if over, err = f.over(ctx); over {
				return nil
			}
		}
		if f.next > had {
			again, f.missed = patience{}, 0
		}
		if f.connected {
			again.since = time.Time{}
		}
		if err == nil {
			err = sprites.ErrSilent // ended early, but politely
		}
		if err := again.wait(ctx, err); err != nil {
			return err
		}
	}
}

// over asks whether a stream that ended in good order without anything new was
// all there is.
func (f *follower) over(ctx context.Context) (bool, error) {
	job, err := f.client.Job(ctx, f.id)
	if err != nil || !job.State.Terminal() {
		return false, err
	}
	if job.LastSeq < f.next {
		return true, nil
	}
	if f.missed++; f.missed > 2 {
		return false, permanentError{fmt.Errorf("event %d of %d is missing", f.next, job.LastSeq)}
	}
	return false, nil
}

// stream yields the events of one connection, until it ends.
func (f *follower) stream(ctx context.Context) error {
	// One less is asked for, and skipped: whether a server takes the number as
	// the first wanted or the last known, nothing is missed.
	query := url.Values{"from": {strconv.FormatInt(f.next-1, 10)}, "follow": {strconv.FormatBool(f.follow)}}
	f.connected = false
	for line, err := range f.client.Lines(ctx, sprites.Request{
		Method: http.MethodGet, Path: sprites.Path("v1", "jobs", f.id, "events"), Query: query,
		Answered: func(*http.Response) error { f.connected = true; return nil },
	}) {
		if err == nil {
			err = f.event(line)
		}
		if err != nil || f.done {
			return err
		}
	}
	return nil
}

// event yields one line, if it is new.
func (f *follower) event(line []byte) error {
	var e JobEvent
	if err := json.Unmarshal(line, &e); err != nil {
		return permanentError{fmt.Errorf("read an event: %w", err)}
	}
	if e.Seq < f.next {
		return nil
	}
	f.next = e.Seq + 1
	if !f.yield(e, nil) || e.Type == "end" {
		f.done = true
	}
	return nil
}

// pause waits for d, or returns the error of a context that ends sooner.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
