package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/cli/gitwork"
	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/openfiles"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/internal/shim/userns"
	"github.com/cove-dev/cove/sprites"
)

// The levels of a check.
const (
	levelOK   = "ok"
	levelWarn = "warn" // cove works, with less
	levelFail = "fail" // cove does not work
)

// check is one thing that doctor looked at.
type check struct {
	Name   string `json:"name"`
	Level  string `json:"level"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // a command, or what to do
}

func newDoctorCommand(inv *invocation) *cobra.Command {
	var deep bool
	var agent string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine lacks, and the fix for each",
		Long: `Checks what cove needs of this machine: namespaces, overlay file systems (it mounts one, in a
namespace of its own), network devices, cgroups, git, and cove's own programs. It also checks the
room on the disk, and whether the file system can share blocks of files (reflink). It says
whether a server answers, and starts none. It also finds toolchains outside /usr, which a sprite
sees only if they are included.

With --deep, the server tests itself instead, as by cove test (the token needs the verb admin).
After that, doctor makes a repository, pushes it, lets an agent work on it, and pulls. Each step
is timed, and everything is removed again. The agent is shell, which needs no model, or that of
--agent.

The exit code is 1 if something that cove can't do without is missing, or a step fails.`,
		Example: `  cove doctor
  cove doctor --deep
  cove doctor --deep --agent claude --json
  cove doctor --json | jq '.checks[] | select(.level != "ok")'`,
		Args: exactArgs(),
	}
	cmd.RunE = verb(func(ctx context.Context, _ []string) error {
		switch {
		case cmd.Flags().Changed("agent") && !deep:
			return usagef(cmd, "--agent goes with --deep")
		case deep:
			places, err := findPlaces(ctx)
			if err != nil {
				return err
			}
			who, err := findAgent(cmd, places, agent)
			if err != nil {
				return err
			}
			return doctorDeep(ctx, inv, who)
		}
		return runDoctor(ctx, inv)
	})
	f := cmd.Flags()
	f.BoolVar(&deep, "deep", false, "run a whole job, and report each step")
	registerAgent(cmd, &agent, "shell", "the agent that does the work of --deep: ")
	return cmd
}

func runDoctor(ctx context.Context, inv *invocation) error {
	dir, _, err := inv.server.dataDir()
	if err != nil {
		return err
	}
	d := &doctor{inv: inv, data: dir, root: os.Geteuid() == 0}
	doc := struct {
		OK      bool     `json:"ok"`
		Data    string   `json:"data"`
		Checks  []check  `json:"checks"`
		Include []string `json:"include"`
		Path    []string `json:"path"`
	}{OK: true, Data: dir, Checks: d.run(ctx), Include: toolchains(os.Getenv, os.UserHomeDir)}
	doc.Path = programFolders(doc.Include)
	for i, c := range doc.Checks {
		doc.OK = doc.OK && c.Level != levelFail
		doc.Checks[i].Fix = inv.hints.full(c.Fix)
	}
	err = inv.show(doc, func(w io.Writer) {
		for _, c := range doc.Checks {
			fmt.Fprintf(w, "%-4s  %-16s  %s\n", c.Level, c.Name, printable.Line(joinLines(c.Detail)))
			if c.Fix != "" {
				fmt.Fprintf(w, "      %-16s  fix: %s\n", "", printable.Line(c.Fix))
			}
		}
		if len(doc.Include) > 0 {
			fmt.Fprintln(w, "\nToolchains outside /usr; to have them in a sprite:")
			for _, dir := range doc.Include {
				fmt.Fprintf(w, "  --include %s\n", printable.Word(dir))
			}
			fmt.Fprintln(w, "and there, to have their programs found:")
			fmt.Fprintf(w, "  export PATH=%s:\"$PATH\"\n", printable.Word(strings.Join(doc.Path, ":")))
		}
	})
	if err == nil && !doc.OK {
		return reportedError{exitFailed}
	}
	return err
}

// doctor looks at one machine.
type doctor struct {
	inv  *invocation
	data string
	root bool
}

func (d *doctor) run(ctx context.Context) []check {
	checks := []check{d.userNamespaces(), d.overlay(ctx), d.tun(), d.cgroups(), d.machine(), d.limits(), d.openFiles(), d.disk(), d.inodes(), d.reflink(), d.hidden(), d.newSecrets(), d.names(ctx), d.git(ctx)}
	if !d.root {
		checks = append(checks, d.idTools()...)
	}
	if c, there := d.init(ctx); there {
		checks = append(checks, c)
	}
	for _, look := range []func(string) (check, bool){starter, sandboxesElsewhere, privileges} {
		if c, there := look(d.data); there {
			checks = append(checks, c)
		}
	}
	if c, there := d.aside(); there {
		checks = append(checks, c)
	}
	checks = append(checks, d.programs()...)
	return append(checks, d.server(ctx))
}

// hidden counts the host's programs that sprites do not see.
func (d *doctor) hidden() check {
	c := check{Name: "hidden", Level: levelOK}
	var h base.Hider
	if private.Fit(d.data) == nil { // else anybody may have written there
		h.Dir = filepath.Join(d.data, base.Folder)
	}
	hidden, err := h.Hidden()
	switch n := len(hidden); {
	case err != nil:
		return check{c.Name, levelFail, fmt.Sprintf("can't find out which files of /usr to hide from sprites: %v", err), "repair the file system of /usr"}
	case n == 0:
		c.Detail = "nothing in /usr: all of it may be read by every user"
	default:
		c.Detail = fmt.Sprintf("%d files and folders in /usr that not every user may read; no sprite sees them: /%s", n, strings.Join(hidden[:min(n, 3)], " /"))
		if n > 3 {
			c.Detail += " …"
		}
	}
	return c
}

// newSecrets says whether a file of the host's programs that becomes secret is refused at
// once. This process sees the same folders as a server that is started from here.
func (d *doctor) newSecrets() check {
	c := check{Name: "new secrets", Level: levelOK, Detail: "a file in /usr that becomes secret (chmod 600) is refused at once, also to running sandboxes, unless a program there opened it before"}
	open := base.Files{}.Unguarded()
	if len(open) == 0 {
		return c
	}
	c.Level = levelWarn
	c.Detail = "/" + strings.Join(open, ", /") + ": an overlay itself, as in most containers, and the kernel stacks two. A file there that becomes secret stays readable to running sandboxes"
	if d.root {
		c.Fix = "run the server as an ordinary user, who reads no other user's secrets; or mount a volume with the container's /usr there; else start the sprites again 5 minutes after such a change"
	} else {
		c.Detail += ", if this user may read it"
		c.Fix = "mount a volume with the container's /usr there; else start the sprites again 5 minutes after such a change"
	}
	return c
}

func sysctl(name string) string {
	text, err := datafolder.ReadSmall(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")))
	if err != nil {
		return ""
	}
	return text
}

func (d *doctor) userNamespaces() check {
	c := check{Name: "user namespaces", Level: levelOK, Detail: "allowed"}
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		return check{c.Name, levelFail, "the kernel has none", "use a kernel built with CONFIG_USER_NS"}
	}
	for name, bad := range map[string]string{
		"user.max_user_namespaces":         "0",
		"kernel.unprivileged_userns_clone": "0",
	} {
		if sysctl(name) == bad && (!d.root || name == "user.max_user_namespaces") {
			good := "1"
			if name == "user.max_user_namespaces" {
				good = "10000"
			}
			return check{c.Name, levelFail, name + " is " + bad, "sudo sysctl -w " + name + "=" + good}
		}
	}
	if !d.root && sysctl("kernel.apparmor_restrict_unprivileged_userns") == "1" {
		return check{c.Name, levelWarn, "AppArmor restricts them for ordinary users", "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"}
	}
	return c
}

// overlay mounts one, on the data folder's file system, in a child with a mount
// namespace of its own.
func (d *doctor) overlay(ctx context.Context) check {
	c := check{Name: "overlay", Level: levelOK, Detail: "mounted one on the data folder's file system"}
	parent := existingParent(d.data)
	var st unix.Statfs_t
	if unix.Statfs(parent, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return check{c.Name, levelFail, parent + " is on overlayfs, as a container's own files are: no sprite's disk can be there",
			"put the data folder on a volume (docker run -v cove:" + d.data + "), or on another disk: --data DIR or COVE_DATA"}
	}
	dir, err := os.MkdirTemp(parent, ".cove-doctor-")
	if errors.Is(err, os.ErrPermission) {
		return check{c.Name, levelFail, err.Error(), "name a data folder that you may write: --data DIR or COVE_DATA"}
	}
	if errors.Is(err, unix.ENOSPC) {
		return fullDisk(c.Name, parent)
	}
	if errors.Is(err, unix.EROFS) {
		return check{c.Name, levelFail, "can't be tried: " + parent + " is on a file system that is mounted read-only",
			"make it writable (mount -o remount,rw; a container: docker run -v without :ro, and without --read-only for it), or name another data folder: --data DIR or COVE_DATA"}
	}
	if err != nil {
		return check{c.Name, levelFail, err.Error(), ""}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out, err := probeOverlay(ctx, dir)
	if err != nil {
		return overlayFault(err, out)
	}
	if out == noRename {
		c.Detail += "; an ordinary user's overlay can't rename a folder that is in a checkpoint or in the base (EXDEV: mv copies it instead)"
	}
	return c
}

// overlayFault says why no overlay could be mounted: by an error, or by what the probe said
// before it exited with one.
func overlayFault(err error, said string) check {
	c := check{Name: "overlay", Level: levelFail, Detail: err.Error()}
	if _, exited := errors.AsType[*exec.ExitError](err); exited && said != "" {
		c.Detail, _, _ = strings.Cut(strings.TrimPrefix(said, "cove: "), "\n")
	}
	has := func(e unix.Errno) bool { return errors.Is(err, e) || strings.Contains(said, e.Error()) }
	switch {
	case has(unix.EPERM):
		c.Fix = "mounts are not allowed here; run on the machine itself, or in a container with CAP_SYS_ADMIN (docker run --privileged)"
	case has(unix.ENOSPC) || has(unix.EDQUOT):
		c.Fix = "free room on the data folder's disk, or put the data folder on another one: --data DIR"
	case has(unix.ENODEV):
		c.Fix = "sudo modprobe overlay"
	default:
		c.Fix = "put the data folder on ext4, XFS or btrfs: --data DIR"
	}
	return c
}

// fullDisk is a check that had no room to be made.
func fullDisk(name, dir string) check {
	return check{name, levelFail, "can't be tried: the disk of " + dir + " is full", "make room there, or put the data elsewhere: --data DIR"}
}

// existingParent is the nearest folder, from dir upwards, that exists.
func existingParent(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

func (d *doctor) tun() check {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return tunCheck(err, d.root)
}

// tunCheck says what an attempt to open /dev/net/tun means. No sprite needs it: the network
// of a sandbox is a veth pair then.
func tunCheck(err error, root bool) check {
	c := check{Name: "/dev/net/tun", Level: levelOK, Detail: "can be opened"}
	if err == nil {
		return c
	}
	c.Level, c.Detail = levelWarn, fmt.Sprintf("%v; a veth pair is used instead", err)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO):
		c.Fix = "sudo modprobe tun; in a container: --device /dev/net/tun (only for speed)"
	case errors.Is(err, unix.EACCES) && !root:
		c.Fix = "sudo chmod 0666 /dev/net/tun (only for speed)"
	default:
		c.Fix = "in a container: --device /dev/net/tun (only for speed)"
	}
	return c
}

// fewProcesses is a limit of processes at which sprites are given less than they may want.
const fewProcesses = 4096

// process is the server that runs, or this process if none does.
func (d *doctor) process() cgroup.Process {
	if of, err := datafolder.Read(d.data); err == nil && !private.Elsewhere(of.Processes) && openfiles.Of(of.PID) > 0 {
		return cgroup.Process{PID: of.PID}
	}
	return cgroup.Process{}
}

// machine says what all sprites together may use. They are those of the server that runs, or
// of one that is started from here.
func (d *doctor) machine() check {
	m, err := d.process().Machine()
	if err != nil {
		return check{"machine", levelFail, err.Error(), ""}
	}
	return machineCheck(m)
}

func machineCheck(m cgroup.Machine) check {
	c := check{Name: "machine", Level: levelOK}
	whose := func(limit bool) string {
		if limit {
			return " (a limit of the server's cgroup or container)"
		}
		return ""
	}
	cpus := float64(m.CPUs)
	if q := m.Server.Quota; q > 0 {
		cpus = float64(q) / cgroup.Period
	}
	c.Detail = fmt.Sprintf("all sprites together may have %s of memory%s and %.3g CPUs%s", printable.Bytes(m.Memory), whose(m.Server.Memory > 0), cpus, whose(m.Server.Quota > 0))
	if n := m.Server.Processes; n > 0 {
		c.Detail += fmt.Sprintf(", and %d processes and threads of the host%s, of which %d are left", n, whose(true), m.Server.ProcessesLeft)
		if n < fewProcesses {
			c.Level, c.Fix = levelWarn, fmt.Sprintf("allow %d or more (a container: --pids-limit; a unit of systemd: TasksMax=): a process in a sprite takes three or so", fewProcesses)
		}
	}
	return c
}

// openFiles checks how many files the server, and so each sandbox, may have open. The
// server is the one that runs on the data folder, or else one started from here.
func (d *doctor) openFiles() check {
	c := check{Name: "open files", Level: levelOK}
	n, whose := openfiles.Raise(), "a server that is started from here"
	if server, err := datafolder.Read(d.data); err == nil && !private.Elsewhere(server.Processes) {
		if of := openfiles.Of(server.PID); of > 0 {
			n, whose = of, "the server"
		}
	}
	c.Detail = fmt.Sprintf("%s, and each of its sandboxes, may have %d open", whose, n)
	if n < openfiles.Enough {
		c.Level, c.Fix = levelWarn, fmt.Sprintf("raise the hard limit to %d or more (nofile in /etc/security/limits.conf, LimitNOFILE= of a unit), log in again, and start the server and its sprites again", openfiles.Enough)
		c.Detail += `: programs in sprites will meet "too many open files"`
	}
	return c
}

// Below these a sprite would soon meet a full disk.
const (
	wantBytes  = 2 << 30
	wantInodes = 100_000
)

func (d *doctor) disk() check {
	c := check{Name: "disk", Level: levelOK}
	var st unix.Statfs_t
	dir := existingParent(d.data)
	if err := unix.Statfs(dir, &st); err != nil {
		return check{c.Name, levelFail, err.Error(), ""}
	}
	free := int64(st.Bavail) * st.Bsize
	c.Detail = fmt.Sprintf("%s free at %s", printable.Bytes(free), dir)
	if free < wantBytes {
		c.Level, c.Fix = levelWarn, "delete sprites (cove list; cove rm NAME), or put the data elsewhere: --data DIR"
	}
	if free < wantBytes/20 {
		c.Level = levelFail
	}
	return c
}

func (d *doctor) inodes() check {
	c := check{Name: "inodes", Level: levelOK}
	var st unix.Statfs_t
	dir := existingParent(d.data)
	if err := unix.Statfs(dir, &st); err != nil {
		return check{c.Name, levelFail, err.Error(), ""}
	}
	if st.Files == 0 {
		c.Detail = "as many as there is room"
		return c
	}
	c.Detail = fmt.Sprintf("%d free at %s", st.Ffree, dir)
	if st.Ffree < wantInodes {
		c.Level, c.Fix = levelWarn, "delete small files or sprites, or put the data elsewhere: --data DIR"
	}
	if st.Ffree < wantInodes/20 {
		c.Level = levelFail
	}
	return c
}

func (d *doctor) git(ctx context.Context) check {
	c := check{Name: "git", Level: levelOK}
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // on a busy machine a program may start late
	defer cancel()
	major, minor, err := gitwork.Version(ctx)
	if err != nil {
		f := classify(err)
		c.Level, c.Detail, c.Fix = levelFail, f.message, "install git 2.34 or newer: sudo apt-get install git"
		return c
	}
	c.Detail = fmt.Sprintf("version %d.%d", major, minor)
	return c
}

// idTools are what an ordinary user needs to have many users in a sprite.
func (d *doctor) idTools() []check {
	var checks []check
	for _, tool := range []string{"newuidmap", "newgidmap", "nsenter"} {
		c := check{Name: tool, Level: levelOK}
		file, err := exec.LookPath(tool)
		if c.Detail = file; err != nil {
			c.Level, c.Detail, c.Fix = levelFail, "missing", "sudo apt-get install uidmap util-linux"
		}
		checks = append(checks, c)
	}
	return append(checks, subordinates(os.Getuid())...)
}

// subordinates looks at the subordinate ids of a user.
func subordinates(uid int) []check {
	me, err := userns.Account(uid)
	if e, ok := errors.AsType[*userns.NoAccountError](err); ok {
		return []check{{"subordinate ids", levelFail, fmt.Sprintf("user id %d has no account (a line in /etc/passwd), so newuidmap gives it none", uid), e.Fix()}}
	}
	if err != nil {
		return []check{{"subordinate ids", levelFail, err.Error(), "repair /etc/passwd"}}
	}
	var checks []check
	for file, flag := range map[string]string{"/etc/subuid": "--add-subuids", "/etc/subgid": "--add-subgids"} {
		c := check{Name: file, Level: levelOK}
		n := subordinateIDs(file, me)
		if c.Detail = fmt.Sprintf("%d ids for %s", n, me.Username); n < userns.MinIDs {
			c.Level = levelFail
			c.Detail += fmt.Sprintf(", and %d are needed", userns.MinIDs)
			if first, last, err := (userns.Accounts{}).Free(me.Username, me.Uid); err != nil {
				c.Detail += "; " + err.Error()
				c.Fix = "raise SUB_UID_MAX and SUB_GID_MAX in /etc/login.defs, and run cove doctor again"
			} else {
				c.Fix = fmt.Sprintf("sudo usermod %s %d-%d %s", flag, first, last, me.Username)
			}
		}
		checks = append(checks, c)
	}
	return checks
}

// subordinateIDs is the largest range that a file grants a user.
func subordinateIDs(file string, me *user.User) int {
	f, err := os.Open(file)
	if err != nil {
		return 0
	}
	defer f.Close()
	most := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(field) == 3 && (field[0] == me.Username || field[0] == me.Uid) {
			if n, err := strconv.Atoi(field[2]); err == nil {
				most = max(most, n)
			}
		}
	}
	return most
}

// Program finds one of cove's other programs: beside this one, or in the folder
// that COVE_LIBEXEC names.
func Program(name string) (string, error) {
	dir := os.Getenv("COVE_LIBEXEC")
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		dir = filepath.Dir(self)
	}
	file := filepath.Join(dir, name)
	if err := unix.Access(file, unix.X_OK); err != nil {
		return "", fail.Wrap("program_missing", fmt.Errorf("%s: %w", file, err),
			"cove needs it beside itself: in cove's sources, type make install PREFIX="+filepath.Dir(dir))
	}
	return file, nil
}

func (d *doctor) programs() []check {
	self, err := os.Executable()
	if err != nil {
		return []check{{"cove", levelFail, err.Error(), ""}}
	}
	checks := []check{{"cove", levelOK, self, ""}}
	for _, name := range []string{"cove-guest", "cove-runsc", "cove-loop"} {
		c := check{Name: name, Level: levelOK}
		if c.Detail, err = Program(name); err != nil {
			f := classify(err)
			c.Level, c.Detail, c.Fix = levelFail, f.message, f.hint
			if name == "cove-loop" { // only --agent cove needs it
				c.Level = levelWarn
			}
		}
		checks = append(checks, c)
	}
	return checks
}

// CheckStore is the hidden command that says why no server would start on a store. It is
// another package's, which knows stores.
const CheckStore = "check-store"

// checkStore runs it.
func (d *doctor) checkStore(ctx context.Context) error {
	for _, c := range d.inv.hints.root.Commands() {
		if c.Name() == CheckStore {
			c.SetContext(ctx)
			return c.RunE(c, []string{d.data})
		}
	}
	return nil
}

// checkServe says what is wrong with the data folder's serve.toml, if there is one.
func (d *doctor) checkServe(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(d.data, config.ServeFile)); err != nil {
		return nil
	}
	return checkServe(ctx, d.data, nil)
}

// poolNote says what a server's pool has, and what to type if it lacks something.
func poolNote(p *sprites.Pool) (detail, fix string) {
	detail = fmt.Sprintf("of its pool, %d of %d are ready", p.Ready, p.Size)
	var parts []string
	for _, part := range p.Parts {
		one := fmt.Sprintf("%s %d of %d", printable.Line(part.Image), part.Ready, part.Size)
		if part.Error != "" {
			one += ": " + printable.Line(part.Error)
			fix = cmp.Or(fix, printable.Line(part.Hint))
		}
		parts = append(parts, one)
	}
	if len(parts) > 0 {
		detail += " (" + strings.Join(parts, "; ") + ")"
	}
	return detail, fix
}

func (d *doctor) server(ctx context.Context) check {
	c := check{Name: "server", Level: levelOK}
	client, err := d.inv.server.runningClient(ctx)
	if errors.Is(err, errNoServer) {
		if err := private.Fit(d.data); err != nil {
			f := classify(err)
			return check{c.Name, levelFail, "none runs, and none would start: " + f.message, cmp.Or(f.hint, otherFolder)}
		}
		if err := d.checkStore(ctx); err != nil {
			f := classify(err)
			return check{c.Name, levelFail, "none runs, and none would start: " + f.message, f.hint}
		}
		if err := d.checkServe(ctx); err != nil {
			return check{c.Name, levelFail, "none runs, and none would start: " + err.Error(), settingsHint}
		}
		c.Detail = "none runs on " + d.data + "; commands that make or use a sprite start one"
		return c
	}
	if err == nil {
		var limited context.Context
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, probeLimit)
		defer cancel()
		info, versionErr := client.Version(limited)
		if err = versionErr; err == nil {
			c.Detail = fmt.Sprintf("version %s answers at %s", info.Version, client.URL)
			if p := info.Pool; p != nil {
				detail, fix := poolNote(p)
				if c.Detail += "; " + detail; fix != "" {
					c.Level, c.Fix = levelWarn, fix
				}
			}
			if n := info.DiskReserve; n > 0 {
				c.Detail += fmt.Sprintf("; sprites leave %s of its disk, of which %s are free", printable.Bytes(n), printable.Bytes(info.DiskFree))
				if info.DiskFree < n {
					c.Level, c.Fix = levelWarn, "free room on that disk, or remove sprites (cove list; cove rm NAME): until then, sprites that write are paused"
				}
			}
			if missing, err := lacksImage(limited, client, info.DefaultImage); err == nil && missing {
				c.Level, c.Fix = levelWarn, lackingImage(info.DefaultImage)
				c.Detail += "; its default image " + printable.Line(info.DefaultImage) + " is not there: sprites without --image can't be made"
			}
			if err := d.checkServe(ctx); err != nil {
				c.Level, c.Detail, c.Fix = levelWarn, c.Detail+"; the next one would not start: "+err.Error(), settingsHint
			}
			return c
		}
	}
	f := classify(err)
	return check{c.Name, levelFail, f.message, f.hint}
}
