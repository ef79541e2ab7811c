package job

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"unicode"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/store"
)

const (
	maxInstallSaid = 2000 // bytes kept of a failing command's output
	maxSaidLine    = 160  // characters of a line that a job's row has
)

// installation is an installation under way, for all the jobs that wait for it.
type installation struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	have   store.Install // once done is closed, as err
	err    error

	waiting int // jobs; guarded by installs.mu

	mu       sync.Mutex
	progress cove.InstallProgress // guarded by mu
	said     tail                 // of the command that runs; guarded by mu
	log      stepLog              // of all commands; guarded by mu
}

// runs notes which of its commands runs now.
func (i *installation) runs(command, commands int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.said = tail{}
	_, _ = fmt.Fprintf(&i.log, "command %d of %d\n", command, commands)
	i.progress.Command, i.progress.Commands = command, commands
}

// Write takes the output of the running command.
func (i *installation) Write(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, _ = i.log.Write(p)
	return i.said.Write(p)
}

// String is the end of the command's output.
func (i *installation) String() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.said.String()
}

// sofar is how far the installation is, and what its commands have printed.
func (i *installation) sofar() (cove.InstallProgress, cove.StepOutput) {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.progress
	p.Said = i.said.line()
	return p, i.log.out
}

// tail is the end of a command's output.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-maxInstallSaid):]
	return len(p), nil
}

func (t *tail) String() string { return string(bytes.ToValidUTF8(bytes.TrimSpace(t.buf), []byte("?"))) }

// line is the last line, without what a terminal would obey.
func (t *tail) line() string {
	text := strings.TrimRight(string(bytes.ToValidUTF8(t.buf, []byte("?"))), "\r\n \t")
	text = text[strings.LastIndexAny(text, "\r\n")+1:]
	runes := []rune(strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text))
	return strings.TrimSpace(string(runes[:min(len(runes), maxSaidLine)]))
}
