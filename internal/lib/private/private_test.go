package private

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A data folder that others may enter is closed, with all of cove's files in it. A folder that
// cove can't keep to itself is refused, and not changed.
func TestFolder(t *testing.T) {
	old := unix.Umask(0)
	t.Cleanup(func() { unix.Umask(old) })
	const stranger = 54321
	for _, test := range []struct {
		name    string
		root    bool // needs root, who alone can make what is somebody else's
		make    func(t *testing.T, dir string)
		was     fs.FileMode
		refused string
	}{
		{name: "new", make: func(t *testing.T, dir string) { must(t, os.Remove(dir)) }},
		{name: "empty", make: func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o777)) }},
		{name: "an older version's", was: 0o755, make: func(t *testing.T, dir string) {
			old := filepath.Join(dir, "layers", "23f8a085240b9fba", "root", "upper")
			must(t, errors.Join(os.MkdirAll(old, 0o755), os.MkdirAll(filepath.Join(dir, "base"), 0o755)))
			for _, name := range []string{"cove.db", "cove.db-wal", "cove.db-shm", "token", ".server.json-123", "serve.log"} {
				must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
			}
			must(t, os.Chmod(dir, 0o755))
		}},
		{name: "closed, with open files", make: func(t *testing.T, dir string) {
			must(t, errors.Join(os.Mkdir(filepath.Join(dir, "layers"), 0o755), os.WriteFile(filepath.Join(dir, "cove.db"), nil, 0o644)))
		}},
		{name: "closed, with others' files", make: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600))
		}},
		{name: "open, with others' files", refused: `holds "notes"`, make: func(t *testing.T, dir string) {
			must(t, errors.Join(os.WriteFile(filepath.Join(dir, "notes"), nil, 0o644), os.Chmod(dir, 0o755)))
		}},
		{name: "to be replaced by anybody", refused: "all may write to", make: func(t *testing.T, dir string) {
			must(t, os.Chmod(filepath.Dir(dir), 0o777))
		}},
		{name: "in a folder for all, which keeps names", make: func(t *testing.T, dir string) {
			must(t, os.Chmod(filepath.Dir(dir), 0o777|fs.ModeSticky))
		}},
		{name: "a link of one's own", make: func(t *testing.T, dir string) {
			must(t, errors.Join(os.Rename(dir, dir+"-real"), os.Symlink(dir+"-real", dir), os.Chmod(dir, 0o755)))
		}},
		{name: "somebody else's", root: true, refused: "belongs to user 54321", make: func(t *testing.T, dir string) {
			must(t, os.Chown(dir, stranger, -1))
		}},
		{name: "in somebody else's folder", root: true, refused: "can be replaced by user 54321", make: func(t *testing.T, dir string) {
			must(t, os.Chown(filepath.Dir(dir), stranger, -1))
		}},
		{name: "in a folder of another group's", root: true, refused: "can be replaced by the group 54321", make: func(t *testing.T, dir string) {
			must(t, errors.Join(os.Chown(filepath.Dir(dir), -1, stranger), os.Chmod(filepath.Dir(dir), 0o775)))
		}},
		{name: "in a folder of one's own group's", make: func(t *testing.T, dir string) {
			must(t, os.Chmod(filepath.Dir(dir), 0o775))
		}},
		{name: "a link of somebody else's", root: true, refused: "a link of user 54321", make: func(t *testing.T, dir string) {
			must(t, errors.Join(os.Rename(dir, dir+"-real"), os.Symlink(dir+"-real", dir), os.Lchown(dir, stranger, -1)))
		}},
		{name: "with a planted file", root: true, refused: "holds token of user 54321", make: func(t *testing.T, dir string) {
			token := filepath.Join(dir, "token")
			must(t, errors.Join(os.Chmod(dir, 0o777), os.WriteFile(token, nil, 0o600), os.Chown(token, stranger, -1)))
		}},
		{name: "with a planted file, closed since", root: true, refused: "holds serve.toml of user 54321", make: func(t *testing.T, dir string) {
			settings := filepath.Join(dir, "serve.toml")
			must(t, errors.Join(os.WriteFile(settings, nil, 0o600), os.Chown(settings, stranger, -1)))
		}},
		{name: "with settings that all could write", refused: "holds serve.toml, to which others could write", make: func(t *testing.T, dir string) {
			must(t, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "serve.toml"), nil, 0o666)))
		}},
		{name: "with a token that another group could write", root: true, refused: "holds token, to which others could write", make: func(t *testing.T, dir string) {
			token := filepath.Join(dir, "token")
			must(t, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(token, nil, 0o660), os.Chown(token, -1, stranger)))
		}},
		{name: "with a token that one's own group could write", was: 0o755, make: func(t *testing.T, dir string) {
			must(t, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "token"), nil, 0o660), os.Chown(filepath.Join(dir, "token"), -1, os.Getegid())))
		}},
		{name: "with a disk that all could write", refused: "holds layers/23f8a085240b9fba, to which others could write", make: func(t *testing.T, dir string) {
			disk := filepath.Join(dir, "layers", "23f8a085240b9fba")
			must(t, errors.Join(os.MkdirAll(disk, 0o755), os.Chmod(disk, 0o777), os.Chmod(dir, 0o711)))
		}},
		{name: "with a log that all could write", was: 0o755, make: func(t *testing.T, dir string) {
			must(t, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "serve.log"), nil, 0o666)))
		}},
		{name: "with a link to what others can replace", refused: "all may write to", make: func(t *testing.T, dir string) {
			shared := filepath.Join(filepath.Dir(dir), "shared")
			must(t, errors.Join(os.MkdirAll(filepath.Join(shared, "layers"), 0o700), os.Chmod(shared, 0o777), os.Symlink(filepath.Join(shared, "layers"), filepath.Join(dir, "layers"))))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.root && os.Geteuid() != 0 {
				return
			}
			above := folderForData(t)
			must(t, os.Chmod(above, 0o755))
			dir := filepath.Join(above, "data")
			must(t, os.Mkdir(dir, 0o700))
			test.make(t, dir)
			before, _ := os.Stat(dir)
			refuses := test.refused != "" && !strings.Contains(test.refused, "notes") // which a server does before it closes the folder
			if err := Check(dir); before != nil && (err != nil) != refuses {
				t.Errorf("Check: %v", err)
			}
			fit := Fit(dir)
			if refused, ok := errors.AsType[*RefusedError](fit); test.refused == "" && fit != nil || test.refused != "" && (!ok || !strings.Contains(refused.Error(), test.refused)) {
				t.Errorf("Fit: %v, want %q", fit, test.refused)
			}
			was, err := Folder(dir)
			if test.refused != "" {
				refused, ok := errors.AsType[*RefusedError](err)
				if !ok || !strings.Contains(refused.Error(), test.refused) || refused.Hint == "" {
					t.Fatalf("got %v, want a refusal: %s", err, test.refused)
				}
				if after, err := os.Stat(dir); test.refused[:5] == "holds" && strings.Contains(test.refused, "notes") && (err != nil || after.Mode() != before.Mode()) {
					t.Errorf("the folder of other files became %v, %v", after, err)
				}
				return
			}
			if err != nil || was != test.was {
				t.Fatalf("got %v, %v, want %v", was, err, test.was)
			}
			real, err := filepath.EvalSymlinks(dir)
			must(t, err)
			must(t, filepath.WalkDir(real, func(name string, e fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				info, err := e.Info()
				if err == nil && info.Mode().Perm()&others != 0 && e.Name() != "root" { // within a closed layer
					t.Errorf("%s is %v", name, info.Mode())
				}
				if e.Name() == "root" {
					return fs.SkipDir
				}
				return err
			}))
		})
	}
}

// The umask decides nothing, and a file that was open to others is closed.
func TestFile(t *testing.T) {
	old := unix.Umask(0)
	t.Cleanup(func() { unix.Umask(old) })
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "old"), []byte("kept"), 0o666))
	for _, name := range []string{"new", "old"} {
		must(t, File(filepath.Join(dir, name)))
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "old")); string(text) != "kept" {
		t.Errorf("got %q, %v", text, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
