package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/runtime/gvisor"
	"github.com/cove-dev/cove/internal/server/sprite"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/test/covetest"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// A server is a server whose sprites may start from images.
type server struct {
	*covetest.Server
	t  testing.TB
	in *shelf
}

// shelf has extracted images by name, like a store of images.
type shelf struct {
	rows *store.Images // of the last server over it

	mu     sync.Mutex
	byName map[string]base.Image
}

// Resolve returns the digest of an image.
func (s *shelf) Resolve(_ context.Context, ref string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	img, ok := s.byName[ref]
	if !ok {
		return "", fail.Newf("image_not_found", "", "there is no image %s", ref)
	}
	return img.Digest, nil
}

// find finds an image by its digest.
func (s *shelf) find(_ context.Context, digest string) (base.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, img := range s.byName {
		if img.Digest == digest {
			return img, nil
		}
	}
	return base.Image{}, fail.Newf("image_not_found", "", "there is no image %s", digest)
}

// put puts an image of layers (the lowest first) on the shelf.
func (s *shelf) put(name string, img base.Image, of ...string) {
	defer func() {
		if err := s.rows.Put(context.Background(), store.Image{Digest: s.byName[name].Digest, Doc: []byte("{}"), Pulled: time.Now()}); err != nil {
			panic(err)
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := sha256.Sum256([]byte(name + strings.Join(of, ":")))
	img.Digest, img.Lowers = "sha256:"+hex.EncodeToString(sum[:]), slices.Clone(of)
	slices.Reverse(img.Lowers)
	if s.byName == nil {
		s.byName = map[string]base.Image{}
	}
	s.byName[name] = img
}

func (s *shelf) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, name)
}

// runtimeOver returns a runtime of a data folder, with the images of a shelf.
func runtimeOver(t testing.TB, dir string, in *shelf) *gvisor.Runtime {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	rt := &gvisor.Runtime{
		Dir: dir, Runsc: filepath.Join(e2e.BinDir, "cove-runsc"), Guest: filepath.Join(e2e.BinDir, "cove-guest"), Shim: []string{filepath.Join(e2e.BinDir, "cove"), "shim"},
		Images: in.find, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return rt
}

// serve starts a server over a data folder.
func serve(t testing.TB, dir string, in *shelf) *server {
	t.Helper()
	rt := runtimeOver(t, dir, in)
	s := &server{t: t, in: in, Server: covetest.Start(t, covetest.Options{Dir: dir, Runtime: rt, Host: &sprite.Host{Images: in, Data: dir}})}
	s.deleteAll()
	return s
}

// deleteAll has all sprites deleted when the test ends.
func (s *server) deleteAll() {
	t := s.t
	s.in.rows = s.Store.Images
	t.Cleanup(func() { // before the server ends
		list, err := s.Client().List(context.Background(), sprites.ListOptions{})
		if err != nil {
			return // it was stopped
		}
		for _, info := range list.Sprites {
			if err := s.Host.Delete(context.Background(), info.Name, true); err != nil {
				t.Error(err)
			}
		}
	})
}

func newServer(t *testing.T) *server {
	t.Helper()
	e2e.RequireSandbox(t)
	need.Root(t)
	t.Parallel()
	return serve(t, filepath.Join(e2e.TempDir(t), "data"), &shelf{})
}

// create makes a sprite over an image.
func (s *server) create(name, image string) sprites.Info {
	s.t.Helper()
	sprite, err := s.Client().Create(s.t.Context(), sprites.CreateRequest{Name: name, Config: &sprites.Config{Image: image}, IdleSeconds: new(int64)})
	if err != nil {
		s.t.Fatal(err)
	}
	return sprite
}

// run runs a command in a sprite.
func (s *server) run(name string, argv ...string) string {
	s.t.Helper()
	out, err := s.Client().Sprite(name).CommandContext(s.t.Context(), argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%q in %s: %v: %s", argv, name, err, out)
	}
	return strings.TrimSpace(string(out))
}

// sh runs a script in a sprite.
func (s *server) sh(name, script string) string {
	s.t.Helper()
	return s.run(name, "sh", "-ec", script)
}

// busyboxLayer is the layer of a small image: a static busybox, links to it as its programs,
// and a short user database.
func busyboxLayer(t testing.TB) string {
	t.Helper()
	program := need.Program(t, "busybox", "busybox-static")
	dir := folder(t)
	for _, name := range []string{"bin", "usr/bin", "usr/sbin", "sbin", "etc", "root", "home", "lib"} {
		mkdir(t, filepath.Join(dir, name))
	}
	copyFile(t, filepath.Join(dir, "bin/busybox"), program)
	applets, err := exec.Command(program, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(applets)) {
		if name == "busybox" {
			continue
		}
		if err := os.Symlink("/bin/busybox", filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")
	write(t, filepath.Join(dir, "etc/group"), "root:x:0:\nwheel:x:10:root\nnobody:x:65534:\n")
	write(t, filepath.Join(dir, "etc/shadow"), "root:*::0:::::\nnobody:!::0:::::\n")
	write(t, filepath.Join(dir, "etc/os-release"), "ID=small\n")
	write(t, filepath.Join(dir, "etc/profile"), "export PATH=/usr/bin:/bin\nfor f in /etc/profile.d/*.sh; do [ -r $f ] && . $f; done\n")
	return dir
}

func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(e2e.TempDir(t), "layer")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func mkdir(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, name, text string) {
	t.Helper()
	mkdir(t, filepath.Dir(name))
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func whiteout(t testing.TB, name string) {
	t.Helper()
	mkdir(t, filepath.Dir(name))
	if err := unix.Mknod(name, unix.S_IFCHR, 0); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t testing.TB, to, from string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
}

// wantCode checks that an error has a code, and a text in its message or hint.
func wantCode(t testing.TB, what string, err error, code, text string) {
	t.Helper()
	e, ok := errors.AsType[*sprites.Error](err)
	if !ok || e.Code != code || !strings.Contains(e.Message+"\n"+e.Hint, text) {
		t.Errorf("%s: got %+v (%v), want the code %s and %q", what, e, err, code, text)
	}
}
