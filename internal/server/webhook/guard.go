package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// errInward says that an address is not for a webhook that does not say so.
var errInward = errors.New("only a webhook that is private may lead there")

// metadata is how the package policy calls the addresses of a cloud's metadata service.
const metadata = "metadata"

// CheckURL says what is wrong with the URL of a webhook. It does not look up the name in it:
// an address is checked when it is dialled.
func CheckURL(hook cove.Webhook) error {
	u, err := url.Parse(hook.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Fragment != "":
		return errors.New("the url is not the http or https URL of a host")
	case u.User != nil:
		return errors.New("a password in the url is seen by all who list webhooks; use the signature")
	case u.Scheme == "http" && !hook.Private:
		return errors.New("over http, anybody on the way can read and change events; use https, or say that the webhook is private")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return judgeAddress(addr, hook.Private, true)
	}
	if name := strings.ToLower(u.Hostname()); !hook.Private && (name == "localhost" || strings.HasSuffix(name, ".localhost")) {
		return fmt.Errorf("%s is this machine: %w", name, errInward)
	}
	return nil
}

// judgeAddress refuses addresses that are not public, unless the webhook is private. The address
// of a metadata service must also be in the URL itself (literal).
func judgeAddress(addr netip.Addr, private, literal bool) error {
	d := policy.Policy{}.Reach(netip.AddrPortFrom(addr, 443), policy.TCP, nil)
	switch {
	case d.Allow:
		return nil
	case !private:
		return fmt.Errorf("%s is not public (%s): %w", addr, d.Rule, errInward)
	case d.Rule == metadata && !literal:
		return fmt.Errorf("%s is a metadata service, which is allowed only if the address is in the url itself", addr)
	}
	return nil
}

// guarded has the transports of webhooks. No connection serves two kinds.
type guarded struct{ public, private *http.Transport }

func newGuarded() *guarded {
	return &guarded{public: newTransport(false), private: newTransport(true)}
}

func (g *guarded) of(hook cove.Webhook) http.RoundTripper {
	if hook.Private {
		return g.private
	}
	return g.public
}

// newTransport makes a transport that judges each address that it dials. It uses no proxy,
// which would look names up by itself.
func newTransport(private bool) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			_, err = netip.ParseAddr(host)
			literal := err == nil
			dialer := &net.Dialer{ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
				to, err := netip.ParseAddrPort(address)
				if err != nil {
					return err
				}
				return judgeAddress(to.Addr(), private, literal)
			}}
			return dialer.DialContext(ctx, network, address)
		},
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns:        16,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}
}

// CheckEvents says what is wrong with the types that a webhook asks for.
func CheckEvents(events []string) error {
	if len(events) == 0 {
		return errors.New("it asks for no events")
	}
	for i, e := range events {
		switch {
		case e == "*" && len(events) > 1:
			return errors.New(`"*" stands for all events: give no other event with it`)
		case e != "*" && !slices.Contains(cove.WebhookEvents, e):
			return fmt.Errorf("unknown event %.60q", e)
		case slices.Contains(events[:i], e):
			return fmt.Errorf("the event %s is given twice", e)
		}
	}
	return nil
}
