package base

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// picks are the host's files that programs need to run, even if no package owns them or the
// host has changed them. They are links of alternatives, generated files, and sources of
// packages. None is a place of secrets. A file that others can't read on the host is left
// out. So is a link that leads neither to programs nor to a pick. For all else see
// settings.go.
var picks = []string{
	"etc/adduser.conf", "etc/alternatives", "etc/apparmor.d/abstractions", "etc/bash.bashrc",
	"etc/bindresvport.blacklist", "etc/ca-certificates", "etc/ca-certificates.conf", "etc/debconf.conf",
	"etc/debian_version", "etc/default/locale", "etc/deluser.conf", "etc/dpkg", "etc/ethertypes",
	"etc/fonts", "etc/gai.conf", "etc/host.conf", "etc/inputrc", "etc/issue", "etc/java-8-openjdk", "etc/java-11-openjdk",
	"etc/java-17-openjdk", "etc/java-21-openjdk", "etc/java-25-openjdk", "etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d",
	"etc/libaudit.conf", "etc/locale.alias", "etc/locale.conf", "etc/locale.gen", "etc/localtime", "etc/login.defs", "etc/lsb-release",
	"etc/magic", "etc/magic.mime", "etc/manpath.config", "etc/mime.types", "etc/networks", "etc/nsswitch.conf",
	"etc/os-release", "etc/pam.conf", "etc/pam.d", "etc/perl", "etc/pki/ca-trust", "etc/pki/tls/certs", "etc/profile",
	"etc/protocols", "etc/python3", "etc/python3.9", "etc/python3.10", "etc/python3.11", "etc/python3.12", "etc/python3.13", "etc/python3.14",
	"etc/rpc", "etc/security", "etc/selinux/semanage.conf", "etc/services", "etc/sgml", "etc/shells", "etc/ssl/certs", "etc/ssl/openssl.cnf",
	"etc/system-release", "etc/terminfo", "etc/texmf", "etc/timezone", "etc/xattr.conf", "etc/xml",
	"etc/apt/preferences", "etc/apt/preferences.d", "etc/apt/sources.list", "etc/apt/sources.list.d", "etc/apt/apt.conf.d",
	"etc/apt/trusted.gpg", "etc/apt/trusted.gpg.d", "etc/apt/keyrings",
	"var/lib/dpkg",
}

// dpkgJournal is where dpkg, while it runs, keeps changes that are not in its database yet.
// A sprite must not have the half-done run of the host's dpkg: its own dpkg would refuse all
// work until that run is finished. Until the next base, the database is as it was before
// that run.
const dpkgJournal = "var/lib/dpkg/updates"

// eachPick calls fn for every file, link and folder that goes into the skeleton
// from the host, parents first.
func (f Files) eachPick(fn func(rel string, st fs.FileInfo) error) error {
	for _, pick := range picks {
		err := filepath.WalkDir(f.path(pick), func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
					return nil
				}
				return err
			}
			st, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the host goes on living while we look
			} else if err != nil {
				return err
			}
			kind := st.Mode().Type()
			if kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink {
				return nil
			}
			if kind != fs.ModeSymlink && st.Mode()&0o004 == 0 {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			rel, err := filepath.Rel(f.path(""), name)
			if err != nil {
				return err
			}
			if path.Dir(rel) == dpkgJournal {
				return nil
			}
			if kind == fs.ModeSymlink {
				target, err := os.Readlink(name)
				if err != nil || !leadsToPick(rel, target) {
					return nil
				}
			}
			return fn(rel, st)
		})
		if err != nil {
			return fmt.Errorf("read %s: %w", pick, err)
		}
	}
	return nil
}

// leadsToPick reports whether a link leads to a folder of programs or to a pick. A sprite
// does not see other files of the host, so it must not learn their names.
func leadsToPick(rel, target string) bool {
	to := linkTarget(rel, target)
	return inPrograms(to) || picked(to) || path.Dir(rel) == "etc/alternatives" && strings.HasPrefix(to, "etc/") // a package has registered it
}

// linkTarget is the path, below the root, that a link names.
func linkTarget(rel, target string) string {
	if !path.IsAbs(target) {
		target = path.Join("/", path.Dir(rel), target)
	}
	return strings.TrimPrefix(path.Clean(target), "/")
}

func inPrograms(rel string) bool {
	top, _, below := strings.Cut(rel, "/")
	return below && slices.Contains(programDirs, top)
}

// folders of the skeleton that don't come from the host.
var folders = []struct {
	name string
	mode fs.FileMode
}{
	{"dev", 0o755}, {"etc", 0o755}, {"etc/sudoers.d", 0o750}, {"home", 0o755}, {"media", 0o755}, {"mnt", 0o755}, {"opt", 0o755}, {"proc", 0o555},
	{"root", 0o700}, {"run", 0o755}, {"run/lock", 0o1777}, {"srv", 0o755}, {"sys", 0o555}, {"tmp", 0o1777},
	{"var", 0o755}, {"var/cache", 0o755}, {"var/cache/apt/archives/partial", 0o755}, {"var/cache/debconf", 0o755}, {"var/lib", 0o755},
	{"var/lib/apt/lists/partial", 0o755}, {"var/lib/misc", 0o755}, {"var/lib/pam", 0o755}, {"var/lib/systemd", 0o755}, {"var/lib/ucf", 0o755},
	{"var/log/apt", 0o755}, {"var/mail", 0o2775}, {"var/opt", 0o755}, {"var/spool", 0o755}, {"var/tmp", 0o1777},
	{".sprite", 0o755}, {".sprite/bin", 0o755}, {".sprite/git", 0o755}, {".sprite/etc/profile.d", 0o755}, {".sprite/logs/services", 0o755}, {".sprite/policy", 0o755}, {".sprite/tmp", 0o1777},
}

// build fills dir, an empty folder, with the skeleton and the settings of etc that are
// shown.
func (f Files) build(dir string, etc settings) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, d := range folders {
		if err := makeDir(dir, d.name, d.mode); err != nil {
			return err
		}
	}
	for _, name := range programDirs {
		if err := f.programDir(dir, name); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{"var/run": "/run", "var/lock": "/run/lock", "var/spool/mail": "../mail", "etc/mtab": "/proc/mounts"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			return err
		}
	}
	err := f.eachPick(func(rel string, st fs.FileInfo) error { return f.copyPick(dir, rel, st) })
	if err != nil {
		return err
	}
	if err := f.copySettings(dir, etc); err != nil {
		return err
	}
	return f.accounts(dir)
}

func makeDir(dir, name string, mode fs.FileMode) error {
	full := filepath.Join(dir, name)
	if err := os.MkdirAll(full, 0o755); err != nil {
		return err
	}
	// Not os.Chmod: its FileMode has the sticky and setgid bits elsewhere.
	return unix.Chmod(full, uint32(mode))
}

// programDir repeats the host's link, or makes the folder that an overlay of the
// host's will be mounted on.
func (f Files) programDir(dir, name string) error {
	st, err := os.Lstat(f.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.IsDir():
		return makeDir(dir, name, 0o755)
	case st.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(f.path(name))
		if err != nil {
			return err
		}
		return os.Symlink(target, filepath.Join(dir, name))
	}
	return fmt.Errorf("%s is neither a folder nor a link", f.path(name))
}

func (f Files) copyPick(dir, rel string, st fs.FileInfo) error {
	dst := filepath.Join(dir, rel)
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	switch {
	case st.IsDir():
		return makeDir(dir, rel, st.Mode().Perm())
	case st.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(f.path(rel))
		if err != nil {
			return err
		}
		return os.Symlink(target, dst)
	}
	data, err := os.ReadFile(f.path(rel))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if strings.HasPrefix(rel, "etc/apt/") {
		data = withoutCredentials(data)
	}
	if err := writeFile(dst, data, st.Mode().Perm()); err != nil {
		return err
	}
	return os.Chtimes(dst, st.ModTime(), st.ModTime())
}

// userinfo matches the user and password of a URL.
var userinfo = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s"'@]*@`) })

// withoutCredentials removes user names and passwords from the URLs in an apt
// source list or setting.
func withoutCredentials(data []byte) []byte {
	return userinfo().ReplaceAll(data, []byte("$1"))
}

// writeFile writes a new file with exactly this mode, whatever the umask is.
func writeFile(name string, data []byte, mode fs.FileMode) error {
	if err := os.WriteFile(name, data, 0o600); err != nil {
		return err
	}
	return os.Chmod(name, mode)
}

// loginShells is a script for login shells. They begin with the system's own PATH: the
// script adds the other folders where commands of a sprite find programs. It also runs the
// scripts in /.sprite/etc/profile.d.
const loginShells = `# So that a login shell finds what commands in a sprite find.
case ":$PATH:" in
*:/.sprite/bin:*) ;;
*)
	[ -d /usr/local/go/bin ] && PATH="/usr/local/go/bin:$PATH"
	PATH="/.sprite/bin:$HOME/.local/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin"
	;;
esac
export PATH
for sprite_file in /.sprite/etc/profile.d/*.sh; do
	[ -r "$sprite_file" ] && . "$sprite_file"
done
unset sprite_file
`

// accounts writes the user database: the host's system users without their
// passwords, and the sprite's user instead of the host's people.
func (f Files) accounts(dir string) error {
	u := f.User
	passwd, err := systemAccounts(f.path("etc/passwd"), u.Name)
	if err != nil {
		return err
	}
	group, err := systemAccounts(f.path("etc/group"), u.Name)
	if err != nil {
		return err
	}
	if len(passwd) == 0 {
		passwd = []string{"root:x:0:0:root:/root:/bin/bash"}
	}
	if len(group) == 0 {
		group = []string{"root:x:0:"}
	}
	var shadow strings.Builder
	for _, line := range passwd {
		name, _, _ := strings.Cut(line, ":")
		fmt.Fprintf(&shadow, "%s:*:19000:0:99999:7:::\n", name)
	}
	fmt.Fprintf(&shadow, "%s:*:19000:0:99999:7:::\n", u.Name)
	passwd = append(passwd, fmt.Sprintf("%s:x:%d:%d:%s:%s:/bin/bash", u.Name, u.UID, u.GID, u.Name, u.Home))
	group = append(group, fmt.Sprintf("%s:x:%d:", u.Name, u.GID))
	for _, file := range []struct {
		name, data string
		mode       fs.FileMode
	}{
		{"etc/passwd", strings.Join(passwd, "\n") + "\n", 0o644},
		{"etc/group", strings.Join(group, "\n") + "\n", 0o644},
		{"etc/shadow", shadow.String(), 0o640},
		{"etc/sudoers", "Defaults env_reset, env_keep += \"DEBIAN_FRONTEND\"\nDefaults !lecture, !fqdn\nroot ALL=(ALL:ALL) ALL\n" + u.Name + " ALL=(ALL:ALL) NOPASSWD: ALL\n@includedir /etc/sudoers.d\n", 0o440},
		{"etc/resolv.conf", resolvConf, 0o644},
		{"etc/hosts", hosts, 0o644},
		{"etc/gitconfig", gitConfig, 0o644},
		{"etc/machine-id", "", 0o444},
		{"etc/hostname", "sprite\n", 0o644},
		{"etc/profile.d/zz-sprite.sh", loginShells, 0o644},
		{"etc/apt/apt.conf.d/90cove", aptConf, 0o644},
	} {
		dst := filepath.Join(dir, file.name)
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			return err
		}
		if err := writeFile(dst, []byte(file.data), file.mode); err != nil {
			return err
		}
	}
	home := filepath.Join(dir, u.Home)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	return os.Chown(home, u.UID, u.GID)
}

// Settings of a sprite's network and of apt, which could not become its own user.
const (
	resolvConf = "nameserver " + Gateway + "\noptions edns0 timeout:5 attempts:2\n"
	hosts      = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	aptConf    = "APT::Sandbox::User \"root\";\n"
)

// gitConfig is the git configuration of all users of a sprite. The configuration under
// /.sprite/git follows the connectors that the sprite is granted. A sprite is one person's,
// so root and the sprite's user may use each other's repositories. After a checkpoint, a
// file has another number, and can have another time of its last change. So git must compare
// only size and time of the last write.
const gitConfig = `[core]
	checkStat = minimal
	trustctime = false
[include]
	path = /.sprite/git/config
[safe]
	directory = *
`

// Gateway is the address of every sandbox's gateway, which is also its resolver.
const Gateway = "10.88.0.1"

// systemAccounts returns the lines of a passwd or group file that belong to the
// system: ids below 1000, and nobody. Members and passwords are dropped.
func systemAccounts(name, except string) ([]string, error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var out []string
	for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
		field := strings.Split(sc.Text(), ":")
		if len(field) < 4 || field[0] == except {
			continue
		}
		id, err := strconv.Atoi(field[2])
		if err != nil || (id >= 1000 && id != 65534) {
			continue
		}
		field[1] = "x"
		if path.Base(name) == "group" {
			field[3] = ""
		}
		out = append(out, strings.Join(field, ":"))
	}
	return out, nil
}

func isNotEmpty(err error) bool {
	return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)
}
