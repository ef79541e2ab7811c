package web

import "strings"

// markdown divides a text into headings, bold words and code within a line, as Markdown marks
// them. It interprets nothing else of Markdown: a list stays as it is, and no link hides its
// address. A mark that has no end is text.
func markdown(s string) (out []segment) {
	for line := range strings.SplitAfterSeq(text(s), "\n") {
		if rest := strings.TrimLeft(line, "#"); len(rest) < len(line) && len(line)-len(rest) <= 6 && strings.HasPrefix(rest, " ") {
			out = append(out, segment{"heading", strings.TrimLeft(rest, " ")})
			continue
		}
		out = markdownLine(out, line)
	}
	return out
}

// markdownLine adds the segments of a line.
func markdownLine(out []segment, line string) []segment {
	add := func(class, text string) {
		if last := len(out) - 1; last >= 0 && class == "" && out[last].Class == "" {
			out[last].Text += text
		} else if text != "" {
			out = append(out, segment{class, text})
		}
	}
	from := 0 // all before it is in out
	for at := 0; at < len(line); {
		mark, class := "`", "code"
		switch line[at] {
		case '`':
		case '*':
			mark, class = "**", "strong"
		default:
			at++
			continue
		}
		inner, after, closed := "", "", false
		if rest, found := strings.CutPrefix(line[at:], mark); found {
			inner, after, closed = strings.Cut(rest, mark)
		}
		if !closed || inner == "" || strings.TrimSpace(inner) != inner || strings.HasPrefix(after, mark[:1]) {
			for begun := line[at]; at < len(line) && line[at] == begun; { // none of the same characters begins anything
				at++
			}
			continue
		}
		add("", line[from:at])
		add(class, inner)
		at = len(line) - len(after)
		from = at
	}
	add("", line[from:])
	return out
}
