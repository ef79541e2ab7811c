package images

import (
	"bufio"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
)

// serves is the command of a container that serves its argument by HTTP.
const serves = `sh -c 'mkdir -p /www && echo "$0" >/www/index.html && exec httpd -f -p 80 -h /www'`

// composition is a Compose file with a volume, a service that is built, and one that
// waits for it.
const composition = `services:
  back:
    build: .
    command: ["sh", "-c", "mkdir -p /www; cp /made /www/index.html; exec httpd -f -p 80 -h /www"]
    volumes: ["kept:/kept"]
  front:
    image: busybox:1
    depends_on: [back]
    command: ["sh", "-c", "until wget -qO /got http://back/; do sleep 0.2; done; cp /got /www.tmp; mkdir -p /www; mv /www.tmp /www/index.html; exec httpd -f -p 80 -h /www"]
    ports: ["8090:80"]
volumes:
  kept:
`

// TestSoakDocker: Debian's Docker runs in a sprite, as docs/docker.md says, with the sprite's
// policy and limits, on root's server and on an ordinary user's. A refused checkpoint or sleep
// loses nothing.
func TestSoakDocker(t *testing.T) {
	if os.Geteuid() != 0 {
		dockerWorks(t, os.Getenv(debianVariable))
		return
	}
	if !e2e.Soak() {
		t.Skip("COVE_SOAK=1 runs it")
	}
	debian := makeDebian(t, "curl")
	t.Setenv(debianVariable, debian)
	if err := os.Chmod(filepath.Dir(filepath.Dir(debian)), 0o755); err != nil { // the user reads it
		t.Fatal(err)
	}
	t.Run("root", func(t *testing.T) { dockerWorks(t, debian) })
	t.Run("user", func(t *testing.T) { e2e.AsOrdinaryUser(t, "^TestSoakDocker$", "60m") })
}

// dockerWorks is TestSoakDocker with the tar of a Debian system.
func dockerWorks(t *testing.T, debian string) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewLoneHost(t)
	h.Serve(nil)
	h.Run("", "cove", "image", "import", debian, "--name", "debian:local")
	h.Run("", "cove", "create", "paint", "--image", "debian:local", "--memory", "1G", "--idle", "0")
	for _, addr := range mirrors(t, debian) {
		h.Run("", "cove", "policy", "allow", "-s", "paint", addr)
	}
	h.Run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-ec", `exec >log 2>&1
		apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends docker.io docker-cli docker-compose iptables || { cat log >&2; exit 1; }`)
	h.Run("", "cove", "service", "put", "-s", "paint", "--user", "root", "docker", "cove-guest", "docker", "--group", "sprite")
	up := func() { h.Sh("paint", `until docker version >/dev/null 2>&1; do sleep 0.2; done`) }
	up()
	sh := func(script, want string) {
		t.Helper()
		if got := h.Sh("paint", script); got != want {
			t.Fatalf("%s\ngot %q, want %q", script, got, want)
		}
	}

	// Images.
	tag, err := name.NewTag("busybox:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(h.Path("busybox.tar"), tag, imageOf(t, v1.Config{Env: []string{"PATH=/bin"}}, busyboxLayer(t))); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "cp", h.Path("busybox.tar"), "paint:busybox.tar")
	h.Sh("paint", `docker load -q -i busybox.tar; docker export $(docker create busybox:1 true) | docker import - flat:1; docker rm -f $(docker ps -aq)`)
	sh(`docker run --rm -e COLOUR=blue busybox:1 sh -c 'echo $COLOUR; echo bad >&2; exit 7' 2>err || echo $?; grep bad err`, "blue\n7\nbad\n")
	sh(`docker run --rm flat:1 /bin/busybox echo flat`, "flat\n")
	h.Write("Dockerfile", "FROM busybox:1\nRUN echo built >/made\nCMD [\"cat\", \"/made\"]\n")
	h.Write("docker-compose.yml", composition)
	h.Sh("paint", "mkdir app")
	for _, file := range []string{"Dockerfile", "docker-compose.yml"} {
		h.Run("", "cove", "cp", h.Path(file), "paint:app/"+file)
	}
	sh(`docker build -q -t app:1 app >/dev/null 2>&1; docker run --rm app:1`, "built\n")

	// Networks and ports.
	h.Sh("paint", `docker run -d --name web -p 8080:80 busybox:1 `+serves+` published
		docker run -d --name hidden busybox:1 sh -c 'exec httpd -f -p 3000 -h /bin'
		docker network create mine; docker run -d --name named --network mine busybox:1 `+serves+` named`)
	published := func() {
		t.Helper()
		sh(`until curl -sf http://127.0.0.1:8080/; do sleep 0.2; done`, "published\n")
	}
	published()
	sh(`docker run --rm busybox:1 wget -qO- http://$(docker inspect -f '{{.NetworkSettings.IPAddress}}' web)/`, "published\n")
	sh(`docker run --rm --network mine busybox:1 wget -qO- http://named/`, "named\n")
	atProxy(t, h, "8080", "published\n")
	atURL(t, h, "published\n")
	ports, err := h.Client().Sprite("paint").WatchPorts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shown := map[int]bool{}
	for _, p := range ports.Open() {
		shown[p.Port] = true
	}
	if err := ports.Close(); err != nil {
		t.Error(err)
	}
	if !shown[8080] || shown[80] || shown[3000] {
		t.Errorf("of the containers' ports the sprite has %v", shown)
	}

	// The policy denies an address that is reached without it.
	mirror := mirrors(t, debian)[0]
	ask := `docker run --rm busybox:1 sh -c 'mkfifo f; nc ` + mirror + ` 80 <f >got & exec 3>f; printf "HEAD / HTTP/1.0\r\nHost: x\r\n\r\n" >&3; wait; head -c 5 got'`
	sh(ask, "HTTP/")
	h.Run("", "cove", "policy", "set", "--preset", "none", "-s", "paint")
	sh(ask, "")
	if out := h.Run("", "cove", "policy", "log", "-s", "paint"); !strings.Contains(out, mirror) {
		t.Errorf("the policy's log has no %s: %s", mirror, out)
	}

	// The sprite's memory: only the process that uses it up is ended. An ordinary user's server
	// may not be able to limit memory.
	if os.Geteuid() == 0 {
		sh(`docker run --rm busybox:1 awk 'BEGIN { s = sprintf("%1000s", ""); for (;;) a[i++] = s i }' || echo ended $?`, "ended 137\n")
		published()
	}

	// Containers together.
	h.Sh("paint", `cd app; docker-compose up -d >log 2>&1 || { cat log >&2; exit 1; }`)
	sh(`until curl -sf http://127.0.0.1:8090/; do sleep 0.2; done`, "built\n")
	sh(`cd app; docker-compose exec -T back sh -c 'echo kept >/kept/file'; docker-compose exec -T front cat /got`, "built\n")

	// A sprite that can't be saved is refused, and all goes on.
	began := h.Sh("paint", "docker inspect -f '{{.State.StartedAt}}' web named hidden")
	for _, args := range [][]string{{"checkpoint", "create", "-s", "paint"}, {"fork", "paint", "other"}, {"suspend", "paint"}} {
		out, code := h.Try("", "cove", args...)
		if code != 1 || !strings.Contains(out, `"dockerd" (process`) || !strings.Contains(out, "cove service stop -s paint docker") {
			t.Errorf("%s: exit code %d: %s", args, code, out)
		}
		published()
		sh(`docker run --rm --network mine busybox:1 wget -qO- http://named/`, "named\n")
	}
	idle(t, h, published)
	if now := h.Sh("paint", "docker inspect -f '{{.State.StartedAt}}' web named hidden"); now != began {
		t.Errorf("the containers began at %q, and now at %q", began, now)
	}

	// With the service stopped, a checkpoint is made. Containers and volumes are there again.
	h.Run("", "cove", "service", "stop", "-s", "paint", "docker", "--grace", "60s")
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	h.Run("", "cove", "suspend", "paint")
	h.Run("", "cove", "service", "start", "-s", "paint", "docker")
	up()
	h.Sh("paint", "docker start web")
	published()
	sh(`docker run --rm -v app_kept:/kept busybox:1 cat /kept/file`, "kept\n")
}

// idle leaves the sprite idle until the server has tried to keep its memory, which can't be
// kept. Then the sprite is used again.
func idle(t *testing.T, h *e2e.Host, used func()) {
	t.Helper()
	const refused = "the memory of a sandbox can't be kept"
	log := filepath.Join(h.Data, "serve.log")
	before := strings.Count(e2e.ReadFile(t, log), refused)
	h.Run("", "cove", "update", "paint", "--idle", "1s", "--hibernate", "3s")
	e2e.Await(t, "the sleep that can't be", func() bool { return strings.Count(e2e.ReadFile(t, log), refused) > before })
	h.Stage("paint", true)
	used()
	h.Run("", "cove", "update", "paint", "--idle", "0")
}

// atProxy reads a port of the sprite through `cove proxy`.
func atProxy(t *testing.T, h *e2e.Host, port, want string) {
	t.Helper()
	cmd := h.Command("", "cove", "proxy", "-s", "paint", "0:"+port)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	at := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if err != nil || at == "" {
		t.Fatalf("cove proxy said %q, %v", line, err)
	}
	if got, err := exec.Command("curl", "-sf", "http://"+at+"/").Output(); err != nil || string(got) != want {
		t.Errorf("by cove proxy: got %q, %v, want %q", got, err, want)
	}
}

// atURL reads the sprite's URL.
func atURL(t *testing.T, h *e2e.Host, want string) {
	t.Helper()
	at, err := url.Parse(h.Info("paint").URL)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+at.Port()+"/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = at.Host
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(e2e.ReadFile(t, filepath.Join(h.Data, "token"))))
	e2e.Await(t, "an answer at the sprite's URL", func() bool {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			return false // the server has waited for ten seconds, and says to try again
		}
		if got, err := io.ReadAll(resp.Body); err != nil || string(got) != want {
			t.Errorf("at the sprite's URL: got %q, %v, want %q", got, err, want)
		}
		return true
	})
}
