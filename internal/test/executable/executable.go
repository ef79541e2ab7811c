// Package executable writes programs that a test starts at once.
//
// Linux does not start a file that is open for writing (ETXTBSY). A process that another
// goroutine starts meanwhile has it open, too, until its own exec.
package executable

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Write makes a program of a text, or replaces one. It makes the folder, too.
func Write(t testing.TB, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = WriteFile(path, []byte(text), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// WriteFile is os.WriteFile. No process that this one starts gets the file while it is open.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, mode)
}

// Settle waits for processes that are being started. After it, none has a file open that this
// process closed before.
func Settle() {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
}
