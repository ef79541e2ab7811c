package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-dev/cove/internal/cli"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/logfile"
	"github.com/cove-dev/cove/internal/lib/loopback"
	"github.com/cove-dev/cove/internal/lib/openfiles"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/lib/registries"
	"github.com/cove-dev/cove/internal/server"
	"github.com/cove-dev/cove/internal/server/image"
	"github.com/cove-dev/cove/internal/server/job"
	"github.com/cove-dev/cove/internal/server/runtime/gvisor"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/userns"
	"github.com/cove-dev/cove/sprites"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	addr       string
	names      []string
	domain     string
	idle       time.Duration
	hibernate  time.Duration
	maxRunning int
	pool       []string
	image      string
	reserve    string
	timeout    time.Duration
	keepJobs   time.Duration
	connectors []string
	headers    []string
	suspend    bool
	older      bool
	forget     bool

	given    bool   // addr was
	config   string // a file of these settings; flags that are given take precedence
	fallback string // an address for when none is given, and the last one is not known
	check    bool
	flags    []string // those that were given, for a restart
}

func newServeCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Runs the server until SIGTERM or SIGINT. Sprites and jobs outlive it: a server that is started
again on the same data folder takes them up. Other commands start a server by themselves. serve
is for one with options, or under a supervisor such as systemd.

--connector leads http://NAME.connect.internal/ in every sprite to a URL outside. If that is on
this machine or in a private network, sprites reach it in no other way. The headers of
--connector-header never enter a sprite. Write $NAME in them for a variable of this process's
environment, so that no command line holds a key. cove connector makes connectors for some
sprites, with rules and limits.

The flags may be in a file, by default serve.toml in the data folder, without -- and as TOML:
idle = "30m", pool = 2, name = ["cove.example.org"]. Flags given here override the file.

For a data folder from an older copy, see cove help old-data. As an ordinary user, the server
runs in a user namespace of its own. It needs newuidmap and subordinate ids (see cove doctor).`,
		Example: `  cove serve
  cove serve --addr 127.0.0.1:0 --data ./data --idle 30m --hibernate 2h
  cove serve --pool 4
  cove serve --default-image debian:12 --pool 2 --pool golang:1.25=1
  cove serve --connector local-model=http://127.0.0.1:11434
  cove serve --connector api=https://API-HOST --connector-header 'api=x-api-key: $API_KEY'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, err := cmd.Flags().GetString("data")
			if err != nil {
				return err
			}
			verbose, err := cmd.Flags().GetBool("verbose")
			if err != nil {
				return err
			}
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			dir, _, err := datafolder.Of(data)
			if err != nil {
				return err
			}
			out := cmd.ErrOrStderr()
			if out == os.Stderr { // which the CLI, when it starts a server, has in a file
				out = logfile.Stderr(filepath.Join(dir, "serve.log"), 0)
			}
			o.flags = givenFlags(cmd.Flags())
			if err := applySettings(cmd.Flags(), o.config, dir); err != nil {
				return err
			}
			if o.check {
				return checkSettings(o, dir)
			}
			if os.Getpid() == 1 {
				return serveBelowInit(o.suspend)
			}
			logger := slog.New(logfile.Limit(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})))
			o.given = cmd.Flags().Changed("addr")
			if err := checkFree(o.address(cmd.Context(), ""), dir); err != nil {
				return err
			}
			if err := private.Fit(dir); err != nil {
				return err
			}
			return serve(o, dir, logger, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.addr, "addr", datafolder.DefaultAddr, "address to listen on; port 0 picks one (if not given: where the last server did, if that is free)")
	f.StringVar(&o.config, "config", "", "the settings file (if not given: serve.toml in the data folder, if there is one)")
	f.StringVar(&o.fallback, "fallback-addr", "", "")
	_ = f.MarkHidden("fallback-addr") // it is there
	f.StringArrayVar(&o.names, "name", nil, "a host name by which the server may be called, besides those of --addr and loopback (repeatable)")
	f.StringVar(&o.domain, "domain", "localhost", "sprites' URLs are http://NAME.DOMAIN:PORT/; behind a proxy with TLS, give its https://DOMAIN. If it is not localhost, all names below it must lead here")
	f.DurationVar(&o.idle, "idle", 30*time.Second, "how long an unused sprite stays awake before it is paused, if it has no setting of its own; 0: for ever")
	f.DurationVar(&o.hibernate, "hibernate", 5*time.Minute, "after being unused for how long a sprite's memory goes to disk, if it has no setting of its own; 0: never")
	f.IntVar(&o.maxRunning, "max-running", 0, "how many sandboxes may run at once, not counting paused ones; 0: any number")
	f.StringArrayVar(&o.pool, "pool", nil, "`[IMAGE=]N`: keep N sandboxes ready, besides --max-running, for new sprites without limits or --include (some 30 MB of memory each): over IMAGE (host: this machine's own tools), or else over the image of new sprites that name none (repeatable)")
	f.StringVar(&o.image, "default-image", "", "the image of new sprites that name none, such as debian:12; get it with: cove image pull (if not given: this machine's own tools)")
	f.StringVar(&o.reserve, "disk-reserve", "", "how much of the data folder's disk sprites leave free, such as 5G: if less is free, sprites that write are paused until there is more; 0: nothing (if not given: 1G, or 5 % of a disk of less than 20G)")
	f.DurationVar(&o.timeout, "job-timeout", time.Hour, "limit of a job's running time, if it has none of its own")
	f.DurationVar(&o.keepJobs, "keep-jobs", 7*24*time.Hour, "remove jobs that were pulled or left nothing, with their sprites, so long after their last use; 0: never")
	f.BoolVar(&o.suspend, "suspend-at-end", endsContainer(), "at the server's end, put the memory of all sprites on disk, because their sandboxes end with it (the default for a container's main process, also below its init: docker run --init; a systemd unit does so when the machine shuts down)")
	f.StringArrayVar(&o.connectors, "connector", nil, "NAME=URL: what http://NAME.connect.internal/ in a sprite leads to (repeatable)")
	f.StringArrayVar(&o.headers, "connector-header", nil, "'NAME=HEADER: VALUE' added to what goes through a connector; $VAR is taken from the environment (repeatable)")
	f.BoolVar(&o.check, "check", false, "say what is wrong with the settings or the data folder, and end")
	f.BoolVar(&o.forget, "forget-sealed", false, "give up everything that the key of the secrets can't open: secrets, backends, and the settings of jobs")
	f.BoolVar(&o.older, "accept-older-store", false, "go on with a cove.db that is older than the rest of the data folder; what it does not know is moved to aside/ there")
	return cmd
}

const maxPool = 100

// address is where a server of a data folder listens. The caller must hold the folder's lock,
// so that it does not wait for the last server while that serves. No folder: as for a new
// one.
func (o *serveOptions) address(ctx context.Context, dir string) string {
	if o.given {
		return o.addr
	}
	last := ""
	if dir != "" {
		last = datafolder.Address(ctx, dir)
	}
	return cmp.Or(last, o.fallback, o.addr)
}

// listen listens at the address of a server whose data folder's lock is held. A server that a
// command started (it has a fallback) may listen at any address. Another program may have
// taken its address since the command saw that it was free.
func (o *serveOptions) listen(ctx context.Context, dir string, logger *slog.Logger) (net.Listener, error) {
	addr := o.address(ctx, dir)
	if err := ctx.Err(); err != nil { // asked to end, while it waited for the last server
		return nil, err
	}
	ln, err := loopback.Listen(addr)
	if errors.Is(err, syscall.EADDRINUSE) && !o.given && o.fallback != "" {
		logger.Warn("another program uses the last server's address: the sprites' URLs change", "address", addr)
		ln, err = loopback.Listen(anyPort)
	}
	if err != nil {
		return nil, errNoListen(err)
	}
	return ln, nil
}

// anyPort is any port of loopback that is free.
const anyPort = "127.0.0.1:0"

// givenFlags are the flags of a command line, those left out that are for one start alone.
func givenFlags(flags *pflag.FlagSet) []string {
	var given []string
	flags.Visit(func(f *pflag.Flag) {
		if f.Hidden || slices.Contains([]string{"data", "check", "accept-older-store", "forget-sealed"}, f.Name) {
			return
		}
		values := []string{f.Value.String()}
		if several, ok := f.Value.(pflag.SliceValue); ok {
			values = several.GetSlice()
		}
		for _, value := range values {
			given = append(given, "--"+f.Name+"="+value)
		}
	})
	return given
}

// checkSettings says what is wrong with a server's settings, or its data folder.
func checkSettings(o serveOptions, dir string) error {
	if err := checkDefaultImage(o.image); err != nil {
		return err
	}
	_, connectorErr := parseConnectors(o.connectors, o.headers, os.LookupEnv)
	at := dir // or what there is above a folder that has yet to be made
	for _, err := os.Stat(at); errors.Is(err, os.ErrNotExist) && at != filepath.Dir(at); _, err = os.Stat(at) {
		at = filepath.Dir(at)
	}
	_, reserveErr := diskReserve(o.reserve, at)
	_, poolErr := parsePool(o.pool, o.image)
	return errors.Join(poolErr, connectorErr, reserveErr, private.Fit(dir))
}

// parsePool reads the flags --pool. image is the default image; empty: there is none.
func parsePool(specs []string, image string) (parts []sprite.PoolPart, err error) {
	seen, sum := map[string]bool{}, 0
	for _, spec := range specs {
		part := sprite.PoolPart{Image: cmp.Or(image, sprites.HostBase)}
		number := spec
		if name, after, ok := strings.Cut(spec, "="); ok {
			part.Image, number = name, after
			if err := checkPooled(name); err != nil {
				return nil, fmt.Errorf("--pool %s: %w", spec, err)
			}
		}
		if part.Size, err = strconv.Atoi(number); err != nil || part.Size < 0 || part.Size > maxPool {
			return nil, fmt.Errorf("--pool %s: write N or IMAGE=N, with N from 0 to %d", spec, maxPool)
		}
		if seen[part.Image] {
			return nil, fmt.Errorf("--pool %s: given twice for %s; leave one of them out", spec, part.Image)
		}
		seen[part.Image] = true
		if sum += part.Size; part.Size > 0 {
			parts = append(parts, part)
		}
	}
	if sum > maxPool {
		return nil, fmt.Errorf("--pool: %d sandboxes in all are more than %d", sum, maxPool)
	}
	return parts, nil
}

// checkPooled refuses a name that is neither the host base nor a possible name of an image.
func checkPooled(name string) error {
	if name == sprites.HostBase {
		return nil
	}
	return image.CheckReference(name)
}

// checkDefaultImage refuses a text that can't be the name of an image. Empty: there is none.
func checkDefaultImage(name string) error {
	if name == "" || name == sprites.HostBase {
		return nil
	}
	if err := image.CheckReference(name); err != nil {
		return fmt.Errorf("--default-image: %w", err)
	}
	return nil
}

// sayDefaultImage warns that the default image is not here.
func sayDefaultImage(ctx context.Context, stored *image.Store, name string, logger *slog.Logger) {
	if name == "" || name == sprites.HostBase {
		return
	}
	if _, err := stored.Get(ctx, name); err != nil {
		logger.Warn("sprites that name no image can't be made: the default image is not here", "image", name, "err", err, "hint", server.DefaultImageHint(name))
	}
}

// applySettings sets the flags that are not given to the values in the server's file of
// settings.
func applySettings(flags *pflag.FlagSet, file, dir string) error {
	must := file != ""
	if !must {
		file = filepath.Join(dir, config.ServeFile)
	}
	inFile := func(name string) bool {
		f := flags.Lookup(name)
		return f != nil && !f.Hidden && name != "help" && name != "check"
	}
	set, err := config.ReadServe(file, must, inFile)
	if err != nil {
		return err
	}
	for name, values := range set.Flags {
		if flags.Changed(name) {
			continue
		}
		for _, value := range values {
			if err := flags.Set(name, value); err != nil {
				return fmt.Errorf("%s: %s = %q: %w", set.File, name, value, err)
			}
		}
	}
	return nil
}

// checkFree refuses an address that is in use before a new data folder is made for it.
func checkFree(addr, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil // the folder may have a server: then a later error says so
	}
	ln, err := loopback.Listen(addr)
	if err != nil {
		return errNoListen(err)
	}
	return ln.Close()
}

func errNoListen(err error) error {
	return fmt.Errorf("listen: %w; choose another address with --addr, port 0 picks a free one", err)
}

// serve runs a server until a signal ends it.
func serve(o serveOptions, dir string, logger *slog.Logger, out io.Writer) (err error) {
	pool, err := parsePool(o.pool, o.image)
	if err != nil {
		return err
	}
	connectors, err := parseConnectors(o.connectors, o.headers, os.LookupEnv)
	if err != nil {
		return err
	}
	if err := checkDefaultImage(o.image); err != nil {
		return err
	}
	if err := private.Process(); err != nil {
		return err
	}
	if n := openfiles.Raise(); n > 0 && n < openfiles.Enough {
		logger.Warn("the limit of open files is low: programs in sprites will meet \"too many open files\"; raise the hard limit (cove doctor says how), and start the server again", "limit", n, "enough", openfiles.Enough)
	}
	was, err := private.Folder(dir)
	if err != nil {
		return err
	}
	if was != 0 {
		logger.Warn("the data folder was open to other users of this machine, and is closed now; if you do not trust all of them, replace its tokens (cove token --help)", "folder", dir, "was", was)
	}
	reserve, err := diskReserve(o.reserve, dir)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		if err := os.Setenv("COVE_DATA", dir); err != nil { // root's default is another one
			return err
		}
		return userns.Enter(dir, []string{self, holdVerb, "--data", dir}, func() []userns.Process { return leftIn(dir) })
	}
	guest, err := cli.Program("cove-guest")
	if err != nil {
		return err
	}
	runsc, err := cli.Program("cove-runsc")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	supervisor := os.Getenv(notifySocket)
	if err := os.Unsetenv(notifySocket); err != nil { // processes that the server starts must not notify
		return err
	}

	lock, err := server.Lock(ctx, dir, func(pid int) {
		logger.Warn("waiting until the last server, which was killed, is gone: the kernel has not yet ended its process", "pid", pid)
	})
	if err != nil {
		return err
	}
	defer closing(&err, lock)
	st, err := store.Options{Older: o.older, ForgetSealed: o.forget}.Open(ctx, filepath.Join(dir, "cove.db"))
	if err != nil {
		return err
	}
	defer closing(&err, st)
	if err := sayOldTokens(ctx, st, dir, logger); err != nil {
		return err
	}
	host := &sprite.Host{
		Store: st, Data: dir, Logger: logger, IdleDefault: o.idle, HibernateDefault: o.hibernate, MaxRunning: o.maxRunning, Pool: pool,
		DiskReserve: reserve, Registries: new(registries.Finder).Hosts, Connectors: connectors,
	}
	stored, err := image.New(image.Options{Dir: filepath.Join(dir, "oci"), Store: st.Images, UserNS: userns.Inside(), Removed: unfit(dir), Claim: room(host), Logger: logger})
	if err != nil {
		return err
	}
	defer closing(&err, stored)
	sayDefaultImage(ctx, stored, o.image, logger)
	rt := &gvisor.Runtime{
		Dir: dir, Shim: []string{self, "shim"}, Runsc: runsc, Guest: guest,
		UserNS: userns.Inside(), Images: images{stored}.ground, Logger: logger,
	}
	defer closing(&err, rt)
	srv := &server.Server{Dir: dir, Store: st, Logger: logger, Version: cli.Version(), Flags: o.flags, Names: o.names, Domain: o.domain, Images: stored, DefaultImage: o.image}
	host.Runtime, host.Images, host.URL = rt, images{stored}, srv.SpriteURL
	if err := host.Start(ctx); err != nil {
		return err
	}
	defer closing(&err, host)

	srv.Host = host
	defer closing(&err, srv)
	jobs := &job.Manager{Store: st, Client: srv.Client(), Logger: logger, DefaultTimeout: o.timeout, Keep: o.keepJobs, NamesOnly: host.NamesOnly, Installer: host}
	srv.Jobs = jobs
	ln, err := o.listen(ctx, dir, logger)
	if err != nil {
		return err
	}
	if err := jobs.Resume(ctx); err != nil {
		return errors.Join(err, ln.Close())
	}
	if err := serveJobs(ctx, srv, jobs, ln, out, supervisor); err != nil {
		return err
	}
	if o.suspend || supervisor != "" && machineEnds() {
		suspendAll(host, logger)
	}
	return nil
}

// sayOldTokens says, if the store is an older one, or may be, that it may have tokens that were removed since.
func sayOldTokens(ctx context.Context, st *store.Store, dir string, logger *slog.Logger) error {
	older, err := st.Epoch.Older(ctx)
	if err != nil || !older {
		return err
	}
	tokens, err := st.Tokens.List(ctx)
	if err != nil || len(tokens) == 0 {
		return err
	}
	hint := fmt.Sprintf("list the tokens: cove token list --data %s; remove again those that you had removed: cove token rm ID --data %s", dir, dir)
	logger.Warn("cove.db is, or may be, an older copy: tokens that were removed since may be valid again; all browsers are logged out", "tokens", len(tokens), "hint", hint)
	return nil
}

// diskReserve reads --disk-reserve for a data folder.
func diskReserve(text, dir string) (int64, error) {
	if text == "" {
		return sprite.DefaultDiskReserve(dir)
	}
	n, err := cli.ParseSize(text)
	if err != nil {
		return 0, fmt.Errorf("--disk-reserve %q is not a size such as 5G or 512M; 0 is none", text)
	}
	return n, nil
}

// notifySocket names the socket of a supervisor that wants to be told when the server
// answers (sd_notify(3)).
const notifySocket = "NOTIFY_SOCKET"

// sayReady tells a supervisor that the server answers. No socket: there is none.
func sayReady(socket string) error {
	if socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = io.WriteString(conn, "READY=1")
	return errors.Join(err, conn.Close())
}

// machineEnds reports whether systemd is about to end all that it runs.
func machineEnds() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	ends := func(args ...string) bool {
		out, err := exec.CommandContext(ctx, "systemctl", append(args, "is-system-running")...).Output()
		return err != nil && strings.TrimSpace(string(out)) == "stopping" // systemctl says so with an exit code
	}
	return ends() || ends("--user")
}

// suspendAll puts all that runs on disk.
func suspendAll(host *sprite.Host, logger *slog.Logger) {
	logger.Info("the sandboxes end with this server: their memory goes to disk; another signal ends the server at once")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	asleep, awake := host.SuspendAll(ctx)
	reportSuspended(logger, asleep, awake)
}

func reportSuspended(logger *slog.Logger, asleep int, awake []string) {
	if len(awake) > 0 {
		logger.Error("programs in some sprites will be lost: the memory of these sprites could not be put on disk", "sprites", awake)
	}
	if asleep > 0 || len(awake) == 0 {
		logger.Info("the memory of the sprites is on disk", "sprites", asleep)
	}
}

// serveJobs serves until ctx ends. Jobs are left before the server that they use ends.
// Once the server answers, it says so to out and to the supervisor's socket.
func serveJobs(ctx context.Context, srv *server.Server, jobs *job.Manager, ln net.Listener, out io.Writer, supervisor string) error {
	serving, cancel := context.WithCancel(context.Background())
	defer cancel()
	left := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		left <- jobs.Close()
		cancel()
	})
	// The server answers the client's first request once all is in place.
	go func() {
		info, err := srv.Client().Version(serving)
		if err != nil {
			return
		}
		fmt.Fprintf(out, "cove: listening on %s%s\n", info.URL, elsewhere(ln.Addr()))
		if err := sayReady(supervisor); err != nil {
			srv.Logger.Warn("could not tell the supervisor that the server answers", "err", err)
		}
		if tcp, ok := ln.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
			srv.Logger.Warn("other machines reach the server without TLS: anybody who sees the traffic can read tokens and files; listen on loopback, behind a proxy with TLS or a tunnel")
		}
	}()
	err := srv.Serve(serving, ln)
	if stop() { // it ended by itself
		return errors.Join(err, jobs.Close())
	}
	return errors.Join(err, <-left)
}

// elsewhere says, of a server that listens on all addresses, that it does.
func elsewhere(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return fmt.Sprintf(", and at every address of this machine (%s)", addr)
	}
	return ""
}

func closing(err *error, c io.Closer) { *err = errors.Join(*err, c.Close()) }

var connectorName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`) })

// parseConnectors reads the flags --connector and --connector-header.
func parseConnectors(specs, headers []string, env func(string) (string, bool)) (map[string]connect.Upstream, error) {
	connectors := map[string]connect.Upstream{}
	for _, spec := range specs {
		name, text, _ := strings.Cut(spec, "=")
		u, err := url.Parse(text)
		switch {
		case !connectorName().MatchString(name):
			return nil, fmt.Errorf("--connector %q: the name must be lower-case letters, digits and hyphens; write NAME=URL", spec)
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
			return nil, fmt.Errorf("--connector %s: %q is not the http or https URL of a host; write NAME=URL", name, text)
		case u.User != nil:
			return nil, fmt.Errorf("--connector %s: anybody can see a secret in a URL; use --connector-header", name)
		}
		if _, twice := connectors[name]; twice {
			return nil, fmt.Errorf("--connector %s: given twice", name)
		}
		connectors[name] = connect.Upstream{URL: text, Header: http.Header{}}
	}
	for _, spec := range headers {
		name, header, err := parseHeader(spec, env)
		if err != nil {
			return nil, err
		}
		c, ok := connectors[name]
		if !ok {
			return nil, fmt.Errorf("--connector-header %s: there is no connector of that name; add --connector %s=URL", name, name)
		}
		for key, values := range header {
			c.Header[key] = append(c.Header[key], values...)
		}
	}
	return connectors, nil
}

// parseHeader reads 'NAME=HEADER: VALUE'. Its errors don't repeat the value.
func parseHeader(spec string, env func(string) (string, bool)) (name string, header http.Header, err error) {
	name, rest, _ := strings.Cut(spec, "=")
	key, value, ok := strings.Cut(rest, ":")
	key = strings.TrimSpace(key)
	if !ok || !headerName().MatchString(key) {
		return "", nil, fmt.Errorf("--connector-header %.40q: write 'NAME=HEADER: VALUE'", name)
	}
	var missing string
	value = os.Expand(strings.TrimSpace(value), func(v string) string {
		if v == "$" {
			return "$"
		}
		text, ok := env(v)
		if !ok || text == "" {
			missing = v
		}
		return text
	})
	switch {
	case missing != "":
		return "", nil, fmt.Errorf("--connector-header %s: the environment has no %s; set it, or write $$ for a dollar sign", name, missing)
	case value == "" || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		return "", nil, fmt.Errorf("--connector-header %s: the value of %s is empty or has control characters", name, key)
	}
	return name, http.Header{http.CanonicalHeaderKey(key): {value}}, nil
}

var headerName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$") })
