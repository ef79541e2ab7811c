package cove

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-dev/cove/sprites"
)

// StepKey names a step of the preparation of a job. The keys are the same for each job.
type StepKey string

// The steps, in the order of the list.
const (
	StepInstallAgent     StepKey = "install_agent" // once for all jobs, or in the job's own sprite
	StepCreateSprite     StepKey = "create_sprite"
	StepApplyPolicy      StepKey = "apply_policy"
	StepProbeArch        StepKey = "probe_arch"        // at a backend
	StepUploadSupervisor StepKey = "upload_supervisor" // at a backend
	StepUploadRepository StepKey = "upload_repository" // by the person who pushes
	StepCopySettings     StepKey = "copy_settings"
	StepStartSupervisor  StepKey = "start_supervisor"
	StepHealthCheck      StepKey = "health_check" // of the supervisor
	StepInstallDeps      StepKey = "install_deps" // git, where the sprite has none
	StepClone            StepKey = "clone"
	StepSetupScript      StepKey = "setup_script"
	StepConfigureAgent   StepKey = "configure_agent"
	StepVerifyCommit     StepKey = "verify_commit"
)

var stepKeys = []StepKey{
	StepInstallAgent, StepCreateSprite, StepApplyPolicy, StepProbeArch, StepUploadSupervisor, StepUploadRepository,
	StepCopySettings, StepStartSupervisor, StepHealthCheck, StepInstallDeps, StepClone, StepSetupScript,
	StepConfigureAgent, StepVerifyCommit,
}

// StepKeys are all steps, in the order of the list.
func StepKeys() []StepKey { return slices.Clone(stepKeys) }

// maxStepLimit is the most that the limit of a step can be.
const maxStepLimit = 24 * time.Hour

// stepLimits are the limits of the steps that have one, if a job has no others. The person who
// pushes uploads the repository, and the first event of the supervisor's log ends health_check.
var stepLimits = map[StepKey]time.Duration{
	StepInstallAgent:     15 * time.Minute,
	StepCreateSprite:     2 * time.Minute,
	StepApplyPolicy:      2 * time.Minute,
	StepProbeArch:        2 * time.Minute,
	StepUploadSupervisor: time.Hour,
	StepCopySettings:     15 * time.Minute,
	StepStartSupervisor:  2 * time.Minute,
	StepInstallDeps:      15 * time.Minute,
	StepClone:            30 * time.Minute,
	StepSetupScript:      10 * time.Minute,
	StepConfigureAgent:   10 * time.Minute,
	StepVerifyCommit:     10 * time.Minute,
}

// StepLimit is how long a step may take: as limits (in seconds) say, or else as usual. 0: it
// has no limit of its own.
func StepLimit(limits map[StepKey]int64, key StepKey) time.Duration {
	if sec := limits[key]; sec > 0 {
		return time.Duration(sec) * time.Second
	}
	return stepLimits[key]
}

// CheckStepLimits says which of the limits of steps (in seconds) can't be one.
func CheckStepLimits(limits map[StepKey]int64) error {
	for _, key := range slices.Sorted(maps.Keys(limits)) {
		if stepLimits[key] == 0 {
			known := slices.DeleteFunc(StepKeys(), func(k StepKey) bool { return stepLimits[k] == 0 })
			return fmt.Errorf("%.40q is not a step that can have a limit; those are %q", key, known)
		}
		if sec := limits[key]; sec < 1 || sec > int64(maxStepLimit/time.Second) {
			return fmt.Errorf("the limit of the step %s must be from 1 second to %v, not %d seconds", key, maxStepLimit, sec)
		}
	}
	return nil
}

// StepState is where a step is. One that has begun gets exactly one of the last three, and
// keeps it.
type StepState string

// The states of a step.
const (
	StepPending   StepState = "pending"
	StepRunning   StepState = "running"
	StepCompleted StepState = "completed"
	StepFailed    StepState = "failed"  // Error says why
	StepSkipped   StepState = "skipped" // Detail says why it was not needed
)

// Ended reports whether s is final.
func (s StepState) Ended() bool { return s == StepCompleted || s == StepFailed || s == StepSkipped }

// Step is one part of the preparation of a job. Its texts may be a sandbox's.
type Step struct {
	Key       StepKey    `json:"key"`
	Index     int        `json:"index"` // from 1
	Total     int        `json:"total"`
	State     StepState  `json:"state"`
	Attempt   int        `json:"attempt,omitempty"` // how often it was begun: more than once if a server ended meanwhile
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`

	Detail  string `json:"detail,omitempty"`  // what was done, or why it was not needed
	Warning string `json:"warning,omitempty"` // what differs from the intended result
	Error   string `json:"error,omitempty"`
	Hint    string `json:"hint,omitempty"` // what to do about the error

	TimedOut bool `json:"timed_out,omitempty"` // it failed because its time was up

	Output StepOutput `json:"output,omitzero"`
}

// StepTurn is a change of a step's state that a job's supervisor tells of in its log.
type StepTurn struct {
	Key     StepKey   `json:"key"`
	State   StepState `json:"state"`
	Detail  string    `json:"detail,omitempty"`
	Warning string    `json:"warning,omitempty"`
	Error   string    `json:"error,omitempty"`

	TimedOut bool `json:"timed_out,omitempty"`
}

// Duration is how long a step took, or has taken until now; 0: it has not begun.
func (s Step) Duration() time.Duration {
	switch {
	case s.StartedAt == nil:
		return 0
	case s.EndedAt != nil:
		return s.EndedAt.Sub(*s.StartedAt)
	}
	return time.Since(*s.StartedAt)
}

// Bounds of a step's output, in bytes.
const (
	stepHead = 8 << 10
	stepTail = 24 << 10
)

// StepOutput is the output of a step's commands: all of it, or its beginning and its end.
// The zero value is empty.
type StepOutput struct {
	Head    string `json:"head,omitempty"`
	Dropped int64  `json:"dropped_bytes,omitempty"` // between the two
	Tail    string `json:"tail,omitempty"`
}

// Append adds text, made valid UTF-8 without control characters other than line ends, tabs and
// escape. If there is too much, the middle is dropped.
func (o *StepOutput) Append(text string) {
	text = strings.Map(func(r rune) rune {
		if r < ' ' && !strings.ContainsRune("\n\r\t\x1b", r) {
			return -1 // JSON has six bytes for it
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if o.Tail == "" && o.Dropped == 0 {
		n := wholeRunes(text, stepHead-len(o.Head))
		o.Head, text = o.Head+text[:n], text[n:]
	}
	o.Tail += text
	if len(o.Tail) <= 2*stepTail { // otherwise each line would move the whole tail
		return
	}
	cut := len(o.Tail) - stepTail
	for cut < len(o.Tail) && !utf8.RuneStart(o.Tail[cut]) {
		cut++
	}
	o.Dropped += int64(cut)
	o.Tail = strings.Clone(o.Tail[cut:])
}

// wholeRunes is the length of the longest part of text, from its beginning, that has at
// most n bytes and whole characters.
func wholeRunes(text string, n int) int {
	if n >= len(text) {
		return len(text)
	}
	n = max(n, 0)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return n
}

// Size is how many bytes were printed.
func (o StepOutput) Size() int64 { return int64(len(o.Head)) + o.Dropped + int64(len(o.Tail)) }

// From returns the output from byte n on, and the number of its first byte. That is larger
// than n if bytes were dropped.
func (o StepOutput) From(n int64) (at int64, text string) {
	if head := int64(len(o.Head)); n < head && o.Dropped == 0 {
		return n, o.Head[n:] + o.Tail
	}
	tail := o.Size() - int64(len(o.Tail))
	at = min(max(n, tail), o.Size())
	return at, o.Tail[at-tail:]
}

// String is the output, with a line in place of the dropped bytes.
func (o StepOutput) String() string {
	if o.Dropped == 0 {
		return o.Head + o.Tail
	}
	return fmt.Sprintf("%s\n… %d bytes left out …\n%s", o.Head, o.Dropped, o.Tail)
}

// JobSteps is how far the preparation of a job is (GET /v1/jobs/{id}/steps).
type JobSteps struct {
	Job   string   `json:"job"`
	State JobState `json:"state"`
	Steps []Step   `json:"steps"` // all that there are, in order
}

// Over reports whether the preparation is over.
func (j JobSteps) Over() bool {
	return j.State.Terminal() || !slices.ContainsFunc(j.Steps, func(s Step) bool { return !s.State.Ended() })
}

// StepNews is a line for a follower of the steps (GET /v1/jobs/{id}/steps?follow=true):
// first a snapshot, and then changes. The last line has Over.
type StepNews struct {
	Snapshot *JobSteps `json:"snapshot,omitempty"`

	Step *Step  `json:"step,omitempty"` // that has changed, without its output
	At   int64  `json:"at,omitempty"`   // the byte of its output that Text begins with; if larger than the bytes so far, some were dropped
	Text string `json:"text,omitempty"` // its output since

	Over bool `json:"over,omitempty"`
}

// Steps returns the steps in the line: all of the snapshot, the one that has changed, or
// none.
func (n StepNews) Steps() []Step {
	switch {
	case n.Snapshot != nil:
		return n.Snapshot.Steps
	case n.Step != nil:
		return []Step{*n.Step}
	}
	return nil
}

// Steps are the calls about the preparation of jobs.
type Steps struct{ Client *Client }

// Get returns how far the preparation of a job is.
func (s Steps) Get(ctx context.Context, job string) (JobSteps, error) {
	var steps JobSteps
	if err := s.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "jobs", job, "steps")}, &steps); err != nil {
		return steps, fmt.Errorf("steps of job %s: %w", job, err)
	}
	return steps, nil
}

// Follow calls each with a snapshot of a job's preparation, and then with its changes,
// until it is over, or each returns an error. If the server does not answer, it is asked
// again for some minutes. Then each gets another snapshot.
func (s Steps) Follow(ctx context.Context, job string, each func(StepNews) error) error {
	var again patience
	for {
		heard, over, err := s.follow(ctx, job, each)
		if over {
			return err
		}
		if heard {
			again = patience{}
		}
		if err == nil {
			err = sprites.ErrSilent // it ended early, but politely
		}
		if err := again.wait(ctx, err); err != nil {
			return fmt.Errorf("follow the steps of job %s: %w", job, err)
		}
	}
}

// follow reads one stream. It reports whether anything came, and whether another stream
// would be useless.
func (s Steps) follow(ctx context.Context, job string, each func(StepNews) error) (heard, over bool, err error) {
	for line, err := range s.Client.Lines(ctx, sprites.Request{
		Method: http.MethodGet, Path: sprites.Path("v1", "jobs", job, "steps"), Query: url.Values{"follow": {"true"}},
	}) {
		if err != nil {
			return heard, false, err
		}
		var news StepNews
		if err := json.Unmarshal(line, &news); err != nil {
			return heard, true, fmt.Errorf("read the steps of job %s: %w", job, err)
		}
		heard = true
		if err := each(news); err != nil || news.Over {
			return true, true, err
		}
	}
	return heard, false, nil
}
