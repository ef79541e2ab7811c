package netrules

import (
	"cmp"
	"net"
	"net/url"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/shim/connect"
	"github.com/cove-dev/cove/sprites"
)

// Repository is the rule that opens the server of a repository that a sprite clones by its
// URL. It opens that name or address, and only its port. It is nil if there is nothing to
// open. It is also nil for an address of the server's own machine, or of a private network: a
// preview of the job warns of that.
func Repository(repository string) (*sprites.NetworkRule, error) {
	u, err := url.Parse(repository)
	if err != nil || u.Hostname() == "" {
		return nil, nil //nolint:nilerr // the server says what is wrong with it
	}
	if own, private := connect.InwardRepository(repository); own || private.IsValid() {
		return nil, nil
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	rule, err := Allow(net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return nil, fail.Newf("bad_request", "give a URL such as https://git.example.org/team/project.git", "no network rule can allow the server of the repository: %v", err)
	}
	return &rule, nil
}
