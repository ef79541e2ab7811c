package cove

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// OrphanAge is the least age of an orphan: a younger sprite may still be on its way into a row.
const OrphanAge = 10 * time.Minute

// Orphan is a sprite that this server made for a job, and that no environment has: the row
// is missing, or says gone. It is at least OrphanAge old. For a sprite at this server, the
// job is removed, too. The server never deletes an orphan by itself.
type Orphan struct {
	Name      string         `json:"name"`
	Backend   string         `json:"backend,omitempty"` // has the sprite; empty: this server has it
	SpriteID  string         `json:"sprite_id"`
	Job       string         `json:"job"` // that it was made for
	Status    sprites.Status `json:"status"`
	CreatedAt time.Time      `json:"created_at"`
}

// OrphanList answers GET /v1/environments/orphans.
type OrphanList struct {
	Orphans []Orphan      `json:"orphans"` // by backend and name
	Unheard []OrphanPlace `json:"unheard,omitempty"`
}

// OrphanPlace is a place that did not list its sprites. It may have orphans.
type OrphanPlace struct {
	Backend string            `json:"backend,omitempty"` // empty: this server
	Error   sprites.ErrorBody `json:"failure"`
}

// OrphanName names an orphan.
type OrphanName struct {
	Backend string `json:"backend,omitempty"`
	Name    string `json:"name"`
}

// OrphanDestroy asks to destroy orphans (POST /v1/environments/orphans/destroy).
type OrphanDestroy struct {
	Orphans []OrphanName `json:"orphans,omitempty"` // empty: all
}

// OrphansDestroyed says what became of them.
type OrphansDestroyed struct {
	Results []OrphanResult `json:"results"`
	Unheard []OrphanPlace  `json:"unheard,omitempty"`
}

// OrphanResult is the result of destroying an orphan.
type OrphanResult struct {
	Orphan Orphan             `json:"orphan"`
	Error  *sprites.ErrorBody `json:"failure,omitempty"` // why it is not gone; nil: it is
}

// Orphans asks each place for its sprites, and returns those that are orphans.
func (e Environments) Orphans(ctx context.Context) (OrphanList, error) {
	var list OrphanList
	if err := e.Client.Call(ctx, sprites.Request{Method: http.MethodGet, Path: sprites.Path("v1", "environments", "orphans")}, &list); err != nil {
		return list, fmt.Errorf("list orphans: %w", err)
	}
	return list, nil
}

// DestroyOrphans destroys orphans, each on its own. A sprite that is not an orphan any more
// is refused.
func (e Environments) DestroyOrphans(ctx context.Context, ask OrphanDestroy) (OrphansDestroyed, error) {
	var all OrphansDestroyed
	if err := e.Client.Call(ctx, sprites.Request{Method: http.MethodPost, Path: sprites.Path("v1", "environments", "orphans", "destroy"), JSON: ask}, &all); err != nil {
		return all, fmt.Errorf("destroy orphans: %w", err)
	}
	return all, nil
}
