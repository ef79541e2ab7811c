// Package atomicfile writes files so that readers see them whole or not at all, whenever the
// process or the machine ends.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write gives the file of that name new content and that mode, whatever the umask. The file is
// on the disk when Write returns. After an error the old file is as it was. If several write a
// file at once, the last one wins.
func Write(name string, data []byte, mode fs.FileMode) error {
	f, err := Create(name)
	if err != nil {
		return err
	}
	defer f.Discard()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Commit(mode)
}

// Replace is Write, but does not wait for the disk. After a crash of the machine the file may
// be the old one, or empty. It is for files that are made anew at each start.
func Replace(name string, data []byte, mode fs.FileMode) error {
	f, err := Create(name)
	if err != nil {
		return err
	}
	defer f.Discard()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// File is a file that does not have its name yet. It is beside its place, as .NAME-XXXX, and
// only its owner may read it.
type File struct {
	*os.File
	name string
}

// Create makes a file that will get a name later. The caller must Discard it.
func Create(name string) (File, error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	return File{f, name}, err
}

// Commit closes the file, and gives it that mode and its name. It replaces any file of that
// name. The file is on the disk when Commit returns.
func (f File) Commit(mode fs.FileMode) error { return f.commit(f.name, mode, os.Rename) }

// CommitNew is Commit, but fails with fs.ErrExist if something has the name.
func (f File) CommitNew(mode fs.FileMode) error { return f.commit(f.name, mode, os.Link) }

// CommitAs is Commit by a name that is known only now, on the same file system.
func (f File) CommitAs(name string, mode fs.FileMode) error { return f.commit(name, mode, os.Rename) }

func (f File) commit(name string, mode fs.FileMode, place func(from, to string) error) error {
	if err := errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := place(f.Name(), name); err != nil {
		return err
	}
	return SyncFolder(filepath.Dir(name))
}

// Discard closes the file and removes it. After Commit it does nothing.
func (f File) Discard() {
	_ = f.Close()           // closed already, or given up
	_ = os.Remove(f.Name()) // gone already, if all went well
}

// SyncFolder writes the names in a folder to the disk before it returns.
func SyncFolder(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
