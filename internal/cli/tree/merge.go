package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/safepath"
)

// mergeTree moves the content of the folder from into the folder to. It replaces files, but
// never goes through a link, and never replaces a folder by a file or the reverse. It
// checks all entries before it moves the first. A sandbox decides how many files there
// are, so only a few of a folder's files are in memory at a time.
func mergeTree(root *os.Root, from, to string) error {
	if _, err := checkMerge(root, from, to); err != nil {
		return err
	}
	return moveTree(root, from, to)
}

// checkMerge also refuses a merge that makes a folder a git repository, or changes
// something in a folder that is one. It reports whether the merge changes something
// outside of the person's own work trees, which have a .git.
func checkMerge(root *os.Root, from, to string) (changes bool, err error) {
	if err := openFolder(root, from); err != nil {
		return false, err
	}
	parts, own, err := gitParts(root, to)
	if err != nil {
		return false, err
	}
	err = eachEntry(root, from, func(d fs.DirEntry) error {
		source, target := path.Join(from, d.Name()), path.Join(to, d.Name())
		parts |= safepath.GitPart(d.Name())
		there, err := root.Lstat(target)
		if errors.Is(err, fs.ErrNotExist) {
			changes = true
			return nil // all that is in it will be new, too
		}
		if err != nil {
			return err
		}
		if there.IsDir() != d.IsDir() {
			return fmt.Errorf("copy %s: a file would replace a folder, or a folder a file", printable.Line(target))
		}
		if !d.IsDir() {
			changes = true
			return nil
		}
		below, err := checkMerge(root, source, target)
		changes = changes || below
		return err
	})
	if err == nil && changes && parts.Repository() {
		err = refused(to, inRepository)
	}
	return changes && !own, err
}

// gitParts returns the git parts of a folder, and whether it has a .git.
func gitParts(root *os.Root, dir string) (parts safepath.GitParts, own bool, err error) {
	f, err := root.Open(dir)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(512)
		for _, name := range names {
			parts |= safepath.GitPart(name)
			own = own || safepath.IsDotGit(name)
		}
		if errors.Is(err, io.EOF) {
			return parts, own, nil
		}
		if err != nil {
			return parts, own, err
		}
	}
}

// openFolder makes a folder of ours readable and writable for its owner, whatever its mode.
func openFolder(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil || info.Mode().Perm()&0o700 == 0o700 {
		return err
	}
	return root.Chmod(name, info.Mode().Perm()|0o700)
}

// moveTree moves the entries that checkMerge has checked.
func moveTree(root *os.Root, from, to string) error {
	return eachEntry(root, from, func(d fs.DirEntry) error {
		source, target := path.Join(from, d.Name()), path.Join(to, d.Name())
		err := error(nil)
		if d.IsDir() {
			err = moveFolder(root, source, target)
		} else {
			err = root.Rename(source, target)
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", printable.Line(target), err)
		}
		return nil
	})
}

// moveFolder merges a folder into an existing one, or moves it as a whole. To move it, an
// ordinary user needs permission to write to it.
func moveFolder(root *os.Root, from, to string) error {
	if there, err := root.Lstat(to); err == nil && there.IsDir() {
		return moveTree(root, from, to)
	}
	info, err := root.Lstat(from)
	if err != nil {
		return err
	}
	if err := openFolder(root, from); err != nil {
		return err
	}
	if err := root.Rename(from, to); err != nil {
		return err
	}
	return root.Chmod(to, info.Mode().Perm())
}

// eachEntry calls f for each entry of a folder. Folders come last, when nothing is open
// any more: they may be deep. f may move the entry that it is called for.
func eachEntry(root *os.Root, dir string, f func(fs.DirEntry) error) error {
	var dirs []fs.DirEntry
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	for err == nil {
		var some []fs.DirEntry
		some, err = d.ReadDir(512)
		for _, e := range some {
			if e.IsDir() {
				dirs = append(dirs, e)
			} else if err := f(e); err != nil {
				return errors.Join(err, d.Close())
			}
		}
	}
	if closed := d.Close(); !errors.Is(err, io.EOF) || closed != nil {
		return errors.Join(err, closed)
	}
	for _, e := range dirs {
		if err := f(e); err != nil {
			return err
		}
	}
	return nil
}
