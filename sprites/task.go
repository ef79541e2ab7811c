package sprites

import "time"

// Task holds its sprite awake until it expires (section 12.1). Programs inside
// the sprite make them.
type Task struct {
	Name      string    `json:"name"`
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at"`
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
}

// HTTPTarget is what a guest answers to POST /v1/http: where the sprite's URL
// leads.
type HTTPTarget struct {
	Port int `json:"port"`
}
