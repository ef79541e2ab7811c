package shim

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/gateway"
	"github.com/cove-dev/cove/sprites"
)

// The logs of what a sandbox was refused, and of what it reached, are in its
// folder: a sprites.NetworkEvent a line. Each is begun anew when it has grown to
// EventLogSize; the one before it is kept beside it, with OldSuffix.
const (
	RefusedLog   = "refused.log"
	ConnectedLog = "connected.log"
	OldSuffix    = ".1"
	EventLogSize = 4 << 20
)

// eventLog writes the two logs. The gateway calls it with one event at a time.
// What can't be written is lost: the sandbox's network does not depend on it.
type eventLog struct {
	dir   string
	files [2]*os.File // refused, connected; nil: not open
	sizes [2]int64
}

func (l *eventLog) write(e gateway.Event) {
	i, name := 0, RefusedLog
	if e.Allowed {
		i, name = 1, ConnectedLog
	}
	out := sprites.NetworkEvent{
		Time: e.Time.UTC(), Allowed: e.Allowed, Protocol: e.Proto, Name: strings.ToValidUTF8(e.Name, "?"), Port: int(e.Port),
		Rule: e.Rule, Hint: e.Hint, Suppressed: e.Suppressed,
	}
	if e.Addr.IsValid() {
		out.Address = &e.Addr
	}
	line, err := json.Marshal(out)
	if err != nil {
		return
	}
	path := filepath.Join(l.dir, name)
	if l.files[i] != nil && l.sizes[i] >= EventLogSize {
		_ = l.files[i].Close()
		l.files[i] = nil
		_ = os.Rename(path, path+OldSuffix)
	}
	if l.files[i] == nil {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		st, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return
		}
		l.files[i], l.sizes[i] = f, st.Size()
	}
	n, _ := l.files[i].Write(append(line, '\n'))
	l.sizes[i] += int64(n)
}
