package job

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/agents"
)

// maxMessage bounds a person's message, in bytes.
const maxMessage = 1 << 19

// Send hands a person's message to the agent of a job, and returns when the agent
// has it in its input.
func (m *Manager) Send(ctx context.Context, id string, msg cove.JobMessage) (cove.Job, error) {
	job, err := m.Store.Jobs.Get(ctx, id)
	if err != nil {
		return job, err
	}
	if err := checkKeyForm(msg.Key); err != nil {
		return job, err
	}
	line, err := message(job, msg)
	if err == nil {
		err = m.supervisors.deliver(ctx, job, line)
	}
	if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == codeKeyTaken || errors.Is(err, errMissed) {
		return job, err
	}
	if err != nil && msg.Key != "" {
		// It may have come before, and the agent have ended.
		if had, lookErr := m.Store.Jobs.HasInput(ctx, id, msg.Key); had || lookErr != nil {
			return job, lookErr
		}
	}
	if err != nil {
		return job, err
	}
	return m.Store.Jobs.Get(ctx, id)
}

// errMissed says that the agent did not get a message, although the log may have it.
var errMissed = errors.New("the agent has ended, or does not read")

// codeKeyTaken says that a key is another message's, or another request's.
const codeKeyTaken = "key_taken"

// keyForm matches the keys that a message or a request for a job may have.
var keyForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._:-]{0,100}$`) })

func checkKeyForm(key string) error {
	if !keyForm().MatchString(key) {
		return fail.Newf("bad_request", "", "a key is letters, digits and any of . _ : -, at most 100: %.120q is not one", key)
	}
	return nil
}

// message is the text of a message for the supervisor, if the job takes messages.
func message(job cove.Job, msg cove.JobMessage) ([]byte, error) {
	agent, err := agentOf(job.Agent, job.Definition)
	if err != nil {
		return nil, err
	}
	converser, ok := agent.(agents.Converser)
	switch {
	case job.State.Terminal():
		return nil, fail.Newf("job_ended", "retry it: cove job retry "+job.ID, "job %s has ended (%s)", job.ID, job.State)
	case !ok:
		return nil, fail.Newf("no_input", "resume it after it has ended: cove job resume "+job.ID+" MESSAGE", "the agent %s takes no messages", job.Agent)
	case job.Interactive:
		return nil, fail.Newf("no_input", "join it: cove job attach "+job.ID, "the agent of job %s runs in a terminal", job.ID)
	case !job.Converse:
		return nil, fail.Newf("no_input", "push with --converse", "job %s was not pushed to take messages", job.ID)
	case job.State == cove.JobInstalling || job.State == cove.JobQueued || job.State == cove.JobPreparing:
		return nil, fail.Newf("job_queued", "try again when it runs: cove job show "+job.ID, "the agent of job %s has not started yet (%s)", job.ID, job.State)
	case len(msg.Text) > maxMessage || !utf8.ValidString(msg.Text) || strings.ContainsRune(msg.Text, 0):
		return nil, fail.Newf("bad_request", "", "a message is UTF-8 text of at most %d bytes", maxMessage)
	case strings.TrimSpace(msg.Text) == "" && !msg.Close:
		return nil, fail.Newf("bad_request", "", "the message is empty")
	}
	in := cove.JobInputLine{JobMessage: msg}
	if strings.TrimSpace(msg.Text) != "" {
		if in.Line, err = converser.Message(msg.Text); err != nil {
			return nil, err
		}
	}
	return json.Marshal(in)
}
