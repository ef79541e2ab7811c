package cove_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// maxWords is how long a sentence may be, without what stands in parentheses.
const maxWords = 25

var (
	sentenceEnd = regexp.MustCompile("[^.][.!?][)*\"`]*\\s") // no ellipsis
	aside       = regexp.MustCompile(`\([^()]*\)`)
	word        = regexp.MustCompile(`[A-Za-z0-9][\w'./-]*`)
	asksFirst   = regexp.MustCompile(`^\W*(What|Who|Whose|Where)\b`)
	listItem    = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	onlyNames   = regexp.MustCompile(`^[^\s,;]+([,;] [^\s,;]+)*$`)
)

// fault says what makes a sentence hard to read; empty: nothing that this test knows.
func fault(sentence string) string {
	if onlyNames.MatchString(sentence) { // a cell that lists packages
		return ""
	}
	if asksFirst.MatchString(sentence) && !strings.HasSuffix(strings.TrimRight(sentence, " *\"`)"), "?") {
		return "begins with What, Who, Whose or Where; begin with the subject"
	}
	short := sentence
	for {
		next := aside.ReplaceAllString(short, "")
		if next == short {
			break
		}
		short = next
	}
	if n := len(word.FindAllString(short, -1)); n > maxWords {
		return fmt.Sprintf("has %d words, and %d are allowed; say it in two sentences", n, maxWords)
	}
	return ""
}

// sentences splits a paragraph.
func sentences(paragraph string) (out []string) {
	for {
		at := sentenceEnd.FindStringIndex(paragraph)
		if at == nil {
			return append(out, strings.TrimSpace(paragraph))
		}
		end := at[0] + 2
		for end < len(paragraph) && strings.IndexByte(")*\"`", paragraph[end]) >= 0 {
			end++
		}
		out = append(out, strings.TrimSpace(paragraph[:end]))
		paragraph = paragraph[end:]
	}
}

// A paragraph is running text, and the line on which it begins.
type paragraph struct {
	line int
	text string
}

// A collector joins lines to paragraphs.
type collector struct {
	done []paragraph
	open bool
}

func (c *collector) add(line int, text string) {
	text = strings.TrimSpace(text)
	if c.open {
		c.done[len(c.done)-1].text += " " + text
		return
	}
	c.done = append(c.done, paragraph{line, text})
	c.open = true
}

func (c *collector) end() { c.open = false }

// help adds the paragraphs of a command's help. Tables and examples, which are indented, are
// none.
func (c *collector) help(line int, text string) {
	for l := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(l, "  ") || strings.TrimSpace(l) == "" {
			c.end()
		} else {
			c.add(line, l)
		}
		line++
	}
	c.end()
}

// literal is the text of a string that is written in the source, with an X for each part
// that is not.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return text
		}
	}
	return "X"
}

// comments are the paragraphs of a Go file's comments, and of the help of its commands.
// Listings, which are indented, and directives are none.
func comments(name string, src any) ([]paragraph, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(file) {
		return nil, nil
	}
	var c collector
	ast.Inspect(file, func(n ast.Node) bool {
		kv, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Long" { // a command's help
			c.help(fset.Position(kv.Pos()).Line, literal(kv.Value))
		}
		return true
	})
	for _, group := range file.Comments {
		c.end()
		for _, comment := range group.List {
			text, ok := strings.CutPrefix(comment.Text, "//")
			if !ok || strings.TrimSpace(text) == "" || strings.HasPrefix(text, "\t") || strings.HasPrefix(text, "   ") || text[0] != ' ' {
				c.end()
				continue
			}
			if listItem.MatchString(text) {
				c.end()
			}
			c.add(fset.Position(comment.Pos()).Line, text)
		}
	}
	return c.done, nil
}

// prose are the paragraphs of a document in Markdown, each item of a list and each cell of a
// table being one. Headings and blocks of code are none.
func prose(text string) []paragraph {
	var c collector
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			fenced = !fenced
			c.end()
			continue
		}
		if fenced || trimmed == "" || strings.HasPrefix(trimmed, "#") {
			c.end()
			continue
		}
		if strings.HasPrefix(trimmed, "|") {
			for _, cell := range strings.Split(trimmed, "|") {
				c.end()
				c.add(i+1, cell)
			}
			c.end()
			continue
		}
		if mark := listItem.FindString(line); mark != "" {
			c.end()
			trimmed = line[len(mark):]
		}
		c.add(i+1, trimmed)
	}
	return c.done
}

// TestProse: each sentence of a comment, a help text or a document is short, and does not begin
// with a question word.
func TestProse(t *testing.T) {
	files, read := 0, 0
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && file != "." || d.Name() == "node_modules" || d.Name() == "testdata" || file == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		var paragraphs []paragraph
		slashed := filepath.ToSlash(file)
		switch {
		case strings.HasSuffix(file, ".go"):
			if paragraphs, err = comments(file, nil); err != nil {
				return err
			}
		case strings.HasSuffix(file, ".md") && (path.Dir(slashed) == "." || strings.HasPrefix(slashed, "docs/")):
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			paragraphs = prose(string(text))
		default:
			return nil
		}
		files++
		for _, p := range paragraphs {
			for _, s := range sentences(p.text) {
				read++
				if f := fault(s); f != "" {
					t.Errorf("%s:%d: this %s: %s", file, p.line, f, s)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 1000 || read < 10000 {
		t.Errorf("read %d sentences in %d files only; is the test run in the module's root?", read, files)
	}
}

func TestProseFindsProblems(t *testing.T) {
	long := strings.Repeat("word ", maxWords)
	for name, test := range map[string]struct {
		text  string
		fault string // how it begins
	}{
		"nothing":                   {"", ""},
		"as long as may be":         {long[:len(long)-1] + ".", ""},
		"too long":                  {long + "more.", "has 26 words"},
		"an aside is not counted":   {long + "(" + long + "(and more)).", ""},
		"two sentences":             {long[:len(long)-1] + ". The " + long[10:], ""},
		"a question":                {"What is it?", ""},
		"begins with what":          {"What is there goes.", "begins with What"},
		"the second begins with it": {"It stays. Whose it is says the name.", "begins with What"},
		"a word that begins so":     {"Whole files go.", ""},
	} {
		got := ""
		for _, s := range sentences(test.text) {
			if got == "" {
				got = fault(s)
			}
		}
		if !strings.HasPrefix(got, test.fault) || (got == "") != (test.fault == "") {
			t.Errorf("%s: got %q, want %q", name, got, test.fault)
		}
	}
}

func TestProseReads(t *testing.T) {
	src := "// Package a is\n// short.\n//\n//\tlisting\n//\n//go:build all\npackage a\n\nvar b = 1 // it counts\n\nvar c = d{Long: `Does\nit.\n\n  table\n` + e + ` ends`}\n"
	got, err := comments("a.go", src)
	if err != nil {
		t.Fatal(err)
	}
	if want := []paragraph{{11, "Does it."}, {15, "X ends"}, {1, "Package a is short."}, {9, "it counts"}}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got comments %v, want %v", got, want)
	}
	page := "# Heading\n\nOne\ntwo.\n- item\n  goes on\n```\ncode\n```\n| a | b |\n"
	var texts []string
	for _, p := range prose(page) {
		if p.text != "" {
			texts = append(texts, fmt.Sprintf("%d %s", p.line, p.text))
		}
	}
	if want := "3 One two.|5 item goes on|10 a|10 b"; strings.Join(texts, "|") != want {
		t.Errorf("got prose %q, want %q", strings.Join(texts, "|"), want)
	}
}
