package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/config"
	"github.com/cove-dev/cove/internal/lib/children"
	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

// localBackend is the name of this machine's own server.
const localBackend = "local"

// tokenTime bounds a command that prints a token: it may ask a person.
const tokenTime = 2 * time.Minute

// tokenWait is for the pipes, after the command has ended: what it has left may hold them.
const tokenWait = 10 * time.Second

// backends reads the person's servers, and the name of the one in use. It does not read
// a repository's settings.
func backends() (*config.Settings, error) {
	p := config.Places{Getenv: func(name string) string {
		if name == config.Variable(config.Backend) {
			return os.Getenv(name)
		}
		return ""
	}}
	p.Personal, p.Named = config.PersonalFile(os.Getenv)
	s, err := config.Load(p)
	return s, configError(err)
}

// backend is the server that --backend, COVE_BACKEND or the person's file names;
// nil: none of them does, or the name is local.
func (s *chosenServer) backend() (*config.BackendServer, error) {
	set, err := backends()
	if err != nil {
		return nil, err
	}
	name := s.global.backend
	if name == "" {
		name = set.Value(config.Backend).Text
	}
	if name == "" || name == localBackend {
		return nil, nil
	}
	b, ok := set.Backends[name]
	if !ok {
		return nil, fail.Wrap("no_backend", set.UnknownBackend(name), "name it in your own file; cove config show says where that is")
	}
	return &b, nil
}

// jobs returns a client of the server that keeps the jobs: the one in use, if it has jobs.
// If the one in use is a backend without jobs, it is this machine's own server. Then backend
// is that backend's name, and new jobs have their sprites there.
func (s *chosenServer) jobs(ctx context.Context) (c *cove.Client, backend string, err error) {
	r, err := s.remote()
	if err != nil {
		return nil, "", err
	}
	c, err = s.client(ctx)
	if r.backend == nil || err != nil {
		return c, "", err
	}
	if has, err := hasJobs(ctx, c); has || err != nil {
		return c, "", err
	}
	c, err = s.ownClient(ctx, "")
	return c, r.backend.Name, err
}

// hasJobs reports whether a server is one of cove's.
func hasJobs(ctx context.Context, c *cove.Client) (bool, error) {
	info, err := c.Version(ctx)
	if errors.Is(err, sprites.ErrNotFound) {
		return false, nil
	}
	return info.Version != "", err
}

// newJobs is jobs for a command that begins a job: it makes the backend known to the server.
func (s *chosenServer) newJobs(ctx context.Context) (c *cove.Client, backend string, err error) {
	c, backend, err = s.jobs(ctx)
	if err != nil || backend == "" {
		return c, backend, err
	}
	far, err := s.client(ctx)
	if err != nil {
		return nil, "", err
	}
	return c, backend, c.PutBackend(ctx, backend, cove.BackendRequest{URL: far.URL, Token: far.Token})
}

// tokenVariables are the variables that other clients of the protocol take a token from.
var tokenVariables = []string{"SPRITES_TOKEN", "SPRITE_TOKEN"}

// givenToken is the token in the first of tokenVariables that has one; empty: none has.
func givenToken() string {
	for _, name := range tokenVariables {
		if token := strings.TrimSpace(os.Getenv(name)); token != "" {
			return token
		}
	}
	return ""
}

// backendToken returns the token for a backend. Its sources, the first found: --token,
// SPRITES_TOKEN, the backend's settings in the person's file, and the token that the
// service's own client has kept. COVE_TOKEN is for another server.
func (s *chosenServer) backendToken(ctx context.Context, b *config.BackendServer) (string, error) {
	if token := givenToken(); token != "" && s.global.token == "" {
		return token, nil
	}
	switch {
	case s.global.token != "":
		return s.global.token, nil
	case b.TokenFile != "":
		name, err := config.Expand(b.TokenFile)
		if err != nil {
			return "", err
		}
		token, err := datafolder.ReadSmall(name)
		if err != nil {
			return "", fail.Wrap("no_token", fmt.Errorf("read the token of the backend %s: %w", b.Name, err), "is token_file right? cove config show")
		}
		return token, nil
	case len(b.TokenCommand) > 0:
		return s.commandToken(ctx, b)
	}
	return keptToken(b)
}

// ofBackend says how a backend that commands go to is given another token; empty: they go to none.
func (s *chosenServer) ofBackend() string {
	r, err := s.remote()
	if err != nil || r.backend == nil {
		return ""
	}
	name := r.backend.Name
	return "give a token that the backend " + name + " accepts: SPRITES_TOKEN=TOKEN cove list --backend " + name +
		"; or correct token_file or token_command below [backends." + name + "] in your file of settings: cove config show"
}

// keptToken is the token that the service's own client keeps, in its file
// ~/.sprites/sprites.json. It is read, never written.
func keptToken(b *config.BackendServer) (string, error) {
	hint := "set SPRITES_TOKEN, or token_file or token_command below [backends." + b.Name + "] in your file of settings (cove config show says where that is); a cove server makes one: cove token create NAME --all"
	none := fail.Newf("no_token", hint, "there is no token for the backend %s", b.Name)
	home, err := os.UserHomeDir()
	if err != nil {
		return "", none
	}
	text, err := datafolder.ReadSmall(filepath.Join(home, ".sprites", "sprites.json"))
	if err != nil {
		return "", none
	}
	var doc struct {
		Current struct{ Org string } `json:"current_selection"`
		URLs    map[string]struct {
			Orgs map[string]struct {
				Token    string `json:"token"`
				APIToken string `json:"api_token"`
			} `json:"orgs"`
		} `json:"urls"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		return "", none
	}
	for url, at := range doc.URLs {
		if strings.TrimRight(url, "/") != b.URL {
			continue
		}
		org, ok := at.Orgs[doc.Current.Org]
		if !ok && len(at.Orgs) == 1 {
			for _, org = range at.Orgs {
			}
		}
		if token := cmp.Or(org.Token, org.APIToken); token != "" {
			return token, nil
		}
	}
	return "", none
}

// commandToken has the backend's command print the token. It reads nothing: our
// maxToken is the most bytes of a token that a command prints.
const maxToken = 64 << 10

// input may be a command's in a sprite.
func (s *chosenServer) commandToken(ctx context.Context, b *config.BackendServer) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.TokenCommand[0], b.TokenCommand[1:]...)
	cmd.Stderr = s.out.Err
	cmd.WaitDelay = tokenWait
	var out bytes.Buffer
	cmd.Stdout = &out
	err := children.Run(cmd)
	token := strings.TrimSpace(out.String())
	if err == nil && (token == "" || len(token) > maxToken || strings.ContainsAny(token, "\n\x00")) {
		err = errors.New("it did not print one line with a token")
	}
	if err != nil {
		return "", fail.Wrap("no_token", fmt.Errorf("the command for the token of the backend %s: %w", b.Name, err), "try it: "+strings.Join(b.TokenCommand, " "))
	}
	return token, nil
}

func completeBackend(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := []string{localBackend + "\tthis machine's server"}
	if s, err := backends(); err == nil {
		for name, b := range s.Backends {
			names = append(names, name+"\t"+b.URL)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
