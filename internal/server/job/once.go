package job

import (
	"context"
	"errors"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
)

// once makes the job of a request, or returns the job that the same request (by its key) has
// made before. Of several at once, one makes the job, and the others wait for it. Without a
// key, each makes a job.
func (m *Manager) once(ctx context.Context, key store.JobKey, do func() (cove.Job, error)) (cove.Job, error) {
	if key.Key == "" {
		return do()
	}
	if err := checkKeyForm(key.Key); err != nil {
		return cove.Job{}, err
	}
	unlock, err := m.alone.Lock(ctx, key.Key) // a clone has spaces in its key, and a key has none
	if err != nil {
		return cove.Job{}, err
	}
	defer unlock()
	had, made, err := m.Store.Jobs.Keyed(ctx, key)
	switch {
	case errors.Is(err, store.ErrKeyTaken):
		return cove.Job{}, keyTaken()
	case errors.Is(err, store.ErrNotFound): // nobody has asked yet, or the job was removed
	case err != nil:
		return cove.Job{}, err
	case made || had.StartedAt != nil:
		return had, nil
	default: // a server was killed while it made this one, or could not take it back: nobody was told of it
		if err := m.Delete(ctx, had.ID, true); err != nil && !errors.Is(err, store.ErrNotFound) {
			return cove.Job{}, err
		}
	}
	job, err := do()
	if err != nil {
		return job, err
	}
	return job, m.Store.Jobs.KeyMade(context.WithoutCancel(ctx), key.Key)
}

func keyTaken() error {
	return fail.Newf(codeKeyTaken, "choose another key", "another request for a job used that key; this one was not carried out")
}
