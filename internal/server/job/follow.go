package job

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/agents"
	"github.com/cove-dev/cove/internal/server/environment"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

const (
	maxEvent   = 2 << 20   // of one line of the log; a supervisor writes half as much at most
	mostGrowth = 6         // one byte may grow to so many when it is encoded again: "<" is "\u003c"
	maxLog     = 256 << 20 // of all that is copied of one log
	eventBatch = 256
	maxBatch   = 4 << 20 // bytes of a batch
	maxBackoff = 10 * time.Second

	// tries is how often in a row a log may be unreadable, or a lost job not be collected,
	// before the job is given up.
	tries = 5

	// idleTries is how often in a row following a job may end without an error, and without
	// anything new. An honest supervisor is started anew maxStarts times, and collected once.
	idleTries = 10
)

// errBadLog says that no supervisor wrote a log like this: an agent can change anything in its
// sprite.
var errBadLog = errors.New("the job's log can't be read")

// follower follows one job.
type follower struct {
	all    *followers
	id     string
	ender  *ender
	failed int     // tries in a row that were the job's own fault
	idle   int     // times in a row that nothing came, and nothing failed
	copied int     // bytes of the log, by this server
	starts int     // of a supervisor that never said anything
	teller *teller // nil: nothing was read yet
}

func (f *follower) run(ctx context.Context) {
	log := f.all.logger.With("job", f.id)
	pause := time.Duration(0)
	for ctx.Err() == nil {
		step, done := f.ender.step(ctx)
		before, err := f.all.jobs.Get(step, f.id)
		if errors.Is(err, store.ErrNotFound) || err == nil && before.State.Terminal() {
			done()
			return
		}
		if err == nil {
			f.all.notePlace(before)
			err = f.advance(step, before)
		}
		cut := errors.Is(context.Cause(step), errForced)
		done()
		if cut {
			pause = 0
			continue
		}
		if err == nil {
			f.failed = 0
			if err = f.progress(ctx, before); err == nil {
				pause = 0
				continue
			}
		}
		held := heldError(err)
		switch {
		case before.ID == "": // it could not be read
		case held != nil:
			f.all.note(before, cove.SupervisorHeld)
		case !errors.Is(err, errNoEnd) || f.idle > 0:
			f.all.note(before, cove.SupervisorSilent)
		}
		if held != nil {
			f.noteHeld(ctx, held)
		} else if before.Backend != "" && unheard(err) {
			noteUnknown(ctx, f.all.jobs, f.id, err)
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errNoEnd) {
			log.Debug("following a job", "err", err) // its supervisor was started anew, perhaps
		} else {
			log.Warn("following a job", "err", err)
		}
		if after, getErr := f.all.jobs.Get(ctx, f.id); getErr == nil && after.LastSeq > before.LastSeq {
			pause = 0
		}
		pause = min(max(2*pause, 200*time.Millisecond), maxBackoff)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// progress gives an error if a job has not ended, and nothing more is known of it than before.
// Else a sprite whose follower ends at once would be asked without a pause.
func (f *follower) progress(ctx context.Context, before cove.Job) error {
	after, err := f.all.jobs.Get(ctx, f.id)
	switch {
	case errors.Is(err, store.ErrNotFound) || err == nil && after.State.Terminal():
		f.idle = 0
		return nil
	case err != nil:
		return err
	case after.LastSeq > before.LastSeq:
		f.idle = 0
	default:
		f.idle++
	}
	if f.idle >= idleTries {
		why := fmt.Sprintf("its log has no end, and %d times in a row there was nothing new in it", f.idle)
		return f.all.finisher.lose(ctx, f.id, why, why)
	}
	return errNoEnd
}

// errNoEnd says that following a job has ended in good order before the job has.
var errNoEnd = errors.New("the job's log was read to its end, but the job has not ended")

// advance brings the store up to what the log has, as far as it goes.
func (f *follower) advance(ctx context.Context, job cove.Job) error {
	ended, err := f.all.finisher.ended(ctx, job)
	if ended || err != nil {
		return err
	}
	if lost, err := f.noteDeath(ctx, job); lost || err != nil {
		return err
	}
	if job.Forced != "" {
		return f.force(ctx, job)
	}
	if job.Stopping {
		if err := f.all.supervisors.tell(ctx, job); err != nil && !errors.Is(err, sprites.ErrNotFound) {
			return err
		}
	}
	code, said, err := f.copyLog(ctx, job)
	switch {
	case errors.Is(err, sprites.ErrNotFound):
		return f.loseDeleted(ctx, job, err)
	case errors.Is(err, errBadLog):
		if f.failed++; f.failed >= tries {
			return f.all.finisher.lose(ctx, job.ID, err.Error(), err.Error())
		}
		return err
	case err != nil:
		return err
	case code == exitDead && job.LastSeq == 0 && !job.Stopping:
		return f.silent(ctx, job)
	case code == exitDead:
		return f.finalize(ctx, job)
	case code != 0:
		return fmt.Errorf("the follower exited with %d: %s", code, said)
	}
	return nil
}

// loseDeleted loses a job whose sprite is gone. If something else was not found, it returns
// err: it asks whether the sprite itself is gone.
func (f *follower) loseDeleted(ctx context.Context, job cove.Job, err error) error {
	if _, getErr := f.all.client.At(job.Backend).Get(ctx, job.Sprite); !errors.Is(getErr, sprites.ErrNotFound) {
		return errors.Join(err, getErr)
	}
	return f.all.finisher.loseSprite(ctx, job, "its sprite was deleted")
}

// elsewhere is why a job is lost in a copy of its server's data folder that was made while the
// job was at work. The copy starts nothing of it: else two servers would carry it on.
const elsewhere = "this server's data folder is a copy, made while the job was at work: it goes on in the original"

// noteDeath notes why the job's sandbox has ended, before the next one is booted. lost says that
// it has ended the job as lost, in two cases. Either another sprite has the name by now: nothing
// of the job may reach that sprite, and nothing there is believed. Or this data folder is a copy.
func (f *follower) noteDeath(ctx context.Context, job cove.Job) (lost bool, err error) {
	info, err := f.all.client.At(job.Backend).Get(ctx, job.Sprite)
	if err == nil && job.SpriteID != "" && info.ID != "" && info.ID != job.SpriteID {
		return true, f.all.finisher.loseSprite(ctx, job, "its sprite was deleted, and another one has its name")
	}
	if err == nil && info.Cove != nil && info.Cove.Elsewhere {
		next := "to retry it here: cove job retry " + job.ID
		if _, err := agentSession(ctx, f.all.jobs, job); err == nil {
			next = "to resume it from there: cove job resume " + job.ID + " \"go on\""
		}
		return true, f.all.finisher.lose(ctx, job.ID, elsewhere, "its work is in the original's sprite; sprite "+job.Sprite+" here has what was on its disk; "+next)
	}
	if err != nil || info.Cove == nil || info.Status != sprites.StatusCold || info.Cove.LastError == "" {
		return false, nil //nolint:nilerr // without the sprite there is no log, which is said where that is looked for
	}
	return false, f.all.jobs.Update(ctx, job.ID, func(j *cove.Job) error {
		j.Error = info.Cove.LastError
		return nil
	})
}

// copyLog runs the guest's follower and stores what it prints.
func (f *follower) copyLog(ctx context.Context, job cove.Job) (code int, said string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var stderr head
	cmd, err := f.all.supervisors.command(ctx, job, "follow", strconv.FormatInt(job.LastSeq+1, 10))
	if err != nil {
		return 0, "", err
	}
	cmd.Stderr = &stderr
	cmd.OnMessage = func(msg sprites.Message) {
		if msg.Type == sprites.MessageHeld {
			signal := cove.SupervisorAnswers
			if msg.Held != nil {
				signal = cove.SupervisorHeld
			}
			f.all.note(job, signal)
			if f.noteHeld(ctx, msg.Held); msg.Held == nil && f.stopping(ctx) {
				cancel() // it is told before more of its log is read
			}
		}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, "", err
	}
	if err := cmd.Start(); err != nil {
		return 0, "", err
	}
	f.all.note(job, cove.SupervisorAnswers)
	if job.Held != nil {
		f.noteHeld(ctx, nil)
	}
	if job.Unknown != nil {
		noteUnknown(ctx, f.all.jobs, f.id, nil)
	}
	storeErr := f.store(ctx, out, job.LastSeq)
	if storeErr != nil {
		cancel() // the follower has no more to say
	}
	err = cmd.Wait()
	if storeErr != nil {
		return 0, "", storeErr
	}
	if exit, ok := errors.AsType[*sprites.ExitError](err); ok {
		return exit.Code, stderr.String(), nil
	}
	return 0, "", err
}

// The codes of a sprite that is held: it has reached its disk limit, or the server's disk
// has little left.
const (
	diskLimit = "disk_limit"
	diskFull  = "disk_full"
)

// heldError describes the held sprite that an error is about; nil: the error is another one.
func heldError(err error) *sprites.Held {
	e, ok := errors.AsType[*sprites.Error](err)
	if !ok || e.Code != diskLimit && e.Code != diskFull {
		return nil
	}
	return &sprites.Held{Code: e.Code, Message: e.Message, Hint: e.Hint, Since: time.Now().UTC()}
}

// unheard reports whether an error of a call to a backend says nothing of the sprite.
func unheard(err error) bool { return environment.Unheard(err) }

// noteUnknown notes why nothing is known of a job; nil clears that. If it can't be noted, it is
// tried again with the next call.
func noteUnknown(ctx context.Context, jobs *store.Jobs, id string, why error) {
	var unknown *cove.JobUnknown
	if why != nil {
		unknown = &cove.JobUnknown{Code: "backend_unreachable", Message: clip(why.Error()), Since: time.Now().UTC()}
		if e, ok := errors.AsType[*sprites.Error](why); ok {
			unknown.Code, unknown.Message, unknown.Hint = cmp.Or(e.Code, unknown.Code), clip(e.Message), e.Hint
		}
	}
	_ = jobs.Update(ctx, id, func(j *cove.Job) error {
		if j.State.Terminal() {
			unknown = nil
		}
		if j.Unknown != nil && unknown != nil {
			unknown.Since = j.Unknown.Since
		}
		j.Unknown = unknown
		return nil
	})
}

// stopping reports whether the job's end was asked for while it was held.
func (f *follower) stopping(ctx context.Context) bool {
	job, err := f.all.jobs.Get(ctx, f.id)
	return err == nil && job.Stopping
}

// noteHeld notes why a job stands still with its sprite; nil: it goes on.
func (f *follower) noteHeld(ctx context.Context, held *sprites.Held) {
	err := f.all.jobs.Update(ctx, f.id, func(j *cove.Job) error {
		if j.Held != nil && held != nil {
			held.Since = j.Held.Since
		}
		if j.Held = held; j.State.Terminal() {
			j.Held = nil
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		f.all.logger.Error("noting that a job waits or is paused", "job", f.id, "err", err)
	}
}

// store appends the events that r gives, in batches of what is there.
func (f *follower) store(ctx context.Context, r io.Reader, last int64) error {
	br := bufio.NewReaderSize(r, 256<<10)
	var batch []cove.JobEvent
	size := 0
	for {
		line, err := readLine(br)
		size += len(line)
		if f.copied += len(line); f.copied > maxLog {
			err = fmt.Errorf("%w: it is longer than %d MiB", errBadLog, maxLog>>20)
		}
		if err == nil {
			var ev cove.JobEvent
			if ev, err = decode(line, last+1); err == nil {
				last = ev.Seq
				batch = append(batch, ev)
			}
		}
		if len(batch) > 0 && (err != nil || len(batch) == eventBatch || size > maxBatch || br.Buffered() == 0 || batch[len(batch)-1].Type == "end") {
			if err := f.take(ctx, batch); err != nil {
				return err
			}
			batch, size = batch[:0], 0
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readLine reads a line of bounded length. A last line without an end is cut off:
// it comes again.
func readLine(br *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		if len(line)+len(part) > maxEvent {
			return nil, fmt.Errorf("%w: a line is longer than %d bytes", errBadLog, maxEvent)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

var eventTypes = map[string]bool{
	"supervisor": true, "state": true, "step": true, "cloned": true, "output": true, "event": true, "input": true, "notice": true, "exit": true, "collected": true, "end": true,
}

// decode reads the event that must have the number want. It drops the fields that only the
// server may set.
func decode(line []byte, want int64) (cove.JobEvent, error) {
	var ev cove.JobEvent
	if err := json.Unmarshal(line, &ev); err != nil {
		return ev, fmt.Errorf("%w: %v", errBadLog, err)
	}
	ev.Outcome, ev.Usage = nil, nil
	switch {
	case ev.Seq != want:
		return ev, fmt.Errorf("%w: event %d where %d should be", errBadLog, ev.Seq, want)
	case !eventTypes[ev.Type]:
		return ev, fmt.Errorf("%w: event %d is of the type %.40q", errBadLog, ev.Seq, ev.Type)
	case ev.Type == "supervisor" && ev.Supervisor == nil:
		return ev, fmt.Errorf("%w: event %d does not say who the supervisor is", errBadLog, ev.Seq)
	case ev.Type == "end" && ev.Result == nil:
		return ev, fmt.Errorf("%w: its end has no result", errBadLog)
	}
	if len(line) > maxEvent/mostGrowth { // an honest one has been through our encoder, and grows no more
		if text, err := json.Marshal(ev); err != nil || len(text) > maxEvent {
			return ev, fmt.Errorf("%w: event %d is larger than %d bytes", errBadLog, ev.Seq, maxEvent)
		}
	}
	return ev, nil
}

// append stores events, and logs the steps that end by them.
func (f *follower) append(ctx context.Context, batch []cove.JobEvent) (err error) {
	if len(batch) == 0 {
		return nil
	}
	if f.teller == nil {
		job, err := f.all.jobs.Get(ctx, f.id)
		if err != nil {
			return err
		}
		f.teller = newTeller(ctx, f.all.jobs, job)
	}
	defer func() {
		if err != nil { // the batch may not be stored; it is read, and counted, again
			f.teller = nil
		}
	}()
	latest := f.teller.take(batch)
	if !slices.ContainsFunc(batch, func(ev cove.JobEvent) bool { return ev.Type == "step" || ev.Type == "state" }) {
		return f.all.jobs.Append(ctx, f.id, batch, latest)
	}
	before, err := f.all.jobs.Steps(ctx, f.id)
	if err == nil {
		err = f.all.jobs.Append(ctx, f.id, batch, latest)
	}
	if err != nil {
		return err
	}
	now, err := f.all.jobs.Steps(ctx, f.id)
	if err != nil {
		return err
	}
	var ended []cove.Step
	for i, step := range now {
		if step.State.Ended() && !before[i].State.Ended() {
			ended = append(ended, step)
		}
	}
	logEnded(ctx, f.all.jobs, f.all.logger, f.id, ended...)
	return nil
}

// take stores a batch of events and what follows from them.
func (f *follower) take(ctx context.Context, batch []cove.JobEvent) error {
	last := batch[len(batch)-1]
	if last.Type == "end" {
		batch = batch[:len(batch)-1]
	}
	// The events change the record before they are stored. So a reader of an event finds its
	// job as the event says. If the server is killed, an event that it has not noted is read
	// again.
	for _, note := range []func(context.Context, *store.Jobs, string, []cove.JobEvent) error{noteSupervisor, noteCloned, noteQuestion, noteState, noteExit} {
		if err := note(ctx, f.all.jobs, f.id, batch); err != nil {
			return err
		}
	}
	if err := f.append(ctx, batch); err != nil {
		return err
	}
	if last.Type != "end" {
		return nil
	}
	job, err := f.all.jobs.Get(ctx, f.id)
	if err != nil {
		return err
	}
	return f.all.finisher.end(ctx, job, last)
}

// noteSupervisor notes what the supervisor of a job says of itself. It refuses the supervisor
// of another job, and one that this server does not understand.
func noteSupervisor(ctx context.Context, jobs *store.Jobs, id string, batch []cove.JobEvent) error {
	for _, ev := range batch {
		s := ev.Supervisor
		if ev.Type != "supervisor" {
			continue
		}
		job, err := jobs.Get(ctx, id)
		if err != nil {
			return err
		}
		switch {
		case s.Job != job.ID || s.Execution != job.Execution:
			return fmt.Errorf("%w: event %d is of the supervisor of another job (%.40q, %.40q)", errBadLog, ev.Seq, s.Job, s.Execution)
		case s.OldestProtocol > cove.JobProtocol || s.Protocol < cove.OldestJobProtocol:
			return fmt.Errorf("%w: the supervisor speaks the versions %d to %d, and this server %d to %d", errBadLog, s.OldestProtocol, s.Protocol, cove.OldestJobProtocol, cove.JobProtocol)
		case job.State.Terminal():
			continue
		}
		s.Version, s.Boot = clip(s.Version), clip(s.Boot)
		if err := jobs.Update(ctx, id, func(j *cove.Job) error { j.Supervisor = s; return nil }); err != nil {
			return err
		}
	}
	return nil
}

// noteState notes the last state that a batch of events tells of. A log may have millions of
// them, so an unchanged state is not written.
func noteState(ctx context.Context, jobs *store.Jobs, id string, batch []cove.JobEvent) error {
	var state cove.JobState
	for _, ev := range batch {
		if ev.Type == "state" && (ev.State == cove.JobRunning || ev.State == cove.JobPreparing || ev.State == cove.JobWaiting) {
			state = ev.State
		}
	}
	if state == "" {
		return nil
	}
	job, err := jobs.Get(ctx, id)
	if err != nil || job.State == state || job.State.Terminal() {
		return err
	}
	return jobs.Update(ctx, id, func(j *cove.Job) error {
		if !j.State.Terminal() {
			j.State = state
		}
		return nil
	})
}

// maxStarts is how often a supervisor is started anew that says nothing.
const maxStarts = 3

// silent is for a job whose supervisor has not said anything, and has no lock. If its program
// runs, it is only slow: it is waited for, as long as for every log without news.
func (f *follower) silent(ctx context.Context, job cove.Job) error {
	if works, err := f.all.supervisors.works(ctx, job); works || err != nil {
		return err
	}
	if f.starts < maxStarts {
		return f.restart(ctx, job)
	}
	return f.finalize(ctx, job)
}

// restart starts the supervisor of a job that has none, and has done nothing. The server was
// killed before it got so far, or the sandbox ended. If there is a supervisor after all, the
// lock in the sprite stops the second one.
func (f *follower) restart(ctx context.Context, job cove.Job) error {
	f.starts++
	unlock, err := f.all.locks.Lock(ctx, job.ID)
	if err != nil {
		return err
	}
	defer unlock()
	job, err = f.all.jobs.Get(ctx, job.ID)
	if err != nil || job.State.Terminal() || job.LastSeq > 0 || job.Stopping {
		return err
	}
	f.all.logger.Warn("a job has no supervisor; starting one", about(job)...)
	return f.all.supervisors.launch(ctx, job)
}

// finalize has the work of a job collected after its supervisor has died.
func (f *follower) finalize(ctx context.Context, job cove.Job) error {
	reason := agents.Lost
	if job.Stopping {
		reason = "stopped"
	}
	err := f.all.supervisors.finalize(ctx, job, reason)
	if _, ok := errors.AsType[*sprites.ExitError](err); ok {
		if f.failed++; f.failed >= tries {
			return f.all.finisher.lose(ctx, job.ID, "its supervisor died, and what it left can't be collected: "+err.Error(), err.Error())
		}
	}
	return err
}
