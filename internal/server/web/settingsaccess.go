package web

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// secretsPage lists secrets. No value is among what the API says.
type secretsPage struct {
	Secrets []secretRow
	Mark    string
}

type secretRow struct {
	cove.Secret
	Users []string // that name it
	Ask   ask
}

func secretsTab(v *view) (any, error) {
	ctx, page := v.r.Context(), secretsPage{Mark: v.session.mark()}
	all, err := v.api.Secrets(ctx)
	if err != nil {
		return nil, err
	}
	users, err := secretUsers(v)
	if err != nil {
		return nil, err
	}
	for i, s := range all {
		row := secretRow{Secret: s, Users: users[s.Name]}
		row.Ask = ask{
			ID: fmt.Sprintf("delete-secret-%d", i), Button: "Delete", Title: "Delete the secret " + s.Name + "?", Action: "/web/settings/secrets/delete",
			Fields: map[string]string{"name": s.Name}, Lost: []string{"The value can't be read again: only the person who set it has it."},
		}
		if len(row.Users) > 0 {
			row.Ask.Lost = append(row.Ask.Lost, "These use it, and do not work until it is set again: "+strings.Join(row.Users, ", "))
			row.Ask.Choice, row.Ask.Must = "Delete it though it is used", true
		}
		page.Secrets = append(page.Secrets, row)
	}
	return page, nil
}

// secretUsers says which definitions name a secret.
func secretUsers(v *view) (map[string][]string, error) {
	ctx, users := v.r.Context(), map[string][]string{}
	connectors, err := v.api.Connectors(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range connectors {
		for _, name := range connect.SecretsOf(c) {
			users[name] = append(users[name], "connector "+c.Name)
		}
	}
	hooks, err := cove.Webhooks{Client: v.api}.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range hooks {
		if h.Secret != "" {
			users[h.Secret] = append(users[h.Secret], "webhook "+h.Name)
		}
	}
	profiles, err := cove.Profiles{Client: v.api}.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range profiles {
		for _, name := range connect.EnvSecrets(slices.Concat(p.Variables(), cove.MCPEnv(p.MCP))) {
			users[name] = append(users[name], "profile "+p.Name)
		}
	}
	return users, nil
}

func putSecret(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	if err := v.api.SetSecret(v.r.Context(), name, f.Get("value")); err != nil {
		return err
	}
	v.say("The secret %s is set.", name)
	return nil
}

func deleteSecret(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	v.say("The secret %s is deleted.", name)
	return v.api.DeleteSecret(v.r.Context(), name, sprites.DeleteOptions{Force: f.Get("force") != ""})
}

// tokensPage lists tokens. The secret of a new one is in the answer to the form alone.
type tokensPage struct {
	Tokens   []tokenRow
	Profiles []cove.Profile
	Mark     string
}

type tokenRow struct {
	cove.Token
	Ask ask
}

// Reach says which sprites the token reaches.
func (t tokenRow) Reach() string { return reach(t.Scope) }

func reach(s cove.TokenScope) string {
	switch {
	case s.Profile != "":
		return "jobs of the profile " + s.Profile
	case s.Prefix != "":
		return "sprites " + s.Prefix + "…"
	case s.Sprite != "":
		return "sprite " + s.Sprite
	}
	return "all sprites"
}

func tokensTab(v *view) (any, error) {
	ctx, page := v.r.Context(), tokensPage{Mark: v.session.mark()}
	all, err := v.api.ListTokens(ctx)
	if err != nil {
		return nil, err
	}
	for i, t := range all {
		page.Tokens = append(page.Tokens, tokenRow{t, ask{
			ID: fmt.Sprintf("delete-token-%d", i), Button: "Delete", Title: "Delete the token " + t.Name + "?", Action: "/web/settings/tokens/delete",
			Fields: map[string]string{"name": t.ID}, Lost: []string{"Requests with it are refused from now on.", "The browsers that logged in by it are logged out."},
		}})
	}
	page.Profiles, err = cove.Profiles{Client: v.api}.List(ctx)
	return page, err
}

// makeToken shows the secret of a new token once, in the answer.
func makeToken(v *view) error {
	f := v.r.PostForm
	days, err := number(f.Get("days"), "days", strconv.ParseFloat)
	if err != nil {
		return err
	}
	req := cove.TokenRequest{Name: f.Get("name"), Verbs: f["verb"], TTLSeconds: int64(days * 86400)}
	scope := f.Get("scope")
	to := strings.TrimSpace(f.Get(scope))
	switch scope {
	case "prefix":
		req.Scope.Prefix = to
	case "sprite":
		req.Scope.Sprite = to
	case "profile":
		req.Scope.Profile = to
	default:
		req.Scope.All, to = true, "all"
	}
	switch {
	case to == "":
		return fail.New("bad_request", "the field beside what the token reaches is empty", "fill it in, or choose: all sprites and jobs")
	case len(req.Verbs) == 0:
		return fail.New("bad_request", "the token may do nothing", "choose at least one thing that it may do")
	}
	t, err := v.api.CreateToken(v.r.Context(), req)
	if err != nil {
		return err
	}
	v.say("The token %s is made.", t.Name)
	if wantsPage(v.r) {
		return v.page("A new token", "", "token-page", t)
	}
	return answerBeside(v, "tokens", "token-made", t)
}

func deleteToken(v *view, f url.Values) error {
	id, err := named(f)
	if err != nil {
		return err
	}
	v.say("The token is deleted.")
	return v.api.DeleteToken(v.r.Context(), id)
}

// sessionsPage lists browsers.
type sessionsPage struct {
	Sessions []sessionRow
	Mark     string
}

type sessionRow struct {
	cove.WebSession
	This  bool
	Token string // its name; empty: the owner
}

func sessionsTab(v *view) (any, error) {
	ctx, page := v.r.Context(), sessionsPage{Mark: v.session.mark()}
	all, err := cove.Web{Client: v.api}.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	if v.session.May(cove.VerbAdmin) {
		tokens, err := v.api.ListTokens(ctx)
		if err != nil {
			return nil, err
		}
		for _, t := range tokens {
			names[t.ID] = t.Name
		}
	}
	for _, s := range all {
		row := sessionRow{WebSession: s, This: s.ID == v.session.ID, Token: names[s.Token]}
		if row.Token == "" {
			row.Token = s.Token
		}
		page.Sessions = append(page.Sessions, row)
	}
	return page, nil
}

func endSession(v *view, f url.Values) error {
	id, err := named(f)
	if err != nil {
		return err
	}
	v.say("The browser is logged out.")
	return cove.Web{Client: v.api}.End(v.r.Context(), id)
}

func endSessions(v *view, _ url.Values) error {
	v.say("All browsers are logged out.")
	return cove.Web{Client: v.api}.EndAll(v.r.Context())
}

// settingsConnectors lists connectors.
type settingsConnectors struct {
	Connectors []connectorRow
	Secrets    []cove.Secret
	Sprites    []string // whose log can be looked at
	Mark       string

	Edited cove.Connector // in the form; zero: a new one

	Log    string // the sprite whose log is shown; empty: none
	Events []cove.ConnectorEvent
}

type connectorRow struct {
	cove.Connector
	Needs []string // secrets that are not set
	Ask   ask
}

func connectorsTab(v *view) (any, error) {
	ctx, page := v.r.Context(), settingsConnectors{Mark: v.session.mark(), Log: v.r.URL.Query().Get("log")}
	all, err := v.api.Connectors(ctx)
	if err != nil {
		return nil, err
	}
	if page.Secrets, err = v.api.Secrets(ctx); err != nil {
		return nil, err
	}
	for i, c := range all {
		row := connectorRow{Connector: c}
		for _, name := range connect.SecretsOf(c) {
			if !slices.ContainsFunc(page.Secrets, func(s cove.Secret) bool { return s.Name == name }) {
				row.Needs = append(row.Needs, name)
			}
		}
		row.Ask = ask{
			ID: fmt.Sprintf("delete-connector-%d", i), Button: "Delete", Title: "Delete the connector " + c.Name + "?", Action: "/web/settings/connectors/delete",
			Fields: map[string]string{"name": c.Name}, Lost: []string{fmt.Sprintf("It is granted %s. It will serve nothing any more, and requests in progress end.", printable.Count(len(c.Grants), "time"))},
		}
		for _, g := range c.Grants {
			if !slices.Contains(page.Sprites, g.Sprite) && g.Sprite != "" {
				page.Sprites = append(page.Sprites, g.Sprite)
			}
		}
		if c.Name == v.r.URL.Query().Get("name") {
			page.Edited = c
		}
		page.Connectors = append(page.Connectors, row)
	}
	if page.Log == "" {
		return page, nil
	}
	err = v.api.ConnectorLog(ctx, page.Log, cove.ConnectorLogOptions{}, func(e cove.ConnectorEvent) error {
		if page.Events = append(page.Events, e); len(page.Events) > maxLines {
			page.Events = page.Events[1:]
		}
		return nil
	})
	return page, err
}

func putConnector(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	def, err := v.api.Connector(v.r.Context(), name) // limits, prices and paths that it has stay
	if err != nil && !errors.Is(err, sprites.ErrNotFound) {
		return err
	}
	def.Name, def.Upstream, def.Secret, def.Git, def.Headers = name, f.Get("upstream"), f.Get("secret"), f.Get("git") != "", nil
	for line := range strings.Lines(f.Get("headers")) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			return fail.Newf("bad_request", "write NAME: VALUE on each line", "%.40q is not a header", line)
		}
		if def.Headers == nil {
			def.Headers = map[string]string{}
		}
		def.Headers[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	v.say("The connector %s is stored.", name)
	_, err = v.api.PutConnector(v.r.Context(), def)
	return err
}

func deleteConnector(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	v.say("The connector %s is deleted.", name)
	return v.api.DeleteConnector(v.r.Context(), name)
}

// grantConnector grants a connector to a sprite, or to all that have a label. Then the form must
// name the sprites that have the label already: anybody who may change a sprite may have
// labelled it.
func grantConnector(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	g := cove.ConnectorGrant{Sprite: f.Get("sprite"), Label: f.Get("label")}
	if g.Sprite == "" && g.Label == "" {
		return fail.New("bad_request", "the grant names neither a sprite nor a label", "name a sprite or a label to grant the connector to")
	}
	if g.Label != "" {
		g.Reaches = strings.FieldsFunc(f.Get("reaches"), func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	}
	v.say("The connector %s is granted to %s.", name, grantee(g))
	return v.api.GrantConnector(v.r.Context(), name, g)
}

func revokeConnector(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	g := cove.ConnectorGrant{Sprite: f.Get("sprite"), Label: f.Get("label"), Job: f.Get("job")}
	v.say("The grant of the connector %s to %s is revoked.", name, grantee(g))
	return v.api.RevokeConnector(v.r.Context(), name, g)
}

// grantee names the receiver of a grant.
func grantee(g cove.ConnectorGrant) string {
	switch {
	case g.Job != "":
		return "job " + g.Job
	case g.Label != "":
		return "all sprites with the label " + g.Label
	}
	return "the sprite " + g.Sprite
}
