// Package buildstep describes a command of an image's build, as the server tells it to the
// guest. The guest reads it from its standard input. So no secret in it reaches an argument,
// an environment or a file of the sandbox's disk.
package buildstep

// Max bounds, in bytes, a Step as JSON.
const Max = 32 << 20

// Dir is the folder of the sandbox below which host folders for mounts are shown.
const Dir = "/.sprite/build"

// A Step is a command, and the mounts that it alone has.
type Step struct {
	Argv   []string `json:"argv"` // the program is looked up in Env's PATH
	Env    []string `json:"env"`  // NAME=VALUE; HOME and PATH are added if they are missing
	Dir    string   `json:"dir"`  // absolute; it is made if it is missing
	User   string   `json:"user"` // USER or USER:GROUP, names or numbers; empty: root
	Mounts []Mount  `json:"mounts,omitempty"`
}

// The kinds of mounts.
const (
	Bind  = "bind"  // a folder or file of the sandbox
	Tmpfs = "tmpfs" // an empty folder in memory
	File  = "file"  // a file in memory
)

// A Mount is there while the command runs. The folders and files that were made to mount on
// are removed afterwards.
type Mount struct {
	Kind     string `json:"kind"`
	Target   string `json:"target"`           // absolute, or below the step's Dir
	Source   string `json:"source,omitempty"` // of Bind
	ReadOnly bool   `json:"read_only,omitempty"`
	Size     int64  `json:"size,omitempty"` // of Tmpfs, in bytes; 0: half of the memory
	Data     []byte `json:"data,omitempty"` // of File

	// The owner and the rights of what is mounted. Of Bind they are set if Own is true.
	Own  bool   `json:"own,omitempty"`
	UID  int    `json:"uid,omitempty"`
	GID  int    `json:"gid,omitempty"`
	Mode uint32 `json:"mode,omitempty"`
}
