package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/cli/push"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/agents"
)

// codexLogin is the secret, and the connector, of the login of codex.
var codexLogin = agents.Codex{}.Login().Connector

// maxLogin bounds the file of a login.
const maxLogin = 1 << 20

// setFromLogin stores the token of a login of this machine.
func setFromLogin(ctx context.Context, inv *invocation, cmd *cobra.Command, name string) error {
	switch name {
	case codexLogin:
	case "anthropic", "claude":
		l := agents.Claude{}.Login()
		return hinted(fmt.Errorf("the login of Claude Code is not stored: %s", l.Refused), agents.SetUpInside("claude", l))
	case "openai", "codex":
		return hinted(usagef(cmd, "the login of codex is a secret of its own, beside the key %s", name), "cove secret set "+codexLogin+" --from-login")
	default:
		return hinted(usagef(cmd, "there is no login for a secret %s", name), "cove secret set "+codexLogin+" --from-login, after: codex login")
	}
	path, token, login, err := readCodexLogin()
	if err == nil && login.Expired(time.Now()) {
		err = hinted(fmt.Errorf("the token in %s has expired", path), "use codex once, which renews it, and then: cove secret set "+name+" --from-login")
	}
	if err != nil {
		return err // before a server is started for it
	}
	c, err := inv.server.client(ctx)
	if err != nil {
		return err
	}
	if err := cove.SetLogin(ctx, c, name, token, login); err != nil {
		return err
	}
	return inv.show(cove.Secret{Name: name, Login: &login}, func(io.Writer) {
		inv.say("Secret %s is set, from %s: the access token, %s.", name, printable.Line(path), until(login))
		inv.say("The refresh token stays there: codex alone renews the login. cove push --agent codex takes the new token from the file; so does this command.")
	})
}

func until(l cove.SecretLogin) string {
	if l.ExpiresAt == nil {
		return "which does not say when it expires"
	}
	return "good until " + l.ExpiresAt.Local().Format(time.RFC3339)
}

// loginText is a secret's login, for a table.
func loginText(s cove.Secret, now time.Time) string {
	switch l := s.Login; {
	case l == nil:
		return ""
	case l.Expired(now):
		return printable.Line(l.Client) + ", expired"
	default:
		return printable.Line(l.Client) + ", " + until(*l)
	}
}

// readCodexLogin reads the token of the login of codex, as that keeps it in a file
// (https://developers.openai.com/codex/auth). It does not look at the refresh token.
func readCodexLogin() (path, token string, login cove.SecretLogin, err error) {
	dir := os.Getenv("CODEX_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", "", login, err
		}
		dir = filepath.Join(home, ".codex")
	}
	path = filepath.Join(dir, "auth.json")
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return path, "", login, hinted(fmt.Errorf("codex has no login in %s", path),
			"codex login; if it keeps the login in a keychain, let it use the file: codex -c cli_auth_credentials_store=file login")
	}
	if err != nil {
		return path, "", login, err
	}
	defer f.Close()
	var auth struct {
		Key    string `json:"OPENAI_API_KEY"`
		Tokens struct {
			Access  string `json:"access_token"`
			Account string `json:"account_id"`
		} `json:"tokens"`
	}
	err = json.NewDecoder(io.LimitReader(f, maxLogin)).Decode(&auth)
	if _, syntax := errors.AsType[*json.SyntaxError](err); syntax || errors.Is(err, io.ErrUnexpectedEOF) {
		return path, "", login, hinted(fmt.Errorf("%s is not JSON", path), "codex login")
	}
	token = auth.Tokens.Access
	switch {
	case token == "" && auth.Key != "":
		return path, "", login, hinted(fmt.Errorf("codex has an API key in %s, but no login", path), "cove secret set openai")
	case err != nil || token == "" || auth.Tokens.Account == "":
		return path, "", login, hinted(fmt.Errorf("codex has no login with a ChatGPT account in %s", path), "codex login")
	}
	return path, token, cove.SecretLogin{Client: "codex", Account: auth.Tokens.Account, ExpiresAt: expiry(token)}, nil
}

// expiry is when a token expires that is a JWT; nil: it does not say. Whom it is from is not
// verified.
func expiry(token string) *time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Expires int64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Expires <= 0 {
		return nil
	}
	at := time.Unix(claims.Expires, 0).UTC()
	return &at
}

// notClaude refuses the token of a Claude subscription as the key that a connector adds.
func notClaude(name, value string) error {
	if name != "anthropic" || !strings.HasPrefix(value, "sk-ant-oat") {
		return nil
	}
	l := agents.Claude{}.Login()
	return hinted(fmt.Errorf("this is the token of a Claude subscription, not an API key: %s, so the connector does not add it", l.Refused), agents.SetUpInside("claude", l))
}

// renewLogin stores a newer token for the login that the server has, if a push may need it. The
// token must be of the same account, renewed by codex on this machine. After an error, the push
// goes on with the old one.
func renewLogin(ctx context.Context, inv *invocation, c *cove.Client, opts push.Options) {
	if opts.Agent != (agents.Codex{}).Name() && opts.Profile == "" || opts.Backend != "" || opts.Login == cove.LoginKey || opts.Login == cove.LoginInside {
		return
	}
	path, token, login, err := readCodexLogin()
	if err != nil || login.ExpiresAt == nil || login.Expired(time.Now()) {
		return
	}
	list, err := c.Secrets(ctx)
	if err != nil {
		return // a token without the verb admin
	}
	i := slices.IndexFunc(list, func(s cove.Secret) bool { return s.Name == codexLogin })
	if i < 0 {
		return
	}
	old := list[i].Login
	if old == nil || old.Client != login.Client || old.Account != login.Account || old.ExpiresAt == nil || !old.ExpiresAt.Before(*login.ExpiresAt) {
		return
	}
	if err := cove.SetLogin(ctx, c, codexLogin, token, login); err != nil {
		inv.say("The newer token in %s was not stored: %s", printable.Line(path), printable.Line(err.Error()))
		return
	}
	inv.say("Secret %s is renewed from %s, %s.", codexLogin, printable.Line(path), until(login))
}
