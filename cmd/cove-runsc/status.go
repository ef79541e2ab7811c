package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
)

// gVisor notes a pause in the container's file: it empties the file and writes it anew. On a
// full disk another program may take the room in between, and a kill leaves an empty file.
// Nothing can resume the sandbox then. These commands write over the few bytes of the status.
// That takes no room, and the file is whole at every moment.

// running and paused are the two statuses in a container's file, of one length.
const (
	running = `"status":"running"`
	paused  = `"status":"paused" `
)

// noted is a command with the name of gVisor's own. It notes the new status like that.
type noted struct {
	name   string
	change func(*container.Container) error
}

func (n *noted) Name() string           { return n.name }
func (n *noted) Synopsis() string       { return n.name + " a sandbox" }
func (n *noted) Usage() string          { return n.name + " <container id> - " + n.Synopsis() + "\n" }
func (n *noted) SetFlags(*flag.FlagSet) {}

// FetchSpec says that no container's configuration is wanted. cove's containers have no
// annotations, so the configuration does not depend on the container.
func (*noted) FetchSpec(*config.Config, *flag.FlagSet) (string, *specs.Spec, error) {
	return "", nil, nil
}

func (n *noted) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if f.NArg() != 1 {
		f.Usage()
		return subcommands.ExitUsageError
	}
	id := f.Arg(0)
	c, err := container.Load(args[0].(*config.Config).RootDir, container.FullID{SandboxID: id, ContainerID: id}, container.LoadOpts{Exact: true})
	if err == nil {
		err = n.change(c)
	}
	if err != nil {
		util.Fatalf("%s: %v", n.name, err)
	}
	return subcommands.ExitSuccess
}

// pause is Container.Pause, except that it writes over the status in the file.
func pause(c *container.Container) error {
	if c.Status != container.Running {
		return c.Pause() // gVisor's says why it can't be
	}
	err := swapStatus(statePath(c), running, paused, func() error { return c.Sandbox.Pause(c.ID) })
	if errors.Is(err, errNoStatus) {
		return c.Pause()
	}
	if err == nil {
		c.Status = container.Paused
	}
	return err
}

// resume is Container.Resume, except that it writes over the status in the file.
func resume(c *container.Container) error {
	if c.Status != container.Paused {
		return c.Resume()
	}
	err := swapStatus(statePath(c), paused, running, func() error { return c.Sandbox.Resume(c.ID) })
	if errors.Is(err, errNoStatus) { // an earlier cove paused it
		return c.Resume()
	}
	if err == nil {
		c.Status = container.Running
	}
	return err
}

func statePath(c *container.Container) string {
	return filepath.Join(c.Saver.RootDir, fmt.Sprintf("%s_sandbox:%s.state", c.Saver.ID.ContainerID, c.Saver.ID.SandboxID))
}

// errNoStatus says that nothing was done, because a file does not have the status once.
var errNoStatus = errors.New("the container's file does not have the expected status")

// swapStatus does something and notes it in a container's file, with gVisor's own lock held.
func swapStatus(path, from, to string, do func() error) (err error) {
	lock, err := os.OpenFile(path[:len(path)-len("state")]+"lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if bytes.Count(text, []byte(from)) != 1 {
		return errNoStatus
	}
	if err := do(); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(to), int64(bytes.Index(text, []byte(from))))
	return err
}
