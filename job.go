package cove

import (
	"cmp"
	"strings"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// JobState is where a job is. Installing, queued, preparing, running and waiting are
// followed by exactly one of the others, which never changes again.
type JobState string

// The states of a job.
const (
	JobInstalling JobState = "installing" // the row exists; its agent is being installed, and its sprite is made after that
	JobQueued     JobState = "queued"     // the row exists, the work has not arrived yet
	JobPreparing  JobState = "preparing"  // the supervisor clones the bundle
	JobRunning    JobState = "running"
	JobWaiting    JobState = "waiting" // for a person
	JobSucceeded  JobState = "succeeded"
	JobFailed     JobState = "failed"
	JobTimedOut   JobState = "timed_out"
	JobCancelled  JobState = "cancelled"
	JobLost       JobState = "lost"
)

// Terminal reports whether s is final.
func (s JobState) Terminal() bool {
	switch s {
	case JobSucceeded, JobFailed, JobTimedOut, JobCancelled, JobLost:
		return true
	}
	return false
}

// StateText is the job's state for people, in the words of the API: "timed out", "running (held)".
func (j Job) StateText() string {
	text := strings.ReplaceAll(string(j.State), "_", " ")
	switch {
	case j.State.Terminal():
		return text
	case j.Stopping:
		text = "stopping"
	}
	if j.Held != nil {
		text += " (held)"
	}
	if j.Unknown != nil {
		text += " (unknown)"
	}
	return text
}

// Person is an author as git knows one.
type Person struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// JobSettings are a person's choices for a job. The request, the job and a push carry the
// same value. See docs/design/jobs.md for the other places that a new setting needs.
type JobSettings struct {
	Backend string `json:"backend,omitempty"` // has the sprite; empty: this server has it
	Sprite  string `json:"sprite,omitempty"`  // in a request the name of an existing sprite, or empty for a new one; in a job never empty
	Agent   string `json:"agent"`
	Model   string `json:"model,omitempty"` // PROVIDER/MODEL; in a request empty for the agent's own choice

	// Login says how the agent asks its model: one of Logins. In a request it may be empty.
	// The server then chooses LoginInside if a variable has the token of a login. Otherwise
	// it chooses LoginOutside if it has the agent's login as a secret, and else LoginKey.
	// In a job, empty means LoginKey.
	Login string `json:"login,omitempty"`

	// AgentCommand starts the agent "acp": a command line for the sprite's sh. Permissions
	// answers that agent's requests for permission: "allow" (as empty), "ask" or "deny".
	AgentCommand string `json:"agent_command,omitempty"`
	Permissions  string `json:"permissions,omitempty"`

	// Role limits the tools of the agent "cove" to those of a phase: "plan" and "review" only
	// read, "build" (as empty) has all. Other agents can be given "build" alone.
	Role string `json:"role,omitempty"`

	TimeoutSec int64  `json:"timeout_seconds"` // running time; 0: the server's default
	Guards     Guards `json:"guards,omitzero"`

	// StepLimits are how long steps of the preparation may take, in seconds of running time. A
	// step that is not there has the usual limit (StepLimit).
	StepLimits map[StepKey]int64 `json:"step_limits,omitempty"`

	// Profile names the server's settings for fields that a request leaves out; empty:
	// there are none. ProfileRevision is the profile's revision that a job was made with;
	// the server sets it.
	Profile string `json:"profile,omitempty"`
	// ProfilePolicy says that the network policy is the profile's.
	ProfileRevision int64 `json:"profile_revision,omitempty"`
	ProfilePolicy   bool  `json:"profile_policy,omitempty"`

	Interactive bool `json:"interactive,omitempty"`
	Converse    bool `json:"converse,omitempty"` // the agent waits for messages instead of ending
	Remove      bool `json:"remove,omitempty"`   // delete the sprite once pulled

	// Publish has the server push the commits of a job that has succeeded as a branch to
	// the URL of its JobSource. It is PublishBranch, or PublishPullRequest to open a pull
	// request as well. Empty: nothing is published.
	Publish string `json:"publish,omitempty"`

	Definition *AgentDefinition `json:"agent_definition,omitempty"` // of Agent; nil: the server knows it; lists of jobs leave it out
	Skill      *Skill           `json:"skill,omitempty"`            // nil: the server's own; in a job without its text
	MCP        []MCPServer      `json:"mcp,omitempty"`              // the agent gets their tools

	// NetworkPolicy is in force before anything of the job runs; nil: the sprite keeps its
	// own, and a new sprite has no rules. A server that enforces no policy answers nil.
	NetworkPolicy *sprites.NetworkPolicy `json:"network_policy,omitempty"`
}

// The values of JobSettings.Login.
const (
	LoginKey     = "key"     // with a key, which the agent's connector adds
	LoginOutside = "outside" // by a person's subscription; the token is a secret, which a connector adds
	LoginInside  = "inside"  // by a person's subscription; the login, or its token, is in the sprite
)

// Logins are all of them.
var Logins = []string{LoginKey, LoginOutside, LoginInside}

// JobSource names the work that a job begins with.
type JobSource struct {
	PlanName   string `json:"plan_name"` // its file name, for people
	Repository string `json:"repository"`
	RepoID     string `json:"repo_id"` // identifies the repository: its root commits
	Branch     string `json:"branch"`  // short name; empty: none was checked out
	Base       string `json:"base"`    // the commit that the bundle's ref refs/cove/base holds

	// URL is a repository that the sprite clones itself; empty: a bundle is sent. It is
	// http or https, and has no credentials. The server's connector for git that leads
	// there adds them, and lets the sprite read this repository only. Without such a
	// connector, the sprite's network policy decides. Branch is then the one to clone;
	// empty: the repository's default. RepoID and Base are left out of a request, and are
	// in the job once the clone is there. Depth is how many commits of the history are
	// fetched; 0: all.
	URL   string `json:"url,omitempty"`
	Depth int    `json:"depth,omitempty"`

	// Issue is the number of an issue of URL; 0: none. The server adds its title and text
	// to the plan as a quotation. The connector for git names the API that the server asks
	// for it.
	Issue int `json:"issue,omitempty"`
}

// JobRequest asks the server for a job. The server makes the row (queued) and, if Sprite is
// empty, a sprite for it. It answers with the Job, whose Upload says where the bundle goes.
// The job begins with POST /v1/jobs/{id}/start. If the agent has to be installed first, the
// row is installing until the sprite is there.
type JobRequest struct {
	JobSettings
	JobSource

	// Early asks for the answer as soon as the row is there. If that is installing, the
	// job is waited for with AwaitInstall before its bundle is sent. Without Early, the
	// server answers when the job is queued, and forgets it if that fails.
	Early bool `json:"early,omitempty"`

	// Begin has the server begin a job that clones a URL, as soon as its sprite is there. The
	// answer is early then, and nobody need call POST /v1/jobs/{id}/start.
	Begin bool `json:"begin,omitempty"`

	// Key lets the request be sent again if its answer was lost. As long as the job is
	// there, the same request by the same token gets that job. Any other request with the
	// key is key_taken. A key goes with its job: once the job is deleted, the same request
	// makes another. Empty: each request makes a job.
	Key string `json:"key,omitempty"`

	Plan    string          `json:"plan"` // the plan's text
	Author  Person          `json:"author"`
	Config  *sprites.Config `json:"config,omitempty"`
	Include []string        `json:"include,omitempty"`

	// Env are the agent's variables, KEY=VALUE. In a value, {secret:NAME} stands for a secret
	// of the server, as in a connector's headers. The server puts it in when it hands the job
	// to its sprite. It keeps the reference, sealed as all of the request.
	Env []string `json:"env,omitempty"`

	SetupScript *SetupScript   `json:"setup_script,omitempty"` // nil: there is none
	Settings    []SettingsFile `json:"settings,omitempty"`     // the person's, for the agent

	// CleanupScript runs in the sprite that was made for the job before that is deleted, if the
	// job had begun. Nil: there is none. Its time is a minute if it says none. Only a profile gives one.
	CleanupScript *SetupScript `json:"cleanup_script,omitempty"`

	By     string `json:"-"` // the token that asks, by ID; the server says it
	Digest string `json:"-"` // of the request as it was sent, if it has a key; the server says it
}

// MCPServer is an MCP server of a job's. Connector names a server outside of the sprite,
// behind a connector of the cove server. The job has that connector as long as it runs.
// Name and Command are for a server that the agent starts in the sprite, and speaks to by
// its standard streams.
type MCPServer struct {
	Connector string   `json:"connector,omitempty"`
	Tools     []string `json:"tools,omitempty"` // of the connector's, that the agent gets; "*" alone: all that it has

	Name    string   `json:"name,omitempty"`    // by which the agent knows it
	Command []string `json:"command,omitempty"` // the program and its arguments

	// Env are the program's variables, NAME=VALUE; in a value {secret:NAME} stands for a
	// secret, as in the job's variables. A Job has only the names.
	Env []string `json:"env,omitempty"`
}

// MCPEnv are the variables of MCP servers, one after the other.
func MCPEnv(servers []MCPServer) []string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Env...)
	}
	return all
}

// JobPreview describes the job that a JobRequest would make (POST /v1/jobs/preview). The
// server makes the same checks, and makes nothing.
type JobPreview struct {
	Agent         string                 `json:"agent"`
	AgentVersion  string                 `json:"agent_version,omitempty"` // that is installed if the agent is missing; empty: none is
	Model         string                 `json:"model,omitempty"`
	Backend       string                 `json:"backend,omitempty"`
	Sprite        string                 `json:"sprite,omitempty"` // empty: one would be made
	Connectors    []JobConnector         `json:"connectors,omitempty"`
	EnvNames      []string               `json:"env_names,omitempty"`
	Secrets       []string               `json:"secrets,omitempty"`  // that the variables refer to, by name
	Settings      []string               `json:"settings,omitempty"` // the paths of the person's
	Guards        Guards                 `json:"guards,omitzero"`
	TimeoutSec    int64                  `json:"timeout_seconds,omitempty"`
	NetworkPolicy *sprites.NetworkPolicy `json:"network_policy,omitempty"`

	Warnings []string `json:"warnings,omitempty"` // why the job would fail, though it can be made
	Installs bool     `json:"installs,omitempty"` // a missing agent is installed in the job's sprite, by the job's network
	Hosts    []string `json:"hosts,omitempty"`    // that the agent itself must reach, to ask its model or to renew its login
}

// JobConnector is a connector that a job would have for its time.
type JobConnector struct {
	Name      string `json:"name"`
	Upstream  string `json:"upstream,omitempty"` // empty: there is none
	SecretSet bool   `json:"secret_set"`         // also where it needs no secret
}

// Guards end a job's agent before it has done harm. Zero values guard nothing.
type Guards struct {
	IdleSec   int64 `json:"idle_seconds,omitempty"` // running time without an event
	Turns     int64 `json:"turns,omitempty"`        // of the model, as the agent reports them
	DiskBytes int64 `json:"disk_bytes,omitempty"`   // by which the files of the sprite's user, and temporary ones, may grow

	// CostUSD is the most that the model may cost, at the prices of its connector. It is
	// only for an agent that enforces it itself.
	CostUSD float64 `json:"cost_usd,omitempty"`
}

// JobStart says that the bundle is in place. It is empty for a job with a URL, which
// needs none.
type JobStart struct {
	BundleSHA256 string   `json:"bundle_sha256"`
	BundleSize   int64    `json:"bundle_size"`
	LargeBytes   int64    `json:"large_bytes,omitempty"` // of the large files (Git LFS) that are sent beside it, all together
	Shallow      []string `json:"shallow,omitempty"`     // the commits at which the bundle's history is cut off
}

// Outcome is the judgement on a job that has ended.
type Outcome struct {
	Kind     string `json:"kind"`   // "success", "agent_failed", "no_result", "timeout", "turn_limit", "disk_limit", "memory_limit", "cost_limit", "cancelled", "lost", "prepare_failed", "collect_failed"
	Reason   string `json:"reason"` // for people
	ExitCode int    `json:"exit_code"`
}

// Headline is the first line of the reason. The lines after it, if there are any, are the
// end of a program's output.
func (o Outcome) Headline() string {
	line, rest, more := strings.Cut(o.Reason, "\n")
	if more && rest != "" {
		line = strings.TrimSuffix(line, ":")
	}
	return line
}

// Usage is an agent's report of its model's use. A field is zero if the agent did not
// report it.
type Usage struct {
	InputTokens  int64   `json:"input_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	CostUSD      float64 `json:"cost_usd"`
	Turns        int64   `json:"turns"`
}

// MaxBundle bounds the bundle of a job's commits that is pulled, or published, in bytes.
const MaxBundle = 4 << 30

// Artifact is a bundle in a job's sprite. Zero Size: there is none.
type Artifact struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// JobResult is what a job has brought, and what became of it.
type JobResult struct {
	Ref         string   `json:"ref"`                // refs/cove/ID/head
	Head        string   `json:"head,omitempty"`     // the agent's last commit
	Leftover    string   `json:"leftover,omitempty"` // the commit of the agent's uncommitted changes
	Commits     int      `json:"commits"`
	Bundle      Artifact `json:"bundle"`
	Outcome     *Outcome `json:"outcome,omitempty"`
	Usage       *Usage   `json:"usage,omitempty"`
	WorkDeleted bool     `json:"work_deleted,omitempty"` // with the sprite, before anybody pulled it

	// Uncollected says why not all that the agent left could be collected. The rest is in
	// the sprite alone, which is kept for it. Empty: all was collected.
	Uncollected string `json:"uncollected,omitempty"`

	Published *JobPublished `json:"published,omitempty"` // nil: nothing is, or was, to be published

	Error   string             `json:"error,omitempty"`
	Failure *sprites.ErrorBody `json:"failure,omitempty"` // why it ended before it was queued; nil: it did not

	EndedAt  *time.Time `json:"ended_at,omitempty"`
	PulledAt *time.Time `json:"pulled_at,omitempty"`

	// SeenAt is when a person said that they have seen how the job ended. Beginning a job
	// that does it again, or goes on with it, counts too. Nil: not yet.
	SeenAt *time.Time `json:"seen_at,omitempty"`
}

// JobStanding is when a job stands still: it waits for a person, or is held.
type JobStanding struct {
	StandsSince *time.Time `json:"stands_since,omitempty"` // nil: it does not
	StoodMS     int64      `json:"stood_ms,omitempty"`     // for how many milliseconds after StartedAt it has done so, without the time since StandsSince
}

// JobProgress is how far a job is, and how it is followed.
type JobProgress struct {
	Installing *InstallProgress `json:"installing,omitempty"`  // how far its installation is; nil: none is under way
	Upload     string           `json:"upload,omitempty"`      // queued: the input bundle's path in the sprite
	Input      Artifact         `json:"input,omitzero"`        // the bundle that it began from
	LargeBytes int64            `json:"large_bytes,omitempty"` // as in JobStart
	Shallow    []string         `json:"shallow,omitempty"`     // as in JobStart

	// Service is the sprite's service that is the supervisor; empty: Session is, an exec
	// session. Supervisor is its last description of itself; nil: none yet.
	Service    string         `json:"service,omitempty"`
	Session    string         `json:"session,omitempty"`
	Supervisor *JobSupervisor `json:"supervisor,omitempty"`

	// Handed says that its settings, with the values of its variables, may be in its sprite. They are
	// taken out when it has ended; of a sprite that can't be reached then, later.
	Handed bool `json:"handed,omitempty"`

	AgentSession string `json:"agent_session,omitempty"` // the agent's own, as it calls it; empty: it has none that can go on, or has not said
	Execution    string `json:"execution_id"`
	Incarnation  int64  `json:"incarnation"` // of the sandbox that the supervisor was started in
	LastSeq      int64  `json:"last_seq"`

	Held     *sprites.Held `json:"held,omitempty"`     // why it stands still with its sprite; nil: it does not
	Unknown  *JobUnknown   `json:"unknown,omitempty"`  // why nothing is known of it now; nil: something is
	Question *JobQuestion  `json:"question,omitempty"` // the agent waits for its answer; nil: it has asked nothing
	Answered *JobAnswer    `json:"answered,omitempty"` // the last answer that it was given, without its option if only its log tells of it; nil: none

	JobEnding // of a job that has not ended

	// Place is its place, from 1, among the profile's jobs that wait for their turn; 0: it
	// does not wait. TurnAt is when its turn came; nil: it waits, or did not have to.
	// PlaceOf is the number of jobs that wait; answers of the server have it.
	Place   int        `json:"place,omitempty"`
	PlaceOf int        `json:"place_of,omitempty"`
	TurnAt  *time.Time `json:"turn_at,omitempty"`

	JobStanding

	// Removing says that the job is being deleted, with what it has in its sprite. If the server
	// ends meanwhile, the next one goes on with that.
	Removing bool `json:"removing,omitempty"`

	ReadyAt   *time.Time `json:"ready_at,omitempty"` // when its agent was installed and its sprite made; nil: with the row
	StartedAt *time.Time `json:"started_at,omitempty"`
}

// Job is one agent at work on one plan in one repository.
type Job struct {
	ID    string   `json:"id"` // six hexadecimal digits
	State JobState `json:"state"`

	JobSettings
	JobSource
	JobProgress
	JobResult

	Arch       string `json:"arch,omitempty"`      // of a sprite at a backend, as Go calls it; empty: not known, or the server's own
	SpriteID   string `json:"sprite_id,omitempty"` // as the backend calls it; of this server's, once the job has begun
	OwnsSprite bool   `json:"owns_sprite"`

	Latest *JobLatest `json:"latest,omitempty"` // its latest news; nil: none yet

	SpriteRemoval *SpriteRemoval `json:"sprite_removal,omitempty"` // its sprite is being deleted, and may still exist; nil: it is not
	Cleanup       *JobCleanup    `json:"cleanup,omitempty"`        // the run of its cleanup script; nil: it has not begun

	// Title is the plan's first heading, or its first line. A job that goes on from another
	// one has the other's title. Empty: an older server made the job, and kept no title.
	// Headings are the plan's; lists of jobs leave them out.
	Title    string   `json:"title,omitempty"`
	Headings []string `json:"headings,omitempty"`

	By string `json:"by,omitempty"` // the token that asked for it, by ID; empty: the server's owner

	Workdir   string      `json:"workdir,omitempty"`   // the clone, in the sprite
	EnvNames  []string    `json:"env_names,omitempty"` // of the variables that the agent has been given
	Secrets   []string    `json:"secrets,omitempty"`   // of the server, by name, that its variables refer to
	Settings  []string    `json:"settings,omitempty"`  // the paths of the person's
	Install   *JobInstall `json:"install,omitempty"`   // nil: nothing had to be installed
	RetryOf   string      `json:"retry_of,omitempty"`  // the job that this one does again
	ResumeOf  string      `json:"resume_of,omitempty"` // the job whose agent goes on in this one
	CreatedAt time.Time   `json:"created_at"`
}

// Name is what the job is called, for people: by its plan's title, or else its plan's file.
func (j Job) Name() string { return cmp.Or(j.Title, j.PlanName, "a job") }

// Brief is the job as lists and webhooks have it: without fields that may be long and say
// nothing about its state (its agent's definition, rules, tools, variables, settings, its
// plan's headings, and where its history is cut off).
func (j Job) Brief() Job {
	j.Definition, j.NetworkPolicy, j.MCP, j.Shallow, j.EnvNames, j.Secrets, j.Settings, j.Headings = nil, nil, nil, nil, nil, nil, nil, nil
	if j.Cleanup != nil {
		short := *j.Cleanup
		short.Output, j.Cleanup = StepOutput{}, &short
	}
	return j
}

// JobUnknown says why the state of a job, or of an environment, is unknown: its backend
// does not answer, or refuses. The job may go on there. Nothing else of it changes.
type JobUnknown struct {
	Code    string    `json:"error"` // "backend_unreachable", "backend_refused", or the backend's own
	Message string    `json:"message"`
	Hint    string    `json:"hint,omitempty"` // what to do
	Since   time.Time `json:"since"`
}

// JobCleanup is the run of the cleanup script of a job's profile. The script runs once.
type JobCleanup struct {
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"` // nil: it runs, or the server ended meanwhile
	Error     string     `json:"error,omitempty"`    // why it did not succeed; empty: it did
	Output    StepOutput `json:"output,omitzero"`    // what it has printed
}

// SpriteRemoval says that the server deletes the sprite that was made for a job. It tries
// again until the sprite is known to be gone. The values come from the job's Environment.
type SpriteRemoval struct {
	Since  time.Time `json:"since"`
	Tries  int       `json:"tries"`           // that failed
	NextAt time.Time `json:"next_at"`         // when it is tried again, at the earliest
	Error  string    `json:"error,omitempty"` // of the last try
	Hint   string    `json:"hint,omitempty"`  // what to do
}

// JobEnding says how far the end of a job has come. Once the job has ended, all fields but
// RanSec and WaitedSec are zero.
type JobEnding struct {
	// Stopping says that the job is being stopped. If its sprite is held, its work is
	// collected when the sprite may run again.
	Stopping bool `json:"stopping,omitempty"`

	StopReason string   `json:"stop_reason,omitempty"` // why, for people; empty: somebody asked for it
	Exited     *JobExit `json:"exited,omitempty"`      // how its agent exited; its work is being collected; nil: the agent has not exited

	Forced string `json:"forced,omitempty"`      // why the server itself ends it: stopped, timeout, collect; empty: it does not
	RanSec int64  `json:"ran_seconds,omitempty"` // of its time, as the server counts it

	// WaitedSec is how long it has waited for a person while its sprite was awake.
	WaitedSec int64 `json:"waited_seconds,omitempty"`
}

// JobExit is how the agent of a job exited.
type JobExit struct {
	ExitCode int    `json:"exit_code"`
	Reason   string `json:"reason,omitempty"` // as in JobEnd
}

// InstallProgress is how far the installation of an agent is. Several jobs may wait for
// the same one.
type InstallProgress struct {
	Agent    string    `json:"agent"`             // with its version
	Command  int       `json:"command,omitempty"` // that runs, from 1; 0: none does yet, or none does any more
	Commands int       `json:"commands,omitempty"`
	Said     string    `json:"said,omitempty"` // the last line that a command has printed: a sandbox's text
	Since    time.Time `json:"since"`
}

// JobInstall says where a job's agent is from.
type JobInstall struct {
	Key    string `json:"key,omitempty"` // of the AgentInstall that the sprite began with; empty: it is installed in the sprite alone
	Detail string `json:"detail"`        // for people
}

// JobQuestion is an agent's question to a person: may it do something? All its texts are
// the agent's.
type JobQuestion struct {
	ID     string `json:"id"`
	Title  string `json:"title"`            // the action that it asks for
	Kind   string `json:"kind,omitempty"`   // edit, execute, fetch …
	Detail string `json:"detail,omitempty"` // the tool's input: JSON, or any text; long texts in it (16 KiB in all) lack their middle, with a mark there

	// Incomplete says in words that Detail is not all that an answer allows; empty: it is. Don't allow by default then.
	Incomplete string `json:"incomplete,omitempty"`

	Path    string           `json:"path,omitempty"` // of the file that it is about
	Options []QuestionOption `json:"options"`
}

// QuestionOption is one of the answers to choose from.
type QuestionOption struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Kind string `json:"kind"` // allow_once, allow_always, reject_once, reject_always
}

// JobAnswer answers a job's question (POST /v1/jobs/{id}/answer).
type JobAnswer struct {
	Question string `json:"question"` // its ID
	Option   string `json:"option"`   // its ID

	// Key names the answer. A question is answered once: the same answer again, by its key,
	// succeeds and does nothing, and any other is already_answered.
	Key string `json:"key,omitempty"`
}

// JobEvent is a line of a job's append-only log. Seq grows by one from 1; the
// guest's supervisor numbers, and every reader resumes by number.
type JobEvent struct {
	Seq  int64     `json:"seq"`
	Time time.Time `json:"time"`
	Type string    `json:"type"` // supervisor, state, step, cloned, output, event, input, notice, exit, collected, end

	Supervisor *JobSupervisor `json:"supervisor,omitempty"` // supervisor: it begins, or is back

	State  JobState  `json:"state,omitempty"`  // state
	Step   *StepTurn `json:"step,omitempty"`   // step
	Stream string    `json:"stream,omitempty"` // output: stdout or stderr; setup: both, of the step that runs
	Text   string    `json:"text,omitempty"`   // output: a line (without its end); event: a line of JSON; input: a person's text; notice: for people; exit: a failed agent's last output (standard error)
	Cut    bool      `json:"cut,omitempty"`    // output: the line was longer than a line may be and goes on in the next event

	Key      string `json:"key,omitempty"`      // input: as in JobMessage; notice: of a message that the agent has not taken
	Question string `json:"question,omitempty"` // input: the ID of the question that it answers

	ExitCode *int       `json:"exit_code,omitempty"` // exit
	Reason   string     `json:"reason,omitempty"`    // exit: as JobEnd's
	Result   *JobEnd    `json:"result,omitempty"`    // end
	Cloned   *JobCloned `json:"cloned,omitempty"`    // cloned
	Outcome  *Outcome   `json:"outcome,omitempty"`   // end, added by the server
	Usage    *Usage     `json:"usage,omitempty"`     // end, added by the server
}

// JobCloned is a sprite's report of its clone of a JobSource's URL.
type JobCloned struct {
	Branch  string   `json:"branch"`
	Base    string   `json:"base"`              // the branch's commit
	RepoID  string   `json:"repo_id,omitempty"` // as in JobSource; empty: the history is cut off
	Shallow []string `json:"shallow,omitempty"` // as in JobStart
}

// JobProtocol is the version of the log and the commands that a supervisor of this cove has,
// and OldestJobProtocol the oldest that its server understands.
const (
	JobProtocol       = 1
	OldestJobProtocol = 1
)

// JobBootVar is the variable that tells a supervisor which boot of its sprite its job may
// begin in. Only a supervisor that is a service has it. A copy of the sprite has another
// boot.
const JobBootVar = "COVE_JOB_BOOT"

// JobSupervisor describes the supervisor in the log. The supervisor writes one at each
// start: as the log's first event, and again when it is back after a crash or a boot.
type JobSupervisor struct {
	Version        string `json:"version"`         // of cove-guest
	Protocol       int    `json:"protocol"`        // JobProtocol
	OldestProtocol int    `json:"oldest_protocol"` // that it understands
	Job            string `json:"job"`
	Execution      string `json:"execution_id"`
	Boot           string `json:"boot_id,omitempty"` // of the sprite; empty: it does not say
}

// JobEnd is the supervisor's terminal record: the work that was collected, and how the
// agent's process ended. The server judges the outcome.
type JobEnd struct {
	Phase    string   `json:"phase"`            // how far it came: prepare, run, collect, done
	Reason   string   `json:"reason"`           // "", "stopped", "lost", a guard ("timeout", "idle", "turns", "disk"), "oom", "signal:KILL", or an error
	Detail   string   `json:"detail,omitempty"` // the guard's finding, for people
	ExitCode int      `json:"exit_code"`
	Head     string   `json:"head,omitempty"`     // empty: no commits
	Leftover string   `json:"leftover,omitempty"` // empty: nothing left uncommitted
	Commits  int      `json:"commits"`
	Bundle   Artifact `json:"bundle"`

	Uncollected string `json:"uncollected,omitempty"` // as in Job
}

// JobOrigin is the source of the clone of a job that was sent no bundle.
type JobOrigin struct {
	Earlier string `json:"earlier,omitempty"` // the folder of the earlier job, whose clone in Workdir this one continues
	Remote  string `json:"remote,omitempty"`  // the URL that is cloned; Branch may be empty, and Base is written into job.json once it is known
	Depth   int    `json:"depth,omitempty"`   // of Remote, as in JobSource
}

// JobIdentity says which job a supervisor has.
type JobIdentity struct {
	ID        string `json:"id"`
	Execution string `json:"execution_id"` // as in JobProgress
}

// JobSpec is the supervisor's order in the sprite, as job.json in the job's folder. All
// paths are the sprite's.
type JobSpec struct {
	JobIdentity
	JobOrigin // in place of Bundle; zero: that is there

	Bundle       string     `json:"bundle"` // input bundle with refs/cove/base
	BundleSHA256 string     `json:"bundle_sha256"`
	Workdir      string     `json:"workdir"` // where the clone goes, and the agent starts
	Branch       string     `json:"branch"`
	Base         string     `json:"base"`
	Shallow      []string   `json:"shallow,omitempty"` // as in JobStart
	Store        string     `json:"store,omitempty"`   // RepositoryStore; empty: nothing is kept
	Author       Person     `json:"author"`
	Setup        [][]string `json:"setup,omitempty"`    // commands before the agent, in Workdir; a failure ends the job in phase prepare
	Installs     int        `json:"installs,omitempty"` // how many of Setup, the first ones, bring the agent
	Program      string     `json:"program,omitempty"`  // that these bring
	Argv         []string   `json:"argv"`
	Env          []string   `json:"env"`
	TimeoutSec   int64      `json:"timeout_seconds"` // of running time, without sleep and waits for a person; 0: no limit
	Guards       Guards     `json:"guards,omitzero"`
	Turn         *LineRule  `json:"turn,omitempty"`  // the lines that tell of a turn
	Input        *JobInput  `json:"input,omitempty"` // nil: the agent reads nothing
	GraceSec     int64      `json:"grace_seconds"`   // between TERM and the end of the whole tree; 0: 10
	CollectSec   int64      `json:"collect_seconds"` // that collecting the work may take; 0: 10 minutes
	TTY          bool       `json:"tty,omitempty"`   // the agent gets the supervisor's terminal

	JobPreparation
}

// JobPreparation is the part of a JobSpec about the time before the agent.
type JobPreparation struct {
	Needs       []string          `json:"needs,omitempty"`        // programs that these need where Program is missing, and which are installed: node
	Notices     []string          `json:"notices,omitempty"`      // for people, at the beginning of the log
	SetupScript *SetupScript      `json:"setup_script,omitempty"` // before Setup; a failure ends the job in phase prepare
	StepLimits  map[StepKey]int64 `json:"step_limits,omitempty"`  // as in JobSettings
	Masked      []string          `json:"masked,omitempty"`       // secrets that are in Env: the log has asterisks in their place
}

// LineRule picks lines of JSON out of an agent's output.
type LineRule struct {
	Stream string            `json:"stream"`         // stdout, stderr, or events: its file descriptor 3
	Fields map[string]string `json:"fields"`         // what stands in it, by dotted path
	Once   string            `json:"once,omitempty"` // the path of a value; lines with the same value count as one
}

// JobInput is how an agent takes messages.
type JobInput struct {
	First string    `json:"first,omitempty"` // a file that it reads first; empty: none
	Over  LineRule  `json:"over"`            // the lines after which it waits for more
	Again *LineRule `json:"again,omitempty"` // the lines after which it waits no more, answered or not
}

// Guest as the first word of a JobSpec's Argv is the supervisor's own program.
const Guest = "cove-guest"

// JobMessage is a person's message to an agent (POST /v1/jobs/{id}/send).
type JobMessage struct {
	Text  string `json:"text,omitempty"`  // empty: none
	Close bool   `json:"close,omitempty"` // it is the last message: the agent ends when its work is done

	// Key names the message. A message that the agent has is not handed on again: sending
	// it again succeeds and does nothing. A different message with the same key is
	// key_taken. Empty: each is a message of its own.
	Key string `json:"key,omitempty"`
}

// JobRetry asks for a job to be done again from its beginning (POST
// /v1/jobs/{id}/retry); the answer is the new job.
type JobRetry struct {
	Early      bool `json:"early,omitempty"`       // as in JobRequest, and so for one that may wait for its turn; the server starts an installing one by itself
	SameSprite bool `json:"same_sprite,omitempty"` // in the old job's; otherwise in a new one, if the old job had one made

	// Agent has another agent try the same plan on the same commit, by its own name; empty: the old
	// job's. Model is as in JobSettings, for that agent.
	Agent string `json:"agent,omitempty"`
	Model string `json:"model,omitempty"`

	// Plan takes the place of the old job's plan, with all else as it was; empty: the same plan.
	Plan string `json:"plan,omitempty"`

	Key string `json:"key,omitempty"` // as in JobRequest

	By     string `json:"-"` // as in JobRequest
	Digest string `json:"-"`
}

// Of is the request for the new job, of that for the old one.
func (r JobRetry) Of(req JobRequest) JobRequest {
	if r.Agent != "" {
		req.Agent, req.Model, req.Login, req.Role, req.AgentCommand, req.Permissions, req.Definition = r.Agent, r.Model, "", "", "", "", nil
	}
	if r.Plan != "" {
		req.Plan = r.Plan
	}
	return req
}

// JobResume asks for a new job, whose agent goes on with the session of a job that has
// ended, in that job's clone (POST /v1/jobs/{id}/resume). The answer is the new job.
type JobResume struct {
	Message string `json:"message"`          // what the agent is told
	Sprite  string `json:"sprite,omitempty"` // a fork of the job's sprite; empty: that one

	Key string `json:"key,omitempty"` // as in JobRequest

	By     string `json:"-"` // as in JobRequest
	Digest string `json:"-"`
}

// JobGC asks the server to remove jobs that nobody needs any more, and the sprites that
// were made for them (POST /v1/jobs/gc). Such jobs have ended, and have been pulled or left
// nothing. The server never touches other sprites.
type JobGC struct {
	OlderThanSec int64 `json:"older_than_seconds"` // since the job's end, its pull, and the last use of its sprite
	Force        bool  `json:"force,omitempty"`    // also those whose work nobody has pulled
	DryRun       bool  `json:"dry_run,omitempty"`  // only say what would be done
}

// JobGCResult says what was, or would be, removed and kept.
type JobGCResult struct {
	Removed []JobGCItem `json:"removed"`
	Kept    []JobGCItem `json:"kept"`
}

// Reasons to keep a job.
const (
	KeptRunning     = "running"     // it has not ended
	KeptUnpulled    = "unpulled"    // its work has not been pulled
	KeptInUse       = "in_use"      // something runs in its sprite
	KeptRecent      = "recent"      // it was used not long ago
	KeptUncollected = "uncollected" // its sprite alone has a part of its work
	KeptFailed      = "failed"      // it could not be removed
)

// JobGCItem is a job, or a sprite whose job is gone.
type JobGCItem struct {
	Job    string   `json:"job,omitempty"`
	State  JobState `json:"state,omitempty"`
	Sprite string   `json:"sprite,omitempty"` // that was made for it
	Agent  string   `json:"agent,omitempty"`  // neither: an installation of it, which nobody has used
	Reason string   `json:"reason,omitempty"` // to keep it: one of the constants
	Why    string   `json:"why"`
}

// JobInputLine is what the server hands to the supervisor of a JobMessage.
type JobInputLine struct {
	JobMessage

	Line     string `json:"line,omitempty"`     // the message as the agent reads it, without the line's end
	Question string `json:"question,omitempty"` // that it answers; empty: it answers none
}

// JobPulled says that a job's commits have arrived where they belong (POST
// /v1/jobs/{id}/pulled). Head is the job's head as it was fetched, or its base
// where it made no commits. A job that left nothing lets go of its sprite, and is not pulled by it.
type JobPulled struct {
	Head string `json:"head"`
}
