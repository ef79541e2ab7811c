package connect

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestEnv(t *testing.T) {
	env := []string{"A={secret:one}", "B=x{secret:two}y{secret:one}z", "C={\"a\":{\"b\":1}} {basic:me}", "D=plain", "E="}
	if err := CheckEnv(env); err != nil {
		t.Fatal(err)
	}
	if got := EnvSecrets(env); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("got %q", got)
	}
	asked := 0
	got, err := ResolveEnv(env, func(name string) (string, error) { asked++; return "<{secret:one}" + name + "=>", nil })
	want := []string{"A=<{secret:one}one=>", "B=x<{secret:one}two=>y<{secret:one}one=>z", "C={\"a\":{\"b\":1}} {basic:me}", "D=plain", "E="}
	if err != nil || !slices.Equal(got, want) || asked != 2 {
		t.Errorf("got %q after %d calls, %v; want %q", got, asked, err, want)
	}
	if env[0] != "A={secret:one}" {
		t.Error("what was given is changed")
	}
	gone := errors.New("gone")
	if got, err := ResolveEnv(env, func(string) (string, error) { return "", gone }); !errors.Is(err, gone) || got != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := ResolveEnv([]string{"D=plain"}, func(string) (string, error) { return "", gone }); err != nil {
		t.Errorf("variables without a reference need a secret: %v", err)
	}
	for _, bad := range []string{"A=canary {secret}", "A=canary {secret:}", "A=canary {secret:../key}", "A=canary {secret:-a}", "A=canary {secret:" + strings.Repeat("a", 65) + "}"} {
		if err := CheckEnv([]string{bad}); err == nil || !strings.Contains(err.Error(), "variable A ") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}
