package tools

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const bashDescription = `Run a command in a shell (bash, or sh where there is none), without input. The answer has both streams of output, the exit code and how long it took; ` +
	`of a long output the beginning and the end, and the file that has all of it. After the timeout (2 minutes, or timeout_ms) the command and everything that it started is ended. ` +
	`Each call begins anew in the working directory. With run_in_background it goes on beside other calls, until the session ends: poll says what it printed since the last look and whether it runs, ` +
	`kill ends it. What a command has started and left running becomes such a background command, too.`

const (
	defaultTimeout = 2 * time.Minute
	maxTimeout     = time.Hour
	maxWait        = 10 * time.Minute
	maxCommand     = 100_000 // bytes: one argument of a program has at most 128 KiB
)

// BashInput is the input of Bash: a command, or the background command to poll or
// to kill.
type BashInput struct {
	Command         string            `json:"command,omitempty" jsonschema:"The command."`
	Cwd             string            `json:"cwd,omitempty" jsonschema:"The folder to run it in. Default: the working directory."`
	Env             map[string]string `json:"env,omitempty" jsonschema:"Variables of its environment, besides those that are there."`
	TimeoutMS       int64             `json:"timeout_ms,omitempty" jsonschema:"After how many milliseconds it is ended. Default 120000, at most 3600000. In the background there is none by default."`
	RunInBackground bool              `json:"run_in_background,omitempty" jsonschema:"Answer at once, and let it run."`
	Poll            string            `json:"poll,omitempty" jsonschema:"Instead of command: the background_id of the one to look at."`
	WaitMS          int64             `json:"wait_ms,omitempty" jsonschema:"With poll: wait so many milliseconds for its end. At most 600000."`
	Kill            string            `json:"kill,omitempty" jsonschema:"Instead of command: the background_id of the one to end."`
}

// BashResult is the answer of Bash.
type BashResult struct {
	Stdout       Output `json:"stdout"`
	Stderr       Output `json:"stderr"`
	ExitCode     *int   `json:"exit_code,omitempty"` // 128 + the number for a death by signal; nil: it still runs
	Signal       string `json:"signal,omitempty"`    // such as KILL
	DurationMS   int64  `json:"duration_ms"`
	TimedOut     bool   `json:"timed_out,omitempty"`
	Killed       bool   `json:"killed,omitempty"`        // by kill
	Left         bool   `json:"left,omitempty"`          // what the command started still runs
	Survivors    bool   `json:"survivors,omitempty"`     // processes of another user's could not be ended
	BackgroundID string `json:"background_id,omitempty"` // for poll and kill

	Ended bool `json:"ended,omitempty"` // what the command had left running was ended after it: CallLast
}

func (w *workspace) bash(ctx context.Context, in BashInput, progress func(Progress)) (*BashResult, error) {
	asked := 0
	for _, text := range []string{in.Command, in.Poll, in.Kill} {
		if text != "" {
			asked++
		}
	}
	switch {
	case asked != 1:
		return nil, errorf(CodeBadInput, "one of command, poll and kill is needed")
	case in.Poll != "":
		return w.poll(ctx, in)
	case in.Kill != "":
		return w.kill(in)
	}
	return w.command(ctx, in, progress)
}

func (w *workspace) command(ctx context.Context, in BashInput, progress func(Progress)) (*BashResult, error) {
	limit := time.Duration(in.TimeoutMS) * time.Millisecond
	switch {
	case in.TimeoutMS < 0 || in.TimeoutMS > maxTimeout.Milliseconds():
		return nil, errorf(CodeBadInput, "timeout_ms is at most %d", maxTimeout.Milliseconds())
	case len(in.Command) > maxCommand:
		return nil, errorf(CodeTooLarge, "the command has more than %d bytes; Write it to a file, and run that", maxCommand)
	case strings.ContainsRune(in.Command, 0):
		return nil, errorf(CodeBadInput, "the command holds a zero byte")
	case limit == 0 && !in.RunInBackground:
		limit = defaultTimeout
	}
	spec, err := w.spec(in)
	if err != nil {
		return nil, err
	}
	sh, err := w.shells.start(spec)
	if err != nil {
		return nil, errorf(CodeFailed, "start the command: %v", err)
	}
	if in.RunInBackground {
		return w.background(sh, limit)
	}
	return w.foreground(ctx, sh, limit, progress)
}

// spec is the command in the form that a keeper gets.
func (w *workspace) spec(in BashInput) (keeperSpec, error) {
	dir := w.dir
	if in.Cwd != "" {
		var err error
		if dir, err = w.path(in.Cwd); err != nil {
			return keeperSpec{}, err
		}
	}
	if info, err := os.Stat(dir); err != nil {
		return keeperSpec{}, coded(w.shown(dir), err)
	} else if !info.IsDir() {
		return keeperSpec{}, errorf(CodeNotDirectory, "%s is no folder", w.shown(dir))
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := in.Env[name]
		return replaced || name == "PWD"
	})
	env = append(env, "PWD="+dir)
	for name, value := range in.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return keeperSpec{}, errorf(CodeBadInput, "%q can't be a variable", name)
		}
		env = append(env, name+"="+value)
	}
	shell := "/bin/bash"
	if _, err := os.Stat(shell); err != nil {
		shell = "/bin/sh"
	}
	return keeperSpec{Argv: []string{shell, "-c", in.Command}, Dir: dir, Env: env}, nil
}

func (w *workspace) background(sh *shell, limit time.Duration) (*BashResult, error) {
	sh.out.logged()
	sh.err.logged()
	if err := w.shells.keep(sh); err != nil {
		sh.finish()
		<-sh.gone
		return nil, err
	}
	if limit > 0 {
		w.shells.wg.Go(func() {
			if !await(context.Background(), sh.gone, limit) {
				sh.finish()
			}
		})
	}
	return &BashResult{BackgroundID: sh.id, DurationMS: time.Since(sh.begun).Milliseconds()}, nil
}

func (w *workspace) foreground(ctx context.Context, sh *shell, limit time.Duration, progress func(Progress)) (*BashResult, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	timedOut := false
	for running := true; running; {
		select {
		case <-sh.ended:
			running = false
		case <-tick.C:
			bytes, line := sh.out.progress()
			more, errLine := sh.err.progress()
			if line == "" {
				line = errLine
			}
			progress(Progress{Millis: time.Since(sh.begun).Milliseconds(), Bytes: bytes + more, Line: line})
		case <-timer.C:
			timedOut = true
			sh.finish()
			<-sh.gone
		case <-ctx.Done():
			sh.finish()
			<-sh.gone
			sh.out.discard()
			sh.err.discard()
			return nil, coded("", ctx.Err())
		}
	}
	if sh.lost && !timedOut {
		return nil, errorf(CodeFailed, "the command ended the process that keeps it, and was ended with all that it started")
	}
	left := !timedOut && sh.left
	if !left {
		<-sh.gone
	} else {
		if err := w.shells.keep(sh); err != nil {
			sh.finish()
			<-sh.gone
			left = false
		}
	}
	r := sh.result()
	r.TimedOut, r.Left, r.BackgroundID = timedOut, left, ""
	if left {
		r.BackgroundID = sh.id
	}
	return r, nil
}

// result is the state of a command, and its output since the last result.
func (sh *shell) result() *BashResult {
	sh.look.Lock()
	defer sh.look.Unlock()
	r := &BashResult{DurationMS: time.Since(sh.begun).Milliseconds(), BackgroundID: sh.id}
	gone := isClosed(sh.gone)
	if isClosed(sh.ended) {
		r.DurationMS, r.Signal = sh.took.Milliseconds(), sh.signal
		code := sh.code
		if sh.lost {
			code, r.Signal = 137, "KILL"
		}
		r.ExitCode, r.Left = &code, !gone
	}
	r.Survivors = gone && sh.survivors
	r.Stdout, r.Stderr = sh.out.look(), sh.err.look()
	return r
}

func (w *workspace) poll(ctx context.Context, in BashInput) (*BashResult, error) {
	if in.WaitMS < 0 || in.WaitMS > maxWait.Milliseconds() {
		return nil, errorf(CodeBadInput, "wait_ms is at most %d", maxWait.Milliseconds())
	}
	sh, err := w.shells.find(in.Poll)
	if err != nil {
		return nil, err
	}
	if in.WaitMS > 0 {
		await(ctx, sh.gone, time.Duration(in.WaitMS)*time.Millisecond)
		if ctx.Err() != nil {
			return nil, coded("", ctx.Err()) // what it printed is for the next look
		}
	}
	return sh.result(), nil
}

func (w *workspace) kill(in BashInput) (*BashResult, error) {
	sh, err := w.shells.find(in.Kill)
	if err != nil {
		return nil, err
	}
	killed := !isClosed(sh.gone)
	sh.finish()
	<-sh.gone
	r := sh.result()
	r.Killed = killed
	return r, nil
}

func (r *BashResult) text() string {
	var b strings.Builder
	writeOutput(&b, r.Stdout.Text)
	if r.Stderr.Text != "" {
		b.WriteString("[stderr]\n")
		writeOutput(&b, r.Stderr.Text)
	}
	took := (time.Duration(r.DurationMS) * time.Millisecond).String()
	all := "with all that it started"
	if r.Survivors {
		all = "but processes of another user's that it started could not be ended"
	}
	switch {
	case r.ExitCode == nil:
		fmt.Fprintf(&b, "[runs in the background as %s, since %s]", r.BackgroundID, took)
		return b.String()
	case r.TimedOut:
		fmt.Fprintf(&b, "[timed out: ended after %s, %s", took, all)
	case r.Killed:
		fmt.Fprintf(&b, "[killed after %s, %s", took, all)
	case r.Signal != "":
		fmt.Fprintf(&b, "[ended by signal %s after %s", r.Signal, took)
	default:
		fmt.Fprintf(&b, "[exit code %d after %s", *r.ExitCode, took)
	}
	switch {
	case r.Ended:
		b.WriteString("; what it had started still ran, and was ended with this call")
		if r.Survivors {
			b.WriteString(", but for processes of another user's")
		}
	case r.Left:
		fmt.Fprintf(&b, "; what it started still runs, in the background as %s", r.BackgroundID)
	}
	b.WriteString("]")
	return b.String()
}

func writeOutput(b *strings.Builder, text string) {
	b.WriteString(text)
	if text != "" && !strings.HasSuffix(text, "\n") {
		b.WriteByte('\n')
	}
}
