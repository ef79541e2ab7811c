package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/sprites"
)

// runLine runs a command line to its end; the token is the owner's if it is empty.
func runLine(t *testing.T, s *covetest.Server, token string, args ...string) (code int, out, errs string) {
	t.Helper()
	if token == "" {
		token = s.Token
	}
	var stdout, stderr bytes.Buffer
	code = Main(t.Context(), append([]string{"--url", s.URL, "--token", token}, args...), Streams{In: strings.NewReader(""), Out: &stdout, Err: &stderr})
	return code, stdout.String(), stderr.String()
}

// TestDenyNamesRegistries: a wider rule that denies a registry of the server's machine is told
// that a preset still allows it, and by which name; a token without admin learns no name.
func TestDenyNamesRegistries(t *testing.T) {
	s := covetest.Start(t, covetest.Options{Host: &sprite.Host{Registries: func(context.Context) []string { return []string{"registry.example.org", "192.0.2.7"} }}})
	secret, err := s.Client().CreateToken(t.Context(), cove.TokenRequest{Name: "other", Scope: cove.TokenScope{All: true}, Verbs: []string{"read", "write"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, preset := range []string{"agent", "defaults"} {
		sp := s.Create(preset)
		set := func() {
			t.Helper()
			if err := sp.SetNetworkPolicy(t.Context(), sprites.NetworkPolicy{Rules: []sprites.NetworkRule{{Include: preset}}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, zone := range []string{"*.example.org", "*.org"} {
			set()
			code, out, errs := runLine(t, s, "", "policy", "deny", "-s", preset, zone)
			if code != 0 || !strings.Contains(errs, "to deny them too: cove policy deny") || !strings.Contains(errs, "registry.example.org\n") || strings.Contains(errs, "192.0.2.7") {
				t.Errorf("%s, %s: exit code %d, %s%s", preset, zone, code, out, errs)
			}
		}
		set()
		_, _, errs := runLine(t, s, "", "policy", "deny", "-s", preset, "*.example.net", "registry.example.org")
		if strings.Contains(errs, "registry.example.org") {
			t.Errorf("%s, of what is denied itself: %s", preset, errs)
		}
		set()
		code, out, errs := runLine(t, s, secret.Secret, "policy", "deny", "-s", preset, "*.example.org", "*.openai.com")
		if code != 0 || strings.Contains(out+errs, "registry.example.org") ||
			!strings.Contains(errs, "api.openai.com auth.openai.com") || !strings.Contains(errs, "-s "+preset+" HOST") {
			t.Errorf("%s, without admin: exit code %d, %s%s", preset, code, out, errs)
		}
	}
}
