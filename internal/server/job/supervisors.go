package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Exit codes of the guest's job commands.
const (
	exitDead = 4 // no supervisor is at work, and the log has no end
	exitDeaf = 5 // the agent takes no messages
	exitTold = 7 // the question has been answered
	exitUsed = 8 // another message has had the key
	exitMiss = 9 // the agent did not get the message, and will not
)

// supervisors asks things of the supervisors of jobs, in their sprites, by the commands of
// cove-guest. A supervisor goes on without the server.
type supervisors struct {
	jobs   *store.Jobs
	client *cove.Client
	logger *slog.Logger
}

// command is a command of the supervisor's, about a job.
func (ss *supervisors) command(ctx context.Context, job cove.Job, verb string, args ...string) (*sprites.Cmd, error) {
	guest, err := ss.program(ctx, job)
	if err != nil {
		return nil, err
	}
	return spriteOf(ss.client, job).CommandContext(ctx, guest, slices.Concat([]string{"job", verb, dir(job.ID)}, args)...), nil
}

// program is the path of the supervisor in a job's sprite. At a backend, program uploads this
// server's own, if it is missing there.
func (ss *supervisors) program(ctx context.Context, job cove.Job) (string, error) {
	if job.Backend == "" {
		return boot.BinDir + "/cove-guest", nil
	}
	return guestbin.Program{Arch: job.Arch}.Bring(ctx, spriteOf(ss.client, job))
}

// launch starts the supervisor as a service of the sprite, which is back after a crash or a
// boot. If the sprite has no services, or the agent sits at a terminal, the supervisor is an
// exec session.
func (ss *supervisors) launch(ctx context.Context, job cove.Job) error {
	if !job.Interactive {
		if served, err := ss.serve(ctx, job); served || err != nil {
			return err
		}
	}
	return ss.session(ctx, job)
}

// serviceName is the name of a job's service.
func serviceName(id string) string { return "cove-job-" + id }

// startedLimit bounds the wait for a service's first word.
const startedLimit = 2 * time.Second

// serve starts the supervisor as a service, and reports whether the sprite has services. If
// the supervisor runs already, the same call changes nothing.
func (ss *supervisors) serve(ctx context.Context, job cove.Job) (served bool, err error) {
	sprite := spriteOf(ss.client, job)
	id, err := bootOf(ctx, sprite)
	if id == "" || err != nil {
		return false, err
	}
	guest, err := ss.program(ctx, job)
	if err != nil {
		return false, err
	}
	name := serviceName(job.ID)
	// Before the call: it may be carried out, and its answer lost.
	if err := ss.note(ctx, job, func(j *cove.Job) { j.Service, j.Session = name, "" }); err != nil {
		return false, err
	}
	asked, cancel := context.WithCancel(ctx)
	defer cancel()
	var started bool
	var why string
	err = sprite.PutService(asked, sprites.Service{
		Name: name, Cmd: guest, Args: []string{"job", "run", dir(job.ID)}, Env: map[string]string{cove.JobBootVar: id},
	}, sprites.Follow{Duration: startedLimit, Events: func(ev sprites.ServiceEvent) {
		switch ev.Type {
		case sprites.ServiceEventStarted:
			started = true
			cancel()
		case sprites.ServiceEventError:
			why = clip(ev.Data)
			cancel()
		}
	}})
	switch e, ok := errors.AsType[*sprites.Error](err); {
	case started:
		return true, nil
	case why != "":
		return false, errors.New(why)
	case ok && (e.StatusCode == http.StatusNotFound || e.StatusCode == http.StatusMethodNotAllowed || e.StatusCode == http.StatusNotImplemented):
		return false, ss.note(ctx, job, func(j *cove.Job) { j.Service = "" })
	case err != nil:
		return false, err
	}
	return true, nil // it has ended in good order meanwhile, or is slow: its log will tell
}

var bootIDForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`) })

// bootOf is the id of a sprite's boot; empty: it does not say.
func bootOf(ctx context.Context, sprite *sprites.Sprite) (string, error) {
	out, err := sprite.CommandContext(ctx, "cat", "/proc/sys/kernel/random/boot_id").Output()
	if _, ok := errors.AsType[*sprites.ExitError](err); ok {
		return "", nil
	}
	if id := string(bytes.TrimSpace(out[:min(len(out), 64)])); err == nil && bootIDForm().MatchString(id) {
		return id, nil
	}
	return "", err
}

// note notes the service or session of a job's supervisor, and its sandbox's incarnation.
func (ss *supervisors) note(ctx context.Context, job cove.Job, edit func(*cove.Job)) error {
	info, err := ss.client.At(job.Backend).Get(ctx, job.Sprite)
	if err != nil {
		return err
	}
	return ss.jobs.Update(ctx, job.ID, func(j *cove.Job) error {
		if edit(j); info.Cove != nil {
			j.Incarnation = info.Cove.Incarnation
		}
		if job.Backend == "" {
			j.SpriteID = info.ID
		}
		return nil
	})
}

// works reports whether the program of a job's supervisor runs, which may not have its lock yet.
func (ss *supervisors) works(ctx context.Context, job cove.Job) (bool, error) {
	sprite := spriteOf(ss.client, job)
	if job.Service != "" {
		service, err := sprite.Service(ctx, job.Service)
		if errors.Is(err, sprites.ErrNotFound) {
			return false, nil
		}
		return service.State.Status == sprites.ServiceStarting || service.State.Status == sprites.ServiceRunning, err
	}
	if job.Session == "" {
		return false, nil
	}
	sessions, err := sprite.Sessions(ctx)
	return slices.ContainsFunc(sessions, func(s sprites.Session) bool { return s.ID == job.Session }), err
}

// end ends the supervisor of a job for good, and everything that it has started. If there is
// no supervisor, that is no error.
func (ss *supervisors) end(ctx context.Context, job cove.Job) error {
	return endSupervisor(ctx, spriteOf(ss.client, job), job)
}

func endSupervisor(ctx context.Context, sprite *sprites.Sprite, job cove.Job) error {
	var err error
	if job.Service != "" {
		err = sprite.DeleteService(ctx, job.Service)
	} else if job.Session != "" {
		_, err = sprite.Kill(ctx, job.Session, sprites.SIGKILL, time.Second)
	}
	if errors.Is(err, sprites.ErrGone) || errors.Is(err, sprites.ErrNotFound) {
		return nil
	}
	return err
}

// session starts the supervisor in a session of its own, which goes on without a client, and
// disconnects.
func (ss *supervisors) session(ctx context.Context, job cove.Job) error {
	forever := time.Duration(0)
	cmd, err := ss.command(ctx, job, "run")
	if err != nil {
		return err
	}
	cmd.MaxRunAfterDisconnect = &forever
	var said head
	cmd.Stderr = &said
	if job.Interactive {
		cmd.TTY = &sprites.Terminal{}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	session := cmd.SessionID()
	if session == "" {
		return errors.Join(cmd.Wait(), errors.New(said.String()))
	}
	err = ss.note(ctx, job, func(j *cove.Job) { j.Session = session })
	if detachErr := cmd.Detach(); detachErr != nil && !errors.Is(detachErr, sprites.ErrGone) {
		ss.logger.Warn("leaving a supervisor", "job", job.ID, "err", detachErr)
	}
	return err
}

// tell tells a job's supervisor to stop. If the supervisor or the sprite is gone, the follower
// finds that out by itself. If nobody answers in time, that is no error: the job is then ended
// by force.
func (ss *supervisors) tell(ctx context.Context, job cove.Job) error {
	asked := ctx
	ctx, end := context.WithTimeout(ctx, tellLimit)
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var said head
	cmd, err := ss.command(ctx, job, "stop")
	if err == nil {
		cmd.Stdout, cmd.Stderr = &said, &said
		cmd.OnMessage = func(msg sprites.Message) {
			if msg.Type == sprites.MessageHeld && msg.Held != nil { // by now: no answer comes
				cancel(&sprites.Error{ErrorBody: sprites.ErrorBody{Code: msg.Held.Code, Message: msg.Held.Message, Hint: msg.Held.Hint}})
			}
		}
		if err = cmd.Run(); heldError(context.Cause(ctx)) != nil {
			err = context.Cause(ctx)
		}
	}
	if exit, ok := errors.AsType[*sprites.ExitError](err); ok {
		if exit.Code == exitDead {
			return nil
		}
		return fmt.Errorf("exit %d: %.500s", exit.Code, said.String())
	}
	late := errors.Is(context.Cause(ctx), context.DeadlineExceeded) && asked.Err() == nil
	if errors.Is(err, sprites.ErrNotFound) || late {
		return nil
	}
	return err
}

// deliver hands a line to the supervisor of a job, and returns when its agent has it.
func (ss *supervisors) deliver(ctx context.Context, job cove.Job, line []byte) error {
	id := job.ID
	var said head
	cmd, err := ss.command(ctx, job, "send")
	if err != nil {
		return fmt.Errorf("send to job %s: %w", id, err)
	}
	cmd.Stdin, cmd.Stderr = bytes.NewReader(line), &said
	err = cmd.Run()
	if exit, ok := errors.AsType[*sprites.ExitError](err); ok {
		switch exit.Code {
		case exitDead:
			return fail.Newf("job_ended", "see how it ended: cove job show "+id, "job %s has ended", id)
		case exitDeaf:
			return fail.Newf("no_input", "see its log: cove job logs "+id, "the agent of job %s takes no messages now", id)
		case exitTold:
			return alreadyAnswered(id)
		case exitUsed:
			return fail.Newf(codeKeyTaken, "choose another key", "another message to job %s used that key; this one was not delivered", id)
		case exitMiss:
			return &fail.Error{Code: "not_delivered", Hint: "see its log: cove job logs " + id, Message: fmt.Sprintf("the agent of job %s did not get the message", id), Err: errMissed}
		}
		return fail.Newf("not_delivered", "see its log: cove job logs "+id, "the agent of job %s did not get the message: %s", id, said.String())
	}
	if err != nil {
		return fmt.Errorf("send to job %s: %w", id, err)
	}
	return nil
}

// finalize has a job's work collected, and its end recorded with a reason.
func (ss *supervisors) finalize(ctx context.Context, job cove.Job, reason string) error {
	cmd, err := ss.command(ctx, job, "finalize", reason)
	if err != nil {
		return err
	}
	var said head
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	if _, ok := errors.AsType[*sprites.ExitError](err); ok {
		return fmt.Errorf("collect a job without a supervisor: %w: %.500s", err, said.String())
	}
	return err
}

// kill kills all processes of a job: those of its supervisor, and those that talk to the
// supervisor.
func (ss *supervisors) kill(ctx context.Context, job cove.Job) error {
	sprite := spriteOf(ss.client, job)
	if job.Service != "" {
		var e *sprites.Error
		// The service is stopped for good, so that it is not back when the work is collected.
		if err := sprite.StopService(ctx, job.Service, 0, nil); err != nil && (!errors.As(err, &e) || e.StatusCode != http.StatusConflict && e.StatusCode != http.StatusNotFound) {
			return fmt.Errorf("end job %s by force: %w", job.ID, err)
		}
	}
	sessions, err := sprite.Sessions(ctx)
	if err != nil {
		return err
	}
	for _, s := range sessions {
		if s.ID != job.Session && !strings.Contains(s.Command+" ", " "+dir(job.ID)+" ") {
			continue
		}
		_, err := sprite.Kill(ctx, s.ID, sprites.SIGKILL, killGrace)
		if err != nil && !errors.Is(err, sprites.ErrGone) && !errors.Is(err, sprites.ErrNotFound) {
			return fmt.Errorf("end job %s by force: %w", job.ID, err)
		}
	}
	return nil
}

// head keeps the first few kilobytes that are written to it.
type head struct{ buf []byte }

const maxHead = 4 << 10

func (t *head) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p[:min(len(p), maxHead-len(t.buf))]...)
	return len(p), nil
}

func (t *head) String() string { return string(bytes.ToValidUTF8(bytes.TrimSpace(t.buf), []byte("?"))) }
