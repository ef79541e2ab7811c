package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/children"
	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/sprites"
)

// AutostartVariable is 0 if no command but `cove server start` may start a server.
const AutostartVariable = "COVE_AUTOSTART"

// readVerbs only show things. They start no server: a new server would have nothing to show.
var readVerbs = map[string]bool{
	"list": true, "info": true, "policy show": true, "policy test": true, "policy log": true, "checkpoint list": true, "checkpoint show": true,
	"checkpoint diff": true, "job list": true, "job show": true, "job logs": true, "session list": true, "service list": true,
	"service show": true, "service logs": true, "token list": true, "secret list": true, "connector list": true, "connector show": true,
	"connector log": true, "sync status": true, "tool list": true, "ping": true, "checkpoint verify": true, "mcp config": true, "use": true,
	"backend list": true, "image list": true, "image info": true,
}

// needVerbs work on something that must exist. They start a server only if it may exist.
var needVerbs = map[string]bool{
	"rm": true, "suspend": true, "wake": true, "restart": true, "update": true, "url": true, "export": true, "restore": true, "checkpoint create": true,
	"checkpoint rm": true, "checkpoint prune": true, "job wait": true, "job stop": true, "job rm": true, "job gc": true, "secret rm": true, "token rm": true,
	"fork": true, "setup": true, "exec": true, "console": true, "cp": true, "session attach": true, "session kill": true, "backend rm": true,
	"sync push": true, "sync pull": true, "sync undo": true, "proxy": true, "pull": true, "connector rm": true, "policy learn": true, "policy set": true,
	"policy allow": true, "policy deny": true, "policy limit": true, "service put": true, "service rm": true,
	"service start": true, "service stop": true, "service restart": true, "service signal": true, "job diff": true, "job events": true,
	"image rm": true, "image prune": true,
}

// errNothing says that no server has ever run on a data folder.
var errNothing = errors.New("no server, no sprites")

// settingsHint is what to type if serve.toml is wrong.
const settingsHint = "correct that file; see what may be in it: cove serve --help"

// mayStart says why a verb may not start a server on a data folder, or nil.
func (s *chosenServer) mayStart(dir string) error {
	start := "cove server start"
	if _, err := os.Stat(filepath.Join(dir, "cove.db")); errors.Is(err, fs.ErrNotExist) && (readVerbs[s.verb] || needVerbs[s.verb]) {
		hint := "make a sprite with: cove create NAME"
		if strings.HasPrefix(s.verb, "image ") {
			hint = "get an image with: cove image pull debian:12"
		}
		switch {
		case s.verb == "ping":
			hint = "start one with: " + start
		case os.Getenv(AutostartVariable) == "0":
			hint = "start a server with: " + start + "\n" + hint
		}
		return fail.Wrap("no_server", fmt.Errorf("%w: there is nothing at %s", errNothing, dir), hint)
	}
	set, err := config.ReadServe(filepath.Join(dir, config.ServeFile), false, nil)
	if err != nil {
		return fail.Wrap("bad_settings", fmt.Errorf("no server runs, and none would start: %w", err), settingsHint)
	}
	switch {
	case set.NoAutostart && unitRuns(dir):
		return fail.Newf("no_server", "start it with: cove server start", "no server is running on %s, which systemd should run", dir)
	case set.NoAutostart:
		return fail.Newf("no_server", "start it as your supervisor does, or by hand: cove serve\nor take autostart = false out of "+set.File+", and type: cove server start", "no server is running on %s, and %s says that cove starts none", dir, set.File)
	case s.verb == "server start" || s.verb == "server restart":
		return nil
	case os.Getenv(AutostartVariable) == "0":
		return fail.Newf("no_server", "start it with: "+start, "no server is running on %s, and %s=0", dir, AutostartVariable)
	case readVerbs[s.verb]:
		return fail.Newf("no_server", "start it with: "+start, "no server is running on %s", dir)
	}
	return nil
}

func newServerCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Start, stop and look at this machine's server",
		Long: `Controls the server of this machine's data folder. Commands that make or use a sprite start it if
it does not run, unless COVE_AUTOSTART is 0. Commands that only look never start it. Sprites and
jobs outlive it.

Its settings are in serve.toml in the data folder (or cove serve --config FILE): the flags of
cove serve, without --. They hold whoever starts the server. autostart = false says that a
supervisor starts it: then no command does.`,
		Example: `  cove server status
  cove server restart
  echo 'idle = "30m"' >>/var/lib/cove/serve.toml && cove server restart`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newServerStatusCommand(inv), newServerStartCommand(inv), newServerStopCommand(inv), newServerRestartCommand(inv), newServerLogsCommand(inv), newServerInstallCommand(inv), newServerUninstallCommand(inv))
	return cmd
}

// serverStatus is the JSON of `cove server status`.
type serverStatus struct {
	Running   bool   `json:"running"`
	Data      string `json:"data"`
	URL       string `json:"url,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Version   string `json:"version,omitempty"`
	Settings  string `json:"settings,omitempty"`       // the file; empty: there is none
	Unit      string `json:"unit,omitempty"`           // the file of systemd's unit; empty: none runs it
	Problem   string `json:"settings_error,omitempty"` // with the settings: no next server would start
	Autostart bool   `json:"autostart"`
	Elsewhere string `json:"elsewhere,omitempty"` // the name of the other container or machine in which it runs, and has that PID

	Pool *sprites.Pool `json:"pool,omitempty"` // nil: it keeps no sandboxes ready

	DefaultImage        string `json:"default_image,omitempty"` // of sprites that name none; empty: the tools of its machine
	DefaultImageMissing bool   `json:"default_image_missing,omitempty"`

	elsewhere *elsewhereError
}

// own refuses the flags that name another server, and returns the data folder.
func (s *chosenServer) own() (dir string, err error) {
	if s.global.url != "" || s.global.backend != "" && s.global.backend != "local" {
		return "", fail.New("usage", "this is about the server of this machine", "leave out --url and --backend; choose a data folder with --data DIR")
	}
	dir, _, err = s.dataDir()
	return dir, err
}

func readServerStatus(ctx context.Context, inv *invocation) (serverStatus, error) {
	dir, err := inv.server.own()
	if err != nil {
		return serverStatus{}, err
	}
	s := serverStatus{Data: dir, Autostart: os.Getenv(AutostartVariable) != "0"}
	set, err := config.ReadServe(filepath.Join(dir, config.ServeFile), false, nil)
	if s.Settings = set.File; err != nil { // a server that runs has others
		s.Settings, s.Problem = filepath.Join(dir, config.ServeFile), err.Error()
	}
	s.Autostart = s.Autostart && !set.NoAutostart
	if u, is := unitOf(dir); is {
		s.Unit = u.file
	}
	c, err := localClient(ctx, dir, "")
	if errors.Is(err, errNoServer) {
		return s, nil
	}
	if e, ok := errors.AsType[*elsewhereError](err); ok {
		s.Running, s.PID, s.Elsewhere, s.elsewhere = true, e.server.PID, cmp.Or(e.server.Host, "?"), e
		return s, nil
	}
	if err != nil {
		return s, err
	}
	info, err := c.Version(ctx)
	if err != nil {
		return s, err
	}
	s.Running, s.URL, s.PID, s.Version, s.Pool = true, c.URL, info.PID, info.Version, info.Pool
	s.DefaultImage = info.DefaultImage
	s.DefaultImageMissing, err = lacksImage(ctx, c, info.DefaultImage)
	if err != nil {
		s.DefaultImageMissing = false // it is not known
	}
	return s, nil
}

// lacksImage reports whether a server's default image is not there. Empty: it has none.
func lacksImage(ctx context.Context, c *cove.Client, name string) (bool, error) {
	if name == "" || name == hostBase {
		return false, nil
	}
	_, err := cove.Images{Client: c}.Get(ctx, name)
	if errors.Is(err, sprites.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// lackingImage says of a default image that is not there how to have it.
func lackingImage(name string) string {
	name = printable.Word(name)
	return "from its registry: cove image pull " + name + "; of a Dockerfile: cove image build -t " + name + " FOLDER"
}

func newServerStatusCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say whether the server runs, where, and with which settings",
		Long: `Says whether the server runs, where it listens, and where its settings are. The exit code is 1 if
it does not run, neither here nor in another container that has the data folder.`,
		Example: `  cove server status
  cove server status --json`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			s, err := readServerStatus(ctx, inv)
			if err != nil {
				return err
			}
			err = inv.show(s, func(w io.Writer) {
				if s.elsewhere != nil {
					fmt.Fprintf(w, "running:   not here: %v\n", s.elsewhere)
				} else if s.Running {
					fmt.Fprintf(w, "running:   at %s (process %d, version %s)\n", s.URL, s.PID, s.Version)
				} else {
					inv.tell(w, "running:   no; start it: cove server start")
				}
				fmt.Fprintf(w, "data:      %s\n", s.Data)
				if s.Settings != "" {
					fmt.Fprintf(w, "settings:  %s\n", s.Settings)
				}
				if s.Problem != "" {
					fmt.Fprintf(w, "wrong:     %s\n", printable.Line(s.Problem))
				}
				if s.Pool != nil {
					showPool(w, s.Pool)
				}
				if s.DefaultImageMissing {
					inv.tell(w, "image:     %s, which is not here: sprites without --image can't be made; %s", printable.Line(s.DefaultImage), lackingImage(s.DefaultImage))
				} else if s.DefaultImage != "" {
					fmt.Fprintf(w, "image:     %s, for sprites that name none\n", printable.Line(s.DefaultImage))
				}
				if s.Unit != "" {
					fmt.Fprintf(w, "run by:    systemd, %s\n", s.Unit)
				} else if !s.Autostart {
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

// showPool prints what a server's pool has, a line for each base.
func showPool(w io.Writer, p *sprites.Pool) {
	for n, part := range p.Parts {
		label := "pool:"
		if n > 0 {
			label = ""
		}
		fmt.Fprintf(w, "%-11s%s: %d of %d ready\n", label, printable.Line(part.Image), part.Ready, part.Size)
		if part.Error != "" {
			fmt.Fprintf(w, "%-11s%s; to fix it: %s\n", "", printable.Line(part.Error), printable.Line(part.Hint))
		}
	}
}

func newServerStartCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "start",
		Short: "Start the server, if it does not run",
		Long: `Starts the server in the background, with the settings of its serve.toml, and returns
once it answers.`,
		Example: `  cove server start`,
		Args:    exactArgs(),
		RunE:    verb(func(ctx context.Context, _ []string) error { return startOwn(ctx, inv) }),
	}
}

// startOwn starts this machine's server and says where it is.
func startOwn(ctx context.Context, inv *invocation) error {
	dir, err := inv.server.own()
	if err != nil {
		return err
	}
	if u, is := unitOf(dir); is {
		if err := u.systemctl(ctx, "start", unitName); err != nil {
			return err
		}
	} else if _, err := inv.server.ownClient(ctx, ""); err != nil {
		return err
	}
	s, err := readServerStatus(ctx, inv)
	if err != nil {
		return err
	}
	return inv.show(s, func(w io.Writer) {
		fmt.Fprintf(w, "The server runs at %s (process %d).\n", s.URL, s.PID)
		if s.DefaultImageMissing {
			inv.say("Its default image %s is not here: sprites without --image can't be made. It comes %s", printable.Line(s.DefaultImage), lackingImage(s.DefaultImage))
		}
	})
}

func newServerStopCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Stop the server; sprites and jobs go on",
		Long: `Stops the server, and returns once it has ended. Sprites and jobs go on without it, and the next
server takes them up.

If the server is the first process of a container, the container ends with it. The memory of all
sprites goes to disk first. That also happens if the first process, such as the shell of an
entrypoint, has started the server; then the container may end, too.`,
		Example: `  cove server stop`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			awake := anyAwake(ctx, inv)
			if s, err := readServerStatus(ctx, inv); err == nil && containerEnds(s) {
				inv.say("The server is this container's first process: the container ends with it, and this command too. Sprites go on when it starts again, from their memory on disk.")
			} else if p, is := starterOf(s.PID); err == nil && is {
				inv.say("%s", printable.Line(p.endsWith()))
			}
			was, err := stopOwn(ctx, inv)
			if err != nil {
				return err
			}
			s, err := readServerStatus(ctx, inv)
			if err != nil {
				return err
			}
			return inv.show(s, func(w io.Writer) {
				switch {
				case !was:
					fmt.Fprintln(w, "The server did not run.")
				case awake && !sandboxesRun(s.Data): // see cove serve --suspend-at-end
					fmt.Fprintln(w, "The server has ended. Sprites and jobs sleep, and go on when it starts again.")
				case awake:
					fmt.Fprintln(w, "The server has ended. Sprites and jobs go on.")
				default:
					fmt.Fprintln(w, "The server has ended.")
				}
			})
		}),
	}
}

// containerEnds reports whether a server is the first process of this container, or the child
// that cove has there as its init. It is in the session of that; one that a command has
// started has its own.
func containerEnds(s serverStatus) bool {
	if !s.Running || s.PID == 1 {
		return s.Running
	}
	init, err := os.Stat("/proc/1/exe")
	own, ownErr := os.Stat(fmt.Sprintf("/proc/%d/exe", s.PID))
	if err != nil || ownErr != nil || !os.SameFile(init, own) {
		return false
	}
	session, err := unix.Getsid(1)
	ownSession, ownErr := unix.Getsid(s.PID)
	return err == nil && ownErr == nil && session == ownSession
}

// anyAwake reports whether a sprite runs on this machine's server. If the server can't be
// asked, one may.
func anyAwake(ctx context.Context, inv *invocation) bool {
	dir, err := inv.server.own()
	if err != nil {
		return true
	}
	c, err := localClient(ctx, dir, "")
	if err != nil {
		return true
	}
	for info, err := range c.All(ctx, "") {
		if err != nil || info.Status == sprites.StatusRunning || info.Cove != nil && info.Cove.Paused {
			return true
		}
	}
	return false
}

// stopOwn ends this machine's server and reports whether there was one.
func stopOwn(ctx context.Context, inv *invocation) (bool, error) {
	s, err := readServerStatus(ctx, inv)
	if err != nil || !s.Running {
		return false, err
	}
	if s.elsewhere != nil {
		return false, s.elsewhere
	}
	began := private.StartOf(s.PID)
	if u, is := unitOf(s.Data); is { // which would start it again
		if err := u.systemctl(ctx, "stop", unitName); err != nil {
			return false, err
		}
	}
	if private.StartOf(s.PID) != began {
		return true, nil
	}
	if err := unix.Kill(s.PID, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("stop the server: process %d: %w", s.PID, err)
	}
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	// The lock is free a little earlier, when the process has memory to give back.
	for processAlive(s.PID) && private.StartOf(s.PID) == began {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-tick.C:
		}
	}
	return true, nil
}

func newServerRestartCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "restart",
		Short: "Stop the server, and start it anew with the settings of its file",
		Long: `Stops the server and starts one with the settings of serve.toml, and with the flags that the
server was started with. To leave out those flags: cove server stop, cove server start. If the
settings are wrong, the running server stays.

Sprites and jobs go on; with --suspend-at-end, a sprite sleeps until its next use. If the server
is the first process of a container, or was started by it, restart the container instead.`,
		Example: `  cove server restart`,
		Args:    exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			dir, err := inv.server.own()
			if err != nil {
				return err
			}
			// A server that may not be started again is not stopped.
			s, err := readServerStatus(ctx, inv)
			if !unitRuns(dir) {
				if err := inv.server.mayStart(dir); err != nil && s.Running {
					return stays(s)
				} else if err != nil {
					return err
				}
			}
			if err == nil && containerEnds(s) {
				return fail.New("failed", "the server is this container's first process: the container would end with it", "restart the container from outside, as with: docker restart CONTAINER; it ends with the memory of all sprites on disk, and they go on from there")
			} else if p, is := starterOf(s.PID); err == nil && is {
				return fail.Newf("failed", "restart the container from outside, as with: docker restart CONTAINER; if its first process goes on without the server, type: cove server stop; cove server start", "the server was started by this container's first process (%s), with which the container may end", printable.Line(p.name))
			}
			if err := keepServerFlags(ctx, inv, dir); err != nil {
				return err
			}
			if _, err := stopOwn(ctx, inv); err != nil {
				return err
			}
			return startOwn(ctx, inv)
		}),
	}
}

// stays says why a restart leaves the server that runs: cove may start none after it.
func stays(s serverStatus) error {
	if s.Problem != "" {
		return fail.Newf("bad_settings", settingsHint, "the server was left as it is, since the next one would not start: %s", s.Problem)
	}
	return fail.Newf("no_server", "restart it as your supervisor does\nor take autostart = false out of "+s.Settings+", and type: cove server restart", "the server was left as it is: %s says that cove starts none after it", s.Settings)
}

// keepServerFlags notes the flags of the server that runs, for the next one, and refuses settings
// that the next one would not start with. A server that systemd runs has the flags of its unit.
func keepServerFlags(ctx context.Context, inv *invocation, dir string) error {
	if server, err := datafolder.Read(dir); err == nil && !unitRuns(dir) {
		inv.server.serveFlags = server.Flags
	}
	if err := checkServe(ctx, dir, inv.server.serveFlags); err != nil {
		return fail.Newf("bad_settings", "", "the server was left as it is, since the next one would not start: %s", err)
	}
	return nil
}

// checkServe says why a server would not start on a data folder with these flags and with its
// serve.toml.
func checkServe(ctx context.Context, dir string, flags []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	check := exec.CommandContext(ctx, self, append([]string{"serve", "--check", "--data", dir}, flags...)...)
	check.Env = serverEnvironment()
	if out, err := children.CombinedOutput(check); err != nil {
		return errors.New(strings.TrimPrefix(strings.TrimSpace(string(out)), "cove: "))
	}
	return nil
}

func newServerLogsCommand(inv *invocation) *cobra.Command {
	var follow bool
	var lines int
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Show the server's log",
		Long: `Shows the log of the servers that cove has started on this data folder. If systemd runs the
server (cove server install), it shows the journal. If another supervisor runs the server, the
log is where that supervisor keeps it.`,
		Example: `  cove server logs
  cove server logs --lines 20 --follow`,
		Args: exactArgs(),
		RunE: verb(func(ctx context.Context, _ []string) error {
			if inv.global.json {
				return usagef(nil, "logs are for people; there is no --json")
			}
			dir, err := inv.server.own()
			if err != nil {
				return err
			}
			if u, is := unitOf(dir); is {
				return u.logs(ctx, inv.text(), lines, follow)
			}
			return tailServerLog(ctx, inv, filepath.Join(dir, "serve.log"), lines, follow)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print what is added, until Ctrl-C")
	cmd.Flags().IntVarP(&lines, "lines", "n", 200, "how many lines of it, from the end")
	return cmd
}

func tailServerLog(ctx context.Context, inv *invocation, name string, lines int, follow bool) error {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fail.Newf("no_log", "if a supervisor runs the server, it keeps the log; if systemd does, type: journalctl -u cove", "cove has started no server on %s", filepath.Dir(name))
	}
	if err != nil {
		return err
	}
	defer f.Close()
	out := inv.text()
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
