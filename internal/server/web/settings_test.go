package web_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/jobtest"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

// TestSettings: a profile is made and tested. The test fails, and passes once the cause is
// mended. A secret is set and not shown again, and a token is shown once. Sprites are
// destroyed, but for one that has work.
func TestSettings(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Jobs: func(st *store.Store, c *cove.Client) (server.Jobs, func() error, error) {
		m := &job.Manager{Store: st, Client: c, NamesOnly: func(_ context.Context, p sprites.NetworkPolicy) (sprites.NetworkPolicy, error) { return p, nil }}
		return m, m.Close, m.Resume(t.Context())
	}})
	c := s.Client()
	b := webtest.Start(t)
	page := b.Open(c, webtest.Desktop)

	// The server is its own backend: it is tested as any other server of the protocol.
	page.Goto("/web/settings?tab=backends")
	page.Fill("#backend-form [name=name]", "far")
	page.Fill("#backend-form [name=url]", s.URL)
	page.Fill("#backend-form [name=token]", "wrong")
	page.Click("#backend-try")
	page.Until("the token is refused", `document.querySelector("#trial .badge[role=status].failed") && document.querySelectorAll("#trial li").length === 3`)
	page.Fill("#backend-form [name=token]", s.Token)
	page.Click("#backend-try")
	page.Wait("#trial .badge[role=status].succeeded")
	page.Click("#backend-store")
	page.Wait("main [data-row] .badge")
	for deadline := time.Now().Add(10 * time.Minute); ; page.Goto("/web/settings?tab=backends") {
		var connected bool
		if page.Eval(`!!document.querySelector("main .badge.ready")`, &connected); connected {
			break
		}
		page.Sees("did not answer within 10s") // as on a slow machine: the list has what was true once
		if time.Now().After(deadline) {
			t.Fatal("the backend is not connected")
		}
	}
	page.Until("the token is not on the page", fmt.Sprintf(`!document.documentElement.outerHTML.includes(%q)`, s.Token))

	page.Goto("/web/settings")
	page.Fill("#profile-name", "nightly")
	page.Fill("#profile-text", "agnet = \"shell\"\n")
	page.Click("#profile-store")
	page.Until("the refusal is shown", `document.querySelector("#profile-editor .error")?.innerText.includes("agnet")`)
	page.Fill("#profile-text", "agent = \"shell\"\nbackend = \"far\"\ndescription = \"Repairs at night\"\n[env]\nCI = \"1\"\n")
	page.Eval(`window.kept = true`, nil)
	page.Click("#profile-store")
	page.Wait("#profile-stored")
	page.Until("the list beside it has the profile, though the page was not loaded again", `window.kept && [...document.querySelectorAll("#list-profiles [data-row]")].some(li => li.innerText.includes("nightly") && li.innerText.includes("revision 1")) && document.querySelector("#list-profiles .count").innerText === "1"`)
	p, err := cove.Profiles{Client: c}.Get(t.Context(), "nightly")
	must(t, err)
	if p.Agent != "shell" || p.Env["CI"] != "1" || p.Revision != 1 {
		t.Errorf("the profile is %+v", p)
	}
	page.Goto("/web/settings?tab=profiles&name=nightly")
	page.Until("its text is in the editor", `document.getElementById("profile-text").value.includes("Repairs at night")`)
	shot(t, page, "profiles-desktop")
	page.Fill("#profile-text", "agent = \"shell\"\n# half written")
	page.Click("[hx-post='/web/settings/profiles/default'] button")
	page.Until("it is said, shown, and what is typed beside it stays", `document.getElementById("said").innerText.includes("The profile nightly is the default now.") && document.querySelector("#list-profiles .badge.ready") && document.getElementById("profile-text").value.endsWith("half written") && document.activeElement.closest("#list-profiles")`)
	page.Click("#test-nightly")
	page.Until("the test is over", `document.querySelector("#trial .badge[role=status].failed")`)
	page.Sees("the sprite has no cove-guest") // nor has this server one to give, which the test of the profile finds
	page.Sees("the sprite is gone")
	jobtest.Bring(t)
	page.Click("#test-nightly")
	page.Until("the test has passed", `document.querySelector("#trial .badge[role=status].succeeded")`)
	page.Until("the agent has done its task, and no step failed", `[...document.querySelectorAll("#trial li")].some(li => li.innerText.includes("prompt") && li.matches(".completed")) && !document.querySelector("#trial li.failed")`)
	page.Sees("the sprite is gone")
	page.Resize(webtest.Phone, "light")
	narrow(t, page)
	page.Resize(webtest.Desktop, "light")
	if left, err := c.List(t.Context(), sprites.ListOptions{}); err != nil || len(left.Sprites) != 0 {
		t.Errorf("left are %+v, %v", left.Sprites, err)
	}
	shot(t, page, "trial-desktop")

	page.Goto("/web/settings?tab=secrets")
	page.Fill("#secret-name", "team")
	page.Fill("#secret-value", "sesame-opens-it-for-all-of-the-forty")
	page.Click("#secret-set")
	page.Sees("The secret team is set.")
	page.Until("the form is empty", `document.getElementById("secret-name").value === "" && document.getElementById("secret-value").value === ""`)
	page.Sees("ends in orty")
	page.Sees("nothing names it")
	page.Until("the value is not on the page", `!document.documentElement.outerHTML.includes("sesame")`)
	shot(t, page, "secrets-desktop")

	page.Goto("/web/settings?tab=tokens")
	page.Allow("400")
	page.Fill("#token-name", "ci")
	page.Eval(`window.kept = true`, nil)
	page.Click("[name=scope][value=prefix]")
	page.Click("#token-make")
	page.Sees("the field beside what the token reaches is empty")
	page.Fill("[name=prefix]", "ci-")
	narrow(t, page)
	page.Click("#token-make")
	page.Until("the list beside it has the token", `window.kept && document.querySelector("#token-made .copy") && document.querySelector("#list-tokens [data-row]")?.innerText.includes("ci")`)
	secret := page.Text("#token-made .copy code")
	tokens, err := c.ListTokens(t.Context())
	must(t, err)
	if k := tokens[len(tokens)-1]; k.Name != "ci" || k.Scope.Prefix != "ci-" || strings.Join(k.Verbs, " ") != "read write exec" || k.ExpiresAt == nil || time.Until(*k.ExpiresAt) > 90*24*time.Hour {
		t.Errorf("the token is %+v", k)
	}
	other := &cove.Client{Client: &sprites.Client{URL: c.URL, Token: secret}}
	if _, err := other.List(t.Context(), sprites.ListOptions{}); err != nil {
		t.Errorf("the token that was shown: %v", err)
	}
	shot(t, page, "token-desktop")
	page.Goto("/web/settings?tab=tokens")
	page.Until("it is listed, and not shown again", fmt.Sprintf(`document.querySelector("main").innerText.includes("ci") && !document.documentElement.outerHTML.includes(%q)`, secret))
	page.Click("[data-opens^=delete-token]")
	page.Click("dialog[open] form .danger")
	page.Sees("There is no token yet")

	page.Goto("/web/settings?tab=webhooks")
	page.Eval(`window.kept = true`, nil)
	page.Fill("[name=name]", "hook")
	page.Fill("[name=url]", "https://127.0.0.1:1/")
	page.Click("form[hx-target='#webhook-made'] .primary")
	page.Sees("tick the box: It may lead to an address that is not public")
	page.Until("the refusal is shown, and what was typed is kept", `document.querySelector("#notice .error") && document.querySelector("[name=name]:not([type=hidden])").value === "hook"`)
	page.Click("[name=private]")
	page.Click("form[hx-target='#webhook-made'] .primary")
	page.Until("the success is said, and the refusal is gone", `document.getElementById("said").innerText.includes("The webhook hook is stored.") && !document.querySelector("#notice .error")`)
	page.Until("the list beside it has the webhook", `window.kept && document.querySelector("#webhook-made .copy") && document.querySelector("#list-webhooks [data-row]")?.innerText.includes("hook")`)

	for _, tab := range []string{"connectors", "sessions", "backends", "webhooks", "server"} {
		page.Goto("/web/settings?tab=" + tab)
		page.Wait(".tabs [aria-current]")
		narrow(t, page)
		shot(t, page, tab+"-desktop")
	}
	phone := b.Open(c, webtest.Phone)
	for _, tab := range []string{"profiles", "secrets", "connectors", "tokens", "sessions", "backends", "webhooks", "running", "server"} {
		phone.Goto("/web/settings?tab=" + tab)
		phone.Wait(".tabs [aria-current]")
		narrow(t, phone)
		shot(t, phone, tab+"-phone")
	}
}

// destroyAll destroys the sprites of two jobs. The work of one was not pulled: its sprite stays, and
// the page says why. The other goes. By force, the one goes as well.
func destroyAll(t *testing.T, c *cove.Client, page *webtest.Page) {
	jobs, err := c.Jobs(t.Context())
	must(t, err)
	_, err = c.MarkPulled(t.Context(), jobs[0].ID, jobs[0].Head)
	must(t, err)
	page.Goto("/web/settings?tab=running")
	page.Sees("that nobody has pulled")
	page.Sees("It has no commits that nobody has pulled")
	shot(t, page, "running-phone")
	page.Click("[data-opens=destroy-all]")
	page.Wait("dialog[open]")
	shot(t, page, "running-ask-phone")
	page.Click("dialog[open] form .danger")
	page.Until("one is kept, and one is gone", `document.querySelectorAll("#destroyed .badge.held").length === 1 && document.querySelectorAll("#destroyed .badge.ready").length === 1`)
	page.Until("the list beside it has the one alone", `document.querySelectorAll("#list-running [data-row]").length === 1`)
	narrow(t, page)
	shot(t, page, "destroyed-phone")
	page.Goto("/web/settings?tab=running")
	page.Click("[data-opens=destroy-all]")
	page.Click("dialog[open] [name=force]")
	page.Click("dialog[open] form .danger")
	page.Sees("This became of them")
	page.Until("the list beside it has none", `document.querySelectorAll("#list-running [data-row]").length === 0 && !document.querySelector("dialog[open]")`)
	left, err := cove.Environments{Client: c}.List(t.Context(), cove.EnvironmentFilter{})
	must(t, err)
	if len(left) != 0 {
		t.Errorf("left are %+v", left)
	}
}

// TestFormsNeedMarks: no form does anything without the mark of its session. Nor does a page
// of settings for somebody who is not logged in.
func TestFormsNeedMarks(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	for _, path := range []string{"/web/new", "/web/first", "/web/settings/secrets", "/web/settings/running/destroy", "/web/settings/tokens"} {
		resp, err := http.Post(s.URL+path, "application/x-www-form-urlencoded", strings.NewReader("name=x"))
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: got %d", path, resp.StatusCode)
		}
	}
}
