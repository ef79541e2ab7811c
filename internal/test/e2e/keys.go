package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Planted is in a sandbox's memory. The search for keys must find it.
const Planted = "this-is-in-a-sandbox"

// KeyNowhere checks that a key is neither in the sandboxes' memory on the host nor in
// anything that the server has written (disks, logs, events, the database).
func KeyNowhere(h *Host, key string) {
	h.T.Helper()
	sandboxes := 0
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	for _, name := range commands {
		text, err := os.ReadFile(name)
		if err != nil || !bytes.HasPrefix(text, []byte("runsc-sandbox")) || !bytes.Contains(text, []byte(h.Data)) {
			continue
		}
		sandboxes++
		for what, want := range map[string]bool{key: false, Planted: true} {
			if found, size, err := inMemory(filepath.Dir(name), what); found != want || err != nil {
				h.T.Errorf("%s is in the sandbox's memory, of which %d MiB were looked at: %v, %v", what, size>>20, found, err)
			}
		}
	}
	if sandboxes == 0 {
		h.T.Error("there is no sandbox to look at")
	}
	if found, err := Canary(key).InFiles(h.Data); err != nil || found != nil {
		h.T.Errorf("the key is in %q, %v", found, err)
	}
}

// inMemory searches a process's writable mappings for a text.
func inMemory(proc, text string) (found bool, size int64, err error) {
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	if err != nil {
		return false, 0, err
	}
	mem, err := os.Open(filepath.Join(proc, "mem"))
	if err != nil {
		return false, 0, err
	}
	defer mem.Close()
	buf := make([]byte, 1<<20)
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") || to-from > 4<<30 {
			continue
		}
		for at := from; at < to; at += int64(len(buf) - len(text)) {
			n, _ := mem.ReadAt(buf[:min(int64(len(buf)), to-at)], at) // pages that were never touched can't be read
			size += int64(n)
			if bytes.Contains(buf[:n], []byte(text)) {
				return true, size, nil
			}
			if n == 0 {
				break
			}
		}
	}
	return false, size, nil
}

// ConnectorKey is a key that a connector adds, and that no sprite may have.
const ConnectorKey = "sk-the-very-real-key"
