package images

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// bringSmall imports the image small:1, of busybox alone.
func bringSmall(t *testing.T, h *e2e.Host) {
	t.Helper()
	need.Program(t, "busybox", "busybox-static")
	saved := filepath.Join(t.TempDir(), "saved.tar")
	small, err := name.NewTag("small:1")
	if err == nil {
		err = tarball.WriteToFile(saved, small, imageOf(t, v1.Config{Env: []string{"PATH=/bin"}}, busyboxLayer(t)))
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "image", "import", saved)
}

// TestBuildRefused: an invalid or unsupported instruction of a Dockerfile is refused with its
// line, before any command runs.
func TestBuildRefused(t *testing.T) {
	h := e2e.NewHost(t)
	bringSmall(t, h)
	h.Write("app/dir/file", "x\n")
	h.Run("app", "ln", "-s", "dir", "link")
	h.Run("app", "ln", "-s", "file", "dir/second")
	for lines, want := range map[string]string{
		"RUN echo has run\nSTOPSIGNAL SIGNOT":                                 `Dockerfile:3: "SIGNOT" is not a signal`,
		"ARG S=SIGNOT\nRUN echo has run\nSTOPSIGNAL $S":                       `Dockerfile:4: "SIGNOT" is not a signal`,
		"RUN echo has run\nRUN --mount=type=bind,source=d*,target=/m ls /m":   "Dockerfile:3: RUN --mount=type=bind of a name with one of * ? [",
		"ENV P=[d]ir\nRUN --mount=type=bind,source=$P,target=/m echo has run": "Dockerfile:3: RUN --mount=type=bind of a name with one of * ? [",
		"\nRUN --mount=type=bind,source=link,target=/m echo has run":          `Dockerfile:3: RUN --mount=type=bind of "link", which is a symbolic link, is not supported`,
		"RUN --mount=type=bind,source=dir/second,target=/m echo has run":      `Dockerfile:2: RUN --mount=type=bind of "dir/second", which is a symbolic link, is not supported`,
		"RUN --mount=type=bind,source=link/file,target=/m echo has run":       `Dockerfile:2: RUN --mount=type=bind of "link", which is a symbolic link, is not supported`,
		"RUN --mount=type=bind,source=none,target=/m echo has run":            `Dockerfile:2: a RUN mounts "none", which does not exist`,
	} {
		h.Write("app/Dockerfile", "FROM small:1\n"+lines+"\n")
		out, code := h.Try("app", "cove", "image", "build", "-t", "app", ".")
		if code == 0 || !strings.Contains(out, want) || strings.Contains(out, "  has run\n") {
			t.Errorf("%q: exit code %d, want %s: %s", lines, code, want, out)
		}
	}
	if out := h.Run("", "cove", "image", "list"); strings.Contains(out, "app") {
		t.Errorf("images: %s", out)
	}
}

// TestBuildsAtOnce: if two builds of one context run at once, they use a cache one after the
// other, and lose nothing of it.
func TestBuildsAtOnce(t *testing.T) {
	h := e2e.NewHost(t)
	bringSmall(t, h)
	h.Write("app/Dockerfile", `FROM small:1
COPY file /
RUN --mount=type=cache,target=/cache <<EOS
set -e
mkdir /cache/alone
cat /cache/n /dev/null 2>/dev/null >/was || true
for i in 1 2 3 4 5 6 7 8; do echo x >>/cache/n; done
rmdir /cache/alone
EOS
`)
	h.Write("app/file", "x\n")
	var waits []func() (string, error)
	for n := range 2 {
		_, wait := h.Background("app", "cove", "image", "build", "--no-cache", "-t", fmt.Sprintf("app:%d", n), ".")
		waits = append(waits, wait)
	}
	for n, wait := range waits {
		if out, err := wait(); err != nil {
			t.Errorf("build %d: %v, %s", n, err, out)
		}
	}
	var lines []string
	for n := range waits {
		sprite := fmt.Sprintf("paint-%d", n)
		h.Run("", "cove", "create", sprite, "--image", fmt.Sprintf("app:%d", n))
		lines = append(lines, strings.TrimSpace(h.Run("", "cove", "exec", "-s", sprite, "--", "sh", "-c", "wc -l </was")))
	}
	slices.Sort(lines)
	if !slices.Equal(lines, []string{"0", "8"}) {
		t.Errorf("the builds found %q lines in the cache, want 0 and 8", lines)
	}
}

// TestBuildFrom: FROM and COPY --from take images of a registry over TLS, with the server's
// account for it. --pull looks for newer ones.
func TestBuildFrom(t *testing.T) {
	host, certificate, config, options := newTokenRegistry(t)
	h := e2e.NewLoneHost(t)
	h.Write("home/.docker/config.json", config)
	h.Serve([]string{"SSL_CERT_FILE=" + certificate})
	tools := func(text string) v1.Image {
		dir := folder(t)
		write(t, filepath.Join(dir, "opt/tool"), text)
		return imageOf(t, v1.Config{Labels: map[string]string{"of": text}}, dir)
	}
	upload(t, host+"/base:1", imageOf(t, v1.Config{Env: []string{"COLOUR=blue", "PATH=/bin"}}, busyboxLayer(t)), options)
	upload(t, host+"/tools:1", tools("first"), options)
	h.Write("app/Dockerfile", "FROM "+host+"/base:1\nCOPY --from="+host+"/tools:1 /opt/ /opt/\nRUN echo $COLOUR $(cat /opt/tool) | tee /said\n")
	build := func(more ...string) string {
		t.Helper()
		return h.Run("app", "sh", append([]string{"-c", `exec cove image build -t app "$@" . 2>&1`, "sh"}, more...)...)
	}
	if out := build(); !strings.Contains(out, "  blue first\n") {
		t.Errorf("the first build: %s", out)
	}
	upload(t, host+"/tools:1", tools("second"), options)
	if out := build(); strings.Contains(out, "second") {
		t.Errorf("without --pull: %s", out)
	}
	if out := build("--pull"); !strings.Contains(out, "  blue second\n") {
		t.Errorf("with --pull: %s", out)
	}
	h.Write("app/Dockerfile", "ARG NAME=none\nFROM scratch\n\nFROM "+host+"/$NAME:1\n")
	if out, code := h.Try("app", "cove", "image", "build", "."); code == 0 || !strings.Contains(out, "Dockerfile:4: ") || !strings.Contains(out, host+"/none:1") {
		t.Errorf("an image that the registry does not have: exit code %d, %s", code, out)
	}
}

// TestBuildFull: if a COPY or a RUN fills the disk, the build says so, with the exit code for
// it, and leaves nothing.
func TestBuildFull(t *testing.T) {
	h := e2e.NewSmallHost(t, "128m")
	h.Serve(nil, "--disk-reserve", "16M")
	bringSmall(t, h)
	left := func() string {
		t.Helper()
		return h.Run("", "sh", "-c", `cd "$COVE_DATA" && ls build/runs oci/staging oci/layers oci/blobs/sha256 oci/blobs/partial && mkdir -p run && ls run`)
	}
	free := func() int64 {
		t.Helper()
		var st unix.Statfs_t
		if err := unix.Statfs(h.Data, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Bavail) * st.Bsize
	}
	h.Write("app/Dockerfile", "FROM small:1\nRUN true\n") // makes the files that each build needs
	h.Run("app", "cove", "image", "build", "-t", "first", ".")
	before, room := left(), free()
	h.Write("app/large", "")
	h.Run("app", "sh", "-c", "head -c 60000000 /dev/urandom >large") // the disk has no room for it twice
	for lines, want := range map[string]string{
		"COPY large /a": "disk",
		"RUN dd if=/dev/zero of=/large bs=1M count=500": "the disk of the server is full",
	} {
		h.Write("app/Dockerfile", "FROM small:1\n"+lines+"\n")
		h.Write("app/.dockerignore", map[bool]string{true: "large\n"}[strings.HasPrefix(lines, "RUN")])
		out, code := h.Try("app", "cove", "image", "build", "-t", "app", ".")
		if code != 6 || !strings.Contains(out, want) || !strings.Contains(out, "hint: ") || strings.Contains(out, h.Data) {
			t.Errorf("%s: exit code %d: %s", lines, code, out)
		}
		var now string
		e2e.Await(t, "nothing to be left of "+lines, func() bool {
			now = left()
			return now == before && free() > room-8<<20 // the store grows a little
		})
	}
	h.Write("app/.dockerignore", "large\n")
	h.Write("app/Dockerfile", "FROM small:1\nRUN echo small >/small\n")
	h.Run("app", "cove", "image", "build", "-t", "app", ".")
}
