package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/shim/gateway"
)

// usageFile has what a sandbox has used of its connectors, so that its limits do
// not begin anew when it sleeps.
const usageFile = "usage.json"

// requestLog is the log of requests through connectors, and what was used of them.
// The gateway calls it with one request at a time.
type requestLog struct {
	eventLog
	path string
	used map[string]gateway.Usage
}

// open reads the use of connectors so far. After a crash of the machine the file
// may be damaged. Then the counts begin anew, and the error says so.
func (l *requestLog) open() (map[string]gateway.Usage, error) {
	l.used = map[string]gateway.Usage{}
	data, err := os.ReadFile(l.path)
	if err == nil {
		err = json.Unmarshal(data, &l.used)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.used = map[string]gateway.Usage{}
		return nil, fmt.Errorf("read what connectors were used: %w", err)
	}
	return maps.Clone(l.used), nil
}

func (l *requestLog) add(r gateway.Request) {
	l.write(connectorEvent(r))
	if r.Usage == nil || l.used[r.Connector] == *r.Usage {
		return
	}
	l.used[r.Connector] = *r.Usage
	data, err := json.Marshal(l.used)
	if err != nil {
		return
	}
	_ = atomicfile.Replace(l.path, data, 0o600) // it is counted on all the same
}

// maxEventText bounds each text in a line that a sandbox has chosen.
const maxEventText = 4096

func connectorEvent(r gateway.Request) cove.ConnectorEvent {
	text := func(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxEventText)], "?") }
	return cove.ConnectorEvent{
		Time: r.Time.UTC(), Connector: text(r.Connector), Method: text(r.Method), Path: text(r.Path), Status: r.Status,
		Sent: r.Sent, Received: r.Received, Milliseconds: r.Took.Milliseconds(), Refused: text(r.Refused),
		Model: text(r.Model), InputTokens: r.Tokens.Input, OutputTokens: r.Tokens.Output, CostUSD: float64(r.MicroUSD) / 1e6,
	}
}
