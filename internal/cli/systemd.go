package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/children"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// unitText is the unit. A server that is stopped leaves its sandboxes running, so KillMode
// is process. The server needs the cgroups to itself for the sandboxes' limits, and a subgroup
// for its own processes (systemd before 254 has none, and ignores the line). The server tells
// systemd when it listens; after a crash with many sprites, that may take long. For an ordinary
// user, a child of systemd's process tells it.
const unitText = `[Unit]
Description=cove, sandboxes for coding agents
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
NotifyAccess=all
TimeoutStartSec=infinity
ExecStart=%s serve --data %s
Restart=always
RestartSec=2
TimeoutStopSec=5min
KillMode=process
Delegate=yes
DelegateSubgroup=cove.server
TasksMax=infinity
LimitNOFILE=1048576

[Install]
WantedBy=%s
`

const (
	unitName = "cove.service"
	// supervised is the line of serve.toml that the unit needs.
	supervised = "autostart = false # systemd runs the server\n"
)

// A unit is the unit of systemd that runs a server: the machine's, or one of the person's.
type unit struct {
	file string
	own  bool // the person's
}

// unitAt returns where a unit is, whether or not it is there.
func unitAt(own bool) (unit, error) {
	if !own {
		return unit{file: filepath.Join("/etc/systemd/system", unitName)}, nil
	}
	home, err := os.UserConfigDir()
	return unit{file: filepath.Join(home, "systemd", "user", unitName), own: true}, err
}

// unitOf returns the unit that runs the server of a data folder here, if one does.
func unitOf(dir string) (unit, bool) {
	if !systemdRuns() {
		return unit{}, false
	}
	for _, own := range []bool{true, false} {
		u, err := unitAt(own)
		if err == nil && u.runs(dir) {
			return u, true
		}
	}
	return unit{}, false
}

// unitRuns reports whether a unit runs the server of a data folder.
func unitRuns(dir string) bool {
	_, is := unitOf(dir)
	return is
}

// systemdRuns reports whether systemd is this machine's init (sd_booted(3)).
func systemdRuns() bool {
	st, err := os.Lstat("/run/systemd/system")
	return err == nil && st.IsDir()
}

// runs reports whether the unit's file is there, this user's or root's, and runs the server of
// a data folder.
func (u unit) runs(dir string) bool {
	var st unix.Stat_t
	if unix.Lstat(u.file, &st) != nil || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return false // such as that of the person who runs this by sudo
	}
	text, err := os.ReadFile(u.file)
	return err == nil && strings.Contains(string(text), " serve --data "+unitWord(dir)+"\n")
}

// command returns a command of systemd's, for the manager that has the unit.
func (u unit) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if u.own {
		args = append([]string{"--user"}, args...)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}

// systemctl runs systemctl. Its error has what systemctl said.
func (u unit) systemctl(ctx context.Context, args ...string) error {
	out, err := children.CombinedOutput(u.command(ctx, "systemctl", args...))
	if err == nil {
		return nil
	}
	hint := "see: systemctl status cove; journalctl -u cove"
	if u.own {
		hint = "see: systemctl --user status cove; journalctl --user -u cove"
	}
	return hinted(fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, printable.Text(strings.TrimSpace(string(out)))), hint)
}

// logs copies the end of the server's journal.
func (u unit) logs(ctx context.Context, to io.Writer, lines int, follow bool) error {
	args := []string{"--unit", unitName, "--no-pager", "--output", "cat", "--lines", strconv.Itoa(max(lines, 0))}
	if follow {
		args = append(args, "--follow")
	}
	cmd := u.command(ctx, "journalctl", args...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = to, &said
	if err := children.Run(cmd); err != nil && ctx.Err() == nil {
		return fmt.Errorf("journalctl: %w: %s", err, printable.Text(said.String()))
	}
	return ctx.Err()
}

func newServerInstallCommand(inv *invocation) *cobra.Command {
	var user, show bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Let systemd run the server",
		Long: `Writes a unit of systemd that runs the server, and starts it. It also writes autostart = false
into the server's serve.toml, so that no command starts another one beside it. Everything else
about the server is set in serve.toml. With --user, it is a unit of your own (see: loginctl
enable-linger). The other commands of cove server then use systemd.`,
		Example: `  sudo cove server install
  cove server install --user
  cove server install --print >cove.service`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			dir, err := inv.server.own()
			if err != nil {
				return err
			}
			return installUnit(ctx, inv, dir, user || os.Geteuid() != 0, show)
		}),
	}
	cmd.Flags().BoolVar(&user, "user", false, "a unit of your own, not of the system (an ordinary user's always is)")
	cmd.Flags().BoolVar(&show, "print", false, "print the unit, and do nothing")
	return cmd
}

func installUnit(ctx context.Context, inv *invocation, dir string, own, show bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	u, err := unitAt(own)
	if err != nil {
		return err
	}
	target := "multi-user.target"
	if own {
		target = "default.target"
	}
	text := fmt.Sprintf(unitText, unitWord(self), unitWord(dir), target)
	if show {
		_, err := io.WriteString(inv.Out, text)
		return err
	}
	if !systemdRuns() {
		return fail.New("no_systemd", "systemd does not run this machine", "see the unit with: cove server install --print; without one, start the server with: cove server start")
	}
	if _, err := os.Lstat(u.file); err == nil && !u.runs(dir) {
		return fail.Newf("exists", "remove that unit: cove server uninstall --data ITS-DATA-FOLDER; or write a unit of another name: cove server install --print", "%s is there, and runs another server", u.file)
	}
	settings := filepath.Join(dir, config.ServeFile)
	set, err := config.ReadServe(settings, false, nil)
	if err != nil {
		return err
	}
	// The running server is stopped in its own way: it may be the unit's, or not.
	if _, err := stopOwn(ctx, inv); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(u.file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(u.file, []byte(text), 0o644); err != nil {
		return err
	}
	if !set.NoAutostart {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(settings, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString("\n" + supervised)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return err
		}
	}
	if err := u.systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	if err := u.systemctl(ctx, "enable", "--now", unitName); err != nil {
		return err
	}
	inv.say("systemd runs the server now, by %s; its settings are in %s.", u.file, settings)
	return nil
}

func newServerUninstallCommand(inv *invocation) *cobra.Command {
	var user bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Stop the server, and remove its unit of systemd",
		Long: `Stops the server, removes the unit of systemd that cove server install wrote, and removes
autostart = false from serve.toml. Sprites and jobs stay; the next command that needs a server
starts one. With --user, it is your own unit, and the system's stays.`,
		Example: `  sudo cove server uninstall
  cove server uninstall --user`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			dir, err := inv.server.own()
			if err != nil {
				return err
			}
			return uninstallUnit(ctx, inv, dir, user)
		}),
	}
	cmd.Flags().BoolVar(&user, "user", false, "a unit of your own, not of the system (if not given: yours, or else the system's)")
	return cmd
}

func uninstallUnit(ctx context.Context, inv *invocation, dir string, own bool) error {
	u, is := unitOf(dir)
	if own && is && !u.own {
		is = false
	}
	if !is {
		of := ""
		if own {
			of = " of your own"
		}
		return fail.Newf("not_found", "see what runs it: cove server status", "no unit of systemd%s runs the server of %s", of, dir)
	}
	if err := u.systemctl(ctx, "disable", "--now", unitName); err != nil {
		return err
	}
	if err := os.Remove(u.file); err != nil {
		return err
	}
	if err := u.systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	settings := filepath.Join(dir, config.ServeFile)
	text, err := os.ReadFile(settings)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if rest := strings.Replace(string(text), "\n"+supervised, "", 1); rest != string(text) {
		if err := os.WriteFile(settings, []byte(rest), 0o600); err != nil {
			return err
		}
	}
	inv.say("systemd no longer runs the server of %s. Sprites and jobs stay.", dir)
	return nil
}

// unitWord writes a word of a unit's command line (systemd.service(5)).
func unitWord(s string) string {
	quoted := strconv.Quote(s)
	out := ""
	for _, r := range quoted {
		switch r {
		case '%':
			out += "%%"
		case '$':
			out += "$$"
		default:
			out += string(r)
		}
	}
	return out
}
