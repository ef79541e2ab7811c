// Package step runs a command of an image's build inside its sandbox: with exactly the
// environment, the user and the mounts that the server names.
package step

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/guest/users"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/buildstep"
)

// The exit codes of a command that could not be run, as a shell has them.
const (
	notRunnable = 126
	notFound    = 127
	setupFailed = 125
)

// searchPath is the PATH of a step that has none, as Docker's is.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Main runs the step that in describes, and returns the exit code of its command. inside says
// that Main has started this process in a mount namespace of its own. It then returns only if
// the command can't be run. errs gets what went wrong.
func Main(in io.Reader, errs io.Writer, inside bool) int {
	text, err := io.ReadAll(io.LimitReader(in, buildstep.Max+1))
	var s buildstep.Step
	if err == nil && len(text) > buildstep.Max {
		err = fmt.Errorf("it is longer than %d bytes", buildstep.Max)
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil && len(s.Argv) == 0 {
		err = errors.New("it has no command")
	}
	if err != nil {
		fmt.Fprintln(errs, "cove: read the step:", err)
		return setupFailed
	}
	if s.Dir == "" {
		s.Dir = "/"
	}
	slices.SortStableFunc(s.Mounts, func(a, b buildstep.Mount) int { // parents first
		return strings.Compare(at(s.Dir, a.Target), at(s.Dir, b.Target))
	})
	var code int
	if inside {
		code, err = become(s)
	} else {
		code, err = outside(s, text, errs)
	}
	if err != nil {
		fmt.Fprintln(errs, "cove:", err)
	}
	return code
}

// outside makes the mount points, runs the command in a mount namespace of its own, and
// removes the mount points that it has made.
func outside(s buildstep.Step, text []byte, errs io.Writer) (code int, err error) {
	if err := keepTmp(); err != nil {
		return setupFailed, err
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return setupFailed, err
	}
	var made stubs
	defer func() { err = errors.Join(err, made.remove()) }()
	for _, m := range s.Mounts {
		if err := made.prepare(s.Dir, m); err != nil {
			return setupFailed, fmt.Errorf("make %s to mount on: %w", m.Target, err)
		}
	}
	cmd := exec.Command("/proc/self/exe", "step", "inside") //nolint:noctx // it ends with the sandbox
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), os.Stdout, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	if err != nil {
		return setupFailed, err
	}
	return 0, nil
}

// keepTmp unmounts the tmpfs that gVisor mounts on an empty /tmp. So the files that a step
// puts there are on the disk, and the next step has them.
func keepTmp() error {
	err := unix.Unmount("/tmp", unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) { // nothing is mounted
		return fmt.Errorf("put /tmp on the disk: %w", err)
	}
	return nil
}

// stubs are the files and folders that were made to mount on, parents first.
type stubs []string

func at(dir, target string) string {
	if path.IsAbs(target) {
		return path.Clean(target)
	}
	return path.Join(dir, target)
}

func (s *stubs) prepare(dir string, m buildstep.Mount) error {
	target := at(dir, m.Target)
	file := m.Kind == buildstep.File
	if m.Kind == buildstep.Bind {
		st, err := os.Stat(m.Source)
		if err != nil {
			return err
		}
		file = !st.IsDir()
	}
	if err := s.folder(path.Dir(target)); err != nil {
		return err
	}
	if !file {
		return s.folder(target)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	*s = append(*s, target)
	return f.Close()
}

func (s *stubs) folder(name string) error {
	err := os.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrNotExist) && name != "/" {
		if err := s.folder(path.Dir(name)); err != nil {
			return err
		}
		err = os.Mkdir(name, 0o755)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		*s = append(*s, name)
	}
	return err
}

// remove removes the stubs that are still empty.
func (s *stubs) remove() error {
	for _, name := range slices.Backward(*s) {
		st, err := os.Lstat(name)
		if err != nil || st.Mode().IsRegular() && st.Size() > 0 || !st.Mode().IsRegular() && !st.IsDir() {
			continue
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the mount points: %w", err)
		}
	}
	return nil
}

// become makes the mounts, and makes this process the command.
func become(s buildstep.Step) (code int, err error) {
	for i, m := range s.Mounts {
		var hidden stubs // in a mount that was made before
		if err := hidden.prepare(s.Dir, m); err != nil {
			return setupFailed, fmt.Errorf("make %s to mount on: %w", m.Target, err)
		}
		if err := mount(i, at(s.Dir, m.Target), m); err != nil {
			return setupFailed, fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	who, err := find(s.User)
	if err != nil {
		return setupFailed, err
	}
	env := s.Env
	for _, own := range [][2]string{{"PATH", searchPath}, {"HOME", who.Home}} {
		if _, ok := lookup(env, own[0]); !ok {
			env = append(env, own[0]+"="+own[1])
		}
	}
	if err := os.Chdir(s.Dir); err != nil {
		return setupFailed, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return setupFailed, err
	}
	if err := syscall.Dup3(int(null.Fd()), 0, 0); err != nil {
		return setupFailed, err
	}
	groups := make([]int, len(who.Groups))
	for i, g := range who.Groups {
		groups[i] = int(g)
	}
	err = syscall.Setgroups(groups)
	if err == nil {
		err = syscall.Setgid(int(who.GID))
	}
	if err == nil {
		err = syscall.Setuid(int(who.UID))
	}
	if err != nil {
		return setupFailed, fmt.Errorf("become user %s: %w", s.User, err)
	}
	program, err := program(s.Argv[0], env)
	if err != nil {
		return notFound, err
	}
	if err := syscall.Exec(program, s.Argv, env); errors.Is(err, fs.ErrNotExist) {
		return notFound, fmt.Errorf("%s: %w", s.Argv[0], err)
	} else {
		return notRunnable, fmt.Errorf("%s: %w", s.Argv[0], err)
	}
}

func lookup(env []string, name string) (value string, ok bool) {
	for _, pair := range env {
		if v, found := strings.CutPrefix(pair, name+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

// program finds a program in the PATH of an environment.
func program(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	search, _ := lookup(env, "PATH")
	for _, dir := range filepath.SplitList(search) {
		full := path.Join("/", dir, name)
		if st, err := os.Stat(full); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", fmt.Errorf("%s: no such program in PATH", name)
}

// find finds USER or USER:GROUP. A user number that nobody has is in root's group, as
// elsewhere.
func find(text string) (users.User, error) {
	if text == "" {
		text = "root"
	}
	db := users.Database{Own: &boot.Account{Name: "root", Home: "/root", Shell: "/bin/sh"}} // nobody but those of the image
	name, group, withGroup := strings.Cut(text, ":")
	if name == "" {
		name = "root"
	}
	who, ok := db.Lookup(name)
	if !ok {
		return who, fmt.Errorf("there is no user %q", name)
	}
	if _, err := strconv.ParseUint(name, 10, 31); err == nil && who.Name == name {
		who.GID, who.Groups = 0, []uint32{0}
	}
	if !withGroup || group == "" {
		return who, nil
	}
	gid, ok := db.Group(group)
	if n, err := strconv.ParseUint(group, 10, 31); !ok && err == nil {
		gid, ok = uint32(n), true
	}
	if !ok {
		return who, fmt.Errorf("there is no group %q", group)
	}
	who.GID, who.Groups = gid, []uint32{gid}
	return who, nil
}

func mount(i int, target string, m buildstep.Mount) error {
	var flags uintptr = unix.MS_NOSUID | unix.MS_NODEV
	switch m.Kind {
	case buildstep.Bind:
		if m.Own {
			if err := errors.Join(os.Chown(m.Source, m.UID, m.GID), unix.Chmod(m.Source, m.Mode)); err != nil {
				return err
			}
		}
		if err := unix.Mount(m.Source, target, "", unix.MS_BIND, ""); err != nil || !m.ReadOnly {
			return err
		}
		return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	case buildstep.Tmpfs:
		mode := m.Mode
		if mode == 0 {
			mode = 0o1777
		}
		options := fmt.Sprintf("mode=%o", mode)
		if m.Size > 0 {
			options += fmt.Sprintf(",size=%d", m.Size)
		}
		return unix.Mount("tmpfs", target, "tmpfs", flags, options)
	case buildstep.File:
		return file(i, target, m)
	}
	return fmt.Errorf("unknown kind of mount %q", m.Kind)
}

// file mounts a file whose bytes are in memory only.
func file(i int, target string, m buildstep.Mount) error {
	dir := path.Join(buildstep.Dir, "file"+strconv.Itoa(i))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return err
	}
	name := path.Join(dir, "data")
	if err := os.WriteFile(name, m.Data, 0o600); err != nil {
		return err
	}
	if err := errors.Join(os.Chown(name, m.UID, m.GID), unix.Chmod(name, m.Mode)); err != nil {
		return err
	}
	return unix.Mount(name, target, "", unix.MS_BIND, "")
}
