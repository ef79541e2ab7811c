package web_test

import (
	"encoding/base64"
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
		"many lines":    strings.Repeat("\x1b[256L", 1<<12),
		"many resets":   strings.Repeat("\x1bc", 1<<9),
		"many fills":    strings.Repeat("\x1b#8", 1<<10),
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

// TestTerminalFloods: whatever a program prints, the page of its terminal goes on to answer, and shows
// what comes after.
func TestTerminalFloods(t *testing.T) {
	s := covetest.Start(t, covetest.Options{})
	s.Create("paint")
	b := webtest.Start(t)
	page := b.Open(s.Client(), webtest.Desktop)
	page.Goto("/web/sprites/paint/terminal")
	page.Click("#wake")
	page.Until("it is awake", `!document.getElementById("wake") && document.readyState === "complete"`)
	page.Eval(`window.WebSocket = class { static OPEN = 1; readyState = 1; constructor() { window.sandbox = this; } send() {} close() {} }; true`, nil)
	page.Click("#terminal-new-first:not([disabled])")
	page.Until("it connects", `!!window.sandbox?.onmessage`)
	prints := func(text string) {
		page.Eval(`sandbox.onmessage({ data: Uint8Array.from(atob("`+base64.StdEncoding.EncodeToString([]byte(text))+`"), c => c.charCodeAt(0)).buffer }); true`, nil)
	}
	page.Eval(`sandbox.onmessage({ data: '{"type":"session_info","session_id":"1"}' }); true`, nil)
	for name, text := range floods() {
		t.Log(name)
		prints(text)
		prints("\x18\x1bcafter " + name)
		shows(page, "after "+name)
	}

	// A cell holds no more than can be seen, however many parts it comes in.
	prints("\x1bca")
	for range 10 {
		prints(strings.Repeat("\u0301", 10))
	}
	prints("\r\nb\xcc")
	prints("\x81")
	shows(page, "b\u0301")
	page.Until("a cell is short", `[...document.querySelectorAll(".terminal-panel:not([hidden]) .xterm-rows > div")].some(e => e.innerText.trim().length === 17)`)
}
