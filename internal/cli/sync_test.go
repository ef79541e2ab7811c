package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/filesync"
)

// A sync says what it left out although no rule says so, however small that is.
func TestSyncSaysWhatItLeftOut(t *testing.T) {
	var out bytes.Buffer
	a := &app{Streams: Streams{Out: &out, Err: &out}}
	a.newRoot()
	local := t.TempDir()
	r := &filesync.Report{Verb: filesync.Push, Local: local, Remote: "/home/sprite/x", Skipped: []filesync.Skipped{
		{Reason: "link out of the folder", Count: 1, Bytes: 13, Biggest: []filesync.Named{{Path: "abs", Size: 13}}},
		{Reason: "ignored", Count: 2, Bytes: 20, Biggest: []filesync.Named{{Path: "a.log", Size: 20}}},
	}}
	a.showSync("paint", r, true)
	if said := out.String(); !strings.Contains(said, "left out, link out of the folder: 1: abs (13 B)") || strings.Contains(said, "ignored") {
		t.Errorf("it says\n%s", said)
	}
}
