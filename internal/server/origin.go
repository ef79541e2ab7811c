package server

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
)

var crossOrigin = http.NewCrossOriginProtection()

// checkOrigin refuses what a web page of another site may have sent. That holds
// for every method: a WebSocket begins as a GET.
func (s *Server) checkOrigin(r *http.Request) error {
	if !s.knownHost(r) {
		return fail.New("forbidden", "the server is not called "+quoteHost(r.Host), "if that name is the server's, start it with: cove serve --name "+nameOf(r.Host))
	}
	probe := *r
	probe.Method = http.MethodPost // the protection lets GET pass
	if err := crossOrigin.Check(&probe); err != nil {
		return fail.New("forbidden", "the request comes from another origin", "")
	}
	return nil
}

// nameOf is a request's Host without its port, if it is fit for a command line.
func nameOf(host string) string {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == ':')
	}) {
		return "NAME"
	}
	return name
}

// knownHost reports whether the server goes by the request's Host: a name of
// loopback, an address that the request has really arrived at, or one of Names.
// A name that somebody's DNS leads here does not count.
func (s *Server) knownHost(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), "."))
	if host == "localhost" || host != "" && slices.Contains(s.Names, host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if ip.Unmap().IsLoopback() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.AddrPort().Addr().Unmap().WithZone("") == ip.Unmap().WithZone("")
}

// quoteHost makes a Host fit for a message.
func quoteHost(host string) string {
	if len(host) > 100 {
		host = host[:100] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, host)
}
