package images

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/sprites"
)

// counter counts in a file, and writes the number of its process to another.
const counter = `cd; echo $$ >pid; n=0; while :; do n=$((n+1)); echo $n >count; usleep 10000; done`

// count starts the counter, and returns the number of its process once it counts.
func (s *server) count(name string) (pid string) {
	s.t.Helper()
	cmd := s.Client().Sprite(name).Command("sh", "-c", counter)
	cmd.MaxRunAfterDisconnect = new(time.Duration) // for ever
	if err := errors.Join(cmd.Start(), cmd.Detach()); err != nil {
		s.t.Fatal(err)
	}
	e2e.Await(s.t, "the counter", func() bool {
		out, err := s.Client().Sprite(name).Command("cat", "count").Output()
		return err == nil && len(out) > 0
	})
	return s.sh(name, "cat pid")
}

// goesOn checks that the counter counts on, as the same process.
func (s *server) goesOn(name, pid string) {
	s.t.Helper()
	before := s.sh(name, "cat count; kill -0 "+pid)
	e2e.Await(s.t, "the counter of "+name, func() bool { return s.sh(name, "cat count") != before })
	if got := s.sh(name, "id -un; cat /proc/"+pid+"/status | grep ^Uid; pwd"); got != "sprite\nUid:\t1001\t1001\t1001\t1001\n/home/sprite" {
		s.t.Errorf("%s: got %q", name, got)
	}
}

// TestImageDisk: checkpoints, restores, forks, sleep and a server's restart work over an image
// as they do over the host base.
func TestImageDisk(t *testing.T) {
	s := newServer(t)
	s.in.put("small", base.Image{}, busyboxLayer(t))
	s.create("paint", "small")
	paint := s.Client().Sprite("paint")
	s.sh("paint", "echo one >kept; rm -f /tmp/none")
	pid := s.count("paint")

	// With its memory, while it runs.
	first, err := paint.Checkpoint(t.Context(), sprites.CheckpointRequest{Memory: sprites.KeepAlways}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.goesOn("paint", pid)
	root := paint.Command("sh", "-ec", "echo two >/home/sprite/kept; rm /bin/ed; echo x >/usr/own")
	root.User = "root"
	if out, err := root.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	var changes []string
	if _, err := paint.Diff(t.Context(), first.ID, "Current", func(e sprites.DiffEntry) error {
		if !strings.HasPrefix(e.Path, "/home/sprite/count") {
			changes = append(changes, e.Change+" "+e.Path)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(changes)
	if got := strings.Join(changes, ", "); got != "added /usr/own, changed /home/sprite/kept, removed /bin/ed" {
		t.Errorf("the diff is %s", got)
	}

	// A fork of the live sprite, and one of the checkpoint.
	if _, err := paint.Fork(t.Context(), sprites.ForkRequest{Name: "copy"}); err != nil {
		t.Fatal(err)
	}
	s.goesOn("copy", pid)
	if _, err := paint.Fork(t.Context(), sprites.ForkRequest{Name: "older", Checkpoint: first.ID, Boot: true}); err != nil {
		t.Fatal(err)
	}
	if got := s.sh("older", "cat kept; ls /usr; hostname; id -un"); got != "one\nbin\nsbin\nolder\nsprite" {
		t.Errorf("a fork of the checkpoint has %q", got)
	}
	for _, name := range []string{"copy", "older"} {
		if info, err := s.Client().Get(t.Context(), name); err != nil || info.Config.Image != "small" || info.Cove.Base != s.in.byName["small"].Digest {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}

	// Asleep, and awake again.
	if _, err := paint.Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.goesOn("paint", pid)

	// The shim dies, and the server.
	info, err := s.Client().Get(t.Context(), "paint")
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	st, err := shim.ReadState(filepath.Join(s.Dir, "run", info.ID))
	if err != nil || st.PID == 0 {
		t.Fatal(st, err)
	}
	killShim(t, filepath.Join(s.Dir, "run", info.ID))
	s = serve(t, s.Dir, s.in)
	paint = s.Client().Sprite("paint")
	s.goesOn("paint", pid)
	if now, err := shim.ReadState(filepath.Join(s.Dir, "run", info.ID)); err != nil || now.PID != st.PID {
		t.Errorf("after a restart of the server its sandbox is %d, %v, and was %d", now.PID, err, st.PID)
	}

	if _, err := paint.RestoreCheckpoint(t.Context(), first.ID, sprites.RestoreRequest{}, nil); err != nil {
		t.Fatal(err)
	}
	s.goesOn("paint", pid)
	if got := s.sh("paint", "cat kept; ls /usr"); got != "one\nbin\nsbin" {
		t.Errorf("after the restore: %q", got)
	}
	if err := s.Host.Stop(t.Context(), "paint"); err != nil {
		t.Fatal(err)
	}
	if got := s.sh("paint", "cat kept; id -un"); got != "one\nsprite" {
		t.Errorf("after a boot: %q", got)
	}
}

// killShim ends the shim that serves a sandbox's folder, and returns when it is gone.
func killShim(t *testing.T, dir string) {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(dir, "shim.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var peer *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); ctlErr != nil || err != nil {
		t.Fatal(ctlErr, err)
	}
	if err := unix.Kill(int(peer.Pid), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Another may look after the sandbox by now: the runtime of a server that was stopped goes on.
	e2e.Await(t, "the end of the shim", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", peer.Pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// TestManyLayers: an image of as many layers as allowed works below so many checkpoints
// that their layers are merged.
func TestManyLayers(t *testing.T) {
	s := newServer(t)
	of := []string{busyboxLayer(t)}
	for i := range base.MaxImageLayers - 1 {
		of = append(of, folder(t))
		write(t, filepath.Join(of[i+1], fmt.Sprint("opt/", i)), "")
		write(t, filepath.Join(of[i+1], "opt/top"), fmt.Sprintln(i))
	}
	s.in.put("deep", base.Image{}, of...)
	s.create("paint", "deep")
	paint := s.Client().Sprite("paint")
	want := fmt.Sprintf("%d\n%d", base.MaxImageLayers, base.MaxImageLayers-2)
	if got := s.sh("paint", "ls /opt | wc -l; cat /opt/top"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for i := range layers.MaxLowers + 8 {
		if i%8 == 0 {
			s.sh("paint", fmt.Sprintf("echo %d >last; rm -rf gone; mkdir gone", i))
			if err := s.Host.Stop(t.Context(), "paint"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := paint.Checkpoint(t.Context(), sprites.CheckpointRequest{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.sh("paint", "ls /opt | wc -l; cat /opt/top; cat last; ls"); got != want+fmt.Sprintf("\n%d\ngone\nlast", layers.MaxLowers) {
		t.Errorf("got %q", got)
	}
	if under, err := s.Runtime.Layers().Under(s.chain("paint")[0]); err != nil || under != s.in.byName["deep"].Digest {
		t.Errorf("the lowest layer is over %q, %v", under, err)
	}
}

// chain returns a sprite's layers, the lowest first.
func (s *server) chain(name string) []string {
	s.t.Helper()
	row, err := s.Store.Sprites.Get(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	chain, err := s.Store.Sprites.Chain(s.t.Context(), row.Layer)
	if err != nil {
		s.t.Fatal(err)
	}
	return chain
}

// TestImageGone: a sprite whose image is gone names the image to pull, and goes on once the
// image is back. Its disk is never put over another base.
func TestImageGone(t *testing.T) {
	s := newServer(t)
	small := busyboxLayer(t)
	s.in.put("small", base.Image{}, small)
	s.in.put("other", base.Image{}, small, folder(t))
	digest := s.in.byName["small"].Digest
	s.create("paint", "small")
	s.create("never", "small")
	s.sh("paint", "echo mine >kept")
	if err := s.Host.Stop(t.Context(), "paint"); err != nil {
		t.Fatal(err)
	}
	was := s.in.byName["small"]
	s.in.drop("small")
	hint := "cove image pull small@" + digest
	wantCode(t, "exec", s.Client().Sprite("paint").Command("true").Run(), "image_not_found", hint)
	wantCode(t, "the first exec", s.Client().Sprite("never").Command("true").Run(), "image_not_found", hint)
	_, err := s.Client().Sprite("paint").Export(t.Context(), sprites.ExportOptions{})
	wantCode(t, "export", err, "image_not_found", hint)
	_, err = s.Client().Create(t.Context(), sprites.CreateRequest{Name: "new", Config: &sprites.Config{Image: "small"}})
	wantCode(t, "create", err, "image_not_found", "small")
	for ref, code := range map[string]string{"": "", "-x": "bad_request", "a b": "bad_request", "$(x)": "bad_request"} {
		if ref == "" {
			continue
		}
		_, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: "new", Config: &sprites.Config{Image: ref}})
		wantCode(t, "create over "+ref, err, code, "image")
	}
	_, err = s.Client().Create(t.Context(), sprites.CreateRequest{Name: "new", Base: "host", Config: &sprites.Config{Image: "other"}})
	wantCode(t, "create over two bases", err, "bad_request", "image")

	s.in.byName["again"] = was
	if got := s.sh("paint", "cat kept"); got != "mine" {
		t.Errorf("got %q", got)
	}
	if got := s.sh("never", "id -un"); got != "sprite" {
		t.Errorf("got %q", got)
	}

	// A layer over an image is put over no other base.
	if err := s.Host.Stop(t.Context(), "paint"); err != nil {
		t.Fatal(err)
	}
	chain := s.chain("paint")
	for _, name := range []string{"host", s.in.byName["other"].Digest} {
		if disk, err := s.Runtime.Layers().Open(t.Context(), name, chain); err == nil || !strings.Contains(err.Error(), "can't be put over") {
			t.Errorf("over %s: %v, %v", name, disk, err)
		}
	}
}

// TestImageArchive: a sprite over an image is exported without the image. A server that has the
// image imports it; another says which image is missing.
func TestImageArchive(t *testing.T) {
	s := newServer(t)
	top := folder(t)
	large := make([]byte, 1<<20)
	_, _ = rand.Read(large) // never fails
	write(t, filepath.Join(top, "srv/tools/large"), string(large))
	s.in.put("small", base.Image{}, busyboxLayer(t), top)
	digest := s.in.byName["small"].Digest
	s.create("paint", "small")
	root := s.Client().Sprite("paint").Command("sh", "-ec", "echo x >/srv/tools/own; echo mine >/home/sprite/kept; rm -r /bin/ed /usr/sbin; mkdir /usr/sbin; echo x >/usr/sbin/x; chown 0 /home/sprite/kept; rm -rf /opt; mkdir /opt")
	root.User = "root"
	if out, err := root.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	body, err := s.Client().Sprite("paint").Export(t.Context(), sprites.ExportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil {
		t.Fatal(err)
	}
	if len(data) > 100<<10 {
		t.Errorf("the archive has %d bytes: is the image in it?", len(data))
	}
	far := serve(t, filepath.Join(e2e.TempDir(t), "far"), &shelf{})
	_, err = far.Client().Import(t.Context(), bytes.NewReader(data), sprites.ImportOptions{})
	wantCode(t, "import without the image", err, "image_not_found", "cove image pull small@"+digest)
	if list, err := far.Client().List(t.Context(), sprites.ListOptions{}); err != nil || len(list.Sprites) != 0 {
		t.Errorf("there is %+v, %v", list, err)
	}
	far.in.byName = map[string]base.Image{"there": s.in.byName["small"]}
	if err := far.in.rows.Put(t.Context(), store.Image{Digest: digest, Doc: []byte("{}"), Pulled: time.Now()}); err != nil {
		t.Fatal(err)
	}
	done, err := far.Client().Import(t.Context(), bytes.NewReader(data), sprites.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !done.SameBase || done.Sprite.Cove.Base != digest || done.Sprite.Config == nil || done.Sprite.Config.Image != "small@"+digest {
		t.Errorf("got %+v, %+v, %+v", done, done.Sprite.Config, done.Sprite.Cove)
	}
	const look = "cat ~/kept; stat -c %U ~/kept; ls /bin/ed 2>/dev/null || echo none; ls /usr/sbin; cat /etc/os-release; ls /srv/tools"
	if got := far.sh("paint", look); got != "mine\nroot\nnone\nx\nID=small\nlarge\nown" {
		t.Errorf("got %q", got)
	}
	// Once more, out of the sprite that was imported.
	body, err = far.Client().Sprite("paint").Export(context.WithoutCancel(t.Context()), sprites.ExportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := s.Client().Import(t.Context(), body, sprites.ImportOptions{Name: "back"}); err != nil {
		t.Fatal(err)
	}
	if got := s.sh("back", look); got != "mine\nroot\nnone\nx\nID=small\nlarge\nown" {
		t.Errorf("got %q", got)
	}
}

// TestImageInstall: an installation over an image is used only for disks over the same
// image.
func TestImageInstall(t *testing.T) {
	s := newServer(t)
	small := busyboxLayer(t)
	s.in.put("small", base.Image{}, small)
	s.in.put("other", base.Image{}, small, folder(t))
	s.create("made", "small")
	s.sh("made", "echo agent >installed")
	if err := s.Host.KeepInstall(t.Context(), "made", store.Install{Key: "key", Agent: "agent"}); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"", "other"} {
		_, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: "not", Install: "key", Config: &sprites.Config{Image: image}})
		wantCode(t, "with an install of another base", err, "not_found", "installation")
	}
	if _, err := s.Client().Create(t.Context(), sprites.CreateRequest{Name: "paint", Install: "key", Config: &sprites.Config{Image: "small"}, IdleSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	if got := s.sh("paint", "cat installed; id -un"); got != "agent\nsprite" {
		t.Errorf("got %q", got)
	}
}
