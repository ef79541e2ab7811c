package sprite

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"

	"github.com/cove-dev/cove/sprites"
)

// A MemoryLogger is a Runtime that keeps, in a file of a sprites.MemoryKill a line,
// which processes of each sprite were ended for want of memory. It need not exist.
type MemoryLogger interface {
	MemoryLog(id string) string
}

// Of the processes that were ended, the last are told; they are at the log's end.
const (
	toldKills  = 5
	memoryTail = 4 << 10
)

// memoryKills are the last processes of a sprite that were ended for want of memory.
func (h *Host) memoryKills(id string) []sprites.MemoryKill {
	logger, ok := h.Runtime.(MemoryLogger)
	if !ok {
		return nil
	}
	f, err := os.Open(logger.MemoryLog(id))
	if err != nil {
		return nil // none were
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	from := max(info.Size()-memoryTail, 0)
	var kills []sprites.MemoryKill
	lines := bufio.NewScanner(io.NewSectionReader(f, from, memoryTail))
	for lines.Scan() {
		var k sprites.MemoryKill
		// The first may be the rest of a line.
		if json.NewDecoder(bytes.NewReader(lines.Bytes())).Decode(&k) == nil && k.PID > 0 {
			kills = append(kills, k)
		}
	}
	return kills[max(len(kills)-toldKills, 0):]
}
