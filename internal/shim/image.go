package shim

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
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
	"github.com/cove-dev/cove/internal/shim/cgroup"
)

// ImageFile describes a memory image, beside it. It is written last: an image without it is
// not complete.
const ImageFile = "cove.json"

// CopiedFile marks, beside an image, one that was recalled: others may go on from it, too.
const CopiedFile = "copied"

// Image has the facts that must be the same, or known, for a sandbox to go on from its
// memory. gVisor checks none of them.
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
	CRC32C string `json:"crc32c"` // in hexadecimal; it finds damage, in a quarter of the time of SHA-256
}

// keepImage copies an image, whose sandbox goes on meanwhile, to a folder that it
// makes, and returns its size in bytes. The error is ENOSPC if the copy would leave less
// of the disk free than it must.
func keepImage(ctx context.Context, f folder, st State, image string, req Checkpoint) (size int64, err error) {
	dir := req.Keep
	if st.Build == "" {
		return 0, errors.New("the sandbox's server recorded no build, so its memory can't be saved; restart the sprite")
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
	return size, describeImage(f, st, dir)
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

// copyPart copies a file of an image, by two goroutines if it is large. The kernel starts to
// write the copy to the disk at once: describeImage waits for that.
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
			return err // also if the file has become shorter: an image must be whole
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
func describeImage(f folder, st State, dir string) error {
	spec, err := f.readBundle(st)
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

// spentFile is an image's description from just before anything may run that the image would
// not fit any more.
const spentFile = ImageFile + ".spent"

// Unspent reports whether the programs of a sandbox can still go on from an image. Whatever
// became of the shim that was to wake it, nothing has run.
func Unspent(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ImageFile))
	return err == nil
}

// spend makes an image one that is not Unspent, before a sandbox starts. It takes no room, for
// the disk may be full. An image that the server has put back can't be spent any more.
func spend(dir string) error {
	from, to := filepath.Join(dir, ImageFile), filepath.Join(dir, spentFile)
	err := os.Rename(from, to)
	if errors.Is(err, os.ErrNotExist) {
		_, err = os.Lstat(to) // it was spent before
	}
	if err != nil {
		return fmt.Errorf("note that the memory is used: %w", err)
	}
	return nil
}

// unspend undoes spend, if nothing has run.
func unspend(dir string) error {
	if Unspent(dir) {
		return nil
	}
	return os.Rename(filepath.Join(dir, spentFile), filepath.Join(dir, ImageFile))
}

// checkImage says why an image can't be used for a sandbox that is made of build, and has the
// mounts of its bundle.
func checkImage(dir, build string, f folder, st State) (Image, error) {
	image, err := ReadImage(dir)
	if err != nil {
		return image, fmt.Errorf("it can't be read: %w", err)
	}
	if image.Build != build {
		return image, errors.New("it was made by another version of cove, or on another machine")
	}
	spec, err := f.readBundle(st)
	if err != nil {
		return image, err
	}
	// The guest's programs are in the data folder, which may have been moved. They are of
	// the build, wherever they lie.
	same := func(a, b specs.Mount) bool {
		return a.Destination == b.Destination && (a.Source == b.Source || a.Destination == boot.BinDir) && a.Type == b.Type && slices.Equal(a.Options, b.Options)
	}
	if !slices.EqualFunc(image.Mounts, spec.Mounts, same) {
		return image, errors.New("the folders shown in the sprite have changed")
	}
	for _, want := range image.Files {
		part, err := describePart(filepath.Join(dir, filepath.Base(want.Name)), false)
		if err != nil || part != want {
			return image, fmt.Errorf("its part %s is damaged", want.Name)
		}
	}
	return image, nil
}

// unfitError says that a sandbox can't go on from a memory, now or later.
type unfitError struct{ error }

func (e unfitError) Unwrap() error { return e.error }

// mayWake reports whether a memory's image may still be used after wake has failed. It may if
// the image itself was not refused: the machine had no process or memory for it, or no runsc,
// or too little time. If there are copies of the image, it is not kept for that: it can be
// recalled again.
func mayWake(image string, err error) bool {
	if _, unfit := errors.AsType[unfitError](err); unfit {
		return false
	}
	_, copied := os.Stat(filepath.Join(image, CopiedFile))
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

// exceeds says that a memory is larger than a sandbox may have here. Empty: it is not. If the
// kernel ended a sandbox for that, its cgroup is gone and can't tell.
func exceeds(dir string, st State) string {
	size := imageSize(dir)
	server := cgroup.Process{}.Limits()
	limit := st.MemoryLimit
	if most := server.SandboxMemory(); most > 0 && (limit == 0 || limit > most) {
		limit = most
	}
	switch {
	case limit == 0 || size <= limit-reserve(limit):
		return ""
	case limit < server.SandboxMemory() || server.Memory == 0:
		return fmt.Sprintf("out of memory: its memory takes %d MiB of its %d MiB; give it more: cove update %s --memory SIZE", size>>20, limit>>20, st.Hostname)
	}
	return fmt.Sprintf("out of memory: its memory takes %d MiB, and it gets %d MiB of the server's %d MiB; give the server (a container: --memory) more", size>>20, limit>>20, server.Memory>>20)
}
