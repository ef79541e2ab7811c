package images

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

const threeStages = `# three stages
ARG BASE=small:1
FROM $BASE AS tools
ENV LEVEL=one
WORKDIR /work/in
COPY --chmod=755 make.sh /usr/local/bin/make
RUN --mount=type=cache,id=things,target=/cache --mount=type=secret,id=key,required=true <<EOS
set -e
n=$(cat /cache/n 2>/dev/null || echo 0)
echo $((n+1)) >/cache/n
echo runs $((n+1))
test "$(md5sum </run/secrets/key | cut -c1-4)" = e607
wc -c </run/secrets/key >size
make $LEVEL
id -u; pwd; ls /etc/passwd
grep -c sprite /etc/passwd && exit 9
rm /etc/gone
EOS

FROM tools AS test
RUN exit 7

FROM $BASE
ARG WHO
COPY --from=tools /work/in/ /out/
COPY --chown=7:8 src/ /src/
RUN --mount=type=tmpfs,target=/scratch/deep --mount=type=tmpfs,target=/scratch --network=none test -d /scratch/deep && echo hello $WHO >/greeting && touch /scratch/x && test -e /etc/gone && ls -A /scratch
USER 7:8
RUN id -u; id -g; echo mine >/src/own; touch /root-only 2>/dev/null || echo refused
USER 1001
RUN test "$(id -u):$(id -g):$HOME" = 1001:0:/
USER 7:8
ENV COLOUR=blue
LABEL of=test
CMD ["cat", "/greeting"]
`

// TestBuild: a Dockerfile of three stages, with a cache and a secret, becomes an image. A
// second build runs nothing. After a change, only the steps that depend on it run again. A
// failure names its line, and leaves nothing.
func TestBuild(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	top := folder(t)
	write(t, filepath.Join(top, "etc/gone"), "x\n")
	write(t, filepath.Join(top, "root-only/x"), "x\n")
	saved := filepath.Join(filepath.Dir(h.Home), "saved.tar")
	small, err := name.NewTag("small:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(saved, small, imageOf(t, v1.Config{Env: []string{"PATH=/usr/local/bin:/bin"}}, busyboxLayer(t), top)); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "image", "import", saved)
	dir := filepath.Join(filepath.Dir(h.Home), "app")
	for file, text := range map[string]string{
		"Dockerfile": threeStages, "make.sh": "#!/bin/sh\necho made $1 >made; ln -s made link\n", "src/a.txt": "a\n", "src/b.log": "b\n", "src/deep/c.txt": "c\n",
		".dockerignore": "**/*.log\nunused\n", "unused": "1\n",
	} {
		write(t, filepath.Join(dir, file), text)
	}
	key := filepath.Join(filepath.Dir(h.Home), "key")
	write(t, key, "opensesame")
	h.Run("app", "mkfifo", "pipe")
	build := func(more ...string) string {
		t.Helper()
		return h.Run("app", "sh", append([]string{"-c", `exec cove image build -t app --secret id=key,src="$0" --build-arg WHO=ada "$@" . 2>&1`, key}, more...)...)
	}
	cachedOf := func(out string) int { return strings.Count(out, "cached: ") }
	out := build()
	if !strings.Contains(out, "runs 1") || strings.Contains(out, "opensesame") || strings.Contains(out, "exit 7") || !strings.Contains(out, "app is built") || !strings.Contains(out, "no image can have them: pipe") || cachedOf(out) != 0 || !strings.Contains(out, "  refused\n") {
		t.Errorf("the first build: %s", out)
	}
	h.Run("", "cove", "create", "paint", "--image", "app")
	got := h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c",
		`cat /greeting /out/made /out/link /out/size /src/own; echo $COLOUR; cd /src; find . | sort | xargs stat -c '%n %u %g'; ls -A /; ls -A /scratch /cache /run/secrets 2>&1; cat /etc/gone; ls -l /out/link | sed 's/.* link/link/'; cat /etc/hostname`)
	want := "hello ada\nmade one\nmade one\n10\nmine\nblue\n. 7 8\n./a.txt 7 8\n./deep 7 8\n./deep/c.txt 7 8\n./own 7 8\n"
	if !strings.HasPrefix(got, want) || !strings.Contains(got, "link -> made") {
		t.Errorf("the image has:\n%s\nwant:\n%s", got, want)
	}
	var was cove.Image
	if err := json.Unmarshal([]byte(h.Run("", "cove", "image", "info", "app", "--json")), &was); err != nil {
		t.Fatal(err)
	}
	if was.Config.User != "7:8" || was.Config.Labels["of"] != "test" || len(was.Config.Cmd) != 2 {
		t.Errorf("its configuration is %+v", was.Config)
	}
	t.Run("skopeo", func(t *testing.T) { skopeoTakes(t, h, "app") })
	// The same again: no command runs.
	out = build()
	if strings.Contains(out, "runs") || cachedOf(out) < 10 {
		t.Errorf("the second build: %s", out)
	}
	var now cove.Image
	if err := json.Unmarshal([]byte(h.Run("", "cove", "image", "info", "app", "--json")), &now); err != nil {
		t.Fatal(err)
	}
	if now.Digest != was.Digest {
		t.Errorf("the second build made %s, want %s", now.Digest, was.Digest)
	}
	// An ignored or merely touched file changes nothing. A file of the last stage changes only
	// that stage.
	write(t, filepath.Join(dir, "unused"), "2\n")
	if out := build(); strings.Contains(out, "  refused\n") {
		t.Errorf("an ignored file has changed: %s", out)
	}
	write(t, filepath.Join(dir, "src/a.txt"), "changed\n")
	if out := build(); strings.Contains(out, "runs") || !strings.Contains(out, "  refused\n") {
		t.Errorf("a file of the last stage has changed: %s", out)
	}
	write(t, filepath.Join(dir, "make.sh"), "#!/bin/sh\necho anew $1 >made\n")
	if out := build(); !strings.Contains(out, "runs 2") {
		t.Errorf("a file of the first stage has changed: %s", out)
	}
	// FROM scratch without RUN: nothing to pull, and nothing to run.
	write(t, filepath.Join(dir, "Bare"), "FROM scratch\nCOPY src/a.txt /only\n")
	h.Run("app", "cove", "image", "build", "-t", "bare", "-f", "Bare", "--pull", ".")
	if out := h.Run("", "cove", "image", "info", "bare", "--json"); !strings.Contains(out, `"layers"`) {
		t.Errorf("an image of one file: %s", out)
	}
	// A failure.
	out, code := h.Try("app", "cove", "image", "build", "--secret", "id=key,src="+key, "--target", "test", "--no-cache", "--memory", "512M", "--cpus", "1", "--allow", "10.9.9.9:8443", ".")
	if code == 0 || !strings.Contains(out, "Dockerfile:21: the command ended with exit code 7") {
		t.Errorf("a RUN that fails: exit code %d: %s", code, out)
	}
	if out := h.Run("", "cove", "list", "--json"); strings.Contains(out, "build.") {
		t.Errorf("a build's sprite is listed: %s", out)
	}
	if out := h.Run("", "cove", "image", "list"); strings.Count(out, "\n") != 6 {
		t.Errorf("images: %s", out)
	}
	data := h.Run("", "sh", "-c", `cd "$COVE_DATA" && ls build/runs && grep -rl opensesame . || true`)
	if data != "" {
		t.Errorf("it left: %s", data)
	}
	h.Run("", "cove", "rm", "paint")
	if out, _ := h.Try("", "cove", "image", "prune", "--dry-run"); !strings.Contains(out, " steps of builds") || !strings.Contains(out, "caches of builds, ") || strings.Contains(out, "app") {
		t.Errorf("a prune would: %s", out)
	}
	if out := h.Run("", "cove", "image", "list", "--all"); strings.Count(out, "\n-") < 5 {
		t.Errorf("with the steps of builds: %s", out)
	}
	h.Run("", "cove", "image", "prune", "--yes")
	if out := h.Run("", "cove", "image", "list", "--all"); !strings.Contains(out, "app") || strings.Contains(out, "\n-") {
		t.Errorf("after a prune: %s", out)
	}
	h.Run("", "cove", "image", "prune", "--all")
	if out := h.Run("", "cove", "image", "list"); strings.Contains(out, "app") {
		t.Errorf("after a prune of all: %s", out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) == 0 {
		t.Error(left, err)
	}
}

// TestBuildTmp: /tmp of a RUN is on the disk: the next step, another stage and the image have its
// files. A sprite of an image without files there has it in memory.
func TestBuildTmp(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	importSmall(t, h)
	write(t, filepath.Join(filepath.Dir(h.Home), "app/Dockerfile"), `FROM small:1 AS fetch
USER 7:8
RUN echo hi >/tmp/x && stat -c %a /tmp
RUN --mount=type=tmpfs,target=/tmp/deep cat /tmp/x && mv /tmp/x /tmp/y && echo no >/tmp/deep/z
FROM small:1
COPY --from=fetch /tmp /from
RUN cat /from/y && ls -A /tmp
`)
	out := h.Run("app", "sh", "-c", "exec cove image build -t app . 2>&1")
	if strings.Count(out, "  hi\n") != 2 || !strings.Contains(out, "  1777\n") {
		t.Errorf("the build says %s", out)
	}
	h.Run("", "cove", "create", "paint", "--image", "app")
	if got := h.Run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "ls -A /from; ls -A /tmp; grep -c ' /tmp ' /proc/mounts"); got != "y\n1\n" {
		t.Errorf("the image has %q", got)
	}
}

// importSmall imports the image small:1, which has busybox, into a server.
func importSmall(t *testing.T, h *e2e.Host) {
	t.Helper()
	saved := filepath.Join(filepath.Dir(h.Home), "saved.tar")
	small, err := name.NewTag("small:1")
	if err == nil {
		err = tarball.WriteToFile(saved, small, imageOf(t, v1.Config{Env: []string{"PATH=/bin"}}, busyboxLayer(t)))
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "image", "import", saved)
}

// TestBuildNetwork: if a RUN fails and the network rules refused it a destination, the build
// says so, and how to allow it.
func TestBuildNetwork(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	importSmall(t, h)
	write(t, filepath.Join(filepath.Dir(h.Home), "app/Dockerfile"), "FROM small:1\nRUN wget -O- http://203.0.113.80/ || wget -O- http://203.0.113.80/\n")
	out, code := h.Try("app", "cove", "image", "build", "-q", ".")
	if code == 0 || strings.Count(out, "refused by the network rules: 203.0.113.80:80; allow it: --allow 203.0.113.80:80\n") != 1 || !strings.Contains(out, "build with: --allow 203.0.113.80:80\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestBuildAsUser: an ordinary user's server builds the same.
func TestBuildAsUser(t *testing.T) { e2e.AsOrdinaryUser(t, "^TestBuild(Tmp)?$", "30m") }

// skopeoTakes: skopeo reads saved images, as a Docker archive and as an archive of an OCI
// layout, and compares all digests.
func skopeoTakes(t *testing.T, h *e2e.Host, image string) {
	need.Program(t, "skopeo", "skopeo")
	file := filepath.Join(filepath.Dir(h.Home), "out.tar")
	h.Run("", "cove", "image", "save", image, "-o", file)
	var inspected struct {
		Architecture, Os string
		Layers           []string
		Labels           map[string]string
		Env              []string
	}
	kinds := []string{"docker-archive:"}
	if os.Geteuid() == 0 { // skopeo unpacks the other one with its owners
		kinds = append(kinds, "oci-archive:")
	}
	for _, kind := range kinds {
		out := h.Run("", "skopeo", "inspect", kind+file)
		if err := json.Unmarshal([]byte(out), &inspected); err != nil {
			t.Fatalf("%s%v: %s", kind, err, out)
		}
		if len(inspected.Layers) < 5 || inspected.Labels["of"] != "test" || inspected.Os != "linux" || !slices.Contains(inspected.Env, "COLOUR=blue") {
			t.Errorf("%s%+v", kind, inspected)
		}
		h.Run("", "skopeo", "--insecure-policy", "copy", "--quiet", kind+file, "oci:"+file+"."+kind+"copy:1")
	}
}
