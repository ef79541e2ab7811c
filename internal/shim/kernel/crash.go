package kernel

import "strings"

// mostFrames is how many calls of the stack a head of a report has.
const mostFrames = 4

// Crash is the head of the first report of a crash in a Go program's output, as one line. It
// says why, and lists the functions of the first stack, the innermost first. Functions of
// Go's own runtime are left out. Empty: there is no report.
func Crash(text string) string {
	why, frames := read(text)
	head := strings.Join(why, "; ")
	if len(head) > mostHead {
		head = strings.ToValidUTF8(head[:mostHead], "") + "…"
	}
	if len(frames) > 0 {
		head += " (in " + strings.Join(frames, ", called by ") + ")"
	}
	return head
}

// Reason is the lines of the first report that say why, without a stack. Empty: there is no
// report.
func Reason(text string) string {
	why, _ := read(text)
	return strings.Join(why, "\n")
}

// mostHead is the most of a report's head in bytes.
const mostHead = 1000

// read reads the first report of a text: why, and the first functions of the first stack.
func read(text string) (why, frames []string) {
	const (
		before  = iota // no report yet
		reason         // its lines
		between        // the lines before the first stack
		stack
	)
	state := before
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		blank := strings.TrimSpace(line) == ""
		switch {
		case state == before && begins(line):
			state, why = reason, append(why, strings.TrimSpace(line))
		case state == before:
		case state != stack && isStack(line):
			state = stack
		case state == reason && blank:
			state = between
		case state == reason:
			why = append(why, strings.TrimSpace(line))
		case state == stack && (blank || len(frames) == mostFrames):
			return why, frames
		case state == stack:
			if name := function(line); name != "" {
				frames = append(frames, name)
			}
		}
	}
	return why, frames
}

func begins(line string) bool {
	return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.HasPrefix(line, "runtime: ")
}

// isStack reports whether a line stands above a stack.
func isStack(line string) bool {
	return strings.HasPrefix(line, "goroutine ") || line == "runtime stack:"
}

// function is the name of a stack's function, without its arguments; empty: the line has none
// that tells anything.
func function(line string) string {
	if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "created by ") {
		return "" // the place of a function in its file, or the function that began the goroutine
	}
	i := strings.LastIndexByte(line, '(')
	if i <= 0 || strings.HasPrefix(line, "panic(") || strings.HasPrefix(line, "runtime.") {
		return ""
	}
	name := line[:i]
	return name[strings.LastIndexByte(name, '/')+1:]
}
