package server

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// pageDefault is how many sprites an answer has if its request does not say.
const pageDefault = 50

// spriteList lists the sprites that a token reaches, and lets clients watch that list.
type spriteList struct {
	host     *sprite.Host
	sprites  *store.Sprites
	watchers *quota
	patience time.Duration // of heartbeats; a watcher that does not read for that long is dropped
}

// serve answers with a page of the sprites that the token reaches, or lets the client watch them.
func (l *spriteList) serve(w http.ResponseWriter, r *http.Request) error {
	if strings.Contains(r.Header.Get("Accept"), "application/x-ndjson") {
		return l.watch(w, r)
	}
	q := r.URL.Query()
	scope, filter := spriteFilters(r)
	switch state := q.Get("state"); state {
	case "":
	case "held":
		filter.Held = true
	case string(sprites.StatusRunning), string(sprites.StatusWarm), string(sprites.StatusCold):
		filter.Status = sprites.Status(state)
	default:
		return fail.Newf(sprite.CodeBadRequest, "there are running, warm, cold and held", "there is no state %s of sprites", clean(state, maxMethod))
	}
	filter.Text = q.Get("q")
	after, err := base64.RawURLEncoding.DecodeString(q.Get("continuation_token"))
	if err != nil || len(after) > 100 {
		return fail.New(sprite.CodeBadRequest, "the continuation_token is not one of this server's", "")
	}
	filter.After = string(after)
	size := pageSize(q.Get("max_results"))
	filter.Limit = size + 1 // one more tells whether there are more
	list, err := l.host.List(r.Context(), filter)
	if err != nil {
		return err
	}
	totals, err := l.totals(r.Context(), scope)
	if err != nil {
		return err
	}
	page := sprites.ListResponse{Sprites: list, Totals: totals, Org: totals}
	if len(list) > size {
		page.Sprites = list[:size]
		page.HasMore = true
		token := base64.RawURLEncoding.EncodeToString([]byte(list[size-1].Name))
		page.NextToken = &token
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

// spriteFilters select the sprites that the token reaches, and of those the ones
// that the query wants.
func spriteFilters(r *http.Request) (scope, filter store.SpriteFilter) {
	p, q := principalOf(r), r.URL.Query()
	scope = store.SpriteFilter{Name: p.scope.Sprite, Scope: p.scope.Prefix}
	if p.scope.Profile != "" {
		scope.JobsBy = p.name
	}
	filter = scope
	filter.Prefix, filter.Label = q.Get("prefix"), q.Get("label")
	return scope, filter
}

// pageSize clamps what a client asks for.
func pageSize(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		return pageDefault
	}
	return min(n, sprites.MaxPage)
}

func (l *spriteList) totals(ctx context.Context, filter store.SpriteFilter) (sprites.Totals, error) {
	filter.Public = true
	count, err := l.sprites.Count(ctx, filter)
	return sprites.Totals{
		Name:         sprite.Organization,
		Running:      count[sprites.StatusRunning],
		Warm:         count[sprites.StatusWarm],
		Cold:         count[sprites.StatusCold],
		RunningLimit: l.host.MaxRunning,
	}, err
}
