package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove/internal/config"
)

// localBackend is the name of this machine's own server.
const localBackend = "local"

// tokenTime bounds a command that prints a token: it may ask a person.
const tokenTime = 2 * time.Minute

// backends reads the person's servers, and the name of the one in use. What a
// repository says has no part in it.
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
func (a *app) backend() (*config.BackendServer, error) {
	s, err := backends()
	if err != nil {
		return nil, err
	}
	name := a.global.backend
	if name == "" {
		name = s.Value(config.Backend).Text
	}
	if name == "" || name == localBackend {
		return nil, nil
	}
	b, ok := s.Backends[name]
	if !ok {
		return nil, &codedError{exitUsage, "no_backend", s.UnknownBackend(name), "name it in your own file; cove config show says where that is"}
	}
	return &b, nil
}

// backendToken is the token for a backend: that of --token, or else the backend's
// own. COVE_TOKEN is another server's.
func (a *app) backendToken(ctx context.Context, b *config.BackendServer) (string, error) {
	switch {
	case a.global.token != "":
		return a.global.token, nil
	case b.TokenFile != "":
		name, err := config.Expand(b.TokenFile)
		if err != nil {
			return "", err
		}
		token, err := readSmall(name)
		if err != nil {
			return "", &codedError{exitFailed, "no_token", fmt.Errorf("read the token of the backend %s: %w", b.Name, err), "is token_file right? cove config show"}
		}
		return token, nil
	case len(b.TokenCommand) > 0:
		return a.commandToken(ctx, b)
	}
	return "", nil
}

// commandToken has the backend's command print the token. It reads nothing: our
// input may be a command's in a sprite.
func (a *app) commandToken(ctx context.Context, b *config.BackendServer) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, tokenTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.TokenCommand[0], b.TokenCommand[1:]...)
	cmd.Stderr = a.Err
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	token := strings.TrimSpace(out.String())
	if err == nil && (token == "" || len(token) > maxSmallFile || strings.ContainsAny(token, "\n\x00")) {
		err = errors.New("it printed no token, on a line of its own")
	}
	if err != nil {
		return "", &codedError{exitFailed, "no_token", fmt.Errorf("the command for the token of the backend %s: %w", b.Name, err), "try it: " + strings.Join(b.TokenCommand, " ")}
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
