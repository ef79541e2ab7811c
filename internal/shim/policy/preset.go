package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The presets, which an Include names.
const (
	Open     = "open"     // every public name and address
	None     = "none"     // nothing
	Agent    = "agent"    // destinations that a coding agent needs
	Defaults = "defaults" // Agent, and the usual forges
)

// Presets are their names.
var Presets = []string{Open, None, Agent, Defaults}

// Machine has hosts of presets that depend on the machine, and that this package
// does not know.
type Machine struct {
	Registries []string // hosts of the package registries that clients here are configured for
}

// Preset returns the rules of a preset.
func Preset(name string, m Machine) ([]Rule, error) {
	switch name {
	case Open:
		return []Rule{
			{Domain: "*"},
			{Prefix: netip.PrefixFrom(netip.IPv4Unspecified(), 0)},
			{Prefix: netip.PrefixFrom(netip.IPv6Unspecified(), 0)},
		}, nil
	case None:
		return []Rule{{Domain: "*", Deny: true}}, nil
	case Agent:
		return m.allow(models)
	case Defaults:
		return m.allow(models, forges)
	}
	return nil, fmt.Errorf("there is no preset %q (there are: %s)", short(name), strings.Join(Presets, ", "))
}

// allow are rules for HTTP and HTTPS to hosts, and to those of the machine.
func (m Machine) allow(lists ...[]string) ([]Rule, error) {
	var out []Rule
	for _, host := range slices.Concat(append(lists, m.Registries)...) {
		r := Rule{Ports: []Ports{{80, 80}, {443, 443}}}
		prefix, ok, err := parsePrefix(host)
		if ok {
			r.Prefix = prefix
		} else {
			r.Domain, err = CanonicalPattern(host)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// models are the hosts that the known agents' model APIs, and their logins, are at.
var models = []string{
	"api.anthropic.com", "console.anthropic.com", "platform.claude.com", "claude.ai",
	"api.openai.com", "auth.openai.com", "chatgpt.com",
	"generativelanguage.googleapis.com", "aiplatform.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com", "accounts.google.com",
	"opencode.ai", "models.dev", "openrouter.ai", "api.mistral.ai", "api.groq.com", "api.x.ai", "api.deepseek.com",
}

// forges are the hosts of the usual places for git repositories.
var forges = []string{
	"github.com", "*.github.com", "*.githubusercontent.com",
	"gitlab.com", "*.gitlab.com",
	"bitbucket.org", "*.bitbucket.org",
	"codeberg.org", "git.sr.ht",
}
