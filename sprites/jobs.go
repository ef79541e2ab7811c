package sprites

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// How the waits for jobs deal with a server that is away.
const (
	pollWait     = 30 * time.Second       // asked of the server
	pollPause    = 500 * time.Millisecond // at least, between polls that the server answers at once
	pollBackoff  = 5 * time.Second        // at most, between tries to reach it
	pollPatience = 5 * time.Minute        // of tries without an answer, after which the error is returned
	quietStream  = 90 * time.Second       // without a line, a stream of events is opened anew
)

// CreateJob makes a job, and a sprite for it where req names none. The work
// begins with StartJob; with req.Early it may take an AwaitInstall before that.
func (c *Client) CreateJob(ctx context.Context, req JobRequest) (Job, error) {
	return callJob(ctx, c, "create job", call{method: http.MethodPost, path: joinPath("v1", "jobs"), in: req})
}

// PreviewJob says what CreateJob would make, or why it would not, and makes nothing.
func (c *Client) PreviewJob(ctx context.Context, req JobRequest) (JobPreview, error) {
	var p JobPreview
	if err := c.json(ctx, call{method: http.MethodPost, path: joinPath("v1", "jobs", "preview"), in: req}, &p); err != nil {
		return p, fmt.Errorf("preview job: %w", err)
	}
	return p, nil
}

// StartJob says that the job's bundle is in place, and begins the work.
func (c *Client) StartJob(ctx context.Context, id string, req JobStart) (Job, error) {
	return callJob(ctx, c, "start job "+id, call{method: http.MethodPost, path: joinPath("v1", "jobs", id, "start"), in: req})
}

// Job describes a job.
func (c *Client) Job(ctx context.Context, id string) (Job, error) {
	return callJob(ctx, c, "get job "+id, call{method: http.MethodGet, path: joinPath("v1", "jobs", id)})
}

// Jobs lists all jobs, the newest first.
func (c *Client) Jobs(ctx context.Context) ([]Job, error) {
	var list JobList
	if err := c.json(ctx, call{method: http.MethodGet, path: joinPath("v1", "jobs")}, &list); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	return list.Jobs, nil
}

// StopJob asks for a job's end; the job collects what there is and becomes
// cancelled.
func (c *Client) StopJob(ctx context.Context, id string) (Job, error) {
	return callJob(ctx, c, "stop job "+id, call{method: http.MethodPost, path: joinPath("v1", "jobs", id, "stop")})
}

// SendJob hands a message to the agent of a job that was made with Converse, and
// returns when the agent has it.
func (c *Client) SendJob(ctx context.Context, id string, m JobMessage) (Job, error) {
	return callJob(ctx, c, "send to job "+id, call{method: http.MethodPost, path: joinPath("v1", "jobs", id, "send"), in: m})
}

// AnswerJob answers the question of a job's agent, and returns when the agent has it.
func (c *Client) AnswerJob(ctx context.Context, id string, a JobAnswer) (Job, error) {
	return callJob(ctx, c, "answer job "+id, call{method: http.MethodPost, path: joinPath("v1", "jobs", id, "answer"), in: a})
}

// RetryJob begins a job that has ended anew, and returns the new one.
func (c *Client) RetryJob(ctx context.Context, id string, req JobRetry) (Job, error) {
	return callJob(ctx, c, "retry job "+id, call{method: http.MethodPost, path: joinPath("v1", "jobs", id, "retry"), in: req})
}

// ResumeJob has the agent of a job that has ended go on, and returns the new job.
func (c *Client) ResumeJob(ctx context.Context, id string, req JobResume) (Job, error) {
	return callJob(ctx, c, "resume job "+id, call{method: http.MethodPost, path: joinPath("v1", "jobs", id, "resume"), in: req})
}

// CollectJobs removes the jobs that nobody needs any more.
func (c *Client) CollectJobs(ctx context.Context, req JobGC) (JobGCResult, error) {
	var result JobGCResult
	if err := c.json(ctx, call{method: http.MethodPost, path: joinPath("v1", "jobs", "gc"), in: req}, &result); err != nil {
		return result, fmt.Errorf("remove old jobs: %w", err)
	}
	return result, nil
}

// MarkPulled says that the job's commits, up to head, are where they belong.
func (c *Client) MarkPulled(ctx context.Context, id, head string) (Job, error) {
	return callJob(ctx, c, "mark job "+id+" as pulled",
		call{method: http.MethodPost, path: joinPath("v1", "jobs", id, "pulled"), in: JobPulled{Head: head}})
}

// DeleteJob forgets a job. One that runs, or whose commits nobody has pulled, is
// refused without force.
func (c *Client) DeleteJob(ctx context.Context, id string, force bool) error {
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	err := c.json(ctx, call{method: http.MethodDelete, path: joinPath("v1", "jobs", id), query: query}, nil)
	if err != nil {
		return fmt.Errorf("delete job %s: %w", id, err)
	}
	return nil
}

// callJob makes a call that is answered by a job, or by nothing.
func callJob(ctx context.Context, c *Client, doing string, r call) (Job, error) {
	var job Job
	if err := c.json(ctx, r, &job); err != nil {
		return Job{}, fmt.Errorf("%s: %w", doing, err)
	}
	return job, nil
}

// WaitJob waits until the job's state is terminal. A server that is away is
// asked again for some minutes; one that answers with an error is not.
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
				err = sleep(ctx, pollPause)
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

// AwaitInstall waits until a job that was made with Early is no longer installing. Then
// it is queued, or has ended: Failure says why. Each is called with the job now and then;
// nil: not. A server that is away is asked again for some minutes.
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
				err = sleep(ctx, pollPause)
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
	limited, cancel := context.WithTimeout(ctx, pollWait+quietStream)
	defer cancel()
	var job Job
	err := c.json(limited, call{method: http.MethodGet, path: joinPath("v1", "jobs", id), query: query}, &job)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = errSilent
	}
	return job, err
}

var errSilent = errors.New("the server went silent")

// permanentError is of the kind that is the same at the next try.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// patience paces the tries to reach a server that is away.
type patience struct {
	since time.Time
	pause time.Duration
}

// wait pauses before the next try. It returns err when there is no point in one:
// the server refused, patience or the context has ended.
func (p *patience) wait(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := errors.AsType[*Error](err); ok && e.StatusCode < 500 && e.StatusCode != http.StatusTooManyRequests {
		return err
	}
	if _, ok := errors.AsType[permanentError](err); ok || errors.Is(err, ErrBadName) {
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
	return sleep(ctx, p.pause)
}

// JobEvents yields the job's events from number from on. With follow it goes on
// until the job's last event, and takes up again by number after a cut; without,
// it ends with the events that exist. An error is yielded once, as the last.
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
			err = errSilent // ended early, but politely
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
	accepted := func(*http.Response) error { f.connected = true; return nil }
	return f.client.lines(ctx, joinPath("v1", "jobs", f.id, "events"), query, accepted, f.event)
}

// lines reads the lines of a stream, opened with a GET, until its end, an error,
// or a silence. accepted is called when the server has taken the call; each may
// return errStop.
func (c *Client) lines(ctx context.Context, path string, query url.Values, accepted func(*http.Response) error, each func([]byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(quietStream, func() { cancel(errSilent) })
	defer quiet.Stop()
	resp, err := c.do(ctx, call{method: http.MethodGet, path: path, query: query, header: http.Header{"Accept": {ndjson}}})
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		if err = accepted(resp); err == nil {
			err = readLines(lively{resp.Body, quiet}, each)
		}
	}
	if errors.Is(err, errStop) {
		return nil
	}
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

const ndjson = "application/x-ndjson"

// lively puts off the end of a stream whenever something comes, a blank line too.
type lively struct {
	io.Reader
	quiet *time.Timer
}

func (l lively) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if n > 0 {
		l.quiet.Reset(quietStream)
	}
	return n, err
}

var errStop = errors.New("stop reading lines")

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
		return errStop
	}
	return nil
}

// readLines calls f for each line of an NDJSON stream that is not empty. A last
// line without its end is not a line but a cut.
func readLines(r io.Reader, f func([]byte) error) error {
	br := bufio.NewReaderSize(r, 64<<10)
	var long []byte
	for {
		part, err := br.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if long = append(long, part...); len(long) > maxLine {
				return permanentError{fmt.Errorf("line longer than %d bytes", maxLine)}
			}
			continue
		}
		if err == io.EOF {
			if len(part)+len(long) > 0 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		if err != nil {
			return err
		}
		if long = append(long, part...); len(bytes.TrimSpace(long)) > 0 {
			if err := f(long); err != nil {
				return err
			}
		}
		long = long[:0]
	}
}
