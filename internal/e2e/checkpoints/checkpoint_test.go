package checkpoints

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/test/e2e"
)

// TestRestlessCheckpoints: root's random changes, made all the time, survive checkpoints.
// That holds even where the next sandbox, which is created before the pause, has already
// looked: in /, and in the folders with mounts.
func TestRestlessCheckpoints(t *testing.T) {
	h := e2e.NewHost(t)
	h.Serve(nil)
	h.Run("", "cove", "create", "paint", "--idle", "0")
	script, err := os.ReadFile("testdata/restless.py")
	if err != nil {
		t.Fatal(err)
	}
	h.Write("restless.py", string(script))
	h.Run("", "cove", "cp", "restless.py", "paint:/home/sprite/restless.py")
	again := func() int {
		log, err := filepath.Glob(filepath.Join(h.Data, "run", "*", "shim.log"))
		if err != nil || len(log) != 1 {
			t.Fatalf("logs of shims: %v, %v", log, err)
		}
		text, err := os.ReadFile(log[0])
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "because it could not be created before") {
			t.Errorf("a sandbox was not created before the pause: %s", text)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "again, during the pause") {
				t.Log(line)
			}
		}
		return strings.Count(string(text), "again, during the pause")
	}
	for _, test := range []struct{ name, tops string }{
		{"elsewhere", "/home/sprite /etc /usr/local/share"},
		{"at mounts", "/ /.sprite /.sprite/git /usr /home/sprite"},
	} {
		before := again()
		h.Sh("paint", "sudo mkdir -p /.sprite/git; rm -f stop model going; (sudo -n python3 restless.py run . model "+test.tops+" >said 2>&1 && echo 0 >ended || echo $? >ended) >/dev/null 2>&1 & until [ -e going ] || [ -e ended ]; do sleep 0.1; done")
		const times = 3
		for range times {
			h.Run("", "cove", "checkpoint", "create", "-s", "paint")
		}
		out := h.Sh("paint", "touch stop; until [ -s ended ]; do sleep 0.1; done; cat said ended; rm ended")
		if !strings.HasSuffix(out, "\n0\n") {
			t.Errorf("%s: %s", test.name, out)
		}
		t.Logf("%s: %s", test.name, strings.TrimSpace(out))
		h.Run("", "cove", "fork", "paint", "look", "--boot")
		if out, code := h.Try("", "cove", "exec", "-s", "look", "--", "sh", "-c", "sudo -n python3 restless.py look model "+test.tops); code != 0 {
			t.Errorf("%s: on disk: %s", test.name, out)
		}
		h.Run("", "cove", "rm", "look")
		switch n := again() - before; {
		case test.name == "elsewhere" && n == times: // the first change over a layer copies a folder of /
			t.Error("no sandbox that was created before the pause was used, though nothing that they had looked at changed")
		case test.name == "at mounts" && n == 0:
			t.Error("nothing changed where a sandbox that was created before the pause had looked")
		}
	}
}

// TestCheckpointOfTheLastMoment: a first write over this layer, to a folder above a
// mount, survives a checkpoint. It is made after the next sandbox was created, and before
// the old one is paused.
func TestCheckpointOfTheLastMoment(t *testing.T) {
	h := e2e.NewHost(t)
	reached := filepath.Join(filepath.Dir(h.Home), "reached")
	h.Serve([]string{fault.Variable + "=" + string(fault.MovePrepared) + "=" + reached})
	signals := t.TempDir() // the sprite sees this folder even without its shim
	h.Run("", "cove", "create", "paint", "--idle", "0", "--include", signals)
	h.Sh("paint", "true")
	// The first checkpoint does not stop at the fault point. It leaves an empty layer.
	if err := os.WriteFile(reached, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.Run("", "cove", "checkpoint", "create", "-s", "paint")
	if err := os.Remove(reached); err != nil {
		t.Fatal(err)
	}
	h.Sh("paint", "(until [ -e "+signals+"/go ]; do sleep 0.1; done; sudo -n sh -c 'echo late >/.sprite/late; chmod 711 /.sprite') >/dev/null 2>&1 &")
	_, ended := h.Background("", "cove", "checkpoint", "create", "-s", "paint")
	shim := e2e.Reached(t, reached)
	written := func() bool {
		found, err := filepath.Glob(filepath.Join(h.Data, "layers", "*", "root", "upper", ".sprite", "late"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found) > 0
	}
	if written() {
		t.Fatal("it did not wait to be told")
	}
	if err := os.WriteFile(filepath.Join(signals, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	e2e.Await(t, "the write", written)
	if err := e2e.Signal(shim, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if out, err := ended(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := h.Sh("paint", "cat /.sprite/late; stat -c %a /.sprite"); got != "late\n711\n" {
		t.Errorf("the sprite has %q", got)
	}
	h.Run("", "cove", "fork", "paint", "look", "--boot")
	if got := h.Sh("look", "cat /.sprite/late; stat -c %a /.sprite"); got != "late\n711\n" {
		t.Errorf("on disk there is %q", got)
	}
}
