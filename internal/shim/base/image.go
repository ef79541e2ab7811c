package base

import (
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// An Image is what a disk lies on instead of the host base. It has the extracted layers of an
// OCI image, and the parts of its configuration that commands start with. Anybody may have
// made it.
type Image struct {
	Digest string   // of its manifest: "sha256:" and 64 hexadecimal digits
	Lowers []string // the folders of its layers, the topmost first; none of them is ever written

	Env     []string // KEY=VALUE
	User    string   // USER or USER:GROUP, each a name or a number; empty: the sprite's own user
	Workdir string   // empty: the user's home

	Shell    string // for users without one, if it is a known shell and exists; empty: the best one that exists
	HTTPPort int    // for the sprite's URL, if no service names a port; 0: the image names none

	// Bare says that a new disk gets nothing but folders to mount on and names of the network: no
	// account, and root's commands.
	Bare bool
}

// MaxImageLayers is the most layers that an Image has.
const MaxImageLayers = layers.MaxBase - 1 // the fitting is the other one

var imageDigest = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^sha256:[0-9a-f]{64}$`) })

// IsImage reports whether the name of a base is the digest of an image.
func IsImage(name string) bool { return imageDigest().MatchString(name) }

// ErrImage refuses an image that no disk can lie on. Its text says why.
var ErrImage = errors.New("the image can't be used")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrImage, fmt.Sprintf(format, args...))
}

// Bounds on what an image may say. A file that is larger is taken for none.
const (
	maxAccounts = 1 << 20 // bytes of a file of accounts
	maxVariable = 128 << 10
	maxEnv      = 1 << 20
	maxLinks    = 40   // followed on the way to one file
	maxPath     = 4096 // of a working directory, a home, a shell
)

// ofRoot are variables that an image without a USER means for root, and not for the sprite's user.
var ofRoot = []string{"HOME", "USER", "LOGNAME"}

// variables are those of the image that a process can be given, without doubles: the last one
// counts.
func (img Image) variables() ([]string, error) {
	var all []string
	size, seen := 0, map[string]bool{}
	for _, pair := range slices.Backward(img.Env) {
		key, _, ok := strings.Cut(pair, "=")
		if !ok || key == "" || strings.ContainsRune(pair, 0) || seen[key] {
			continue
		}
		seen[key] = true
		if img.User == "" && slices.Contains(ofRoot, key) {
			continue
		}
		if size += len(pair) + 1; len(pair) >= maxVariable || size > maxEnv || len(all) == 1000 {
			return nil, refuse("its environment is too large for a process")
		}
		all = append(all, pair)
	}
	slices.Reverse(all)
	return all, nil
}

// imageTree is the tree of an image's files. Wherever its links lead, no file outside of it
// is read.
type imageTree struct {
	view   *layers.View
	prefer string // see Image.Shell
}

func (img Image) open(userXattr bool) (imageTree, error) {
	if len(img.Lowers) == 0 || len(img.Lowers) > MaxImageLayers {
		return imageTree{}, fmt.Errorf("image %s has %d layers, want 1 to %d", img.Digest, len(img.Lowers), MaxImageLayers)
	}
	chain := slices.Clone(img.Lowers)
	slices.Reverse(chain)
	v, err := layers.OpenView(chain[:1], chain[1:], userXattr)
	return imageTree{v, img.Shell}, err
}

// real follows the links of a path, and returns where it leads, below the root. Missing parts
// are kept as they are. found: something is there.
func (t imageTree) real(name string) (at string, n layers.Node, found bool, err error) {
	rest := split(name)
	n, found = t.view.Root(), true
	above := []layers.Node{n} // of the folders on the way
	links := 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			if at = path.Dir(at); at == "." {
				at = ""
			}
			if len(above) > 1 {
				above = above[:len(above)-1]
			}
			n, found = above[len(above)-1], true
			continue
		}
		next := path.Join(at, part)
		var below layers.Node
		below, found, err = t.view.Lookup(n, part)
		switch {
		case err != nil:
			return "", n, false, err
		case !found || !below.IsDir() && below.Target == "" && len(rest) > 0:
			for _, p := range rest {
				if p == ".." {
					return "", n, false, refuse("%.200q leads nowhere", name)
				}
			}
			return path.Join(append([]string{next}, rest...)...), below, false, nil
		case below.Target != "":
			if links++; links > maxLinks {
				return "", n, false, refuse("%.200q leads through too many links", name)
			}
			if path.IsAbs(below.Target) {
				at, above = "", above[:1]
			}
			n = above[len(above)-1]
			rest = append(split(below.Target), rest...)
			if len(rest) > maxPath {
				return "", n, false, refuse("%.200q leads through too many links", name)
			}
			continue
		}
		n, at = below, next
		if n.IsDir() {
			above = append(above, n)
		}
	}
	return at, n, found, nil
}

// split returns the parts of a path that name something.
func split(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(part string) bool { return part == "" || part == "." })
}

// read reads a small file. found is false if there is no regular file, or if it is too large.
func (t imageTree) read(name string) (data []byte, at string, n layers.Node, found bool, err error) {
	at, n, found, err = t.real(name)
	if err != nil || !found || !isFile(n) || n.Size > maxAccounts {
		return nil, at, n, false, ignoreBad(err)
	}
	f, err := t.view.Open(n)
	if err != nil {
		return nil, at, n, false, err
	}
	data, err = io.ReadAll(io.LimitReader(f, maxAccounts))
	return data, at, n, err == nil, errors.Join(err, f.Close())
}

// ignoreBad takes a path that leads nowhere for one at which nothing is.
func ignoreBad(err error) error {
	if errors.Is(err, ErrImage) {
		return nil
	}
	return err
}

// isProgram reports whether a path leads to a file that can be run.
func (t imageTree) isProgram(name string) (bool, error) {
	_, n, found, err := t.real(name)
	return found && isFile(n) && n.Mode&0o111 != 0, ignoreBad(err)
}

// isFolder reports whether a path leads to a folder.
func (t imageTree) isFolder(name string) (bool, error) {
	_, n, found, err := t.real(name)
	return found && n.IsDir(), ignoreBad(err)
}

// accounts is what an image's /etc/passwd and /etc/group say.
type accounts struct {
	users  []account
	groups []group
}

type account struct {
	name        string
	uid, gid    int
	home, shell string
}

type group struct {
	name string
	gid  int
}

// maxID is the largest number that a user or group may have.
const maxID = 1<<31 - 2

func number(text string) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && n <= maxID && text[0] != '+'
}

// readAccounts reads the lines that are sound.
func readAccounts(passwd, groups []byte) (a accounts) {
	for line := range strings.Lines(string(passwd)) {
		f := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(f) != 7 || f[0] == "" {
			continue
		}
		uid, ok1 := number(f[2])
		gid, ok2 := number(f[3])
		if ok1 && ok2 {
			a.users = append(a.users, account{f[0], uid, gid, f[5], f[6]})
		}
	}
	for line := range strings.Lines(string(groups)) {
		f := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(f) < 4 || f[0] == "" {
			continue
		}
		if gid, ok := number(f[2]); ok {
			a.groups = append(a.groups, group{f[0], gid})
		}
	}
	return a
}

// user finds a user by name, or else by number.
func (a accounts) user(text string) (account, bool) {
	if u, ok := a.named(text); ok {
		return u, true
	}
	uid, ok := number(text)
	i := slices.IndexFunc(a.users, func(u account) bool { return u.uid == uid })
	if !ok || i < 0 {
		return account{}, false
	}
	return a.users[i], true
}

// named finds a user by name.
func (a accounts) named(name string) (account, bool) {
	for _, u := range a.users {
		if u.name == name {
			return u, true
		}
	}
	return account{}, false
}

// groupNamed finds a group's number by name.
func (a accounts) groupNamed(name string) (int, bool) {
	for _, g := range a.groups {
		if g.name == name {
			return g.gid, true
		}
	}
	return 0, false
}

// group finds a group's number, by name or number.
func (a accounts) group(text string) (int, bool) {
	if gid, ok := a.groupNamed(text); ok {
		return gid, true
	}
	return number(text)
}

// freeID is the first number that no user and no group has, from the sprite's own number on.
func (a accounts) freeID() int {
	taken := map[int]bool{}
	for _, u := range a.users {
		taken[u.uid], taken[u.gid] = true, true
	}
	for _, g := range a.groups {
		taken[g.gid] = true
	}
	id := boot.UID
	for taken[id] {
		id++
	}
	return id
}

// configured is the account of an image's USER.
func (t imageTree) configured(a accounts, user string) (boot.Account, error) {
	name, groupText, withGroup := strings.Cut(user, ":")
	var own boot.Account
	if u, ok := a.user(name); ok {
		own = boot.Account{Name: u.name, UID: u.uid, GID: u.gid, Home: u.home, Shell: u.shell}
	} else if uid, ok := number(name); ok {
		own = boot.Account{Name: name, UID: uid, Groups: []int{0}, Home: "/"} // as elsewhere, it is in root's group
	} else {
		return own, refuse("its commands must run as user %.100q, which it does not have", name)
	}
	if withGroup && groupText != "" {
		gid, ok := a.group(groupText)
		if !ok {
			return own, refuse("its commands must run in group %.100q, which it does not have", groupText)
		}
		own.GID, own.Groups = gid, []int{gid}
	}
	if !soundPath(own.Home) {
		own.Home = "/"
	}
	if ok, err := t.isProgram(own.Shell); err != nil || ok && soundPath(own.Shell) && !boot.NoLogin(own.Shell) {
		return own, err
	}
	var err error
	own.Shell, err = t.shell()
	return own, err
}

// soundPath reports whether a path can be a home, a shell or a working directory.
func soundPath(name string) bool {
	return path.IsAbs(name) && len(name) <= maxPath && !strings.ContainsAny(name, ":\n\x00")
}

// shells are where a user's shell is, the best first.
var shells = []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh"}

// knownShells are the programs that an image may name as its shell: cove starts each as a login
// shell with -l.
var knownShells = []string{"ash", "bash", "dash", "fish", "ksh", "mksh", "sh", "zsh"}

// shell is the shell that the image names, or else its best one; empty: it has none.
func (t imageTree) shell() (string, error) {
	all := shells
	if slices.Contains(knownShells, path.Base(t.prefer)) && soundPath("/"+t.prefer) {
		first := []string{t.prefer}
		if !path.IsAbs(t.prefer) {
			first = []string{"/bin/" + path.Base(t.prefer), "/usr/bin/" + path.Base(t.prefer), "/usr/local/bin/" + path.Base(t.prefer)}
		}
		all = slices.Concat(first, shells)
	}
	for _, name := range all {
		if ok, err := t.isProgram(name); ok || err != nil {
			return name, err
		}
	}
	return "", nil
}

func isFile(n layers.Node) bool { return n.Kind() == unix.S_IFREG }
