package shim

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// ImageFile describes a memory image, beside it. It is written last: an image
// without it is none.
const ImageFile = "cove.json"

// CopiedFile marks, beside an image, one that was recalled: others may go on from it, too.
const CopiedFile = "copied"

// Image is what must be the same, or known, where a sandbox goes on from its memory.
// gVisor checks none of it.
type Image struct {
	Build  string        `json:"build"`  // of runsc, the guest and the processor: see Config.Build
	Mounts []specs.Mount `json:"mounts"` // of the sandbox, besides its disk
	Token  string        `json:"token"`  // the key of the guest in it
	Layers []string      `json:"layers"` // of the disk that it goes with, the lowest first; an earlier cove did not say
	Files  []ImagePart   `json:"files"`
	Saved  time.Time     `json:"saved"`
}

// ImagePart is a file of an image.
type ImagePart struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	CRC32C string `json:"crc32c"` // in hexadecimal, which finds damage, in a quarter of the time of SHA-256
}

// hibernate saves the sandbox's memory to a folder, which is made, and ends it. On
// an error it is what it was. s.moving is held.
func (s *Shim) hibernate(ctx context.Context, dir string) error {
	st := s.snapshot()
	if st.Build == "" {
		return errors.New("it was started by a server that did not say what it is made of")
	}
	if err := s.checkDeleted(st); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	room := roomFor(dir, st.PID)
	undo := func(err error) error {
		err = errors.Join(s.goBack(room.lacking(err, dir)), os.RemoveAll(dir))
		s.lowerMemory(st)
		return err
	}
	if err := s.setState(func(st *State) { st.Moving, st.Saving = true, dir }); err != nil {
		return err
	}
	fault.Reach(fault.SleepNoted)
	if !st.Paused {
		if err := s.runscOf(st).pause(); err != nil {
			return undo(err)
		}
	}
	fault.Reach(fault.SleepPaused)
	s.raiseMemory(st)
	if err := s.runscOf(st).save(ctx, dir); err != nil {
		return undo(err)
	}
	fault.Reach(fault.SleepSaved)
	if err := s.describeImage(st, dir); err != nil {
		return undo(err)
	}
	fault.Reach(fault.SleepDescribed)
	if err := ctx.Err(); err != nil {
		return undo(err)
	}
	s.mu.Lock()
	s.stopping, s.hibernated = true, true
	s.mu.Unlock()
	killProcess(st.PID, st.StartTime)
	fault.Reach(fault.SleepKilled)
	return nil
}

// keepImage copies an image, whose sandbox goes on meanwhile, to a folder that it
// makes, and returns its size in bytes. The error is ENOSPC if the copy would leave less
// of the disk free than it must.
func (s *Shim) keepImage(ctx context.Context, st State, image string, req Checkpoint) (size int64, err error) {
	dir := req.Keep
	if st.Build == "" {
		return 0, errors.New("the sandbox was started by a server that did not say what it is made of")
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return 0, err
	}
	entries, err := os.ReadDir(image)
	if err != nil {
		return 0, err
	}
	if err := leavesFree(entries, dir, req.Leave); err != nil {
		return 0, err
	}
	for _, e := range entries {
		n, err := copyPart(ctx, filepath.Join(dir, e.Name()), filepath.Join(image, e.Name()))
		if err != nil {
			return 0, err
		}
		size += n
	}
	return size, s.describeImage(st, dir)
}

// leavesFree returns ENOSPC if a copy of files in memory would leave less than so many
// bytes free on the file system of dir.
func leavesFree(files []os.DirEntry, dir string, leave int64) error {
	if leave <= 0 {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look how full the disk is: %w", err)
	}
	room := int64(fs.Bavail)*fs.Bsize - leave
	for _, f := range files {
		st, err := f.Info()
		if err != nil {
			return err
		}
		size := st.Size()
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			size = min(size, sys.Blocks*512) // holes stay holes
		}
		room -= size
	}
	if room < 0 {
		return unix.ENOSPC
	}
	return nil
}

// copyStep is how much of a part is copied at a time.
const copyStep = 1 << 20

// copyPart copies a file of an image, by two at once where it is large, and has what it
// writes begin its way to the disk at once: describeImage waits for that.
func copyPart(ctx context.Context, to, from string) (n int64, err error) {
	src, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer src.Close()
	st, err := src.Stat()
	if err != nil {
		return 0, err
	}
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	half := min(st.Size(), (st.Size()/2+copyStep-1)/copyStep*copyStep)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, part := range [][2]int64{{0, half}, {half, st.Size()}} {
		if part[0] < part[1] {
			wg.Go(func() { errs[i] = copyRange(ctx, dst, src, part) })
		}
	}
	wg.Wait()
	return st.Size(), errors.Join(append(errs, dst.Close())...)
}

// copyRange copies the bytes of a file from the first place to the second.
func copyRange(ctx context.Context, dst, src *os.File, part [2]int64) error {
	buf := make([]byte, copyStep)
	for at, to := part[0], part[1]; at < to; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := src.ReadAt(buf[:min(copyStep, to-at)], at)
		if err != nil {
			return err // also where it has become shorter: it is whole or no image
		}
		if _, err := dst.WriteAt(buf[:n], at); err != nil {
			return err
		}
		_ = unix.SyncFileRange(int(dst.Fd()), at, int64(n), unix.SYNC_FILE_RANGE_WRITE) // only sooner than it would
		at += int64(n)
	}
	return nil
}

// describeImage writes an image's description, once the rest of it is on disk.
func (s *Shim) describeImage(st State, dir string) error {
	spec, err := s.readBundle(st)
	if err != nil {
		return err
	}
	image := Image{Build: st.Build, Mounts: spec.Mounts, Token: st.Token, Layers: st.Layers, Saved: time.Now().UTC()}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		part, err := describePart(filepath.Join(dir, e.Name()), true)
		if err != nil {
			return err
		}
		image.Files = append(image.Files, part)
	}
	data, err := json.Marshal(image)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, ImageFile), data, 0o600)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func describePart(file string, sync bool) (ImagePart, error) {
	f, err := os.Open(file)
	if err != nil {
		return ImagePart{}, err
	}
	defer f.Close()
	if sync {
		if err := f.Sync(); err != nil {
			return ImagePart{}, err
		}
	}
	st, err := f.Stat()
	if err != nil {
		return ImagePart{}, err
	}
	h := crc32.New(castagnoli)
	if _, err := io.Copy(h, f); err != nil {
		return ImagePart{}, err
	}
	return ImagePart{Name: filepath.Base(file), Size: st.Size(), CRC32C: hex.EncodeToString(h.Sum(nil))}, nil
}

// ReadImage reads an image's description.
func ReadImage(dir string) (image Image, err error) {
	data, err := os.ReadFile(filepath.Join(dir, ImageFile))
	if err == nil {
		err = json.Unmarshal(data, &image)
	}
	return image, err
}

// checkImage says why an image can't be used for a sandbox with these mounts.
func (s *Shim) checkImage(dir string) (Image, error) {
	image, err := ReadImage(dir)
	if err != nil {
		return image, fmt.Errorf("it can't be read: %w", err)
	}
	if image.Build != s.cfg.Build {
		return image, errors.New("it was made by another version of cove, or on another machine")
	}
	spec, err := s.readBundle(s.state)
	if err != nil {
		return image, err
	}
	// The guest's programs are in the data folder, which may have been moved. They are of
	// the build, wherever they lie.
	same := func(a, b specs.Mount) bool {
		return a.Destination == b.Destination && (a.Source == b.Source || a.Destination == boot.BinDir) && a.Type == b.Type && slices.Equal(a.Options, b.Options)
	}
	if !slices.EqualFunc(image.Mounts, spec.Mounts, same) {
		return image, errors.New("the folders that the sprite is shown are others now")
	}
	for _, want := range image.Files {
		part, err := describePart(filepath.Join(dir, filepath.Base(want.Name)), false)
		if err != nil || part != want {
			return image, fmt.Errorf("its part %s is damaged", want.Name)
		}
	}
	return image, nil
}

// unfitError says that a memory is none to go on from, now or later.
type unfitError struct{ error }

func (e unfitError) Unwrap() error { return e.error }

// mayWake reports whether the memory's image may be used yet, after wake has failed: the
// machine had no process or memory for it, or no runsc, or too little time, and what the
// image holds was not refused. If there are copies of it, it can be recalled again: then it
// is not kept for that.
func (s *Shim) mayWake(err error) bool {
	if _, unfit := errors.AsType[unfitError](err); unfit {
		return false
	}
	_, copied := os.Stat(filepath.Join(s.cfg.Image, CopiedFile))
	return errors.Is(copied, os.ErrNotExist)
}

// imageSize is how many bytes a memory takes; 0: that is not known.
func imageSize(dir string) (size int64) {
	image, err := ReadImage(dir)
	if err != nil {
		return 0
	}
	for _, part := range image.Files {
		size += part.Size
	}
	return size
}

// exceeds says that a memory is larger than what a sandbox may have here; empty: it is not. A
// sandbox that the kernel ended for that has no cgroup any more which could tell.
func (s *Shim) exceeds(dir string) string {
	size := imageSize(dir)
	server := cgroup.Process{}.Limits()
	limit := s.snapshot().MemoryLimit
	if most := server.SandboxMemory(); most > 0 && (limit == 0 || limit > most) {
		limit = most
	}
	switch {
	case limit == 0 || size <= limit-reserve(limit):
		return ""
	case limit < server.SandboxMemory() || server.Memory == 0:
		return fmt.Sprintf("out of memory: its memory takes %d MiB of its %d MiB; give it more: cove update %s --memory SIZE", size>>20, limit>>20, s.snapshot().Hostname)
	}
	return fmt.Sprintf("out of memory: its memory takes %d MiB, and it gets %d MiB of the server's %d MiB; give the server (a container: --memory) more", size>>20, limit>>20, server.Memory>>20)
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

// untouched ends what there is of the sandbox, and reports whether nothing on its disk has
// changed since then. If the kernel of a sandbox ended while it woke, nobody knows how far it
// came; and once something has run, the memory does not go with the disk any more.
func (s *Shim) untouched(since time.Time) bool {
	s.killStarted(s.snapshot())
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
			s.log.Warn("the memory's image is used up", "because", err)
			return false
		}
	}
	return true
}

// wake starts the sandbox from a memory image. An error says why it could not; then
// there is no sandbox. The image is used up, unless nothing ran: its disk goes on.
func (s *Shim) wake(ctx context.Context, dir string) (err error) {
	image, err := s.checkImage(dir)
	if err != nil {
		return unfitError{err}
	}
	fault.Reach(fault.WakeChecked)
	call := s.runsc()
	if err := call.restore(ctx, s.bundleOf(s.state), dir); err != nil {
		return err
	}
	s.ran = true
	pid, startTime, err := call.sandboxProcess()
	if err != nil {
		return err
	}
	before := s.snapshot()
	before.PID, before.StartTime, before.Token = pid, startTime, image.Token
	after := before
	after.Token = boot.NextKey(image.Token, s.cfg.Token)
	if err := s.setState(func(st *State) { *st = after }); err != nil {
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

// introduce tells a guest that was restored who it is now, while it has the key of that
// state. It is the first that anybody asks of it.
func (s *Shim) introduce(ctx context.Context, now State) error {
	ctx, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	body, err := json.Marshal(s.bootConfig())
	if err != nil {
		return err
	}
	guest := guestDialer{gw: s.gw, state: func() State { return now }, restored: true}
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
		st := s.snapshot()
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

func (s *Shim) postHibernate(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Dir string `json:"dir"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&req); err != nil || !filepath.IsAbs(req.Dir) {
		http.Error(w, "no folder for the image", http.StatusBadRequest)
		return
	}
	err := s.move(r.Context(), func(ctx context.Context) error { return s.hibernate(ctx, req.Dir) })
	if err != nil {
		fail(w, err)
		return
	}
	<-s.ended
	reply(w, End{s.reason})
}
