// Package leakcheck tells what a test run left behind on the machine: mounts, namespaces,
// network interfaces, cgroup folders, cove's processes and temporary files. It compares
// two snapshots of the whole machine, so other programs' changes show too. Each thing is
// named so that a person can tell whose it is. Linux only.
package leakcheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind says what a Thing is.
type Kind string

// The kinds of things that a snapshot holds.
const (
	Mount     Kind = "mount"     // in this process's mount namespace
	Namespace Kind = "namespace" // held by a process, an open file or a mount
	Interface Kind = "interface" // in this process's network namespace
	Cgroup    Kind = "cgroup"    // a folder cove-* in any hierarchy
	Process   Kind = "process"   // one of cove's or of its runsc's
	File      Kind = "file"
)

// A Thing is something that can be left behind.
type Thing struct {
	Kind   Kind   `json:"kind"`
	Name   string `json:"name"`             // identifies it among its kind
	Detail string `json:"detail,omitempty"` // for people
}

func (t Thing) String() string {
	if t.Detail == "" {
		return fmt.Sprintf("%s %s", t.Kind, t.Name)
	}
	return fmt.Sprintf("%s %s (%s)", t.Kind, t.Name, t.Detail)
}

// A Snapshot is the things that were there at one moment, and the patterns of the files
// searched for.
type Snapshot struct {
	Things []Thing  `json:"things"`
	Files  []string `json:"files"` // patterns as of path/filepath.Glob
}

// Take looks at the machine. Files that match one of the patterns are part of the
// snapshot. Things that this process may not see, such as the namespaces of another
// user's processes, are left out.
func Take(files ...string) (Snapshot, error) {
	s := Snapshot{Files: files}
	for _, list := range []func() ([]Thing, error){
		mounts, namespaces, interfaces, cgroups, processes,
		func() ([]Thing, error) { return matching(files) },
	} {
		things, err := list()
		if err != nil {
			return Snapshot{}, fmt.Errorf("look for leaks: %w", err)
		}
		s.Things = append(s.Things, things...)
	}
	slices.SortFunc(s.Things, func(a, b Thing) int {
		return strings.Compare(string(a.Kind)+a.Name, string(b.Kind)+b.Name)
	})
	return s, nil
}

// Since returns the things that are in s and not in before.
func (s Snapshot) Since(before Snapshot) []Thing {
	type key struct {
		kind Kind
		name string
	}
	had := make(map[key]bool, len(before.Things))
	for _, t := range before.Things {
		had[key{t.Kind, t.Name}] = true
	}
	var left []Thing
	for _, t := range s.Things {
		if !had[key{t.Kind, t.Name}] {
			left = append(left, t)
		}
	}
	return left
}

// Left takes snapshots until everything is gone that was not in before, or until ctx
// ends. It returns the rest: processes that were told to end may take a moment.
func Left(ctx context.Context, before Snapshot) ([]Thing, error) {
	for {
		now, err := Take(before.Files...)
		if err != nil {
			return nil, err
		}
		left := now.Since(before)
		if len(left) == 0 {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return left, nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Error returns one error for all that is left; nil if nothing is.
func Error(left []Thing) error {
	errs := make([]error, len(left))
	for i, t := range left {
		errs[i] = errors.New("left behind: " + t.String())
	}
	return errors.Join(errs...)
}
