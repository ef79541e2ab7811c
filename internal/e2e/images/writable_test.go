package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/userns"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// addPrograms copies programs of this machine and files into a layer, with the libraries that
// they need.
func addPrograms(t testing.TB, dir string, programs []string, files ...string) {
	t.Helper()
	ldd := need.Program(t, "ldd", "libc-bin")
	for _, name := range programs {
		at, err := exec.LookPath(name)
		if err != nil {
			if at, err = exec.LookPath("/usr/sbin/" + name); err != nil {
				at, err = exec.LookPath("/sbin/" + name)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, at)
	}
	have := map[string]bool{}
	for len(files) > 0 {
		at := files[0]
		if files = files[1:]; have[at] {
			continue
		}
		have[at] = true
		to := filepath.Join(dir, at)
		mkdir(t, filepath.Dir(to))
		copyFile(t, to, at)
		out, _ := exec.Command(ldd, at).CombinedOutput() // one that is linked statically is an error
		for _, word := range strings.Fields(string(out)) {
			if filepath.IsAbs(word) && !strings.HasSuffix(word, ":") {
				files = append(files, word)
			}
		}
	}
}

// packagesLayer is a layer with this machine's sudo and dpkg over the small system, and the
// files that they need.
func packagesLayer(t testing.TB) string {
	t.Helper()
	dir := folder(t)
	need.Program(t, "sudo", "sudo")
	var files []string
	for _, pattern := range []string{"/usr/libexec/sudo/*.so*", "/usr/lib/sudo/*.so*", "/lib/*/security/pam_permit.so"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	addPrograms(t, dir, []string{"sudo", "dpkg", "dpkg-deb", "dpkg-split", "dpkg-query", "tar", "ldconfig", "start-stop-daemon"}, files...)
	if err := os.Chmod(filepath.Join(dir, mustLook(t, "sudo")), os.ModeSetuid|0o755); err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"sudo", "sudo-i", "other"} {
		write(t, filepath.Join(dir, "etc/pam.d", service), "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_permit.so\n")
	}
	write(t, filepath.Join(dir, "etc/sudoers"), "root ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n")
	if err := os.Chmod(filepath.Join(dir, "etc/sudoers"), 0o440); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "var/lib/dpkg/status"), "")
	for _, name := range []string{"info", "updates", "triggers", "alternatives"} {
		mkdir(t, filepath.Join(dir, "var/lib/dpkg", name))
	}
	mkdir(t, filepath.Join(dir, "var/log"))
	ownPackage(t, dir, "")
	return dir
}

// ownPackage makes a package in a layer, /own.deb, which runs a script when it is installed.
func ownPackage(t testing.TB, layer, script string) {
	t.Helper()
	own := folder(t)
	write(t, filepath.Join(own, "DEBIAN/control"), "Package: own\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: a test\n")
	write(t, filepath.Join(own, "usr/share/own/file"), "of the package\n")
	if script != "" {
		at := filepath.Join(own, "DEBIAN/postinst")
		write(t, at, "#!/bin/sh\nset -e\n"+script+"\n")
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", own, filepath.Join(layer, "own.deb")).CombinedOutput(); err != nil {
		t.Fatalf("make a package: %v: %s", err, out)
	}
}

func mustLook(t testing.TB, name string) string {
	t.Helper()
	at, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// writable checks that all below / can be written, and that packages can be installed.
func writable(s *server) {
	s.t.Helper()
	s.in.put("packages", base.Image{}, busyboxLayer(s.t), packagesLayer(s.t))
	s.create("paint", "packages")
	dpkg := mustLook(s.t, "dpkg") // the shell would take its own
	if got := s.sh("paint", "sudo -n id -u; sudo -n "+dpkg+" -i /own.deb >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; cat /usr/share/own/file; "+dpkg+" -s own | grep ^Status"); got != "0\nof the package\nStatus: install ok installed" {
		s.t.Errorf("got %q", got)
	}
	const change = `for f in /own /usr/own /usr/bin/own /etc/own /bin/own /lib/own /opt/own /var/own; do mkdir -p $(dirname $f); echo x >$f; chown 1234:5678 $f; done
		rm /bin/ed; mv /usr/share /usr/moved; echo more >>/etc/os-release; chmod 4755 /bin/busybox; chown -R 7:8 /etc/pam.d; stat -c '%u:%g' /usr/bin/own /etc/pam.d/other /bin /etc/passwd`
	if got := s.sh("paint", "sudo -n sh -ec '"+strings.ReplaceAll(change, "'", `'\''`)+"'"); got != "1234:5678\n7:8\n0:0\n0:0" {
		s.t.Errorf("got %q", got)
	}
	if err := s.Host.Stop(s.t.Context(), "paint"); err != nil {
		s.t.Fatal(err)
	}
	if got := s.sh("paint", "cat /usr/moved/own/file; ! [ -e /bin/ed ]; tail -n 1 /etc/os-release; stat -c '%u:%g' /var/own; find / -xdev -user 65534 2>/dev/null | grep -v ^/proc || true"); got != "of the package\nmore\n1234:5678" {
		s.t.Errorf("after another boot: got %q", got)
	}
}

// TestImageWritable: over an image, root in the sprite can write everywhere below /.
func TestImageWritable(t *testing.T) { writable(newServer(t)) }

// TestImageOrdinaryUser is TestImageWritable on an ordinary user's server.
func TestImageOrdinaryUser(t *testing.T) {
	const own = "^TestImageOrdinaryUser$"
	if inNamespace(t, own, writable) {
		return
	}
	e2e.RequireSandbox(t)
	t.Parallel()
	e2e.AsOrdinaryUser(t, own, "15m")
}

// inNamespace runs f on an ordinary user's server: it runs the test again in a user namespace.
// For root it does nothing, and reports false.
func inNamespace(t *testing.T, test string, f func(*server)) bool {
	t.Helper()
	switch {
	case userns.Inside():
		dir := filepath.Join(e2e.TempDir(t), "data")
		in := &shelf{}
		rt := runtimeOver(t, dir, in)
		rt.UserNS = true
		s := &server{t: t, in: in, Server: covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt, Host: &sprite.Host{Images: in, Data: dir}})}
		s.deleteAll()
		f(s)
	case os.Geteuid() != 0:
		unshare := need.Program(t, "unshare", "util-linux")
		need.Program(t, "newuidmap", "uidmap")
		cmd := exec.Command(unshare, "--user", "--map-root-user", "--map-auto", os.Args[0], "-test.run="+test, "-test.v=true", "-test.timeout=30m")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: "+strings.Trim(test, "^$")) {
			t.Fatalf("in a user namespace: %v\n%s", err, out)
		}
	default:
		return false
	}
	return true
}

// debianVariable names a tar of a Debian system, for the run of an ordinary user.
const debianVariable = "COVE_TEST_DEBIAN"

// debianLayer is a small Debian system with apt and sudo.
func debianLayer(t testing.TB) string {
	t.Helper()
	dir := folder(t)
	from := os.Getenv(debianVariable)
	if out, err := exec.Command("tar", "--numeric-owner", "--exclude=./dev/*", "-xpf", from, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("extract %s: %v: %s", from, err, out)
	}
	ownPackage(t, dir, "id owner >/dev/null 2>&1 || useradd --system --user-group owner; chown owner:owner /usr/share/own/file")
	return dir
}

// installs checks that the sprite's user can install packages.
func installs(s *server) {
	s.t.Helper()
	s.in.put("debian", base.Image{}, debianLayer(s.t))
	s.create("paint", "debian")
	s.sh("paint", "sudo -n apt-get install -y /own.deb >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; sudo -n apt-get purge -y own >>/tmp/log 2>&1; sudo -n apt-get install -y /own.deb >>/tmp/log 2>&1")
	if got := s.sh("paint", `dpkg -s own | grep ^Status; stat -c %U:%G /usr/share/own/file; id -un; echo $SHELL`); got != "Status: install ok installed\nowner:owner\nsprite\n/bin/bash" {
		s.t.Errorf("got %q", got)
	}
	if _, err := s.Client().Sprite("paint").Suspend(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	if got := s.sh("paint", `bash -lc 'id -un; sudo -n id -u'`); got != "sprite\n0" {
		s.t.Errorf("after a sleep: got %q", got)
	}
}

// TestSoakImageDebian: images with and without Debian's packages go through a registry to
// another server. Over Debian, apt-get installs packages on root's server and on an ordinary
// user's, whose jobs do so too. In the default image, the SDKs' examples run.
func TestSoakImageDebian(t *testing.T) {
	const own = "^TestSoakImageDebian$"
	if os.Geteuid() != 0 { // but not in the namespace
		pushed(t, os.Getenv(debianVariable))
	}
	if inNamespace(t, own, installs) {
		return
	}
	if !e2e.Soak() {
		t.Skip("COVE_SOAK=1 runs it")
	}
	tar := makeDebian(t, "git")
	t.Setenv(debianVariable, tar)
	t.Run("registry", func(t *testing.T) { throughRegistry(t, tar) })
	t.Run("root", func(t *testing.T) { installs(serve(t, filepath.Join(e2e.TempDir(t), "data"), &shelf{})) })
	t.Run("user", func(t *testing.T) { e2e.AsOrdinaryUser(t, own, "60m") })
	t.Run("default", func(t *testing.T) { defaultImage(t, tar) })
	t.Run("browser", func(t *testing.T) { browserImage(t, tar) })
}
