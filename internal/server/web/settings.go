package web

import (
	"html/template"
	"net/http"
	"net/url"
	"slices"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// settingsTab is one tab of the settings. Its template is settings-KEY.
type settingsTab struct {
	Key, Title string
	verb       string // that looking at it needs; empty: none
	load       func(*view) (any, error)
}

// settingsTabs are all of them. The first is shown if none is asked for.
func settingsTabs() []settingsTab {
	return []settingsTab{
		{"profiles", "Profiles", cove.VerbRead, profilesTab},
		{"secrets", "Secrets", cove.VerbAdmin, secretsTab},
		{"connectors", "Connectors", cove.VerbAdmin, connectorsTab},
		{"tokens", "Tokens", cove.VerbAdmin, tokensTab},
		{"sessions", "Browsers", "", sessionsTab},
		{"images", "Images", cove.VerbRead, imagesTab},
		{"backends", "Backends", cove.VerbAdmin, backendsTab},
		{"webhooks", "Webhooks", cove.VerbAdmin, webhooksTab},
		{"running", "Sprites of jobs", cove.VerbRead, runningTab},
		{"server", "Server", cove.VerbAdmin, serverTab},
	}
}

// settingsPage is the frame of a tab.
type settingsPage struct {
	Tabs []settingsTab
	Tab  settingsTab
	Body template.HTML // of the tab's template
}

// settings shows a tab. Each is one page: what it lists can be long, and is asked for alone.
func settings(v *view) error {
	tabs, key := settingsTabs(), v.r.URL.Query().Get("tab")
	may := func(t settingsTab) bool { return t.verb == "" || v.session.May(t.verb) }
	listed := slices.DeleteFunc(slices.Clone(tabs), func(t settingsTab) bool { return !may(t) })
	tab, known := listed[0], key == "" // all may see their browsers
	if at := slices.IndexFunc(tabs, func(t settingsTab) bool { return t.Key == key }); at >= 0 {
		tab, known = tabs[at], true
	}
	switch {
	case !known:
		return noTab(v, listed, fail.New("not_found", "the settings have no such tab", "choose one above"))
	case !may(tab):
		return noTab(v, listed, fail.Newf("forbidden", "log in by the link of a token that has it: cove web", "the tab %s of the settings needs the verb %s; this token does not have it", tab.Title, tab.verb))
	}
	data, err := tab.load(v)
	if err != nil {
		return err
	}
	body, err := markup("settings-"+tab.Key, data)
	if err != nil {
		return err
	}
	l := v.layout(tab.Title)
	l.Script = "settings.js"
	render(v.w, v.r, http.StatusOK, l, "settings", settingsPage{listed, tab, body})
	return nil
}

// noTab says why a tab is not shown, below those that are there for the session.
func noTab(v *view, listed []settingsTab, why error) error {
	if !wantsPage(v.r) {
		return why
	}
	e := describe(why)
	body, err := markup("error", e)
	if err != nil {
		return err
	}
	render(v.w, v.r, e.Status, v.layout(e.Title), "settings", settingsPage{Tabs: listed, Body: body})
	return nil
}

// saves makes a handler that does what a form says, and then shows the list of the tab again.
// Text that is typed in other forms of the page stays.
func saves(tab string, do func(v *view, f url.Values) error) handler {
	return func(v *view) error {
		f := v.r.PostForm
		if err := do(v, f); err != nil {
			return err
		}
		if wantsPage(v.r) || tab == "sessions" { // this browser's own may have ended
			return v.redirect("/web/settings?tab=" + tab)
		}
		return v.fragment("beside", dictOf("Answer", template.HTML(""), "Tab", tab, "List", listOf(v, tab)))
	}
}

// answerBeside answers a form with a part of the page. Beside it, the tab's list is shown as it is now.
func answerBeside(v *view, tab, name string, data any) error {
	answer, err := markup(name, data)
	if err != nil {
		return err
	}
	return v.fragment("beside", dictOf("Answer", answer, "Tab", tab, "List", listOf(v, tab)))
}

// listOf is the list of a tab, or why it can't be shown: that does not undo what the form has
// done.
func listOf(v *view, tab string) template.HTML {
	tabs := settingsTabs()
	data, err := tabs[slices.IndexFunc(tabs, func(t settingsTab) bool { return t.Key == tab })].load(v)
	if err == nil {
		var list template.HTML
		if list, err = markup("list-"+tab, data); err == nil {
			return list
		}
	}
	list, _ := markup("error", describe(err)) // a component's test has shown it
	return list
}

// named is a form's name of something. The API checks names; an empty one would be another path.
func named(f url.Values) (string, error) {
	if name := f.Get("name"); name != "" {
		return name, nil
	}
	return "", fail.New("bad_request", "the name is missing", "give one")
}

// ask is a dialog that asks before something is lost.
type ask struct {
	ID     string // of the dialog, on its page
	Button string // opens it, and is in it
	Title  string
	Lost   []string // that is lost, a line each
	Action string
	Fields map[string]string
	Choice string   // a box to tick, that says: also; its field is "force"
	Chosen []string // what it is about, a line each
	Must   bool     // nothing is done without Choice
	Into   string   // the element into which the answer streams; empty: it leads to a page
}

// serverPage is the tab of the server itself.
type serverPage struct {
	Info      serverInfo
	Executors []cove.ExecutorStatus
	Findings  []finding
	Installs  []cove.AgentInstall
}
