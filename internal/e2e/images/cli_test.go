package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// packed returns a folder as the layer of an image.
func packed(t testing.TB, dir string) v1.Layer {
	t.Helper()
	var text bytes.Buffer
	out := tar.NewWriter(&text)
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		if st.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(at); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(st, target)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		if h.Name = rel; d.IsDir() {
			h.Name += "/"
		}
		if err := out.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(at)
		if err == nil {
			_, err = out.Write(data)
		}
		return err
	})
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// imageOf returns an image for this machine, with folders as its layers, the lowest
// first.
func imageOf(t testing.TB, config v1.Config, dirs ...string) v1.Image {
	t.Helper()
	image := empty.Image
	for _, dir := range dirs {
		var err error
		if image, err = mutate.AppendLayers(image, packed(t, dir)); err != nil {
			t.Fatal(err)
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	if image, err = mutate.ConfigFile(image, file); err != nil {
		t.Fatal(err)
	}
	return image
}

// save writes an image of folders, the lowest first, into a file as docker save does.
func save(t testing.TB, file, as string, config v1.Config, dirs ...string) {
	t.Helper()
	tag, err := name.NewTag(as)
	if err == nil {
		err = tarball.WriteToFile(file, tag, imageOf(t, config, dirs...))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// bring imports an image of folders, the lowest first, under a name.
func bring(h *e2e.Host, as string, config v1.Config, dirs ...string) {
	h.T.Helper()
	save(h.T, h.Path("bring.tar"), as, config, dirs...)
	h.Run("", "cove", "image", "import", "bring.tar", "--name", as)
}

// TestImageVerbs: an image comes from a registry, a file or a folder. Sprites and jobs start
// from it. An image in use can't be removed.
func TestImageVerbs(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	web := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(web.Close)
	reference, mine := strings.TrimPrefix(web.URL, "http://")+"/team/small:1", strings.TrimPrefix(web.URL, "http://")+"/mine:1"
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	top := folder(t)
	write(t, filepath.Join(top, "etc/greeting"), "hello\n")
	small := busyboxLayer(t)
	first := imageOf(t, v1.Config{Env: []string{"COLOUR=blue", "PATH=/bin"}}, small, top)
	if err := remote.Write(tag, first); err != nil {
		t.Fatal(err)
	}
	digest, err := first.Digest()
	if err != nil {
		t.Fatal(err)
	}

	// A tag is resolved once: the sprite keeps the image that it was made from.
	h.Run("", "cove", "create", "paint", "--image", reference)
	if got := h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "cat /etc/greeting; echo $COLOUR; id -un"); got != "hello\nblue\nsprite\n" {
		t.Errorf("got %q", got)
	}
	write(t, filepath.Join(top, "etc/greeting"), "moved\n")
	if err := remote.Write(tag, imageOf(t, v1.Config{}, small, top)); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "image", "pull", reference)
	h.Run("", "cove", "restart", "paint")
	h.Run("", "cove", "create", "second", "--image", reference)
	for sprite, want := range map[string]string{"paint": "hello\n", "second": "moved\n"} {
		if got := h.Run("", "cove", "exec", "-s", sprite, "--", "cat", "/etc/greeting"); got != want {
			t.Errorf("%s: got %q, want %q", sprite, got, want)
		}
	}
	if out := h.Run("", "cove", "info", "paint"); !strings.Contains(out, digest.String()) {
		t.Errorf("info does not name the image %s:\n%s", digest, out)
	}

	// From a file, standard input and a folder, by another name.
	file := h.Path("saved.tar")
	save(t, file, "saved:2", v1.Config{User: "nobody"}, small)
	h.Run("", "cove", "image", "import", file, "--name", mine)
	h.Run("", "cove", "create", "third", "--image", mine)
	if got := h.Run("", "cove", "exec", "-s", "third", "--", "id", "-un"); got != "nobody\n" {
		t.Errorf("got %q", got)
	}
	dir := filepath.Join(filepath.Dir(h.Home), "layout")
	folder, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = folder.AppendImage(imageOf(t, v1.Config{Env: []string{"SHAPE=round"}}, small))
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "create", "fourth", "--image", "oci:"+dir)
	if got := h.Run("", "cove", "exec", "-s", "fourth", "--", "sh", "-c", "echo $SHAPE"); got != "round\n" {
		t.Errorf("got %q", got)
	}

	// In use, and not.
	if out, code := h.Try("", "cove", "image", "rm", mine); code == 0 || !strings.Contains(out, "third") {
		t.Errorf("an image in use: exit code %d: %s", code, out)
	}
	h.Run("", "cove", "rm", "third")
	h.Run("", "cove", "image", "rm", mine)
	if out, code := h.Try("", "cove", "create", "fifth", "--image", mine); code == 0 || !strings.Contains(out, "cove: pull image "+mine) {
		t.Errorf("an image that is gone: exit code %d: %s", code, out)
	}
	h.Run("", "cove", "image", "prune", "--all")
	var list cove.ImageList
	if err := json.Unmarshal([]byte(h.Run("", "cove", "image", "list", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	users := map[string]int{}
	for _, i := range list.Images {
		for _, s := range i.UsedBy {
			users[s]++
		}
		if len(i.UsedBy) == 0 {
			t.Errorf("%s is left, and no sprite uses it", i.Digest)
		}
	}
	if len(users) != 3 || users["paint"] != 1 || users["second"] != 1 || users["fourth"] != 1 {
		t.Errorf("images are used by %v", users)
	}
	if out := h.Run("", "cove", "image", "info", reference); !strings.Contains(out, "second") {
		t.Errorf("got %s", out)
	}

	// A job's sprite. Without git it is refused before anything is sent.
	repo := h.Repository("repo", map[string]string{"plan.md": "# Copy\n\n## Copy it\n\n```sh\ncat /etc/greeting >greeting.txt\n```\n"})
	for _, args := range [][]string{{"run"}, {"push"}, {"push", "--json"}} {
		out, code := h.Try(repo, "cove", append(args, "plan.md", "--agent", "shell", "--image", reference)...)
		if code == 0 || !strings.Contains(out, "the image "+reference+" has no git") || !strings.Contains(out, "--image host") || strings.Contains(out, "upload") {
			t.Errorf("%q in an image without git: exit code %d: %s", args, code, out)
		}
	}
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "shell", "--sprite", "second"); code == 0 || !strings.Contains(out, "sprite second has no git") || !strings.Contains(out, "cove exec -s second") {
		t.Errorf("push into a sprite without git: exit code %d: %s", code, out)
	}
	if jobs, list := h.Run("", "cove", "job", "list", "--json"), h.Run("", "cove", "list", "--json"); strings.Contains(jobs, `"id"`) || strings.Contains(list, "job-") {
		t.Errorf("left of jobs that were refused: %s%s", jobs, list)
	}
	bring(h, "git:1", v1.Config{Env: []string{"PATH=/usr/bin:/bin"}}, small, top, addedGit(t))
	job, sprite := h.Push(repo, "plan.md", "--agent", "shell", "--image", "git:1")
	if out := h.Run("", "cove", "info", sprite); !strings.Contains(out, "git:1") {
		t.Errorf("the job's sprite is not over the image:\n%s", out)
	}
	if out, code := h.Try(repo, "cove", "pull", job, "--wait=10m"); code != 0 {
		t.Fatalf("pull: exit code %d: %s\n%s", code, out, h.Run(repo, "cove", "logs", job))
	}
	if got := e2e.ReadFile(t, filepath.Join(h.Path("repo"), "greeting.txt")); got != "moved\n" {
		t.Errorf("the job copied %q", got)
	}
}

// addedGit is a layer with this machine's git.
func addedGit(t testing.TB) string {
	t.Helper()
	dir := folder(t)
	need.Program(t, "git", "git")
	addPrograms(t, dir, []string{"git"})
	return dir
}

// program is the entrypoint of the test's image. It records how it was started and stopped,
// and serves a page.
const program = `#!/bin/sh
echo "$(id -un) $PWD $COLOUR $*" >/srv/app/started
trap 'echo quit >>/srv/app/stopped; exit 0' QUIT
httpd -f -p 4000 -h /srv/app &
wait
`

// TestRunEntrypoint: the program of an image runs as a service, as root if the image names no
// user, and again after each boot. It is stopped with the image's signal. The sprite's URL
// leads to the image's port, with or without that service.
func TestRunEntrypoint(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	small, top := busyboxLayer(t), folder(t)
	write(t, filepath.Join(top, "entry.sh"), program)
	write(t, filepath.Join(top, "srv/app/page"), "a page of the image\n")
	if err := os.Chmod(filepath.Join(top, "entry.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	config := v1.Config{
		Env: []string{"COLOUR=blue", "PATH=/bin"}, Entrypoint: []string{"/entry.sh", "one"}, Cmd: []string{"two words"}, WorkingDir: "/srv/app", StopSignal: "SIGQUIT",
		ExposedPorts: map[string]struct{}{"4000/tcp": {}, "53/udp": {}}, Shell: []string{"/bin/ash", "-c"},
	}
	bring(h, "web:1", config, small, top)
	bring(h, "bare:1", v1.Config{Env: config.Env, ExposedPorts: config.ExposedPorts, WorkingDir: "/srv/app"}, small, top)
	for _, args := range [][]string{{"--image", "bare:1"}, {}, {"--image", "host"}, {"--from", "none"}} {
		if out, code := h.Try("", "cove", append([]string{"create", "no", "--run-entrypoint"}, args...)...); code == 0 || !strings.Contains(out, "ntrypoint") && !strings.Contains(out, "ENTRYPOINT") {
			t.Errorf("create --run-entrypoint %q: exit code %d: %s", args, code, out)
		}
	}

	h.Run("", "cove", "create", "web", "--image", "web:1", "--run-entrypoint", "--env", "COLOUR=red")
	page := func(sprite string) {
		t.Helper()
		h.Run("", "cove", "url", "--public", sprite)
		url := strings.TrimSpace(h.Run("", "cove", "url", sprite, "-q"))
		_, port, _ := strings.Cut(strings.TrimPrefix(url, "http://"), ":")
		web := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { // no resolver need know the name
			return (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+strings.TrimSuffix(port, "/"))
		}}}
		defer web.CloseIdleConnections()
		e2e.Await(t, "the page of "+sprite, func() bool {
			resp, err := web.Get(url + "page")
			if err != nil {
				return false
			}
			body, err := io.ReadAll(resp.Body)
			return errors.Join(err, resp.Body.Close()) == nil && string(body) == "a page of the image\n"
		})
	}
	page("web")
	if got, want := h.Run("", "cove", "exec", "-s", "web", "--", "sh", "-c", "cat started; id -un; pwd; echo $SHELL"), "root /srv/app red one two words\nsprite\n/srv/app\n/bin/ash\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var service sprites.Service
	if err := json.Unmarshal([]byte(h.Run("", "cove", "service", "show", "entrypoint", "-s", "web", "--json")), &service); err != nil {
		t.Fatal(err)
	}
	if service.HTTPPort != 4000 || service.StopSignal != "SIGQUIT" || service.User != "root" {
		t.Errorf("the service is %+v", service)
	}
	const grace = 10 * time.Second // of a restart; a program that stands still for so long is ended by force
	for deadline := time.Now().Add(e2e.LastResort); ; {
		h.Run("", "cove", "exec", "-s", "web", "--user", "root", "--", "rm", "started")
		began := time.Now()
		h.Run("", "cove", "restart", "web")
		forced := time.Since(began) >= grace
		page("web")
		got, _ := h.Try("", "cove", "exec", "-s", "web", "--", "cat", "stopped", "started")
		if got == "quit\nroot /srv/app red one two words\n" {
			break
		}
		if !forced || time.Now().After(deadline) {
			t.Errorf("after a restart: %q", got)
			break
		}
	}

	// If no service has an HTTP port, the URL leads to the image's port.
	h.Run("", "cove", "create", "bare", "--image", "bare:1")
	h.Run("", "cove", "service", "put", "-s", "bare", "--stop-signal", "INT", "--user", "root", "own", "httpd", "-f", "-p", "4000", "-h", "/srv/app")
	page("bare")
	if out := h.Run("", "cove", "service", "show", "own", "-s", "bare"); !strings.Contains(out, "INT") || !strings.Contains(out, "root") {
		t.Errorf("the service is %s", out)
	}
}

// TestDefaultImage: a sprite that names no image gets the server's default image. With the
// image host it still gets the machine's tools.
func TestDefaultImage(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	h.Serve(nil, "--default-image", "small:1")
	if out, code := h.Try("", "cove", "create", "early"); code == 0 || !strings.Contains(out, "small:1") || !strings.Contains(out, "cove image pull") {
		t.Errorf("without the image: exit code %d: %s", code, out)
	}
	bring(h, "small:1", v1.Config{}, busyboxLayer(t))
	h.Run("", "cove", "create", "plain", "--cpus", "1")
	h.Run("", "cove", "create", "machine", "--image", "host")
	h.Run("", "cove", "create", "old", "--base", "host")
	for sprite, small := range map[string]bool{"plain": true, "machine": false, "old": false} {
		if got := h.Run("", "cove", "exec", "-s", sprite, "--", "cat", "/etc/os-release"); (got == "ID=small\n") != small {
			t.Errorf("%s: got %q", sprite, got)
		}
	}
	if out := h.Run("", "cove", "info", "plain"); !strings.Contains(out, "small:1") {
		t.Errorf("info says %s", out)
	}
	lines := strings.Split(h.Run("", "cove", "list"), "\n")
	if len(lines) < 4 || !strings.Contains(lines[0], "IMAGE") || !strings.Contains(lines[1], " host ") || !strings.Contains(lines[3], " small:1 ") {
		t.Errorf("list says %q", lines)
	}
	if out, code := h.Try("", "cove", "create", "no", "--run-entrypoint"); code == 0 || !strings.Contains(out, "ENTRYPOINT") {
		t.Errorf("without an entrypoint: exit code %d: %s", code, out)
	}
	repo := h.Repository("repo", map[string]string{"plan.md": "# Note\n\n```sh\ntrue\n```\n"})
	if out, code := h.Try(repo, "cove", "push", "plan.md", "--agent", "shell"); code == 0 || !strings.Contains(out, "the image small:1 has no git") {
		t.Errorf("a job's sprite is over another image: exit code %d: %s", code, out)
	}
	_, sprite := h.Push(repo, "plan.md", "--agent", "shell", "--image", "host")
	if out := h.Run("", "cove", "info", sprite); strings.Contains(out, "small:1") {
		t.Errorf("a job's sprite with --image host is %s", out)
	}
}
