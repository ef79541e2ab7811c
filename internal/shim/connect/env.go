package connect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// CheckEnv says what is wrong with the references to secrets in variables, which are
// NAME=VALUE. It repeats no value.
func CheckEnv(env []string) error {
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		for _, m := range placeholder().FindAllStringSubmatch(value, -1) {
			switch {
			case m[3] != "": // it is of connectors alone
			case m[1] != "":
				return fmt.Errorf("the variable %s has {secret}, which names no secret: write {secret:NAME}", name)
			case !secretPattern().MatchString(m[2]):
				return fmt.Errorf("the variable %s refers to a secret by an invalid name: a secret's name has letters, digits, _ and -, at most 64", name)
			}
		}
	}
	return nil
}

// EnvSecrets are the names of the secrets that variables (NAME=VALUE) refer to, each once.
func EnvSecrets(env []string) []string {
	names := map[string]bool{}
	for _, kv := range env {
		for _, name := range secretsIn(kv) {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Refers reports whether a variable (NAME=VALUE) refers to a secret.
func Refers(kv string) bool { return len(secretsIn(kv)) > 0 }

func secretsIn(kv string) (names []string) {
	_, value, _ := strings.Cut(kv, "=")
	for _, m := range placeholder().FindAllStringSubmatch(value, -1) {
		if m[1] == "" && m[3] == "" {
			names = append(names, m[2])
		}
	}
	return names
}

// ResolveEnv puts the secrets' values into variables (NAME=VALUE), each in the place of the
// reference to it. A value is not looked into for more references.
func ResolveEnv(env []string, value func(name string) (string, error)) ([]string, error) {
	values := map[string]string{}
	for _, name := range EnvSecrets(env) {
		v, err := value(name)
		if err != nil {
			return nil, err
		}
		values[name] = v
	}
	resolved := slices.Clone(env)
	for i, kv := range resolved {
		name, text, _ := strings.Cut(kv, "=")
		if !Refers(kv) {
			continue
		}
		resolved[i] = name + "=" + placeholder().ReplaceAllStringFunc(text, func(p string) string {
			if m := placeholder().FindStringSubmatch(p); m[1] == "" && m[3] == "" {
				return values[m[2]]
			}
			return p
		})
	}
	return resolved, nil
}
