package sprites

import "time"

// MemoryKill is the end of a process, by KILL, because a sprite's memory was almost
// used up. It was the largest process then, as the sprite says.
type MemoryKill struct {
	Time time.Time `json:"time"`
	Process
	ResidentBytes int64  `json:"resident_bytes"`        // of it
	LimitBytes    int64  `json:"limit_bytes,omitempty"` // of the sprite
	Session       string `json:"session,omitempty"`     // whose process it was: an exec's id, or a service's
}

// MemoryKills are those of a sandbox, the oldest first.
type MemoryKills struct {
	Kills []MemoryKill `json:"kills"`
}
