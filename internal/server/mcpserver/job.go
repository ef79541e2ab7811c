package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/tools"
)

const (
	defaultLines = 200
	maxLines     = 1000
	maxLogBytes  = 256 << 10
	defaultWait  = 5 * time.Minute
	maxWait      = time.Hour
	waitInterval = 5 * time.Second // of progress while a job is waited for
)

// jobTools are the tools that manage jobs. None begins a job: cove push does that, where
// the person's repository is.
func jobTools() []*tool {
	return []*tool{
		define(tool{
			name: "job_list", verb: cove.VerbRead, roles: readers,
			description: "List the jobs, the newest first: agents at work on a plan, each in a sandbox.",
		}, listJobs),
		define(tool{
			name: "job_show", verb: cove.VerbRead, roles: readers,
			description: "Describe a job: its state, what it came to, and its commits.",
		}, showJob),
		define(tool{
			name: "job_logs", verb: cove.VerbRead, roles: readers,
			description: "Read a job's log from a number on: what the agent said and did.",
		}, readLog),
		define(tool{
			name: "job_wait", verb: cove.VerbRead, roles: readers,
			description: "Wait until a job has ended, or for so long, and describe it.",
		}, waitJob),
		define(tool{
			name: "job_stop", effect: destroys, verb: cove.VerbWrite, roles: full,
			description: "Stop a job's agent. What it has done so far is kept.",
		}, stopJob),
	}
}

// jobInfo is a job as a model needs it.
type jobInfo struct {
	ID      string     `json:"id"`
	State   string     `json:"state" jsonschema:"installing (its agent), queued, preparing, running, waiting, succeeded, failed, timed_out, cancelled or lost."`
	Sprite  string     `json:"sprite" jsonschema:"The sandbox that it runs in."`
	Agent   string     `json:"agent"`
	Plan    string     `json:"plan" jsonschema:"The plan's file."`
	Branch  string     `json:"branch,omitempty"`
	Workdir string     `json:"workdir,omitempty" jsonschema:"Its clone of the repository, in the sandbox."`
	Commits int        `json:"commits"`
	Reason  string     `json:"reason,omitempty" jsonschema:"Why it ended so."`
	LastSeq int64      `json:"last_seq" jsonschema:"The number of the last line of its log."`
	Created time.Time  `json:"created"`
	Ended   *time.Time `json:"ended,omitempty"`
	Pulled  bool       `json:"pulled" jsonschema:"Its commits have been fetched."`
}

func jobOf(j cove.Job) jobInfo {
	info := jobInfo{
		ID: j.ID, State: string(j.State), Sprite: j.Sprite, Agent: j.Agent, Plan: j.PlanName, Branch: j.Branch, Workdir: j.Workdir,
		Commits: j.Commits, LastSeq: j.LastSeq, Created: j.CreatedAt, Ended: j.EndedAt, Pulled: j.PulledAt != nil,
	}
	if j.Outcome != nil {
		info.Reason = j.Outcome.Reason
	}
	return info
}

type jobList struct {
	Jobs []jobInfo `json:"jobs"`
	More bool      `json:"more,omitempty" jsonschema:"There are more than these."`
}

func listJobs(ctx context.Context, c call, _ nothing) (jobList, error) {
	list := jobList{Jobs: []jobInfo{}}
	all, err := c.server.Client.Jobs(ctx)
	for _, j := range all {
		if c.server.Within.ofJob(j) != nil {
			continue
		}
		if len(list.Jobs) == maxListed {
			list.More = true
			break
		}
		list.Jobs = append(list.Jobs, jobOf(j))
	}
	return list, err
}

type jobArgs struct {
	Job string `json:"job" jsonschema:"Its id."`
}

// job finds a job, which must be within the bound.
func (c call) job(ctx context.Context, id string) (cove.Job, error) {
	j, err := c.server.Client.Job(ctx, id)
	if err == nil {
		err = c.server.Within.ofJob(j)
	}
	return j, err
}

func showJob(ctx context.Context, c call, in jobArgs) (jobInfo, error) {
	j, err := c.job(ctx, in.Job)
	return jobOf(j), err
}

type logArgs struct {
	Job   string `json:"job" jsonschema:"Its id."`
	From  int64  `json:"from,omitempty" jsonschema:"The number of the first line. Default 1; a negative one counts from the end."`
	Limit int    `json:"limit,omitempty" jsonschema:"How many lines at most. Default 200, at most 1000."`
}

type logLine struct {
	Seq  int64  `json:"seq"`
	Type string `json:"type" jsonschema:"state, output, event, input, notice, exit, collected or end."`
	Text string `json:"text,omitempty"`
}

type logPage struct {
	Lines []logLine `json:"lines"`
	Next  int64     `json:"next" jsonschema:"Where to read on."`
	State string    `json:"state" jsonschema:"The job's."`
}

func readLog(ctx context.Context, c call, in logArgs) (logPage, error) {
	page := logPage{Lines: []logLine{}}
	j, err := c.job(ctx, in.Job)
	if err != nil {
		return page, err
	}
	if in.Limit < 0 || in.Limit > maxLines {
		return page, &fail.Error{Code: tools.CodeBadInput, Message: fmt.Sprintf("limit is between 1 and %d.", maxLines)}
	}
	if in.From < 0 {
		in.From = max(j.LastSeq+1+in.From, 1)
	}
	page.State, page.Next = string(j.State), max(in.From, 1)
	left := maxLogBytes
	for e, err := range c.server.Client.JobEvents(ctx, in.Job, in.From, false) {
		if err != nil {
			return page, err
		}
		line := lineOf(e)
		if left -= len(line.Text); len(page.Lines) == cmp.Or(in.Limit, defaultLines) || left < 0 && len(page.Lines) > 0 {
			break
		}
		page.Lines, page.Next = append(page.Lines, line), e.Seq+1
	}
	return page, nil
}

func lineOf(e cove.JobEvent) logLine {
	line := logLine{Seq: e.Seq, Type: e.Type, Text: e.Text}
	switch {
	case e.Type == "state":
		line.Text = string(e.State)
	case e.Outcome != nil:
		line.Text = e.Outcome.Kind + ": " + e.Outcome.Reason
	case e.ExitCode != nil:
		line.Text = fmt.Sprintf("exit code %d %s", *e.ExitCode, e.Reason)
	}
	line.Text = strings.ToValidUTF8(line.Text, "?")
	return line
}

type waitArgs struct {
	Job     string `json:"job" jsonschema:"Its id."`
	Seconds int64  `json:"seconds,omitempty" jsonschema:"For how long at most. Default 300, at most 3600."`
}

func waitJob(ctx context.Context, c call, in waitArgs) (jobInfo, error) {
	if in.Seconds < 0 || in.Seconds > int64(maxWait/time.Second) {
		return jobInfo{}, &fail.Error{Code: tools.CodeBadInput, Message: fmt.Sprintf("seconds is between 1 and %d.", maxWait/time.Second)}
	}
	until := time.Now().Add(cmp.Or(time.Duration(in.Seconds)*time.Second, defaultWait))
	for {
		j, err := c.job(ctx, in.Job)
		if err != nil || j.State.Terminal() || !time.Now().Before(until) {
			return jobOf(j), err
		}
		c.progress(fmt.Sprintf("%s, %s of log", j.State, printable.Count(j.LastSeq, "line")))
		limited, cancel := context.WithTimeout(ctx, min(waitInterval, time.Until(until)))
		_, err = c.server.Client.WaitJob(limited, in.Job)
		cancel()
		if err != nil && !(errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil) {
			return jobInfo{}, err
		}
	}
}

func stopJob(ctx context.Context, c call, in jobArgs) (jobInfo, error) {
	j, err := c.job(ctx, in.Job)
	if err == nil && !j.State.Terminal() {
		j, err = c.server.Client.StopJob(ctx, in.Job)
	}
	return jobOf(j), err
}
