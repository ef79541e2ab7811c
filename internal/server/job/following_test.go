package job

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/store"
)

// TestFollowCutAnywhere: T5: a log that is cut a hundred times, anywhere, is stored whole, once.
// Each follower begins with the number after the last one that is stored.
func TestFollowCutAnywhere(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var events []cove.JobEvent
	for i := range 500 {
		events = append(events, cove.JobEvent{Type: "output", Stream: "stdout", Text: fmt.Sprint(i, strings.Repeat(" ä", random.IntN(300)))})
	}
	text := lines(t, events...)
	begin := []int{0} // of each line
	for i, c := range []byte(text) {
		if c == '\n' {
			begin = append(begin, i+1)
		}
	}
	f := follower{all: m.followers, id: job.ID}
	last := int64(0)
	for cut := range 100 {
		if job, err = client.Job(t.Context(), job.ID); err != nil || job.LastSeq < last {
			t.Fatalf("after %d cuts it has come to %d, from %d, %v", cut, job.LastSeq, last, err)
		}
		last = job.LastSeq
		rest := text[begin[last]:]
		if err := f.store(t.Context(), strings.NewReader(rest[:random.IntN(min(len(rest)+1, len(text)/40))]), last); err != nil {
			t.Fatal(err)
		}
	}
	if job, err = client.Job(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	if err := f.store(t.Context(), strings.NewReader(text[begin[job.LastSeq]:]), job.LastSeq); err != nil {
		t.Fatal(err)
	}
	stored, err := m.Store.Jobs.Events(t.Context(), job.ID, 1, 1000)
	if err != nil || len(stored) != len(events) {
		t.Fatalf("%d events of %d are stored, %v", len(stored), len(events), err)
	}
	for i, ev := range stored {
		if ev.Seq != int64(i+1) || ev.Text != events[i].Text {
			t.Fatalf("event %d is %+v", i+1, ev)
		}
	}
}

// TestFollowCuts: T4, T5, T7: a job goes on, whatever happens to the connection to it. Nothing
// of its log is lost or doubled. If it ends while its service is away, it has ended just so
// when the service is back, with its work.
func TestFollowCuts(t *testing.T) {
	b, s := newFarBench(t)
	o := s.work(b)
	pipe := filepath.Join(t.TempDir(), "go")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	job := b.queue(func(req *cove.JobRequest) {
		req.Env = []string{"go=" + pipe}
		req.Plan = "# Work\n```sh\nexec <\"$go\"\nwhile read -r n; do echo \"line $n\"; done\necho x >x; git add x; git commit -q -m work\n```\n"
	})
	in, err := os.OpenFile(pipe, os.O_WRONLY, 0) // waits for the reader
	if err != nil {
		t.Fatal(err)
	}
	env, err := o.Store.Environments.OfJob(t.Context(), job.ID)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	say := func(lines int) {
		t.Helper()
		for range lines {
			if _, err := fmt.Fprintln(in, n); err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	for range 8 {
		say(5)
		seq := o.until(t, job.ID, func(j cove.Job) bool { return j.LastSeq > job.LastSeq }).LastSeq
		say(5)
		s.Cut()
		job = o.until(t, job.ID, func(j cove.Job) bool { return j.LastSeq > seq })
	}
	say(1)
	o.until(t, job.ID, func(cove.Job) bool { // what was said after the last cut has come by another connection
		events, err := o.Store.Jobs.Events(t.Context(), job.ID, 1, 10000)
		return err != nil || slices.ContainsFunc(events, func(ev cove.JobEvent) bool { return ev.Text == fmt.Sprint("line ", n-1) })
	})
	if got := o.followers.signal(env); got != cove.SupervisorAnswers {
		t.Errorf("while its log comes, the supervisor is %q", got)
	}
	s.SetDown(true)
	o.until(t, job.ID, func(j cove.Job) bool { return j.Unknown != nil })
	elsewhere := env
	elsewhere.Backend = ""
	if got, other := o.followers.signal(env), o.followers.signal(elsewhere); got != cove.SupervisorSilent || other != "" {
		t.Errorf("while its service is away, the supervisor is %q, and one elsewhere %q", got, other)
	}
	say(5)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if end := b.ended(job.ID); end.ExitCode != 0 {
		t.Errorf("in the sprite it ended with %+v", end)
	}
	if job, err = o.Store.Jobs.Get(t.Context(), job.ID); err != nil || job.State.Terminal() {
		t.Errorf("while its service is away the job is %+v, %v", job, err)
	}
	s.SetDown(false)
	if job = b.await(job.ID); job.State != cove.JobSucceeded || job.Commits != 1 || job.Outcome.Kind != agents.Success {
		t.Errorf("got %+v", job)
	}
	o.followers.Close() // and wait for those that have ended
	if got := o.followers.signal(env); got != "" {
		t.Errorf("without a job, the supervisor is %q", got)
	}
	events, err := o.Store.Jobs.Events(t.Context(), job.ID, 1, 10000)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for i, ev := range events {
		if ev.Seq != int64(i+1) {
			t.Errorf("event %d has the number %d", i+1, ev.Seq)
		}
		if text, ok := strings.CutPrefix(ev.Text, "line "); ok && ev.Type == "output" {
			said = append(said, text)
		}
	}
	for i, text := range said {
		if text != fmt.Sprint(i) {
			t.Fatalf("line %d is %s", i, text)
		}
	}
	if len(said) != n || events[len(events)-1].Type != "end" {
		t.Errorf("%d lines of %d came, and the last event is %+v", len(said), n, events[len(events)-1])
	}
}

// TestSiblings: R10: two jobs share a sprite, and nothing else: neither supervisor, socket nor log.
// To stop one leaves the other as it is.
func TestSiblings(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	one := b.begin(`echo x >"$said"`)
	two := b.beginWith(`echo x >"$said"`, func(req *cove.JobRequest) { req.Sprite = one.Sprite })
	if one.Sprite != two.Sprite || one.Service == two.Service || one.Execution == two.Execution || b.supervisor(one.ID) == b.supervisor(two.ID) || one.Workdir == two.Workdir {
		t.Errorf("the jobs are %+v and %+v", one, two)
	}
	if _, err := b.server.Client().StopJob(t.Context(), one.ID); err != nil {
		t.Fatal(err)
	}
	if one = b.await(one.ID); one.State != cove.JobCancelled || one.Commits != 1 {
		t.Errorf("the one that was stopped: %+v", one)
	}
	other, err := b.server.Client().Job(t.Context(), two.ID)
	if err != nil || other.State.Terminal() || len(b.processes(two.ID)) == 0 || other.Service != two.Service {
		t.Errorf("the other: %+v, %v", other, err)
	}
	if _, err := b.server.Client().StopJob(t.Context(), two.ID); err != nil {
		t.Fatal(err)
	}
	if two = b.await(two.ID); two.State != cove.JobCancelled || two.Commits != 1 {
		t.Errorf("the other, stopped: %+v", two)
	}
}

// keeper is an agent that speaks ACP, and can go on with a session if it is told to (loads).
const keeper = `
answer() { id=$(printf %s "$1" | sed 's/.*"id":\([0-9]*\).*/\1/'); printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$2"; }
while read -r line; do
	case $line in
	*'"initialize"'*) answer "$line" "{\"protocolVersion\":1,\"agentCapabilities\":{\"loadSession\":$(cat "$loads")}}" ;;
	*'"session/new"'*) answer "$line" '{"sessionId":"s1"}' ;;
	*'"session/load"'*) answer "$line" '{}' ;;
	*'"session/prompt"'*) answer "$line" '{"stopReason":"end_turn"}' ;;
	esac
done`

// TestResumeStates: R5, R6, R7: a job can be resumed from each state that it can have ended
// in, with its agent's own session. If the agent does not take that session up again, the job
// fails. It gets no new session in silence, and keeps the old one for the next try.
func TestResumeStates(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	c := b.server.Client()
	script, loads := filepath.Join(t.TempDir(), "keeper"), filepath.Join(t.TempDir(), "loads")
	if err := os.WriteFile(script, []byte(keeper), 0o644); err != nil {
		t.Fatal(err)
	}
	can := func(text string) {
		t.Helper()
		if err := os.WriteFile(loads, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	can("true")
	job := b.queue(func(req *cove.JobRequest) {
		req.Agent, req.AgentCommand, req.Env = "acp", "sh "+script, []string{"loads=" + loads}
	})
	if job = b.await(job.ID); job.State != cove.JobSucceeded || job.AgentSession != "s1" {
		t.Fatalf("got %+v", job)
	}
	settings, err := b.manager.Store.Jobs.Settings(t.Context(), job.ID)
	if err != nil {
		t.Fatal(err)
	}
	in := func(state cove.JobState, workdir string) string { // a job like this one, in another state
		t.Helper()
		row := job
		row.ID, row.Execution, row.State, row.Workdir, row.OwnsSprite = randomID(3), randomID(8), state, workdir, false
		if err := errors.Join(b.manager.Store.Jobs.Create(t.Context(), row, settings), os.Mkdir(b.folder(row.ID), 0o755)); err != nil {
			t.Fatal(err)
		}
		return row.ID
	}
	for _, state := range []cove.JobState{cove.JobInstalling, cove.JobQueued, cove.JobPreparing, cove.JobRunning, cove.JobWaiting} {
		if _, err := c.ResumeJob(t.Context(), in(state, job.Workdir+"-other"), cove.JobResume{Message: "go on"}); code(err) != "job_running" && code(err) != "job_installing" {
			t.Errorf("%s: got %v", state, err)
		}
	}
	resume := func(id string) cove.Job {
		t.Helper()
		next, err := c.ResumeJob(t.Context(), id, cove.JobResume{Message: "go on"})
		if err != nil {
			t.Fatal(err)
		}
		return b.await(next.ID)
	}
	for _, state := range []cove.JobState{cove.JobSucceeded, cove.JobFailed, cove.JobTimedOut, cove.JobCancelled, cove.JobLost} {
		id := in(state, job.Workdir)
		next := resume(id)
		events, err := b.manager.Store.Jobs.Events(t.Context(), next.ID, 1, 1000)
		loaded := slices.ContainsFunc(events, func(ev cove.JobEvent) bool {
			return ev.Type == "event" && strings.Contains(ev.Text, `"session_id":"s1"`) && strings.Contains(ev.Text, `"loaded":true`)
		})
		if err != nil || next.State != cove.JobSucceeded || next.ResumeOf != id || next.AgentSession != "s1" || next.Workdir != job.Workdir || !loaded {
			t.Errorf("%s: got %+v, %v", state, next, err)
		}
	}
	can("false")
	failed := resume(job.ID)
	if failed.State == cove.JobSucceeded || !strings.Contains(failed.Outcome.Reason, "can't continue a session") || failed.AgentSession != "s1" {
		t.Errorf("an agent without its session: %+v, %+v", failed.Outcome, failed)
	}
	can("true")
	if next := resume(failed.ID); next.State != cove.JobSucceeded || next.AgentSession != "s1" {
		t.Errorf("after that: %+v", next)
	}
	can("false")
	once := b.queue(func(req *cove.JobRequest) {
		req.Agent, req.AgentCommand, req.Env = "acp", "sh "+script, []string{"loads=" + loads}
	})
	if once = b.await(once.ID); once.State != cove.JobSucceeded || once.AgentSession != "" {
		t.Errorf("an agent that can't continue its session: %+v", once)
	}
	if _, err := c.ResumeJob(t.Context(), once.ID, cove.JobResume{Message: "go on"}); code(err) != "no_session" {
		t.Errorf("it is to go on: %v", err)
	}
	if all, err := b.manager.Store.Jobs.List(t.Context(), store.JobFilter{Sprite: job.Sprite}); err != nil || len(all) != 18 {
		t.Errorf("there are %d jobs, %v", len(all), err)
	}
}
