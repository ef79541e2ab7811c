package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/test/executable"
)

// shared is what the tests' servers share about this machine: which of its programs are hidden,
// and the output of its package managers. Else each would find that out anew, in seconds of
// processor time.
var shared struct {
	dir string // removed with the last test

	mu     sync.Mutex
	hider  base.Hider
	looked time.Time
	lent   int      // number of the next folder of stock
	stock  []string // folders that each have the parts that sandboxes start from
}

// SharedDir returns a folder that the tests of a package share. It is removed with the last
// test.
func SharedDir() string { return shared.dir }

// share sets up shared. The caller removes it with end.
func share() (end func(), err error) {
	if shared.dir, err = os.MkdirTemp("", "cove-shared-"); err != nil {
		return nil, err
	}
	shared.hider.Dir = filepath.Join(shared.dir, "base")
	end = func() { _ = os.RemoveAll(shared.dir) }
	bin := filepath.Join(shared.dir, "bin")
	err = errors.Join(os.Chmod(shared.dir, 0o755), os.Mkdir(bin, 0o755),
		remember(bin, "pip", "config list"), remember(bin, "npm", "config get registry"),
		os.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH")))
	if err != nil {
		end()
	}
	return end, err
}

// remember makes a program that answers one command line as the real one did the first time, and
// has the real one do everything else.
func remember(bin, name, args string) error {
	program, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	kept := "'" + filepath.Join(bin, "."+name) + "'"
	real := "'" + strings.ReplaceAll(program, "'", `'\''`) + "'"
	script := fmt.Sprintf(`#!/bin/sh
if [ "$*" != '%s' ] || [ -e "$HOME/.npmrc" ]; then exec %s "$@"; fi
[ -e %s ] || { { %s "$@" >%s.$$; } 2>/dev/null && mv %s.$$ %s; } || exec %s "$@"
exec cat %s
`, args, real, kept, real, kept, kept, kept, real, kept)
	return executable.WriteFile(filepath.Join(bin, name), []byte(script), 0o755)
}

// freshListing is half the time for which a server takes a listing for new.
const freshListing = 150 * time.Second

// ShareListing gives a new data folder a listing of this machine's programs, as if another
// server had made it there a moment ago. For root, the first call makes the listing.
func ShareListing(data string) error {
	if os.Geteuid() != 0 {
		return nil // an ordinary user's server sees them in another namespace: Lend has its own
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.looked.IsZero() || time.Since(shared.looked) > freshListing {
		began := time.Now()
		if err := shared.hider.Renew(); err != nil {
			return err
		}
		shared.looked = began
	}
	dir := filepath.Join(data, "base")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(shared.hider.Dir, "listing"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "listing"), text, 0o600)
}

// madeOnce are the parts of a data folder that all sandboxes start from. Their names have a digest
// of their contents, and a server never writes them again.
var madeOnce = []string{"base/host-*", "base/mask-*", "guest/*"}

// ownListing is an ordinary user's listing. A server uses it for five minutes after it was
// made.
const ownListing = "base/listing"

// Lend gives a new data folder the parts that sandboxes start from, if an ended test left some.
// Else each server would copy the same thousands of files. The server makes parts anew that no
// longer fit. Lend gives the folder a listing too.
func Lend(data string) error {
	if err := ShareListing(data); err != nil {
		return err
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if len(shared.stock) == 0 {
		return nil
	}
	last := len(shared.stock) - 1
	from := shared.stock[last]
	shared.stock = shared.stock[:last]
	return moveMade(from, data)
}

// TakeBack takes the parts that sandboxes start from out of a data folder whose server has
// ended, for the next folder.
func TakeBack(data string) error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.lent++
	to := filepath.Join(shared.dir, "stock", strconv.Itoa(shared.lent))
	if err := moveMade(data, to); err != nil {
		return err
	}
	shared.stock = append(shared.stock, to)
	return nil
}

// moveMade moves the parts that sandboxes start from between two folders. It leaves those on
// another disk.
func moveMade(from, to string) error {
	patterns := madeOnce
	if os.Geteuid() != 0 { // root's is of ShareListing
		patterns = append(slices.Clone(madeOnce), ownListing)
	}
	for _, pattern := range patterns {
		names, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil {
			return err
		}
		dir := filepath.Join(to, filepath.Dir(pattern))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		for _, name := range names {
			err := os.Rename(name, filepath.Join(dir, filepath.Base(name)))
			if err != nil && !errors.Is(err, syscall.EXDEV) {
				return err
			}
		}
	}
	return nil
}
