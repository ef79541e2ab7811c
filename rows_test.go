package cove_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rows are requirements, each with the tests that show it, with real sandboxes or in the
// package that decides on it. A test is a script of internal/e2e/scripts, FOLDER:TEST, or
// FOLDER:TEST/NAME. NAME is a subtest's name, with _ for a space, or one of the words that
// its name begins with.
var rows = []struct{ row, what, tests string }{
	{"E1", "both streams come apart, byte for byte", "internal/e2e/sprite:TestExec/E1 internal/guest:TestStreams internal/e2e/sprite:TestSoakOutput"},
	{"E2", "the command's own exit code, and 128+N for a signal", "internal/e2e/sprite:TestExec/E2 internal/guest:TestExitCodes internal/cli:TestClassify"},
	{"E3", "input is closed unless it is wanted; then all of it comes, and its end", "internal/e2e/sprite:TestExec/E3 internal/guest:TestStreams sprites:TestStdinIsWholeAndEnds"},
	{"E4", "the command's arguments are its own, flags too", "internal/e2e/sprite:TestExec/E4 exec.txtar"},
	{"E5", "a command has its folder, environment, user and time; at its end nothing of it lives, and the code is 124", "exec-ends.txtar"},
	{"E6", "TERM, then KILL, and gone when that returns", "exec-ends.txtar"},
	{"E7", "characters of several bytes arrive whole", "exec-ends.txtar internal/guest/supervise:TestJournalCut"},

	{"E8", "a terminal is resized, left, listed, joined again and killed", "internal/e2e/sprite:TestTerminal internal/e2e/sprite:TestTerminalsSurvive internal/e2e/sprite:TestExec/E8 internal/guest:TestTerminal"},
	{"E9", "--json is one document on standard output", "internal/e2e/sprite:TestExec/E9 internal/cli:TestReport"},
	{"E10", "not found, stopped, no token, unreachable and timed out are told apart", "internal/e2e/sprite:TestExec/E10 internal/cli:TestClassify exec.txtar"},

	{"S1", "push and then pull is identity", "internal/e2e/trees:TestSync/S1 internal/e2e/trees:TestSoakSyncShare internal/e2e/hostile:TestHostileNames internal/lib/filesync:TestRandom"},
	{"S2", "memory is constant", "internal/e2e/trees:TestSync/S2 internal/lib/filesync:TestHostileMillion"},
	{"S3", "one change sends one file", "internal/e2e/trees:TestSync/S3 internal/lib/filesync:TestAgainSendsNothing internal/lib/filesync:TestStamps"},
	{"S4", "deletes and renames propagate", "internal/e2e/trees:TestSync/S4 internal/lib/filesync:TestDeletesAndRenames"},
	{"S5", "excludes are anchored, repeatable, the same both ways", "internal/e2e/trees:TestSync/S5 internal/lib/filesync:TestIgnoreAsGit internal/lib/filesync:TestLeavesOut"},
	{"S6", "a pull stays inside, and out of .git", "internal/e2e/trees:TestSync/S6 trees.txtar internal/e2e/hostile:TestHostileArchives/git's internal/lib/filesync:TestHostileManifests/git_of_NTFS"},
	{"S7", "hostile trees and archives", "internal/e2e/trees:TestSync/S7 internal/e2e/hostile:TestHostileArchives internal/lib/filesync:TestHostileMillion"},
	{"S8", "conflicts are found, and nothing is overwritten", "internal/e2e/trees:TestSync/S8 trees.txtar internal/lib/filesync:TestConflicts internal/lib/filesync:TestDecideAll internal/lib/filesync:TestMergeAfterCut internal/lib/filesync:TestNoBase"},
	{"S9", "killed at any moment, it is the old tree or the new one", "internal/e2e/trees:TestSoakSyncKill internal/lib/filesync:TestFaults internal/lib/filesync:TestFaultsTwice"},
	{"S10", "what is overwritten or deleted comes back", "internal/e2e/trees:TestSync/S10 internal/lib/filesync:TestUndo"},
	{"S11", "what is cut or damaged changes nothing", "internal/e2e/trees:TestSync/S11 internal/lib/filesync:TestCut internal/lib/filesync:TestDamage"},
	{"S12", "a full disk at either end is an error, and no half of a tree", "internal/e2e/trees:TestSync/S12 internal/e2e/hostile:TestHostileArchives/a_bomb"},
	{"S13", "what fails never costs the sprite", "internal/e2e/trees:TestSync/S13 trees.txtar refused.txtar internal/e2e/trees:TestGitG6 internal/e2e/jobs:TestJobJ2"},
	{"S14", "a pull after success if that is wanted; after a failure what is there stays, and it is said what to type", "trees.txtar config.txtar pull.txtar"},
	{"S15", "pushes at once do not collide", "internal/e2e/trees:TestSync/S15 internal/lib/filesync:TestParallel"},
	{"S16", "a dry run is what is then done", "internal/e2e/trees:TestSync/S16 internal/lib/filesync:TestDryRun"},
	{"S17", "git inside commits as the person, if that is wanted, and trusts the folders; a job always does", "identity.txtar internal/e2e/trees:TestSync/S17 internal/e2e/trees:TestGitConnector"},

	{"G1", "a dirty tree is refused, included or ignored, and the index is not touched", "internal/e2e/trees:TestGitG1 refused.txtar"},
	{"G2", "repositories of every shape", "internal/e2e/trees:TestGitG2 internal/e2e/trees:TestGitG2Submodules internal/e2e/trees:TestGitG2LFS internal/e2e/trees:TestSoakRepositories"},
	{"G3", "results are under the job's refs, and only the recorded branch moves", "internal/e2e/trees:TestGitG3 pull.txtar"},
	{"G4", "what is no fast-forward is kept, with a look ahead and ways on", "internal/e2e/trees:TestGitG4 two-jobs.txtar"},
	{"G5", "no commits are no error", "internal/e2e/trees:TestGitG5 pull.txtar"},
	{"G6", "what was left uncommitted is collected", "internal/e2e/trees:TestGitG6"},
	{"G7", "what was cut off or changed is rejected, and no hook runs", "internal/e2e/trees:TestGitG7 internal/e2e/hostile:TestHostileBundles hostile.txtar internal/cli/gitwork:TestImportRejectsDamage"},
	{"G8", "jobs at once on one repository", "internal/e2e/trees:TestGitG8 two-jobs.txtar"},
	{"G9", "what is left is listed, and goes", "internal/e2e/trees:TestGitG9 internal/e2e/jobs:TestJobH4"},
	{"G10", "a depth bounds what is sent, and the repository inside is sound", "internal/e2e/trees:TestGitG10 internal/cli/gitwork:TestBundleShallow"},

	{"J1", "a job outlives the command line, the server, and the sleep of its sandbox", "kill.txtar internal/e2e/server:TestSoakKill internal/e2e/server:TestSoakSleep internal/e2e/jobs:TestSoakMoments internal/e2e/jobs:TestJobStartedAnew"},
	{"J2", "exactly one end, in all exits", "internal/e2e/jobs:TestJobJ2 internal/server/store:TestFinishHasOneWinner internal/guest/supervise:TestRepair"},
	{"J3", "the outcome comes of what the agent said, its exit code and the commits together", "internal/e2e/jobs:TestJobJ3 internal/server/agents:TestClaudeJudge"},
	{"J4", "guards: running time, silence, turns, files", "internal/e2e/jobs:TestJobJ4 internal/e2e/server:TestSoakSleep internal/guest/supervise:TestGuards"},
	{"J5", "logs and events from any number on, across a server's end", "internal/e2e/jobs:TestJobJ5 .:TestJobEvents"},
	{"J6", "list, show, wait, stop, rm, attach; the exit code tells the end", "job-states.txtar internal/e2e/jobs:TestInteractive"},
	{"J7", "stop in order, then by force, and again", "internal/e2e/jobs:TestJobJ7 internal/guest/supervise:TestGrace"},
	{"J8", "who waits hears of a failure at once", "internal/e2e/jobs:TestJobJ7 pull.txtar"},
	{"J9", "messages to an agent that works or waits", "internal/e2e/jobs:TestJobJ9 internal/e2e/agents:TestClaudeConverse internal/guest/supervise:TestSend"},
	{"J10", "a job's access to its model is its own, ends with it, and no key is inside", "internal/e2e/jobs:TestJobConnector internal/e2e/jobs:TestConnectors internal/e2e/agents:TestClaude"},
	{"J11", "whose environment goes before whose; values are not shown", "internal/e2e/jobs:TestJobJ11 internal/e2e/jobs:TestJobH5"},
	{"J12", "where the token comes from, and what to do where there is none", "diagnose.txtar internal/cli:TestFindToken internal/server:TestTokenLife"},

	{"H1", "setup twice does nothing the second time, and looks at the agent where it will run", "setup.txtar"},
	{"H2", "ping times each step; diagnose says what is wrong, and what to type", "diagnose.txtar internal/e2e/server:TestDiagnoseConnectors internal/e2e/server:TestDiagnoseFullDisk"},
	// It has no --fix: each finding has the command that is its fix.
	{"H3", "doctor looks at the machine, the programs and the server, and does a whole job", "doctor.txtar"},
	{"H4", "what jobs leave is removed by rule; Ctrl-C undoes a push", "internal/e2e/jobs:TestJobH4 internal/server/job:TestVerdict"},
	{"H5", "all that is known of a job in one file", "internal/e2e/jobs:TestJobH5"},
	{"H6", "so many sandboxes and no more, each with its limits", "limits.txtar"},

	{"L1", "made, started, stopped and removed once and again, with the state as it is; what has work wants --force", "lifecycle.txtar refused.txtar internal/server/sprite:TestDelete"},
	{"L2", "ready when it answers, not after a while", "url.txtar internal/server/sprite:TestOneBootForAll internal/server/runtime/gvisor:TestRuntime"},
	{"L3", "prepared by copies and scripts, with their logs, again and again", "setup.txtar config.txtar internal/e2e/hostile:TestHostileNames internal/cli/tree:TestTreeRoundTrip"},
	{"L4", "ports by a proxy that ends; a request wakes", "proxy.txtar restart.txtar url.txtar internal/e2e/sprite:TestPorts"},

	{"F1", "what is missing is an error of its own, and never empty", "internal/lib/tools:TestReadNoFile internal/e2e/agents:TestTools/files"},
	{"F2", "ranges, what is binary, size and hash, and what is cut, between characters", "internal/lib/tools:TestRead internal/lib/tools:TestReadLarge"},
	{"F3", "50 MB, under names of every kind", "internal/e2e/agents:TestTools/large internal/lib/tools:TestWrite internal/lib/tools:TestWriteLarge"},
	{"F4", "the old content or the new, also when it is killed; mode, parents, if_match", "internal/e2e/agents:TestTools/killed internal/lib/tools:TestWriteAtomic internal/lib/tools:TestWrite"},
	{"F5", "edits are literal: $&, CRLF, other bytes, 128 KiB; not unique, stale, all", "internal/lib/tools:TestEdit internal/lib/tools:TestEditRefused internal/lib/tools:FuzzEdit internal/e2e/agents:TestTools/files"},
	{"F6", "** and what git ignores; sorted, limited", "internal/lib/tools:TestGlob"},
	{"F7", "patterns of every kind; no match is no error, a bad pattern is", "internal/lib/tools:TestGrep internal/lib/tools:TestGrepAsGrep internal/e2e/agents:TestTools/files"},
	{"F8", "both streams, exit code, what is left out and where it is; in the background", "internal/lib/tools:TestBash internal/lib/tools:TestBashOutput internal/lib/tools:TestBashBackground internal/e2e/agents:TestTools/timeout"},
	{"F9", "where the sandbox is gone, calls fail and say so, and nothing is done on the host", "internal/e2e/agents:TestTools/gone internal/e2e/agents:TestLoopGone"},
	{"F10", "calls at once on one file are made one after the other, or refused", "internal/lib/tools:TestEditAtOnce internal/lib/tools:TestEditBySeveral"},
	{"A1", "the loop ends when the model has no more calls, or says so; too many turns are a failure", "internal/guest/loop:TestA1 internal/e2e/agents:TestLoop internal/e2e/agents:TestLoopEnds"},
	{"A2", "the end of the time, and silence, end what is under way", "internal/guest/loop:TestA2"},
	{"A3", "what passes is tried again, and nothing else", "internal/guest/loop:TestA3 internal/e2e/agents:TestLoopEnds"},
	{"A4", "what looks like a call in a text is not carried out", "internal/guest/loop:TestA4"},
	{"A5", "the events of a loop, numbered", "internal/guest/loop:TestA5"},
	{"A6", "what was used, what it cost, the session and why it stopped", "internal/guest/loop:TestA6 internal/e2e/agents:TestLoop"},
	{"A7", "a prompt of a megabyte", "internal/guest/loop:TestA7 internal/e2e/agents:TestLoopEnds"},
	{"A8", "which provider, URL and credential; key and token are never both sent", "internal/guest/loop:TestA8"},
	{"A9", "a dry run makes nothing, and fails as it would in earnest: here, at a backend, without a server; a scripted model stands in for one", "internal/e2e/jobs:TestDryRun internal/e2e/jobs:TestBackendDryRun internal/e2e/agents:TestLoop"},
	{"P1", "what a role does not allow is neither offered nor carried out; an unknown one allows nothing", "internal/guest/loop:TestP1 internal/e2e/agents:TestTools"},

	{"P2", "several roles only narrow", "internal/lib/tools:TestRolesNarrow internal/server/mcpserver:TestRoles internal/e2e/agents:TestTools/roles"},
	{"P3", "tools of the host's MCP servers say where they are, are those that were named, and are logged", "internal/e2e/agents:TestLoopMCP internal/guest/loop:TestP3 internal/guest/loop:TestP3Refused"},

	{"U1", "completions; settings are shown, checked, and not guessed at", "config.txtar service.txtar internal/cli/config:TestProblems"},
	{"U2", "every flag has a test", "internal/cli:TestEveryFlagIsTested internal/cli/config:TestOrder"},

	{"P4", "what an agent asks a person is shown escaped", "internal/e2e/agents:TestACP internal/lib/printable:TestText internal/server/agents:TestACPQuestion"},
}

// TestRows looks whether the tests that the rows name are there, and no row twice.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.row] {
			t.Errorf("%s is there twice", r.row)
		}
		seen[r.row] = true
		for test := range strings.FieldsSeq(r.tests) {
			if !exists(t, test) {
				t.Errorf("%s (%s): there is no %s", r.row, r.what, test)
			}
		}
	}
	for _, area := range []struct {
		name        string
		first, last int
	}{{"E", 1, 10}, {"F", 1, 10}, {"S", 1, 17}, {"G", 1, 10}, {"J", 1, 12}, {"H", 1, 6}, {"L", 1, 4}, {"U", 1, 2}, {"A", 1, 9}, {"P", 1, 4}} {
		for n := area.first; n <= area.last; n++ {
			if row := area.name + strconv.Itoa(n); !seen[row] {
				t.Errorf("there is no row %s", row)
			}
		}
	}
	for _, none := range []string{"none.txtar", "TestExec", "internal/e2e/trees:TestNone", "internal/e2e/trees:TestSync/S99", "internal/e2e/trees:TestNone/S1", "internal/cli:TestNone", "internal/lib/filesync:TestHostileStreams/none"} {
		if exists(t, none) {
			t.Errorf("%s is found, and is not there", none)
		}
	}
}

// scripts is the folder of the scripts that cove's commands are tested by.
const scripts = "internal/e2e/scripts/testdata"

// exists finds a script by its name, or a test by FOLDER:NAME.
func exists(t *testing.T, test string) bool {
	t.Helper()
	if strings.HasSuffix(test, ".txtar") {
		_, err := os.Stat(filepath.Join(scripts, test))
		return err == nil
	}
	dir, name, ok := strings.Cut(test, ":")
	if !ok {
		return false
	}
	name, sub, _ := strings.Cut(name, "/")
	names, ok := testsOf(t, dir)[name]
	return ok && (sub == "" || slices.ContainsFunc(names, func(s string) bool {
		for word := range strings.FieldsSeq(s) { // S13 S14 …
			if word == sub {
				return true
			}
			if !rowName.MatchString(word) {
				break
			}
		}
		return strings.ReplaceAll(s, " ", "_") == sub
	}))
}

var rowName = regexp.MustCompile(`^[A-Z]?[0-9]+$`)

// testsOf finds the tests of a package. For each it has the strings in the test and in the
// functions that it calls. The names of its subtests are among them.
func testsOf(t *testing.T, dir string) map[string][]string {
	t.Helper()
	if found, ok := testsIn[dir]; ok {
		return found
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	texts, calls := map[string][]string{}, map[string][]string{}
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range tree.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Body == nil {
				continue
			}
			name := f.Name.Name
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					if text, err := strconv.Unquote(n.Value); err == nil {
						texts[name] = append(texts[name], text)
					}
				case *ast.CallExpr:
					if id, ok := n.Fun.(*ast.Ident); ok {
						calls[name] = append(calls[name], id.Name)
					}
				}
				return true
			})
			calls[name] = append(calls[name], name)
		}
	}
	tests := map[string][]string{}
	for name, called := range calls {
		if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") {
			tests[name] = nil
			for _, f := range called {
				tests[name] = append(tests[name], texts[f]...)
			}
		}
	}
	testsIn[dir] = tests
	return tests
}

var testsIn = map[string]map[string][]string{}
