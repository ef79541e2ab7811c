package gitwork

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Remote is where a repository's remote is reached.
type Remote struct {
	Host string // a name, in small letters
	Port int
}

// maxRemotes bounds the remotes that are looked at.
const maxRemotes = 100

// Remotes lists the hosts and ports where plain git would reach the repository's remotes,
// each once. It leaves out remotes that are folders, or have an address and no name.
func (r *Repo) Remotes(ctx context.Context) ([]Remote, error) {
	g := runner{exe: r.git.exe, dir: r.Dir}
	out, err := g.run(ctx, call{args: []string{"remote", "-v"}, plain: true})
	if err != nil {
		return nil, fmt.Errorf("list the remotes: %w", err)
	}
	var all []Remote
	for line := range strings.Lines(string(out)) { // NAME TAB URL (fetch)
		_, rest, _ := strings.Cut(strings.TrimSpace(line), "\t")
		end := strings.LastIndex(rest, " (")
		if end < 0 || len(all) == maxRemotes {
			continue
		}
		if remote, ok := ParseRemote(rest[:end]); ok && !slices.Contains(all, remote) {
			all = append(all, remote)
		}
	}
	slices.SortFunc(all, func(a, b Remote) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port)) })
	return all, nil
}

// usualPorts are those of the protocols that reach other machines.
var usualPorts = map[string]int{"https": 443, "http": 80, "ssh": 22, "git+ssh": 22, "ssh+git": 22, "git": 9418}

// hostName is a name that can't be taken for an address.
var hostName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
})

// ParseRemote reads a remote's URL, or [USER@]HOST:PATH.
func ParseRemote(text string) (Remote, bool) {
	var host, port string
	scheme := "ssh"
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		scheme, host, port = u.Scheme, u.Hostname(), u.Port()
	} else if before, path, ok := strings.Cut(text, ":"); ok && !strings.Contains(before, "/") && !strings.HasPrefix(path, "//") && !strings.HasPrefix(path, ":") {
		host = before[strings.LastIndexByte(before, '@')+1:]
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if len(host) > 253 || !hostName().MatchString(host) || usualPorts[scheme] == 0 {
		return Remote{}, false
	}
	n := usualPorts[scheme]
	if port != "" {
		var err error
		if n, err = strconv.Atoi(port); err != nil || n < 1 || n >= 1<<16 {
			return Remote{}, false
		}
	}
	return Remote{Host: host, Port: n}, true
}
