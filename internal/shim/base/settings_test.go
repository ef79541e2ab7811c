package base

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var timeLongAgo = time.Unix(1e9, 0)

// A sprite gets the settings below /etc that are as a package brought them. It gets none that
// somebody has changed, that only some users may read, or that lies in a place of secrets.
func TestSettings(t *testing.T) {
	f := host(t)
	put := func(name, data string, mode fs.FileMode) string {
		t.Helper()
		full := filepath.Join(f.Root, name)
		must(t, os.MkdirAll(filepath.Dir(full), 0o755))
		must(t, os.WriteFile(full, []byte(data), 0o600))
		must(t, os.Chmod(full, mode))
		return md5sum([]byte(data))
	}
	link := func(name, target string) {
		t.Helper()
		full := filepath.Join(f.Root, name)
		must(t, os.MkdirAll(filepath.Dir(full), 0o755))
		must(t, os.Symlink(target, full))
	}
	var conffiles, removed strings.Builder
	own := func(name, data string, mode fs.FileMode) {
		t.Helper()
		conffiles.WriteString(" /" + name + " " + put(name, data, mode) + "\n")
	}
	own("etc/browser.d/flags", "flags", 0o644)
	own("etc/browser.d/keys", "keys", 0o644)
	put("etc/browser.d/keys", "key = SECRET", 0o644) // changed since
	own("etc/changed.d/one", "one", 0o644)
	put("etc/changed.d/one", "SECRET", 0o644)
	put("etc/browser.d/local", "SECRET", 0o644) // no package's
	own("etc/closed/conf", "SECRET", 0o640)
	own("etc/dir/closed/conf", "SECRET", 0o644)
	must(t, os.Chmod(filepath.Join(f.Root, "etc/dir/closed"), 0o750))
	own("etc/letsencrypt/cli.ini", "SECRET", 0o644)
	own("etc/tool/db.password", "SECRET", 0o644)
	own("etc/tool/large", strings.Repeat("SECRET", maxSetting), 0o644)
	own("etc/gitconfig", "SECRET", 0o644)
	own("etc/sudoers", "SECRET", 0o644)
	// Neither do the folders of shells and desktops have more than packages brought.
	own("etc/profile.d/tool.sh", "tool", 0o644)
	put("etc/profile.d/company.sh", "export KEY=SECRET", 0o644)
	own("etc/skel/.bashrc", "bashrc", 0o644)
	own("etc/skel/.profile", "profile", 0o644)
	put("etc/skel/.profile", "export KEY=SECRET", 0o644)
	own("etc/wgetrc", "wgetrc", 0o644)
	put("etc/wgetrc", "http_proxy = SECRET", 0o644)
	for _, dir := range []string{"skel", "xdg", "environment.d", "bash_completion.d", "vim", "zsh"} {
		put("etc/"+dir+"/local", "SECRET", 0o644)
	}
	link("etc/alternatives/vi", "/usr/bin/vim.basic")
	link("etc/alternatives/my.cnf", "/etc/mysql/mariadb.cnf")
	link("etc/alternatives/customer", "/srv/customer")
	link("etc/ssl/certs/one.0", "one.pem")
	link("etc/ssl/certs/two.pem", "/root/SECRET.pem")
	conffiles.WriteString(" /etc/tool/old " + put("etc/tool/old", "SECRET", 0o644) + " obsolete\n /etc/tool/gone 0123456789abcdef0123456789abcdef\n /etc/tool/new newconffile\n")
	removed.WriteString(" /etc/removed/conf " + put("etc/removed/conf", "SECRET", 0o644) + "\n")
	must(t, os.Mkdir(filepath.Join(f.Root, "etc/empty.d"), 0o755))
	must(t, os.Mkdir(filepath.Join(f.Root, "etc/own.d"), 0o755))
	put("var/lib/dpkg/status", "Package: browser\nStatus: install ok installed\nConffiles:\n"+conffiles.String()+"Description: x\n /etc/own.d/text "+put("etc/own.d/text", "SECRET", 0o644)+
		"\n\nPackage: removed\nStatus: deinstall ok config-files\nConffiles:\n"+removed.String()+"\n", 0o644)
	put("var/lib/dpkg/info/browser.list", "/.\n/etc\n/etc/empty.d\n/etc/browser.d\n/etc/closed\n", 0o644)

	// ucf's: one that is a copy of a package's file, and one that a script has written.
	php, made := put("etc/php/cli/php.ini", "engine = On", 0o644), put("etc/app/db.php", "SECRET", 0o644)
	put("var/lib/ucf/hashfile", php+"  /etc/php/cli/php.ini\n"+made+"  /etc/app/db.php\n", 0o644)
	put("var/lib/dpkg/info/php.md5sums", php+"  usr/lib/php/php.ini\n", 0o644)

	link("etc/tool.conf", "../usr/share/tool.conf")
	link("etc/php/cli/conf.d/ini", "/etc/php/cli/php.ini")
	link("etc/chain", "php/cli/conf.d/ini")
	link("etc/loop", "loop")
	link("etc/sites/customer", "/srv/customer")
	link("etc/keys", "browser.d/keys")
	link("etc/systemd/system/multi-user.target.wants/a.service", "/lib/systemd/system/a.service")
	link("etc/hosts", "/usr/share/hosts") // it is never written through
	put("usr/share/hosts", "host's", 0o644)

	b, err := f.Prepare(t.TempDir())
	must(t, err)
	for name, want := range map[string]string{
		"etc/browser.d/flags": "flags", "etc/php/cli/php.ini": "engine = On", "etc/profile.d/tool.sh": "tool", "etc/skel/.bashrc": "bashrc",
	} {
		if got, err := os.ReadFile(filepath.Join(b.Dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]string{
		"etc/tool.conf": "../usr/share/tool.conf", "etc/php/cli/conf.d/ini": "/etc/php/cli/php.ini", "etc/chain": "php/cli/conf.d/ini",
		"etc/alternatives/vi": "/usr/bin/vim.basic", "etc/alternatives/my.cnf": "/etc/mysql/mariadb.cnf", "etc/ssl/certs/one.0": "one.pem",
	} {
		if got, err := os.Readlink(filepath.Join(b.Dir, name)); err != nil || got != want {
			t.Errorf("%s: got a link to %q, %v, want %q", name, got, err, want)
		}
	}
	for _, name := range []string{"etc/empty.d", "etc/changed.d"} {
		if st, err := os.Lstat(filepath.Join(b.Dir, name)); err != nil || st.Mode() != fs.ModeDir|0o755 {
			t.Errorf("%s: got %v, %v, want a folder", name, st, err)
		}
	}
	for _, name := range []string{
		"etc/browser.d/keys", "etc/browser.d/local", "etc/changed.d/one", "etc/closed/conf", "etc/dir/closed", "etc/letsencrypt", "etc/tool/db.password",
		"etc/tool/large", "etc/tool/old", "etc/removed", "etc/own.d", "etc/app", "etc/loop", "etc/sites", "etc/keys", "etc/systemd",
		"etc/profile.d/company.sh", "etc/wgetrc", "etc/skel/local", "etc/skel/.profile", "etc/xdg/local", "etc/environment.d/local", "etc/bash_completion.d/local", "etc/vim/local",
		"etc/zsh/local", "etc/alternatives/customer", "etc/ssl/certs/two.pem",
	} {
		if _, err := os.Lstat(filepath.Join(b.Dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is shown (%v)", name, err)
		}
	}
	for _, name := range []string{"etc/gitconfig", "etc/sudoers", "etc/hosts"} {
		if got, err := os.ReadFile(filepath.Join(b.Dir, name)); err != nil || len(got) == 0 || strings.Contains(string(got), "SECRET") {
			t.Errorf("%s: got %q, %v, want cove's own", name, got, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(f.Root, "usr/share/hosts")); err != nil || string(got) != "host's" {
		t.Errorf("the host's file was written through a link: %q, %v", got, err)
	}

	// A setting with another content makes another base. Another time alone does not.
	must(t, os.Chtimes(filepath.Join(f.Root, "etc/browser.d/flags"), timeLongAgo, timeLongAgo))
	same, err := f.Prepare(t.TempDir())
	if err != nil || same.Fingerprint != b.Fingerprint {
		t.Errorf("a setting's time has changed: got %v, %v, want the same fingerprint", same, err)
	}
	put("etc/browser.d/flags", "flags SECRET", 0o644)
	changed, err := f.Prepare(t.TempDir())
	must(t, err)
	if _, err := os.Lstat(filepath.Join(changed.Dir, "etc/browser.d/flags")); !errors.Is(err, fs.ErrNotExist) || changed.Fingerprint == b.Fingerprint {
		t.Errorf("a setting with a secret is shown (%v), fingerprint %s, before %s", err, changed.Fingerprint, b.Fingerprint)
	}
}
