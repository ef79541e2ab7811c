package image

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// guard refuses redirects of a registry, or of its token server, to an address of this
// machine or its networks. If the registry is encrypted, guard also refuses redirects to an
// unencrypted URL. A registry must not choose what this machine reaches there. A registry
// that has such an address itself may redirect there. Names are not judged: a name may have
// another address the next time.
type guard struct {
	http.RoundTripper
	of  name.Registry
	all bool // all requests to other hosts are judged: a registry may say where a blob is sent without a redirect
}

func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Response != nil || g.all && req.URL.Host != g.of.RegistryStr() { // a redirect led here, or the registry named another host; the client stops after ten redirects
		if err := g.judge(req); err != nil {
			return nil, err
		}
	}
	return g.RoundTripper.RoundTrip(req)
}

func (g guard) judge(req *http.Request) error {
	host := g.of.RegistryStr()
	if req.URL.Scheme != "https" && g.of.Scheme() == "https" {
		return bad("the registry %s redirects to %.300q, which is not encrypted", host, req.URL.Host)
	}
	if req.URL.Host == host || !inward(req.URL.Hostname()) {
		return nil
	}
	if own, _, err := net.SplitHostPort(host); err == nil {
		host = own
	}
	if !inward(host) && !resolvesInward(req.Context(), host) {
		return bad("the registry %s redirects to %.300q, which is an address of this machine or its networks", host, req.URL.Host)
	}
	return nil
}

// inward reports whether a URL's host is written as an address that is not the internet's.
func inward(host string) bool {
	host, _, _ = strings.Cut(strings.Trim(host, "[]"), "%")
	if a, err := netip.ParseAddr(host); err == nil {
		return inwardAddr(a)
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	return last == "localhost" || last == "" || last[0] >= '0' && last[0] <= '9' // 127.1 and 0x7f000001 are addresses, too
}

func inwardAddr(a netip.Addr) bool {
	a = a.Unmap()
	return !a.IsGlobalUnicast() || a.IsPrivate()
}

// resolvesInward reports whether all addresses of a name are inward.
func resolvesInward(ctx context.Context, host string) bool {
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for _, a := range all {
		if !inwardAddr(a) {
			return false
		}
	}
	return err == nil && len(all) > 0
}
