package web

import "strings"

// planStep is a heading of a plan, as the page shows it beside the text.
type planStep struct {
	Line  int // from 1
	Level int // of the heading: 1 to 6
	Text  string
	Shell int // blocks under it that are fenced as sh or bash
}

// maxSteps bounds how many headings are shown.
const maxSteps = 200

// planSteps finds the headings of a Markdown text. Lines in fenced blocks are none.
func planSteps(text string) (steps []planStep) {
	fence := ""
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, "\r")
		at := strings.TrimLeft(line, " ")
		if len(line)-len(at) > 3 { // it is code
			continue
		}
		if fence != "" {
			if rest, ok := strings.CutPrefix(at, fence); ok && strings.Trim(rest, fence[:1]+" \t") == "" {
				fence = ""
			}
			continue
		}
		if mark, info := fenceOf(at); mark != "" {
			fence = mark
			if lang, _, _ := strings.Cut(info, " "); len(steps) > 0 && (lang == "sh" || lang == "bash") {
				steps[len(steps)-1].Shell++
			}
			continue
		}
		level := len(at) - len(strings.TrimLeft(at, "#"))
		if level < 1 || level > 6 || len(at) > level && at[level] != ' ' && at[level] != '\t' || len(steps) == maxSteps {
			continue
		}
		steps = append(steps, planStep{Line: i + 1, Level: level, Text: strings.TrimSpace(strings.TrimRight(strings.TrimSpace(at[level:]), "#"))})
	}
	return steps
}

// fenceOf is the fence that a line opens, and the text after it. Empty: it opens none.
func fenceOf(line string) (fence, info string) {
	for _, c := range []string{"`", "~"} {
		rest := strings.TrimLeft(line, c)
		n := len(line) - len(rest)
		if n >= 3 && (c == "~" || !strings.Contains(rest, "`")) {
			return line[:n], strings.TrimSpace(rest)
		}
	}
	return "", ""
}

// planName is a file's name for a plan: by its first heading.
func planName(steps []planStep) string {
	const most = 40
	if len(steps) == 0 {
		return "plan.md"
	}
	var b strings.Builder
	for _, r := range strings.ToLower(steps[0].Text) {
		switch {
		case b.Len() >= most:
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	if name := strings.Trim(b.String(), "-"); name != "" {
		return name + ".md"
	}
	return "plan.md"
}
