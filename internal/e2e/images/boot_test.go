package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// TestSmallImage: a sprite over an image has the image's files and variables, an account of
// its own, and nothing of this machine.
func TestSmallImage(t *testing.T) {
	s := newServer(t)
	top := folder(t)
	write(t, filepath.Join(top, "etc/greeting"), "hello")
	whiteout(t, filepath.Join(top, "bin/vi"))
	s.in.put("small:1", base.Image{Env: []string{"PATH=/opt/tools:/bin", "COLOUR=blue", "SHAPE=round"}}, busyboxLayer(t), top)
	info, err := s.Client().Create(t.Context(), sprites.CreateRequest{
		Name: "paint", Config: &sprites.Config{Image: "small:1"}, Environment: map[string]string{"SHAPE": "square"}, IdleSeconds: new(int64),
	})
	if err != nil {
		t.Fatal(err)
	}
	digest := s.in.byName["small:1"].Digest
	list, err := s.Client().List(t.Context(), sprites.ListOptions{})
	if err != nil || len(list.Sprites) != 1 {
		t.Fatal(list, err)
	}
	for _, got := range []sprites.Info{info, list.Sprites[0]} {
		if got.Config == nil || got.Config.Image != "small:1" || got.Cove.Base != digest {
			t.Errorf("it is described by %+v, %+v, want image small:1 and %s", got.Config, got.Cove, digest)
		}
	}
	for script, want := range map[string]string{
		"id -un; id -u; id -g; pwd; echo $HOME $SHELL":            "sprite\n1001\n1001\n/home/sprite\n/home/sprite /bin/sh",
		"echo $COLOUR $SHAPE; echo $PATH":                         "blue square\n/.sprite/bin:/home/sprite/.local/bin:/opt/tools:/bin",
		"cat /etc/os-release /etc/greeting":                       "ID=small\nhello",
		"ls -A /usr /usr/bin /usr/sbin /lib":                      "/lib:\n\n/usr:\nbin\nsbin\n\n/usr/bin:\n\n/usr/sbin:",
		"ls /bin/vi 2>&1 || true":                                 "ls: /bin/vi: No such file or directory",
		"hostname; cat /etc/hostname; grep -c paint /etc/hosts":   "paint\npaint\n1",
		"touch /tmp/x ~/y; stat -c '%a %U' /tmp /home/sprite ~/y": "1777 root\n755 sprite\n644 sprite",
		"tail -n 1 /etc/passwd; tail -n 1 /etc/group":             "sprite:x:1001:1001:sprite:/home/sprite:/bin/sh\nsprite:x:1001:",
		"sprite-env info >/dev/null && echo told":                 "told",
		"sh -lc 'echo $PATH'":                                     "/.sprite/bin:/home/sprite/.local/bin:/opt/tools:/bin",
	} {
		if got := s.sh("paint", script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	root := s.Client().Sprite("paint").Command("sh", "-ec", "id -u; echo x >/usr/own; rm /bin/ed; cat /etc/shadow | wc -l ; echo ada:x:7:7::/:/bin/sh >>/etc/passwd; id -un ada")
	root.User = "root"
	if out, err := root.CombinedOutput(); err != nil || string(out) != "0\n3\nada\n" {
		t.Errorf("as root: %v: %s", err, out)
	}
	console := s.Client().Sprite("paint").Command("/bin/sh", "-c", `exec "${SHELL:-/bin/bash}" -l`) // as cove console does
	console.TTY, console.Stdin = &sprites.Terminal{}, strings.NewReader("tty; echo mark$((40+2))\nexit 7\n")
	out, err := console.CombinedOutput()
	if exit, ok := err.(*sprites.ExitError); !ok || exit.Code != 7 || !strings.Contains(string(out), "/dev/pts/") || !strings.Contains(string(out), "mark42") { //nolint:errorlint // Command's own
		t.Errorf("console: %v: %s", err, out)
	}
	// No part of the host base was made for it.
	if made, err := filepath.Glob(filepath.Join(s.Dir, "base", "*")); err != nil || len(made) != 1 || !strings.HasPrefix(filepath.Base(made[0]), "image-") {
		t.Errorf("bases: %q, %v", made, err)
	}
}

// TestScratch: an image of one program boots, and says that it has no shell.
func TestScratch(t *testing.T) {
	s := newServer(t)
	bare := folder(t)
	copyFile(t, filepath.Join(bare, "busybox"), need.Program(t, "busybox", "busybox-static"))
	s.in.put("scratch", base.Image{}, bare)
	s.create("bare", "scratch")
	if got := s.run("bare", "/busybox", "id", "-u"); got != "1001" {
		t.Errorf("got %q", got)
	}
	if got := s.run("bare", "/busybox", "ls", "-A", "/"); got != ".sprite\nbusybox\ndev\netc\nhome\nproc\nroot\nrun\nsys\ntmp" {
		t.Errorf("got %q", got)
	}
	if got := s.run("bare", "/busybox", "cat", "/etc/passwd"); got != "root:*:0:0:root:/root:/sbin/nologin\nsprite:*:1001:1001:sprite:/home/sprite:/sbin/nologin" {
		t.Errorf("got %q", got)
	}
	for _, argv := range [][]string{{"/bin/sh", "-c", `exec "${SHELL:-/bin/bash}" -l`}} {
		console := s.Client().Sprite("bare").Command(argv[0], argv[1:]...)
		console.TTY = &sprites.Terminal{}
		out, err := console.CombinedOutput()
		if exit, ok := err.(*sprites.ExitError); !ok || exit.Code != 127 || !strings.Contains(string(out)+err.Error(), "there is no shell here") { //nolint:errorlint // Command's own
			t.Errorf("%q: %v: %s", argv, err, out)
		}
	}
}

// TestImageUser: commands run as the image's USER, in its WORKDIR.
func TestImageUser(t *testing.T) {
	s := newServer(t)
	top := folder(t)
	small := busyboxLayer(t)
	passwd, err := os.ReadFile(filepath.Join(small, "etc/passwd"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(top, "etc/passwd"), string(passwd)+"node:x:1000:1000::/home/node:/bin/sh\n")
	write(t, filepath.Join(top, "etc/group"), "root:x:0:\nnode:x:1000:\nstaff:x:50:node\n")
	mkdir(t, filepath.Join(top, "home/node"))
	if err := os.Chown(filepath.Join(top, "home/node"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(top, "none/etc/passwd"), "node:x:1000:1000::/:/bin/sh\n")
	s.in.put("rootless", base.Image{User: "node"}, small, filepath.Join(top, "none"))
	s.in.put("node", base.Image{User: "node"}, small, top)
	s.in.put("numbers", base.Image{User: "1234:5678", Workdir: "/app/in"}, small)
	s.in.put("ghost", base.Image{User: "ghost"}, small)
	s.create("one", "node")
	if got := s.sh("one", "id; pwd; touch x /home/sprite/y; ls -d /home/*"); got != "uid=1000(node) gid=1000(node) groups=50(staff),1000(node)\n/home/node\n/home/node\n/home/sprite" {
		t.Errorf("got %q", got)
	}
	s.create("two", "numbers")
	if got := s.sh("two", "id; pwd; echo $HOME"); got != "uid=1234 gid=5678 groups=5678\n/app/in\n/" {
		t.Errorf("got %q", got)
	}
	if err := s.Client().Sprite("one").Command("/bin/true").Run(); err != nil {
		t.Error(err)
	}
	s.create("four", "rootless")
	asRoot := s.Client().Sprite("four").Command("id", "-u")
	asRoot.User = "root"
	if out, err := asRoot.Output(); err != nil || string(out) != "0\n" {
		t.Errorf("root, whom the image does not name: %q, %v", out, err)
	}
	s.create("three", "ghost")
	wantCode(t, "a user whom the image does not have", s.Client().Sprite("three").Command("/bin/true").Run(), "image_bad", `"ghost"`)
}

// TestHostileImage: an image made to mislead cove boots or is refused. It shows nothing of
// this machine.
func TestHostileImage(t *testing.T) {
	s := newServer(t)
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "secret:x:1:1::/:/bin/sh\n")
	out := strings.Repeat("../", 20)
	for name, links := range map[string]map[string]string{
		"loops":   {"etc": "etc", "tmp": "/tmp", "home": "/home", "run": "run", ".sprite": "/.sprite", "dev": "dev"},
		"out":     {"etc": out + filepath.Dir(secret), "home": "/proc/1/root", "tmp": out + "tmp", "proc": out + "proc", "sys": "/etc", "dev": out + "dev", "run": out + "run", ".sprite": out + "tmp"},
		"secrets": {"etc/passwd": secret, "etc/group": out + secret, "etc/shadow": secret, "etc/hosts": secret, "etc/hostname": secret, "etc/machine-id": secret, "etc/resolv.conf": secret, "etc/gitconfig": secret},
	} {
		of := folder(t)
		copyFile(t, filepath.Join(of, "busybox"), need.Program(t, "busybox", "busybox-static"))
		for at, target := range links {
			mkdir(t, filepath.Dir(filepath.Join(of, at)))
			if err := os.Symlink(target, filepath.Join(of, at)); err != nil {
				t.Fatal(err)
			}
		}
		s.in.put(name, base.Image{Workdir: "/app/../../x", Env: []string{"LD_PRELOAD=/x", "\x00=", "HOME"}}, of)
		s.create(name, name)
		if got := s.run(name, "/busybox", "id"); !strings.HasPrefix(got, "uid=1001") {
			t.Errorf("%s: got %q", name, got)
		}
		// The guest writes into the sprite.
		for _, at := range []string{"/etc/passwd", "/etc/hosts", "/etc/gitconfig", secret} {
			text, err := s.Client().Sprite(name).Command("/busybox", "cat", at).CombinedOutput()
			if strings.Contains(string(text), "secret:") {
				t.Errorf("%s: %s is %q, %v", name, at, text, err)
			}
		}
		if got := s.run(name, "/busybox", "ls", "/.sprite"); !strings.Contains(got, "bin") {
			t.Errorf("%s: /.sprite has %q", name, got)
		}
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "secret:x:1:1::/:/bin/sh\n" {
		t.Errorf("the secret is %q, %v", text, err)
	}
}
