package web

import (
	"context"
	"net/http"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// A sprite that is deleted leaves its name to another one, while pages that show the first are
// still open. So a request from a page of a sprite has the ID of the sprite that the page
// shows. The ID is in a header or in a form's field. A WebSocket and a stream have neither:
// there it is in the query.
const (
	spriteHeader = "X-Cove-Sprite"
	spriteField  = "_sprite"
)

// isShown refuses a request from the page of another sprite than the one that has its name now. A request that changes
// something must say which sprite its page shows, and so must a terminal.
func (v *spriteView) isShown() error {
	said := false
	for _, id := range []string{v.r.Header.Get(spriteHeader), v.r.PostForm.Get(spriteField), v.r.URL.Query().Get(spriteField)} {
		if id == "" {
			continue
		}
		said = true
		info, err := v.api.Get(v.r.Context(), v.name)
		if err != nil {
			return err
		}
		if info.ID != id {
			return errAnotherSprite(v.name)
		}
	}
	if !said && (mayChange(v.r) || strings.HasSuffix(v.r.URL.Path, "/terminal/socket")) {
		return fail.New("conflict", "the page does not say which sprite it shows; nothing was done", "load the page again")
	}
	return nil
}

func errAnotherSprite(name string) error {
	return fail.New("conflict", "the sprite "+name+" that this page shows was deleted, and another one has its name now; nothing was done", "load the page again to see that one")
}

// live is a stream of this sprite's, which tells if another one has its name.
func (h spriteHead) live(rest ...string) string {
	return h.Path(append(rest, "live")...) + "?" + spriteField + "=" + h.Info.ID
}

// tellWhy has a page show why it gets no stream: a browser asks for a stream that is refused again and again.
func tellWhy(v *view, why error) error {
	return v.stream(func(ctx context.Context, s *stream) error { return s.refuse(ctx, why) })
}

// refuse tells a page why nothing more comes, until it is left.
func (s *stream) refuse(ctx context.Context, why error) error {
	if err := s.put("notice", "inner", "error", describe(why)); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// isLive reports whether a request is for a stream.
func isLive(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/live") }
