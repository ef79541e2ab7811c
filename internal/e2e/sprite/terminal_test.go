package sprite

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestTerminal uses a console in a real terminal (tmux). It shows the right size, takes
// keys, survives the server, can be left and joined again, and ends with the shell.
func TestTerminal(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint")
	h.Write("home/.tmux.conf", "set -g default-shell /bin/sh\n")
	socket := filepath.Join(filepath.Dir(h.Home), "tmux.sock")
	tmux := func(args ...string) string {
		return h.Run("", "tmux", append([]string{"-S", socket}, args...)...)
	}
	tmux("new-session", "-d", "-x", "90", "-y", "25", "sh")
	defer tmux("kill-server")
	defer func() {
		if t.Failed() {
			t.Logf("the terminal shows:\n%s", tmux("capture-pane", "-p"))
		}
	}()
	keys := func(text string) { tmux("send-keys", text, "Enter") }
	says := func(text, what string) { // once it has been typed often enough
		t.Helper()
		e2e.Await(t, "the terminal shows "+what, func() bool {
			if text != "" {
				keys(text)
				time.Sleep(50 * time.Millisecond)
			}
			return strings.Contains(tmux("capture-pane", "-p"), what)
		})
	}
	shows := func(what string) { t.Helper(); says("", what) }
	keys("cove console -s paint; echo left with $?")
	shows("$")
	keys("tty && stty size && echo in-$(hostname)")
	shows("/dev/pts/")
	shows("25 90")
	shows("in-paint")
	tmux("resize-window", "-x", "70", "-y", "20")
	says("clear; stty size", "20 70") // the shell may be faster than the news
	keys("echo nap''ping; sleep 100")
	shows("napping")
	e2e.Await(t, "an interrupt", func() bool { // it may come before the sleep
		tmux("send-keys", "C-c")
		keys("echo inter''rupted; mine=value")
		time.Sleep(50 * time.Millisecond)
		return strings.Contains(tmux("capture-pane", "-p"), "interrupted")
	})
	first := h.PID()
	e2e.SignalAll(t, syscall.SIGKILL, first)
	e2e.Await(t, "the next server", func() bool { pid := h.PID(); return pid != first && pid != 0 })
	says("clear; echo again with $mine", "again with value") // keys typed before the terminal is back are lost
	tmux("send-keys", "C-\\")                                // leave
	shows("left with 0")
	keys("clear; cove console --user root paint; echo root left with $?")
	says("echo $(hostname)-$(id -un)", "paint-root")
	keys("clear; exit")
	shows("root left with 0")
	keys("clear; cove console -r paint; echo left with $?")
	shows("again with value") // its earlier output
	keys("clear; echo back with $mine; exit 7")
	shows("back with value")
	shows("left with 7")
}
