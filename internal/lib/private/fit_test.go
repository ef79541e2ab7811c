package private

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/executable"
)

// folderForData is a folder on a file system that can have a data folder.
func folderForData(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // for other users of the test
	var st unix.Statfs_t
	if must(t, unix.Statfs(dir, &st)); st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		var err error
		dir, err = os.MkdirTemp("/dev/shm", "fit")
		must(t, err)
		t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	}
	return dir
}

// fitOf names a folder for the process of TestFitNew, which an ordinary user runs.
const fitOf = "PRIVATE_TEST_FIT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(fitOf); dir != "" {
		_, err := Folder(dir) // on what Fit has left
		if fit := Fit(dir); (fit == nil) != (err == nil) {
			println("Fit differs from Folder")
		}
		if err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestFitNew: a data folder that has yet to be made is looked at as far as there is something, and
// nothing is made.
func TestFitNew(t *testing.T) {
	above := folderForData(t)
	must(t, os.Chmod(above, 0o755))
	made := func(name string, mode fs.FileMode) string {
		dir := filepath.Join(above, name)
		must(t, errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, mode)))
		return dir
	}
	file := filepath.Join(above, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	nowhere := filepath.Join(above, "nowhere")
	must(t, os.Symlink(filepath.Join(above, "gone"), nowhere))
	link := filepath.Join(above, "link")
	open := made("open", 0o777)
	must(t, os.Symlink(open, link))
	tests := map[string]struct{ dir, want string }{
		"one's own":                  {filepath.Join(above, "a/b/c"), ""},
		"below what all may write":   {filepath.Join(open, "a/b"), "can be replaced by anybody: all may write to " + open},
		"below a link to such":       {filepath.Join(link, "c/d"), "can be replaced by anybody: all may write to " + open},
		"below a file":               {filepath.Join(file, "a"), "not a directory"},
		"below a link that is loose": {filepath.Join(nowhere, "a"), "file exists"},
	}
	if os.Geteuid() == 0 {
		theirs := made("theirs", 0o755)
		must(t, os.Chown(theirs, 54321, 54321))
		tests["below another user's"] = struct{ dir, want string }{filepath.Join(theirs, "a/b"), "can be replaced by user 54321, who owns " + theirs}
	}
	for name, tt := range tests {
		err := Fit(tt.dir)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
		if _, err := os.Lstat(tt.dir); err == nil {
			t.Errorf("%s: %s was made", name, tt.dir)
		}
		if _, err := Folder(tt.dir); (err == nil) != (tt.want == "") {
			t.Errorf("%s: Folder says %v", name, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	// A user can't make a data folder in a folder that the user may not write to.
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	program := filepath.Join(above, "program")
	must(t, executable.WriteFile(program, self, 0o755))
	cmd := exec.Command(program)
	cmd.Env = []string{fitOf + "=" + filepath.Join(made("roots", 0o755), "a")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), "differs") || !strings.Contains(string(out), "permission denied") {
		t.Errorf("a user's below root's folder: %v\n%s", err, out)
	}
}
