// Package private protects cove's files on this machine from the machine's other users. Only
// the owner of a data folder may enter it, and read its files. Neither depends on the umask,
// or on how the folder was made. Linux only.
package private

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// others are the permissions that only the owner may have.
const others = 0o077

// ours are the names that cove gives in a data folder.
var ours = []string{
	"lock", "start.lock", "address", "server.json", "spare", "token", "secret.key", "serve.toml",
	"cove-doctor", "cove.db", "cove.db-wal", "cove.db-shm", "cove.db-journal", "epoch", "epoch.new",
	"serve.log", "serve.log.1", "userns", "userns.new", "userns.log",
	"aside", "base", "build", "crashed", "guest", "images", "imports", "layers", "memories", "oci", "run", "sprites",
}

// harmless are those of our names that decide nothing: others can deceive nobody by writing
// there.
var harmless = []string{"lock", "start.lock", "spare", "cove-doctor", "serve.log", "serve.log.1", "userns.log"}

// deep are the folders whose folders are each one sandbox's.
var deep = []string{"images", "imports", "layers", "memories", "run"}

// A RefusedError says why a folder can't be a data folder, and what to do.
type RefusedError struct {
	Dir  string
	Why  string
	Hint string // what to type next, complete
}

func (e *RefusedError) Error() string { return fmt.Sprintf("the data folder %s %s", e.Dir, e.Why) }

// Folder makes dir, with its parents, as a data folder that only this user may enter.
// If others may enter the folder, Folder tightens it, provided that it is this user's and
// holds only cove's files. If it had files that others could reach, was is its mode before;
// otherwise 0. Folder tightens the files in it, too, which repairs a data folder of an earlier
// version.
//
// A *RefusedError gives one of four reasons. The folder is somebody else's, others could
// replace it, or it also holds files that are not cove's. Or others could have written files
// that cove relies on (tokens, settings, the database, disks).
func Folder(dir string) (was fs.FileMode, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return 0, fmt.Errorf("make the data folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, fmt.Errorf("make the data folder: %w", err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		err = errors.Join(checkWay(dir), checkWay(real))
	}
	if err != nil {
		return 0, fmt.Errorf("look at the data folder: %w", err)
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, fmt.Errorf("open the data folder: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("open the data folder: %w", err)
	}
	if err := checkOwner(dir, st); err != nil {
		return 0, err
	}
	entries, err := f.ReadDir(-1)
	if err != nil {
		return 0, fmt.Errorf("read the data folder: %w", err)
	}
	if err := checkWritten(dir, st); err != nil {
		return 0, err
	}
	if st.Mode().Perm()&others != 0 {
		if err := tightenFolder(f, dir, st, entries); err != nil {
			return 0, err
		}
		if len(entries) > 0 {
			was = st.Mode().Perm()
		}
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return 0, fmt.Errorf("open the data folder: %w", err)
	}
	defer root.Close()
	return was, tightenEntries(root, dir, entries)
}

// Check says why an existing data folder can't be relied on, and changes nothing. A client of
// a server gives its token to the process that the folder names. The errors are Folder's.
func Check(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(checkWay(dir), checkWay(real)); err != nil {
		return err
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	return errors.Join(checkOwner(dir, st), checkWritten(dir, st))
}

// checkWritten refuses a data folder if others may have written something in it that cove
// relies on. That is so if it is somebody else's, or if others may write to it and enter the
// folder. If others can't enter a folder, its content is its owner's, whatever the modes.
func checkWritten(dir string, st fs.FileInfo) error {
	names := slices.DeleteFunc(slices.Clone(ours), func(name string) bool { return slices.Contains(harmless, name) })
	entered := st.Mode().Perm()&0o011 != 0
	for _, name := range deep {
		if !entered {
			break // they are many, and Folder looks at their owners
		}
		below, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look at the data folder: %w", err)
		}
		for _, b := range below {
			names = append(names, filepath.Join(name, b.Name()))
		}
	}
	for _, name := range names {
		at := filepath.Join(dir, name)
		entry, err := os.Lstat(at)
		if err == nil && owner(entry) == os.Geteuid() && entry.Mode()&fs.ModeSymlink != 0 {
			if at, err = filepath.EvalSymlinks(at); err == nil { // the owner's own, to another disk
				entry, err = os.Lstat(at)
			}
			if err == nil {
				err = checkWay(at)
			}
		}
		switch refused, ok := errors.AsType[*RefusedError](err); {
		case ok:
			return &RefusedError{Dir: dir, Why: fmt.Sprintf("holds the link %s, and %s %s", name, at, refused.Why), Hint: refused.Hint}
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fmt.Errorf("look at the data folder: %w", err)
		case owner(entry) != os.Geteuid():
			return &RefusedError{Dir: dir, Why: fmt.Sprintf("holds %s of user %d", name, owner(entry)), Hint: "delete it if you do not know it, or give it to yourself with chown; then start again"}
		case othersWrite(entry) && (entered || !strings.HasPrefix(at, dir+"/")):
			return &RefusedError{Dir: dir, Why: fmt.Sprintf("holds %s, to which others could write (%v)", name, entry.Mode()),
				Hint: fmt.Sprintf("look whether it is as you left it; then close it with chmod go-w %s, or delete it; then start again", at)}
		}
	}
	return nil
}

// othersWrite reports whether others than the owner may write to a file. The user's own group
// and root's do not count as others, as in checkWay.
func othersWrite(st fs.FileInfo) bool {
	groups := []int{os.Getegid(), 0}
	if inUserNS() {
		groups = append(groups, overflow)
	}
	return st.Mode().Perm()&0o002 != 0 || st.Mode().Perm()&0o020 != 0 && !slices.Contains(groups, group(st))
}

func checkOwner(dir string, st fs.FileInfo) error {
	if uid := owner(st); uid != os.Geteuid() {
		return &RefusedError{Dir: dir, Why: fmt.Sprintf("belongs to user %d, and cove runs as user %d", uid, os.Geteuid()),
			Hint: "use a folder of your own with --data DIR, or run cove as the folder's owner"}
	}
	return nil
}

// tightenFolder keeps others out of a folder that holds cove's files, or nothing.
func tightenFolder(f *os.File, dir string, st fs.FileInfo, entries []fs.DirEntry) error {
	if err := onlyOurs(dir, st, entries); err != nil {
		return err
	}
	if err := f.Chmod(0o700); err != nil {
		return fmt.Errorf("close the data folder to others: %w", err)
	}
	if st, err := f.Stat(); err != nil || st.Mode().Perm()&others != 0 {
		return errors.Join(err, &RefusedError{Dir: dir, Why: "stays open to others: its file system keeps no permissions", Hint: "use a folder on another file system with --data DIR"})
	}
	return nil
}

// onlyOurs refuses a folder that others may enter if it holds files that are not cove's.
func onlyOurs(dir string, st fs.FileInfo, entries []fs.DirEntry) error {
	for _, e := range entries {
		if !known(e.Name()) {
			return &RefusedError{
				Dir:  dir,
				Why:  fmt.Sprintf("may be entered by others (%v), and holds %q, which is not cove's", st.Mode().Perm(), e.Name()),
				Hint: fmt.Sprintf("use a folder in it with --data %s, or close it with chmod 700 %[2]s", filepath.Join(dir, "cove"), dir),
			}
		}
	}
	return nil
}

// known reports whether cove gives a name in a data folder. Replaced files have a
// temporary name first, which begins with a dot.
func known(name string) bool {
	if slices.Contains(ours, name) || name == "lost+found" { // made with every ext4
		return true
	}
	stem, ok := strings.CutPrefix(name, ".")
	return ok && slices.ContainsFunc(ours, func(o string) bool { return strings.HasPrefix(stem, o+"-") })
}

// tightenEntries takes others' rights from cove's files in its folder. If a file is somebody
// else's, it was put there while others could write to the folder.
func tightenEntries(root *os.Root, dir string, entries []fs.DirEntry) error {
	for _, e := range entries {
		if !known(e.Name()) || e.Name() == "lost+found" {
			continue
		}
		if err := tighten(root, dir, e.Name()); err != nil {
			return err
		}
		if !e.IsDir() || !slices.Contains(deep, e.Name()) {
			continue
		}
		below, err := fs.ReadDir(root.FS(), e.Name())
		if err != nil {
			return fmt.Errorf("read the data folder: %w", err)
		}
		for _, b := range below {
			if err := tighten(root, dir, filepath.Join(e.Name(), b.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// tighten takes others' rights from one file or folder. It is not an error if that has just
// been removed: a server that is stopping removes some.
func tighten(root *os.Root, dir, name string) error {
	st, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look at the data folder: %w", err)
	}
	if uid := owner(st); uid != os.Geteuid() {
		return &RefusedError{Dir: dir, Why: fmt.Sprintf("holds %s of user %d", name, uid), Hint: "delete it if you do not know it, or give it to yourself with chown; then start again"}
	}
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		// The owner put it there, for instance because another disk has more room. Only the
		// owner could: it is theirs, and the folder is closed.
		return tightenTarget(filepath.Join(dir, name))
	case st.Mode().Perm()&others == 0:
		return nil
	}
	if err := root.Chmod(name, st.Mode().Perm()&^others); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("close %s to others: %w", filepath.Join(dir, name), err)
	}
	return nil
}

// tightenTarget takes others' rights from the target of a link of the owner's.
func tightenTarget(link string) error {
	st, err := os.Stat(link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && st.Mode().Perm()&others != 0 {
		err = os.Chmod(link, st.Mode().Perm()&^others)
	}
	if err != nil {
		return fmt.Errorf("close %s to others: %w", link, err)
	}
	return nil
}

// checkWay refuses a path that others could redirect. Then it leads through a link or a folder
// of somebody else's, or through a folder that others may write to without a sticky bit. The
// user's own group and root's do not count as others: if each user has a group, the user's
// folders are often writable to it.
func checkWay(dir string) error { return checkWayFrom(dir, dir) }

// checkWayFrom is checkWay for the part of the path from the root to the folder from.
func checkWayFrom(dir, from string) error {
	trusted, groups := []int{os.Geteuid(), 0}, []int{os.Getegid(), 0}
	if inUserNS() {
		trusted, groups = append(trusted, overflow), append(groups, overflow) // the machine's root, as seen from inside
	}
	for at := from; ; at = filepath.Dir(at) {
		st, err := os.Lstat(at)
		if err != nil {
			return err
		}
		switch uid := owner(st); {
		case st.Mode()&fs.ModeSymlink != 0 && !slices.Contains(trusted, uid):
			return &RefusedError{Dir: dir, Why: fmt.Sprintf("is reached through %s, a link of user %d", at, uid), Hint: "use another folder with --data DIR"}
		case at != dir && st.IsDir() && st.Mode().Perm()&0o002 != 0 && st.Mode()&fs.ModeSticky == 0:
			return &RefusedError{Dir: dir, Why: fmt.Sprintf("can be replaced by anybody: all may write to %s", at),
				Hint: fmt.Sprintf("use another folder with --data DIR, or protect that one with chmod +t %s", at)}
		case at != dir && st.IsDir() && st.Mode().Perm()&0o020 != 0 && st.Mode()&fs.ModeSticky == 0 && !slices.Contains(groups, group(st)):
			return &RefusedError{Dir: dir, Why: fmt.Sprintf("can be replaced by the group %d, which may write to %s", group(st), at),
				Hint: fmt.Sprintf("use another folder with --data DIR, or protect that one with chmod +t %s", at)}
		case at != dir && st.IsDir() && !slices.Contains(trusted, uid):
			return &RefusedError{Dir: dir, Why: fmt.Sprintf("can be replaced by user %d, who owns %s", uid, at), Hint: "use another folder with --data DIR"}
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// overflow is the id that the kernel shows for an id that a user namespace does not map.
const overflow = 65534

// inUserNS reports whether this process sees the machine's ids mapped.
func inUserNS() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !slices.Equal(strings.Fields(string(text)), []string{"0", "0", "4294967295"})
}

// Process makes the files that the process and its children leave on the disk independent of
// its caller. The umask is 022. A stricter one would close the folders that a sprite's own
// users see. A looser one would open files whose mode cove leaves to the umask. No process
// dumps core: its memory may have secrets.
func Process() error {
	unix.Umask(0o022)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("turn core dumps off: %w", err)
	}
	return nil
}

// File makes path a file that only its owner may read. It creates an empty file if there is
// none, and takes others' rights from one that exists.
func File(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil && st.Mode().Perm()&others != 0 {
		err = f.Chmod(st.Mode().Perm() &^ others)
	}
	return errors.Join(err, f.Close())
}

func group(st fs.FileInfo) int {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(sys.Gid)
	}
	return -1
}

func owner(st fs.FileInfo) int {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(sys.Uid)
	}
	return -1
}

// FolderID identifies a folder by device and inode: one that is moved on its file system stays the same, and a copy is
// another one. Links are followed.
func FolderID(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return fmt.Sprintf("%x:%x", st.Dev, st.Ino), nil
}

// Processes names the numbering of processes that this process is in. The numbering of another
// machine or container has another name. It is empty if the kernel does not tell.
func Processes() string {
	space, err := os.Readlink("/proc/self/ns/pid")
	boot, err2 := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || err2 != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + "/" + space
}

// Elsewhere reports whether a numbering, as Processes gave it, is not this process's. It is
// false if either is not known.
func Elsewhere(processes string) bool {
	here := Processes()
	return processes != "" && here != "" && processes != here
}

// StartOf returns when the process of a number began, in ticks of the kernel's clock. Together
// with the number it identifies the process, because another process may get the number later.
// It is empty if there is no such process, or it has ended.
func StartOf(pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the state on, the third field of proc(5)
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}
