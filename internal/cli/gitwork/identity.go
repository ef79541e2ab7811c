package gitwork

import (
	"context"
	"os/exec"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// ErrNoIdentity says that git does not know who the person is.
var ErrNoIdentity = &fail.Error{Code: "no_identity"}

// Identity is the author that git would give a commit in dir; "" is the working
// directory. dir need not be in a repository. If the name or the address is not set,
// the error is ErrNoIdentity.
func Identity(ctx context.Context, dir string) (cove.Person, error) {
	exe, err := exec.LookPath("git")
	if err != nil {
		return cove.Person{}, &fail.Error{Code: ErrNoGit.Code, Message: "git is not installed", Hint: "install git"}
	}
	c, err := readConfig(ctx, runner{exe: exe, dir: dir})
	if err != nil {
		return cove.Person{}, err
	}
	p := cove.Person{Name: strings.TrimSpace(c.values["user.name"]), Email: strings.TrimSpace(c.values["user.email"])}
	if p.Name == "" || p.Email == "" {
		return cove.Person{}, &fail.Error{Code: ErrNoIdentity.Code, Message: "git does not know who you are",
			Hint: "git config --global user.name NAME, and user.email ADDRESS"}
	}
	return p, nil
}
