// Package supervise runs one job inside a sprite: it clones the work that was sent, runs the
// agent, and collects the agent's work. It is a mode of the guest binary, and does not need
// the server while it runs.
//
// A job's folder holds:
//
//	job.json      cove.JobSpec, written before Run
//	lock          flock of the supervisor at work, with its process number
//	stop          empty; there if the job was told to stop
//	events.jsonl  the log: a cove.JobEvent a line, numbered from 1
//	output.log    what the agent printed, both streams, unchanged
//	end.json      cove.JobEnd, written once, last
//	out.bundle    the commits, if there are any
//	supervisor.log  what the supervisors did, and their last words
//	input.sock    where messages for the agent come in, if it takes any
package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/mask"
	"github.com/cove-dev/cove/sprites"
)

// ErrBusy says that a supervisor is at work on the job already.
var ErrBusy = errors.New("a supervisor is at work on this job")

// ErrDead says that the job has no end and no supervisor that would write one.
var ErrDead = errors.New("the job's supervisor has died")

// errNoSettings says that a job's folder has no settings.
var errNoSettings = errors.New("the job's settings are not there")

// BootVar is the variable that names the boot that a job may begin in; see Run.
const BootVar = cove.JobBootVar

// Exit codes of the guest binary's job commands.
const (
	ExitDone = 0
	ExitErr  = 1
	ExitBusy = 3 // ErrBusy
	ExitDead = 4 // ErrDead
	ExitDeaf = 5 // ErrNoInput
	ExitOpen = 6 // ErrNotSetUp
	ExitTold = 7 // ErrAnswered
	ExitUsed = 8 // ErrKeyTaken
	ExitMiss = 9 // ErrNotTaken
)

// ExitCode is the exit code that tells a caller outside of the sprite what err is.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return ExitDone
	case errors.Is(err, ErrBusy):
		return ExitBusy
	case errors.Is(err, ErrDead):
		return ExitDead
	case errors.Is(err, ErrNoInput):
		return ExitDeaf
	case errors.Is(err, ErrNotSetUp):
		return ExitOpen
	case errors.Is(err, ErrAnswered):
		return ExitTold
	case errors.Is(err, ErrKeyTaken):
		return ExitUsed
	case errors.Is(err, ErrNotTaken):
		return ExitMiss
	}
	return ExitErr
}

// job is one job whose lock this process holds.
type job struct {
	folder folder
	spec   cove.JobSpec
	lock   *os.File
	log    *journal
	own    *slog.Logger // of what the supervisor does
	repo   *repository
}

// open takes the job's lock, and reads the job's settings and log.
func open(dir string) (*job, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := takeLock(lock); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err := sign(lock); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	j := &job{folder: folder(dir), lock: lock}
	if err := readJSON(j.folder.file("job.json"), &j.spec); errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(errNoSettings, lock.Close())
	} else if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if j.log, err = openJournal(j.folder.file("events.jsonl")); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	j.log.mask = mask.New(j.spec.Masked)
	j.repo = newRepository(j.folder, &j.spec, j.log)
	j.keepLog()
	return j, nil
}

// keepLog opens the supervisor's own log. The supervisor's standard error (a panic, say) goes
// there too, unless it is the agent's terminal. A full disk does not stop the job.
func (j *job) keepLog() {
	j.own = slog.New(slog.DiscardHandler)
	f, err := os.OpenFile(j.folder.file("supervisor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	j.own = slog.New(slog.NewTextHandler(f, nil)).With("pid", os.Getpid())
	if !j.spec.TTY {
		_ = unix.Dup3(int(f.Fd()), 2, 0) // else it is not kept
	}
}

// takeLock takes the lock. It waits a second for a supervisor that ends. Followers and the like
// share the lock for a moment, to see whether it is free. One of them may stand still meanwhile,
// so they are waited for until sharedLimit.
func takeLock(lock *os.File) error {
	for began := time.Now(); ; {
		tried := time.Since(began)
		if taken, err := flock(lock, unix.LOCK_EX); taken || err != nil {
			return err
		}
		shared, err := flock(lock, unix.LOCK_SH)
		if err != nil {
			return err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
			return fmt.Errorf("lock the job: %w", err)
		}
		if tried > sharedLimit || tried > time.Second && !shared {
			return ErrBusy
		}
		<-time.After(10 * time.Millisecond)
	}
}

// sharedLimit bounds the wait for those that share a job's lock.
const sharedLimit = time.Minute

// flock tries to take a lock in one way.
func flock(lock *os.File, how int) (taken bool, err error) {
	err = unix.Flock(int(lock.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock the job: %w", err)
	}
	return true, nil
}

func (j *job) close() error { return errors.Join(j.log.close(), j.lock.Close()) }

func readJSON(name string, v any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// Run carries out the job, and returns when its end is recorded. If ctx ends, Run stops the
// agent, and collects its work so far. If the job has an end already, Run does nothing.
//
// If the job's log has begun, Run does not begin the job again. It ends the agent's processes,
// collects the work, and records the job as lost. If the log is empty, the job begins only in
// the boot of that id (empty: in any). In another boot, which may be a copy of the sprite, Run
// does nothing. Nor does it if the job's settings are missing: the server has taken them back.
func Run(ctx context.Context, dir, boot string) error {
	j, err := open(dir)
	if errors.Is(err, errNoSettings) {
		fmt.Fprintln(os.Stderr, "not begun:", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer j.close()
	j.own.Info("run", "events", j.log.seq)
	if done, err := j.finished(); done || err != nil {
		return err
	}
	now := bootID()
	if j.log.seq == 0 && boot != "" && boot != now {
		j.own.Warn("not begun: the job was given to another boot of the sprite, or to a copy of it", "boot", now, "given", boot)
		return nil
	}
	hello := cove.JobSupervisor{
		Version: sprites.Version, Protocol: cove.JobProtocol, OldestProtocol: cove.OldestJobProtocol, Job: j.spec.ID, Execution: j.spec.Execution, Boot: now,
	}
	began := j.log.seq > 0
	j.log.add(cove.JobEvent{Type: "supervisor", Supervisor: &hello})
	if began {
		// A supervisor was here and died. Its agent's work is not begun again.
		j.log.notice("the job's supervisor died and was restarted: the agent is ended, and its work is collected")
		return j.lost("lost")
	}
	ctx, cancel := j.stopped(ctx)
	defer cancel()
	ctx, guards := startGuards(ctx, &j.spec, j.log)
	defer guards.close()
	awake := &hold{
		guest: guestAt(guestSocket), task: "cove-job-" + j.spec.ID, refresh: holdRefresh, changed: guards.turned,
		working: func() bool { return !guards.waiting.Load() },
	}
	awake.start()
	defer awake.close()
	j.log.state(cove.JobPreparing)
	for _, text := range j.spec.Notices {
		j.log.notice(text)
	}
	preparation := &preparation{folder: j.folder, spec: &j.spec, repo: j.repo, log: j.log}
	if err := preparation.run(ctx); err != nil {
		j.log.notice("prepare: " + err.Error())
		end := cove.JobEnd{Phase: "prepare", Reason: err.Error(), ExitCode: 1}
		if ctx.Err() != nil {
			end.Reason, end.Detail = endedBy(ctx)
		}
		return j.record(end)
	}
	j.log.state(cove.JobRunning)
	guards.measureDisk(ctx)
	agent := &agent{folder: j.folder, spec: &j.spec, log: j.log, own: j.own, guards: guards}
	exit := agent.run(ctx)
	if exit.reason == "" {
		guards.checkDisk(ctx)
		if reason, detail := endedBy(ctx); reason == endDisk {
			exit.reason, exit.detail = reason, detail
		}
	}
	exited := cove.JobEvent{Type: "exit", ExitCode: &exit.code, Reason: exit.reason}
	if exit.code != 0 {
		exited.Text = j.log.lastError()
	}
	j.log.add(exited)
	return j.finish(cove.JobEnd{Phase: "done", Reason: exit.reason, Detail: exit.detail, ExitCode: exit.code})
}

// Finalize ends a job whose supervisor died. It kills the job's processes that are left,
// collects its work, and records the end with the reason. A job that has an end keeps it.
func Finalize(_ context.Context, dir, reason string) error {
	j, err := open(dir)
	if err != nil {
		return err
	}
	defer j.close()
	j.own.Info("finalize", "reason", reason, "events", j.log.seq)
	if done, err := j.finished(); done || err != nil {
		return err
	}
	return j.lost(reason)
}

// bootIDFile is where Linux shows the id of this boot. If a copy of a sprite resumes from
// memory, the guest puts another id there.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// bootID is the id of this boot; empty: it can't be read.
func bootID() string {
	id, err := os.ReadFile(bootIDFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// lost ends a job whose supervisor died, with all of its processes that still run.
func (j *job) lost(reason string) error {
	killMarked(j.folder.mark())
	return j.finish(cove.JobEnd{Phase: "run", Reason: reason, ExitCode: -1})
}

// finished reports whether the end is recorded. If it is, finished adds it to the log, too: a
// supervisor may have died between the two.
func (j *job) finished() (bool, error) {
	var end cove.JobEnd
	err := readJSON(j.endFile(), &end)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	err = j.forget()
	if j.log.ended {
		return true, err
	}
	j.log.add(cove.JobEvent{Type: "end", Result: &end})
	return true, errors.Join(err, j.log.sync())
}

func (j *job) endFile() string { return j.folder.file("end.json") }

// finish collects the agent's work, and records the end.
func (j *job) finish(end cove.JobEnd) error {
	collector := &collector{folder: j.folder, spec: &j.spec, repo: j.repo, log: j.log}
	if err := collector.collect(&end); err != nil {
		j.log.notice("collect: " + err.Error())
		if end.Reason == "" {
			end.Reason = err.Error()
		}
		end.Phase, end.Uncollected = "collect", err.Error()
	} else {
		if len(collector.unsent) > 0 {
			end.Uncollected = fmt.Sprintf("the commits of the repositories %q stay in the sprite, since the job did not begin with them", collector.unsent)
			j.log.notice("collect: " + end.Uncollected)
		}
		j.log.add(cove.JobEvent{Type: "collected"})
	}
	return j.record(end)
}

// record writes the end: exactly once, and on the disk before anybody can read
// it.
func (j *job) record(end cove.JobEnd) error {
	end.Reason, end.Detail, end.Uncollected = j.log.mask.Hide(end.Reason), j.log.mask.Hide(end.Detail), j.log.mask.Hide(end.Uncollected)
	data, err := json.Marshal(end)
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(j.endFile())
	if err != nil {
		return fmt.Errorf("record the end: %w", err)
	}
	defer f.Discard()
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.CommitNew(0o600)
	}
	if err != nil {
		return fmt.Errorf("record the end: %w", err)
	}
	err = j.forget() // before the server hears of the end, and ends what is at work here
	j.log.add(cove.JobEvent{Type: "end", Result: &end})
	err = errors.Join(err, j.log.sync())
	j.own.Info("end", "phase", end.Phase, "reason", end.Reason, "code", end.ExitCode, "commits", end.Commits, "log", err)
	return err
}

// serversFolder has the programs that start the MCP servers of an agent, with their variables.
const serversFolder = "mcp"

// forget takes out of the job's folder what may be secret, and is not needed once the job has ended.
func (j *job) forget() error {
	gone := os.RemoveAll(j.folder.file(serversFolder))
	spec := j.spec
	spec.Env, spec.Masked, spec.SetupScript = nil, nil, nil
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return errors.Join(gone, atomicfile.Write(j.folder.file("job.json"), data, 0o600))
}

// now is the time of an event.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
