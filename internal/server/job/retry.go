package job

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// finished is a job that has ended. The caller holds its lock, so that nobody deletes it.
func finished(ctx context.Context, jobs *store.Jobs, id string) (cove.Job, error) {
	job, err := jobs.Get(ctx, id)
	if err == nil && !job.State.Terminal() {
		err = fail.Newf("job_running", "stop it with: cove job stop "+id, "job %s has not ended (%s)", id, job.State)
	}
	return job, err
}

// Retry begins a job that has ended anew: the same plan on the same commit with
// the same settings, as another job. A job that clones a URL begins with the branch's present
// commit. The repository of any other comes from its sprite, and must have the digest in the
// store.
func (m *Manager) Retry(ctx context.Context, id string, how cove.JobRetry) (cove.Job, error) {
	return m.once(ctx, store.JobKey{Key: how.Key, By: how.By, Digest: how.Digest}, func() (cove.Job, error) { return m.retry(ctx, id, how) })
}

func (m *Manager) retry(ctx context.Context, id string, how cove.JobRetry) (cove.Job, error) {
	unlock, err := m.preparations.lockJob(ctx, id)
	if err != nil {
		return cove.Job{}, err
	}
	defer unlock()
	old, err := finished(ctx, m.Store.Jobs, id)
	if err != nil {
		return old, err
	}
	if old.ResumeOf != "" {
		return old, fail.Newf("not_kept", "resume it: cove job resume "+id+" MESSAGE", "job %s resumed the session of job %s, and can't be retried", id, old.ResumeOf)
	}
	if err := kept(ctx, m.Client, old); err != nil {
		return old, err
	}
	req, err := settingsOf(ctx, m.Store.Jobs, id)
	if err != nil {
		return old, err
	}
	req = how.Of(req)
	if how.SameSprite {
		// An existing sprite keeps its settings.
		req.Sprite, req.Config, req.Include, req.Remove, req.NetworkPolicy = old.Sprite, nil, nil, false, nil
	}
	waits, err := m.preparer.turns.limited(ctx, req)
	if err != nil {
		return old, err
	}
	req.By, req.Key, req.Digest = how.By, how.Key, how.Digest
	req.Early, req.Begin = how.Early || waits, false // nobody waits for a turn with the old job's lock
	job, err := m.createAs(ctx, req, id)
	if err != nil || job.State == cove.JobInstalling { // its preparation starts it
		return job, err
	}
	if err := m.again(ctx, old, job); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		return job, errors.Join(fmt.Errorf("retry job %s: %w", id, err), m.Delete(undo, job.ID, true))
	}
	return m.Store.Jobs.Get(ctx, job.ID)
}

// kept returns an error if the bundle that a job began from is gone. A job with a URL needs
// none.
func kept(ctx context.Context, client *cove.Client, job cove.Job) error {
	if job.URL != "" {
		return nil // it is cloned again
	}
	if job.Input.Size == 0 {
		return fail.Newf("not_kept", "push it again", "job %s ended before it had its repository", job.ID)
	}
	info, err := spriteOf(client, job).Stat(ctx, job.Input.Path)
	if errors.Is(err, sprites.ErrNotFound) || err == nil && info.Size() != job.Input.Size {
		return fail.Newf("not_kept", "push it again", "the repository that job %s was given is not in sprite %s any more", job.ID, job.Sprite)
	}
	return err
}

// again gives a new job what the old one began from, and starts it.
func (m *Manager) again(ctx context.Context, old, job cove.Job) error {
	start, err := carryAll(ctx, m.Client, old, job)
	if err == nil {
		_, err = m.Start(ctx, job.ID, start)
	}
	return err
}

// carryAll gives a new job what the old one began from.
func carryAll(ctx context.Context, client *cove.Client, old, job cove.Job) (start cove.JobStart, err error) {
	if old.URL != "" {
		return cove.JobStart{}, nil // the sprite clones it again
	}
	from, to := spriteOf(client, old), spriteOf(client, job)
	if err := carry(ctx, from, file{old.Input.Path, old.Input.Size, old.Input.SHA256}, to, job.Upload); err != nil {
		return start, err
	}
	large := path.Join(path.Dir(old.Input.Path), cove.LargeFilesIn)
	entries, err := from.ReadDir(ctx, large)
	if err != nil && !errors.Is(err, sprites.ErrNotFound) {
		return start, err
	}
	room := old.LargeBytes
	for _, e := range entries {
		if name := e.Name(); sha256ID().MatchString(name) {
			info, err := e.Info()
			if err != nil {
				return start, err
			}
			f := file{name: path.Join(large, name), size: info.Size(), sha256: name}
			if room -= f.size; room < 0 {
				return start, notSent(old, f)
			}
			if err := carry(ctx, from, f, to, path.Join(path.Dir(job.Upload), cove.LargeFilesIn, name)); err != nil {
				return start, err
			}
		}
	}
	return cove.JobStart{BundleSHA256: old.Input.SHA256, BundleSize: old.Input.Size, LargeBytes: old.LargeBytes, Shallow: old.Shallow}, nil
}

// notSent is the error if a job's sprite has more large files than were sent for it. A job
// that an older cove pushed does not say how many those were.
func notSent(old cove.Job, f file) error {
	return fail.Newf("not_kept", "push it again", "sprite %s has large files (%s) for job %s beyond the %d bytes that its push said it sends", old.Sprite, path.Base(f.name), old.ID, old.LargeBytes)
}

// file is one in a sprite, as it was sent.
type file struct {
	name   string
	size   int64
	sha256 string
}

// carry copies a file from one sprite to another. The source sprite may have changed the file,
// so carry takes only what was sent: by its length and its digest.
func carry(ctx context.Context, from *sprites.Sprite, what file, to *sprites.Sprite, target string) error {
	f, err := from.Open(ctx, what.name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	content := io.TeeReader(io.LimitReader(f, what.size), sum)
	if err := to.WriteFile(ctx, target, content, sprites.WriteOptions{Size: what.size}); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != what.sha256 {
		return fail.Newf("not_kept", "push it again", "%s in sprite %s is not what was sent", what.name, from.Name())
	}
	return nil
}
