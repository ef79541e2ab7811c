package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/children"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// ghToken asks gh, GitHub's own program, for the token of the person's login at a
// connector's upstream.
func ghToken(ctx context.Context, def cove.Connector) (string, error) {
	host := "github.com"
	if u, err := url.Parse(def.Upstream); err == nil && u.Hostname() != "" && u.Hostname() != "api.github.com" {
		host = u.Hostname()
	}
	gh, err := exec.LookPath("gh")
	if err != nil {
		return "", hinted(errors.New("gh is not installed"), "install it and log in (gh auth login), or store a token yourself: cove secret set "+cmp.Or(def.Secret, def.Name))
	}
	cmd := exec.CommandContext(ctx, gh, "auth", "token", "--hostname", host)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := children.Output(cmd)
	if children.Interrupted(err) {
		return "", err
	}
	token := strings.TrimSpace(string(out))
	if err == nil && token == "" {
		err = errors.New("it printed nothing")
	}
	if err != nil {
		why := cmp.Or(printable.Line(strings.TrimSpace(stderr.String())), err.Error())
		return "", hinted(fmt.Errorf("gh has no token for %s: %s", host, why), "log in: gh auth login --hostname "+host)
	}
	return token, nil
}
