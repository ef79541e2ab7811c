package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/internal/shim/gateway"
)

// A guestDialer opens connections to the API of the guest behind a gateway.
type guestDialer struct {
	gw    *gateway.Gateway
	state func() State // of the sandbox: the guest's key, and whether it knows the handshake

	restored bool // a sandbox that was restored may be silent for a fault
}

// dial returns a connection whose other end has proved that it is the guest, and which
// the guest takes for this shim's. If an earlier cove started the guest, dial returns
// any connection to its port, and each request must be authorized.
func (d guestDialer) dial(ctx context.Context) (*gateway.Conn, error) {
	conn, err := d.gw.Dial(ctx, boot.Port)
	if err != nil {
		return nil, err
	}
	return d.greet(ctx, conn)
}

// tryFor is dial, with a limit for the connection alone. A packet that is sent before
// the sandbox has its interface is lost, but another try may arrive.
func (d guestDialer) tryFor(ctx context.Context, limit time.Duration) (*gateway.Conn, error) {
	trying, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if d.restored && fault.Holds(fault.GuestSilent) {
		<-trying.Done()
		return nil, trying.Err()
	}
	conn, err := d.gw.Dial(trying, boot.Port)
	if err != nil {
		return nil, err
	}
	return d.greet(ctx, conn)
}

// greet is the handshake, if the guest has one. After an error conn is closed.
func (d guestDialer) greet(ctx context.Context, conn *gateway.Conn) (*gateway.Conn, error) {
	st := d.state()
	if st.Handshake == 0 {
		return conn, nil
	}
	if err := boot.GreetWithin(ctx.Done(), conn, st.Token); err != nil {
		_ = conn.Close()
		if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
			err = fmt.Errorf("the guest has not answered for %v", boot.HandshakeLimit)
		}
		return nil, cmp.Or(ctx.Err(), err)
	}
	return conn, nil
}

// authorize adds the token to a request of a guest that knows no handshake.
func (d guestDialer) authorize(req *http.Request) {
	if st := d.state(); st.Handshake == 0 {
		req.Header.Set("Authorization", "Bearer "+st.Token)
	}
}

// maxHeader bounds the headers of what a guest answers, in bytes.
const maxHeader = 16 << 10

// A guestClient calls the guest behind a gateway. Each call has its own connection: a
// kept connection may be older than a checkpoint.
type guestClient struct {
	http  http.Client
	guest guestDialer
}

func newGuestClient(guest guestDialer) *guestClient {
	return &guestClient{guest: guest, http: http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:      true,
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return guest.dial(ctx) },
			MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// call makes a call. read gets what the guest answers, which is hostile.
func (g *guestClient) call(ctx context.Context, method, path string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+path, nil)
	if err != nil {
		return err
	}
	g.guest.authorize(req)
	resp, err := g.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("the guest answered %s", resp.Status)
	}
	return read(resp.Body)
}

// answered decodes a guest's answer, at most most bytes. The answer may be hostile.
func answered[T any](r io.Reader, most int64) (answer T, err error) {
	if err := json.NewDecoder(io.LimitReader(r, most)).Decode(&answer); err != nil {
		return answer, fmt.Errorf("read the guest's answer: %w", err)
	}
	return answer, nil
}

// process checks a process that a guest names, and makes its name fit to be shown.
func process(pid int, said string) (name string, err error) {
	name = processName(said)
	if pid < 1 || pid > maxPID || name == "" {
		return "", errors.New("the guest names no process")
	}
	return name, nil
}

// patience is how long a guest that was restored may take to answer.
func (cfg Config) patience() time.Duration { return cmp.Or(cfg.Patience, BootTimeout) }

// bootConfig is what the guest is told. copied says that the guest goes on from a
// memory that has copies.
func (cfg Config) bootConfig(copied bool) boot.Config {
	return boot.Config{
		Token:       cfg.Token,
		Listen:      net.JoinHostPort("0.0.0.0", fmt.Sprint(boot.Port)), // its address changes when it wakes
		Hostname:    cfg.Hostname,
		MachineID:   cfg.MachineID,
		Incarnation: cfg.Incarnation,
		Copied:      copied,
		Env:         cfg.Env,
		Defaults:    cfg.Defaults,
		CPUs:        cfg.CPUs,
		PidsMax:     cfg.Tasks,

		NetworkPolicy: cfg.NetworkPolicy,
		GitConfig:     connect.GitConfig(cfg.Connectors),
	}
}

// askToStop has the guest end its processes, and then itself.
func askToStop(ctx context.Context, guest guestDialer, grace time.Duration) error {
	return newGuestClient(guest).call(ctx, http.MethodPost, "/v1/stop?grace="+grace.String(), func(io.Reader) error { return nil })
}
