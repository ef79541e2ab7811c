package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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
)

// supervisors asks things of the supervisors of jobs, in their sprites, by the commands of
// cove-guest. A supervisor goes on without the server.
type supervisors struct {
	jobs   *store.Jobs
	client *cove.Client
	logger *slog.Logger
}

// command is a command of the supervisor's, about a job. At a backend the supervisor
// is this server's own, which is brought there where it is missing.
func (ss *supervisors) command(ctx context.Context, job cove.Job, verb string, args ...string) (*sprites.Cmd, error) {
	guest := boot.BinDir + "/cove-guest"
	if job.Backend != "" {
		var err error
		if guest, err = (guestbin.Program{Arch: job.Arch}).Bring(ctx, spriteOf(ss.client, job)); err != nil {
			return nil, err
		}
	}
	return spriteOf(ss.client, job).CommandContext(ctx, guest, slices.Concat([]string{"job", verb, dir(job.ID)}, args)...), nil
}

// launch starts the supervisor in a session of its own, which goes on without a
// client, and leaves it.
func (ss *supervisors) launch(ctx context.Context, job cove.Job) error {
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
	info, err := ss.client.At(job.Backend).Get(ctx, job.Sprite)
	if err == nil {
		err = ss.jobs.Update(ctx, job.ID, func(j *cove.Job) error {
			j.Session = session
			if info.Cove != nil {
				j.Incarnation = info.Cove.Incarnation
			}
			if job.Backend == "" {
				j.SpriteID = info.ID
			}
			return nil
		})
	}
	if detachErr := cmd.Detach(); detachErr != nil && !errors.Is(detachErr, sprites.ErrGone) {
		ss.logger.Warn("leaving a supervisor", "job", job.ID, "err", detachErr)
	}
	return err
}

// tell tells a job's supervisor to stop. If there is none any more, or no sprite, the
// follower finds that out by itself. It is no error that nobody answers in time: the job is
// ended by force then.
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
			return fail.Newf("job_ended", "see how: cove job show "+id, "job %s has ended", id)
		case exitDeaf:
			return fail.Newf("no_input", "see: cove job logs "+id, "the agent of job %s takes no messages now", id)
		}
		return fail.Newf("not_delivered", "see: cove job logs "+id, "the agent of job %s did not get the message: %s", id, said.String())
	}
	if err != nil {
		return fmt.Errorf("send to job %s: %w", id, err)
	}
	return nil
}

// finalize has what a job left collected, and its end recorded with a reason.
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

// kill kills all processes of a job, those of its supervisor and those that ask it.
func (ss *supervisors) kill(ctx context.Context, job cove.Job) error {
	sprite := spriteOf(ss.client, job)
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
