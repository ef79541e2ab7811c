package cove

// SetupScript prepares a sprite before an agent works in it. Everything that it installs is
// there for all later jobs. It runs at the top of a clone of the repository, with the
// agent's user, environment and network. Once it has succeeded, it runs again in that
// sprite only if its text has changed.
type SetupScript struct {
	Name       string `json:"name"`                      // for people; of a profile that leaves it out: setup_script, cleanup_script
	Text       string `json:"text"`                      // for sh, unless its first line says otherwise
	TimeoutSec int64  `json:"timeout_seconds,omitempty"` // of running time; 0: ten minutes

	// Repository is the repository that has the script, as JobRequest.RepoID. Each
	// repository has a record of its own. A server fills it in.
	Repository string `json:"repository,omitempty"`
}
