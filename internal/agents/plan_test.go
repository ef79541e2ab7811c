package agents

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// In these plans, ' stands for a backtick.
func TestSteps(t *testing.T) {
	for _, test := range []struct {
		name, plan string
		want       []step
	}{
		{"empty", "", nil},
		{"prose", "# Title\n\ntext\n", nil},
		{"backticks", "'''sh\necho a\n'''\n", []step{{"", "sh", "echo a\n"}}},
		{"tildes", "~~~bash\necho a\n~~~\n", []step{{"", "bash", "echo a\n"}}},
		{"spaced info string", "'''   Shell {.numbered} x\necho a\n'''\n", []step{{"", "sh", "echo a\n"}}},
		{"tilde's info string has backticks", "~~~ sh 'x'\necho a\n~~~\n", []step{{"", "sh", "echo a\n"}}},
		{"inline code is no fence", "'''sh echo''' a\n\n'''sh\nb\n'''\n", []step{{"", "sh", "b\n"}}},
		{"two ticks are no fence", "''sh\na\n''\n", nil},
		{"empty block", "'''sh\n'''\n", []step{{"", "sh", "\n"}}},
		{"blank lines", "'''sh\n\na\n\nb\n\n'''\n", []step{{"", "sh", "\na\n\nb\n\n"}}},

		{"longer fence holds a shorter", "''''sh\ncat <<x\n'''sh\n'''\nx\n'''''  \n", []step{{"", "sh", "cat <<x\n'''sh\n'''\nx\n"}}},
		{"other character does not close", "'''sh\n~~~\n'''\n", []step{{"", "sh", "~~~\n"}}},
		{"closing has no info string", "'''sh\n'''sh\n'''\n", []step{{"", "sh", "'''sh\n"}}},
		{"block in a block", "'''markdown\n# No\n~~~sh\nrm\n~~~\n'''\n", nil},
		{"non-shell blocks", "'''go\nx\n'''\n'''\ny\n'''\n'''console\n$ z\n'''\n'''sh\na\n'''\n", []step{{"", "sh", "a\n"}}},

		{"indented by three", "   '''sh\n   if a\n     b\n  c\nd\n  '''\n", []step{{"", "sh", "if a\n  b\nc\nd\n"}}},
		{"indented by four is code", "    '''sh\n    a\n    '''\n", nil},
		{"close indented by four does not", "'''sh\na\n    '''\n'''\n", []step{{"", "sh", "a\n    '''\n"}}},

		{"unclosed", "'''sh\na\nb\n", []step{{"", "sh", "a\nb\n"}}},
		{"unclosed, cut in a line", "'''sh\na\nb", []step{{"", "sh", "a\nb\n"}}},
		{"unclosed non-shell swallows", "'''go\na\n\n# Title\n", nil},
		{"CRLF", "# One\r\n\r\nTwo\r\n---\r\n\r\n'''sh\r\na\r\nb\r\n'''\r\n", []step{{"Two", "sh", "a\nb\n"}}},

		{"ATX", "# One\n'''sh\na\n'''\n'''sh\nb\n'''\n###### Six  ##\n'''bash\nc\n'''\n", []step{
			{"One", "sh", "a\n"}, {"One", "sh", "b\n"}, {"Six", "bash", "c\n"}}},
		{"ATX forms", "   ## A #1#\n'''sh\na\n'''\n#\n'''sh\nb\n'''\n", []step{{"A #1#", "sh", "a\n"}, {"", "sh", "b\n"}}},
		{"not ATX", "# One\n#Two\n####### Three\n    # Four\n\\# Five\n'''sh\na\n'''\n", []step{{"One", "sh", "a\n"}}},
		{"comment in a block", "# One\n'''go\n# Two\n'''\n'''sh\n# Three\n'''\n'''sh\na\n'''\n", []step{
			{"One", "sh", "# Three\n"}, {"One", "sh", "a\n"}}},

		{"setext", "One\n===\n'''sh\na\n'''\n Two \n-\n'''sh\nb\n'''\n", []step{{"One", "sh", "a\n"}, {"Two", "sh", "b\n"}}},
		{"setext in a block", "# One\n'''go\nTwo\n---\n'''\n'''sh\na\n'''\n", []step{{"One", "sh", "a\n"}}},
		{"thematic breaks", "# One\n\n---\n---\n\ntext\n\n---\n'''sh\na\n'''\n---\n'''sh\nb\n'''\n", []step{
			{"One", "sh", "a\n"}, {"One", "sh", "b\n"}}},
		{"break after other blocks", "# One\n- Two\n---\n1. Three\n---\n> Four\n---\n+ Five\n---\n12) Six\n---\n'''sh\na\n'''\n",
			[]step{{"One", "sh", "a\n"}}},
		{"emphasis and numbers", "**One** of 2.\n---\n'''sh\na\n'''\n1.2 Two\n---\n'''sh\nb\n'''\n", []step{
			{"**One** of 2.", "sh", "a\n"}, {"1.2 Two", "sh", "b\n"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for i := range test.want {
				test.want[i].Code = strings.ReplaceAll(test.want[i].Code, "'", "`")
			}
			if diff := cmp.Diff(test.want, steps(strings.ReplaceAll(test.plan, "'", "`"))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever a plan is, each step is for a shell that there is, and its code ends in
// a line's end.
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
