package nest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// dockerGrace is longer than dockerd takes to end its containers (its shutdown-timeout is 15 s).
const dockerGrace = 25 * time.Second

// shims has the names under which dockerd looks for programs, and which it must find.
const shims = "/run/sprite-nest"

// Docker runs dockerd in a nest, with flags of the caller's after those that a nest needs,
// until it ends or ctx does. It needs root; another user becomes root by sudo. self is as
// in Run, and again is the command line that leads here.
func Docker(ctx context.Context, self, again, flags []string) error {
	if os.Geteuid() != 0 {
		sudo, err := exec.LookPath("sudo")
		if err != nil {
			return errors.New("dockerd needs root, and this sprite has no sudo")
		}
		return syscall.Exec(sudo, append(append([]string{"sudo", "-n"}, again...), flags...), os.Environ())
	}
	if _, err := exec.LookPath("dockerd"); err != nil {
		return errors.New("dockerd is not there: install the package docker.io")
	}
	if err := makeShims(); err != nil {
		return err
	}
	for file, of := range map[string]string{"/var/run/docker.pid": "dockerd", "/var/run/docker/containerd/containerd.pid": "containerd"} {
		if err := removeStale(file, of); err != nil {
			return err
		}
	}
	if err := os.Setenv("PATH", shims+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	program := []string{
		"dockerd",
		"--iptables=false", "--ip6tables=false", "--ip-masq=false", // the relay does without
		"--ip-forward=false",           // gVisor would do so in the sprite's own network
		"--cgroup-parent=/cove/docker", // below the limit on the sprite's processes
		"--storage-driver=vfs",         // the sprite's disk takes no overlay on top of it
		"--host-gateway-ip=" + Host,    // host.docker.internal is the sprite
		"--group=" + owner(),           // may use the socket
	}
	return Run(ctx, self, append(program, flags...), dockerGrace)
}

// owner is the group of the user who called sudo, or root's.
func owner() string {
	if _, err := strconv.Atoi(os.Getenv("SUDO_GID")); err == nil {
		return os.Getenv("SUDO_GID")
	}
	return "0"
}

// makeShims makes dockerd find the older iptables. dockerd makes rules in each container's
// network for its own name server.
func makeShims() error {
	if err := os.MkdirAll(shims, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		legacy, err := exec.LookPath(name + "-legacy")
		if err != nil {
			return fmt.Errorf("%s-legacy is not there: install the package iptables", name)
		}
		at := filepath.Join(shims, name)
		if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Symlink(legacy, at); err != nil {
			return err
		}
	}
	return nil
}

// removeStale removes a file with the number of a process that runs no such program. Numbers
// begin anew at each boot, and dockerd does not start while any process has the number.
func removeStale(file, program string) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err == nil {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", number))
		if err == nil && strings.TrimSpace(string(name)) == program {
			return fmt.Errorf("%s runs already (process %d)", program, number)
		}
	}
	return os.Remove(file)
}
