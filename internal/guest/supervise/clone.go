package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove"
)

// repository is the clone that a job's agent works in, with its submodules, its
// large files, and the sprite's store that it shares packs with.
type repository struct {
	spec    *cove.JobSpec
	git     git
	store   *store
	large   *largeFiles
	modules *submodules
}

// newRepository is the repository of the job with that folder, whether the clone is
// there or not. Faults of the store are noted in log.
func newRepository(dir folder, spec *cove.JobSpec, log *journal) *repository {
	g := git{work: spec.Workdir, author: spec.Author, folder: dir}
	st := &store{dir: spec.Store, git: g, base: spec.Base, log: log}
	large := &largeFiles{
		git: g, store: st,
		came: filepath.Join(filepath.Dir(spec.Bundle), cove.LargeFilesIn),
		list: dir.file("lfs.json"),
		out:  dir.file(cove.LargeFilesOut),
	}
	modules := &submodules{git: g, large: large, base: spec.Base, shallow: spec.Shallow, file: dir.file("modules.json")}
	return &repository{spec: spec, git: g, store: st, large: large, modules: modules}
}

// receive makes the clone that the agent works in, from the bundle that was sent.
func (r *repository) receive(ctx context.Context) error {
	if r.spec.Earlier != "" {
		return r.takeOver(ctx)
	}
	sum, size, err := digest(r.spec.Bundle)
	if err != nil {
		return err
	}
	if r.spec.BundleSHA256 != "" && sum != r.spec.BundleSHA256 {
		return fmt.Errorf("the bundle that arrived (%d bytes) is not the one that was sent", size)
	}
	return r.clone(ctx)
}

// clone makes the repository in the work folder, from the bundle and the sprite's store, and
// checks out the job's commit.
func (r *repository) clone(ctx context.Context) error {
	if err := os.MkdirAll(r.spec.Workdir, 0o755); err != nil {
		return err
	}
	branch := "refs/heads/" + r.spec.Branch
	if err := r.git.each(ctx, [][]string{
		initArgs(r.spec.Base),
		{"symbolic-ref", "HEAD", branch},
	}); err != nil {
		return err
	}
	if err := r.git.name(r.spec.Workdir); err != nil {
		return err
	}
	if err := r.git.cutAt(ctx, r.spec.Workdir, r.spec.Shallow); err != nil {
		return err
	}
	lent, err := r.store.borrow(ctx)
	if err != nil {
		return fmt.Errorf("use the sprite's store of the repository: %w", err)
	}
	if err := r.git.each(ctx, [][]string{
		{"fetch", "-q", "--no-tags", "--update-head-ok", r.spec.Bundle, "refs/cove/base:" + branch, cove.ModuleRef + "*:" + cove.ModuleRef + "*"},
	}); err != nil {
		if lent.any() {
			return fmt.Errorf("the sprite's store of the repository is damaged, and was deleted; push again: %w", r.store.forget(err))
		}
		return err
	}
	if head, err := r.git.run(ctx, "rev-parse", "HEAD"); err != nil {
		return err
	} else if head != r.spec.Base {
		return fmt.Errorf("the bundle holds commit %s, not %s", head, r.spec.Base)
	}
	if err := r.large.receive(); err != nil {
		return err
	}
	if err := r.large.checkout(ctx, r.spec.Workdir, "reset", "-q", "--hard"); err != nil {
		return err
	}
	sent, err := r.modules.sent(ctx)
	if err != nil {
		return err
	}
	if err := r.modules.checkout(ctx, sent); err != nil {
		return err
	}
	return r.store.keep(ctx, lent, sent)
}

// digest returns the SHA-256 and the size of a file.
func digest(name string) (sum string, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return hex.EncodeToString(h.Sum(nil)), size, err
}
