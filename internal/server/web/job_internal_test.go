package web

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
)

// TestTerminal: in a program's output, colours become classes, and all other sequences are
// removed.
func TestTerminal(t *testing.T) {
	for in, want := range map[string]string{
		"a\x1b[31mb\x1b[0mc":                        "a[f1:b]c",
		"\x1b[1;38;5;2;48;2;1;2;3mx":                "[f2 tb:x]",
		"\x1b[m\x1b[;mx\x1b[?25l\x1b[2Jy":           "xy",
		"\x1b]0;t\ax\x1b]8;;http://e\x1b\\y\x1bPz":  "xy",
		"10%\r20%\r100%\r\nnext":                    "[td:10%⟦U+000D⟧20%⟦U+000D⟧]100%\nnext",
		"\x1b[31mrm -rf /\x1b[0m\x1b[2K\rls":        "[td:rm -rf /⟦U+000D⟧]ls",
		"rm -rf /\r        \r\n":                    "rm -rf /\n",
		"\rx\r\n\r\n":                               "x\n\n",
		"1\r2\r3\r4\r5\r6\r7":                       "[td:1⟦U+000D⟧2⟦U+000D⟧3⟦U+000D⟧4⟦U+000D⟧… 2 more, which cove job events has …⟦U+000D⟧]7",
		"\x1b[31;41mx":                              "[f1:x]",
		"\x1b":                                      "",
		"\x1b[31":                                   "",
		"\x1b[99999999999999999999mx":               "x",
		"\x1b[38mx\x1b[38;5mx\x1b[38;5;999mx":       "xxx",
		"a\u202eb\u2028c\u200bd\xff<b>\x00":         "a⟦U+202E⟧b⟦U+2028⟧c⟦U+200B⟧d\uFFFD<b>",
		"\x1b[97;104mx\x1b[39;49;22;23;24my\x1b(Bz": "[f15 b12:x]yBz",
	} {
		var got strings.Builder
		for _, s := range terminal(in) {
			if s.Class == "" {
				got.WriteString(s.Text)
			} else {
				fmt.Fprintf(&got, "[%s:%s]", s.Class, s.Text)
			}
		}
		if got.String() != want {
			t.Errorf("%q: got %q, want %q", in, got.String(), want)
		}
	}
}

// FuzzTerminal: whatever a program prints, nothing of it acts on the page, or on what stands beside it.
func FuzzTerminal(f *testing.F) {
	f.Add("a\x1b[31;1mb\x1b]0;x\a\r\x1b")
	f.Fuzz(func(t *testing.T, s string) {
		for _, seg := range terminal(s) {
			if plain(seg.Text) != seg.Text || strings.Trim(seg.Class, "fbtdiu 0123456789") != "" {
				t.Errorf("%q: %q %q", s, seg.Class, seg.Text)
			}
		}
	})
}

// corpus are texts of agents that mean harm.
var corpus = []string{
	hostile, strings.Repeat("x", 1<<20), "<script>alert(1)</script><svg onload=alert(1)>", "\" onmouseover=\"alert(1)", "</pre></li><h1>", "javascript:alert(1)",
	"```diff\n+</div><script>\n```", "@@ -1 +1 @@\n-</div><script>\n+x", "\u2028\u2029\u202e\ufeff\u200b", strings.Repeat("```\n", 5000), strings.Repeat("\x1b[31m", 50000), "\xff\xfe\xf0\x28",
	strings.Repeat("a\n", 100000), `{"file_path":"</code><script>","old_string":"<b>","new_string":"\u001b[31m","command":"<i>"}`,
}

// TestHostileTranscript: whatever an agent says, in whatever place of a line of its own form, the page has
// it as text, in bounds.
func TestHostileTranscript(t *testing.T) {
	quote := func(s string) string {
		return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\x1b", `\u001b`, "\a", `\u0007`).Replace(s)
	}
	for _, text := range corpus {
		tr := newTranscript(working(), true)
		out := func(format string, args ...any) {
			tr.add(cove.JobEvent{Seq: int64(len(tr.entries) + 1), Type: "output", Stream: "stdout", Text: fmt.Sprintf(format, args...)})
		}
		q := quote(text)
		out(`{"type":"assistant","message":{"content":[{"type":"text","text":"%s"},{"type":"thinking","thinking":"%[1]s"},{"type":"tool_use","id":"%[1]s","name":"%[1]s","input":{"command":"%[1]s","path":"%[1]s"}}]}}`, q)
		out(`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"%s","content":"%[1]s","is_error":true}]}}`, q)
		if text[0] == '{' {
			out(`{"type":"assistant","message":{"content":[{"type":"tool_use","id":"j","name":"x","input":%s}]}}`, text)
		}
		out("%s", text)
		for _, kind := range []string{"notice", "input", "event", "exit", "state", "end"} {
			ev := cove.JobEvent{Seq: 99, Type: kind, Text: text, State: cove.JobState(text), Reason: text, Outcome: &cove.Outcome{Kind: text, Reason: text}}
			tr.add(ev)
		}
		var page strings.Builder
		for _, e := range tr.entries {
			part, err := html("entry", e)
			if err != nil {
				t.Fatal(err)
			}
			page.WriteString(part)
		}
		got := page.String()
		for _, bad := range []string{"<script", "<svg", "<img", "<h1", "<b>", "<i>", "onmouseover=\"", "\x1b", "\u202e", "\u2028", "\u200b", "\x00", "\a"} {
			if strings.Contains(got, bad) {
				i := strings.Index(got, bad)
				t.Errorf("%.40q: the page has %q: %q", text, bad, got[max(0, i-100):i+60])
			}
		}
		if len(got) > 40*maxPart {
			t.Errorf("%.40q: the page has %d bytes", text, len(got))
		}
	}
}

// TestTranscript: a call gets its answer, output stands together, and a stream that began later finds
// the call on the page.
func TestTranscript(t *testing.T) {
	lines := []string{
		`{"type":"assistant","message":{"content":[{"type":"tool_use","id":"a","name":"Edit","input":{"file_path":"x","old_string":"1","new_string":"2"}}]}}`,
		`{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"a","content":"ok"}]}}`, "one", "two",
	}
	tr, late := newTranscript(working(), true), newTranscript(working(), false)
	for i, l := range lines {
		ev := cove.JobEvent{Seq: int64(i + 1), Type: "output", Stream: "stdout", Text: l}
		tr.add(ev)
		if i == 0 {
			continue
		}
		changes, err := changesOf(late.add(ev))
		if err != nil || len(changes) != 1 {
			t.Fatalf("got %+v, %v", changes, err)
		}
		if want := []string{"", tr.entries[0].ID + "-a", "transcript", "e-3-o"}[i]; changes[0].Target != want {
			t.Errorf("%s changes %s, want %s", l, changes[0].Target, want)
		}
	}
	if len(tr.entries) != 2 || tr.entries[0].Answer == nil || tr.entries[0].Input[0].Kind != "diff" || tr.entries[1].Kind != "output" {
		t.Errorf("got %+v", tr.entries)
	}
}

// TestRefusedCall: a command that a person refused is not shown as one that ran without output.
func TestRefusedCall(t *testing.T) {
	job := working()
	job.Agent = "acp"
	tr := newTranscript(job, true)
	for i, l := range []string{
		`{"type":"permission_request","id":"3","call":"c1","title":"List","kind":"execute","text":"ls","options":[{"id":"1","name":"No","kind":"reject_once"}]}`,
		`{"type":"permission","id":"3","title":"List","status":"denied"}`, `{"type":"tool_update","id":"c1","status":"failed"}`,
	} {
		tr.add(cove.JobEvent{Seq: int64(i + 1), Type: "event", Stream: "events", Text: l})
	}
	page, err := html("entry", tr.entries[0])
	if err != nil || strings.Contains(page, "No output") || !strings.Contains(page, "It was refused.") {
		t.Errorf("got %v, %s", err, page)
	}
}

// TestDiffOfDiffs: two diffs of a file are alike, or it is said which lines only one has.
func TestDiffOfDiffs(t *testing.T) {
	file := func(path string, lines ...string) cove.JobDiffFile {
		f := cove.JobDiffFile{Path: path, Status: cove.DiffModified}
		h := cove.JobDiffHunk{}
		for _, l := range lines {
			h.Lines = append(h.Lines, cove.JobDiffLine{Kind: l[:1], Text: l[1:]})
		}
		f.Hunks = []cove.JobDiffHunk{h}
		return f
	}
	files, same := diffOfDiffs([]cove.JobDiffFile{file("a", "+x", "+x", " c"), file("b", "+1"), file("c", "-1")}, []cove.JobDiffFile{file("a", "+x", "-y"), file("b", "+1"), file("d", "+1")})
	if same != 1 || len(files) != 3 || files[0].Path != "a" || files[1].B.Changed || files[2].A.Changed {
		t.Fatalf("got %+v, %d", files, same)
	}
	if a, b := files[0].A.Lines, files[0].B.Lines; a[0].Only || !a[1].Only || b[0].Only || !b[1].Only {
		t.Errorf("got %+v, %+v", a, b)
	}
	binary := cove.JobDiffFile{Path: "x.pyc", Status: cove.DiffAdded, Binary: true}
	files, _ = diffOfDiffs([]cove.JobDiffFile{binary}, nil)
	if len(files) != 1 || !files[0].A.Changed || !files[0].A.Binary || files[0].B.Changed {
		t.Errorf("a binary file of one job: got %+v", files)
	}
}

// TestDiffIDs: each file of a diff, and of its parts, has an element of its own, though paths be shown alike.
func TestDiffIDs(t *testing.T) {
	files := []cove.JobDiffFile{{Path: "a\uFFFD", Status: cove.DiffAdded}, {Path: "a\uFFFD", Status: cove.DiffAdded}, {Path: "b", Status: cove.DiffDeleted}, {Path: "b", Status: cove.DiffAdded}}
	ids := map[string]bool{}
	for range 2 { // the same ones each time
		for _, part := range []string{"", cove.DiffLeftover} {
			for _, f := range newDiffView(cove.JobDiff{Job: "j", Part: part, Files: files}, nil, "one").Files {
				ids[f.ID] = true
			}
		}
	}
	if len(ids) != 2*len(files) {
		t.Errorf("%d IDs of %d files", len(ids), 2*len(files))
	}
}

// TestDiffSays: a file that is added says if it is no usual one, and a line that is cut says so where it begins.
func TestDiffSays(t *testing.T) {
	link := cove.JobDiffFile{Path: "link", Status: cove.DiffAdded, NewMode: "120000", Hunks: []cove.JobDiffHunk{{Lines: []cove.JobDiffLine{{Kind: "+", New: 1, Text: "wide", Cut: true}}}}}
	tool := cove.JobDiffFile{Path: "tool", Status: cove.DiffDeleted, OldMode: "100755", Hunks: []cove.JobDiffHunk{{Lines: []cove.JobDiffLine{{Kind: "-", Old: 1, Text: "wide", Cut: true}}}}}
	usual := cove.JobDiffFile{Path: "usual", Status: cove.DiffAdded, NewMode: "100644"}
	for _, view := range []string{"one", "side"} {
		var said []string
		for _, f := range newDiffView(cove.JobDiff{Job: "j", Files: []cove.JobDiffFile{link, tool, usual}}, nil, view).Files {
			page, err := html("diff-file", f)
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, page)
		}
		for i, want := range []string{"added, a symbolic link<", "deleted, executable<", "added<"} {
			if !strings.Contains(said[i], want) || i < 2 && !strings.Contains(said[i], "too long: its first 2,000 bytes</span> wide…") {
				t.Errorf("%s: want %q in %s", view, want, said[i])
			}
		}
	}
}

// TestDiffSaysLeftOut: a file whose lines are left out says so, with its counts if git has counted. It does not look like
// an empty file. The sentence above says whether all files are named.
func TestDiffSaysLeftOut(t *testing.T) {
	long := cove.JobDiffFile{Path: "aa-data.txt", Status: cove.DiffAdded, NewMode: "100644", Added: 7, LeftOut: "too long", Hunks: []cove.JobDiffHunk{}}
	unknown := cove.JobDiffFile{Path: "zz", Status: cove.DiffModified, LeftOut: "too long", Uncounted: true, Risk: "runs", Hunks: []cove.JobDiffHunk{}}
	empty := cove.JobDiffFile{Path: "empty", Status: cove.DiffAdded, NewMode: "100644", Hunks: []cove.JobDiffHunk{}}
	says := func(d cove.JobDiff, want, not []string) {
		t.Helper()
		page, err := html("diff", newDiffView(d, nil, "one"))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range want {
			if !strings.Contains(page, s) {
				t.Errorf("%q is not in %s", s, page)
			}
		}
		for _, s := range not {
			if strings.Contains(page, s) {
				t.Errorf("%q is in %s", s, page)
			}
		}
	}
	says(cove.JobDiff{Job: "j", Files: []cove.JobDiffFile{long, empty}, Cut: "the lines of some files are left out"},
		[]string{`<span class="count">2</span>`, "+7</span>", "not shown here: too long", "Not shown here: too long.", "Every changed file is named, 1 of them without its lines."},
		[]string{"at least", "A pull may hold more", "lines not counted"})
	says(cove.JobDiff{Job: "j", Files: []cove.JobDiffFile{unknown}, Cut: "the lines of some files are left out"},
		[]string{`<span class="count">1</span> <span class="dim">at least</span>`, "lines not counted", "Not shown here: too long."}, []string{`<code>zz</code></a> <span class="dim">modified</span> <span class="good">+0`})
	says(cove.JobDiff{Job: "j", Files: []cove.JobDiffFile{unknown, long}, Unnamed: true, Cut: "more files have changed than a review names"},
		[]string{`<span class="count">at least 2</span>`, "A pull may hold more than is named here", "At least 1 to look at first"}, []string{"Every changed file"})
	says(cove.JobDiff{Job: "j", Files: []cove.JobDiffFile{empty}}, []string{"+0</span>"}, []string{"ot shown here", "This is not all", "at least"})
}

// TestCompareLeftOut: of two files whose lines are left out nothing is said to be alike, and the page says what it lacks.
func TestCompareLeftOut(t *testing.T) {
	long := []cove.JobDiffFile{{Path: "aa-data.txt", Status: cove.DiffAdded, NewMode: "100644", Added: 1, LeftOut: "too long"}}
	files, same := diffOfDiffs(long, long)
	if same != 0 || len(files) != 1 || files[0].A.LeftOut != "too long" || files[0].B.LeftOut != "too long" {
		t.Fatalf("got %+v, %d alike", files, same)
	}
	job := func(id string, d cove.JobDiff) comparedJob {
		j := comparedJob{Diff: diffView{JobDiff: d, JobID: id, Files: []changedFile{{JobDiffFile: long[0]}}}}
		j.ID = id
		return j
	}
	a := job("aaa", cove.JobDiff{Unnamed: true, Cut: "more files have changed"})
	b := job("bbb", cove.JobDiff{Cut: "the lines of some files are left out"})
	page, err := html("compare", comparePage{A: a, B: b, Files: files})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Not all that aaa changed is here: more files have changed. It may have changed", "Not all that bbb changed is here: the lines of some files are left out. The rest", "at least 1 <span", "Not shown here: too long", "1 not alike or not compared, 0 changed alike"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in %s", want, page)
		}
	}
	if page, err = html("compare", comparePage{A: a, B: b}); err != nil || strings.Contains(page, "Both changed the same.") {
		t.Errorf("nothing is known to differ: %v, %s", err, page)
	}
}

// TestErrorOnce: the error of a step is not said again if the head of the page says it. The hint still is.
func TestErrorOnce(t *testing.T) {
	steps := cove.JobSteps{Steps: []cove.Step{{Key: cove.StepClone, State: cove.StepFailed, Error: "the repository is not there", Hint: "cove job retry 0a1b2c"}}}
	for reason, again := range map[string]bool{"": true, "the agent ended with 1": true, "clone: the repository is not there:\nfatal: no": false} {
		var o *cove.Outcome
		if reason != "" {
			o = &cove.Outcome{Kind: "prepare_failed", Reason: reason}
		}
		page, err := html("job-steps", newStepsView(steps, o))
		if err != nil || strings.Contains(page, "is not there") != again || strings.Contains(page, `href="#job-head"`) == again || !strings.Contains(page, "cove job retry 0a1b2c") {
			t.Errorf("%q: %v\n%s", reason, err, page)
		}
	}
}

// TestNoCommit: for a job without commits, the page does not say that a pull brings some, or that git was asked. A comment
// is shown whole, as it is sent.
func TestNoCommit(t *testing.T) {
	page, err := html("diff", newDiffView(cove.JobDiff{Base: strings.Repeat("a", 40), Compares: cove.DiffCommits}, nil, "one"))
	if err != nil || !strings.Contains(page, "has committed nothing") || strings.Contains(page, "a pull brings") || strings.Contains(page, "Git") {
		t.Errorf("got %v, %s", err, page)
	}
	long := strings.Repeat("word ", 1000) + "end."
	page, err = html("comments", commentsView{Comments: []cove.JobComment{{Path: "a", Line: 1, Text: long}}})
	if err != nil || !strings.Contains(page, long) {
		t.Errorf("got %v, %d bytes", err, len(page))
	}
}

// TestFirstJobRepo: the commit by which programs know a first job is that of its repository.
func TestFirstJobRepo(t *testing.T) {
	if got := firstJob().Commit; got != cove.FirstJobRepo {
		t.Errorf("the first job's repository is %s, and cove.FirstJobRepo %s", got, cove.FirstJobRepo)
	}
}
