package gitwork

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
)

// BaseRef is the one ref of a bundle that goes to a job.
const BaseRef = "refs/cove/base"

// Bundle describes a bundle that has been written.
type Bundle struct {
	SHA256 string
	Size   int64
}

// Bundle writes the complete history of base as a bundle with the single ref
// refs/cove/base. No ref appears in the repository. Progress, which may be nil, is
// called with the bytes so far. A shallow repository is ErrShallow.
func (r *Repo) Bundle(ctx context.Context, w io.Writer, base string, progress func(int64)) (Bundle, error) {
	if r.Shallow {
		return Bundle{}, &Error{Code: ErrShallow.Code, Message: "this clone is shallow: a part of its history is not here",
			Hint: "git fetch --unshallow"}
	}
	s, err := r.scratch(ctx)
	if err != nil {
		return Bundle{}, err
	}
	defer s.remove()
	if err := s.refs(ctx, map[string]string{BaseRef: base}); err != nil {
		return Bundle{}, fmt.Errorf("write bundle: %w", err)
	}
	m := &meter{w: w, sum: sha256.New(), progress: progress}
	_, err = s.git.run(ctx, call{args: []string{"bundle", "create", "-q", "-", BaseRef}, stdout: m, timeout: patiently})
	if err != nil && r.partial() && ctx.Err() == nil && exitCode(err) > 0 {
		return Bundle{}, &Error{Code: ErrPartial.Code, Message: "this is a partial clone, and objects of its history are not here",
			Hint: "git fetch --refetch --no-filter, or clone without --filter"}
	}
	if err != nil {
		return Bundle{}, fmt.Errorf("write bundle: %w", err)
	}
	return Bundle{SHA256: hex.EncodeToString(m.sum.Sum(nil)), Size: m.n}, nil
}

// partial reports whether a remote was promised to have what is missing here.
func (r *Repo) partial() bool {
	if r.config.values["extensions.partialclone"] != "" {
		return true
	}
	for key, value := range r.config.values {
		if _, ok := driver(key, "remote."); ok && len(key) > 9 && key[len(key)-9:] == ".promisor" && value == "true" {
			return true
		}
	}
	return false
}

// meter counts, hashes and passes on.
type meter struct {
	w        io.Writer
	sum      hash.Hash
	n        int64
	progress func(int64)
}

func (m *meter) Write(p []byte) (int, error) {
	n, err := m.w.Write(p)
	m.n += int64(n)
	m.sum.Write(p[:n])
	if m.progress != nil {
		m.progress(m.n)
	}
	return n, err
}
