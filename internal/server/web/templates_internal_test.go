package web

import (
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/sprites"
)

// TestAddressesOfHTMX: html/template does not know that htmx's attributes are addresses. A
// value in their query is escaped by name, or is a number or an ID of cove's own.
func TestAddressesOfHTMX(t *testing.T) {
	attribute := regexp.MustCompile(`hx-(?:get|post)="((?:[^"{]|\{\{[^}]*\}\})*)"`)
	inQuery := regexp.MustCompile(`\?.*`)
	action := regexp.MustCompile(`\{\{([^}]*)\}\}`)
	seen := 0
	err := fs.WalkDir(templateFiles, "templates", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := fs.ReadFile(templateFiles, name)
		if err != nil {
			return err
		}
		for _, m := range attribute.FindAllStringSubmatch(string(b), -1) {
			for _, a := range action.FindAllStringSubmatch(inQuery.FindString(m[1]), -1) {
				seen++
				if !strings.HasPrefix(a[1], "query ") && !slices.Contains([]string{".View", ".ID", ".Before", ".Next", ".Part"}, a[1]) {
					t.Errorf("%s: %s is not escaped in %s", name, a[0], m[0])
				}
			}
		}
		return nil
	})
	if err != nil || seen < 5 {
		t.Fatalf("%d were found, %v", seen, err)
	}

	page, err := html("file-entries", filesPage{Entries: folders("x&y", "c++", "h#1", "p%2e"), Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`?path=%2Fx%26y"`, `?path=%2Fc%2B%2B"`, `?path=%2Fh%231"`, `?path=%2Fp%252e"`} {
		if !strings.Contains(page, "/files/branch"+want) {
			t.Errorf("no folder leads to %s: %s", want, page)
		}
	}
}

// TestTargetsAreOwn: an element that asks for something says itself what the answer replaces,
// or that it replaces nothing. By htmx's own rule the answer would replace what an element
// around it does, such as a whole diff.
func TestTargetsAreOwn(t *testing.T) {
	tag := regexp.MustCompile(`<[a-z]+(?:[^<>"{]|"(?:[^"{]|\{\{[^}]*\}\})*"|\{\{[^}]*\}\})*>`)
	asks := regexp.MustCompile(`\shx-(?:get|post)="`)
	own := regexp.MustCompile(`\bhx-target="|\bhx-swap="none"`)
	seen := 0
	err := fs.WalkDir(templateFiles, "templates", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := fs.ReadFile(templateFiles, name)
		if err != nil {
			return err
		}
		found := 0
		for _, element := range tag.FindAllString(string(b), -1) {
			if !asks.MatchString(element) {
				continue
			}
			if found++; !own.MatchString(element) {
				t.Errorf("%s: an element around it decides what this replaces: %s", name, element)
			}
		}
		if all := len(asks.FindAllIndex(b, -1)); found != all {
			t.Errorf("%s: %d elements of %d were looked at", name, found, all)
		}
		seen += found
		return nil
	})
	if err != nil || seen < 50 {
		t.Fatalf("%d were found, %v", seen, err)
	}
	page, err := html("layout", layout{})
	if err != nil || !strings.Contains(page, `"disableInheritance":true`) {
		t.Errorf("htmx inherits attributes: %v", err)
	}
}

// TestFormsStay: no form leaves the page to say what it does. If the server were away then,
// the page and the typed text would be lost. The login has no page yet.
func TestFormsStay(t *testing.T) {
	form, seen := regexp.MustCompile(`<form (?:[^>{]|\{\{[^}]*\}\})*>`), 0
	err := fs.WalkDir(templateFiles, "templates", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || name == "templates/login.html" {
			return err
		}
		b, err := fs.ReadFile(templateFiles, name)
		for _, f := range form.FindAllString(string(b), -1) {
			if !strings.Contains(f, `method="post"`) {
				continue
			}
			seen++
			if !strings.Contains(f, "hx-post=") && !strings.Contains(f, "data-streams") {
				t.Errorf("%s: a script is to send %s", name, f)
			}
		}
		return err
	})
	if err != nil || seen < 30 {
		t.Fatalf("%d were found, %v", seen, err)
	}
}

func folders(names ...string) (all []sprites.Entry) {
	for _, n := range names {
		all = append(all, sprites.Entry{Name: n, Path: "/" + n, Type: "directory", IsDir: true})
	}
	return all
}

// TestHintsSayWhere: a hint with a command says that it is typed in a terminal; a hint that
// names a place does not.
func TestHintsSayWhere(t *testing.T) {
	for hint, want := range map[string]bool{
		"cove job stop 0a1b2c": true, "raise the limit with: cove update paint --disk 1G": true, "load it again": false,
		"type `cove web` in a terminal, open the link": false, "the cove server is older": false, "it ends; then: cove pull 0a1b2c": true, "choose another name": false,
	} {
		page, err := html("error", problem{Message: "no", Hint: hint})
		if err != nil || strings.Contains(page, "To do, in a terminal: ") != want {
			t.Errorf("%q: %v\n%s", hint, err, page)
		}
	}
	if page, err := html("todo", "cove secret set anthropic"); err != nil || !strings.Contains(page, `href="/web/settings?tab=secrets"`) {
		t.Errorf("to store a secret: %v\n%s", err, page)
	}
	if page, err := html("todo", "cove secret set anthropic --from-login"); err != nil || strings.Contains(page, "href") {
		t.Errorf("a log-in is for a terminal: %v\n%s", err, page)
	}
}

// TestWordsOfPages: one thing is not called several, and git's heading of a hunk is told apart
// from a line. A span is as long as was chosen.
func TestWordsOfPages(t *testing.T) {
	diff := cove.JobDiff{Job: "0a1b2c", Part: cove.DiffLeftover, Commits: []cove.JobDiffCommit{{ID: "adafb73a1b"}}, Files: []cove.JobDiffFile{
		{Path: "a", Risk: "runs in CI", Hunks: []cove.JobDiffHunk{{NewStart: 4, Section: "line 3"}}}, {Path: "b", Listed: "runs"}}}
	page, err := html("diff", newDiffView(diff, nil, "one"))
	must(t, err)
	for _, want := range []string{"may run it.", "1 that runs when", "Line 4, below: line 3"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in %s", want, page)
		}
	}
	if strings.Contains(page, "adafb73a1b") {
		t.Error("what no commit has is shown as a commit")
	}
	if got := ago(-90*24*time.Hour + time.Second); got != "in 90 days" {
		t.Errorf("got %s", got)
	}
	if page, err := html("network-log", networkLog{Head: spriteHead{Write: true}, Lines: []refused{{Opens: "example.org:443", Now: true}}}); err != nil || !strings.Contains(page, "allowed now") || strings.Contains(page, "Allow this") {
		t.Errorf("what is allowed now: %v\n%s", err, page)
	}
	if page, err := html("told", toldView{Name: "prompt", Parts: prose("Paint it.")}); err != nil || !strings.Contains(page, "gave it a prompt") {
		t.Errorf("a prompt: %v\n%s", err, page)
	}
}

// TestRefusalsInWords: the reason of a refusal is in words, whatever decided it.
func TestRefusalsInWords(t *testing.T) {
	for rule, want := range map[string]string{
		"documentation": "it is an address for documentation", "no rule": "no rule allows it", "private name": "only private networks", "deny example.org": "by the rule deny example.org",
	} {
		page, err := html("network-log", networkLog{Lines: []refused{{NetworkEvent: sprites.NetworkEvent{Process: &sprites.Process{Name: "curl", PID: 7}}, Rule: rule, Target: "203.0.113.7:443", Count: 1}}})
		if err != nil || !strings.Contains(page, want) || !strings.Contains(page, "curl (process 7) asked for it") {
			t.Errorf("%s: %v\n%s", rule, err, page)
		}
	}
}
