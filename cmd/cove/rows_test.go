package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rows are what must hold of jobs, of the commands in a sprite, and of a sync, and the
// tests that show it with real sandboxes, or in the package that decides on it.
var rows = []struct{ row, what, tests string }{
	{"E5", "a command has its folder, environment, user and time; at its end nothing of it lives, and the code is 124", "testdata/exec-ends.txtar"},
	{"E6", "TERM, then KILL, and gone when that returns", "testdata/exec-ends.txtar"},
	{"E7", "characters of several bytes arrive whole", "testdata/exec-ends.txtar ../../internal/guest/supervise:TestJournalCut"},
	{"J1", "a job outlives the command line, the server, and the sleep of its sandbox", "testdata/kill.txtar TestSoakKill TestSoakSleep TestSoakMoments TestJobStartedAnew"},
	{"J2", "exactly one end, in all exits", "TestJobJ2 ../../internal/store:TestFinishHasOneWinner ../../internal/guest/supervise:TestRepair"},
	{"J3", "the outcome comes of what the agent said, its exit code and the commits together", "TestJobJ3 ../../internal/agents:TestClaudeJudge"},
	{"J4", "guards: running time, silence, turns, files", "TestJobJ4 TestSoakSleep ../../internal/guest/supervise:TestGuards"},
	{"J5", "logs and events from any number on, across a server's end", "TestJobJ5 ../../sprites:TestJobEvents"},
	{"J6", "list, show, wait, stop, rm, attach; the exit code tells the end", "testdata/job-states.txtar TestInteractive"},
	{"J7", "stop in order, then by force, and again", "TestJobJ7 ../../internal/guest/supervise:TestGrace"},
	{"J8", "who waits hears of a failure at once", "TestJobJ7 testdata/pull.txtar"},
	{"J9", "messages to an agent that works or waits", "TestJobJ9 TestClaudeConverse ../../internal/guest/supervise:TestSend"},
	{"J10", "a job's access to its model is its own, ends with it, and no key is inside", "TestJobConnector TestConnectors TestClaude"},
	{"J11", "whose environment goes before whose; values are not shown", "TestJobJ11 TestJobH5"},
	{"J12", "where the token comes from, and what to do where there is none", "../../internal/cli:TestFindToken ../../internal/server:TestTokenLife"},
	{"H4", "what jobs leave is removed by rule; Ctrl-C undoes a push", "TestJobH4 ../../internal/job:TestVerdict"},
	{"H5", "all that is known of a job in one file", "TestJobH5"},
	{"H6", "so many sandboxes and no more, each with its limits", "testdata/limits.txtar"},
	{"hostile 44", "what makes something run is listed and held; a death in the middle leaves the old or the new", "TestHostile44 TestSoakMoments testdata/hostile.txtar ../../internal/gitwork:TestRisky ../../internal/push:TestPullHolds"},
	{"S1", "there and back is identity", "TestSync TestSoakSyncShare ../../internal/filesync:TestRoundTrip ../../internal/filesync:TestModes"},
	{"S2", "memory is constant", "TestSync ../../internal/filesync:TestHostileMillion"},
	{"S3", "one change sends one file, and nothing is hashed twice", "TestSync ../../internal/filesync:TestAgainSendsNothing ../../internal/filesync:TestStamps"},
	{"S4", "deletes and renames propagate", "TestSync ../../internal/filesync:TestDeletesAndRenames"},
	{"S5", "what is left out, both ways, as git has it", "TestSync ../../internal/filesync:TestIgnoreAsGit ../../internal/filesync:TestLeavesOut"},
	{"S6", "a pull stays inside, and out of git", "TestSync testdata/trees.txtar ../../internal/filesync:TestLinkRace"},
	{"S7", "hostile trees and streams", "TestSync ../../internal/filesync:TestHostileManifests ../../internal/filesync:TestHostileStreams ../../internal/filesync:TestHostileContent"},
	{"S8", "conflicts are found, refused, merged or decided", "TestSync testdata/trees.txtar ../../internal/filesync:TestConflicts ../../internal/filesync:TestDecideAll ../../internal/filesync:TestMergeAfterCut"},
	{"S9", "the old tree or the new one, at whatever moment it dies", "TestSoakSyncKill ../../internal/filesync:TestFaults ../../internal/filesync:TestFaultsTwice"},
	{"S10", "what is overwritten comes back", "TestSync ../../internal/filesync:TestUndo ../../internal/filesync:TestBackupsAreBounded"},
	{"S11", "a stream that is cut or damaged changes nothing", "TestSync ../../internal/filesync:TestCut ../../internal/filesync:TestDamage"},
	{"S12", "full disks", "TestSync ../../internal/filesync:TestFaults"},
	{"S13", "a failed pull, or a failed agent, keeps the sprite", "TestSync testdata/trees.txtar testdata/pull.txtar"},
	{"S14", "a job's folders are pulled on success, where the person says so", "testdata/trees.txtar"},
	{"S15", "parallel pushes do not meet", "TestSync ../../internal/filesync:TestParallel"},
	{"S16", "a dry run is what is done", "TestSync ../../internal/filesync:TestDryRun"},
	{"S17", "git inside knows the person, and takes folders for its own", "TestSync TestGitConnector"},
}

// TestRows looks whether the tests that the rows name are there.
func TestRows(t *testing.T) {
	for _, r := range rows {
		for test := range strings.FieldsSeq(r.tests) {
			if !exists(t, test) {
				t.Errorf("%s (%s): there is no %s", r.row, r.what, test)
			}
		}
	}
}

// exists finds a script by its path, or a test by its name, in this package or FOLDER:.
func exists(t *testing.T, test string) bool {
	t.Helper()
	dir, name, ok := strings.Cut(test, ":")
	if !ok && strings.Contains(test, "/") {
		_, err := os.Stat(test)
		return err == nil
	}
	if !ok {
		dir, name = ".", test
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(text), "\nfunc "+name+"(t *testing.T) {")
	})
}
