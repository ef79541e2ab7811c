package loop

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// An api is one kind of provider: how it is made, and its address, unless the environment has
// another.
type api struct {
	open    func(Access) (Provider, error)
	baseURL string
	urlVar  string   // the variable with another base URL
	keys    []string // variables with a key
	token   string   // the variable with a token, for where there is no key
}

var apis = map[string]api{
	"anthropic": {newAnthropic, "https://api.anthropic.com", "ANTHROPIC_BASE_URL", []string{"ANTHROPIC_API_KEY"}, "ANTHROPIC_AUTH_TOKEN"},
	"openai":    {newOpenAI, "https://api.openai.com/v1", "OPENAI_BASE_URL", []string{"OPENAI_API_KEY"}, ""},
	"gemini":    {newGemini, "https://generativelanguage.googleapis.com", "GOOGLE_GEMINI_BASE_URL", []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}, ""},
}

// Providers are the names of the providers, sorted.
func Providers() []string { return slices.Sorted(maps.Keys(apis)) }

// ParseModel takes PROVIDER/MODEL apart.
func ParseModel(text string) (provider, model string, err error) {
	provider, model, ok := strings.Cut(text, "/")
	if _, known := apis[provider]; !ok || !known || model == "" {
		return "", "", fmt.Errorf("%.80q is not a model: it must be PROVIDER/MODEL, with one of the providers %s", text, strings.Join(Providers(), ", "))
	}
	return provider, model, nil
}

// Open makes the provider of that name. The environment supplies what the access leaves out:
// the base URL, and a key, or a token if there is no key. Nothing else of the environment
// counts.
func Open(provider string, a Access, getenv func(string) string) (Provider, error) {
	p, ok := apis[provider]
	if !ok {
		return nil, fmt.Errorf("there is no provider %.40q; there are %s", provider, strings.Join(Providers(), ", "))
	}
	a.BaseURL = cmp.Or(a.BaseURL, getenv(p.urlVar), p.baseURL)
	if a.Key == "" && a.Token == "" {
		for _, name := range p.keys {
			a.Key = cmp.Or(a.Key, getenv(name))
		}
		if a.Key == "" && p.token != "" {
			a.Token = getenv(p.token)
		}
	}
	if a.Key == "" && a.Token == "" {
		return nil, fmt.Errorf("there is no key for %s: set %s", provider, p.keys[0])
	}
	if a.Key != "" {
		a.Token = "" // never both
	}
	return p.open(a)
}
