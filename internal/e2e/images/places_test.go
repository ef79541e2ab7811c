package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// TestImageDataCopied: in a copy of a stopped server's data folder, sprites over images are as
// they were, asleep or not, and the images too. Nothing needs the original.
func TestImageDataCopied(t *testing.T) { copied(t) }

// TestImageDataCopiedAsUser is TestImageDataCopied on an ordinary user's server.
func TestImageDataCopiedAsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		copied(t)
		return
	}
	e2e.RequireSandbox(t)
	t.Parallel()
	e2e.AsOrdinaryUser(t, "^TestImageDataCopiedAsUser$", "15m")
}

func copied(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	small, top := busyboxLayer(t), folder(t)
	write(t, filepath.Join(small, "srv/gone"), "x\n")
	write(t, filepath.Join(small, "srv/kept"), "of the image\n")
	write(t, filepath.Join(top, "srv/.wh.gone"), "")
	bring(h, "small:1", v1.Config{Env: []string{"PATH=/bin"}}, small, top)
	h.Write("app/Dockerfile", "FROM small:1\nRUN echo built >/srv/built\n")
	h.Run("app", "cove", "image", "build", "--tag", "built:1", ".")
	for sprite, image := range map[string]string{"cold": "small:1", "asleep": "built:1"} {
		h.Run("", "cove", "create", sprite, "--image", image)
		h.Sh(sprite, "echo one >kept")
		h.Run("", "cove", "checkpoint", "create", "-s", sprite)
		h.Run("", "cove", "exec", "-s", sprite, "--user", "root", "--", "sh", "-c", "rm /srv/kept; echo two >>/home/sprite/kept")
	}
	h.Run("", "cove", "exec", "-s", "asleep", "--detach", "sleep", "100000")
	h.Run("", "cove", "restart", "cold")
	h.Run("", "cove", "suspend", "cold", "asleep")
	h.Run("", "cove", "server", "stop")

	original := h.Data
	h.Data = h.Path("copied")
	by := []string{"cp", "-a", original, h.Data}
	if os.Geteuid() != 0 {
		by = append([]string{"unshare", "--map-root-user", "--map-auto"}, by...)
	}
	h.Run("", by[0], by[1:]...)
	if err := os.Rename(original, h.Path("away")); err != nil {
		t.Fatal(err)
	}

	h.Serve(nil)
	for sprite, image := range map[string]string{"cold": "small:1", "asleep": "built:1"} {
		h.Run("", "cove", "checkpoint", "verify", "-s", sprite)
		if out := h.Run("", "cove", "checkpoint", "diff", "v1", "-s", sprite); !strings.Contains(out, "/srv/kept") || !strings.Contains(out, "/home/sprite/kept") {
			t.Errorf("diff of %s: %s", sprite, out)
		}
		if got := h.Sh(sprite, "cat kept; ls /srv"); got != map[string]string{"small:1": "one\ntwo\n", "built:1": "one\ntwo\nbuilt\n"}[image] {
			t.Errorf("%s has %q", sprite, got)
		}
		if out := h.Run("", "cove", "info", sprite); !strings.Contains(out, image) {
			t.Errorf("%s is not over %s: %s", sprite, image, out)
		}
	}
	if got := h.Sh("asleep", "pidof sleep | wc -w"); got != "1\n" {
		t.Errorf("of the program that slept there are %s", got)
	}
	h.Run("", "cove", "restore", "v1", "-s", "cold")
	h.Run("", "cove", "fork", "cold", "forked")
	h.Run("", "cove", "create", "new", "--image", "built:1")
	for sprite, want := range map[string]string{"forked": "one\nof the image\n", "new": "built\nof the image\n"} {
		file := map[string]string{"forked": "kept", "new": "/srv/built"}[sprite]
		if got := h.Sh(sprite, "cat "+file+" /srv/kept"); got != want {
			t.Errorf("%s has %q, want %q", sprite, got, want)
		}
	}
	h.Run("", "cove", "image", "commit", "asleep", "made:1")
	out := h.Run("app", "sh", "-c", "cove image build --tag built:1 . 2>&1")
	if !strings.Contains(out, "cached: ") {
		t.Errorf("the steps of a build that was copied are done again: %s", out)
	}
	h.Run("", "sh", "-c", "cove image save made:1 | cove image import - --name again:1")
}

// inContainer is a script that runs as the first process of a container like Docker's. All
// that it sees is on an overlay of its own, except the folder $1, a volume.
const inContainer = `set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mkdir "$1/c"
mount -t tmpfs container "$1/c"
mkdir "$1/c/upper" "$1/c/work" "$1/c/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/c/upper,workdir=$1/c/work" container "$1/c/root"
root=$1/c/root
mkdir -p "$root$1" "$root$2"
mount --bind "$1" "$root$1"
mount --bind "$2" "$root$2"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
cd "$root"
pivot_root . .
umount -l .
cd /
exec cove serve --addr 127.0.0.1:0
`

// TestImageInContainer: a server in a privileged container, on an overlay, extracts images onto
// its volume, and its sprites start from them.
func TestImageInContainer(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	need.Root(t)
	h := e2e.NewHost(t)
	dir := filepath.Dir(h.Home)
	container := h.Command("", "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inContainer, "sh", dir, h.Bin)
	log, err := os.Create(h.Path("container.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	container.Stdout, container.Stderr = log, log
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = container.Wait(); close(ended) }()
	first := ""
	t.Cleanup(func() { // before the server that removes the sprites
		if first != "" {
			_ = exec.Command("kill", "-TERM", first).Run()
		}
		<-ended
	})
	e2e.Await(t, "the server", func() bool {
		select {
		case <-ended:
			t.Fatalf("the container ended: %s", e2e.ReadFile(t, log.Name()))
		default:
		}
		out, err := exec.Command("pgrep", "--parent", strconv.Itoa(container.Process.Pid)).Output()
		first = strings.TrimSpace(string(out))
		_, serves := e2e.ServerPID(h.Data)
		return err == nil && serves == nil
	})
	inside := func(args ...string) string {
		t.Helper()
		return h.Run("", "nsenter", append([]string{"--target", first, "--mount", "--pid", "sh", "-c", `cd "$0" && exec cove "$@"`, dir}, args...)...)
	}

	small, top := busyboxLayer(t), folder(t)
	write(t, filepath.Join(small, "srv/gone"), "x\n")
	write(t, filepath.Join(small, "srv/kept"), "of the image\n")
	write(t, filepath.Join(top, "srv/.wh.gone"), "")
	save(t, h.Path("small.tar"), "small:1", v1.Config{Env: []string{"PATH=/bin"}}, small, top)
	inside("image", "import", "small.tar")
	h.Write("app/Dockerfile", "FROM small:1\nRUN echo built >/srv/built; rm /srv/kept\n")
	inside("image", "build", "--tag", "built:1", "app")
	for sprite, want := range map[string]string{"small": "kept\n", "built": "built\n"} {
		inside("create", sprite, "--image", sprite+":1")
		if got := inside("exec", "-s", sprite, "--", "ls", "/srv"); got != want {
			t.Errorf("%s has %q, want %q", sprite, got, want)
		}
		inside("exec", "-s", sprite, "--user", "root", "--", "sh", "-c", "rm -r /srv; echo changed >/etc/own")
		inside("checkpoint", "create", "-s", sprite)
		inside("restart", sprite)
		if got := inside("exec", "-s", sprite, "--", "cat", "/etc/own"); got != "changed\n" {
			t.Errorf("%s: after another boot it has %q", sprite, got)
		}
		inside("checkpoint", "verify", "-s", sprite)
	}
}
