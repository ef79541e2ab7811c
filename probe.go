package cove

import "time"

// Probe is a report on a sprite from inside, by cove-guest probe. It comes from a place
// where an agent works: it is information, not proof.
type Probe struct {
	Arch string    `json:"arch"` // as Go names them
	Time time.Time `json:"time"`
	User string    `json:"user"`
	Path string    `json:"path"` // the variable
	Disk ProbeDisk `json:"disk"`
	DNS  ProbeDNS  `json:"dns"`

	HTTP []ProbeAnswer `json:"http"` // to each of the URLs that were given, in their order
}

// ProbeDisk is the room for the user's files. Error: a megabyte could not be
// written.
type ProbeDisk struct {
	Free       int64  `json:"free"`
	FreeInodes int64  `json:"free_inodes"` // 0: not told
	Error      string `json:"error,omitempty"`
}

// ProbeDNS is a look-up of a name that the gateway itself answers for.
type ProbeDNS struct {
	MS    float64 `json:"ms"`
	Error string  `json:"error,omitempty"`
}

// ProbeAnswer is the answer to a GET. Code is the gateway's, where it was that
// which answered.
type ProbeAnswer struct {
	URL    string  `json:"url"`
	Status int     `json:"status,omitempty"` // 0: there was none, see Error
	Code   string  `json:"code,omitempty"`
	MS     float64 `json:"ms"`
	Error  string  `json:"error,omitempty"`
}
