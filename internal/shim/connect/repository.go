package connect

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/policy"
)

// repositoryPath has no sign that a server, or a pattern of paths, could take for something
// else than a name.
var repositoryPath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(/[A-Za-z0-9_~+@-][A-Za-z0-9._~+@-]*)+$`) })

// maxRepository bounds the URL of a repository.
const maxRepository = 1000

// CheckRepository says what is wrong with the URL of a repository that is to be cloned. Its
// errors do not repeat a password.
func CheckRepository(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxRepository || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("the repository is not an http or https URL, such as https://example.org/team/project.git")
	case strings.ContainsAny(u.Hostname(), "*%"):
		return errors.New("the host of the repository's URL has characters that no host name has")
	case u.User != nil:
		return errors.New("a secret in the repository's URL is seen by all; a connector adds it")
	case u.RawPath != "" || !repositoryPath().MatchString(u.Path):
		return errors.New("the path of the repository's URL has other characters than letters, digits and . _ ~ + @ -")
	}
	return nil
}

// InwardRepository says whether the URL of a repository names the machine itself that asks
// for it (own). If the URL has another address that the internet has not, it returns that
// in its canonical form. Such an address is of a private network, say, or of a cloud's
// metadata service. A name is not looked up.
func InwardRepository(repository string) (own bool, private netip.Addr) {
	u, err := url.Parse(repository)
	if err != nil {
		return false, netip.Addr{}
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return host == "localhost" || strings.HasSuffix(host, ".localhost"), netip.Addr{}
	}
	addr = policy.Canonical(addr)
	switch kind := policy.Range(addr); kind {
	case "":
		return false, netip.Addr{}
	case "loopback", "unspecified":
		return true, netip.Addr{}
	default:
		return false, addr
	}
}

// CheckGit says what is wrong with the repository that a grant is limited to.
func CheckGit(g cove.GitGrant) error {
	if len(g.Repository) > maxRepository || !repositoryPath().MatchString(g.Repository) {
		return fmt.Errorf("%.80q: not a repository path, such as /team/project.git", g.Repository)
	}
	return nil
}

// RepositoryOf is the path below a connector's upstream of the repository with the URL. It
// is not there if the connector is not for git, or leads elsewhere.
func RepositoryOf(c cove.Connector, repository string) (path string, ok bool) {
	if !c.Git || CheckRepository(repository) != nil {
		return "", false
	}
	u, err := ParseURL(c.Upstream)
	if err != nil {
		return "", false
	}
	r, err := url.Parse(repository)
	if err != nil || r.Scheme != u.Scheme || r.Host != u.Host { // git compares them so, too
		return "", false
	}
	path, ok = strings.CutPrefix(r.Path, strings.TrimSuffix(u.Path, "/"))
	return path, ok && strings.HasPrefix(path, "/")
}

// RepositoryConnector finds the connector that git reaches a repository through, and the
// repository's path there. If several lead to it, this is the one with the longest
// upstream. An empty name means that there is none.
func RepositoryConnector(all []cove.Connector, repository string) (name, path string) {
	longest := -1
	for _, c := range all {
		if at, ok := RepositoryOf(c, repository); ok && len(c.Upstream) > longest {
			name, path, longest = c.Name, at, len(c.Upstream)
		}
	}
	return name, path
}

// gitPaths are the paths that git asks for about one repository, by either of its names.
func gitPaths(g cove.GitGrant) (paths []string) {
	name := strings.TrimSuffix(g.Repository, ".git")
	for _, repo := range []string{name, name + ".git"} {
		paths = append(paths, repo+"/info/refs", repo+"/git-upload-pack")
		if g.Push {
			paths = append(paths, repo+"/git-receive-pack")
		}
	}
	return paths
}

// Limit leaves only those requests to an upstream that the grants allow a sprite. There
// must be at least one grant. A grant that is not limited to a repository allows all
// requests.
func (u *Upstream) Limit(grants []cove.ConnectorGrant) {
	var paths []string
	for _, g := range grants {
		if g.Git == (cove.GitGrant{}) {
			return
		}
		for _, p := range gitPaths(g.Git) {
			if len(u.Paths) == 0 || slices.ContainsFunc(u.Paths, func(pattern string) bool { return Match(pattern, p) }) {
				paths = append(paths, p)
			}
		}
	}
	u.Git = true
	if len(paths) == 0 && u.Refused == "" {
		u.Refused, u.Hint = "its paths exclude the repository that it is granted for", "on the host, see its paths: cove connector list"
	}
	u.Paths = paths
}
