package job

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// lines are events as a sprite's follower prints them, numbered from 1 on.
func lines(t *testing.T, events ...cove.JobEvent) string {
	t.Helper()
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a liar's line is as short as it can be
	for i, e := range events {
		e.Seq = int64(i + 1)
		if err := enc.Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// TestHostileTexts has logs whose texts would make every list of jobs, or of events, too long
// to read.
func TestHostileTexts(t *testing.T) {
	m, client := newManager(t)
	long := strings.Repeat("<", maxEvent/8)
	end := cove.JobEvent{Type: "end", Result: &cove.JobEnd{Phase: long, Reason: long, Detail: long, ExitCode: 1}}
	for range 2 {
		job, err := client.CreateJob(t.Context(), request())
		if err != nil {
			t.Fatal(err)
		}
		f := follower{all: m.followers, id: job.ID}
		state := cove.JobEvent{Type: "state", State: cove.JobRunning}
		if err := f.store(t.Context(), strings.NewReader(lines(t, state, end)), 0); err != nil {
			// The event has grown beyond its bound, so it is refused. A smaller one is
			// clipped.
			if !errors.Is(err, errBadLog) {
				t.Fatal(err)
			}
			small := end
			small.Result = &cove.JobEnd{Phase: "run", Reason: strings.Repeat("<", maxEvent/mostGrowth/2), ExitCode: 1}
			if err := f.store(t.Context(), strings.NewReader(strings.SplitAfter(lines(t, state, small), "\n")[1]), 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	jobs, err := client.Jobs(t.Context())
	if err != nil || len(jobs) != 2 {
		t.Fatalf("%d jobs, %v", len(jobs), err)
	}
	for _, j := range jobs {
		text, err := json.Marshal(j)
		if err != nil || len(text) > 20*maxReason || j.State != cove.JobFailed {
			t.Errorf("job %s is %s, of %d bytes, %v", j.ID, j.State, len(text), err)
		}
		for e, err := range client.JobEvents(t.Context(), j.ID, 1, false) {
			if err != nil {
				t.Error(err)
			}
			if text, err := json.Marshal(e); err != nil || len(text) > maxEvent {
				t.Errorf("event %d of %d bytes, %v", e.Seq, len(text), err)
			}
		}
	}
}

// TestHostileUsage has agents' logs with costs whose sum is too large for JSON.
func TestHostileUsage(t *testing.T) {
	m, client := newManager(t)
	for agent, line := range map[string]string{
		"opencode": `{"type":"step_finish","part":{"reason":"stop","cost":1.7e308,"tokens":{"input":9223372036854775807,"output":-5}}}`,
		"pi":       `{"type":"message_end","message":{"role":"assistant","stopReason":"stop","usage":{"input":9223372036854775807,"output":-5,"cost":{"total":1.7e308}}}}`,
		"codex":    `{"type":"turn.completed","usage":{"input_tokens":-9223372036854775808,"output_tokens":-5}}`,
	} {
		req := request()
		req.Agent, req.Plan, req.Env = agent, "Do it.", []string{"ANTHROPIC_API_KEY=x", "OPENAI_API_KEY=x", "GEMINI_API_KEY=x"}
		job, err := client.CreateJob(t.Context(), req)
		if err != nil {
			t.Fatal(agent, err)
		}
		said := cove.JobEvent{Type: "output", Stream: "stdout", Text: line}
		f := follower{all: m.followers, id: job.ID}
		err = f.store(t.Context(), strings.NewReader(lines(t, said, said, cove.JobEvent{Type: "end", Result: &cove.JobEnd{Phase: "done"}})), 0)
		if err != nil {
			t.Errorf("%s: %v", agent, err)
		}
		after, err := client.Job(t.Context(), job.ID)
		if err != nil || !after.State.Terminal() {
			t.Errorf("%s: the job is %s, %v", agent, after.State, err)
		}
		if u := after.Usage; u == nil || u.InputTokens < 0 || u.OutputTokens < 0 || u.CostUSD < 0 || u.CostUSD > maxCost {
			t.Errorf("%s: it used %+v", agent, u)
		}
	}
}

// TestHostileFollower has a sprite whose follower ends at once, in good order, and prints
// nothing. It is not asked again without a pause, nor for ever.
func TestHostileFollower(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	f := follower{all: m.followers, id: job.ID}
	for i := range idleTries - 1 {
		if err := f.progress(t.Context(), job); !errors.Is(err, errNoEnd) {
			t.Fatalf("try %d: got %v, want a reason to wait", i+1, err)
		}
	}
	if err := f.store(t.Context(), strings.NewReader(lines(t, cove.JobEvent{Type: "output", Text: "x"})), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.progress(t.Context(), job); !errors.Is(err, errNoEnd) || f.idle != 0 {
		t.Fatalf("got %v, want that something new counts (%d)", err, f.idle)
	}
	if job, err = client.Job(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	for range idleTries {
		err = f.progress(t.Context(), job)
	}
	after, getErr := client.Job(t.Context(), job.ID)
	if err != nil || getErr != nil || after.State != cove.JobLost {
		t.Errorf("the job is %s, %v, %v", after.State, err, getErr)
	}
}

// TestHostileStates has a log of states that change all the time. The job is written once for
// a batch of them, and not at all if nothing has changed.
func TestHostileStates(t *testing.T) {
	m, client := newManager(t)
	job, err := client.CreateJob(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	var batch []cove.JobEvent
	for i := range eventBatch {
		batch = append(batch, cove.JobEvent{Seq: int64(i + 1), Type: "state", State: []cove.JobState{cove.JobWaiting, cove.JobRunning}[i%2]})
	}
	changed, cancel := m.Store.Jobs.Watch(job.ID)
	defer cancel()
	writes := func(do func() error) (n int) {
		t.Helper()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		for {
			select {
			case <-changed:
				n++
			default:
				return n
			}
		}
	}
	if n := writes(func() error { return noteState(t.Context(), m.Store.Jobs, job.ID, batch) }); n != 1 {
		t.Errorf("%d writes of a job's state", n)
	}
	if n := writes(func() error { return noteState(t.Context(), m.Store.Jobs, job.ID, batch) }); n != 0 {
		t.Errorf("%d writes of a state that has not changed", n)
	}
	if after, err := client.Job(t.Context(), job.ID); err != nil || after.State != cove.JobRunning {
		t.Errorf("the job is %s, %v", after.State, err)
	}
}

// FuzzEvents: a sprite may say anything as its job's log. An event that is taken from it has
// the next number and a type that a supervisor may use. It has nothing that only the server
// says.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{
		`{"seq":1,"type":"state","state":"running"}` + "\n" + `{"seq":2,"type":"end","result":{"phase":"done","exit_code":0}}` + "\n",
		`{"seq":1,"type":"output","text":"x","outcome":{"kind":"succeeded"},"usage":{"turns":1}}` + "\n", `{"seq":1,"type":"held"}` + "\n", "{}\n", "\n", "x", `{"seq":1,"type":"end"}` + "\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		br := bufio.NewReader(bytes.NewReader(log))
		for want := int64(1); ; want++ {
			line, err := readLine(br)
			if len(line) > maxEvent {
				t.Fatalf("a line of %d bytes", len(line))
			}
			if err != nil {
				return
			}
			ev, err := decode(line, want)
			if err != nil {
				if !errors.Is(err, errBadLog) {
					t.Errorf("%q: %v", line, err)
				}
				return
			}
			text, err := json.Marshal(ev)
			if ev.Seq != want || !eventTypes[ev.Type] || ev.Outcome != nil || ev.Usage != nil || ev.Type == "end" && ev.Result == nil || err != nil || len(text) > maxEvent {
				t.Errorf("%q is taken for %+v, of %d bytes, %v", line, ev, len(text), err)
			}
		}
	})
}
