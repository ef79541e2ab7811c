package supervise

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
)

// ErrNotSetUp says that this sprite has not been set up by that script.
var ErrNotSetUp = errors.New("the setup script has not succeeded in this sprite")

// A setup is a sprite's setup script while it runs. Its records, kept between jobs, are in
// ~/.cove/setup, by repository: KEY.json says which text has succeeded, KEY.log has the output
// of the last run. The file lock is held while one runs.
type setup struct {
	cove.SetupScript
	dir     string // where it runs
	env     []string
	records string
}

// setupRecord is KEY.json. It is on the sprite's disk, so that copies of the disk, such as a
// fork's, keep it.
type setupRecord struct {
	SHA256 string    `json:"sha256"`
	Name   string    `json:"name"`
	At     time.Time `json:"at"`
}

// newSetup is the setup script of the job with that folder; nil if it has none.
func newSetup(dir folder, spec *cove.JobSpec) (*setup, error) {
	if spec.SetupScript == nil {
		return nil, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	script := *spec.SetupScript
	script.TimeoutSec = cmp.Or(spec.StepLimits[cove.StepSetupScript], script.TimeoutSec)
	return &setup{SetupScript: script, dir: spec.Workdir,
		env: append(dir.environ(), spec.Env...), records: filepath.Join(home, ".cove", "setup")}, nil
}

// SetUp runs the setup script of the job that dir describes, in a temporary clone. It then
// deletes the clone and dir. The script's output goes to out.
func SetUp(ctx context.Context, dir string, out io.Writer) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var spec cove.JobSpec
	if err := readJSON(filepath.Join(dir, "job.json"), &spec); err != nil {
		return err
	}
	spec.Workdir = filepath.Join(dir, "work", filepath.Base(spec.Workdir))
	s, err := newSetup(folder(dir), &spec)
	if s == nil || err != nil {
		return err
	}
	if err := os.MkdirAll(spec.Workdir, 0o755); err != nil {
		return err
	}
	if spec.Bundle != "" {
		spec.Bundle = filepath.Join(dir, filepath.Base(spec.Bundle))
		if err := newRepository(folder(dir), &spec, nil).receive(ctx); err != nil {
			return err
		}
	}
	_, err = s.run(ctx, filepath.Join(dir, "setup.sh"), func(string) {}, func(r io.Reader) { _, _ = io.Copy(out, r) })
	return err
}

// IsSetUp returns nil if the setup script of the job that dir describes has succeeded in this
// sprite, or if the job has none. If the script has not succeeded, it returns ErrNotSetUp.
func IsSetUp(dir string) error {
	var spec cove.JobSpec
	if err := readJSON(filepath.Join(dir, "job.json"), &spec); err != nil {
		return err
	}
	s, err := newSetup(folder(dir), &spec)
	if s == nil || err != nil {
		return err
	}
	if !s.done() {
		return ErrNotSetUp
	}
	return nil
}

// record is the path of the repository's record with that ending.
func (s *setup) record(ending string) string {
	sum := sha256.Sum256([]byte(s.Repository))
	return filepath.Join(s.records, hex.EncodeToString(sum[:8])+ending)
}

func (s *setup) sum() string {
	sum := sha256.Sum256([]byte(s.Text))
	return hex.EncodeToString(sum[:])
}

func (s *setup) done() bool {
	var r setupRecord
	return readJSON(s.record(".json"), &r) == nil && r.SHA256 == s.sum()
}

// run runs the script from a file of that name, unless it has succeeded already; again says
// so. out reads the script's output until its end.
func (s *setup) run(ctx context.Context, file string, say func(string), out func(io.Reader)) (again bool, err error) {
	if err := os.MkdirAll(s.records, 0o755); err != nil {
		return false, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if s.done() {
		return true, nil
	}
	say(s.Name + " prepares the sprite")
	defer os.Remove(file)
	if err := os.WriteFile(file, []byte(s.Text), 0o700); err != nil {
		return false, err
	}
	log, err := os.OpenFile(s.record(".log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return false, err
	}
	defer log.Close()
	var last tail
	within, stop := limitRunning(ctx, s.limit())
	defer stop()
	ended, err := s.execute(within, file, func(r io.Reader) {
		out(io.TeeReader(r, io.MultiWriter(quietWriter{log}, &last)))
	})
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return false, err
	}
	if ended != nil {
		return false, fmt.Errorf("the setup script %s %w:\n%s", s.Name, ended, lastLines(last.String()))
	}
	return false, s.write()
}

// lock waits until no other job sets up this sprite.
func (s *setup) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.records, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock the setup: %w", err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// limit is how long the script may run.
func (s *setup) limit() time.Duration {
	if s.TimeoutSec > 0 {
		return time.Duration(s.TimeoutSec) * time.Second
	}
	return cove.StepLimit(nil, cove.StepSetupScript)
}

// execute runs the script until its end. Then it kills all processes that the script has left:
// programs that must go on running are services. If ctx ends, so does the script. ended says
// why the script failed; nil: it succeeded.
func (s *setup) execute(ctx context.Context, file string, out func(io.Reader)) (ended, err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	argv := []string{"/bin/sh", file}
	if strings.HasPrefix(s.Text, "#!") {
		argv = []string{file}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("the setup script %s does not start: %w", s.Name, err), r.Close(), w.Close())
	}
	streams := &streams{theirs: []*os.File{w}, ours: []*os.File{r}, run: []func(){func() { out(r) }}}
	streams.started()
	over := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ProcessState has what matters
		close(over)
	}()
	select {
	case <-over:
	case <-ctx.Done():
		ended = context.Cause(ctx)
		endGroup(cmd.Process.Pid, over)
	}
	killDescendants()
	streams.drain()
	if code, signalled := exitCode(cmd.ProcessState); ended == nil && signalled != "" {
		ended = errors.New("was ended by " + signalled)
	} else if ended == nil && code != 0 {
		ended = fmt.Errorf("exited with %d", code)
	}
	return ended, nil
}

// write notes that the script has succeeded.
func (s *setup) write() error {
	data, err := json.Marshal(setupRecord{SHA256: s.sum(), Name: s.Name, At: now()})
	if err != nil {
		return err
	}
	return atomicfile.Write(s.record(".json"), append(data, '\n'), 0o644)
}
