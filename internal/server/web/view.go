package web

import (
	"cmp"
	"errors"
	"net/http"
	"path"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// handler answers a request of somebody who is logged in, or returns an error before it has
// written anything.
type handler func(*view) error

// view is one request to the site.
type view struct {
	w       http.ResponseWriter
	r       *http.Request
	site    *Site
	session Session
	api     *cove.Client // with the rights of the session's token
	shows   string       // the ID of the sprite that the page shows; empty: none
	held    int64        // of the site's budget

	saying
}

// rights say what a session may do: a page has no button that can't work.
type rights struct{ Write, Exec, Admin bool }

// rights are those of the session.
func (s Session) rights() rights {
	return rights{s.May(cove.VerbWrite), s.May(cove.VerbExec), s.May(cove.VerbAdmin)}
}

// layout is what the frame of a page shows.
func (v *view) layout(title string) layout {
	return layout{Title: title, Said: nextSaying(v), Live: aliveStream, Path: v.r.URL.Path, Version: v.site.Version, Mark: v.session.mark(), Sprite: v.shows, Who: v.session.Name, rights: v.session.rights()}
}

// page answers with a whole page. live is the path of the stream that keeps the page true.
// Empty: the page does not change by itself, and only says whether the server is there.
func (v *view) page(title, live, name string, data any) error {
	l := v.layout(title)
	l.Live = cmp.Or(live, aliveStream)
	render(v.w, v.r, http.StatusOK, l, name, data)
	return nil
}

// fragment answers a script with a part of a page. A browser that was led to the part's
// address is sent to the whole page. Another site's page must not choose a button of ours that
// is then all that a person sees.
func (v *view) fragment(name string, data any) error {
	if v.r.Method == http.MethodGet && wantsPage(v.r) {
		return v.redirect(path.Dir(v.r.URL.EscapedPath()))
	}
	if !mayChange(v.r) {
		fragment(v.w, v.r, http.StatusOK, name, data)
		return nil
	}
	part, err := markup(name, data)
	if err != nil {
		return err
	}
	fragment(v.w, v.r, http.StatusOK, "parts-of-page", dictOf("Part", part, "Said", v.hasSaid()))
	return nil
}

// done answers a script if the live region, or the page's stream, says all there is to say of
// a request. A browser without scripts is led to the page back.
func done(v *view, back string) error {
	if wantsPage(v.r) {
		return v.redirect(back)
	}
	return v.fragment("nothing", nil)
}

// redirect leads the browser to another page, whether a script or a person asked. That page
// shows the sentence of say.
func (v *view) redirect(path string) error {
	keepSaying(v)
	if !wantsPage(v.r) {
		v.w.Header().Set("HX-Redirect", path)
		v.w.WriteHeader(http.StatusNoContent)
		return nil
	}
	http.Redirect(v.w, v.r, path, http.StatusSeeOther)
	return nil
}

// confirm refuses what can't be undone to a session that did not come by a link not long ago.
func (v *view) confirm() error {
	if v.session.Confirmed() {
		return nil
	}
	return fail.New("confirm", "this can't be undone, or gives rights away: show again that it is you", "type `cove web` in a terminal, open the link in this browser, and try again")
}

// wantsPage reports whether the answer is shown by the browser itself, not put into a page by
// a script.
func wantsPage(r *http.Request) bool {
	return r.Header.Get("HX-Request") == "" && r.Header.Get("Accept") != "text/event-stream"
}

// problem is an error as a page shows it.
type problem struct {
	Status  int
	Code    string
	Title   string
	Message string
	Hint    string
	Retry   int // in how many seconds to try again; 0: nobody knows
}

// describe says of an error what people are shown.
func describe(err error) problem {
	p := problem{Status: http.StatusInternalServerError, Code: "internal", Message: err.Error()}
	if e, ok := errors.AsType[*fail.Error](err); ok {
		p.Status, p.Code, p.Message, p.Hint, p.Retry = e.Status(), e.Code, e.Error(), e.Hint, int(e.RetryAfter.Seconds())
	} else if e, ok := errors.AsType[*sprites.Error](err); ok {
		p.Status, p.Code, p.Message, p.Hint, p.Retry = e.StatusCode, e.Code, e.Message, e.Hint, e.RetryAfterSeconds
	}
	if p.Code == "confirm" {
		p.Status = http.StatusForbidden
	}
	p.Title = http.StatusText(p.Status)
	return p
}

func secondsUntil(t time.Time) int { return int(time.Until(t).Seconds()) }
