package images

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-dev/cove/internal/shim"
	"github.com/cove-dev/cove/internal/test/e2e"
	"github.com/cove-dev/cove/internal/test/need"
	"github.com/cove-dev/cove/sprites"
)

// pooled waits until the pool has so many sandboxes over each of its bases, and returns their
// containers.
func pooled(h *e2e.Host, want map[string]int) map[string]bool {
	h.T.Helper()
	e2e.Await(h.T, "the pool", func() bool {
		info, err := h.Client().Version(h.T.Context())
		if err != nil || info.Pool == nil {
			return false
		}
		for _, part := range info.Pool.Parts {
			if part.Ready != want[part.Image] {
				return false
			}
		}
		return true
	})
	all := map[string]bool{}
	for _, dir := range sandboxes(h) {
		if st, err := shim.ReadState(dir); err == nil && strings.HasPrefix(st.Hostname, "pool.") {
			all[st.Container] = true
		}
	}
	return all
}

// sandboxes returns the folders of the running sandboxes.
func sandboxes(h *e2e.Host) []string {
	all, _ := filepath.Glob(filepath.Join(h.Data, "run", "*")) // the pattern is right
	return all
}

// containerOf returns the container of a sprite's sandbox.
func containerOf(h *e2e.Host, name string) string {
	h.T.Helper()
	st, err := shim.ReadState(filepath.Join(h.Data, "run", h.Info(name).ID))
	if err != nil {
		h.T.Fatal(err)
	}
	return st.Container
}

// insideOf returns everything that could tell a sprite's programs which sprite they are in,
// with its own names replaced.
func insideOf(h *e2e.Host, name string) string {
	h.T.Helper()
	out := h.Sh(name, `id; pwd; umask; ulimit -a; nproc; env | sort; cat /etc/passwd /etc/group /etc/os-release /.sprite/policy/network.json
cut -d' ' -f2-4 /proc/mounts | sort
grep -rslE 'pool[.][0-9a-f]{16}' /etc /home /root /.sprite /run /var 2>/dev/null || true
find / -xdev ! -path '/proc/*' ! -path '/sys/*' ! -path '/dev/*' ! -path '/tmp/*' -exec stat -c '%A %u %g %n' {} + 2>/dev/null | sort -k4`)
	info := h.Info(name)
	return strings.NewReplacer(info.URL, "URL", info.ID, "ID", name, "NAME").Replace(out)
}

// TestPoolOverImages: once an image is here, sandboxes over it are ready before anybody asks.
// The image can't be removed while the pool uses it. A sprite that takes such a sandbox does
// not differ from one that boots. None is left after a kill of the server.
func TestPoolOverImages(t *testing.T) {
	need.Program(t, "busybox", "busybox-static")
	h := e2e.NewHost(t)
	h.Serve(nil, "--default-image", "small:1", "--pool", "1", "--pool", "host=1")
	pooled(h, map[string]int{"host": 1})
	for _, args := range [][]string{{"doctor"}, {"server", "status"}} {
		if out, _ := h.Try("", "cove", args...); !strings.Contains(out, "small:1") || !strings.Contains(out, "cove image pull small:1") {
			t.Errorf("without the image, %v says %s", args, out)
		}
	}
	file := filepath.Join(filepath.Dir(h.Home), "small.tar")
	tag, err := name.NewTag("small:1")
	if err == nil {
		err = tarball.WriteToFile(file, tag, imageOf(t, v1.Config{User: "nobody", Env: []string{"SHAPE=round", "PATH=/usr/bin:/bin"}, WorkingDir: "/usr"}, busyboxLayer(t)))
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "image", "import", file)
	all := map[string]int{"small:1": 1, "host": 1}
	ready := pooled(h, all)
	var status struct{ Pool *sprites.Pool }
	if err := json.Unmarshal([]byte(h.Run("", "cove", "server", "status", "--json")), &status); err != nil || status.Pool == nil || status.Pool.Ready != 2 || !strings.HasPrefix(status.Pool.Parts[0].Digest, "sha256:") {
		t.Errorf("the status has %+v, %v", status.Pool, err)
	}
	if out := h.Run("", "cove", "server", "status"); !strings.Contains(out, "small:1: 1 of 1 ready") || !strings.Contains(out, "host: 1 of 1 ready") {
		t.Errorf("the status is %s", out)
	}
	if out := h.Run("", "cove", "doctor"); !strings.Contains(out, "small:1 1 of 1") {
		t.Errorf("doctor says %s", out)
	}
	if out, code := h.Try("", "cove", "image", "rm", "small:1", "--yes"); code == 0 || !strings.Contains(out, "pool") {
		t.Errorf("an image in the pool was removed: %d, %s", code, out)
	}
	h.Run("", "cove", "image", "prune", "--yes")
	if out := h.Run("", "cove", "image", "info", "small:1"); !strings.Contains(out, "the server's pool") {
		t.Errorf("the image is described as %s", out)
	}

	h.Run("", "cove", "create", "tools", "--image", "host")
	h.Run("", "cove", "create", "small-taken", "--env", "COLOUR=blue", "--network", "none")
	for _, name := range []string{"tools", "small-taken"} {
		h.Sh(name, "true")
		if !ready[containerOf(h, name)] {
			t.Errorf("the sandbox of %s is not one of the pool's", name)
		}
	}
	// This sprite has a limit, equal to the default, so its sandbox is not from the pool.
	cpus, _, _ := strings.Cut(h.Sh("small-taken", "nproc"), "\n")
	h.Run("", "cove", "create", "small-fresh", "--env", "COLOUR=blue", "--network", "none", "--cpus", cpus)
	taken, fresh := insideOf(h, "small-taken"), insideOf(h, "small-fresh")
	if ready[containerOf(h, "small-fresh")] || taken != fresh {
		t.Errorf("one of the pool's is not as one that starts:\n%s", diff(taken, fresh))
	}
	if out := h.Sh("small-taken", "id -un; pwd; echo $SHAPE $COLOUR; cat /etc/os-release"); out != "nobody\n/usr\nround blue\nID=small\n" {
		t.Errorf("over the image, it is %q", out)
	}
	again := pooled(h, all)
	for c := range again {
		if ready[c] {
			t.Errorf("%s is in the pool again", c)
		}
	}
	h.Run("", "cove", "rm", "small-taken", "small-fresh", "tools", "--yes")

	e2e.SignalAll(t, syscall.SIGKILL, h.PID())
	h.Serve(nil) // without a pool
	e2e.Await(t, "the end of the pool", func() bool {
		layers, _ := filepath.Glob(filepath.Join(h.Data, "layers", "*")) // the pattern is right
		return len(sandboxes(h)) == 0 && len(layers) == 0
	})
	h.Run("", "cove", "image", "rm", "small:1", "--yes")
}

// diff has the lines that only one of two texts has.
func diff(a, b string) string {
	var out strings.Builder
	for sign, pair := range map[string][2]string{"- ": {a, b}, "+ ": {b, a}} {
		others := "\n" + pair[1] + "\n"
		for line := range strings.Lines(pair[0]) {
			if !strings.Contains(others, "\n"+strings.TrimSuffix(line, "\n")+"\n") {
				out.WriteString(sign + line)
			}
		}
	}
	return out.String()
}

func TestPoolOverImagesOrdinaryUser(t *testing.T) {
	e2e.AsOrdinaryUser(t, "^TestPoolOverImages$", "20m")
}
