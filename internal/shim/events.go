package shim

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/lib/logfile"
	"github.com/cove-dev/cove/internal/shim/gateway"
	"github.com/cove-dev/cove/sprites"
)

// A sandbox's folder has four logs. RefusedLog and ConnectedLog have the connections
// that the sandbox was refused, and those that it made (a sprites.NetworkEvent a line).
// RequestLog has its requests through connectors (cove.ConnectorEvent). MemoryLog has
// processes that were ended because memory was short (sprites.MemoryKill). A log that
// has grown to EventLogSize is begun anew. The one before it is kept beside it, with
// OldSuffix.
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

// eventLog writes one of the logs. An event that can't be written is lost: the
// sandbox's network does not depend on the log.
type eventLog struct{ *logfile.File }

func newEventLog(dir, name string) eventLog {
	return eventLog{&logfile.File{Path: filepath.Join(dir, name), Max: EventLogSize}}
}

func (l eventLog) write(e any) {
	if line, err := json.Marshal(e); err == nil {
		_, _ = l.Write(append(line, '\n'))
	}
}
