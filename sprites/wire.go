package sprites

import (
	"encoding/json"
	"net/netip"
	"time"
)

// The types in this file are the protocol's documents, as they stand on the
// wire. Keys are snake_case, except in the /fs family, whose keys are camelCase.

// Version is sent as Sprite-Version on every answer of a cove server. Clients of
// the protocol read from it which forms of a call the server takes.
const Version = "v0.0.1-rc46"

// Status says how much of a sprite is alive.
type Status string

// StatusDeleted is what a StateEvent says of a sprite that is there no more.
const StatusDeleted Status = "deleted"

// The three states of a sprite. A cold sprite has only a disk. A warm one has a disk
// and a memory, but nothing runs. A running one has a live sandbox.
const (
	StatusCold    Status = "cold"
	StatusWarm    Status = "warm"
	StatusRunning Status = "running"
)

// Info describes a sprite (protocol section 2.1).
type Info struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	Organization string            `json:"organization"`
	URL          string            `json:"url"`
	URLSettings  URLSettings       `json:"url_settings"`
	Status       Status            `json:"status"`
	Labels       []string          `json:"labels"`
	Version      *string           `json:"version"`
	Environment  map[string]string `json:"environment,omitempty"`
	Config       *Config           `json:"config,omitempty"`
	CreatedAt    time.Time         `json:"created_at"`
	UpdatedAt    time.Time         `json:"updated_at"`
	LastRunning  *time.Time        `json:"last_running_at"`
	LastWarming  *time.Time        `json:"last_warming_at"`

	// Cove is what a cove server adds; nil from other servers.
	Cove *Details `json:"cove,omitempty"`

	// Revision changes with the sprite's labels and its Retention. Get sets it, on a server
	// that tells it (cove does): it is the answer's ETag.
	Revision string `json:"-"`
}

// StateText is the sprite's state for people: running, paused, warm or cold, with "(held)" if it may
// not run; "being removed".
func (i Info) StateText() string {
	text := string(i.Status)
	switch {
	case i.Cove == nil:
		return text
	case i.Cove.Removing:
		return "being removed"
	case i.Cove.Paused:
		text = "paused"
	}
	if i.Cove.Held != nil {
		text += " (held)"
	}
	return text
}

// Details is cove's own part of a sprite's description.
type Details struct {
	Base        string   `json:"base"` // what the disk starts from: "host", or the digest of an image
	Include     []string `json:"include,omitempty"`
	Incarnation int64    `json:"incarnation"`
	IdleSeconds int64    `json:"idle_seconds"`     // 0: never sleeps
	Paused      bool     `json:"paused,omitempty"` // of a warm one: its memory is still in the machine's
	Owner       string   `json:"owner,omitempty"`  // "job:ID" for a sprite made by a job

	// HibernateSeconds is after how long its memory goes to disk, counted as
	// IdleSeconds is; until then it is paused. 0: never.
	HibernateSeconds int64 `json:"hibernate_seconds"`

	Retention *Retention `json:"keep_checkpoints,omitempty"` // of those that nobody asked for; nil: all

	LeaseUntil *time.Time `json:"lease_until,omitempty"` // until when its owner wants it at least

	Address     string   `json:"address,omitempty"`  // the guest's address while running
	Address6    string   `json:"address6,omitempty"` // and that of IPv6, if it has one
	AwakeBy     []string `json:"kept_awake_by,omitempty"`
	WokenBy     string   `json:"woken_by,omitempty"`            // the use, as AwakeBy names it, that started it or had it go on last; empty: none since the server started
	Removing    bool     `json:"removing,omitempty"`            // it is being removed: nothing can be done to it but that
	Unlimited   []string `json:"limits_not_enforced,omitempty"` // limits this machine can't give, with the reason
	MemoryMB    int      `json:"memory_mb,omitempty"`           // how much of its memory limit it gets, if the server keeps the rest for itself; else 0
	NetworkDown string   `json:"network_down,omitempty"`        // why the sandbox has no network now
	LastError   string   `json:"last_error,omitempty"`          // why the last sandbox ended or did not start
	Elsewhere   bool     `json:"elsewhere,omitempty"`           // the server's data folder is a copy, made while the sprite ran: its programs go on in the original. False once it has booted here

	MemoryKills []MemoryKill `json:"memory_kills,omitempty"` // the last processes that were ended for want of memory, the oldest first

	Held *Held `json:"held,omitempty"` // why it stands still, or can't start; nil: it may run

	// DiskUsed is how many bytes of its disk limit it took at the last look. The sprite
	// and its checkpoints need all of these. 0: not known, or it has no limit.
	DiskUsed int64 `json:"disk_used_bytes,omitempty"`

	DiskUse *DiskUse `json:"disk,omitempty"` // of what was sealed, by the last checkpoint; nil: not known
}

// Held says why nobody can run a sprite until something changes. Its programs are
// paused, and go on then.
type Held struct {
	Code    string    `json:"error"` // as in an ErrorBody: "disk_limit", "disk_full"
	Message string    `json:"message"`
	Hint    string    `json:"hint,omitempty"` // what to do
	Since   time.Time `json:"since"`

	UsedBytes  int64 `json:"used_bytes"`
	LimitBytes int64 `json:"limit_bytes"`

	// Of "disk_full": what the server's disk has left, and what it is to keep.
	FreeBytes    int64 `json:"free_bytes,omitempty"`
	ReserveBytes int64 `json:"reserve_bytes,omitempty"`
}

// URLSettings says who may open a sprite's URL: Auth is "sprite" (token) or "public".
type URLSettings struct {
	Auth          string `json:"auth,omitempty"`
	PrivateAccess string `json:"private_access,omitempty"`
}

// HostBase stands for the tools of the server's machine, in place of an image.
const HostBase = "host"

// Config is the machine a sprite asks for. Zero values mean the server's defaults.
type Config struct {
	RAMMB     int    `json:"ram_mb,omitempty"`
	CPUs      int    `json:"cpus,omitempty"`
	Region    string `json:"region,omitempty"`
	StorageGB int    `json:"storage_gb,omitempty"` // of 1024 MiB

	// StorageMB takes the place of StorageGB. Cove's own.
	StorageMB int `json:"storage_mb,omitempty"`

	// Image is the reference of an OCI image that the disk starts from. HostBase: the disk
	// starts from the tools of the server's machine. Empty: the server's default of the two. It
	// is resolved when the sprite is created (Details.Base), and never changes. Cove's own.
	Image string `json:"image,omitempty"`
}

// DiskLimit is the most that a sprite may take on the disk, in bytes; 0: there is no
// limit.
func (c Config) DiskLimit() int64 {
	if c.StorageMB > 0 {
		return int64(c.StorageMB) << 20
	}
	return int64(c.StorageGB) << 30
}

// CreateRequest asks for a new sprite.
type CreateRequest struct {
	Name        string            `json:"name"`
	URLSettings *URLSettings      `json:"url_settings,omitempty"`
	Labels      []string          `json:"labels,omitempty"`
	Config      *Config           `json:"config,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`

	// Cove's extensions; other servers ignore them.
	Base        string   `json:"base,omitempty"`         // "" or "host"
	Include     []string `json:"include,omitempty"`      // host folders, read-only, at the same path
	IdleSeconds *int64   `json:"idle_seconds,omitempty"` // nil: the server's default; 0: never

	HibernateSeconds *int64 `json:"hibernate_seconds,omitempty"` // likewise

	// NetworkPolicy is in force before anything runs in the sprite; nil: without
	// rules.
	NetworkPolicy *NetworkPolicy `json:"network_policy,omitempty"`

	// Owner and LeaseSeconds are for the server's own parts: whom the sprite
	// belongs to ("job:ID"), and for how long at least it is wanted.
	Owner        string `json:"owner,omitempty"`
	LeaseSeconds int64  `json:"lease_seconds,omitempty"`

	// Install is the key of the installation of an agent that the disk begins with
	// (AgentInstall); one that is not there is ErrNotFound.
	Install string `json:"install,omitempty"`
}

// UpdateRequest changes a sprite. Nil fields keep their value.
type UpdateRequest struct {
	URLSettings *URLSettings `json:"url_settings,omitempty"`
	Labels      *[]string    `json:"labels,omitempty"`
	ClearLabels bool         `json:"clear_labels,omitempty"`
	IdleSeconds *int64       `json:"idle_seconds,omitempty"`

	HibernateSeconds *int64 `json:"hibernate_seconds,omitempty"`

	// Retention is of the checkpoints that nobody asked for.
	Retention *Retention `json:"keep_checkpoints,omitempty"`

	// StorageMB is another disk limit, in MiB; 0: none.
	StorageMB *int `json:"storage_mb,omitempty"`

	// RAMMB and CPUs are other limits of its memory, in MiB, and of its processors; 0:
	// none. They hold at once if it is awake, too.
	RAMMB *int `json:"ram_mb,omitempty"`
	CPUs  *int `json:"cpus,omitempty"`

	// Revision is the one that the sprite must still have, else nothing changes and the
	// error has the status 412; empty: whichever it has. It is sent as If-Match.
	Revision string `json:"-"`
}

// RestartResult answers POST …/restart (section 17.3).
type RestartResult struct {
	SpriteName string `json:"sprite_name"`
	MachineID  string `json:"machine_id"` // the same before and after
	Message    string `json:"message"`
}

// Totals counts an organisation's sprites by state.
type Totals struct {
	Name         string `json:"name"`
	Running      int    `json:"running"`
	Warm         int    `json:"warm"`
	Cold         int    `json:"cold"`
	RunningLimit int    `json:"running_limit"`
	WarmLimit    int    `json:"warm_limit"`
}

// ListResponse is one page of sprites. The totals stand at the top level and
// under org, because clients look in either place.
type ListResponse struct {
	Sprites   []Info  `json:"sprites"`
	HasMore   bool    `json:"has_more"`
	NextToken *string `json:"next_continuation_token"`
	Totals
	Org Totals `json:"org"`
}

// StateEvent is a line of the watched list of sprites (section 17.3): the state
// of a sprite, or a heartbeat, which has no Name.
type StateEvent struct {
	Type           string     `json:"type,omitempty"` // "heartbeat", or empty
	Name           string     `json:"name,omitempty"`
	Status         Status     `json:"status,omitempty"`
	RunningVersion string     `json:"running_version,omitempty"` // while it runs
	LastRunning    *time.Time `json:"last_running_at,omitempty"`
	LastWarming    *time.Time `json:"last_warming_at,omitempty"`
	Timestamp      time.Time  `json:"timestamp"` // of the line
	Org            Totals     `json:"org"`       // at that time
}

// ErrorBody is the protocol's structured error (section 1.4). Code is for
// programs, Message and Hint are for people.
type ErrorBody struct {
	Code              string `json:"error"`
	Message           string `json:"message"`
	Hint              string `json:"hint,omitempty"`
	Limit             int    `json:"limit,omitempty"`
	WindowSeconds     int    `json:"window_seconds,omitempty"`
	RetryAfterSeconds int    `json:"retry_after_seconds,omitempty"`
	CurrentCount      int    `json:"current_count,omitempty"`
}

// Stream is the first byte of a binary exec frame without a terminal (section 3.2).
type Stream byte

// The streams of a non-TTY exec.
const (
	StreamStdin    Stream = 0 // client to server: input bytes
	StreamStdout   Stream = 1
	StreamStderr   Stream = 2
	StreamExit     Stream = 3 // one byte: the exit code
	StreamStdinEOF Stream = 4 // client to server, no payload: end of input
)

// Message is any of the JSON text messages on an exec socket (section 3.4). Type
// selects the fields in use; unknown types are ignored by both sides.
type Message struct {
	Type string `json:"type"` // session_info exit resize signal port_opened port_closed keepalive, and cove's held, memory_lost and stdin_taken

	SessionID string `json:"session_id,omitempty"` // session_info, from here
	Command   string `json:"command,omitempty"`
	Created   int64  `json:"created,omitempty"` // Unix seconds
	IsOwner   bool   `json:"is_owner,omitempty"`
	TTY       bool   `json:"tty,omitempty"`

	// Before is for a client that attaches. It is how many bytes of standard output,
	// and of standard error, came before those that the client gets. It is nil if the
	// server does not say. Cove's own.
	Before []int64 `json:"before,omitempty"`

	// Taken, in session_info and in stdin_taken, is how many bytes of its standard input
	// the command has taken. A server that counts them says it to those who ask with
	// resume=true. Cove's own.
	Taken *int64 `json:"taken,omitempty"`

	Cols int `json:"cols,omitempty"` // session_info and resize
	Rows int `json:"rows,omitempty"`

	ExitCode *int   `json:"exit_code,omitempty"` // exit
	Code     *int   `json:"code,omitempty"`      // exit, the same number for clients that read this key
	Reason   string `json:"reason,omitempty"`    // exit, cove: "timeout", "oom", "stopped", "restored" or "removed" with its sprite, "signal:KILL", or empty

	// Left, in an exit message, is how many processes that the command has started still
	// run. They will be ended when the command's time without a client is over. Cove's
	// own.
	Left int `json:"left,omitempty"`

	Signal string `json:"signal,omitempty"` // signal: with or without "SIG", any case

	Port    int    `json:"port,omitempty"` // port_opened and port_closed
	Address string `json:"address,omitempty"`
	PID     int    `json:"pid,omitempty"`

	// Held, in a held message, says why the command stands still with its sprite; nil:
	// it goes on. Cove's own.
	Held *Held `json:"held,omitempty"`

	// Lost, in a memory_lost message, says why the sprite began anew. Cove's own.
	Lost string `json:"lost,omitempty"`

	// Goroutines is how many the server has, for who looks for leaks.
	Goroutines int `json:"goroutines,omitempty"`
}

// MessageLost is the type of a Message that says that the sprite's programs are gone,
// though nobody had asked for that; its files are not. It is sent to the first command
// afterwards.
const MessageLost = "memory_lost"

// MessageTaken is the type of a Message that says how much of its input a command has taken.
const MessageTaken = "stdin_taken"

// MessageHeld is the type of a Message that says that a sprite is held, or is not any
// more.
const MessageHeld = "held"

// PortEvent says that a process of a sprite has begun, or ceased, to listen on a
// TCP port (sections 3.4 and 6.4).
type PortEvent struct {
	Type    string `json:"type"` // PortOpened or PortClosed
	Port    int    `json:"port"`
	Address string `json:"address"` // the IP it is bound to, such as 127.0.0.1 or ::
	PID     int    `json:"pid"`
}

// The types of a PortEvent.
const (
	PortOpened = "port_opened"
	PortClosed = "port_closed"
)

// Checked returns the event without values that make no sense. An address that is not
// an IP becomes empty, and an impossible process number becomes 0. It is false if this
// is not an event at all.
func (e PortEvent) Checked() (PortEvent, bool) {
	if e.Type != PortOpened && e.Type != PortClosed || e.Port <= 0 || e.Port > 65535 {
		return PortEvent{}, false
	}
	ip, err := netip.ParseAddr(e.Address)
	if e.Address = ""; err == nil {
		e.Address = ip.WithZone("").String()
	}
	if e.PID < 0 || e.PID > maxPID {
		e.PID = 0
	}
	return e, true
}

const maxPID = 1 << 22 // of Linux

// PortList is the first message of GET …/ports/watch: what is listened on, as
// events that opened it.
type PortList struct {
	Type  string      `json:"type"`  // port_list
	Ports []PortEvent `json:"ports"` // from cove never null
}

// Session is one exec in the session list (section 3.8).
type Session struct {
	ID             string     `json:"id"`
	Command        string     `json:"command"`
	Workdir        string     `json:"workdir"`
	Created        time.Time  `json:"created"`
	BytesPerSecond float64    `json:"bytes_per_second"`
	IsActive       bool       `json:"is_active"`
	LastActivity   *time.Time `json:"last_activity,omitempty"`
	TTY            bool       `json:"tty"`
}

// SessionList answers GET …/exec.
type SessionList struct {
	Count    int       `json:"count"`
	Sessions []Session `json:"sessions"`
}

// KillEvent is a line of the answer to POST …/exec/{id}/kill (section 3.10).
type KillEvent struct {
	Type     string `json:"type"` // signal timeout exited killed error complete
	Message  string `json:"message,omitempty"`
	Signal   string `json:"signal,omitempty"`
	PID      int    `json:"pid,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
}

// Entry is a file in a listing (section 5.4).
type Entry struct {
	Name    string    `json:"name"`
	Path    string    `json:"path"`
	Type    string    `json:"type"` // file directory symlink, or other
	Size    int64     `json:"size"`
	Mode    string    `json:"mode"` // octal permission bits, four digits
	ModTime time.Time `json:"modTime"`
	IsDir   bool      `json:"isDir"`
	Target  string    `json:"target,omitempty"` // symlink: where it points

	// ETag names the entry as it is; for a link, the link itself. It changes when another entry
	// takes its place, or when the entry is written to. It may change when a checkpoint is made
	// or the sprite boots. Only a list of one entry by stat=true has it. With it as If-Match, a
	// deletion or a renaming is of that entry alone.
	ETag string `json:"etag,omitempty"`
}

// ListFiles answers GET …/fs/list.
type ListFiles struct {
	Path    string  `json:"path"`
	Count   int     `json:"count"`
	Entries []Entry `json:"entries"` // never null
}

// WriteResult answers PUT …/fs/write.
type WriteResult struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	Mode string `json:"mode"`
}

// FileError is the body of a failed /fs call (section 5.10).
type FileError struct {
	Error   string `json:"error"`
	Code    string `json:"code"` // ENOENT EEXIST ENOTDIR EISDIR EACCES EPERM ENOTEMPTY EINVAL ENOSPC ESTALE EIO
	Path    string `json:"path"`
	Message string `json:"message"`
}

// WatchRequest is the first message on a watch socket, client to server (section
// 5.9). AsRoot is cove's own.
type WatchRequest struct {
	Type       string   `json:"type"` // subscribe
	Paths      []string `json:"paths"`
	Recursive  bool     `json:"recursive"`
	WorkingDir string   `json:"workingDir,omitempty"`
	AsRoot     bool     `json:"asRoot,omitempty"`
}

// WatchMessage is what a server says on a watch socket. Type selects the fields
// in use.
type WatchMessage struct {
	Type        string   `json:"type"`              // subscribed event error
	Paths       []string `json:"paths,omitempty"`   // subscribed
	Message     string   `json:"message,omitempty"` // error, for people
	Code        string   `json:"code,omitempty"`    // error, cove's own: as in FileError, or "events_lost", "limit", "ended"
	*WatchEvent          // event; nil otherwise
}

// WatchEvent is a change of a file.
type WatchEvent struct {
	Path      string    `json:"path"` // absolute, below the path that was asked for
	Event     WatchOp   `json:"event"`
	Timestamp time.Time `json:"timestamp"`
	Size      int64     `json:"size"` // when the event was sent; 0 if the file was gone
	IsDir     bool      `json:"isDir"`
}

// WatchOp is what has happened to a file. A moved file is renamed at its old place, and
// created at its new one.
type WatchOp string

// The changes that are watched for. Chmod is a change of mode, owner or times.
const (
	WatchCreate WatchOp = "create"
	WatchWrite  WatchOp = "write"
	WatchRemove WatchOp = "remove"
	WatchRename WatchOp = "rename"
	WatchChmod  WatchOp = "chmod"
)

// ProxyInit is the first message on a proxy socket, client to server (section 6.1).
// HalfClose asks for a cove extension: a text message {"type":"eof"} ends one
// direction. Unix asks for another one: the absolute path of a Unix socket takes the
// place of Host and Port. A server that has them echoes them.
type ProxyInit struct {
	Host      string `json:"host"`
	Port      int    `json:"port"`
	Unix      string `json:"unix,omitempty"`
	HalfClose bool   `json:"half_close,omitempty"`
}

// ProxyStatus answers ProxyInit; Status is "connected" or "error".
type ProxyStatus struct {
	Status    string `json:"status"`
	Target    string `json:"target"`
	Error     string `json:"error,omitempty"`
	Unix      string `json:"unix,omitempty"`
	HalfClose bool   `json:"half_close,omitempty"`
}

// VisitRequest asks for a link that lets a browser enter a sprite's URL.
type VisitRequest struct {
	Path string `json:"path,omitempty"` // where it leads, with a leading slash; "": /
}

// Visit is such a link. It works once, and soon.
type Visit struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
}

// RawJSON is JSON that passes through unread.
type RawJSON = json.RawMessage

// ServerInfo describes a cove server (GET /v1/version).
type ServerInfo struct {
	Version string `json:"version"` // of cove itself
	URL     string `json:"url"`
	Data    string `json:"data,omitempty"` // the data folder, as the server names it
	PID     int    `json:"pid,omitempty"`

	Pool *Pool `json:"pool,omitempty"` // nil: it has none

	DefaultImage string `json:"default_image,omitempty"` // of sprites that name none; empty: they get HostBase

	DiskFree    int64 `json:"disk_free_bytes,omitempty"`    // on the file system of the data folder; 0: not known
	DiskReserve int64 `json:"disk_reserve_bytes,omitempty"` // what sprites are to leave of that; 0: none

	// Held, in a held message, says why the command stands still with its sprite; nil:
	// it goes on. Cove's own.
	Held *Held `json:"held,omitempty"`

	// Goroutines is how many the server has, for who looks for leaks.
	Goroutines int `json:"goroutines,omitempty"`
}

// Pool is how many sandboxes a server keeps ready for new sprites.
type Pool struct {
	Size  int `json:"size"`
	Ready int `json:"ready"` // of them now

	Parts []PoolPart `json:"parts,omitempty"` // one for each base
}

// PoolPart is how many sandboxes a server keeps ready over one base.
type PoolPart struct {
	Image  string `json:"image"`            // as the server was told; HostBase: the tools of its machine
	Digest string `json:"digest,omitempty"` // of the image that this names now; empty: it is not there, or HostBase
	Size   int    `json:"size"`
	Ready  int    `json:"ready"`
	Error  string `json:"error,omitempty"` // why it is not full, if something is wrong
	Hint   string `json:"hint,omitempty"`  // what to type then
}

// SandboxLogs are the logs of a sprite's last sandboxes, for people (GET
// /v1/sprites/{name}/sandbox/logs).
type SandboxLogs struct {
	Logs []SandboxLog `json:"logs"`
}

// SandboxLog is the end of one log.
type SandboxLog struct {
	Name string `json:"name"` // shim.log, guest.log, runsc.log
	Size int64  `json:"size"` // of the whole
	Text string `json:"text"`
}
