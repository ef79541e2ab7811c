package server_test

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// addProfiled adds a job by a profile, and the sprite that was made for it.
func addProfiled(t *testing.T, s *covetest.Server, id, profile, by string) (sprite string) {
	t.Helper()
	sprite = "job-" + id
	must(t, s.Store.Jobs.Create(t.Context(), cove.Job{ID: id, State: cove.JobRunning, By: by, OwnsSprite: true, JobSettings: cove.JobSettings{Sprite: sprite, Profile: profile}}, nil))
	_, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: sprite, Owner: store.JobOwner(id)})
	must(t, err)
	return sprite
}

// TestConfined: a token that may push by a profile can't change the limits of its jobs'
// sprites afterwards.
func TestConfined(t *testing.T) {
	s := covetest.Start(t, withJobs(t))
	for name, p := range map[string]cove.ProfileSettings{
		"gives": {Agent: "shell", URL: "https://example.org/a", Config: &sprites.Config{RAMMB: 512, StorageGB: 1}}, "plain": {Agent: "shell"},
		"ruled": {Agent: "shell", NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}},
	} {
		_, err := s.Store.Profiles.Put(t.Context(), name, 0, p)
		must(t, err)
	}
	const open = `{"rules":[{"domain":"*","action":"allow"}]}`
	for name, scope := range map[string]cove.TokenScope{"aaaaaa": {Profile: "gives"}, "bbbbbb": {All: true}} {
		tok := token(t, s, scope, "read", "write", "exec")
		at := "/v1/sprites/" + addProfiled(t, s, name, "gives", tok.ID)
		ask(t, s, "POST "+at+"/policy/network", open, bearer(tok)).refused(t, 403, "forbidden")
		ask(t, s, "PUT "+at, `{"ram_mb":1024}`, bearer(tok)).refused(t, 403, "forbidden")
		ask(t, s, "PUT "+at, `{"ram_mb":0}`, bearer(tok)).refused(t, 403, "forbidden")
		ask(t, s, "POST "+at+"/fork", `{"name":"copy"}`, bearer(tok)).refused(t, 403, "forbidden")
		ask(t, s, "PUT "+at, `{"storage_mb":2048}`, bearer(tok)).refused(t, 403, "forbidden")
		a := ask(t, s, "PUT "+at, `{"storage_mb":512,"idle_seconds":100}`, bearer(tok))
		failIf(t, a.StatusCode != 200, "less: %d %s", a.StatusCode, a.body)
		ask(t, s, "POST /v1/jobs", `{"agent":"shell","plan":"x","sprite":"job-`+name+`","network_policy":`+open+`}`, bearer(tok)).refused(t, 403, "forbidden")
		a = ask(t, s, "POST "+at+"/policy/network", open)
		failIf(t, a.StatusCode != 204, "the owner: %d %s", a.StatusCode, a.body)
	}
	tok := token(t, s, cove.TokenScope{Profile: "plain"}, "read", "write", "exec")
	a := ask(t, s, "POST /v1/sprites/"+addProfiled(t, s, "cccccc", "plain", tok.ID)+"/policy/network", open, bearer(tok))
	failIf(t, a.StatusCode != 204, "of a profile that gives nothing: %d %s", a.StatusCode, a.body)
	by := token(t, s, cove.TokenScope{Profile: "ruled"}, "read", "write", "exec")
	ruled := "/v1/sprites/" + addProfiled(t, s, "dddddd", "ruled", by.ID)
	ask(t, s, "POST "+ruled+"/policy/network", open, bearer(by)).refused(t, 403, "forbidden")
	ask(t, s, "POST "+ruled+"/fork", `{"name":"copy"}`, bearer(by)).refused(t, 403, "forbidden")
	for _, other := range []string{`"agent":"cove","model":"anthropic/x"`, `"agent_command":"x"`} { // the server's keys would be used
		ask(t, s, "POST /v1/jobs", `{"profile":"plain","plan":"x",`+other+`}`, bearer(tok)).refused(t, 403, "forbidden")
	}
	for _, other := range []string{`"agent":"cove","model":"anthropic/x"`, `"agent":"claude"`} { // nor in a sprite of its own, as a job of no profile
		ask(t, s, "POST /v1/jobs", `{"plan":"x","sprite":"job-cccccc",`+other+`}`, bearer(tok)).refused(t, 403, "forbidden")
		ask(t, s, "POST /v1/jobs/cccccc/retry", `{`+other+`}`, bearer(tok)).refused(t, 403, "forbidden")
	}
	same := ask(t, s, "POST /v1/jobs", `{"profile":"plain","plan":"x","agent":"shell"}`, bearer(tok))
	failIf(t, same.StatusCode == 403, "the profile's own agent: %d %s", same.StatusCode, same.body)
	known := string(ask(t, s, "GET /v1/profiles", "", bearer(tok)).body)
	failIf(t, !strings.Contains(known, `"plain"`) || strings.Contains(known, `"gives"`), "a token for one knows of %s", known)
	ask(t, s, "GET /v1/profiles/gives", "", bearer(tok)).refused(t, 404, "no_profile")
}

// TestSocketOfProfile: a token for a profile is told of the jobs that it begins after it has
// subscribed, and of no others.
func TestSocketOfProfile(t *testing.T) {
	s := covetest.Start(t, withJobs(t))
	_, err := s.Store.Profiles.Put(t.Context(), "plain", 0, cove.ProfileSettings{Agent: "shell"})
	must(t, err)
	tok := token(t, s, cove.TokenScope{Profile: "plain"}, "read")
	w := dialWire(t, s, tok.Secret)
	w.subscribe(cove.Subscription{Topics: []string{"jobs"}})
	w.wants("synced")
	addProfiled(t, s, "aaaaaa", "plain", "somebody")
	addProfiled(t, s, "bbbbbb", "plain", tok.ID)
	w.wants("jobs bbbbbb")
	for _, id := range []string{"aaaaaa", "bbbbbb"} {
		must(t, s.Store.Jobs.Delete(t.Context(), id))
	}
	w.wants("-jobs bbbbbb")
}
