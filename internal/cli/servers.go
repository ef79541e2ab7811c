package cli

import (
	"bufio"
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
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/config"
)

// AutostartVariable is 0 where no command but `cove server start` may start a server.
const AutostartVariable = "COVE_AUTOSTART"

// readVerbs only look. They start no server: there is nothing to see that one would make.
var readVerbs = map[string]bool{
	"list": true, "info": true, "policy show": true, "policy test": true, "policy log": true, "checkpoint list": true, "checkpoint show": true,
	"checkpoint diff": true, "job list": true, "job show": true, "job logs": true, "session list": true, "service list": true,
	"service show": true, "service logs": true, "token list": true, "secret list": true, "connector list": true, "connector show": true,
	"connector log": true, "sync status": true, "tool list": true, "ping": true, "checkpoint verify": true, "mcp config": true,
}

// needVerbs are about something that is there. They start a server where there may be such.
var needVerbs = map[string]bool{
	"rm": true, "suspend": true, "wake": true, "update": true, "url": true, "export": true, "restore": true, "checkpoint create": true,
	"checkpoint rm": true, "checkpoint prune": true, "job wait": true, "job stop": true, "job rm": true, "job gc": true, "secret rm": true, "token rm": true,
}

// errNothing says that no server has ever run on a data folder.
var errNothing = errors.New("no server, no sprites")

// mayStart says why a verb may not start a server on a data folder, or nil.
func (a *app) mayStart(dir string) error {
	start := "cove server start"
	if _, err := os.Stat(filepath.Join(dir, "cove.db")); errors.Is(err, fs.ErrNotExist) && (readVerbs[a.verb] || needVerbs[a.verb]) {
		return &codedError{exitFailed, "no_server", fmt.Errorf("%w: there is nothing at %s", errNothing, dir), "make a sprite with: cove create NAME"}
	}
	set, err := config.ReadServe(filepath.Join(dir, config.ServeFile), false, nil)
	if err != nil {
		return err
	}
	switch {
	case set.NoAutostart:
		return &codedError{exitFailed, "no_server", fmt.Errorf("no server is running on %s, and %s says that cove starts none", dir, set.File),
			"start it as you do, such as with: systemctl start cove"}
	case a.verb == "server start" || a.verb == "server restart":
		return nil
	case os.Getenv(AutostartVariable) == "0":
		return &codedError{exitFailed, "no_server", fmt.Errorf("no server is running on %s, and %s=0", dir, AutostartVariable), "start it with: " + start}
	case readVerbs[a.verb]:
		return &codedError{exitFailed, "no_server", fmt.Errorf("no server is running on %s", dir), "start it with: " + start}
	}
	return nil
}

func (a *app) newServer() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Start, stop and look at this machine's server",
		Long: `The server of this machine's data folder. Commands that make or use a sprite start it if it
does not run, unless COVE_AUTOSTART is 0; those that only look never do. Sprites and jobs
outlive it.

Its settings are in serve.toml in the data folder (or cove serve --config FILE): the flags
of cove serve, without --, for whoever starts it. autostart = false says that a supervisor
does: then no command starts one.`,
		Example: `  cove server status
  cove server restart
  printf 'idle = "30m"\nname = ["cove.example.org"]\n' >/var/lib/cove/serve.toml`,
		Args: a.subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.newServerStatus(), a.newServerStart(), a.newServerStop(), a.newServerRestart(), a.newServerLogs(), a.newServerInstall())
	return cmd
}

// serverStatus is the JSON of `cove server status`.
type serverStatus struct {
	Running   bool   `json:"running"`
	Data      string `json:"data"`
	URL       string `json:"url,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Version   string `json:"version,omitempty"`
	Settings  string `json:"settings,omitempty"` // the file; empty: there is none
	Autostart bool   `json:"autostart"`
}

// own refuses the flags that name another server, and returns the data folder.
func (a *app) own() (dir string, err error) {
	if a.global.url != "" || a.global.backend != "" && a.global.backend != "local" {
		return "", &codedError{exitUsage, "usage", errors.New("this is about the server of this machine"), "leave out --url and --backend; choose a data folder with --data DIR"}
	}
	dir, _, err = a.dataDir()
	return dir, err
}

func (a *app) serverStatus(ctx context.Context) (serverStatus, error) {
	dir, err := a.own()
	if err != nil {
		return serverStatus{}, err
	}
	s := serverStatus{Data: dir, Autostart: os.Getenv(AutostartVariable) != "0"}
	set, err := config.ReadServe(filepath.Join(dir, config.ServeFile), false, nil)
	if err != nil {
		return s, err
	}
	s.Settings = set.File
	s.Autostart = s.Autostart && !set.NoAutostart
	c, err := localClient(ctx, dir, "")
	if errors.Is(err, errNoServer) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	info, err := c.Version(ctx)
	if err != nil {
		return s, err
	}
	s.Running, s.URL, s.PID, s.Version = true, c.URL, info.PID, info.Version
	return s, nil
}

func (a *app) newServerStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say whether the server runs, where, and with which settings",
		Long: `Says whether the server runs, where it listens and where its settings are. Exit code 1:
it does not run.`,
		Example: `  cove server status
  cove server status --json`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			s, err := a.serverStatus(ctx)
			if err != nil {
				return err
			}
			err = a.show(s, func(w io.Writer) {
				if s.Running {
					fmt.Fprintf(w, "running:   at %s (process %d, version %s)\n", s.URL, s.PID, s.Version)
				} else {
					fmt.Fprintln(w, "running:   no")
				}
				fmt.Fprintf(w, "data:      %s\n", s.Data)
				if s.Settings != "" {
					fmt.Fprintf(w, "settings:  %s\n", s.Settings)
				}
				if !s.Autostart {
					fmt.Fprintln(w, "autostart: no")
				}
			})
			if err == nil && !s.Running {
				return reportedError{exitFailed}
			}
			return err
		}),
	}
}

func (a *app) newServerStart() *cobra.Command {
	return &cobra.Command{
		Use:   "start",
		Short: "Start the server, if it does not run",
		Long: `Starts the server in the background, with the settings of its serve.toml, and returns
once it answers.`,
		Example: `  cove server start`,
		Args:    exactArgs(),
		RunE:    verb(func(ctx context.Context, _ []string) error { return a.startOwn(ctx) }),
	}
}

// startOwn starts this machine's server and says where it is.
func (a *app) startOwn(ctx context.Context) error {
	if _, err := a.own(); err != nil {
		return err
	}
	if _, err := a.ownClient(ctx, ""); err != nil {
		return err
	}
	s, err := a.serverStatus(ctx)
	if err != nil {
		return err
	}
	return a.show(s, func(w io.Writer) { fmt.Fprintf(w, "The server runs at %s (process %d).\n", s.URL, s.PID) })
}

func (a *app) newServerStop() *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Stop the server; sprites and jobs go on",
		Long: `Stops the server and returns once it has ended. Sprites and jobs go on without it, and the
next one takes them up.`,
		Example: `  cove server stop`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			was, err := a.stopOwn(ctx)
			if err != nil {
				return err
			}
			s, err := a.serverStatus(ctx)
			if err != nil {
				return err
			}
			return a.show(s, func(w io.Writer) {
				if was {
					fmt.Fprintln(w, "The server has ended. Sprites and jobs go on.")
				} else {
					fmt.Fprintln(w, "The server did not run.")
				}
			})
		}),
	}
}

// stopOwn ends this machine's server and reports whether there was one.
func (a *app) stopOwn(ctx context.Context) (bool, error) {
	s, err := a.serverStatus(ctx)
	if err != nil || !s.Running {
		return false, err
	}
	if err := unix.Kill(s.PID, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("stop the server: process %d: %w", s.PID, err)
	}
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for Locked(filepath.Join(s.Data, "lock")) && processAlive(s.PID) {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-tick.C:
		}
	}
	return true, nil
}

func (a *app) newServerRestart() *cobra.Command {
	return &cobra.Command{
		Use:     "restart",
		Short:   "Stop the server, and start it with the settings of its file",
		Long:    `Stops the server and starts one with the settings of serve.toml. Sprites and jobs go on.`,
		Example: `  cove server restart`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			dir, err := a.own()
			if err != nil {
				return err
			}
			// One that may not be started again is not stopped.
			if err := a.mayStart(dir); err != nil {
				return err
			}
			if _, err := a.stopOwn(ctx); err != nil {
				return err
			}
			return a.startOwn(ctx)
		}),
	}
}

func (a *app) newServerLogs() *cobra.Command {
	var follow bool
	var lines int
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Show the log of a server that cove has started",
		Long: `Shows the log of the servers that cove has started on this data folder. That of a server
under a supervisor is where the supervisor keeps it, such as: journalctl -u cove`,
		Example: `  cove server logs
  cove server logs --lines 20 --follow`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			dir, err := a.own()
			if err != nil {
				return err
			}
			return a.tailServerLog(ctx, filepath.Join(dir, "serve.log"), lines, follow)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes, until Ctrl-C")
	cmd.Flags().IntVarP(&lines, "lines", "n", 200, "how many lines of it, from the end")
	return cmd
}

func (a *app) tailServerLog(ctx context.Context, name string, lines int, follow bool) error {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return &codedError{exitFailed, "no_log", fmt.Errorf("cove has started no server on %s", filepath.Dir(name)), "of one under systemd: journalctl -u cove"}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	out := a.text()
	var kept []string
	if st, err := f.Stat(); err == nil && st.Size() > 2*maxServeLog { // of one that is longer, the end
		if _, err := f.Seek(-2*maxServeLog, io.SeekEnd); err != nil {
			return err
		}
	}
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			kept = append(kept, line)
			kept = kept[max(0, len(kept)-max(lines, 0)):]
		}
		if err != nil {
			break
		}
	}
	for _, line := range kept {
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
	}
	for follow {
		if _, err := io.Copy(out, f); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(logPause):
		}
	}
	return nil
}

const logPause = 250 * time.Millisecond

// unit is a systemd unit. A server that is stopped leaves its sandboxes running, so
// KillMode is process; and it needs the cgroups to itself for their limits.
const unit = `[Unit]
Description=cove, sandboxes for coding agents
After=network-online.target
Wants=network-online.target

[Service]
ExecStart=%s serve --data %s
Restart=always
RestartSec=2
KillMode=process
Delegate=yes
LimitNOFILE=1048576

[Install]
WantedBy=%s
`

func (a *app) newServerInstall() *cobra.Command {
	var user, show bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Have systemd run the server",
		Long: `Writes a unit of systemd that runs the server, starts it, and writes autostart = false into
its serve.toml, so that no command starts another one beside it. Everything else about the
server is set in serve.toml. With --user it is a unit of your own (see: loginctl
enable-linger).`,
		Example: `  sudo cove server install
  cove server install --user
  cove server install --print >cove.service`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			dir, err := a.own()
			if err != nil {
				return err
			}
			return a.installUnit(ctx, dir, user || os.Geteuid() != 0, show)
		}),
	}
	cmd.Flags().BoolVar(&user, "user", false, "a unit of your own, not of the system (an ordinary user's always is)")
	cmd.Flags().BoolVar(&show, "print", false, "print the unit, and do nothing")
	return cmd
}

func (a *app) installUnit(ctx context.Context, dir string, user, show bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	target, folder, args := "multi-user.target", "/etc/systemd/system", []string{}
	if user {
		home, err := os.UserConfigDir()
		if err != nil {
			return err
		}
		target, folder, args = "default.target", filepath.Join(home, "systemd", "user"), []string{"--user"}
	}
	text := fmt.Sprintf(unit, unitWord(self), unitWord(dir), target)
	if show {
		_, err := io.WriteString(a.Out, text)
		return err
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return &codedError{exitFailed, "no_systemd", errors.New("systemd does not run this machine"), "see the unit with: cove server install --print; without one, start the server with: cove server start"}
	}
	settings := filepath.Join(dir, config.ServeFile)
	set, err := config.ReadServe(settings, false, nil)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "cove.service"), []byte(text), 0o644); err != nil {
		return err
	}
	if !set.NoAutostart {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(settings, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString("\nautostart = false # systemd runs the server\n")
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return err
		}
	}
	if _, err := a.stopOwn(ctx); err != nil {
		return err
	}
	for _, more := range [][]string{{"daemon-reload"}, {"enable", "--now", "cove.service"}} {
		cmd := exec.CommandContext(ctx, "systemctl", append(args[:len(args):len(args)], more...)...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		if out, err := cmd.CombinedOutput(); err != nil {
			return hinted(fmt.Errorf("%s: %w: %s", cmd, err, sanitize(string(out))), "the unit is "+filepath.Join(folder, "cove.service"))
		}
	}
	a.say("systemd runs the server now, by %s; its settings are in %s.", filepath.Join(folder, "cove.service"), settings)
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

// shellQuote writes a word for a shell, in quotes if it needs them.
func shellQuote(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%,=", r))
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
