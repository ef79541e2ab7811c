package base

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/test/need"
)

// layer makes a layer of files by their names. A name that ends with a slash is a folder. A
// text that begins with "-> " is a link, one that begins with "#!" a program, and "!" a
// whiteout.
func layer(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		target, isLink := strings.CutPrefix(text, "-> ")
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		case isLink:
			err = os.Symlink(target, at)
		case text == "!":
			err = unix.Mknod(at, unix.S_IFCHR, 0)
		case strings.HasPrefix(text, "#!"):
			err = os.WriteFile(at, []byte(text), 0o755)
		default:
			err = os.WriteFile(at, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// image is one of layers, the lowest first.
func image(of ...string) Image {
	slices.Reverse(of)
	return Image{Digest: "sha256:" + strings.Repeat("0123456789abcdef", 4), Lowers: of}
}

// shown reads a file of an image with its fitting, as a sandbox sees it.
func shown(t *testing.T, img Image, f Fitting, name string) string {
	t.Helper()
	chain := append([]string{f.Dir}, img.Lowers...)
	slices.Reverse(chain)
	v, err := layers.OpenView(chain, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	data, _, _, found, err := imageTree{view: v}.read(name)
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return "(none)"
	}
	return string(data)
}

func fit(t *testing.T, img Image) (Fitting, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := img.Fit(dir, "", false)
	if err != nil {
		t.Fatal(err)
	}
	return f, dir
}

// TestFit: a fitting has what the image lacks, and keeps what the image has.
func TestFit(t *testing.T) {
	need.Root(t)
	low := layer(t, map[string]string{
		"bin/sh": "#!sh", "bin/bash": "#!bash", "usr/bin/sudo": "#!sudo", "etc/sudoers.d/": "", "etc/apt/apt.conf.d/": "",
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false", "etc/group": "root:x:0:\nother:x:1001:\n",
		"etc/shadow": "root:secret:::::::\n", "etc/gitconfig": "[user]\n\tname = x\n", "etc/resolv.conf": "-> /run/resolv.conf",
		".sprite/environment.json": `{"SLY":"1"}`, "tmp/left": "left",
	})
	top := layer(t, map[string]string{"bin/bash": "!"})
	if err := os.Chmod(filepath.Join(low, "etc/shadow"), 0o600); err != nil {
		t.Fatal(err)
	}
	img := image(low, top)
	img.Env = []string{"PATH=/opt/x:/bin", "A=1", "HOME=/root", "A=2", "broken", "=x"}
	f, dir := fit(t, img)
	want := boot.Defaults{Account: boot.Account{Name: "sprite", UID: 1002, GID: 1002, Home: "/home/sprite", Shell: "/bin/sh"}, Workdir: "/home/sprite", Env: []string{"PATH=/opt/x:/bin", "A=2"}}
	if !reflect.DeepEqual(f.Defaults, want) {
		t.Errorf("got %+v, want %+v", f.Defaults, want)
	}
	for name, want := range map[string]string{
		"etc/passwd":                "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false\nsprite:x:1002:1002:sprite:/home/sprite:/bin/sh\n",
		"etc/group":                 "root:x:0:\nother:x:1001:\nsprite:x:1002:\n",
		"etc/shadow":                "root:secret:::::::\nsprite:*:19000:0:99999:7:::\n",
		"etc/sudoers.d/zz-cove":     "Defaults:sprite !lecture, !fqdn\nsprite ALL=(ALL:ALL) NOPASSWD: ALL\n",
		"etc/resolv.conf":           resolvConf,
		"etc/gitconfig":             "[user]\n\tname = x\n" + gitConfig,
		"etc/apt/apt.conf.d/90cove": aptConf,
		".sprite/environment.json":  "(none)",
		"tmp/left":                  "left",
	} {
		if got := shown(t, img, f, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got := shown(t, img, f, "etc/profile.d/zz-sprite.sh"); !strings.Contains(got, `$HOME/.local/bin:"'/opt/x:/bin' ;;`) {
		t.Errorf("a login shell's PATH: %s", got)
	}
	for name, want := range map[string]fs.FileMode{"etc/shadow": 0o600, "home/sprite": fs.ModeDir | 0o755, "tmp": fs.ModeDir | fs.ModeSticky | 0o777, "proc": fs.ModeDir | 0o555, "etc/sudoers.d/zz-cove": 0o440} {
		st, err := os.Stat(filepath.Join(f.Dir, name))
		if err != nil || st.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", name, st.Mode(), err, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(f.Dir, "home/sprite"), &st); err != nil || st.Uid != 1002 {
		t.Errorf("home: %d, %v", st.Uid, err)
	}

	// It is made once.
	mark := filepath.Join(f.Dir, "mark")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", f.Name} {
		again, err := img.Fit(dir, name, false)
		if err != nil || again.Dir != f.Dir || !exists(mark) {
			t.Errorf("again: %+v, %v", again, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v, want the fitting alone", entries, err)
	}
	other := img
	other.Digest = img.Digest[:40] + strings.Repeat("0", 31)
	if _, err := other.Fit(dir, "", false); err == nil || !strings.Contains(err.Error(), "belongs to image") {
		t.Errorf("another image with the same beginning: %v", err)
	}
	for _, name := range []string{"../x", "host-1", "image-0"} {
		if _, err := img.Fit(dir, name, false); err == nil {
			t.Errorf("the fitting %s was found", name)
		}
	}
}

// TestFitKilled: a fitting that a server left unfinished is made anew. Only the next server
// may remove a fitting that is being made.
func TestFitKilled(t *testing.T) {
	need.Root(t)
	img, dir := image(layer(t, map[string]string{"bin/sh": "#!sh"})), t.TempDir()
	making, err := stageFitting(dir)
	if err == nil {
		err = (&Hider{Dir: dir}).Prune(Mask{})
	}
	if err != nil || !exists(filepath.Join(making, fittingTree)) {
		t.Fatalf("Prune removed a fitting that is being made: %v", err)
	}
	part := filepath.Join(dir, img.fittingName(false), fittingTree, "etc/passwd")
	if err := errors.Join(os.MkdirAll(filepath.Dir(part), 0o755), os.WriteFile(part, []byte("part"), 0o600)); err != nil {
		t.Fatal(err)
	}
	f, err := img.Fit(dir, img.fittingName(false), false)
	if err != nil {
		t.Fatalf("a folder without its record: %v", err)
	}
	if got := shown(t, img, f, "etc/passwd"); !strings.Contains(got, "sprite:") {
		t.Errorf("passwd: %q", got)
	}
	// Another one that was made at the same time does not take its place.
	mark := filepath.Join(f.Dir, "mark")
	if err := errors.Join(os.WriteFile(mark, nil, 0o600), img.makeFitting(dir, f.Name, false)); err != nil || !exists(mark) {
		t.Errorf("a fitting in use was made anew: %v", err)
	}
	for range 2 {
		if err := SweepFittings(dir, func(string) bool { return false }); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || !exists(mark) {
		t.Errorf("got %v, %v, want the fitting alone", entries, err)
	}
	if err := SweepFittings(filepath.Join(dir, "none"), func(string) bool { return true }); err != nil {
		t.Error(err)
	}
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// TestFitUsers: an image's USER says which user commands run as, and where they start.
func TestFitUsers(t *testing.T) {
	need.Root(t)
	const passwd = "root:x:0:0::/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/bash\nsvc:x:5:6::/nonexistent:/usr/sbin/nologin\n"
	of := layer(t, map[string]string{"bin/bash": "#!bash", "etc/passwd": passwd, "etc/group": "node:x:1000:\nstaff:x:50:node\n", "home/node/": "", "usr/sbin/nologin": "#!"})
	bare := layer(t, nil)
	for _, test := range []struct {
		of, user, workdir string
		want              boot.Account
		at                string
	}{
		{of, "node", "", boot.Account{Name: "node", UID: 1000, GID: 1000, Home: "/home/node", Shell: "/bin/bash"}, "/home/node"},
		{of, "1000", "/srv/../app", boot.Account{Name: "node", UID: 1000, GID: 1000, Home: "/home/node", Shell: "/bin/bash"}, "/app"},
		{of, "node:staff", "app", boot.Account{Name: "node", UID: 1000, GID: 50, Groups: []int{50}, Home: "/home/node", Shell: "/bin/bash"}, "/home/node"},
		{of, "svc", "", boot.Account{Name: "svc", UID: 5, GID: 6, Home: "/nonexistent", Shell: "/bin/bash"}, "/"},
		{of, "77", "", boot.Account{Name: "77", UID: 77, Groups: []int{0}, Home: "/", Shell: "/bin/bash"}, "/"},
		{bare, "1000:1000", "", boot.Account{Name: "1000", UID: 1000, GID: 1000, Groups: []int{1000}, Home: "/"}, "/"},
		{bare, "", "", boot.Account{Name: "sprite", UID: 1001, GID: 1001, Home: "/home/sprite"}, "/home/sprite"},
		{of, "root", "", boot.Account{Name: "root", Home: "/root", Shell: "/bin/bash"}, "/"},
	} {
		img := image(test.of)
		img.User, img.Workdir = test.user, test.workdir
		f, _ := fit(t, img)
		if got := f.Defaults; !reflect.DeepEqual(got.Account, test.want) || got.Workdir != test.at {
			t.Errorf("%s: got %+v, want %+v in %s", test.user, got, test.want, test.at)
		}
		if got := shown(t, img, f, "etc/passwd"); test.of == of && got != passwd {
			t.Errorf("%s: an account was added: %s", test.user, got)
		}
	}
	img := image(of)
	img.User, img.Env = "node", []string{"HOME=/app"}
	if f, _ := fit(t, img); !slices.Equal(f.Defaults.Env, img.Env) {
		t.Errorf("the HOME of a USER: got %q", f.Defaults.Env)
	}
	// Users without a shell of their own get the shell that the image names.
	several := layer(t, map[string]string{"bin/bash": "#!bash", "bin/sh": "#!sh", "usr/bin/zsh": "#!zsh", "usr/bin/python": "#!", "etc/passwd": "node:x:1000:1000::/:/bin/bash\n"})
	for _, test := range [][3]string{
		{"", "", "/bin/bash"}, {"/bin/sh", "", "/bin/sh"}, {"zsh", "", "/usr/bin/zsh"}, {"/usr/bin/zsh", "5", "/usr/bin/zsh"}, {"/usr/bin/zsh", "node", "/bin/bash"},
		{"/opt/zsh", "", "/bin/bash"}, {"/usr/bin/python", "", "/bin/bash"}, {"../bin/sh", "", "/bin/sh"}, {"/bin/sh\n", "", "/bin/bash"},
	} {
		img := image(several)
		img.Shell, img.User = test[0], test[1]
		if f, _ := fit(t, img); f.Defaults.Account.Shell != test[2] {
			t.Errorf("SHELL %q, USER %q: got %s, want %s", test[0], test[1], f.Defaults.Account.Shell, test[2])
		}
	}
	img = image(of)
	img.HTTPPort = 80
	if f, _ := fit(t, img); f.Defaults.HTTPPort != 80 {
		t.Errorf("a port: got %+v", f.Defaults)
	}
	for _, user := range []string{"ghost", "node:ghost", ":", "-1", "99999999999", "node\x00"} {
		img := image(of)
		img.User = user
		if f, err := img.Fit(t.TempDir(), "", false); !errors.Is(err, ErrImage) {
			t.Errorf("user %q: got %+v, %v", user, f, err)
		}
	}
}

// TestFitHostile: no image makes Fit read a file of this machine, and an odd image still gets
// a fitting.
func TestFitHostile(t *testing.T) {
	need.Root(t)
	secret := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(secret, []byte("secret:x:4242:4242::/:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 4000)
	for name, files := range map[string]map[string]string{
		"a link out":            {"etc/passwd": "-> " + secret, "etc/group": "-> ../../../../../../.." + secret},
		"a link to itself":      {"etc": "-> etc", "tmp": "-> /tmp", "home": "-> ../home", ".sprite": "-> /etc"},
		"links in a ring":       {"etc": "-> a", "a": "-> b", "b": "-> /etc"},
		"a file for a folder":   {"etc": "text", "home": "text", "tmp": "text", "proc": "text", ".sprite": "text"},
		"a folder for a file":   {"etc/passwd/x": "", "etc/group/x": "", "etc/shadow/x": "", "etc/gitconfig/x": "", "etc/resolv.conf/x": "", "etc/hosts/x": ""},
		"/etc is elsewhere":     {"etc": "-> usr/./etc", "usr/etc/passwd": "root:x:0:0::/:/bin/sh\n", "home": "-> /var/home"},
		"/etc is in /proc":      {"etc": "-> proc/etc"},
		"malformed lines":       {"etc/passwd": "::::::\n:x:\nx\nsprite:x:y:z:::\nbig:x:99999999999:1:::\nneg:x:-5:-6:::\n\xff\xfe:x:1001:1001:::\n\x00", "etc/group": "x:x\n:::\nq:x:-1:\n"},
		"a huge file":           {"etc/passwd": strings.Repeat("a:x:1001:1001:::\n", 1<<17)},
		"its own sprite's root": {"etc/passwd": "sprite:x:0:0::" + long + long + ":/bin/sh\n"},
	} {
		t.Run(name, func(t *testing.T) {
			img := image(layer(t, files))
			f, _ := fit(t, img)
			text := shown(t, img, f, "etc/passwd")
			if strings.Contains(text, "secret") || len(text) > 4<<20 {
				t.Errorf("passwd: %.200q", text)
			}
			if own := f.Defaults.Account; own.Name != "sprite" || own.Home != "/home/sprite" || own.Shell != "" {
				t.Errorf("got %+v", own)
			}
			if name == "/etc is elsewhere" && (text != "root:x:0:0::/:/bin/sh\nsprite:*:1001:1001:sprite:/home/sprite:/sbin/nologin\n" || !exists(filepath.Join(f.Dir, "var/home/sprite")) || exists(filepath.Join(f.Dir, "etc"))) {
				t.Errorf("passwd: %q", text)
			}
			for _, folder := range []string{"proc", "sys", "dev", "tmp", "run", ".sprite/bin"} {
				if st, err := os.Lstat(filepath.Join(f.Dir, folder)); err != nil || !st.IsDir() {
					t.Errorf("%s: %v, %v", folder, st, err)
				}
			}
		})
	}
	for name, files := range map[string]map[string]string{
		"a home that is the root":    {"home/sprite": "-> /"},
		"a folder in a file of ours": {"etc/passwd": "root:x:0:0::/:/bin/sh\n", "etc/profile.d": "-> /etc/passwd/x"},
		"a file that is a folder":    {"etc/profile.d": "-> /etc/hosts", "etc/hosts": "x"},
	} {
		if f, err := image(layer(t, files)).Fit(t.TempDir(), "", false); !errors.Is(err, ErrImage) {
			t.Errorf("%s: got %+v, %v", name, f, err)
		}
	}
	img := image(layer(t, nil))
	for i := range 3000 {
		img.Env = append(img.Env, fmt.Sprintf("V%d=%s", i, long))
	}
	if _, err := img.Fit(t.TempDir(), "", false); !errors.Is(err, ErrImage) {
		t.Errorf("a large environment: %v", err)
	}
}

// TestVariables: the last one of doubles counts, and however many there are, each is looked at
// once.
func TestVariables(t *testing.T) {
	var img Image
	var want []string
	const doubles = 10
	for i := range 500 * doubles {
		pair := fmt.Sprintf("%s%d=%d", strings.Repeat("V", 40), i%500, i)
		if img.Env = append(img.Env, pair); i >= 500*(doubles-1) {
			want = append(want, pair)
		}
	}
	got, err := img.variables()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	if allocs := testing.AllocsPerRun(1, func() { _, _ = img.variables() }); allocs > float64(len(img.Env)) {
		t.Errorf("%v allocations for %d variables: they are compared with each other", allocs, len(img.Env))
	}
}

// FuzzAccounts: whatever an image's user database says, the accounts read from it are sound.
func FuzzAccounts(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\nsprite:x:1001:1001::/:\n"), []byte("root:x:0:\nx:x:1001:a,b\n"), "root:x")
	f.Add([]byte("::::::\na:x:-1:+2:::\nb:x:4294967295:0:::\r\n\x00"), []byte(":::\n"), "0:0")
	f.Fuzz(func(t *testing.T, passwd, group []byte, user string) {
		a := readAccounts(passwd, group)
		id := a.freeID()
		for _, u := range a.users {
			if u.uid == id || u.gid == id || u.uid < 0 || u.gid < 0 || u.uid > maxID || u.gid > maxID || u.name == "" || strings.ContainsAny(u.name+u.home+u.shell, ":\n") {
				t.Errorf("user %+v, free number %d", u, id)
			}
		}
		for _, g := range a.groups {
			if g.gid == id || g.gid < 0 || g.gid > maxID || g.name == "" {
				t.Errorf("group %+v, free number %d", g, id)
			}
		}
		if u, ok := a.user(user); ok && !slices.Contains(a.users, u) {
			t.Errorf("user %q is %+v", user, u)
		}
	})
}
