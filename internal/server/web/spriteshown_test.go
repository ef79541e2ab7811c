package web_test

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/server/web"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
	"github.com/cove-dev/cove/sprites"
)

var (
	markOf   = regexp.MustCompile(`<meta name="cove-mark" content="([^"]+)">`)
	spriteOf = regexp.MustCompile(`<meta name="cove-sprite" content="([^"]+)">`)
	formsOf  = regexp.MustCompile(`(?s)<form[^>]*(?:action|hx-post)="(/web/sprites/[^"]+)"[^>]*>(.*?)</form>`)
)

// send makes a request as a page does, and gives its answer. Empty values of header are left out.
func send(t *testing.T, c *http.Client, method, url, kind, body string, header map[string]string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	for key, value := range header {
		if value != "" {
			r.Header.Set(key, value)
		}
	}
	resp, err := c.Do(r)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(b)
}

const formKind = "application/x-www-form-urlencoded"

// TestAnotherSprite: a request of a sprite's page does nothing to another sprite that has got
// its name since. Nor does a request that does not say which sprite it is meant for. Each form
// says so, also without scripts.
func TestAnotherSprite(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Runtime: runtimeOf(t)})
	c, home := visitor(t, s), t.TempDir()
	begin := func() (sprites.Info, string) {
		good := s.Create("good")
		must(t, good.WriteFile(t.Context(), home+"/notes", strings.NewReader("notes\n"), sprites.WriteOptions{}))
		_, err := good.Suspend(t.Context())
		must(t, err)
		_, err = good.Checkpoint(t.Context(), sprites.CheckpointRequest{}, nil)
		must(t, err)
		_, err = good.Wake(t.Context())
		must(t, err)
		info, err := s.Client().Get(t.Context(), "good")
		must(t, err)
		_, page := read(t, c, s.URL+"/web/sprites/good")
		return info, page
	}
	first, page := begin()
	mark, shown := markOf.FindStringSubmatch(page)[1], spriteOf.FindStringSubmatch(page)
	if shown == nil || shown[1] != first.ID {
		t.Fatalf("the page does not say that it shows %s: %v", first.ID, shown)
	}
	must(t, s.Client().Delete(t.Context(), "good", sprites.DeleteOptions{Force: true}))
	second, _ := begin()

	form := url.Values{
		"typed": {"good"}, "to": {home + "/other"}, "path": {home + "/notes"}, "text": {"mine"}, "rule": {"example.org:443"},
		"rules": {`[{"domain":"x.example","action":"allow"}]`}, "last": {"0"}, "daily": {"0"}, "sure": {"yes"}, "all": {"yes"},
	}
	deeds := map[string][]string{
		"do": {"wake", "suspend", "restart", "fork", "delete"}, "files": {"rename", "folder", "delete"}, "services": {"start", "stop"}, "checkpoints": {"restore", "delete"},
	}
	for _, pattern := range web.Patterns() {
		path, post := strings.CutPrefix(pattern, "POST ")
		if !post || !strings.HasPrefix(path, "/web/sprites/{name}/") {
			continue
		}
		to := []string{strings.NewReplacer("{name}", "good", "{service}", "web", "{checkpoint}", "v1").Replace(path)}
		if before, ok := strings.CutSuffix(to[0], "{deed}"); ok {
			to = nil
			for _, deed := range deeds[strings.Split(path, "/")[4]] {
				to = append(to, before+deed)
			}
		}
		for _, path := range to {
			kind, body := formKind, form
			if strings.HasSuffix(path, "/upload") {
				path, kind = path+"?path="+home+"/up", "application/octet-stream"
			}
			for how, id := range map[string]string{"of the sprite before": first.ID, "of no sprite": ""} {
				status, text := send(t, c, http.MethodPost, s.URL+path, kind, body.Encode(), map[string]string{"X-Cove-Mark": mark, "X-Cove-Sprite": id, "HX-Request": "true"})
				if want := map[bool]string{true: "does not say which sprite it shows", false: "another one has its name now"}[id == ""]; status != http.StatusConflict || !strings.Contains(text, want) {
					t.Errorf("%s from a page %s: %d %s", path, how, status, text)
				}
			}
			if kind != formKind {
				continue
			}
			plain := url.Values{"_mark": {mark}, "_sprite": {first.ID}}
			for key, values := range form {
				plain[key] = values
			}
			if status, text := send(t, c, http.MethodPost, s.URL+path, kind, plain.Encode(), nil); status != http.StatusConflict {
				t.Errorf("%s without scripts: %d %s", path, status, text)
			}
		}
	}
	for _, query := range []string{"", "?_sprite=" + first.ID, "?_sprite=" + first.ID + "&session=1"} {
		status, text := send(t, c, http.MethodGet, s.URL+"/web/sprites/good/terminal/socket"+query, "", "", map[string]string{"Origin": s.URL, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13", "Sec-Websocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="})
		if status != http.StatusConflict {
			t.Errorf("a terminal %s: %d %s", query, status, text)
		}
	}
	if status, text := send(t, c, http.MethodGet, s.URL+"/web/sprites/good/network/allow?rule=example.org:443", "", "", map[string]string{"HX-Request": "true", "X-Cove-Sprite": first.ID}); status != http.StatusConflict {
		t.Errorf("a part of the page: %d %s", status, text)
	}

	good := s.Client().Sprite("good")
	info, err := s.Client().Get(t.Context(), "good")
	must(t, err)
	points, err := good.Checkpoints(t.Context(), true)
	must(t, err)
	policy, err := good.NetworkPolicy(t.Context())
	must(t, err)
	text, err := good.ReadFile(t.Context(), home+"/notes")
	must(t, err)
	all, err := s.Client().List(t.Context(), sprites.ListOptions{})
	must(t, err)
	if info.ID != second.ID || info.Status != second.Status || len(policy.Rules) != 0 || string(text) != "notes\n" || len(all.Sprites) != 1 {
		t.Errorf("the other sprite is %+v, with %+v and %q; there are %d", info, policy, text, len(all.Sprites))
	}
	if got := slices.ContainsFunc(points, func(p sprites.Checkpoint) bool { return p.ID == "v1" }); !got || len(points) != 2 {
		t.Errorf("its checkpoints are %+v", points)
	}

	for _, page := range []string{"", "/files?path=" + home + "/notes", "/files?path=" + home, "/checkpoints", "/checkpoints/v1", "/network", "/services"} {
		_, text := read(t, c, s.URL+"/web/sprites/good"+page)
		forms := formsOf.FindAllStringSubmatch(text, -1)
		if len(forms) == 0 {
			t.Errorf("%s has no form", page)
		}
		for _, f := range forms {
			if strings.Contains(f[0], `method="post"`) && !strings.Contains(f[2], `name="_sprite" value="`+second.ID+`"`) {
				t.Errorf("%s: the form for %s does not say of which sprite it is", page, f[1])
			}
		}
	}
	if status, text := send(t, c, http.MethodPost, s.URL+"/web/sprites/good/do/delete", formKind, url.Values{"_mark": {mark}, "_sprite": {second.ID}, "typed": {"good"}}.Encode(), nil); status != http.StatusOK {
		t.Errorf("a delete from its own page: %d %s", status, text)
	}
}

// TestPageOfTheSpriteBefore: pages are open while another sprite gets the name. They say so by
// themselves, never show the other one as theirs, and do nothing to it.
func TestPageOfTheSpriteBefore(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Runtime: runtimeOf(t)})
	b := webtest.Start(t)
	page, term := b.Open(s.Client(), webtest.Desktop), b.Open(s.Client(), webtest.Phone)
	good := s.Create("good")
	_, err := good.Wake(t.Context())
	must(t, err)
	page.Goto("/web/sprites/good")
	page.Until("its stream is there", `document.getElementById("connection").hidden && document.readyState === "complete"`)
	term.Goto("/web/sprites/good/terminal")
	term.Wait("#terminal-new-first:not([disabled])")
	for _, p := range []*webtest.Page{page, term} {
		for _, text := range []string{"404", "409", "ERR_INCOMPLETE_CHUNKED_ENCODING", "WebSocket"} {
			p.Allow(text)
		}
	}
	must(t, s.Client().Delete(t.Context(), "good", sprites.DeleteOptions{Force: true}))
	good = s.Create("good")
	_, err = good.Wake(t.Context())
	must(t, err)
	second, err := s.Client().Get(t.Context(), "good")
	must(t, err)

	page.Sees("another one has its name now; nothing was done")
	page.Eval(`document.getElementById("notice").replaceChildren()`, nil)
	page.Click("#open-delete")
	page.Fill(`#delete-it [name="typed"]`, "good")
	page.Click("#delete-it form button.danger")
	page.Sees("another one has its name now; nothing was done")
	narrow(t, term)
	term.Click("#terminal-new-first")
	term.Until("the terminal says why it does not open", `document.getElementById("terminal-state").innerText.includes("another one has its name now")`)
	if list, err := good.Sessions(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("the other sprite has the terminals %+v, %v", list, err)
	}
	if now, err := s.Client().Get(t.Context(), "good"); err != nil || now.ID != second.ID {
		t.Errorf("the other sprite is %+v, %v", now, err)
	}
	page.Goto("/web/sprites/good")
	page.Click("#open-delete")
	page.Fill(`#delete-it [name="typed"]`, "good")
	page.Click("#delete-it form button.danger")
	arrives(page, "/web/sprites")
}
