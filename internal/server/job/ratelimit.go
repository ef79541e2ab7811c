package job

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// createLimited is the code by which a service says that it makes no more sprites for now.
const createLimited = "sprite_creation_rate_limited"

// createAt makes a sprite at a backend. If the backend limits how often sprites are made, and
// the time that it asks for ends before ctx does, createAt waits so long and tries once more.
func createAt(ctx context.Context, at *cove.Client, req sprites.CreateRequest) (sprites.Info, error) {
	info, err := at.Create(ctx, req)
	e, ok := errors.AsType[*sprites.Error](err)
	if !ok || e.StatusCode != http.StatusTooManyRequests || e.Code != createLimited || e.RetryAfter() <= 0 {
		return info, err
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= e.RetryAfter() {
		return info, err
	}
	again := time.NewTimer(e.RetryAfter())
	defer again.Stop()
	select {
	case <-again.C:
		return at.Create(ctx, req)
	case <-ctx.Done():
		return info, err
	}
}
