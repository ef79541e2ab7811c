package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

func newProxyCommand(inv *invocation) *cobra.Command {
	var stdio string
	cmd := &cobra.Command{
		Use:   "proxy [LOCAL:]REMOTE...",
		Short: "Reach ports in a sprite from this machine",
		Long: `Listens on 127.0.0.1, and joins each connection to a port in the sprite, as seen from inside.
Loopback-only ports are reached, too. Without LOCAL, the port here has the same number. If LOCAL
is 0, proxy takes any free port. It goes on until Ctrl-C.

REMOTE may also be the absolute path of a Unix socket in the sprite. LOCAL may also be a path
(with a slash in it), at which proxy makes a socket.

If nothing listens on a port in the sprite, only that connection is closed.

With -W, standard input and output are the connection, as for a ProxyCommand of SSH.`,
		Example: `  cove proxy -s paint 3000                  http://127.0.0.1:3000 is port 3000 of paint
  cove proxy 3001:3000 0:5432               in the sprite that cove use noted
  cove proxy --json 0:8080                  prints the port that it took
  cove proxy ./pg.sock:/run/postgresql/.s.PGSQL.5432
  ssh -o 'ProxyCommand=cove proxy -s paint -W 22' sprite@paint
  echo ping | cove proxy -W :7000`,
		ValidArgsFunction: completePort(inv),
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case stdio != "" && len(args) > 0:
			return usagef(cmd, "-W makes one connection; %q is one argument too many", args[0])
		case stdio != "" && inv.global.json:
			return usagef(cmd, "-W prints what comes from the port; there is no --json")
		case stdio == "" && len(args) == 0:
			return usagef(cmd, "which port?")
		}
		return nil
	}
	cmd.RunE = verb(func(ctx context.Context, args []string) error {
		if stdio != "" {
			to, err := parseTarget(stdio)
			if err != nil {
				return usagef(cmd, "%w", err)
			}
			return proxyStdio(ctx, inv, to)
		}
		routes, err := parseRoutes(args)
		if err != nil {
			return usagef(cmd, "%w", err)
		}
		return runProxy(ctx, inv, routes)
	})
	cmd.Flags().StringVarP(&stdio, "stdio", "W", "", "join this input and output to `[HOST:]PORT`, or to a socket's path")
	must(cmd.RegisterFlagCompletionFunc("stdio", completePort(inv)))
	return cmd
}

// route is a port or a socket of this machine that leads to one in a sprite.
type route struct {
	Local        int    `json:"local,omitempty"` // 0: a socket; before it is open, also any port
	Address      string `json:"address"`         // of the listener
	Remote       int    `json:"remote,omitempty"`
	RemoteSocket string `json:"remote_socket,omitempty"` // instead of Remote
	localSocket  string // instead of Local
}

// target is where the route leads.
func (r route) target() target { return target{port: r.Remote, socket: r.RemoteSocket} }

// parseRoutes reads arguments of the form [LOCAL:]REMOTE.
func parseRoutes(args []string) ([]route, error) {
	var routes []route
	taken := map[string]bool{}
	for _, arg := range args {
		r, err := parseRoute(arg)
		if err != nil {
			return nil, fmt.Errorf("%q is not [LOCAL:]REMOTE, such as 3000 or 3001:3000", arg)
		}
		at := r.localSocket
		if r.Local != 0 {
			at = "port " + strconv.Itoa(r.Local)
		}
		if at != "" && taken[at] {
			return nil, fmt.Errorf("%s of this machine is given twice", at)
		}
		taken[at] = true
		routes = append(routes, r)
	}
	return routes, nil
}

func parseRoute(arg string) (r route, err error) {
	local, remote, two := strings.Cut(arg, ":")
	if !two {
		remote = local
	}
	if strings.HasPrefix(remote, "/") {
		r.RemoteSocket = remote
	} else if r.Remote, err = parsePort(remote); err != nil {
		return r, err
	}
	switch {
	case !two:
		r.Local = r.Remote
	case strings.Contains(local, "/"):
		r.localSocket = local
	case local != "0":
		r.Local, err = parsePort(local)
	}
	return r, err
}

func parsePort(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port", text)
	}
	return int(n), nil
}

// target is the end of a connection, as seen from inside a sprite.
type target struct {
	host   string // "": the sprite itself
	port   int
	socket string // a Unix socket's path, instead of the two
}

func (t target) String() string {
	if t.socket != "" {
		return t.socket
	}
	return t.host + ":" + strconv.Itoa(t.port)
}

func (t target) dial(ctx context.Context, sprite *sprites.Sprite) (*sprites.Conn, error) {
	dial := func() (net.Conn, error) { return sprite.Dial(ctx, t.host, t.port) }
	if t.socket != "" {
		dial = func() (net.Conn, error) { return sprite.DialUnix(ctx, t.socket) }
	}
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	return conn.(*sprites.Conn), nil
}

// parseTarget reads [HOST:]PORT, or the absolute path of a socket.
func parseTarget(text string) (t target, err error) {
	if strings.HasPrefix(text, "/") {
		return target{socket: text}, nil
	}
	number := text
	if strings.Contains(text, ":") {
		if t.host, number, err = net.SplitHostPort(text); err != nil {
			return t, fmt.Errorf("%q is not [HOST:]PORT, such as 22 or db.example:5432", text)
		}
	}
	if t.port, err = parsePort(number); err != nil {
		return t, fmt.Errorf("%q is not [HOST:]PORT: %w", text, err)
	}
	return t, nil
}

// proxied is what proxy says with --json.
type proxied struct {
	Sprite    string  `json:"sprite"`
	Listeners []route `json:"listeners"`
}

// runProxy serves the routes until ctx ends, which is how it is meant to end.
func runProxy(ctx context.Context, inv *invocation, routes []route) error {
	if _, err := inv.sprite.name(ctx); err != nil {
		return err
	}
	var forwards []*forward
	defer func() {
		for _, f := range forwards {
			_ = f.listener.Close()
		}
	}()
	for i := range routes {
		l, err := listen(routes[i])
		if err != nil {
			return err
		}
		routes[i].Address = l.Addr().String()
		if addr, ok := l.Addr().(*net.TCPAddr); ok {
			routes[i].Local = addr.Port
		}
		forwards = append(forwards, &forward{inv: inv, listener: l, route: routes[i]})
	}
	sprite, err := inv.spriteHandle(ctx)
	if err != nil {
		return err
	}
	// A token may do without the verb for this question.
	if _, err := sprite.Client().Get(ctx, sprite.Name()); err != nil && !errors.Is(err, sprites.ErrForbidden) {
		return spriteError(err)
	}
	if err := sprites.MayDial(ctx, sprite); err != nil {
		return err // each connection would fail
	}
	err = inv.show(proxied{sprite.Name(), routes}, func(w io.Writer) {
		for _, r := range routes {
			to := r.target()
			fmt.Fprintf(w, "%s -> %s:%s\n", r.Address, sprite.Name(), strings.TrimPrefix(to.String(), ":"))
		}
	})
	if err != nil {
		return err
	}
	return serveForwards(ctx, forwards, sprite)
}

// serveForwards serves forwards until ctx ends or one of them fails. It returns once all
// connections are closed.
func serveForwards(ctx context.Context, forwards []*forward, sprite *sprites.Sprite) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(forwards))
	var wg sync.WaitGroup
	for i, f := range forwards {
		f.sprite = sprite
		wg.Go(func() {
			errs[i] = f.serve(ctx)
			cancel()
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// listen opens a route's port, or makes its socket, on this machine.
func listen(r route) (net.Listener, error) {
	if r.localSocket != "" {
		before := unix.Umask(0o177) // others may not connect, not even before a chmod
		l, err := net.Listen("unix", r.localSocket)
		unix.Umask(before)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fail.Newf("socket_taken", "take another path, or remove it if nothing listens there", "%s is there already", r.localSocket)
		}
		return l, err
	}
	l, err := net.Listen("tcp", localAddr(r.Local))
	var text string
	from := r.Local + 1
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		text = "is in use on this machine"
	case errors.Is(err, syscall.EACCES):
		text, from = "needs rights that you do not have", 8000+r.Local
	default:
		return nil, fmt.Errorf("listen on port %d: %w", r.Local, err)
	}
	return nil, fail.Newf("port_taken", fmt.Sprintf("take another one: cove proxy %d:%s", freePort(from), strings.TrimPrefix(r.target().String(), ":")), "port %d %s", r.Local, text)
}

func localAddr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePort is a port that is free now, from a number on if there is one near; 0,
// which takes any, if there is none.
func freePort(from int) int {
	for port := from; port < from+20 && port <= 65535; port++ {
		if l, err := net.Listen("tcp", localAddr(port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	return 0
}

// forward is one listener.
type forward struct {
	inv      *invocation
	listener net.Listener
	route    route

	mu     sync.Mutex
	sprite *sprites.Sprite // of the server that was there last
	told   bool            // that the sprite refuses, since it last did not
}

// acceptPause is how long to wait when this process has no room for a connection.
const acceptPause = 200 * time.Millisecond

// serve accepts until ctx ends, and waits for the connections.
func (f *forward) serve(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { _ = f.listener.Close() })
	defer stop()
	for {
		conn, err := f.listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ECONNABORTED):
			f.remark(err)
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		case err != nil:
			return fmt.Errorf("accept on %s: %w", f.route.Address, err)
		}
		wg.Go(func() { f.connect(ctx, conn.(halfConn)) })
	}
}

// connect joins an accepted connection to the sprite's port. One that it refuses
// is reset, which a client can tell from an empty answer.
func (f *forward) connect(ctx context.Context, local halfConn) {
	remote, err := f.dial(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.remark(err)
		}
		if tcp, ok := local.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // otherwise it ends with a FIN
		}
		_ = local.Close()
		return
	}
	f.mu.Lock()
	f.told = false
	f.mu.Unlock()
	join(ctx, local, remote)
}

// dial connects to the sprite's port. If the server is gone, it uses the next one.
func (f *forward) dial(ctx context.Context) (*sprites.Conn, error) {
	f.mu.Lock()
	sprite := f.sprite
	f.mu.Unlock()
	conn, err := f.route.target().dial(ctx, sprite)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return conn, err
	}
	c, lost := f.inv.server.clientAgain(ctx)
	if lost != nil {
		return nil, lost
	}
	if c.URL == sprite.Client().URL {
		return nil, err
	}
	sprite = c.Sprite(sprite.Name())
	f.mu.Lock()
	f.sprite = sprite
	f.mu.Unlock()
	return f.route.target().dial(ctx, sprite)
}

// remark tells the person of a failure, once until something succeeds: a browser
// would otherwise fill the screen.
func (f *forward) remark(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.told {
		f.inv.say("cove: %s: %v", f.route.Address, err)
	}
	f.told = true
}

// halfConn is a connection whose directions can be closed separately.
type halfConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// join moves data between two connections until both directions have ended, one fails, or
// ctx ends. Then it closes both connections.
func join(ctx context.Context, a, b halfConn) {
	both := func() {
		_ = a.Close()
		_ = b.Close()
	}
	defer both()
	stop := context.AfterFunc(ctx, both)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { pass(a, b, both) })
	wg.Go(func() { pass(b, a, both) })
	wg.Wait()
}

// pass moves the data of one direction, and passes on its end. If it can't, as with a server
// that has no half-close, it calls fail, and everything ends.
func pass(dst, src halfConn, fail func()) {
	_, err := io.Copy(dst, src)
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil {
		fail()
	}
}

// proxyStdio joins the streams of this process to a port or a socket. It passes on the end of
// the input. It returns when the port's output ends.
func proxyStdio(ctx context.Context, inv *invocation, to target) error {
	sprite, err := inv.spriteHandle(ctx)
	if err != nil {
		return err
	}
	remote, err := to.dial(ctx, sprite)
	if err != nil {
		return spriteError(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = remote.Close() })
	defer stop()
	// It may wait in a read of the input for ever: nobody waits for it.
	input := make(chan error, 1)
	go func() {
		_, err := io.Copy(remote, inv.In)
		if err == nil {
			err = remote.CloseWrite()
		}
		if err != nil {
			_ = remote.Close()
		}
		input <- err
	}()
	_, err = io.Copy(inv.Out, remote)
	_ = remote.Close() // it has ended, or is of no more use
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, net.ErrClosed) { // the sender of the input has closed it
		err = <-input
	}
	if err == nil || errors.Is(err, errors.ErrUnsupported) { // its end was the end
		return nil
	}
	return fmt.Errorf("the connection to %s in %s: %w", strings.TrimPrefix(to.String(), ":"), sprite.Name(), err)
}
