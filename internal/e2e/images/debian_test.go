package images

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// makeDebian makes a Debian system as images/debian.sh does, with more packages, and returns
// its tar, which every user may read.
func makeDebian(t *testing.T, packages string) string {
	t.Helper()
	need.Program(t, "mmdebstrap", "mmdebstrap")
	dir := t.TempDir()
	to := filepath.Join(dir, "debian.tar")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var stderr bytes.Buffer
	cmd := exec.Command("../../../images/debian.sh")
	cmd.Env = append(os.Environ(), "INCLUDE="+packages)
	cmd.Stdout, cmd.Stderr = out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("make a Debian system: %v: %s", err, stderr.String())
	}
	return to
}

// mirrors returns the addresses of the mirrors that a Debian system's apt uses.
func mirrors(t *testing.T, tar string) (all []string) {
	t.Helper()
	sources, err := exec.Command("tar", "-xOf", tar, "./etc/apt/sources.list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range regexp.MustCompile(`https?://[^\s]+`).FindAllString(string(sources), -1) {
		at, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		addrs, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip", at.Hostname())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if text := a.Unmap().String(); !slices.Contains(all, text) {
				all = append(all, text)
			}
		}
	}
	return all
}

// newTokenRegistry starts a registry over TLS that wants a token, which it gives to one
// account. It returns the registry's address, its certificate's file, and the account in
// Docker's config format.
func newTokenRegistry(t *testing.T) (host, certificate, config string, options []remote.Option) {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch user, password, _ := r.BasicAuth(); {
		case r.URL.Path == "/token" && user == "me" && password == "secret":
			_, _ = io.WriteString(w, `{"token":"the-token"}`)
		case r.URL.Path != "/token" && r.Header.Get("Authorization") == "Bearer the-token":
			inner.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token",service="test"`, r.Host))
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you?"}]}`, http.StatusUnauthorized)
		}
	}))
	web.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes by http
	t.Cleanup(web.Close)
	host = strings.TrimPrefix(web.URL, "https://")
	certificate = filepath.Join(t.TempDir(), "registry.pem")
	if err := os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	config = fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("me:secret")))
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM([]byte(e2e.ReadFile(t, certificate))) {
		t.Fatal("the registry's certificate can't be read")
	}
	return host, certificate, config, []remote.Option{remote.WithTransport(web.Client().Transport), remote.WithAuth(&authn.Basic{Username: "me", Password: "secret"})}
}

// upload puts an image into a registry.
func upload(t *testing.T, reference string, image v1.Image, options []remote.Option) {
	t.Helper()
	tag, err := name.NewTag(reference)
	if err == nil {
		err = remote.Write(tag, image, options...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tarImage is an image of a tar, for this machine.
func tarImage(t *testing.T, tar string) v1.Image {
	t.Helper()
	layer, err := tarball.LayerFromFile(tar)
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	if image, err = mutate.ConfigFile(image, file); err != nil {
		t.Fatal(err)
	}
	return image
}

// hello is a program of C; it says which user runs it.
const hello = `#include <stdio.h>
#include <unistd.h>
int main(void) { printf("hello %d\n", getuid()); return 0; }
`

// throughRegistry takes images of every kind through all steps: pulled, run, changed,
// checkpointed, forked, exported, and imported on another server.
func throughRegistry(t *testing.T, debian string) {
	host, certificate, config, options := newTokenRegistry(t)
	h, far := e2e.NewLoneHost(t), e2e.NewLoneHost(t)
	for _, s := range []*e2e.Host{h, far} {
		s.Write("home/.docker/config.json", config)
		s.Serve([]string{"SSL_CERT_FILE=" + certificate})
	}

	// A Debian sprite, to build the programs of the other images.
	upload(t, host+"/debian:1", tarImage(t, debian), options)
	h.Run("", "cove", "image", "pull", host+"/debian:1")
	h.Run("", "cove", "create", "debian", "--image", host+"/debian:1")
	for _, addr := range mirrors(t, debian) {
		h.Run("", "cove", "policy", "allow", "-s", "debian", addr)
	}
	h.Write("hello.c", hello)
	h.Run("", "cove", "cp", "hello.c", "debian:/home/sprite/")
	h.Sh("debian", `(sudo apt-get update && sudo apt-get install --yes --no-install-recommends musl-tools binutils) >log 2>&1 || { cat log; exit 1; }
		musl-gcc -static -o static hello.c; musl-gcc -o dynamic hello.c; cp $(readlink -f /lib/ld-musl-*.so.1) libc.so; basename /lib/ld-musl-*.so.1 >loader; cp $(ldd /usr/bin/getent | awk '$1 == "libc.so.6" {print $3}') libc.so.6`)
	made := map[string]string{}
	for _, file := range []string{"static", "dynamic", "libc.so", "loader", "libc.so.6"} {
		h.Run("", "cove", "cp", "debian:/home/sprite/"+file, ".")
		made[file] = h.Path(file)
	}
	scratch, musl, bare := folder(t), folder(t), folder(t)
	copyFile(t, filepath.Join(scratch, "hello"), made["static"])
	mkdir(t, filepath.Join(musl, "lib"))
	mkdir(t, filepath.Join(musl, "usr/bin"))
	copyFile(t, filepath.Join(musl, "lib", strings.TrimSpace(e2e.ReadFile(t, made["loader"]))), made["libc.so"])
	copyFile(t, filepath.Join(musl, "usr/bin/hello"), made["dynamic"])
	// As distroless images are: a libc, certificates and an account, and no shell.
	extract := exec.Command("tar", "-xf", debian, "-C", bare, "--wildcards", "./lib64", "./lib", "./usr/lib64", "./usr/lib/*/ld-linux-*", "./usr/lib/*/libc.so.6", "./usr/lib/ld-linux-*", "./usr/bin/getent", "./etc/ssl/certs/ca-certificates.crt")
	_ = extract.Run() // patterns that have nothing on this architecture are an error
	write(t, filepath.Join(bare, "etc/passwd"), "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")
	write(t, filepath.Join(bare, "etc/nsswitch.conf"), "passwd: files\n")
	upload(t, host+"/scratch:1", imageOf(t, v1.Config{}, scratch), options)
	upload(t, host+"/musl:1", imageOf(t, v1.Config{Env: []string{"PATH=/usr/bin:/bin"}}, busyboxLayer(t), musl), options)
	upload(t, host+"/busybox:1", imageOf(t, v1.Config{}, busyboxLayer(t)), options)
	upload(t, host+"/bare:1", imageOf(t, v1.Config{User: "nonroot"}, bare), options)

	for _, test := range []struct {
		image string
		argv  []string
		want  string
	}{
		{"debian", []string{"sh", "-c", "dpkg -s musl-tools | grep ^Status; ./dynamic"}, "Status: install ok installed\nhello 1001\n"},
		{"busybox", []string{"sh", "-c", "id -un; cat /etc/os-release"}, "sprite\nID=small\n"},
		{"musl", []string{"sh", "-c", "id -un; hello"}, "sprite\nhello 1001\n"},
		{"bare", []string{"/usr/bin/getent", "passwd", "nonroot"}, "nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"},
		{"scratch", []string{"/hello"}, "hello 1001\n"},
	} {
		t.Run(test.image, func(t *testing.T) {
			h, far := h.On(t), far.On(t)
			reference := host + "/" + test.image + ":1"
			looks := func(on *e2e.Host, sprite, want string) {
				t.Helper()
				if got := on.Run("", "cove", append([]string{"exec", "-s", sprite, "--"}, test.argv...)...); got != test.want {
					t.Errorf("%s: got %q, want %q", sprite, got, test.want)
				}
				on.Run("", "cove", "cp", sprite+":/home/sprite/kept", "kept-"+sprite)
				if got := e2e.ReadFile(t, on.Path("kept-"+sprite)); got != want {
					t.Errorf("%s: kept %q, want %q", sprite, got, want)
				}
			}
			if test.image != "debian" {
				h.Run("", "cove", "create", test.image, "--image", reference) // pulls the image
			}
			put := func(text string) {
				h.Write("kept", text)
				h.Run("", "cove", "cp", "kept", test.image+":/home/sprite/kept")
			}
			put("one")
			h.Run("", "cove", "checkpoint", "create", "-s", test.image)
			put("two")
			h.Run("", "cove", "fork", test.image, test.image+"-2")
			looks(h, test.image+"-2", "two")
			h.Run("", "cove", "restore", "v1", "-s", test.image)
			looks(h, test.image, "one")
			archive := e2e.Export(h, t, test.image)

			out, code := e2e.Feed(far, archive, "import", test.image)
			if code == 0 {
				t.Fatalf("it was imported without its image: %s", out)
			}
			hint := regexp.MustCompile(`cove image pull (\S+)`).FindStringSubmatch(out)
			if hint == nil {
				t.Fatalf("the import does not say how to get the image: %s", out)
			}
			far.Run("", "cove", "image", "pull", hint[1])
			if out, code := e2e.Feed(far, archive, "import", test.image); code != 0 {
				t.Fatalf("import: exit code %d: %s", code, out)
			}
			looks(far, test.image, "one")
		})
	}
	out, code := h.Try("", "cove", "image", "pull", host+"/none:1")
	if code == 0 || !strings.Contains(out, "none") {
		t.Errorf("an image that the registry does not have: exit code %d: %s", code, out)
	}
}

// pushed has an ordinary user's job install a package in a sprite over an image.
func pushed(t *testing.T, debian string) {
	h := e2e.NewLoneHost(t)
	h.Run("", "cove", "image", "import", debian, "--name", "debian:local")
	repo := h.Repository("repo", map[string]string{"plan.md": "# Count\n\n## Install\n\n```sh\nsudo apt-get update -qq\nsudo apt-get install --yes -qq --no-install-recommends bc\n```\n\n## Count\n\n```sh\necho '6 * 7' | bc >count.txt\n```\n"})
	args := []string{"plan.md", "--agent", "shell", "--image", "debian:local"}
	for _, addr := range mirrors(t, debian) {
		args = append(args, "--allow", addr)
	}
	job, _ := h.Push(repo, args...)
	if out, code := h.Try(repo, "cove", "pull", job, "--wait=30m"); code != 0 {
		t.Fatalf("pull: exit code %d: %s\n%s", code, out, h.Run(repo, "cove", "logs", job))
	}
	if got := e2e.ReadFile(t, filepath.Join(h.Path("repo"), "count.txt")); got != "42\n" {
		t.Errorf("the job counted %q", got)
	}
}

// defaultImage builds the default image over a Debian, and runs the examples of the SDKs on a
// server whose default image it is.
func defaultImage(t *testing.T, debian string) {
	h := e2e.NewLoneHost(t)
	h.Run("", "cove", "image", "import", debian, "--name", "debian:local")
	dir, err := filepath.Abs("../../../images/default")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"image", "build", "--build-arg", "BASE=debian:local", "--tag", "default:local"}
	for _, addr := range mirrors(t, debian) {
		args = append(args, "--allow", addr)
	}
	h.Run("", "cove", append(args, dir)...)
	h.Run("", "cove", "server", "stop")
	h.Serve(nil, "--default-image", "default:local")
	s := newExampleServer(h)
	t.Run("examples", func(t *testing.T) { s.runExamples(t, ".") })
	t.Run("readme", func(t *testing.T) { s.runREADME(t) })
}
