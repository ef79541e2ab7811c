package executable

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// TestWrite: a program that was just written can be started, although other goroutines start
// processes all the time.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 20 {
				name := filepath.Join(dir, fmt.Sprintf("p%d-%d", i, j))
				Write(t, name, "#!/bin/sh\necho ran\n")
				if out, err := exec.Command(name).Output(); err != nil || string(out) != "ran\n" {
					t.Errorf("%s: %q, %v", name, out, err)
				}
			}
		})
	}
	all.Wait()
}
