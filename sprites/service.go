package sprites

import "time"

// Service is a program that a sprite keeps running (section 7.1). The sprite starts it
// at boot, after the services that it needs, and again when it has crashed, until
// somebody stops it.
type Service struct {
	Name     string            `json:"name"`
	Cmd      string            `json:"cmd"`                 // the program; found in PATH
	Args     []string          `json:"args"`                // its arguments
	Env      map[string]string `json:"env,omitempty"`       // over the sprite's environment; comes back in clear
	Dir      string            `json:"dir,omitempty"`       // "": the user's home
	Needs    []string          `json:"needs"`               // services that are started first
	HTTPPort int               `json:"http_port,omitempty"` // where the sprite's URL leads; one service has it at most

	// AfterRestore says what happens to the running program in a copy: a fork, or a
	// restore, that goes on from memory. It is "restart", "none", or a signal ("HUP")
	// that the program gets; "" is "restart", for a copy repeats the random numbers of
	// the others. An extension of cove's.
	AfterRestore string `json:"after_restore,omitempty"`

	// StopSignal asks the program to end, such as "QUIT"; "" is TERM to its group. Only the
	// program itself gets another one; what it leaves behind gets TERM. An extension of cove's.
	StopSignal string `json:"stop_signal,omitempty"`

	// User runs it; "" is the user that commands run as. Programs in the sprite can't set it.
	// An extension of cove's.
	User string `json:"user,omitempty"`

	State ServiceState `json:"state"` // ignored in a definition
}

// Values of a Service's AfterRestore, besides the names of signals.
const (
	AfterRestoreRestart = "restart"
	AfterRestoreNone    = "none"
)

// Generation tells which run of a sprite this is. It is a UUID, new at each boot and in
// each copy that goes on from memory.
type Generation struct {
	Generation string `json:"generation"`
}

// The states of a service.
const (
	ServiceStopped  = "stopped"  // by somebody; or, if there is an ExitCode, it ended: the next boot starts it again
	ServiceStarting = "starting" // or what it needs is
	ServiceRunning  = "running"
	ServiceStopping = "stopping"
	ServiceFailed   = "failed" // it crashed, or could not be started; NextRestartAt says when it is tried again
)

// ServiceState is what a service does now.
type ServiceState struct {
	Name          string     `json:"name"`
	Status        string     `json:"status"`
	PID           int        `json:"pid,omitempty"`
	StartedAt     *time.Time `json:"started_at,omitempty"`
	RestartCount  int        `json:"restart_count"` // after crashes, since it was last started by somebody or by the boot
	NextRestartAt *time.Time `json:"next_restart_at,omitempty"`
	Error         string     `json:"error,omitempty"`     // how it ended
	ExitCode      *int       `json:"exit_code,omitempty"` // of a program that ended by itself and does not run now
}

// The types of service events.
const (
	ServiceEventStarted  = "started"
	ServiceEventStdout   = "stdout"
	ServiceEventStderr   = "stderr"
	ServiceEventExit     = "exit" // it ended by itself
	ServiceEventError    = "error"
	ServiceEventStopping = "stopping"
	ServiceEventStopped  = "stopped"
	ServiceEventComplete = "complete" // the last of a stream
)

// ServiceEvent is a line of the answers to calls that change a service, and of
// its log.
type ServiceEvent struct {
	Type      string           `json:"type"`
	Data      string           `json:"data,omitempty"`      // stdout, stderr: output, with its line's end; error: why; else a remark
	ExitCode  *int             `json:"exit_code,omitempty"` // exit, stopped
	LogFiles  *ServiceLogFiles `json:"log_files,omitempty"` // complete
	Timestamp int64            `json:"timestamp"`           // Unix milliseconds
}

// ServiceLogFiles are paths in the sprite. They may be the same file.
type ServiceLogFiles struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	Combined string `json:"combined"`
}

// ServiceSignal is the body of POST …/services/signal.
type ServiceSignal struct {
	Name   string `json:"name"`
	Signal string `json:"signal"` // with or without SIG
}
