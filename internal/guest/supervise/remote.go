package supervise

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/editdistance"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// remote clones the repository of a job by its URL, if the job brings none along. No
// credential is in this sprite. git asks for the URL as it is; the sprite's /etc/gitconfig
// leads it through a connector, if there is one.
type remote struct {
	folder folder
	spec   *cove.JobSpec
	repo   *repository
	log    *journal
}

// clone makes the clone, and records what the job begins with. A later supervisor reads that
// from the JobSpec, and the server from the log.
func (r *remote) clone(ctx context.Context) (stepEnd, error) {
	heads, err := r.heads(ctx)
	if err != nil {
		return stepEnd{}, err
	}
	branch, id, err := heads.choose(r.spec.Branch)
	if err != nil {
		return stepEnd{}, fmt.Errorf("%s: %w", r.spec.Remote, err)
	}
	if err := os.MkdirAll(r.spec.Workdir, 0o755); err != nil {
		return stepEnd{}, err
	}
	git, ref := r.repo.git, "refs/heads/"+branch
	fetch := []string{"fetch", "-q", "--update-head-ok"}
	if r.spec.Depth > 0 {
		fetch = append(fetch, fmt.Sprintf("--depth=%d", r.spec.Depth))
	}
	err = git.each(ctx, [][]string{
		initArgs(id),
		{"symbolic-ref", "HEAD", ref},
		{"config", "user.name", r.spec.Author.Name},
		{"config", "user.email", r.spec.Author.Email},
		{"remote", "add", "--", "origin", r.spec.Remote},
		append(fetch, "origin", ref+":"+ref, ref+":refs/remotes/origin/"+branch),
	})
	if err != nil {
		return stepEnd{}, fmt.Errorf("clone %s of %s: %w", branch, r.spec.Remote, err)
	}
	cloned := cove.JobCloned{Branch: branch}
	if cloned.Base, err = git.run(ctx, "rev-parse", "--verify", "HEAD^{commit}"); err != nil {
		return stepEnd{}, err
	}
	if cloned.Shallow, err = r.cuts(ctx); err != nil {
		return stepEnd{}, err
	}
	if len(cloned.Shallow) == 0 {
		if cloned.RepoID, err = r.id(ctx); err != nil {
			return stepEnd{}, err
		}
	}
	if err := r.note(cloned); err != nil {
		return stepEnd{}, err
	}
	if err := r.repo.large.checkout(ctx, r.spec.Workdir, "reset", "-q", "--hard"); err != nil {
		return stepEnd{}, err
	}
	lacks, err := r.lacks(ctx, cloned)
	return stepEnd{detail: fmt.Sprintf("%.12s of %s of %s", cloned.Base, branch, r.spec.Remote), warning: lacks}, err
}

// note records the clone as what the job begins with.
func (r *remote) note(cloned cove.JobCloned) error {
	r.spec.Branch, r.spec.Base, r.spec.Shallow = cloned.Branch, cloned.Base, cloned.Shallow
	r.repo.store.base, r.repo.modules.base, r.repo.modules.shallow = cloned.Base, cloned.Base, cloned.Shallow
	doc, err := json.Marshal(r.spec)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(r.folder.file("job.json"), doc, 0o600); err != nil {
		return err
	}
	r.log.add(cove.JobEvent{Type: "cloned", Cloned: &cloned})
	return nil
}

// cuts are the commits at which the clone's history is cut off.
func (r *remote) cuts(ctx context.Context) ([]string, error) {
	gitDir, err := r.repo.git.run(ctx, "rev-parse", "--absolute-git-dir")
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(gitDir, "shallow"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}

// id is the id of a repository with its whole history, as gitwork makes it: a digest of its
// root commits.
func (r *remote) id(ctx context.Context) (string, error) {
	roots, err := r.repo.git.run(ctx, "rev-list", "--max-parents=0", "HEAD")
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(strings.Fields(roots))), "\n")))
	return hex.EncodeToString(sum[:]), err
}

// maxLacking is how many of the incomplete paths are named.
const maxLacking = 5

// lacks says which parts of the repository the clone lacks; empty: none.
func (r *remote) lacks(ctx context.Context, cloned cove.JobCloned) (string, error) {
	var lacks []string
	if len(cloned.Shallow) > 0 {
		lacks = append(lacks, "its history is cut off after "+printable.Count(max(r.spec.Depth, 1), "commit"))
	}
	links, err := r.repo.git.links(ctx, r.spec.Workdir, cloned.Base)
	if err != nil {
		return "", err
	}
	var modules []string
	for path := range links {
		modules = append(modules, path)
	}
	if slices.Sort(modules); len(modules) > 0 {
		lacks = append(lacks, "submodules are not cloned: "+some(modules))
	}
	large, err := r.repo.git.run(ctx, "ls-files", "-z", ":(attr:filter=lfs)")
	if err != nil {
		return "", err
	}
	if large = strings.Trim(large, "\x00"); large != "" {
		lacks = append(lacks, "content of Git LFS is not fetched, and these are pointers: "+some(strings.Split(large, "\x00")))
	}
	return strings.Join(lacks, "; "), nil
}

// some names a few paths.
func some(paths []string) string {
	text := strings.Join(paths[:min(len(paths), maxLacking)], ", ")
	if n := len(paths) - maxLacking; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// heads are the branches of a remote repository.
type heads struct {
	main string            // its default; empty: it does not say
	ids  map[string]string // commits by name
}

// heads asks which branches there are.
func (r *remote) heads(ctx context.Context) (heads, error) {
	h := heads{ids: map[string]string{}}
	out, err := r.repo.git.in(ctx, r.folder.file("."), call{}, "ls-remote", "--symref", "--", r.spec.Remote, "HEAD", "refs/heads/*")
	if err != nil {
		return h, fmt.Errorf("the repository %s can't be read: %w", r.spec.Remote, err)
	}
	head := ""
	for line := range strings.Lines(out) {
		what, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if to, ok := strings.CutPrefix(what, "ref: refs/heads/"); ok && name == "HEAD" {
			h.main = to
		} else if name == "HEAD" {
			head = what
		} else if branch, ok := strings.CutPrefix(name, "refs/heads/"); ok {
			h.ids[branch] = what
		}
	}
	if h.main == "" { // an old server tells the commit only
		for _, name := range []string{"main", "master"} {
			if head != "" && h.ids[name] == head {
				h.main = name
				break
			}
		}
	}
	return h, nil
}

// choose finds a branch and its commit; without a name the default one.
func (h heads) choose(name string) (branch, id string, err error) {
	branch = cmp.Or(name, h.main)
	id = h.ids[branch]
	switch {
	case len(h.ids) == 0:
		return "", "", errors.New("the repository is empty: it has no branch to begin with")
	case branch == "":
		return "", "", fmt.Errorf("the repository does not say which branch is its default; name one: %s", some(slices.Sorted(maps.Keys(h.ids))))
	case id == "" && name == "":
		return "", "", fmt.Errorf("the repository's default branch %q is not there; name one: %s", branch, some(slices.Sorted(maps.Keys(h.ids))))
	case id == "":
		err = fmt.Errorf("there is no branch %q", name)
		if like := h.near(name); len(like) > 0 {
			err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, ", "))
		}
		return "", "", err
	}
	return branch, id, nil
}

// Bounds on the search for similar names.
const (
	maxCompared = 10_000
	maxNear     = 5
)

// near returns the branches with names most similar to a missing one.
func (h heads) near(name string) []string {
	type like struct {
		name string
		far  int
	}
	var all []like
	low := strings.ToLower(name)
	for _, other := range slices.Sorted(maps.Keys(h.ids))[:min(len(h.ids), maxCompared)] {
		o := strings.ToLower(other)
		far := editdistance.Of(low, o)
		if strings.Contains(o, low) || strings.Contains(low, o) {
			far = min(far, 1)
		}
		if far <= max(2, len(name)/3) {
			all = append(all, like{other, far})
		}
	}
	slices.SortStableFunc(all, func(a, b like) int { return cmp.Compare(a.far, b.far) })
	var names []string
	for _, l := range all[:min(len(all), maxNear)] {
		names = append(names, l.name)
	}
	return names
}
