package web

import (
	"fmt"
	"strconv"
	"strings"
)

// segment is a part of a terminal's output that looks alike.
type segment struct {
	Class string // of the style sheet; empty: plain
	Text  string
}

// look is how a terminal's text looks at a place.
type look struct {
	fg, bg                       int // 0 to 15; -1: as usual
	bold, dim, italic, underline bool
}

func (l look) class() string {
	var c []string
	if l.fg >= 0 {
		c = append(c, "f"+strconv.Itoa(l.fg))
	}
	if l.bg >= 0 && l.bg != l.fg { // else nothing could be read
		c = append(c, "b"+strconv.Itoa(l.bg))
	}
	for _, on := range []struct {
		is   bool
		name string
	}{{l.bold, "tb"}, {l.dim, "td"}, {l.italic, "ti"}, {l.underline, "tu"}} {
		if on.is {
			c = append(c, on.name)
		}
	}
	return strings.Join(c, " ")
}

// maxOver is how many states of a line that was written over are shown.
const maxOver = 4

// terminal turns a terminal's output into parts with classes. Colours are kept; all other
// escape sequences are removed. If a line was written over, its earlier text stands before it,
// dim, with the name of the character that did so. Nothing that was printed is hidden by later
// output.
func terminal(s string) []segment {
	var out []segment
	const most = 300 // after so many, all looks like the last
	at := look{fg: -1, bg: -1}
	over := false
	add := func(text string) {
		if text = screenText(text); text == "" {
			return
		}
		class := at.class()
		if over {
			class = "td"
		}
		if n := len(out); n > 0 && (out[n-1].Class == class || n == most) {
			out[n-1].Text += text
			return
		}
		out = append(out, segment{class, text})
	}
	for _, line := range strings.SplitAfter(strings.ReplaceAll(s, "\r\n", "\n"), "\n") {
		all := states(line)
		for i, state := range all {
			if over = state.over; over && i > maxOver {
				continue
			}
			if over && i == maxOver {
				state.text = fmt.Sprintf("… %d more, which cove job events has …", len(all)-1-maxOver)
			}
			for text := state.text; text != ""; {
				i := strings.IndexByte(text, '\x1b')
				if i < 0 {
					add(text)
					break
				}
				add(text[:i])
				var codes string
				if codes, text = sequence(text[i:]); codes != "" {
					at.apply(codes)
				}
			}
			if over {
				add(nameBegins + "000D" + nameEnds)
			}
		}
	}
	return out
}

// state is the text of a terminal's line at a time.
type state struct {
	text string
	over bool // it was written over
}

// states are the states of a line, in order, without those that show nothing.
func states(line string) (all []state) {
	said := strings.TrimRight(line, "\r\n")
	end := strings.TrimLeft(line[len(said):], "\r")
	for text := range strings.SplitSeq(said, "\r") {
		if strings.TrimSpace(text) != "" {
			all = append(all, state{text, true})
		}
	}
	if n := len(all); n > 0 {
		all[n-1] = state{all[n-1].text + end, false}
		return all
	}
	return []state{{said + end, false}}
}

// sequence reads an escape sequence. If it sets colours, it returns their numbers ("0" if it
// has none). It also returns the rest of the text.
func sequence(s string) (colours, rest string) {
	if len(s) < 2 {
		return "", ""
	}
	switch s[1] {
	case '[':
		i := 2
		for i < len(s) && (s[i] < 0x40 || s[i] > 0x7e) && s[i] >= 0x20 && s[i] < 0x80 {
			i++
		}
		if i == len(s) || s[i] < 0x40 || s[i] > 0x7e {
			return "", s[i:]
		}
		if s[i] == 'm' {
			return max(s[2:i], "0"), s[i+1:]
		}
		return "", s[i+1:]
	case ']', 'P', '_', '^', 'X': // a text up to BEL or ESC \
		for i := 2; i < len(s); i++ {
			if s[i] == '\a' {
				return "", s[i+1:]
			}
			if s[i] == '\x1b' {
				return "", strings.TrimPrefix(s[i+1:], `\`)
			}
		}
		return "", ""
	}
	return "", s[2:]
}

// apply takes in the numbers of a sequence of colours.
func (l *look) apply(codes string) {
	parts := strings.FieldsFunc(codes, func(r rune) bool { return r == ';' || r == ':' })
	if len(parts) == 0 {
		parts = []string{"0"}
	}
	for i := 0; i < len(parts); i++ {
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			continue
		}
		switch {
		case n == 0:
			*l = look{fg: -1, bg: -1}
		case n == 1:
			l.bold = true
		case n == 2:
			l.dim = true
		case n == 3:
			l.italic = true
		case n == 4:
			l.underline = true
		case n == 22:
			l.bold, l.dim = false, false
		case n == 23:
			l.italic = false
		case n == 24:
			l.underline = false
		case n >= 30 && n <= 37:
			l.fg = n - 30
		case n == 39:
			l.fg = -1
		case n >= 40 && n <= 47:
			l.bg = n - 40
		case n == 49:
			l.bg = -1
		case n >= 90 && n <= 97:
			l.fg = n - 90 + 8
		case n >= 100 && n <= 107:
			l.bg = n - 100 + 8
		case n == 38 || n == 48:
			colour, used := extended(parts[i+1:])
			if i += used; n == 38 {
				l.fg = colour
			} else {
				l.bg = colour
			}
		}
	}
}

// extended reads 5;N or 2;R;G;B. Of these colours, only the first sixteen are shown.
func extended(parts []string) (colour, used int) {
	if len(parts) == 0 {
		return -1, 0
	}
	switch parts[0] {
	case "5":
		if len(parts) > 1 {
			if n, err := strconv.Atoi(parts[1]); err == nil && n >= 0 && n < 16 {
				return n, 2
			}
		}
		return -1, min(2, len(parts))
	case "2":
		return -1, min(4, len(parts))
	}
	return -1, 0
}
