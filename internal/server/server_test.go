package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

func TestDataFolder(t *testing.T) {
	dir := t.TempDir()
	s := covetest.Start(t, covetest.Options{Dir: dir})
	for _, file := range []string{"token", "server.json", "lock"} {
		info, err := os.Stat(filepath.Join(dir, file))
		failIf(t, err != nil || info.Mode() != 0o600, "%s: %v, %v", file, info, err)
	}
	_, err := server.Lock(t.Context(), dir, nil)
	failIf(t, !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), s.URL) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())), "a second lock: %v", err)
	s.Stop()
	_, err = os.Stat(filepath.Join(dir, "server.json"))
	failIf(t, !errors.Is(err, os.ErrNotExist), "server.json stays: %v", err)
	again := covetest.Start(t, covetest.Options{Dir: dir})
	failIf(t, s.Token != again.Token, "the owner's token changes at a restart")
	again.Stop()
	keepsRoom(t, dir)
	// A token that others may have read is not used, and a caller that waits for the server
	// gets the error.
	must(t, os.Chmod(filepath.Join(dir, "token"), 0o644))
	srv := &server.Server{Dir: dir, Store: s.Store, Host: s.Host}
	called := make(chan error, 1)
	go func() {
		_, err := srv.Client().Version(t.Context())
		called <- err
	}()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	err = srv.Serve(t.Context(), ln)
	failIf(t, err == nil || !strings.Contains(err.Error(), "known to others"), "got %v", err)
	failIf(t, <-called == nil, "the call went through")
	must(t, errors.Join(srv.Close(), new(server.Server).Close())) // started or not
}

// keepsRoom checks that a server overwrites what the last one has left, in the same files. On
// a full disk somebody else would take the room that it gave back.
func keepsRoom(t *testing.T, dir string) {
	t.Helper()
	has := func(name, when string, was os.FileInfo) os.FileInfo {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		failIf(t, was != nil && !os.SameFile(info, was), "%s: %s is another file", when, name)
		return info
	}
	file, address := has("spare", "stopped", nil), has("address", "stopped", nil)
	long := []byte(`{"url":"` + strings.Repeat("x", 500) + "\"}\n") // as of a server that was killed
	for _, killed := range []bool{false, true, false} {
		if killed {
			must(t, os.Rename(filepath.Join(dir, "spare"), filepath.Join(dir, "server.json")))
			must(t, os.WriteFile(filepath.Join(dir, "server.json"), long, 0o600)) // the same file
		}
		s := covetest.Start(t, covetest.Options{Dir: dir})
		info := has("server.json", "started", file)
		has("address", "started", address)
		failIf(t, killed && info.Size() != int64(len(long)), "server.json has %d bytes, of %d before", info.Size(), len(long))
		text, err := os.ReadFile(filepath.Join(dir, "server.json"))
		must(t, err)
		var said sprites.ServerInfo
		must(t, json.Unmarshal(text, &said))
		failIf(t, said.URL != s.URL || said.PID != os.Getpid(), "server.json: %s", text)
		s.Stop()
		has("spare", "stopped again", file)
	}
}

// TestClose: the end of a server ends all its streams, and waits for that. Programs in the
// sandboxes go on, and the next server finds them.
func TestClose(t *testing.T) {
	rt := &covetest.InProcess{Dir: t.TempDir()}
	t.Cleanup(func() { _ = rt.Close() })
	dir, ctx, forever := t.TempDir(), t.Context(), time.Duration(0)
	s := covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt})
	sp := s.Create("paint")
	addJob(t, s, "abcdef", "paint")
	cmd := sp.Command("sh", "-c", "echo ready; exec sleep 1000")
	cmd.MaxRunAfterDisconnect = &forever
	out, err := cmd.StdoutPipe()
	must(t, errors.Join(err, cmd.Start()))
	post := open(t, s, "POST /v1/sprites/paint/exec?cmd=sh&cmd=-c&cmd=echo+ready%3Bexec+sleep+1000", "").Body
	events := open(t, s, "GET /v1/jobs/abcdef/events?follow=true", "").Body
	_, err = io.ReadFull(out, make([]byte, len("ready")))
	_, err2 := io.ReadFull(post, make([]byte, len("\x01ready")))
	must(t, errors.Join(err, err2)) // what is still being forked would have all files open

	must(t, s.Server.Close())
	info, err := s.Host.Get(ctx, "paint")
	failIf(t, err != nil || info.Status != sprites.StatusRunning || len(info.Cove.AwakeBy) > 0, "Close has not waited: the sprite is %v, used by %v, %v", info.Status, info.Cove.AwakeBy, err)
	_, _ = io.ReadAll(post) // they end, if not well
	_, _ = io.ReadAll(events)
	err = cmd.Wait()
	failIf(t, !errors.Is(err, sprites.ErrNoExit), "the command's client got %v", err)
	_, err = s.Server.Client().Version(ctx)
	failIf(t, err == nil, "a closed server answers")
	_, err = s.Client().Version(ctx)
	failIf(t, err == nil, "a closed server listens")
	s.Stop()

	s = covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt})
	list, err := s.Client().Sprite("paint").Sessions(ctx)
	alive := slices.ContainsFunc(list, func(x sprites.Session) bool { return x.ID == cmd.SessionID() })
	failIf(t, err != nil || rt.Boots() != 1 || !alive, "after %d starts the sessions are %v, %v", rt.Boots(), list, err)
}

// A command that its guest ends because its sprite is removed has been told why.
func TestRemovedWhileExec(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	cmd := s.Create("paint").Command("sleep", "1000")
	must(t, cmd.Start())
	must(t, s.Client().Delete(t.Context(), "paint", sprites.DeleteOptions{}))
	err := cmd.Wait()
	failIf(t, !errors.Is(err, sprites.ErrRemoved), "the command's client got %v", err)
}

func addJob(t *testing.T, s *covetest.Server, id, sprite string) {
	t.Helper()
	must(t, s.Store.Jobs.Create(t.Context(), cove.Job{ID: id, State: cove.JobRunning, JobSettings: cove.JobSettings{Sprite: sprite}}, nil))
}

// onJob are the requests for one job.
var onJob = []string{
	"GET /v1/jobs/ID", "GET /v1/jobs/ID/events", "DELETE /v1/jobs/ID", "POST /v1/jobs/ID/start", "POST /v1/jobs/ID/stop", "POST /v1/jobs/ID/pulled",
	"POST /v1/jobs/ID/send", "POST /v1/jobs/ID/retry", "POST /v1/jobs/ID/resume",
}

func TestJobScopes(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Jobs: func(st *store.Store, c *cove.Client) (server.Jobs, func() error, error) {
		m := &job.Manager{Store: st, Client: c}
		return m, m.Close, m.Resume(t.Context())
	}})
	addJob(t, s, "aaaaaa", "ci-1")
	addJob(t, s, "bbbbbb", "other")
	ci := cove.TokenScope{Prefix: "ci-"}
	tok := token(t, s, ci, "read", "write", "exec")
	for query, want := range map[string]int{"": 2, "?sprite=other": 1, "?state=lost": 0, "?state=lost&state=running&sprite=ci-1": 1} {
		var list cove.JobList
		a := ask(t, s, "GET /v1/jobs"+query, "")
		failIf(t, json.Unmarshal(a.body, &list) != nil || len(list.Jobs) != want, "%q lists %s", query, a.body)
		a = ask(t, s, "GET /v1/jobs"+query, "", bearer(tok))
		failIf(t, bytes.Contains(a.body, []byte("bbbbbb")), "the token lists %s", a.body)
	}
	for _, what := range onJob {
		for _, id := range []string{"bbbbbb", "cccccc"} { // it makes no difference whether there is one
			ask(t, s, strings.ReplaceAll(what, "ID", id), "{}", bearer(tok)).refused(t, 404, "not_found")
		}
	}
	for _, body := range []string{`{}`, `{"sprite":"other"}`, `{"sprite":"ci-1","include":["/etc"]}`, `{"sprite":"ci-1","agent":"x","agent_definition":{"file":"x.toml","text":"connectors = ['github']"}}`,
		`{"sprite":"ci-1","agent":"cove","mcp":[{"connector":"tracker","tools":["*"]}]}`} {
		ask(t, s, "POST /v1/jobs", body, bearer(tok)).refused(t, 403, "forbidden")
		ask(t, s, "POST /v1/jobs/preview", body, bearer(tok)).refused(t, 403, "forbidden")
	}
	// To do a job again takes the right to begin it.
	ask(t, s, "POST /v1/jobs/aaaaaa/retry", `{}`, bearer(token(t, s, ci, "read", "write"))).refused(t, 403, "forbidden")
	ask(t, s, "POST /v1/jobs/aaaaaa/retry", `{}`, bearer(tok)).refused(t, 403, "forbidden") // in a new sprite
	ask(t, s, "POST /v1/jobs/aaaaaa/resume", `{"message":"x"}`, bearer(token(t, s, ci, "read", "write"))).refused(t, 403, "forbidden")
	ask(t, s, "POST /v1/jobs/aaaaaa/resume", `{"message":"x","sprite":"other"}`, bearer(tok)).refused(t, 403, "forbidden")
	// To go on with a job takes the right to what somebody else gave it, too.
	must(t, s.Store.Jobs.Create(t.Context(), cove.Job{ID: "dddddd", State: cove.JobFailed, JobSettings: cove.JobSettings{Sprite: "ci-1", MCP: []cove.MCPServer{{Connector: "tracker"}}}}, nil))
	ask(t, s, "POST /v1/jobs/dddddd/resume", `{"message":"x"}`, bearer(tok)).refused(t, 403, "forbidden")
	must(t, s.Store.Jobs.Delete(t.Context(), "dddddd"))
	ask(t, s, "POST /v1/jobs/aaaaaa/send", `{"text":"x"}`, bearer(token(t, s, ci, "read", "write"))).refused(t, 403, "forbidden")
	ask(t, s, "GET /v1/sprites/ci-1/sandbox/logs", "", bearer(tok)).refused(t, 403, "forbidden")
	var collected cove.JobGCResult
	a := ask(t, s, "POST /v1/jobs/gc", `{"force":true}`, bearer(tok))
	failIf(t, json.Unmarshal(a.body, &collected) != nil || len(collected.Removed) > 0 || len(collected.Kept) != 1 || collected.Kept[0].Job != "aaaaaa", "gc touches %s", a.body)
	ask(t, s, "POST /v1/jobs/gc", `{"older_than_seconds":-1}`, bearer(tok)).refused(t, 400, "bad_request")
	ask(t, s, "POST /v1/jobs", `{"sprite":"ci-1"}`, bearer(token(t, s, ci, "read", "write"))).refused(t, 403, "forbidden")
	ask(t, s, "POST /v1/jobs", `{"plan":"`+strings.Repeat("a", 8<<20)+`"}`).refused(t, 413, "too_large")
}

func TestJobEvents(t *testing.T) {
	s, ctx := covetest.Start(t, covetest.Options{}), t.Context()
	addJob(t, s, "abcdef", "paint")
	for _, what := range append(onJob[2:], "POST /v1/jobs") { // what needs the other half
		ask(t, s, strings.ReplaceAll(what, "ID", "abcdef"), "{}").refused(t, 501, "not_available")
	}
	add := func(from, to int64, last string) {
		t.Helper()
		var events []cove.JobEvent
		for seq := from; seq <= to; seq++ {
			events = append(events, cove.JobEvent{Seq: seq, Type: "output"})
		}
		events[len(events)-1].Type = last
		must(t, s.Store.Jobs.AppendEvents(ctx, "abcdef", events))
	}
	read := func(query string, first, last int64) {
		t.Helper()
		a := ask(t, s, "GET /v1/jobs/abcdef/events"+query, "")
		for line := range strings.Lines(string(a.body)) {
			var e cove.JobEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil || e.Seq != first {
				t.Fatalf("got %q, %v, want event %d", line, err, first)
			}
			first++
		}
		failIf(t, a.StatusCode != 200 || a.err != nil || a.Header.Get("Content-Type") != "application/x-ndjson" || first != last+1, "%s: %d %v, next is %d, %v", query, a.StatusCode, a.Header, first, a.err)
	}
	read("", 1, 0)
	add(1, 600, "output") // more than one page
	read("", 1, 600)
	read("?from=-5", 1, 600)
	read("?from=598", 598, 600)
	for _, query := range []string{"/events?from=x", "/events?follow=x", "?wait=x", "?wait=-1s", "?wait=5"} {
		ask(t, s, "GET /v1/jobs/abcdef"+query, "").refused(t, 400, "bad_request")
	}
	ask(t, s, "GET /v1/jobs/none/events", "").refused(t, 404, "not_found")

	// A follower gets each event as it comes, and nothing after the last.
	next := int64(599)
	for e, err := range s.Client().JobEvents(ctx, "abcdef", next, true) {
		if err != nil || e.Seq != next {
			t.Fatalf("got %+v, %v, want event %d", e, err, next)
		}
		switch next++; e.Seq {
		case 600, 601:
			add(next, next, "output")
		case 602:
			add(603, 605, "end")
		}
	}
	failIf(t, next != 606, "the last event was %d", next-1)

	// A wait ends with the job, or with the wait.
	a := ask(t, s, "GET /v1/jobs/abcdef?wait=1ms", "")
	failIf(t, !bytes.Contains(a.body, []byte(`"state":"running"`)) || !bytes.Contains(a.body, []byte(`"last_seq":605`)), "got %s", a.body)
	finished := make(chan error)
	go func() {
		_, err := s.Store.Jobs.Finish(ctx, "abcdef", cove.JobSucceeded, cove.Outcome{Kind: "success"}, nil)
		finished <- err
	}()
	j, err := s.Client().WaitJob(ctx, "abcdef")
	must(t, errors.Join(err, <-finished))
	failIf(t, j.State != cove.JobSucceeded || j.Outcome.Kind != "success", "got %+v", j)

	// A job that ends without a word, or is deleted, has no more events.
	addJob(t, s, "empty1", "paint")
	addJob(t, s, "gone00", "paint")
	ended, deleted := open(t, s, "GET /v1/jobs/empty1/events?from=0&follow=true", ""), open(t, s, "GET /v1/jobs/gone00/events?follow=true", "")
	_, err = s.Store.Jobs.Finish(ctx, "empty1", cove.JobCancelled, cove.Outcome{Kind: "cancelled"}, nil)
	must(t, errors.Join(err, s.Store.Jobs.Delete(ctx, "gone00")))
	for _, resp := range []*http.Response{ended, deleted} {
		text, err := io.ReadAll(resp.Body)
		failIf(t, len(text) > 0 || err != nil, "got %q, %v", text, err)
	}
}
