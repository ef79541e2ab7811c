// Command leakcheck compares the machine before and after something that should
// leave nothing behind:
//
//	leakcheck before FILE [PATTERN…]    writes a snapshot, with the files that match
//	leakcheck after FILE [WAIT]         fails if something is there that was not
//
// After waits, five minutes unless told otherwise, for processes that are still ending.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cove-dev/cove/internal/test/leakcheck"
)

var errUsage = errors.New("usage: leakcheck before FILE [PATTERN…] | leakcheck after FILE [WAIT]")

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	switch file, rest := args[1], args[2:]; args[0] {
	case "before":
		return before(file, rest)
	case "after":
		wait := 5 * time.Minute
		if len(rest) == 1 {
			var err error
			if wait, err = time.ParseDuration(rest[0]); err != nil {
				return err
			}
		} else if len(rest) > 1 {
			return errUsage
		}
		return after(file, wait)
	}
	return errUsage
}

func before(file string, patterns []string) error {
	s, err := leakcheck.Take(patterns...)
	if err != nil {
		return err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}

func after(file string, wait time.Duration) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s leakcheck.Snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	left, err := leakcheck.Left(ctx, s)
	if err != nil {
		return err
	}
	return leakcheck.Error(left)
}
