package web

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// spriteView is a request about one sprite.
type spriteView struct {
	*view
	name string // of the sprite
}

// ofSprite makes a handler from a handler of a sprite. If the request says which sprite its
// page shows, it must be that one.
func ofSprite(handle func(*spriteView) error) handler {
	return func(v *view) error {
		s := &spriteView{v, v.r.PathValue("name")}
		switch err := s.isShown(); {
		case err == nil:
			return handle(s)
		case isLive(v.r) && describe(err).Code == "conflict":
			return tellWhy(v, err)
		case isLive(v.r): // it ends at once, and the page asks again, unless it is being left
			return v.stream(func(context.Context, *stream) error { return err })
		default:
			return err
		}
	}
}

// at is a page of the sprite.
func (v *spriteView) at(rest ...string) string {
	return spriteHead{Info: sprites.Info{Name: v.name}}.Path(rest...)
}

// spriteHead is what all pages of one sprite begin with. To describe a sprite does not wake it.
type spriteHead struct {
	Info sprites.Info
	Tab  string
	Mark string

	Write, Exec, Admin bool // what the session may do

	Unpulled []string // jobs whose work is in this sprite alone
}

// spriteTabs are the pages of a sprite, as their paths end.
var spriteTabs = []string{"", "terminal", "files", "services", "checkpoints", "network", "connectors"}

// Awake reports whether the sprite can answer at once, with nothing that wakes it.
func (h spriteHead) Awake() bool {
	return h.Info.Status == sprites.StatusRunning && (h.Info.Cove == nil || !h.Info.Cove.Paused && h.Info.Cove.Held == nil)
}

// Path is a page's of this sprite.
func (h spriteHead) Path(rest ...string) string {
	all := slices.DeleteFunc(append([]string{"web", "sprites", h.Info.Name}, rest...), func(s string) bool { return s == "" })
	return sprites.Path(all...)
}

// Badge is the class of the state's badge.
func (h spriteHead) Badge() string {
	if c := h.Info.Cove; c != nil && (c.Held != nil || c.Removing) {
		return "held"
	}
	return string(h.Info.Status)
}

// Means says what the state is; empty: the word says it.
func (h spriteHead) Means() string {
	switch c := h.Info.Cove; {
	case c != nil && c.Removing:
		return ""
	case c != nil && c.Paused:
		return "its programs are paused in memory"
	case h.Info.Status == sprites.StatusWarm:
		return "its programs are paused, and their memory is on disk"
	case h.Info.Status == sprites.StatusCold:
		return "nothing runs; its next use boots it"
	}
	return ""
}

// Woken is the use that the sprite was last woken for, in people's words; empty: unknown.
func (h spriteHead) Woken() string {
	if h.Info.Cove == nil || h.Info.Cove.WokenBy == "" {
		return ""
	}
	return useText(h.Info.Cove.WokenBy)
}

// uses are the uses that the server names, in people's words.
var uses = map[string]string{
	"exec": "a command or a terminal", "url": "a request to its URL", "proxy": "a connection to one of its ports", "wake": "somebody who asked for it",
	"fs": "a transfer of files", "watch": "somebody who watches its files", "ports": "somebody who watches its ports", "services": "a call to its services",
	"restore": "a restore", "fork": "a fork of it",
}

func useText(why string) string { return cmp.Or(uses[why], line(why)) }

// head describes the sprite of the request's path.
func (v *spriteView) head(ctx context.Context, tab string) (spriteHead, error) {
	info, err := v.api.Get(ctx, v.name)
	if err != nil {
		return spriteHead{}, err
	}
	v.shows = info.ID
	return spriteHead{
		Info: info, Tab: tab, Mark: v.session.mark(),
		Write: v.session.May(cove.VerbWrite), Exec: v.session.May(cove.VerbExec), Admin: v.session.May(cove.VerbAdmin),
	}, nil
}

// sprite is a handle on the sprite of the request's path.
func (v *spriteView) sprite() *sprites.Sprite { return v.api.Sprite(v.name) }

// spriteLive keeps the state of a sprite true, on each of its pages.
func spriteLive(v *spriteView) error {
	tab := v.r.URL.Query().Get("tab")
	if !slices.Contains(spriteTabs, tab) {
		tab = ""
	}
	return v.stream(func(ctx context.Context, s *stream) error {
		name, shown := v.name, v.r.URL.Query().Get(spriteField)
		for e, err := range v.api.Watch(ctx, name) {
			if err != nil {
				return err
			}
			if e.Name != name && e.Type != "heartbeat" {
				continue
			}
			h, err := v.head(ctx, tab)
			if err != nil {
				return err
			}
			if shown != "" && h.Info.ID != shown {
				return s.refuse(ctx, errAnotherSprite(name))
			}
			if err := s.replace("sprite-state", "sprite-state", h); err != nil {
				return err
			}
			if tab != "" {
				continue
			}
			page, err := v.overview(ctx, h)
			if err != nil {
				return err
			}
			if err := s.replace("sprite-overview", "sprite-overview", page); err != nil {
				return err
			}
		}
		return nil
	})
}

// spritePage answers with a page of one sprite. The stream of the sprite's state keeps it
// true.
func (v *spriteView) spritePage(h spriteHead, name string, data any) error {
	live := h.live()
	if h.Tab != "" {
		live += "&tab=" + url.QueryEscape(h.Tab)
	}
	return v.page(h.Info.Name, live, name, data)
}

// asleepPage is shown in place of a page that needs an awake sprite.
type asleepPage struct {
	Head  spriteHead
	What  string // to see, when it is awake
	Again string // the path of the page
}

// awake answers itself, with a question, if the sprite sleeps: looking at a page wakes nothing.
func (v *spriteView) awake(tab, what string) (h spriteHead, asked bool, err error) {
	if h, err = v.head(v.r.Context(), tab); err != nil || h.Awake() {
		return h, false, err
	}
	return h, true, v.spritePage(h, "sprite-asleep", asleepPage{Head: h, What: what, Again: v.r.URL.RequestURI()})
}

// mustBeAwake refuses a request that would wake the sprite: the page took it to be awake.
func (v *spriteView) mustBeAwake() error {
	h, err := v.head(v.r.Context(), "")
	if err == nil && !h.Awake() {
		return fail.New("conflict", "the sprite sleeps now", "wake it, and try again")
	}
	return err
}

// spriteDo is a button in the head of a sprite's pages.
func spriteDo(v *spriteView) error {
	name, ctx := v.name, v.r.Context()
	var err error
	switch v.r.PathValue("deed") {
	case "wake":
		v.say("The sprite %s is awake.", name)
		_, err = v.sprite().Wake(ctx)
	case "suspend":
		v.say("The sprite %s sleeps.", name)
		_, err = v.sprite().Suspend(ctx)
	case "restart":
		if err = v.confirm(); err == nil {
			v.say("The sprite %s is restarted: all that ran in it has ended.", name)
			_, err = v.api.Restart(ctx, name)
		}
	case "fork":
		to := strings.TrimSpace(v.r.PostFormValue("to"))
		var info sprites.Info
		if info, err = v.sprite().Fork(ctx, sprites.ForkRequest{Name: to, Checkpoint: v.r.PostFormValue("checkpoint")}); err == nil {
			v.say("This is the copy of %s.", name)
			return v.redirect(spriteHead{Info: info}.Path())
		}
	case "delete":
		if v.r.PostFormValue("typed") != name {
			return fail.New("bad_request", "the name that was typed is not the sprite's", "type "+name)
		}
		if err = v.confirm(); err == nil {
			err = v.api.Delete(ctx, name, sprites.DeleteOptions{Force: v.r.PostFormValue("force") == "yes"})
		}
		if err == nil {
			v.say("The sprite %s is deleted.", name)
			return v.redirect("/web/sprites")
		}
	default:
		return fail.New("not_found", "there is no such page", "")
	}
	if err != nil {
		return err
	}
	return v.redirect(v.back())
}

// back is the page of the sprite that a form stood on.
func (v *spriteView) back() string {
	home := v.at()
	if to := v.r.PostFormValue("back"); to == home || strings.HasPrefix(to, home+"/") || strings.HasPrefix(to, home+"?") {
		return to
	}
	return home
}

// unpulledIn are the jobs whose work is in a sprite alone.
func unpulledIn(ctx context.Context, v *spriteView, name string) (ids []string, _ error) {
	jobs, err := v.api.Jobs(ctx)
	for _, job := range jobs {
		if job.Backend == "" && job.Sprite == name && job.PulledAt == nil && job.Bundle.Size > 0 {
			ids = append(ids, job.ID)
		}
	}
	return ids, err
}

// overviewPage is the first page of a sprite.
type overviewPage struct {
	Head   spriteHead
	Awake  []string // why it does not fall asleep
	Limits []fact
	Facts  []fact
	Charts []chart
	Job    string // that made it
}

// fact is a name and its value.
type fact struct{ Name, Value string }

func spriteOverview(v *spriteView) error {
	h, err := v.head(v.r.Context(), "")
	if err != nil {
		return err
	}
	page, err := v.overview(v.r.Context(), h)
	if err != nil {
		return err
	}
	return v.spritePage(h, "sprite", page)
}

// overview gathers what the server knows of a sprite, and asks nothing of the sprite itself.
func (v *spriteView) overview(ctx context.Context, h spriteHead) (overviewPage, error) {
	unpulled, err := unpulledIn(ctx, v, h.Info.Name)
	if err != nil {
		return overviewPage{}, err
	}
	h.Unpulled = unpulled
	p := overviewPage{Head: h}
	c := h.Info.Cove
	if c == nil {
		c = &sprites.Details{}
	}
	for _, why := range c.AwakeBy {
		p.Awake = append(p.Awake, useText(why))
	}
	p.Job, _ = strings.CutPrefix(c.Owner, "job:")
	if p.Job == c.Owner {
		p.Job = ""
	}
	p.Facts = facts(h.Info, c)
	p.Limits = limits(h.Info, c)
	p.Charts, err = v.charts(ctx, h)
	return p, err
}

// facts are the lines of the overview.
func facts(info sprites.Info, c *sprites.Details) []fact {
	all := []fact{{"Base", cmp.Or(c.Base, "not known yet")}}
	if info.Config != nil && info.Config.Image != "" {
		all = append(all, fact{"Image", info.Config.Image})
	}
	all = append(all, fact{"URL", info.URL + map[bool]string{true: " (public)", false: " (with a token or a link)"}[info.URLSettings.Auth == "public"]})
	if len(c.Include) > 0 {
		all = append(all, fact{"Includes", strings.Join(c.Include, ", ")})
	}
	if c.Address != "" {
		all = append(all, fact{"Address", c.Address})
	}
	return append(all, fact{"Falls asleep", never(c.IdleSeconds, "after ", " without use")}, fact{"Memory goes to disk", never(c.HibernateSeconds, "after ", " without use")})
}
