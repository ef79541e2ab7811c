package web_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// floods are sequences of a terminal that ask for much work by few bytes.
func floods() map[string]string {
	all := map[string]string{
		"repeat":        "a\x1b[100000000b",
		"repeat wide":   "\u4e00\x1b[2147483647b",
		"repeat joined": "a" + strings.Repeat("\u0301", 1<<19) + "\x1b[256b",
		"joined":        "a" + strings.Repeat("\u0301\u200d", 1<<18),
		"joined high":   "a" + strings.Repeat("\U000e0100", 1<<17),
		"many lines":    strings.Repeat("\x1b[256L", 1<<14),
		"many resets":   strings.Repeat("\x1bc", 1<<11),
		"many fills":    strings.Repeat("\x1b#8", 1<<12),
		"colours":       "\x1b]4;" + strings.Repeat(";", 1<<20) + "\a",
		"asked colours": "\x1b]10;" + strings.Repeat("?;", 1<<20) + "\a",
		"title":         "\x1b]0;" + strings.Repeat("t", 1<<20) + "\x1b\\",
		"links":         strings.Repeat("\x1b]8;;http://x\ay", 1<<15) + strings.Repeat("\n", 1<<13),
		"no end":        "\x1b]0;" + strings.Repeat("x", 1<<20) + "\x18",
		"status":        "\x1bP$q" + strings.Repeat("x", 1<<20) + "\x1b\\",
	}
	for _, between := range []string{"", " ", "'", "$", "\"", "!", "#", "*"} {
		for final := '@'; final <= '~'; final++ {
			for _, before := range []string{"", "?", ">", "<", "="} {
				for _, numbers := range []string{"2147483647", "99999999999", "2147483647;2147483647", "1;1;2147483647;2147483647;2147483647", ";2147483647", "2147483647:2147483647"} {
					all["every sequence"] += "x\x1b[" + before + numbers + between + string(final)
				}
			}
		}
	}
	return all
}

// TestTerminalFloods: whatever a program prints, the page of its terminal goes on to answer, and so does the
// next, which is shown the same again.
func TestTerminalFloods(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	dir := t.TempDir()
	var names []string
	for name, text := range floods() {
		names = append(names, name)
		must(t, os.WriteFile(filepath.Join(dir, strings.ReplaceAll(name, " ", "-")), []byte(text), 0o600))
	}
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Desktop)
	page.Goto("/web/sprites/paint/terminal")
	page.Click("#wake")
	page.Until("it is awake", `!document.getElementById("wake") && document.readyState === "complete"`)
	page.Click("#terminal-new-first:not([disabled])")
	page.Wait(".terminal-panel[data-session]")
	for i, name := range names {
		t.Log(name)
		enter(page, fmt.Sprintf("cat %s/%s; printf '\\033[0m\\033[?25h\\033c'; echo after-$((%d+100))", dir, strings.ReplaceAll(name, " ", "-"), i))
		shows(page, fmt.Sprintf("after-%d", i+100))
	}

	// What was shown is shown again, to another browser: the end of it, too.
	enter(page, "printf 'a\\033[100000000b\\033[2147483647L'; echo last-$((40+2))")
	shows(page, "last-42")
	again := b.Open(s.Client(), webtest.Desktop)
	again.Goto("/web/sprites/paint/terminal")
	again.Click("#terminal-open li button")
	shows(again, "last-42")

	// Cells hold no more than can be seen.
	longest, err := json.Marshal("a" + strings.Repeat("\u0301", 16))
	must(t, err)
	enter(page, `clear; printf 'a'; i=0; while [ $i -lt 400 ]; do printf '\314\201'; i=$((i+1)); done; echo; echo joined-$((40+2))`)
	shows(page, "joined-42")
	page.Until("a cell is short", `[...document.querySelectorAll(".terminal-panel:not([hidden]) .xterm-rows > div")].some(e => e.innerText.trim() === `+string(longest)+`)`)
}
