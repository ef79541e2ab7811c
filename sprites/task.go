package sprites

import (
	"fmt"
	"strconv"
	"time"
)

// Task holds its sprite awake until it expires (section 12.1). Programs inside
// the sprite make them.
type Task struct {
	Name      string    `json:"name"`
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at"`
}

// LongestTask is how long a task may last. A task that needs longer must be refreshed.
const LongestTask = time.Hour

// TaskExpiry reads when a task is to end, as seconds or a duration such as "30m".
// It is positive; a task does not get more than LongestTask of it.
func TaskExpiry(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if seconds, number := strconv.ParseFloat(text, 64); number == nil && seconds > 0 {
		d, err = time.Duration(min(seconds, 1e9)*float64(time.Second)), nil
	}
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("expire must be seconds or a duration such as 30m, not %.64q", text)
	}
	return d, nil
}

// TaskList answers GET /v1/tasks.
type TaskList struct {
	Tasks []Task `json:"tasks"`
}

// Activity is what a guest answers to GET /v1/activity: what keeps its sprite
// awake from inside.
type Activity struct {
	Sessions int      `json:"sessions"` // commands that run, with or without a client
	Tasks    []string `json:"tasks"`    // names of live tasks

	QuietSeconds *float64 `json:"quiet_seconds,omitempty"` // since the last of either ended; nil: none has
}

// HTTPTarget is what a guest answers to POST /v1/http: where the sprite's URL
// leads.
type HTTPTarget struct {
	Port int `json:"port"`
}
