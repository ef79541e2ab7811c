package gitwork

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// networkTime bounds a transfer to or from another machine.
const networkTime = 30 * time.Minute

// Publish pushes a job's commits to the server of its repository, as a new branch, if Pull
// would move a branch to them without asking. It imports the bundle under the same checks, and
// judges the same files. It works in dir, which is empty, and should run in a sprite of its
// own, where no program of the job has run. The verdict says what is wrong with the work.
func Publish(ctx context.Context, dir string, o cove.PublishOrder) (v cove.PublishVerdict, err error) {
	repo, err := fetchBase(ctx, dir, o)
	if err != nil {
		return v, err
	}
	if at, err := repo.Resolve(ctx, o.Base); err != nil || at != o.Base {
		v.Refused = fmt.Sprintf("the branch %s does not have the commit %.12s any more, which the job began with", printable.Name(o.Branch), o.Base)
		return v, err
	}
	file, err := os.Open(o.Bundle)
	if err != nil {
		return v, err
	}
	defer func() { _ = file.Close() }()
	lock, err := repo.Lock(ctx)
	if err != nil {
		return v, err
	}
	defer lock.Unlock()
	err = repo.Import(ctx, file, Expect{Job: o.Job, Base: o.Base, Head: o.Head, Leftover: o.Leftover, SHA256: o.SHA256, Size: o.Size})
	if rejected, ok := errors.AsType[*RejectedError](err); ok {
		v.Refused = rejected.Error()
		return v, nil
	}
	if err != nil {
		return v, err
	}
	sum, err := repo.Summary(ctx, o.Base, o.Head)
	if err != nil {
		return v, err
	}
	for _, r := range sum.Risky {
		v.Risky = append(v.Risky, cove.RiskyFile{Path: r.Path, Why: r.Why})
	}
	if len(v.Risky) > 0 {
		return v, nil
	}
	v.Refused, err = pushNew(ctx, repo, o)
	v.Pushed = err == nil && v.Refused == ""
	return v, err
}

// overHTTP has git reach another machine by HTTP, and by nothing else.
func overHTTP(ctx context.Context, g runner, args ...string) (string, error) {
	out, err := g.run(ctx, call{args: append([]string{"-c", "protocol.http.allow=always", "-c", "http.followRedirects=initial"}, args...), timeout: networkTime})
	return strings.TrimSpace(string(out)), err
}

// fetchBase makes a bare repository of the branch that a job began with.
func fetchBase(ctx context.Context, dir string, o cove.PublishOrder) (*Repo, error) {
	exe, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	args := []string{"init", "-q", "--bare", "--template="}
	if len(o.Base) == 64 {
		args = append(args, "--object-format=sha256")
	}
	g := runner{exe: exe, dir: dir}
	if _, err := g.text(ctx, append(args, "repository")...); err != nil {
		return nil, err
	}
	repo, err := Open(ctx, filepath.Join(dir, "repository"))
	if err != nil {
		return nil, err
	}
	_, err = overHTTP(ctx, repo.git, "fetch", "-q", "--no-tags", "--", o.URL, "+refs/heads/"+o.Branch+":refs/cove/upstream")
	if err != nil {
		return nil, fmt.Errorf("fetch the branch %s: %w", printable.Name(o.Branch), err)
	}
	return repo, nil
}

// pushNew pushes a job's head as a branch that is not there, or is there with that commit
// already. It says why another one of that name is in the way.
func pushNew(ctx context.Context, repo *Repo, o cove.PublishOrder) (refused string, err error) {
	ref := "refs/heads/" + o.To
	there, err := overHTTP(ctx, repo.git, "ls-remote", "--", o.URL, ref)
	if err != nil {
		return "", fmt.Errorf("look for the branch %s: %w", o.To, err)
	}
	if id, _, _ := strings.Cut(there, "\t"); id == o.Head {
		return "", nil // an earlier try has pushed it
	} else if id != "" {
		return "there is a branch " + o.To + " already, at another commit", nil
	}
	if _, err := overHTTP(ctx, repo.git, "push", "-q", "--force-with-lease="+ref+":", "--", o.URL, o.Head+":"+ref); err != nil {
		return "", fmt.Errorf("push the branch %s: %w", o.To, err)
	}
	return "", nil
}
