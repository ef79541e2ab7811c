package shim

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/cove-dev/cove/internal/gateway"
	"github.com/cove-dev/cove/sprites"
)

// The logs of what a sandbox was refused, of what it reached, of its requests through
// connectors, and of processes that were ended for want of memory are in its folder: a
// sprites.NetworkEvent, sprites.ConnectorEvent or sprites.MemoryKill a line. Each is
// begun anew when it has grown to EventLogSize; the one before it is kept beside it,
// with OldSuffix.
const (
	RefusedLog   = "refused.log"
	ConnectedLog = "connected.log"
	RequestLog   = "requests.log"
	MemoryLog    = "memory.log"
	OldSuffix    = ".1"
	EventLogSize = 4 << 20
)

func networkEvent(e gateway.Event) sprites.NetworkEvent {
	out := sprites.NetworkEvent{
		Time: e.Time.UTC(), Allowed: e.Allowed, Protocol: e.Proto, Name: strings.ToValidUTF8(e.Name, "?"), Port: int(e.Port),
		Rule: e.Rule, Hint: e.Hint, Suppressed: e.Suppressed,
	}
	if e.Addr.IsValid() {
		out.Address = &e.Addr
	}
	if e.Process.PID != 0 {
		out.Process = &sprites.Process{Name: e.Process.Name, PID: e.Process.PID}
	}
	return out
}

// eventLog writes one of the logs, for one caller at a time. What can't be written
// is lost: the sandbox's network does not depend on it.
type eventLog struct {
	path string
	file *os.File // nil: not open
	size int64
}

func (l *eventLog) write(e any) {
	line, err := json.Marshal(e)
	if err != nil {
		return
	}
	if l.file != nil && l.size >= EventLogSize {
		_ = l.file.Close()
		l.file = nil
		_ = os.Rename(l.path, l.path+OldSuffix)
	}
	if l.file == nil {
		f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		st, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return
		}
		l.file, l.size = f, st.Size()
	}
	n, _ := l.file.Write(append(line, '\n'))
	l.size += int64(n)
}
