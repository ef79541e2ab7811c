package datafolder_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/sprites"
)

// A lock is found while others come and go. The kernel gives its list page by page, and leaves
// out some held locks if the list changes between two pages.
func TestServesAmongLocks(t *testing.T) {
	dir := t.TempDir()
	hold := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			return nil
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Error(err)
		}
		return f
	}
	for i := range 100 { // a page has some 60
		defer hold("held" + strconv.Itoa(i)).Close()
	}
	defer hold("lock").Close()
	done := make(chan struct{})
	var others sync.WaitGroup
	for i := range 2 {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					var held []*os.File
					for j := range 20 {
						held = append(held, hold("other"+strconv.Itoa(i)+"-"+strconv.Itoa(j)))
					}
					for _, f := range held {
						_ = f.Close()
					}
				}
			}
		})
	}
	me := datafolder.Server{ServerInfo: sprites.ServerInfo{PID: os.Getpid()}, Started: private.StartOf(os.Getpid())}
	for i := range 1000 {
		if !datafolder.Serves(dir, me) {
			t.Errorf("look %d: this process does not hold the lock", i)
			break
		}
		if !datafolder.Locked(filepath.Join(dir, "lock")) {
			t.Errorf("look %d: nobody holds the lock", i)
			break
		}
	}
	close(done)
	others.Wait()
}
