package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/sprites"
)

// The exit codes of cove. A command run in a sprite has its own besides.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitConflict    = 3 // sync: nothing was applied
	exitRefused     = 4 // the commits are kept, the branch was not moved
	exitRejected    = 5 // a bundle or an archive with something in it that must not be
	exitNoSpace     = 6
	exitLost        = 75
	exitTimedOut    = 124
	exitCove        = 125 // exec: not the command, cove failed
	exitInterrupted = 130
	exitBrokenPipe  = 141 // exec: as a shell has it of a program that SIGPIPE has ended
)

var exitMeanings = []struct {
	code    int
	meaning string
}{
	{exitOK, "done, also if there was nothing to do"},
	{exitFailed, "failed"},
	{exitUsage, "wrong usage"},
	{exitConflict, "conflicts; nothing was applied to the branch or folder that the message names"},
	{exitRefused, "held for your review, or the branch was not moved; the message says where the commits are"},
	{exitRejected, "rejected what came from the sandbox (bundle or archive)"},
	{exitNoSpace, "no space left, or the result could not be written"},
	{exitLost, "lost; may be tried again"},
	{exitTimedOut, "timed out"},
	{exitCove, "cove itself failed (exec)"},
	{exitInterrupted, "interrupted or cancelled"},
	{exitBrokenPipe, "the reader of the output went away (exec)"},
}

// exitTable is the table for the help.
func exitTable() string {
	var b strings.Builder
	b.WriteString("Exit codes:\n")
	for _, e := range exitMeanings {
		fmt.Fprintf(&b, "  %3d  %s\n", e.code, e.meaning)
	}
	b.WriteString("exec gives the command's own code, and 128+N for a death by signal N.")
	return b.String()
}

// failure is an error made ready for people and programs.
type failure struct {
	exit    int
	code    string // for programs
	message string
	hint    string   // what to type next; may be empty
	output  []string // the last lines of a command that failed
}

// usageError is a command line that can't be understood.
type usageError struct {
	cmd *cobra.Command
	err error
}

func (e usageError) Error() string { return e.err.Error() }

// flagError is a wrong flag's error in the words of the command line, with the flag that was
// probably meant.
func flagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		wrong := usageError{cmd, err}
		if near := nearFlags(cmd, unknown.GetSpecifiedName()); len(near) > 0 {
			return hinted(wrong, "did you mean "+strings.Join(near, ", or ")+"?")
		}
		return wrong
	}
	if lacks, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return usagef(cmd, "the value of %s is missing", dashed(lacks.GetSpecifiedName()))
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return usageError{cmd, invalidValue(invalid)}
	}
	return usageError{cmd, err}
}

func dashed(flag string) string {
	if len(flag) == 1 {
		return "-" + flag
	}
	return "--" + flag
}

// invalidValue says of which kind a flag's value must be.
func invalidValue(invalid *pflag.InvalidValueError) error {
	want := map[string]string{
		"int": "a whole number", "int64": "a whole number", "uint": "a whole number", "float64": "a number",
		"bool": "true or false", "duration": "a time such as 30s, 5m or 2h",
	}[invalid.GetFlag().Value.Type()]
	if number, is := errors.AsType[*strconv.NumError](error(invalid)); is && errors.Is(number, strconv.ErrRange) {
		want = "a smaller number"
	}
	if want == "" {
		return invalid
	}
	return fmt.Errorf("--%s takes %s, not %q", invalid.GetFlag().Name, want, invalid.GetValue())
}

func usagef(cmd *cobra.Command, format string, args ...any) error {
	return usageError{cmd, fmt.Errorf(format, args...)}
}

// hintError puts a hint on an error; it replaces any other.
type hintError struct {
	error
	hint string
}

func (e hintError) Unwrap() error { return e.error }

func hinted(err error, hint string) error { return hintError{err, hint} }

// reportedError has been told to the person already: only its exit code is left.
type reportedError struct{ exit int }

func (e reportedError) Error() string { return fmt.Sprintf("exit code %d", e.exit) }

// interruptedError is the person's Ctrl-C.
type interruptedError struct{}

func (interruptedError) Error() string { return "interrupted" }

// unseen is the error of a call whose end was not seen: the server went away, or the person
// did not wait. The server completes such a call once it has begun it. see is what to type
// to know what became of it. Other errors stay what they are.
func unseen(err error, doing, see string) error {
	switch {
	case errors.Is(err, context.Canceled):
		return fail.Newf("interrupted", "see what became of it: "+see, "%s: interrupted; the server completes what it has begun", doing)
	case brokeOff(err): // net.ErrClosed comes from the part that still sent the request
		return fail.Newf("connection_lost", "start the server again, if it is this machine's: cove server start\nsee what became of it: "+see, "%s: the server went away in the middle; it may have been done all the same", doing)
	}
	return err
}

// brokeOff reports whether err says that the server went away in the middle of a call.
func brokeOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// brokenOff is the error of an answer that has ended too early, if err is that: so it looks
// if the sandbox has ended meanwhile. Other errors stay what they are.
func brokenOff(err error, doing string) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return fail.Newf("connection_lost", "try again", "%s: the connection broke off, as it does if the sprite is restored or ends", doing)
	}
	return err
}

// coveFailed marks the errors of exec that are not the command's.
type coveFailed struct{ error }

func (e coveFailed) Unwrap() error { return e.error }

// classify turns any error into a failure. Only here do errors become exit codes.
func classify(err error) failure {
	f := failure{exit: exitFailed, code: "failed", message: err.Error()}
	f.of(err)
	if h, ok := errors.AsType[hintError](err); ok {
		f.hint = h.hint
	}
	if o, ok := errors.AsType[stepError](err); ok {
		f.output = o.lines
	}
	if _, ok := errors.AsType[coveFailed](err); ok && f.exit != exitUsage && f.exit != exitInterrupted && f.exit != exitLost && f.exit != exitNoSpace {
		f.exit = exitCove
	}
	return f
}

func (f *failure) of(err error) {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		f.exit = coded.ExitCode()
	}
	if f.exit == exitRejected {
		f.code = "rejected"
	}
	if errors.As(err, new(*elsewhereError)) {
		f.code, f.hint = "server_elsewhere", "use cove there, or name another folder: --data DIR or COVE_DATA; for a backup, end that server first"
		return
	}
	if e, ok := errors.AsType[usageError](err); ok {
		f.exit, f.code = exitUsage, "usage"
		if e.cmd != nil {
			f.hint = e.cmd.CommandPath() + " --help"
		}
		return
	}
	if e, ok := errors.AsType[*fail.Error](err); ok {
		f.exit, f.code, f.hint = e.ExitCode(), e.Code, e.Hint
		return
	}
	if e, ok := errors.AsType[*private.RefusedError](err); ok {
		f.code, f.hint = "data_folder_refused", e.Hint
		return
	}
	if e, ok := errors.AsType[*gitwork.RefusedError](err); ok {
		f.code, f.hint = e.Code, strings.Join(e.Next, "\n")
		return
	}
	if e, ok := errors.AsType[*gitwork.ConflictError](err); ok {
		f.code, f.hint = "conflict", strings.Join(e.Next, "\n")
		return
	}
	if e, ok := errors.AsType[*sprites.Error](err); ok {
		f.server(err, e)
		return
	}
	f.local(err)
}

// withoutHint is err's text without the hint that e's own has at its end.
func withoutHint(err error, own, message string) string {
	return strings.Replace(err.Error(), own, message, 1)
}

// serverHints are what to type next after a server's codes, if the server does not say. For a
// code that is not here, the hint of its status counts (statusCodes).
var serverHints = map[string]string{
	"unauthorized": "give the server's token: --token or COVE_TOKEN; on this machine it is in the data folder (--data, COVE_DATA)",
	"forbidden":    "this token's scope or verbs do not allow it; see the tokens, on the server's machine, as its owner: COVE_TOKEN= cove token list",
	"name_taken":   "take another name, or use that sprite: cove use NAME",
	"bad_name":     nameHint,
	"limited":      "see what runs: cove list",
	"limit":        "see what runs: cove list",

	"concurrent_sprite_limit_exceeded": "let one sleep, or delete one: cove list; cove rm NAME",

	"deleted_files_open": "end what has them open: cove exec --user root -- sh -c 'ls -l /proc/[0-9]*/fd | grep deleted'",

	"own_networks": "end these programs, and try again; Docker's containers, if its service is called docker: cove service stop docker --grace 30s",

	"boot_failed":   "see what this machine lacks: cove doctor; and the sprite: cove info NAME",
	"unavailable":   "try again",
	"job_running":   "see: cove job list; end it: cove job stop JOB; or delete all the same: --force",
	"being_deleted": "take another name, or wait a moment",
	"unpulled_work": "bring the commits home first: cove pull JOB; or lose them: --force",
	"rejected":      "",
	"no_space":      "see how full the disk is: cove doctor",
	"disk_limit":    "raise its limit: cove update NAME --disk SIZE",
	"disk_full":     "free room on the server's disk, or remove sprites: cove list; cove rm NAME",
	"lost":          "",
	"ENOSPC":        "the disk that the sprite is on is full; see: cove doctor",
	"ENOENT":        "",
	"EACCES":        "the sprite's user may not do that; root may: cove exec --user root CMD",
	"EPERM":         "the sprite's user may not do that; root may: cove exec --user root CMD",
}

// statusCodes names the code of answers that have none.
var statusCodes = map[int]string{
	400: "invalid", 401: "unauthorized", 403: "forbidden", 404: "not_found", 409: "conflict",
	410: "gone", 429: "limited", 503: "unavailable", 507: "no_space",
}

func (f *failure) server(err error, e *sprites.Error) {
	f.code = e.Code
	if f.code == "" {
		f.code = statusCodes[e.StatusCode]
	}
	if f.code == "" {
		f.code = "server_error"
	}
	meant, hinted := f.code, f.code // for a code that is not known, the status counts
	if !fail.Known(meant) {
		meant = statusCodes[e.StatusCode]
	}
	if _, ok := serverHints[hinted]; !ok {
		hinted = statusCodes[e.StatusCode]
	}
	if meant != "conflict" { // sync's; a server has conflicts of all kinds
		f.exit = fail.New(meant, "", "").ExitCode()
	}
	f.message = strings.TrimSuffix(withoutHint(err, e.Error(), e.Message), ".")
	if f.hint = e.Hint; f.hint == "" {
		f.hint = serverHints[hinted]
	}
}

// local classifies errors that have no code from a server or from a package of ours.
func (f *failure) local(err error) {
	switch {
	case errors.As(err, new(interruptedError)) || errors.Is(err, context.Canceled):
		f.exit, f.code = exitInterrupted, "interrupted"
		if errors.As(err, new(interruptedError)) {
			f.message = "interrupted"
		}
	case errors.Is(err, context.DeadlineExceeded):
		f.exit, f.code = exitTimedOut, "timed_out"
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		f.exit, f.code = exitNoSpace, "no_space"
		f.hint = "free some space and try again; nothing half-written was left"
	case errors.Is(err, syscall.EROFS):
		f.code, f.hint = "read_only", "that file system is read-only: see why (dmesg), and make it writable again (mount -o remount,rw)"
	case errors.Is(err, sprites.ErrNoExit):
		f.exit, f.code = exitLost, "connection_lost"
		switch {
		case errors.Is(err, sprites.ErrRemoved):
		case sandboxGone(err):
			f.hint = "its processes are gone, its disk is not; the next command starts it again; see why it ended: cove info"
		default:
			f.hint = "the command may still be running; see: cove session list"
		}
	case lostAnswer(err):
		f.exit, f.code = exitLost, "connection_lost"
		f.message = strings.ReplaceAll(f.message, io.ErrUnexpectedEOF.Error(), "the connection broke off")
		f.hint = "the server, or the connection to it, went away in the middle; start it again, if it is this machine's: cove server start"
	case errors.Is(err, syscall.ECONNREFUSED) || isNetError(err):
		f.code = "unreachable"
		f.hint = "is the server running? on its machine: cove server status; cove server start"
	case errors.Is(err, fs.ErrNotExist):
		f.code = "not_found"
	case errors.Is(err, sprites.ErrBadName):
		f.exit, f.code = exitUsage, "bad_name"
	}
}

// lostAnswer reports whether err is that of a call whose connection broke off before its answer
// was whole.
func lostAnswer(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF) || isNetError(err) && errors.Is(err, syscall.EPIPE)
}

// sandboxGone reports whether nothing is left to come back to.
func sandboxGone(err error) bool {
	return errors.Is(err, sprites.ErrRemoved) || errors.Is(err, sprites.ErrSandboxEnded)
}

func isNetError(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}

// classify returns the failure of an error as it is shown, with completed commands.
func (p *printer) classify(err error) failure {
	f := classify(err)
	f.message, f.hint = p.hints.full(f.message), p.hints.full(f.hint)
	return f
}

// reportError tells the person, or the program, of an error, and returns the exit code.
func reportError(inv *invocation, cmd *cobra.Command, err error) int {
	if e, ok := errors.AsType[reportedError](err); ok {
		return e.exit
	}
	if cmd != nil {
		aboutFlag(inv, cmd) // arguments may be refused before anything is run
	}
	f := inv.classify(err)
	if errors.Is(err, sprites.ErrUnauthorized) {
		f.hint = strings.TrimSpace(inv.server.ofBackend() + "\n" + f.hint)
	}
	if _, ok := errors.AsType[usageError](err); !ok && isUnknownCommand(err) {
		f = failure{exit: exitUsage, code: "usage", message: missingFlags(cmd, err), hint: cmd.CommandPath() + " --help"}
	}
	if cmd != nil && changedNothing(cmd, err) {
		f.message += "; nothing was changed"
	}
	if inv.global.json && lostOutput(inv.Out) == nil {
		inv.printJSON(errorDocument{f.document()})
	}
	if inv.global.json && lostOutput(inv.Out) == nil {
		return f.exit
	}
	// The message may have line ends that came from a sprite. No line of it may look like a hint.
	fmt.Fprintf(inv.Err, "cove: %s\n", strings.ReplaceAll(printable.Text(strings.TrimSpace(f.message)), "\n", "\n    | "))
	for line := range strings.SplitSeq(f.hint, "\n") {
		if line != "" {
			fmt.Fprintf(inv.Err, "  hint: %s\n", printable.Text(line))
		}
	}
	return f.exit
}

// wholeVerbs change several settings at once, or none of them if one is refused.
var wholeVerbs = []string{"update", "policy set", "policy allow", "policy deny", "policy limit"}

// changedNothing reports whether err refuses one of the settings that a command was given.
func changedNothing(cmd *cobra.Command, err error) bool {
	name := commandName(cmd)
	if !slices.Contains(wholeVerbs, name) || errors.As(err, new(partlyError)) {
		return false
	}
	given := strings.HasPrefix(name, "policy ") && cmd.Flags().NArg() > 0
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
	e, refused := errors.AsType[*sprites.Error](err)
	refused = refused && e.StatusCode >= 400 && e.StatusCode < 500 && e.StatusCode != http.StatusUnauthorized && e.StatusCode != http.StatusNotFound
	return given && (refused || errors.As(err, new(usageError)))
}

// partlyError marks the error of a command that has made some of its changes.
type partlyError struct{ error }

func (e partlyError) Unwrap() error { return e.error }

// isUnknownCommand recognises the one error that cobra makes by itself.
func isUnknownCommand(err error) bool {
	return strings.HasPrefix(err.Error(), "unknown command ") || strings.HasPrefix(err.Error(), "required flag(s) ")
}

// missingFlags is the message of an error that cobra makes by itself. It names the required
// flags that were not given, if that is the error.
func missingFlags(cmd *cobra.Command, err error) string {
	var missing []string
	if cmd != nil && strings.HasPrefix(err.Error(), "required flag(s) ") {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if _, required := f.Annotations[cobra.BashCompOneRequiredFlag]; required && !f.Changed {
				missing = append(missing, dashed(f.Name))
			}
		})
	}
	switch len(missing) {
	case 0:
		return err.Error()
	case 1:
		return missing[0] + " is missing"
	}
	return strings.Join(missing, " and ") + " are missing"
}

// errorDocument is what --json prints of an error.
type errorDocument struct {
	Error errorJSON `json:"error"`
}

type errorJSON struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`

	Output []string `json:"output,omitempty"` // the last lines of a command that failed
}

func (f failure) document() errorJSON {
	return errorJSON{Code: f.code, Message: f.message, Hint: f.hint, Output: f.output}
}

// outcomeExit is the exit code that mirrors how a job ended.
func outcomeExit(state cove.JobState) int {
	switch state {
	case cove.JobSucceeded:
		return exitOK
	case cove.JobTimedOut:
		return exitTimedOut
	case cove.JobCancelled:
		return exitInterrupted
	case cove.JobLost:
		return exitLost
	}
	return exitFailed
}
