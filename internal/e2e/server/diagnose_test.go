package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// diagnosed runs cove diagnose. It returns the output, and whether nothing was found
// wrong.
func diagnosed(h *e2e.Host, args ...string) (string, bool) {
	h.T.Helper()
	out, code := h.Try("", "cove", append([]string{"diagnose", "paint", "--agent", "shell"}, args...)...)
	if code > 1 {
		h.T.Errorf("diagnose exited with %d: %s", code, out)
	}
	return out, code == 0
}

// TestDiagnoseConnectors: through the connector, diagnose distinguishes an upstream that
// refuses the key, one that is not there, and a secret that is not set.
func TestDiagnoseConnectors(t *testing.T) {
	h := e2e.NewHost(t)
	var status, asked atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" && r.Header.Get("X-Api-Key") == e2e.ConnectorKey {
			asked.Add(1)
		}
		w.WriteHeader(int(status.Load()))
	}))
	defer upstream.Close()
	h.Serve(nil)
	h.Run("", "cove", "connector", "put", "anthropic", "--upstream", upstream.URL)
	h.Run("", "cove", "create", "paint")
	h.Run("", "cove", "connector", "grant", "anthropic", "--sprite", "paint")
	if out, fine := diagnosed(h); fine || !strings.Contains(out, "auth-invalid   connector anthropic: its secret is not set") {
		t.Errorf("without a secret: %s", out)
	}
	set := h.Command("", "cove", "secret", "set", "anthropic")
	set.Stdin = strings.NewReader(e2e.ConnectorKey)
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	status.Store(http.StatusUnauthorized)
	if out, fine := diagnosed(h); fine || !strings.Contains(out, "auth-invalid   connector anthropic: its upstream refuses the key") || !strings.Contains(out, "next: cove secret set anthropic") {
		t.Errorf("with a wrong key: %s", out)
	}
	status.Store(http.StatusOK)
	if out, fine := diagnosed(h); !fine || !strings.Contains(out, "connector: anthropic answers 200") || strings.Contains(out, e2e.ConnectorKey) {
		t.Errorf("with the right one: %s", out)
	}
	if out := h.Run("", "cove", "ping", "paint"); !strings.Contains(out, "anthropic answers 200") {
		t.Errorf("ping: %s", out)
	}
	if asked.Load() != 3 {
		t.Errorf("the upstream was asked %d times, with the key", asked.Load())
	}
	h.Run("", "cove", "connector", "put", "anthropic", "--upstream", upstream.URL, "--paths", "/v1/messages")
	if out, fine := diagnosed(h); !fine || !strings.Contains(out, "its rules do not allow a check") {
		t.Errorf("with rules: %s", out)
	}
	h.Run("", "cove", "connector", "put", "anthropic", "--upstream", upstream.URL)
	upstream.Close()
	if out, fine := diagnosed(h); fine || !strings.Contains(out, "unreachable    connector anthropic: its upstream does not answer") || !strings.Contains(out, "paint: its connector anthropic is unreachable\n") {
		t.Errorf("without an upstream: %s", out)
	}
	h.Run("", "cove", "connector", "revoke", "anthropic", "--sprite", "paint")
	if out, fine := diagnosed(h); !fine {
		t.Errorf("without a grant: %s", out)
	}
	e2e.SignalAll(t, syscall.SIGSTOP, h.PID())
	out, fine := diagnosed(h)
	e2e.SignalAll(t, syscall.SIGCONT, h.PID())
	if fine || !strings.Contains(out, "paint: unreachable") || !strings.Contains(out, "kill -CONT") {
		t.Errorf("a server that is stopped: %s", out)
	}
}

// TestDiagnoseFullDisk: diagnose finds a full disk from inside the sprite.
func TestDiagnoseFullDisk(t *testing.T) {
	h := e2e.NewSmallHost(t, "160m")
	fill := filepath.Join(h.Data, "fill")
	t.Cleanup(func() { _ = os.Remove(fill) }) // else nothing can be deleted
	h.Serve(nil, "--disk-reserve", "0")
	h.Run("", "cove", "create", "paint")
	if out, fine := diagnosed(h); !fine {
		t.Errorf("with room: %s", out)
	}
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 1<<20))
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if out, fine := diagnosed(h); fine || !strings.Contains(out, "paint: disk-full") || !strings.Contains(out, "can't write 1 MiB") || !strings.Contains(out, "next: cove exec -s paint -- sh -c 'du") {
		t.Errorf("full: %s", out)
	}
	if err := os.Truncate(fill, 0); err != nil {
		t.Error(err)
	}
	if out, fine := diagnosed(h); !fine {
		t.Errorf("with room again: %s", out)
	}
}

// TestDiagnoseNames: diagnose reports a machine whose resolver does not answer. Names that
// the gateway itself answers are still found.
func TestDiagnoseNames(t *testing.T) {
	h := e2e.NewRootHost(t)
	h.Run("", "cove", "create", "paint")
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, code := h.Try("", "unshare", "-m", "sh", "-c", `mount --bind "$1" /etc/resolv.conf && exec cove diagnose paint --agent shell`, "sh", conf)
	if code != 1 || !strings.Contains(out, "unreachable    external names: no answer from the resolver 127.0.0.2") || !strings.Contains(out, "names: are looked up inside") || !strings.Contains(out, "next: see why it does not answer") {
		t.Errorf("diagnose without a resolver: %d\n%s", code, out)
	}
	if out, fine := diagnosed(h); !fine || !strings.Contains(out, "names: external names are looked up by") {
		t.Errorf("diagnose with one:\n%s", out)
	}
}
