// Package userns lets an ordinary user's server be root in a user namespace of its own. There
// it may mount, make network namespaces and own files of many users. Outside of it, the
// server has only the user's rights. A small process holds the namespace. It lives as long as
// the server or one of its sandboxes, so that a server started again finds the same
// namespace. Linux only.
package userns

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
)

// holderFile, in the data folder, has the process number and start of the holder, and the
// device and inode of the folder. A copy of the folder has its own holder, which ends with
// the copy's sandboxes.
const holderFile = "userns"

// Inside reports whether this process is in a user namespace other than the
// host's first.
func Inside() bool {
	data, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	f := strings.Fields(string(data))
	return len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295"
}

// Enter makes this process root in the data folder's user namespace, by executing its own
// command line again there. It returns only if that fails, or if the caller is root already.
// holder is the command line of the process that holds the namespace; that process calls
// Hold. left lists the processes that an earlier server may have left. If the holder has
// died, the next holder joins the namespace of the first of them that lives.
func Enter(data string, holder []string, left func() []Process) error {
	if os.Geteuid() == 0 {
		return nil
	}
	pid, err := oneHolder(data, func() (int, error) { return replaceHolder(data, holder, left()) })
	if err != nil {
		return err
	}
	nsenter, err := findNsenter()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	argv := append([]string{nsenter, "--user", "--preserve-credentials", "--target", strconv.Itoa(pid), "--", self}, os.Args[1:]...)
	return fmt.Errorf("enter the user namespace: %w", unix.Exec(nsenter, argv, os.Environ()))
}

// oneHolder returns the living holder's process number. If there is none, it calls replace, which
// starts one. Two servers may begin at once. The second waits, and finds the first one's holder.
func oneHolder(data string, replace func() (int, error)) (pid int, err error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return 0, err
	}
	lock, err := os.Open(data) // a file of its own might have no room
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return 0, fmt.Errorf("lock %s: %w", data, err)
	}
	if pid, err = findHolder(data); pid != 0 || err != nil {
		return pid, err
	}
	return replace()
}

func findNsenter() (string, error) {
	path, err := exec.LookPath("nsenter")
	if err != nil {
		return "", errors.New("nsenter is missing; install the package util-linux")
	}
	return path, nil
}

// findHolder returns the living holder's process number, or 0.
func findHolder(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, holderFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	var pid int
	var start, folder string
	if n, err := fmt.Sscan(string(text), &pid, &start, &folder); n < 2 {
		return 0, nil // a torn write of a holder that never served anybody
	} else if err != nil {
		folder = startedFor(pid) // an earlier cove wrote it
	}
	if own, err := private.FolderID(data); err != nil || folder != "" && folder != own {
		return 0, err
	}
	if got, err := processStart(pid); err != nil || got != start {
		return 0, nil
	}
	return pid, nil
}

// startedFor is the folder that a holder has as its last argument; empty: there is none any
// more.
func startedFor(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
	folder, err := private.FolderID(args[len(args)-1])
	if err != nil {
		return ""
	}
	return folder
}

func processStart(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	i := strings.LastIndexByte(string(data), ')')
	f := strings.Fields(string(data[i+1:]))
	if len(f) < 20 || f[0] == "Z" {
		return "", os.ErrProcessDone
	}
	return f[19], nil
}

// startHolder starts the holder in a new user namespace. There, this user is root, and the
// user's subordinate ids are the other ids.
func startHolder(data string, argv []string) (pid int, err error) {
	uids, err := mapping("/etc/subuid", os.Getuid(), "--add-subuids")
	if err != nil {
		return 0, err
	}
	gids, err := mapping("/etc/subgid", os.Getgid(), "--add-subgids")
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return runHolder(data, cmd, func() error {
		for _, m := range []struct {
			tool string
			args []string
		}{{"newuidmap", uids}, {"newgidmap", gids}} {
			out, err := exec.Command(m.tool, append([]string{strconv.Itoa(cmd.Process.Pid)}, m.args...)...).CombinedOutput()
			if errors.Is(err, exec.ErrNotFound) {
				return fmt.Errorf("%s is missing; install the package uidmap", m.tool)
			} else if err != nil && noNewPrivileges() {
				return ErrNoNewPrivileges
			} else if err != nil {
				return fmt.Errorf("%s: %w: %s", m.tool, err, strings.TrimSpace(string(out)))
			}
		}
		return nil
	})
}

// runHolder starts a holder process, and notes it once begin has made it one.
func runHolder(data string, cmd *exec.Cmd, begin func() error) (pid int, err error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(filepath.Join(data, holderFile+".log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make a user namespace: %w (is it allowed? see: sysctl kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns user.max_user_namespaces)", err)
	}
	defer func() {
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}()
	if err := begin(); err != nil {
		return 0, err
	}
	start, err := processStart(cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	folder, err := private.FolderID(data)
	if err != nil {
		return 0, err
	}
	return cmd.Process.Pid, noteHolder(data, cmd.Process.Pid, start, folder)
}

// noteHolder notes the process of the holder, and the folder that it is for. The text always
// has the same length, and is written over the one before: on a full disk there is no room
// for another file.
func noteHolder(data string, pid int, start, folder string) error {
	f, err := os.OpenFile(filepath.Join(data, holderFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%10d %20s %33s\n", pid, start, folder)
	return errors.Join(err, f.Close())
}

// mapping returns the arguments of newuidmap or newgidmap: this user is 0, the
// subordinate ids that file grants follow.
func mapping(file string, id int, flag string) ([]string, error) {
	me, err := Account(os.Getuid())
	if err != nil {
		return nil, err
	}
	f, err := os.Open(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		defer f.Close()
		for sc := bufio.NewScanner(f); sc.Scan(); {
			field := strings.Split(sc.Text(), ":")
			if len(field) != 3 || (field[0] != me.Username && field[0] != me.Uid) {
				continue
			}
			if n, err := strconv.Atoi(field[2]); err == nil && n >= MinIDs {
				return []string{"0", strconv.Itoa(id), "1", "1", field[1], field[2]}, nil
			}
		}
	}
	lacking := fmt.Errorf("%s gives %s fewer than %d ids", file, me.Username, MinIDs)
	first, last, err := Accounts{}.Free(me.Username, me.Uid)
	if err != nil {
		return nil, errors.Join(lacking, err)
	}
	return nil, fmt.Errorf("%w; as root, type: usermod %s %d-%d %s", lacking, flag, first, last, me.Username)
}

// Hold is the holder process. It returns when busy, which it asks now and then,
// has been false for a while.
func Hold(busy func() bool) {
	idle := 0
	for tick := time.NewTicker(time.Second); idle < 10; <-tick.C {
		if busy() {
			idle = 0
		} else {
			idle++
		}
	}
}
