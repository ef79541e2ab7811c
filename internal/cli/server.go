package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/loopback"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/sprites"
)

const (
	probeLimit  = 30 * time.Second // for a server's word that it lives; it may be very busy
	startLimit  = 3 * time.Minute  // for a new server to be ready
	loserLimit  = 30 * time.Second // for the winner, when our server was not the first
	startPoll   = 20 * time.Millisecond
	maxServeLog = 8 << 20 // serve.log is begun anew beyond this, here or by the server
	logTail     = 2 << 10 // of serve.log, in an error
)

// chosenServer is the server in use, which flags, the environment or the person's file choose.
type chosenServer struct {
	global *globals
	out    *printer
	verb   string // the command's path without "cove": some start no server

	serveFlags []string // of a server that this run starts
}

// dataDir is the data folder in use, and whether it is the default one.
func (s *chosenServer) dataDir() (dir string, byDefault bool, err error) {
	return datafolder.Of(s.global.data)
}

// remote is the server that the person chose; a URL of "" is this machine's.
type remote struct {
	url     string
	backend *config.BackendServer // the backend that has the url; nil: the url was given by itself
}

// remote finds the server in use: that of --url or --backend, of COVE_URL, or of
// the person's file.
func (s *chosenServer) remote() (remote, error) {
	text := s.global.url
	if text != "" && s.global.backend != "" {
		return remote{}, fail.New("usage", "--url or --backend, not both", "a backend has its address in your file of settings")
	}
	if text == "" && s.global.backend == "" {
		text = os.Getenv("COVE_URL")
	}
	if text == "" {
		b, err := s.backend()
		if b == nil || err != nil {
			return remote{}, err
		}
		return remote{b.URL, b}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || u.RawQuery != "" {
		return remote{}, fail.Newf("bad_url", "such as --url http://127.0.0.1:7878", "%q is not a server's address", text)
	}
	return remote{url: strings.TrimRight(text, "/")}, nil
}

// token is the token that the person named.
func (s *chosenServer) token() string {
	if s.global.token != "" {
		return s.global.token
	}
	return os.Getenv("COVE_TOKEN")
}

// client returns a client of the server in use. If that is this machine's, and does not
// run, client starts it.
func (s *chosenServer) client(ctx context.Context) (*cove.Client, error) {
	remote, err := s.remote()
	if err != nil {
		return nil, err
	}
	if remote.url == "" {
		return s.ownClient(ctx, s.token())
	}
	return s.runningClient(ctx)
}

// ownClient returns a client of this machine's server. It starts the server if it does not
// run, and again if it is killed later. If token is empty, the client uses the owner's.
func (s *chosenServer) ownClient(ctx context.Context, token string) (*cove.Client, error) {
	dir, byDefault, err := s.dataDir()
	if err != nil {
		return nil, err
	}
	c, err := localClient(ctx, dir, token)
	if errors.Is(err, errNoServer) {
		if err := s.mayStart(dir); err != nil {
			return nil, err
		}
		if err := s.start(ctx, dir, byDefault); err != nil {
			return nil, err
		}
		c, err = localClient(ctx, dir, token)
	}
	if err == nil {
		s.stayWith(c, dir, byDefault)
	}
	return c, err
}

// errNoServer says that no server runs on the data folder.
var errNoServer = errors.New("no server is running")

// isHere reports whether the server that commands go to is this machine's own, and in no
// other container, so that both see the same files.
func (s *chosenServer) isHere() bool {
	remote, err := s.remote()
	if err != nil || remote.backend != nil {
		return false
	}
	dir, _, err := s.dataDir()
	if err != nil {
		return false
	}
	server, err := datafolder.Read(dir)
	return err == nil && (remote.url == "" || remote.url == server.URL) && !private.Elsewhere(server.Processes)
}

// process is the PID of this machine's server, as the data folder has it. 0: commands go to
// another server, or none has run.
func (s *chosenServer) process() int {
	remote, err := s.remote()
	if err != nil || remote.url != "" {
		return 0
	}
	dir, _, err := s.dataDir()
	if err != nil {
		return 0
	}
	server, err := datafolder.Read(dir)
	if err != nil {
		return 0
	}
	return server.PID
}

// runningClient is client without starting a server: errNoServer then.
func (s *chosenServer) runningClient(ctx context.Context) (*cove.Client, error) {
	remote, err := s.remote()
	if err != nil {
		return nil, err
	}
	dir, _, dataErr := s.dataDir()
	if remote.url == "" {
		if dataErr != nil {
			return nil, dataErr
		}
		return localClient(ctx, dir, s.token())
	}
	if remote.backend != nil {
		token, err := s.backendToken(ctx, remote.backend)
		return &cove.Client{Client: &sprites.Client{URL: remote.url, Token: token}}, err
	}
	c := &cove.Client{Client: &sprites.Client{URL: remote.url, Token: s.token()}}
	if c.Token == "" && dataErr == nil {
		// This machine's own server may be named by its address; its token goes
		// nowhere else.
		if server, err := datafolder.Read(dir); err == nil && server.URL == remote.url && private.Check(dir) == nil {
			c.Token, _ = datafolder.ReadSmall(filepath.Join(dir, datafolder.TokenFile))
			c.HTTPClient = ownHTTP(dir)
		}
	}
	return c, nil
}

// clientAgain is client for a command that has lost the server. It starts a killed server
// again, but not one that somebody has stopped.
func (s *chosenServer) clientAgain(ctx context.Context) (*cove.Client, error) {
	remote, err := s.remote()
	if err != nil {
		return nil, err
	}
	c, err := s.runningClient(ctx)
	if remote.url != "" {
		return c, err
	}
	dir, byDefault, dirErr := s.dataDir()
	if dirErr != nil {
		return nil, dirErr
	}
	if errors.Is(err, errNoServer) {
		if err := s.mayStart(dir); err != nil {
			return nil, err
		}
		if !serverKilled(dir) {
			return nil, stoppedMeanwhile(dir)
		}
		if err := s.restartKilled(ctx, dir, byDefault); err != nil {
			return nil, err
		}
		c, err = localClient(ctx, dir, s.token())
	}
	if err == nil {
		s.stayWith(c, dir, byDefault)
	}
	return c, err
}

// localClient is a client of the server that runs on a data folder, or errNoServer, or an
// elsewhereError. The token is the owner's if it is empty.
func localClient(ctx context.Context, dir, token string) (*cove.Client, error) {
	server, err := datafolder.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, endingElsewhere(dir)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, hinted(err, "the data folder is another user's; name your own: --data DIR or COVE_DATA")
	}
	if err != nil {
		return nil, err
	}
	if err := private.Check(dir); err != nil {
		return nil, err
	}
	if private.Elsewhere(server.Processes) {
		return nil, runsElsewhere(dir, server)
	}
	if !datafolder.Serves(dir, server) {
		return nil, errNoServer
	}
	if token == "" {
		if token, err = datafolder.ReadSmall(filepath.Join(dir, datafolder.TokenFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the server's token: %w", err)
		}
	}
	c := &cove.Client{Client: &sprites.Client{URL: server.URL, Token: token, HTTPClient: ownHTTP(dir)}}
	if err := probe(ctx, c, server.PID); err != nil {
		return nil, err
	}
	return c, nil
}

// codeSilent is the code of a server that does not answer within probeLimit.
const codeSilent = "server_silent"

// probe asks a server whether it lives. A process number that does not fit means
// that another program has its address now.
func probe(ctx context.Context, c *cove.Client, pid int) error {
	limited, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	info, err := c.Version(limited)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e, ok := errors.AsType[*sprites.Error](err); ok && e.StatusCode != 404 && processAlive(pid) {
			return err // it lives, and refuses
		}
		if limited.Err() != nil && processAlive(pid) {
			return fail.Newf(codeSilent, fmt.Sprintf("is it stopped, or very busy? kill -CONT %d continues it, kill %d ends it: sprites and jobs go on", pid, pid), "the server (process %d) does not answer within %v", pid, probeLimit)
		}
		return errNoServer
	}
	if info.PID != pid {
		return errNoServer
	}
	return nil
}

// processAlive reports whether there is a process of that number.
func processAlive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := unix.Kill(pid, 0)
	return err == nil || errors.Is(err, unix.EPERM)
}

// otherFolder is what to do if a data folder can't be made or written.
const otherFolder = "name another one: --data DIR or COVE_DATA"

// start starts a server on a data folder, and returns once it answers. If several
// processes try at once, one starts it and the others wait. If another server has
// started in the meantime, that one is used.
func (s *chosenServer) start(ctx context.Context, dir string, byDefault bool) error {
	was, err := private.Folder(dir)
	if err != nil {
		if _, ok := errors.AsType[*private.RefusedError](err); ok {
			return err
		}
		return hinted(err, otherFolder)
	}
	if was != 0 {
		s.out.say("The data folder %s was open to other users (%v), and is closed now. If you do not trust all of them, replace its tokens: cove token --help", dir, was)
	}
	notReady := fmt.Errorf("not ready within %v", startLimit)
	lock := func() (func(), error) {
		ctx, cancel := context.WithTimeoutCause(ctx, startLimit, notReady)
		defer cancel()
		return lockFile(ctx, filepath.Join(dir, "start.lock"))
	}
	unlock, err := lock()
	for err != nil && ctx.Err() == nil && datafolder.Dying(dir) != 0 { // the other cove waits for its end
		unlock, err = lock()
	}
	if err != nil {
		return fmt.Errorf("wait for another cove to start the server: %w", err)
	}
	defer unlock()
	if err := s.awaitEnding(ctx, dir); err != nil {
		return fmt.Errorf("wait for the last server's end: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, notReady)
	defer cancel()
	if _, err := localClient(ctx, dir, ""); !errors.Is(err, errNoServer) {
		return err // the other one did it
	}
	log, err := openServeLog(filepath.Join(dir, "serve.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	s.out.detail("starting a server on %s", dir)
	addr := startAddr(ctx, dir, byDefault)
	if err := ctx.Err(); err != nil {
		return err
	}
	ended, err := spawnServer(dir, addr, s.serveFlags, log)
	if err != nil {
		return err
	}
	if err := awaitServer(ctx, dir, ended); err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == exitNoSpace {
			return fail.Newf("no_space", "free some space on that disk, and try again; see how full it is: df "+dir, "start the server: the disk of %s is full", dir)
		}
		return fail.Wrap("server_failed", fmt.Errorf("start the server: %w%s", err, tailOf(log.Name(), from)),
			"all of it: "+log.Name()+"; what this machine lacks: cove doctor")
	}
	return nil
}

// startAddr is where a server that we start listens. It is the last server's address,
// since clients and the sprites' URLs use that. If that is not free or not known, it is
// the well-known port, for the usual data folder only; else any free port.
func startAddr(ctx context.Context, dir string, byDefault bool) string {
	addr := datafolder.Address(ctx, dir)
	if addr == "" && byDefault && loopback.Free(datafolder.DefaultAddr) {
		addr = datafolder.DefaultAddr
	}
	return cmp.Or(addr, "127.0.0.1:0")
}

// spawnServer starts `cove serve` in a session of its own. The channel gives its
// end, if that comes while we are here.
func spawnServer(dir, addr string, flags []string, log *os.File) (<-chan error, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := append([]string{"serve", "--data", dir, "--fallback-addr", addr}, flags...) // serve.toml may say another one
	cmd := exec.Command(self, args...)
	cmd.Args[0] = os.Args[0]
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = serverEnvironment()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		if err == nil {
			err = errors.New("it ended at once")
		}
		ended <- err
	}()
	return ended, nil
}

// serverEnvironment is the part of this process's environment that a server gets.
func serverEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == "COVE_URL" || name == "COVE_TOKEN" || name == "COVE_DATA"
	})
}

// awaitEnding waits until a data folder's lock is free. Its server has removed its address
// already, or was killed and has not ended yet. awaitEnding also returns if that server has an
// address again. It waits at most startLimit, but without limit while a killed server ends: the
// kernel may need long for that.
func (s *chosenServer) awaitEnding(ctx context.Context, dir string) error {
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	told := time.AfterFunc(time.Second, func() { s.out.say("cove: waiting for the last server's end …") })
	defer told.Stop()
	for began := time.Now(); ; {
		dying := datafolder.Dying(dir) != 0
		if _, err := datafolder.Read(dir); !dying && !errors.Is(err, fs.ErrNotExist) || !datafolder.Locked(filepath.Join(dir, "lock")) {
			return nil
		}
		if !dying && time.Since(began) > startLimit {
			return fmt.Errorf("not within %v", startLimit)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// awaitServer polls until a server answers.
func awaitServer(ctx context.Context, dir string, ended <-chan error) error {
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	var gaveUp <-chan time.Time
	var exit error
	for {
		_, err := localClient(ctx, dir, "")
		if err == nil {
			return nil
		}
		_, elsewhere := errors.AsType[*elsewhereError](err) // our server says so, too, and ends
		silent, ok := errors.AsType[*fail.Error](err)
		slow := ok && silent.Code == codeSilent
		if !errors.Is(err, errNoServer) && !elsewhere && !slow && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case exit = <-ended:
			ended = nil
			gaveUp = time.After(loserLimit)
			server, fileErr := datafolder.Read(dir)
			if !datafolder.Locked(filepath.Join(dir, "lock")) || fileErr == nil && private.Elsewhere(server.Processes) {
				return exit // no other server will be ready soon
			}
		case <-gaveUp:
			return exit
		case <-tick.C:
		}
	}
}

// lockFile takes a lock that ends with the process, waiting for it until ctx ends.
func lockFile(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// openServeLog opens the log of servers that we start, which is only the user's.
func openServeLog(name string) (*os.File, error) {
	if info, err := os.Stat(name); err == nil && info.Size() > maxServeLog {
		if err := os.Rename(name, name+".1"); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the server's log: %w", err)
	}
	return f, f.Chmod(0o600)
}

// tailOf is the end of what a file has after an offset, for an error.
func tailOf(name string, from int64) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		from = max(from, info.Size()-logTail)
	}
	text := make([]byte, logTail)
	n, _ := f.ReadAt(text, from) // what could be read is better than nothing
	lines := strings.TrimSpace(string(text[:n]))
	if lines == "" {
		return " (it printed nothing)"
	}
	return "; it printed:\n    " + strings.ReplaceAll(lines, "\n", "\n    ")
}
