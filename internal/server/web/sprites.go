package web

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// spritesAgain is how often a list of sprites that is looked at is read again.
const spritesAgain = 3 * time.Second

// spriteRow is a sprite in a list.
type spriteRow struct {
	Name     string
	To       string
	Status   string
	State    string // for people
	Labels   []string
	Job      string // that it was made for; empty: none
	Memory   string
	Disk     string
	Awake    []string
	At       time.Time // when it ran last; zero: never
	Why      string    // it may not run
	Hint     string
	Problem  string
	Removing bool
}

func spriteRowID(name string) string { return "sprite-" + name }

const mib = 1 << 20

// spriteRowOf makes the row of a sprite.
func spriteRowOf(info sprites.Info) spriteRow {
	r := spriteRow{Name: info.Name, To: spriteAddress(info.Name), Status: string(info.Status), State: info.StateText(), Labels: info.Labels}
	if len(r.Labels) > maxLabels {
		r.Labels = append(r.Labels[:maxLabels:maxLabels], "…")
	}
	if info.LastRunning != nil {
		r.At = info.LastRunning.UTC()
	}
	if info.Config != nil && info.Config.RAMMB > 0 {
		r.Memory = formatBytes(int64(info.Config.RAMMB) * mib)
	}
	d := info.Cove
	if d == nil {
		return r
	}
	if job, ok := strings.CutPrefix(d.Owner, "job:"); ok {
		r.Job = job
	}
	switch {
	case d.DiskUsed > 0:
		r.Disk = formatBytes(d.DiskUsed / mib * mib) // one more byte is not news
	case d.DiskUse != nil:
		r.Disk = "" // the sealed layers' size alone says little
	}
	r.Problem, r.Removing = d.LastError, d.Removing
	for _, why := range d.AwakeBy[:min(len(d.AwakeBy), maxLabels)] {
		r.Awake = append(r.Awake, useText(why))
	}
	if len(d.AwakeBy) > maxLabels {
		r.Awake = append(r.Awake, fmt.Sprintf("and %d more", len(d.AwakeBy)-maxLabels))
	}
	if d.Held != nil {
		r.Why, r.Hint = d.Held.Message, d.Held.Hint
	}
	return r
}

const maxLabels = 8 // that a row shows

// spriteForm is what the list is filtered by.
type spriteForm struct{ State, Prefix, Label, Text string }

func (v *view) spriteForm() spriteForm {
	q := v.r.URL.Query()
	return spriteForm{State: q.Get("state"), Prefix: q.Get("prefix"), Label: q.Get("label"), Text: q.Get("q")}
}

// address is a path with the filter.
func (f spriteForm) address(path, state string, more ...string) string {
	values := url.Values{}
	for i, all := 0, append([]string{"state", state, "prefix", f.Prefix, "label", f.Label, "q", f.Text}, more...); i+1 < len(all); i += 2 {
		if all[i+1] != "" {
			values.Set(all[i], all[i+1])
		}
	}
	if len(values) == 0 {
		return path
	}
	return path + "?" + values.Encode()
}

func spriteList(v *view) error {
	form, token := v.spriteForm(), v.r.URL.Query().Get("after")
	s, list, err := v.sprites(v.r.Context(), form, token)
	if err != nil {
		return err
	}
	page := listPage{Form: form, Section: s}
	if token != "" {
		page.First = form.address("/web/sprites", form.State)
	}
	if list.NextToken != nil && list.HasMore {
		page.Next = form.address("/web/sprites", form.State, "after", *list.NextToken)
	}
	return v.page("Sprites", form.address("/web/lists/sprites/live", form.State, "after", token, "have", listsDigest([]section{s})), "sprites", page)
}

func spritesLive(v *view) error {
	form, token := v.spriteForm(), v.r.URL.Query().Get("after")
	return v.follow(spritesAgain, func(ctx context.Context) ([]section, error) {
		s, _, err := v.sprites(ctx, form, token)
		return []section{s}, err
	}, func(cove.Job) row { return row{} })
}

// sprites reads a page of the list.
func (v *view) sprites(ctx context.Context, form spriteForm, token string) (s section, list sprites.ListResponse, err error) {
	list, err = v.api.List(ctx, sprites.ListOptions{Prefix: form.Prefix, Label: form.Label, State: form.State, Text: form.Text, MaxResults: listRows, Token: token})
	s = section{ID: "list", Title: "Sprites", Empty: "There is no sprite yet."}
	if form != (spriteForm{}) || token != "" {
		s.Empty = "No sprite matches."
	}
	for _, info := range list.Sprites {
		s.Rows = append(s.Rows, row{ID: spriteRowID(info.Name), Template: "sprite-row", Data: spriteRowOf(info)})
	}
	if s.Count = strconv.Itoa(len(s.Rows)); list.HasMore {
		s.Count += " of more"
	}
	s.Tabs = stateTabs(form, list.Totals)
	return s, list, err
}

// stateTabs lead to the sprites of a state, with how many there are.
func stateTabs(form spriteForm, t sprites.Totals) []tab {
	var all []tab
	for _, state := range []struct {
		title, state string
		n            int
	}{{"All", "", t.Running + t.Warm + t.Cold}, {"Running", "running", t.Running}, {"Paused or warm", "warm", t.Warm}, {"Cold", "cold", t.Cold}, {"Held", "held", -1}} {
		all = append(all, tab{state.title, state.n, form.address("/web/sprites", state.state), form.State == state.state})
	}
	return all
}
