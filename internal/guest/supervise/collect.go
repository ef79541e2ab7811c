package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cove-dev/cove"
)

// collectLimit bounds the collecting of one job's work, unless its JobSpec says otherwise.
const collectLimit = 10 * time.Minute

// leftoverMessage is that of the commit of what an agent did not commit.
const leftoverMessage = "Left uncommitted by the agent"

// collect bundles what the agent committed, and as a commit of its own what it
// did not. What can't be taken does not keep back the rest, and is an error at the end. A
// git that hangs is killed: half of the time is for what was not committed, a quarter for
// submodules, and the rest for the commits.
func (j *job) collect(end *cove.JobEnd) error {
	limit := cmp.Or(time.Duration(j.spec.CollectSec)*time.Second, collectLimit)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer func() {
		if ctx.Err() != nil {
			killMarked(j.folder.mark())
		}
	}()
	j.clear()
	j.missed, j.unsent = nil, nil
	head, err := j.repo.git.run(ctx, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return fmt.Errorf("the repository %s can't be read: %w", j.spec.Workdir, err)
	}
	count, err := j.repo.git.run(ctx, "rev-list", "--count", j.spec.Base+"..HEAD")
	if err != nil {
		return fmt.Errorf("the commits in %s can't be read: %w", j.spec.Workdir, err)
	}
	commits, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("count the commits: %w", err)
	}
	modules, err := j.repo.modules.list()
	if err != nil {
		return err
	}
	uncommitted, done := context.WithTimeout(ctx, limit/2)
	leftover, err := j.leftover(uncommitted, "", head, modules)
	if uncommitted.Err() != nil {
		killMarked(j.folder.mark())
	}
	done()
	if err != nil {
		j.missed, leftover = append(j.missed, fmt.Errorf("uncommitted changes can't be read: %w", err)), ""
	}
	end.Commits, end.Leftover = commits, leftover
	if commits > 0 {
		end.Head = head
	}
	refs := map[string]string{}
	below, done := context.WithTimeout(ctx, limit/4)
	defer done()
	for name, commit := range map[string]string{"head": end.Head, "leftover": leftover} {
		if commit == "" {
			continue
		}
		refs[j.ref(name)] = commit
		if _, err := j.repo.git.run(ctx, "update-ref", j.ref(name), commit); err != nil {
			return err
		}
		if err := j.gather(below, "", commit, modules, refs); err != nil {
			j.missed = append(j.missed, fmt.Errorf("submodules can't be read: %w", err))
		}
	}
	if len(refs) == 0 {
		return errors.Join(j.missed...)
	}
	if err := j.repo.large.send(); err != nil {
		j.log.notice("large files: " + err.Error()) // the commits come all the same
	}
	end.Bundle, err = j.bundle(ctx, modules, slices.Sorted(maps.Keys(refs)))
	if err != nil {
		err = fmt.Errorf("the commits in %s can't be bundled: %w", j.spec.Workdir, err)
	} else if end.Head != "" {
		j.repo.store.remember(ctx, end.Head)
	}
	return errors.Join(append(j.missed, err)...)
}

// bundle writes the bundle with the refs, from what the job started with on.
func (j *job) bundle(ctx context.Context, modules []module, refs []string) (cove.Artifact, error) {
	out := j.bundleFile()
	args := []string{"bundle", "create", "-q", out + ".new", "^" + j.spec.Base}
	for _, m := range modules {
		args = append(args, "^"+m.Commit)
	}
	if _, err := j.repo.git.run(ctx, append(args, refs...)...); err != nil {
		return cove.Artifact{}, err
	}
	sum, size, err := digest(out + ".new")
	if err != nil {
		return cove.Artifact{}, err
	}
	if err := syncFile(out + ".new"); err != nil {
		return cove.Artifact{}, err
	}
	return cove.Artifact{Path: out, Size: size, SHA256: sum}, os.Rename(out+".new", out)
}

func (j *job) ref(name string) string { return "refs/cove/" + j.spec.ID + "/" + name }
func (j *job) bundleFile() string     { return j.folder.file("out.bundle") }
func (j *job) indexFile() string      { return j.folder.file("index") }

// clear removes what a supervisor that died while it collected has left: git
// takes its own locks for those of a git at work.
func (j *job) clear() {
	refs := filepath.Join(j.spec.Workdir, ".git")
	for _, name := range []string{
		j.indexFile(), j.indexFile() + ".lock",
		j.bundleFile() + ".new", j.bundleFile() + ".new.lock",
		filepath.Join(refs, j.ref("head")+".lock"), filepath.Join(refs, j.ref("leftover")+".lock"),
	} {
		_ = os.Remove(name) // not there, as a rule
	}
}

// leftover commits what is not committed in the work folder, or in the submodule
// at path, and in the submodules inside of that, through an index of its own. It
// returns the commit, or nothing if all is committed.
func (j *job) leftover(ctx context.Context, path, head string, modules []module) (string, error) {
	dir := filepath.Join(j.spec.Workdir, path)
	index := j.indexFile()
	defer os.Remove(index)
	in := call{env: []string{"GIT_INDEX_FILE=" + index}}
	var inside []string
	for _, m := range directly(modules, path) {
		commit, err := j.leftoverIn(ctx, m, modules)
		if err != nil {
			j.missed = append(j.missed, fmt.Errorf("in the submodule %s: %w", m.Path, err))
		}
		if commit != "" {
			inside = append(inside, "160000,"+commit+","+m.below(path))
		}
	}
	if _, err := j.repo.git.in(ctx, dir, in, "read-tree", head); err != nil {
		return "", err
	}
	if err := j.addAll(ctx, dir, in); err != nil {
		return "", err
	}
	for _, entry := range inside {
		if _, err := j.repo.git.in(ctx, dir, in, "update-index", "--cacheinfo", entry); err != nil {
			return "", err
		}
	}
	tree, err := j.repo.git.in(ctx, dir, in, "write-tree")
	if err != nil {
		return "", err
	}
	committed, err := j.repo.git.in(ctx, dir, call{}, "rev-parse", head+"^{tree}")
	if err != nil || tree == committed {
		return "", err
	}
	return j.repo.git.in(ctx, dir, call{}, "commit-tree", "-p", head, "-m", leftoverMessage, tree)
}

// addAll takes all that is not ignored into an index. What git can't take, such as a
// repository that has no commit, is noted and left out.
func (j *job) addAll(ctx context.Context, dir string, in call) error {
	_, err := j.repo.git.in(ctx, dir, in, "add", "--all")
	if err == nil {
		return nil
	}
	_, err = j.repo.git.in(ctx, dir, in, "add", "--all", "--ignore-errors")
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		return err // nil, or nothing was written
	}
	j.missed = append(j.missed, err)
	return nil
}

// leftoverIn is leftover for a submodule. One that the agent has taken apart has
// nothing that could be told from its leavings.
func (j *job) leftoverIn(ctx context.Context, m module, modules []module) (string, error) {
	if !j.repo.git.present(m.Path) {
		return "", nil
	}
	head, err := j.repo.git.in(ctx, filepath.Join(j.spec.Workdir, m.Path), call{}, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return "", nil
	}
	return j.leftover(ctx, m.Path, head, modules)
}

// gather brings the commits that submodules are at in a commit's tree into the work
// folder's repository, under refs that are added to refs.
func (j *job) gather(ctx context.Context, path, commit string, modules []module, refs map[string]string) error {
	inside := directly(modules, path)
	links, err := j.repo.git.links(ctx, filepath.Join(j.spec.Workdir, path), commit)
	if err != nil {
		return err
	}
	for _, m := range inside {
		at := links[m.below(path)]
		delete(links, m.below(path))
		if at == "" || at == m.Commit || !j.repo.git.present(m.Path) {
			continue
		}
		dir, ref := filepath.Join(j.spec.Workdir, m.Path), j.ref("sub/"+at)
		if _, err := j.repo.git.in(ctx, dir, call{}, "cat-file", "-e", at+"^{commit}"); err != nil {
			continue // nobody knows it
		}
		if _, err := j.repo.git.in(ctx, dir, call{}, "update-ref", ref, at); err != nil {
			return err
		}
		if _, err := j.repo.git.run(ctx, "fetch", "-q", "--no-tags", "--update-shallow", dir, ref+":"+ref); err != nil {
			return err
		}
		refs[ref] = at
		if err := j.gather(ctx, m.Path, at, modules, refs); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if at := filepath.Join(path, name); j.isAlone(ctx, at, links[name], modules) && !slices.Contains(j.unsent, at) {
			j.unsent = append(j.unsent, at)
		}
	}
	return nil
}

// isAlone reports whether the commit of a repository that the job did not begin with is
// in this sprite alone, as far as can be told: no submodule was sent at it, and none of the
// repository's remotes has it.
func (j *job) isAlone(ctx context.Context, path, commit string, modules []module) bool {
	if slices.ContainsFunc(modules, func(m module) bool { return m.Commit == commit }) || !j.repo.git.present(path) {
		return false
	}
	out, err := j.repo.git.in(ctx, filepath.Join(j.spec.Workdir, path), call{}, "for-each-ref", "--count=1", "--contains="+commit, "refs/remotes")
	return err == nil && out == ""
}

func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
