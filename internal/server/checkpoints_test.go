package server_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// events are the lines of an answer that tells of a checkpoint.
func (a answer) events(t *testing.T) (all []sprites.CheckpointEvent) {
	t.Helper()
	failIf(t, a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/x-ndjson", "got %d %s", a.StatusCode, a.body)
	for line := range strings.Lines(string(a.body)) {
		var e sprites.CheckpointEvent
		failIf(t, json.Unmarshal([]byte(line), &e) != nil || e.Type == "" || e.Time.IsZero(), "the line %s", line)
		all = append(all, e)
	}
	return all
}

func ids(list []sprites.Checkpoint) string {
	var all []string
	for _, c := range list {
		all = append(all, c.ID)
	}
	return strings.Join(all, " ")
}

// Statement 96: checkpoint create → 200 NDJSON; a new entry with its comment.
// Statement 97: the list has Current; automatic ones only with includeAuto=true.
// Statement 98: restore brings old bytes back and removes newer files.
// Statement 99: delete of the active one → 409.
func TestCheckpoints(t *testing.T) {
	s, ctx := covetest.Start(t, covetest.Options{}), t.Context()
	_, err := s.Client().Create(ctx, sprites.CreateRequest{Name: "paint", NetworkPolicy: &sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "none"}}}})
	failIf(t, err != nil, "%v", err)
	paint := s.Client().Sprite("paint")
	sh := func(name, script string) string {
		t.Helper()
		out, err := s.Client().Sprite(name).CommandContext(ctx, "sh", "-c", script).CombinedOutput()
		failIf(t, err != nil, "%s: %v %s", script, err, out)
		return string(out)
	}
	sleep := func(name string) { // what runs in this runtime can't be checkpointed
		t.Helper()
		ask(t, s, "POST /v1/sprites/"+name+"/restart", "{}")
	}
	sh("paint", "echo one >file")
	last := ask(t, s, "POST /v1/sprites/paint/checkpoint", `{}`).events(t)
	failIf(t, last[len(last)-1].Type != "error" || last[len(last)-1].Code != "bad_request", "a checkpoint of what runs: %+v", last)
	last = ask(t, s, "POST /v1/sprites/paint/checkpoint", `{"memory":"often"}`).events(t)
	failIf(t, last[len(last)-1].Code != "bad_request" || !strings.Contains(last[len(last)-1].Error, "never, auto or always"), "a memory kept often: %+v", last)
	sleep("paint")

	for i, body := range []string{"", `{"comment":"second","id":"mine"}`} {
		events := ask(t, s, "POST /v1/sprites/paint/checkpoint", body).events(t)
		end := events[len(events)-1]
		failIf(t, events[0].Type != "info" || end.Type != "complete" || end.Checkpoint.ID != []string{"v1", "v2"}[i] || !strings.Contains(end.Data, end.Checkpoint.ID), "%+v", events)
		sh("paint", "echo two >file; touch newer")
		sleep("paint")
	}
	var list []sprites.Checkpoint
	failIf(t, json.Unmarshal(ask(t, s, "GET /v1/sprites/paint/checkpoints", "").body, &list) != nil, "the list is no bare array")
	failIf(t, ids(list) != "Current v2 v1" || list[0].SourceID != "v2" || list[1].Comment != "second" || list[1].SourceID != "v1" || ids(list[:0]) != "" || strings.Join(list[0].History, " ") != "v2 v1", "%+v", list)

	done, err := paint.RestoreCheckpoint(ctx, "v1", sprites.RestoreRequest{}, nil)
	failIf(t, err != nil || done.Checkpoint != "v1" || !strings.HasPrefix(done.Replaced, "pre-restore-v2-") || done.Booted, "%+v, %v", done, err)
	failIf(t, sh("paint", "cat file; ls") != "one\nfile\n", "the disk is %s", sh("paint", "cat file; ls"))
	sleep("paint")
	list, err = paint.Checkpoints(ctx, false)
	failIf(t, err != nil || ids(list) != "Current v2 v1" || list[0].SourceID != "v1", "%+v, %v", list, err)
	list, err = paint.Checkpoints(ctx, true)
	failIf(t, err != nil || ids(list) != "Current "+done.Replaced+" v2 v1" || !list[1].IsAuto || list[1].SourceID != "v2", "%+v, %v", list, err)
	a := ask(t, s, "GET /v1/sprites/paint/checkpoints?history="+done.Replaced, "", header("Accept", "text/plain"))
	failIf(t, string(a.body) != done.Replaced+"\nv2\nv1\n", "the history is %s", a.body)
	failIf(t, json.Unmarshal(ask(t, s, "GET /v1/sprites/paint/checkpoints?history=v2", "").body, &list) != nil || ids(list) != "v2 v1", "%+v", list)

	ask(t, s, "DELETE /v1/sprites/paint/checkpoints/v1", "").refused(t, 409, "active_checkpoint")
	for _, what := range []string{"GET checkpoints/v9", "DELETE checkpoints/v9", "POST checkpoints/v9/restore"} {
		method, path, _ := strings.Cut(what, " ")
		ask(t, s, method+" /v1/sprites/paint/"+path, "").refused(t, 404, "not_found")
	}
	ask(t, s, "POST /v1/sprites/none/checkpoint", "{}").refused(t, 404, "not_found")
	ask(t, s, "GET /v1/sprites/paint/checkpoints/v1/diff", "").refused(t, 501, "not_available") // nor looked at
	ask(t, s, "POST /v1/sprites/none/checkpoints/verify", "").refused(t, 404, "not_found")
	ask(t, s, "POST /v1/sprites/paint/checkpoint", `{"comment":"`+strings.Repeat("x", 5000)+`"}`).events(t)

	// A fork is another sprite, with its own of everything.
	failIf(t, paint.DeleteCheckpoint(ctx, "v2") != nil, "v2 was not deleted")
	_, err = paint.Fork(ctx, sprites.ForkRequest{Name: "older", Checkpoint: done.Replaced})
	failIf(t, err != nil, "%v", err)
	_, err = paint.Fork(ctx, sprites.ForkRequest{Name: "copy"})
	failIf(t, err != nil, "%v", err)
	failIf(t, sh("older", "cat file") != "two\n" || sh("copy", "cat file") != "one\n", "the forks have %s and %s", sh("older", "cat file"), sh("copy", "cat file"))
	sh("copy", "echo three >file")
	failIf(t, sh("paint", "cat file") != "one\n", "a fork wrote its origin's disk")
	policy, err := s.Client().Sprite("copy").NetworkPolicy(ctx)
	failIf(t, err != nil || len(policy.Rules) != 1 || policy.Rules[0].Include != "none", "%+v, %v", policy, err)
	failIf(t, s.Client().Sprite("copy").SetNetworkPolicy(ctx, sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: "open"}}}) != nil, "the fork's policy was not set")
	policy, err = paint.NetworkPolicy(ctx)
	failIf(t, err != nil || policy.Rules[0].Include != "none", "the fork's policy is its origin's: %+v, %v", policy, err)
	_, err = paint.Fork(ctx, sprites.ForkRequest{Name: "copy"})
	failIf(t, err == nil || !strings.Contains(err.Error(), "copy already"), "a name twice: %v", err)
	ask(t, s, "POST /v1/sprites/paint/fork", `{"name":"Bad"}`).refused(t, 400, "bad_name")
	ask(t, s, "POST /v1/sprites/paint/fork", `{"name":"x","checkpoint":"v9"}`).refused(t, 404, "not_found")

	// Only a token that reaches both names may fork.
	tok := token(t, s, cove.TokenScope{Prefix: "pa"}, "read", "write")
	ask(t, s, "POST /v1/sprites/paint/fork", `{"name":"other"}`, bearer(tok)).refused(t, 403, "forbidden")
	reader := token(t, s, cove.TokenScope{All: true}, "read")
	for _, what := range []string{"POST checkpoint", "DELETE checkpoints/v1", "POST checkpoints/v1/restore", "POST fork"} {
		method, path, _ := strings.Cut(what, " ")
		ask(t, s, method+" /v1/sprites/paint/"+path, "{}", bearer(reader)).refused(t, 403, "forbidden")
	}

	// The origin may go; what its forks have of it stays.
	sleep("paint")
	failIf(t, s.Client().Delete(ctx, "paint", sprites.DeleteOptions{}) != nil, "the origin was not deleted")
	failIf(t, sh("older", "cat file") != "two\n" || sh("copy", "cat file") != "three\n", "after the origin: %s %s", sh("older", "cat file"), sh("copy", "cat file"))
}
