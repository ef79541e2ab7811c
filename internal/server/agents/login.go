package agents

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// A Subscriber is an Agent that asks its model by a person's subscription, too. It is the
// provider's own program, run as it was published.
type Subscriber interface{ Login() Login }

// Login describes an agent's login.
type Login struct {
	// Connector adds the token outside the sprite, from the secret of the same name. Empty:
	// the provider's terms forbid that, and Refused says so.
	Connector string
	Refused   string

	// Variable has the token in a sprite. Token says how a person gets a token for unattended
	// work.
	Variable, Token string

	SignIn string // the command that signs a person in, in a sprite

	Hosts []string // at which the agent asks its model, and renews the login, if that is in the sprite
}

// Login is refused outside the sprite. To add the token there, cove would store and pass on
// the login of another program, which Anthropic's terms reserve to that program
// (code.claude.com/docs/en/legal-and-compliance, "Authentication and credential use").
func (Claude) Login() Login {
	return Login{
		Refused:  "Anthropic's terms do not let other programs collect, store or pass on the login of a Claude subscription",
		Variable: "CLAUDE_CODE_OAUTH_TOKEN", Token: "claude setup-token", SignIn: "claude",
		Hosts: []string{"api.anthropic.com", "platform.claude.com"},
	}
}

// Login is that of a ChatGPT subscription. OpenAI allows it for unattended work on one's own
// machines, but only Codex may renew it (developers.openai.com/codex/auth/ci-cd-auth).
func (Codex) Login() Login {
	return Login{
		Connector: "chatgpt",
		Variable:  "CODEX_ACCESS_TOKEN", Token: "an access token of the ChatGPT workspace", SignIn: "codex login --device-auth",
		Hosts: []string{"auth.openai.com", "chatgpt.com"},
	}
}

// LoginOf is how an agent asks its model, as far as a request says so: cove.LoginInside is
// implied by a variable with a login's token. Empty: it does not say.
func LoginOf(agent Agent, login string, env []string) string {
	s, ok := agent.(Subscriber)
	given := func(kv string) bool { return strings.HasPrefix(kv, s.Login().Variable+"=") }
	if ok && login == "" && slices.ContainsFunc(env, given) {
		return cove.LoginInside
	}
	return login
}

// CheckLogin refuses a login that an agent can't have. The hints of its errors are commands.
func CheckLogin(agent Agent, login string) error {
	s, ok := agent.(Subscriber)
	switch {
	case login == "" || login == cove.LoginKey:
		return nil
	case login != cove.LoginOutside && login != cove.LoginInside:
		return fail.Newf("bad_request", "write --login key, outside or inside", "there is no login %.40q", login)
	case !ok:
		return fail.Newf("no_login", "leave out --login, or use --agent claude or codex", "the agent %s needs a key for its model: providers let only their own programs use the login of a subscription", agent.Name())
	case login == cove.LoginOutside && s.Login().Connector == "":
		l := s.Login()
		return fail.New("no_login", fmt.Sprintf("the agent %s has no login outside of the sprite: %s", agent.Name(), l.Refused), SetUpInside(agent.Name(), l))
	}
	return nil
}

// SetUpInside says how an agent gets a login that is in the sprite.
func SetUpInside(agent string, l Login) string {
	return fmt.Sprintf("get a token (%s), store it: cove secret set %s-token, and give it to the agent: cove push --agent %s --env %s={secret:%s-token} plan.md", l.Token, agent, agent, l.Variable, agent)
}
