package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/fault"
)

// source is where the blobs of an image come from.
type source interface {
	// blob puts a blob, which is not there yet, into the store. Nobody else does so meanwhile.
	blob(ctx context.Context, d v1.Descriptor) error
}

// fetch makes sure that a blob is in the store.
func (s *Store) fetch(ctx context.Context, d v1.Descriptor, from source, watch func(int64)) error {
	leave, err := s.turns.enter(ctx, d.Digest.Hex, watch)
	if err != nil {
		return err
	}
	defer leave()
	st, err := os.Lstat(s.blobPath(d.Digest))
	switch {
	case err == nil && st.Size() == d.Size:
		watch(d.Size)
		return nil
	case err == nil:
		return bad("it says that %s has %d bytes, but that blob has %d", d.Digest, d.Size, st.Size())
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	return from.blob(ctx, d)
}

// document reads a blob that is small, and has been fetched.
func (l folders) document(d v1.Descriptor) ([]byte, error) {
	return os.ReadFile(l.blobPath(d.Digest)) // its size was checked when it was fetched
}

func (l folders) blobPath(h v1.Hash) string { return l.path(blobFolder, h.Hex) }

// Claim counts bytes that are about to be written to the store's disk. Its error says that they
// have no room.
func (s *Store) Claim(n int64) error {
	if s.o.Claim == nil {
		return nil
	}
	if err := s.o.Claim(n); err != nil {
		if _, ok := errors.AsType[*fail.Error](err); ok {
			return err
		}
		return fail.Wrap("no_space", err, pruneHint)
	}
	return nil
}

const pruneHint = "make room: cove image prune; to also remove images that no sprite uses: cove image prune --all"

// onDisk gives an error of the disk a code, if the disk is full.
func onDisk(err error) error {
	if _, ok := errors.AsType[*fail.Error](err); !ok && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		return &fail.Error{Code: "no_space", Message: "the server's disk is full", Hint: pruneHint, Err: err}
	}
	return err
}

// part is a blob on its way into the store. Its file outlives the process.
type part struct {
	s    *Store
	d    v1.Descriptor
	f    *os.File
	sum  hash.Hash
	have int64
}

// openPart opens what is there of a blob, and reads it.
func (s *Store) openPart(d v1.Descriptor) (_ *part, err error) {
	f, err := os.OpenFile(s.path(partialFolder, d.Digest.Hex), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, onDisk(err)
	}
	p := &part{s: s, d: d, f: f, sum: sha256.New()}
	if p.have, err = io.Copy(p.sum, io.LimitReader(f, d.Size+1)); err == nil && p.have > d.Size {
		err = p.restart()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// restart drops what is there.
func (p *part) restart() error {
	p.sum.Reset()
	p.have = 0
	_, err := p.f.Seek(0, io.SeekStart)
	return errors.Join(err, p.f.Truncate(0))
}

// errTooLong says that more came than the blob has.
var errTooLong = errors.New("it has more bytes than its manifest says")

// Write adds bytes that arrive.
func (p *part) Write(b []byte) (int, error) {
	if int64(len(b)) > p.d.Size-p.have {
		return 0, errTooLong
	}
	if err := p.s.Claim(int64(len(b))); err != nil {
		return 0, err
	}
	n, err := p.f.Write(b)
	p.sum.Write(b[:n])
	p.have += int64(n)
	p.s.turns.tell(p.d.Digest.Hex, p.have)
	return n, onDisk(err)
}

// commit gives the blob its name, if it is what it should be, and else removes it.
func (p *part) commit() error {
	if got := hex.EncodeToString(p.sum.Sum(nil)); got != p.d.Digest.Hex {
		return errors.Join(bad("the blob that came as %s has the digest sha256:%s", p.d.Digest, got), os.Remove(p.f.Name()))
	}
	return p.s.keep(p.f, p.d.Digest)
}

// keep gives a file whose digest was checked its name among the blobs.
func (s *Store) keep(f *os.File, h v1.Hash) error {
	to := s.blobPath(h)
	err := f.Sync()
	if err == nil {
		err = os.Rename(f.Name(), to)
	}
	if err == nil {
		err = atomicfile.SyncFolder(filepath.Dir(to))
	}
	if err != nil {
		return fmt.Errorf("keep %s: %w", h, onDisk(err))
	}
	fault.Reach(fault.ImageBlob)
	return nil
}

// keepDocument writes a document that is pinned to the blobs. Its file is among those that are
// being made until it has its name. sweep would take a file of another name for needless.
func keepDocument(s *Store, d document) error {
	if err := s.Claim(int64(len(d.raw))); err != nil {
		return err
	}
	f, err := atomicfile.Create(s.path(stagingFolder, d.digest.Hex))
	if err != nil {
		return onDisk(err)
	}
	defer f.Discard()
	if _, err := f.Write(d.raw); err != nil {
		return onDisk(err)
	}
	return onDisk(f.CommitAs(s.blobPath(d.digest), 0o600))
}

func (p *part) close() error { return p.f.Close() }
