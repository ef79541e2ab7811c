// Package connect knows what a connector is: how its definition is written, what
// it becomes with its secrets, and which requests it lets through.
package connect

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-dev/cove"
)

// Upstream is a connector with its secrets: what a gateway is told. It is never
// written to disk.
type Upstream struct {
	URL string // http or https; may lead to the host itself

	// Header is set on every request, outside of the sandbox, in place of what
	// the sandbox sent under these names. If a credential is among them, no
	// credential of the sandbox's own is passed on, and no cookie comes back.
	Header http.Header

	Secrets []string // values that are redacted in answers, in whatever spelling
	Hidden  []string // texts that are redacted likewise; the secrets' usual forms, for gateways of earlier versions

	Methods, Paths, DenyPaths []string
	Limits                    Limits
	Prices                    []cove.ConnectorPrice
	Git                       bool // git in the sandbox goes through it

	Expires     time.Time `json:",omitzero"`  // from then on it serves no request; zero: never
	ExpiredHint string    `json:",omitempty"` // the command to type then

	Refused string // why it serves no request now; empty: it does
	Hint    string // of Refused
}

// Limits are those of a definition.
type Limits = cove.ConnectorLimits

// presets are the definitions that are known by name.
var presets = map[string]cove.Connector{
	"anthropic": {Upstream: "https://api.anthropic.com", Headers: map[string]string{"X-Api-Key": "{secret}"}},
	"openai":    {Upstream: "https://api.openai.com", Headers: map[string]string{"Authorization": "Bearer {secret}"}},
	"chatgpt": {
		Upstream: "https://chatgpt.com/backend-api/codex", Headers: map[string]string{"Authorization": "Bearer {secret}", "Chatgpt-Account-Id": "{account}"},
		Methods: []string{http.MethodPost}, Paths: []string{"/responses", "/responses/*"},
	},
	"gemini":     {Upstream: "https://generativelanguage.googleapis.com", Headers: map[string]string{"X-Goog-Api-Key": "{secret}"}},
	"github":     {Upstream: "https://github.com", Headers: map[string]string{"Authorization": "Basic {basic:x-access-token}"}, Git: true, Forge: cove.ConnectorForge{Kind: "github", API: "github-api"}},
	"github-api": {Upstream: "https://api.github.com", Headers: map[string]string{"Authorization": "Bearer {secret}"}, Secret: "github"},
}

// ForgeKinds are those of servers of repositories whose API is known.
var ForgeKinds = []string{"github", "gitlab", "gitea"}

// Presets are the names that are known.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// account stands in a header's value for the account of the login that the secret is.
const account = "{account}"

// Complete fills in the parts that a definition leaves out, if its name is known. These are
// the upstream, the headers, methods and paths (nil, not empty), and the secret's name.
func Complete(c cove.Connector) cove.Connector {
	if p, ok := presets[c.Name]; ok {
		c.Git = c.Git || p.Git
		if c.Forge == (cove.ConnectorForge{}) {
			c.Forge = p.Forge
		}
		if c.Upstream == "" {
			c.Upstream = p.Upstream
		}
		if c.Headers == nil {
			c.Headers = maps.Clone(p.Headers)
		}
		if c.Secret == "" {
			c.Secret = p.Secret
		}
		if c.Methods == nil {
			c.Methods = p.Methods
		}
		if c.Paths == nil {
			c.Paths = p.Paths
		}
	}
	headers := map[string]string{}
	for name, value := range c.Headers {
		headers[http.CanonicalHeaderKey(name)] = value
	}
	c.Headers = headers
	c.Methods = slices.Clone(c.Methods)
	for i, m := range c.Methods {
		c.Methods[i] = strings.ToUpper(m)
	}
	if c.Secret == "" && len(SecretsOf(c)) > 0 {
		c.Secret = c.Name
	}
	return c
}

var (
	namePattern   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`) })
	secretPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`) })
	headerPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$") })
	methodPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z]{1,20}$`) })
	placeholder   = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\{(secret)\}|\{secret:([^{}]*)\}|\{basic:([^{}:]+)\}`)
	})
)

// CheckName says what is wrong with a connector's name.
func CheckName(name string) error {
	if !namePattern().MatchString(name) {
		return fmt.Errorf("%.60q can't be a connector's name: it has lower-case letters, digits and hyphens, at most 40", name)
	}
	return nil
}

// notOurs are headers that are of the connection, or say where a request goes.
var notOurs = []string{"Connection", "Content-Length", "Host", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Accept-Encoding"}

// Bounds on a definition.
const (
	maxList = 100
	maxText = 4096
)

// Check says what is wrong with a definition that Complete has completed.
func Check(c cove.Connector) error {
	if err := CheckName(c.Name); err != nil {
		return err
	}
	if c.Secret != "" && !secretPattern().MatchString(c.Secret) {
		return fmt.Errorf("%.60q can't be a secret's name", c.Secret)
	}
	if c.Forge != (cove.ConnectorForge{}) {
		if err := CheckName(c.Forge.API); err != nil {
			return err
		}
		if !c.Git || !slices.Contains(ForgeKinds, c.Forge.Kind) {
			return fmt.Errorf("the forge %.40q is none of %s, or the connector is not for git", c.Forge.Kind, strings.Join(ForgeKinds, ", "))
		}
	}
	if len(c.Headers) > maxList || len(c.Methods) > maxList || len(c.Paths) > maxList || len(c.DenyPaths) > maxList {
		return fmt.Errorf("more than %d headers, methods or paths", maxList)
	}
	if l := c.Limits; l.Requests < 0 || l.RequestsPerMinute < 0 || l.BytesPerDay < 0 || l.TokensPerDay < 0 || !(l.USDPerDay >= 0 && l.USDPerDay <= maxPrice) {
		return errors.New("a limit can't be negative or too large; 0 means no limit")
	}
	if err := checkPrices(c); err != nil {
		return err
	}
	for name, value := range c.Headers {
		if err := checkHeader(name, value); err != nil {
			return err
		}
	}
	for _, m := range c.Methods {
		if !methodPattern().MatchString(m) {
			return fmt.Errorf("%.60q is not a method", m)
		}
	}
	for _, p := range slices.Concat(c.Paths, c.DenyPaths) {
		if len(p) > maxText || !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "*") || strings.ContainsFunc(p, control) {
			return fmt.Errorf("%.80q is not a pattern of paths: it must begin with / or *, and * stands for anything", p)
		}
	}
	return checkUpstream(c)
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

func checkHeader(name, value string) error {
	switch {
	case !headerPattern().MatchString(name):
		return fmt.Errorf("%.60q is not a header", name)
	case slices.Contains(notOurs, name):
		return fmt.Errorf("the header %s can't be set by a connector", name)
	case value == "" || len(value) > maxText || strings.ContainsFunc(value, control):
		return fmt.Errorf("the value of %s is empty, too long, or has control characters", name)
	case strings.ContainsAny(placeholder().ReplaceAllString(strings.ReplaceAll(value, account, ""), ""), "{}"):
		return fmt.Errorf("the value of %s has braces other than {secret}, {secret:NAME}, {basic:USER} and {account}", name)
	}
	for _, m := range placeholder().FindAllStringSubmatch(value, -1) {
		if m[1] == "" && m[3] == "" && !secretPattern().MatchString(m[2]) {
			return fmt.Errorf("the value of %s: %.60q can't be a secret's name", name, m[2])
		}
	}
	return nil
}

// checkUpstream wants a URL, and one over which no secret goes in the clear.
func checkUpstream(c cove.Connector) error {
	u, err := ParseURL(c.Upstream)
	switch {
	case c.Upstream == "":
		return fmt.Errorf("the upstream is missing: only %s are known by name", strings.Join(Presets(), ", "))
	case err != nil:
		return err
	case u.Scheme == "http" && len(SecretsOf(c)) > 0 && !loopback(u.Hostname()):
		return fmt.Errorf("a secret would go to %s in the clear; use https", u.Host)
	}
	return nil
}

// ParseURL reads an upstream's URL. Its errors do not repeat a password.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("the upstream is not the http or https URL of a host")
	case u.User != nil:
		return nil, errors.New("a secret in the upstream's URL is seen by all; use a header")
	}
	return u, nil
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// SecretsOf are the names of the secrets that a definition needs, each once.
func SecretsOf(c cove.Connector) []string {
	names := map[string]bool{}
	for _, value := range c.Headers {
		for _, m := range placeholder().FindAllStringSubmatch(value, -1) {
			names[m[2]] = true
		}
	}
	if names[""] {
		delete(names, "")
		names[c.Secret] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Unset are the names of the secrets that a definition needs and that are not set.
func Unset(c cove.Connector, set []cove.Secret) []string {
	return slices.DeleteFunc(SecretsOf(c), func(name string) bool {
		return slices.ContainsFunc(set, func(s cove.Secret) bool { return s.Name == name })
	})
}

// Value is a secret's value, and what goes with it if the secret is a login.
type Value struct {
	Text  string
	Login *cove.SecretLogin // nil: it is not a login
}

// ErrNoLogin says that a definition needs a login, and its secret is none.
var ErrNoLogin = errors.New("a header has {account}, but the secret is not a login")

// Resolve puts the secrets' values into a definition.
func Resolve(c cove.Connector, value func(name string) (Value, error)) (Upstream, error) {
	u := Upstream{URL: c.Upstream, Header: http.Header{}, Methods: c.Methods, Paths: c.Paths, DenyPaths: c.DenyPaths, Limits: c.Limits, Prices: c.Prices, Git: c.Git}
	values, of := map[string]string{}, ""
	for _, name := range SecretsOf(c) {
		v, err := value(name)
		if err != nil {
			return Upstream{}, err
		}
		values[name] = v.Text
		u.hide(v.Text)
		if l := v.Login; l != nil {
			u.expire(name, *l)
			if name == c.Secret {
				of = l.Account
			}
		}
	}
	for name, text := range c.Headers {
		if strings.Contains(text, account) && of == "" {
			return Upstream{}, ErrNoLogin
		}
		text = strings.ReplaceAll(text, account, of)
		u.Header.Set(name, placeholder().ReplaceAllStringFunc(text, func(p string) string {
			m := placeholder().FindStringSubmatch(p)
			switch {
			case m[1] != "":
				return values[c.Secret]
			case m[3] != "":
				pair := base64.StdEncoding.EncodeToString([]byte(m[3] + ":" + values[c.Secret]))
				u.hide(pair)
				return pair
			}
			return values[m[2]]
		}))
	}
	return u, nil
}

// expire has the upstream serve nobody once a login of its secrets has expired.
func (u *Upstream) expire(name string, l cove.SecretLogin) {
	if at := l.ExpiresAt; at != nil && (u.Expires.IsZero() || at.Before(u.Expires)) {
		u.Expires, u.ExpiredHint = *at, LoginHint(name, l)
	}
}

// LoginHint says how a login gets a new token.
func LoginHint(name string, l cove.SecretLogin) string {
	return fmt.Sprintf("use %s once where you have logged in, which renews its login, and then: cove secret set %s --from-login", l.Client, name)
}

// leastForm is the length from which a derived form of a value is redacted: a shorter
// one may well be something else.
const leastForm = 8

// hide makes the gateway redact a value: as it is, as JSON, URLs and HTML write it, and in
// lower and upper case. The gateway also finds it in hexadecimal, in UTF-16, and in base64
// (also of the URL's kind, and in the midst of something else). Other forms, such as a hash or the value backwards, are not
// found, and neither are pieces that the upstream cuts.
func (u *Upstream) hide(value string) {
	if value != "" && !slices.Contains(u.Secrets, value) {
		u.Secrets = append(u.Secrets, value)
	}
	quoted, _ := json.Marshal(value) // a string always can be
	for _, form := range []string{value, strings.Trim(string(quoted), `"`), url.QueryEscape(value), url.PathEscape(value), html.EscapeString(value)} {
		u.hideForm(form)
	}
	for _, form := range derived(value) {
		if len(form) >= leastForm {
			u.hideForm(form)
		}
	}
}

func (u *Upstream) hideForm(form string) {
	if form != "" && !slices.Contains(u.Hidden, form) {
		u.Hidden = append(u.Hidden, form)
	}
}

// derived are the forms of a value in which nothing of it can be seen.
func derived(value string) []string {
	code := hex.EncodeToString([]byte(value))
	all := []string{strings.ToLower(value), strings.ToUpper(value), code, strings.ToUpper(code)}
	wide := strings.Join(strings.Split(value, ""), "\x00") // of both byte orders
	all = append(all, wide)
	for before := range 3 { // bytes of something else, in the same group of three
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00", before) + value))
		first := (before*8 + 5) / 6
		last := (before + len(value)) * 8 / 6
		if text = text[first:last]; len(text) > 0 {
			all = append(all, text, strings.NewReplacer("+", "-", "/", "_").Replace(text))
		}
	}
	return all
}

// Allows says why a request is not let through, or nothing. The path has been
// unescaped once. An upstream may unescape it again, or take // and \ for /. The paths
// that come of this must be allowed, too.
func (u *Upstream) Allows(method, path string) string {
	if len(u.Methods) > 0 && !slices.Contains(u.Methods, method) {
		return "the method " + method + " is not allowed"
	}
	if len(u.Paths) == 0 && len(u.DenyPaths) == 0 {
		return ""
	}
	for range 3 {
		for _, p := range []string{path, plain(path)} {
			if len(u.Paths) > 0 && !slices.ContainsFunc(u.Paths, func(pattern string) bool { return Match(pattern, p) }) {
				return "the path is not allowed"
			}
			if u.denies(p) || u.denies(strings.TrimSuffix(p, "/")) {
				return "the path is denied"
			}
		}
		again := Unescape(path)
		if again == path {
			return ""
		}
		path = again
	}
	return "the path is escaped too often"
}

// Unescape is a path as a lenient server reads it: each %XX is a byte, and any other %
// stays.
func Unescape(path string) string {
	if !strings.Contains(path, "%") {
		return path
	}
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '%' && i+2 < len(path) {
			if c, err := strconv.ParseUint(path[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

// denies reports whether a path is denied, in whatever case.
func (u *Upstream) denies(path string) bool {
	path = strings.ToLower(path)
	return slices.ContainsFunc(u.DenyPaths, func(pattern string) bool { return Match(strings.ToLower(pattern), path) })
}

var (
	slashes    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[/\\]+`) })
	parameters = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`;[^/\\]*`) })
)

// plain is a path as it may be understood: without parameters of its parts, and
// with single slashes.
func plain(path string) string {
	return slashes().ReplaceAllString(parameters().ReplaceAllString(path, ""), "/")
}

// Match reports whether a path is of a pattern, in which * stands for anything.
func Match(pattern, path string) bool {
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(path, parts[0])
	if !ok || len(parts) == 1 {
		return ok && rest == ""
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, parts[last])
}
