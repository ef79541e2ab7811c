// Package boot is the agreement between a shim and its guest before they can speak HTTP. It
// says where the guest listens, where its files are, and which document the guest gets.
package boot

import (
	"encoding/json"
	"path"
)

// Port is the TCP port of the guest's API on the sandbox's own address.
const Port = 7070

// ConnectProtocol is the protocol that the guest's /v1/connect upgrades a call to. It is a
// plain stream of bytes to and from a port or a Unix socket.
const ConnectProtocol = "stream"

// Dir is cove's folder inside a sandbox; BinDir holds the guest's own binary
// under the name cove-guest, read-only, and is in PATH.
const (
	Dir    = "/.sprite"
	BinDir = "/.sprite/bin"
)

// Written are the files that the guest writes at each start, and whenever it is told.
var Written = []string{Dir + "/git/config", Dir + "/policy/network.json", Dir + "/" + Generation}

// Socket is the guest's socket in Dir, for programs in the sprite.
const Socket = "api.sock"

// Generation is the file in Dir that identifies this run of the sprite. It holds a UUID, new
// at each boot and in each copy of the sprite's memory. The guest replaces the file by a
// rename.
const Generation = "generation"

// UpperSince is an annotation of a sandbox's description. It tells the sandbox's kernel which
// files lie in the topmost layer of its disk: those changed since that time (nanoseconds since
// 1970). The value SinceRestore means files that change once the sandbox resumes from its
// memory.
const (
	UpperSince   = "cove.upper-since"
	SinceRestore = "restore"
)

// Environment is the file in Dir that holds variables for every command in a
// sprite, as a JSON object.
const Environment = "environment.json"

// The user that commands run as unless told otherwise (protocol section 10.1).
const (
	User = "sprite"
	UID  = 1001
	GID  = 1001
	Home = "/home/sprite"
)

// Account is a user whose commands run in a sprite.
type Account struct {
	Name  string `json:"name"` // of the user; or its number, if it has no name
	UID   int    `json:"uid"`
	GID   int    `json:"gid"`
	Home  string `json:"home"`
	Shell string `json:"shell,omitempty"` // a path; empty: there is no shell

	// Groups are all groups besides GID that the user is in. If they are set, only they and
	// GID count, whatever the user database says. nil: the user database decides.
	Groups []int `json:"groups,omitempty"`
}

// Defaults are what commands of a sprite start with if its base is an image.
type Defaults struct {
	Account Account  `json:"account"` // unless the caller names another user
	Workdir string   `json:"workdir"` // where they start, and relative paths lie; made if it is missing
	Env     []string `json:"env,omitempty"`

	HTTPPort int `json:"http_port,omitempty"` // where the sprite's URL leads if no service says it; 0: 8080
}

// NoLogin reports whether a path in a user database says that the user has no shell.
func NoLogin(shell string) bool {
	name := path.Base(shell)
	return shell == "" || name == "nologin" || name == "false"
}

// PidsMax bounds the processes of a sandbox from the inside; the host's cgroup
// is only a backstop at ten times that. A server that may have few processes itself
// gives each sandbox fewer.
const PidsMax = 2048

// Config is handed to the guest as one JSON document on its standard input,
// which it then replaces by /dev/null. The token is never in an environment, an argument or a
// file.
type Config struct {
	Token       string            `json:"token"`  // the key of the guest's API at its start; later see NextKey
	Listen      string            `json:"listen"` // address:port of the guest's API
	Hostname    string            `json:"hostname"`
	MachineID   string            `json:"machine_id"` // 32 hexadecimal digits
	Incarnation int64             `json:"incarnation"`
	Copied      bool              `json:"copied,omitempty"` // it goes on from a memory that others go on from, too
	Env         map[string]string `json:"env,omitempty"`    // the sprite's own environment, for every command

	CPUs int `json:"cpus,omitempty"` // the limit of its processors; 0: it has none

	PidsMax int `json:"pids_max,omitempty"` // the limit of its processes; 0: PidsMax

	Defaults *Defaults `json:"defaults,omitempty"` // nil: User, Home and no variables

	NetworkPolicy json.RawMessage `json:"network_policy,omitempty"` // as the protocol has it, to be shown inside; empty: no rules
	GitConfig     string          `json:"git_config,omitempty"`     // how git inside reaches connectors
}
