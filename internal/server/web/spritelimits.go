package web

import (
	"fmt"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// never writes how long after something happens; 0 is never.
func never(seconds int64, before, after string) string {
	if seconds == 0 {
		return "never"
	}
	return before + formatDuration(time.Duration(seconds)*time.Second) + after
}

// limits are the limits of a sprite, and what it takes of them.
func limits(info sprites.Info, c *sprites.Details) []fact {
	cfg := info.Config
	if cfg == nil {
		cfg = &sprites.Config{}
	}
	memory, cpus, disk := "no limit", "no limit", "no limit"
	if cfg.RAMMB > 0 {
		memory = formatBytes(int64(cfg.RAMMB) << 20)
		if c.MemoryMB > 0 {
			memory += fmt.Sprintf(", of which it gets %s here", formatBytes(int64(c.MemoryMB)<<20))
		}
	}
	if cfg.CPUs > 0 {
		cpus = fmt.Sprint(cfg.CPUs)
	}
	if limit := cfg.DiskLimit(); limit > 0 {
		disk = formatBytes(limit)
		if c.DiskUsed > 0 {
			disk = fmt.Sprintf("%s of %s (%d %%)", formatBytes(c.DiskUsed), disk, c.DiskUsed*100/limit)
		}
	}
	return []fact{{"Memory", memory}, {"Processors", cpus}, {"Disk", disk}}
}
