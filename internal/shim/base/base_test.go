package base

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// host makes a small host: merged /usr, accounts, apt sources with a password,
// and secrets of several kinds.
func host(t *testing.T) Files {
	t.Helper()
	root := t.TempDir()
	for name, file := range map[string]struct {
		data string
		mode fs.FileMode
	}{
		"usr/bin/tool":              {"tool", 0o755},
		"usr/lib/os-release":        {"ID=x", 0o644},
		"etc/passwd":                {"root:x:0:0:root:/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\nada:x:1000:1000:Ada:/home/ada:/bin/zsh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\nbroken\n", 0o644},
		"etc/group":                 {"root:x:0:\nsudo:x:27:ada\nada:x:1000:\n", 0o644},
		"etc/shadow":                {"root:SECRET:1::::::\n", 0o640},
		"etc/ssl/private/key.pem":   {"SECRET", 0o600},
		"etc/ssl/certs/ca.pem":      {"public", 0o644},
		"etc/ssl/certs/own.key":     {"SECRET", 0o600},
		"etc/profile.d/closed/x":    {"SECRET", 0o644},
		"etc/apt/sources.list":      {"deb https://me:SECRET@deb.example/debian stable main\n", 0o644},
		"etc/apt/auth.conf":         {"password SECRET", 0o644},
		"var/lib/dpkg/status":       {"Package: x\n", 0o644},
		"var/lib/dpkg/updates/0003": {"SECRET, of a run that has not ended", 0o644},
		"var/lib/other/data":        {"SECRET", 0o644},
		"root/.netrc":               {"SECRET", 0o644},
		"home/ada/.ssh/id":          {"SECRET", 0o644},
	} {
		full := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(file.data), file.mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		os.Symlink("usr/bin", filepath.Join(root, "bin")),
		os.Symlink("../usr/lib/os-release", filepath.Join(root, "etc/os-release")),
		os.Chmod(filepath.Join(root, "etc/profile.d/closed"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return Files{Root: root, User: User{Name: "sprite", UID: os.Getuid(), GID: os.Getgid(), Home: "/home/sprite"}}
}

func TestPrepare(t *testing.T) {
	f, dir := host(t), t.TempDir()
	b, err := f.Prepare(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(b.Mounts, []string{"usr"}) {
		t.Errorf("Mounts: got %v, want [usr]", b.Mounts)
	}
	for name, want := range map[string]string{
		"etc/ssl/certs/ca.pem": "public",
		"etc/apt/sources.list": "deb https://deb.example/debian stable main\n",
		"var/lib/dpkg/status":  "Package: x\n",
		"etc/passwd":           "root:x:0:0:root:/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"etc/group":            "root:x:0:\nsudo:x:27:\n",
	} {
		got, err := os.ReadFile(filepath.Join(b.Dir, name))
		if err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("%s: got %q, %v, want it to begin with %q", name, got, err, want)
		}
	}
	if target, err := os.Readlink(filepath.Join(b.Dir, "bin")); err != nil || target != "usr/bin" {
		t.Errorf("bin: got %q, %v, want a link to usr/bin", target, err)
	}
	if st, err := os.Stat(filepath.Join(b.Dir, "tmp")); err != nil || st.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("tmp: got %v, %v, want a sticky folder for all", st, err)
	}
	if st, err := os.Stat(filepath.Join(b.Dir, "var/lib/dpkg/updates")); err != nil || !st.IsDir() {
		t.Errorf("dpkg's journal: got %v, %v, want an empty folder", st, err)
	}
	if entries, err := os.ReadDir(filepath.Join(b.Dir, "usr")); err != nil || len(entries) != 0 {
		t.Errorf("usr: got %v, %v, want an empty folder to mount on", entries, err)
	}
	err = filepath.WalkDir(b.Dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if bytes.Contains(data, []byte("SECRET")) || bytes.Contains(data, []byte("ada")) {
			t.Errorf("%s holds something of the host's people: %q", name, data)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPrepareAgain(t *testing.T) {
	f, dir := host(t), t.TempDir()
	first, err := f.Prepare(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.Prepare(dir)
	if err != nil || again.Fingerprint != first.Fingerprint || again.Dir != first.Dir {
		t.Errorf("the same host: got %v, %v, want %v", again, err, first)
	}
	if err := os.WriteFile(filepath.Join(f.Root, "var/lib/dpkg/status"), []byte("Package: y\nPackage: z\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	changed, err := f.Prepare(dir)
	if err != nil || changed.Fingerprint == first.Fingerprint {
		t.Errorf("after a package was installed: got %v, %v, want another fingerprint", changed, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("got %v, %v, want the two bases and nothing else", entries, err)
	}
}

func TestPrepareRefuses(t *testing.T) {
	if _, err := (Files{Root: t.TempDir()}).Prepare(t.TempDir()); err == nil {
		t.Error("a host without /usr: Prepare succeeded")
	}
}

func TestWithoutCredentials(t *testing.T) {
	for in, want := range map[string]string{
		"deb https://u:p@h/d s m":                    "deb https://h/d s m",
		"URIs: HTTP://tok3n@h:80/x http://plain/y":   "URIs: HTTP://h:80/x http://plain/y",
		`Acquire::http::Proxy "http://u:p@h:3128/";`: `Acquire::http::Proxy "http://h:3128/";`,
		"# mail me@example.org":                      "# mail me@example.org",
		"deb [signed-by=/a@b] http://h/ s":           "deb [signed-by=/a@b] http://h/ s",
	} {
		if got := string(withoutCredentials([]byte(in))); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
