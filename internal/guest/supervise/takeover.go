package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// takeOver continues in the clone of an earlier job, as it is, with the uncommitted changes of
// that job's agent.
func (r *repository) takeOver(ctx context.Context) error {
	if _, err := r.git.run(ctx, "merge-base", "--is-ancestor", r.spec.Base, "HEAD"); err != nil {
		return fmt.Errorf("go on in %s: %w", r.spec.Workdir, err)
	}
	// This job's end is compared with the files that the earlier job began with.
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
