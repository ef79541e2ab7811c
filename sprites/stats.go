package sprites

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Stats is what a cove server has measured of a sprite while it was awake.
type Stats struct {
	// Samples are of the last hour, the oldest first: about one a minute, and one of now if
	// the sprite is awake.
	Samples []Sample `json:"samples"`
}

// Sample is one measurement. The sums count from the start of the sandbox: they begin anew with
// the next one. If a machine gives a sandbox no cgroup of its own, its memory and processor
// time are not measured. They are 0 only then, and left out of the JSON.
type Sample struct {
	Time            time.Time `json:"time"`
	MemoryBytes     int64     `json:"memory_bytes,omitempty"`     // that it uses
	CPUMicroseconds int64     `json:"cpu_microseconds,omitempty"` // of processor time
	WrittenBytes    int64     `json:"written_bytes"`              // to files
	DiskBytes       int64     `json:"disk_bytes"`                 // of its limit, as far as that was looked at
	ReceivedBytes   int64     `json:"received_bytes"`             // from the network
	SentBytes       int64     `json:"sent_bytes"`                 // to it
}

// Measured tells what a cove server has measured of a sprite in the last hour. It does not wake
// the sprite.
func Measured(ctx context.Context, s *Sprite) (Stats, error) {
	var out Stats
	if err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("stats"), Retry: true}, &out); err != nil {
		return Stats{}, fmt.Errorf("stats of %s: %w", s.describe(), err)
	}
	return out, nil
}
