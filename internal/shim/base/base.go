// Package base makes what a sprite's disk starts from. The host base is a small
// skeleton of folders and hand-picked files. The host's own program folders are
// below an overlay (/usr, and /bin and the like if they are folders of their own).
// So every tool of the host is there, and nothing secret is.
package base

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
)

// Host names the base made of the host's own tools.
const Host = "host"

// format is raised when the skeleton is built differently, so that an old one
// is not taken for a new one.
const format = 5

// A Base is a finished base on disk. It is never written again.
type Base struct {
	Dir         string   // the skeleton: the lowest layer of the root
	Fingerprint string   // of the skeleton and of the host folders below Mounts
	Mounts      []string // host folders that are mounted over at the same path, such as "usr"
	Mask        Mask     // over them; the zero value hides nothing
}

// Files describes the host that a base is made of. The zero value is this
// machine; tests set Root.
type Files struct {
	Root string // "" means "/"
	User User   // the sprite's user
}

// User is the ordinary user of every sprite.
type User struct {
	Name     string
	UID, GID int
	Home     string
}

func (f Files) path(rel string) string {
	root := f.Root
	if root == "" {
		root = "/"
	}
	return filepath.Join(root, rel)
}

// Folder is the name, in a data folder, of the folder for what this package makes.
const Folder = "base"

// programDirs are the folders that hold a system's programs and libraries.
var programDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// programs are those of them that this host has as folders of their own.
func (f Files) programs() []string {
	var all []string
	for _, name := range programDirs {
		if st, err := os.Lstat(f.path(name)); err == nil && st.IsDir() {
			all = append(all, name)
		}
	}
	return all
}

// Prepare returns the host base, from dir if it was built there before. A base
// appears in dir under its final name only when it is whole.
func (f Files) Prepare(dir string) (Base, error) {
	b := Base{Mounts: f.programs()}
	if len(b.Mounts) == 0 || b.Mounts[0] != "usr" {
		return Base{}, fmt.Errorf("prepare base: %s is not a folder", f.path("usr"))
	}
	etc, err := f.settings()
	if err != nil {
		return Base{}, fmt.Errorf("prepare base: %w", err)
	}
	sum, err := f.fingerprint(b.Mounts, etc)
	if err != nil {
		return Base{}, fmt.Errorf("prepare base: %w", err)
	}
	b.Fingerprint = sum
	b.Dir = filepath.Join(dir, Host+"-"+sum[:16])
	if _, err := os.Stat(b.Dir); err == nil {
		return b, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Base{}, fmt.Errorf("prepare base: %w", err)
	}
	tmp, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return Base{}, fmt.Errorf("prepare base: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := f.build(tmp, etc); err != nil {
		return Base{}, fmt.Errorf("prepare base: %w", err)
	}
	// Another server's leftover, or a second call: either is whole.
	if err := os.Rename(tmp, b.Dir); err != nil && !errors.Is(err, fs.ErrExist) && !isNotEmpty(err) {
		return Base{}, fmt.Errorf("prepare base: %w", err)
	}
	return b, nil
}

// fingerprint changes whenever the host's packages, its system version, or a
// file that goes into the skeleton changes. It reads names and times, not the
// contents of /usr, so it is quick. Of a setting the content counts, not its time.
func (f Files) fingerprint(mounts []string, etc settings) (string, error) {
	type entry struct {
		Path    string
		Mode    fs.FileMode
		Size    int64
		ModTime int64
		Target  string
		Sum     string `json:",omitempty"`
	}
	var entries []entry
	add := func(rel string, st fs.FileInfo) {
		e := entry{Path: rel, Mode: st.Mode()}
		if !st.IsDir() {
			e.Size = st.Size()
		}
		e.ModTime = st.ModTime().UnixNano()
		if st.Mode()&fs.ModeSymlink != 0 {
			e.Target, _ = os.Readlink(f.path(rel))
		}
		entries = append(entries, e)
	}
	for _, m := range mounts {
		for _, rel := range []string{m, m + "/bin", m + "/sbin", m + "/lib", m + "/local/bin", m + "/local/lib"} {
			if st, err := os.Lstat(f.path(rel)); err == nil {
				add(rel, st)
			}
		}
	}
	if err := f.eachPick(func(rel string, st fs.FileInfo) error { add(rel, st); return nil }); err != nil {
		return "", err
	}
	for _, e := range etc.entries {
		entries = append(entries, entry{Path: e.path, Mode: e.mode, Target: e.target, Sum: e.sum})
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Path < entries[j].Path })
	h := sha256.New()
	err := json.NewEncoder(h).Encode(struct {
		Format  int
		Owner   int // a base built by another user has other owners
		User    User
		Entries []entry
	}{format, os.Geteuid(), f.User, entries})
	return hex.EncodeToString(h.Sum(nil)), err
}
