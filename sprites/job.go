package sprites

import "time"

// JobState is where a job is. Queued, preparing, running and waiting are
// followed by exactly one of the others, which never changes again.
type JobState string

// The states of a job.
const (
	JobQueued    JobState = "queued"    // the row exists, the work has not arrived yet
	JobPreparing JobState = "preparing" // the supervisor clones the bundle
	JobRunning   JobState = "running"
	JobWaiting   JobState = "waiting" // for a person
	JobSucceeded JobState = "succeeded"
	JobFailed    JobState = "failed"
	JobTimedOut  JobState = "timed_out"
	JobCancelled JobState = "cancelled"
	JobLost      JobState = "lost"
)

// Terminal reports whether s is final.
func (s JobState) Terminal() bool {
	switch s {
	case JobSucceeded, JobFailed, JobTimedOut, JobCancelled, JobLost:
		return true
	}
	return false
}

// Person is an author as git knows one.
type Person struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// JobRequest asks the server for a job. The server makes the row (queued) and,
// where Sprite is empty, a sprite for it, and answers with the Job, whose Upload
// says where the bundle goes; the job begins with POST /v1/jobs/{id}/start.
type JobRequest struct {
	Sprite      string   `json:"sprite,omitempty"` // an existing sprite; empty: a new one
	Agent       string   `json:"agent"`
	Plan        string   `json:"plan"`      // the plan's text
	PlanName    string   `json:"plan_name"` // its file name, for people
	Repository  string   `json:"repository"`
	RepoID      string   `json:"repo_id"` // identifies the repository: its root commits
	Branch      string   `json:"branch"`  // short name; empty: none was checked out
	Base        string   `json:"base"`    // the commit that the bundle's ref refs/cove/base holds
	Author      Person   `json:"author"`
	TimeoutSec  int64    `json:"timeout_seconds,omitempty"` // running time; 0: the server's default
	Interactive bool     `json:"interactive,omitempty"`
	Remove      bool     `json:"remove,omitempty"` // delete the sprite once pulled
	Config      *Config  `json:"config,omitempty"`
	Include     []string `json:"include,omitempty"`
	Env         []string `json:"env,omitempty"` // KEY=VALUE for the agent

	SetupScript *SetupScript `json:"setup_script,omitempty"` // nil: there is none

	// NetworkPolicy is in force before anything of the job runs; nil: that of the
	// sprite, which for a new one has no rules.
	NetworkPolicy *NetworkPolicy `json:"network_policy,omitempty"`
}

// JobStart says that the bundle is in place.
type JobStart struct {
	BundleSHA256 string   `json:"bundle_sha256"`
	BundleSize   int64    `json:"bundle_size"`
	Shallow      []string `json:"shallow,omitempty"` // the commits at which the bundle's history is cut off
}

// Outcome is the judgement on a job that has ended.
type Outcome struct {
	Kind     string `json:"kind"`   // "success", "agent_failed", "no_result", "timeout", "cancelled", "lost", "prepare_failed", "collect_failed"
	Reason   string `json:"reason"` // for people
	ExitCode int    `json:"exit_code"`
}

// Usage is what an agent reported of its model's use; zero where it said nothing.
type Usage struct {
	InputTokens  int64   `json:"input_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	CostUSD      float64 `json:"cost_usd"`
	Turns        int64   `json:"turns"`
}

// Artifact is the bundle that a job left in its sprite. Zero Size: nothing to pull.
type Artifact struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Job is one agent at work on one plan in one repository.
type Job struct {
	ID          string   `json:"id"` // six hexadecimal digits
	State       JobState `json:"state"`
	Sprite      string   `json:"sprite"`
	OwnsSprite  bool     `json:"owns_sprite"`
	Agent       string   `json:"agent"`
	PlanName    string   `json:"plan_name"`
	Repository  string   `json:"repository"`
	RepoID      string   `json:"repo_id"`
	Branch      string   `json:"branch"`
	Base        string   `json:"base"`
	Head        string   `json:"head,omitempty"`     // the agent's last commit
	Leftover    string   `json:"leftover,omitempty"` // the commit of what it left uncommitted
	Commits     int      `json:"commits"`
	Ref         string   `json:"ref"` // refs/cove/ID/head
	Bundle      Artifact `json:"bundle"`
	WorkDeleted bool     `json:"work_deleted,omitempty"` // with the sprite, before anybody pulled it
	Outcome     *Outcome `json:"outcome,omitempty"`
	Usage       *Usage   `json:"usage,omitempty"`
	Interactive bool     `json:"interactive,omitempty"`
	Session     string   `json:"session,omitempty"` // exec session of the supervisor
	Remove      bool     `json:"remove,omitempty"`
	Upload      string   `json:"upload,omitempty"` // queued: where in the sprite the input bundle goes
	Execution   string   `json:"execution_id"`
	Incarnation int64    `json:"incarnation"` // of the sandbox that the supervisor was started in
	TimeoutSec  int64    `json:"timeout_seconds"`
	LastSeq     int64    `json:"last_seq"`
	Error       string   `json:"error,omitempty"`

	// NetworkPolicy is what the job asked for; nil from a server that enforces none.
	NetworkPolicy *NetworkPolicy `json:"network_policy,omitempty"`

	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	PulledAt  *time.Time `json:"pulled_at,omitempty"`
}

// JobEvent is a line of a job's append-only log. Seq grows by one from 1; the
// guest's supervisor numbers, and every reader resumes by number.
type JobEvent struct {
	Seq  int64     `json:"seq"`
	Time time.Time `json:"time"`
	Type string    `json:"type"` // state, output, event, notice, exit, collected, end

	State  JobState `json:"state,omitempty"`  // state
	Stream string   `json:"stream,omitempty"` // output: stdout or stderr; setup: both, of the setup script
	Text   string   `json:"text,omitempty"`   // output: one line without its end; event: one line of JSON; notice: for people
	Cut    bool     `json:"cut,omitempty"`    // output: the line was longer than a line may be and goes on in the next event

	ExitCode *int     `json:"exit_code,omitempty"` // exit
	Reason   string   `json:"reason,omitempty"`    // exit: "timeout", "stopped", "signal:KILL", or empty
	Result   *JobEnd  `json:"result,omitempty"`    // end
	Outcome  *Outcome `json:"outcome,omitempty"`   // end, added by the server
	Usage    *Usage   `json:"usage,omitempty"`     // end, added by the server
}

// JobEnd is the supervisor's terminal record: what was collected, and how the
// agent's process ended. The judgement on it is the server's.
type JobEnd struct {
	Phase    string   `json:"phase"`  // how far it came: prepare, run, collect, done
	Reason   string   `json:"reason"` // "", "timeout", "stopped", "lost", or an error
	ExitCode int      `json:"exit_code"`
	Head     string   `json:"head,omitempty"`     // empty: no commits
	Leftover string   `json:"leftover,omitempty"` // empty: nothing left uncommitted
	Commits  int      `json:"commits"`
	Bundle   Artifact `json:"bundle"`
}

// JobSpec is what the supervisor in the sprite is given, as job.json in the
// job's folder. All paths are the sprite's.
type JobSpec struct {
	ID           string     `json:"id"`
	Bundle       string     `json:"bundle"` // input bundle with refs/cove/base
	BundleSHA256 string     `json:"bundle_sha256"`
	Workdir      string     `json:"workdir"` // where the clone goes, and the agent starts
	Branch       string     `json:"branch"`
	Base         string     `json:"base"`
	Shallow      []string   `json:"shallow,omitempty"` // as in JobStart
	Store        string     `json:"store,omitempty"`   // RepositoryStore; empty: nothing is kept
	Author       Person     `json:"author"`
	Setup        [][]string `json:"setup,omitempty"` // commands before the agent, in Workdir; a failure ends the job in phase prepare
	Argv         []string   `json:"argv"`
	Env          []string   `json:"env"`
	TimeoutSec   int64      `json:"timeout_seconds"` // of running time, not counting sleep; 0: none
	GraceSec     int64      `json:"grace_seconds"`   // between TERM and the end of the whole tree; 0: 10
	TTY          bool       `json:"tty,omitempty"`   // the agent gets the supervisor's terminal

	SetupScript *SetupScript `json:"setup_script,omitempty"` // before Setup; a failure ends the job in phase prepare
}

// JobList answers GET /v1/jobs, newest first.
type JobList struct {
	Jobs []Job `json:"jobs"`
}

// JobPulled says that a job's commits have arrived where they belong (POST
// /v1/jobs/{id}/pulled). Head is the job's head as it was fetched, or its base
// where it made no commits.
type JobPulled struct {
	Head string `json:"head"`
}
