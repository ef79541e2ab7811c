package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// lastResort keeps a broken test from hanging for ever.
const lastResort = 10 * time.Minute

// plain is an HTTP client that does what a test says, and no more.
var plain = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

type edit = func(*http.Request)

func header(key, value string) edit { return func(r *http.Request) { r.Header.Set(key, value) } }

// open makes a request, "METHOD /path", with the owner's token, which edits may
// change.
func open(t *testing.T, s *covetest.Server, what, body string, edits ...edit) *http.Response {
	t.Helper()
	method, path, _ := strings.Cut(what, " ")
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+s.Token)
	for _, e := range edits {
		e(req)
	}
	resp, err := plain.Do(req)
	must(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// answer is an answer, read to the end, or to an error.
type answer struct {
	*http.Response
	body []byte
	err  error
}

func ask(t *testing.T, s *covetest.Server, what, body string, edits ...edit) answer {
	t.Helper()
	resp := open(t, s, what, body, edits...)
	text, err := io.ReadAll(resp.Body)
	return answer{resp, text, errors.Join(err, resp.Body.Close())}
}

// refused checks that an answer is a structured error, and returns its message.
func (a answer) refused(t *testing.T, status int, code string) string {
	t.Helper()
	var e sprites.ErrorBody
	err := json.Unmarshal(a.body, &e)
	failIf(t, err != nil || a.Header.Get("Content-Type") != "application/json" || e.Message == "", "the error is %q (%v), not one that clients understand", a.body, err)
	failIf(t, a.StatusCode != status || e.Code != code, "got %d %q, want %d %q: %s", a.StatusCode, e.Code, status, code, e.Message)
	return e.Message
}

// wantRetry checks that an answer 429 tells when to come back.
func wantRetry(t *testing.T, a answer) {
	t.Helper()
	var e sprites.ErrorBody
	err := json.Unmarshal(a.body, &e)
	after, err2 := strconv.Atoi(a.Header.Get("Retry-After"))
	failIf(t, err != nil || err2 != nil || after <= 0 || after != e.RetryAfterSeconds || a.StatusCode != 429, "got %d %v %s", a.StatusCode, a.Header, a.body)
	reset, err := strconv.ParseInt(a.Header.Get("X-RateLimit-Reset"), 10, 64)
	failIf(t, err != nil || time.Until(time.Unix(reset, 0)) > time.Duration(after)*time.Second, "the limit is reset at %d, %v", reset, err)
	failIf(t, a.Header.Get("X-RateLimit-Limit") != strconv.Itoa(e.Limit) || a.Header.Get("X-RateLimit-Remaining") != "0", "got %v, and %s", a.Header, a.body)
}

// wantError checks what a server made a client's call fail with.
func wantError(t *testing.T, err error, status int, code string) {
	t.Helper()
	e, ok := errors.AsType[*sprites.Error](err)
	failIf(t, !ok || e.StatusCode != status || e.Code != code, "got %+v, want an answer %d %s", err, status, code)
}

// failIf is for errors that a test goes on after.
func failIf(t *testing.T, bad bool, format string, args ...any) {
	t.Helper()
	if bad {
		t.Errorf(format, args...)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually asks for a sprite until done says so. The awaited change is already on its way.
func eventually(t *testing.T, s *covetest.Server, name string, done func(sprites.Info) bool) {
	t.Helper()
	for deadline := time.Now().Add(lastResort); ; {
		info, err := s.Client().Get(t.Context(), name)
		must(t, err)
		if late := time.Now().After(deadline); late || done(info) {
			failIf(t, late, "still %+v", info)
			return
		}
	}
}

func TestSprites(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	c, ctx := s.Client(), t.Context()
	info, err := c.Create(ctx, sprites.CreateRequest{
		Name: "paint", Labels: []string{"red"}, Environment: map[string]string{"A": "b"}, Config: &sprites.Config{CPUs: 1},
	})
	must(t, err)
	failIf(t, info.Name != "paint" || info.Status != sprites.StatusCold || info.Environment["A"] != "b" || info.Config.CPUs != 1 || len(info.ID) != 16, "created %+v", info)
	ask(t, s, "POST /v1/sprites", `{"name":"paint"}`).refused(t, 409, "name_taken")
	for _, name := range []string{"", "Paint", "-a", "a-", "a_b", "a/b", "a b", strings.Repeat("a", 64)} {
		ask(t, s, "POST /v1/sprites", `{"name":"`+name+`"}`).refused(t, 400, "bad_name")
	}
	s.Create(strings.Repeat("a", 63))
	for _, body := range []string{`{"name":`, `{"name":7}`, `{"name":"x","include":["/a/../b"]}`} {
		ask(t, s, "POST /v1/sprites", body).refused(t, 400, "bad_request")
	}

	labels, idle := []string{"blue", "green"}, int64(7)
	_, err = c.Update(ctx, "paint", sprites.UpdateRequest{Labels: &labels, IdleSeconds: &idle})
	got, err2 := c.Get(ctx, "paint")
	failIf(t, errors.Join(err, err2) != nil || !slices.Equal(got.Labels, labels) || got.Cove.IdleSeconds != 7 || got.ID != info.ID, "got %+v, %v, %v", got, err, err2)
	info, err = c.Update(ctx, "paint", sprites.UpdateRequest{ClearLabels: true})
	failIf(t, err != nil || len(info.Labels) != 0 || info.Cove.IdleSeconds != 7, "got %+v, %v", info, err)
	ask(t, s, "PUT /v1/sprites/paint", `{"idle_seconds":-1}`).refused(t, 400, "bad_request")

	ask(t, s, "DELETE /v1/sprites/paint?force=maybe", "").refused(t, 400, "bad_request")
	must(t, c.Delete(ctx, "paint", sprites.DeleteOptions{}))
	for _, name := range []string{"paint", "No Such", "a/b", "../version"} {
		for _, what := range []string{"GET ", "PUT ", "DELETE "} {
			ask(t, s, what+"/v1/sprites/"+url.PathEscape(name), "{}").refused(t, 404, "not_found")
		}
		wantError(t, c.Sprite(name).Command("true").Run(), 404, "not_found")
	}
	s.Create("paint") // the name is free again
}

// Statement 10: create answers 201 with the name.
// Statement 11: create needs less than 30 s.
// Statement 12: a created sprite can be got at once, with an id and times.
// Statement 13: a name that is taken is refused.
// Statement 14: the server ignores unknown settings of a sprite.
// Statement 20: PUT answers 200 with the sprite; clear_labels clears.
// Statement 21: DELETE answers 204, and then there is no such sprite.
// Statement 105: the segments of a path are decoded after it has been split.
// Statement 106: errors have a string error and a string message.
// Statement 107: empty labels clear, and settings that a PUT does not name stay.
// Statement 111: check tells of a sprite without waking it.
func TestSpriteResource(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	type sprite struct {
		ID, Name, Organization, URL, Status string
		Labels                              []string
		Created                             time.Time            `json:"created_at"`
		Updated                             time.Time            `json:"updated_at"`
		Ran                                 *time.Time           `json:"last_running_at"`
		Settings                            *sprites.URLSettings `json:"url_settings"`
	}
	answer := func(what, body string, status int) (got sprite) {
		t.Helper()
		a := ask(t, s, what, body)
		failIf(t, a.StatusCode != status || a.Header.Get("Content-Type") != "application/json" || json.Unmarshal(a.body, &got) != nil, "%s %s: %d %s", what, body, a.StatusCode, a.body)
		failIf(t, got.Name != "paint" || got.ID == "" || got.Labels == nil || got.Created.IsZero() || got.Updated.Before(got.Created), "%s %s: %s", what, body, a.body)
		return got
	}
	made := answer("POST /v1/sprites", `{"name":"paint","config":{"ramMB":512,"moon":1},"runtime":"dev","wait_for_capacity":true,"url_settings":{"private_access":"admins"},"labels":["a"]}`, 201)
	failIf(t, made.Organization == "" || made.Status != "cold" || made.Ran != nil || *made.Settings != sprites.URLSettings{Auth: "sprite", PrivateAccess: "admins"}, "created %+v", made)
	got := answer("GET /v1/sprites/paint", "", 200)
	failIf(t, got.ID != made.ID || !slices.Equal(got.Labels, []string{"a"}), "created %+v, and got %+v", made, got)
	ask(t, s, "POST /v1/sprites", `{"name":"paint"}`).refused(t, 409, "name_taken")
	for _, step := range []struct {
		body   string
		labels []string
		auth   string
	}{
		{`{"labels":["b","c"]}`, []string{"b", "c"}, "sprite"},
		{`{"url_settings":{"auth":"public"}}`, []string{"b", "c"}, "public"},
		{`{"clear_labels":true}`, []string{}, "public"},
		{`{"labels":["d"],"url_settings":{"auth":"sprite"}}`, []string{"d"}, "sprite"},
		{`{}`, []string{"d"}, "sprite"},
		{`{"labels":[]}`, []string{}, "sprite"},
	} {
		for _, got := range []sprite{answer("PUT /v1/sprites/paint", step.body, 200), answer("GET /v1/sprites/paint", "", 200)} {
			failIf(t, !slices.Equal(got.Labels, step.labels) || got.Settings.Auth != step.auth || got.Settings.PrivateAccess != "admins", "after %s: %+v", step.body, got)
		}
	}
	for _, what := range []string{"GET /v1/sprites/pai%6Et", "GET /v1/sprites/pain%74"} {
		answer(what, "", 200)
	}
	for _, name := range []string{"a%2Fb", "paint%2Fexec", "paint%2Fcheck", "..%2Fversion", "%2E%2E", "paint%00", "paint%3Fx"} {
		for _, what := range []string{"GET", "PUT", "DELETE"} {
			ask(t, s, what+" /v1/sprites/"+name, "{}").refused(t, 404, "not_found")
		}
	}
	status, _ := checked(t, s, "paint")
	failIf(t, status != "hibernated" || answer("GET /v1/sprites/paint", "", 200).Status != "cold", "a check found it %s, and woke it", status)
	a := ask(t, s, "DELETE /v1/sprites/paint", "")
	failIf(t, a.StatusCode != 204 || len(a.body) > 0, "got %d %s", a.StatusCode, a.body)
	for _, what := range []string{"GET /v1/sprites/paint", "DELETE /v1/sprites/paint", "GET /v1/sprites/paint/check"} {
		ask(t, s, what, "").refused(t, 404, "not_found")
	}
}

// Statement 126: what the server does not have is answered by 501 not_available.
// Statement 60: /control → 404; everything works without.
func TestPaths(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	for _, path := range []string{"/", "/v1", "/v1/sprites/", "/v1//sprites", "/v1/./sprites", "/v1/sprites/../version", "/v1/sprites/paint/control"} {
		ask(t, s, "GET "+path, "").refused(t, 404, "not_found")
	}
	for _, what := range []string{
		"GET policy/privileges", "POST policy/privileges", "DELETE policy/privileges", "GET policy/resources", "POST policy/resources", "DELETE policy/resources",
		"GET policy",
	} {
		method, path, _ := strings.Cut(what, " ")
		ask(t, s, method+" /v1/sprites/paint/"+path, "").refused(t, 501, "not_available")
	}
	ask(t, s, "GET /v1/sprites/paint/proxy", "").refused(t, 426, "upgrade_required")
	ask(t, s, "GET /v1/sprites/paint/fs/watch", "").refused(t, 426, "upgrade_required")
	a := ask(t, s, "PATCH /v1/sprites/paint", "")
	a.refused(t, 405, "method_not_allowed")
	h := a.Header
	failIf(t, h.Get("Allow") != "DELETE, GET, HEAD, PUT" || h.Get("Sprite-Version") != sprites.Version || h.Get("Cache-Control") != "no-store" ||
		h.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none';"), "the headers are %v", h)
}

// Statement 15: the list has an array sprites and honours max_results.
// Statement 16: a max_results that is too large, or none, is clamped, not refused.
// Statement 17: the token of a page yields the next; the last has no more.
// Statement 18: prefix filters.
// Statement 19: the totals stand at the top level and under org.
// Statement 108: bulk_load is accepted, and no two pages have the same token.
func TestList(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	var names []string
	for i := range 103 {
		names = append(names, fmt.Sprintf("p-%03d", i))
		s.Create(names[i])
	}
	ask(t, s, "POST /v1/sprites", `{"name":"q","labels":["odd","even"]}`)
	must(t, s.Client().Sprite("q").Command("true").Run())
	list := func(query string) (page sprites.ListResponse) {
		t.Helper()
		a := ask(t, s, "GET /v1/sprites?"+query, "")
		failIf(t, json.Unmarshal(a.body, &page) != nil || a.StatusCode != 200 || page.Sprites == nil, "list %s: %d %s", query, a.StatusCode, a.body)
		failIf(t, page.Totals != page.Org || page.Totals.Running != 1 || page.Totals.Cold != 103, "the totals with %s are %+v and %+v", query, page.Totals, page.Org)
		return page
	}
	for query, want := range map[string]int{
		"": 50, "max_results=0": 50, "max_results=-3": 50, "max_results=many": 50, "max_results=99999999999999999999": 50,
		"max_results=1": 1, "max_results=100": 100, "max_results=101": 100, "max_results=1000": 100,
		"prefix=q": 1, "prefix=p-00": 10, "prefix=p%25": 0, "prefix=p-0_1": 0, "prefix=zzz": 0,
		"label=odd": 1, "label=od": 0, "label=odd&prefix=p": 0, "bulk_load=true&prefix=q": 1, "unknown=1&prefix=q": 1,
	} {
		page := list(query)
		more := want >= 50 || query == "max_results=1"
		failIf(t, len(page.Sprites) != want || page.HasMore != more || (page.NextToken != nil) != more, "%q gives %d sprites, want %d; has_more is %v, and the token %v", query, len(page.Sprites), want, page.HasMore, page.NextToken)
	}
	var got []string
	page, tokens := sprites.ListResponse{HasMore: true, NextToken: new(string)}, map[string]bool{}
	for pages := 0; page.HasMore; pages++ {
		failIf(t, tokens[*page.NextToken], "the token %q comes twice", *page.NextToken)
		tokens[*page.NextToken] = true
		page = list("prefix=p&max_results=20&continuation_token=" + *page.NextToken)
		for _, info := range page.Sprites {
			got = append(got, info.Name)
		}
		if page.HasMore == (pages == 5) {
			t.Fatalf("page %d has more: %v", pages, page.HasMore)
		}
	}
	failIf(t, !slices.Equal(got, names), "the pages give %q", got)
	ask(t, s, "GET /v1/sprites?continuation_token=%21", "").refused(t, 400, "bad_request")
	ask(t, s, "GET /v1/sprites?continuation_token="+strings.Repeat("a", 500), "").refused(t, 400, "bad_request")
}

// checked asks GET …/check.
func checked(t *testing.T, s *covetest.Server, name string) (status, reason string) {
	t.Helper()
	var c struct{ Name, Status, Reason string }
	a := ask(t, s, "GET /v1/sprites/"+name+"/check", "")
	err := json.Unmarshal(bytes.Replace(a.body, []byte("sprite_name"), []byte("name"), 1), &c)
	failIf(t, err != nil || c.Name != name || a.StatusCode != 200, "check: %d %s", a.StatusCode, a.body)
	return c.Status, c.Reason
}

// Statement 23: list and get do not wake; exec does.
func TestWakeOnUse(t *testing.T) {
	gate := make(chan struct{})
	rt := &covetest.InProcess{Dir: t.TempDir(), BootGate: gate}
	t.Cleanup(func() { _ = rt.Close() })
	s := covetest.Start(t, covetest.Options{Runtime: rt})
	sp, ctx, name := s.Create("paint"), t.Context(), t.TempDir()+"/file"

	// A call that does not need the sprite awake does not wake it.
	status, _ := checked(t, s, "paint")
	failIf(t, status != "hibernated", "it is %s", status)
	list, err := sp.Sessions(ctx)
	failIf(t, err != nil || len(list) != 0, "the sessions are %v, %v", list, err)
	ask(t, s, "HEAD /v1/sprites/paint/exec", "")
	ask(t, s, "GET /v1/sprites/none/check", "").refused(t, 404, "not_found")

	// Many uses at once share a start.
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { failIf(t, sp.Command("true").Run() != nil, "a command that waited fails") })
		wg.Go(func() {
			failIf(t, sp.WriteFile(ctx, name, nil, sprites.WriteOptions{}) != nil, "a write that waited fails")
		})
	}
	eventually(t, s, "paint", func(i sprites.Info) bool { return i.Status == sprites.StatusCold && len(i.Cove.AwakeBy) == 2 })
	failIf(t, rt.Boots() != 0, "it has started already")
	close(gate)
	wg.Wait()
	info, err := s.Client().Get(ctx, "paint")
	failIf(t, err != nil || info.Status != sprites.StatusRunning || info.LastRunning == nil || rt.Boots() != 1, "after %d starts it is %+v, %v", rt.Boots(), info, err)
	status, reason := checked(t, s, "paint")
	failIf(t, status != "healthy", "it is %s: %s", status, reason)

	// A sandbox that dies is told of, and replaced by the next use.
	rt.Kill(info.ID, "out of memory")
	eventually(t, s, "paint", func(i sprites.Info) bool {
		return i.Status == sprites.StatusCold && strings.Contains(i.Cove.LastError, "out of memory")
	})
	for boots := 2; boots < 5; boots++ {
		err := sp.Command("true").Run()
		failIf(t, err != nil || rt.Boots() != boots, "after %d starts: %v", rt.Boots(), err)
		rt.Kill(info.ID, "killed")
	}
}

// Statement 110: restart answers with the sprite's name and its machine's id; the
// disk stays, sessions end, and the next command starts it again.
// Statement 22: upgrade does so, too, and answers with an object.
func TestRestart(t *testing.T) {
	rt := &covetest.InProcess{Dir: t.TempDir()}
	t.Cleanup(func() { _ = rt.Close() })
	s := covetest.Start(t, covetest.Options{Runtime: rt})
	sp, c, ctx := s.Create("paint"), s.Client(), t.Context()
	restarted, err := c.Restart(ctx, "paint")
	failIf(t, err != nil || restarted.SpriteName != "paint" || len(restarted.MachineID) != 32 || restarted.Message == "", "got %+v, %v", restarted, err)
	failIf(t, rt.Boots() != 0, "a restart wakes it")
	file := filepath.Join(t.TempDir(), "file") // this sprite's disk is the test's
	for _, stop := range []func() error{
		func() error {
			again, err := c.Restart(ctx, "paint")
			failIf(t, again != restarted, "first %+v, then %+v", restarted, again)
			return err
		},
		func() error {
			a := ask(t, s, "POST /v1/sprites/paint/upgrade", "")
			var info sprites.Info
			failIf(t, json.Unmarshal(a.body, &info) != nil || info.Name != "paint" || a.StatusCode != 200, "got %d %s", a.StatusCode, a.body)
			return c.Upgrade(ctx, "paint")
		},
	} {
		must(t, sp.WriteFile(ctx, file, strings.NewReader("kept"), sprites.WriteOptions{}))
		before := rt.Boots()
		cmd := sp.Command("sh", "-c", "echo ready; exec sleep 1000")
		out, err := cmd.StdoutPipe()
		must(t, errors.Join(err, cmd.Start()))
		_, err = io.ReadFull(out, make([]byte, len("ready")))
		must(t, errors.Join(err, stop()))
		failIf(t, cmd.Wait() == nil, "the session lives")
		info, err := c.Get(ctx, "paint")
		failIf(t, err != nil || info.Status != sprites.StatusCold || info.Cove.LastError != "", "it is %+v, %v", info, err)
		text, err := sp.ReadFile(ctx, file)
		list, err2 := sp.Sessions(ctx)
		failIf(t, errors.Join(err, err2) != nil || string(text) != "kept" || len(list) != 0 || rt.Boots() != before+1, "after %d starts: %q, %v, %v, %v", rt.Boots(), text, list, err, err2)
	}
	for _, what := range []string{"restart", "upgrade"} {
		ask(t, s, "POST /v1/sprites/none/"+what, "").refused(t, 404, "not_found")
		ask(t, s, "GET /v1/sprites/paint/"+what, "").refused(t, 405, "method_not_allowed")
	}
}

// TestSpriteChangesAtOnce has many change one sprite's labels at the same time. No change is
// lost, and a change of an old revision changes nothing.
func TestSpriteChangesAtOnce(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	c := s.Server.Client()
	old, err := c.Get(t.Context(), "paint")
	failIf(t, err != nil || old.Revision == "", "got %+v, %v", old, err)
	const n = 12
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, err := c.Change(t.Context(), "paint", func(was sprites.Info) (sprites.UpdateRequest, error) {
				labels := append(slices.Clone(was.Labels), fmt.Sprint("label", i))
				return sprites.UpdateRequest{Labels: &labels}, nil
			})
			must(t, err)
		})
	}
	wg.Wait()
	now, err := c.Get(t.Context(), "paint")
	failIf(t, err != nil || len(now.Labels) != n, "%d of %d labels are there: %v, %v", len(now.Labels), n, now.Labels, err)
	_, err = c.Update(t.Context(), "paint", sprites.UpdateRequest{Retention: &sprites.Retention{Last: 3}, IdleSeconds: new(int64(77)), Revision: old.Revision})
	wantError(t, err, 412, sprite.CodeSpriteChanged)
	_, err = c.Update(t.Context(), "paint", sprites.UpdateRequest{Retention: &sprites.Retention{Last: 3}, Revision: now.Revision})
	must(t, err)
	same, err := c.Get(t.Context(), "paint")
	failIf(t, err != nil || fmt.Sprint(same.Labels) != fmt.Sprint(now.Labels) || same.Cove.IdleSeconds == 77 || same.Revision == now.Revision, "got %+v, %v", same, err)
	_, err = c.Update(t.Context(), "paint", sprites.UpdateRequest{ClearLabels: true}) // the protocol's clients know no revision
	must(t, err)
}
