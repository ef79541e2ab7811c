package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// TestIncludeRefused: the command line refuses a folder that a sprite can't be shown. The error
// has a code, says why, and what to type instead.
func TestIncludeRefused(t *testing.T) {
	dir := t.TempDir()
	file, loop := filepath.Join(dir, "it's a file"), filepath.Join(dir, "loop")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(loop, loop)); err != nil {
		t.Fatal(err)
	}
	inv := newInvocation(Streams{Out: io.Discard, Err: io.Discard})
	for _, test := range []struct{ path, message, hint string }{
		{file, "--include " + file + ": it is not a folder, and only folders can be shown in a sprite", "cove cp '" + dir + `/it'\''s a file' NAME:'it'\''s a file'`},
		{filepath.Join(file, "x"), "--include " + file + "/x: the folder can't be read: not a directory", "ls -ld '" + dir + `/it'\''s a file/x'`},
		{loop, "--include " + loop + ": the folder can't be read: too many levels of symbolic links", "ls -ld " + loop},
	} {
		err := warnIncludes(t.Context(), inv, []string{dir, test.path})
		e, ok := errors.AsType[*fail.Error](err)
		if !ok || e.Code != "bad_option" || e.Error() != test.message || !strings.Contains(e.Hint, test.hint) {
			t.Errorf("%s: %v\nhint: %+v", test.path, err, e)
		}
	}
	if err := warnIncludes(t.Context(), inv, []string{dir, filepath.Join(dir, "not there")}); err != nil {
		t.Errorf("it may be there on the server's machine: %v", err)
	}
}
