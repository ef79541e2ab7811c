package shim

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/lib/logfile"
	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/sprites"
)

// The logs of what a sandbox was refused, of what it reached, of its requests through
// connectors, and of processes that were ended for want of memory are in its folder: a
// sprites.NetworkEvent, cove.ConnectorEvent or sprites.MemoryKill a line. Each is
// begun anew when it has grown to EventLogSize; the one before it is kept beside it,
// with OldSuffix.
const (
	RefusedLog   = "refused.log"
	ConnectedLog = "connected.log"
	RequestLog   = "requests.log"
	MemoryLog    = "memory.log"
	OldSuffix    = logfile.OldSuffix
	EventLogSize = 4 << 20
)

func networkEvent(e gateway.Event) sprites.NetworkEvent {
	out := sprites.NetworkEvent{
		Time: e.Time.UTC(), Allowed: e.Allowed, Protocol: e.Proto, Name: strings.ToValidUTF8(e.Name, "?"), Port: int(e.Port),
		Rule: e.Rule, Hint: e.Hint, Opens: e.Opens, Suppressed: e.Suppressed,
	}
	if e.Addr.IsValid() {
		out.Address = &e.Addr
	}
	if e.Process.PID != 0 {
		out.Process = &sprites.Process{Name: e.Process.Name, PID: e.Process.PID}
	}
	return out
}

// eventLog writes one of the logs. What can't be written is lost: the sandbox's network
// does not depend on it.
type eventLog struct{ *logfile.File }

func newEventLog(dir, name string) eventLog {
	return eventLog{&logfile.File{Path: filepath.Join(dir, name), Max: EventLogSize}}
}

func (l eventLog) write(e any) {
	if line, err := json.Marshal(e); err == nil {
		_, _ = l.Write(append(line, '\n'))
	}
}
