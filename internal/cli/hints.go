package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/lib/printable"
)

// A hint says what to type next. Servers, guests and the packages below write hints, and
// none of them knows the flags of this run. So every hint is completed here, when it is
// printed. A command in a hint then names the sprite and the server that this run is about:
// it means the same in every folder.

// thisMachine are commands that ask no server, or only the one of this machine. They take
// --data, and neither --url nor --backend.
var thisMachine = map[string]bool{"server": true, "serve": true, "doctor": true, "backend": true}

// nobody are commands that get none of those flags in a hint, because they ask no server.
var nobody = map[string]bool{"config": true, "completion": true, "help": true, "version": true, "agent": true}

// asksServer are the exceptions of nobody. All but agent check ask only a server that runs.
var asksServer = map[string]bool{"agent check": true, "agent list": true, "agent show": true}

// notHere are words before a command that must be typed on the server's machine, where
// the flags of this run mean nothing.
var notHere = []string{"on the host", "on the server's machine"}

// hinter knows what a run is about, and completes hints by it.
type hinter struct {
	global *globals
	root   *cobra.Command // the tree; nil: hints stay as they are
	about  string         // the sprite that this run is about; empty: none
	syncs  syncHint       // the folders that this run syncs
}

// tell writes a line for people that may say what to type.
func (p *printer) tell(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, printable.Text(p.hints.full(fmt.Sprintf(format, args...))))
}

// fullAll is full for each text of a list, in place.
func (r *hinter) fullAll(lists ...[]string) {
	for _, list := range lists {
		for i := range list {
			list[i] = r.full(list[i])
		}
	}
}

// full completes each of cove's commands in a text. It adds -s if the command takes a
// sprite, the text names none and this run is about one. It adds --url, --backend and
// --data as they were given. NAME in place of the sprite becomes the sprite's name.
func (r *hinter) full(text string) string {
	var out strings.Builder
	for at := 0; ; {
		i := commandAt(text[at:])
		if i < 0 {
			out.WriteString(text[at:])
			return out.String()
		}
		start := at + i
		h, ok := readHint(r.root, text[start:])
		if !ok {
			out.WriteString(text[at : start+len(program)])
			at = start + len(program)
			continue
		}
		out.WriteString(text[at : start+h.path])
		if !h.help {
			line := text[strings.LastIndexByte(text[:start], '\n')+1 : start]
			far := slices.ContainsFunc(notHere, func(words string) bool { return strings.Contains(line, words) })
			out.WriteString(r.missing(h, far))
		}
		at = start + h.path
		if r.about != "" && h.placeholder >= 0 {
			out.WriteString(text[at:start+h.placeholder] + r.about)
			at = start + h.placeholder + len(placeholder)
		}
		out.WriteString(text[at : start+h.end])
		at = start + h.end
	}
}

// missing are the flags that a command in a hint lacks.
func (r *hinter) missing(h hint, far bool) string {
	var add string
	if use := usesSprite(h.cmd); r.about != "" && !h.sprite && h.placeholder < 0 && (use == byName || use == byFlag) {
		add += " -s " + r.about
	}
	add += r.syncs.missing(h)
	top, _, _ := strings.Cut(commandName(h.cmd), " ")
	if far || nobody[top] && !asksServer[commandName(h.cmd)] {
		return add
	}
	if r.global.url != "" && !h.given["url"] && !thisMachine[top] {
		add += " --url " + printable.Word(r.global.url)
	}
	if r.global.backend != "" && !h.given["backend"] && !thisMachine[top] {
		add += " --backend " + printable.Word(r.global.backend)
	}
	if r.global.data != "" && !h.given["data"] {
		dir := r.global.data
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs
		}
		add += " --data " + printable.Word(dir)
	}
	return add
}

// syncHint is what a run of cove sync is about, for hints of sync. The zero value is none.
type syncHint struct {
	local, remote string
	exclude       []string
	noIgnore      bool
}

// missing are the folders, and the flags that choose files in them, that a hint of sync lacks.
func (s syncHint) missing(h hint) (add string) {
	name, ok := strings.CutPrefix(commandName(h.cmd), "sync ")
	if !ok || s.local == "" || printable.Line(s.local+s.remote) != s.local+s.remote {
		return ""
	}
	if name != "undo" {
		for _, pattern := range s.exclude {
			if !slices.Contains(h.excludes, pattern) && printable.Line(pattern) == pattern {
				add += " --exclude " + printable.Word(pattern)
			}
		}
		if s.noIgnore && !h.given["no-ignore"] {
			add += " --no-ignore"
		}
	}
	switch {
	case len(h.args) > 0:
	case name == "pull":
		add += " " + printable.Word(s.remote) + " " + printable.Word(s.local)
	default:
		add += " " + printable.Word(s.local) + " " + printable.Word(s.remote)
	}
	return add
}

// program begins a command in a text.
const program = "cove "

// placeholder is the sprite's name in a text that does not know it.
const placeholder = "NAME"

// commandAt is where the first word "cove" of a text is; -1: nowhere.
func commandAt(text string) int {
	for from := 0; ; {
		i := strings.Index(text[from:], program)
		if i < 0 {
			return -1
		}
		i += from
		if i == 0 || !isWordByte(text[i-1]) {
			return i
		}
		from = i + len(program)
	}
}

func isWordByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("_-./@", b) >= 0
}

// hint is a command in a text, which begins with it.
type hint struct {
	cmd         *cobra.Command
	path        int             // where the words of the command itself end
	end         int             // where the whole command ends
	given       map[string]bool // the flags that it has, by their long names
	excludes    []string        // the values of --exclude
	unknown     []string        // flags that the command does not have
	args        []string        // what it has besides flags
	sprite      bool            // it names its sprite
	placeholder int             // where it has NAME for its sprite; -1: nowhere
	help        bool            // it only asks for help
}

// readHint reads the command at the beginning of a text. It reports false for a command
// that only has subcommands, and for a word that is not a command.
func readHint(root *cobra.Command, text string) (h hint, ok bool) {
	if root == nil {
		return h, false
	}
	words, end := hintWords(text)
	h = hint{cmd: root, path: len(program) - 1, end: end, given: map[string]bool{}, placeholder: -1}
	words = words[1:]
	for len(words) > 0 {
		sub := subcommand(h.cmd, words[0].text)
		if sub == nil {
			break
		}
		h.cmd, h.path, words = sub, words[0].end, words[1:]
	}
	if h.cmd == root || !h.cmd.Runnable() || len(h.cmd.Commands()) > 0 && h.cmd.Name() != "mcp" {
		return h, false
	}
	h.readArguments(words)
	return h, true
}

func subcommand(cmd *cobra.Command, name string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if c.Name() == name || c.HasAlias(name) {
			return c
		}
	}
	return nil
}

// readArguments reads the words that follow a command's own words.
func (h *hint) readArguments(words []hintWord) {
	positional := func(w hintWord) {
		h.args = append(h.args, w.text)
		if use := usesSprite(h.cmd); h.sprite || use != byName && h.cmd.Name() != "rm" && h.cmd.Name() != "use" {
			return
		}
		if w.text == placeholder && usesSprite(h.cmd) == byName {
			h.placeholder = w.start
		}
		h.sprite = true
	}
	for i := 0; i < len(words); i++ {
		w := words[i]
		if w.text == "--" {
			for _, w := range words[i+1:] {
				h.args = append(h.args, w.text)
			}
			return
		}
		if !strings.HasPrefix(w.text, "-") || w.text == "-" {
			positional(w)
			if commandName(h.cmd) == "exec" || commandName(h.cmd) == "service put" {
				for _, w := range words[i+1:] {
					h.args = append(h.args, w.text)
				}
				return // the rest is another command
			}
			continue
		}
		name, value, _ := strings.Cut(strings.TrimLeft(w.text, "-"), "=")
		if name == "help" || w.text == "-h" {
			h.help = true
			continue
		}
		f := h.cmd.Flags().Lookup(name)
		if f == nil {
			f = h.cmd.InheritedFlags().Lookup(name)
		}
		if f == nil && len(name) == 1 {
			if f = h.cmd.Flags().ShorthandLookup(name); f == nil {
				f = h.cmd.InheritedFlags().ShorthandLookup(name)
			}
		}
		if f == nil {
			h.unknown = append(h.unknown, w.text)
			continue
		}
		h.given[f.Name] = true
		at := w
		if value == "" && f.NoOptDefVal == "" && i+1 < len(words) {
			i++
			at = words[i]
			value = at.text
		}
		if f.Name == "exclude" {
			h.excludes = append(h.excludes, value)
		}
		if f.Name == "sprite" {
			h.sprite = true
			if value == placeholder && at.text == placeholder && usesSprite(h.cmd) != namedOnly {
				h.placeholder = at.start
			}
		}
	}
}

// hintWord is a word of a command in a text.
type hintWord struct {
	text       string
	start, end int
}

// hintWords splits the command at the beginning of a text into words, by the rules of a
// shell. A command ends at a character that ends it in a shell, at the end of a clause, or
// at the end of the text.
func hintWords(text string) (words []hintWord, end int) {
	var word strings.Builder
	start, quote := -1, byte(0)
	finish := func(at int) {
		if start >= 0 {
			words = append(words, hintWord{word.String(), start, at})
			word.Reset()
			start = -1
		}
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case (c == '\'' || c == '"') && start < 0:
			quote, start = c, i
		case c == ' ' || c == '\t':
			finish(i)
		case endsHint(text, i):
			finish(i)
			return words, i
		default:
			if start < 0 {
				start = i
			}
			word.WriteByte(c)
		}
	}
	finish(len(text))
	return words, len(text)
}

// endsHint reports whether a command that is part of a text ends before text[i].
func endsHint(text string, i int) bool {
	last := i+1 == len(text) || text[i+1] == ' ' || text[i+1] == '\n'
	switch text[i] {
	case ';', '\n', '|', '&', '(', ')', '`', '<', '>':
		return true
	case ',', '.', ':', '?':
		return last && (i == 0 || text[i-1] != ' ')
	}
	return false
}
