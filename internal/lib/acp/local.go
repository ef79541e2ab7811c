package acp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	acp "github.com/coder/acp-go-sdk"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/tools"
)

const (
	maxRead      = 4 << 20 // of a file, in one answer
	maxKept      = 1 << 20 // of a terminal's output
	maxTerminals = 64
	closeLimit   = 5 * time.Second
)

// codeNotFound is ACP's error code for a file that is not there.
const codeNotFound = -32002

// capabilities are the methods that the client offers to an agent.
var capabilities = acp.ClientCapabilities{Fs: acp.FileSystemCapabilities{ReadTextFile: true, WriteTextFile: true}, Terminal: true}

// served reports whether a method of the agent's is served here.
func served(method string) bool {
	return strings.HasPrefix(method, "fs/") || strings.HasPrefix(method, "terminal/")
}

// local serves the file and terminal methods of an agent, as this process's user.
type local struct {
	dir    string   // where terminals start that do not say where
	keeper []string // `cove-guest tool keep`

	mu        sync.Mutex
	closed    bool
	last      int
	terminals map[string]*terminal
}

// terminal is a command that an agent started. It has no terminal in the kernel's sense.
type terminal struct {
	command tools.KeptCommand
	output  tail
}

// ReadTextFile is fs/read_text_file.
func (l *local) ReadTextFile(_ context.Context, p acp.ReadTextFileRequest) (acp.ReadTextFileResponse, error) {
	var none acp.ReadTextFileResponse
	if err := checkPath(p.Path); err != nil {
		return none, err
	}
	f, err := tools.OpenFile(p.Path)
	if err != nil {
		return none, fileError(err)
	}
	defer f.Close()
	text, err := readLines(f, p.Line, p.Limit)
	if err != nil {
		return none, fileError(fmt.Errorf("%s: %w", p.Path, err))
	}
	return acp.ReadTextFileResponse{Content: text}, nil
}

// readLines reads from a line on (from 1; nil: all), so many lines (nil: all).
func readLines(r io.Reader, line, limit *int) (string, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	var b strings.Builder
	for n := 1; limit == nil || n < max(at(line), 1)+*limit; {
		part, err := br.ReadSlice('\n')
		if n >= at(line) {
			b.Write(part)
		}
		if b.Len() > maxRead {
			return "", fmt.Errorf("more than %d bytes; read it in parts, by line and limit", maxRead)
		}
		switch {
		case err == nil:
			n++
		case errors.Is(err, io.EOF):
			return checkText(b.String())
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		}
	}
	return checkText(b.String())
}

func at(line *int) int {
	if line == nil {
		return 1
	}
	return *line
}

func checkText(s string) (string, error) {
	if !utf8.ValidString(s) {
		return "", errors.New("it is not UTF-8 text")
	}
	return s, nil
}

// WriteTextFile is fs/write_text_file.
func (l *local) WriteTextFile(_ context.Context, p acp.WriteTextFileRequest) (acp.WriteTextFileResponse, error) {
	var none acp.WriteTextFileResponse
	if err := checkPath(p.Path); err != nil {
		return none, err
	}
	if err := tools.WriteFile(p.Path, p.Content); err != nil {
		return none, fileError(err)
	}
	return none, nil
}

func checkPath(path string) error {
	if !filepath.IsAbs(path) {
		return acp.NewInvalidParams(map[string]any{"error": fmt.Sprintf("the path %.200q is not absolute", path)})
	}
	return nil
}

func fileError(err error) error {
	code := -32603
	if e, ok := errors.AsType[*fail.Error](err); ok && e.Code == tools.CodeNotFound || errors.Is(err, os.ErrNotExist) {
		code = codeNotFound
	}
	return &acp.RequestError{Code: code, Message: err.Error()}
}

// CreateTerminal is terminal/create. A command line in place of a program is a shell's.
func (l *local) CreateTerminal(_ context.Context, p acp.CreateTerminalRequest) (acp.CreateTerminalResponse, error) {
	var none acp.CreateTerminalResponse
	t := &terminal{output: tail{limit: maxKept}}
	if p.OutputByteLimit != nil && *p.OutputByteLimit >= 0 {
		t.output.limit = min(*p.OutputByteLimit, maxKept)
	}
	argv := append([]string{p.Command}, p.Args...)
	if len(p.Args) == 0 && strings.ContainsAny(p.Command, " \t\n;&|<>$") {
		argv = []string{"/bin/sh", "-c", p.Command}
	}
	t.command = tools.KeptCommand{Keeper: l.keeper, Argv: argv, Dir: l.dir, Env: os.Environ(), Output: &t.output}
	if p.Cwd != nil && *p.Cwd != "" {
		if err := checkPath(*p.Cwd); err != nil {
			return none, err
		}
		t.command.Dir = *p.Cwd
	}
	for _, v := range p.Env {
		if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || strings.ContainsRune(v.Value, 0) {
			return none, acp.NewInvalidParams(map[string]any{"error": fmt.Sprintf("%.80q is not a valid name of a variable", v.Name)})
		}
		t.command.Env = append(t.command.Env, v.Name+"="+v.Value)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.terminals) >= maxTerminals {
		return none, &acp.RequestError{Code: -32603, Message: fmt.Sprintf("there are %d terminals; release one first", len(l.terminals))}
	}
	if err := t.command.Start(); err != nil {
		return none, &acp.RequestError{Code: -32603, Message: fmt.Sprintf("start %.200q: %v", argv[0], err)}
	}
	if l.terminals == nil {
		l.terminals = map[string]*terminal{}
	}
	l.last++
	id := "t" + strconv.Itoa(l.last)
	l.terminals[id] = t
	return acp.CreateTerminalResponse{TerminalId: id}, nil
}

func (l *local) terminal(id string) (*terminal, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.terminals[id]
	if t == nil {
		return nil, &acp.RequestError{Code: codeNotFound, Message: fmt.Sprintf("there is no terminal %.80q", id)}
	}
	return t, nil
}

// TerminalOutput is terminal/output.
func (l *local) TerminalOutput(_ context.Context, p acp.TerminalOutputRequest) (acp.TerminalOutputResponse, error) {
	t, err := l.terminal(p.TerminalId)
	if err != nil {
		return acp.TerminalOutputResponse{}, err
	}
	var r acp.TerminalOutputResponse
	select {
	case <-t.command.Ended():
		code, signal := t.exit()
		r.ExitStatus = &acp.TerminalExitStatus{ExitCode: code, Signal: signal}
	default:
	}
	r.Output, r.Truncated = t.output.text()
	return r, nil
}

// exit is how the command ended: a code, or a signal.
func (t *terminal) exit() (code *int, signal *string) {
	n, name := t.command.Exit()
	if name != "" {
		name = "SIG" + name
		return nil, &name
	}
	return &n, nil
}

// WaitForTerminalExit is terminal/wait_for_exit.
func (l *local) WaitForTerminalExit(ctx context.Context, p acp.WaitForTerminalExitRequest) (acp.WaitForTerminalExitResponse, error) {
	t, err := l.terminal(p.TerminalId)
	if err != nil {
		return acp.WaitForTerminalExitResponse{}, err
	}
	select {
	case <-t.command.Ended():
	case <-ctx.Done():
		return acp.WaitForTerminalExitResponse{}, ctx.Err()
	}
	code, signal := t.exit()
	return acp.WaitForTerminalExitResponse{ExitCode: code, Signal: signal}, nil
}

// KillTerminal is terminal/kill: the command ends, its output stays.
func (l *local) KillTerminal(_ context.Context, p acp.KillTerminalRequest) (acp.KillTerminalResponse, error) {
	t, err := l.terminal(p.TerminalId)
	if err == nil {
		t.command.Kill()
	}
	return acp.KillTerminalResponse{}, err
}

// ReleaseTerminal is terminal/release.
func (l *local) ReleaseTerminal(_ context.Context, p acp.ReleaseTerminalRequest) (acp.ReleaseTerminalResponse, error) {
	t, err := l.terminal(p.TerminalId)
	if err == nil {
		t.command.Kill()
		l.mu.Lock()
		delete(l.terminals, p.TerminalId)
		l.mu.Unlock()
	}
	return acp.ReleaseTerminalResponse{}, err
}

// close ends all terminals, and waits for that, within bounds.
func (l *local) close() {
	l.mu.Lock()
	l.closed = true
	var all []*terminal
	for _, t := range l.terminals {
		all = append(all, t)
	}
	l.mu.Unlock()
	limit := time.After(closeLimit)
	for _, t := range all {
		t.command.Kill()
	}
	for _, t := range all {
		select {
		case <-t.command.Gone():
		case <-limit:
			return
		}
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int

	mu  sync.Mutex
	buf []byte
	cut bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.cut = true
		// Not at each write: moving the end to the front takes time.
		if over > t.limit {
			t.buf = slices.Clone(t.buf[over:])
		}
	}
	return len(p), nil
}

// text is the end, from the beginning of a character on, and whether it is not all.
func (t *tail) text() (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.buf[max(0, len(t.buf)-t.limit):]
	if t.cut {
		for i := 0; i < utf8.UTFMax && len(end) > 0 && !utf8.RuneStart(end[0]); i++ {
			end = end[1:]
		}
	}
	return strings.ToValidUTF8(string(end), "\uFFFD"), t.cut
}
