package web

import (
	"fmt"
	"net/url"
	"strconv"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/tomldoc"
	"github.com/cove-dev/cove/internal/server/agents"
)

// profilesPage lists profiles, and has the editor of one.
type profilesPage struct {
	Profiles []profileRow
	Editor   profileEditor
	Mark     string
	rights
}

type profileRow struct {
	cove.Profile
	Ask ask
}

// profileEditor is a profile's text, and what the server says of it.
type profileEditor struct {
	Name     string
	Revision int64 // that was read; 0: a new one
	Text     string
	Agents   []string
	Warnings []string
	Problem  *problem
	Stored   int64 // the revision that the text has now; 0: it was not stored
	Mark     string
	rights
}

// newProfile is the text with which the editor begins.
const newProfile = `description = ""
agent = "shell"
timeout_seconds = 3600
`

func profilesTab(v *view) (any, error) {
	page := profilesPage{Mark: v.session.mark(), rights: v.session.rights(), Editor: profileEditor{rights: v.session.rights(), Text: newProfile, Agents: agents.Names(), Mark: v.session.mark()}}
	all, err := cove.Profiles{Client: v.api}.List(v.r.Context())
	if err != nil {
		return nil, err
	}
	for i, p := range all {
		page.Profiles = append(page.Profiles, profileRow{p, ask{
			ID: fmt.Sprintf("delete-profile-%d", i), Button: "Delete", Title: "Delete the profile " + p.Name + "?", Action: "/web/settings/profiles/delete",
			Fields: map[string]string{"name": p.Name}, Lost: []string{"It is deleted with its history (" + printable.Count(p.Revision, "revision") + "). Jobs that were made with it go on."},
		}})
		if p.Name == v.r.URL.Query().Get("name") {
			page.Editor.Name, page.Editor.Revision = p.Name, p.Revision
			if page.Editor.Text, err = tomldoc.Text(p.ProfileSettings); err != nil {
				return nil, err
			}
		}
	}
	return page, nil
}

// putProfile stores the text of the editor, and shows it again with what the server says.
func putProfile(v *view) error {
	f := v.r.PostForm
	e := profileEditor{rights: v.session.rights(), Name: f.Get("name"), Text: f.Get("text"), Agents: agents.Names(), Mark: v.session.mark()}
	e.Revision, _ = strconv.ParseInt(f.Get("revision"), 10, 64) // of another editor's text: none
	if put, err := storeProfile(v, e); err != nil {
		p := describe(err)
		e.Problem = &p
	} else {
		e.Revision, e.Stored, e.Warnings = put.Revision, put.Revision, put.Warnings
		v.say("The profile %s is stored.", e.Name)
	}
	if wantsPage(v.r) {
		return v.page("Profile", "", "profile-page", e)
	}
	return answerBeside(v, "profiles", "profile-editor", e)
}

func storeProfile(v *view, e profileEditor) (put cove.ProfilePut, err error) {
	var settings cove.ProfileSettings
	if e.Name == "" {
		return put, fail.New("bad_request", "the name is missing", "give one: lower-case letters, digits and hyphens")
	}
	if err := tomldoc.Parse([]byte(e.Text), &settings); err != nil {
		return put, fail.New("bad_request", "the text is not a profile: "+err.Error(), "“What can be in it”, below the text, says how one is written")
	}
	return cove.Profiles{Client: v.api}.Put(v.r.Context(), e.Name, e.Revision, settings)
}

func deleteProfile(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	v.say("The profile %s is deleted.", name)
	return cove.Profiles{Client: v.api}.Delete(v.r.Context(), name)
}

func defaultProfile(v *view, f url.Values) error {
	v.say("No profile is the default now.")
	if name := f.Get("name"); name != "" {
		v.say("The profile %s is the default now.", name)
	}
	return cove.Profiles{Client: v.api}.SetDefault(v.r.Context(), f.Get("name"))
}

// applyProfile gives the jobs of a profile its network policy of now, and says what became of each.
func applyProfile(v *view) error {
	f := v.r.PostForm
	name, err := named(f)
	if err != nil {
		return err
	}
	applied, err := cove.Profiles{Client: v.api}.Apply(v.r.Context(), name, f.Get("force") == "true")
	if err != nil {
		return err
	}
	answer := profileApplied{Jobs: applied.Jobs, Name: name, Mark: v.session.mark()}
	changed := 0
	for _, job := range applied.Jobs {
		if job.Error == "" {
			changed++
		}
		answer.Kept = answer.Kept || job.Kept
	}
	v.say("%d of %s of the profile %s changed.", changed, printable.Count(len(applied.Jobs), "job"), name)
	if wantsPage(v.r) {
		return v.page("Profile "+name, "", "profile-applied", answer)
	}
	return v.fragment("profile-applied", answer)
}

// profileApplied is what became of a profile's jobs, with a button for the rules that stayed.
type profileApplied struct {
	Jobs []cove.ProfileJob
	Kept bool // some did
	Name string
	Mark string
}
