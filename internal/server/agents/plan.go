package agents

import (
	"strings"
)

// A step is a fenced block of a plan for a shell.
type step struct {
	Title string // the heading above it; empty if there is none
	Shell string // sh or bash
	Code  string
	Line  int // of the plan, that the code begins with; the first is 1
	Last  int // of the plan, that the code ends with
}

// steps returns the shell blocks of a Markdown text, in order. It knows fences of
// backticks and tildes, ATX and setext headings; the content of other blocks is neither a
// heading nor a step.
func steps(text string) []step {
	var out []step
	walk(text, func(string) {}, func(s step) { out = append(out, s) })
	return out
}

// Bounds of an outline.
const (
	maxHeadings = 50
	maxHeading  = 120 // bytes
)

// Outline returns a plan's title (its first heading, or else its first line) and its first 50
// headings. Each is one line, cut to 120 bytes.
func Outline(plan string) (title string, headings []string) {
	short := func(s string) string {
		s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
		if len(s) <= maxHeading {
			return s
		}
		return strings.ToValidUTF8(s[:maxHeading], "") + "…"
	}
	walk(plan, func(h string) {
		if h = short(h); h != "" && len(headings) < maxHeadings {
			headings = append(headings, h)
		}
	}, func(step) {})
	if len(headings) > 0 {
		return headings[0], headings
	}
	line, _, _ := strings.Cut(strings.TrimSpace(plan), "\n")
	return short(line), nil
}

// walk calls head for each heading of a Markdown text, and block for each shell block.
func walk(text string, head func(string), block func(step)) {
	var (
		title string
		prev  string // the last line, if it may be a setext heading's text
		open  fence
		code  []string
		first int // line of code
	)
	flush := func() {
		if shell := open.shell(); shell != "" {
			block(step{Title: title, Shell: shell, Code: strings.Join(code, "\n") + "\n", Line: first, Last: first + max(0, len(code)-1)})
		}
		open, code = fence{}, nil
	}
	for n, line := range strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n") {
		if open.size > 0 {
			if open.closedBy(line) {
				flush()
			} else {
				code = append(code, open.unindent(line))
			}
			prev = ""
			continue
		}
		if f, ok := opening(line); ok {
			open, prev, first = f, "", n+2
			continue
		}
		if h, ok := heading(line); ok {
			title, prev = h, ""
			head(title)
			continue
		}
		if prev != "" && underline(line) {
			title, prev = prev, ""
			head(title)
			continue
		}
		prev = paragraph(line)
	}
	if open.size > 0 { // a fence that is never closed ends with the text
		if n := len(code); n > 0 && code[n-1] == "" {
			code = code[:n-1]
		}
		flush()
	}
}

// fence is an opening fence. The zero value is no fence.
type fence struct {
	char   byte
	size   int
	indent int
	info   string // the first word of the info string, in lower case
}

// opening parses an opening fence: up to three spaces, three or more of the same
// character, an info string.
func opening(line string) (fence, bool) {
	rest := strings.TrimLeft(line, " ")
	indent := len(line) - len(rest)
	if indent > 3 || rest == "" || (rest[0] != '`' && rest[0] != '~') {
		return fence{}, false
	}
	f := fence{char: rest[0], indent: indent}
	for f.size < len(rest) && rest[f.size] == f.char {
		f.size++
	}
	info := rest[f.size:]
	if f.size < 3 || (f.char == '`' && strings.Contains(info, "`")) {
		return fence{}, false
	}
	if words := strings.Fields(info); len(words) > 0 {
		f.info = strings.ToLower(words[0])
	}
	return f, true
}

func (f fence) closedBy(line string) bool {
	rest := strings.TrimLeft(line, " ")
	if len(line)-len(rest) > 3 {
		return false
	}
	rest = strings.TrimRight(rest, " \t")
	return len(rest) >= f.size && strings.Trim(rest, string(f.char)) == ""
}

// unindent takes as many spaces from a line as its fence is indented by.
func (f fence) unindent(line string) string {
	for range f.indent {
		line = strings.TrimPrefix(line, " ")
	}
	return line
}

// shell is the shell that runs the block; empty: it is not for a shell.
func (f fence) shell() string {
	switch f.info {
	case "sh", "shell":
		return "sh"
	case "bash":
		return "bash"
	}
	return ""
}

// heading parses an ATX heading.
func heading(line string) (string, bool) {
	rest := strings.TrimLeft(line, " ")
	level := len(rest) - len(strings.TrimLeft(rest, "#"))
	if len(line)-len(rest) > 3 || level < 1 || level > 6 {
		return "", false
	}
	rest = rest[level:]
	if rest != "" && rest[0] != ' ' && rest[0] != '\t' {
		return "", false
	}
	rest = strings.TrimSpace(rest)
	if trimmed := strings.TrimRight(rest, "#"); trimmed == "" || strings.HasSuffix(trimmed, " ") {
		rest = strings.TrimSpace(trimmed) // a closing sequence
	}
	return rest, true
}

// underline reports whether a line makes a heading of the one above it.
func underline(line string) bool {
	s := strings.TrimSpace(line)
	return s != "" && (strings.Trim(s, "=") == "" || strings.Trim(s, "-") == "") && !strings.HasPrefix(line, "    ")
}

// paragraph returns a line that a following underline makes a heading.
func paragraph(line string) string {
	s := strings.TrimSpace(line)
	if strings.HasPrefix(line, "    ") || strings.HasPrefix(s, ">") || listItem(s) || underline(line) {
		return ""
	}
	return s
}

// listItem reports whether s begins with the mark of a list's item.
func listItem(s string) bool {
	mark, _, ok := strings.Cut(s, " ")
	if number := strings.TrimRight(mark, ".)"); len(number) == len(mark)-1 && strings.Trim(number, "0123456789") == "" {
		return ok && number != ""
	}
	return ok && (mark == "-" || mark == "*" || mark == "+")
}
