package tools

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// A KeptCommand is a program that runs under a keeper (Keep): nothing that it starts outlives
// its Kill. It is for callers that offer commands by another protocol than the tools'.
type KeptCommand struct {
	Keeper []string // the keeper's command line: `cove-guest tool keep`
	Argv   []string // Argv[0] is looked up in the PATH of Env
	Dir    string
	Env    []string  // all of it, KEY=VALUE
	Output io.Writer // gets both streams; one goroutine writes

	control io.WriteCloser
	end     sync.Once
	ended   chan struct{}
	gone    chan struct{}
	code    int
	signal  string
}

// Start starts the command. The caller must Kill it later.
func (c *KeptCommand) Start() error {
	spec := keeperSpec{Argv: slices.Clone(c.Argv), Dir: c.Dir, Env: c.Env, Grace: killGrace}
	var err error
	if spec.Argv[0], err = lookPath(c.Argv[0], c.Dir, c.Env); err != nil {
		return err
	}
	line, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	out, outTheirs, err := os.Pipe()
	if err != nil {
		return err
	}
	reports, reportsTheirs, err := os.Pipe()
	if err != nil {
		return errors.Join(err, out.Close(), outTheirs.Close())
	}
	cmd := exec.Command(c.Keeper[0], c.Keeper[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = outTheirs, outTheirs, []*os.File{reportsTheirs}
	if c.control, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	_ = outTheirs.Close()
	_ = reportsTheirs.Close()
	if err != nil {
		return errors.Join(err, out.Close(), reports.Close())
	}
	_, writeErr := c.control.Write(append(line, '\n'))
	r := bufio.NewReader(io.LimitReader(reports, maxReport))
	first, err := report(r)
	if err == nil && first.Error != "" {
		err = errors.New(first.Error)
	}
	c.ended, c.gone = make(chan struct{}), make(chan struct{})
	go c.follow(cmd, out, reports, r)
	if err = errors.Join(err, writeErr); err != nil {
		c.Kill()
		<-c.gone
	}
	return err
}

// follow copies the output, and notes how the command ended.
func (c *KeptCommand) follow(cmd *exec.Cmd, out, reports *os.File, r *bufio.Reader) {
	copied := make(chan struct{})
	go func() { _, _ = io.Copy(c.Output, out); close(copied) }()
	end, err := report(r)
	c.code, c.signal = end.Code, end.Signal
	if err != nil || !end.Ended {
		c.code, c.signal = 128+9, "KILL" // its keeper was killed, and it with it, or soon
	}
	if !end.Left { // then its output ends, and is whole when the command's end is told
		await(context.Background(), copied, drainLimit)
	}
	close(c.ended)
	_ = cmd.Wait()
	await(context.Background(), copied, drainLimit)
	_ = out.Close()
	_ = reports.Close()
	<-copied
	close(c.gone)
}

// Ended is closed when the command itself has ended. Processes that it started may still run.
func (c *KeptCommand) Ended() <-chan struct{} { return c.ended }

// Exit says how the command ended, once Ended is closed: an exit code, or a signal such as
// KILL.
func (c *KeptCommand) Exit() (code int, signal string) { return c.code, c.signal }

// Gone is closed when no process of the command is left, and Output gets no more.
func (c *KeptCommand) Gone() <-chan struct{} { return c.gone }

// Kill begins to end the command and all processes that it started: TERM, then KILL.
func (c *KeptCommand) Kill() { c.end.Do(func() { _ = c.control.Close() }) }

// lookPath finds a program by the PATH of its own environment.
func lookPath(name, dir string, env []string) (string, error) {
	if filepath.Base(name) != name {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return exec.LookPath(name)
	}
	path := ""
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = value // the last one holds
		}
	}
	for _, folder := range filepath.SplitList(path) {
		if !filepath.IsAbs(folder) {
			continue
		}
		if found, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
			return found, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// WriteFile gives the file at an absolute path new content, in one step, or changes
// nothing. It makes missing folders; an existing file keeps its mode. If others write it at
// the same time, the last one wins. Its errors are *fail.Error.
func WriteFile(path, content string) error {
	w := &workspace{dir: path} // which is told as it is
	in := WriteInput{FilePath: path, Content: content, CreateParents: true}
	for n := 1; ; n++ {
		_, err := w.write(context.Background(), in, nil)
		if e, ok := errors.AsType[*fail.Error](err); !ok || e.Code != CodeChanged || n == maxTries {
			return err
		}
	}
}

// maxTries is how often a file may be changed by others in the middle of a write.
const maxTries = 100

// OpenFile opens a regular file. It opens nothing on which an open could hang or have an
// effect. Its errors are *fail.Error.
func OpenFile(path string) (*os.File, error) {
	f, _, err := openRegular(path, path)
	return f, err
}
