package cove

import "time"

// The choices of JobSettings.Publish.
const (
	PublishBranch      = "branch"       // the branch cove/JOB
	PublishPullRequest = "pull_request" // that branch, and a pull request for it
)

// The states of a JobPublished.
const (
	PublishPending = "pending" // it waits, or is under way
	PublishDone    = "done"    // the branch is there, and the pull request, if one was to be opened
	PublishHeld    = "held"    // files that could run something are among the changes; nothing was pushed
	PublishFailed  = "failed"
)

// JobPublished is the state of the publication of a job's commits at the server of its
// repository.
type JobPublished struct {
	State  string      `json:"state"`
	Branch string      `json:"branch"`           // that the commits are pushed as
	Commit string      `json:"commit,omitempty"` // that the branch has; empty: it was not pushed
	URL    string      `json:"url,omitempty"`    // of the pull request's page, as the forge says; empty: none was opened, or it has no page
	Risky  []RiskyFile `json:"risky,omitempty"`  // held: why; the first of them
	Error  string      `json:"error,omitempty"`  // failed: why; pending: of the last try
	Tries  int         `json:"tries,omitempty"`  // that failed
	Ended  *time.Time  `json:"ended_at,omitempty"`
}

// RiskyFile is a changed file that could run code on the machine of a person who takes the
// change. Path and Why have texts of the repository's.
type RiskyFile struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// PublishOrder is the input of `cove-guest publish`, in a sprite that is made for it.
type PublishOrder struct {
	Job      string `json:"job"`
	URL      string `json:"url"`    // of the repository, as the sprite reaches it
	Branch   string `json:"branch"` // that the job began with
	Base     string `json:"base"`
	Head     string `json:"head"`
	Leftover string `json:"leftover,omitempty"`
	Bundle   string `json:"bundle"` // its file in the sprite
	SHA256   string `json:"sha256"`
	Size     int64  `json:"size"`
	To       string `json:"to"` // the branch that Head is pushed as
}

// PublishVerdict is its answer. If neither Risky nor Refused is set, the branch was pushed.
type PublishVerdict struct {
	Pushed  bool        `json:"pushed"`
	Risky   []RiskyFile `json:"risky,omitempty"`   // nothing was pushed because of these
	Refused string      `json:"refused,omitempty"` // why nothing was pushed
}
