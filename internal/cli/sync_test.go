package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/filesync"
)

// A sync names the files that it left out without a rule, no matter how small they are.
func TestSyncSaysWhatItLeftOut(t *testing.T) {
	var out bytes.Buffer
	inv := newInvocation(Streams{Out: &out, Err: &out})
	newRootCommand(inv)
	local := t.TempDir()
	r := &filesync.Report{Verb: filesync.Push, Local: local, Remote: "/home/sprite/x", Skipped: []filesync.Skipped{
		{Reason: "link out of the folder", Count: 1, Bytes: 13, Biggest: []filesync.Named{{Path: "abs", Size: 13}}},
		{Reason: "ignored", Count: 2, Bytes: 20, Biggest: []filesync.Named{{Path: "a.log", Size: 20}}},
	}}
	showSync(inv, "paint", r, true)
	if said := out.String(); !strings.Contains(said, "left out, link out of the folder: 1: abs (13 B)") || strings.Contains(said, "ignored") {
		t.Errorf("it says\n%s", said)
	}
}

// TestSyncTellsDeletionsFromChanges: after the sprite was restored to a checkpoint from before
// the last push, files are missing there. A pull would delete them here. So the text does not
// advise a pull to bring them.
func TestSyncTellsDeletionsFromChanges(t *testing.T) {
	for _, test := range []struct {
		verb           filesync.Verb
		newer, missing int64
		want           []string
		not            string
	}{
		{filesync.Push, 2, 0, []string{"2 changed only in the sprite; bring them here: cove sync pull"}, "deleted"},
		{filesync.Push, 0, 3, []string{"3 deleted only in the sprite", "cove sync push --reset --dry-run", "delete them here, too: cove sync pull"}, "changed"},
		{filesync.Push, 2, 3, []string{"2 changed only in the sprite", "3 deleted only in the sprite"}, "5"},
		{filesync.Pull, 0, 3, []string{"3 deleted only here", "cove sync pull --reset --dry-run", "delete them in the sprite, too: cove sync push"}, "changed"},
		{filesync.Pull, 1, 0, []string{"1 changed only here; send them: cove sync push"}, "deleted"},
	} {
		var out bytes.Buffer
		inv := newInvocation(Streams{Out: &out, Err: &out})
		newRootCommand(inv)
		r := &filesync.Report{Verb: test.verb, Local: "/here", Remote: "/there"}
		r.Newer.Count, r.Missing.Count = test.newer, test.missing
		showSync(inv, "paint", r, true)
		said := out.String()
		for _, want := range test.want {
			if !strings.Contains(said, want) {
				t.Errorf("%+v: %q is not in\n%s", test, want, said)
			}
		}
		if strings.Contains(said, test.not) {
			t.Errorf("%+v: %q is in\n%s", test, test.not, said)
		}
	}
}
