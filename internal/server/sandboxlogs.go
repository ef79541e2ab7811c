package server

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/sprites"
)

// maxSandboxLog is how much of the end of a log is told.
const maxSandboxLog = 512 << 10

// sandboxLogs answers with the runtime's logs of a sprite's sandboxes. They have the names of
// the host's folders, so the call is for administrators.
func sandboxLogs(host *sprite.Host) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		paths, err := host.Logs(r.Context(), r.PathValue("name"), sprite.LogSandbox)
		if err != nil {
			return err
		}
		all := sprites.SandboxLogs{Logs: []sprites.SandboxLog{}}
		for _, path := range paths {
			log, err := endOf(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			all.Logs = append(all.Logs, log)
		}
		writeJSON(w, http.StatusOK, all)
		return nil
	}
}

// endOf reads the end of a log, from the beginning of a line.
func endOf(path string) (sprites.SandboxLog, error) {
	log := sprites.SandboxLog{Name: filepath.Base(path)}
	f, err := os.Open(path)
	if err != nil {
		return log, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return log, err
	}
	log.Size = info.Size()
	from := max(log.Size-maxSandboxLog, 0)
	text, err := io.ReadAll(io.NewSectionReader(f, from, log.Size-from))
	log.Text = strings.ToValidUTF8(string(text), "?")
	if _, rest, ok := strings.Cut(log.Text, "\n"); ok && from > 0 {
		log.Text = rest
	}
	return log, err
}
