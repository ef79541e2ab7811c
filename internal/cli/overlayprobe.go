package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/children"
)

const overlayProbeVerb = "overlay-probe"

// probeOverlay runs overlay-probe on an empty folder, in a mount namespace of its own. An
// ordinary user runs it in a user namespace, too. It returns overlay-probe's output.
func probeOverlay(ctx context.Context, dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, overlayProbeVerb, dir)
	cmd.Args[0] = os.Args[0]
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		cmd.Args = append(cmd.Args, "user")
	}
	out, err := children.CombinedOutput(cmd)
	return strings.TrimSpace(string(out)), err
}

// newOverlayProbeCommand is the child of doctor.
func newOverlayProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    overlayProbeVerb + " DIR [user]",
		Short:  "Mount an overlay (started by doctor)",
		Hidden: true,
		Args:   cobra.RangeArgs(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			return mountProbe(args[0], len(args) == 2)
		},
	}
}

// noRename is what overlay-probe prints if folders of sealed layers can't be renamed.
const noRename = "no rename"

// mountProbe mounts an overlay with the options that sprites use, writes through it, and
// renames a folder of the layer below.
func mountProbe(dir string, userNamespace bool) error {
	// The mounts must not appear outside, so this must not be the caller's namespace.
	mine, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if parent, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid())); err == nil && parent == mine {
		return errors.New("this command is doctor's, which gives it a mount namespace of its own")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	lower, upper, work, target := filepath.Join(dir, "lower"), filepath.Join(dir, "upper"), filepath.Join(dir, "work"), filepath.Join(dir, "merged")
	for _, d := range []string{lower, upper, work, target, filepath.Join(lower, "folder")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(lower, "file"), []byte("lower"), 0o600); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,index=off,metacopy=off", lower, upper, work)
	if userNamespace {
		options += ",userxattr"
	} else {
		options += ",redirect_dir=on"
	}
	if err := unix.Mount("overlay", target, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount an overlay: %w", err)
	}
	defer func() { _ = unix.Unmount(target, unix.MNT_DETACH) }()
	if err := os.WriteFile(filepath.Join(target, "file"), []byte("upper"), 0o600); err != nil {
		return fmt.Errorf("write to an overlay: %w", err)
	}
	if text, err := os.ReadFile(filepath.Join(upper, "file")); err != nil || string(text) != "upper" {
		return fmt.Errorf("an overlay does not write to its upper folder: %q, %v", text, err)
	}
	err = os.Rename(filepath.Join(target, "folder"), filepath.Join(target, "renamed"))
	if errors.Is(err, unix.EXDEV) {
		fmt.Println(noRename)
		return nil
	}
	return err
}
