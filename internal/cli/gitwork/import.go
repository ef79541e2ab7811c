package gitwork

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// Bounds of what a job may bring back.
const (
	maxObjects    = 2_000_000
	maxObjectSize = 1 << 30

	// A pack may unfold to maxInflated and maxExpansion times its size. To find out that
	// it unfolds to more takes seconds. The objects that deltas make have a limit of their
	// own, maxMade: an honest history may have small changes to large files.
	maxInflated  = 256 << 20
	maxMade      = 4 << 30
	maxExpansion = 64
)

// Expect is what a job's terminal record says of its bundle.
type Expect struct {
	Job      string
	Base     string // the commit that the job started from; it is in the repository
	Head     string // the agent's last commit; empty or Base: none
	Leftover string // the commit of what it left uncommitted; may be empty
	SHA256   string
	Size     int64
}

// refs are the refs that the bundle must have.
func (e Expect) refs() map[string]string {
	refs := map[string]string{}
	if e.Head != "" && e.Head != e.Base {
		refs[JobRef(e.Job, "head")] = e.Head
	}
	if e.Leftover != "" {
		refs[JobRef(e.Job, "leftover")] = e.Leftover
	}
	return refs
}

// Import checks the bundle in file, which must not change meanwhile. Then it brings its
// commits into the repository under refs/cove/JOB/, all at once; before that, those of
// submodules into their repositories. If the bundle is bad, the error is a
// *RejectedError. After any error, nothing in this repository has changed. The caller
// holds the lock. Importing the same bundle again is no error.
func (r *Repo) Import(ctx context.Context, file *os.File, want Expect) error {
	b, err := r.openBundle(ctx, file, want)
	if err != nil {
		return err
	}
	var absent []string
	if len(b.modules) > 0 {
		if b.known, absent, err = r.modulesHere(ctx, want.Base); err != nil {
			return err
		}
	}
	err = r.importBundle(ctx, b, want)
	if e, ok := errors.AsType[*RejectedError](err); ok && len(absent) > 0 {
		return &fail.Error{Code: ErrModule.Code, Message: "the job's bundle does not fit; there are submodules that are not checked out here, " + SomeNames(absent) + ": " + e.Reason,
			Hint: "git submodule update --init --recursive, and cove pull " + want.Job}
	}
	return err
}

func (r *Repo) importBundle(ctx context.Context, b *incoming, want Expect) error {
	if err := r.checkPrereqs(ctx, b, want.Base); err != nil {
		return err
	}
	q, err := r.quarantine(ctx, b.known...)
	if err != nil {
		return err
	}
	defer q.remove()
	if err := r.unpack(ctx, q, b.pack); err != nil {
		return err
	}
	if err := q.checkTrees(ctx, slices.Concat(slices.Collect(maps.Values(b.refs)), b.modules), b.starts(want.Base)); err != nil {
		return err
	}
	for _, tip := range b.refs {
		if err := q.checkChange(ctx, want.Base, tip); err != nil {
			return err
		}
	}
	if len(b.modules) == 0 {
		return r.moveIn(ctx, q, b.refs, want.Job, want.Base)
	}
	return r.importWithModules(ctx, q, b, want)
}

// checkChange checks that the changes between two commits can be summarized.
func (s *scratch) checkChange(ctx context.Context, base, tip string) error {
	if err := s.checkUnfolded(ctx, base, tip); err != nil {
		return err
	}
	_, err := s.summary(ctx, base, tip)
	return err
}

// incoming is a bundle whose header is as it should be.
type incoming struct {
	pack    *io.SectionReader
	refs    map[string]string // of this repository
	modules []string          // commits of submodules
	prereqs []string
	known   []Module // the submodules that are here, if there are commits of any
}

// starts are the commits that the job was given.
func (b *incoming) starts(base string) []string {
	starts := []string{base}
	for _, m := range b.known {
		starts = append(starts, m.Commit)
	}
	return starts
}

// openBundle checks the bundle as a file: its size and digest, and its header.
func (r *Repo) openBundle(ctx context.Context, file *os.File, want Expect) (*incoming, error) {
	for _, id := range []string{want.Base, want.Head, want.Leftover} {
		if id != "" && !isObjectName(id, r.format) {
			return nil, rejected("the job's record has %q for a commit", id)
		}
	}
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	if info.Size() != want.Size {
		return nil, rejected("it has %d bytes, and the job's record says %d", info.Size(), want.Size)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(file, 0, want.Size)); err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want.SHA256 {
		return nil, rejected("its SHA-256 is %s, and the job's record says %s", got, want.SHA256)
	}
	count := &countReader{r: io.NewSectionReader(file, 0, want.Size)}
	br := bufio.NewReader(count)
	header, err := readHeader(br)
	if err != nil {
		return nil, rejected("%v", err)
	}
	if header.format != r.format {
		return nil, rejected("its objects are %s, and the repository's are %s", header.format, r.format)
	}
	b := &incoming{refs: want.refs(), prereqs: header.prereqs}
	agreed := maps.Clone(header.refs)
	maps.DeleteFunc(agreed, func(ref, commit string) bool {
		is := ref == JobRef(want.Job, "sub/"+commit)
		if is {
			b.modules = append(b.modules, commit)
		}
		return is
	})
	if !maps.Equal(agreed, b.refs) {
		return nil, rejected("its refs are %v, and the job's record says %v", header.refs, b.refs)
	}
	at := count.n - int64(br.Buffered())
	b.pack = io.NewSectionReader(file, at, want.Size-at)
	return b, nil
}

// checkPrereqs checks that a bundle builds only on commits that the job was given.
func (r *Repo) checkPrereqs(ctx context.Context, b *incoming, base string) error {
	s, err := r.scratch(ctx, b.known...) // not to look for names in the person's refs
	if err != nil {
		return err
	}
	defer s.remove()
	if commit, err := resolve(ctx, s.git, base); err != nil {
		return err
	} else if commit != base {
		return fmt.Errorf("import bundle: the commit %s is not in this repository", base)
	}
	if len(b.prereqs) == 0 {
		return nil
	}
	out, err := s.git.run(ctx, call{args: []string{"rev-list", "--max-count=1", "--stdin"}, stdin: revisions(b.prereqs, b.starts(base))})
	if exitCode(err) > 0 || err == nil && len(out) > 0 {
		return rejected("it builds on commits that the job did not start from")
	}
	return err
}

// unpack checks the pack and stores it in the quarantine.
func (r *Repo) unpack(ctx context.Context, q *scratch, pack *io.SectionReader) error {
	hashSize := 20
	if r.format == "sha256" {
		hashSize = 32
	}
	grown := maxExpansion * uint64(pack.Size())
	limits := packLimits{objects: maxObjects, object: maxObjectSize, inflated: maxInflated + grown, made: maxMade + grown}
	if _, err := scanPack(bufio.NewReaderSize(pack, 256<<10), hashSize, limits); err != nil {
		return rejected("%v", err)
	}
	if _, err := pack.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read bundle: %w", err)
	}
	_, err := q.git.run(ctx, call{
		args: []string{"index-pack", "--stdin", "--fix-thin", "--strict=badFilemode=error",
			"--max-input-size=" + strconv.FormatInt(pack.Size(), 10)},
		stdin:   pack,
		timeout: patiently,
	})
	if err == nil || errors.Is(err, syscall.ENOSPC) || exitCode(err) < 0 {
		return err
	}
	return rejected("git's checks say: %v", err)
}

// moveIn moves the pack to the repository's own, and then makes the refs in one
// transaction. A pack without refs is garbage that git itself collects.
func (r *Repo) moveIn(ctx context.Context, q *scratch, refs map[string]string, job, base string) error {
	var b strings.Builder
	refs = maps.Clone(refs)
	refs[JobRef(job, "base")] = base
	for ref, commit := range refs {
		now, err := r.Resolve(ctx, ref)
		if err != nil {
			return err
		}
		switch now {
		case commit:
		case "":
			fmt.Fprintf(&b, "create %s %s\n", ref, commit)
		default:
			return rejected("%s is at %s already, and the bundle has %s", ref, now, commit)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	done, err := r.movePack(q)
	defer done()
	if err != nil {
		return fmt.Errorf("move the job's objects in: %w", err)
	}
	if _, err := r.git.run(ctx, call{args: []string{"update-ref", "--stdin"}, stdin: strings.NewReader(b.String())}); err != nil {
		return fmt.Errorf("make the job's refs: %w", err)
	}
	return nil
}

// movePack moves the quarantine's pack. A .keep beside it holds off other git
// processes until done is called; the .idx, which makes git see the pack, comes
// last.
func (r *Repo) movePack(q *scratch) (done func(), err error) {
	done = func() {}
	from := filepath.Join(q.dir, "objects", "pack")
	packs, err := filepath.Glob(filepath.Join(from, "pack-*.idx"))
	if err != nil || len(packs) == 0 {
		return done, err
	}
	to := filepath.Join(r.objects(), "pack")
	if err := os.MkdirAll(to, 0o777); err != nil {
		return done, err
	}
	name := strings.TrimSuffix(filepath.Base(packs[0]), ".idx")
	if exists(filepath.Join(to, name+".idx")) {
		return done, nil
	}
	keep := filepath.Join(to, name+".keep")
	if err := os.WriteFile(keep, []byte("cove\n"), 0o600); err != nil {
		return done, err
	}
	done = func() { _ = os.Remove(keep) } // a .keep too many only holds off a repack
	for _, ext := range []string{".pack", ".rev", ".idx"} {
		src := filepath.Join(from, name+ext)
		if ext == ".rev" && !exists(src) {
			continue
		}
		if err := moveFile(src, filepath.Join(to, name+ext)); err != nil {
			return done, err
		}
	}
	return done, nil
}

// moveFile renames a file, or copies it if the target is on another file system.
func moveFile(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, syscall.EXDEV) {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.CreateTemp(filepath.Dir(to), "tmp_pack_")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(dst.Name()) }() // gone when renamed
	_, err = io.Copy(dst, src)
	if err == nil {
		err = dst.Sync()
	}
	if closeErr := dst.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Chmod(dst.Name(), 0o444)
	}
	if err != nil {
		return err
	}
	return os.Rename(dst.Name(), to)
}

// countReader counts what was read.
type countReader struct {
	r io.Reader
	n int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
