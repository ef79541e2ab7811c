package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// takeOver goes on in the clone of an earlier job, as it is: what its agent did not
// commit is there, too.
func (r *repository) takeOver(ctx context.Context) error {
	if _, err := r.git.run(ctx, "merge-base", "--is-ancestor", r.spec.Base, "HEAD"); err != nil {
		return fmt.Errorf("go on in %s: %w", r.spec.Workdir, err)
	}
	// What that job began with is what its end is compared with, as is this one's.
	for _, file := range []string{r.modules.file, r.large.list} {
		data, err := os.ReadFile(filepath.Join(r.spec.Earlier, filepath.Base(file)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
