package gitwork

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// BaseRef is the ref of a bundle that goes to a job which holds the commit that
// the job starts from.
const BaseRef = "refs/cove/base"

// maxHave bounds how many of the commits that a sprite claims to have are checked.
const maxHave = 200

// Outgoing says what goes to a job. Base is required.
type Outgoing struct {
	Base    string
	Shallow []string // from Cut: where the history is cut off
	Have    []string // commits that are there already, with their history; what is not here does not count
	Modules []Module // submodules that go along

	// Progress, which may be nil, is called with the progress of each stage: "count" and
	// "compress" in objects, "bundle" in bytes. A total of 0 means that it is not known.
	Progress func(stage string, done, total int64)
}

// Bundle describes a bundle that has been written.
type Bundle struct {
	SHA256 string
	Size   int64
}

// Bundle writes the history of a commit as a bundle with the ref refs/cove/base, and
// a ref for each submodule (cove.ModuleRef). It leaves out the commits that the other
// side has; if it has all, the bundle has no objects. No ref appears in the
// repository. If the clone lacks objects, the error is ErrPartial.
func (r *Repo) Bundle(ctx context.Context, w io.Writer, out Outgoing) (Bundle, error) {
	s, err := r.scratch(ctx, out.Modules...)
	if err != nil {
		return Bundle{}, err
	}
	defer s.remove()
	if err := s.cutAt(out.Shallow); err != nil {
		return Bundle{}, err
	}
	have, err := s.present(ctx, out.Have)
	if err != nil {
		return Bundle{}, fmt.Errorf("write bundle: %w", err)
	}
	header, tips, err := s.header(ctx, r.format, out, have)
	if err != nil {
		return Bundle{}, fmt.Errorf("write bundle: %w", err)
	}
	m := &meter{w: w, sum: sha256.New()}
	if _, err := io.WriteString(m, header); err != nil {
		return Bundle{}, fmt.Errorf("write bundle: %w", err)
	}
	m.progress = out.Progress
	args := []string{"pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q"}
	if out.Progress != nil {
		args[len(args)-1] = "--progress"
	}
	_, err = s.git.run(ctx, call{args: args, stdin: revisions(tips, have), stdout: m, progress: out.Progress, timeout: patiently})
	if err != nil && r.partial() && ctx.Err() == nil && exitCode(err) > 0 {
		return Bundle{}, &fail.Error{Code: ErrPartial.Code, Message: "this is a partial clone, and objects of its history are not here",
			Hint: "send the last commit alone: --depth 1; or get the rest: git fetch --refetch --no-filter"}
	}
	if err != nil {
		return Bundle{}, fmt.Errorf("write bundle: %w", err)
	}
	return Bundle{SHA256: hex.EncodeToString(m.sum.Sum(nil)), Size: m.n}, nil
}

// Count is how many commits a bundle has, of the repository and of submodules.
func (r *Repo) Count(ctx context.Context, out Outgoing) (int, error) {
	s, err := r.scratch(ctx, out.Modules...)
	if err != nil {
		return 0, err
	}
	defer s.remove()
	if err := s.cutAt(out.Shallow); err != nil {
		return 0, err
	}
	have, err := s.present(ctx, out.Have)
	if err != nil {
		return 0, fmt.Errorf("count commits: %w", err)
	}
	tips := []string{out.Base}
	for _, m := range out.Modules {
		tips = append(tips, m.Commit)
	}
	text, err := s.git.run(ctx, call{args: []string{"rev-list", "--count", "--stdin"}, stdin: revisions(tips, have), timeout: patiently})
	if err != nil {
		return 0, fmt.Errorf("count commits: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// revisions is the input of a git that walks from some commits but not from others.
func revisions(tips, not []string) io.Reader {
	var b strings.Builder
	for _, id := range tips {
		b.WriteString(id + "\n")
	}
	for _, id := range not {
		b.WriteString("^" + id + "\n")
	}
	return strings.NewReader(b.String())
}

// present keeps those of the names that are commits here, and bounds them.
func (s *scratch) present(ctx context.Context, names []string) ([]string, error) {
	var ask strings.Builder
	for _, name := range names[max(0, len(names)-maxHave):] {
		if isObjectName(name, "sha1") || isObjectName(name, "sha256") {
			ask.WriteString(name + "\n")
		}
	}
	if ask.Len() == 0 {
		return nil, nil
	}
	out, err := s.git.run(ctx, call{args: []string{"cat-file", "--batch-check=%(objecttype) %(objectname)"}, stdin: strings.NewReader(ask.String())})
	var have []string
	for line := range strings.Lines(string(out)) {
		if id, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "commit "); ok && !slices.Contains(have, id) {
			have = append(have, id)
		}
	}
	return have, err
}

// header is the bundle's, up to the pack (gitformat-bundle), with the commits that
// its refs are at.
func (s *scratch) header(ctx context.Context, format string, out Outgoing, have []string) (text string, tips []string, err error) {
	var b strings.Builder
	b.WriteString("# v2 git bundle\n")
	if format != "sha1" {
		b.Reset()
		b.WriteString("# v3 git bundle\n@object-format=" + format + "\n")
	}
	tips = []string{out.Base}
	for _, m := range out.Modules {
		if !slices.Contains(tips, m.Commit) {
			tips = append(tips, m.Commit)
		}
	}
	if len(have) > 0 {
		needs, err := s.git.run(ctx, call{args: []string{"rev-list", "--boundary", "--stdin"}, stdin: revisions(tips, have), timeout: patiently})
		if err != nil {
			return "", nil, err
		}
		for line := range strings.Lines(string(needs)) {
			if strings.HasPrefix(line, "-") {
				b.WriteString(line)
			}
		}
	}
	for i, tip := range tips {
		ref := BaseRef
		if i > 0 {
			ref = cove.ModuleRef + tip
		}
		b.WriteString(tip + " " + ref + "\n")
	}
	return b.String() + "\n", tips, nil
}

// partial reports whether the clone is partial: a remote has promised the missing objects.
func (r *Repo) partial() bool {
	if r.config.values["extensions.partialclone"] != "" {
		return true
	}
	for key, value := range r.config.values {
		if _, ok := driver(key, "remote."); ok && strings.HasSuffix(key, ".promisor") && value == "true" {
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
	progress func(string, int64, int64)
}

func (m *meter) Write(p []byte) (int, error) {
	n, err := m.w.Write(p)
	m.n += int64(n)
	m.sum.Write(p[:n])
	if m.progress != nil {
		m.progress("bundle", m.n, 0)
	}
	return n, err
}

// packProgress reads the progress lines of pack-objects, and passes all other lines on.
type packProgress struct {
	tell func(stage string, done, total int64)
	rest io.Writer
	line []byte
}

// progressLine is "Counting objects:  45% (450/1000)" or "Enumerating objects: 450, done."
var progressLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Z][a-z]+) objects: +(?:\d+% \((\d+)/(\d+)\)|(\d+))`)
})

func (p *packProgress) Write(text []byte) (int, error) {
	for _, c := range text {
		if c == '\r' || c == '\n' {
			if err := p.end(); err != nil {
				return 0, err
			}
			p.line = p.line[:0]
		} else if len(p.line) < maxStderr {
			p.line = append(p.line, c)
		}
	}
	return len(text), nil
}

func (p *packProgress) end() error {
	m := progressLine().FindSubmatch(p.line)
	if m == nil {
		_, err := p.rest.Write(append(p.line, '\n'))
		return err
	}
	// A number that is missing or can't be parsed is 0: not known.
	done, _ := strconv.ParseInt(string(m[2])+string(m[4]), 10, 64)
	total, _ := strconv.ParseInt(string(m[3]), 10, 64)
	switch string(m[1]) {
	case "Enumerating", "Counting":
		p.tell("count", done, total)
	case "Compressing":
		p.tell("compress", done, total)
	}
	return nil
}
