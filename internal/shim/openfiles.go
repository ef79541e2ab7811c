package shim

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// What a guest says of its open files is bounded: in time, as an answer, in how many
// it names.
const (
	openFilesLimit = 5 * time.Second
	maxOpenAnswer  = 256 << 10
	maxOpenNamed   = 10
	maxOpenBytes   = 1 << 50
)

// openFiles asks the guest what a checkpoint will have more work with than usual. One
// that does not say is believed to have nothing open: no more than time depends on it.
func (s *Shim) openFiles(ctx context.Context) (open sprites.OpenFiles) {
	ctx, cancel := context.WithTimeout(ctx, openFilesLimit)
	defer cancel()
	err := newGuestClient(s.gw, s.guestToken).call(ctx, http.MethodGet, "/v1/open-files", func(r io.Reader) (err error) {
		open, err = readOpenFiles(r)
		return err
	})
	if err != nil {
		s.log.Warn("look for open files", "err", err)
	}
	return open
}

// readOpenFiles reads what a guest says, which is hostile.
func readOpenFiles(r io.Reader) (open sprites.OpenFiles, err error) {
	if open, err = answered[sprites.OpenFiles](r, maxOpenAnswer); err != nil {
		return sprites.OpenFiles{}, err
	}
	size := func(n int64) int64 { return min(max(n, 0), maxOpenBytes) }
	for _, list := range []*[]sprites.OpenFile{&open.Writable, &open.Unlinked} {
		*list = (*list)[:min(len(*list), maxOpenNamed)]
		for i := range *list {
			(*list)[i].Bytes = size((*list)[i].Bytes)
		}
	}
	open.WritableBytes, open.UnlinkedBytes = size(open.WritableBytes), size(open.UnlinkedBytes)
	return open, nil
}

// tooMuchOpen says why a memory is not kept, though it was to be; empty: it is. Each
// restore and each fork would do again what the checkpoint has to do.
func tooMuchOpen(excess *sprites.OpenFiles) string {
	if excess == nil {
		return ""
	}
	var why []string
	if excess.WritableBytes > sprites.OpenWritable {
		why = append(why, fmt.Sprintf("%d MiB of files are open for writing, and it is kept up to %d MiB", excess.WritableBytes>>20, sprites.OpenWritable>>20))
	}
	if excess.UnlinkedBytes > sprites.OpenUnlinked {
		why = append(why, fmt.Sprintf("%d MiB of deleted files are still open, and it is kept up to %d MiB", excess.UnlinkedBytes>>20, sprites.OpenUnlinked>>20))
	}
	return strings.Join(why, "; ")
}

// copiedLimit is how long is looked for what was copied, at most.
const copiedLimit = 5 * time.Second

// copied is how much of what was sealed has been copied up again.
func (s *Shim) copied(ctx context.Context, disk []Mount) (n int64) {
	ctx, cancel := context.WithTimeout(ctx, copiedLimit)
	defer cancel()
	for _, m := range disk {
		bytes, err := m.Overlay.Copied(ctx)
		if n += bytes; err != nil {
			s.log.Warn("look for what was copied up", "err", err)
		}
	}
	return n
}
