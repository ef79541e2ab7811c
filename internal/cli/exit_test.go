package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

func serverError(status int, code, message, hint string) error {
	return &sprites.Error{StatusCode: status, ErrorBody: sprites.ErrorBody{Code: code, Message: message, Hint: hint}}
}

func TestClassify(t *testing.T) {
	for _, test := range []struct {
		err           error
		exit          int
		code          string
		message, hint string // parts
	}{
		{errors.New("odd"), 1, "failed", "odd", ""},
		{usagef(nil, "no %s", "x"), 2, "usage", "no x", ""},
		{coveFailed{usagef(nil, "no x")}, 2, "usage", "no x", ""},
		{coveFailed{errors.New("odd")}, 125, "failed", "odd", ""},
		{coveFailed{interruptedError{}}, 130, "interrupted", "interrupted", ""},
		{coveFailed{serverError(404, "not_found", "no sprite x", "")}, 125, "not_found", "no sprite x", ""},
		{fmt.Errorf("get: %w", context.Canceled), 130, "interrupted", "", ""},
		{context.DeadlineExceeded, 124, "timed_out", "", ""},
		{&os.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}, 6, "no_space", "no space", "free some space"},
		{fmt.Errorf("x: %w", sprites.ErrNoExit), 75, "connection_lost", "", "session list"},
		{fmt.Errorf("create: %w", serverError(409, "name_taken", "name is taken", "")), 1, "name_taken", "create: name is taken", "cove use"},
		{serverError(401, "", "who are you?", ""), 1, "unauthorized", "who are you?", "COVE_TOKEN"},
		{serverError(403, "", "no", ""), 1, "forbidden", "no", "cove token list"},
		{serverError(507, "", "full", ""), 6, "no_space", "full", "cove doctor"},
		{coveFailed{serverError(507, "no_space", "full", "")}, 6, "no_space", "full", "cove doctor"},
		{&os.PathError{Op: "open", Path: "/x", Err: syscall.EROFS}, 1, "read_only", "read-only file system", "dmesg"},
		{new(tail).explain("read in x", &sprites.ExitError{Code: 143, Reason: "restored"}), 75, "lost", "read in x: the sprite was brought back", "try again"},
		{brokenOff(&os.PathError{Op: "read", Path: "/x", Err: io.ErrUnexpectedEOF}, "copy to y"), 75, "connection_lost", "copy to y: the connection broke off", "try again"},
		{brokenOff(&os.PathError{Op: "read", Path: "/x", Err: syscall.EISDIR}, "copy to y"), 1, "failed", "is a directory", ""},
		{new(tail).explain("read in x", &sprites.ExitError{Code: 2}), 1, "failed", "read in x: exit status 2", ""},
		{serverError(500, "ENOSPC", "full", ""), 6, "ENOSPC", "full", ""},
		{serverError(503, "", "later", ""), 75, "unavailable", "later", "try again"},
		{fmt.Errorf("x: %w", serverError(400, "bad_name", "bad", "like this")), 2, "bad_name", "x: bad", "like this"},
		{serverError(409, "no_backend", "there is no backend x", ""), 2, "no_backend", "no backend", ""},
		{serverError(410, "session_ended", "the session has ended", ""), 75, "session_ended", "has ended", ""},
		{serverError(409, "made_up", "no", ""), 1, "made_up", "no", ""},
		{serverError(418, "", "tea", ""), 1, "server_error", "tea", ""},
		{&fail.Error{Code: "dirty_tree", Message: "dirty", Hint: "commit"}, 1, "dirty_tree", "dirty", "commit"},
		{&gitwork.RefusedError{Code: "branch_moved", Reason: "moved on", Next: []string{"git merge x", "git rebase x"}}, 4, "branch_moved", "moved on", "git merge x\ngit rebase x"},
		{&gitwork.RejectedError{Reason: "edited"}, 5, "rejected", "edited", ""},
		{&fail.Error{Code: "bad_option", Message: "bad"}, 2, "bad_option", "bad", ""},
		{&fail.Error{Code: "not_finished", Message: "runs", Hint: "wait"}, 1, "not_finished", "runs", "wait"},
		{unseen(fmt.Errorf("x: %w", io.ErrUnexpectedEOF), "do it", "cove list"), 75, "connection_lost", "do it: the server went away", "cove list"},
		{unseen(&net.OpError{Op: "write", Err: syscall.EPIPE}, "do it", "cove list"), 75, "connection_lost", "may have been done", "cove list"},
		{unseen(fmt.Errorf("x: %w", context.Canceled), "do it", "cove list"), 130, "interrupted", "do it: interrupted", "cove list"},
		{unseen(serverError(404, "", "no sprite x", ""), "do it", "cove list"), 1, "not_found", "no sprite x", ""},
		{unseen(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "do it", "cove list"), 1, "unreachable", "", "cove server status"},
		{fail.New("rejected", "refused ../x: dotdot", ""), 5, "rejected", "../x", ""},
		{hinted(serverError(404, "not_found", "gone", "server's"), "ours"), 1, "not_found", "gone", "ours"},
	} {
		f := classify(test.err)
		if f.exit != test.exit || f.code != test.code || !strings.Contains(f.message, test.message) || !strings.Contains(f.hint, test.hint) {
			t.Errorf("%v: got %+v, want exit %d, code %s, message %q, hint %q", test.err, f, test.exit, test.code, test.message, test.hint)
		}
		if test.hint != "" && strings.Contains(f.message, test.hint) {
			t.Errorf("%v: the hint is in the message too: %q", test.err, f.message)
		}
	}
}

func TestOutcomeExit(t *testing.T) {
	for state, want := range map[cove.JobState]int{
		cove.JobSucceeded: 0, cove.JobFailed: 1, cove.JobTimedOut: 124, cove.JobCancelled: 130, cove.JobLost: 75,
	} {
		if got := outcomeExit(state); got != want {
			t.Errorf("%s: %d, want %d", state, got, want)
		}
	}
}

func TestReport(t *testing.T) {
	var out, errs bytes.Buffer
	inv := newInvocation(Streams{Out: &out, Err: &errs})
	err := hinted(errors.New("bad\x1b[2J"), "one\ntwo")
	if got := reportError(inv, nil, err); got != 1 {
		t.Errorf("exit code %d", got)
	}
	if got, want := errs.String(), "cove: bad\\x1b[2J\n  hint: one\n  hint: two\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	inv.global.json = true
	errs.Reset()
	reportError(inv, nil, err)
	var doc errorDocument
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil || doc.Error.Code != "failed" || doc.Error.Hint != "one\ntwo" {
		t.Errorf("got %s, %v", out.Bytes(), err)
	}
	if errs.Len() > 0 {
		t.Errorf("with --json also on stderr: %q", errs.String())
	}
}

func TestExitTableIsComplete(t *testing.T) {
	table := exitTable()
	exits := map[int]string{exitOK: "success", exitUsage: "usage", exitCove: "exec", exitBrokenPipe: "exec"}
	for code := range fail.Codes() {
		exits[fail.New(code, "", "").ExitCode()] = code
	}
	for exit, code := range exits {
		if !strings.Contains(table, fmt.Sprintf("\n  %3d  ", exit)) {
			t.Errorf("%s has the exit code %d, which is not in the help's table", code, exit)
		}
	}
}

// TestFlagErrors: an error about a flag says in plain words what is missing, or which flag was
// probably meant.
func TestFlagErrors(t *testing.T) {
	for line, want := range map[string][2]string{
		"push -p x --profil n":      {"unknown flag: --profil", "did you mean --profile?"},
		"version --jsn":             {"unknown flag: --jsn", "did you mean --json?"},
		"version --entirely-unlike": {"unknown flag: --entirely-unlike", "cove version --help"},
		"version -Z":                {"unknown shorthand flag: 'Z' in -Z", "cove version --help"},
		"push -p":                   {"the value of -p is missing", "cove push --help"},
		"push --prompt":             {"the value of --prompt is missing", "cove push --help"},
		"update paint --cpus many":  {"--cpus takes a whole number, not \"many\"", "cove update --help"},
		"update paint --cpus 99999999999999999999":   {"--cpus takes a smaller number", "cove update --help"},
		"webhook put https://hooks.example.org/cove": {"--events is missing", "cove webhook put --help"},
	} {
		var out bytes.Buffer
		exit := Main(t.Context(), strings.Fields(line), Streams{In: strings.NewReader(""), Out: &out, Err: &out})
		if got := out.String(); exit != exitUsage || !strings.Contains(got, want[0]) || !strings.Contains(got, "hint: "+want[1]) {
			t.Errorf("cove %s: exit code %d, %s\nwant %q and the hint %q", line, exit, got, want[0], want[1])
		}
	}
}
