package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fault"
)

// hibernate saves the sandbox's memory to a folder, which it makes, and ends the sandbox.
// After an error the sandbox is as before. The caller holds moves.turn.
func (s *Shim) hibernate(ctx context.Context, dir string) error {
	st := s.record.get()
	if st.Build == "" {
		return errors.New("the sandbox's server recorded no build, so its memory can't be saved; restart the sprite")
	}
	if err := canAnswer(st.PID); err != nil {
		return err
	}
	if err := checkDeleted(s.folder, st); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	room := roomFor(dir, st.PID)
	undo := func(err error) error {
		err = errors.Join(s.goBack(room.lacking(err, dir)), os.RemoveAll(dir))
		s.memory.lower(st)
		return err
	}
	if err := s.record.set(func(st *State) { st.Moving, st.Saving = true, dir }); err != nil {
		return err
	}
	fault.Reach(fault.SleepNoted)
	if !st.Paused {
		if err := s.containers.runsc(st).pause(); err != nil {
			return undo(err)
		}
	}
	fault.Reach(fault.SleepPaused)
	s.memory.raise(st)
	if err := s.containers.runsc(st).save(ctx, dir); err != nil {
		return undo(networks(err))
	}
	fault.Reach(fault.SleepSaved)
	if err := describeImage(s.folder, st, dir); err != nil {
		return undo(err)
	}
	fault.Reach(fault.SleepDescribed)
	if err := ctx.Err(); err != nil {
		return undo(err)
	}
	s.moves.sleep()
	killProcess(st.PID, st.StartTime)
	fault.Reach(fault.SleepKilled)
	return nil
}

// kernelTime is the time that a file changed now in a folder has.
func kernelTime(dir string) (time.Time, error) {
	f, err := os.CreateTemp(dir, "time-")
	if err != nil {
		return time.Time{}, fmt.Errorf("ask the kernel for the time: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return time.Time{}, fmt.Errorf("ask the kernel for the time: %w", err)
	}
	return time.Unix(st.Ctim.Unix()), nil
}

// untouched ends what is left of the sandbox, and reports whether nothing on its disk has
// changed since then. If the kernel of a sandbox ended while it woke, nobody knows how far it
// came. Once a program has run, the memory does not fit the disk any more.
func (s *Shim) untouched(since time.Time) bool {
	s.containers.killStarted(s.record.get())
	for _, m := range s.cfg.Disk {
		err := filepath.WalkDir(m.Overlay.Upper, func(name string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(name, &st); err != nil {
				return err
			}
			if name != m.Overlay.Upper && time.Unix(st.Ctim.Unix()).After(since) {
				return fmt.Errorf("%s has changed", name)
			}
			return nil
		})
		if err != nil {
			s.log.Warn("the memory's image can't be used again", "because", err)
			return false
		}
	}
	return true
}

// wake starts the sandbox from a memory image. An error says why it could not, and then there
// is no sandbox. The image is used up, unless nothing ran: once a program runs, the disk
// changes.
func (s *Shim) wake(ctx context.Context, dir string) (err error) {
	image, err := checkImage(dir, s.cfg.Build, s.folder, s.record.get())
	if err != nil {
		return unfitError{err}
	}
	fault.Reach(fault.WakeChecked)
	if err := spend(dir); err != nil {
		return err
	}
	call := s.containers.runsc(s.record.get())
	if err := call.restore(ctx, s.folder.bundle(s.record.get()), dir); err != nil {
		return err
	}
	s.ran = true
	pid, startTime, err := call.sandboxProcess()
	if err != nil {
		return err
	}
	before := s.record.get()
	before.PID, before.StartTime, before.Token = pid, startTime, image.Token
	after := before
	after.Token = boot.NextKey(image.Token, s.cfg.Token)
	if err := s.record.set(func(st *State) { *st = after }); err != nil {
		return err
	}
	fault.Reach(fault.WakeRestored)
	_, err = os.Stat(filepath.Join(dir, CopiedFile))
	s.copied = err == nil
	if err := s.introduce(ctx, before); err != nil {
		return err
	}
	fault.Reach(fault.WakeIntroduced)
	return nil
}

// introduce tells a restored guest its new identity, while the guest still has the key of the
// saved state. It must be the first call to the guest.
func (s *Shim) introduce(ctx context.Context, now State) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.patience())
	defer cancel()
	body, err := json.Marshal(s.cfg.bootConfig(s.copied))
	if err != nil {
		return err
	}
	guest := guestDialer{gw: s.network.gw, state: func() State { return now }, restored: true}
	try := 10 * time.Millisecond
	tr := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return guest.tryFor(ctx, try)
	}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://guest/v1/identity", bytes.NewReader(body))
		if err != nil {
			return err
		}
		guest.authorize(req)
		resp, err := tr.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusNoContent {
				return fmt.Errorf("the guest answered %s", resp.Status)
			}
			return nil
		}
		st := s.record.get()
		if ctx.Err() != nil || !alive(st.PID, st.StartTime) {
			return fmt.Errorf("the guest does not answer: %w", err)
		}
		try = min(try*5/4, time.Second)
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}
