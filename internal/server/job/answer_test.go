package job

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/test/fakeprovider"
	"github.com/cove-dev/cove/sprites"
)

// asker is an agent that speaks ACP. It asks for permission twice, and notes each answer.
const asker = `
answer() { id=$(printf %s "$1" | sed 's/.*"id":\([0-9]*\).*/\1/'); printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$2"; }
options='[{"optionId":"no","name":"No","kind":"reject_once"},{"optionId":"yes","name":"Yes","kind":"allow_once"}]'
ask() { printf '{"jsonrpc":"2.0","id":%s,"method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"t%s","title":"step %s"},"options":%s}}\n' "$1" "$1" "$1" "$options"; }
while read -r line; do
	case $line in
	*'"initialize"'*) answer "$line" '{"protocolVersion":1}' ;;
	*'"session/new"'*) answer "$line" '{"sessionId":"s1"}' ;;
	*'"session/prompt"'*) prompt=$line; ask 101 ;;
	*'"id":101'*) printf '%s\n' "$line" >>"$answers"; ask 102 ;;
	*'"id":102'*) printf '%s\n' "$line" >>"$answers"; answer "$prompt" '{"stopReason":"end_turn"}' ;;
	esac
done`

// TestAnswerOnce: A8, T9: a question of an agent outlives its server. The first answer counts,
// however often it is sent. That holds for the next server, for an answer whose reply was
// lost, and after the job has ended.
func TestAnswerOnce(t *testing.T) {
	b, s := newFarBench(t)
	o := s.work(b)
	answers := filepath.Join(t.TempDir(), "answers")
	script := filepath.Join(t.TempDir(), "asker")
	if err := os.WriteFile(script, []byte(asker), 0o644); err != nil {
		t.Fatal(err)
	}
	job := b.queue(func(req *cove.JobRequest) {
		req.Agent, req.AgentCommand, req.Permissions, req.Env = "acp", "sh "+script, "ask", []string{"answers=" + answers}
		req.Plan = "ask"
	})
	asks := func(id string) func(cove.Job) bool {
		return func(j cove.Job) bool {
			return j.State == cove.JobWaiting && j.Question != nil && j.Question.ID == id || j.State.Terminal()
		}
	}
	job = o.until(t, job.ID, asks("1"))
	if job.State != cove.JobWaiting || job.Question == nil {
		t.Fatalf("got %+v", job)
	}
	b.server.Stop()
	o = s.work(b)
	yes := cove.JobAnswer{Question: "1", Option: "2", Key: "first"}
	s.Add(fakeprovider.Fault{Call: "^GET .*/exec.*cmd=send", Status: 502, Times: 1}) // nobody knows whether it has come
	lost := 0
	c := &cove.Client{Client: &sprites.Client{URL: b.server.URL, Token: b.server.Token, HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err == nil && resp.StatusCode == http.StatusOK && lost == 0 { // it is done, and the answer does not come
			lost++
			return nil, errors.Join(errors.New("the connection was cut"), resp.Body.Close())
		}
		return resp, err
	})}}}
	answer := func(a cove.JobAnswer) string {
		t.Helper()
		_, err := c.AnswerJob(t.Context(), job.ID, a)
		return code(err)
	}
	if got := answer(yes); got != "<nil>" || lost != 1 {
		t.Errorf("answered after %d lost answers: %s", lost, got)
	}
	again := yes
	again.Key = "another"
	no, other := cove.JobAnswer{Question: "1", Option: "1"}, yes
	other.Option = "1" // somebody else's, by the same key
	o.until(t, job.ID, asks("2"))
	for _, a := range []cove.JobAnswer{again, no, other} {
		if got := answer(a); got != "already_answered" {
			t.Errorf("%+v: %s", a, got)
		}
	}
	if got := answer(yes); got != "<nil>" {
		t.Errorf("the same answer again: %s", got)
	}
	// A server that dies before it has noted the answer.
	if err := o.Store.Jobs.Update(t.Context(), job.ID, func(j *cove.Job) error {
		j.Question = &cove.JobQuestion{ID: "1", Options: []cove.QuestionOption{{ID: "1"}, {ID: "2"}}}
		j.Answered = nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := answer(no); got != "already_answered" {
		t.Errorf("another answer, which only the supervisor knows to be late: %s", got)
	}
	if err := o.Store.Jobs.Update(t.Context(), job.ID, func(j *cove.Job) error {
		j.Question = &cove.JobQuestion{ID: "2", Options: []cove.QuestionOption{{ID: "1"}, {ID: "2"}}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	last := cove.JobAnswer{Question: "2", Option: "1", Key: "last"}
	if got := answer(last); got != "<nil>" {
		t.Errorf("the second question: %s", got)
	}
	job = b.await(job.ID)
	if got := answer(last); got != "<nil>" {
		t.Errorf("the same answer to a job that has ended: %s", got)
	}
	text, err := os.ReadFile(answers)
	if err != nil || strings.Count(string(text), "\n") != 2 || strings.Count(string(text), `"yes"`) != 1 || strings.Count(string(text), `"no"`) != 1 {
		t.Errorf("the agent was told\n%s%v", text, err)
	}
	inputs := 0
	events, err := o.Store.Jobs.Events(t.Context(), job.ID, 1, 1000)
	for _, ev := range events {
		if ev.Type == "input" {
			inputs++
		}
	}
	if err != nil || inputs != 2 || job.State != cove.JobSucceeded {
		t.Errorf("the log has %d answers, %v, and the job is %+v", inputs, err, job)
	}
}

// TestAnswerMeanwhile: a question that is answered while the log's events of it are noted stays
// answered.
func TestAnswerMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := inBubble(t, nil)
		job := m.row(t)
		jobs, ctx := m.Store.Jobs, t.Context()
		if err := jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			j.State, j.Agent, j.Question = cove.JobWaiting, "acp", &cove.JobQuestion{ID: "1"}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		noted := make(chan error, 1)
		if err := jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			go func() {
				noted <- noteQuestion(ctx, jobs, job.ID, []cove.JobEvent{{Type: "input", Question: "1"}})
			}()
			synctest.Wait() // it has read the job, and waits until it may write
			j.Question, j.Answered = nil, &cove.JobAnswer{Question: "1", Option: "2"}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := <-noted; err != nil {
			t.Fatal(err)
		}
		if got, err := jobs.Get(ctx, job.ID); err != nil || got.Question != nil || got.Answered == nil || got.Answered.Option != "2" {
			t.Errorf("the job has the question %+v and the answer %+v, %v", got.Question, got.Answered, err)
		}
	})
}

// asksAlways is an agent whose every event is the same question.
type asksAlways struct{ agents.Questioner }

func (asksAlways) Question(cove.JobEvent) *cove.JobQuestion { return &cove.JobQuestion{ID: "1"} }

// TestAskedAgain: an event that could not be stored is read again. Its question does not come back
// if it has been answered meanwhile.
func TestAskedAgain(t *testing.T) {
	batch := []cove.JobEvent{{Type: "event"}}
	var job cove.Job
	if !asked(&job, asksAlways{}, batch) || job.Question == nil {
		t.Errorf("the question is %+v", job.Question)
	}
	job.Question, job.Answered = nil, &cove.JobAnswer{Question: "1"}
	if asked(&job, asksAlways{}, batch) || job.Question != nil {
		t.Errorf("the question is back: %+v", job.Question)
	}
	job.Answered.Question = "0"
	if !asked(&job, asksAlways{}, batch) {
		t.Error("another question is not noted")
	}
}

// TestAnswerNotTaken: an answer that the agent did not get is none, so the question can be
// answered again.
func TestAnswerNotTaken(t *testing.T) {
	var job cove.Job
	asked(&job, asksAlways{}, []cove.JobEvent{{Type: "input", Question: "1", Key: "k"}})
	if asked(&job, asksAlways{}, []cove.JobEvent{{Type: "notice", Key: "another"}}) || job.Answered == nil {
		t.Error("of another message's notice, the answer is gone")
	}
	if !asked(&job, asksAlways{}, []cove.JobEvent{{Type: "notice", Key: "k"}}) || job.Answered != nil {
		t.Errorf("the answer stays: %+v", job.Answered)
	}
}

// TestAnswerText: the log says an answer in words, not by the name of its kind.
func TestAnswerText(t *testing.T) {
	for kind, want := range map[string]string{
		"allow_once": "Yes (allowed once): List", "allow_always": "Yes (allowed from now on): List",
		"reject_once": "Yes (refused once): List", "reject_always": "Yes (refused from now on): List", "sometimes": "Yes (sometimes): List",
	} {
		if got := answerText(cove.JobQuestion{Title: "List", Options: []cove.QuestionOption{{ID: "1", Name: "Yes", Kind: kind}}}, "1"); got != want {
			t.Errorf("%s: got %q, want %q", kind, got, want)
		}
	}
}
