package cove

// SetupScript prepares a sprite before an agent works in it: what it installs is
// there for all that comes. It runs at the top of a clone of the repository, as the
// agent would: the same user, environment and network. Once it has succeeded it is
// not run again in that sprite until its text is another one.
type SetupScript struct {
	Name       string `json:"name"`                      // for people; of a profile that leaves it out: setup_script, cleanup_script
	Text       string `json:"text"`                      // for sh, unless its first line says otherwise
	TimeoutSec int64  `json:"timeout_seconds,omitempty"` // of running time; 0: ten minutes

	// Repository is whose script it is, as JobRequest.RepoID: each has its own
	// record. A server fills it in.
	Repository string `json:"repository,omitempty"`
}
