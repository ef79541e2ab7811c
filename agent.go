package cove

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// AgentDefinition is an agent that a file defines, as it goes along with a job: the
// server knows no files of the person's.
type AgentDefinition struct {
	File string `json:"file"` // for people
	Text string `json:"text"` // TOML
}

// Skill is the text that makes an agent carry a plan out alone.
type Skill struct {
	Name    string `json:"name"` // for people: where it is from
	Version string `json:"version,omitempty"`
	SHA256  string `json:"sha256"`
	Text    string `json:"text,omitempty"` // empty in a Job: the digest says which it was
}

// SettingsFile is one of a person's settings for an agent, which goes along with a job.
type SettingsFile struct {
	Path       string `json:"path"` // below the home of the sprite's user
	Text       string `json:"text"`
	Executable bool   `json:"executable,omitempty"`
}

// AgentInstall is an installation of an agent that sprites share: the disks of those
// that are made for jobs begin with it.
type AgentInstall struct {
	Key       string    `json:"key"`
	Agent     string    `json:"agent"`
	Version   string    `json:"version,omitempty"`
	Bytes     int64     `json:"bytes,omitempty"` // on the disk; 0: not known yet
	TookMS    int64     `json:"took_ms"`
	CreatedAt time.Time `json:"created_at"`
	UsedAt    time.Time `json:"used_at"`
}

// AgentInstallList answers GET /v1/installs, the newest first.
type AgentInstallList struct {
	Installs []AgentInstall `json:"installs"`
}

// Installs returns the installations of agents that sprites share.
func (c *Client) Installs(ctx context.Context) ([]AgentInstall, error) {
	var list AgentInstallList
	if err := c.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "installs"), Retry: true}, &list); err != nil {
		return nil, fmt.Errorf("list the installations of agents: %w", err)
	}
	return list.Installs, nil
}
