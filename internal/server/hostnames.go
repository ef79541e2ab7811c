package server

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// hostnames are the names of the server and of its sprites' URLs. Every request is for one of
// them, or is refused.
type hostnames struct {
	names  []string // of the server, besides loopback and the addresses that it is reached at
	domain string   // where sprites' URLs are
	public *url.URL // where a proxy takes requests for sprites' URLs, below its host; nil: no proxy is known
	bad    error    // of the domain
	port   string   // where the server listens; "": not known
	secret []byte   // the owner's token
	folder string   // the data folder: see private.FolderID
}

// pageName is the web page's own name, at loopback addresses, for the sessions of a token,
// which is given by its principal's name. A browser sends a page's cookie to every port of its
// name, and any program may listen at one (of a sprite, by cove proxy, or of another user). So
// nobody can guess the name, and each token has its own. It stays the same, as the tokens do.
// A copy of the data folder has another name, so that no browser sends the copy a cookie of
// the original.
func (h *hostnames) pageName(token string) string {
	mac := hmac.New(sha256.New, h.secret)
	_, _ = mac.Write([]byte("the name in " + h.folder + " of the web page of " + token)) // never fails
	return pagePrefix + strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil)[:pageBytes])) + ".localhost"
}

const (
	pagePrefix = "cove-"
	pageBytes  = 15 // of the hash; no padding is needed
)

// pageNames matches everything that pageName may return, so that no token has to be looked up
// for a name.
var pageNames = regexp.MustCompile(`^` + pagePrefix + `[a-z2-7]{24}\.localhost$`)

// plainName also leads to the web page, for people who type it; so does localhost.
const plainName = "cove.localhost"

// newHostnames returns the names of a server of a data folder that listens at an address, and whose owner has a
// token. An empty domain is localhost. See Server.Domain.
func newHostnames(names []string, domain string, listens net.Addr, token, folder string) *hostnames {
	h := &hostnames{names: names, domain: cmp.Or(domain, "localhost"), secret: []byte(token), folder: folder}
	if _, port, err := net.SplitHostPort(listens.String()); err == nil {
		h.port = port
	}
	if strings.Contains(domain, "://") {
		h.public, h.bad = publicURL(domain)
		h.domain = "localhost"
		if h.bad == nil {
			h.domain = h.public.Hostname()
		}
	}
	return h
}

// publicURL reads the URL of a domain.
func publicURL(text string) (*url.URL, error) {
	u, err := url.Parse(strings.ToLower(text))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.TrimSuffix(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q can't be the domain of sprites' URLs: give a name, such as sprites.example.org, or if a proxy with TLS is in front, https://sprites.example.org", text)
	}
	return u, nil
}

// check refuses a name of the server that would lead to a sprite.
func (h *hostnames) check() error {
	if h.bad != nil {
		return h.bad
	}
	for _, name := range h.names {
		if of, ok := h.spriteOf(name); ok {
			return fmt.Errorf("the server can't be called %s, which is the URL of sprite %s: choose another --name, or --domain", name, of)
		}
	}
	return nil
}

// spriteURL is where a sprite's HTTP service is reached, or "" without a port.
func (h *hostnames) spriteURL(name string) string {
	if h.port == "" {
		return ""
	}
	host := name + "." + h.domain
	if h.isPage(host) {
		return "" // a sprite of that name has no URL
	}
	if h.public != nil {
		return h.public.Scheme + "://" + name + "." + h.public.Host + "/"
	}
	if h.port != "80" {
		host = net.JoinHostPort(host, h.port)
	}
	return "http://" + host + "/"
}

// spriteOf returns the sprite whose URL has this Host, if one does.
func (h *hostnames) spriteOf(host string) (name string, ok bool) {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if h.isPage(host) {
		return "", false
	}
	for _, domain := range []string{h.domain, "localhost"} {
		if name, ok := strings.CutSuffix(host, "."+domain); ok && name != "" && !strings.Contains(name, ".") {
			return name, true
		}
	}
	return "", false
}

var crossOrigin = http.NewCrossOriginProtection()

// checkOrigin refuses what a web page of another site may have sent. That holds
// for every method: a WebSocket begins as a GET.
func (h *hostnames) checkOrigin(r *http.Request) error {
	if err := h.checkName(r); err != nil {
		return err
	}
	probe := *r
	probe.Method = http.MethodPost // the protection lets GET pass
	if err := crossOrigin.Check(&probe); err != nil {
		return fail.New("forbidden", "the request comes from another origin", "")
	}
	return nil
}

// checkName refuses a request for another host.
func (h *hostnames) checkName(r *http.Request) error {
	if h.known(r) {
		return nil
	}
	return fail.New("forbidden", "the server is not called "+quoteHost(r.Host), "if that name is the server's, start it with: cove serve --name "+nameOf(r.Host))
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

// known reports whether the request's Host is the server's: a name of loopback, the address
// that the request arrived at, or one of its names. A name that somebody's DNS leads here does
// not count.
func (h *hostnames) known(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), "."))
	if host == "localhost" || h.isPage(host) || host != "" && slices.Contains(h.names, host) {
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

// isPage reports whether a name is one of the web page's alone.
func (h *hostnames) isPage(name string) bool { return name == plainName || pageNames.MatchString(name) }

// pageOf is the Host where a token's sessions must open the web page, if others can get the
// cookies of the request's Host. Empty: the request's Host will do. others reports whether
// that is the page name of another token, or of nobody.
func (h *hostnames) pageOf(r *http.Request, token string) (host string, others bool) {
	name, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		name, port = r.Host, ""
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	own := h.pageName(token)
	others = name != own && pageNames.MatchString(name)
	ip, err := netip.ParseAddr(name)
	shared := !overTLS(r) && (name == "localhost" || name == plainName || err == nil && ip.Unmap().IsLoopback())
	switch {
	case !others && !shared:
		return "", false
	case port == "":
		return own, others
	}
	return net.JoinHostPort(own, port), others
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
