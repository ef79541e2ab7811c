package cove_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// hostileStatement is one line of docs/hostile.tsv: what must hold against a sprite
// whose root user attacks.
type hostileStatement struct {
	number           int
	area, text, note string
	tests            []string
}

// TestHostileStatements holds docs/hostile.md to docs/hostile.tsv, and that to the
// tests: every statement names tests that are there.
func TestHostileStatements(t *testing.T) {
	all, err := readHostile("docs/hostile.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if len(s.tests) == 0 {
			t.Errorf("statement %d has no test: %s", s.number, s.text)
		}
		for _, test := range s.tests {
			if !exists(t, test) {
				t.Errorf("statement %d: there is no %s", s.number, test)
			}
		}
	}
	name, page := "docs/hostile.md", hostilePage(all)
	if *update {
		if err := os.WriteFile(name, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil || string(got) != page {
		t.Errorf("docs/hostile.md is not what docs/hostile.tsv says (%v); write it anew: go test . -run HostileStatements -update", err)
	}
}

func readHostile(name string) ([]hostileStatement, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []hostileStatement
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 5 {
			return nil, fmt.Errorf("%s: %d fields, not 5: %q", name, len(f), line)
		}
		if n, err := strconv.Atoi(f[0]); err != nil || n != len(all)+1 {
			return nil, fmt.Errorf("%s: %q does not follow %d", name, f[0], len(all))
		}
		all = append(all, hostileStatement{number: len(all) + 1, area: f[1], text: f[2], tests: strings.Fields(f[3]), note: f[4]})
	}
	return all, nil
}

func hostilePage(all []hostileStatement) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# What a hostile sandbox may try, and what holds

S is a sprite whose root user is the attacker, H the host. Each of the %d statements has the tests that show it. This page is written
by `+"`go test . -run HostileStatements -update`"+` from `+"`docs/hostile.tsv`"+`; the same test fails if a test is not there.
`, len(all))
	area := ""
	for _, s := range all {
		if s.area != area {
			area = s.area
			fmt.Fprintf(&b, "\n## %s\n\n| # | Statement | Shown by |\n|---|---|---|\n", area)
		}
		by := make([]string, 0, len(s.tests))
		for _, test := range s.tests {
			if dir, name, ok := strings.Cut(test, ":"); ok {
				by = append(by, "`"+name+"` ("+dir+")")
			} else {
				by = append(by, "`"+test+"` ("+scripts+")")
			}
		}
		shown := strings.Join(by, ", ")
		if s.note != "" {
			shown += ". " + s.note
		}
		fmt.Fprintf(&b, "| %d | %s | %s |\n", s.number, strings.ReplaceAll(s.text, "|", `\|`), shown)
	}
	return b.String()
}
