package agents

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-dev/cove"
)

// block is a step without its place.
type block struct{ Title, Shell, Code string }

// In these plans, ' stands for a backtick.
func TestSteps(t *testing.T) {
	for _, test := range []struct {
		name, plan string
		want       []block
	}{
		{"empty", "", nil},
		{"prose", "# Title\n\ntext\n", nil},
		{"backticks", "'''sh\necho a\n'''\n", []block{{"", "sh", "echo a\n"}}},
		{"tildes", "~~~bash\necho a\n~~~\n", []block{{"", "bash", "echo a\n"}}},
		{"spaced info string", "'''   Shell {.numbered} x\necho a\n'''\n", []block{{"", "sh", "echo a\n"}}},
		{"tilde's info string has backticks", "~~~ sh 'x'\necho a\n~~~\n", []block{{"", "sh", "echo a\n"}}},
		{"inline code is no fence", "'''sh echo''' a\n\n'''sh\nb\n'''\n", []block{{"", "sh", "b\n"}}},
		{"two ticks are no fence", "''sh\na\n''\n", nil},
		{"empty block", "'''sh\n'''\n", []block{{"", "sh", "\n"}}},
		{"blank lines", "'''sh\n\na\n\nb\n\n'''\n", []block{{"", "sh", "\na\n\nb\n\n"}}},

		{"longer fence holds a shorter", "''''sh\ncat <<x\n'''sh\n'''\nx\n'''''  \n", []block{{"", "sh", "cat <<x\n'''sh\n'''\nx\n"}}},
		{"other character does not close", "'''sh\n~~~\n'''\n", []block{{"", "sh", "~~~\n"}}},
		{"closing has no info string", "'''sh\n'''sh\n'''\n", []block{{"", "sh", "'''sh\n"}}},
		{"block in a block", "'''markdown\n# No\n~~~sh\nrm\n~~~\n'''\n", nil},
		{"non-shell blocks", "'''go\nx\n'''\n'''\ny\n'''\n'''console\n$ z\n'''\n'''sh\na\n'''\n", []block{{"", "sh", "a\n"}}},

		{"indented by three", "   '''sh\n   if a\n     b\n  c\nd\n  '''\n", []block{{"", "sh", "if a\n  b\nc\nd\n"}}},
		{"indented by four is code", "    '''sh\n    a\n    '''\n", nil},
		{"close indented by four does not", "'''sh\na\n    '''\n'''\n", []block{{"", "sh", "a\n    '''\n"}}},

		{"unclosed", "'''sh\na\nb\n", []block{{"", "sh", "a\nb\n"}}},
		{"unclosed, cut in a line", "'''sh\na\nb", []block{{"", "sh", "a\nb\n"}}},
		{"unclosed non-shell swallows", "'''go\na\n\n# Title\n", nil},
		{"CRLF", "# One\r\n\r\nTwo\r\n---\r\n\r\n'''sh\r\na\r\nb\r\n'''\r\n", []block{{"Two", "sh", "a\nb\n"}}},

		{"ATX", "# One\n'''sh\na\n'''\n'''sh\nb\n'''\n###### Six  ##\n'''bash\nc\n'''\n", []block{
			{"One", "sh", "a\n"}, {"One", "sh", "b\n"}, {"Six", "bash", "c\n"}}},
		{"ATX forms", "   ## A #1#\n'''sh\na\n'''\n#\n'''sh\nb\n'''\n", []block{{"A #1#", "sh", "a\n"}, {"", "sh", "b\n"}}},
		{"not ATX", "# One\n#Two\n####### Three\n    # Four\n\\# Five\n'''sh\na\n'''\n", []block{{"One", "sh", "a\n"}}},
		{"comment in a block", "# One\n'''go\n# Two\n'''\n'''sh\n# Three\n'''\n'''sh\na\n'''\n", []block{
			{"One", "sh", "# Three\n"}, {"One", "sh", "a\n"}}},

		{"setext", "One\n===\n'''sh\na\n'''\n Two \n-\n'''sh\nb\n'''\n", []block{{"One", "sh", "a\n"}, {"Two", "sh", "b\n"}}},
		{"setext in a block", "# One\n'''go\nTwo\n---\n'''\n'''sh\na\n'''\n", []block{{"One", "sh", "a\n"}}},
		{"thematic breaks", "# One\n\n---\n---\n\ntext\n\n---\n'''sh\na\n'''\n---\n'''sh\nb\n'''\n", []block{
			{"One", "sh", "a\n"}, {"One", "sh", "b\n"}}},
		{"break after other blocks", "# One\n- Two\n---\n1. Three\n---\n> Four\n---\n+ Five\n---\n12) Six\n---\n'''sh\na\n'''\n",
			[]block{{"One", "sh", "a\n"}}},
		{"emphasis and numbers", "**One** of 2.\n---\n'''sh\na\n'''\n1.2 Two\n---\n'''sh\nb\n'''\n", []block{
			{"**One** of 2.", "sh", "a\n"}, {"1.2 Two", "sh", "b\n"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for i := range test.want {
				test.want[i].Code = strings.ReplaceAll(test.want[i].Code, "'", "`")
			}
			plan := strings.ReplaceAll(test.plan, "'", "`")
			lines := strings.Split(strings.ReplaceAll(plan, "\r\n", "\n"), "\n")
			var got []block
			for _, s := range steps(plan) {
				got = append(got, block{s.Title, s.Shell, s.Code})
				// The step's line numbers are the plan's; its lines lose the fence's
				// indentation.
				for i, line := range strings.Split(strings.TrimSuffix(s.Code, "\n"), "\n") {
					if test.name != "empty block" && strings.TrimLeft(lines[s.Line-1+i], " ") != strings.TrimLeft(line, " ") {
						t.Errorf("line %d is %q, want %q", s.Line+i, lines[s.Line-1+i], line)
					}
				}
				if n := strings.Count(s.Code, "\n"); s.Last-s.Line+1 != n {
					t.Errorf("it is lines %d to %d, and has %d", s.Line, s.Last, n)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// FuzzSteps: whatever a plan is, each step names an existing shell, and its code ends with a
// line feed.
func FuzzSteps(f *testing.F) {
	f.Add("# One\n```sh\na\n```\nTwo\n---\n  ~~~bash\nb")
	f.Fuzz(func(t *testing.T, plan string) {
		for _, s := range steps(plan) {
			if (s.Shell != "sh" && s.Shell != "bash") || !strings.HasSuffix(s.Code, "\n") || strings.Contains(s.Title, "\n") {
				t.Errorf("got %+v", s)
			}
		}
	})
}

// TestLoginWork: with a login inside, an agent uses no connector; with codex's login outside,
// it uses that login's connector.
func TestLoginWork(t *testing.T) {
	for _, agent := range []Agent{Claude{}, Codex{}} {
		for login, want := range map[string]string{cove.LoginKey: "", cove.LoginOutside: "chatgpt", cove.LoginInside: ""} {
			if login == cove.LoginOutside && agent.Name() == "claude" {
				continue
			}
			work, err := agent.Prepare(Task{Plan: "# Plan", PlanName: "plan.md", Dir: "/d", Workdir: "/w", Home: "/h", Login: login})
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(slices.Concat(work.Env, work.Argv), " ")
			if led := strings.Contains(text, ".connect.internal"); led == (login == cove.LoginInside) || len(work.Connectors) > 0 != led {
				t.Errorf("%s, %s: %v, with %q", agent.Name(), login, work.Connectors, text)
			}
			if want != "" && (!slices.Equal(work.Connectors, []string{want}) || !strings.Contains(text, `base_url="http://`+want+`.connect.internal"`)) {
				t.Errorf("%s, %s: %v, with %q", agent.Name(), login, work.Connectors, text)
			}
		}
	}
}

// TestOutline: a plan is called by its first heading, or its first line; text in blocks is neither.
func TestOutline(t *testing.T) {
	for plan, want := range map[string][]string{
		"```sh\n# no heading\n```\n# Repair  the *greeting*\n\n## Then test\n\nMore\n----\n": {"Repair the *greeting*", "Repair the *greeting*", "Then test", "More"},
		"\n\n  Paint the shed.\nAnd more.":                                                   {"Paint the shed."},
		"":                                                                                   {""},
		"# " + strings.Repeat("ä", 200):                                                      {strings.Repeat("ä", 60) + "…", strings.Repeat("ä", 60) + "…"},
	} {
		title, headings := Outline(plan)
		if got := append([]string{title}, headings...); !slices.Equal(got, want) {
			t.Errorf("%.40q: got %q, want %q", plan, got, want)
		}
	}
	if _, headings := Outline(strings.Repeat("# x\n", 999)); len(headings) != 50 {
		t.Errorf("%d headings are kept", len(headings))
	}
}
