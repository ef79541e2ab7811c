package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/filesync"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// credentials are the files that programs keep keys and tokens in, by the end of their
// path. If has is set, such a file counts only if it contains one of has: other files of
// that name hold no secret.
var credentials = []struct {
	glob string // of the last parts of the path, each as in path.Match
	has  []string
}{
	{glob: ".netrc"}, {glob: "_netrc"}, {glob: ".pgpass"}, {glob: ".my.cnf", has: []string{"password"}}, {glob: ".vault-token"},
	{glob: ".git-credentials"}, {glob: "git/credentials"}, {glob: "gh/hosts.yml"}, {glob: "glab-cli/config.yml"},
	{glob: ".npmrc", has: []string{"_auth", "_password"}}, {glob: ".yarnrc.yml", has: []string{"npmAuth"}},
	{glob: ".pypirc"}, {glob: "pypoetry/auth.toml"}, {glob: ".gem/credentials"}, {glob: ".composer/auth.json"}, {glob: "auth.json", has: []string{`"http-basic"`, `"access_token"`, `"OPENAI_API_KEY"`}},
	{glob: ".cargo/credentials"}, {glob: ".cargo/credentials.toml"}, {glob: "credentials.toml", has: []string{"token"}},
	{glob: ".m2/settings.xml", has: []string{"<password>"}}, {glob: "gradle.properties", has: []string{"assword", "oken"}},
	{glob: ".aws/credentials"}, {glob: ".aws/sso/cache/*"}, {glob: ".azure/*token*"}, {glob: "gcloud/credentials.db"},
	{glob: "application_default_credentials.json"}, {glob: ".oci/*.pem"}, {glob: "doctl/config.yaml"}, {glob: ".terraform.d/credentials.tfrc.json"},
	{glob: ".docker/config.json", has: []string{`"auth"`}}, {glob: "containers/auth.json"}, {glob: ".kube/config"}, {glob: "kubeconfig"},
	{glob: ".ssh/id_*"}, {glob: "id_rsa"}, {glob: "id_ed25519"}, {glob: "id_ecdsa"}, {glob: ".gnupg/private-keys-v1.d/*"}, {glob: ".gnupg/secring.gpg"},
	{glob: "*.pem", has: []string{"PRIVATE KEY"}}, {glob: "*.key", has: []string{"PRIVATE KEY"}}, {glob: "*.p12"}, {glob: "*.pfx"}, {glob: "*.keystore"}, {glob: "*.jks"}, {glob: "*.kdbx"},
	{glob: ".env"}, {glob: ".env.*"}, {glob: ".claude/.credentials.json"}, {glob: ".claude.json", has: []string{"oauth", "apiKey"}},
}

// notSecret are ends of names of files that hold no secret, though they look like credentials.
var notSecret = []string{".pub", ".example", ".sample", ".template", ".dist", ".defaults"}

// maxCredential is how many bytes of a file are searched.
const maxCredential = 64 << 10

// isCredential reports whether a file, by its absolute path, probably holds a secret.
func isCredential(name string) bool {
	for _, end := range notSecret {
		if strings.HasSuffix(name, end) {
			return false
		}
	}
	parts := strings.Split(strings.ToLower(filepath.ToSlash(name)), "/")
	for _, c := range credentials {
		n := strings.Count(c.glob, "/") + 1
		if n > len(parts) {
			continue
		}
		if ok, err := path.Match(strings.ToLower(c.glob), path.Join(parts[len(parts)-n:]...)); err != nil || !ok {
			continue
		}
		if len(c.has) == 0 || containsAny(name, c.has) {
			return true
		}
	}
	return false
}

// containsAny reports whether the beginning of a file has one of some texts. A file that
// can't be read might.
func containsAny(name string, texts []string) bool {
	f, err := os.Open(name)
	if err != nil {
		return true
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCredential))
	if err != nil {
		return true
	}
	for _, text := range texts {
		if bytes.Contains(data, []byte(text)) {
			return true
		}
	}
	return false
}

// maxNamed is how many credential files a warning names.
const maxNamed = 5

// warnCredentials says which files of a folder that is about to be sent, or shown inside,
// probably hold secrets. One that is not on this machine has none here.
func warnCredentials(ctx context.Context, inv *invocation, dir string, rules filesync.Rules) error {
	var found []string
	err := filesync.Files(ctx, dir, rules, func(name string) bool {
		if isCredential(filepath.Join(dir, name)) {
			found = append(found, name)
		}
		return len(found) <= maxNamed
	})
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		return nil
	case err != nil:
		return err
	case len(found) == 0:
		return nil
	}
	more := ""
	if len(found) > maxNamed {
		found, more = found[:maxNamed], " and more"
	}
	for i := range found {
		found[i] = printable.Name(found[i])
	}
	inv.warn("Warning: %s seems to hold keys or tokens, which all programs in the sprite can read: %s%s", printable.Name(dir), strings.Join(found, ", "), more)
	return nil
}

// warnIncludes is warnCredentials of folders that are shown inside.
func warnIncludes(ctx context.Context, inv *invocation, dirs []string) error {
	for _, dir := range dirs {
		if err := warnCredentials(ctx, inv, dir, filesync.Rules{}); err != nil {
			return includeError(ctx, dir, err)
		}
	}
	return nil
}

// includeError says why a folder can't be shown inside, and what to type instead.
func includeError(ctx context.Context, dir string, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if info, statErr := os.Stat(dir); statErr == nil && !info.IsDir() {
		hint := "copy it into a sprite: cove cp " + printable.Word(dir) + " NAME:" + printable.Word(filepath.Base(dir)) + "\nor name a folder: --include DIR"
		return fail.Newf("bad_option", hint, "--include %s: it is not a folder, and only folders can be shown in a sprite", printable.Name(dir))
	}
	why := err
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		why = e.Err
	}
	return fail.Newf("bad_option", "see what is there: ls -ld "+printable.Word(dir)+"\nor name another folder: --include DIR", "--include %s: the folder can't be read: %v", printable.Name(dir), why)
}
