package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// launcher starts shims.
type launcher struct {
	folder   folder
	shim     []string // command line of the shim process
	runsc    string   // path of cove-runsc
	patience time.Duration
	cgroups  *cgroups
}

// start starts a shim process and waits until its sandbox answers, or ctx
// ends, which ends the shim too.
func (l *launcher) start(ctx context.Context, cfg shim.Config) (shim.State, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return shim.State{}, fmt.Errorf("start a shim: %w", err)
	}
	data, err := json.Marshal(cfg)
	if err != nil {
		return shim.State{}, err
	}
	log, err := os.OpenFile(filepath.Join(cfg.Dir, "shim.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return shim.State{}, fmt.Errorf("start a shim: %w", err)
	}
	defer log.Close()
	begun, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return shim.State{}, fmt.Errorf("start a shim: %w", err)
	}
	in, inW, err := os.Pipe()
	if err != nil {
		return shim.State{}, err
	}
	defer in.Close()
	readyR, ready, err := os.Pipe()
	if err != nil {
		_ = inW.Close()
		return shim.State{}, err
	}
	defer readyR.Close()
	cmd := exec.Command(l.shim[0], l.shim[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, log, log
	cmd.ExtraFiles = []*os.File{ready}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS}
	err = cmd.Start()
	_ = ready.Close()
	if err != nil {
		_ = inW.Close()
		return shim.State{}, fmt.Errorf("start a shim: %w", err)
	}
	reap(cmd)
	go func() {
		_, _ = inW.Write(data) // a shim that died shows in its missing answer
		_ = inW.Close()
	}()
	stop := context.AfterFunc(ctx, func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = readyR.SetReadDeadline(time.Now().Add(endLimit))
	})
	defer stop()
	var answer shim.Ready
	if err := json.NewDecoder(readyR).Decode(&answer); err != nil {
		_ = cmd.Process.Kill() // it has ended, or does not
		return shim.State{}, errors.Join(ctx.Err(), shimDied(log.Name(), begun))
	}
	switch {
	case answer.Elsewhere:
		return shim.State{}, elsewhereError(answer.Error)
	case answer.Gone:
		return shim.State{}, fmt.Errorf("%w: %s", errGone, answer.Error)
	case answer.Error != "":
		return shim.State{}, &startError{answer}
	}
	return *answer.State, nil
}

// endLimit is for a shim that is not to start a sandbox any more to clear it away.
const endLimit = time.Minute

// reap collects a shim's exit status, so that it does not stay as a zombie.
func reap(cmd *exec.Cmd) {
	go func() { _ = cmd.Wait() }() // ends with the shim, which may outlive this runtime
}

// adopt starts a shim for a sandbox whose shim died. Without a network
// nothing may be reached until one is set.
func (l *launcher) adopt(ctx context.Context, id string, network *policy.Set, connectors map[string]connect.Upstream) (shim.State, error) {
	return l.start(ctx, shim.Config{
		Dir: l.folder.run(id), Runsc: l.runsc, ID: id, Cgroups: l.cgroups.place(), Connectors: connectors, Network: network, Adopt: true, Patience: l.patience,
	})
}
