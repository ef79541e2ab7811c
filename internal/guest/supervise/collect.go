package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cove-dev/cove"
)

// collectLimit bounds the collecting of one job's work, unless its JobSpec says otherwise.
const collectLimit = 10 * time.Minute

// collector collects once what a job's agent left in the repository.
type collector struct {
	folder folder
	spec   *cove.JobSpec
	repo   *repository
	log    *journal

	missed []error  // why something of what the agent left can't be collected
	unsent []string // as gatherer's
}

// collect bundles the agent's commits, and a commit of its own with the uncommitted changes.
// If it can't take something, it still takes the rest, and returns an error at the end. It
// kills a git that hangs. Half of the time is for uncommitted changes, a quarter for
// submodules, and the rest for the commits.
func (c *collector) collect(end *cove.JobEnd) error {
	limit := cmp.Or(time.Duration(c.spec.CollectSec)*time.Second, collectLimit)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	defer func() {
		if ctx.Err() != nil {
			killMarked(c.folder.mark())
		}
	}()
	c.clear()
	head, err := c.repo.git.run(ctx, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return fmt.Errorf("the repository %s can't be read: %w", c.spec.Workdir, err)
	}
	count, err := c.repo.git.run(ctx, "rev-list", "--count", c.spec.Base+"..HEAD")
	if err != nil {
		return fmt.Errorf("the commits in %s can't be read: %w", c.spec.Workdir, err)
	}
	commits, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("count the commits: %w", err)
	}
	modules, err := c.repo.modules.list()
	if err != nil {
		return err
	}
	uncommitted, done := context.WithTimeout(ctx, limit/2)
	leftovers := &leftovers{git: c.repo.git, index: c.indexFile(), modules: modules}
	leftover, err := leftovers.commit(uncommitted, "", head)
	if uncommitted.Err() != nil {
		killMarked(c.folder.mark())
	}
	done()
	c.missed = append(c.missed, leftovers.missed...)
	if err != nil {
		c.missed, leftover = append(c.missed, fmt.Errorf("uncommitted changes can't be read: %w", err)), ""
	}
	end.Commits, end.Leftover = commits, leftover
	if commits > 0 {
		end.Head = head
	}
	refs := map[string]string{}
	gatherer := &gatherer{git: c.repo.git, id: c.spec.ID, modules: modules, refs: refs}
	below, done := context.WithTimeout(ctx, limit/4)
	defer done()
	for name, commit := range map[string]string{"head": end.Head, "leftover": leftover} {
		if commit == "" {
			continue
		}
		ref := ref(c.spec.ID, name)
		refs[ref] = commit
		if _, err := c.repo.git.run(ctx, "update-ref", ref, commit); err != nil {
			return err
		}
		if err := gatherer.gather(below, "", commit); err != nil {
			c.missed = append(c.missed, fmt.Errorf("submodules can't be read: %w", err))
		}
	}
	c.unsent = gatherer.unsent
	if len(refs) == 0 {
		return errors.Join(c.missed...)
	}
	if err := c.repo.large.send(); err != nil {
		c.log.notice("large files: " + err.Error()) // the commits come all the same
	}
	end.Bundle, err = c.bundle(ctx, modules, slices.Sorted(maps.Keys(refs)))
	if err != nil {
		err = fmt.Errorf("the commits in %s can't be bundled: %w", c.spec.Workdir, err)
	} else if end.Head != "" {
		c.repo.store.remember(ctx, end.Head)
	}
	return errors.Join(append(c.missed, err)...)
}

// bundle writes the bundle with the refs, from what the job started with on.
func (c *collector) bundle(ctx context.Context, modules []module, refs []string) (cove.Artifact, error) {
	out := c.bundleFile()
	args := []string{"bundle", "create", "-q", out + ".new", "^" + c.spec.Base}
	for _, m := range modules {
		args = append(args, "^"+m.Commit)
	}
	if _, err := c.repo.git.run(ctx, append(args, refs...)...); err != nil {
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

// ref is a ref of the supervisor's own to a commit of a job's work.
func ref(id, name string) string { return "refs/cove/" + id + "/" + name }

func (c *collector) bundleFile() string { return c.folder.file("out.bundle") }
func (c *collector) indexFile() string  { return c.folder.file("index") }

// clear removes the files that a supervisor left when it died during a collection. git would
// take its locks for those of a running git.
func (c *collector) clear() {
	refs := filepath.Join(c.spec.Workdir, ".git")
	for _, name := range []string{
		c.indexFile(), c.indexFile() + ".lock",
		c.bundleFile() + ".new", c.bundleFile() + ".new.lock",
		filepath.Join(refs, ref(c.spec.ID, "head")+".lock"), filepath.Join(refs, ref(c.spec.ID, "leftover")+".lock"),
	} {
		_ = os.Remove(name) // not there, as a rule
	}
}

func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
