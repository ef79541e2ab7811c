package sprite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"

	"github.com/cove-dev/cove/sprites"
)

// Logs are the files of a log about a sprite, the oldest first; none if the runtime keeps none.
func (h *Host) Logs(ctx context.Context, name string, of Log) ([]string, error) {
	row, err := h.rows.named(ctx, name)
	if err != nil {
		return nil, err
	}
	return h.Runtime.Logs(row.ID, of), nil
}

// Of the processes that were ended, the last are shown; they are at the log's end.
const (
	shownKills = 5
	memoryTail = 4 << 10
)

// memoryKills are the last processes of a sprite that were ended for want of memory.
func (h *Host) memoryKills(id string) []sprites.MemoryKill {
	return lastKills(h.Runtime.Logs(id, LogMemory))
}

// lastKills are the last in these logs, the oldest log first.
func lastKills(logs []string) (kills []sprites.MemoryKill) {
	for _, log := range logs {
		kills = append(kills, readKills(log)...)
	}
	return kills[max(len(kills)-shownKills, 0):]
}

// readKills reads the end of a log of memory; nil: there is none.
func readKills(log string) (kills []sprites.MemoryKill) {
	f, err := os.Open(log)
	if err != nil {
		return nil // none were
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	from := max(info.Size()-memoryTail, 0)
	lines := bufio.NewScanner(io.NewSectionReader(f, from, memoryTail))
	for lines.Scan() {
		var k sprites.MemoryKill
		// The first may be the rest of a line.
		if json.NewDecoder(bytes.NewReader(lines.Bytes())).Decode(&k) == nil && k.PID > 0 {
			kills = append(kills, k)
		}
	}
	return kills
}
