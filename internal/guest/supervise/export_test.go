package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"

	"github.com/cove-dev/cove"
)

// RunAgents runs a job's agent alone, n times, in this process. Each must exit with the code,
// and leave no child of this process, dead or alive.
func RunAgents(dir string, spec cove.JobSpec, n, code int) error {
	log, err := openJournal(filepath.Join(dir, "events.jsonl"))
	if err != nil {
		return err
	}
	ctx, guards := startGuards(context.Background(), &spec, log)
	defer guards.close()
	for i := range n {
		a := &agent{folder: folder(dir), spec: &spec, log: log, own: slog.New(slog.DiscardHandler), guards: guards}
		if got := a.run(ctx); got.code != code {
			return fmt.Errorf("cycle %d: got %+v", i, got)
		}
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
			return fmt.Errorf("cycle %d left the process %d, %w", i, pid, err)
		}
	}
	return log.close()
}
